//! Ports that come and go, beside other programs and under load; packets that the program passes on; packet memory that
//! is shared.

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use sheafio_core::Queue;
use sheafio_drivers::af_xdp::{self, AfXdpQueue, Config, Mode, QueueSet, Steering, Verdict};
use sheafio_mempool::{Burst, Hugepages, Mempool, PoolCache};
use sheafio_tests::{BpfObject, Netns, PASS_ALL, PacketSocket, Veth, can_make_networks};

use super::{Bench, Link, MODES, PATIENCE, all, joined, numbers, packet, packets, pool};

/// The id of the XDP program on an interface.
fn program_on(netns: &Netns, interface: &str) -> Option<u64> {
    let text = netns.ip(&["-d", "-j", "link", "show", "dev", interface]);
    let links: serde_json::Value = serde_json::from_str(&text).unwrap();
    links[0]["xdp"]["prog"]["id"].as_u64()
}

/// Puts a program of someone else's on an interface, that passes everything on.
fn attach_other(netns: &Netns, interface: &str, how: &str) {
    let object = BpfObject::new(PASS_ALL);
    netns.ip(&["link", "set", "dev", interface, how, "obj", object.path(), "sec", "xdp"]);
}

/// A port's program goes with the port, with all that it was told; programs of others stay.
#[test]
fn a_program_goes_with_its_port_and_others_stay() {
    if !can_make_networks("a_program_goes_with_its_port_and_others_stay") {
        return;
    }
    let link = Link::new(1500);
    let _other_veth = Veth::new(&link.under_test, "vx0", "10.0.1.1", 1);
    attach_other(&link.under_test, "vx0", "xdpgeneric");
    let other = program_on(&link.under_test, "vx0");
    assert!(other.is_some());
    let mut ours = Vec::new();
    for mode in [MODES, MODES].concat() {
        // A port that takes nothing, then one that takes everything: the rules of the first are gone.
        for (steer, taken) in [(Steering::Only(Vec::new()), 0), (Steering::All, 10)] {
            assert_eq!(program_on(&link.under_test, "ve0"), None);
            link.run(&Config { mode, steer, ..Config::default() }, pool(), |bench| {
                ours.push(program_on(&link.under_test, "ve0").expect("it is there"));
                bench.send(packets(0..10, 60));
                assert_eq!(bench.receive(taken).len(), taken, "{mode:?}");
                let counts = bench.port.steer_handle().counts().unwrap();
                assert_eq!(counts.of(Verdict::Redirected), taken as u64, "{mode:?}: {counts:?}");
                bench.assert_no_drops();
            });
            assert_eq!(program_on(&link.under_test, "vx0"), other);
        }
    }
    ours.sort_unstable();
    ours.dedup();
    assert_eq!(ours.len(), 8, "each port has a program of its own");
    // One that is in the way stays too, and the port is not opened.
    attach_other(&link.under_test, "ve0", "xdpgeneric");
    let in_the_way = program_on(&link.under_test, "ve0");
    link.under_test.enter(|| {
        let pool = pool().hugepages(Hugepages::Off).build().unwrap();
        for mode in MODES {
            assert!(af_xdp::open_with("ve0", &Config { mode, ..Config::default() }, pool).is_err());
        }
        assert_eq!(pool.audit().unwrap().home, 1024);
    });
    assert_eq!((program_on(&link.under_test, "ve0"), in_the_way.is_some()), (in_the_way, true));
}

/// Fifty times in one process, while packets come: each time packets are received, and every frame comes home.
#[test]
fn a_port_opens_and_closes_fifty_times_under_load() {
    if !can_make_networks("a_port_opens_and_closes_fifty_times_under_load") {
        return;
    }
    for mode in MODES {
        let link = Link::new(1500);
        link.veth.set_neighbour("10.0.0.2", "02:00:00:00:00:aa");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = link.veth.peer.enter(|| UdpSocket::bind(("10.0.0.1", 0)).unwrap());
                while !stop.load(Ordering::Relaxed) {
                    // What the kernel drops on the way is not the point.
                    let _ = socket.send_to(&[0; 60], ("10.0.0.2", 9));
                }
            });
            link.under_test.enter(|| {
                // However it ends, the sender ends too.
                let _stops = StopWhenDropped(&stop);
                let pool = pool().hugepages(Hugepages::Off).build().unwrap();
                for round in 0..50 {
                    let config = Config { mode, ring: 256, ..Config::default() };
                    let mut port = af_xdp::open_with("ve0", &config, pool).unwrap();
                    let (mut queue, mut cache) = (port.queue(0).unwrap(), pool.cache().unwrap());
                    let (mut burst, start) = (Burst::new(), Instant::now());
                    let mut received = 0;
                    while received < 100 {
                        assert!(start.elapsed() < PATIENCE, "{mode:?}, round {round}: {received} came");
                        received += queue.rx_burst(&mut cache, &mut burst);
                        // Half of them go back.
                        if received % 2 == 0 {
                            queue.tx_or_drop(&mut cache, &mut burst);
                        }
                        cache.free_burst(&mut burst);
                    }
                    let closed = queue.close(&mut cache);
                    drop(cache);
                    let (audit, census) = (pool.audit().unwrap(), pool.census());
                    assert_eq!((closed.retired, audit.home), (0, 1024), "{mode:?}, round {round}");
                    assert_eq!((census.free(), census.in_flight), (1024, 0), "{mode:?}, round {round}");
                }
            });
        });
    }
}

struct StopWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A program that only receives makes no system call, and has nobody who looks at the device for it: it learns that the
/// device is gone all the same.
#[test]
fn a_queue_that_only_receives_learns_that_its_device_is_gone() {
    if !can_make_networks("a_queue_that_only_receives_learns_that_its_device_is_gone") {
        return;
    }
    for mode in MODES {
        let link = Link::new(1500);
        link.run(&Config { mode, ..Config::default() }, pool(), |bench| {
            bench.send(packets(0..10, 60));
            assert_eq!(bench.receive(10).len(), 10, "{mode:?}");
            link.under_test.ip(&["link", "del", "ve0"]);
            let (mut burst, start) = (Burst::new(), Instant::now());
            while !bench.queue.is_gone() {
                assert!(
                    start.elapsed() < PATIENCE,
                    "{mode:?}: the queue does not see that its device is gone"
                );
                assert_eq!(bench.queue.rx_burst(&mut bench.cache, &mut burst), 0, "{mode:?}");
            }
        });
    }
}

/// Every second packet is the kernel's: it gets each of them, and we each of the others.
#[test]
fn half_of_the_packets_are_passed_to_the_kernel_and_half_are_ours() {
    if !can_make_networks("half_of_the_packets_are_passed_to_the_kernel_and_half_are_ours") {
        return;
    }
    for mode in MODES {
        let link = Link::new(1500);
        // On our side of the kernel: all that the program passes.
        let kernel = PacketSocket::new(&link.under_test, "ve0");
        let steer: Steering = "0x88b5".parse().unwrap();
        link.run(&Config { mode, steer, ..Config::default() }, pool(), |bench| {
            let of = |number: u32| {
                let mut packet = packet(number, 100);
                packet[13] += (number % 2) as u8; // 0x88b6 is experimental too.
                packet
            };
            for from in (0..500).step_by(50) {
                bench.send((from..from + 50).map(of));
            }
            assert_eq!(numbers(&bench.receive(250)), (0..500).step_by(2).collect::<Vec<_>>(), "{mode:?}");
            for number in (1..500).step_by(2) {
                let passed = kernel.receive(PATIENCE).unwrap_or_else(|| panic!("{number} was not passed"));
                assert!(passed == of(number), "{mode:?}: packet {number}");
            }
            assert_eq!(kernel.receive(Duration::from_millis(20)), None, "{mode:?}");
            let counts = bench.port.steer_handle().counts().unwrap();
            let (ours, passed) = (counts.of(Verdict::Redirected), counts.of(Verdict::Passed));
            assert_eq!((ours, passed, counts.total()), (250, 250, 500), "{mode:?}");
            bench.assert_no_drops();
        });
    }
}

/// Two queues of one device and one of another share the packet memory: a frame that came to any of them is sent from
/// any other as it is.
#[test]
fn queues_and_devices_share_the_packet_memory() {
    if !can_make_networks("queues_and_devices_share_the_packet_memory") {
        return;
    }
    for mode in MODES {
        let link = Link::with_queues(1500, 2);
        let far = Veth::new(&link.under_test, "vx0", "10.0.1.1", 1);
        let far_peer = PacketSocket::new(&far.peer, "ve1");
        let config = Config { mode, queues: QueueSet::range(0, 2).unwrap(), ..Config::default() };
        link.run(&config, Mempool::builder().frames(4096), |bench| {
            let config = Config { mode, ..Config::default() };
            let mut far_port = af_xdp::open_with("vx0", &config, bench.pool).unwrap();
            let mut queues = [bench.port.queue(1).unwrap(), far_port.queue(0).unwrap()];
            let all_sent = 480;
            for from in (0..all_sent).step_by(60) {
                // In generic mode veth takes the number of the peer's TX queue, less one, for that of the RX queue.
                link.send_through(from / 60 % 2);
                bench.send(packets(from..from + 60, 200));
                forward(bench, &mut queues, 60, from / 120 % 2 == 0);
            }
            let (mut arrived, start) = (Vec::new(), Instant::now());
            while arrived.len() < all_sent as usize && start.elapsed() < PATIENCE {
                // A kick may send 32 packets only.
                for queue in &mut queues {
                    queue.tx_burst(&mut bench.cache, &mut Burst::new());
                }
                let soon = Duration::from_millis(1);
                arrived.extend(far_peer.receive(soon).into_iter().chain(bench.peer.receive(soon)));
            }
            let mut numbers = numbers(&arrived);
            numbers.sort_unstable();
            assert_eq!(numbers, all(0..all_sent), "{mode:?}");
            for queue in &mut queues {
                assert_eq!(queue.close(&mut bench.cache).retired, 0, "{mode:?}");
                let totals = queue.counters().totals();
                assert_eq!(totals.all_drops().collect::<Vec<_>>(), [], "{mode:?}");
            }
            let sent = queues.each_ref().map(|queue| queue.counters().totals().tx_packets);
            assert_eq!(sent, [u64::from(all_sent) / 2, u64::from(all_sent) / 2], "{mode:?}");
            if mode == Mode::Native {
                let received = queues[0].counters().totals().rx_packets;
                assert_eq!(received, u64::from(all_sent) / 2, "the other half came to the first queue");
            }
            bench.assert_no_drops();
        });
    }
}

/// Receives so many packets from both queues of the first device and sends them from its second one, or from the far
/// device.
fn forward(bench: &mut Bench<'_>, queues: &mut [AfXdpQueue; 2], count: usize, to_far: bool) {
    let mut burst = Burst::with_limit(Burst::MAX);
    let [second, far] = queues;
    let start = Instant::now();
    while burst.packet_count() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count} packets came", burst.packet_count());
        bench.queue.rx_burst(&mut bench.cache, &mut burst);
        second.rx_burst(&mut bench.cache, &mut burst);
    }
    let out = if to_far { far } else { second };
    send_from(out, &mut bench.cache, &mut burst);
}

fn send_from(queue: &mut AfXdpQueue, cache: &mut PoolCache, burst: &mut Burst) {
    let (before, packets) = (queue.counters().totals().tx_packets, burst.packets().map(joined).count());
    let start = Instant::now();
    while !burst.is_empty() {
        assert!(start.elapsed() < PATIENCE, "{} frames are not sent", burst.len());
        queue.tx_burst(cache, burst);
    }
    assert_eq!(queue.counters().totals().tx_packets - before, packets as u64);
}
