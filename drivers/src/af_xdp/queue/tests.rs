//! The data path over a kernel that does as each test wants: what lies in the TX ring for a device that offloads
//! checksums, how a queue that only receives learns that its device is gone, and for how long closing waits.

use std::{
    os::fd::RawFd,
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sheafio_core::{DropReason, Queue};
use sheafio_mempool::{Frame, Hugepages, METADATA_BYTES, TxRequest};

use super::*;
use crate::af_xdp::rings::{CONTINUES, TX_METADATA};

/// What a kernel of these tests is, and what it was asked.
#[derive(Clone, Default)]
struct Played {
    looks_for_requests: bool,
    offloads_checksums: bool,
    now_ns: Arc<AtomicU64>,
    is_gone: Arc<AtomicBool>,
    asked: Arc<AtomicU32>,
    ticks: Arc<AtomicU32>,
}

impl Kernel for Played {
    const GOES_SILENTLY: bool = true;

    fn wake_rx(&mut self) -> Wake {
        Wake::Done
    }

    fn kick_tx(&mut self) -> Wake {
        Wake::Done
    }

    fn tick(&mut self, _: bool) -> bool {
        self.ticks.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    fn sends_all_for_one_kick(&self) -> bool {
        true
    }

    fn frames_a_packet(&self) -> usize {
        8
    }

    fn tells_tx_times(&self) -> bool {
        self.looks_for_requests
    }

    fn offloads_checksums(&self) -> bool {
        self.offloads_checksums
    }

    fn is_gone(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.is_gone.load(Ordering::Relaxed)
    }

    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    fn detach(&mut self) -> bool {
        true
    }

    fn fill_ring_is_exact(&self) -> bool {
        true
    }

    fn tx_ring_is_exact(&self) -> bool {
        true
    }

    fn count_drops(&self, _: &QueueCounters) {}

    fn shut(&mut self, prove_by: Option<Instant>) -> bool {
        prove_by.is_some()
    }
}

/// A queue, and the kernel's side of what it sends.
struct Bench {
    pool: &'static Mempool,
    queue: XskQueue<Played>,
    cache: PoolCache,
    tx: Consumer<Desc>,
    completion: Producer<u64>,
}

/// What a device finds of a packet.
#[derive(Debug)]
struct Found {
    /// The bytes in front of its first frame.
    front: [u8; METADATA_BYTES],
    /// The options of its descriptors.
    options: Vec<u32>,
    bytes: Vec<u8>,
}

impl Bench {
    fn new(kernel: Played) -> Self {
        let pool = Mempool::builder().frames(256).hugepages(Hugepages::Off).cores(1).build().unwrap();
        let rings = Rings::on_heap([64; 4], 0);
        let (tx, completion) = (Consumer::new(rings.tx.clone()), Producer::new(rings.completion.clone()));
        Self {
            pool,
            queue: XskQueue::new(pool, rings, kernel, 64),
            cache: pool.cache().unwrap(),
            tx,
            completion,
        }
    }

    /// Sends a packet, in frames of up to `most` bytes, with what `ask` asks for; the device finds it and completes it.
    fn send(&mut self, packet: &[u8], most: usize, ask: impl FnOnce(&mut Frame)) -> Found {
        let mut burst = Burst::new();
        let parts = packet.chunks(most).len();
        for (at, part) in packet.chunks(most).enumerate() {
            let mut frame = self.cache.alloc().unwrap();
            frame.append(part.len()).unwrap().copy_from_slice(part);
            frame.set_continues(at + 1 < parts);
            burst.push(frame).unwrap();
        }
        ask(&mut burst[0]);
        assert_eq!(self.queue.tx_burst(&mut self.cache, &mut burst), 1);
        let mut descs = Vec::new();
        let count = self.tx.available(64);
        self.tx.read_each(count, |_, desc| descs.push(desc));
        self.tx.release();
        let memory = |addr: u64, len: usize| {
            let start = self.pool.geometry().base().as_ptr().wrapping_add(addr as usize);
            // SAFETY: the descriptors name frames of this pool that were just sent, so they are the kernel's, which
            // this is; what lies in front of a packet is in its frame too.
            unsafe { slice::from_raw_parts(start, len) }.to_vec()
        };
        let bytes = descs.iter().flat_map(|desc| memory(desc.addr, desc.len() as usize)).collect();
        let front = memory(descs[0].addr - METADATA_BYTES as u64, METADATA_BYTES).try_into().unwrap();
        assert_eq!(self.completion.free(descs.len()), descs.len());
        self.completion.write_each(descs.len(), |at| descs[at].addr);
        self.completion.publish();
        self.queue.tx_burst(&mut self.cache, &mut burst);
        Found { front, options: descs.iter().map(|desc| desc.options()).collect(), bytes }
    }

    fn close(mut self) {
        let closed = self.queue.close(&mut self.cache);
        assert_eq!(closed.retired, 0);
        drop(self.cache);
        assert_eq!(self.pool.audit().unwrap().home, 256);
    }
}

/// The sum of RFC 1071 over big-endian words.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

const ETHERTYPE_AT: usize = 12;
const IP: usize = 14;
/// Where checksums lie behind the start of their headers.
const UDP_SUM: usize = 6;
const TCP_SUM: usize = 16;

/// A packet of UDP or TCP with the sum of its pseudo header in place of its checksum, and where its transport header
/// starts. `options`: bytes of IPv4 options.
fn packet(version: u8, sum_at: usize, options: usize, payload: usize) -> (Vec<u8>, usize) {
    let protocol = if sum_at == UDP_SUM { 17 } else { 6 };
    let header = if sum_at == UDP_SUM { 8 } else { 20 };
    let mut transport: Vec<u8> = (0..header + payload).map(|at| (at * 7 + 3) as u8).collect();
    let len = (transport.len() as u16).to_be_bytes();
    let (from, to): (&[u8], &[u8]) =
        if version == 4 { (&[10, 0, 0, 2], &[10, 0, 0, 1]) } else { (&[0xfd; 16], &[0xfe; 16]) };
    let pseudo = [from, to, &[0, protocol], &len].concat();
    transport[sum_at..][..2].copy_from_slice(&sum(&pseudo).to_be_bytes());
    let mut packet = vec![2; 12];
    if version == 4 {
        let total = (20 + options + transport.len()) as u16;
        packet.extend([0x08, 0x00, 0x45 + (options / 4) as u8, 0]);
        packet.extend(total.to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
        packet.extend([from, to].concat());
        packet.extend(vec![1; options]);
    } else {
        packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        packet.extend(len);
        packet.extend([protocol, 64]);
        packet.extend([from, to].concat());
    }
    let start = packet.len();
    packet.extend(transport);
    (packet, start)
}

/// What a packet must look like once its checksum was computed.
fn with_checksum(packet: &[u8], start: usize, sum_at: usize) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let checksum = !sum(&packet[start..]);
    packet[start + sum_at..][..2].copy_from_slice(&checksum.to_be_bytes());
    packet
}

const OFFLOADS: fn() -> Played =
    || Played { looks_for_requests: true, offloads_checksums: true, ..Played::default() };

/// `struct xsk_tx_metadata` (linux/if_xdp.h): flags 8, start 2, offset 2, padding 4, launch time 8; then our token.
fn request_in(found: &Found) -> (u64, u16, u16, u64) {
    let half = |at: usize| u16::from_ne_bytes(found.front[at..at + 2].try_into().unwrap());
    let word = |at: usize| u64::from_ne_bytes(found.front[at..at + 8].try_into().unwrap());
    (word(0), half(8), half(10), word(16))
}

/// `XDP_TXMD_FLAGS_TIMESTAMP` and `XDP_TXMD_FLAGS_CHECKSUM` (linux/if_xdp.h).
const TIMESTAMP: u64 = 1;
const CHECKSUM: u64 = 2;

#[test]
fn a_device_that_offloads_checksums_is_asked_for_those_of_plain_tcp_and_udp() {
    let mut bench = Bench::new(OFFLOADS());
    for (version, sum_at, options) in
        [(4, UDP_SUM, 0), (4, TCP_SUM, 0), (4, UDP_SUM, 40), (6, UDP_SUM, 0), (6, TCP_SUM, 0)]
    {
        for payload in [0, 1, 1000] {
            let (packet, start) = packet(version, sum_at, options, payload);
            let place = (start as u16, sum_at as u16);
            let found = bench.send(&packet, 1700, |frame| assert!(frame.request_checksum(place.0, place.1)));
            assert_eq!(found.options, [TX_METADATA], "{version} {sum_at} {payload}");
            assert_eq!(request_in(&found), (CHECKSUM, place.0, place.1, 0));
            assert_eq!(found.bytes, packet, "the pseudo header's sum must stay");

            // With the time of sending, in one request.
            let found = bench.send(&packet, 1700, |frame| {
                assert!(frame.request_checksum(place.0, place.1) && frame.request_tx_timestamp(7));
            });
            assert_eq!(found.options, [TX_METADATA]);
            assert_eq!(request_in(&found), (CHECKSUM | TIMESTAMP, place.0, place.1, 0));
            assert_eq!(found.bytes, packet);

            // The next packet in the same memory asks for nothing.
            let found =
                bench.send(&packet, 1700, |frame| assert_eq!(frame.tx_request(), TxRequest::default()));
            assert_eq!((found.options[0], request_in(&found).0), (0, 0));
        }
    }
    bench.close();
}

#[test]
fn what_not_every_device_sums_up_right_is_summed_up_here() {
    let mut bench = Bench::new(OFFLOADS());
    let (plain, start) = packet(4, UDP_SUM, 0, 1001);
    let (plain6, start6) = packet(6, UDP_SUM, 0, 1001);
    let changed = |packet: &[u8], at: usize, byte: u8| {
        let mut packet = packet.to_vec();
        packet[at] = byte;
        packet
    };
    let tagged = [&plain[..ETHERTYPE_AT], &[0x81, 0x00, 0, 5], &plain[ETHERTYPE_AT..]].concat();
    let (tcp, tcp_start) = packet(4, TCP_SUM, 0, 50);
    for (what, packet, start, sum_at) in [
        ("several frames", &[&plain[..], &[9; 1000]].concat(), start, UDP_SUM),
        ("a VLAN tag", &tagged, start + 4, UDP_SUM),
        ("a fragment", &changed(&plain, IP + 6, 0x20), start, UDP_SUM),
        ("a later fragment", &changed(&plain, IP + 7, 1), start, UDP_SUM),
        ("bytes behind the IP packet", &[&plain[..], &[9]].concat(), start, UDP_SUM),
        ("a cut IP packet", &plain[..plain.len() - 1].to_vec(), start, UDP_SUM),
        ("another protocol", &changed(&plain, IP + 9, 136), start, UDP_SUM),
        ("another version", &changed(&plain, IP, 0x55), start, UDP_SUM),
        ("a header that is too short", &changed(&plain, IP, 0x44), start - 4, UDP_SUM),
        ("a checksum that is not UDP's", &plain, start, 4),
        ("a sum that starts elsewhere", &plain, start + 2, UDP_SUM),
        ("UDP's checksum in TCP", &tcp, tcp_start, UDP_SUM),
        ("another ethertype", &changed(&plain, ETHERTYPE_AT, 0x88), start, UDP_SUM),
        ("an extension header", &changed(&plain6, IP + 6, 60), start6, UDP_SUM),
        ("bytes behind the IPv6 packet", &[&plain6[..], &[9]].concat(), start6, UDP_SUM),
        ("hardly a packet", &plain[..33].to_vec(), 20, UDP_SUM),
    ] {
        // So that the first of several frames looks like a whole packet.
        let most = if what == "several frames" { plain.len() } else { 1700 };
        let found = bench.send(packet, most, |frame| {
            assert!(frame.request_checksum(start as u16, sum_at as u16), "{what}");
        });
        assert!(
            found.options.iter().all(|options| options & TX_METADATA == 0),
            "{what}: {:?}",
            found.options
        );
        assert_eq!(request_in(&found).0, 0, "{what}");
        assert_eq!(found.bytes, with_checksum(packet, start, sum_at), "{what}");
        assert_eq!(found.options[0] & CONTINUES != 0, what == "several frames");
    }
    // One that was cut since, so that its checksum is not there any more.
    let found = bench.send(&plain, 1700, |frame| {
        assert!(frame.request_checksum(start as u16, UDP_SUM as u16));
        frame.trim_back(1001 + 2);
    });
    assert_eq!((found.options[0], request_in(&found).0), (0, 0));
    assert_eq!(found.bytes, plain[..plain.len() - 1003]);
    bench.close();
}

#[test]
fn without_that_offload_checksums_are_summed_up_here() {
    let requests_only = Played { looks_for_requests: true, ..Played::default() };
    // A driver can't be asked where the kernel does not look for requests.
    let offload_only = Played { offloads_checksums: true, ..Played::default() };
    for kernel in [requests_only, offload_only, Played::default()] {
        let mut bench = Bench::new(kernel);
        let (packet, start) = packet(4, UDP_SUM, 0, 1001);
        let found = bench.send(&packet, 1700, |frame| {
            assert!(frame.request_checksum(start as u16, UDP_SUM as u16));
        });
        assert_eq!(found.options, [0]);
        assert_eq!(found.bytes, with_checksum(&packet, start, UDP_SUM));
        bench.close();
    }
}

/// It asks once a second of the kernel's time, and no more once it knows.
#[test]
fn a_queue_that_receives_nothing_looks_for_its_device_once_a_second() {
    let kernel = Played::default();
    let mut bench = Bench::new(kernel.clone());
    let mut burst = Burst::new();
    // 10,000 polls of 1 ms: the first look, and one in each second after it, in every 64th poll at most.
    for _ in 0..10_000 {
        assert_eq!(bench.queue.rx_burst(&mut bench.cache, &mut burst), 0);
        kernel.now_ns.fetch_add(1_000_000, Ordering::Relaxed);
    }
    assert_eq!(kernel.asked.load(Ordering::Relaxed), 1 + (10_000 - 64) / 1024);
    assert!(!bench.queue.is_gone());

    kernel.is_gone.store(true, Ordering::Relaxed);
    let mut polls = 0;
    while !bench.queue.is_gone() {
        assert!(polls < 1024 + 64, "the device is gone, and the queue does not see it");
        bench.queue.rx_burst(&mut bench.cache, &mut burst);
        kernel.now_ns.fetch_add(1_000_000, Ordering::Relaxed);
        polls += 1;
    }
    let asked = kernel.asked.load(Ordering::Relaxed);
    for _ in 0..10_000 {
        bench.queue.rx_burst(&mut bench.cache, &mut burst);
        kernel.now_ns.fetch_add(1_000_000, Ordering::Relaxed);
    }
    assert_eq!(kernel.asked.load(Ordering::Relaxed), asked);
    bench.close();
}

/// The device has taken no packet when the queue is closed: it is looked at again until half of the time is over, or its own
/// bound is; where there is none left, not once more.
#[test]
fn closing_waits_no_longer_than_it_may() {
    for (left, waits) in [(Duration::ZERO, false), (Duration::from_mins(1), true)] {
        let kernel = Played::default();
        let mut bench = Bench::new(kernel.clone());
        let mut burst = Burst::new();
        let mut frame = bench.cache.alloc().unwrap();
        frame.append(60).unwrap().fill(1);
        burst.push(frame).unwrap();
        assert_eq!(bench.queue.tx_burst(&mut bench.cache, &mut burst), 1);
        let before = kernel.ticks.load(Ordering::Relaxed);
        let closed = bench.queue.close_by(&mut bench.cache, Instant::now() + left);
        assert_eq!(closed.retired, 0);
        assert_eq!(kernel.ticks.load(Ordering::Relaxed) > before, waits, "with {left:?} left");
        assert_eq!(bench.queue.counters().totals().drops(DropReason::TxUnsent), 1);
        bench.close();
    }
    // One that was never polled, as of an lcore that could not start, has nothing to wait for.
    let kernel = Played::default();
    let mut bench = Bench::new(kernel.clone());
    bench.queue.close_by(&mut bench.cache, Instant::now() + Duration::from_mins(1));
    assert_eq!(kernel.ticks.load(Ordering::Relaxed), 0, "of no poll");
    bench.close();
}
