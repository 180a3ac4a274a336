//! The data path, moved by hand: what it does with odd things that a kernel says.

use sheafio_core::{DropReason, Queue};
use sheafio_mempool::{Burst, Hugepages};

use super::*;

#[test]
fn packets_go_round_by_hand_and_all_frames_come_home() {
    let pool = Mempool::builder().frames(512).hugepages(Hugepages::Off).cores(1).build().unwrap();
    let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
    let (mut queue, mut hand) = by_hand(pool, &mut cache, 64);
    for _ in 0..100 {
        assert_eq!(hand.deliver(32, 64), 32);
        assert_eq!(queue.rx_burst(&mut cache, &mut burst), 32);
        assert_eq!(queue.tx_burst(&mut cache, &mut burst), 32);
        assert_eq!(hand.complete(), 32);
    }
    queue.close(&mut cache);
    drop(cache);
    assert_eq!(pool.audit().unwrap().home, 512);
}

#[test]
fn what_is_staged_arrives_as_it_is_published() {
    let pool = Mempool::builder().frames(512).hugepages(Hugepages::Off).cores(1).build().unwrap();
    let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
    let (mut queue, mut hand) = by_hand(pool, &mut cache, 64);
    for round in 0..100 {
        assert_eq!(hand.stage(32, 64), 32);
        // What was sent in the last round is complete in this one.
        assert_eq!(hand.staged, [32, if round == 0 { 0 } else { 32 }]);
        assert_eq!(queue.rx_burst(&mut cache, &mut burst), 0);
        for published in [12, 20] {
            hand.publish(published);
            assert_eq!(queue.rx_burst(&mut cache, &mut burst), published);
            assert_eq!(queue.tx_burst(&mut cache, &mut burst), published);
        }
        assert_eq!(hand.staged, [0; 2]);
    }
    queue.close(&mut cache);
    drop(cache);
    assert_eq!(pool.audit().unwrap().home, 512);
}

/// The rings' ends come at every place of a burst, and the pool's size is no power of two, so that the bits of some
/// bursts' addresses together name no frame.
#[test]
fn bursts_of_any_size_go_over_the_ends_of_the_rings() {
    let pool = Mempool::builder().frames(777).hugepages(Hugepages::Off).cores(1).build().unwrap();
    let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
    let (mut queue, mut hand) = by_hand(pool, &mut cache, 64);
    let (mut frames, mut bytes) = (std::collections::HashSet::new(), 0);
    for count in (1..=32).cycle().take(32 * 64) {
        let len = 60 + count as u32;
        assert_eq!(queue.rx_burst(&mut cache, &mut burst), 0); // Refills.
        assert_eq!(hand.deliver(count, len), count);
        assert_eq!(queue.rx_burst(&mut cache, &mut burst), count);
        for frame in &mut *burst {
            assert_eq!((frame.len(), frame.headroom()), (len as usize, XDP_HEADROOM_BYTES.into()));
            frames.insert(frame.as_ptr());
            frame.fill(count as u8);
        }
        assert_eq!(queue.tx_burst(&mut cache, &mut burst), count);
        bytes += count as u64 * u64::from(len);
        assert_eq!(queue.counters().totals().held, queue.frames_held() as i64);
        assert_eq!(hand.complete(), count);
        assert_eq!(queue.tx_burst(&mut cache, &mut burst), 0); // Reclaims.
        assert_eq!(queue.counters().totals().held, queue.frames_held() as i64);
    }
    let totals = queue.counters().totals();
    assert_eq!((totals.rx_bytes, totals.tx_bytes), (bytes, bytes));
    // All but those that wait in the fill ring or lie at the bottom of the pool.
    assert!(frames.len() > 64, "only {} frames were used", frames.len());
    queue.close(&mut cache);
    drop(cache);
    assert_eq!(pool.audit().unwrap().home, 777);
}

/// A kernel that is not to be trusted names no frame, or a place that is in none; packets beside it arrive.
#[test]
fn descriptors_of_no_frame_are_counted_and_touched_by_nobody() {
    let pool = Mempool::builder().frames(777).hugepages(Hugepages::Off).cores(1).build().unwrap();
    let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
    let (mut queue, mut hand) = by_hand(pool, &mut cache, 64);
    let end = pool.geometry().umem_bytes();
    let wrong = [
        Desc::new(end, 60, 0),
        Desc::new(end - 1, 2, 0),
        Desc::new(end + 256, 60, 0),
        Desc::new(u64::MAX, 1, 0),
        Desc::new(1 << 63 | 256, 60, 0),
        Desc::new(256, 1793, 0),
        Desc::new(256, 1 << 15, 0),
        Desc::new(256, 1 << 16, 0),
        Desc::new(256, u32::MAX, 0),
    ];
    for (number, desc) in wrong.into_iter().enumerate() {
        hand.deliver(3, 60);
        hand.deliver_descs(&[desc]);
        hand.deliver(2, 60);
        assert_eq!(queue.rx_burst(&mut cache, &mut burst), 5, "{desc:?}");
        assert!(burst.iter().all(|frame| frame.len() == 60));
        cache.free_burst(&mut burst);
        assert_eq!(queue.counters().totals().drops(DropReason::RxInvalid), number as u64 + 1, "{desc:?}");
    }
    assert_eq!(queue.close(&mut cache).retired, wrong.len() as u64);
    drop(cache);
    assert_eq!(pool.audit().unwrap().home, 777 - wrong.len() as u64);
}

#[test]
fn a_frame_of_another_pool_is_refused_before_anything_is_sent() {
    let [pool, other] = [512, 64]
        .map(|frames| Mempool::builder().frames(frames).hugepages(Hugepages::Off).cores(1).build().unwrap());
    let (mut cache, mut others, mut burst) = (pool.cache().unwrap(), other.cache().unwrap(), Burst::new());
    let (mut queue, mut hand) = by_hand(pool, &mut cache, 64);
    assert_eq!(cache.alloc_packets(&mut burst, 7, 60), 7);
    assert_eq!(others.alloc_packets(&mut burst, 1, 60), 1);
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        queue.tx_burst(&mut cache, &mut burst);
    }));
    let message = *refused.unwrap_err().downcast::<&str>().unwrap();
    assert!(message.contains("a frame of another pool was given to tx_burst"), "{message}");
    assert_eq!((burst.len(), hand.complete()), (8, 0));
    others.free(burst.pop().unwrap());
    assert_eq!((queue.tx_burst(&mut cache, &mut burst), hand.complete()), (7, 7));
    queue.close(&mut cache);
    drop((cache, others));
    assert_eq!((pool.audit().unwrap().home, other.audit().unwrap().home), (512, 64));
}

/// Also where the ring has no room for it yet, and packets before it are dropped, which makes room; or it is one that
/// would be dropped itself.
#[test]
fn a_frame_of_another_pool_beyond_the_room_is_refused_before_anything_is_dropped() {
    for foreign_bytes in [60, 0] {
        let [pool, other] = [512, 64].map(|frames| {
            Mempool::builder().frames(frames).hugepages(Hugepages::Off).cores(1).build().unwrap()
        });
        let (mut cache, mut others, mut burst) =
            (pool.cache().unwrap(), other.cache().unwrap(), Burst::with_limit(64));
        let (mut queue, mut hand) = by_hand(pool, &mut cache, 64);
        assert_eq!(cache.alloc_packets(&mut burst, 60, 60), 60);
        assert_eq!(queue.tx_burst(&mut cache, &mut burst), 60);
        cache.alloc_packets(&mut burst, 1, 0);
        cache.alloc_packets(&mut burst, 3, 60);
        others.alloc_packets(&mut burst, 1, foreign_bytes);
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            queue.tx_burst(&mut cache, &mut burst);
        }));
        let message = *refused.unwrap_err().downcast::<&str>().unwrap();
        assert!(message.contains("a frame of another pool was given to tx_burst"), "{message}");
        assert_eq!((burst.len(), hand.complete()), (5, 60));
        others.free(burst.pop().unwrap());
        assert_eq!((queue.tx_burst(&mut cache, &mut burst), hand.complete()), (3, 3));
        assert_eq!(queue.counters().totals().drops(DropReason::TxEmpty), 1);
        queue.close(&mut cache);
        drop((cache, others));
        assert_eq!((pool.audit().unwrap().home, other.audit().unwrap().home), (512, 64));
    }
}

/// Runs of descriptors as a kernel that is not to be trusted could make them: each packet comes whole, or is
/// counted once, and only frames whose descriptors name no place in a frame are lost.
#[test]
fn odd_runs_are_received_whole_or_counted_once() {
    let pool = Mempool::builder().frames(2048).hugepages(Hugepages::Off).cores(1).build().unwrap();
    let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::with_limit(4));
    let (mut queue, mut hand) = by_hand(pool, &mut cache, 1024);
    let invalid = |queue: &HandQueue| queue.counters().totals().drops(DropReason::RxInvalid);
    let mut receive = |queue: &mut HandQueue, cache: &mut PoolCache| {
        let packets = queue.rx_burst(cache, &mut burst);
        let frames = burst.len();
        assert_eq!(burst.packet_count(), packets);
        cache.free_burst(&mut burst);
        (packets, frames)
    };

    // Two packets begin within the limit of 4 frames; the second goes over it, the third waits.
    hand.deliver_run(&[100; 3], true);
    hand.deliver_run(&[100; 5], true);
    hand.deliver_run(&[100; 1], true);
    assert_eq!(receive(&mut queue, &mut cache), (2, 8));
    assert_eq!(receive(&mut queue, &mut cache), (1, 1));

    // A packet whose end comes later waits for it, and what is before it does not.
    hand.deliver_run(&[100; 1], true);
    hand.deliver_run(&[100; 2], false);
    assert_eq!(receive(&mut queue, &mut cache), (1, 1));
    assert_eq!(receive(&mut queue, &mut cache), (0, 0));
    hand.deliver_run(&[100; 1], true);
    assert_eq!(receive(&mut queue, &mut cache), (1, 3));

    // One bad descriptor costs its packet, and the frame that it should have named.
    hand.deliver_run(&[100, 4000, 100], true);
    hand.deliver_run(&[100; 2], true);
    assert_eq!(receive(&mut queue, &mut cache), (1, 2));
    assert_eq!(invalid(&queue), 1);

    // A packet of more frames than a burst can hold is dropped to its end, and counted once.
    hand.deliver_run(&[100; 300], false);
    assert_eq!(receive(&mut queue, &mut cache), (0, 0));
    hand.deliver_run(&[100; 10], true);
    hand.deliver_run(&[100; 2], true);
    while invalid(&queue) < 2 || receive(&mut queue, &mut cache) != (1, 2) {}
    assert_eq!(invalid(&queue), 2);

    // Its rest may look like a packet.
    hand.deliver_run(&[100; Burst::MAX], false);
    assert_eq!(receive(&mut queue, &mut cache), (0, 0));
    hand.deliver_run(&[100; 1], true);
    assert_eq!(receive(&mut queue, &mut cache), (0, 0));
    hand.deliver_run(&[100; 1], true);
    assert_eq!((receive(&mut queue, &mut cache), invalid(&queue)), ((1, 1), 3));

    // One without an end when the queue closes is not received.
    hand.deliver_run(&[100; 3], false);
    let closed = queue.close(&mut cache);
    assert_eq!((closed.retired, invalid(&queue)), (1, 4));
    drop(cache);
    assert_eq!(pool.audit().unwrap().home, 2047);
}

/// A zero-copy queue whose driver keeps frames, out of order, and uses some again: at the end all are home.
#[test]
fn what_a_zero_copy_driver_kept_comes_home_when_it_has_let_go() {
    let pool = Mempool::builder().frames(512).hugepages(Hugepages::Off).cores(1).build().unwrap();
    let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
    let zero_copy = HandKernel { is_zero_copy: true };
    let (mut queue, mut hand) = by_hand_of(zero_copy, pool, &mut cache, 64);
    let mut kept = hand.keep(40);
    for round in 0..200 {
        let returned: Vec<u64> = kept.drain(..20).rev().collect();
        hand.give_back(&returned);
        assert_eq!(queue.rx_burst(&mut cache, &mut burst), 20);
        cache.free_burst(&mut burst);
        assert_eq!(queue.rx_burst(&mut cache, &mut burst), 0);
        kept.extend(hand.keep(20));
        kept.rotate_left(round % 7);
    }
    // Some lie in the RX ring, of which nobody has heard yet.
    hand.give_back(&kept.split_off(kept.len() - 10));
    let held = queue.frames_held();
    let closed = queue.close(&mut cache);
    assert_eq!((closed.returned, closed.retired), (held, 0));
    drop(cache);
    let audit = pool.audit().unwrap();
    assert_eq!((audit.home, audit.twice), (512, vec![]));
}

/// A driver that gives frames back once more: whoever has them now keeps them alone.
#[test]
fn a_frame_that_a_zero_copy_driver_gives_back_twice_is_received_once() {
    let pool = Mempool::builder().frames(512).hugepages(Hugepages::Off).cores(1).build().unwrap();
    let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
    let zero_copy = HandKernel { is_zero_copy: true };
    let (mut queue, mut hand) = by_hand_of(zero_copy, pool, &mut cache, 64);
    let kept = hand.keep(64);
    hand.give_back(&kept[..8]);
    assert_eq!(queue.rx_burst(&mut cache, &mut burst), 8);
    // Between others, while the application has them, and more than there are out.
    hand.give_back(&[kept[8], kept[3], kept[9], kept[8], kept[0]]);
    let mut later = Burst::new();
    assert_eq!(queue.rx_burst(&mut cache, &mut later), 2);
    let addr = |frame: &sheafio_mempool::Frame| {
        pool.geometry().addr_of(pool.geometry().index_of(pool.geometry().addr(frame)))
    };
    assert_eq!(later.iter().map(addr).collect::<Vec<_>>(), [kept[8], kept[9]]);
    // And of some that are free.
    cache.free_burst(&mut later);
    hand.give_back(&kept[..20]);
    hand.give_back(&kept[20..]);
    let mut rest = Burst::with_limit(Burst::MAX);
    queue.rx_burst(&mut cache, &mut rest);
    assert_eq!(rest.len(), 54);
    let totals = queue.counters().totals();
    assert_eq!((totals.rx_packets, totals.drops(DropReason::RxInvalid)), (8 + 2 + 54, 3 + 10));
    assert_eq!(totals.rx_bytes, 64 * totals.rx_packets);
    for burst in [&mut burst, &mut rest] {
        cache.free_burst(burst);
    }
    let held = queue.frames_held();
    assert_eq!(queue.close(&mut cache).returned, held);
    drop(cache);
    let audit = pool.audit().unwrap();
    assert_eq!((audit.home, audit.twice), (512, vec![]));
}

/// A kernel that completes packets of which it does not say that it has taken them: they are not given back twice.
#[test]
fn a_ring_that_holds_more_than_is_out_is_not_taken_back() {
    let pool = Mempool::builder().frames(512).hugepages(Hugepages::Off).cores(1).build().unwrap();
    let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
    let (mut queue, mut hand) = by_hand(pool, &mut cache, 64);
    cache.alloc_packets(&mut burst, 8, 60);
    assert_eq!(queue.tx_burst(&mut cache, &mut burst), 8);
    let sent = hand.new_in_tx();
    hand.complete_addrs(&sent[..3]);
    let closed = queue.close(&mut cache);
    assert_eq!((closed.returned, closed.retired), (64 + 3, 5));
    assert_eq!(queue.counters().totals().drops(DropReason::TxUnsent), 5);
    drop(cache);
    let audit = pool.audit().unwrap();
    assert_eq!((audit.home, audit.twice), (512 - 5, vec![]));
}

/// A panic while it closes, as of a kernel that completes what is no frame, is one panic: dropping the queue then does
/// not close it again, which would abort the process if it happened on the way out of the first one.
#[test]
fn a_queue_whose_close_panicked_is_dropped_in_silence() {
    let pool = Mempool::builder().frames(777).hugepages(Hugepages::Off).cores(1).build().unwrap();
    // The first one that is outside; one whose index has bits beyond those of an index; the last one.
    for addr in [pool.geometry().umem_bytes(), 1 << (32 + pool.geometry().addr_shift()), u64::MAX] {
        let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
        let (mut queue, mut hand) = by_hand(pool, &mut cache, 64);
        cache.alloc_packets(&mut burst, 1, 60);
        assert_eq!(queue.tx_burst(&mut cache, &mut burst), 1);
        hand.complete_addrs(&[addr]);
        let closing = std::panic::AssertUnwindSafe(|| queue.close(&mut cache));
        let message = *std::panic::catch_unwind(closing).unwrap_err().downcast::<&str>().unwrap();
        assert!(message.contains("not in the UMEM"), "{message}");
        assert_eq!(queue.close(&mut cache).retired, 64 + 1);
        drop(queue);
    }
}

/// The same with packets of several frames: they come whole, and not with what is left of others, or are counted once;
/// their frames that are not anybody else's come home.
#[test]
fn a_large_packet_with_a_frame_that_was_received_before_is_dropped_whole() {
    let pool = Mempool::builder().frames(512).hugepages(Hugepages::Off).cores(1).build().unwrap();
    let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
    let zero_copy = HandKernel { is_zero_copy: true };
    let (mut queue, mut hand) = by_hand_of(zero_copy, pool, &mut cache, 64);
    let kept = hand.keep(64);
    hand.give_back(&kept[..2]);
    assert_eq!(queue.rx_burst(&mut cache, &mut burst), 2);
    let mut later = Burst::new();
    for run in [
        &[kept[2], kept[0], kept[3]][..], // In the middle,
        &[kept[4], kept[5]],
        &[kept[6], kept[7], kept[1]], // at the end,
        &[kept[8]],
        &[kept[0], kept[9]],                     // at the beginning,
        &[kept[10], kept[11], kept[10]],         // twice in one packet,
        &[kept[0], kept[12], kept[12], kept[1]], // and all of it.
        &[kept[13], kept[14], kept[15]],
    ] {
        hand.give_back_run(run);
    }
    assert_eq!(queue.rx_burst(&mut cache, &mut later), 3);
    let addr = |frame: &sheafio_mempool::Frame| {
        pool.geometry().addr_of(pool.geometry().index_of(pool.geometry().addr(frame)))
    };
    let received: Vec<Vec<u64>> = later.packets().map(|packet| packet.iter().map(addr).collect()).collect();
    assert_eq!(received, [&kept[4..6], &kept[8..9], &kept[13..16]]);
    let totals = queue.counters().totals();
    assert_eq!((totals.rx_packets, totals.drops(DropReason::RxInvalid)), (2 + 3, 5));
    assert_eq!(totals.rx_bytes, (2 + 6) * 64);
    assert_eq!(queue.frames_held(), 64 - 16);
    cache.free_burst(&mut burst);
    cache.free_burst(&mut later);
    let held = queue.frames_held();
    let closed = queue.close(&mut cache);
    assert_eq!((closed.returned, closed.retired), (held, 0));
    drop(cache);
    let audit = pool.audit().unwrap();
    assert_eq!((audit.home, audit.twice), (512, vec![]));
}

/// Frames that come back before the queue has looked at what it gave the kernel, as within one burst.
#[test]
fn frames_of_an_invalid_packet_are_known_as_soon_as_they_are_in_the_fill_ring() {
    let pool = Mempool::builder().frames(512).hugepages(Hugepages::Off).cores(1).build().unwrap();
    let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
    let zero_copy = HandKernel { is_zero_copy: true };
    let (mut queue, mut hand) = by_hand_of(zero_copy, pool, &mut cache, 64);
    hand.deliver_run(&[100, 100, 4000], true);
    assert_eq!(queue.rx_burst(&mut cache, &mut burst), 0);
    assert_eq!(queue.counters().totals().drops(DropReason::RxInvalid), 1);
    assert_eq!(queue.frames_held(), 64 - 3);
    let closed = queue.close(&mut cache);
    drop(cache);
    // One frame is lost, as its descriptor named no place; so which ones are out is not certain.
    assert_eq!((closed.returned, closed.retired), (0, 61 + 1));
    assert_eq!(pool.audit().unwrap().home, 512 - 62);
}

/// A whole burst of frames that were received before does not hide what lies behind it when the queue closes.
#[test]
fn what_was_not_read_behind_doubled_frames_is_counted_as_such() {
    let pool = Mempool::builder().frames(2048).hugepages(Hugepages::Off).cores(1).build().unwrap();
    let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::with_limit(Burst::MAX));
    let zero_copy = HandKernel { is_zero_copy: true };
    let (mut queue, mut hand) = by_hand_of(zero_copy, pool, &mut cache, 1024);
    let kept = hand.keep(Burst::MAX + 100);
    hand.give_back(&kept[..Burst::MAX]);
    assert_eq!(queue.rx_burst(&mut cache, &mut burst), Burst::MAX);
    cache.free_burst(&mut burst);
    hand.give_back(&kept);
    let closed = queue.close(&mut cache);
    let totals = queue.counters().totals();
    assert_eq!(totals.drops(DropReason::RxUnread), 100);
    assert_eq!(totals.drops(DropReason::RxInvalid), Burst::MAX as u64);
    drop(cache);
    let audit = pool.audit().unwrap();
    assert_eq!((audit.home, audit.twice, closed.retired), (2048, vec![], 0));
}
