//! Traffic of real kernels over veth pairs, through each mode. One file, for all of it is told of one network.
//!
//! ```text
//!   peer 10.0.0.1            under test             peer 10.0.0.2
//!   | ve1 | ---------- | ve0 | fwd | vf0 | ---------- | ve1 |
//! ```

use std::{
    net::UdpSocket,
    thread,
    time::{Duration, Instant},
};

use sheafio_tests::{
    Fwd, LEFT, Netns, Network, RIGHT, Veth, can_make_networks, datagram, receive_numbers, sheafio, socket,
};

/// The longest that a packet may take: far above what it takes.
const PATIENCE: Duration = Duration::from_mins(1);

/// Ping and UDP both ways through a forwarder; all of it arrives, and nothing else.
fn ping_and_udp(network: &Network, fwd: Fwd) {
    assert!(network.pings(5));
    let (left, right) = (socket(&network.left.peer, LEFT), socket(&network.right.peer, RIGHT));
    let (to_left, to_right) = (left.local_addr().unwrap(), right.local_addr().unwrap());
    for number in 0..500 {
        let packet = datagram(number, 4 + number as usize * 2);
        left.send_to(&packet, to_right).unwrap();
        right.send_to(&packet, to_left).unwrap();
        if number % 32 == 31 {
            thread::sleep(Duration::from_millis(2));
        }
    }
    let all: Vec<u32> = (0..500).collect();
    assert_eq!(receive_numbers(&right, 500), all);
    assert_eq!(receive_numbers(&left, 500), all);
    let ended = fwd.end();
    let last = ended.assert_conserved();
    for port in 0..2 {
        assert!(ended.port(port, "rx_packets") >= 505 && ended.port(port, "tx_packets") >= 505, "{last}");
        for reason in last["ports"][port]["drops"].as_object().unwrap().keys() {
            assert_eq!(ended.port(port, reason), 0, "{reason}: {last}");
        }
    }
    for veth in [&network.left, &network.right] {
        assert_eq!((veth.peer.snmp("Ip", "InHdrErrors"), veth.peer.snmp("Udp", "InCsumErrors")), (0, 0));
    }
    assert_eq!(ended.retired(), 0);
}

#[test]
fn io_forwards_ping_and_udp_in_every_mode_with_one_and_two_queues() {
    if !can_make_networks("io_forwards_ping_and_udp_in_every_mode_with_one_and_two_queues") {
        return;
    }
    for options in
        [",mode=native", ",mode=generic", ",mode=native,queues=2", ",mode=generic,queues=2", ",copy=copy"]
    {
        let network = Network::new(if options.contains("queues=2") { 2 } else { 1 });
        let fwd = network.forward(options, &[]);
        ping_and_udp(&network, fwd);
    }
}

#[test]
fn an_adaptive_lcore_forwards() {
    if !can_make_networks("an_adaptive_lcore_forwards") {
        return;
    }
    let network = Network::new(1);
    let fwd = network.forward("", &["--idle", "adaptive"]);
    thread::sleep(Duration::from_millis(300));
    ping_and_udp(&network, fwd);
}

/// In mac mode the destination is 02:00:00:00:00:PORT: the peer accepts that if it is its own.
#[test]
fn mac_and_macswap_set_the_addresses() {
    if !can_make_networks("mac_and_macswap_set_the_addresses") {
        return;
    }
    let network = Network::new(1);
    network.left.peer.ip(&["link", "set", "ve1", "address", "02:00:00:00:00:00"]);
    network.right.peer.ip(&["link", "set", "ve1", "address", "02:00:00:00:00:01"]);
    // Whatever the peer addresses, mac mode replaces it.
    network.left.set_neighbour(RIGHT, "02:00:00:00:00:aa");
    network.right.set_neighbour(LEFT, "02:00:00:00:00:aa");
    let fwd = network.forward("", &["--mode", "mac"]);
    ping_and_udp(&network, fwd);

    // With macswap on one port, what the peer sends to itself by way of a neighbour comes back: the
    // peer must take its own address as a source, so this is seen by a packet socket's counter.
    let veth = &network.left;
    let fwd = Fwd::start(&network.under_test, &["-p", "ve0", "--mode", "macswap"]);
    let received = || received_packets(&veth.peer);
    let (before, left) = (received(), socket(&veth.peer, LEFT));
    for number in 0..100 {
        left.send_to(&datagram(number, 100), (RIGHT, 9)).unwrap();
    }
    wait_until(|| received() >= before + 100);
    let ended = fwd.end();
    ended.assert_conserved();
    assert_eq!(ended.port(0, "rx_packets"), ended.port(0, "tx_packets"));
}

fn received_packets(peer: &Netns) -> u64 {
    let text = peer.ip(&["-s", "-j", "link", "show", "dev", "ve1"]);
    let links: serde_json::Value = serde_json::from_str(&text).unwrap();
    links[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

fn wait_until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "it did not come to that");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn rxonly_counts_txonly_sends_and_icmpecho_answers() {
    if !can_make_networks("rxonly_counts_txonly_sends_and_icmpecho_answers") {
        return;
    }
    for mode in [",mode=native", ",mode=generic"] {
        let under_test = Netns::new("fwd");
        let veth = Veth::new(&under_test, "ve0", LEFT, 1);
        let port = format!("ve0{mode}");

        let fwd = Fwd::start(&under_test, &["-p", &port, "--mode", "icmpecho"]);
        // Addresses are asked for by ARP, which is answered too; whole packets with any payload.
        for size in ["0", "56", "1000", "1472"] {
            let ping = ["-c", "3", "-i", "0.05", "-W", "2", "-s", size, RIGHT];
            assert!(veth.peer.succeeds("ping", &ping), "{mode}, {size} bytes");
        }
        let ended = fwd.end();
        ended.assert_conserved();
        assert!(ended.port(0, "tx_packets") >= 13);
        assert_eq!((veth.peer.snmp("Icmp", "InCsumErrors"), veth.peer.snmp("Icmp", "InEchoReps")), (0, 12));

        veth.set_neighbour(RIGHT, "02:00:00:00:00:aa");
        let fwd = Fwd::start(&under_test, &["-p", &port, "--mode", "rxonly"]);
        let socket = veth.peer.enter(|| UdpSocket::bind((LEFT, 0)).unwrap());
        for number in 0..200 {
            socket.send_to(&datagram(number, 100), (RIGHT, 9)).unwrap();
        }
        thread::sleep(Duration::from_millis(200));
        let ended = fwd.end();
        ended.assert_conserved();
        assert_eq!((ended.port(0, "rx_packets"), ended.port(0, "rx_bytes")), (200, 200 * 142));

        let before = received_packets(&veth.peer);
        // It may have ended before anyone could see its program.
        let args = ["fwd", "--json", "-p", &port, "--mode", "txonly", "--packets", "1000"];
        let ended = Fwd::start_program(&under_test, sheafio(), &args).wait();
        ended.assert_conserved();
        assert_eq!(ended.port(0, "tx_packets"), 1000);
        wait_until(|| received_packets(&veth.peer) == before + 1000);
    }
}

/// af_xdp#1: a single packet from idle is sent at once, and not with the next one.
#[test]
fn one_packet_from_idle_is_sent() {
    if !can_make_networks("one_packet_from_idle_is_sent") {
        return;
    }
    for mode in [",mode=native", ",mode=generic"] {
        let network = Network::new(1);
        let fwd = network.forward(mode, &[]);
        let (left, right) = (socket(&network.left.peer, LEFT), socket(&network.right.peer, RIGHT));
        assert!(network.pings(1), "ARP is done");
        for number in 0..3 {
            thread::sleep(Duration::from_millis(200));
            left.send_to(&datagram(number, 50), right.local_addr().unwrap()).unwrap();
            assert_eq!(receive_numbers(&right, 1), [number]);
        }
        fwd.end().assert_conserved();
    }
}

/// asavie/xdp#6: more packets than the kernel sends for one kick.
#[test]
fn a_burst_of_64_arrives_whole() {
    if !can_make_networks("a_burst_of_64_arrives_whole") {
        return;
    }
    let network = Network::new(1);
    let fwd = network.forward("", &["--burst", "256"]);
    assert!(network.pings(1));
    let (left, right) = (socket(&network.left.peer, LEFT), socket(&network.right.peer, RIGHT));
    for round in 0..10 {
        let numbers: Vec<u32> = (round * 64..round * 64 + 64).collect();
        for number in &numbers {
            left.send_to(&datagram(*number, 60), right.local_addr().unwrap()).unwrap();
        }
        assert_eq!(receive_numbers(&right, 64), numbers);
    }
    fwd.end().assert_conserved();
}

/// asavie/xdp#6: bursts larger than the 32 that one kick sends; none stays behind in the TX ring.
#[test]
fn bursts_of_64_and_more_are_sent_whole() {
    if !can_make_networks("bursts_of_64_and_more_are_sent_whole") {
        return;
    }
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", LEFT, 1);
    for (burst, packets) in [("64", 64), ("256", 256), ("100", 1000)] {
        let before = received_packets(&veth.peer);
        let limit = packets.to_string();
        let args = ["-p", "ve0", "--mode", "txonly", "--burst", burst, "--packets", &limit];
        let ended =
            Fwd::start_program(&under_test, sheafio(), &[&["fwd", "--json"], &args[..]].concat()).wait();
        ended.assert_conserved();
        assert_eq!((ended.port(0, "tx_packets"), ended.port(0, "tx_unsent")), (packets, 0));
        wait_until(|| received_packets(&veth.peer) == before + packets);
    }
}

/// Two lcores, one limit: it is met exactly though all traffic comes to one of them; the queues close
/// at the same time under load.
#[test]
fn two_queues_share_a_packet_limit_and_close_together_under_load() {
    if !can_make_networks("two_queues_share_a_packet_limit_and_close_together_under_load") {
        return;
    }
    for mode in ["native", "generic"] {
        let under_test = Netns::new("fwd");
        let veth = Veth::new(&under_test, "ve0", LEFT, 2);
        veth.set_neighbour(RIGHT, "02:00:00:00:00:aa");
        let port = format!("ve0,queues=2,mode={mode}");
        let stop = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let socket = socket(&veth.peer, LEFT);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = socket.send_to(&datagram(1, 60), (RIGHT, 9));
                }
            });
            for limit in [1, 500, 5000] {
                let limit_text = limit.to_string();
                let args = ["fwd", "--json", "-p", &port, "--mode", "rxonly", "--packets", &limit_text];
                let ended = Fwd::start_program(&under_test, sheafio(), &args).wait();
                ended.assert_conserved();
                // Packets that came after the last poll are received at close, and counted as unread.
                assert_eq!(ended.port(0, "rx_packets") - ended.port(0, "rx_unread"), limit, "{mode}");
                assert_eq!(ended.lines.last().unwrap()["lcores"].as_array().unwrap().len(), 2);
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}

/// afxdp-rs#1: 10,000 packets through 256 frames, with a receiver that only receives.
#[test]
fn ten_thousand_packets_go_through_256_frames() {
    if !can_make_networks("ten_thousand_packets_go_through_256_frames") {
        return;
    }
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", LEFT, 1);
    veth.set_neighbour(RIGHT, "02:00:00:00:00:aa");
    // A slow consumer takes one packet a poll.
    for burst in ["32", "1"] {
        let fwd =
            Fwd::start(&under_test, &["-p", "ve0", "--mode", "rxonly", "--frames", "256", "--burst", burst]);
        let socket = veth.peer.enter(|| UdpSocket::bind((LEFT, 0)).unwrap());
        for number in 0..10_000 {
            socket.send_to(&datagram(number, 60), (RIGHT, 9)).unwrap();
            if number % 64 == 63 {
                thread::sleep(Duration::from_micros(200));
            }
        }
        thread::sleep(Duration::from_millis(300));
        let ended = fwd.end();
        ended.assert_conserved();
        let lost = ended.port(0, "rx_no_frame") + ended.port(0, "rx_ring_full");
        assert_eq!(ended.port(0, "rx_packets") + lost, 10_000, "burst {burst}");
        assert!(ended.port(0, "rx_packets") > 1000, "reception stopped: {:?}", ended.lines.last());
    }
}

/// asavie/xdp#24: numbered packets of 1,512 bytes over a tiny TX ring: none twice, none damaged, each
/// one that is missing counted.
#[test]
fn a_tiny_tx_ring_neither_doubles_nor_damages_packets() {
    if !can_make_networks("a_tiny_tx_ring_neither_doubles_nor_damages_packets") {
        return;
    }
    let network = Network::new(1);
    let fwd = network.forward(",ring=64", &["--burst", "256", "--frames", "1024"]);
    assert!(network.pings(1));
    let (left, right) = (socket(&network.left.peer, LEFT), socket(&network.right.peer, RIGHT));
    let to_right = right.local_addr().unwrap();
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive_numbers(&right, 5000));
        for number in 0..5000 {
            left.send_to(&datagram(number, 1470), to_right).unwrap();
        }
        receiver.join().unwrap()
    });
    let ended = fwd.end();
    ended.assert_conserved();
    assert!(received.is_sorted_by(|one, next| one < next), "a packet came twice");
    let lost: u64 = ["rx_no_frame", "rx_ring_full"].iter().map(|reason| ended.port(0, reason)).sum::<u64>()
        + ["tx_full", "tx_unsent"].iter().map(|reason| ended.port(1, reason)).sum::<u64>();
    let missing = 5000 - received.len() as u64;
    let at_sockets = network.right.peer.snmp("Udp", "RcvbufErrors") + lost_on_the_way(&network);
    assert_eq!(missing, lost + at_sockets, "{lost} counted, {at_sockets} lost by the kernel");
}

/// Packets that the veth devices dropped, on either side of the forwarder.
fn lost_on_the_way(network: &Network) -> u64 {
    let dropped = |netns: &Netns, interface: &str| {
        let text = netns.ip(&["-s", "-j", "link", "show", "dev", interface]);
        let links: serde_json::Value = serde_json::from_str(&text).unwrap();
        let count = |side: &str| links[0]["stats64"][side]["dropped"].as_u64().unwrap();
        count("rx") + count("tx")
    };
    dropped(&network.left.peer, "ve1") + dropped(&network.right.peer, "ve1")
}
