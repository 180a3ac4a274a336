//! The null port: an endless source and a sink, as DPDK's net_null.
//!
//! Owns: nothing but counters. Never does: touch packet bytes. Invariant: every received frame was
//! allocated from the pool and every sent one is freed there, so it measures the framework and the
//! pool alone.

use std::{sync::Arc, time::Instant};

use sheafio_core::{Closed, Queue, QueueCounters};
use sheafio_mempool::{Burst, PoolCache};

/// A queue of a null port.
pub struct NullQueue {
    len_bytes: u32,
    counters: Arc<QueueCounters>,
    closed: bool,
}

impl NullQueue {
    /// A queue that receives packets of `len_bytes` bytes: 14, an Ethernet header, to 1728, what a
    /// frame of any pool holds with the default headroom.
    ///
    /// # Panics
    /// If the length is outside of that range.
    pub fn new(len_bytes: u32) -> Self {
        assert!((14..=1728).contains(&len_bytes), "null port: len={len_bytes}; allowed: 14 to 1728 bytes");
        Self { len_bytes, counters: Arc::default(), closed: false }
    }
}

impl Queue for NullQueue {
    #[inline]
    fn rx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        if self.closed {
            return 0;
        }
        let received = cache.alloc_packets(burst, burst.room(), self.len_bytes);
        self.counters.add_rx(received as u64, received as u64 * u64::from(self.len_bytes));
        received
    }

    #[inline]
    fn tx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        let bytes = burst.iter().map(|frame| frame.len() as u64).sum();
        let sent = cache.free_burst(burst);
        self.counters.add_tx(sent as u64, bytes);
        sent
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn close_by(&mut self, _: &mut PoolCache, _: Instant) -> Closed {
        self.closed = true;
        Closed::default()
    }
}
