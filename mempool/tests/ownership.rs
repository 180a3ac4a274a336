//! Who may use and free a frame, what finds those who may not, and that all comes back when something fails.

mod counting;

use std::panic::{AssertUnwindSafe, catch_unwind};

use counting::{Hand, assert_home, builder};
use sheafio_mempool::{Burst, FrameIndex, Mempool, PoolCache, PoolError, Rings, ZoneSpec};

/// What a call panics with.
fn panic_of(call: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("no panic");
    panic
        .downcast::<String>()
        .map_or_else(|panic| (*panic.downcast::<&str>().unwrap()).to_owned(), |text| *text)
}

/// The place of a line of this file, as panics name it.
fn line(line: u32) -> String {
    format!("{}:{line}:", file!())
}

fn index_of(pool: &Mempool, frame: &sheafio_mempool::Frame) -> FrameIndex {
    pool.geometry().index_of(pool.geometry().addr(frame))
}

#[test]
#[cfg(debug_assertions)]
fn a_frame_that_is_given_twice_is_named_with_both_places_in_debug_builds() {
    let pool = builder(100).build().unwrap();
    let mut cache = pool.cache().unwrap();
    let mut index = [FrameIndex(0)];
    for is_foreign in [false, true] {
        assert_eq!(cache.take(&mut index), 1);
        let mut other = pool.cache().unwrap();
        let first = line!() + 2;
        // SAFETY: taken just above, given once.
        unsafe { cache.give(&index) };
        let second = line!() + 3;
        let again = if is_foreign { &mut other } else { &mut cache };
        // SAFETY: none; the shadow refuses before anything is changed.
        let text = panic_of(|| unsafe { again.give(&index) });
        assert!(text.starts_with(&format!("frame {} of 100 was freed twice: at ", index[0])), "{text}");
        assert!(
            text.contains(&line(first)) && text.contains(&format!("again at {}", line(second))),
            "{text}"
        );
    }
    drop(cache);
    assert_home(pool);
}

#[test]
#[cfg(debug_assertions)]
fn a_frame_that_is_freed_by_its_handle_and_its_index_is_named_in_debug_builds() {
    let pool = builder(100).build().unwrap();
    let mut cache = pool.cache().unwrap();
    let frame = cache.alloc().unwrap();
    let index = index_of(pool, &frame);
    let first = line!() + 1;
    cache.free(frame);
    let second = line!() + 2;
    // SAFETY: none; the shadow refuses before anything is changed.
    let text = panic_of(|| unsafe { cache.give(&[index]) });
    assert!(text.starts_with(&format!("frame {index} of 100 was freed twice")), "{text}");
    assert!(text.contains(&line(first)) && text.contains(&line(second)), "{text}");

    let frame = cache.alloc().unwrap();
    let index = index_of(pool, &frame);
    let first = line!() + 2;
    // SAFETY: the handle is only used for what the shadow refuses.
    unsafe { cache.give(&[index]) };
    let second = line!() + 1;
    let text = panic_of(|| cache.free(frame));
    assert!(text.contains(&line(first)) && text.contains(&line(second)), "{text}");
    drop(cache);
    assert_home(pool);
}

#[test]
#[cfg(debug_assertions)]
fn a_frame_that_is_used_after_it_was_freed_is_named_with_both_places_in_debug_builds() {
    let pool = builder(100).build().unwrap();
    let mut cache = pool.cache().unwrap();
    let mut frame = cache.alloc().unwrap();
    frame.append(8).unwrap().fill(1);
    let index = index_of(pool, &frame);
    let freed = line!() + 2;
    // SAFETY: the handle is only used for what the shadow refuses.
    unsafe { cache.give(&[index]) };
    let mut uses: Vec<(u32, String)> = Vec::new();
    uses.push((line!(), panic_of(|| assert_eq!(frame[0], 1))));
    uses.push((line!(), panic_of(|| frame[0] = 1)));
    uses.push((line!(), panic_of(|| assert_eq!(frame.len(), 8))));
    uses.push((line!(), panic_of(|| frame.append(1).unwrap().fill(2))));
    uses.push((line!(), panic_of(|| frame.prepend(1).unwrap().fill(2))));
    uses.push((line!(), panic_of(|| frame.trim_front(1))));
    uses.push((line!(), panic_of(|| frame.trim_back(1))));
    for (used, text) in uses {
        let expected = format!("frame {index} of 100 was used at {}", line(used));
        assert!(text.starts_with(&expected) && text.contains(&format!("freed at {}", line(freed))), "{text}");
    }
    std::mem::forget(frame); // The handle of a frame that has gone.
    drop(cache);
    assert_home(pool);
}

#[test]
#[cfg(debug_assertions)]
fn an_index_of_no_frame_is_named_with_its_place_in_debug_builds() {
    for zones in [1, 2] {
        let pool = builder(64).zones(zones).build().unwrap();
        let mut cache = pool.cache().unwrap();
        for index in [64, 1000, u32::MAX] {
            let place = line!() + 2;
            // SAFETY: none; the shadow refuses before anything is changed.
            let text = panic_of(|| unsafe { cache.give(&[FrameIndex(index)]) });
            let expected = format!("index {index} at {}", line(place));
            assert!(text.starts_with(&expected) && text.ends_with("allowed: 0 to 63"), "{text}");
        }
        drop(cache);
        assert_home(pool);
    }
}

#[test]
#[cfg(not(debug_assertions))]
fn an_index_of_no_frame_is_found_when_its_sheaf_is_exchanged() {
    // By the cache that gave it, and by the one that gets it from the barn.
    for is_given_by_leaving in [false, true] {
        let pool = builder(480).build().unwrap();
        let capacity = pool.sheaf_capacity() as usize;
        let mut hand = Hand::new(pool);
        let (mut all, mut wrong) = (pool.cache().unwrap(), pool.cache().unwrap());
        hand.take(&mut all, 480);
        hand.give(&mut wrong, capacity + 1); // The second sheaf is the first that is exchanged.
        // SAFETY: none; the pool has to find it.
        unsafe { wrong.give(&[FrameIndex(480)]) };
        let text = if is_given_by_leaving {
            drop(wrong);
            panic_of(|| assert_eq!(hand.take(&mut all, capacity + 1), 0))
        } else {
            hand.give(&mut wrong, capacity - 2);
            panic_of(|| hand.give(&mut wrong, 1))
        };
        assert!(text.contains("a sheaf of the zone with frames 0 to 479 holds index 480"), "{text}");
        std::mem::forget(hand); // This pool can't be counted any more.
    }
}

#[test]
#[cfg(not(debug_assertions))]
fn an_index_of_no_frame_is_found_at_once_if_there_are_several_zones() {
    let pool = builder(64).zones(2).build().unwrap();
    let mut cache = pool.cache().unwrap();
    // SAFETY: none; the pool has to find it.
    let text = panic_of(|| unsafe { cache.give(&[FrameIndex(64)]) });
    assert!(text.contains("index 64 was given; allowed: 0 to 63"), "{text}");
    drop(cache);
    assert_home(pool);
}

#[test]
fn a_frame_of_another_pool_is_refused_and_can_still_go_home() {
    let [ours, theirs] = [(); 2].map(|()| builder(100).build().unwrap());
    let (mut cache, mut home) = (ours.cache().unwrap(), theirs.cache().unwrap());
    let taken = line!() + 1;
    let frame = home.alloc().unwrap();
    let index = index_of(theirs, &frame);
    let given = line!() + 1;
    let text = panic_of(|| cache.free(frame));
    let says_who = |text: &str, given: u32| {
        assert!(text.contains("a frame of another pool was given to this pool cache"), "{text}");
        if cfg!(debug_assertions) {
            let named = format!("frame {index} of 100, taken at {}", line(taken));
            assert!(text.contains(&named) && text.contains(&format!("at {}", line(given))), "{text}");
        }
    };
    says_who(&text, given);
    // SAFETY: its handle went with the panic.
    unsafe { home.give(&[index]) };

    // Both when the burst fits into the loaded sheaf and when it does not; and not one of it is freed.
    for mine in [1, 200] {
        let mut burst = Burst::with_limit(256);
        cache.alloc_burst(&mut burst, mine.min(99));
        let taken = line!() + 1;
        burst.push(home.alloc().unwrap()).unwrap();
        let (index, count) = (index_of(theirs, burst.last().unwrap()), burst.len());
        let text = panic_of(|| assert_eq!(cache.free_burst(&mut burst), 0));
        assert!(text.contains("a frame of another pool"), "{text}");
        if cfg!(debug_assertions) {
            assert!(text.contains(&format!("frame {index} of 100, taken at {}", line(taken))), "{text}");
        }
        assert_eq!((burst.len(), ours.census().in_flight), (count, count as u64 - 1));
        home.free(burst.pop().unwrap());
        cache.free_burst(&mut burst);
    }
    drop((cache, home));
    assert_home(ours);
    assert_home(theirs);
}

#[test]
fn a_thread_that_is_no_lcore_works_in_its_own_sheaves_too() {
    let pool = builder(4096).build().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut cache = pool.cache().unwrap();
                let mut burst = Burst::new();
                for _ in 0..10_000 {
                    assert_eq!(cache.alloc_burst(&mut burst, 32), 32);
                    cache.free_burst(&mut burst);
                }
            });
        }
    });
    let counts = pool.counts();
    assert_eq!((counts.taken, counts.barn_gets, counts.barn_puts), (3 * 320_000, 3, 0), "one sheaf for each");
    assert_eq!((counts.taken_slowly, counts.given_slowly), (3 * 32, 0));
    assert_home(pool);
}

#[test]
fn frames_in_caches_are_counted_for_each() {
    let pool = builder(480).zones(2).build().unwrap();
    let capacity = u64::from(pool.sheaf_capacity());
    let (mut near, mut far) = (pool.cache_in(0).unwrap(), pool.cache_in(1).unwrap());
    let mut hand = Hand::new(pool);
    hand.take(&mut near, 10);
    hand.give(&mut far, 3);
    let frames: Vec<_> = pool.caches().iter().map(|cache| (cache.zone, cache.frames)).collect();
    assert_eq!(frames, [(0, capacity - 10), (1, 3)]);
    assert_eq!((pool.census().caches, pool.census().in_flight), (capacity - 10 + 3, 7));
    assert!(pool.audit().is_none());
    hand.give_all(&mut near);
    drop(near);
    assert_eq!((pool.caches().len(), pool.census().caches), (1, 3));
    drop(far);
    assert!(pool.caches().is_empty());
    assert_home(pool);
}

#[test]
fn what_is_refused_takes_no_slot_no_lane_and_no_sheaf() {
    let pool = builder(960).zones(2).caches(3).lanes(1).build().unwrap();
    for round in 0..1000 {
        let mut caches: Vec<PoolCache> = (0..3).map(|at| pool.cache_in((round + at) % 2).unwrap()).collect();
        assert!(matches!(pool.cache(), Err(PoolError::CachesInUse { max: 3, more: 4 })));
        assert!(matches!(pool.cache_in(2), Err(PoolError::NoZone { zone: 2, zones: 2 })));
        let ids = [0, 1, 2].map(|at: usize| caches[at].id());
        assert!(matches!(pool.lane(ids[0], ids[0]), Err(PoolError::LaneOfNone)));
        let lane = pool.lane(ids[0], ids[1]).unwrap();
        assert!(matches!(pool.lane(ids[1], ids[2]), Err(PoolError::LanesInUse { max: 1 })));
        // Every second time it is taken up and used, and sheaves for foreign frames are opened.
        if round % 2 == 0 {
            let mut hand = Hand::new(pool);
            caches.iter_mut().for_each(PoolCache::boundary);
            for at in 0..3 {
                hand.take(&mut caches[at], 100);
                hand.give(&mut caches[(at + 1) % 3], 100);
            }
        }
        drop(caches);
        assert!(lane.is_over());
    }
    assert_home(pool);
}

#[test]
fn a_builder_that_is_refused_after_mapping_leaves_no_memory_behind() {
    let mapped_kib = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmSize:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let rings = Rings { queues: 1 << 20, fill: 1 << 12, tx: 1 << 12, burst: 32 };
    let before = mapped_kib();
    for _ in 0..1000 {
        // 64 MiB each time, on a node that is not there.
        let nowhere = vec![ZoneSpec { node: Some(5000), cpus: vec![] }];
        let refused = builder(1 << 15).zone_specs(nowhere).build();
        assert!(matches!(refused, Err(PoolError::Node { node: 5000, .. })));
        assert!(matches!(builder(1 << 15).rings(rings).build(), Err(PoolError::Starves { .. })));
    }
    // Below 2 MiB a refusal. Other threads of this process have arenas and small pools meanwhile.
    let grown_mib = (mapped_kib() - before.min(mapped_kib())) >> 10;
    assert!(grown_mib < 1536, "{grown_mib} MiB of address space are lost");
}

#[test]
fn a_thread_that_panics_gives_the_frames_of_its_cache_back() {
    let pool = builder(960).zones(2).lanes(1).build().unwrap();
    let mut to = pool.cache_in(0).unwrap();
    let mut held = Hand::new(pool);
    held.take(&mut to, 400);
    let to_id = to.id();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut cache = pool.cache_in(1).unwrap();
            pool.lane(cache.id(), to_id).unwrap();
            cache.boundary();
            let mut burst = Burst::new();
            cache.alloc_burst(&mut burst, 20);
            cache.free_burst(&mut burst);
            // Foreign frames lie in its open sheaf and in the lane, three of its own in its hands.
            held.give_all(&mut cache);
            cache.alloc_burst(&mut burst, 3);
            panic!("as it has to");
        });
        assert!(thread.join().is_err());
    });
    to.boundary();
    let census = pool.census();
    assert!(census.adds_up(), "{census:?}");
    assert_eq!((census.lanes, census.in_flight), (0, 3), "what was in its hands is lost, and told");
    drop(to);
    let audit = pool.audit().unwrap();
    assert_eq!((audit.home, audit.missing.len(), audit.twice), (1021, 3, vec![]));
    assert!(audit.missing.iter().all(|frame| pool.zone_of_frame(*frame) == Some(1)));
}

#[test]
fn a_burst_takes_over_whole_packets_from_another_as_far_as_it_has_room() {
    let pool = builder(64).build().unwrap();
    let mut cache = pool.cache().unwrap();
    let (mut from, mut to) = (Burst::with_limit(8), Burst::with_limit(6));
    assert_eq!(cache.alloc_packets(&mut from, 7, 60), 7);
    let addresses: Vec<_> = from.iter().map(|frame| frame.as_ptr()).collect();
    // Packets: 0, 1 to 3, 4 to 6.
    for at in [1, 2, 4, 5] {
        from[at].set_continues(true);
    }
    assert_eq!(to.append(&mut from), 4, "the third one does not fit as a whole");
    assert_eq!((to.packet_count(), from.packet_count()), (2, 1));
    assert_eq!(to.append(&mut from), 0);
    to.set_limit(7);
    assert_eq!(to.append(&mut from), 3);
    assert!(from.is_empty());
    assert!(to.iter().map(|frame| frame.as_ptr()).eq(addresses));
    cache.free_burst(&mut to);
    drop(cache);
    assert_eq!(pool.census().free(), 64);
}
