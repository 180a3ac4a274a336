//! Steering on real interfaces: what rules take, what the kernel keeps, rules that change under load.
//! (Above 400 lines: all of it sends the same table of frames.)
//!
//! ```text
//!   peer 10.0.0.1               under test
//!   | ve1 | ---------------- | ve0 | XDP program --- takes ---> queue of ours
//!                                          \------ passes ---> kernel: TCP, UDP, ping, a packet socket
//! ```

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use sheafio_core::{DropReason, Queue};
use sheafio_drivers::{
    Ports,
    af_xdp::{self, AfXdpQueue, Mode, Steering, Verdict, VerdictCounts},
};
use sheafio_mempool::{Burst, Hugepages, Mempool, PoolCache};
use sheafio_tests::{Fwd, Netns, PacketSocket, Veth, can_make_networks};

const PEER: &str = "10.0.0.1";
/// The longest that anything may take: far above what it takes.
const PATIENCE: Duration = Duration::from_mins(1);

fn network() -> (Netns, Veth) {
    let under_test = Netns::new("steer");
    let veth = Veth::new(&under_test, "ve0", PEER, 1);
    (under_test, veth)
}

fn pool() -> &'static Mempool {
    Mempool::builder().frames(4096).hugepages(Hugepages::Off).build().unwrap()
}

fn steering(text: &str) -> Steering {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// Packets that the peer's end has sent: they come to the XDP program of the other end, less those that found its
/// ring full.
fn sent_by(peer: &Netns) -> u64 {
    let text = peer.ip(&["-s", "-j", "link", "show", "dev", "ve1"]);
    let links: serde_json::Value = serde_json::from_str(&text).unwrap();
    links[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
}

/// A frame to nobody's Ethernet address, so that no kernel answers it; its number is in its last four bytes.
fn frame(tags: &[u16], ethertype: u16, body: &[u8], number: u32) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 0xaa, 2, 0, 0, 0, 0, 0xbb];
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend([0, 5]);
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(body);
    frame.extend(number.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(*frame.last_chunk().unwrap())
}

/// An IPv4 header, `words` options of 4 bytes, then ports of 16 bits and zeroes; fragment offset in units of 8.
fn ipv4(protocol: u8, to: [u8; 4], port: u16, words: u8, fragment: u16) -> Vec<u8> {
    let options = usize::from(words) * 4;
    let total = (20 + options + 20 + 4) as u16; // With the number behind it.
    let mut packet = vec![0x45 + words, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 10, 0, 0, 1]);
    packet.extend(to);
    packet.extend(vec![1; options]);
    packet.extend([0x30, 0x39]);
    packet.extend(port.to_be_bytes());
    packet.extend([0; 16]);
    packet
}

/// An IPv6 header, extension headers of 8 bytes, then ports and zeroes.
fn ipv6(protocol: u8, to: &str, port: u16, extensions: &[u8]) -> Vec<u8> {
    let IpAddr::V6(to) = to.parse().unwrap() else { panic!("{to} is not IPv6") };
    let payload = (extensions.len() * 8 + 20 + 4) as u16;
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(payload.to_be_bytes());
    packet.extend([*extensions.first().unwrap_or(&protocol), 64]);
    packet.extend([0xfd; 16]);
    packet.extend(to.octets());
    for next in extensions.iter().skip(1).chain([&protocol]).take(extensions.len()) {
        packet.extend([*next, 0, 0, 0, 0, 0, 0, 0]);
    }
    packet.extend([0x30, 0x39]);
    packet.extend(port.to_be_bytes());
    packet.extend([0; 16]);
    packet
}

fn arp(to: [u8; 4]) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 0xbb, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], &to].concat()
}

const UDP: u8 = 17;
const TCP: u8 = 6;
const US: [u8; 4] = [10, 0, 0, 2];
const OTHER: [u8; 4] = [10, 0, 1, 2];

/// One of each kind, by its number.
fn frames() -> Vec<Vec<u8>> {
    let damaged = {
        let mut packet = ipv4(UDP, US, 7, 0, 0);
        packet[0] = 0x44;
        packet
    };
    let kinds: [(&[u16], u16, Vec<u8>); 20] = [
        (&[], 0x0800, ipv4(UDP, US, 7, 0, 0)),                       // 0
        (&[], 0x0800, ipv4(UDP, US, 8, 0, 0)),                       // 1
        (&[], 0x0800, ipv4(UDP, OTHER, 7, 0, 0)),                    // 2
        (&[], 0x0800, ipv4(TCP, US, 7, 0, 0)),                       // 3
        (&[0x8100], 0x0800, ipv4(UDP, US, 7, 0, 0)),                 // 4
        (&[0x88a8, 0x8100], 0x0800, ipv4(UDP, US, 7, 0, 0)),         // 5
        (&[0x88a8, 0x8100, 0x8100], 0x0800, ipv4(UDP, US, 7, 0, 0)), // 6: too many tags
        (&[], 0x0800, ipv4(UDP, US, 7, 3, 0)),                       // 7: options
        (&[], 0x0800, ipv4(UDP, US, 7, 0, 1 << 13)),                 // 8: the first fragment
        (&[], 0x0800, ipv4(UDP, US, 7, 0, 9)),                       // 9: a later fragment
        (&[], 0x86dd, ipv6(UDP, "fd00::2", 7, &[])),                 // 10
        (&[], 0x86dd, ipv6(UDP, "fd00::1:2", 7, &[])),               // 11
        (&[0x8100], 0x86dd, ipv6(UDP, "fd00::2", 7, &[])),           // 12
        (&[], 0x86dd, ipv6(UDP, "fd00::2", 7, &[0, 43, 60])),        // 13: hop-by-hop, routing, destination
        (&[], 0x86dd, ipv6(UDP, "fd00::2", 7, &[60; 7])),            // 14: too many extension headers
        (&[], 0x86dd, ipv6(58, "fd00::2", 0x8000, &[])),             // 15: ICMPv6
        (&[], 0x0806, arp(US)),                                      // 16
        (&[], 0x0806, arp(OTHER)),                                   // 17
        (&[0x8100], 0x88b5, vec![0; 40]),                            // 18
        (&[], 0x0800, damaged),                                      // 19
    ];
    let numbered = kinds.into_iter().zip(0..);
    numbered.map(|((tags, ethertype, body), number)| frame(tags, ethertype, &body, number)).collect()
}

/// Receives what is there.
fn receive(queue: &mut AfXdpQueue, cache: &mut PoolCache, burst: &mut Burst, into: &mut Vec<u32>) {
    queue.rx_burst(cache, burst);
    into.extend(burst.iter().map(|frame| number(frame)));
    cache.free_burst(burst);
}

fn since(now: VerdictCounts, before: VerdictCounts) -> [u64; 4] {
    Verdict::ALL.map(|verdict| now.of(verdict) - before.of(verdict))
}

/// Each kind of frame goes where the rules say, whole, and is counted there; the model in Rust agrees.
#[test]
fn each_frame_goes_to_us_or_to_the_kernel_as_the_rules_say() {
    if !can_make_networks("each_frame_goes_to_us_or_to_the_kernel_as_the_rules_say") {
        return;
    }
    let ipv4 = [0, 1, 2, 3, 4, 5, 7, 8, 9];
    let ipv6 = [10, 11, 12, 13, 14, 15];
    let udp7 = [0, 2, 4, 5, 7, 8, 10, 11, 12, 13];
    let all: Vec<u32> = (0..20).collect();
    let cases: [(&str, &[u32]); 14] = [
        ("all", &all),
        ("none", &[]),
        ("ip", &ipv4),
        ("ip6", &ipv6),
        ("udp:7", &udp7),
        ("udp@10.0.0.2:7", &[0, 4, 5, 7, 8]),
        ("udp@10.0.0.2", &[0, 1, 4, 5, 7, 8, 9]),
        ("udp@[fd00::/112]:7", &[10, 12, 13]),
        ("ip6@fd00::1:0/112", &[11]),
        ("ip@10.0.1.0/24+tcp", &[2, 3]),
        ("icmp6", &[15]),
        ("arp", &[16, 17]),
        ("arp@10.0.0.2+0x88b5", &[16, 18]),
        ("all", &all),
    ];
    for mode in [Mode::Native, Mode::Generic] {
        let (under_test, veth) = network();
        let (sender, kernel) = (PacketSocket::new(&veth.peer, "ve1"), PacketSocket::new(&under_test, "ve0"));
        let pool = pool();
        under_test.enter(|| {
            let config = af_xdp::Config { mode, ..af_xdp::Config::default() };
            let mut port = af_xdp::open_with("ve0", &config, pool).unwrap();
            let (mut queue, steer) = (port.queue(0).unwrap(), port.steer_handle());
            let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
            for (rules, expected) in cases {
                port.steer(&steering(rules)).unwrap();
                assert_eq!(steer.steering().to_string(), rules);
                let before = steer.counts().unwrap();
                let frames = frames();
                for frame in &frames {
                    sender.send(frame);
                }
                let (mut ours, mut passed) = (Vec::new(), Vec::new());
                let start = Instant::now();
                while ours.len() + passed.len() < frames.len() {
                    receive(&mut queue, &mut cache, &mut burst, &mut ours);
                    passed.extend(kernel.receive(Duration::from_millis(1)).map(|frame| number(&frame)));
                    assert!(start.elapsed() < PATIENCE, "{rules}: ours {ours:?}, passed {passed:?}");
                }
                let others: Vec<u32> =
                    all.iter().filter(|number| !expected.contains(number)).copied().collect();
                assert_eq!((&ours[..], &passed), (expected, &others), "{rules} in {} mode", mode.name());
                let malformed = u64::from(rules != "all");
                let [ours, passed] = [ours.len() as u64, passed.len() as u64 - malformed];
                assert_eq!(since(steer.counts().unwrap(), before), [ours, 0, passed, malformed], "{rules}");
                for frame in &frames {
                    assert_eq!(
                        steering(rules).takes(frame),
                        expected.contains(&number(frame)),
                        "{rules}: {frame:02x?}"
                    );
                }
            }
            queue.close(&mut cache);
            assert!(steer.counts().is_ok(), "counts outlive the port");
            drop(cache);
            assert_eq!(pool.audit().unwrap().home, 4096);
        });
    }
}

/// cmd-forwarder-vpp#283: services of the kernel and of ours on one interface.
#[test]
fn kernel_services_answer_beside_a_port_that_takes_its_own() {
    if !can_make_networks("kernel_services_answer_beside_a_port_that_takes_its_own") {
        return;
    }
    for mode in ["native", "generic"] {
        let (under_test, veth) = network();
        under_test.ip(&["addr", "add", "10.0.0.2/24", "dev", "ve0"]);
        let listener = under_test.enter(|| TcpListener::bind("10.0.0.2:22").unwrap());
        let kernel_udp = under_test.enter(|| UdpSocket::bind("10.0.0.2:8").unwrap());
        kernel_udp.set_read_timeout(Some(PATIENCE)).unwrap();
        let before = sent_by(&veth.peer);

        // 10.0.0.9 is ours: we answer ARP and pings of it.
        let port = format!("ve0,mode={mode},steer=udp@10.0.0.2:7+arp@10.0.0.9+icmp@10.0.0.9");
        let fwd = Fwd::start(&under_test, &["-p", &port, "--mode", "icmpecho"]);
        for address in ["10.0.0.9", "10.0.0.2"] {
            let ping = ["-c", "3", "-i", "0.05", "-W", "2", address];
            assert!(veth.peer.succeeds("ping", &ping), "{address} in {mode} mode");
        }
        let udp = veth.peer.enter(|| UdpSocket::bind((PEER, 0)).unwrap());
        for number in 0..300_u32 {
            udp.send_to(&number.to_be_bytes(), "10.0.0.2:7").unwrap();
            if number < 200 {
                udp.send_to(&number.to_be_bytes(), "10.0.0.2:8").unwrap();
            }
            // The kernel's have come before more are sent: a slow machine would lose some in the veth's ring.
            if number % 32 == 31 {
                let sent_before = number / 32 * 32;
                for number in (sent_before..=number).take_while(|number| *number < 200) {
                    let mut buffer = [0; 8];
                    let received = sheafio_tests::recv(&kernel_udp, &mut buffer).unwrap();
                    assert_eq!((received, &buffer[..4]), (4, &number.to_be_bytes()[..]));
                }
            }
        }
        tcp_echo(&listener, &veth.peer, "10.0.0.2:22".parse().unwrap());

        let ended = fwd.end();
        let last = ended.assert_conserved();
        let program = |verdict: Verdict| last["ports"][0]["program"][verdict.name()].as_u64().unwrap();
        // 300 datagrams that icmpecho has no use for, 3 pings, and ARP, which the peer repeats as it likes.
        let answered = ended.port(0, "tx_packets");
        assert!(answered >= 4, "{last}");
        // What came just before the end was not read any more.
        let datagrams = ended.port(0, "not_for_us") + ended.port(0, "rx_unread");
        assert_eq!((datagrams, ended.port(0, "rx_packets")), (300, 300 + answered), "{last}");
        assert_eq!(program(Verdict::Redirected), ended.port(0, "rx_packets"), "{last}");
        let seen = Verdict::ALL.into_iter().map(program).sum::<u64>();
        assert_eq!(seen, sent_by(&veth.peer) - before, "{last}");
        assert!(program(Verdict::Passed) > 200, "{last}");
    }
}

/// 100 kB there and back over the kernel's TCP.
fn tcp_echo(listener: &TcpListener, peer: &Netns, to: SocketAddr) {
    let data: Vec<u8> = (0..100_000_u32).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    // Connected by the kernel before anyone accepts, so a failure leaves no thread waiting.
    let mut stream = peer.enter(|| TcpStream::connect_timeout(&to, PATIENCE).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut data = Vec::new();
            stream.read_to_end(&mut data).unwrap();
            stream.write_all(&data).unwrap();
        });
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&data).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == data, "{} bytes came back", back.len());
    });
}

#[test]
fn ipv6_services_answer_beside_a_port_that_takes_its_own() {
    if !can_make_networks("ipv6_services_answer_beside_a_port_that_takes_its_own") {
        return;
    }
    let (under_test, veth) = network();
    for (netns, interface, address) in [(&under_test, "ve0", "fd00::2/64"), (&veth.peer, "ve1", "fd00::1/64")]
    {
        netns.run("sh", &["-c", &format!("echo 0 > /proc/sys/net/ipv6/conf/{interface}/disable_ipv6")]);
        netns.ip(&["addr", "add", address, "dev", interface, "nodad"]);
    }
    let listener = under_test.enter(|| TcpListener::bind("[fd00::2]:22").unwrap());
    let fwd = Fwd::start(&under_test, &["-p", "ve0,steer=udp@[fd00::2]:7", "--mode", "rxonly"]);
    let udp = veth.peer.enter(|| UdpSocket::bind("[fd00::1]:0").unwrap());
    for number in 0..100_u32 {
        udp.send_to(&number.to_be_bytes(), "[fd00::2]:7").unwrap();
    }
    tcp_echo(&listener, &veth.peer, "[fd00::2]:22".parse().unwrap());
    let ended = fwd.end();
    let last = ended.assert_conserved();
    assert_eq!(ended.port(0, "rx_packets"), 100, "{last}");
}

/// Rules change while packets flow; no packet is lost or counted twice between two sets of rules.
#[test]
fn counts_add_up_while_rules_change_under_load() {
    const FRAMES: u32 = 20_000;
    if !can_make_networks("counts_add_up_while_rules_change_under_load") {
        return;
    }
    for mode in ["native", "generic"] {
        let (under_test, veth) = network();
        let sender = PacketSocket::new(&veth.peer, "ve1");
        let pool = pool();
        under_test.enter(|| {
            let spec = format!("ve0,mode={mode},steer=none").parse().unwrap();
            let mut port = Ports::new(pool).open(&spec).unwrap();
            let control = port.take_control();
            let mut queue = port.queues.remove(0);
            let counters = queue.counters().clone();
            let steer = control.steer_handle().expect("AF_XDP ports are steered").clone();
            let before = sent_by(&veth.peer);
            let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
            thread::scope(|scope| {
                let sends = scope.spawn(|| {
                    for number in 0..FRAMES {
                        sender.send(&frame(&[], 0x88b5, &[0; 42], number));
                        if number % 64 == 63 {
                            thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
                let steer = &steer;
                let changes = scope.spawn(move || {
                    let mut changes = 0;
                    // Each change waits for programs that run to end, which takes long on a busy machine.
                    while !sends.is_finished() || changes < 8 {
                        for rules in ["0x88b5", "none", "arp+0x88b5", "all"] {
                            steer.set(&steering(rules)).unwrap();
                            changes += 1;
                        }
                    }
                    changes
                });
                while !changes.is_finished() {
                    queue.rx_burst(&mut cache, &mut burst);
                    cache.free_burst(&mut burst);
                }
                changes.join().unwrap();
            });
            let start = Instant::now();
            let seen = || steer.counts().unwrap();
            while seen().total() < sent_by(&veth.peer) - before || queue.rx_burst(&mut cache, &mut burst) > 0
            {
                cache.free_burst(&mut burst);
                assert!(start.elapsed() < PATIENCE, "{:?}", seen());
            }
            queue.close(&mut cache);
            control.refresh();
            let (seen, totals) = (seen(), counters.totals());
            assert_eq!(seen.total(), sent_by(&veth.peer) - before, "{mode}");
            assert!(seen.of(Verdict::Redirected) > 0 && seen.of(Verdict::Passed) > 0, "{seen:?}");
            assert_eq!(seen.total(), seen.of(Verdict::Redirected) + seen.of(Verdict::Passed));
            let lost: u64 = DropReason::ALL
                .iter()
                .filter(|reason| reason.is_before_rx())
                .map(|reason| totals.drops(*reason))
                .sum();
            assert_eq!(seen.of(Verdict::Redirected), totals.rx_packets + lost, "{totals:?}");
            drop(cache);
            assert_eq!(pool.audit().unwrap().home, 4096);
        });
    }
}

/// With rules, the warning of the default route says what the kernel loses and no more.
#[test]
fn the_default_route_is_warned_of_by_what_the_rules_take() {
    if !can_make_networks("the_default_route_is_warned_of_by_what_the_rules_take") {
        return;
    }
    let (under_test, _veth) = network();
    under_test.ip(&["addr", "add", "10.0.0.2/24", "dev", "ve0"]);
    under_test.ip(&["route", "add", "default", "via", PEER]);
    for (options, warning) in [
        (
            "",
            "will get no packet from the opened queues until this ends. Take only what you need: steer=RULES",
        ),
        (",steer=all", "will get no packet"),
        (
            ",steer=udp:7+arp@10.0.0.9",
            "packets of udp:7+arp@10.0.0.9 are taken from the opened queues, the kernel gets all",
        ),
    ] {
        let ended = Fwd::start(&under_test, &["-p", &format!("ve0{options}")]).end();
        ended.assert_conserved();
        assert!(
            ended.stderr.contains("ve0: the default route leads") && ended.stderr.contains(warning),
            "{}",
            ended.stderr
        );
    }
}
