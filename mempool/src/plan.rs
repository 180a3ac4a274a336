//! `PoolPlan`: the sizes of a pool, and how many frames it must have so that nothing starves.
//!
//! Owns: numbers. Never does: ask the machine for anything. Invariant: `least_frames` is what rings,
//! sheaves and hands can hold together; with as many, a core that allocates always finds a frame,
//! at the latest when the others have seen its request.

use std::fmt;

use crate::{
    MempoolBuilder, Rings,
    barn::BarnPlan,
    lane::LANE_SHEAVES,
    memory::HUGEPAGE_BYTES,
    sheaf::{self, FrameRange},
};

/// For so many cores of a zone there is one shard of its barn: few enough that its lock is free
/// nearly always, if each core comes once in a sheaf of packets.
const CORES_A_SHARD: u32 = 4;
/// The most shards of a barn: each can hold the whole zone.
const MAX_SHARDS: u32 = 32;

/// The sizes of a pool. Made by [`MempoolBuilder::plan`]; prints as a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlan {
    /// All frames.
    pub frames: u64,
    /// Size of a frame in bytes.
    pub frame_size: u32,
    /// Number of zones.
    pub zones: u32,
    /// Frames in each zone.
    pub frames_a_zone: u32,
    /// Frames in a sheaf: 28, 60 or 124.
    pub capacity: u32,
    /// Shards of each zone's barn.
    pub shards: u32,
    /// The most caches at one time.
    pub caches: u32,
    /// The most lanes at one time.
    pub lanes: u32,
    /// The cores that use the pool.
    pub cores: u32,
    /// What the rings of each port can hold; none if the builder was not told.
    pub rings: Vec<Rings>,
}

impl PoolPlan {
    /// The plan for legal values.
    pub(crate) fn new(builder: &MempoolBuilder) -> Self {
        let zones = builder.zones.len() as u64;
        let mut frames_a_zone = builder.frames;
        if zones > 1 {
            frames_a_zone = builder.frames.div_ceil(zones).next_power_of_two();
            if builder.zones.iter().any(|zone| zone.node.is_some()) {
                // Memory is bound in hugepages.
                frames_a_zone = frames_a_zone.max(HUGEPAGE_BYTES as u64 / u64::from(builder.frame_size));
            }
        }
        let cores = builder.cores.max(1);
        let frames = frames_a_zone * zones;
        Self {
            frames,
            frame_size: builder.frame_size,
            zones: zones as u32,
            frames_a_zone: u32::try_from(frames_a_zone).unwrap_or(u32::MAX),
            capacity: sheaf::capacity_for(frames, cores),
            shards: cores.div_ceil(zones as u32).div_ceil(CORES_A_SHARD).clamp(1, MAX_SHARDS),
            caches: builder.cache_count(),
            lanes: builder.lanes,
            cores,
            rings: builder.rings.clone(),
        }
    }

    /// Size of the packet memory in bytes.
    pub fn umem_bytes(&self) -> u64 {
        self.frames * u64::from(self.frame_size)
    }

    /// Size of all sheaves in bytes; they are touched only as far as they are used.
    pub fn sheaf_bytes(&self) -> u64 {
        let sheaves = self.barn(0, None).sheaves();
        u64::from(self.zones) * u64::from(sheaves) * u64::from(4 * (4 + self.capacity))
    }

    /// The most frames that can lie in sheaves of `caches` caches and `lanes` lanes, out of reach of
    /// others until these see a request: `caches x (1 + zones) x capacity + lanes x 4 x capacity`.
    /// (A cache has a loaded and a spare sheaf, and an open one for each other zone.) Of the zone that
    /// asked, at most one capacity is left with each cache that allocates, once all have seen it.
    pub fn parked_frames(&self, caches: u32, lanes: u32) -> u64 {
        let sheaves =
            u64::from(caches) * (1 + u64::from(self.zones)) + u64::from(lanes) * u64::from(LANE_SHEAVES);
        sheaves * u64::from(self.capacity)
    }

    /// Frames that the rings can hold.
    fn ring_frames(&self) -> u64 {
        // Saturating: whatever is asked, only the sum of the products can be too large.
        let port = |rings: &Rings| {
            u64::from(rings.queues).saturating_mul(u64::from(rings.fill) + u64::from(rings.tx))
        };
        self.rings.iter().map(port).fold(0, u64::saturating_add)
    }

    /// The largest burst.
    fn burst(&self) -> u32 {
        self.rings.iter().map(|rings| rings.burst).max().unwrap_or(0)
    }

    /// The fewest frames with which no queue can starve for what others hold: the sum of
    /// `queues x (fill + tx)` over the ports, `+ cores x (1 + zones) x capacity + cores x burst`. With more
    /// than one zone and [`ZonePolicy::Strict`](crate::ZonePolicy::Strict) that is so if the queues are
    /// spread evenly over the zones.
    pub fn least_frames(&self) -> u64 {
        let in_hands = u64::from(self.cores) * u64::from(self.burst());
        self.ring_frames().saturating_add(self.parked_frames(self.cores, 0)).saturating_add(in_hands)
    }

    /// How `least_frames` comes about, with this plan's numbers; ports with equal rings together.
    pub fn formula(&self) -> String {
        let mut kinds: Vec<Rings> = Vec::new();
        for rings in self.rings.iter().filter(|rings| rings.fill + rings.tx > 0) {
            match kinds.iter_mut().find(|kind| (kind.fill, kind.tx) == (rings.fill, rings.tx)) {
                Some(kind) => kind.queues += rings.queues,
                None => kinds.push(*rings),
            }
        }
        let names = if kinds.is_empty() { "" } else { "queues x (fill + tx) + " };
        let number = |Rings { queues, fill, tx, .. }: Rings| format!("{queues} x ({fill} + {tx}) + ");
        let numbers: String = kinds.into_iter().map(number).collect();
        format!(
            "{names}cores x (1 + zones) x capacity + cores x burst = {numbers}{cores} x {} x {} + {cores} x {} = {}",
            1 + self.zones,
            self.capacity,
            self.burst(),
            self.least_frames(),
            cores = self.cores,
        )
    }

    pub(crate) fn barn(&self, zone: u32, node: Option<u32>) -> BarnPlan {
        BarnPlan {
            range: FrameRange { first: zone * self.frames_a_zone, count: self.frames_a_zone },
            capacity: self.capacity,
            caches: self.caches,
            shards: self.shards,
            lane_sheaves: self.lanes * LANE_SHEAVES,
            node,
        }
    }
}

impl fmt::Display for PoolPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        writeln!(
            f,
            "frames            {} of {} bytes: {}",
            self.frames,
            self.frame_size,
            mib(self.umem_bytes())
        )?;
        writeln!(f, "zones             {} of {} frames", self.zones, self.frames_a_zone)?;
        writeln!(
            f,
            "sheaf capacity    {} frames (the largest of 60 and 124 with frames >= 8 x {} core(s) x capacity, or 28)",
            self.capacity, self.cores
        )?;
        writeln!(
            f,
            "barn              {} shard(s) a zone; sheaves of all zones take {}",
            self.shards,
            mib(self.sheaf_bytes())
        )?;
        writeln!(
            f,
            "parked in caches  up to {} frames: {} core(s) x (1 + zones) x capacity; up to {} more in each lane",
            self.parked_frames(self.cores, 0),
            self.cores,
            self.parked_frames(0, 1)
        )?;
        if !self.rings.is_empty() {
            writeln!(f, "needed            {} frames: {}", self.least_frames(), self.formula())?;
            let spare = self.frames.saturating_sub(self.least_frames());
            writeln!(f, "spare             {spare} frames for packets that the program holds")?;
        }
        Ok(())
    }
}
