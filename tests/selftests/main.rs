//! What the kernel's own tests of AF_XDP check, checked of a port by its public interface, on a veth, in native and in
//! generic mode.
//!
//! ```text
//!   peer                       under test
//!   | ve1, packet socket | --- | ve0, our port |
//! ```
//!
//! Ported by meaning from the list of the kernel's tools/testing/selftests/bpf: `traffic` has send and receive, single
//! packets, both directions, packets of several frames, headroom, poll(2), rings of all sizes, budgeted sends, `refused`
//! invalid packets and too many frames, `losses` the exact counts, `life` programs that come and go, teardown,
//! packets that the program passes, shared packet memory. Metadata is in `tests/metadata.rs`.
//!
//! Not ported, for there is nothing to port them to: adjusting a packet's tail (our program changes no packet),
//! unaligned frames (ours have a power of two of bytes, at multiples of it), and the exact count of descriptors that
//! the kernel finds invalid (`tx_invalid`): our interface can't write one, and `refused` checks that none is counted.

mod life;
mod losses;
mod refused;
mod traffic;

use std::time::{Duration, Instant};

use sheafio_core::{DropReason, Queue};
use sheafio_drivers::af_xdp::{self, AfXdpPort, AfXdpQueue, Config, Mode};
use sheafio_mempool::{Burst, Frame, Hugepages, Mempool, MempoolBuilder, PoolCache};
use sheafio_tests::{Netns, PacketSocket, Veth};

const MODES: [Mode; 2] = [Mode::Native, Mode::Generic];
/// The longest that anything may take: far above what it takes.
const PATIENCE: Duration = Duration::from_mins(1);
/// What the kernel has in its own queues at most, between the peer and us: below that, nothing is lost there.
const IN_KERNEL: u64 = 64;

/// Our end and the peer's.
struct Link {
    under_test: Netns,
    veth: Veth,
    peer: PacketSocket,
}

impl Link {
    fn new(mtu: u32) -> Self {
        Self::with_queues(mtu, 1)
    }

    fn with_queues(mtu: u32, queues: u32) -> Self {
        let under_test = Netns::new("self");
        let veth = Veth::new(&under_test, "ve0", "10.0.0.1", queues);
        let mtu = mtu.to_string();
        under_test.ip(&["link", "set", "ve0", "mtu", &mtu]);
        veth.peer.ip(&["link", "set", "ve1", "mtu", &mtu]);
        let peer = PacketSocket::new(&veth.peer, "ve1");
        Self { under_test, veth, peer }
    }

    /// All that the peer sends from now on goes through one of its two TX queues, and comes to our RX queue of that number.
    fn send_through(&self, queue: u32) {
        for other in 0..2 {
            let path = format!("/sys/class/net/ve1/queues/tx-{other}/xps_cpus");
            let mask = if other == queue { "3" } else { "0" };
            self.veth.peer.run("sh", &["-c", &format!("echo {mask} > {path}")]);
        }
    }

    /// Opens a port on `ve0`, works with it, closes it: every frame must be home then, or retired and counted.
    fn run(&self, config: &Config, pool: MempoolBuilder, work: impl FnOnce(&mut Bench<'_>) + Send) {
        self.under_test.enter(|| {
            let pool = pool.hugepages(Hugepages::Off).build().unwrap();
            let mut bench = Bench::open(config, pool, &self.peer);
            work(&mut bench);
            bench.close();
        });
    }
}

/// A pool of 1,024 frames.
fn pool() -> MempoolBuilder {
    Mempool::builder().frames(1024)
}

/// An open port, and the peer.
struct Bench<'a> {
    pool: &'static Mempool,
    port: AfXdpPort,
    queue: AfXdpQueue,
    cache: PoolCache,
    peer: &'a PacketSocket,
    /// Packets that the peer has sent.
    sent: u64,
}

impl<'a> Bench<'a> {
    fn open(config: &Config, pool: &'static Mempool, peer: &'a PacketSocket) -> Self {
        let mut port = af_xdp::open_with("ve0", config, pool).unwrap_or_else(|error| panic!("{error}"));
        let (queue, cache) = (port.queue(0).unwrap(), pool.cache().unwrap());
        assert_eq!((port.mode(), port.zero_copy()), (config.mode, false));
        Self { pool, port, queue, cache, peer, sent: 0 }
    }

    /// The peer sends packets; when this returns, each has come to the XDP program.
    fn send(&mut self, packets: impl IntoIterator<Item = Vec<u8>>) {
        let mut is_waited_for = true;
        for packet in packets {
            self.peer.send(&packet);
            self.sent += 1;
            is_waited_for = self.sent.is_multiple_of(IN_KERNEL);
            if is_waited_for {
                self.wait_for_sent();
            }
        }
        if !is_waited_for {
            self.wait_for_sent();
        }
    }

    fn wait_for_sent(&self) {
        let start = Instant::now();
        while self.port.steer_handle().counts().unwrap().total() < self.sent {
            assert!(start.elapsed() < PATIENCE, "{} packets are on their way", self.sent);
        }
    }

    /// Receives so many packets, whole ones, and what else there is; then frames for the next ones lie ready, if so
    /// many are missing that it is worth it.
    fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let (mut burst, mut received, start) = (Burst::new(), Vec::new(), Instant::now());
        while received.len() < count {
            assert!(start.elapsed() < PATIENCE, "{} of {count} packets came", received.len());
            self.queue.rx_burst(&mut self.cache, &mut burst);
            received.extend(burst.packets().map(joined));
            self.cache.free_burst(&mut burst);
            self.queue.tx_burst(&mut self.cache, &mut burst);
        }
        self.queue.rx_burst(&mut self.cache, &mut burst);
        received.extend(burst.packets().map(joined));
        self.cache.free_burst(&mut burst);
        received
    }

    /// Makes packets, each in frames of up to `most` bytes.
    fn push(&mut self, burst: &mut Burst, packet: &[u8], most: usize) {
        let parts = packet.chunks(most).len();
        for (at, part) in packet.chunks(most).enumerate() {
            let mut frame = self.cache.alloc().expect("the pool has frames");
            frame.append(part.len()).unwrap().copy_from_slice(part);
            frame.set_continues(at + 1 < parts);
            burst.push(frame).unwrap();
        }
    }

    /// Sends packets, of one frame if they fit into one.
    fn transmit(&mut self, packets: impl IntoIterator<Item = Vec<u8>>) {
        let (mut burst, most) = (Burst::with_limit(Burst::MAX), self.pool.geometry().data_bytes() as usize);
        for packet in packets {
            self.push(&mut burst, &packet, most);
            self.transmit_burst(&mut burst);
        }
    }

    /// Sends all of a burst.
    fn transmit_burst(&mut self, burst: &mut Burst) {
        let start = Instant::now();
        while !burst.is_empty() {
            assert!(start.elapsed() < PATIENCE, "{} frames are not sent", burst.len());
            self.queue.tx_burst(&mut self.cache, burst);
        }
    }

    /// What arrives at the peer: so many packets.
    fn arrived(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut none = Burst::new();
        let mut arrived = Vec::new();
        while arrived.len() < count {
            self.queue.tx_burst(&mut self.cache, &mut none);
            let packet = self.peer.receive(PATIENCE);
            arrived.push(packet.unwrap_or_else(|| panic!("{} of {count} arrived", arrived.len())));
        }
        arrived
    }

    /// Packets dropped for one reason, with the kernel's latest counts. Closes the queue, for only then is all counted.
    fn drops(&mut self, reason: DropReason) -> u64 {
        self.queue.close(&mut self.cache);
        self.queue.counters().totals().drops(reason)
    }

    /// Nothing was dropped for any reason.
    fn assert_no_drops(&mut self) {
        self.queue.close(&mut self.cache);
        let totals = self.queue.counters().totals();
        assert_eq!(totals.all_drops().collect::<Vec<_>>(), [], "{totals:?}");
    }

    fn close(mut self) {
        let closed = self.queue.close(&mut self.cache);
        let frames = u64::from(self.pool.frames());
        drop(self.cache);
        let audit = self.pool.audit().expect("all caches have left");
        assert_eq!((audit.home + closed.retired, audit.twice), (frames, vec![]));
        let census = self.pool.census();
        assert_eq!((census.free() + census.retired, census.in_flight), (frames, 0), "{census:?}");
    }
}

/// The bytes of a packet's frames.
fn joined(packet: &[Frame]) -> Vec<u8> {
    packet.iter().flat_map(|frame| frame.iter().copied()).collect()
}

const HEADER_BYTES: usize = 14;

/// A packet of an experimental ethertype (IEEE 802), to nobody's address, with its number and a body that follows from
/// it.
fn packet(number: u32, len: usize) -> Vec<u8> {
    let header = [2, 0, 0, 0, 0, 0xaa, 2, 0, 0, 0, 0, 0xbb, 0x88, 0xb5];
    let body = sheafio_tests::datagram(number, len.saturating_sub(HEADER_BYTES));
    header.into_iter().chain(body).collect()
}

/// Numbered packets of this length.
fn packets(numbers: std::ops::Range<u32>, len: usize) -> impl Iterator<Item = Vec<u8>> {
    numbers.map(move |number| packet(number, len))
}

/// The numbers of packets, each of which must be whole and unchanged.
fn numbers(packets: &[Vec<u8>]) -> Vec<u32> {
    let number = |bytes: &Vec<u8>| {
        let number = u32::from_be_bytes(bytes[HEADER_BYTES..][..4].try_into().expect("4 bytes"));
        assert!(*bytes == packet(number, bytes.len()), "packet {number} of {} bytes changed", bytes.len());
        number
    };
    packets.iter().map(number).collect()
}

fn all(numbers: std::ops::Range<u32>) -> Vec<u32> {
    numbers.collect()
}
