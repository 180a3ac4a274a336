//! The pool itself, compiled over counting atomics, as one of the allocators.
//!
//! Owns: the pool of a run and one pool cache a core. Never does: use more of the pool than its public
//! interface. Invariant: between operations nothing is observed, so what the harness does costs nothing.

use std::{cell::RefCell, collections::HashMap};

use sheafio_mempool::{
    FrameIndex, Hugepages, Mempool, PoolCache, ZonePolicy,
    sync::observe::{self, Access},
};

use crate::{
    machine::{LINE_BYTES, Machine, Region},
    traffic::{Allocator, BURST},
};

/// Frames of the pool: those in flight, and what the caches of 512 cores hold. Twice as many with more
/// than one zone, where each cache has open sheaves too.
pub(crate) const FRAMES: usize = 131_072;
/// Bytes of memory whose lines get their numbers together.
const PAGE_BYTES: usize = 4096;

thread_local! {
    /// The machine that an operation is observed by while it lasts.
    static OBSERVED: RefCell<Option<Observed>> = const { RefCell::new(None) };
}

/// Makes the pool for a number of cores. It lives as long as the process, so runs share it. With more
/// than one zone, caches may borrow: random traffic leaves one zone with less than another now and then.
pub(crate) fn pool(cores: usize, zones: usize) -> &'static Mempool {
    let frames = if zones == 1 { FRAMES } else { 2 * FRAMES };
    let builder = Mempool::builder().frames(frames as u64).hugepages(Hugepages::Off);
    let builder = builder.zones(zones as u32).policy(ZonePolicy::Prefer);
    let builder = builder.caches(cores as u32).cores(cores as u32).lanes(cores as u32);
    builder.build().expect("memory for the pool")
}

/// The pool and its caches.
pub(crate) struct Sheaves {
    pool: &'static Mempool,
    caches: Vec<PoolCache>,
    addresses: Addresses,
    /// The frames of one operation.
    indices: Vec<FrameIndex>,
}

impl Sheaves {
    /// Joins a cache for each core and declares the lanes, each from the core that frees to the one
    /// that allocates.
    pub(crate) fn new(pool: &'static Mempool, cores: usize, lanes: &[(usize, usize)]) -> Self {
        // Neighbours share a zone.
        let zone = |core| (core * pool.zone_count() as usize / cores) as u32;
        let caches: Vec<_> =
            (0..cores).map(|core| pool.cache_in(zone(core)).expect("a cache for each core")).collect();
        for (from, to) in lanes {
            pool.lane(caches[*from].id(), caches[*to].id()).expect("a lane for each pair of cores");
        }
        Self { pool, caches, addresses: Addresses::default(), indices: Vec::with_capacity(BURST) }
    }

    /// Lets a core use its cache, every access observed.
    fn observe(
        &mut self,
        machine: &mut Machine,
        core: usize,
        operation: impl FnOnce(&mut PoolCache, &mut [FrameIndex]),
    ) {
        let observed = Observed {
            machine: std::mem::replace(machine, Machine::new(0)),
            addresses: std::mem::take(&mut self.addresses),
            core,
        };
        OBSERVED.set(Some(observed));
        observe::set(Some(note));
        operation(&mut self.caches[core], &mut self.indices);
        observe::set(None);
        let observed = OBSERVED.take().expect("set just above");
        *machine = observed.machine;
        self.addresses = observed.addresses;
    }
}

impl Allocator for Sheaves {
    fn batch(&self) -> usize {
        BURST
    }

    fn alloc(&mut self, machine: &mut Machine, core: usize, count: usize, out: &mut Vec<u32>) {
        self.indices.clear();
        self.indices.resize(count, FrameIndex(0));
        let mut taken = 0;
        self.observe(machine, core, |cache, indices| {
            taken = cache.take(indices);
            cache.boundary();
        });
        out.extend(self.indices[..taken].iter().map(|index| index.0));
    }

    fn free(&mut self, machine: &mut Machine, core: usize, frames: &[u32]) {
        self.indices.clear();
        self.indices.extend(frames.iter().map(|frame| FrameIndex(*frame)));
        self.observe(machine, core, |cache, indices| {
            // SAFETY: the harness frees what `alloc` gave it, once; it checks that.
            unsafe { cache.give(indices) };
            cache.boundary();
        });
    }

    fn frames(&self) -> usize {
        self.pool.frames() as usize
    }

    fn into_free(self: Box<Self>) -> usize {
        let pool = self.pool;
        drop(self.caches);
        let (census, audit) = (pool.census(), pool.audit().expect("all caches have left"));
        assert!(census.adds_up() && audit.twice.is_empty(), "{census:?}, {audit:?}");
        audit.home as usize
    }
}

struct Observed {
    machine: Machine,
    addresses: Addresses,
    core: usize,
}

/// The observer: each line of the range is accessed once.
fn note(addr: usize, bytes: usize, access: Access) {
    OBSERVED.with_borrow_mut(|observed| {
        let Some(Observed { machine, addresses, core }) = observed else { return };
        for line in addr / LINE_BYTES..=(addr + bytes - 1) / LINE_BYTES {
            let line = addresses.region(machine, line * LINE_BYTES).line(line % (PAGE_BYTES / LINE_BYTES));
            match access {
                Access::Read => machine.read(*core, line),
                Access::Write => machine.write(*core, line),
                Access::Rmw => machine.rmw(*core, line),
            }
        }
    });
}

/// The lines of the machine that stand for the memory at an address, page by page.
#[derive(Default)]
struct Addresses {
    pages: HashMap<usize, Region>,
    /// The page that was asked for last: mostly the next one too.
    last: Option<(usize, Region)>,
}

impl Addresses {
    /// The lines of the page that an address lies in.
    fn region(&mut self, machine: &mut Machine, addr: usize) -> Region {
        let page = addr / PAGE_BYTES;
        if let Some((last, region)) = self.last
            && last == page
        {
            return region;
        }
        let new = || machine.add_lines(PAGE_BYTES / LINE_BYTES);
        let region = *self.pages.entry(page).or_insert_with(new);
        self.last = Some((page, region));
        region
    }
}
