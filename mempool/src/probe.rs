//! A lane's two operations, each alone, for tests that look at their machine code and count it.
//!
//! Owns: two caches with a lane between them. Never does: move frames; the same indices go over the
//! lane again and again. Invariant: a `get` for each `put` that said true, so the lane ends empty.

use crate::{Mempool, PoolCache, lane::give_back};

/// Both ends of a lane, in one hand.
#[derive(Debug)]
pub struct LaneProbe {
    freeing: PoolCache,
    allocating: PoolCache,
    /// A sheaf of frames, which are in use as long as the probe lives.
    frames: Vec<u32>,
}

impl LaneProbe {
    /// Opens a lane between two new caches.
    ///
    /// # Panics
    /// If the pool has no caches, lanes or frames left for it.
    pub fn new(pool: &'static Mempool) -> Self {
        let (mut freeing, mut allocating) = (pool.cache().expect("a cache"), pool.cache().expect("a cache"));
        pool.lane(freeing.id(), allocating.id()).expect("a lane");
        let mut frames = Vec::new();
        let taken =
            freeing.take_with(pool.sheaf_capacity() as usize, |indices| frames.extend_from_slice(indices));
        assert_eq!(taken, pool.sheaf_capacity() as usize, "the pool has a sheaf of frames");
        freeing.boundary();
        allocating.boundary();
        Self { freeing, allocating, frames }
    }

    /// What `unload` does with a full sheaf.
    #[inline(always)]
    pub fn put(&mut self) -> bool {
        let barn = &self.freeing.own_zone().barn;
        barn.sheaves.check(&self.frames);
        self.freeing.lanes.put(barn, self.freeing.zone, &self.frames)
    }

    /// What `load` does to get a sheaf, and then to give it back. Returns its number of frames.
    #[inline(always)]
    pub fn get(&mut self) -> u32 {
        let barn = &self.allocating.own_zone().barn;
        let Some((id, len)) = self.allocating.lanes.take(barn) else { return 0 };
        // SAFETY: `take` made this thread the owner of the sheaf.
        barn.sheaves.check(unsafe { barn.sheaves.content(id, len) });
        give_back(barn, id);
        len
    }

    /// Gives the frames back.
    pub fn end(mut self) {
        let frames = std::mem::take(&mut self.frames);
        // SAFETY: taken by `new`; what lay in the lane was a copy and is gone.
        unsafe {
            self.freeing.give_with(frames.len(), |slots, at| {
                for (slot, frame) in slots.iter_mut().zip(&frames[at..]) {
                    slot.write(*frame);
                }
            });
        }
    }
}
