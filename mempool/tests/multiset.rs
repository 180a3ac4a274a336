//! The pool against an oracle: a multiset of free frame indices, under random operations of
//! several caches.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sheafio_mempool::{Burst, Frame, FrameIndex, Hugepages, Mempool, PoolCache};

const CACHES: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Join(usize),
    Leave(usize),
    Alloc(usize),
    AllocBurst(usize, usize),
    Take(usize, usize),
    FreeOne(usize),
    FreeBurst(usize, usize),
    GiveBack(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    let cache = 0..CACHES;
    let count = prop_oneof![1_usize..8, 1_usize..200];
    prop_oneof![
        1 => cache.clone().prop_map(Op::Join),
        1 => cache.clone().prop_map(Op::Leave),
        4 => cache.clone().prop_map(Op::Alloc),
        4 => (cache.clone(), count.clone()).prop_map(|(cache, count)| Op::AllocBurst(cache, count)),
        4 => (cache.clone(), count.clone()).prop_map(|(cache, count)| Op::Take(cache, count)),
        4 => cache.clone().prop_map(Op::FreeOne),
        4 => (cache.clone(), count.clone()).prop_map(|(cache, count)| Op::FreeBurst(cache, count)),
        4 => (cache, count).prop_map(|(cache, count)| Op::GiveBack(cache, count)),
    ]
}

/// What the application holds, as the oracle sees it.
struct Held {
    pool: &'static Mempool,
    frames: Vec<Frame>,
    indices: Vec<FrameIndex>,
    owned: BTreeSet<FrameIndex>,
}

impl Held {
    fn index(&self, frame: &Frame) -> FrameIndex {
        self.pool.geometry().index_of(self.pool.geometry().addr(frame))
    }

    fn came(&mut self, index: FrameIndex) {
        assert!(index.0 < self.pool.frames(), "frame {index} is not of the pool");
        assert!(self.owned.insert(index), "frame {index} was handed out twice");
    }

    fn went(&mut self, index: FrameIndex) {
        assert!(self.owned.remove(&index));
    }

    fn apply(&mut self, op: &Op, caches: &mut [Option<PoolCache>; CACHES]) {
        match *op {
            Op::Join(at) if caches[at].is_none() => caches[at] = Some(self.pool.cache().unwrap()),
            Op::Leave(at) => caches[at] = None,
            Op::Alloc(at) => {
                if let Some(frame) = caches[at].as_mut().and_then(PoolCache::alloc) {
                    self.came(self.index(&frame));
                    self.frames.push(frame);
                }
            }
            Op::AllocBurst(at, count) => {
                let Some(cache) = &mut caches[at] else { return };
                let mut burst = Burst::with_limit(256);
                assert_eq!(cache.alloc_burst(&mut burst, count), burst.len());
                while let Some(frame) = burst.pop() {
                    self.came(self.index(&frame));
                    self.frames.push(frame);
                }
            }
            Op::Take(at, count) => {
                let Some(cache) = &mut caches[at] else { return };
                let mut out = vec![FrameIndex(0); count];
                let taken = cache.take(&mut out);
                for index in &out[..taken] {
                    self.came(*index);
                    self.indices.push(*index);
                }
            }
            Op::FreeOne(at) => {
                let Some(cache) = &mut caches[at] else { return };
                let Some(frame) = self.frames.pop() else { return };
                self.went(self.index(&frame));
                cache.free(frame);
            }
            Op::FreeBurst(at, count) => {
                let Some(cache) = &mut caches[at] else { return };
                let mut burst = Burst::with_limit(256);
                while burst.len() < count
                    && let Some(frame) = self.frames.pop()
                {
                    self.went(self.index(&frame));
                    burst.push(frame).unwrap();
                }
                cache.free_burst(&mut burst);
            }
            Op::GiveBack(at, count) => {
                let Some(cache) = &mut caches[at] else { return };
                let keep = self.indices.len().saturating_sub(count);
                let given = self.indices.split_off(keep);
                for index in &given {
                    self.went(*index);
                }
                // SAFETY: these indices were taken from this pool and are forgotten here.
                unsafe { cache.give(&given) };
            }
            Op::Join(_) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_is_a_set_of_frames(
        frames in prop_oneof![1_u64..100, 1_u64..5000],
        cores in 1_u32..4,
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let builder = Mempool::builder().frames(frames).caches(CACHES as u32).cores(cores);
        let pool = builder.hugepages(Hugepages::Off).build().unwrap();
        let mut caches = [const { None }; CACHES];
        let mut held = Held { pool, frames: vec![], indices: vec![], owned: BTreeSet::new() };
        for op in &ops {
            held.apply(op, &mut caches);
            let census = pool.census();
            prop_assert!(census.adds_up(), "{:?} after {:?}", census, op);
            prop_assert_eq!(census.in_flight, held.owned.len() as u64);
        }
        // What one cache can't reach lies in the sheaves of others; when they leave, all is free.
        caches = [const { None }; CACHES];
        let mut last = pool.cache().unwrap();
        let mut out = vec![FrameIndex(0); frames as usize + 1];
        let taken = last.take(&mut out);
        prop_assert_eq!(taken as u64 + held.owned.len() as u64, frames);
        out[..taken].iter().for_each(|index| held.came(*index));
        // SAFETY: just taken, given once.
        unsafe { last.give(&out[..taken]) };
        held.frames.drain(..).for_each(|frame| last.free(frame));
        // SAFETY: taken above by `Op::Take`, and forgotten.
        unsafe { last.give(&std::mem::take(&mut held.indices)) };
        drop(last);
        let audit = pool.audit().unwrap();
        prop_assert_eq!(audit.home, frames);
        prop_assert!(audit.missing.is_empty() && audit.twice.is_empty());
        drop(caches);
    }
}
