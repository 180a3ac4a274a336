//! The ports of sheafio.
//!
//! - [`af_xdp`]: network interfaces, by AF_XDP sockets.
//! - [`ring`]: two ends in memory, between two lcores.
//! - [`null`]: an endless source and a sink, to measure the rest.
//! - [`sim`]: the AF_XDP data path with a simulated kernel, for tests and where AF_XDP is missing.
//!
//! [`spsc`] is the ring under all of them, also for values that two threads pass.
//!
//! Open a port of a known kind with its own module, or one that a user named with [`Ports`].
//!
//! ```
//! use sheafio_core::Queue;
//! use sheafio_drivers::sim;
//! use sheafio_mempool::{Burst, Hugepages, Mempool};
//!
//! let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build()?;
//! let config = sim::Config { packets: 10, ..sim::Config::default() };
//! let mut queue = sim::open("0", &config, pool)?.queue(0)?;
//! let (mut cache, mut burst) = (pool.cache()?, Burst::new());
//! let mut received = 0;
//! while received < 10 {
//!     received += queue.rx_burst(&mut cache, &mut burst);
//!     queue.tx_or_drop(&mut cache, &mut burst);
//! }
//! queue.close(&mut cache);
//! drop(cache);
//! assert_eq!(pool.audit().unwrap().home, 1024);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod af_xdp;
mod error;
pub mod null;
mod port;
mod ports;
pub mod ring;
pub mod sim;
mod spec;
pub mod spsc;

pub use af_xdp::{Right, drop_rights};
pub use error::DriverError;
pub use port::{Change, Control, Port};
pub use ports::Ports;
pub use spec::PortSpec;
