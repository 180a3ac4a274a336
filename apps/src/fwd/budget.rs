//! The packet limit of a run, shared by its lcores.
//!
//! Owns: two counts. Never does: exist in a run without `--packets`, so the read-modify-writes here are on no
//! one's hot path. Invariant: claimed but unused packets go back, so the limit is met exactly, however unevenly
//! traffic comes to the lcores.

use std::sync::atomic::{AtomicU64, Ordering};

use sheafio_core::Stop;

/// How many packets may still be handled, and how many were.
pub(crate) struct Budget {
    packets: u64,
    unclaimed: AtomicU64,
    done: AtomicU64,
    stop: Stop,
}

impl Budget {
    /// A budget that raises `stop` when it is used up.
    pub(crate) fn new(packets: u64, stop: Stop) -> Self {
        Self { packets, unclaimed: AtomicU64::new(packets), done: AtomicU64::new(0), stop }
    }

    /// Claims up to `most` packets.
    pub(crate) fn claim(&self, most: usize) -> usize {
        let mut claimed = 0;
        // Relaxed, here and below: the counts order nothing.
        let _ = self.unclaimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |unclaimed| {
            claimed = unclaimed.min(most as u64);
            Some(unclaimed - claimed)
        });
        claimed as usize
    }

    /// Gives back what of a claim was not used.
    pub(crate) fn settle(&self, claimed: usize, used: usize) {
        if used < claimed {
            self.unclaimed.fetch_add((claimed - used) as u64, Ordering::Relaxed);
        }
        if used > 0 && self.done.fetch_add(used as u64, Ordering::Relaxed) + used as u64 == self.packets {
            self.stop.raise();
        }
    }
}
