//! `PoolCache`: what one lcore owns of the pool, and the only way to allocate and free.
//!
//! Owns: two sheaves, an open sheaf for each foreign zone, lane ends, and the counters of its slot.
//! Never does: wait for frames, or touch a shared cache line unless it exchanges a whole sheaf. Invariant: each
//! frame index is in exactly one place; what is taken here is not in a sheaf any more, what is given
//! here was taken before. This file is the fast path, `apart` that of
//! pools with several zones; `refill` is what happens when it ends.

#[cfg(debug_assertions)]
use std::panic::Location;
use std::{fmt, mem::MaybeUninit};

use crate::{
    Burst, Frame, FrameIndex, Geometry, Mempool,
    census::CacheCounters,
    copy::copy_indices,
    foreign::OpenSheaves,
    lane::LaneEnds,
    pair::SheafPair,
    sheaf::FrameRange,
    sync::{Ordering, add},
    zone::Zone,
};

/// A thread's own access to a pool. Made by [`Mempool::cache`]; every thread, lcore or not, has
/// one of its own, with the same speed. Dropping it gives its frames back.
pub struct PoolCache {
    // Hot.
    pub(crate) pair: SheafPair,
    pub(crate) counters: &'static CacheCounters,
    geometry: Geometry,
    /// The own zone's frames.
    pub(crate) range: FrameRange,
    // Warm: each burst boundary.
    pub(crate) foreign: OpenSheaves,
    pub(crate) flush_seen: u32,
    pub(crate) lanes: LaneEnds,
    // Cold.
    pub(crate) pool: &'static Mempool,
    pub(crate) id: CacheId,
    pub(crate) zone: u32,
    /// The frames taken from the slot so far when the last flush request was seen, or at the beginning.
    pub(crate) taken_at_request: u64,
    /// Short allocations until the next flush request.
    pub(crate) shorts_to_request: u32,
}

/// Names a pool cache to the control plane, which declares lanes between caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheId {
    /// The address of its pool.
    pub(crate) pool: usize,
    pub(crate) slot: u32,
    /// How many caches have held the slot before.
    pub(crate) generation: u32,
}

impl PoolCache {
    pub(crate) fn new(pool: &'static Mempool, zone: u32, id: CacheId, pair: SheafPair) -> Self {
        let (zones, counters) = (pool.zones(), pool.counters(id.slot));
        Self {
            pair,
            counters,
            geometry: *pool.geometry(),
            range: zones[zone as usize].range(),
            foreign: OpenSheaves::new(zones.len()),
            flush_seen: zones[zone as usize].flush_request(),
            lanes: LaneEnds::new(pool.lanes(), id.slot),
            pool,
            id,
            zone,
            // The slot's counters go on from cache to cache.
            taken_at_request: counters.taken.load(Ordering::Relaxed),
            shorts_to_request: 0,
        }
    }

    /// The pool that this cache belongs to.
    #[inline(always)]
    pub fn pool(&self) -> &'static Mempool {
        self.pool
    }

    /// Its name for [`Mempool::lane`].
    pub fn id(&self) -> CacheId {
        self.id
    }

    /// The zone that it allocates from.
    pub fn zone(&self) -> u32 {
        self.zone
    }

    pub(crate) fn own_zone(&self) -> &'static Zone {
        &self.pool.zones()[self.zone as usize]
    }

    /// Takes one frame: no bytes in it, all headroom in front. `None` if the pool has none for
    /// this cache.
    #[inline]
    #[must_use]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc(&mut self) -> Option<Frame> {
        // Not by way of `take_with`: what a closure that the slow path is given captures lies in
        // memory on the fast path too.
        if !self.pair.has(1) {
            return self.alloc_slowly();
        }
        let index = self.pair.take_loaded(1)[0];
        #[cfg(debug_assertions)]
        self.pool.shadow().take(&[index], Location::caller());
        add(&self.counters.taken, 1);
        // SAFETY: indices in sheaves are frames of this pool, and this one is now this call's.
        Some(unsafe { self.geometry.packet(index, 0) })
    }

    /// Gives one frame back.
    ///
    /// # Panics
    /// If the frame is of another pool.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn free(&mut self, frame: Frame) {
        let addr = self.geometry.addr(&frame);
        #[cfg(debug_assertions)]
        self.check_each(std::slice::from_ref(&frame));
        self.check(addr);
        let _ = frame.into_data();
        let index = self.geometry.index_within(addr);
        if !self.pair.has_quick_room(1) {
            // SAFETY: the frame was owned by the caller and its handle is gone.
            return unsafe { self.free_apart(FrameIndex(index)) };
        }
        self.pair.room_loaded(1)[0].write(index);
        // SAFETY: as above.
        unsafe { self.settle(1) };
        add(&self.counters.given, 1);
    }

    /// Adds up to `want` empty frames to a burst, within its limit. Returns how many: fewer if the
    /// burst or the pool has no more.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc_burst(&mut self, burst: &mut Burst, want: usize) -> usize {
        self.alloc_packets(burst, want, 0)
    }

    /// As [`alloc_burst`](Self::alloc_burst), with `len` bytes in each frame: what was there before.
    ///
    /// # Panics
    /// If a frame has no room for `len` bytes behind its headroom.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc_packets(&mut self, burst: &mut Burst, want: usize, len: u32) -> usize {
        assert!(len <= self.geometry.data_bytes(), "a packet of {len} bytes does not fit into a frame");
        let spare = burst.spare();
        let want = want.min(spare.len());
        if !self.pair.has(want) {
            return self.alloc_packets_slowly(burst, want, len);
        }
        let geometry = &self.geometry;
        let indices = self.pair.take_loaded(want);
        #[cfg(debug_assertions)]
        self.pool.shadow().take(indices, Location::caller());
        for (entry, &index) in spare.iter_mut().zip(indices) {
            // SAFETY: indices in sheaves are frames of this pool, now this burst's.
            entry.write(unsafe { geometry.packet(index, len as u16) });
        }
        // SAFETY: the first `want` spare entries were written just above.
        unsafe { burst.commit(want) };
        add(&self.counters.taken, want as u64);
        want
    }

    /// Gives all frames of a burst back in bulk. Returns how many.
    ///
    /// # Panics
    /// If a frame is of another pool; then none is given back.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn free_burst(&mut self, burst: &mut Burst) -> usize {
        #[cfg(debug_assertions)]
        self.check_each(burst);
        let geometry = &self.geometry;
        let count = burst.len();
        let mut addrs = 0;
        if self.pair.has_quick_room(count) {
            for (slot, frame) in self.pair.room_loaded(count).iter_mut().zip(&**burst) {
                let addr = geometry.addr(frame);
                addrs |= addr;
                slot.write(geometry.index_within(addr));
            }
            self.check(addrs);
            // SAFETY: every slot was written; the frames are the burst's, which forgets them below.
            unsafe { self.settle(count) };
            add(&self.counters.given, count as u64);
        } else {
            burst.iter().for_each(|frame| addrs |= geometry.addr(frame));
            self.check(addrs);
            // SAFETY: the frames are the burst's, which forgets them below; every slot is written.
            unsafe { self.free_burst_apart(burst) };
        }
        burst.forget_front(count);
        count
    }

    /// Takes up to `out.len()` frames as bare indices, for rings. Returns how many were written.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn take(&mut self, out: &mut [FrameIndex]) -> usize {
        let count = out.len();
        if !self.pair.has(count) {
            return self.take_out_slowly(out);
        }
        let indices = self.pair.take_loaded(count);
        #[cfg(debug_assertions)]
        self.pool.shadow().take(indices, Location::caller());
        // SAFETY: both have `count` indices, and a FrameIndex is one transparently.
        unsafe { copy_indices(indices.as_ptr(), out.as_mut_ptr().cast(), count) };
        add(&self.counters.taken, count as u64);
        count
    }

    /// Gives frames back by their indices.
    ///
    /// # Safety
    /// Each index must have been taken from this pool, be owned by the caller, and be given once.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn give(&mut self, indices: &[FrameIndex]) {
        let count = indices.len();
        if !self.pair.has_quick_room(count) {
            // SAFETY: as the caller says.
            return unsafe { self.give_apart(indices) };
        }
        let slots = self.pair.room_loaded(count);
        // SAFETY: both have `count` indices, and a FrameIndex is one transparently; then every slot was
        // written, with frames that the caller gives.
        unsafe {
            copy_indices(indices.as_ptr().cast(), slots.as_mut_ptr().cast(), count);
            self.settle(count);
        }
        add(&self.counters.given, count as u64);
    }

    /// Takes up to `want` frames and hands their indices to `visit`, slice by slice, straight from
    /// the sheaves. Returns how many.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn take_with(&mut self, want: usize, mut visit: impl FnMut(&[u32])) -> usize {
        if !self.pair.has(want) {
            return self.take_slowly(want, &mut visit);
        }
        let indices = self.pair.take_loaded(want);
        #[cfg(debug_assertions)]
        self.pool.shadow().take(indices, Location::caller());
        visit(indices);
        add(&self.counters.taken, want as u64);
        want
    }

    /// Gives `count` frames back: `fill(slots, at)` writes the indices of frames `at..` to all of
    /// `slots`, slice by slice, straight into the sheaves.
    ///
    /// # Safety
    /// `fill` must write every slot, with indices that were taken from this pool, that the caller
    /// owns, each given once. It must not panic after the first slice.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn give_with(&mut self, count: usize, mut fill: impl FnMut(&mut [MaybeUninit<u32>], usize)) {
        if !self.pair.has_quick_room(count) {
            // SAFETY: as the caller says.
            return unsafe { self.give_with_apart(count, fill) };
        }
        fill(self.pair.room_loaded(count), 0);
        // SAFETY: the caller's `fill` wrote every slot with frames that it gives away.
        unsafe { self.settle(count) };
        add(&self.counters.given, count as u64);
    }

    /// Counts `count` slots that were written in the loaded sheaf as its frames.
    ///
    /// # Safety
    /// The last `room_loaded(count)` was written in full, with frames of the own zone that are given to
    /// the pool.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) unsafe fn settle(&mut self, count: usize) {
        #[cfg(debug_assertions)]
        {
            // SAFETY: the caller says that they were written.
            let slots = unsafe { self.pair.room_loaded(count).assume_init_ref() };
            self.pool.shadow().give(slots, Location::caller());
        }
        // SAFETY: as the caller says.
        unsafe { self.pair.given(count) };
    }

    /// To be called between two bursts: gives frames back that other cores ask for, sends foreign
    /// frames home that have waited, takes up and lets go of lanes. Costs a few loads if there is
    /// nothing to do. An lcore's loop does so; a loop of your own should.
    #[inline]
    pub fn boundary(&mut self) {
        let is_asked = self.own_zone().flush_request() != self.flush_seen;
        if self.foreign.is_due(self.pool) || is_asked || self.lanes.is_stale(self.pool.lanes()) {
            self.tend();
        }
    }

    /// Notes that `count` frames that were taken stay with the kernel for good.
    pub fn retire(&mut self, count: usize) {
        add(&self.counters.retired, count as u64);
    }

    /// Refuses frames of another pool: freeing them here would give one frame two owners.
    #[inline(always)]
    fn check(&self, addrs: u64) {
        if !self.geometry.contains(addrs) {
            frame_of_another_pool();
        }
    }

    /// As `check`, and names the frame and both places.
    #[cfg(debug_assertions)]
    #[track_caller]
    fn check_each(&self, frames: &[Frame]) {
        let mut others = frames.iter().filter(|frame| !self.geometry.contains(self.geometry.addr(frame)));
        if let Some(frame) = others.next() {
            let name = crate::shadow::name_with_place_of(frame.data());
            let place = Location::caller();
            panic!(
                "a frame of another pool was given to this pool cache at {place}: {name}; free it with its own"
            );
        }
    }
}

#[cold]
#[inline(never)]
fn frame_of_another_pool() -> ! {
    panic!("a frame of another pool was given to this pool cache; free it with a cache of its own pool");
}

impl fmt::Debug for PoolCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolCache")
            .field("id", &self.id)
            .field("zone", &self.zone)
            .field("frames", &(self.pair.frames() + self.foreign.held()))
            .finish_non_exhaustive()
    }
}
