//! `Mempool`: the pool itself, and what the control plane can ask of it.
//!
//! Owns: the packet memory, the zones, the lanes, and who holds which cache slot. Never does:
//! anything on the data path; that is the pool cache's part. Invariant: a pool lives as long as the
//! process, so frames can't outlive it.

use std::fmt;

use crate::{
    Audit, CacheCensus, CacheId, Census, Geometry, Lane, MempoolBuilder, Pages, PoolCache, PoolCounts,
    PoolError, PoolPlan, ZonePolicy, ZoneSpec,
    barn::Barn,
    census::CacheCounters,
    lane::{LANES_A_CACHE, Lanes},
    memory::{self, Binding, HUGEPAGE_BYTES, Mapping},
    pair::SheafPair,
    sync::{Mutex, MutexGuard, Ordering},
    zone::{Request, Zone},
};

/// How often the census looks again while cores exchange sheaves under its eyes.
const CENSUS_ATTEMPTS: u32 = 1000;

/// Whether packet memory lies on hugepages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hugepages {
    /// If there are enough free ones; otherwise base pages and a warning ([`Mempool::warnings`]).
    #[default]
    Auto,
    /// Or building fails.
    Require,
    /// Never, not even transparent ones.
    Off,
}

/// A pool of frames. Lives as long as the process; threads use it through a [`PoolCache`] each.
pub struct Mempool {
    geometry: Geometry,
    zones: Box<[Zone]>,
    lanes: Lanes,
    counters: Box<[CacheCounters]>,
    slots: Mutex<Slots>,
    policy: ZonePolicy,
    /// Made with each request of any zone, for caches that hold frames of other zones than their own. If
    /// two zones ask at the same moment, one may be heard only when it asks again.
    foreign_request: Request,
    plan: PoolPlan,
    pages: Pages,
    warnings: Vec<String>,
    #[cfg(debug_assertions)]
    shadow: &'static crate::shadow::Shadow,
}

/// Who holds which cache slot. Its lock also guards joining against an audit, and lanes against each
/// other.
struct Slots {
    free: Vec<u32>,
    /// How many caches have held each slot, and whether one does and is not about to leave.
    held: Vec<(u32, bool)>,
}

impl Mempool {
    /// Starts a pool of 16,384 frames of 2,048 bytes.
    pub fn builder() -> MempoolBuilder {
        MempoolBuilder::new()
    }

    pub(crate) fn build(asked: &MempoolBuilder, plan: &PoolPlan) -> Result<&'static Self, PoolError> {
        let zone_bytes = plan.frames_a_zone as usize * plan.frame_size as usize;
        let specs = asked.zones.iter().enumerate();
        let bindings: Vec<Binding> = specs
            .filter_map(|(at, zone)| {
                // Zones of nodes are whole hugepages, apart from one that is alone.
                let len_bytes = zone_bytes.next_multiple_of(HUGEPAGE_BYTES);
                Some(Binding { at: at * zone_bytes, len_bytes, node: zone.node? })
            })
            .collect();
        let mapping = memory::map(zone_bytes * asked.zones.len(), asked.hugepages, &bindings)?;
        let pool: &'static Self = Box::leak(Box::new(Self::new(asked, plan, mapping)));
        #[cfg(debug_assertions)]
        crate::shadow::register(pool.geometry, pool.shadow);
        Ok(pool)
    }

    /// A pool on memory that is mapped, with every frame in its zone's barn.
    pub(crate) fn new(asked: &MempoolBuilder, plan: &PoolPlan, mapping: Mapping) -> Self {
        let (frames, size) = (plan.frames as u32, plan.frame_size as u16);
        let geometry = Geometry::new(mapping.base, mapping.span_bytes, frames, size, asked.headroom as u16);
        let zone = |(at, zone): (usize, &ZoneSpec)| {
            Zone::new(Barn::new(&plan.barn(at as u32, zone.node)), &zone.cpus)
        };
        Self {
            geometry,
            zones: asked.zones.iter().enumerate().map(zone).collect(),
            lanes: Lanes::new(asked.lanes, asked.cache_count(), LANES_A_CACHE),
            counters: (0..asked.cache_count()).map(|_| CacheCounters::default()).collect(),
            slots: Mutex::new(Slots {
                free: (0..asked.cache_count()).rev().collect(),
                held: vec![(0, false); asked.cache_count() as usize],
            }),
            policy: asked.policy,
            foreign_request: Request::default(),
            plan: plan.clone(),
            pages: mapping.pages,
            warnings: mapping.warnings,
            #[cfg(debug_assertions)]
            shadow: Box::leak(Box::new(crate::shadow::Shadow::new(frames))),
        }
    }

    /// A pool cache for the calling thread, in the zone of the CPU that it runs on; so an lcore pins
    /// itself first. Zone 0 for a CPU that no zone names.
    ///
    /// # Errors
    /// [`PoolError::CachesInUse`] if all that the pool was built for are joined.
    pub fn cache(&'static self) -> Result<PoolCache, PoolError> {
        self.join(memory::current_cpu(), None)
    }

    /// A pool cache for a thread that will run on a CPU, as [`cache`](Self::cache) would make it there.
    ///
    /// # Errors
    /// As for `cache`.
    pub fn cache_on(&'static self, cpu: u32) -> Result<PoolCache, PoolError> {
        self.join(Some(cpu), None)
    }

    /// A pool cache of a given zone, 0 to zones - 1.
    ///
    /// # Errors
    /// [`PoolError::NoZone`] if there is no such zone; [`PoolError::CachesInUse`] if all caches that
    /// the pool was built for are joined.
    pub fn cache_in(&'static self, zone: u32) -> Result<PoolCache, PoolError> {
        self.join(memory::current_cpu(), Some(zone))
    }

    fn join(&'static self, cpu: Option<u32>, zone: Option<u32>) -> Result<PoolCache, PoolError> {
        let near = || self.zones.iter().position(|zone| cpu.is_some_and(|cpu| zone.cpus.contains(&cpu)));
        let zone = zone.unwrap_or_else(|| near().unwrap_or(0) as u32);
        let zones = self.zones.len() as u32;
        let barn = &self.zones.get(zone as usize).ok_or(PoolError::NoZone { zone, zones })?.barn;
        let max = self.counters.len() as u32;
        let mut slots = self.slots();
        let slot = slots.free.pop().ok_or(PoolError::CachesInUse { max, more: max + 1 })?;
        let pair = SheafPair::join(barn, zone, slot % barn.shards(), zones == 1);
        let pair = pair.expect("the barn has two empty sheaves for each slot");
        let (generation, is_held) = &mut slots.held[slot as usize];
        *is_held = true;
        let id = CacheId { pool: std::ptr::from_ref(self).addr(), slot, generation: *generation };
        let counters = self.counters(slot);
        counters.cpu.store(cpu.map_or(0, |cpu| cpu + 1), Ordering::Relaxed);
        counters.zone.store(zone, Ordering::Relaxed);
        Ok(PoolCache::new(self, zone, id, pair))
    }

    /// Opens a lane: full sheaves go from the cache `from`, which frees frames of the zone of `to`, to
    /// the cache `to`, which allocates, without a read-modify-write and not through the barn. Declare
    /// one for each pair of lcores of which one sends what the other receives. Both take it up the
    /// next time that they exchange an own sheaf or come to a [`boundary`](PoolCache::boundary). It ends
    /// with the first of the two caches, or by [`Lane::close`].
    ///
    /// # Errors
    /// If a cache has left or is of another pool, or both are one; if all lanes that the pool was built
    /// for are in use, or 16 lead from or to one of the caches already.
    pub fn lane(&'static self, from: CacheId, to: CacheId) -> Result<Lane, PoolError> {
        let slots = self.slots();
        let is_held = |id: CacheId| {
            let is_ours = id.pool == std::ptr::from_ref(self).addr();
            is_ours && slots.held.get(id.slot as usize) == Some(&(id.generation, true))
        };
        if from == to || !is_held(from) || !is_held(to) {
            return Err(PoolError::LaneOfNone);
        }
        let zone = self.counters[to.slot as usize].zone.load(Ordering::Relaxed);
        let ticket = self.lanes.open(from.slot, to.slot, zone)?;
        Ok(Lane { pool: self, ticket })
    }

    pub(crate) fn close_lane(&self, ticket: crate::lane::LaneTicket) {
        let _slots = self.slots();
        self.lanes.close(ticket);
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
        self.plan.capacity
    }

    /// The sizes that it was built with.
    pub fn plan(&self) -> &PoolPlan {
        &self.plan
    }

    /// What kind of pages the memory lies on.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// What the user should know about how the pool was built, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Number of zones.
    pub fn zone_count(&self) -> u32 {
        self.zones.len() as u32
    }

    /// Frames in the barn of a zone, 0 to zones - 1.
    ///
    /// # Panics
    /// If there is no such zone.
    pub fn frames_in_barn(&self, zone: u32) -> u64 {
        self.zones[zone as usize].barn.frames()
    }

    /// The zone of a frame; `None` for an index that is not of this pool.
    pub fn zone_of_frame(&self, index: crate::FrameIndex) -> Option<u32> {
        self.zone_of(index.0).map(|zone| zone as u32)
    }

    /// Where the frames are now. May be called by any thread at any time; it looks again, a bounded
    /// number of times, if cores exchange sheaves meanwhile ([`Census::adds_up`]).
    pub fn census(&self) -> Census {
        let frames = u64::from(self.frames());
        let mut attempt = 0;
        loop {
            let before = self.counts();
            let barn = self.zones.iter().map(|zone| zone.barn.frames()).sum();
            let after = self.counts();
            let census = Census::new(frames, barn, &after);
            attempt += 1;
            if before.exchanged() == after.exchanged() && census.adds_up() || attempt == CENSUS_ATTEMPTS {
                return census;
            }
            std::hint::spin_loop();
        }
    }

    /// What all caches together did since the pool was built.
    pub fn counts(&self) -> PoolCounts {
        PoolCounts::sum(&self.counters)
    }

    /// The caches that are joined, with the frames that lie in each.
    pub fn caches(&self) -> Vec<CacheCensus> {
        let slots = self.slots();
        let held = self.counters.iter().zip(&slots.held).filter(|(_, (_, is_held))| *is_held);
        held.map(|(counters, _)| {
            let counts = counters.read();
            CacheCensus {
                cpu: counters.cpu.load(Ordering::Relaxed).checked_sub(1),
                zone: counters.zone.load(Ordering::Relaxed),
                frames: counts.cached(),
                counts,
            }
        })
        .collect()
    }

    /// Walks the barns and says exactly which frames are home. `None` while a pool cache is joined.
    pub fn audit(&self) -> Option<Audit> {
        let slots = self.slots();
        if slots.free.len() < self.counters.len() {
            return None;
        }
        let mut seen = vec![0_u8; self.frames() as usize];
        for zone in &self.zones {
            zone.barn.walk(&mut |index| {
                // A frame in the barn of another zone is not home.
                if zone.range().contains(index) {
                    seen[index as usize] = seen[index as usize].saturating_add(1);
                }
            });
        }
        let which = |wanted: fn(u8) -> bool| {
            let found = seen.iter().enumerate().filter(move |(_, count)| wanted(**count));
            found.map(|(index, _)| crate::FrameIndex(index as u32)).collect::<Vec<_>>()
        };
        let (missing, twice) = (which(|count| count == 0), which(|count| count > 1));
        Some(Audit { home: u64::from(self.frames()) - missing.len() as u64, missing, twice })
    }

    pub(crate) fn zones(&self) -> &[Zone] {
        &self.zones
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub(crate) fn policy(&self) -> ZonePolicy {
        self.policy
    }

    /// The latest request of any zone.
    #[inline(always)]
    pub(crate) fn foreign_request(&self) -> u32 {
        self.foreign_request.latest()
    }

    /// Asks the caches for the frames of a zone: those of the zone for what they do not need, others
    /// for what they hold open. Returns the number of the zone's request.
    pub(crate) fn request_flush(&self, zone: u32) -> u32 {
        let request = self.zones[zone as usize].request_flush();
        if self.zones.len() > 1 {
            self.foreign_request.make();
        }
        request
    }

    pub(crate) fn counters(&self, slot: u32) -> &CacheCounters {
        &self.counters[slot as usize]
    }

    #[cfg(debug_assertions)]
    pub(crate) fn shadow(&self) -> &'static crate::shadow::Shadow {
        self.shadow
    }

    /// The zone of a frame index.
    pub(crate) fn zone_of(&self, index: u32) -> Option<usize> {
        (index < self.frames()).then(|| (index / self.plan.frames_a_zone) as usize)
    }

    /// The barn of a zone, and the shard of it that the cache in `slot` calls home.
    pub(crate) fn barn_of(&self, zone: u32, slot: u32) -> (&Barn, u32) {
        let barn = &self.zones[zone as usize].barn;
        (barn, slot % barn.shards())
    }

    /// Takes note that a cache is about to leave: its lanes close, and no new one is opened for it.
    pub(crate) fn begin_leave(&self, slot: u32) {
        let mut slots = self.slots();
        let (generation, is_held) = &mut slots.held[slot as usize];
        *generation = generation.wrapping_add(1);
        *is_held = false;
        self.lanes.close_all(slot);
    }

    /// Frees the slot of a cache whose sheaves were given back.
    pub(crate) fn leave(&self, slot: u32) {
        self.counters[slot as usize].cpu.store(0, Ordering::Relaxed);
        self.slots().free.push(slot);
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("no panic under this lock")
    }
}

impl fmt::Debug for Mempool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mempool")
            .field("frames", &self.frames())
            .field("frame_bytes", &self.geometry.frame_bytes())
            .field("zones", &self.zones.len())
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}
