//! What is asked for with packets that are sent, and what comes with packets that are received, on a real veth.

mod tags;

use std::{
    net::UdpSocket,
    path::Path,
    time::{Duration, Instant},
};

use sheafio_core::Queue;
use sheafio_drivers::af_xdp::{self, AfXdpQueue, Config, Mode, Netdev, TxTimestamp};
use sheafio_mempool::{Burst, Hugepages, Mempool, PoolCache, RxMetadata};
use sheafio_tests::{
    Netns, PacketSocket, Veth, can_make_networks, kernel_has, kernel_is_at_least, skip, succeeds,
};

const PEER: &str = "10.0.0.1";
const PATIENCE: Duration = Duration::from_mins(1);

fn network(mtu: &str) -> (Netns, Veth) {
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", PEER, 1);
    under_test.ip(&["link", "set", "ve0", "mtu", mtu]);
    veth.peer.ip(&["link", "set", "ve1", "mtu", mtu]);
    veth.peer.ip(&["link", "set", "ve1", "address", "02:00:00:00:00:01"]);
    (under_test, veth)
}

fn pool() -> &'static Mempool {
    Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap()
}

fn open(config: &Config, pool: &'static Mempool) -> AfXdpQueue {
    let mut port = af_xdp::open_with("ve0", config, pool).unwrap();
    port.queue(0).unwrap()
}

/// Sum of 16-bit words, folded (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

const IP: usize = 14;
const UDP: usize = IP + 20;

/// A UDP packet to the peer's port with `payload`, whose UDP checksum is the sum of its pseudo header.
fn packet(port: u16, payload: &[u8]) -> Vec<u8> {
    let udp_len = 8 + payload.len() as u16;
    let mut packet = [
        &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..],
        &[0x45, 0],
        &(20 + udp_len).to_be_bytes(),
        &[0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1],
        &[0, 9],
        &port.to_be_bytes(),
        &udp_len.to_be_bytes(),
        &[0, 0],
        payload,
    ]
    .concat();
    let header = !sum(&packet[IP..UDP]);
    packet[IP + 10..IP + 12].copy_from_slice(&header.to_be_bytes());
    let pseudo = [&packet[IP + 12..UDP], &[0, 17], &udp_len.to_be_bytes()].concat();
    packet[UDP + 6..UDP + 8].copy_from_slice(&sum(&pseudo).to_be_bytes());
    packet
}

/// Puts a packet into as many frames as it needs, with a first frame of `first` bytes.
fn push(burst: &mut Burst, cache: &mut PoolCache, packet: &[u8], first: usize) {
    let (head, rest) = packet.split_at(first.min(packet.len()));
    let parts: Vec<&[u8]> = std::iter::once(head).chain(rest.chunks(1700)).collect();
    for (at, part) in parts.iter().enumerate() {
        let mut frame = cache.alloc().unwrap();
        frame.append(part.len()).unwrap().copy_from_slice(part);
        frame.set_continues(at + 1 < parts.len());
        burst.push(frame).unwrap();
    }
}

fn tai_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_TAI, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Checksums of packets in one frame and in several, with parts of odd length; by the kernel and by the port. The
/// receiver is another AF_XDP program's view of the wire: the bytes themselves, and a kernel socket.
#[test]
fn checksums_that_are_asked_for_are_on_the_wire() {
    if !can_make_networks("checksums_that_are_asked_for_are_on_the_wire") {
        return;
    }
    for metadata in [true, false] {
        for mode in [Mode::Native, Mode::Generic] {
            // Native mode takes no large MTU where the kernel has no packets in several frames.
            let (netns, veth) = network(if kernel_is_at_least(6, 6) { "9000" } else { "1500" });
            let socket = veth.peer.enter(|| UdpSocket::bind((PEER, 0)).unwrap());
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let raw = PacketSocket::new(&veth.peer, "ve1");
            let port = socket.local_addr().unwrap().port();
            netns.enter(|| {
                let pool = pool();
                let mut queue = open(&Config { metadata, mode, ..Config::default() }, pool);
                let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
                let lens = [(1, 1500), (1000, 1500), (1001, 1500), (4001, 1501), (8001, 1000)];
                // One frame each, where the kernel has no packets in several.
                let possible = if kernel_is_at_least(6, 6) { lens.len() } else { 3 };
                for (len, first) in lens.into_iter().take(possible) {
                    let payload: Vec<u8> = (0..len).map(|at: u32| (at * 7 + 3) as u8).collect();
                    let packet = packet(port, &payload);
                    push(&mut burst, &mut cache, &packet, first);
                    assert!(burst[0].request_checksum(UDP as u16, 6));
                    assert_eq!(queue.tx_burst(&mut cache, &mut burst), 1);
                    let mut received = vec![0; 9000];
                    let count = sheafio_tests::recv(&socket, &mut received).unwrap_or_else(|error| {
                        panic!(
                            "{mode:?}, metadata {metadata}, {len} bytes: {error}; {:?}",
                            queue.counters().totals()
                        )
                    });
                    assert!(received[..count] == payload, "{len} bytes: the payload changed");
                    let wire = raw.receive(PATIENCE).expect("the packet is on the wire");
                    let pseudo =
                        [&wire[IP + 12..UDP], &[0, 17], &wire[UDP + 4..UDP + 6], &wire[UDP..]].concat();
                    assert_eq!(sum(&pseudo), 0xffff, "{mode:?}, metadata {metadata}, {len} bytes");
                }
                let closed = queue.close(&mut cache);
                drop(cache);
                assert_eq!((closed.retired, pool.audit().unwrap().home), (0, 1024));
            });
            assert_eq!(veth.peer.snmp("Udp", "InCsumErrors"), 0);
        }
    }
}

/// Each packet's time of sending comes with its token, and lies between the moments before and after.
#[test]
fn times_of_sending_are_told_with_their_tokens() {
    let name = "times_of_sending_are_told_with_their_tokens";
    if !can_make_networks(name) || !kernel_has(name, 6, 8, "TX metadata") {
        return;
    }
    let (netns, _veth) = network("1500");
    netns.enter(|| {
        let pool = pool();
        let mut queue = open(&Config { metadata: true, ..Config::default() }, pool);
        let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
        let before = tai_ns();
        for number in 0..20_u64 {
            push(&mut burst, &mut cache, &packet(9, b"tick"), 1500);
            // Of every second one nothing is asked.
            if number % 2 == 0 {
                assert!(burst.last_mut().unwrap().request_tx_timestamp(1000 + number));
            }
        }
        assert_eq!(queue.tx_burst(&mut cache, &mut burst), 20);
        let start = Instant::now();
        let mut told: Vec<TxTimestamp> = Vec::new();
        while told.len() < 10 && start.elapsed() < PATIENCE {
            queue.tx_burst(&mut cache, &mut burst);
            told.extend(queue.tx_timestamps());
        }
        let after = tai_ns();
        let mut tokens: Vec<u64> = told.iter().map(|told| told.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..10).map(|half| 1000 + half * 2).collect::<Vec<_>>());
        assert!(
            told.iter().all(|told| (before..=after).contains(&told.timestamp_ns)),
            "{before} {told:?} {after}"
        );
        assert_eq!(queue.tx_timestamps_missed(), 0);

        // Without metadata nobody tells; that is counted, and the packet is sent.
        queue.close(&mut cache);
        let mut queue = open(&Config::default(), pool);
        push(&mut burst, &mut cache, &packet(9, b"tick"), 1500);
        assert!(burst[0].request_tx_timestamp(1));
        assert_eq!((queue.tx_burst(&mut cache, &mut burst), queue.tx_timestamps_missed()), (1, 1));
        queue.close(&mut cache);
        drop(cache);
        assert_eq!(pool.audit().unwrap().home, 1024);
    });
}

/// Receives the UDP packets to one port, each with its metadata.
fn receive_udp(
    queue: &mut AfXdpQueue,
    cache: &mut PoolCache,
    port: u16,
    count: usize,
) -> Vec<(Vec<u8>, Option<RxMetadata>)> {
    let (mut burst, mut received, start) = (Burst::new(), Vec::new(), Instant::now());
    while received.len() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count} packets came", received.len());
        queue.rx_burst(cache, &mut burst);
        for frame in burst.iter() {
            if frame.get(UDP + 2..UDP + 4) == Some(&port.to_be_bytes()) {
                received.push((frame.to_vec(), frame.rx_metadata()));
            }
        }
        cache.free_burst(&mut burst);
    }
    received
}

/// What veth tells: a hash, no time of arrival, and a VLAN tag where the packet has one beside it. The packet is what
/// it would be without; and without asking, or in generic mode, there is no metadata at all.
#[test]
fn received_packets_come_with_what_the_device_knows() {
    let name = "received_packets_come_with_what_the_device_knows";
    if !can_make_networks(name) || !kernel_has(name, 6, 8, "the VLAN tag in RX metadata") {
        return;
    }
    let (netns, veth) = network("1500");
    veth.set_neighbour("10.0.0.2", "02:00:00:00:00:02");
    let socket = veth.peer.enter(|| UdpSocket::bind((PEER, 0)).unwrap());
    let send = |count: u8| {
        for number in 0..count {
            socket.send_to(&[number; 50], ("10.0.0.2", 7)).unwrap();
        }
    };
    let run = |config: &Config| {
        netns.enter(|| {
            let pool = pool();
            let mut port = af_xdp::open_with("ve0", config, pool).unwrap();
            let (mut queue, mut cache) = (port.queue(0).unwrap(), pool.cache().unwrap());
            send(100);
            let received = receive_udp(&mut queue, &mut cache, 7, 100);
            for (number, (packet, _)) in received.iter().enumerate() {
                assert_eq!(packet[UDP + 8..], [number as u8; 50]);
            }
            queue.close(&mut cache);
            drop(cache);
            assert_eq!(pool.audit().unwrap().home, 1024);
            let metadata = received.into_iter().map(|(_, metadata)| metadata).collect::<Vec<_>>();
            (metadata, port.warnings().join("\n"))
        })
    };

    let asks = Config { metadata: true, mode: Mode::Native, ..Config::default() };
    let (metadata, warnings) = run(&asks);
    assert!(!warnings.contains("metadata"), "{warnings}");
    for metadata in metadata {
        let metadata = metadata.expect("the program writes it");
        assert!(metadata.hash.is_some_and(|hash| hash.value != 0), "{metadata:?}");
        assert_eq!((metadata.timestamp_ns, metadata.vlan), (None, None));
    }

    let (metadata, _) = run(&Config { metadata: false, ..asks.clone() });
    assert!(metadata.iter().all(Option::is_none));
    let (metadata, warnings) = run(&Config { mode: Mode::Generic, ..asks.clone() });
    assert!(metadata.iter().all(Option::is_none));
    assert!(
        warnings.contains("ve0: received packets come without metadata, as generic mode has none"),
        "{warnings}"
    );

    // p4c-xdp#38: a tag that is not in the packet.
    tags::push(&veth.peer, &[(0x8100, 0x2064)]);
    let (metadata, _) = run(&asks);
    for metadata in metadata {
        let tag = metadata.and_then(|metadata| metadata.vlan).expect("the tag is told");
        assert_eq!((tag.protocol, tag.id(), tag.tag), (0x8100, 100, 0x2064));
    }
}

/// A tap device runs XDP programs natively and tells nothing of a packet: none is asked, and the line says why.
#[test]
fn a_driver_that_tells_nothing_is_not_asked() {
    const TEST: &str = "a_driver_that_tells_nothing_is_not_asked";
    if !can_make_networks(TEST) {
        return;
    }
    if !kernel_has(TEST, 6, 7, "what drivers tell of packets") {
        return;
    }
    let netns = Netns::new("tap");
    // A kernel with this driver in a module has the file only once that is loaded.
    if !Path::new("/dev/net/tun").exists() && !succeeds("modprobe", &["tun"]) {
        skip(TEST, "no tap devices here");
        return;
    }
    netns.ip(&["tuntap", "add", "dev", "tp0", "mode", "tap"]);
    netns.ip(&["link", "set", "tp0", "up"]);
    netns.enter(|| {
        assert_eq!(Netdev::of("tp0").and_then(|netdev| netdev.rx_metadata()), Some(vec![]));
        let pool = pool();
        let config = Config { metadata: true, mode: Mode::Native, ..Config::default() };
        let mut port = af_xdp::open_with("tp0", &config, pool).unwrap();
        let warnings = port.warnings().join("\n");
        let line = "tp0: received packets come without metadata, as its driver tun tells nothing of them";
        assert!(warnings.contains(line), "{warnings}");
        let (mut queue, mut cache) = (port.queue(0).unwrap(), pool.cache().unwrap());
        queue.close(&mut cache);
        drop(cache);
        assert_eq!(pool.audit().unwrap().home, 1024);
    });
}
