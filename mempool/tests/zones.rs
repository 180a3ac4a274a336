//! Zones: whose frames a cache hands out, where foreign ones go, and what a set of zones may be.

mod counting;

use counting::{Hand, assert_home, builder};
use sheafio_mempool::{Hugepages, Mempool, PoolCache, PoolError, ZonePolicy, ZoneSpec};

/// Bursts after which a half full sheaf of foreign frames goes home.
const FOREIGN_BURSTS: usize = 64;

fn zoned(zones: u32, policy: ZonePolicy) -> &'static Mempool {
    builder(512 * u64::from(zones)).zones(zones).policy(policy).build().unwrap()
}

fn caches(pool: &'static Mempool) -> Vec<PoolCache> {
    (0..pool.zone_count()).map(|zone| pool.cache_in(zone).unwrap()).collect()
}

fn on_node(node: u32) -> ZoneSpec {
    ZoneSpec { node: Some(node), cpus: vec![] }
}

#[test]
fn a_strict_cache_hands_out_all_frames_of_its_own_zone_and_no_others() {
    for zones in [1, 2, 4, 8] {
        let pool = zoned(zones, ZonePolicy::Strict);
        let mut caches = caches(pool);
        let mut hands: Vec<Hand> = caches.iter().map(|_| Hand::new(pool)).collect();
        // In turns, a few at a time, so that all zones are used at once.
        for want in [1, 31, 100, 300, 79] {
            for (cache, hand) in caches.iter_mut().zip(&mut hands) {
                hand.take(cache, want);
                assert!(hand.is_of_zone(cache.zone()), "zone {} of {zones}", cache.zone());
            }
        }
        let (census, counts) = (pool.census(), pool.counts());
        assert_eq!(census.in_flight, 511 * u64::from(zones));
        for (cache, hand) in caches.iter_mut().zip(&mut hands) {
            assert_eq!(hand.take(cache, 2), 1, "one is left, and one more is refused");
            assert!(hand.is_of_zone(cache.zone()));
            hand.give_all(cache);
        }
        assert_eq!((counts.foreign, counts.borrowed, counts.short), (0, 0, 0));
        assert_eq!(pool.counts().short, u64::from(zones));
        drop(caches);
        assert_home(pool);
    }
}

#[test]
fn frames_freed_in_another_zone_go_home_in_whole_sheaves() {
    for zones in [2, 4, 8] {
        let pool = zoned(zones, ZonePolicy::Strict);
        let capacity = pool.sheaf_capacity() as usize;
        let mut caches = caches(pool);
        let last = caches.len() - 1;
        let mut hand = Hand::new(pool);
        for cache in &mut caches[..last] {
            assert_eq!(hand.take(cache, 2 * capacity + 5), 2 * capacity + 5);
            cache.boundary();
        }
        let in_barns = |pool: &Mempool| (0..zones - 1).map(|zone| pool.frames_in_barn(zone)).sum::<u64>();
        let before = in_barns(pool);
        let count = hand.len() as u64;
        // Mixed, so that each burst has frames of several zones.
        let mut mixed: Vec<Hand> =
            (0..hand.len().div_ceil(7)).map(|_| hand.split(hand.len().min(7))).collect();
        while let Some(mut burst) = mixed.pop() {
            if mixed.len() > 3 {
                mixed.swap_remove(1).give_all(&mut caches[last]);
            }
            burst.give_all(&mut caches[last]);
        }
        let counts = pool.counts();
        assert_eq!(counts.foreign, count);
        assert_eq!(counts.barn_puts, 2 * u64::from(zones - 1), "two whole sheaves of each zone");
        assert_eq!(in_barns(pool) - before, (2 * capacity) as u64 * u64::from(zones - 1));
        assert_eq!(pool.frames_in_barn(zones - 1), 512, "none came to the freeing cache's zone");
        drop(caches);
        assert_home(pool);
    }
}

#[test]
fn a_half_full_foreign_sheaf_goes_home_after_64_bursts_and_not_before() {
    let pool = zoned(2, ZonePolicy::Strict);
    let (mut near, mut far) = (pool.cache_in(0).unwrap(), pool.cache_in(1).unwrap());
    let mut hand = Hand::new(pool);
    hand.take(&mut near, 10);
    let before = pool.frames_in_barn(0);
    for round in 0..3 {
        // Boundaries without foreign frames do not count.
        (0..round * 20).for_each(|_| far.boundary());
        hand.give(&mut far, 3);
        for _ in 1..FOREIGN_BURSTS {
            far.boundary();
            assert_eq!(pool.frames_in_barn(0), before + 3 * round, "round {round}");
        }
        far.boundary();
        assert_eq!(pool.frames_in_barn(0), before + 3 * (round + 1), "round {round}");
    }
    hand.give_all(&mut near);
    drop((near, far));
    assert_home(pool);
}

#[test]
fn a_foreign_sheaf_waits_from_its_own_first_frame_on() {
    let pool = zoned(2, ZonePolicy::Prefer);
    let (mut near, mut far) = (pool.cache_in(0).unwrap(), pool.cache_in(1).unwrap());
    let (mut hand, mut rest) = (Hand::new(pool), Hand::new(pool));
    hand.take(&mut near, 512);
    rest.take(&mut far, 512);
    hand.give(&mut far, 1);
    (1..FOREIGN_BURSTS).for_each(|_| far.boundary());
    // The frame does not go home but out again; the next one begins to wait anew.
    assert_eq!(rest.take(&mut far, 1), 1);
    assert_eq!(pool.counts().borrowed, 1);
    hand.give(&mut far, 1);
    for _ in 1..FOREIGN_BURSTS {
        far.boundary();
        assert_eq!(pool.frames_in_barn(0), 0);
    }
    far.boundary();
    assert_eq!(pool.frames_in_barn(0), 1);
    hand.give_all(&mut near);
    rest.give_all(&mut far);
    drop((near, far));
    assert_home(pool);
}

#[test]
fn a_foreign_sheaf_that_begins_when_a_full_one_has_gone_waits_as_long() {
    let pool = zoned(2, ZonePolicy::Strict);
    let capacity = pool.sheaf_capacity() as usize;
    let (mut near, mut far) = (pool.cache_in(0).unwrap(), pool.cache_in(1).unwrap());
    let mut hand = Hand::new(pool);
    hand.take(&mut near, capacity + 1);
    let before = pool.frames_in_barn(0);
    hand.give(&mut far, 1);
    (1..FOREIGN_BURSTS).for_each(|_| far.boundary());
    hand.give(&mut far, capacity);
    for _ in 1..FOREIGN_BURSTS {
        far.boundary();
        assert_eq!(pool.frames_in_barn(0), before + capacity as u64);
    }
    far.boundary();
    assert_eq!(pool.frames_in_barn(0), before + capacity as u64 + 1);
    drop((near, far));
    assert_home(pool);
}

#[test]
fn a_foreign_sheaf_goes_home_at_once_when_its_zone_asks() {
    let pool = zoned(4, ZonePolicy::Strict);
    let mut caches = caches(pool);
    let mut hand = Hand::new(pool);
    hand.take(&mut caches[1], 512);
    hand.give(&mut caches[3], 5);
    hand.take(&mut caches[0], 512);
    hand.give(&mut caches[3], 7);
    assert_eq!(hand.take(&mut caches[1], 1), 0);
    caches[3].boundary();
    assert_eq!((pool.frames_in_barn(0), pool.frames_in_barn(1)), (0, 5), "only that zone has asked");
    assert_eq!(hand.take(&mut caches[1], 6), 5);
    // What comes later has not been asked for.
    let mut later = hand.split(2);
    later.give_all(&mut caches[3]);
    (1..FOREIGN_BURSTS).for_each(|_| caches[3].boundary());
    assert_eq!((pool.frames_in_barn(0), pool.frames_in_barn(1)), (7, 0));
    hand.give_all(&mut caches[0]);
    drop(caches);
    assert_home(pool);
}

#[test]
fn a_strict_cache_gets_a_short_count_while_other_zones_have_frames() {
    let pool = zoned(2, ZonePolicy::Strict);
    let mut cache = pool.cache_in(1).unwrap();
    let mut hand = Hand::new(pool);
    assert_eq!(hand.take(&mut cache, 600), 512);
    assert_eq!(hand.take(&mut cache, 1), 0);
    assert!(hand.is_of_zone(1));
    assert_eq!(pool.frames_in_barn(0), 512);
    let counts = pool.counts();
    assert_eq!((counts.short, counts.borrowed), (2, 0));
    hand.give_all(&mut cache);
    drop(cache);
    assert_home(pool);
}

#[test]
fn a_preferring_cache_borrows_from_the_next_zones_and_counts_it() {
    let pool = zoned(4, ZonePolicy::Prefer);
    let mut cache = pool.cache_in(2).unwrap();
    let mut hand = Hand::new(pool);
    for (zone, borrowed) in [(2, 0), (3, 512), (0, 1024), (1, 1536)] {
        assert_eq!(hand.take(&mut cache, 512), 512);
        let came = &hand.frames()[hand.len() - 512..];
        let is_of_zone = came.iter().all(|frame| pool.zone_of_frame(*frame) == Some(zone));
        assert!(is_of_zone, "the own zone comes first, then the next ones");
        assert_eq!(pool.counts().borrowed, borrowed);
    }
    assert_eq!((hand.take(&mut cache, 1), pool.counts().short), (0, 1), "nothing is left anywhere");
    hand.give_all(&mut cache);
    assert_eq!(pool.counts().foreign, 1536);
    drop(cache);
    assert_home(pool);
}

#[test]
fn a_borrowing_cache_takes_what_it_gathered_itself_first() {
    let pool = zoned(2, ZonePolicy::Prefer);
    let mut cache = pool.cache_in(0).unwrap();
    let mut hand = Hand::new(pool);
    hand.take(&mut cache, 520);
    let gathered: Vec<_> = hand.frames()[512..].to_vec();
    hand.give(&mut cache, 8);
    let in_barn = pool.frames_in_barn(1);
    assert_eq!(hand.take(&mut cache, 8), 8);
    assert!(gathered.iter().all(|frame| hand.frames()[512..].contains(frame)));
    assert_eq!(pool.frames_in_barn(1), in_barn);
    hand.give_all(&mut cache);
    drop(cache);
    assert_home(pool);
}

#[test]
fn the_frames_of_a_zone_are_a_power_of_two_if_there_are_several() {
    let plain = [
        (1000, 1, 1000),
        (1, 1, 1),
        (1000, 2, 512),
        (1000, 3, 512),
        (1, 8, 1),
        (4096, 4, 1024),
        (4097, 4, 2048),
    ];
    for (frames, zones, each) in plain {
        let plan = builder(frames).zones(zones).plan().unwrap();
        assert_eq!((plan.frames_a_zone, plan.zones), (each, zones), "{frames} frames in {zones} zones");
        assert_eq!(plan.frames, u64::from(each) * u64::from(zones));
    }
    // Zones of nodes are bound in hugepages of 2 MiB.
    for (size, each) in [(2048, 1024), (4096, 512)] {
        let two = builder(8).frame_size(size).zone_specs(vec![on_node(0), ZoneSpec::default()]);
        assert_eq!(two.plan().unwrap().frames_a_zone, each);
    }
}

#[test]
fn a_pool_of_fewer_frames_than_zones_has_one_in_each() {
    let pool = builder(3).zones(8).build().unwrap();
    let mut caches = caches(pool);
    for cache in &mut caches {
        let mut hand = Hand::new(pool);
        assert_eq!(hand.take(cache, 2), 1);
        assert!(hand.is_of_zone(cache.zone()));
        hand.give_all(cache);
    }
    drop(caches);
    assert_home(pool);
}

#[test]
fn a_zone_of_node_0_lies_there_or_a_warning_says_why_not() {
    for count in [1, 2] {
        let pool = builder(2048).zone_specs(vec![on_node(0); count]).build().unwrap();
        let warnings = pool.warnings();
        if warnings.is_empty() {
            let base = format!("{:x} ", pool.geometry().base().addr().get());
            let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
            let line =
                maps.lines().find(|line| line.starts_with(&base)).expect("the pool's memory is mapped");
            assert!(line.contains(" bind:0 "), "{line}");
        } else {
            assert!(warnings[0].contains("can't be bound to NUMA nodes"), "{warnings:?}");
        }
        assert_home(pool);
    }
}

#[test]
fn a_node_that_is_not_there_is_refused_by_its_number() {
    let is_bound = builder(64).zone_specs(vec![on_node(0)]).build().unwrap().warnings().is_empty();
    for node in [63, 1000, 5000, u32::MAX] {
        if std::path::Path::new(&format!("/sys/devices/system/node/node{node}")).exists() {
            continue;
        }
        match builder(4096).zone_specs(vec![on_node(0), on_node(node)]).build() {
            Err(error @ PoolError::Node { .. }) => {
                let text = error.to_string();
                assert!(
                    text.contains(&format!("can't take 4 MiB of packet memory from NUMA node {node}")),
                    "{text}"
                );
            }
            Err(error) => panic!("{error}"),
            Ok(pool) => assert!(!is_bound && !pool.warnings().is_empty(), "node {node} was taken"),
        }
    }
}

#[test]
fn a_remedy_for_hugepages_names_each_node_once_with_all_its_pages() {
    let specs = vec![on_node(0), on_node(0)];
    match builder(1 << 18).zone_specs(specs).hugepages(Hugepages::Require).build() {
        Err(error) => {
            let remedy = "Reserve them: echo 256 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages, or";
            assert!(error.to_string().contains(remedy), "{error}");
        }
        Ok(pool) => assert_home(pool), // This machine has 512 MiB of them.
    }
}

#[test]
fn the_memory_of_every_zone_is_there_before_it_is_used() {
    // A zone on memory from anywhere, between two of a node.
    let specs = vec![on_node(0), ZoneSpec::default(), on_node(0)];
    let pool = builder(3072).zone_specs(specs).build().unwrap();
    let zone_bytes = pool.geometry().umem_bytes() / 3;
    let start = pool.geometry().base().addr().get() + zone_bytes as usize;
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    if pool.warnings().is_empty() {
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&format!("{start:x}-")));
        let resident = lines.find(|line| line.starts_with("Rss:")).expect("the zone is a mapping of its own");
        assert_eq!(resident.split_whitespace().nth(1).unwrap(), (zone_bytes >> 10).to_string());
    }
    assert_home(pool);
}

#[test]
fn zones_that_contradict_each_other_are_refused() {
    let zone = |cpus: &[u32]| ZoneSpec { node: None, cpus: cpus.to_vec() };
    for specs in [vec![zone(&[0, 1]), zone(&[2, 1])], vec![zone(&[1]), zone(&[]), zone(&[0, 1])]] {
        let text = builder(64).zone_specs(specs).plan().unwrap_err().to_string();
        assert!(text.contains("CPU 1 is in two zones"), "{text}");
    }
    assert!(builder(64).zone_specs(vec![zone(&[0, 2]), zone(&[1, 3])]).plan().is_ok());
}

#[test]
fn a_zone_that_is_not_there_is_refused_and_takes_no_cache() {
    let pool = builder(64).zones(3).caches(1).build().unwrap();
    for zone in [3, u32::MAX] {
        let text = pool.cache_in(zone).unwrap_err().to_string();
        assert!(text.contains(&format!("there is no zone {zone}; allowed: 0 to 2")), "{text}");
    }
    assert_eq!(pool.cache_in(2).unwrap().zone(), 2);
    assert_home(pool);
}

#[test]
fn a_thread_gets_the_zone_of_its_cpu_and_zone_0_where_none_is_told() {
    // Every CPU that this thread may run on is in the zone behind one that has none: an empty node.
    let cpus: Vec<u32> = (0..1024).collect();
    let empty_node = vec![ZoneSpec::default(), ZoneSpec { node: None, cpus }];
    let pool = builder(1024).zone_specs(empty_node).build().unwrap();
    let mut cache = pool.cache().unwrap();
    assert_eq!(cache.zone(), 1);
    let mut hand = Hand::new(pool);
    assert_eq!(hand.take(&mut cache, 600), 512, "the empty node's frames are not touched");
    assert!(hand.is_of_zone(1));
    hand.give_all(&mut cache);
    drop(cache);
    assert_home(pool);

    let elsewhere = vec![ZoneSpec::default(), ZoneSpec { node: None, cpus: vec![100_000] }];
    let pool = builder(64).zone_specs(elsewhere).build().unwrap();
    assert_eq!(pool.cache().unwrap().zone(), 0);
    assert_home(pool);
}
