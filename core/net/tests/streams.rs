//! Our TCP against smoltcp's, over a wire that loses, repeats and reorders packets: what arrives is what was sent.

use std::{collections::VecDeque, sync::Arc};

use proptest::prelude::*;
use sheafio_mempool::{Burst, Hugepages, Mempool, PoolCache};
use sheafio_net::{
    Counts, Headers,
    tcp::{Config, Input, Output, Server, Tcp},
};
use smoltcp::{
    iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet},
    phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken},
    socket::tcp,
    time::Instant,
    wire::{HardwareAddress, IpAddress, IpCidr, Ipv4Address, Ipv6Address},
};

const PORT: u16 = 7;
const OURS: [IpAddress; 2] = [
    IpAddress::Ipv4(Ipv4Address::new(10, 0, 0, 2)),
    IpAddress::Ipv6(Ipv6Address::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
];
const THEIRS: [IpAddress; 2] = [
    IpAddress::Ipv4(Ipv4Address::new(10, 0, 0, 1)),
    IpAddress::Ipv6(Ipv6Address::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
];

/// Sends back what it gets, and closes when the peer has.
struct Echo;

impl Server for Echo {
    type Session = ();

    fn serve(&mut self, (): &mut (), input: &mut Input<'_>, output: &mut Output<'_>) {
        while !input.is_empty() {
            let written = output.write(input.bytes());
            if written == 0 {
                return;
            }
            input.consume(written);
        }
        if input.is_ended() {
            output.close();
        }
    }
}

/// One direction of the wire: packets with the time at which they arrive.
#[derive(Default)]
struct Wire {
    packets: VecDeque<(u64, Vec<u8>)>,
}

/// What happens to packets on it, each in one of so many cases; 0 for never.
#[derive(Clone, Copy, Debug)]
struct Faults {
    lost: u32,
    repeated: u32,
    late: u32,
}

impl Wire {
    fn send(&mut self, now_us: u64, packet: Vec<u8>, faults: Faults, random: &mut fastrand::Rng) {
        let mut hits = |one_in: u32| one_in > 0 && random.u32(0..one_in) == 0;
        if hits(faults.lost) {
            return;
        }
        let arrives_us = now_us + if hits(faults.late) { 3_000 } else { 100 };
        if hits(faults.repeated) {
            self.packets.push_back((arrives_us + 1_500, packet.clone()));
        }
        self.packets.push_back((arrives_us, packet));
    }

    fn arrived(&mut self, now_us: u64) -> Option<Vec<u8>> {
        let at = self.packets.iter().position(|(arrives_us, _)| *arrives_us <= now_us)?;
        self.packets.remove(at).map(|(_, packet)| packet)
    }
}

/// The client's end of the wire.
struct Link {
    received: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    mtu: usize,
}

struct Received(Vec<u8>);
struct Sent<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push(packet);
        result
    }
}

impl Device for Link {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Sent<'_>)> {
        self.received.pop_front().map(|packet| (Received(packet), Sent(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sent<'_>> {
        Some(Sent(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

/// A client and our server, with a wire between them.
struct World {
    now_us: u64,
    random: fastrand::Rng,
    faults: Faults,
    to_server: Wire,
    to_client: Wire,
    link: Link,
    interface: Interface,
    sockets: SocketSet<'static>,
    pool: &'static Mempool,
    cache: PoolCache,
    tcp: Tcp<Echo>,
    out: Burst,
}

impl World {
    fn new(seed: u64, faults: Faults, config: &Config) -> Self {
        let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap();
        let cache = pool.cache().unwrap();
        let mut link = Link { received: VecDeque::new(), sent: Vec::new(), mtu: 1500 };
        let mut interface =
            Interface::new(InterfaceConfig::new(HardwareAddress::Ip), &mut link, Instant::from_micros(0));
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(THEIRS[0], 24)).unwrap();
            addresses.push(IpCidr::new(THEIRS[1], 64)).unwrap();
        });
        let config = Config { ports: vec![PORT], ..config.clone() };
        let tcp = Tcp::new(config, Echo, Arc::new(Counts::default()), 2048, (768, 256), 0).unwrap();
        Self {
            now_us: 0,
            random: fastrand::Rng::with_seed(seed),
            faults,
            to_server: Wire::default(),
            to_client: Wire::default(),
            link,
            interface,
            sockets: SocketSet::new(Vec::new()),
            pool,
            cache,
            tcp,
            out: Burst::with_limit(64),
        }
    }

    fn connect(&mut self, family: usize, local_port: u16, buffer: usize) -> SocketHandle {
        let buffers = || tcp::SocketBuffer::new(vec![0; buffer]);
        let mut socket = tcp::Socket::new(buffers(), buffers());
        socket.connect(self.interface.context(), (OURS[family], PORT), (THEIRS[family], local_port)).unwrap();
        self.sockets.add(socket)
    }

    /// A step of 100 µs.
    fn step(&mut self) {
        self.now_us += 100;
        while let Some(packet) = self.to_client.arrived(self.now_us) {
            self.link.received.push_back(packet);
        }
        self.interface.poll(Instant::from_micros(self.now_us as i64), &mut self.link, &mut self.sockets);
        for packet in std::mem::take(&mut self.link.sent) {
            self.to_server.send(self.now_us, packet, self.faults, &mut self.random);
        }
        self.tcp.set_now(self.now_us);
        while let Some(packet) = self.to_server.arrived(self.now_us) {
            let ethertype = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
            let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
            frame.extend(ethertype);
            frame.extend(packet);
            let headers = Headers::read(&frame).unwrap();
            self.tcp.receive(&headers, &frame, &mut self.cache, &mut self.out);
        }
        self.tcp.transmit(&mut self.cache, &mut self.out);
        for frame in self.out.iter() {
            assert_eq!(frame[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            self.to_client.send(self.now_us, frame[14..].to_vec(), self.faults, &mut self.random);
        }
        self.cache.free_burst(&mut self.out);
    }

    /// Sends a stream through an echo and reads it back, until the connection is closed on both sides.
    fn echoes(&mut self, handle: SocketHandle, bytes: &[u8], limit_us: u64) {
        let (mut sent, mut received) = (0, Vec::new());
        let end_us = self.now_us + limit_us;
        loop {
            assert!(self.now_us < end_us, "{sent} sent, {} received", received.len());
            self.step();
            let socket = self.sockets.get_mut::<tcp::Socket>(handle);
            if sent < bytes.len() && socket.can_send() {
                sent += socket.send_slice(&bytes[sent..]).unwrap();
                if sent == bytes.len() {
                    socket.close();
                }
            } else if bytes.is_empty() && socket.may_send() {
                socket.close();
            }
            if socket.can_recv() {
                socket
                    .recv(|piece| {
                        received.extend_from_slice(piece);
                        (piece.len(), ())
                    })
                    .unwrap();
            }
            if !socket.may_recv() && (sent == bytes.len() && !matches!(socket.state(), tcp::State::SynSent)) {
                break;
            }
        }
        assert_eq!(received.len(), bytes.len());
        assert!(received == bytes, "what came back is not what was sent");
    }

    /// All frames are home once the server is gone.
    fn end(mut self) {
        self.tcp.release(&mut self.cache);
        drop(self.cache);
        assert_eq!(self.pool.census().free(), 1024);
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}

const NO_FAULTS: Faults = Faults { lost: 0, repeated: 0, late: 0 };

#[test]
fn a_stream_comes_back_over_a_good_wire() {
    for family in [0, 1] {
        let mut world = World::new(1, NO_FAULTS, &Config { max_flows: 16, ..Config::default() });
        let handle = world.connect(family, 40_000, 65_535);
        world.echoes(handle, &pattern(100_000, 5), 10_000_000);
        let counts = world.tcp.counts();
        assert_eq!(counts.get(sheafio_net::Count::Retransmit), 0);
        world.end();
    }
}

#[test]
fn connections_end_and_leave_nothing() {
    let config = Config { max_flows: 16, time_wait_us: 1_000_000, ..Config::default() };
    let mut world = World::new(2, NO_FAULTS, &config);
    for round in 0..40 {
        let handle = world.connect(round % 2, 40_000 + round as u16, 4_000);
        world.echoes(handle, &pattern(round * 37, round as u64), 10_000_000);
    }
    for _ in 0..20_000 {
        world.step();
    }
    assert_eq!((world.tcp.flows(), world.tcp.half_open()), (0, 0));
    assert_eq!(world.pool.census().in_flight, 0);
    world.end();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_comes_back_over_a_bad_wire(
        seed in any::<u64>(),
        family in 0..2_usize,
        len in 0..60_000_usize,
        lost in prop_oneof![Just(0), 5..50_u32],
        repeated in prop_oneof![Just(0), 5..50_u32],
        late in prop_oneof![Just(0), 3..50_u32],
        (receive_bytes, send_bytes) in prop_oneof![Just((1, 1)), Just((65_535, 65_535)), (1..20_000_u32, 1..20_000_u32), Just((200_000, 200_000))],
        buffer in 500..80_000_usize,
    ) {
        let config = Config { max_flows: 3, receive_bytes, send_bytes, ..Config::default() };
        let mut world = World::new(seed, Faults { lost, repeated, late }, &config);
        let handle = world.connect(family, 40_000, buffer);
        world.echoes(handle, &pattern(len, seed), 2_000_000_000);
        world.end();
    }
}
