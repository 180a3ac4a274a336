//! `Slots`, where a number of a ring's next values lie.
//!
//! Owns: nothing. Never does: read or write a slot. Invariant: its slots are of one ring, each once, in the order of
//! the ring.

use std::ptr::NonNull;

/// A number of a ring's slots, one behind the other but for the ring's end.
pub(crate) struct Slots<T> {
    ring: NonNull<T>,
    /// The first slot's number in the ring.
    first: usize,
    /// How many slots they are.
    count: usize,
    /// How many slots the ring has from the first one to its end.
    to_end: usize,
}

impl<T> Slots<T> {
    /// `count` slots of a ring of `size`, from slot `first` on: at most all of them.
    #[inline(always)]
    pub(super) fn new(ring: NonNull<T>, size: u32, first: u32, count: usize) -> Self {
        debug_assert!(first < size && count <= size as usize);
        Self { ring, first: first as usize, count, to_end: (size - first) as usize }
    }

    /// Calls `run` with a straight run of slots: the place of the first one, its number among all, and how many they
    /// are. Where the slots go over the end of the ring, that is done twice, and `both` puts the answers together.
    #[inline(always)]
    pub(crate) fn visit<S>(self, run: impl Fn(*mut T, usize, usize) -> S, both: impl Fn(S, S) -> S) -> S {
        let Self { ring, first, count, to_end } = self;
        // SAFETY: the slot is one of the ring's.
        let first = unsafe { ring.add(first) }.as_ptr();
        if count > to_end {
            return visit_two(first, to_end, ring.as_ptr(), count - to_end, run, both);
        }
        run(first, 0, count)
    }
}

// Apart, so that the code of the loops stays short: a ring of 2048 slots comes here once in 64 bursts of 32.
#[cold]
#[inline(never)]
fn visit_two<T, S>(
    first: *mut T,
    first_count: usize,
    second: *mut T,
    second_count: usize,
    run: impl Fn(*mut T, usize, usize) -> S,
    both: impl Fn(S, S) -> S,
) -> S {
    both(run(first, 0, first_count), run(second, first_count, second_count))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_visited_once_and_in_order() {
        const SIZE: u32 = 8;
        let mut ring = [0_u8; SIZE as usize];
        let ring = NonNull::from(&mut ring).cast::<u8>();
        for first in 0..SIZE {
            for count in 0..=SIZE as usize {
                let numbers = Slots::new(ring, SIZE, first, count).visit(
                    |place, at, count| {
                        let slot = place.addr() - ring.addr().get();
                        assert!(slot + count <= SIZE as usize, "{slot} + {count} is behind the ring's end");
                        (0..count).map(|step| (at + step, slot + step)).collect::<Vec<_>>()
                    },
                    |first, second| [first, second].concat(),
                );
                let expected = (0..count).map(|at| (at, (first as usize + at) % SIZE as usize));
                assert_eq!(numbers, expected.collect::<Vec<_>>());
            }
        }
    }
}
