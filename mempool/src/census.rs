//! Where the frames of a pool are, told without stopping the cores.
//!
//! Owns: the per-cache counters and the sums over them. Never does: write another thread's counter.
//! Invariant: each counter has one writer, the cache that holds its slot, so it is a plain
//! load and store.

use crate::{
    FrameIndex,
    sync::{AtomicU64, Ordering},
};

/// Counters of one pool cache, in frames, on cache lines of their own.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct CacheCounters {
    /// Frames that left the pool through this cache.
    pub(crate) taken: AtomicU64,
    /// Frames that came back through this cache.
    pub(crate) given: AtomicU64,
    /// Frames that came from the barn in sheaves.
    pub(crate) barn_in: AtomicU64,
    /// Frames that went to the barn in sheaves.
    pub(crate) barn_out: AtomicU64,
    /// Frames that left through this cache and will not come back.
    pub(crate) retired: AtomicU64,
}

/// Sums over all caches, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) taken: u64,
    pub(crate) given: u64,
    pub(crate) barn_in: u64,
    pub(crate) barn_out: u64,
    pub(crate) retired: u64,
}

impl Sums {
    pub(crate) fn of(counters: &[CacheCounters]) -> Self {
        let mut sums = Self::default();
        for counter in counters {
            sums.taken += counter.taken.load(Ordering::Relaxed);
            sums.given += counter.given.load(Ordering::Relaxed);
            sums.barn_in += counter.barn_in.load(Ordering::Relaxed);
            sums.barn_out += counter.barn_out.load(Ordering::Relaxed);
            sums.retired += counter.retired.load(Ordering::Relaxed);
        }
        sums
    }
}

/// Where the frames of a pool were at one moment, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// All frames of the pool.
    pub frames: u64,
    /// In the barn, counted there.
    pub barn: u64,
    /// In the sheaves of pool caches, from the caches' counters.
    pub caches: u64,
    /// Taken and not yet given back: in bursts, rings and with the kernel.
    pub in_flight: u64,
    /// Left with the kernel when a port closed; never used again.
    pub retired: u64,
}

impl Census {
    pub(crate) fn new(frames: u64, barn: u64, sums: Sums) -> Self {
        // The counters of a cache are read one after the other while it goes on, so a difference
        // may be off by a burst for a moment; it is never below zero in truth.
        let caches = (sums.barn_in + sums.given).saturating_sub(sums.barn_out + sums.taken);
        let in_flight = sums.taken.saturating_sub(sums.given + sums.retired);
        Self { frames, barn, caches, in_flight, retired: sums.retired }
    }

    /// Frames that can be allocated: barn and caches.
    pub fn free(&self) -> u64 {
        self.barn + self.caches
    }

    /// Whether barn + caches + in flight + retired = frames. While cores exchange sheaves the parts
    /// are read at slightly different times; if this stays false when they rest, frames were lost.
    pub fn adds_up(&self) -> bool {
        self.barn + self.caches + self.in_flight + self.retired == self.frames
    }
}

/// The result of walking the barn when no pool cache is joined: the proof that frames are home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Frames that lie in the barn.
    pub home: u64,
    /// Frames that are not in the barn, lowest index first.
    pub missing: Vec<FrameIndex>,
    /// Frames that lie in the barn more than once: freed twice.
    pub twice: Vec<FrameIndex>,
}
