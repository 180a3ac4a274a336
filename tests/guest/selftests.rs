//! What `tests/selftests/` checks on a veth, of ports without copies on real drivers: packets of every size, one, both ways
//! at once, in rings of several lengths, with headroom; poll(2); bursts that are longer than a kick's budget; ports that come
//! and go with their rules; packets that can't be sent.
//!
//! Not here: exact counts of losses, for a NIC drops by its own rules (`account.rs` adds them up), packets in several
//! frames, which neither driver has (`features.md`), descriptors that our interface can't write, and packet memory that
//! queues and devices share: `main.rs` forwards over two queues of two NICs each.

use std::time::Duration;

use sheafio_core::{DropReason, Queue};
use sheafio_drivers::af_xdp::{Config, CopyMode, Frags, Mode, Verdict};
use sheafio_mempool::{Burst, Hugepages, Mempool, MempoolBuilder};
use sheafio_tests::PacketSocket;

use crate::{
    bench::{Bench, PATIENCE, all, numbers, packet, packets},
    can_do_without_copies,
    nics::Nics,
    zero_copy_drivers,
};

/// Works with a port on the left NIC under test of each driver that needs no copies, once with each of the rings.
fn on_each_driver(
    rings: &[u32],
    pool: impl Fn() -> MempoolBuilder,
    work: impl Fn(&mut Bench<'_>, &str) + Sync,
) {
    let configs: Vec<_> = rings.iter().map(|ring| Config { ring: *ring, ..Config::default() }).collect();
    on_each_driver_as(&configs, pool, |bench, _, what| work(bench, what));
}

/// The same, once with each of the configurations, and with the namespace of the port.
fn on_each_driver_as(
    configs: &[Config],
    pool: impl Fn() -> MempoolBuilder,
    work: impl Fn(&mut Bench<'_>, &Nics, &str) + Sync,
) {
    for driver in zero_copy_drivers() {
        let nics = Nics::new(driver);
        let (peer, ours) = (nics.interface(0), nics.interface(1));
        // The packets are to nobody's address.
        nics.left.ip(&["link", "set", &peer, "promisc", "on"]);
        let socket = PacketSocket::new(&nics.left, &peer);
        for config in configs {
            let config = Config {
                mode: Mode::Native,
                copy: CopyMode::ZeroCopy,
                promisc: Some(true),
                ..config.clone()
            };
            let pool = pool();
            nics.under_test.enter(|| {
                let pool = pool.frame_size(4096).hugepages(Hugepages::Off).build().unwrap();
                let mut bench = Bench::open(&ours, &config, pool, &socket);
                assert!(bench.port.zero_copy(), "{driver}");
                nics.wait_for_links();
                work(&mut bench, &nics, &format!("{driver}, {}, rings of {}", config.steer, config.ring));
                bench.close();
            });
        }
        nics.left.ip(&["link", "set", &peer, "promisc", "off"]);
    }
}

fn frames(count: u64) -> impl Fn() -> MempoolBuilder {
    move || Mempool::builder().frames(count)
}

#[test]
fn zero_copy_carries_packets_of_every_size_in_rings_of_every_length() {
    if !can_do_without_copies("zero_copy_carries_packets_of_every_size_in_rings_of_every_length") {
        return;
    }
    on_each_driver(&[64, 512, 4096], frames(16_384), |bench, what| {
        let of = |number: u32| packet(number, 60 + number as usize * 131 % 1455);
        for from in (0..1000).step_by(20) {
            bench.send((from..from + 20).map(of));
            assert_eq!(numbers(&bench.receive(20)), all(from..from + 20), "{what}");
            bench.transmit((from..from + 20).map(of));
            assert_eq!(numbers(&bench.arrived(20)), all(from..from + 20), "{what}");
        }
        bench.assert_no_drops();
    });
}

#[test]
fn zero_copy_carries_one_packet_and_both_directions_at_once() {
    if !can_do_without_copies("zero_copy_carries_one_packet_and_both_directions_at_once") {
        return;
    }
    on_each_driver(&[256], frames(4096), |bench, what| {
        bench.send([packet(1, 60)]);
        assert_eq!(numbers(&bench.receive(1)), [1], "{what}");
        let mut burst = Burst::new();
        bench.push(&mut burst, &packet(2, 60), 60);
        assert_eq!(bench.queue.tx_burst(&mut bench.cache, &mut burst), 1);
        // Nobody calls the queue again.
        let arrived = bench.peer.receive(PATIENCE).expect("it arrives");
        assert_eq!(numbers(&[arrived]), [2], "{what}");

        let (mut to_us, mut to_peer) = (Vec::new(), Vec::new());
        for from in (0..1000).step_by(20) {
            for number in from..from + 20 {
                bench.peer.send(&packet(number, 100));
                bench.transmit([packet(number, 1400)]);
            }
            bench.sent += 20;
            to_us.extend(bench.receive(20));
            to_peer.extend(bench.arrived(20));
        }
        assert_eq!((numbers(&to_us), numbers(&to_peer)), (all(0..1000), all(0..1000)), "{what}");
        bench.assert_no_drops();
    });
}

#[test]
fn zero_copy_leaves_the_headroom_that_was_asked_for() {
    if !can_do_without_copies("zero_copy_leaves_the_headroom_that_was_asked_for") {
        return;
    }
    for headroom in [0, 128] {
        on_each_driver(
            &[64],
            move || Mempool::builder().frames(1024).headroom(headroom),
            |bench, what| {
                for number in 0..10 {
                    bench.send([packet(number, 600)]);
                    let mut burst = Burst::new();
                    while bench.queue.rx_burst(&mut bench.cache, &mut burst) == 0 {}
                    let frame = burst.last_mut().unwrap();
                    assert!(frame.headroom() >= 256 + headroom as usize, "{what}: {}", frame.headroom());
                    frame.prepend(14).unwrap().copy_from_slice(&packet(number, 60)[..14]);
                    let expected = [&packet(number, 60)[..14], &packet(number, 600)[..]].concat();
                    bench.transmit_burst(&mut burst);
                    assert!(bench.arrived(1)[0] == expected, "{what}, headroom {headroom}");
                }
                bench.assert_no_drops();
            },
        );
    }
}

#[test]
fn zero_copy_sends_long_bursts_and_poll_tells_what_is_there() {
    if !can_do_without_copies("zero_copy_sends_long_bursts_and_poll_tells_what_is_there") {
        return;
    }
    on_each_driver(&[256], frames(4096), |bench, what| {
        for count in [31, 32, 33, 200] {
            bench.transmit(packets(0..count, 60));
            assert_eq!(numbers(&bench.arrived(count as usize)), all(0..count), "{what}");
        }
        let poll = |bench: &Bench<'_>, events: i16, within: Duration| {
            let mut poll = libc::pollfd { fd: bench.queue.wait_fd().unwrap(), events, revents: 0 };
            // SAFETY: the kernel reads and writes one pollfd.
            unsafe { libc::poll(&raw mut poll, 1, within.as_millis() as i32) };
            poll.revents
        };
        assert_eq!(poll(bench, libc::POLLOUT, PATIENCE), libc::POLLOUT, "{what}");
        bench.send([packet(0, 60)]);
        assert_eq!(poll(bench, libc::POLLIN, PATIENCE), libc::POLLIN, "{what}");
        assert_eq!(numbers(&bench.receive(1)), [0], "{what}");
        assert_eq!(poll(bench, libc::POLLIN, Duration::from_millis(50)), 0, "{what}: all was received");
        bench.assert_no_drops();
    });
}

/// A program and its rules go with the port, and the next port has its own: nothing, everything, and every second packet.
#[test]
fn zero_copy_ports_come_and_go_and_take_what_their_own_rules_say() {
    if !can_do_without_copies("zero_copy_ports_come_and_go_and_take_what_their_own_rules_say") {
        return;
    }
    let rules = ["none", "all", "0x88b5", "none", "all"];
    let configs = rules.map(|rules| Config { steer: rules.parse().unwrap(), ring: 256, ..Config::default() });
    on_each_driver_as(&configs, frames(4096), |bench, nics, what| {
        let interface = nics.interface(1);
        assert!(nics.under_test.has_xdp(&interface), "{what}");
        // On our side of the kernel: all that the program passes.
        let kernel = PacketSocket::new(&nics.under_test, &interface);
        let steering = bench.port.steer_handle().steering().to_string();
        let of = |number: u32| {
            let mut packet = packet(number, 100);
            if steering == "0x88b5" {
                packet[13] += (number % 2) as u8; // 0x88b6 is experimental too.
            }
            packet
        };
        for from in (0..200).step_by(20) {
            bench.send((from..from + 20).map(of));
        }
        let (ours, passed): (Vec<u32>, Vec<u32>) = match steering.as_str() {
            "all" => (all(0..200), vec![]),
            "none" => (vec![], all(0..200)),
            _ => (0..200).partition(|number| number % 2 == 0),
        };
        assert_eq!(numbers(&bench.receive(ours.len())), ours, "{what}");
        for number in &passed {
            let packet =
                kernel.receive(PATIENCE).unwrap_or_else(|| panic!("{what}: {number} was not passed"));
            assert!(packet == of(*number), "{what}: packet {number}");
        }
        assert_eq!(kernel.receive(Duration::from_millis(50)), None, "{what}");
        let counts = bench.port.steer_handle().counts().unwrap();
        let by_verdict = (counts.of(Verdict::Redirected), counts.of(Verdict::Passed), counts.total());
        assert_eq!(by_verdict, (ours.len() as u64, passed.len() as u64, 200), "{what}");
        bench.assert_no_drops();
        assert!(!nics.under_test.has_xdp(&interface), "{what}: the program stays");
    });
}

#[test]
fn zero_copy_refuses_bad_packets_by_name_and_sends_the_good_ones_around_them() {
    if !can_do_without_copies("zero_copy_refuses_bad_packets_by_name_and_sends_the_good_ones_around_them") {
        return;
    }
    let config = Config { frags: Frags::No, ring: 256, ..Config::default() };
    on_each_driver_as(&[config], frames(4096), |bench, _, what| {
        let mut burst = Burst::new();
        bench.push(&mut burst, &packet(0, 60), 60);
        // No bytes; two frames, of which these drivers take one; the end is missing.
        burst.push(bench.cache.alloc().unwrap()).unwrap();
        bench.push(&mut burst, &packet(1, 100), 100);
        bench.push(&mut burst, &packet(99, 100), 50);
        bench.push(&mut burst, &packet(2, 100), 100);
        bench.push(&mut burst, &packet(99, 60), 60);
        burst.last_mut().unwrap().set_continues(true);
        bench.transmit_burst(&mut burst);
        assert_eq!(numbers(&bench.arrived(3)), all(0..3), "{what}");
        assert_eq!(bench.peer.receive(Duration::from_millis(50)), None, "{what}");
        bench.queue.close(&mut bench.cache);
        let drops: Vec<_> = bench.queue.counters().totals().all_drops().collect();
        let expected = [(DropReason::TxEmpty, 1), (DropReason::TxTooLarge, 1), (DropReason::TxNoEnd, 1)];
        assert_eq!(drops, expected, "{what}: the driver refuses none");
    });
}
