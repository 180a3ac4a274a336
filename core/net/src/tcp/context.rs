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
        let mut sacks = Sacks::default();
        if self.sack && !self.beyond.is_empty() {
            for (start, end) in self.beyond.iter_data().take(sacks.ranges.len()) {
                sacks.ranges[sacks.count] =
                    (self.receiving.next + start as u32, self.receiving.next + end as u32);
                sacks.count += 1;
            }
        }
        sacks
    }
}
