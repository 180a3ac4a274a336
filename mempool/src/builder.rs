//! `MempoolBuilder`: what a pool is asked for, checked before any memory is.
//!
//! Owns: the wishes. Never does: map memory before every value is known to be legal.
//! Invariant: what `plan` says is what `build` makes.

use crate::{
    Hugepages, Mempool, PoolError, PoolPlan, ZonePolicy, ZoneSpec, frame::XDP_HEADROOM_BYTES, memory,
};

/// The smallest packet that must fit behind the headroom, in bytes: an Ethernet frame (IEEE 802.3).
const SMALLEST_PACKET_BYTES: u32 = 64;
/// The most frames: indices are u32, and a zone's sheaves must be countable too.
const MAX_FRAMES: u64 = 1 << 30;
/// The most pool caches: far above the largest machines.
const MAX_CACHES: u32 = 4096;
/// The most lanes: each holds four sheaves in every zone.
const MAX_LANES: u32 = 4096;
/// The most zones: the kernel's own limit of NUMA nodes on x86 (MAX_NUMNODES with NODES_SHIFT 6).
const MAX_ZONES: usize = 64;

/// Asks for a pool. Made by [`Mempool::builder`].
#[derive(Clone, Debug)]
pub struct MempoolBuilder {
    pub(crate) frames: u64,
    pub(crate) frame_size: u32,
    pub(crate) headroom: u32,
    pub(crate) hugepages: Hugepages,
    pub(crate) zones: Vec<ZoneSpec>,
    /// What was asked, where it is more than is worth making.
    too_many_zones: Option<u32>,
    pub(crate) policy: ZonePolicy,
    caches: Option<u32>,
    pub(crate) lanes: u32,
    pub(crate) cores: u32,
    pub(crate) rings: Vec<Rings>,
}

/// What a port's rings can hold of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// Number of its queues.
    pub queues: u32,
    /// Frames that lie ready for reception in each queue: its fill ring.
    pub fill: u32,
    /// Slots of each queue's TX ring.
    pub tx: u32,
    /// Frames that each core holds between receiving and sending: its burst.
    pub burst: u32,
}

impl MempoolBuilder {
    pub(crate) fn new() -> Self {
        Self {
            frames: 16_384,
            frame_size: 2048,
            headroom: 0,
            hugepages: Hugepages::Auto,
            zones: vec![ZoneSpec::default()],
            too_many_zones: None,
            policy: ZonePolicy::Strict,
            caches: None,
            lanes: 64,
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
            rings: Vec::new(),
        }
    }

    /// Number of frames, 1 to 2^30. Default: 16,384. With more than one zone, each zone gets its equal
    /// part, rounded up to a power of two.
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
    /// 0 (default) to `frame_size - 320`. For AF_XDP newer kernels take at most `frame_size - 704` (Linux 6.18.44).
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

    /// Number of zones, 1 (default) to 64, on memory from anywhere; for tests and simulations. Pool
    /// caches choose theirs by [`Mempool::cache_in`].
    #[must_use]
    pub fn zones(mut self, zones: u32) -> Self {
        self.too_many_zones = (zones as usize > MAX_ZONES).then_some(zones);
        self.zones = vec![ZoneSpec::default(); (zones as usize).min(MAX_ZONES)];
        self
    }

    /// The zones, 1 to 64: which NUMA node's memory each lies on, and whose CPUs use it. The `Topology`
    /// of sheafio-core makes them of a machine.
    #[must_use]
    pub fn zone_specs(mut self, zones: Vec<ZoneSpec>) -> Self {
        self.too_many_zones = None;
        self.zones = zones;
        self
    }

    /// Where a cache finds frames when its own zone has none. Default: [`ZonePolicy::Strict`].
    #[must_use]
    pub fn policy(mut self, policy: ZonePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The most pool caches at one time, one for each thread that allocates or frees: 1 to 4,096.
    /// Default: 128, or 16 more than cores.
    #[must_use]
    pub fn caches(mut self, caches: u32) -> Self {
        self.caches = Some(caches);
        self
    }

    /// The most lanes at one time, 0 to 4,096. Default: 64.
    #[must_use]
    pub fn lanes(mut self, lanes: u32) -> Self {
        self.lanes = lanes;
        self
    }

    /// Number of cores that will use the pool, for the choice of the sheaf capacity and the number of
    /// barn shards. Default: the CPUs that this process may use.
    #[must_use]
    pub fn cores(mut self, cores: u32) -> Self {
        self.cores = cores;
        self
    }

    /// What the rings of one more port can hold. A pool that could starve, because rings and sheaves
    /// together can hold every frame, is then refused.
    #[must_use]
    pub fn rings(mut self, rings: Rings) -> Self {
        self.rings.push(rings);
        self
    }

    /// What would be built.
    ///
    /// # Errors
    /// Values outside of their range, and pools that could starve or do not fit into the machine's
    /// memory, are refused.
    pub fn plan(&self) -> Result<PoolPlan, PoolError> {
        self.check()?;
        let plan = PoolPlan::new(self);
        let memory = memory::physical_bytes();
        if plan.umem_bytes() > memory {
            return Err(PoolError::Memory {
                frames: plan.frames,
                size: self.frame_size,
                asked_mib: plan.umem_bytes() >> 20,
                memory_mib: memory >> 20,
                max: memory / u64::from(self.frame_size),
            });
        }
        if !self.rings.is_empty() && plan.frames < plan.least_frames() {
            return Err(PoolError::Starves {
                frames: plan.frames,
                least: plan.least_frames(),
                formula: plan.formula(),
            });
        }
        Ok(plan)
    }

    /// Maps the memory and fills the barns.
    ///
    /// # Errors
    /// As for [`plan`](Self::plan), before any memory is asked for; then the kernel may refuse the
    /// memory, or there are too few hugepages.
    pub fn build(self) -> Result<&'static Mempool, PoolError> {
        let plan = self.plan()?;
        Mempool::build(&self, &plan)
    }

    /// The most caches.
    pub(crate) fn cache_count(&self) -> u32 {
        self.caches.unwrap_or_else(|| self.cores.saturating_add(16).clamp(128, MAX_CACHES))
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
        let asked = self.too_many_zones.map_or(self.zones.len(), |zones| zones as usize);
        if !(1..=MAX_ZONES).contains(&asked) {
            return Err(PoolError::Zones { asked, max: MAX_ZONES });
        }
        let mut cpus: Vec<u32> = self.zones.iter().flat_map(|zone| zone.cpus.iter().copied()).collect();
        cpus.sort_unstable();
        if let Some(twice) = cpus.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PoolError::CpuOfTwoZones { cpu: twice[0] });
        }
        if !(1..=MAX_CACHES).contains(&self.cache_count()) {
            return Err(PoolError::Caches { asked: self.cache_count(), max: MAX_CACHES });
        }
        if self.lanes > MAX_LANES {
            return Err(PoolError::Lanes { asked: self.lanes, max: MAX_LANES });
        }
        Ok(())
    }
}
