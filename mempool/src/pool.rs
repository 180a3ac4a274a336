//! `Mempool` and its builder.
//!
//! Owns: the packet memory and the zones. Never does: anything on the data path; that is the pool
//! cache's part. Invariant: a pool lives as long as the process, so frames can't outlive it.

use std::fmt;

use crate::{
    Audit, Census, Geometry, Pages, PoolCache, PoolError,
    barn::Barn,
    census::{CacheCounters, Sums},
    frame::XDP_HEADROOM_BYTES,
    memory,
    pair::SheafPair,
    sheaf,
    sync::Mutex,
};

/// The smallest packet that must fit behind the headroom, in bytes: an Ethernet frame (IEEE 802.3).
const SMALLEST_PACKET_BYTES: u32 = 64;
/// The most frames: indices are u32, and a zone's sheaves must be countable too.
const MAX_FRAMES: u64 = 1 << 30;
/// The most pool caches: far above the largest machines.
const MAX_CACHES: u32 = 4096;
/// How often the census looks again while cores exchange sheaves under its eyes.
const CENSUS_ATTEMPTS: u32 = 1000;

/// Whether packet memory lies on hugepages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hugepages {
    /// If there are enough free ones; otherwise base pages and a warning ([`Mempool::warning`]).
    #[default]
    Auto,
    /// Or building fails.
    Require,
    /// Never, not even transparent ones.
    Off,
}

/// Asks for a pool. Made by [`Mempool::builder`].
#[derive(Clone, Debug)]
pub struct MempoolBuilder {
    frames: u64,
    frame_size: u32,
    headroom: u32,
    hugepages: Hugepages,
    zones: u32,
    caches: u32,
    cores: u32,
}

impl MempoolBuilder {
    /// Number of frames, 1 to 2^30. Default: 16,384.
    #[must_use]
    pub fn frames(mut self, frames: u64) -> Self {
        self.frames = frames;
        self
    }

    /// Size of a frame in bytes: 2048 (default) or 4096.
    #[must_use]
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.frame_size = bytes;
        self
    }

    /// Bytes that stay free before each packet, besides the 256 that the kernel keeps (XDP headroom):
    /// 0 (default) to `frame_size - 320`.
    #[must_use]
    pub fn headroom(mut self, bytes: u32) -> Self {
        self.headroom = bytes;
        self
    }

    /// Whether to use hugepages. Default: [`Hugepages::Auto`].
    #[must_use]
    pub fn hugepages(mut self, hugepages: Hugepages) -> Self {
        self.hugepages = hugepages;
        self
    }

    /// Number of zones: 1 (default) is the only one served.
    #[must_use]
    pub fn zones(mut self, zones: u32) -> Self {
        self.zones = zones;
        self
    }

    /// The most pool caches at one time, one for each thread that allocates or frees: 1 to 4,096.
    /// Default: 128.
    #[must_use]
    pub fn caches(mut self, caches: u32) -> Self {
        self.caches = caches;
        self
    }

    /// Number of cores that will use the pool, for the choice of the sheaf capacity. Default: the
    /// CPUs that this process may use.
    #[must_use]
    pub fn cores(mut self, cores: u32) -> Self {
        self.cores = cores;
        self
    }

    /// Maps the memory and fills the barn.
    ///
    /// # Errors
    /// Values outside of their range are refused before any memory is asked for; then the kernel
    /// may refuse the memory, or there are too few hugepages.
    pub fn build(self) -> Result<&'static Mempool, PoolError> {
        self.check()?;
        let size = self.frame_size as u16;
        let len_bytes = self.frames as usize * usize::from(size);
        let mapping = memory::map(len_bytes, self.hugepages)?;
        let frames = self.frames as u32;
        let geometry = Geometry::new(mapping.base, mapping.span_bytes, frames, size, self.headroom as u16);
        let capacity = sheaf::capacity_for(frames, self.cores.max(1));
        let zones = Box::new([Zone { barn: Barn::new(0, frames, capacity, self.caches) }]);
        let counters = (0..self.caches).map(|_| CacheCounters::default()).collect();
        let pool: &'static Mempool = Box::leak(Box::new(Mempool {
            geometry,
            zones,
            counters,
            free_slots: Mutex::new((0..self.caches).rev().collect()),
            pages: mapping.pages,
            warning: mapping.warning,
        }));
        #[cfg(debug_assertions)]
        POOLS.lock().expect("no panic under this lock").push(geometry);
        Ok(pool)
    }

    fn check(&self) -> Result<(), PoolError> {
        if !(1..=MAX_FRAMES).contains(&self.frames) {
            return Err(PoolError::Frames { asked: self.frames, max: MAX_FRAMES });
        }
        if !matches!(self.frame_size, 2048 | 4096) {
            return Err(PoolError::FrameSize { asked: self.frame_size });
        }
        let max = self.frame_size - u32::from(XDP_HEADROOM_BYTES) - SMALLEST_PACKET_BYTES;
        if self.headroom > max {
            return Err(PoolError::Headroom { asked: self.headroom, size: self.frame_size, max });
        }
        if self.zones != 1 {
            return Err(PoolError::Zones { asked: self.zones });
        }
        if !(1..=MAX_CACHES).contains(&self.caches) {
            return Err(PoolError::Caches { asked: self.caches, max: MAX_CACHES });
        }
        let (bytes, memory) = (self.frames * u64::from(self.frame_size), memory::physical_bytes());
        if bytes > memory {
            return Err(PoolError::Memory {
                frames: self.frames,
                size: self.frame_size,
                asked_mib: bytes >> 20,
                memory_mib: memory >> 20,
                max: memory / u64::from(self.frame_size),
            });
        }
        Ok(())
    }
}

/// The part of a pool whose memory lies on one NUMA node.
struct Zone {
    barn: Barn,
}

/// A pool of frames. Lives as long as the process; threads use it through a [`PoolCache`] each.
pub struct Mempool {
    geometry: Geometry,
    zones: Box<[Zone]>,
    counters: Box<[CacheCounters]>,
    /// Counter slots that no cache holds; also guards joining against an audit.
    free_slots: Mutex<Vec<u32>>,
    pages: Pages,
    warning: Option<String>,
}

impl Mempool {
    /// Starts a pool of 16,384 frames of 2,048 bytes.
    pub fn builder() -> MempoolBuilder {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        MempoolBuilder {
            frames: 16_384,
            frame_size: 2048,
            headroom: 0,
            hugepages: Hugepages::Auto,
            zones: 1,
            caches: 128,
            cores,
        }
    }

    /// A pool cache for the calling thread.
    ///
    /// # Errors
    /// [`PoolError::CachesInUse`] if all that the pool was built for are joined.
    pub fn cache(&'static self) -> Result<PoolCache, PoolError> {
        let max = self.counters.len() as u32;
        let mut free_slots = self.free_slots.lock().expect("no panic under this lock");
        let barn = &self.zones[0].barn;
        let slot = free_slots.pop().ok_or(PoolError::CachesInUse { max, more: max + 1 })?;
        let pair = SheafPair::join(barn).expect("the barn has two empty sheaves for each slot");
        Ok(PoolCache::new(self, barn, slot, pair))
    }

    /// The address arithmetic of this pool.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Number of frames.
    pub fn frames(&self) -> u32 {
        self.geometry.frames()
    }

    /// Frames in a sheaf: 28, 60 or 124.
    pub fn sheaf_capacity(&self) -> u32 {
        self.zones[0].barn.sheaves.capacity()
    }

    /// What kind of pages the memory lies on.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// What the user should know about how the pool was built, one line.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Where the frames are now. May be called by any thread at any time; it looks again, a bounded
    /// number of times, if cores exchange sheaves meanwhile ([`Census::adds_up`]).
    pub fn census(&self) -> Census {
        let frames = u64::from(self.frames());
        let mut attempt = 0;
        loop {
            let before = Sums::of(&self.counters);
            let barn = self.zones.iter().map(|zone| zone.barn.frames()).sum();
            let after = Sums::of(&self.counters);
            let census = Census::new(frames, barn, after);
            attempt += 1;
            if before == after && census.adds_up() || attempt == CENSUS_ATTEMPTS {
                return census;
            }
            std::hint::spin_loop();
        }
    }

    /// Walks the barn and says exactly which frames are home. `None` while a pool cache is joined.
    pub fn audit(&self) -> Option<Audit> {
        let free_slots = self.free_slots.lock().expect("no panic under this lock");
        if free_slots.len() < self.counters.len() {
            return None;
        }
        let mut seen = vec![0_u8; self.frames() as usize];
        for zone in &self.zones {
            // SAFETY: no cache is joined, and none can join while the slots are locked.
            unsafe { zone.barn.walk(|index| seen[index as usize] = seen[index as usize].saturating_add(1)) };
        }
        let which = |wanted: fn(u8) -> bool| {
            let found = seen.iter().enumerate().filter(move |(_, count)| wanted(**count));
            found.map(|(index, _)| crate::FrameIndex(index as u32)).collect::<Vec<_>>()
        };
        let (missing, twice) = (which(|count| count == 0), which(|count| count > 1));
        Some(Audit { home: u64::from(self.frames()) - missing.len() as u64, missing, twice })
    }

    pub(crate) fn counters(&self, slot: u32) -> &CacheCounters {
        &self.counters[slot as usize]
    }

    /// Frees the slot of a cache whose sheaves were given back.
    pub(crate) fn leave(&self, slot: u32) {
        self.free_slots.lock().expect("no panic under this lock").push(slot);
    }
}

impl fmt::Debug for Mempool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mempool")
            .field("frames", &self.frames())
            .field("frame_bytes", &self.geometry.frame_bytes())
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}

/// All pools of the process, so that a debug build can name a frame by its address alone.
#[cfg(debug_assertions)]
static POOLS: std::sync::Mutex<Vec<Geometry>> = std::sync::Mutex::new(Vec::new());

/// The name of the frame that an address lies in.
#[cfg(debug_assertions)]
pub(crate) fn name_of(data: std::ptr::NonNull<u8>) -> String {
    let pools = POOLS.lock().expect("no panic under this lock");
    for geometry in pools.iter() {
        let addr = (data.addr().get() as u64).wrapping_sub(geometry.base().addr().get() as u64);
        if addr < geometry.umem_bytes() {
            return format!("frame {} of {}", geometry.index_of(addr), geometry.frames());
        }
    }
    "a frame of no known pool".to_owned()
}
