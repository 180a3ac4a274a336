//! What the tests of the pool share: small pools, frames held by their indices, and the counting invariant.

#![allow(dead_code, reason = "each test file uses its part")]

use sheafio_mempool::{FrameIndex, Hugepages, Lane, Mempool, MempoolBuilder, PoolCache};

/// A pool on base pages for up to 8 caches and 8 lanes of one core.
pub(crate) fn builder(frames: u64) -> MempoolBuilder {
    Mempool::builder().frames(frames).hugepages(Hugepages::Off).caches(8).lanes(8).cores(1)
}

/// The counting invariant when every cache has left: the census adds up with nothing anywhere but in the
/// barns, and the barn of each zone holds all of its frames, once, and no others.
#[track_caller]
pub(crate) fn assert_home(pool: &Mempool) {
    let census = pool.census();
    assert!(census.adds_up(), "{census:?}");
    assert_eq!((census.caches, census.lanes, census.in_flight), (0, 0, 0), "{census:?}");
    for zone in 0..pool.zone_count() {
        assert_eq!(pool.frames_in_barn(zone), u64::from(pool.plan().frames_a_zone), "zone {zone}");
    }
    let audit = pool.audit().expect("all caches have left");
    assert_eq!((audit.home, audit.missing, audit.twice), (u64::from(pool.frames()), vec![], vec![]));
}

/// Frames that a test holds by their indices. They are given by this type alone, so each once.
pub(crate) struct Hand {
    pool: &'static Mempool,
    frames: Vec<FrameIndex>,
}

impl Hand {
    pub(crate) fn new(pool: &'static Mempool) -> Self {
        Self { pool, frames: Vec::new() }
    }

    /// Takes up to `want` more frames. Returns how many.
    #[track_caller]
    pub(crate) fn take(&mut self, cache: &mut PoolCache, want: usize) -> usize {
        assert!(std::ptr::eq(cache.pool(), self.pool));
        let mut out = vec![FrameIndex(0); want];
        let taken = cache.take(&mut out);
        self.frames.extend_from_slice(&out[..taken]);
        taken
    }

    /// Gives the `count` frames back that were taken last, or all if there are fewer.
    #[track_caller]
    pub(crate) fn give(&mut self, cache: &mut PoolCache, count: usize) {
        assert!(std::ptr::eq(cache.pool(), self.pool));
        let given = self.frames.split_off(self.frames.len().saturating_sub(count));
        // SAFETY: only `take` adds frames, of this pool, and they are forgotten here.
        unsafe { cache.give(&given) };
    }

    #[track_caller]
    pub(crate) fn give_all(&mut self, cache: &mut PoolCache) {
        self.give(cache, usize::MAX);
    }

    /// The `count` frames that were taken last, as a hand of their own.
    pub(crate) fn split(&mut self, count: usize) -> Self {
        Self { pool: self.pool, frames: self.frames.split_off(self.frames.len() - count) }
    }

    pub(crate) fn frames(&self) -> &[FrameIndex] {
        &self.frames
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether all frames are of one zone.
    pub(crate) fn is_of_zone(&self, zone: u32) -> bool {
        self.frames.iter().all(|frame| self.pool.zone_of_frame(*frame) == Some(zone))
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        assert!(self.frames.is_empty() || std::thread::panicking(), "a test forgot {} frames", self.len());
    }
}

/// Opens a lane and lets both ends take it up.
pub(crate) fn lane(from: &mut PoolCache, to: &mut PoolCache) -> Lane {
    let lane = to.pool().lane(from.id(), to.id()).unwrap();
    from.boundary();
    to.boundary();
    lane
}
