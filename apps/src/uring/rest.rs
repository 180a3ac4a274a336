//! What a loop over a ring does in turns that find nothing: an lcore's idle policy, with the ring's own wait.
//!
//! Owns: the count of empty turns. Never does: take completions; sleep past the moment at which the loop has work.
//! Invariant: a turn that waits reports no work, so its time counts as idle; what has come is found by the next turn.

use std::time::Duration;

use sheafio_core::IdlePolicy;

use super::Ring;

/// The longest wait: how late a loop may see a raised stop flag.
const LONGEST: Duration = Duration::from_millis(10);
/// How long before its next work a loop polls instead of sleeping: a timer and the way out of a CPU's idle state take
/// some of that, and what is done late would look like the peer's latency.
const AWAKE_BEFORE: Duration = Duration::from_micros(100);

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
            && let Some(time) = sleep(until_work)
        {
            ring.wait(time);
        }
    }
}

/// How long a loop may sleep that has work in so long, or does not know when. `None`: not at all.
fn sleep(until_work: Option<Duration>) -> Option<Duration> {
    let Some(until_work) = until_work else { return Some(LONGEST) };
    let time = until_work.saturating_sub(AWAKE_BEFORE);
    (!time.is_zero()).then_some(time.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sleep_reaches_the_moment_of_work() {
        let us = Duration::from_micros;
        assert_eq!(sleep(None), Some(LONGEST));
        for (until_work, time) in
            [(0, None), (100, None), (101, Some(1)), (1100, Some(1000)), (60_000_000, Some(10_000))]
        {
            assert_eq!(sleep(Some(us(until_work))), time.map(us), "{until_work} us");
        }
    }
}
