//! Sequence numbers of TCP: they wrap, so one is before another if it is less than half a circle behind.

use std::ops::{Add, AddAssign, Sub};

/// A sequence number (RFC 9293 section 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Seq(pub u32);

impl Seq {
    /// How far this lies behind `earlier`: negative if it lies before it.
    #[inline(always)]
    pub(super) fn after(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// Whether this lies before `other`.
    #[inline(always)]
    pub(super) fn is_before(self, other: Self) -> bool {
        self.after(other) < 0
    }

    /// The later of the two.
    #[inline(always)]
    pub(super) fn later(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }
}

impl Add<u32> for Seq {
    type Output = Self;

    #[inline(always)]
    fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for Seq {
    #[inline(always)]
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

/// The way from an earlier number to a later one, in bytes.
impl Sub for Seq {
    type Output = u32;

    #[inline(always)]
    fn sub(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_goes_over_the_wrap() {
        let (before, behind) = (Seq(u32::MAX - 1), Seq(3));
        assert!(before.is_before(behind) && !behind.is_before(before) && !before.is_before(before));
        assert_eq!((behind - before, behind.after(before), before.after(behind)), (5, 5, -5));
        assert_eq!((before + 5, before.later(behind), behind.later(before)), (behind, behind, behind));
    }
}
