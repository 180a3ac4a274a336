//! A port under test and a packet socket at the other end of the wire: packets that have numbers, both ways.
//!
//! Owns: the port, one queue of it, and what is in flight. Never does: wait without a bound. Invariant: when it is closed,
//! every frame is home, or retired and counted.

use std::time::{Duration, Instant};

use sheafio_core::Queue;
use sheafio_drivers::af_xdp::{self, AfXdpPort, AfXdpQueue, Config};
use sheafio_mempool::{Burst, Frame, Mempool, PoolCache};
use sheafio_tests::PacketSocket;

/// The longest that anything may take: far above what it takes.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// What the kernel has in its own queues at most, between the peer and us: below that, nothing is lost there.
const IN_KERNEL: u64 = 64;

/// An open port, and the peer.
pub(crate) struct Bench<'a> {
    pub(crate) pool: &'static Mempool,
    pub(crate) port: AfXdpPort,
    pub(crate) queue: AfXdpQueue,
    pub(crate) cache: PoolCache,
    pub(crate) peer: &'a PacketSocket,
    /// Packets that the peer has sent.
    pub(crate) sent: u64,
}

impl<'a> Bench<'a> {
    pub(crate) fn open(
        interface: &str,
        config: &Config,
        pool: &'static Mempool,
        peer: &'a PacketSocket,
    ) -> Self {
        let mut port = af_xdp::open_with(interface, config, pool).unwrap_or_else(|error| panic!("{error}"));
        let (queue, cache) = (port.queue(0).unwrap(), pool.cache().unwrap());
        assert_eq!(port.mode(), config.mode);
        Self { pool, port, queue, cache, peer, sent: 0 }
    }

    /// The peer sends packets; when this returns, each has come to the XDP program.
    pub(crate) fn send(&mut self, packets: impl IntoIterator<Item = Vec<u8>>) {
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
    pub(crate) fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let (mut burst, mut received, start) = (Burst::new(), Vec::new(), Instant::now());
        while received.len() < count {
            assert!(
                start.elapsed() < PATIENCE,
                "{} of {count} packets came: {:?}, {:?}",
                received.len(),
                self.queue.counters().totals(),
                self.port.steer_handle().counts()
            );
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
    pub(crate) fn push(&mut self, burst: &mut Burst, packet: &[u8], most: usize) {
        let parts = packet.chunks(most).len();
        for (at, part) in packet.chunks(most).enumerate() {
            let mut frame = self.cache.alloc().expect("the pool has frames");
            frame.append(part.len()).unwrap().copy_from_slice(part);
            frame.set_continues(at + 1 < parts);
            burst.push(frame).unwrap();
        }
    }

    /// Sends packets, of one frame if they fit into one.
    pub(crate) fn transmit(&mut self, packets: impl IntoIterator<Item = Vec<u8>>) {
        let (mut burst, most) = (Burst::with_limit(Burst::MAX), self.pool.geometry().data_bytes() as usize);
        for packet in packets {
            self.push(&mut burst, &packet, most);
            self.transmit_burst(&mut burst);
        }
    }

    /// Sends all of a burst.
    pub(crate) fn transmit_burst(&mut self, burst: &mut Burst) {
        let start = Instant::now();
        while !burst.is_empty() {
            assert!(start.elapsed() < PATIENCE, "{} frames are not sent", burst.len());
            self.queue.tx_burst(&mut self.cache, burst);
        }
    }

    /// What arrives at the peer: so many packets.
    pub(crate) fn arrived(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut none = Burst::new();
        let mut arrived = Vec::new();
        while arrived.len() < count {
            self.queue.tx_burst(&mut self.cache, &mut none);
            let packet = self.peer.receive(PATIENCE);
            arrived.push(packet.unwrap_or_else(|| panic!("{} of {count} arrived", arrived.len())));
        }
        arrived
    }

    /// Nothing was dropped for any reason.
    pub(crate) fn assert_no_drops(&mut self) {
        self.queue.close(&mut self.cache);
        let totals = self.queue.counters().totals();
        assert_eq!(totals.all_drops().collect::<Vec<_>>(), [], "{totals:?}");
    }

    pub(crate) fn close(mut self) {
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
pub(crate) fn joined(packet: &[Frame]) -> Vec<u8> {
    packet.iter().flat_map(|frame| frame.iter().copied()).collect()
}

const HEADER_BYTES: usize = 14;

/// A packet of an experimental ethertype (IEEE 802), to nobody's address, with its number and a body that follows from
/// it.
pub(crate) fn packet(number: u32, len: usize) -> Vec<u8> {
    let header = [2, 0, 0, 0, 0, 0xaa, 2, 0, 0, 0, 0, 0xbb, 0x88, 0xb5];
    let body = sheafio_tests::datagram(number, len.saturating_sub(HEADER_BYTES));
    header.into_iter().chain(body).collect()
}

/// Numbered packets of this length.
pub(crate) fn packets(numbers: std::ops::Range<u32>, len: usize) -> impl Iterator<Item = Vec<u8>> {
    numbers.map(move |number| packet(number, len))
}

/// The numbers of packets, each of which must be whole and unchanged.
pub(crate) fn numbers(packets: &[Vec<u8>]) -> Vec<u32> {
    let number = |bytes: &Vec<u8>| {
        let number = u32::from_be_bytes(bytes[HEADER_BYTES..][..4].try_into().expect("4 bytes"));
        assert!(*bytes == packet(number, bytes.len()), "packet {number} of {} bytes changed", bytes.len());
        number
    };
    packets.iter().map(number).collect()
}

pub(crate) fn all(numbers: std::ops::Range<u32>) -> Vec<u32> {
    numbers.collect()
}
