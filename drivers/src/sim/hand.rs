//! A kernel that is moved by hand: the rings of an AF_XDP queue with nothing behind them.
//!
//! Owns: the kernel's views of the four rings. Never does: work within a burst, lock, or ask to be
//! woken; so a burst over it is the data path alone, which is what the gate of the tests counts and
//! looks through. Invariant: as in the other kernels, a frame from the fill ring ends in the RX
//! ring, one from the TX ring in the completion ring.

use std::os::fd::RawFd;

use sheafio_core::QueueCounters;
use sheafio_mempool::{Geometry, Mempool, PoolCache, XDP_HEADROOM_BYTES};

use crate::{
    af_xdp::{
        queue::{Kernel, Wake, XskQueue},
        rings::{Desc, Rings},
    },
    spsc::{Consumer, Producer},
};

/// A queue whose kernel is moved by hand.
pub type HandQueue = XskQueue<HandKernel>;

/// What a queue sees of a kernel that is moved by hand: nothing happens.
#[derive(Debug)]
pub struct HandKernel {
    /// As a zero-copy queue: the rings do not tell what the kernel has in the end, but it lets go of it.
    is_zero_copy: bool,
}

/// The hand: the other side of the rings.
pub struct Hand {
    fill: Consumer<u64>,
    rx: Producer<Desc>,
    tx: Consumer<Desc>,
    completion: Producer<u64>,
    geometry: Geometry,
    /// Packets and completions that lie in their rings unpublished.
    staged: [usize; 2],
}

/// Opens a queue with rings of `ring` slots each, a power of two; that many frames of `cache` go
/// into its fill ring.
pub fn by_hand(pool: &'static Mempool, cache: &mut PoolCache, ring: u32) -> (HandQueue, Hand) {
    by_hand_of(HandKernel { is_zero_copy: false }, pool, cache, ring)
}

fn by_hand_of(
    kernel: HandKernel,
    pool: &'static Mempool,
    cache: &mut PoolCache,
    ring: u32,
) -> (HandQueue, Hand) {
    let rings = Rings::on_heap([ring; 4], 0);
    let hand = Hand {
        fill: Consumer::new(rings.fill.clone()),
        rx: Producer::new(rings.rx.clone()),
        tx: Consumer::new(rings.tx.clone()),
        completion: Producer::new(rings.completion.clone()),
        geometry: *pool.geometry(),
        staged: [0; 2],
    };
    let mut queue = XskQueue::new(pool, rings, kernel, ring);
    queue.fill_up(cache);
    (queue, hand)
}

impl Hand {
    /// Lets up to `want` packets of `len_bytes` arrive: fewer if there are no frames or no slots for
    /// more. Returns how many.
    pub fn deliver(&mut self, want: usize, len_bytes: u32) -> usize {
        let count = self.write_packets(want, len_bytes);
        self.rx.publish();
        count
    }

    /// Completes all packets that lie in the TX ring. Returns how many.
    pub fn complete(&mut self) -> usize {
        let count = self.write_completions();
        self.completion.publish();
        count
    }

    /// As `deliver` and `complete`, but what is written to the rings waits for `publish`: a clock can run
    /// from then on, and this work is outside of it. Returns how many packets.
    pub fn stage(&mut self, want: usize, len_bytes: u32) -> usize {
        assert_eq!(self.staged, [0; 2], "what was staged before is not published yet");
        self.staged = [self.write_packets(want, len_bytes), self.write_completions()];
        self.rx.unwrite(self.staged[0]);
        self.completion.unwrite(self.staged[1]);
        self.staged[0]
    }

    /// Publishes up to `count` packets and up to `count` completions that are staged.
    #[inline(always)]
    pub fn publish(&mut self, count: usize) {
        let [packets, completions] = self.staged.map(|staged| staged.min(count));
        self.rx.wrote(packets);
        self.rx.publish();
        self.completion.wrote(completions);
        self.completion.publish();
        self.staged[0] -= packets;
        self.staged[1] -= completions;
    }

    fn write_packets(&mut self, want: usize, len_bytes: u32) -> usize {
        let room = self.rx.free(want);
        let count = self.fill.available(room);
        let headroom = u64::from(XDP_HEADROOM_BYTES) + u64::from(self.geometry.headroom_bytes());
        let rx = &mut self.rx;
        self.fill.read_each(count, |_, addr| {
            rx.write_each(1, |_| Desc::new(addr + headroom, len_bytes, 0));
        });
        self.fill.release();
        count
    }

    /// Lets one packet arrive in several frames, of these lengths; one that is longer than a frame makes a
    /// descriptor that is none. With `ends` false, its end is still to come.
    #[cfg(all(test, not(loom)))]
    fn deliver_run(&mut self, lens: &[u32], ends: bool) {
        assert_eq!((self.rx.free(lens.len()), self.fill.available(lens.len())), (lens.len(), lens.len()));
        let headroom = u64::from(XDP_HEADROOM_BYTES) + u64::from(self.geometry.headroom_bytes());
        let rx = &mut self.rx;
        self.fill.read_each(lens.len(), |at, addr| {
            let options = if at + 1 < lens.len() || !ends { crate::af_xdp::rings::CONTINUES } else { 0 };
            rx.write_each(1, |_| Desc::new(addr + headroom, lens[at], options));
        });
        self.fill.release();
        self.rx.publish();
    }

    /// Lets descriptors arrive as they are, one for each frame that they should have named.
    #[cfg(all(test, not(loom)))]
    fn deliver_descs(&mut self, descs: &[Desc]) {
        assert_eq!((self.rx.free(descs.len()), self.fill.available(descs.len())), (descs.len(), descs.len()));
        self.fill.read_each(descs.len(), |_, _| ());
        self.fill.release();
        self.rx.write_each(descs.len(), |at| descs[at]);
        self.rx.publish();
    }

    /// Takes frames out of the fill ring, and gives none back.
    #[cfg(all(test, not(loom)))]
    fn keep(&mut self, count: usize) -> Vec<u64> {
        let (mut kept, count) = (Vec::new(), self.fill.available(count));
        self.fill.read_each(count, |_, addr| kept.push(addr));
        self.fill.release();
        kept
    }

    /// Gives frames back through the RX ring, whether they are the kernel's or not.
    #[cfg(all(test, not(loom)))]
    fn give_back(&mut self, addrs: &[u64]) {
        let headroom = u64::from(XDP_HEADROOM_BYTES) + u64::from(self.geometry.headroom_bytes());
        assert_eq!(self.rx.free(addrs.len()), addrs.len());
        self.rx.write_each(addrs.len(), |at| Desc::new(addrs[at] + headroom, 64, 0));
        self.rx.publish();
    }

    fn write_completions(&mut self) -> usize {
        let room = self.completion.free(usize::MAX);
        let count = self.tx.available(room);
        let completion = &mut self.completion;
        self.tx.read_each(count, |_, desc| completion.write_each(1, |_| desc.addr));
        self.tx.release();
        count
    }
}

impl Kernel for HandKernel {
    // Out of line, as a system call is.
    #[cold]
    #[inline(never)]
    fn wake_rx(&mut self) -> Wake {
        std::hint::black_box(Wake::Done)
    }

    #[cold]
    #[inline(never)]
    fn kick_tx(&mut self) -> Wake {
        std::hint::black_box(Wake::Done)
    }

    fn now_ns(&self) -> u64 {
        0
    }

    fn sends_all_for_one_kick(&self) -> bool {
        true
    }

    fn frames_a_packet(&self) -> usize {
        1
    }

    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    fn detach(&mut self) -> bool {
        true
    }

    fn fill_ring_is_exact(&self) -> bool {
        !self.is_zero_copy
    }

    fn tx_ring_is_exact(&self) -> bool {
        true
    }

    fn count_drops(&self, _: &QueueCounters) {}

    fn can_prove_release(&self) -> bool {
        self.is_zero_copy
    }

    fn shut(&mut self, prove: bool) -> bool {
        prove
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
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
        let [pool, other] = [512, 64].map(|frames| {
            Mempool::builder().frames(frames).hugepages(Hugepages::Off).cores(1).build().unwrap()
        });
        let (mut cache, mut others, mut burst) =
            (pool.cache().unwrap(), other.cache().unwrap(), Burst::new());
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
        queue.rx_burst(&mut cache, &mut later);
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
}
