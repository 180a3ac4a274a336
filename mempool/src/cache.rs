//! `PoolCache`: what one lcore owns of the pool, and the only way to allocate and free.
//!
//! Owns: two sheaves, an open sheaf for each foreign zone, lane ends, and the counters of its slot.
//! Never does: wait, or touch a shared cache line unless it exchanges a whole sheaf. Invariant: each
//! frame index is in exactly one place; what is taken here is not in a sheaf any more, what is given
//! here was taken before. This file is the fast path; `refill` is what happens when it ends.

use std::{fmt, mem::MaybeUninit};

use crate::{
    Burst, Frame, FrameIndex, Geometry, Mempool, census::CacheCounters, foreign::OpenSheaves, lane::LaneEnds,
    pair::SheafPair, sheaf::FrameRange, sync::add, zone::Zone,
};

/// A thread's own access to a pool. Made by [`Mempool::cache`]; every thread, lcore or not, has
/// one of its own, with the same speed. Dropping it gives its frames back.
pub struct PoolCache {
    // Hot.
    pub(crate) pair: SheafPair,
    pub(crate) counters: &'static CacheCounters,
    geometry: Geometry,
    /// The own zone's frames.
    range: FrameRange,
    /// Whether there are zones besides the own one.
    has_foreign: bool,
    // Warm: each burst boundary.
    pub(crate) foreign: OpenSheaves,
    pub(crate) flush_seen: u32,
    pub(crate) lanes: LaneEnds,
    // Cold.
    pub(crate) pool: &'static Mempool,
    pub(crate) id: CacheId,
    pub(crate) zone: u32,
    /// The frames taken so far when the last flush request was seen.
    pub(crate) taken_at_request: u64,
    /// Short allocations until the next flush request.
    pub(crate) shorts_to_request: u32,
}

/// Names a pool cache to the control plane, which declares lanes between caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheId {
    pub(crate) slot: u32,
    /// How many caches have held the slot before.
    pub(crate) generation: u32,
}

impl PoolCache {
    pub(crate) fn new(pool: &'static Mempool, zone: u32, id: CacheId, pair: SheafPair) -> Self {
        let zones = pool.zones();
        Self {
            pair,
            counters: pool.counters(id.slot),
            geometry: *pool.geometry(),
            range: zones[zone as usize].range(),
            has_foreign: zones.len() > 1,
            foreign: OpenSheaves::new(zones.len()),
            flush_seen: zones[zone as usize].flush_request(),
            lanes: LaneEnds::new(pool.lanes(), id.slot),
            pool,
            id,
            zone,
            taken_at_request: 0,
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
        let mut frame = None;
        let geometry = self.geometry;
        self.take_with(1, |indices| {
            // SAFETY: indices in sheaves are frames of this pool, and this one is now this call's.
            frame = Some(unsafe { geometry.packet(indices[0], 0) });
        });
        frame
    }

    /// Gives one frame back.
    ///
    /// # Panics
    /// If the frame is of another pool.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn free(&mut self, frame: Frame) {
        let geometry = self.geometry;
        let addr = geometry.addr(&frame);
        self.check(addr);
        let _ = frame.into_data();
        // SAFETY: the frame was owned by the caller and its handle is gone; one slot is written.
        unsafe {
            self.give_with(1, |slots, _| {
                slots[0].write(geometry.index_within(addr));
            });
        }
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
        let geometry = self.geometry;
        let mut written = 0;
        let taken = self.take_with(want, |indices| {
            for (entry, &index) in spare[written..].iter_mut().zip(indices) {
                // SAFETY: indices in sheaves are frames of this pool, now this burst's.
                entry.write(unsafe { geometry.packet(index, len as u16) });
            }
            written += indices.len();
        });
        // SAFETY: the first `taken` spare entries were written just above.
        unsafe { burst.commit(taken) };
        taken
    }

    /// Gives all frames of a burst back in bulk. Returns how many.
    ///
    /// # Panics
    /// If a frame is of another pool; then none is given back.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn free_burst(&mut self, burst: &mut Burst) -> usize {
        let geometry = self.geometry;
        let count = burst.len();
        let addrs = burst.iter().fold(0, |addrs, frame| addrs | geometry.addr(frame));
        self.check(addrs);
        // SAFETY: the frames are the burst's, which forgets them just below; every slot is written.
        unsafe {
            self.give_with(count, |slots, at| {
                for (slot, frame) in slots.iter_mut().zip(&burst[at..]) {
                    slot.write(geometry.index_within(geometry.addr(frame)));
                }
            });
        }
        burst.forget_front(count);
        count
    }

    /// Takes up to `out.len()` frames as bare indices, for rings. Returns how many were written.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn take(&mut self, out: &mut [FrameIndex]) -> usize {
        let mut written = 0;
        self.take_with(out.len(), |indices| {
            for (entry, &index) in out[written..].iter_mut().zip(indices) {
                *entry = FrameIndex(index);
            }
            written += indices.len();
        })
    }

    /// Gives frames back by their indices.
    ///
    /// # Safety
    /// Each index must have been taken from this pool, be owned by the caller, and be given once.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn give(&mut self, indices: &[FrameIndex]) {
        // SAFETY: the caller owns the frames; every slot is written.
        unsafe {
            self.give_with(indices.len(), |slots, at| {
                for (slot, index) in slots.iter_mut().zip(&indices[at..]) {
                    slot.write(index.0);
                }
            });
        }
    }

    /// Takes up to `want` frames and hands their indices to `visit`, slice by slice, straight from
    /// the sheaves. Returns how many.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn take_with(&mut self, want: usize, mut visit: impl FnMut(&[u32])) -> usize {
        let taken = if self.pair.has(want) {
            let indices = self.pair.take_loaded(want);
            #[cfg(debug_assertions)]
            self.pool.shadow().take(indices, std::panic::Location::caller());
            visit(indices);
            want
        } else {
            #[cfg(debug_assertions)]
            {
                let place = std::panic::Location::caller();
                let shadow = self.pool.shadow();
                self.take_slowly(want, &mut |indices| {
                    shadow.take(indices, place);
                    visit(indices);
                })
            }
            #[cfg(not(debug_assertions))]
            self.take_slowly(want, &mut visit)
        };
        add(&self.counters.taken, taken as u64);
        taken
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
        #[cfg(debug_assertions)]
        let mut fill = {
            let (place, shadow) = (std::panic::Location::caller(), self.pool.shadow());
            move |slots: &mut [MaybeUninit<u32>], at| {
                fill(slots, at);
                // SAFETY: `fill` wrote every slot.
                shadow.give(unsafe { slots.assume_init_ref() }, place);
            }
        };
        if self.pair.has_room(count) {
            fill(self.pair.room_loaded(count), 0);
            // SAFETY: the caller's `fill` wrote every slot with frames that it gives away.
            unsafe { self.settle(count) };
        } else {
            self.give_slowly(count, &mut fill);
        }
        add(&self.counters.given, count as u64);
    }

    /// Counts `count` slots that were written in the loaded sheaf as its frames, once those of other
    /// zones are taken out.
    ///
    /// # Safety
    /// The last `room_loaded(count)` was written in full, with frames that are given to the pool.
    #[inline(always)]
    pub(crate) unsafe fn settle(&mut self, count: usize) {
        if self.has_foreign {
            // SAFETY: the caller says that they were written.
            let slots = unsafe { self.pair.room_loaded(count).assume_init_ref() };
            if !self.range.contains_all(slots) {
                // SAFETY: the caller says that they are frames.
                return unsafe { self.sort_out(count) };
            }
        }
        // SAFETY: every slot was written with a frame of the own zone.
        unsafe { self.pair.given(count) };
    }

    /// To be called between two bursts: gives frames back that other cores ask for, sends foreign
    /// frames home that have waited, takes up and lets go of lanes. Costs a few loads if there is
    /// nothing to do. An lcore's loop does so; a loop of your own should.
    #[inline]
    pub fn boundary(&mut self) {
        let is_asked = self.own_zone().flush_request() != self.flush_seen;
        if self.foreign.is_due() || is_asked || self.lanes.is_stale(self.pool.lanes()) {
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
