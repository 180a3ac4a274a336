//! Freeing where there are other zones: as fast as without, but for a look at each frame's zone.
//!
//! Owns: nothing. Never does: exchange a sheaf, or let a frame of another zone into the own sheaves;
//! `refill` does what is left to do. Invariant: as that of `cache`. A cache of a pool with one zone
//! comes here when its loaded sheaf is full.

use std::mem::MaybeUninit;

use crate::{Burst, FrameIndex, PoolCache, copy::copy_indices, sync::add};

impl PoolCache {
    /// As [`free`](Self::free), for a frame of this pool.
    ///
    /// # Safety
    /// The caller must own the frame, and no handle of it may be left.
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) unsafe fn free_apart(&mut self, index: FrameIndex) {
        if !self.pair.has_room(1) || !self.range.contains(index.0) {
            // SAFETY: as the caller says.
            return unsafe { self.free_slowly(index) };
        }
        self.pair.room_loaded(1)[0].write(index.0);
        // SAFETY: the slot was written with a frame of the own zone.
        unsafe { self.settle(1) };
        add(&self.counters.given, 1);
    }

    /// As [`give`](Self::give).
    ///
    /// # Safety
    /// As for `give`.
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) unsafe fn give_apart(&mut self, indices: &[FrameIndex]) {
        let count = indices.len();
        if let [index] = *indices {
            // SAFETY: as the caller says.
            return unsafe { self.free_apart(index) };
        }
        if !self.pair.has_room(count) {
            // SAFETY: as the caller says.
            return unsafe { self.give_indices_slowly(indices) };
        }
        let slots = self.pair.room_loaded(count);
        // SAFETY: both have `count` indices, and a FrameIndex is one transparently; then every slot was
        // written, with frames that the caller gives.
        unsafe {
            copy_indices(indices.as_ptr().cast(), slots.as_mut_ptr().cast(), count);
            self.settle_apart(count);
        }
    }

    /// As [`free_burst`](Self::free_burst), for frames of this pool; the burst keeps its handles.
    ///
    /// # Safety
    /// The burst must forget its frames afterwards.
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) unsafe fn free_burst_apart(&mut self, burst: &Burst) {
        let count = burst.len();
        if !self.pair.has_room(count) {
            // SAFETY: as the caller says.
            return unsafe { self.free_burst_slowly(burst) };
        }
        let geometry = *self.pool.geometry();
        for (slot, frame) in self.pair.room_loaded(count).iter_mut().zip(&**burst) {
            slot.write(geometry.index_within(geometry.addr(frame)));
        }
        // SAFETY: every slot was written, with frames that the caller gives.
        unsafe { self.settle_apart(count) };
    }

    /// As [`give_with`](Self::give_with).
    ///
    /// # Safety
    /// As for `give_with`.
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) unsafe fn give_with_apart(
        &mut self,
        count: usize,
        mut fill: impl FnMut(&mut [MaybeUninit<u32>], usize),
    ) {
        if !self.pair.has_room(count) {
            // SAFETY: as the caller says.
            return unsafe { self.give_slowly(count, &mut fill) };
        }
        fill(self.pair.room_loaded(count), 0);
        // SAFETY: the caller's `fill` wrote every slot, with frames that it gives away.
        unsafe { self.settle_apart(count) };
    }

    /// Counts `count` slots that were written in the loaded sheaf as its frames, if they are of the own
    /// zone.
    ///
    /// # Safety
    /// The last `room_loaded(count)` was written in full, with frames that are given to the pool.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    unsafe fn settle_apart(&mut self, count: usize) {
        // SAFETY: the caller says that they were written.
        let slots = unsafe { self.pair.room_loaded(count).assume_init_ref() };
        if !self.range.contains_all_apart(slots) {
            // SAFETY: as the caller says.
            return unsafe { self.sort_out(count) };
        }
        // SAFETY: as the caller says, and all are of the own zone.
        unsafe { self.settle(count) };
        add(&self.counters.given, count as u64);
    }
}
