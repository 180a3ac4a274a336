//! A kernel that is moved by hand: the rings of an AF_XDP queue with nothing behind them.
//!
//! Owns: the kernel's views of the four rings. Never does: work within a burst, lock, or ask to be
//! woken; so a burst over it is the data path alone, which is what the gate of the tests counts and
//! looks through. Invariant: as in the other kernels, a frame from the fill ring ends in the RX
//! ring, one from the TX ring in the completion ring.

use std::{os::fd::RawFd, time::Instant};

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

    /// The same, as one packet of 64 bytes in each frame.
    #[cfg(all(test, not(loom)))]
    fn give_back_run(&mut self, addrs: &[u64]) {
        let headroom = u64::from(XDP_HEADROOM_BYTES) + u64::from(self.geometry.headroom_bytes());
        assert_eq!(self.rx.free(addrs.len()), addrs.len());
        self.rx.write_each(addrs.len(), |at| {
            let options = if at + 1 < addrs.len() { crate::af_xdp::rings::CONTINUES } else { 0 };
            Desc::new(addrs[at] + headroom, 64, options)
        });
        self.rx.publish();
    }

    /// Completes addresses, whatever they are, and leaves in the TX ring what lies there.
    #[cfg(all(test, not(loom)))]
    fn complete_addrs(&mut self, addrs: &[u64]) {
        assert_eq!(self.completion.free(addrs.len()), addrs.len());
        self.completion.write_each(addrs.len(), |at| addrs[at]);
        self.completion.publish();
    }

    /// The addresses that lie in the TX ring.
    #[cfg(all(test, not(loom)))]
    fn new_in_tx(&mut self) -> Vec<u64> {
        let (mut addrs, count) = (Vec::new(), self.tx.available(usize::MAX));
        self.tx.peek_each(count, |_, desc| addrs.push(desc.addr));
        addrs
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

    fn shut(&mut self, prove_by: Option<Instant>) -> bool {
        prove_by.is_some()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
