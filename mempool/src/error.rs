//! Why a pool could not be built or joined. Each message names the value, what is allowed and the remedy.

/// An error of pool set-up. The data path returns counts, never one of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The number of frames is outside of the legal range.
    #[error(
        "pool: frames={asked} is not possible; allowed: 1 to {max}. Give a number in that range; 16384 is the default."
    )]
    Frames {
        /// The asked number of frames.
        asked: u64,
        /// The largest legal number of frames.
        max: u64,
    },
    /// The frame size is not one that AF_XDP accepts in aligned mode.
    #[error("pool: frame size {asked} bytes is not possible; allowed: 2048 or 4096 bytes.")]
    FrameSize {
        /// The asked size in bytes.
        asked: u32,
    },
    /// The headroom leaves no room for a packet.
    #[error(
        "pool: headroom {asked} bytes does not fit into a frame of {size} bytes; allowed: 0 to {max} bytes \
         (the kernel takes 256 bytes of the frame and the smallest packet 64). Take less headroom or frames \
         of 4096 bytes."
    )]
    Headroom {
        /// The asked headroom in bytes.
        asked: u32,
        /// The frame size in bytes.
        size: u32,
        /// The largest legal headroom in bytes.
        max: u32,
    },
    /// The pool is larger than the machine's memory.
    #[error(
        "pool: {frames} frames of {size} bytes are {asked_mib} MiB, but this machine has {memory_mib} MiB of \
         memory; allowed: up to {max} frames. Ask for fewer frames."
    )]
    Memory {
        /// The asked number of frames.
        frames: u64,
        /// The frame size in bytes.
        size: u32,
        /// What was asked, in MiB.
        asked_mib: u64,
        /// What the machine has, in MiB.
        memory_mib: u64,
        /// The most frames that fit into the machine's memory.
        max: u64,
    },
    /// The pool could starve: rings and sheaves together can hold every frame.
    #[error(
        "pool: {frames} frames could starve: rings and sheaves can hold them all; allowed: at least {least} = \
         {formula}. Ask for more frames, or for shorter rings."
    )]
    Starves {
        /// The frames of the pool.
        frames: u64,
        /// The fewest that are enough.
        least: u64,
        /// How that number comes about.
        formula: String,
    },
    /// The number of zones is outside of the legal range.
    #[error("pool: zones={asked} is not possible; allowed: 1 to {max}. Name one zone for each NUMA node.")]
    Zones {
        /// The asked number of zones.
        asked: usize,
        /// The largest legal number of zones.
        max: usize,
    },
    /// A CPU is named by two zones.
    #[error(
        "pool: CPU {cpu} is in two zones; allowed: each CPU in one. Name it in the zone of its NUMA node."
    )]
    CpuOfTwoZones {
        /// The CPU.
        cpu: u32,
    },
    /// There is no zone of this number.
    #[error("pool: there is no zone {zone}; allowed: 0 to {}. Build the pool with more zones.", .zones - 1)]
    NoZone {
        /// The asked zone.
        zone: u32,
        /// How many there are.
        zones: u32,
    },
    /// The kernel can't bind memory to a NUMA node.
    #[error(
        "pool: can't take {mib} MiB of packet memory from NUMA node {node}: {source}. Name a node that is there and \
         has memory (ls /sys/devices/system/node), or ask for fewer frames."
    )]
    Node {
        /// The node.
        node: u32,
        /// What was asked of it, in MiB.
        mib: u64,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The number of lanes is outside of the legal range.
    #[error("pool: lanes={asked} is not possible; allowed: 0 to {max}. Ask for one for each pair of lcores.")]
    Lanes {
        /// The asked number of lanes.
        asked: u32,
        /// The largest legal number of lanes.
        max: u32,
    },
    /// Every lane is taken.
    #[error(
        "pool: all {max} lanes are in use. Build the pool with lanes({}) or more, or close one; without a lane, \
         frames go through the barn.", .max + 1
    )]
    LanesInUse {
        /// How many lanes the pool was built for.
        max: u32,
    },
    /// A cache has as many lanes as it can.
    #[error(
        "pool: a cache can have {max} lanes from others and {max} to others, and one of these has. Declare lanes \
         for the busiest pairs of lcores; the others' frames go through the barn."
    )]
    LanesOfCache {
        /// The most lanes of a cache in one direction.
        max: usize,
    },
    /// A lane needs two caches that are joined.
    #[error(
        "pool: a lane leads from one pool cache to another of the same pool, and both must be in use; make them \
         first."
    )]
    LaneOfNone,
    /// The number of pool caches is outside of the legal range.
    #[error("pool: caches={asked} is not possible; allowed: 1 to {max}. Ask for one for each thread.")]
    Caches {
        /// The asked number of caches.
        asked: u32,
        /// The largest legal number of caches.
        max: u32,
    },
    /// Every pool cache is taken.
    #[error(
        "pool: all {max} pool caches are in use; each lcore or thread needs one of its own. Build the pool \
         with caches({more}) or more, or drop a cache that is no longer used."
    )]
    CachesInUse {
        /// How many caches the pool was built for.
        max: u32,
        /// A number that would be enough for one more.
        more: u32,
    },
    /// Hugepages were required and there are not enough of them.
    #[error(
        "pool: hugepages=require, but {pages} hugepages of 2 MiB can't be had ({free} are free). Reserve them: \
         {remedy}, or take base pages: hugepages=auto (--hugepages auto)."
    )]
    Hugepages {
        /// How many pages of 2 MiB the pool needs.
        pages: u64,
        /// How many are free.
        free: u64,
        /// The command that reserves them.
        remedy: String,
    },
    /// The kernel refused to map the pool's memory.
    #[error(
        "pool: can't map {mib} MiB of packet memory: {source}. Ask for fewer frames or raise the memory limit."
    )]
    Map {
        /// The size of the mapping in MiB.
        mib: u64,
        /// What the kernel said.
        source: std::io::Error,
    },
}
