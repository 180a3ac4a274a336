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
pub struct HandKernel;

/// The hand: the other side of the rings.
pub struct Hand {
    fill: Consumer<u64>,
    rx: Producer<Desc>,
    tx: Consumer<Desc>,
    completion: Producer<u64>,
    geometry: Geometry,
}

/// Opens a queue with rings of `ring` slots each, a power of two; that many frames of `cache` go
/// into its fill ring.
pub fn by_hand(pool: &'static Mempool, cache: &mut PoolCache, ring: u32) -> (HandQueue, Hand) {
    let rings = Rings::on_heap([ring; 4], 0);
    let hand = Hand {
        fill: Consumer::new(rings.fill.clone()),
        rx: Producer::new(rings.rx.clone()),
        tx: Consumer::new(rings.tx.clone()),
        completion: Producer::new(rings.completion.clone()),
        geometry: *pool.geometry(),
    };
    let mut queue = XskQueue::new(pool, rings, HandKernel, ring);
    queue.refill(cache);
    (queue, hand)
}

impl Hand {
    /// Lets up to `want` packets of `len_bytes` arrive: fewer if there are no frames or no slots for
    /// more. Returns how many.
    pub fn deliver(&mut self, want: usize, len_bytes: u32) -> usize {
        let room = self.rx.free(want);
        let count = self.fill.available(room);
        let headroom = u64::from(XDP_HEADROOM_BYTES) + u64::from(self.geometry.headroom_bytes());
        let rx = &mut self.rx;
        self.fill.read_each(count, |_, addr| {
            rx.write_each(1, |_| Desc { addr: addr + headroom, len: len_bytes, options: 0 });
        });
        self.fill.release();
        self.rx.publish();
        count
    }

    /// Completes all packets that lie in the TX ring. Returns how many.
    pub fn complete(&mut self) -> usize {
        let room = self.completion.free(usize::MAX);
        let count = self.tx.available(room);
        let completion = &mut self.completion;
        self.tx.read_each(count, |_, desc| completion.write_each(1, |_| desc.addr));
        self.tx.release();
        self.completion.publish();
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

    fn sends_all_for_one_kick(&self) -> bool {
        true
    }

    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    fn detach(&mut self) -> bool {
        true
    }

    fn fill_ring_is_exact(&self) -> bool {
        true
    }

    fn tx_ring_is_exact(&self) -> bool {
        true
    }

    fn count_drops(&self, _: &QueueCounters) {}

    fn shut(&mut self) {}
}

#[cfg(all(test, not(loom)))]
mod tests {
    use sheafio_core::Queue;
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
}
