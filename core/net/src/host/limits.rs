//! How often one target is sent what nobody asked for: errors and requests.
//!
//! Owns: a token bucket for each of the last targets, and one for all of them. Never does: grow; a new target takes the
//! place of the one that has been quiet for longest among four. Invariant: all targets together never get more than the
//! bucket for all gives, however many there are and however they change; no target's bucket takes from another's.
//!
//! A bucket is one number, the time at which it will be full (the generic cell rate algorithm, ITU-T I.371): it gives a
//! token if that time is less than the burst away.

use std::{hash::BuildHasher, net::Ipv6Addr};

use foldhash::fast::FixedState;

const WAYS: usize = 4;
const SETS: usize = 64;

/// How fast a bucket fills, and how much it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Between two tokens.
    pub(super) interval_ns: u64,
    /// Tokens of a full bucket, at least 1.
    pub(super) burst: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    full_at_ns: u64,
}

impl Bucket {
    /// Whether it has a token.
    fn has(self, rate: Rate, now_ns: u64) -> bool {
        self.full_at_ns.saturating_sub(now_ns) <= rate.interval_ns * (rate.burst - 1)
    }

    /// Takes a token that is there.
    fn take(&mut self, rate: Rate, now_ns: u64) {
        self.full_at_ns = self.full_at_ns.max(now_ns) + rate.interval_ns;
    }
}

/// Limits by target.
#[derive(Debug)]
pub(super) struct Limits {
    each: Rate,
    all: Rate,
    all_bucket: Bucket,
    /// Targets and their buckets; the unspecified address, which is no target, where there is none.
    sets: Box<[[(Ipv6Addr, Bucket); WAYS]; SETS]>,
    hash: FixedState,
}

impl Limits {
    pub(super) fn new(each: Rate, all: Rate) -> Self {
        Self {
            each,
            all,
            all_bucket: Bucket::default(),
            sets: Box::new([[(Ipv6Addr::UNSPECIFIED, Bucket::default()); WAYS]; SETS]),
            // By lot, so that nobody can choose addresses that share a set.
            hash: FixedState::with_seed(fastrand::u64(..)),
        }
    }

    /// Whether a target may be sent something now; that is counted then.
    pub(super) fn allow(&mut self, target: Ipv6Addr, now_ns: u64) -> bool {
        let set = &mut self.sets[self.hash.hash_one(target) as usize % SETS];
        let at = set.iter().position(|(known, _)| *known == target).unwrap_or_else(|| {
            let quiet = (0..WAYS).min_by_key(|&at| set[at].1.full_at_ns).expect("a set has ways");
            set[quiet] = (target, Bucket::default());
            quiet
        });
        let bucket = &mut set[at].1;
        // Both are asked before either gives, so that a target that is refused takes nothing from the others.
        let is_allowed = bucket.has(self.each, now_ns) && self.all_bucket.has(self.all, now_ns);
        if is_allowed {
            bucket.take(self.each, now_ns);
            self.all_bucket.take(self.all, now_ns);
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn target(number: u32) -> Ipv6Addr {
        Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(number))
    }

    fn limits() -> Limits {
        Limits::new(Rate { interval_ns: SECOND, burst: 6 }, Rate { interval_ns: SECOND / 1000, burst: 50 })
    }

    #[test]
    fn a_target_gets_its_burst_and_then_its_rate() {
        let mut limits = limits();
        let allowed =
            |limits: &mut Limits, now: u64| (0..100).filter(|_| limits.allow(target(1), now)).count();
        assert_eq!(allowed(&mut limits, 0), 6);
        assert_eq!(allowed(&mut limits, SECOND - 1), 0);
        assert_eq!(allowed(&mut limits, SECOND), 1);
        assert_eq!(allowed(&mut limits, 3 * SECOND), 2);
        assert_eq!(allowed(&mut limits, 100 * SECOND), 6, "a bucket does not hold more than its burst");
    }

    #[test]
    fn one_target_does_not_starve_another() {
        let mut limits = limits();
        for millisecond in 0..10_000_u64 {
            // More often than the bucket of all fills.
            for _ in 0..10 {
                limits.allow(target(1), millisecond * SECOND / 1000);
            }
            if millisecond % 1000 == 999 {
                assert!(limits.allow(target(2), millisecond * SECOND / 1000), "after {millisecond} ms");
            }
        }
    }

    #[test]
    fn all_targets_together_have_a_limit() {
        let mut limits = limits();
        // Each a new one: no bucket of its own ever holds it back.
        let allowed =
            (0..100_000_u32).filter(|&number| limits.allow(target(number), u64::from(number) * 10_000));
        // One second, at 1,000 a second, and the burst.
        let allowed = allowed.count();
        assert!((1000..=1050).contains(&allowed), "{allowed}");
    }
}
