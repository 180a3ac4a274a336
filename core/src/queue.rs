//! The trait that drivers implement.

use std::{
    iter::Sum,
    ops::AddAssign,
    os::fd::RawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use sheafio_mempool::{Burst, PoolCache};

use crate::{DropReason, QueueCounters};

/// How long closing the queues of one lcore waits at most, one after the other, where nothing moves any more.
const CLOSE_LIMIT: Duration = Duration::from_millis(1800);
/// What each of them has of it at least, whatever those before have taken; with more than 18 queues that is longer.
const CLOSE_LEAST: Duration = Duration::from_millis(100);

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
    ///
    /// It waits for the device until `end` at most; with no time left it sends nothing more, and asks once whether a
    /// zero-copy driver has let go. What a call into the kernel takes, such as one that waits there for a NIC
    /// that is reset, comes on top.
    fn close_by(&mut self, cache: &mut PoolCache, end: Instant) -> Closed;

    /// Does so, and waits for at most 1.8 s. For several queues of an lcore there are [`close_ends`].
    fn close(&mut self, cache: &mut PoolCache) -> Closed {
        self.close_by(cache, Instant::now() + CLOSE_LIMIT)
    }

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

impl AddAssign for Closed {
    fn add_assign(&mut self, other: Self) {
        self.returned += other.returned;
        self.retired += other.retired;
    }
}

impl Sum for Closed {
    fn sum<I: Iterator<Item = Self>>(closed: I) -> Self {
        closed.fold(Self::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}

/// Until when each of so many queues may wait that an lcore closes one after the other: all of them for 1.8 s at most, of which
/// 100 ms are kept for each that is still to come; each for 100 ms at least, so more than 18 wait for longer. Take one just before its queue is closed, for [`Queue::close_by`].
pub fn close_ends(queues: usize) -> impl Iterator<Item = Instant> {
    let start = Instant::now();
    (0..queues).rev().map(move |others| start + close_within(start.elapsed(), others))
}

/// When a queue's closing ends, after the beginning of the first one's; with so many to come.
fn close_within(elapsed: Duration, others: usize) -> Duration {
    let kept = CLOSE_LEAST.saturating_mul(u32::try_from(others).unwrap_or(u32::MAX));
    CLOSE_LIMIT.saturating_sub(kept).max(elapsed + CLOSE_LEAST)
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

    fn close_by(&mut self, cache: &mut PoolCache, end: Instant) -> Closed {
        (**self).close_by(cache, end)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn queues_that_are_stuck_share_the_time_of_closing() {
        let ms = Duration::from_millis;
        // Alone it has all; the first of four leaves the others theirs; one whose turn comes late has its least.
        assert_eq!(close_within(ms(0), 0), ms(1800));
        assert_eq!(close_within(ms(0), 3), ms(1500));
        assert_eq!(close_within(ms(1500), 2), ms(1600));
        assert_eq!(close_within(ms(20), 2), ms(1600));
        assert_eq!(close_within(ms(2500), 40), ms(2600));
        // Each takes whatever it may.
        for queues in [1, 4, 18] {
            let end = (0..queues).rev().fold(ms(0), close_within);
            assert_eq!(end, ms(1800), "{queues} queues");
        }
        assert_eq!((0..64).rev().fold(ms(0), close_within), ms(6400));
        assert_eq!(close_ends(3).count(), 3);
    }
}
