//! The ring against a queue, and at its ends.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn pair(size: u32, start: u32) -> (Producer<u64>, Consumer<u64>) {
    let ring = RingMemory::on_heap(size, start);
    (Producer::new(ring.clone()), Consumer::new(ring))
}

#[test]
fn ten_clean_wraps_at_four_sizes_and_across_the_end_of_u32() {
    for size in [1, 2, 8, 64] {
        let (mut producer, mut consumer) = pair(size, u32::MAX - 8);
        let (mut sent, mut received) = (0_u64, 0_u64);
        while received < 10 * u64::from(size) + 20 {
            let count = producer.free(3);
            producer.write_each(count, |at| sent + at as u64);
            producer.publish();
            sent += count as u64;
            let count = consumer.available(2);
            consumer.read_each(count, |at, value| assert_eq!(value, received + at as u64));
            consumer.release();
            received += count as u64;
            assert_eq!(u64::from(producer.unconsumed()), sent - received);
        }
    }
}

#[test]
fn a_full_ring_takes_nothing_and_an_empty_one_gives_nothing() {
    let (mut producer, mut consumer) = pair(4, 0);
    assert_eq!(consumer.available(1), 0);
    assert_eq!(producer.free(9), 4);
    producer.write_each(4, |at| at as u64);
    assert_eq!(consumer.available(1), 0, "nothing is there before it is published");
    producer.publish();
    assert_eq!((producer.free(1), consumer.available(9)), (0, 4));
    consumer.read_each(1, |_, _| ());
    assert_eq!(producer.free(1), 0, "a slot is free only after it is released");
    consumer.release();
    assert_eq!(producer.free(9), 1);
}

#[test]
fn sent_values_are_received_in_order_as_far_as_there_is_room() {
    let (mut producer, mut consumer) = super::pair(4);
    let mut out = [0; 8];
    assert_eq!(consumer.receive(&mut out), 0);
    assert_eq!((producer.send(&[1, 2, 3]), consumer.receive(&mut out[..2])), (3, 2));
    assert_eq!((producer.send(&[4, 5, 6, 7, 8]), producer.send(&[9])), (3, 0));
    assert_eq!(consumer.receive(&mut out[2..]), 4);
    assert_eq!(out, [1, 2, 3, 4, 5, 6, 0, 0]);
}

#[test]
fn what_was_not_consumed_can_be_taken_back() {
    let (mut producer, mut consumer) = pair(8, u32::MAX - 2);
    producer.free(6);
    producer.write_each(6, |at| at as u64);
    producer.publish();
    consumer.available(2);
    consumer.read_each(2, |_, _| ());
    consumer.release();
    let mut back = vec![];
    // SAFETY: the consumer is not used any more.
    unsafe { producer.take_back(|value| back.push(value)) };
    assert_eq!((back, producer.unconsumed()), (vec![5, 4, 3, 2], 0));
}

#[test]
fn the_flag_crosses() {
    let (producer, consumer) = pair(2, 0);
    assert!(!producer.needs_wakeup());
    consumer.set_needs_wakeup(true);
    assert!(producer.needs_wakeup());
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue(
        log_size in 0_u32..8,
        start in prop_oneof![Just(0), Just(u32::MAX - 3), any::<u32>()],
        ops in prop::collection::vec((any::<bool>(), 0_usize..40), 1..200),
    ) {
        let size = 1 << log_size;
        let (mut producer, mut consumer) = pair(size, start);
        let mut oracle = VecDeque::new();
        let mut sent = 0_u64;
        for (produce, want) in ops {
            if produce {
                let count = producer.free(want);
                prop_assert_eq!(count, want.min(size as usize - oracle.len()));
                producer.write_each(count, |at| sent + at as u64);
                producer.publish();
                oracle.extend(sent..sent + count as u64);
                sent += count as u64;
            } else {
                let count = consumer.available(want);
                prop_assert_eq!(count, want.min(oracle.len()));
                let mut read = vec![];
                consumer.read_each(count, |_, value| read.push(value));
                consumer.release();
                prop_assert!(read.into_iter().eq(oracle.drain(..count)));
            }
        }
    }
}

/// Nothing that a peer writes into its index makes this side touch more than the ring, now or in the next call.
#[test]
fn an_index_that_no_peer_could_have_written_is_bounded() {
    for wrong in [1, 5, 8, 9, 100, 1 << 31, u32::MAX - 8, u32::MAX] {
        let ring = RingMemory::<u64>::on_heap(8, 0);
        // SAFETY: the ring keeps its indices alive; they are atomics.
        let [producer_at, consumer_at] = unsafe { [ring.producer.as_ref(), ring.consumer.as_ref()] };
        let (mut producer, mut consumer) = (Producer::new(ring.clone()), Consumer::new(ring.clone()));
        consumer_at.store(wrong, Ordering::Relaxed);
        producer_at.store(wrong, Ordering::Relaxed);
        for _ in 0..3 {
            let free = producer.free(usize::MAX);
            // The consumer claims to be ahead of what was written, or more than a ring behind, or just behind.
            assert_eq!(free, if wrong > u32::MAX - 8 { 7 } else { 0 }, "consumer at {wrong}");
            let available = consumer.available(usize::MAX);
            assert_eq!(available, wrong.min(8) as usize, "producer at {wrong}");
        }
    }
}
