//! Every allocator under every traffic at every number of cores.
//!
//! Owns: the list of allocators and what was measured. Never does: judge or draw.

use sheafio_mempool::Mempool;

use crate::{
    machine::Machine,
    peers::{Calls, RingWithCaches, Slub, Stack},
    sheaves::{self, Sheaves},
    traffic::{self, Allocator, Sample, Traffic},
};

/// The sizes of the machine, in cores.
pub(crate) const CORES: [usize; 5] = [2, 8, 64, 256, 512];

/// Makes an allocator for the traffic on a machine of so many cores.
type Make = fn(&mut Machine, usize, &Pools, Traffic) -> Box<dyn Allocator>;

/// The pools for one number of cores.
struct Pools {
    one_zone: &'static Mempool,
    zones: &'static Mempool,
}

/// Zones of the pool that has more than one, if there are as many cores.
pub(crate) const ZONES: usize = 8;

/// The allocators by the names that tables and plots use.
const ALLOCATORS: [(&str, Make); 9] = [
    (LANES, |_, cores, pools, traffic| Box::new(Sheaves::new(pools.one_zone, cores, &traffic.lanes(cores)))),
    (SHEAVES, |_, cores, pools, _| Box::new(Sheaves::new(pools.one_zone, cores, &[]))),
    (ZONED, |_, cores, pools, _| Box::new(Sheaves::new(pools.zones, cores, &[]))),
    ("ring, caches of 512", |machine, cores, _, _| {
        Box::new(RingWithCaches::with_full_caches(machine, cores))
    }),
    ("ring, caches that fit", |machine, cores, _, _| {
        Box::new(RingWithCaches::with_frames(machine, cores, sheaves::FRAMES))
    }),
    ("SLUB, in bulk", |machine, cores, _, _| Box::new(Slub::new(machine, cores, Calls::Bulk))),
    ("SLUB, one by one", |machine, cores, _, _| Box::new(Slub::new(machine, cores, Calls::Single))),
    ("stack, in bulk", |machine, cores, _, _| Box::new(Stack::new(machine, cores, Calls::Bulk))),
    ("stack, one by one", |machine, cores, _, _| Box::new(Stack::new(machine, cores, Calls::Single))),
];

/// The pool where the traffic's paths are declared as lanes, by its name among the allocators.
pub(crate) const LANES: &str = "sheafio, lanes";
/// The pool where they are not.
pub(crate) const SHEAVES: &str = "sheafio, no lanes";
/// The same on eight NUMA nodes.
pub(crate) const ZONED: &str = "sheafio, 8 zones";

/// One allocator under one traffic.
pub(crate) struct Row {
    /// The traffic.
    pub(crate) traffic: Traffic,
    /// The allocator's name.
    pub(crate) allocator: &'static str,
    /// What was measured at each of [`CORES`].
    pub(crate) samples: [Sample; CORES.len()],
}

/// All that was measured.
pub(crate) struct Figures {
    /// Traffic by traffic, the allocators in the same order.
    pub(crate) rows: Vec<Row>,
    /// Frames in a sheaf of the pool at each of [`CORES`].
    pub(crate) capacities: [u32; CORES.len()],
}

impl Figures {
    /// Measures everything: some seconds.
    pub(crate) fn measure() -> Self {
        let pools = CORES.map(|cores| Pools {
            one_zone: sheaves::pool(cores, 1),
            zones: sheaves::pool(cores, cores.min(ZONES)),
        });
        let mut rows = Vec::new();
        for traffic in Traffic::ALL {
            for (allocator, make) in ALLOCATORS {
                let samples = std::array::from_fn(|size| {
                    let mut machine = Machine::new(CORES[size]);
                    let allocator = make(&mut machine, CORES[size], &pools[size], traffic);
                    traffic::run(traffic, CORES[size], &mut machine, allocator)
                });
                rows.push(Row { traffic, allocator, samples });
            }
        }
        Self { rows, capacities: pools.map(|pools| pools.one_zone.sheaf_capacity()) }
    }

    /// The rows of a traffic.
    pub(crate) fn of(&self, traffic: Traffic) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.traffic == traffic)
    }
}
