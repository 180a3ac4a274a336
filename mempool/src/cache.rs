//! `PoolCache`: what one lcore owns of the pool, and the only way to allocate and free.
//!
//! Owns: two sheaves and the counters of its slot. Never does: lock, spin, or touch a shared cache
//! line unless it exchanges a whole sheaf. Invariant: each frame index is in exactly one place;
//! what is taken here is not in a sheaf any more, what is given here was taken before.

use std::{fmt, mem::MaybeUninit};

use crate::{
    Burst, Frame, FrameIndex, Geometry, Mempool,
    barn::Barn,
    census::CacheCounters,
    pair::SheafPair,
    sync::{Ordering, add},
};

/// A thread's own access to a pool. Made by [`Mempool::cache`]; every thread, lcore or not, has
/// one of its own, with the same speed. Dropping it gives its frames back.
pub struct PoolCache {
    // Hot.
    pair: SheafPair,
    geometry: Geometry,
    counters: &'static CacheCounters,
    // Cold.
    barn: &'static Barn,
    pool: &'static Mempool,
    slot: u32,
}

impl PoolCache {
    pub(crate) fn new(pool: &'static Mempool, barn: &'static Barn, slot: u32, pair: SheafPair) -> Self {
        let counters = pool.counters(slot);
        Self { pair, geometry: *pool.geometry(), counters, barn, pool, slot }
    }

    /// The pool that this cache belongs to.
    pub fn pool(&self) -> &'static Mempool {
        self.pool
    }

    /// Takes one frame: no bytes in it, all headroom in front. `None` if the pool has none for
    /// this cache.
    #[inline]
    #[must_use]
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
    pub fn alloc_burst(&mut self, burst: &mut Burst, want: usize) -> usize {
        self.alloc_packets(burst, want, 0)
    }

    /// As [`alloc_burst`](Self::alloc_burst), with `len` bytes in each frame: what was there before.
    ///
    /// # Panics
    /// If a frame has no room for `len` bytes behind its headroom.
    #[inline]
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
    pub fn take_with(&mut self, want: usize, mut visit: impl FnMut(&[u32])) -> usize {
        let taken = if self.pair.has(want) {
            visit(self.pair.take_loaded(want));
            want
        } else {
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
    pub unsafe fn give_with(&mut self, count: usize, mut fill: impl FnMut(&mut [MaybeUninit<u32>], usize)) {
        if self.pair.has_room(count) {
            fill(self.pair.room_loaded(count), 0);
            // SAFETY: the caller's `fill` wrote every slot with frames that it gives away.
            unsafe { self.pair.given(count) };
        } else {
            self.give_slowly(count, &mut fill);
        }
        add(&self.counters.given, count as u64);
    }

    /// Notes that `count` frames that were taken stay with the kernel for good.
    pub fn retire(&mut self, count: usize) {
        add(&self.counters.retired, count as u64);
    }

    #[cold]
    #[inline(never)]
    fn take_slowly(&mut self, want: usize, visit: &mut dyn FnMut(&[u32])) -> usize {
        let mut taken = 0;
        while taken < want {
            let now = self.pair.load(self.barn, want - taken);
            if now == 0 {
                break;
            }
            visit(self.pair.take_loaded(now));
            taken += now;
        }
        self.publish_traffic();
        taken
    }

    #[cold]
    #[inline(never)]
    fn give_slowly(&mut self, count: usize, fill: &mut dyn FnMut(&mut [MaybeUninit<u32>], usize)) {
        let mut given = 0;
        while given < count {
            let now = self.pair.unload(self.barn, count - given);
            debug_assert!(now > 0);
            fill(self.pair.room_loaded(now), given);
            // SAFETY: `fill` wrote every slot; see `give_with`.
            unsafe { self.pair.given(now) };
            given += now;
        }
        self.publish_traffic();
    }

    fn publish_traffic(&mut self) {
        let traffic = std::mem::take(&mut self.pair.traffic);
        add(&self.counters.barn_in, traffic.frames_in);
        add(&self.counters.barn_out, traffic.frames_out);
    }

    /// Refuses frames of another pool: freeing them here would give one frame two owners.
    #[inline(always)]
    fn check(&self, addrs: u64) {
        if !self.geometry.contains(addrs) {
            foreign_frame();
        }
    }
}

#[cold]
#[inline(never)]
fn foreign_frame() -> ! {
    panic!("a frame of another pool was given to this pool cache; free it with a cache of its own pool");
}

impl Drop for PoolCache {
    fn drop(&mut self) {
        let frames = self.pair.leave(self.barn);
        add(&self.counters.barn_out, u64::from(frames));
        self.pool.leave(self.slot);
    }
}

impl fmt::Debug for PoolCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = |counter: &crate::sync::AtomicU64| counter.load(Ordering::Relaxed);
        f.debug_struct("PoolCache")
            .field("slot", &self.slot)
            .field("taken", &held(&self.counters.taken))
            .field("given", &held(&self.counters.given))
            .finish_non_exhaustive()
    }
}
