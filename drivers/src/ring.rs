//! The ring port: two ends in memory, each one's TX the other one's RX, as DPDK's net_ring.
//!
//! Owns: the frames that are on their way. Never does: copy a packet. Invariant: a frame that was
//! sent is received once, or given back by the end that closes last.

use std::{mem::MaybeUninit, sync::Arc, time::Instant};

use sheafio_core::{Closed, DropReason, Queue, QueueCounters};
use sheafio_mempool::{
    Burst, Frame, Mempool, PoolCache,
    sync::{AtomicU32, Ordering},
};

use crate::spsc::{Consumer, Producer, RingMemory};

/// One end of a ring port. The ends may be on different lcores; both use one pool.
pub struct RingQueue {
    incoming: Consumer<Frame>,
    outgoing: Producer<Frame>,
    counters: Arc<QueueCounters>,
    /// How many ends have closed.
    closes: Arc<AtomicU32>,
    pool: &'static Mempool,
    closed: bool,
}

/// Makes the two ends of a ring port, with `size` slots, a power of two, in each direction.
///
/// # Panics
/// If the size is not a power of two.
pub fn pair(pool: &'static Mempool, size: u32) -> (RingQueue, RingQueue) {
    let (there, back) = (RingMemory::on_heap(size, 0), RingMemory::on_heap(size, 0));
    let closes = Arc::new(AtomicU32::new(0));
    let end = |incoming, outgoing| RingQueue {
        incoming: Consumer::new(incoming),
        outgoing: Producer::new(outgoing),
        counters: Arc::default(),
        closes: closes.clone(),
        pool,
        closed: false,
    };
    (end(back.clone(), there.clone()), end(there, back))
}

impl RingQueue {
    /// Whether the other end has closed: nobody would receive what is sent now. What was sent before
    /// this was seen is given back by the end that closes last.
    fn is_alone(&self) -> bool {
        // Relaxed: a hint; no frame is accessed for it.
        self.closes.load(Ordering::Relaxed) > 0
    }

    /// Gives back what came and was not received.
    fn drop_unread(&mut self, cache: &mut PoolCache) -> u64 {
        let frames = self.incoming.available(usize::MAX);
        let (mut bytes, mut packets) = (0, 0);
        self.incoming.read_each(frames, |_, frame| {
            bytes += frame.len() as u64;
            packets += u64::from(!frame.continues());
            cache.free(frame);
        });
        self.incoming.release();
        self.counters.add_rx(packets, bytes);
        self.counters.add_held(-(frames as i64));
        self.counters.add_drops(DropReason::RxUnread, packets);
        frames as u64
    }

    /// How many frames at the front of a burst are whole packets and fit into `room`. Packets that could
    /// never be sent, for want of an end or of slots, are freed and counted.
    #[cold]
    fn whole_packets(&mut self, cache: &mut PoolCache, burst: &mut Burst, room: usize) -> usize {
        let (most, counters) = (self.outgoing.slots() as usize, &self.counters);
        burst.retain_packets(cache, |packet| {
            let reason = if packet.last().is_some_and(Frame::continues) {
                DropReason::TxNoEnd
            } else if packet.len() > most {
                DropReason::TxTooLarge
            } else {
                return true;
            };
            counters.add_drops(reason, 1);
            false
        });
        let room = room.min(burst.len());
        burst[..room].iter().rposition(|frame| !frame.continues()).map_or(0, |last| last + 1)
    }
}

impl Queue for RingQueue {
    #[inline]
    fn rx_burst(&mut self, _: &mut PoolCache, burst: &mut Burst) -> usize {
        if self.closed {
            return 0;
        }
        let limit = burst.room();
        let spare = burst.spare_over_limit();
        let mut frames = self.incoming.available(limit);
        if frames == 0 {
            return 0; // Without a store to the line that both ends read.
        }
        let (mut bytes, mut continued, mut continues) = (0, 0, false);
        self.incoming.read_each(frames, |at, frame| {
            bytes += frame.len() as u64;
            continues = frame.continues();
            continued += usize::from(continues);
            spare[at].write(frame);
        });
        if continues {
            (frames, continued, bytes) = end_of_packet(&mut self.incoming, spare, frames);
        }
        self.incoming.release();
        // SAFETY: the first `frames` spare entries were written just above.
        unsafe { burst.commit(frames) };
        let received = frames - continued;
        self.counters.add_rx(received as u64, bytes);
        self.counters.add_held(-(frames as i64));
        received
    }

    #[inline]
    fn tx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        if self.closed || self.is_alone() {
            self.counters.add_drops(DropReason::DeviceGone, burst.packet_count() as u64);
            cache.free_burst(burst);
            return 0;
        }
        // What enters the ring can leave it: the end that closes last frees it with a cache of this pool.
        let geometry = self.pool.geometry();
        let addrs = burst.iter().fold(0, |addrs, frame| addrs | geometry.addr(frame));
        assert!(geometry.contains(addrs), "a frame of another pool was given to tx_burst");
        let room = self.outgoing.free(burst.len());
        let frames = match room.checked_sub(1) {
            Some(last) if burst[last].continues() => self.whole_packets(cache, burst, room),
            _ => room,
        };
        if frames == 0 {
            return 0;
        }
        let (mut bytes, mut continued) = (0, 0);
        self.outgoing.write_each(frames, |at| {
            bytes += burst[at].len() as u64;
            continued += usize::from(burst[at].continues());
            // SAFETY: the frame moves from the burst to the ring: the burst forgets it just below.
            unsafe { std::ptr::read(&raw const burst[at]) }
        });
        burst.forget_front(frames);
        self.outgoing.publish();
        let sent = frames - continued;
        self.counters.add_tx(sent as u64, bytes);
        self.counters.add_held(frames as i64);
        sent
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn close_by(&mut self, cache: &mut PoolCache, _: Instant) -> Closed {
        assert!(
            std::ptr::eq(cache.pool(), self.pool),
            "a pool cache of another pool was given to this queue"
        );
        if self.closed {
            return Closed::default();
        }
        self.closed = true;
        let mut returned = self.drop_unread(cache);
        // AcqRel: orders this end's last send and read before the other end's clean-up, and the
        // other way round. Once it has announced itself, an end touches nothing unless it is the last.
        if self.closes.fetch_add(1, Ordering::AcqRel) == 1 {
            returned += self.drop_unread(cache);
            let (mut frames, mut unsent) = (0, 0);
            // SAFETY: the other end has closed and reads no more.
            unsafe {
                self.outgoing.take_back(|frame| {
                    unsent += u64::from(!frame.continues());
                    frames += 1;
                    cache.free(frame);
                });
            }
            self.counters.add_drops(DropReason::TxUnsent, unsent);
            self.counters.add_held(-(frames as i64));
            returned += frames;
        }
        Closed { returned, retired: 0 }
    }
}

/// Reads on to the end of the last packet, over the burst's limit; what is not whole even so, for want of room,
/// goes back into the ring. Returns the frames of whole packets, how many of them continue, and their bytes.
#[cold]
fn end_of_packet(
    incoming: &mut Consumer<Frame>,
    spare: &mut [MaybeUninit<Frame>],
    mut frames: usize,
) -> (usize, usize, u64) {
    // SAFETY: the caller has written that many entries; a reference to them does not move them.
    let is_whole =
        |spare: &[MaybeUninit<Frame>], at: usize| unsafe { !spare[at].assume_init_ref().continues() };
    while !is_whole(spare, frames - 1) && frames < spare.len() && incoming.available(1) == 1 {
        incoming.read_each(1, |_, frame| _ = spare[frames].write(frame));
        frames += 1;
    }
    let (mut continued, mut bytes) = (0, 0);
    let whole = (0..frames).rev().find(|at| is_whole(spare, *at)).map_or(0, |last| last + 1);
    for at in 0..whole {
        continued += usize::from(!is_whole(spare, at));
        // SAFETY: as above.
        bytes += unsafe { spare[at].assume_init_ref() }.len() as u64;
    }
    incoming.unread(frames - whole); // The entries behind are not committed, and so forgotten.
    (whole, continued, bytes)
}

impl Drop for RingQueue {
    fn drop(&mut self) {
        if !self.closed
            && let Ok(mut cache) = self.pool.cache()
        {
            self.close(&mut cache);
        }
    }
}
