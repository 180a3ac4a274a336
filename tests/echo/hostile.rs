//! Floods, peers that are gone, and limits.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use sheafio_tests::{PacketSocket, can_make_networks, faithful, forget};

use crate::{
    Network, SHARED, assert_well, count, exchange, ip, last, number,
    packets::{self, IPV4, Mac},
    pattern, wait_until,
};

/// SYNs from 100,000 addresses and ports that are nobody's; clients connect all the while and are served.
#[test]
fn a_flood_of_syns_does_not_keep_a_client_out() {
    const SYNS: u32 = 100_000;
    if !can_make_networks("a_flood_of_syns_does_not_keep_a_client_out") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--max-flows", "100"]);
    let wire = PacketSocket::new(&network.client, "ve1");
    let mac = network.mac_of_server();
    let (sent, is_served) = (AtomicU32::new(0), AtomicBool::new(false));
    let served = thread::scope(|scope| {
        scope.spawn(|| {
            let syn = packets::tcp((ip("198.18.0.1"), 1024), (ip(SHARED), 7), 7, 0, 2);
            let mut frame = packets::frame(mac, [2, 0, 0, 0, 0, 0x66], &[], IPV4, &syn);
            for number in 0.. {
                // Relaxed: only whether, not when.
                if number >= SYNS && is_served.load(Ordering::Relaxed) {
                    break;
                }
                spoof(&mut frame, number);
                wire.send(&frame);
                sent.store(number + 1, Ordering::Relaxed);
            }
        });
        // However it goes on, the flood ends.
        let _ends = Raise(&is_served);
        wait_until("the flood", || sent.load(Ordering::Relaxed) > 5000);
        let mut served = 0;
        while served < 3 || sent.load(Ordering::Relaxed) < SYNS {
            let mut stream = network.connect(SHARED);
            exchange(&mut stream, &pattern(100));
            served += 1;
        }
        served
    });
    let mut stream = network.connect(SHARED);
    exchange(&mut stream, b"after the flood");
    drop(stream);
    let line = server.fwd.wait_for_object("an end of all flows", |line| line["flows"] == 0);
    assert!(number(&line["half_open"]) <= 1024, "the backlog is bounded: {line}");
    let last = server.end();
    assert_eq!(count(&last, "tcp_flows_opened"), served + 1, "{last}");
    // Each SYN was answered or lost by name; nearly all had to make room for others.
    let drops = &last["ports"][0]["drops"];
    let lost = number(&drops["rx_ring_full"]) + number(&drops["rx_no_frame"]);
    let answered = count(&last, "tcp_syn_received");
    assert!(answered > 2048 && answered + lost + 1000 > u64::from(SYNS), "{last}");
    assert!(count(&last, "tcp_backlog_evicted") + 1024 + served + 1 >= answered, "{last}");
    assert_eq!(count(&last, "tcp_bad_checksum") + count(&last, "bad_ip_checksum"), 0, "{last}");
}

/// Raises a flag when dropped, also by a panic.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes a SYN another one's: from another address of 198.18.0.0/15 (RFC 2544), with right checksums.
fn spoof(frame: &mut [u8], number: u32) {
    let from = Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() + (number & 0x1_ffff));
    let port = 1024 + (number % 50_000) as u16;
    let syn = packets::tcp((from.into(), port), (ip(SHARED), 7), number.wrapping_mul(2_654_435_761), 0, 2);
    frame[14..14 + syn.len()].copy_from_slice(&syn);
}

/// Clients whose machine has vanished are asked whether they are there, and given up; those that are only silent are not.
#[test]
fn clients_that_have_vanished_are_given_up() {
    if !can_make_networks("clients_that_have_vanished_are_given_up") {
        return;
    }
    let network = Network::with_something_between();
    let _relay = network.relay(faithful(), faithful());
    let server = network.echo(&["--max-flows", "100", "--keepalive", "500ms"]);
    let mut silent: Vec<_> = (0..10).map(|_| network.connect(SHARED)).collect();
    for stream in &mut silent {
        exchange(stream, b"hello");
    }
    // They are asked, and answer, again and again.
    server.fwd.wait_for_object("probes", |line| count(line, "tcp_keepalive_probes") >= 30);
    for stream in &mut silent {
        exchange(stream, b"still here");
    }
    // Some are forgotten by their kernel, which then resets what it does not know.
    silent.drain(..3).for_each(forget);
    let line = server.fwd.wait_for_object("an end of those", |line| line["flows"] == 7);
    assert_eq!((count(&line, "tcp_reset_received"), count(&line, "tcp_keepalive_expired")), (3, 0), "{line}");
    // Then the whole machine is gone: nobody says anything.
    network.client.ip(&["link", "del", "ve1"]);
    let line = server.fwd.wait_for_object("an end of all", |line| line["flows"] == 0);
    assert_eq!(count(&line, "tcp_keepalive_expired"), 7, "{line}");
    drop(silent);
    let ended = server.end();
    assert_eq!(count(&ended, "tcp_flows_opened"), 10, "{ended}");
}

/// Connections beyond the limit are not answered, and counted; they come about once there is room.
#[test]
fn connections_beyond_the_limit_wait_and_are_counted() {
    if !can_make_networks("connections_beyond_the_limit_wait_and_are_counted") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--max-flows", "5"]);
    let mut streams: Vec<_> = (0..5).map(|_| network.connect(SHARED)).collect();
    for stream in &mut streams {
        exchange(stream, b"hello");
    }
    let to = SocketAddr::new(ip(SHARED), 7);
    let error =
        network.client.enter(|| TcpStream::connect_timeout(&to, Duration::from_millis(300)).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    server
        .fwd
        .wait_for_object("a refused SYN", |line| count(line, "tcp_flow_limit") >= 1 && line["flows"] == 5);
    // The client asks again, each second at first.
    let waiting = thread::scope(|scope| {
        let waiting = scope.spawn(|| network.connect(SHARED));
        streams.pop();
        waiting.join().unwrap()
    });
    streams.push(waiting);
    for stream in &mut streams {
        exchange(stream, b"hello");
    }
    drop(streams);
    server.wait_until_idle();
    let last = server.end();
    assert_eq!(count(&last, "tcp_flows_opened"), 6, "{last}");
}

/// A pool that is just large enough for its flows, all of which hold as much as they may: nothing is lost, and the frames
/// of the rings go round.
#[test]
fn a_small_pool_carries_the_flows_that_it_promises() {
    if !can_make_networks("a_small_pool_carries_the_flows_that_it_promises") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--frames", "2048", "--max-flows", "300"]);
    let ended = network.rr(SHARED, &["--flows", "300", "--size", "20000", "--duration", "500ms"]);
    assert!(assert_well(&ended) >= 300);
    assert_eq!(number(&last(&ended)["flows"]), 300);
    let last = server.end();
    assert_eq!(number(&last["pool"]["frames"]), 2048);
    assert_eq!(count(&last, "tcp_no_frame"), 0, "{last}");
}

/// What nobody asked for: bytes to a closed port, garbage in TCP, and the like do not disturb those that are served.
#[test]
fn garbage_is_counted_and_does_no_harm() {
    if !can_make_networks("garbage_is_counted_and_does_no_harm") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--max-flows", "10"]);
    let wire = PacketSocket::new(&network.client, "ve1");
    let mac = network.mac_of_server();
    let mut stream = network.connect(SHARED);
    let somebody: Mac = [2, 0, 0, 0, 0, 0x66];
    let (from, to) = ((ip("10.0.0.66"), 9), (ip(SHARED), 7));
    let whole = packets::tcp(from, to, 1, 2, 0x10);
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..2000 {
        let mut packet = whole.clone();
        match round % 3 {
            0 => packet.truncate(random.usize(0..=packet.len())),
            1 => packet[random.usize(0..40)] = random.u8(..),
            _ => packet.extend((0..random.usize(0..1000)).map(|_| random.u8(..))),
        }
        let mut frame = packets::frame(mac, somebody, &[], IPV4, &packet);
        frame.truncate(14 + packet.len().max(1));
        wire.send(&frame);
        if round % 100 == 0 {
            exchange(&mut stream, &pattern(round + 1));
        }
    }
    stream.write_all(b"the end").unwrap();
    stream.read_exact(&mut [0; 7]).unwrap();
    drop(stream);
    server.wait_until_idle();
    let last = server.end();
    for name in ["bad_ip_checksum", "tcp_bad_checksum", "tcp_no_flow"] {
        assert!(count(&last, name) > 0, "{name}: {last}");
    }
    assert_eq!(count(&last, "tcp_flows_opened"), 1, "{last}");
}
