//! What `tests/selftests/` checks on a veth, of ports without copies on real drivers: packets of every size, one, both ways
//! at once, in rings of several lengths, with headroom; poll(2); bursts that are longer than a kick's budget.
//!
//! Not here: exact counts of losses, for a NIC drops by its own rules (`account.rs` adds them up), packets in several
//! frames, which neither driver has (`features.md`), and descriptors that our interface can't write.

use std::time::Duration;

use sheafio_core::Queue;
use sheafio_drivers::af_xdp::{Config, CopyMode, Mode};
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
    for driver in zero_copy_drivers() {
        let nics = Nics::new(driver);
        let (peer, ours) = (nics.interface(0), nics.interface(1));
        // The packets are to nobody's address.
        nics.left.ip(&["link", "set", &peer, "promisc", "on"]);
        let socket = PacketSocket::new(&nics.left, &peer);
        for ring in rings {
            let config = Config {
                mode: Mode::Native,
                copy: CopyMode::ZeroCopy,
                promisc: Some(true),
                ring: *ring,
                ..Config::default()
            };
            let pool = pool();
            nics.under_test.enter(|| {
                let pool = pool.frame_size(4096).hugepages(Hugepages::Off).build().unwrap();
                let mut bench = Bench::open(&ours, &config, pool, &socket);
                assert!(bench.port.zero_copy(), "{driver}");
                nics.wait_for_links();
                work(&mut bench, &format!("{driver}, rings of {ring}"));
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
