//! Packets that arrive: of all sizes, one, both ways at once, in several frames; poll(2); rings of all sizes.

use std::time::{Duration, Instant};

use sheafio_core::Queue;
use sheafio_drivers::af_xdp::{self, Config, Frags, Mode};
use sheafio_mempool::{Burst, Hugepages, Mempool};
use sheafio_tests::{can_make_networks, kernel_has, kernel_is_at_least};

use super::{Bench, Link, MODES, PATIENCE, all, joined, numbers, packet, packets, pool};

#[test]
fn packets_of_every_size_go_both_ways_in_frames_of_2k_and_4k() {
    if !can_make_networks("packets_of_every_size_go_both_ways_in_frames_of_2k_and_4k") {
        return;
    }
    for mode in MODES {
        for (frame_size, largest) in [(2048, 1792), (4096, 3840)] {
            let link = Link::new(largest - 14);
            let config = Config { mode, frags: Frags::No, ..Config::default() };
            // veth's own reception puts such packets into several buffers, which older kernels hand to no socket.
            if mode == Mode::Native && largest > 3520 && !kernel_is_at_least(6, 6) {
                let pool = pool().frame_size(frame_size).hugepages(Hugepages::Off).build().unwrap();
                let error = link.under_test.enter(|| af_xdp::open_with("ve0", &config, pool).map(drop));
                let error = error.expect_err("packets would be lost without a count").to_string();
                assert!(
                    error.contains("native mode") && error.contains("ip link set dev ve0 mtu"),
                    "{error}"
                );
                continue;
            }
            link.run(&config, pool().frame_size(frame_size), |bench| {
                let step = (largest as usize - 60) / 100;
                let of = |number: u32| packet(number, 60 + number as usize % 101 * step);
                for from in (0..1010).step_by(101) {
                    bench.send((from..from + 101).map(of));
                    assert_eq!(numbers(&bench.receive(101)), all(from..from + 101), "{mode:?}, {frame_size}");
                    bench.transmit((from..from + 101).map(of));
                    assert_eq!(numbers(&bench.arrived(101)), all(from..from + 101), "{mode:?}, {frame_size}");
                }
                bench.assert_no_drops();
            });
        }
    }
}

#[test]
fn a_single_packet_arrives_without_another_one_behind_it() {
    if !can_make_networks("a_single_packet_arrives_without_another_one_behind_it") {
        return;
    }
    for mode in MODES {
        let link = Link::new(1500);
        link.run(&Config { mode, ..Config::default() }, pool(), |bench| {
            bench.send([packet(1, 60)]);
            assert_eq!(numbers(&bench.receive(1)), [1]);
            let mut burst = Burst::new();
            bench.push(&mut burst, &packet(2, 60), 60);
            assert_eq!(bench.queue.tx_burst(&mut bench.cache, &mut burst), 1);
            // Nobody calls the queue again.
            let arrived = bench.peer.receive(PATIENCE).expect("it arrives");
            assert_eq!(numbers(&[arrived]), [2]);
            bench.assert_no_drops();
        });
    }
}

#[test]
fn both_directions_at_once_lose_nothing() {
    if !can_make_networks("both_directions_at_once_lose_nothing") {
        return;
    }
    for mode in MODES {
        let link = Link::new(1500);
        link.run(&Config { mode, ..Config::default() }, pool(), |bench| {
            let (mut to_us, mut to_peer) = (Vec::new(), Vec::new());
            for from in (0..4000).step_by(40) {
                for number in from..from + 40 {
                    bench.peer.send(&packet(number, 100));
                    bench.transmit([packet(number, 1400)]);
                }
                bench.sent += 40;
                to_us.extend(bench.receive(40));
                to_peer.extend(bench.arrived(40));
            }
            assert_eq!((numbers(&to_us), numbers(&to_peer)), (all(0..4000), all(0..4000)));
            bench.assert_no_drops();
        });
    }
}

#[test]
fn packets_of_9k_go_both_ways_in_several_frames() {
    let name = "packets_of_9k_go_both_ways_in_several_frames";
    if !can_make_networks(name) || !kernel_has(name, 6, 6, "packets in several frames") {
        return;
    }
    for mode in MODES {
        for (frame_size, frames_each) in [(2048, 6), (4096, 3)] {
            let link = Link::new(9000);
            let config = Config { mode, frags: Frags::Yes, ..Config::default() };
            link.run(&config, pool().frame_size(frame_size), |bench| {
                // Small ones between them, which are of one frame.
                let of = |number: u32| packet(number, if number.is_multiple_of(2) { 9014 } else { 60 });
                for from in (0..400).step_by(20) {
                    bench.send((from..from + 20).map(of));
                    assert_eq!(numbers(&bench.receive(20)), all(from..from + 20), "{mode:?}, {frame_size}");
                    bench.transmit((from..from + 20).map(of));
                    assert_eq!(numbers(&bench.arrived(20)), all(from..from + 20), "{mode:?}, {frame_size}");
                }
                bench.send([packet(0, 9014)]);
                let mut burst = Burst::new();
                assert_eq!(receive_one(bench, &mut burst), frames_each, "{mode:?}, {frame_size}");
                bench.cache.free_burst(&mut burst);
                bench.assert_no_drops();
            });
        }
    }
}

/// Receives one packet into an empty burst; returns of how many frames it is.
fn receive_one(bench: &mut Bench<'_>, burst: &mut Burst) -> usize {
    let start = Instant::now();
    while bench.queue.rx_burst(&mut bench.cache, burst) == 0 {
        assert!(start.elapsed() < PATIENCE, "nothing came");
    }
    burst.len()
}

/// The headroom that was asked for lies in front of each received packet, and what is put there is sent.
#[test]
fn the_headroom_that_was_asked_for_is_there() {
    if !can_make_networks("the_headroom_that_was_asked_for_is_there") {
        return;
    }
    for mode in MODES {
        for headroom in [0, 1, 128, 1000] {
            let link = Link::new(700);
            link.run(&Config { mode, ..Config::default() }, pool().headroom(headroom), |bench| {
                let mut burst = Burst::new();
                for number in 0..10 {
                    bench.send([packet(number, 600)]);
                    assert_eq!(receive_one(bench, &mut burst), 1);
                    let frame = burst.last_mut().unwrap();
                    // The kernel's own 256 bytes lie there too.
                    assert_eq!(frame.headroom(), 256 + headroom as usize, "{mode:?}");
                    assert_eq!(frame.headroom() + frame.len() + frame.tailroom(), 2048);
                    // A header that tells nothing of what it replaces: the packet is one of 14 bytes more.
                    assert_eq!(numbers(&[frame.to_vec()]), [number], "{mode:?}, headroom {headroom}");
                    frame.prepend(14).unwrap().copy_from_slice(&packet(number, 60)[..14]);
                    let expected = [&packet(number, 60)[..14], &packet(number, 600)[..]].concat();
                    bench.transmit_burst(&mut burst);
                    assert!(bench.arrived(1)[0] == expected, "{mode:?}, headroom {headroom}");
                }
                bench.assert_no_drops();
            });
        }
    }
}

/// What poll(2) says at once, or within some time.
fn poll(bench: &Bench<'_>, events: i16, within: Duration) -> i16 {
    let mut poll = libc::pollfd { fd: bench.queue.wait_fd().unwrap(), events, revents: 0 };
    // SAFETY: the kernel reads and writes one pollfd.
    let ready = unsafe { libc::poll(&raw mut poll, 1, within.as_millis() as i32) };
    assert_eq!(ready > 0, poll.revents != 0);
    poll.revents
}

const NOW: Duration = Duration::ZERO;
const SHORT: Duration = Duration::from_millis(50);

#[test]
fn poll_wakes_for_packets_and_for_nothing_else() {
    if !can_make_networks("poll_wakes_for_packets_and_for_nothing_else") {
        return;
    }
    for mode in MODES {
        let link = Link::new(1500);
        link.run(&Config { mode, ring: 64, ..Config::default() }, pool(), |bench| {
            assert_eq!(poll(bench, libc::POLLIN, SHORT), 0, "{mode:?}: nothing has come");
            bench.send([packet(0, 60)]);
            assert_eq!(poll(bench, libc::POLLIN, PATIENCE), libc::POLLIN, "{mode:?}");
            assert_eq!(bench.receive(1).len(), 1);
            assert_eq!(poll(bench, libc::POLLIN, SHORT), 0, "{mode:?}: all was received");
            // A sleeper is woken.
            std::thread::scope(|scope| {
                let peer = bench.peer;
                scope.spawn(move || {
                    std::thread::sleep(SHORT);
                    peer.send(&packet(1, 60));
                });
                assert_eq!(poll(bench, libc::POLLIN, PATIENCE), libc::POLLIN, "{mode:?}");
            });
            bench.sent += 1;
            assert_eq!(numbers(&bench.receive(1)), [1]);
            // A full ring.
            bench.send(packets(0..100, 60));
            assert_eq!(poll(bench, libc::POLLIN, NOW), libc::POLLIN, "{mode:?}");
            // Two frames less than it holds: those of before are not worth a refill.
            assert_eq!(numbers(&bench.receive(62)), all(0..62), "{mode:?}");
            assert_eq!(poll(bench, libc::POLLIN, SHORT), 0, "{mode:?}");
        });
    }
}

#[test]
fn poll_tells_whether_there_is_room_to_send() {
    if !can_make_networks("poll_tells_whether_there_is_room_to_send") {
        return;
    }
    for mode in MODES {
        let link = Link::new(1500);
        link.run(&Config { mode, ring: 64, ..Config::default() }, pool(), |bench| {
            assert_eq!(poll(bench, libc::POLLOUT, NOW), libc::POLLOUT, "{mode:?}: an empty ring has room");
            // A link that is down lets the ring fill up.
            link.under_test.ip(&["link", "set", "ve0", "down"]);
            let mut burst = Burst::with_limit(Burst::MAX);
            for number in 0..100 {
                bench.push(&mut burst, &packet(number, 60), 60);
            }
            assert_eq!(bench.queue.tx_burst(&mut bench.cache, &mut burst), 64, "{mode:?}");
            assert_eq!(bench.queue.tx_burst(&mut bench.cache, &mut burst), 0, "{mode:?}: the ring is full");
            assert_eq!(poll(bench, libc::POLLOUT, SHORT), 0, "{mode:?}: the ring is full");
            link.under_test.ip(&["link", "set", "ve0", "up"]);
            assert_eq!(poll(bench, libc::POLLOUT, PATIENCE), libc::POLLOUT, "{mode:?}");
            bench.transmit_burst(&mut burst);
            assert_eq!(numbers(&bench.arrived(100)), all(0..100), "{mode:?}");
            bench.assert_no_drops();
        });
    }
}

#[test]
fn the_smallest_and_the_largest_ring_send_and_receive() {
    if !can_make_networks("the_smallest_and_the_largest_ring_send_and_receive") {
        return;
    }
    for mode in MODES {
        for ring in [64, 32_768] {
            let link = Link::new(1500);
            let config = Config { mode, ring, fill: Some(ring), ..Config::default() };
            link.run(&config, Mempool::builder().frames(u64::from(ring) * 4), |bench| {
                // More than it holds while nobody receives: the first of them stay.
                let held: Vec<_> = all(0..ring);
                bench.send(packets(0..ring + 50, 60));
                assert_eq!(numbers(&bench.receive(ring as usize)), held, "{mode:?}, ring of {ring}");
                // Again, after it has wrapped round.
                bench.send(packets(0..ring, 60));
                assert_eq!(numbers(&bench.receive(ring as usize)), held, "{mode:?}, ring of {ring}");
                // And as many are sent, in bursts that do not divide its size.
                for from in (0..ring + 50).step_by(50) {
                    bench.transmit(packets(from..from + 50, 60));
                    assert_eq!(numbers(&bench.arrived(50)), all(from..from + 50), "{mode:?}, ring of {ring}");
                }
                let lost = bench.drops(sheafio_core::DropReason::RxNoFrame);
                assert_eq!(lost, 50, "{mode:?}, ring of {ring}");
            });
        }
    }
}

/// The kernel sends 32 packets for one call, or as many as it was allowed to; either way it goes on until all are sent,
/// each once, and then the ring and its index are where they should be: nothing is taken back at close.
#[test]
fn a_burst_beyond_the_kernels_budget_is_sent_and_the_ring_is_empty_then() {
    if !can_make_networks("a_burst_beyond_the_kernels_budget_is_sent_and_the_ring_is_empty_then") {
        return;
    }
    for mode in MODES {
        for count in [31, 32, 33, 64, 200, 256] {
            let link = Link::new(1500);
            link.run(&Config { mode, ring: 256, ..Config::default() }, pool(), |bench| {
                let mut burst = Burst::with_limit(Burst::MAX);
                for number in 0..count {
                    bench.push(&mut burst, &packet(number, 60), 60);
                }
                assert_eq!(bench.queue.tx_burst(&mut bench.cache, &mut burst), count as usize);
                assert_eq!(numbers(&bench.arrived(count as usize)), all(0..count), "{mode:?}");
                // All completions come back: no more frames are held than lie ready for reception.
                let (ready, start) = (256, Instant::now());
                while bench.queue.frames_held() > ready {
                    bench.queue.tx_burst(&mut bench.cache, &mut burst);
                    assert!(start.elapsed() < PATIENCE, "{mode:?}: {} are held", bench.queue.frames_held());
                }
                bench.assert_no_drops();
            });
        }
    }
}

/// Whole packets come out of a queue in the order in which they came, whatever the burst's limit.
#[test]
fn bursts_of_any_limit_keep_packets_whole_and_in_order() {
    let name = "bursts_of_any_limit_keep_packets_whole_and_in_order";
    if !can_make_networks(name) || !kernel_has(name, 6, 6, "packets in several frames") {
        return;
    }
    for mode in MODES {
        let link = Link::new(9000);
        let config = Config { mode, frags: Frags::Yes, ..Config::default() };
        link.run(&config, Mempool::builder().frames(4096), |bench| {
            for limit in [1, 3, 32, Burst::MAX] {
                bench.send((0..50).map(|number| packet(number, 60 + number as usize * 170)));
                let (mut burst, mut received) = (Burst::with_limit(limit), Vec::new());
                let start = Instant::now();
                while received.len() < 50 {
                    assert!(start.elapsed() < PATIENCE, "{} came", received.len());
                    bench.queue.rx_burst(&mut bench.cache, &mut burst);
                    received.extend(burst.packets().map(joined));
                    bench.cache.free_burst(&mut burst);
                }
                assert_eq!(numbers(&received), all(0..50), "{mode:?}, limit {limit}");
            }
            bench.assert_no_drops();
        });
    }
}
