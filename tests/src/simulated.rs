//! Queues over the simulated kernel, and where their frames are in the end.

use std::sync::{Arc, Mutex};

use sheafio_core::Closed;
use sheafio_drivers::sim::{self, Config, SimQueue, Wire};
use sheafio_mempool::{Hugepages, Mempool};

/// A pool of `frames` frames for up to four threads.
///
/// # Panics
/// If there is no memory for it.
#[must_use]
pub fn small_pool(frames: u64) -> &'static Mempool {
    let builder = Mempool::builder().frames(frames).hugepages(Hugepages::Off).caches(4).cores(1);
    builder.build().expect("memory for a small pool")
}

/// Opens queue 0 of a sim port, and its wire, which keeps what is sent.
///
/// # Panics
/// If the configuration is not possible.
#[must_use]
pub fn open_simulated(pool: &'static Mempool, config: &Config) -> (SimQueue, Arc<Mutex<Wire>>) {
    let mut port = sim::open("0", config, pool).expect("a possible configuration");
    let wire = port.wire(0);
    wire.lock().expect("no panic under this lock").keep_sent();
    (port.queue(0).expect("it was just opened"), wire)
}

/// Every frame is in the barn, but for those that the kernel kept when these queues closed.
///
/// # Panics
/// If some are not.
pub fn assert_home(pool: &Mempool, closed: &[Closed]) {
    let retired: u64 = closed.iter().map(|closed| closed.retired).sum();
    let census = pool.census();
    assert!(census.adds_up(), "{census:?}");
    assert_eq!((census.in_flight, census.retired), (0, retired));
    let audit = pool.audit().expect("all caches have left");
    assert_eq!((audit.missing.len() as u64, audit.twice), (retired, vec![]));
}
