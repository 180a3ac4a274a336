//! Which queues of an interface a port has.
//!
//! Owns: a set of queue numbers, as users write it. Never does: look at an interface. Invariant: the numbers rise
//! and are below [`QueueSet::LIMIT`].

use std::{fmt, ops::RangeInclusive, str::FromStr};

/// A set of queues of an interface, of one or more: `4` (the first four), `0-3`, `0-3+6`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSet(Vec<u32>);

impl QueueSet {
    /// Queue numbers are below this.
    pub const LIMIT: u32 = 1024;
    /// What a text may say.
    pub(crate) const ALLOWED: &str =
        "a number of queues, 1 to 1024, or a list of them, 0 to 1023: 0-3, 0+2, 0-3+6";

    /// `count` queues from `start` on. `None` if that is no queue, or some is not below [`QueueSet::LIMIT`].
    pub fn range(start: u32, count: u32) -> Option<Self> {
        let end = start.checked_add(count).filter(|end| *end <= Self::LIMIT)?;
        (count > 0).then(|| Self((start..end).collect()))
    }

    /// These queues, in any order. `None` if there is none, or some is not below [`QueueSet::LIMIT`].
    pub fn of(numbers: impl IntoIterator<Item = u32>) -> Option<Self> {
        let mut numbers: Vec<u32> = numbers.into_iter().collect();
        numbers.sort_unstable();
        numbers.dedup();
        (*numbers.last()? < Self::LIMIT).then_some(Self(numbers))
    }

    /// The queue numbers, rising.
    pub fn numbers(&self) -> &[u32] {
        &self.0
    }

    /// How many queues.
    #[allow(clippy::len_without_is_empty, reason = "a set of queues is never empty")]
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// The largest queue number.
    pub fn last(&self) -> u32 {
        *self.0.last().expect("a set of queues is never empty")
    }
}

impl Default for QueueSet {
    /// Queue 0.
    fn default() -> Self {
        Self(vec![0])
    }
}

/// As a list, with runs as ranges: `0-3+6`.
impl fmt::Display for QueueSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, run) in self.0.chunk_by(|one, next| one + 1 == *next).enumerate() {
            let plus = if at > 0 { "+" } else { "" };
            match run {
                [only] => write!(f, "{plus}{only}")?,
                [first, .., last] => write!(f, "{plus}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// A queue set can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a set of queues; allowed: {}", QueueSet::ALLOWED)]
pub struct NoQueueSet;

impl FromStr for QueueSet {
    type Err = NoQueueSet;

    fn from_str(text: &str) -> Result<Self, NoQueueSet> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| NoQueueSet);
        if let Ok(count) = text.parse() {
            return Self::range(0, count).ok_or(NoQueueSet);
        }
        let mut numbers = Vec::new();
        for part in text.split('+') {
            let range: RangeInclusive<u32> = match part.split_once('-') {
                Some((first, last)) => number(first)?..=number(last)?,
                None => number(part)?..=number(part)?,
            };
            if range.is_empty() || *range.end() >= Self::LIMIT {
                return Err(NoQueueSet);
            }
            numbers.extend(range);
        }
        Self::of(numbers).ok_or(NoQueueSet)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_and_written() {
        for (text, numbers, shown) in [
            ("1", vec![0], "0"),
            ("4", vec![0, 1, 2, 3], "0-3"),
            ("0-3", vec![0, 1, 2, 3], "0-3"),
            ("2-2", vec![2], "2"),
            ("6+0-2+1", vec![0, 1, 2, 6], "0-2+6"),
            ("0+1023", vec![0, 1023], "0+1023"),
        ] {
            let set: QueueSet = text.parse().unwrap();
            assert_eq!((set.numbers(), set.to_string().as_str()), (numbers.as_slice(), shown));
        }
        for bad in ["", "0", "1025", "-1", "3-0", "0-1024", "a", "0+", "1-", "0,1", "4294967296"] {
            assert_eq!(bad.parse::<QueueSet>(), Err(NoQueueSet), "{bad}");
        }
        assert_eq!(QueueSet::range(2, 2), QueueSet::of([3, 2]));
        assert_eq!((QueueSet::range(0, 0), QueueSet::range(1023, 2), QueueSet::of([])), (None, None, None));
    }
}
