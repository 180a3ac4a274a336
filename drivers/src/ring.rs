//! The ring port: two ends in memory, each one's TX the other one's RX, as DPDK's net_ring.
//!
//! Owns: the frames that are on their way. Never does: copy a packet. Invariant: a frame that was
//! sent is received once, or given back by the end that closes last.

use std::sync::Arc;

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
        let unread = self.incoming.available(usize::MAX);
        let mut bytes = 0;
        self.incoming.read_each(unread, |_, frame| {
            bytes += frame.len() as u64;
            cache.free(frame);
        });
        self.incoming.release();
        self.counters.add_rx(unread as u64, bytes);
        self.counters.add_held(-(unread as i64));
        self.counters.add_drops(DropReason::RxUnread, unread as u64);
        unread as u64
    }
}

impl Queue for RingQueue {
    #[inline]
    fn rx_burst(&mut self, _: &mut PoolCache, burst: &mut Burst) -> usize {
        if self.closed {
            return 0;
        }
        let spare = burst.spare();
        let received = self.incoming.available(spare.len());
        if received == 0 {
            return 0; // Without a store to the line that both ends read.
        }
        let mut bytes = 0;
        self.incoming.read_each(received, |at, frame| {
            bytes += frame.len() as u64;
            spare[at].write(frame);
        });
        self.incoming.release();
        // SAFETY: the first `received` spare entries were written just above.
        unsafe { burst.commit(received) };
        self.counters.add_rx(received as u64, bytes);
        self.counters.add_held(-(received as i64));
        received
    }

    #[inline]
    fn tx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        if self.closed || self.is_alone() {
            let dropped = cache.free_burst(burst);
            self.counters.add_drops(DropReason::DeviceGone, dropped as u64);
            return 0;
        }
        // What enters the ring can leave it: the end that closes last frees it with a cache of this pool.
        let geometry = self.pool.geometry();
        let addrs = burst.iter().fold(0, |addrs, frame| addrs | geometry.addr(frame));
        assert!(geometry.contains(addrs), "a frame of another pool was given to tx_burst");
        let sent = self.outgoing.free(burst.len());
        if sent == 0 {
            return 0;
        }
        let mut bytes = 0;
        self.outgoing.write_each(sent, |at| {
            bytes += burst[at].len() as u64;
            // SAFETY: the frame moves from the burst to the ring: the burst forgets it just below.
            unsafe { std::ptr::read(&raw const burst[at]) }
        });
        burst.forget_front(sent);
        self.outgoing.publish();
        self.counters.add_tx(sent as u64, bytes);
        self.counters.add_held(sent as i64);
        sent
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn close(&mut self, cache: &mut PoolCache) -> Closed {
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
            let mut unsent = 0;
            // SAFETY: the other end has closed and reads no more.
            unsafe {
                self.outgoing.take_back(|frame| {
                    cache.free(frame);
                    unsent += 1;
                });
            }
            self.counters.add_drops(DropReason::TxUnsent, unsent);
            self.counters.add_held(-(unsent as i64));
            returned += unsent;
        }
        Closed { returned, retired: 0 }
    }
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
