//! Probes: functions that are exactly one operation of the data path each, to be looked at as
//! machine code.
//!
//! ```text
//!   case_* --loop--> probe_* --inlined--> the operation
//! ```
//! Usage: probes CALLS. `tests/disassembly` reads the code of the probes; `tests/instructions.rs`
//! runs this under callgrind and counts the instructions of each call that a case makes. Every call
//! of a case finds the same state: the pool cache has what is asked for in its loaded sheaf, and
//! both sides of each ring have caught up, which is the dearest that a ring can be.
//!
//! The probes have Rust's own calling convention, as the operations have where they are not inlined;
//! C's would add what it takes to pass a frame in registers.

use std::{
    hint::black_box,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use sheafio_core::Queue;
use sheafio_drivers::sim::{Hand, HandQueue, by_hand};
use sheafio_mempool::{Burst, Frame, FrameIndex, Hugepages, Mempool, PoolCache, probe::LaneProbe};

/// Packets in a full burst.
const BURST: usize = 32;
/// Slots of each ring: two bursts, so that a side looks at the other's index every second time.
const RING: u32 = 2 * BURST as u32;
/// Turns until the rings have settled.
const SETTLING_TURNS: u32 = 16;
/// Bytes of an arriving packet.
const PACKET_BYTES: u32 = 64;

/// The C library's memcpy takes its way by how its arguments are aligned.
#[repr(align(64))]
struct Aligned<T>(T);

/// A probe and a case for each number of frames: `take`, `give`, `alloc_burst`, and `free_burst` again.
macro_rules! pool_probes {
    ($($count:literal: $take:ident $give:ident $alloc:ident $case:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "Rust" fn $take(cache: &mut PoolCache, out: &mut [FrameIndex; $count]) -> usize {
            cache.take(out)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "Rust" fn $give(cache: &mut PoolCache, indices: &[FrameIndex; $count]) {
            // SAFETY: the case took these indices just before, and gives them once.
            unsafe { cache.give(indices) }
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "Rust" fn $alloc(cache: &mut PoolCache, burst: &mut Burst) -> usize {
            cache.alloc_burst(burst, $count)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "Rust" fn $case(calls: u32, cache: &mut PoolCache, burst: &mut Burst) {
            burst.set_limit($count);
            let mut indices = Aligned([FrameIndex(0); $count]);
            for _ in 0..calls {
                assert_eq!(black_box($take as fn(_, _) -> usize)(&mut *cache, &mut indices.0), $count);
                black_box($give as fn(_, _))(&mut *cache, &indices.0);
                assert_eq!(black_box($alloc as fn(_, _) -> usize)(&mut *cache, &mut *burst), $count);
                assert_eq!(black_box(probe_free_burst as fn(_, _) -> usize)(&mut *cache, &mut *burst), $count);
            }
        }
    )*};
}

pool_probes! {
    8: probe_take_8 probe_give_8 probe_alloc_burst_8 case_8;
    16: probe_take_16 probe_give_16 probe_alloc_burst_16 case_16;
    32: probe_take_32 probe_give_32 probe_alloc_burst_32 case_32;
    64: probe_take_64 probe_give_64 probe_alloc_burst_64 case_64;
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_free_burst(cache: &mut PoolCache, burst: &mut Burst) -> usize {
    cache.free_burst(burst)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_take_1(cache: &mut PoolCache, out: &mut [FrameIndex; 1]) -> usize {
    cache.take(out)
}

#[unsafe(no_mangle)]
#[inline(never)]
#[allow(clippy::trivially_copy_pass_by_ref, reason = "as the probes of more indices")]
extern "Rust" fn probe_give_1(cache: &mut PoolCache, indices: &[FrameIndex; 1]) {
    // SAFETY: the case took this index just before, and gives it once.
    unsafe { cache.give(indices) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_alloc(cache: &mut PoolCache) -> Option<Frame> {
    cache.alloc()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_free(cache: &mut PoolCache, frame: Frame) {
    cache.free(frame);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn case_1(calls: u32, cache: &mut PoolCache) {
    let mut index = [FrameIndex(0)];
    for _ in 0..calls {
        assert_eq!(black_box(probe_take_1 as fn(_, _) -> usize)(&mut *cache, &mut index), 1);
        black_box(probe_give_1 as fn(_, _))(&mut *cache, &index);
        let frame = black_box(probe_alloc as fn(_) -> Option<_>)(&mut *cache).expect("the pool has frames");
        black_box(probe_free as fn(_, _))(&mut *cache, frame);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_boundary(cache: &mut PoolCache) {
    cache.boundary();
}

/// A pool with two zones: each frame that is given is looked at.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn case_zoned(calls: u32, cache: &mut PoolCache, burst: &mut Burst) {
    let mut one = [FrameIndex(0)];
    let mut indices = Aligned([FrameIndex(0); 32]);
    burst.set_limit(BURST);
    for _ in 0..calls {
        assert_eq!(black_box(probe_take_1 as fn(_, _) -> usize)(&mut *cache, &mut one), 1);
        black_box(probe_give_1 as fn(_, _))(&mut *cache, &one);
        let frame = black_box(probe_alloc as fn(_) -> Option<_>)(&mut *cache).expect("the pool has frames");
        black_box(probe_free as fn(_, _))(&mut *cache, frame);
        assert_eq!(black_box(probe_take_32 as fn(_, _) -> usize)(&mut *cache, &mut indices.0), 32);
        black_box(probe_give_32 as fn(_, _))(&mut *cache, &indices.0);
        assert_eq!(black_box(probe_alloc_burst_32 as fn(_, _) -> usize)(&mut *cache, &mut *burst), 32);
        assert_eq!(black_box(probe_free_burst as fn(_, _) -> usize)(&mut *cache, &mut *burst), 32);
        black_box(probe_boundary as fn(_))(&mut *cache);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_lane_put(lane: &mut LaneProbe) -> bool {
    lane.put()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_lane_get(lane: &mut LaneProbe) -> u32 {
    lane.get()
}

/// A whole sheaf over a lane.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn case_sheaf(calls: u32, lane: &mut LaneProbe) {
    for _ in 0..calls {
        assert!(black_box(probe_lane_put as fn(_) -> bool)(&mut *lane));
        assert!(black_box(probe_lane_get as fn(_) -> u32)(&mut *lane) > 0);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_rx_burst(queue: &mut HandQueue, cache: &mut PoolCache, burst: &mut Burst) -> usize {
    queue.rx_burst(cache, burst)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_tx_burst(queue: &mut HandQueue, cache: &mut PoolCache, burst: &mut Burst) -> usize {
    queue.tx_burst(cache, burst)
}

/// One turn of a forwarding loop. Returns how many packets it moved.
#[inline(always)]
fn turn(queue: &mut HandQueue, cache: &mut PoolCache, burst: &mut Burst) -> usize {
    let received = black_box(probe_rx_burst as fn(_, _, _) -> usize)(&mut *queue, &mut *cache, &mut *burst);
    let sent = black_box(probe_tx_burst as fn(_, _, _) -> usize)(&mut *queue, &mut *cache, &mut *burst);
    assert_eq!(received, sent);
    sent
}

/// A turn in which 32 packets arrive and those of the last turn are complete.
#[inline(always)]
fn full_turn(queue: &mut HandQueue, hand: &mut Hand, cache: &mut PoolCache, burst: &mut Burst) {
    hand.deliver(BURST, PACKET_BYTES);
    assert_eq!(turn(queue, cache, burst), BURST);
    hand.complete();
}

/// Bursts that come full: each turn refills, receives, reclaims and sends 32 frames.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn case_full(
    calls: u32,
    queue: &mut HandQueue,
    hand: &mut Hand,
    cache: &mut PoolCache,
    burst: &mut Burst,
) {
    for _ in 0..calls {
        full_turn(queue, hand, cache, burst);
    }
}

/// Bursts that come empty, with nothing on its way.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn case_idle(calls: u32, queue: &mut HandQueue, cache: &mut PoolCache, burst: &mut Burst) {
    for _ in 0..calls {
        assert_eq!(turn(queue, cache, burst), 0);
    }
}

/// What the disassembly must be found guilty of: an atomic read-modify-write.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_bad_locked(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed)
}

/// The same in an exchange, which x86 locks without a prefix.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_bad_exchange(counter: &AtomicU64) -> u64 {
    counter.swap(1, Ordering::Relaxed)
}

/// A full fence.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_bad_fence(counter: &AtomicU64) -> u64 {
    counter.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    counter.load(Ordering::Relaxed)
}

/// A compare-and-swap, tried until it succeeds.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_bad_compare(counter: &AtomicU64) -> u64 {
    counter.fetch_max(7, Ordering::Relaxed)
}

/// An atomic read-modify-write two calls away.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_bad_called(counter: &AtomicU64) -> u64 {
    middle(counter) + 1
}

#[inline(never)]
fn middle(counter: &AtomicU64) -> u64 {
    // The value is used, so that this is a call and not a jump.
    probe_bad_locked(counter) + black_box(1)
}

/// A call through a pointer: nobody can say what it runs.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn probe_bad_pointer(counter: &AtomicU64, run: fn(&AtomicU64) -> u64) -> u64 {
    run(counter) + 1
}

fn run_the_bad(counter: &AtomicU64) {
    for bad in [probe_bad_locked, probe_bad_exchange, probe_bad_fence, probe_bad_compare, probe_bad_called] {
        black_box(bad as fn(&AtomicU64) -> u64)(counter);
        black_box(probe_bad_pointer as fn(_, fn(&AtomicU64) -> u64) -> u64)(counter, bad);
    }
}

fn main() -> ExitCode {
    let Some(calls) = std::env::args().nth(1).and_then(|calls| calls.parse().ok()) else {
        eprintln!("usage: probes CALLS");
        return ExitCode::from(2);
    };
    let pool = Mempool::builder().frames(4096).hugepages(Hugepages::Off).cores(1).build().expect("a pool");
    let (mut cache, mut burst) = (pool.cache().expect("a cache"), Burst::new());
    // Loads a full sheaf, which all cases of the pool take from and fill up again.
    let frame = cache.alloc().expect("the pool has frames");
    cache.free(frame);
    case_1(calls, &mut cache);
    case_8(calls, &mut cache, &mut burst);
    case_16(calls, &mut cache, &mut burst);
    case_32(calls, &mut cache, &mut burst);
    case_64(calls, &mut cache, &mut burst);

    let zoned = Mempool::builder().frames(4096).zones(2).hugepages(Hugepages::Off).cores(1).build();
    let zoned = zoned.expect("a pool of two zones");
    let mut second = zoned.cache_in(1).expect("a cache");
    let frame = second.alloc().expect("the pool has frames");
    second.free(frame);
    case_zoned(calls, &mut second, &mut burst);
    drop(second);
    assert_eq!(zoned.audit().expect("no cache is joined").home, 4096);

    let mut lane = LaneProbe::new(pool);
    assert!(lane.put() && lane.get() > 0); // The first search begins elsewhere.
    case_sheaf(calls, &mut lane);
    drop(lane);

    burst.set_limit(BURST);
    let (mut queue, mut hand) = by_hand(pool, &mut cache, RING);
    // From then on there are packets to reclaim, a burst is missing in the fill ring, and no kick is
    // postponed: every second turn finds the same.
    for _ in 0..SETTLING_TURNS {
        full_turn(&mut queue, &mut hand, &mut cache, &mut burst);
    }
    case_full(calls, &mut queue, &mut hand, &mut cache, &mut burst);
    queue.close(&mut cache);

    let (mut queue, _) = by_hand(pool, &mut cache, RING);
    case_idle(calls, &mut queue, &mut cache, &mut burst);
    queue.close(&mut cache);
    drop(cache);
    assert_eq!(pool.audit().expect("no cache is joined").home, 4096);
    run_the_bad(&AtomicU64::new(0));
    ExitCode::SUCCESS
}
