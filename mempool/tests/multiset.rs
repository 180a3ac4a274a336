//! The pool against an oracle: a multiset of free frame indices by zone, under random operations of
//! several caches in 1 to 8 zones, while lanes come and go.

mod counting;

use std::collections::BTreeSet;

use counting::{assert_home, builder};
use proptest::prelude::*;
use sheafio_mempool::{Burst, Frame, FrameIndex, Lane, Mempool, PoolCache, ZonePolicy};

const CACHES: usize = 4;
const LANES: usize = 6;

#[derive(Clone, Debug)]
enum Op {
    Join(usize, u32),
    Leave(usize),
    Alloc(usize),
    AllocBurst(usize, usize),
    Take(usize, usize),
    FreeOne(usize),
    FreeBurst(usize, usize),
    GiveBack(usize, usize),
    Boundary(usize),
    OpenLane(usize, usize),
    CloseLane(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let cache = || 0..CACHES;
    let count = || prop_oneof![1_usize..8, 1_usize..200];
    prop_oneof![
        2 => (cache(), 0_u32..8).prop_map(|(cache, zone)| Op::Join(cache, zone)),
        1 => cache().prop_map(Op::Leave),
        4 => cache().prop_map(Op::Alloc),
        4 => (cache(), count()).prop_map(|(cache, count)| Op::AllocBurst(cache, count)),
        4 => (cache(), count()).prop_map(|(cache, count)| Op::Take(cache, count)),
        4 => cache().prop_map(Op::FreeOne),
        4 => (cache(), count()).prop_map(|(cache, count)| Op::FreeBurst(cache, count)),
        4 => (cache(), count()).prop_map(|(cache, count)| Op::GiveBack(cache, count)),
        4 => cache().prop_map(Op::Boundary),
        2 => (cache(), cache()).prop_map(|(from, to)| Op::OpenLane(from, to)),
        1 => (0..LANES).prop_map(Op::CloseLane),
    ]
}

/// The caches and lanes that there are, and what the application holds, as the oracle sees it.
struct Model {
    pool: &'static Mempool,
    policy: ZonePolicy,
    caches: [Option<PoolCache>; CACHES],
    lanes: Vec<Lane>,
    frames: Vec<Frame>,
    indices: Vec<FrameIndex>,
    owned: BTreeSet<FrameIndex>,
    foreign: u64,
    borrowed: u64,
    short: u64,
}

impl Model {
    fn new(pool: &'static Mempool, policy: ZonePolicy) -> Self {
        let caches = [const { None }; CACHES];
        let (frames, indices, lanes, owned) = (vec![], vec![], vec![], BTreeSet::new());
        Self { pool, policy, caches, lanes, frames, indices, owned, foreign: 0, borrowed: 0, short: 0 }
    }

    fn zone_of(&self, index: FrameIndex) -> u32 {
        self.pool.zone_of_frame(index).unwrap_or_else(|| panic!("frame {index} is not of the pool"))
    }

    fn index(&self, frame: &Frame) -> FrameIndex {
        self.pool.geometry().index_of(self.pool.geometry().addr(frame))
    }

    /// A cache of `zone` handed these out when `wanted` were asked for.
    fn came(&mut self, zone: u32, indices: &[FrameIndex], wanted: usize) {
        for index in indices {
            assert!(self.owned.insert(*index), "frame {index} was handed out twice");
            if self.zone_of(*index) != zone {
                assert_eq!(self.policy, ZonePolicy::Prefer, "frame {index} is not of zone {zone}");
                self.borrowed += 1;
            }
        }
        if indices.len() < wanted {
            self.short += 1;
            let others = self.policy == ZonePolicy::Prefer;
            let may_use = |other: &u32| *other == zone || others;
            let left: u64 =
                (0..self.pool.zone_count()).filter(may_use).map(|zone| self.pool.frames_in_barn(zone)).sum();
            assert_eq!(left, 0, "a short count in zone {zone} while the barn has frames");
        }
    }

    /// A cache of `zone` took this one back.
    fn went(&mut self, zone: u32, index: FrameIndex) {
        assert!(self.owned.remove(&index));
        self.foreign += u64::from(self.zone_of(index) != zone);
    }

    fn apply(&mut self, op: &Op) {
        let pool = self.pool;
        match *op {
            Op::Join(at, zone) if self.caches[at].is_none() => {
                self.caches[at] = Some(pool.cache_in(zone % pool.zone_count()).unwrap());
            }
            Op::Leave(at) => self.caches[at] = None,
            Op::OpenLane(from, to) => {
                if let (Some(from), Some(to)) = (&self.caches[from], &self.caches[to]) {
                    self.lanes.extend(pool.lane(from.id(), to.id()));
                }
            }
            Op::CloseLane(at) if at < self.lanes.len() => self.lanes.swap_remove(at).close(),
            Op::Join(..) | Op::CloseLane(_) => {}
            Op::Alloc(at)
            | Op::AllocBurst(at, _)
            | Op::Take(at, _)
            | Op::FreeOne(at)
            | Op::FreeBurst(at, _)
            | Op::GiveBack(at, _)
            | Op::Boundary(at) => {
                if let Some(mut cache) = self.caches[at].take() {
                    self.work(op, &mut cache);
                    self.caches[at] = Some(cache);
                }
            }
        }
    }

    /// An operation of one cache.
    fn work(&mut self, op: &Op, cache: &mut PoolCache) {
        let zone = cache.zone();
        match *op {
            Op::Alloc(_) => {
                let frame = cache.alloc();
                let index = frame.as_ref().map(|frame| self.index(frame));
                self.came(zone, index.as_slice(), 1);
                self.frames.extend(frame);
            }
            Op::AllocBurst(_, count) => {
                let mut burst = Burst::with_limit(256);
                assert_eq!(cache.alloc_burst(&mut burst, count), burst.len());
                let indices: Vec<_> = burst.iter().map(|frame| self.index(frame)).collect();
                self.came(zone, &indices, count);
                self.frames.extend(std::iter::from_fn(|| burst.pop()));
            }
            Op::Take(_, count) => {
                let mut out = vec![FrameIndex(0); count];
                let taken = cache.take(&mut out);
                self.came(zone, &out[..taken], count);
                self.indices.extend_from_slice(&out[..taken]);
            }
            Op::FreeOne(_) => {
                let Some(frame) = self.frames.pop() else { return };
                self.went(zone, self.index(&frame));
                cache.free(frame);
            }
            Op::FreeBurst(_, count) => {
                let mut burst = Burst::with_limit(256);
                while burst.len() < count
                    && let Some(frame) = self.frames.pop()
                {
                    self.went(zone, self.index(&frame));
                    burst.push(frame).unwrap();
                }
                cache.free_burst(&mut burst);
            }
            Op::GiveBack(_, count) => {
                let given = self.indices.split_off(self.indices.len().saturating_sub(count));
                for index in &given {
                    self.went(zone, *index);
                }
                // SAFETY: these indices were taken from this pool and are forgotten here.
                unsafe { cache.give(&given) };
            }
            _ => cache.boundary(),
        }
    }

    /// What must hold after each operation.
    fn check(&self, op: &Op) {
        let (census, counts) = (self.pool.census(), self.pool.counts());
        assert!(census.adds_up(), "{census:?} after {op:?}");
        assert_eq!(census.in_flight, self.owned.len() as u64, "after {op:?}");
        let joined = self.caches.iter().flatten().count() as u32;
        let bound = self.pool.plan().parked_frames(joined, self.pool.plan().lanes);
        assert!(census.caches + census.lanes <= bound, "{census:?} after {op:?}; the bound is {bound}");
        let counted = (counts.foreign, counts.borrowed, counts.short);
        assert_eq!(counted, (self.foreign, self.borrowed, self.short), "after {op:?}");
    }

    /// All caches leave. Then a cache of each zone reaches what is free there, and each frame goes home.
    fn end(mut self) {
        self.caches = [const { None }; CACHES];
        assert!(self.lanes.iter().all(Lane::is_over));
        for zone in 0..self.pool.zone_count() {
            let held = self.owned.iter().filter(|index| self.zone_of(**index) == zone).count();
            let free = self.pool.plan().frames_a_zone as usize - held;
            assert_eq!(self.pool.frames_in_barn(zone), free as u64);
            let mut last = self.pool.cache_in(zone).unwrap();
            let mut out = vec![FrameIndex(0); free];
            assert_eq!(last.take(&mut out), free);
            assert!(out.iter().all(|index| self.zone_of(*index) == zone && !self.owned.contains(index)));
            // SAFETY: just taken, given once.
            unsafe { last.give(&out) };
        }
        let mut last = self.pool.cache().unwrap();
        self.frames.drain(..).for_each(|frame| last.free(frame));
        // SAFETY: taken by `Op::Take`, and forgotten.
        unsafe { last.give(&std::mem::take(&mut self.indices)) };
        drop(last);
        assert_home(self.pool);
    }
}

/// A test that fails leaves frames in hands: the drop bombs would hide why.
impl Drop for Model {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.frames.drain(..).for_each(std::mem::forget);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_is_a_set_of_frames_by_zone(
        frames in prop_oneof![1_u64..100, 1_u64..3000],
        zones in prop_oneof![Just(1_u32), 1_u32..=8],
        prefers in any::<bool>(),
        cores in 1_u32..12,
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let policy = if prefers { ZonePolicy::Prefer } else { ZonePolicy::Strict };
        let builder = builder(frames).caches(CACHES as u32).lanes(LANES as u32).cores(cores);
        let pool = builder.zones(zones).policy(policy).build().unwrap();
        let mut model = Model::new(pool, policy);
        for op in &ops {
            model.apply(op);
            model.check(op);
        }
        model.end();
    }
}
