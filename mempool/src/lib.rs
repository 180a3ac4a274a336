//! The frame pool of sheafio: packet memory, and sheaves that keep cores out of each other's way.
//!
//! A [`Mempool`] maps one contiguous block of packet memory, the UMEM, and cuts it into frames.
//! Free frames lie as indices in *sheaves*, small fixed arrays. Each thread holds a [`PoolCache`]
//! with two sheaves and allocates and frees there, without an atomic read-modify-write; only whole
//! sheaves are exchanged with the *barn*, the store that all threads share.
//!
//! ```
//! use sheafio_mempool::{Burst, Hugepages, Mempool};
//!
//! let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build()?;
//! let mut cache = pool.cache()?;
//! let mut burst = Burst::new();
//! assert_eq!(cache.alloc_burst(&mut burst, 32), 32);
//! burst[0].append(5).unwrap().copy_from_slice(b"hello");
//! assert_eq!(&burst[0][..], b"hello");
//! cache.free_burst(&mut burst);
//! assert_eq!(pool.census().free(), 1024);
//! # Ok::<(), sheafio_mempool::PoolError>(())
//! ```
//!
//! What lies where: `frame` and `burst` are the handles that applications hold, `metadata` is what devices tell of
//! packets and are asked for; `cache` is the data
//! path, `apart` that with several zones, `refill` what it does once in a sheaf; `pair` holds the two
//! sheaves of a cache, `foreign` those for other zones; `lane` and `barn`, which consists of `shard`s,
//! are where sheaves are exchanged; `sheaf` is their memory. `zone`, `pool`, `builder` and `plan` tie it
//! together, `census` counts, `geometry` is the address arithmetic, `copy` moves indices, `memory` maps,
//! and `shadow` watches in debug builds.

mod apart;
mod barn;
mod builder;
mod burst;
mod cache;
mod census;
mod copy;
mod error;
mod foreign;
mod frame;
mod geometry;
mod lane;
mod memory;
mod metadata;
#[cfg(all(test, loom))]
mod models;
mod pair;
mod plan;
mod pool;
#[doc(hidden)] // For the tests that count instructions; no part of the interface.
pub mod probe;
mod refill;
#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(debug_assertions)]
mod shadow;
mod shard;
mod sheaf;
pub mod sync;
mod zone;

pub use builder::{MempoolBuilder, Rings};
pub use burst::Burst;
pub use cache::{CacheId, PoolCache};
pub use census::{Audit, CacheCensus, Census, PoolCounts};
pub use error::PoolError;
pub use frame::{Frame, FrameIndex, XDP_HEADROOM_BYTES};
pub use geometry::Geometry;
pub use lane::Lane;
pub use memory::Pages;
pub use metadata::{METADATA_BYTES, RxHash, RxMetadata, TxRequest, VlanTag};
pub use plan::PoolPlan;
pub use pool::{Hugepages, Mempool};
pub use zone::{ZonePolicy, ZoneSpec};
