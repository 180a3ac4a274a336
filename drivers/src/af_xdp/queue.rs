//! The data path of AF_XDP: four rings, one pool cache, and a kernel to wake.
//!
//! Owns: this process's side of a queue's rings, and the frames that lie in them. Never does:
//! allocate, lock, or make a system call but to wake and to kick. Invariant: frames with the kernel =
//! `with_rx` + `with_tx`; each was taken from the pool and comes back once, or is retired.
//!
//! `queue/moves.rs` holds the loops over the packets of a burst, `queue/runs.rs` what is done only for packets that are
//! larger than a frame, `queue/requests.rs` what applications ask for with a packet, `queue/held.rs` which frames a
//! zero-copy driver has, and which come back once more, `queue/doorbell.rs` when the kernel is woken and kicked, `queue/close.rs` the end of a queue.
//!
//! It is generic over the kernel, a trait in `queue/kernel.rs`: `af_xdp/kernel.rs` is the real one, `sim` plays it over
//! heap memory, so tests drive this very code without root.
//!
//! ```text
//!  pool cache --take--> FILL --> kernel --> RX --> Frame --> Burst     rx_burst: 1 refill 2 receive 3 wake
//!  pool cache <--give-- COMPLETION <-- kernel <-- TX <-- Burst         tx_burst: 1 reclaim 2 send 3 kick
//! ```

mod close;
mod doorbell;
mod held;
mod kernel;
mod moves;
mod requests;
mod runs;
#[cfg(all(test, not(loom)))]
mod tests;

use std::{os::fd::RawFd, sync::Arc, time::Instant};

use sheafio_core::{Closed, Queue, QueueCounters};
use sheafio_mempool::{Burst, FrameIndex, Geometry, Mempool, PoolCache};

pub(crate) use self::kernel::{Kernel, Wake};
pub use self::requests::TxTimestamp;
use self::{doorbell::QUIET_POLLS, held::Held, requests::Requests};
use super::rings::{Desc, Rings};
use crate::spsc::{Consumer, Producer};

/// Frames taken from the pool for the fill ring at one time, at least; fewer are not worth it.
const REFILL_BATCH: u32 = 32;
/// Completions reclaimed in one burst, at most: what two sheaves can take in one exchange.
const RECLAIM_BATCH: usize = 128;
/// Under load, a kick waits until this many packets are queued, so that one system call sends them.
const KICK_BATCH: u32 = 128;
/// How many calls of `rx_burst` and `tx_burst` may go by meanwhile.
const POSTPONE_CALLS: u32 = 8;

/// One AF_XDP queue.
#[allow(clippy::struct_excessive_bools, reason = "each is asked alone, in the hot path")]
pub struct XskQueue<K: Kernel> {
    // Hot.
    rx: Consumer<Desc>,
    fill: Producer<u64>,
    tx: Producer<Desc>,
    completion: Consumer<u64>,
    geometry: Geometry,
    counters: Arc<QueueCounters>,
    kernel: K,
    pool: &'static Mempool,
    /// Frames on the receive side: in the fill ring, with the kernel, in the RX ring.
    with_rx: u32,
    /// Frames on the send side: in the TX ring, with the kernel, in the completion ring.
    with_tx: u32,
    /// How many frames the receive side should have.
    fill_target: u32,
    /// How many it may have for a refill to be worth it.
    refill_from: u32,
    /// The TX ring held packets that the kernel had not taken after the last doorbell.
    tx_waits: bool,
    /// Packets for which a kick is worth its system call.
    kick_batch: u32,
    /// Calls for which the kick may still be postponed: above 0 only while bursts come full.
    postpone: u32,
    gone: bool,
    /// The kernel may have taken packets from the TX ring that still lie there for all that is seen of it.
    tx_index_lags: bool,
    /// What a descriptor's word has of a packet that continues, while the rest of one is still to come whose
    /// beginning was dropped; else 0.
    rest_to_drop: u64,
    /// When kicks, and wake-ups, go on after the kernel said [`Wake::Later`]; else 0.
    kick_again_ns: u64,
    wake_again_ns: u64,
    /// Receptions of nothing until the next look at the clock, and the time from which the device is looked for.
    quiet_polls: u32,
    look_again_ns: u64,
    /// Frames whose descriptors could not be trusted.
    lost: u32,
    requests: Requests,
    /// 1 where the kernel looks for requests in front of every packet; else 0.
    looks_for_requests: u64,
    /// Whether there is something to be done behind each reception: one question for both of what follows.
    looks_behind: bool,
    /// See [`Kernel::rx_metadata_key`].
    rx_metadata_key: Option<u64>,
    /// See [`Kernel::can_prove_release`].
    held: Option<Held>,
    // Cold.
    closed: Option<Closed>,
}

impl<K: Kernel> XskQueue<K> {
    /// A queue over given rings, which must be empty. Up to `fill_target` frames lie on the receive
    /// side, at most the size of the fill ring.
    pub(crate) fn new(pool: &'static Mempool, rings: Rings, kernel: K, fill_target: u32) -> Self {
        let kick_batch = if kernel.sends_all_for_one_kick() { KICK_BATCH } else { 1 };
        let looks_for_requests = u64::from(kernel.tells_tx_times());
        let fill_target = fill_target.min(rings.fill.size).min(rings.rx.size).max(1);
        let fill = Producer::new(rings.fill);
        let held = kernel.can_prove_release().then(|| Held::new(pool.frames(), fill.next_index()));
        Self {
            rx: Consumer::new(rings.rx),
            fill,
            tx: Producer::new(rings.tx),
            completion: Consumer::new(rings.completion),
            geometry: *pool.geometry(),
            counters: Arc::default(),
            looks_behind: held.is_some() || kernel.rx_metadata_key().is_some(),
            rx_metadata_key: kernel.rx_metadata_key(),
            held,
            kernel,
            with_rx: 0,
            with_tx: 0,
            fill_target,
            refill_from: fill_target - REFILL_BATCH.min(fill_target),
            tx_waits: false,
            kick_batch,
            postpone: 0,
            gone: false,
            tx_index_lags: false,
            rest_to_drop: 0,
            kick_again_ns: 0,
            wake_again_ns: 0,
            quiet_polls: QUIET_POLLS,
            look_again_ns: 0,
            pool,
            lost: 0,
            requests: Requests::new(),
            looks_for_requests,
            closed: None,
        }
    }

    /// Frames that lie in the rings or with the kernel.
    #[inline(always)]
    pub fn frames_held(&self) -> u64 {
        u64::from(self.with_rx) + u64::from(self.with_tx)
    }

    /// Tells the control plane how many frames are here.
    #[inline(always)]
    fn publish_held(&self) {
        self.counters.set_held(self.frames_held() + u64::from(self.lost));
    }

    /// Puts frames into the fill ring, so that the kernel can receive before the first poll.
    pub(crate) fn fill_up(&mut self, cache: &mut PoolCache) {
        self.refill(cache);
        self.publish_held();
    }

    /// Puts frames into the fill ring, if so many are missing that it is worth it.
    #[inline(always)]
    fn refill(&mut self, cache: &mut PoolCache) {
        if self.with_rx > self.refill_from {
            return;
        }
        let room = self.fill.free((self.fill_target - self.with_rx) as usize);
        let (fill, geometry) = (&mut self.fill, &self.geometry);
        let taken = cache.take_with(room, |indices| {
            // SAFETY: an index for each slot.
            unsafe { moves::fill(geometry, indices.as_ptr(), fill.next_slots(indices.len())) };
            fill.wrote(indices.len());
        });
        self.fill.publish();
        self.kernel.filled(taken);
        self.with_rx += taken as u32;
    }

    /// Moves received packets from the RX ring to the burst.
    #[inline(always)]
    fn receive(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        let spare = burst.spare();
        let available = self.rx.available(spare.len());
        if available == 0 {
            self.found_nothing();
            return 0;
        }
        // SAFETY: there are `available` spare entries.
        let seen =
            unsafe { moves::receive(&self.geometry, self.rx.next_slots(available), spare.as_mut_ptr()) };
        // SAFETY: `available` were written just above.
        let is_proven =
            seen.doubts == 0 || unsafe { moves::are_packets(&self.geometry, spare.as_ptr(), available) };
        if !is_proven || self.rest_to_drop != 0 {
            return self.receive_runs(cache, burst);
        }
        self.rx.skip(available);
        self.rx.release();
        // SAFETY: each of these spare entries was made of a descriptor that was just proven to be a packet in a frame;
        // the kernel gave these frames, which were ours in the fill ring, back through the RX ring, which is consumed
        // once.
        unsafe { burst.commit(available) };
        // Wraps for a moment if more come back than are out, which `drop_doubled` sorts out.
        self.with_rx = self.with_rx.wrapping_sub(available as u32);
        self.counters.add_rx(available as u64, seen.bytes);
        available
    }

    /// Gives completed frames back to the pool, straight from the ring to the sheaf. Returns how many.
    #[inline(always)]
    fn reclaim(&mut self, cache: &mut PoolCache) -> usize {
        if self.with_tx == 0 {
            return 0;
        }
        // No more than are out: the other side's word is not to be trusted with our count.
        let count = self.completion.available(RECLAIM_BATCH.min(self.with_tx as usize));
        if count == 0 {
            return 0;
        }
        let (completion, geometry, requests) = (&mut self.completion, &self.geometry, &mut self.requests);
        // SAFETY: the frames were sent by this queue and are complete: ours again, each once, if they are in the UMEM,
        // which is looked at before the cache has them. Every slot is written. The address comes back as sent; its
        // frame is the chunk it lies in.
        unsafe {
            cache.give_with(count, |slots, _| {
                let addrs = moves::reclaim(geometry, completion.next_slots(slots.len()), slots.as_mut_ptr());
                if addrs >= geometry.umem_bytes() || requests.is_waiting() {
                    // Written just above.
                    see_to_completed(slots.assume_init_ref(), addrs, geometry, requests);
                }
                completion.skip(slots.len());
            });
        }
        self.completion.release();
        self.with_tx -= count as u32;
        count
    }

    /// Moves packets from the burst to the TX ring, as many as it has room for.
    #[inline]
    fn send(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        // What the kernel has taken and not completed counts too, so that no more frames than the ring has
        // slots are ever out: the pool is planned so.
        let room = self.tx.slots().saturating_sub(self.with_tx) as usize;
        let count = self.tx.free(burst.len().min(room));
        if count == 0 {
            return 0;
        }
        // SAFETY: `count` is at most the burst's length.
        let seen = unsafe { moves::send(&self.geometry, burst.as_ptr(), self.tx.next_slots(count)) };
        if seen.doubts | self.looks_for_requests != 0 {
            // A frame of another pool is one of the doubts.
            return self.send_runs(cache, burst);
        }
        self.tx.wrote(count);
        self.tx.publish();
        burst.forget_front(count);
        self.with_tx += count as u32;
        self.tx_waits = true;
        self.counters.add_tx(count as u64, seen.bytes);
        count
    }

    /// What is done behind a reception on some ports only, with the frames that came behind the first `before` ones.
    /// Returns how many packets of them go.
    #[inline(never)]
    fn look_behind(&mut self, cache: &mut PoolCache, burst: &mut Burst, before: usize) -> usize {
        let doubled = if self.held.is_some() { self.drop_doubled(cache, burst, before) } else { 0 };
        if let Some(key) = self.rx_metadata_key {
            find_metadata(burst, before, key);
        }
        doubled
    }

    /// A cache of another pool would give one frame two owners.
    #[inline(always)]
    fn check_pool(&self, cache: &PoolCache) {
        assert!(
            std::ptr::eq(cache.pool(), self.pool),
            "a pool cache of another pool was given to this queue"
        );
    }
}

/// Completed addresses must be in the UMEM, and some may be waited for. The bits of several together, `addrs`, can make a
/// larger one than any of them is. It looks at what was made of them, not once more at the ring, which the kernel can write.
#[cold]
fn see_to_completed(indices: &[u32], addrs: u64, geometry: &Geometry, requests: &mut Requests) {
    let is_whole = u32::try_from(addrs >> geometry.addr_shift()).is_ok();
    assert!(
        is_whole && indices.iter().all(|index| *index < geometry.frames()),
        "the kernel completed a frame that is not in the UMEM"
    );
    for index in indices {
        requests.complete(geometry, FrameIndex(*index));
    }
}

/// Looks for metadata in front of the packets that came behind the first `before` frames.
fn find_metadata(burst: &mut Burst, before: usize, key: u64) {
    for packet in burst[before..].chunk_by_mut(|frame, _| frame.continues()) {
        packet[0].find_rx_metadata(key);
    }
}

impl<K: Kernel> Queue for XskQueue<K> {
    #[inline]
    fn rx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        self.check_pool(cache);
        if !self.kernel.tick(true) {
            self.lose_device();
        }
        // 1. Refill the fill ring.
        self.refill(cache);
        // 2. Receive.
        let room = burst.room();
        let before = burst.len();
        let mut received = self.receive(cache, burst);
        if self.looks_behind {
            received -= self.look_behind(cache, burst, before);
        }
        // 3. Wake the kernel if it asks: for the fill ring, and for packets that wait to be sent.
        self.wake();
        self.publish_held();
        let is_full = room > 0 && received == room;
        if !self.tx_waits {
            self.postpone = if is_full { POSTPONE_CALLS } else { 0 };
        } else if !is_full || !self.postpones() {
            self.postpone = 0;
            self.kick();
        }
        received
    }

    #[inline]
    fn tx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        self.check_pool(cache);
        if !self.kernel.tick(false) {
            self.lose_device();
        }
        // 1. Reclaim completions in bulk.
        let reclaimed = self.reclaim(cache);
        if self.gone {
            return self.drop_burst(cache, burst);
        }
        // 2. Send.
        let sent = if burst.is_empty() { 0 } else { self.send(cache, burst) };
        if sent + reclaimed > 0 {
            self.publish_held();
        }
        // 3. Kick, unless full bursts come in and the next one will make this kick worth more.
        if self.tx_waits && (sent == 0 || !self.postpones()) {
            self.postpone = 0;
            self.kick();
        }
        sent
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.kernel.wait_fd()
    }

    fn close_by(&mut self, cache: &mut PoolCache, end: Instant) -> Closed {
        self.shut_down(cache, end)
    }
}
