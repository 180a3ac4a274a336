//! What all flows of an lcore share.

use std::sync::Arc;

use super::{
    config::Config,
    flow::Flow,
    segment::{Sacks, Timestamps},
};
use crate::Counts;

/// Settings, the clock, and the counters.
pub(super) struct Context {
    pub(super) config: Config,
    pub(super) counts: Arc<Counts>,
    /// The time of this burst.
    pub(super) now_us: u64,
    /// What our timestamps are ahead of the clock, so that they don't tell how long this machine has run.
    pub(super) timestamp_offset: u32,
    pub(super) frame_bytes: u32,
    /// Capacities of the buffers: whole frames.
    pub(super) receive_bytes: u32,
    pub(super) send_bytes: u32,
    /// A window that is smaller than this is little: the largest segment that a peer may send, or half of the buffer
    /// (RFC 9293 section 3.8.6.2.2).
    pub(super) least_window: u32,
    /// The shift of the windows that we send (RFC 7323): the least with which the receive buffer can be told.
    pub(super) shift: u8,
}

impl Context {
    /// Our clock, in milliseconds (RFC 7323 section 5.4 wants 1 ms to 1 s).
    #[inline]
    pub(super) fn timestamp(&self) -> u32 {
        ((self.now_us / 1000) as u32).wrapping_add(self.timestamp_offset)
    }

    /// The timestamps of a segment of this flow.
    #[inline]
    pub(super) fn timestamps<Session>(&self, flow: &Flow<Session>) -> Option<Timestamps> {
        flow.timestamps.then(|| Timestamps { value: self.timestamp(), echo: flow.receiving.timestamp })
    }
}

impl<Session> Flow<Session> {
    /// The ranges beyond a gap, as the peer is told of them.
    #[inline]
    pub(super) fn sacks(&self) -> Sacks {
        if self.sack && !self.beyond.is_empty() { self.ranges() } else { Sacks::default() }
    }

    /// First the one that what came last lies in (RFC 2018 section 4), then the others as they lie.
    fn ranges(&self) -> Sacks {
        let (next, latest) = (self.receiving.next, self.receiving.latest - self.receiving.next);
        let is_first = |range: &(usize, usize)| (range.0..range.1).contains(&(latest as usize));
        let all = || self.beyond.iter_data();
        let mut sacks = Sacks::default();
        for (start, end) in all().find(is_first).into_iter().chain(all().filter(|range| !is_first(range))) {
            if sacks.count < sacks.ranges.len() {
                sacks.ranges[sacks.count] = (next + start as u32, next + end as u32);
                sacks.count += 1;
            }
        }
        sacks
    }
}
