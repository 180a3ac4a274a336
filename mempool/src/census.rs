//! Where the frames of a pool are and what its caches did, told without stopping the cores.
//!
//! Owns: the per-cache counters and the sums over them. Never does: write another thread's counter.
//! Invariant: each counter has one writer, the cache that holds its slot, so it is a plain
//! load and store.

use std::fmt;

use crate::{
    FrameIndex,
    sync::{AtomicU32, AtomicU64, Ordering, add},
};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one pool cache, on cache lines of their own.
        #[repr(align(128))]
        #[derive(Debug, Default)]
        pub(crate) struct CacheCounters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
            // Cold: who it is.
            /// CPU + 1 that the cache was made on; 0 while no cache holds the slot.
            pub(crate) cpu: AtomicU32,
            /// The cache's zone.
            pub(crate) zone: AtomicU32,
        }

        /// What caches did since the pool was built. Frames, where not said otherwise.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct PoolCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl CacheCounters {
            pub(crate) fn read(&self) -> PoolCounts {
                PoolCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl PoolCounts {
            /// All counts with their names, in the order above.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        impl std::ops::AddAssign for PoolCounts {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Left the pool.
    taken,
    /// Came back.
    given,
    /// Of those taken, the ones that the loaded sheaf could not serve alone.
    taken_slowly,
    /// Of those given, the ones that the loaded sheaf had no room for.
    given_slowly,
    /// Came from barns in sheaves.
    barn_in,
    /// Went to barns.
    barn_out,
    /// Came over lanes.
    lane_in,
    /// Went over lanes.
    lane_out,
    /// Sheaves got from barns.
    barn_gets,
    /// Full sheaves put into barns.
    barn_puts,
    /// Times that the barn had no sheaf to give, or its locks were held.
    barn_failures,
    /// Sheaves got from lanes.
    lane_gets,
    /// Full sheaves put into lanes.
    lane_puts,
    /// Times that sheaves were given up because another core asked for frames.
    flushes,
    /// Given frames that are of another zone than the cache.
    foreign,
    /// Taken frames that are of another zone than the cache.
    borrowed,
    /// Allocations that got fewer frames than they asked for.
    short,
    /// Left through this cache and will not come back.
    retired,
}

impl CacheCounters {
    /// Adds what a pair or an open sheaf exchanged.
    pub(crate) fn add_traffic(&self, traffic: crate::pair::Traffic) {
        add(&self.barn_in, traffic.barn_in);
        add(&self.barn_out, traffic.barn_out);
        add(&self.barn_gets, traffic.barn_gets);
        add(&self.barn_puts, traffic.barn_puts);
        add(&self.barn_failures, traffic.barn_failures);
        add(&self.lane_in, traffic.lane_in);
        add(&self.lane_out, traffic.lane_out);
        add(&self.lane_gets, traffic.lane_gets);
        add(&self.lane_puts, traffic.lane_puts);
    }
}

impl PoolCounts {
    pub(crate) fn sum(counters: &[CacheCounters]) -> Self {
        let mut sum = Self::default();
        for cache in counters {
            sum += cache.read();
        }
        sum
    }

    /// What must stand still for the parts of a census to fit together: what goes to and from barns and
    /// lanes. Frames that are taken and given cancel out.
    pub(crate) fn exchanged(&self) -> [u64; 5] {
        [self.barn_in, self.barn_out, self.lane_in, self.lane_out, self.retired]
    }

    /// Frames that lie in the sheaves of the counted caches.
    pub fn cached(&self) -> u64 {
        // The counters of a cache are read one after the other while it goes on, so a difference
        // may be off by a burst for a moment; it is never below zero in truth.
        (self.barn_in + self.lane_in + self.given).saturating_sub(self.barn_out + self.lane_out + self.taken)
    }
}

/// A pool cache that is joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheCensus {
    /// The CPU that it was made on or for, where that is known.
    pub cpu: Option<u32>,
    /// Its zone.
    pub zone: u32,
    /// Frames in its sheaves.
    pub frames: u64,
    /// What it did, and those before it whose place it took.
    pub counts: PoolCounts,
}

/// Where the frames of a pool were at one moment, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// All frames of the pool.
    pub frames: u64,
    /// In the barns, counted there.
    pub barn: u64,
    /// In the sheaves of pool caches, from the caches' counters.
    pub caches: u64,
    /// In lanes, from the caches' counters.
    pub lanes: u64,
    /// Taken and not yet given back: in bursts, rings and with the kernel.
    pub in_flight: u64,
    /// Left with the kernel when a port closed; never used again.
    pub retired: u64,
}

impl Census {
    pub(crate) fn new(frames: u64, barn: u64, sum: &PoolCounts) -> Self {
        Self {
            frames,
            barn,
            caches: sum.cached(),
            lanes: sum.lane_out.saturating_sub(sum.lane_in),
            in_flight: sum.taken.saturating_sub(sum.given + sum.retired),
            retired: sum.retired,
        }
    }

    /// Frames that can be allocated: barn, caches and lanes.
    pub fn free(&self) -> u64 {
        self.barn + self.caches + self.lanes
    }

    /// Whether barn + caches + lanes + in flight + retired = frames. While cores exchange sheaves the
    /// parts are read at slightly different times; if this stays false when they rest, frames were lost.
    pub fn adds_up(&self) -> bool {
        self.free() + self.in_flight + self.retired == self.frames
    }
}

/// One line without units but frames, such as `16384 frames: 16384 free, 0 in flight, 0 retired`.
impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames, in_flight, retired, .. } = self;
        let verdict = if self.adds_up() { "" } else { "; they do not add up" };
        write!(f, "{frames} frames: {} free, {in_flight} in flight, {retired} retired{verdict}", self.free())
    }
}

/// The result of walking the barns when no pool cache is joined: the proof that frames are home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Frames that lie in the barn of their zone.
    pub home: u64,
    /// Frames that do not, lowest index first.
    pub missing: Vec<FrameIndex>,
    /// Frames that lie there more than once: freed twice.
    pub twice: Vec<FrameIndex>,
}
