//! Sheaves: fixed-size arrays of frame indices, kept side by side in one block.
//!
//! Owns: the memory of all sheaves of a zone. Never does: decide who may use a sheaf; that is the
//! barn's and the pool cache's part. Invariant: a sheaf has one owner at a time (a pool cache or
//! the barn), and only the owner touches its words.
//!
//! ```text
//! word 0        1..3       4 ...                      4 + capacity
//! | len (u32) | reserved | index | index | ... | index |      128, 256 or 512 bytes
//! |<------ header ------>|<-------- slots ------------>|
//! ```
//! `len` is written when the sheaf is handed over and read when it is taken; in between the owner
//! keeps the length in a register.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ptr::NonNull,
};

use crate::sync::Witness;

/// Words of the header before the slots.
const HEADER_WORDS: usize = 4;
/// The capacities that fill whole pairs of cache lines, in frames, smallest first.
pub(crate) const CAPACITIES: [u32; 3] = [28, 60, 124];

/// The number of a sheaf in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct SheafId(pub(crate) u32);

/// All sheaves of a zone.
pub(crate) struct Sheaves {
    words: NonNull<u32>,
    count: u32,
    capacity: u32,
    witnesses: Box<[Witness]>,
}

// SAFETY: the store only gives out addresses; each sheaf is accessed by its one owner, and changes
// owner through the barn, whose queues order the accesses.
unsafe impl Sync for Sheaves {}
// SAFETY: as above; the memory is not tied to a thread.
unsafe impl Send for Sheaves {}

/// The capacity for a pool: the largest with frames >= 8 x cores x capacity, so that what caches
/// hold back stays below a quarter of the pool (each holds at most two sheaves).
pub(crate) fn capacity_for(frames: u32, cores: u32) -> u32 {
    let fits = |capacity: &&u32| u64::from(frames) >= 8 * u64::from(cores) * u64::from(**capacity);
    *CAPACITIES.iter().rev().find(fits).unwrap_or(&CAPACITIES[0])
}

impl Sheaves {
    /// A store of `count` empty sheaves for `capacity` frames each.
    pub(crate) fn new(count: u32, capacity: u32) -> Self {
        debug_assert!(CAPACITIES.contains(&capacity) || cfg!(any(test, loom)));
        let layout = Self::layout(count, capacity);
        // SAFETY: the layout has a size above zero: at least one sheaf with a header.
        let words = unsafe { alloc_zeroed(layout) };
        let Some(words) = NonNull::new(words.cast()) else { handle_alloc_error(layout) };
        let witnesses = (0..count).map(|_| Witness::default()).collect();
        Self { words, count, capacity, witnesses }
    }

    /// Frames that one sheaf can hold.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Number of sheaves.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Address of the first slot of a sheaf.
    #[inline(always)]
    pub(crate) fn slots(&self, id: SheafId) -> NonNull<u32> {
        // SAFETY: the header lies within the sheaf's words.
        unsafe { self.header(id).add(HEADER_WORDS) }
    }

    /// Takes over a sheaf and returns how many frames it holds.
    ///
    /// # Safety
    /// The caller must have become the sheaf's owner by an acquiring operation.
    pub(crate) unsafe fn take_over(&self, id: SheafId) -> u32 {
        self.witnesses[id.0 as usize].touch();
        // SAFETY: the caller owns the sheaf, so nobody writes its words at the same time.
        unsafe { self.header(id).read() }
    }

    /// Notes how many frames the sheaf holds, before it is handed over by a releasing operation.
    ///
    /// # Safety
    /// The caller must own the sheaf, and its first `len` slots must be frames it gives away.
    pub(crate) unsafe fn hand_over(&self, id: SheafId, len: u32) {
        debug_assert!(len <= self.capacity);
        self.witnesses[id.0 as usize].touch();
        // SAFETY: the caller owns the sheaf, so nobody reads its words at the same time.
        unsafe { self.header(id).write(len) }
    }

    #[inline(always)]
    fn header(&self, id: SheafId) -> NonNull<u32> {
        debug_assert!(id.0 < self.count);
        let stride = HEADER_WORDS + self.capacity as usize;
        // SAFETY: id < count, so the sheaf's words lie within the allocation.
        unsafe { self.words.add(id.0 as usize * stride) }
    }

    fn layout(count: u32, capacity: u32) -> Layout {
        let words = count as usize * (HEADER_WORDS + capacity as usize);
        // 128: the pair of lines that the adjacent-line prefetcher moves together.
        Layout::from_size_align(words * size_of::<u32>(), 128).expect("fewer than 2^32 frames")
    }
}

impl Drop for Sheaves {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, freed once.
        unsafe { dealloc(self.words.as_ptr().cast(), Self::layout(self.count, self.capacity)) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_the_largest_that_the_rule_allows() {
        assert_eq!(capacity_for(16_384, 2), 124);
        assert_eq!(capacity_for(8 * 124, 1), 124);
        assert_eq!(capacity_for(8 * 124 - 1, 1), 60);
        assert_eq!(capacity_for(8 * 60 - 1, 1), 28);
        assert_eq!(capacity_for(1, 512), 28);
    }

    #[test]
    fn sheaves_are_line_pairs_side_by_side() {
        for capacity in CAPACITIES {
            let sheaves = Sheaves::new(3, capacity);
            let stride = sheaves.slots(SheafId(1)).addr().get() - sheaves.slots(SheafId(0)).addr().get();
            assert_eq!(stride, 4 * (HEADER_WORDS + capacity as usize));
            assert_eq!(stride % 128, 0);
            assert_eq!((sheaves.slots(SheafId(0)).addr().get() - 16) % 128, 0);
        }
    }
}
