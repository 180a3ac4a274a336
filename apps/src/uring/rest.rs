//! What a loop over a ring does in turns that find nothing: an lcore's idle policy, with the ring's own wait.
//!
//! Owns: the count of empty turns. Never does: take completions. Invariant: a turn that waits reports no work, so its time
//! counts as idle; what has come is found by the next turn.

use std::time::Duration;

use sheafio_core::IdlePolicy;

use super::Ring;

/// The longest wait: how late a loop may see a raised stop flag.
const LONGEST: Duration = Duration::from_millis(10);

pub(crate) struct Rest {
    policy: IdlePolicy,
    empty_turns: u32,
}

impl Rest {
    pub(crate) fn new(policy: IdlePolicy) -> Self {
        Self { policy, empty_turns: 0 }
    }

    /// There was work: the count starts again.
    #[inline]
    pub(crate) fn worked(&mut self) {
        self.empty_turns = 0;
    }

    /// There was none. Waits if that has been so for long enough, and no longer than `until_work`, if the loop knows
    /// when it has something to do.
    #[inline]
    pub(crate) fn found_nothing(&mut self, ring: &Ring, until_work: Option<Duration>) {
        self.empty_turns = self.empty_turns.saturating_add(1);
        if let IdlePolicy::Adaptive { empty_polls } = self.policy
            && self.empty_turns >= empty_polls
        {
            ring.wait(until_work.map_or(LONGEST, |until| until.min(LONGEST)));
        }
    }
}
