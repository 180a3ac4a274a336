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
    /// Whether a copy of them lies in the lane.
    is_out: bool,
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
        Self { freeing, allocating, frames, is_out: false }
    }

    /// What `unload` does with a full sheaf. `false` if one lies in the lane.
    #[inline(always)]
    pub fn put(&mut self) -> bool {
        if self.is_out {
            return false;
        }
        self.is_out = true;
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
        self.is_out = false;
        len
    }
}

/// Gives the frames back.
impl Drop for LaneProbe {
    fn drop(&mut self) {
        // A copy in the lane would make two of each frame.
        while self.is_out {
            self.get();
        }
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
