//! Why a pool could not be built or joined. Each message names the value, what is allowed and the remedy.

/// An error of pool set-up. The data path returns counts, never one of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The number of frames is outside of the legal range.
    #[error("pool: frames={asked} is not possible; allowed: 1 to {max}. Ask for fewer or more frames.")]
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
    /// More zones than this version serves.
    #[error("pool: zones={asked} is not possible; allowed: 1.")]
    Zones {
        /// The asked number of zones.
        asked: u32,
    },
    /// The number of pool caches is outside of the legal range.
    #[error("pool: caches={asked} is not possible; allowed: 1 to {max}.")]
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
         echo {pages} > /proc/sys/vm/nr_hugepages, or use hugepages=auto."
    )]
    Hugepages {
        /// How many pages of 2 MiB the pool needs.
        pages: u64,
        /// How many are free.
        free: u64,
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
