//! Lanes: sheaves go over them and not through the barn, in turns, and none is lost however they end.

mod counting;

use std::{
    collections::BTreeSet,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use counting::{Hand, assert_home, builder, lane};
use sheafio_mempool::{FrameIndex, Lane, Mempool, PoolCache};

/// Lets two threads that work have both cores.
const A_MOMENT: Duration = Duration::from_micros(20);

/// Lets a cache allocate, and another thread's free what it sends there, for so many bursts.
fn pass_bursts(pool: &'static Mempool, bursts: usize, with_lane: bool) {
    const BURST: usize = 20;
    // In flight are at most 4 bursts: fewer than two sheaves of 60.
    let (send, receive) = mpsc::sync_channel::<Hand>(2);
    let (mut allocating, mut freeing) = (pool.cache().unwrap(), pool.cache().unwrap());
    if with_lane {
        lane(&mut freeing, &mut allocating);
    }
    // Both stay to the end, for a lane ends with the first one.
    let _caches = thread::scope(|scope| {
        let freeing = scope.spawn(move || {
            let mut cache = freeing;
            for mut hand in receive {
                hand.give_all(&mut cache);
                cache.boundary();
            }
            cache
        });
        let mut cache = allocating;
        for _ in 0..bursts {
            let mut hand = Hand::new(pool);
            assert_eq!(hand.take(&mut cache, BURST), BURST);
            send.send(hand).expect("the other thread goes on");
            cache.boundary();
        }
        drop(send);
        [cache, freeing.join().expect("all frames were freed")]
    });
}

#[test]
fn between_two_threads_sheaves_go_over_the_lane_and_not_through_the_barn() {
    let pool = builder(960).build().unwrap();
    assert_eq!(pool.sheaf_capacity(), 60);
    pass_bursts(pool, 3000, true);
    let counts = pool.counts();
    assert_eq!(counts.taken, 60_000);
    // Outside of the barn are never more than three sheaves and what is in flight.
    assert_eq!((counts.barn_puts, counts.short), (0, 0));
    assert!(counts.barn_gets <= 5, "{counts:?}");
    assert!(counts.lane_gets >= 995 && counts.lane_puts >= counts.lane_gets, "{counts:?}");
    assert_eq!(counts.lane_in, counts.lane_out);
    assert_home(pool);
}

#[test]
fn between_two_threads_without_a_lane_sheaves_go_through_the_barn() {
    let pool = builder(960).build().unwrap();
    pass_bursts(pool, 3000, false);
    let counts = pool.counts();
    assert_eq!((counts.lane_puts, counts.lane_gets, counts.lane_in, counts.lane_out), (0, 0, 0, 0));
    assert!(counts.barn_puts >= 995 && counts.barn_gets >= 1000, "{counts:?}");
    assert_home(pool);
}

#[test]
fn a_pair_that_was_not_declared_uses_the_barn_beside_one_that_was() {
    let pool = builder(960).build().unwrap();
    let capacity = pool.sheaf_capacity() as usize;
    let [mut declared, mut other, mut to] = [(); 3].map(|()| pool.cache().unwrap());
    lane(&mut declared, &mut to);
    let mut hand = Hand::new(pool);
    hand.take(&mut to, 6 * capacity);
    hand.give(&mut other, 3 * capacity);
    assert_eq!((pool.counts().barn_puts, pool.counts().lane_puts), (1, 0));
    hand.give(&mut declared, 3 * capacity);
    assert_eq!((pool.counts().barn_puts, pool.counts().lane_puts), (1, 1));
    drop((declared, other, to));
    assert_home(pool);
}

#[test]
fn two_lanes_into_one_cache_take_turns() {
    let pool = builder(960).build().unwrap();
    let capacity = pool.sheaf_capacity() as usize;
    let [mut first, mut second, mut to] = [(); 3].map(|()| pool.cache().unwrap());
    lane(&mut first, &mut to);
    lane(&mut second, &mut to);
    let mut hand = Hand::new(pool);
    hand.take(&mut to, 10 * capacity);
    // Two sheaves stay with each freeing cache, three go over its lane.
    let by_second: BTreeSet<FrameIndex> = hand.frames()[5 * capacity..].iter().copied().collect();
    hand.give(&mut second, 5 * capacity);
    hand.give(&mut first, 5 * capacity);
    assert_eq!((pool.census().lanes, pool.counts().lane_puts), (6 * capacity as u64, 6));
    let mut turns = Vec::new();
    for _ in 0..6 {
        assert_eq!(hand.take(&mut to, capacity), capacity);
        let came = &hand.frames()[hand.len() - capacity..];
        let of_second = came.iter().filter(|frame| by_second.contains(frame)).count();
        assert!(of_second == 0 || of_second == capacity, "a sheaf comes over one lane");
        turns.push(of_second > 0);
    }
    assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
    assert_eq!((pool.census().lanes, pool.counts().lane_gets), (0, 6));
    hand.give_all(&mut to);
    drop((first, second, to));
    assert_home(pool);
}

#[test]
fn a_lane_without_room_leaves_the_sheaf_to_the_barn() {
    let pool = builder(960).build().unwrap();
    let capacity = pool.sheaf_capacity() as usize;
    let (mut from, mut to) = (pool.cache().unwrap(), pool.cache().unwrap());
    lane(&mut from, &mut to);
    let mut hand = Hand::new(pool);
    hand.take(&mut to, 9 * capacity);
    hand.give_all(&mut from);
    let (counts, census) = (pool.counts(), pool.census());
    assert_eq!((counts.lane_puts, counts.barn_puts), (4, 3), "four in the lane, two in the cache");
    assert_eq!(census.lanes, pool.plan().parked_frames(0, 1));
    drop((from, to));
    assert_home(pool);
}

#[test]
fn frames_of_another_zone_go_home_over_a_lane() {
    let pool = builder(2048).zones(2).build().unwrap();
    let capacity = pool.sheaf_capacity() as usize;
    let (mut from, mut to) = (pool.cache_in(1).unwrap(), pool.cache_in(0).unwrap());
    lane(&mut from, &mut to);
    let mut hand = Hand::new(pool);
    hand.take(&mut to, 4 * capacity);
    let before = pool.frames_in_barn(0);
    hand.give(&mut from, 3 * capacity + 1);
    let counts = pool.counts();
    assert_eq!((counts.lane_puts, counts.barn_puts), (3, 0));
    assert_eq!(counts.foreign, 3 * capacity as u64 + 1);
    assert_eq!(hand.take(&mut to, 3 * capacity), 3 * capacity);
    assert_eq!((pool.counts().lane_gets, pool.frames_in_barn(0)), (3, before));
    assert!(hand.is_of_zone(0));
    // Frames of its own zone don't go over that lane.
    let mut own = Hand::new(pool);
    own.take(&mut from, 4 * capacity);
    own.give_all(&mut from);
    assert_eq!((pool.counts().lane_puts, pool.census().lanes), (3, 0));
    hand.give_all(&mut to);
    drop((from, to));
    assert_home(pool);
}

#[test]
fn a_lane_that_comes_and_goes_under_two_threads_loses_no_frame() {
    let pool = builder(4096).zones(2).lanes(2).build().unwrap();
    let stop = AtomicBool::new(false);
    // Both free what the other allocates; of the lanes, one leads to another zone.
    let (there, from_here) = mpsc::sync_channel::<Hand>(8);
    let (here, from_there) = mpsc::sync_channel::<Hand>(8);
    let (near, far) = (pool.cache_in(0).unwrap(), pool.cache_in(1).unwrap());
    let ids = [near.id(), far.id()];
    let work = |mut cache: PoolCache, send: mpsc::SyncSender<Hand>, receive: mpsc::Receiver<Hand>| {
        let mut want = 1;
        while !stop.load(Ordering::Relaxed) {
            want = (want + 31) % 150;
            let mut hand = Hand::new(pool);
            hand.take(&mut cache, want);
            if let Err(mpsc::TrySendError::Full(mut hand) | mpsc::TrySendError::Disconnected(mut hand)) =
                send.try_send(hand)
            {
                hand.give_all(&mut cache);
            }
            for mut hand in receive.try_iter() {
                hand.give_all(&mut cache);
            }
            cache.boundary();
        }
        drop(send);
        for mut hand in receive {
            hand.give_all(&mut cache);
        }
    };
    let mut opened = 0;
    thread::scope(|scope| {
        scope.spawn(|| work(near, there, from_there));
        scope.spawn(|| work(far, here, from_here));
        while opened < 2000 {
            let lanes: Vec<_> =
                [[0, 1], [1, 0]].map(|[from, to]| pool.lane(ids[from], ids[to]).unwrap()).into();
            opened += lanes.len() as u32;
            thread::sleep(A_MOMENT * (opened % 3));
            lanes.iter().copied().for_each(Lane::close);
            while !lanes.iter().all(Lane::is_over) {
                thread::sleep(A_MOMENT);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let counts = pool.counts();
    assert!(counts.lane_puts > 0 && counts.lane_in == counts.lane_out, "{counts:?}");
    assert_home(pool);
}

/// A pool with a lane between two caches, the second of which has taken six sheaves of frames.
fn with_frames_in_hand() -> (&'static Mempool, Lane, PoolCache, PoolCache, Hand) {
    let pool = builder(960).lanes(1).build().unwrap();
    let (mut from, mut to) = (pool.cache().unwrap(), pool.cache().unwrap());
    let lane = lane(&mut from, &mut to);
    let mut hand = Hand::new(pool);
    hand.take(&mut to, 6 * pool.sheaf_capacity() as usize);
    (pool, lane, from, to, hand)
}

/// Drops one of two caches and returns the other.
fn leave([from, to]: [PoolCache; 2], is_freeing_end_first: bool) -> PoolCache {
    if is_freeing_end_first { to } else { from }
}

#[test]
fn a_cache_that_leaves_takes_no_frame_of_its_lanes_along() {
    for is_freeing_end_first in [true, false] {
        let (pool, lane, mut from, mut to, mut hand) = with_frames_in_hand();
        let capacity = pool.sheaf_capacity() as usize;
        hand.give(&mut from, 5 * capacity);
        hand.take(&mut to, 1); // The lane's sheaf is being drained.
        assert_eq!((pool.census().lanes, pool.counts().lane_gets), (2 * capacity as u64, 1));
        hand.give_all(&mut to);
        let left = leave([from, to], is_freeing_end_first);
        assert!(!lane.is_over() && pool.census().adds_up());
        drop(left);
        assert!(lane.is_over());
        assert_home(pool);
    }
}

#[test]
fn a_lane_ends_soon_after_its_first_cache_has_left() {
    for is_freeing_end_first in [true, false] {
        let (pool, lane, mut from, to, mut hand) = with_frames_in_hand();
        hand.give(&mut from, 4 * pool.sheaf_capacity() as usize);
        let mut left = leave([from, to], is_freeing_end_first);
        left.boundary();
        hand.give_all(&mut left);
        assert!(lane.is_over(), "the freeing end left first: {is_freeing_end_first}");
        assert_eq!(pool.census().lanes, 0);
        drop(left);
        assert_home(pool);
    }
}

#[test]
fn a_lane_is_over_when_both_have_let_go_the_freeing_end_first() {
    let pool = builder(960).lanes(1).build().unwrap();
    let (mut from, mut to) = (pool.cache().unwrap(), pool.cache().unwrap());
    let old = lane(&mut from, &mut to);
    assert!(!old.is_over());
    old.close();
    to.boundary();
    assert!(!old.is_over(), "the freeing end may still put sheaves in");
    from.boundary();
    assert!(!old.is_over(), "the allocating end holds on");
    assert!(pool.lane(from.id(), to.id()).is_err());
    to.boundary();
    assert!(old.is_over());

    // The handle of a lane that is over can't close the one that has its number now.
    let new = lane(&mut from, &mut to);
    old.close();
    from.boundary();
    to.boundary();
    assert!(old.is_over() && !new.is_over());
    let mut hand = Hand::new(pool);
    hand.take(&mut to, 240);
    hand.give_all(&mut from);
    assert_eq!(pool.counts().lane_puts, 2);
    drop((from, to));
    assert!(new.is_over());
    assert_home(pool);
}

#[test]
fn a_lane_that_closes_while_its_sheaf_is_drained_keeps_each_frame() {
    let pool = builder(960).lanes(1).build().unwrap();
    let (mut from, mut to) = (pool.cache().unwrap(), pool.cache().unwrap());
    let lane = lane(&mut from, &mut to);
    let mut hand = Hand::new(pool);
    hand.take(&mut to, 240);
    hand.give_all(&mut from);
    hand.take(&mut to, 25);
    lane.close();
    from.boundary();
    to.boundary();
    assert!(lane.is_over());
    let census = pool.census();
    assert_eq!((census.lanes, census.caches, census.in_flight), (0, 35 + 120, 25));
    // The number is used by others, while the frames of the drained sheaf are here.
    let (mut others, mut another) = (pool.cache().unwrap(), pool.cache().unwrap());
    counting::lane(&mut others, &mut another);
    let mut theirs = Hand::new(pool);
    theirs.take(&mut another, 240);
    theirs.give_all(&mut others);
    assert_eq!(hand.take(&mut to, 35), 35);
    let distinct: BTreeSet<_> = hand.frames().iter().collect();
    assert_eq!(distinct.len(), 60);
    hand.give_all(&mut to);
    drop((from, to, others, another));
    assert_home(pool);
}

#[test]
fn lanes_that_are_not_possible_are_refused_with_what_is() {
    let pool = builder(960).caches(20).lanes(18).build().unwrap();
    let mut caches: Vec<PoolCache> = (0..20).map(|_| pool.cache().unwrap()).collect();
    let refused = |from, to| pool.lane(from, to).unwrap_err().to_string();
    let of_none = "a lane leads from one pool cache to another of the same pool, and both must be in use";
    let (gone, first) = (caches.pop().unwrap().id(), caches[0].id());
    for (from, to) in [(first, first), (first, gone), (gone, first)] {
        assert!(refused(from, to).contains(of_none));
    }
    // The slot has a new cache; the name of the old one is no name for it.
    caches.push(pool.cache().unwrap());
    assert!(refused(gone, first).contains(of_none) && refused(first, gone).contains(of_none));

    // A cache of another pool has a slot of the same number.
    let elsewhere = builder(64).build().unwrap();
    let (other, stranger) = (elsewhere.cache().unwrap(), elsewhere.cache().unwrap().id());
    assert!(
        refused(first, other.id()).contains(of_none) && refused(other.id(), caches[1].id()).contains(of_none)
    );
    assert!(refused(stranger, first).contains(of_none));
    drop(other);
    assert_home(elsewhere);

    let lanes: Vec<_> = (1..=16).map(|to| pool.lane(first, caches[to].id()).unwrap()).collect();
    let text = refused(first, caches[17].id());
    assert!(text.contains("16 lanes from others and 16 to others, and one of these has"), "{text}");
    pool.lane(caches[17].id(), first).unwrap();
    pool.lane(caches[18].id(), first).unwrap();
    let text = refused(caches[17].id(), caches[18].id());
    assert!(text.contains("all 18 lanes are in use") && text.contains("lanes(19)"), "{text}");

    lanes[3].close();
    caches.iter_mut().for_each(PoolCache::boundary);
    caches.iter_mut().for_each(PoolCache::boundary);
    assert!(pool.lane(caches[17].id(), caches[18].id()).is_ok(), "its number is free again");
    drop(caches);
    assert_home(pool);
    let none = builder(64).lanes(0).build().unwrap();
    let (from, to) = (none.cache().unwrap(), none.cache().unwrap());
    assert!(none.lane(from.id(), to.id()).unwrap_err().to_string().contains("all 0 lanes are in use"));
    drop((from, to));
    assert_home(none);
}
