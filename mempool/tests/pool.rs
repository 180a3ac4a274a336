//! The pool through its public API: legal values, conservation, and who may free what.

use sheafio_mempool::{Burst, Frame, FrameIndex, Hugepages, Mempool, MempoolBuilder, Pages, PoolError};

fn builder(frames: u64) -> MempoolBuilder {
    Mempool::builder().frames(frames).hugepages(Hugepages::Off).caches(4).cores(1)
}

fn pool(frames: u64) -> &'static Mempool {
    builder(frames).build().unwrap()
}

fn assert_home(pool: &Mempool) {
    let census = pool.census();
    assert!(census.adds_up(), "{census:?}");
    let audit = pool.audit().expect("all caches have left");
    assert_eq!((audit.home, audit.missing, audit.twice), (u64::from(pool.frames()), vec![], vec![]));
}

#[test]
fn bad_values_are_refused_with_the_legal_ones() {
    let refusals = [
        (builder(0), "frames=0 is not possible; allowed: 1 to"),
        (builder(1 << 31), "frames=2147483648 is not possible; allowed: 1 to"),
        (builder(64).frame_size(1000), "frame size 1000 bytes is not possible; allowed: 2048 or 4096"),
        (builder(64).frame_size(1024), "allowed: 2048 or 4096"),
        (builder(64).frame_size(2304), "allowed: 2048 or 4096"),
        (builder(64).frame_size(8192), "allowed: 2048 or 4096"),
        (builder(64).headroom(1729), "allowed: 0 to 1728 bytes"),
        (builder(64).frame_size(4096).headroom(9999), "allowed: 0 to 3776 bytes"),
        (builder(1 << 30).frame_size(4096), "this machine has"),
        (builder(64).zones(0), "zones=0 is not possible"),
        (builder(64).zones(65), "zones=65 is not possible; allowed: 1 to 64"),
        (builder(64).lanes(4097), "lanes=4097 is not possible; allowed: 0 to 4096"),
        (builder(64).caches(0), "caches=0 is not possible; allowed: 1 to 4096"),
    ];
    for (builder, expected) in refusals {
        let message =
            builder.clone().build().err().unwrap_or_else(|| panic!("{builder:?} was built")).to_string();
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains('\n'));
    }
    assert!(builder(64).headroom(1728).build().is_ok());
}

#[test]
fn required_hugepages_that_are_not_there_are_named() {
    let frames = 1 << 18;
    match Mempool::builder().frames(frames).hugepages(Hugepages::Require).build() {
        Err(error @ PoolError::Hugepages { pages: 256, .. }) => {
            assert!(error.to_string().contains("echo 256 > /proc/sys/vm/nr_hugepages"), "{error}");
        }
        Err(error) => panic!("{error}"),
        Ok(pool) => assert_eq!(pool.pages(), Pages::Huge), // This machine has 512 MiB of them.
    }
    let auto = Mempool::builder().frames(frames).build().unwrap();
    assert_eq!(auto.pages() == Pages::Base, auto.warnings().iter().any(|text| text.contains("nr_hugepages")));
}

#[test]
fn one_two_and_all_frames_come_and_go_with_their_content() {
    let pool = pool(1000);
    let mut cache = pool.cache().unwrap();
    let mut all: Vec<Frame> = Vec::new();
    while let Some(mut frame) = cache.alloc() {
        let number = all.len() as u32;
        frame.append(4).unwrap().copy_from_slice(&number.to_le_bytes());
        all.push(frame);
    }
    assert_eq!(all.len(), 1000, "every frame can be allocated, and one more is refused");
    assert_eq!(pool.census().in_flight, 1000);
    for (number, frame) in all.iter().enumerate() {
        assert_eq!(frame[..], (number as u32).to_le_bytes());
    }
    for frame in all {
        cache.free(frame);
    }
    assert_eq!(pool.census().free(), 1000);
    drop(cache);
    assert_home(pool);
}

#[test]
fn a_frame_grows_and_shrinks_at_both_ends() {
    let pool = builder(64).headroom(32).build().unwrap();
    let mut cache = pool.cache().unwrap();
    let mut frame = cache.alloc().unwrap();
    assert_eq!((frame.len(), frame.headroom(), frame.tailroom()), (0, 288, 2048 - 288));
    frame.append(10).unwrap().copy_from_slice(b"0123456789");
    frame.prepend(2).unwrap().copy_from_slice(b"ab");
    assert_eq!(&frame[..], b"ab0123456789");
    frame.trim_front(3);
    frame.trim_back(4);
    assert_eq!(&frame[..], b"12345");
    assert!(frame.prepend(frame.headroom() + 1).is_none());
    assert!(frame.append(frame.tailroom() + 1).is_none());
    let room = frame.headroom();
    assert!(frame.prepend(room).is_some());
    let room = frame.tailroom();
    assert!(frame.append(room).is_some());
    assert_eq!((frame.len(), frame.headroom(), frame.tailroom()), (2048, 0, 0));
    assert!(!frame.continues());
    frame.set_continues(true);
    assert!(frame.continues());
    cache.free(frame);
}

#[test]
fn retain_keeps_order_and_frees_the_rest() {
    let pool = pool(256);
    let mut cache = pool.cache().unwrap();
    let mut burst = Burst::with_limit(20);
    assert_eq!(cache.alloc_burst(&mut burst, 100), 20);
    for (number, frame) in burst.iter_mut().enumerate() {
        frame.append(1).unwrap()[0] = number as u8;
    }
    burst.retain(&mut cache, |frame| frame[0] % 3 == 0);
    assert_eq!(burst.iter().map(|frame| frame[0]).collect::<Vec<_>>(), [0, 3, 6, 9, 12, 15, 18]);
    assert_eq!(pool.census().in_flight, 7);
    cache.free_burst(&mut burst);
    drop(cache);
    assert_home(pool);
}

#[test]
fn a_plain_thread_has_a_cache_like_any_lcore() {
    let pool = pool(4096);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut cache = pool.cache().unwrap();
                let mut burst = Burst::new();
                for _ in 0..10_000 {
                    let taken = cache.alloc_burst(&mut burst, 32);
                    assert_eq!(cache.free_burst(&mut burst), taken);
                }
            });
        }
    });
    assert_home(pool);
}

#[test]
fn a_cache_too_many_is_refused_and_a_slot_can_be_used_again() {
    let pool = pool(256);
    for _ in 0..3 {
        let caches: Vec<_> = (0..4).map(|_| pool.cache().unwrap()).collect();
        let message = pool.cache().unwrap_err().to_string();
        assert!(message.contains("all 4 pool caches are in use"), "{message}");
        assert!(pool.audit().is_none(), "an audit needs all caches to have left");
        drop(caches);
    }
    assert_home(pool);
}

#[test]
fn frames_of_another_pool_are_refused() {
    let (ours, theirs) = (pool(64), pool(64));
    let mut cache = ours.cache().unwrap();
    let frame = theirs.cache().unwrap().alloc().unwrap();
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cache.free(frame)));
    assert!(refused.is_err());
    let mut burst = Burst::new();
    burst.push(theirs.cache().unwrap().alloc().unwrap()).unwrap();
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cache.free_burst(&mut burst)));
    assert!(refused.is_err());
    theirs.cache().unwrap().free_burst(&mut burst);
    drop(cache);
    assert_home(ours);
}

#[test]
#[cfg(debug_assertions)]
fn a_dropped_frame_panics_and_names_itself_in_debug_builds() {
    let pool = pool(64);
    let mut cache = pool.cache().unwrap();
    let index = {
        let mut index = [FrameIndex(0)];
        assert_eq!(cache.take(&mut index), 1);
        // SAFETY: taken just above, given once.
        unsafe { cache.give(&index) };
        index[0]
    };
    let frame = cache.alloc().unwrap();
    let panic = std::panic::catch_unwind(move || drop(frame)).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains(&format!("frame {index} of 64 was dropped")), "{message}");
}

#[test]
fn an_audit_names_the_frames_that_are_lost() {
    let pool = pool(100);
    let mut cache = pool.cache().unwrap();
    let mut lost = [FrameIndex(0); 2];
    assert_eq!(cache.take(&mut lost), 2);
    drop(cache);
    let audit = pool.audit().unwrap();
    assert_eq!((audit.home, audit.missing.len()), (98, 2));
    assert!(lost.iter().all(|index| audit.missing.contains(index)));
    assert_eq!(pool.census().in_flight, 2);
}

#[test]
fn retired_frames_are_counted_and_not_in_flight() {
    let pool = pool(100);
    let mut cache = pool.cache().unwrap();
    let mut kept = [FrameIndex(0); 3];
    assert_eq!(cache.take(&mut kept), 3);
    cache.retire(3);
    drop(cache);
    let census = pool.census();
    assert_eq!((census.in_flight, census.retired, census.free()), (0, 3, 97));
    assert!(census.adds_up());
}

#[test]
fn the_census_adds_up_while_cores_work() {
    let pool = pool(8192);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for step in [7, 29] {
            let stop = &stop;
            scope.spawn(move || {
                let mut cache = pool.cache().unwrap();
                let mut held = Burst::with_limit(256);
                let mut want = 1;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    want = (want + step) % 200;
                    cache.alloc_burst(&mut held, want);
                    cache.free_burst(&mut held);
                    std::thread::yield_now();
                }
            });
        }
        let settled = (0..1000).filter(|_| pool.census().adds_up()).count();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(settled > 0, "no census of 1000 added up");
    });
    assert_home(pool);
}

/// A packet that fills its frame to the end and is trimmed to nothing: the address behind it is the next frame's.
#[test]
fn a_packet_trimmed_to_nothing_stays_in_its_frame() {
    let pool = Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap();
    let mut cache = pool.cache().unwrap();
    let (mut burst, len) = (Burst::with_limit(32), pool.geometry().data_bytes() as usize);
    cache.alloc_burst(&mut burst, 32);
    for frame in burst.iter_mut() {
        let index = pool.geometry().index_of(pool.geometry().addr(frame));
        frame.append(len).unwrap().fill(1);
        assert_eq!(frame.tailroom(), 0);
        frame.trim_front(len);
        assert_eq!((frame.len(), pool.geometry().index_of(pool.geometry().addr(frame))), (0, index));
        assert!(frame.prepend(4).is_some());
    }
    cache.free_burst(&mut burst);
    drop(cache);
    let audit = pool.audit().unwrap();
    assert_eq!((audit.home, audit.twice), (64, vec![]));
}
