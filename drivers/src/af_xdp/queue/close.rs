//! The end of an AF_XDP queue: drain, detach, take back, close; and take back what the driver then lets go of.
//!
//! Owns: nothing of its own; it is the control plane of `queue.rs`. Never does: run while the queue is polled.
//! Invariant: it happens once; afterwards each frame that the queue held is in the pool or counted as retired.

use std::time::{Duration, Instant};

use sheafio_core::{Closed, DropReason, Queue};
use sheafio_mempool::{Burst, PoolCache};

use super::{Kernel, XskQueue};
use crate::{
    af_xdp::rings::Rings,
    spsc::{Consumer, Producer},
};

/// How long closing waits for the kernel to send what is queued, in total and without progress; and half of its time at
/// most, so that a driver has the other half to let go in.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
const DRAIN_STALL: Duration = Duration::from_millis(100);

impl<K: Kernel> XskQueue<K> {
    /// Does what [`Queue::close_by`] says.
    pub(super) fn shut_down(&mut self, cache: &mut PoolCache, end: Instant) -> Closed {
        self.check_pool(cache);
        if let Some(closed) = self.closed {
            return closed;
        }
        let held = self.frames_held() + u64::from(self.lost);
        // From here on it is under way: should it panic, dropping the queue does not begin it again.
        self.closed = Some(Closed { returned: 0, retired: held });
        // Drained first: taking the program off resets the TX rings of some drivers.
        self.drain(cache, end.saturating_duration_since(Instant::now()) / 2);
        let is_quiet = self.kernel.detach();
        self.drop_unread(cache);
        // The kernel's indices are not to be trusted with our counts: a ring that holds more than is out is not exact.
        if is_quiet && self.kernel.fill_ring_is_exact() && self.fill.unconsumed() <= self.with_rx {
            self.take_back_filled(cache);
        }
        let unsent = self.tx.unconsumed();
        if self.kernel.tx_ring_is_exact() && !self.tx_index_lags && unsent <= self.with_tx {
            self.take_back_unsent(cache);
        } else {
            self.counters.add_drops(DropReason::TxUnsent, u64::from(unsent.min(self.with_tx)));
        }
        self.kernel.count_drops(&self.counters);

        let rings = Rings::on_heap([1; 4], 0);
        self.rx = Consumer::new(rings.rx);
        self.fill = Producer::new(rings.fill);
        self.tx = Producer::new(rings.tx);
        self.completion = Consumer::new(rings.completion);
        // What is left is with the kernel, which lets go of it some time after the socket is closed.
        let has_let_go = self.kernel.shut((self.with_rx > 0 && self.held.is_some()).then_some(end));
        if has_let_go {
            self.take_back_held(cache);
        }
        let retired = self.frames_held() + u64::from(self.lost);
        cache.retire(retired as usize);
        (self.with_rx, self.with_tx, self.lost, self.fill_target) = (0, 0, 0, 0);
        (self.gone, self.tx_waits) = (true, false);
        self.counters.set_sends_in_poll(false);
        self.publish_held();
        let closed = Closed { returned: held - retired, retired };
        self.closed = Some(closed);
        closed
    }

    /// Waits, within this and its own bound, until the kernel has sent and completed what is queued.
    fn drain(&mut self, cache: &mut PoolCache, limit: Duration) {
        let start = Instant::now();
        let mut progress = start;
        while self.with_tx > 0
            && !self.gone
            && start.elapsed() < limit.min(DRAIN_LIMIT)
            && progress.elapsed() < DRAIN_STALL
        {
            let before = (self.with_tx, self.tx.unconsumed());
            if !self.kernel.tick(false) {
                self.lose_device();
            }
            self.reclaim(cache);
            self.kick_again_ns = 0;
            self.kick();
            if (self.with_tx, self.tx.unconsumed()) == before {
                std::thread::sleep(Duration::from_micros(100));
            } else {
                progress = Instant::now();
            }
        }
        while self.with_tx > 0 && self.completion.available(1) > 0 {
            self.reclaim(cache);
        }
    }

    /// Gives back received packets that nobody has read.
    fn drop_unread(&mut self, cache: &mut PoolCache) {
        let mut burst = Burst::with_limit(Burst::MAX);
        let before = self.counters.totals();
        loop {
            // Not by what is out: that stays the same where every frame came back before.
            let before = self.rx.next_index();
            self.receive(cache, &mut burst);
            self.look_behind(cache, &mut burst, 0);
            cache.free_burst(&mut burst);
            if self.rx.next_index() == before {
                break;
            }
        }
        let unread = self.counters.totals().rx_packets - before.rx_packets;
        self.counters.add_drops(DropReason::RxUnread, unread);
        self.drop_without_end(cache);
    }

    /// Gives back the frames of a packet whose end has not come.
    fn drop_without_end(&mut self, cache: &mut PoolCache) {
        let (geometry, count) = (self.geometry, self.rx.available(usize::MAX));
        let (mut lost, mut doubles, held) = (0, 0, &mut self.held);
        self.rx.read_each(count, |_, desc| {
            if geometry.is_packet(desc.addr, desc.len()) {
                let index = geometry.index_of(desc.addr);
                if held.as_mut().is_some_and(|held| !held.remove(index)) {
                    doubles += 1; // As in `drop_doubled`.
                    return;
                }
                // SAFETY: the kernel gave this frame back through the RX ring, which is read once.
                unsafe { cache.give(&[index]) };
            } else {
                lost += 1;
            }
        });
        self.rx.release();
        self.with_rx = self.with_rx.wrapping_add(doubles).wrapping_sub(count as u32);
        self.lost += lost;
        self.counters.add_drops(DropReason::RxInvalid, u64::from(count > 0));
    }

    /// Takes the frames back that lie in the fill ring.
    fn take_back_filled(&mut self, cache: &mut PoolCache) {
        let (geometry, mut frames) = (self.geometry, 0);
        let held = &mut self.held;
        // SAFETY: the queue is detached, no packet is on its way, and the ring is exact: nothing makes
        // the kernel read it any more. This queue put the frames there; each is given back once.
        unsafe {
            self.fill.take_back(|addr| {
                if let Some(held) = held {
                    let was_out = held.remove(geometry.index_of(addr));
                    debug_assert!(was_out, "the fill ring has a frame twice");
                }
                cache.give(&[geometry.index_of(addr)]);
                frames += 1;
            });
        }
        self.with_rx -= frames;
    }

    /// Takes the frames back that the kernel had of the receive side, after it has let go of them.
    fn take_back_held(&mut self, cache: &mut PoolCache) {
        let Some(held) = self.held.as_mut().filter(|_| self.lost == 0) else { return };
        self.with_rx -= held.take_all(self.with_rx, |frame| {
            // SAFETY: this queue put the frame into the fill ring, and it did not come back: it is counted in
            // `with_rx`, which says that these are all of them. The kernel has let go of it, and its rings are gone.
            unsafe { cache.give(&[frame]) };
        });
    }

    /// Takes the packets back that lie in the TX ring.
    fn take_back_unsent(&mut self, cache: &mut PoolCache) {
        let (geometry, mut frames, mut packets) = (self.geometry, 0, 0);
        // SAFETY: the ring is exact, and the kernel reads it only when it is kicked, which this thread
        // does no more. This queue put the frames there; each is given back once.
        unsafe {
            self.tx.take_back(|desc| {
                cache.give(&[geometry.index_of(desc.addr)]);
                frames += 1;
                packets += u64::from(!desc.continues());
            });
        }
        self.with_tx -= frames;
        self.counters.add_drops(DropReason::TxUnsent, packets);
    }
}

impl<K: Kernel> Drop for XskQueue<K> {
    fn drop(&mut self) {
        if self.closed.is_none() {
            // A pool that has no cache left loses the frames: they stay in flight in the census.
            match self.pool.cache() {
                Ok(mut cache) => drop(self.close(&mut cache)),
                Err(_) => _ = self.kernel.detach(),
            }
        }
    }
}
