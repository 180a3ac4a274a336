//! The trait that drivers implement.

use std::{os::fd::RawFd, sync::Arc};

use sheafio_mempool::{Burst, PoolCache};

use crate::{DropReason, QueueCounters};

/// One RX/TX ring pair of a port. Owned by one lcore; use it as `impl Queue` where the kind is
/// known, or as `Box<dyn Queue>`.
///
/// Call both `rx_burst` and `tx_burst` in every poll, also with an empty burst: `tx_burst` is where
/// completed frames come back and where a kernel that still has packets to send is kicked.
pub trait Queue: Send {
    /// Receives packets to the end of `burst`, within its limit of frames; only the last packet may go over it,
    /// if it has several frames: packets are never cut. Returns how many packets.
    fn rx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize;

    /// Sends packets from the front of `burst` and removes them from it. Returns how many packets; what the
    /// TX ring has no room for stays in the burst, whole packets of it. What could never be sent is freed and
    /// counted ([`DropReason::TxTooLarge`], [`DropReason::TxEmpty`], [`DropReason::TxNoEnd`]).
    fn tx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize;

    /// What this queue has counted.
    fn counters(&self) -> &Arc<QueueCounters>;

    /// A descriptor that poll(2) can wait on for received packets, if there is one.
    ///
    /// On an AF_XDP port that copies, poll(2) itself sends what lies in the TX ring (`xsk_poll` in net/xdp/xsk.c), and
    /// does not tell when the device drops some: these are not counted, and at close they may be taken for unsent. So do
    /// not wait while [`QueueCounters::sends_in_poll`] says so; an [`Lcore`](crate::Lcore) does not.
    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    /// Whether the queue's device is gone for good: it receives nothing any more, and what is sent is freed and
    /// counted as [`DropReason::DeviceGone`]. It is known from the first system call for the queue that fails, or as
    /// soon as the control plane has seen it; a queue that is polled and receives nothing looks for it once a second,
    /// or in every 64th such poll if those come less often. Soft queues have no device to lose.
    fn is_gone(&self) -> bool {
        self.counters().is_gone()
    }

    /// Stops receiving, sends what is queued within a bounded time, and gives every frame back that
    /// the device has let go of. The queue receives and sends nothing afterwards; closing it again
    /// does nothing. Dropping a queue closes it too.
    fn close(&mut self, cache: &mut PoolCache) -> Closed;

    /// Sends all of `burst`; what the TX ring has no room for is freed and counted as
    /// [`DropReason::TxFull`]. Returns how many were sent.
    #[inline]
    fn tx_or_drop(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        let sent = self.tx_burst(cache, burst);
        if !burst.is_empty() {
            let dropped = burst.packet_count();
            cache.free_burst(burst);
            self.counters().add_drops(DropReason::TxFull, dropped as u64);
        }
        sent
    }
}

/// What became of the frames that a queue held when it closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Frames given back to the pool.
    pub returned: u64,
    /// Frames that the kernel did not give back; they are retired.
    pub retired: u64,
}

impl<Q: Queue + ?Sized> Queue for Box<Q> {
    #[inline(always)]
    fn rx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        (**self).rx_burst(cache, burst)
    }

    #[inline(always)]
    fn tx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        (**self).tx_burst(cache, burst)
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        (**self).counters()
    }

    fn wait_fd(&self) -> Option<RawFd> {
        (**self).wait_fd()
    }

    fn is_gone(&self) -> bool {
        (**self).is_gone()
    }

    fn close(&mut self, cache: &mut PoolCache) -> Closed {
        (**self).close(cache)
    }
}
