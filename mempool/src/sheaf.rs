//! Sheaves: fixed-size arrays of frame indices, kept side by side in one block.
//!
//! Owns: the memory of all sheaves of a zone. Never does: decide who may use a sheaf; that is the
//! part of barn, lane and pool cache. Invariant: a sheaf has one owner at a time, only the owner
//! touches its slots, and all frames in it are of the one zone.
//!
//! ```text
//! word 0       1..3       4 ...                      4 + capacity
//! | turn (u32) | reserved | index | index | ... | index |      128, 256 or 512 bytes
//! |<------- header ------>|<-------- slots ------------>|
//! ```
//! `turn` matters only in a lane: 0 says that the freeing side owns the sheaf, n above 0 that the
//! allocating side does and finds n frames in it. Everywhere else the owner knows the length.

use std::{ptr::NonNull, slice};

use crate::{
    memory::Block,
    sync::{self, AtomicU32, Witness},
};

/// Words of the header before the slots.
const HEADER_WORDS: usize = 4;
/// The capacities that fill whole pairs of cache lines, in frames, smallest first.
pub(crate) const CAPACITIES: [u32; 3] = [28, 60, 124];

/// The number of a sheaf in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct SheafId(pub(crate) u32);

/// A zone's range of frame indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRange {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl FrameRange {
    #[inline(always)]
    pub(crate) fn contains(self, index: u32) -> bool {
        index.wrapping_sub(self.first) < self.count
    }

    /// As [`contains_all`](Self::contains_all), for one zone of several, whose ranges are powers of two:
    /// half the instructions.
    #[inline(always)]
    pub(crate) fn contains_all_apart(self, indices: &[u32]) -> bool {
        debug_assert!(self.count.is_power_of_two() && self.first.is_multiple_of(self.count));
        let differing = indices.iter().fold(0, |bits, index| bits | (index ^ self.first));
        differing < self.count
    }

    /// Whether all of these are frames of the zone.
    #[inline(always)]
    pub(crate) fn contains_all(self, indices: &[u32]) -> bool {
        // Without a branch for each, so that it becomes vector code.
        indices.iter().fold(true, |all, index| all & self.contains(*index))
    }
}

/// All sheaves of a zone.
pub(crate) struct Sheaves {
    words: Block,
    count: u32,
    capacity: u32,
    range: FrameRange,
    witnesses: Box<[Witness]>,
    /// The checkers' atomics are no plain words, so they can't lie in the block.
    #[cfg(any(loom, shuttle))]
    turns: Box<[AtomicU32]>,
}

/// The capacity for a pool: the largest with frames >= 8 x cores x capacity, so that what caches
/// hold back stays below a quarter of the pool (each holds at most two sheaves).
pub(crate) fn capacity_for(frames: u64, cores: u32) -> u32 {
    let fits = |capacity: &&u32| frames >= 8 * u64::from(cores) * u64::from(**capacity);
    *CAPACITIES.iter().rev().find(fits).unwrap_or(&CAPACITIES[0])
}

impl Sheaves {
    /// A store of `count` empty sheaves for `capacity` frames each, all of one zone, on the memory
    /// of a NUMA node if one is given.
    pub(crate) fn new(count: u32, capacity: u32, range: FrameRange, node: Option<u32>) -> Self {
        debug_assert!(CAPACITIES.contains(&capacity) || cfg!(any(test, loom)));
        let words = count as usize * (HEADER_WORDS + capacity as usize);
        Self {
            words: Block::new(words * size_of::<u32>(), node),
            count,
            capacity,
            range,
            witnesses: (0..count).map(|_| Witness::default()).collect(),
            #[cfg(any(loom, shuttle))]
            turns: (0..count).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Frames that one sheaf can hold.
    #[inline(always)]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The frames that may lie in these sheaves.
    #[inline(always)]
    pub(crate) fn range(&self) -> FrameRange {
        self.range
    }

    /// Address of the first slot of a sheaf.
    #[inline(always)]
    pub(crate) fn slots(&self, id: SheafId) -> NonNull<u32> {
        // SAFETY: the slots lie behind the header within the sheaf's words.
        unsafe { self.header(id).add(HEADER_WORDS) }
    }

    /// The first `len` slots of a sheaf.
    ///
    /// # Safety
    /// The caller must own the sheaf while it uses the result, and those slots must have been written.
    pub(crate) unsafe fn content(&self, id: SheafId, len: u32) -> &[u32] {
        debug_assert!(len <= self.capacity);
        #[cfg(any(loom, shuttle))]
        self.witnesses[id.0 as usize].assert_owned();
        sync::reads(self.slots(id).as_ptr(), len as usize);
        // SAFETY: the slots lie in the block; the caller owns them.
        unsafe { slice::from_raw_parts(self.slots(id).as_ptr(), len as usize) }
    }

    /// Writes frames to the slots of a sheaf, from slot `at` on.
    ///
    /// # Safety
    /// The caller must own the sheaf, and `at + frames.len()` must be at most the capacity.
    pub(crate) unsafe fn write(&self, id: SheafId, at: u32, frames: &[u32]) {
        debug_assert!(at as usize + frames.len() <= self.capacity as usize);
        #[cfg(any(loom, shuttle))]
        self.witnesses[id.0 as usize].assert_owned();
        // SAFETY: the slots lie in the block and are the caller's; `frames` is another owner's or
        // another sheaf's memory.
        unsafe {
            let to = self.slots(id).add(at as usize).as_ptr();
            sync::writes(to, frames.len());
            to.copy_from_nonoverlapping(frames.as_ptr(), frames.len());
        }
    }

    /// To be called just after the operation that acquires the sheaf.
    #[inline(always)]
    pub(crate) fn take_over(&self, id: SheafId) {
        self.witnesses[id.0 as usize].take_over();
    }

    /// To be called just before the operation that releases the sheaf.
    #[inline(always)]
    pub(crate) fn hand_over(&self, id: SheafId) {
        self.witnesses[id.0 as usize].hand_over();
    }

    /// The word that says whose turn it is with a lane's sheaf.
    #[inline(always)]
    pub(crate) fn turn(&self, id: SheafId) -> &AtomicU32 {
        #[cfg(any(loom, shuttle))]
        return &self.turns[id.0 as usize];
        // SAFETY: word 0 of each sheaf is only ever used as this atomic, zero to begin with; it lies
        // in the block, which lives as long as `self`, and is aligned.
        #[cfg(not(any(loom, shuttle)))]
        unsafe {
            self.header(id).cast().as_ref()
        }
    }

    /// Panics if there is anything but frames of this zone among those in an exchanged sheaf.
    #[inline(always)]
    pub(crate) fn check(&self, frames: &[u32]) {
        if !self.range.contains_all(frames) {
            self.refuse(frames);
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, frames: &[u32]) -> ! {
        let FrameRange { first, count } = self.range;
        let bad = frames.iter().find(|frame| !self.range.contains(**frame));
        panic!(
            "pool: a sheaf of the zone with frames {first} to {} holds index {}; a raw index that was never taken \
             was given, or the sheaf's memory was overwritten",
            u64::from(first) + u64::from(count) - 1,
            bad.copied().unwrap_or(u32::MAX)
        );
    }

    #[inline(always)]
    fn header(&self, id: SheafId) -> NonNull<u32> {
        debug_assert!(id.0 < self.count);
        let stride = HEADER_WORDS + self.capacity as usize;
        // SAFETY: id < count, so the sheaf's words lie within the block.
        unsafe { self.words.start().cast().add(id.0 as usize * stride) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
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
            let sheaves = Sheaves::new(3, capacity, FrameRange { first: 0, count: 1 }, None);
            let stride = sheaves.slots(SheafId(1)).addr().get() - sheaves.slots(SheafId(0)).addr().get();
            assert_eq!(stride, 4 * (HEADER_WORDS + capacity as usize));
            assert_eq!(stride % 128, 0);
            assert_eq!((sheaves.slots(SheafId(0)).addr().get() - 16) % 128, 0);
        }
    }

    #[test]
    fn a_frame_of_another_zone_is_found_at_each_place() {
        let range = FrameRange { first: 64, count: 64 };
        for at in 0..60 {
            for bad in [0, 63, 128, u32::MAX] {
                let mut frames = [100; 60];
                assert!(range.contains_all(&frames) && range.contains_all_apart(&frames));
                frames[at] = bad;
                assert!(!range.contains_all(&frames), "{bad} at {at}");
                assert!(!range.contains_all_apart(&frames), "{bad} at {at}");
            }
        }
    }
}
