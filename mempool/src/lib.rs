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
//! What lies where: `frame` and `burst` are the handles that applications hold, `cache` is the data
//! path, `pair` decides when sheaves are exchanged, `barn` and `sheaf` store them, `census` counts,
//! `geometry` is the address arithmetic, `memory` maps, `pool` ties it together.

mod barn;
mod burst;
mod cache;
mod census;
mod error;
mod frame;
mod geometry;
mod memory;
#[cfg(all(test, loom))]
mod models;
mod pair;
mod pool;
mod sheaf;
pub mod sync;

pub use burst::Burst;
pub use cache::PoolCache;
pub use census::{Audit, Census};
pub use error::PoolError;
pub use frame::{Frame, FrameIndex, XDP_HEADROOM_BYTES};
pub use geometry::Geometry;
pub use memory::Pages;
pub use pool::{Hugepages, Mempool, MempoolBuilder};
