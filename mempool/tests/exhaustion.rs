//! The pool at its end: short counts, what caches give up when another starves, and how many frames are enough.

mod counting;

use counting::{Hand, assert_home, builder, lane};
use proptest::prelude::*;
use sheafio_mempool::{Burst, Mempool, MempoolBuilder, PoolCache, PoolError, Rings};

/// Short allocations of one cache between two requests to the others.
const SHORTS_A_REQUEST: usize = 16;

#[test]
fn all_frames_come_out_one_more_is_refused_and_each_short_count_is_counted() {
    for frames in [1, 27, 28, 29, 480, 1000] {
        let pool = builder(frames).build().unwrap();
        let mut cache = pool.cache().unwrap();
        let mut hand = Hand::new(pool);
        assert_eq!(hand.take(&mut cache, frames as usize), frames as usize);
        assert_eq!(pool.counts().short, 0);
        // None of these waits: there is nobody who could give a frame back.
        assert!(cache.alloc().is_none());
        assert_eq!(cache.alloc_burst(&mut Burst::new(), 32), 0);
        assert_eq!(hand.take(&mut cache, 1), 0);
        assert_eq!(cache.take_with(5, |_| panic!("there is no frame")), 0);
        assert_eq!(cache.alloc_burst(&mut Burst::new(), 0), 0, "which is all that was asked for");
        assert_eq!(pool.counts().short, 4);
        hand.give(&mut cache, 1);
        assert_eq!(hand.take(&mut cache, 3), 1, "what there is comes out");
        assert_eq!(pool.counts().short, 5);
        hand.give_all(&mut cache);
        drop(cache);
        assert_home(pool);
    }
}

/// A pool whose frames all lie with a cache that hoards, and another that starves.
fn hoard(pool: &'static Mempool) -> (PoolCache, PoolCache, Hand) {
    let (mut hoarding, starving) = (pool.cache().unwrap(), pool.cache().unwrap());
    let mut hand = Hand::new(pool);
    assert_eq!(hand.take(&mut hoarding, 1000), pool.frames() as usize);
    hand.give(&mut hoarding, 2 * pool.sheaf_capacity() as usize);
    assert_eq!((pool.census().barn, pool.census().caches), (0, 2 * u64::from(pool.sheaf_capacity())));
    (hoarding, starving, hand)
}

#[test]
fn a_cache_that_hoards_gives_its_spare_sheaf_up_at_the_boundary_after_another_starves() {
    let pool = builder(480).build().unwrap();
    let capacity = pool.sheaf_capacity() as usize;
    let (mut hoarding, mut starving, mut hand) = hoard(pool);
    hoarding.boundary();
    assert_eq!((pool.census().barn, pool.counts().flushes), (0, 0), "nobody has asked yet");
    assert_eq!(hand.take(&mut starving, 1), 0);
    assert_eq!(pool.census().barn, 0, "not before its boundary");
    hoarding.boundary();
    assert_eq!((pool.census().barn, pool.counts().flushes), (capacity as u64, 1));
    assert_eq!(hand.take(&mut starving, capacity), capacity);
    hoarding.boundary();
    assert_eq!(pool.counts().flushes, 1, "once for a request");
    assert_eq!(hand.take(&mut starving, 1), 0);
    hoarding.boundary();
    assert_eq!(pool.counts().flushes, 2, "that was a new one");
    hand.give_all(&mut starving);
    drop((hoarding, starving));
    assert_home(pool);
}

#[test]
fn the_loaded_sheaf_goes_too_if_nothing_was_allocated_since_the_request_before() {
    for is_busy in [false, true] {
        let pool = builder(480).build().unwrap();
        let capacity = pool.sheaf_capacity() as usize;
        let (mut hoarding, mut starving, mut hand) = hoard(pool);
        assert_eq!(hand.take(&mut starving, 1), 0);
        hoarding.boundary();
        assert_eq!(hand.take(&mut starving, capacity), capacity, "the spare sheaf");
        assert_eq!(hand.take(&mut starving, 1), 0);
        if is_busy {
            assert_eq!(hand.take(&mut hoarding, 1), 1);
            hand.give(&mut hoarding, 1);
        }
        hoarding.boundary();
        let given_up = if is_busy { 0 } else { capacity };
        assert_eq!(pool.census().barn, given_up as u64);
        assert_eq!(hand.take(&mut starving, capacity), given_up);
        hand.give_all(&mut starving);
        drop((hoarding, starving));
        assert_home(pool);
    }
}

#[test]
fn a_cache_that_never_allocates_gives_all_up_at_once_whoever_had_its_slot_before() {
    for was_used in [false, true] {
        let pool = builder(480).build().unwrap();
        let mut hand = Hand::new(pool);
        let (mut starving, mut before) = (pool.cache().unwrap(), pool.cache().unwrap());
        if was_used {
            hand.take(&mut before, 10);
            hand.give_all(&mut before);
        }
        drop(before);
        let mut freeing = pool.cache().unwrap();
        hand.take(&mut starving, 480);
        hand.give(&mut freeing, 50);
        assert_eq!(hand.take(&mut starving, 1), 0);
        freeing.boundary();
        assert_eq!(pool.census().barn, 50, "the slot was used before: {was_used}");
        hand.give_all(&mut starving);
        drop((freeing, starving));
        assert_home(pool);
    }
}

#[test]
fn what_lies_in_lanes_is_given_up_too() {
    let pool = builder(960).build().unwrap();
    let capacity = pool.sheaf_capacity() as usize;
    let [mut from, mut to, mut starving] = [(); 3].map(|()| pool.cache().unwrap());
    lane(&mut from, &mut to);
    let mut hand = Hand::new(pool);
    assert_eq!(hand.take(&mut to, 960), 960);
    hand.give(&mut from, 6 * capacity);
    assert_eq!(pool.census().lanes, 4 * capacity as u64);
    assert_eq!(hand.take(&mut starving, 1), 0);
    to.boundary();
    assert_eq!((pool.census().lanes, pool.census().barn), (0, 4 * capacity as u64));
    from.boundary();
    assert_eq!(pool.census().barn, 6 * capacity as u64, "it never allocates");
    hand.give_all(&mut starving);
    drop((from, to, starving));
    assert_home(pool);
}

#[test]
fn a_starving_cache_asks_at_its_first_short_count_and_then_now_and_then() {
    let pool = builder(480).build().unwrap();
    let mut hand = Hand::new(pool);
    let [mut starving, mut all, mut other] = [(); 3].map(|()| pool.cache().unwrap());
    hand.take(&mut all, 480);
    let mut requests = 0;
    for _ in 0..4 * SHORTS_A_REQUEST {
        assert_eq!(hand.take(&mut starving, 1), 0);
        let before = pool.counts().flushes;
        other.boundary();
        requests += pool.counts().flushes - before;
    }
    assert_eq!(requests, 4, "not each short count makes the others give up their sheaves");
    hand.give_all(&mut all);
    drop((starving, all, other));
    assert_home(pool);
}

#[derive(Clone, Debug)]
enum Work {
    Take(usize, usize),
    Give(usize, usize),
    Boundary(usize),
}

fn work(caches: usize) -> impl Strategy<Value = Work> {
    let count = prop_oneof![1_usize..40, 1_usize..200];
    prop_oneof![
        4 => (0..caches, count.clone()).prop_map(|(cache, count)| Work::Take(cache, count)),
        4 => (0..caches, count).prop_map(|(cache, count)| Work::Give(cache, count)),
        1 => (0..caches).prop_map(Work::Boundary),
    ]
}

/// As many caches as `park` works with; half of them in each of two zones.
const CACHES: usize = 6;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn parked_frames_stay_within_the_formula_and_come_back_on_request(
        zones in 1_u32..=2,
        pairs in prop::collection::vec((0..CACHES, 1..CACHES), 0..6),
        ops in prop::collection::vec(work(CACHES), 1..200),
    ) {
        let pool = builder(1024).zones(zones).build().unwrap();
        let capacity = u64::from(pool.sheaf_capacity());
        let mut caches: Vec<_> = (0..CACHES as u32).map(|at| pool.cache_in(at % zones).unwrap()).collect();
        for (from, step) in &pairs {
            pool.lane(caches[*from].id(), caches[(from + step) % CACHES].id()).unwrap();
        }
        let bound = pool.plan().parked_frames(CACHES as u32, pairs.len() as u32);
        let mut hand = Hand::new(pool);
        for op in &ops {
            match *op {
                Work::Take(at, count) => { hand.take(&mut caches[at], count); }
                Work::Give(at, count) => hand.give(&mut caches[at], count),
                Work::Boundary(at) => caches[at].boundary(),
            }
            let census = pool.census();
            assert!(census.adds_up() && census.caches + census.lanes <= bound, "{census:?} of {bound}");
        }
        // A cache of each zone starves, twice. Of the others, only two allocate between the two requests.
        for _ in 0..2 {
            for cache in &mut caches[..zones as usize] {
                while hand.take(cache, 200) == 200 {}
                (0..SHORTS_A_REQUEST).for_each(|_| assert_eq!(hand.take(cache, 1), 0));
            }
            for cache in &mut caches[CACHES - 2..] {
                let taken = hand.take(cache, 1);
                hand.give(cache, taken);
            }
            caches.iter_mut().for_each(PoolCache::boundary);
        }
        let census = pool.census();
        assert_eq!(census.lanes, 0);
        assert!(census.caches <= 2 * capacity, "{census:?}");
        hand.give_all(&mut caches[0]);
        drop(caches);
        assert_home(pool);
    }
}

#[test]
fn the_sheaf_capacity_is_the_largest_that_the_rule_allows() {
    for (cores, least) in [(1, [480, 992]), (2, [960, 1984]), (16, [7680, 15_872])] {
        for (frames, capacity) in
            [(1, 28), (least[0] - 1, 28), (least[0], 60), (least[1] - 1, 60), (least[1], 124), (1 << 20, 124)]
        {
            let plan = builder(frames).cores(cores).plan().unwrap();
            assert_eq!(plan.capacity, capacity, "{frames} frames, {cores} cores");
        }
    }
}

/// Asks for rings whose need the frames just cover, by the formula in the documentation.
fn just_enough(cores: u32, queues: u32, capacity: u64) -> (MempoolBuilder, u64) {
    let rings = Rings { queues, fill: 256, tx: 128, burst: 32 };
    let (cores_u64, burst) = (u64::from(cores), Burst::DEFAULT_LIMIT as u64);
    let least = u64::from(queues) * (256 + 128) + cores_u64 * 2 * capacity + cores_u64 * burst;
    (builder(least).cores(cores).rings(rings), least)
}

#[test]
fn a_pool_one_frame_too_small_for_its_rings_is_refused_with_the_formula() {
    for (cores, queues, capacity) in [(1, 2, 60), (2, 4, 60), (4, 4, 28)] {
        let (builder, least) = just_enough(cores, queues, capacity);
        let plan = builder.plan().unwrap();
        assert_eq!((u64::from(plan.capacity), plan.least_frames()), (capacity, least));
        let error = builder.frames(least - 1).build().unwrap_err();
        assert!(matches!(error, PoolError::Starves { least: named, .. } if named == least));
        let formula = format!(
            "allowed: at least {least} = queues x (fill + tx) + cores x (1 + zones) x capacity + cores x burst = \
             {queues} x (256 + 128) + {cores} x 2 x {capacity} + {cores} x 32 = {least}"
        );
        assert!(error.to_string().contains(&formula), "{error}");
    }
}

#[test]
fn with_just_enough_frames_no_queue_and_no_core_starves() {
    for (cores, queues, capacity) in [(1, 2, 60), (2, 4, 60), (4, 4, 28)] {
        let pool = just_enough(cores, queues, capacity).0.build().unwrap();
        let mut caches: Vec<_> = (0..cores).map(|_| pool.cache().unwrap()).collect();
        let mut rings = Hand::new(pool);
        let core_of = |queue: u32| (queue % cores) as usize;
        for queue in 0..queues {
            // Step by step, as rings are filled; what is over in a sheaf stays with the core.
            for part in [256, 100, 28] {
                assert_eq!(rings.take(&mut caches[core_of(queue)], part), part);
            }
        }
        // Each core has a burst in hand while the others have theirs, in any order, again and again.
        for round in 0..20 {
            let mut bursts: Vec<_> = (0..cores).map(|_| Hand::new(pool)).collect();
            for step in 0..cores {
                let at = ((step + round) % cores) as usize;
                assert_eq!(bursts[at].take(&mut caches[at], Burst::DEFAULT_LIMIT), Burst::DEFAULT_LIMIT);
                // Packets of a ring come and go too.
                rings.give(&mut caches[at], 13);
                assert_eq!(rings.take(&mut caches[(at + 1) % cores as usize], 13), 13);
            }
            for (at, burst) in bursts.iter_mut().enumerate() {
                burst.give_all(&mut caches[(at + round as usize) % cores as usize]);
            }
            caches.iter_mut().for_each(PoolCache::boundary);
        }
        assert_eq!(pool.counts().short, 0);
        rings.give_all(&mut caches[0]);
        drop(caches);
        assert_home(pool);
    }
}
