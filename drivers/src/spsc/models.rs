//! loom models: every interleaving of the two sides, with the orderings as written.

use super::*;

fn pair(size: u32, start: u32) -> (Producer<u64>, Consumer<u64>) {
    let ring = RingMemory::on_heap(size, start);
    (Producer::new(ring.clone()), Consumer::new(ring))
}

/// Values cross in order, once, over more laps than the ring has slots.
#[test]
fn values_cross_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = pair(2, u32::MAX);
        let sender = loom::thread::spawn(move || {
            let mut sent = 0;
            while sent < 3 {
                let count = producer.free(2).min(3 - sent);
                producer.write_each(count, |at| (sent + at) as u64);
                producer.publish();
                sent += count;
                loom::thread::yield_now();
            }
        });
        let mut received = 0;
        while received < 3 {
            let count = consumer.available(2);
            consumer.read_each(count, |at, value| assert_eq!(value, received + at as u64));
            consumer.release();
            received += count as u64;
            loom::thread::yield_now();
        }
        sender.join().unwrap();
    });
}
