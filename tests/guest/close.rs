//! What a driver without copies still has when its queue closes: it comes home, and nobody writes to it any more.
//!
//! Each frame that came home is filled with a pattern while the peer goes on sending as fast as it can. A driver or NIC
//! that had not let go of one would receive a packet into it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use sheafio_core::{DropReason, Queue};
use sheafio_drivers::af_xdp::{self, AfXdpQueue, Config, CopyMode, QueueSet};
use sheafio_mempool::{Burst, Frame, Hugepages, Mempool, PoolCache};
use sheafio_tests::{datagram, socket};

use crate::{
    can_do_without_copies,
    nics::{LEFT, Nics, RIGHT},
    zero_copy_drivers,
};

/// The longest that packets may take to come: far above what they take.
const PATIENCE: Duration = Duration::from_mins(1);
const FRAMES: u64 = 4096;
/// Slots of our rings: far more than those of the NICs, 256, so that a driver does not run out of frames.
const RING: u32 = 1024;
/// The port of packets that are ours. The driver uses the frames of all others again, unseen by us.
const OURS: u16 = 9;
const OTHERS: u16 = 10;

/// Rounds of what is repeated: `tests/guest/run --all` has more of them, and more still on demand.
pub(crate) fn rounds() -> u32 {
    std::env::var("SHEAFIO_CLOSE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}

/// Runs `work` while the left peer sends all the time, from many ports, to ours and to others.
fn under_flood<T>(nics: &Nics, work: impl FnOnce() -> T) -> T {
    nics.send_to_port();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let sockets: Vec<_> = (0..16).map(|_| socket(&nics.left, LEFT)).collect();
            let packet = datagram(1, 1000);
            while !stop.load(Ordering::Relaxed) {
                for socket in &sockets {
                    // While the link is down, sending fails.
                    let _ = socket.send_to(&packet, (RIGHT, OURS));
                    let _ = socket.send_to(&packet, (RIGHT, OTHERS));
                }
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        flood.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn pool() -> &'static Mempool {
    Mempool::builder().frames(FRAMES).frame_size(4096).hugepages(Hugepages::Off).build().unwrap()
}

fn config(queues: u32, ring: u32) -> Config {
    Config {
        queues: QueueSet::range(0, queues).unwrap(),
        copy: CopyMode::ZeroCopy,
        ring,
        steer: format!("udp:{OURS}").parse().unwrap(),
        ..Config::default()
    }
}

/// Receives so many packets on each queue.
fn receive(queues: &mut [&mut AfXdpQueue], cache: &mut PoolCache, packets: usize) {
    let (start, mut burst, mut received) = (Instant::now(), Burst::new(), vec![0; queues.len()]);
    while received.iter().any(|received| *received < packets) {
        assert!(start.elapsed() < PATIENCE, "{received:?} of {packets} packets came");
        for (queue, received) in queues.iter_mut().zip(&mut received) {
            *received += queue.rx_burst(cache, &mut burst);
            cache.free_burst(&mut burst);
        }
        cache.boundary();
    }
}

/// All frames that can be had, filled with what tells each from all others.
fn painted(cache: &mut PoolCache) -> Vec<Frame> {
    let mut frames: Vec<Frame> = std::iter::from_fn(|| cache.alloc()).collect();
    for (number, frame) in (0..).zip(&mut frames) {
        let room = frame.tailroom();
        let packet = datagram(number, room);
        frame.append(room).unwrap().copy_from_slice(&packet);
    }
    frames
}

/// None has changed since; gives them back.
fn assert_unchanged(frames: Vec<Frame>, cache: &mut PoolCache) {
    for (number, frame) in (0..).zip(frames) {
        let is_same = frame[..] == datagram(number, frame.len());
        cache.free(frame);
        assert!(is_same, "someone wrote to frame {number} after it had come home");
    }
}

#[test]
fn frames_of_a_closed_zero_copy_queue_come_home_and_nobody_writes_to_them() {
    if !can_do_without_copies("frames_of_a_closed_zero_copy_queue_come_home_and_nobody_writes_to_them") {
        return;
    }
    for driver in zero_copy_drivers() {
        let nics = Nics::new(driver);
        let interface = nics.interface(1);
        under_flood(&nics, || {
            for round in 0..rounds() {
                let pool = pool();
                nics.under_test.enter(|| {
                    let mut queue =
                        af_xdp::open_with(&interface, &config(1, RING), pool).unwrap().queue(0).unwrap();
                    let mut cache = pool.cache().unwrap();
                    receive(&mut [&mut queue], &mut cache, 300);
                    let start = Instant::now();
                    let held = queue.frames_held();
                    let closed = queue.close(&mut cache);
                    println!("{driver}, round {round}: closed in {:?}: {closed:?}", start.elapsed());
                    assert_eq!((closed.returned, closed.retired), (held, 0));
                    let frames = painted(&mut cache);
                    assert_eq!(frames.len() as u64, FRAMES);
                    // The kernel's own reception, in other memory.
                    let before = nics.received(1);
                    nics.wait_until(|| nics.received(1) >= before + 500);
                    assert_unchanged(frames, &mut cache);
                });
                assert_eq!(pool.audit().unwrap().home, FRAMES);
            }
        });
    }
}

/// The program stays, and the other queue goes on: only this queue of the NIC is stopped.
#[test]
fn frames_of_one_closed_queue_come_home_while_the_other_one_receives() {
    if !can_do_without_copies("frames_of_one_closed_queue_come_home_while_the_other_one_receives") {
        return;
    }
    let nics = Nics::new("igb");
    let interface = nics.interface(1);
    assert!(nics.queues(2), "igb has a queue for each CPU");
    nics.under_test.run("ethtool", &["-N", &interface, "rx-flow-hash", "udp4", "sdfn"]);
    nics.wait_for_links();
    under_flood(&nics, || {
        for round in 0..rounds() {
            let pool = pool();
            nics.under_test.enter(|| {
                let mut port = af_xdp::open_with(&interface, &config(2, RING), pool).unwrap();
                let mut queues = [port.queue(0).unwrap(), port.queue(1).unwrap()];
                let mut cache = pool.cache().unwrap();
                // Each of them first in its turn.
                let [first, second] = &mut queues;
                receive(&mut [first, second], &mut cache, 300);
                let (closing, other) = if round % 2 == 0 { (first, second) } else { (second, first) };
                let held = closing.frames_held();
                let closed = closing.close(&mut cache);
                assert_eq!((closed.returned, closed.retired), (held, 0), "round {round}");
                let frames = painted(&mut cache);
                assert!(frames.len() as u64 >= FRAMES - u64::from(RING));
                receive(&mut [other], &mut cache, 500);
                assert_unchanged(frames, &mut cache);
                let held = other.frames_held();
                let closed = other.close(&mut cache);
                assert_eq!((closed.returned, closed.retired), (held, 0), "round {round}");
            });
            assert_eq!(pool.audit().unwrap().home, FRAMES);
        }
    });
}

/// igb that has run out of frames goes on with what it has received before, and gives it out once more. Each frame has
/// one owner all the same.
#[test]
fn a_frame_that_igb_gives_out_twice_has_one_owner() {
    if !can_do_without_copies("a_frame_that_igb_gives_out_twice_has_one_owner") {
        return;
    }
    let nics = Nics::new("igb");
    let pool = pool();
    under_flood(&nics, || {
        nics.under_test.enter(|| {
            // As many frames as its own ring has slots, and a slow receiver.
            let mut port = af_xdp::open_with("igb1", &config(1, 256), pool).unwrap();
            assert!(port.warnings().iter().any(|warning| warning.contains("twice")), "{:?}", port.warnings());
            let (mut queue, mut cache) = (port.queue(0).unwrap(), pool.cache().unwrap());
            let (start, mut burst) = (Instant::now(), Burst::new());
            let doubles = |queue: &AfXdpQueue| queue.counters().totals().drops(DropReason::RxInvalid);
            // For a while after the first one too.
            while doubles(&queue) == 0 || start.elapsed() < Duration::from_secs(5) {
                assert!(start.elapsed() < PATIENCE, "no frame came twice: {:?}", queue.counters().totals());
                queue.rx_burst(&mut cache, &mut burst);
                cache.free_burst(&mut burst); // Panics on a frame that is free already.
                cache.boundary();
                thread::sleep(Duration::from_millis(3));
            }
            assert_eq!(queue.close(&mut cache).retired, 0);
        });
    });
    let audit = pool.audit().unwrap();
    assert_eq!((audit.home, audit.twice), (FRAMES, vec![]));
}
