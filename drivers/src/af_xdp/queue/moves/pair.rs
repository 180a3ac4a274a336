//! Two words of 64 bits that are moved and computed at once.
//!
//! Owns: nothing. Never does: carry from one word to the other. Invariant: every form computes the same: an array, on
//! any machine, and a register of SSE2, which every x86-64 has.

use std::ops::{Add, BitAnd, BitOr, BitXor, Sub};

/// What a form of a pair can do: each with the words that stand at the same place, wrapping.
pub(crate) trait Pair: Copy
where
    Self: Add<Output = Self> + Sub<Output = Self>,
    Self: BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>,
{
    /// # Safety
    /// 16 bytes must be readable there, aligned or not; they are read once.
    unsafe fn load<T>(from: *const T) -> Self;
    /// # Safety
    /// 16 bytes must be writable there, aligned or not.
    unsafe fn store<T>(self, to: *mut T);

    fn new(first: u64, second: u64) -> Self;
    fn first(self) -> u64;
    fn second(self) -> u64;

    /// The lesser second word, if both are below 2^15; the first word means nothing.
    fn least_second(self, other: Self) -> Self;
    /// The greater second word, if both are below 2^15; the first word means nothing.
    fn most_second(self, other: Self) -> Self;

    /// Its four halves as words, shifted to the left.
    fn widen(self, shift: u32) -> [Self; 2];
    /// The four words, shifted to the right, without their upper halves.
    fn narrow(pairs: [Self; 2], shift: u32) -> Self;

    /// The bitwise or of both words.
    #[inline(always)]
    fn either(self) -> u64 {
        self.first() | self.second()
    }
}

/// The form for machines that have no other one.
#[cfg(any(all(test, not(loom)), not(target_arch = "x86_64")))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Array([u64; 2]);

#[cfg(any(all(test, not(loom)), not(target_arch = "x86_64")))]
mod array {
    use std::array::from_fn;

    use super::{Add, Array, BitAnd, BitOr, BitXor, Pair, Sub};

    macro_rules! operator {
        ($($trait:ident $name:ident: $of:expr;)*) => {$(
            impl $trait for Array {
                type Output = Self;

                #[inline(always)]
                fn $name(self, other: Self) -> Self {
                    Self(from_fn(|at| $of(self.0[at], other.0[at])))
                }
            }
        )*};
    }

    operator! {
        Add add: u64::wrapping_add;
        Sub sub: u64::wrapping_sub;
        BitAnd bitand: u64::bitand;
        BitOr bitor: u64::bitor;
        BitXor bitxor: u64::bitxor;
    }

    impl Pair for Array {
        #[inline(always)]
        unsafe fn load<T>(from: *const T) -> Self {
            // SAFETY: as the caller says.
            Self(unsafe { from.cast::<[u64; 2]>().read_unaligned() })
        }

        #[inline(always)]
        unsafe fn store<T>(self, to: *mut T) {
            // SAFETY: as the caller says.
            unsafe { to.cast::<[u64; 2]>().write_unaligned(self.0) };
        }

        #[inline(always)]
        fn new(first: u64, second: u64) -> Self {
            Self([first, second])
        }

        #[inline(always)]
        fn first(self) -> u64 {
            self.0[0]
        }

        #[inline(always)]
        fn second(self) -> u64 {
            self.0[1]
        }

        #[inline(always)]
        fn least_second(self, other: Self) -> Self {
            Self(from_fn(|at| self.0[at].min(other.0[at])))
        }

        #[inline(always)]
        fn most_second(self, other: Self) -> Self {
            Self(from_fn(|at| self.0[at].max(other.0[at])))
        }

        #[inline(always)]
        fn widen(self, shift: u32) -> [Self; 2] {
            self.0.map(|word| Self([word & u64::from(u32::MAX), word >> 32].map(|half| half << shift)))
        }

        #[inline(always)]
        fn narrow(pairs: [Self; 2], shift: u32) -> Self {
            Self(
                pairs.map(|Self([first, second])| {
                    first >> shift & u64::from(u32::MAX) | second >> shift << 32
                }),
            )
        }
    }
}

/// The form for x86-64.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Sse2(std::arch::x86_64::__m128i);

// One text for all of the blocks here: SSE2 is part of x86-64.
#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{
        _mm_add_epi64, _mm_and_si128, _mm_castps_si128, _mm_castsi128_ps, _mm_cvtsi32_si128,
        _mm_cvtsi128_si64, _mm_loadu_si128, _mm_max_epi16, _mm_min_epi16, _mm_or_si128, _mm_set_epi64x,
        _mm_setzero_si128, _mm_shuffle_ps, _mm_sll_epi64, _mm_srl_epi64, _mm_storeu_si128, _mm_sub_epi64,
        _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_xor_si128,
    };

    use super::{Add, BitAnd, BitOr, BitXor, Pair, Sse2, Sub};

    const _: () = assert!(cfg!(target_feature = "sse2"));

    macro_rules! operator {
        ($($trait:ident $name:ident: $of:ident;)*) => {$(
            impl $trait for Sse2 {
                type Output = Self;

                #[inline(always)]
                fn $name(self, other: Self) -> Self {
                    // SAFETY: the CPU has SSE2, as asserted above.
                    Self(unsafe { $of(self.0, other.0) })
                }
            }
        )*};
    }

    operator! {
        Add add: _mm_add_epi64;
        Sub sub: _mm_sub_epi64;
        BitAnd bitand: _mm_and_si128;
        BitOr bitor: _mm_or_si128;
        BitXor bitxor: _mm_xor_si128;
    }

    impl Pair for Sse2 {
        #[inline(always)]
        unsafe fn load<T>(from: *const T) -> Self {
            // SAFETY: as the caller says; the CPU has SSE2, as asserted above.
            Self(unsafe { _mm_loadu_si128(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store<T>(self, to: *mut T) {
            // SAFETY: as above.
            unsafe { _mm_storeu_si128(to.cast(), self.0) };
        }

        #[inline(always)]
        fn new(first: u64, second: u64) -> Self {
            // SAFETY: the CPU has SSE2, as asserted above.
            Self(unsafe { _mm_set_epi64x(second as i64, first as i64) })
        }

        #[inline(always)]
        fn first(self) -> u64 {
            // SAFETY: as above.
            unsafe { _mm_cvtsi128_si64(self.0) as u64 }
        }

        #[inline(always)]
        fn second(self) -> u64 {
            // SAFETY: as above.
            unsafe { _mm_cvtsi128_si64(_mm_unpackhi_epi64(self.0, self.0)) as u64 }
        }

        #[inline(always)]
        fn least_second(self, other: Self) -> Self {
            // SAFETY: as above. In words below 2^15 the lowest of their 16-bit integers decides, and the others are 0.
            Self(unsafe { _mm_min_epi16(self.0, other.0) })
        }

        #[inline(always)]
        fn most_second(self, other: Self) -> Self {
            // SAFETY: as above.
            Self(unsafe { _mm_max_epi16(self.0, other.0) })
        }

        #[inline(always)]
        fn widen(self, shift: u32) -> [Self; 2] {
            // SAFETY: as above.
            unsafe {
                let (zero, shift) = (_mm_setzero_si128(), _mm_cvtsi32_si128(shift as i32));
                [_mm_unpacklo_epi32(self.0, zero), _mm_unpackhi_epi32(self.0, zero)]
                    .map(|pair| Self(_mm_sll_epi64(pair, shift)))
            }
        }

        #[inline(always)]
        fn narrow(pairs: [Self; 2], shift: u32) -> Self {
            // SAFETY: as above.
            unsafe {
                let shift = _mm_cvtsi32_si128(shift as i32);
                let [first, second] = pairs.map(|pair| _mm_castsi128_ps(_mm_srl_epi64(pair.0, shift)));
                Self(_mm_castps_si128(_mm_shuffle_ps::<0b10_00_10_00>(first, second)))
            }
        }
    }
}
