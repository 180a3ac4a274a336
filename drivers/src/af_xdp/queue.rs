//! The data path of AF_XDP: four rings, one pool cache, and a kernel to wake.
//!
//! Owns: this process's side of a queue's rings, and the frames that lie in them. Never does:
//! allocate, lock, or make a system call but the two doorbells. Invariant: frames with the kernel =
//! `with_rx` + `with_tx`; each was taken from the pool and comes back once, or is retired.
//!
//! It is generic over the kernel: `kernel.rs` is the real one, `sim` plays it over heap memory, so
//! tests drive this very code without root.
//!
//! ```text
//!  pool cache --take--> FILL --> kernel --> RX --> Frame --> Burst     rx_burst: 1 refill 2 receive 3 wake
//!  pool cache <--give-- COMPLETION <-- kernel <-- TX <-- Burst         tx_burst: 1 reclaim 2 send 3 kick
//! ```

use std::{
    os::fd::RawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use sheafio_core::{Closed, DropReason, Queue, QueueCounters};
use sheafio_mempool::{Burst, Geometry, Mempool, PoolCache};

use crate::spsc::{Consumer, Producer, RingMemory};

/// A descriptor of the RX and TX rings: `struct xdp_desc` (linux/if_xdp.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Desc {
    /// Byte offset of the packet in the UMEM.
    pub(crate) addr: u64,
    /// Length of the packet in bytes.
    pub(crate) len: u32,
    /// `XDP_PKT_CONTD` or 0.
    pub(crate) options: u32,
}

const _: () = assert!(size_of::<Desc>() == size_of::<libc::xdp_desc>() && size_of::<Desc>() == 16);

/// What a doorbell says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The kernel did what it could; it may have more to do.
    Done,
    /// The link is down or the kernel is out of buffers: try again, but not at once.
    Later,
    /// The device is gone for good.
    Gone,
}

/// The other side of the rings.
pub trait Kernel: Send {
    /// Asks the kernel to take frames from the fill ring: recvfrom(2) with `MSG_DONTWAIT`.
    fn wake_rx(&mut self) -> Wake;
    /// Asks the kernel to send what lies in the TX ring: sendto(2) with `MSG_DONTWAIT`.
    fn kick_tx(&mut self) -> Wake;
    /// Called at the start of each burst; a simulated kernel works here, and lets packets arrive if
    /// the burst is one to receive. Returns whether the device is still there.
    #[inline(always)]
    fn tick(&mut self, _to_receive: bool) -> bool {
        true
    }
    /// Whether one kick sends all that is queued. Otherwise it sends 32 packets, and there is nothing
    /// to gain by waiting for more.
    fn sends_all_for_one_kick(&self) -> bool;
    /// A descriptor for poll(2).
    fn wait_fd(&self) -> Option<RawFd>;
    /// Makes the device stop giving packets to this queue, for good.
    fn detach(&mut self);
    /// Whether the rings tell exactly what the kernel holds once it is detached. A driver in
    /// zero-copy mode goes on taking frames from the fill ring until the socket is closed.
    fn rings_are_exact(&self) -> bool;
    /// Reads the kernel's own drop counts into ours.
    fn count_drops(&self, counters: &QueueCounters);
    /// Lets go of the device, after the rings' memory.
    fn shut(&mut self);
}

/// The four rings of a queue.
pub(crate) struct Rings {
    pub(crate) fill: RingMemory<u64>,
    pub(crate) rx: RingMemory<Desc>,
    pub(crate) tx: RingMemory<Desc>,
    pub(crate) completion: RingMemory<u64>,
}

impl Rings {
    /// Rings on the heap: sizes of fill, RX, TX and completion ring, and where their indices start.
    pub(crate) fn on_heap([fill, rx, tx, completion]: [u32; 4], start: u32) -> Self {
        Self {
            fill: RingMemory::on_heap(fill, start),
            rx: RingMemory::on_heap(rx, start),
            tx: RingMemory::on_heap(tx, start),
            completion: RingMemory::on_heap(completion, start),
        }
    }
}

/// Frames taken from the pool for the fill ring at one time, at least; fewer are not worth it.
const REFILL_BATCH: u32 = 32;
/// Completions reclaimed in one burst, at most: what two sheaves can take in one exchange.
const RECLAIM_BATCH: usize = 128;
/// Under load, a kick waits until this many packets are queued, so that one system call sends them;
/// but at most `POSTPONE_POLLS` polls.
const KICK_BATCH: u32 = 128;
const POSTPONE_POLLS: u32 = 3;
/// Polls without a kick after the kernel said [`Wake::Later`].
const BACKOFF_POLLS: u32 = 100;
/// How long closing waits for the kernel to send what is queued, in total and without progress.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
const DRAIN_STALL: Duration = Duration::from_millis(100);

/// One AF_XDP queue.
pub struct XskQueue<K: Kernel> {
    // Hot.
    rx: Consumer<Desc>,
    fill: Producer<u64>,
    tx: Producer<Desc>,
    completion: Consumer<u64>,
    geometry: Geometry,
    counters: Arc<QueueCounters>,
    kernel: K,
    /// Frames on the receive side: in the fill ring, with the kernel, in the RX ring.
    with_rx: u32,
    /// Frames on the send side: in the TX ring, with the kernel, in the completion ring.
    with_tx: u32,
    /// How many frames the receive side should have.
    fill_target: u32,
    /// The TX ring held packets that the kernel had not taken after the last doorbell.
    tx_waits: bool,
    /// Packets for which a kick is worth its system call.
    kick_batch: u32,
    /// Polls for which the kick may still be postponed: above 0 only while bursts come full.
    postpone: u32,
    gone: bool,
    backoff: u32,
    // Cold.
    pool: &'static Mempool,
    closed: Option<Closed>,
}

impl<K: Kernel> XskQueue<K> {
    /// A queue over given rings, which must be empty. Up to `fill_target` frames lie on the receive
    /// side, at most the size of the fill ring.
    pub(crate) fn new(pool: &'static Mempool, rings: Rings, kernel: K, fill_target: u32) -> Self {
        let kick_batch = if kernel.sends_all_for_one_kick() { KICK_BATCH } else { 1 };
        let fill_target = fill_target.min(rings.fill.size).min(rings.rx.size).max(1);
        Self {
            rx: Consumer::new(rings.rx),
            fill: Producer::new(rings.fill),
            tx: Producer::new(rings.tx),
            completion: Consumer::new(rings.completion),
            geometry: *pool.geometry(),
            counters: Arc::default(),
            kernel,
            with_rx: 0,
            with_tx: 0,
            fill_target,
            tx_waits: false,
            kick_batch,
            postpone: 0,
            gone: false,
            backoff: 0,
            pool,
            closed: None,
        }
    }

    /// Frames that lie in the rings or with the kernel.
    pub fn frames_held(&self) -> u64 {
        u64::from(self.with_rx) + u64::from(self.with_tx)
    }

    /// Puts frames into the fill ring, so that the kernel can receive before the first poll.
    pub(crate) fn refill(&mut self, cache: &mut PoolCache) {
        let missing = self.fill_target - self.with_rx.min(self.fill_target);
        if missing < REFILL_BATCH.min(self.fill_target) {
            return;
        }
        let room = self.fill.free(missing as usize);
        let (fill, geometry) = (&mut self.fill, &self.geometry);
        let taken = cache.take_with(room, |indices| {
            fill.write_each(indices.len(), |at| geometry.addr_of(sheafio_mempool::FrameIndex(indices[at])));
        });
        self.fill.publish();
        self.with_rx += taken as u32;
    }

    /// Moves received packets from the RX ring to the burst.
    #[inline(always)]
    fn receive(&mut self, burst: &mut Burst) -> usize {
        let spare = burst.spare();
        let available = self.rx.available(spare.len());
        let geometry = &self.geometry;
        let (mut received, mut bytes) = (0, 0);
        self.rx.read_each(available, |_, desc| {
            if geometry.is_packet(desc.addr, desc.len) {
                // SAFETY: the descriptor was just checked; the kernel gave this frame, which was
                // ours in the fill ring, back through the RX ring, which is read once.
                spare[received].write(unsafe { geometry.frame(desc.addr, desc.len) });
                received += 1;
                bytes += u64::from(desc.len);
            }
        });
        self.rx.release();
        // SAFETY: the first `received` spare entries were written just above.
        unsafe { burst.commit(received) };
        self.with_rx -= received as u32;
        if received > 0 {
            self.counters.add_rx(received as u64, bytes);
        }
        if received < available {
            self.count_invalid(available - received);
        }
        received
    }

    /// Gives completed frames back to the pool, straight from the ring to the sheaf.
    #[inline(always)]
    fn reclaim(&mut self, cache: &mut PoolCache) {
        if self.with_tx == 0 {
            return;
        }
        let count = self.completion.available(RECLAIM_BATCH);
        if count == 0 {
            return;
        }
        let mut addrs = 0;
        self.completion.peek_each(count, |_, addr| addrs |= addr);
        assert!(self.geometry.contains(addrs), "the kernel completed a frame that is not in the UMEM");
        let (completion, geometry) = (&mut self.completion, &self.geometry);
        // SAFETY: the frames were sent by this queue and are complete: ours again, each once. Every
        // slot is written. The address comes back as sent; its frame is the chunk it lies in.
        unsafe {
            cache.give_with(count, |slots, _| {
                completion.read_each(slots.len(), |at, addr| {
                    slots[at].write(geometry.index_of(addr).0);
                });
            });
        }
        self.completion.release();
        self.with_tx -= count as u32;
    }

    /// Moves packets from the burst to the TX ring, as many as it has room for.
    #[inline(always)]
    fn send(&mut self, burst: &mut Burst) -> usize {
        let count = self.tx.free(burst.len());
        let geometry = &self.geometry;
        let (mut addrs, mut bytes) = (0, 0);
        self.tx.write_each(count, |at| {
            let frame = &burst[at];
            let addr = geometry.addr(frame);
            addrs |= addr;
            bytes += frame.len() as u64;
            Desc { addr, len: frame.len() as u32, options: u32::from(frame.continues()) }
        });
        if !geometry.contains(addrs) {
            self.tx.unwrite(count);
            panic!("a frame of another pool was given to tx_burst; open the port with the frame's own pool");
        }
        self.tx.publish();
        burst.forget_front(count);
        self.with_tx += count as u32;
        self.counters.add_tx(count as u64, bytes);
        count
    }

    /// Kicks the kernel if it wants to be. A flag that was raised just after we looked is seen by
    /// the next call, which comes because `tx_waits` stays true until the ring is empty; so a
    /// doorbell that was skipped is never lost.
    #[inline(always)]
    fn doorbell(&mut self) {
        if self.gone {
            return;
        }
        if self.backoff > 0 {
            self.backoff -= 1;
            return;
        }
        if self.tx.needs_wakeup() {
            let wake = self.kernel.kick_tx();
            self.heed(wake);
        }
        self.tx_waits = self.tx.unconsumed() > 0;
    }

    #[inline(always)]
    fn heed(&mut self, wake: Wake) {
        match wake {
            Wake::Done => {}
            Wake::Later => self.backoff = BACKOFF_POLLS,
            Wake::Gone => self.gone = true,
        }
    }

    /// A frame whose descriptor can't be trusted is not touched again.
    #[cold]
    fn count_invalid(&mut self, packets: usize) {
        self.counters.add_drops(DropReason::RxInvalid, packets as u64);
    }

    /// Frees what can't be sent any more.
    #[cold]
    fn drop_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        let dropped = cache.free_burst(burst);
        self.counters.add_drops(DropReason::DeviceGone, dropped as u64);
        0
    }

    /// Waits, within a bound, until the kernel has sent and completed what is queued.
    fn drain(&mut self, cache: &mut PoolCache) {
        let start = Instant::now();
        let mut progress = start;
        while self.with_tx > 0
            && !self.gone
            && start.elapsed() < DRAIN_LIMIT
            && progress.elapsed() < DRAIN_STALL
        {
            let before = (self.with_tx, self.tx.unconsumed());
            self.gone |= !self.kernel.tick(false);
            self.reclaim(cache);
            self.backoff = 0;
            self.doorbell();
            if (self.with_tx, self.tx.unconsumed()) == before {
                std::thread::sleep(Duration::from_micros(100));
            } else {
                progress = Instant::now();
            }
        }
        while self.completion.available(1) > 0 {
            self.reclaim(cache);
        }
    }

    /// Gives back received packets that nobody has read.
    fn drop_unread(&mut self, cache: &mut PoolCache) {
        let mut burst = Burst::with_limit(Burst::MAX);
        let before = self.counters.totals();
        while self.receive(&mut burst) > 0 {
            cache.free_burst(&mut burst);
        }
        let unread = self.counters.totals().rx_packets - before.rx_packets;
        self.counters.add_drops(DropReason::RxUnread, unread);
    }

    /// Takes back what lies in the rings for a kernel that has stopped.
    fn take_back(&mut self, cache: &mut PoolCache) {
        let geometry = self.geometry;
        let (mut filled, mut unsent) = (0, 0);
        // SAFETY: the queue is detached and its rings are exact: nothing makes the kernel read them
        // any more. The frames were put there by this queue, and each is given back once.
        unsafe {
            self.fill.take_back(|addr| {
                cache.give(&[geometry.index_of(addr)]);
                filled += 1;
            });
            self.tx.take_back(|desc| {
                cache.give(&[geometry.index_of(desc.addr)]);
                unsent += 1;
            });
        }
        self.with_rx -= filled;
        self.with_tx -= unsent;
        self.counters.add_drops(DropReason::TxUnsent, u64::from(unsent));
    }
}

impl<K: Kernel> Queue for XskQueue<K> {
    #[inline]
    fn rx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        self.gone |= !self.kernel.tick(true);
        // 1. Refill the fill ring.
        self.refill(cache);
        // 2. Receive.
        let room = burst.room();
        let received = self.receive(burst);
        // 3. Wake the kernel if it asks: for the fill ring, and for packets that wait to be sent.
        if self.fill.needs_wakeup() && !self.gone {
            let wake = self.kernel.wake_rx();
            self.heed(wake);
        }
        if self.tx_waits {
            if received == room && self.postpone > 0 {
                self.postpone -= 1;
            } else {
                self.postpone = 0;
                self.doorbell();
            }
        } else {
            self.postpone = if received == room { POSTPONE_POLLS } else { 0 };
        }
        received
    }

    #[inline]
    fn tx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        self.gone |= !self.kernel.tick(false);
        // 1. Reclaim completions in bulk.
        self.reclaim(cache);
        if self.gone {
            return self.drop_burst(cache, burst);
        }
        // 2. Send.
        let sent = if burst.is_empty() { 0 } else { self.send(burst) };
        // 3. Kick, unless full bursts come in and the next one will make this kick worth more.
        if sent > 0 && self.postpone > 0 && self.tx.unconsumed() < self.kick_batch {
            self.tx_waits = true;
        } else if sent > 0 || self.tx_waits {
            self.postpone = 0;
            self.doorbell();
        }
        sent
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.kernel.wait_fd()
    }

    fn close(&mut self, cache: &mut PoolCache) -> Closed {
        if let Some(closed) = self.closed {
            return closed;
        }
        let held = self.frames_held();
        self.kernel.detach();
        self.drain(cache);
        self.drop_unread(cache);
        if self.kernel.rings_are_exact() {
            self.take_back(cache);
        }
        self.kernel.count_drops(&self.counters);

        // What is left is with the kernel, which lets go of it some time after the socket is closed.
        let retired = self.frames_held();
        cache.retire(retired as usize);
        let rings = Rings::on_heap([1; 4], 0);
        self.rx = Consumer::new(rings.rx);
        self.fill = Producer::new(rings.fill);
        self.tx = Producer::new(rings.tx);
        self.completion = Consumer::new(rings.completion);
        self.kernel.shut();
        (self.with_rx, self.with_tx, self.fill_target) = (0, 0, 0);
        (self.gone, self.tx_waits) = (true, false);
        let closed = Closed { returned: held - retired, retired };
        self.closed = Some(closed);
        closed
    }
}

impl<K: Kernel> Drop for XskQueue<K> {
    fn drop(&mut self) {
        if self.closed.is_none() {
            // A pool that has no cache left loses the frames: they stay in flight in the census.
            match self.pool.cache() {
                Ok(mut cache) => drop(self.close(&mut cache)),
                Err(_) => self.kernel.detach(),
            }
        }
    }
}
