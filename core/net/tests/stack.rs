//! A host with a TCP server as a whole: where it sends to when a peer falls silent.

use std::sync::Arc;

use etherparse::{PacketBuilder, PacketHeaders, TransportHeader};
use sheafio_mempool::{Burst, Hugepages, Mempool, PoolCache};
use sheafio_net::{
    Count, Counts, Host, HostConfig, Stack,
    tcp::{Config, Input, Output, Server, Tcp},
};

const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Where the peer is at first, and where it moves to.
const PEER_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]];
const OURS: [u8; 4] = [10, 0, 0, 2];
const ARP: [u8; 2] = [8, 6];

/// Says something as soon as it is asked.
struct Talks;

impl Server for Talks {
    type Session = ();

    fn serve(&mut self, (): &mut (), input: &mut Input<'_>, output: &mut Output<'_>) {
        input.consume(input.bytes().len());
        output.write(b"hello");
    }
}

/// A stack, and the peer's side of the wire.
struct Bench {
    stack: Stack<Talks>,
    counts: Arc<Counts>,
    cache: PoolCache,
    now_ns: u64,
}

impl Bench {
    fn new(is_own: bool) -> Self {
        let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap();
        let counts = Arc::new(Counts::default());
        let addresses = vec!["10.0.0.2/24".parse().unwrap()];
        let host = HostConfig { is_own, ..HostConfig::shared(OUR_MAC, addresses) };
        let config = Config { ports: vec![7], max_flows: 4, ..Config::default() };
        let tcp = Tcp::new(config, Talks, counts.clone(), 2048, (100, 0), 0).unwrap();
        let stack = Stack::new(Host::new(&host, counts.clone()), tcp);
        Self { stack, counts, cache: pool.cache().unwrap(), now_ns: 1_000_000_000 }
    }

    /// Hands a packet in, if there is one, and returns what comes out.
    fn poll(&mut self, packet: Option<&[u8]>) -> Vec<Vec<u8>> {
        let (mut rx, mut tx) = (Burst::new(), Burst::with_limit(64));
        if let Some(packet) = packet {
            let mut frame = self.cache.alloc().unwrap();
            frame.append(packet.len()).unwrap().copy_from_slice(packet);
            rx.push(frame).unwrap();
        }
        self.stack.poll(self.now_ns, &mut self.cache, &mut rx, &mut tx);
        let sent = tx.iter().map(|frame| frame.to_vec()).collect();
        self.cache.free_burst(&mut tx);
        sent
    }

    /// Goes on for some time, in steps of 5 ms.
    fn wait(&mut self, ms: u64) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        for _ in 0..ms / 5 {
            self.now_ns += 5_000_000;
            sent.extend(self.poll(None));
        }
        sent
    }

    /// A peer of another network or of ours opens a connection and asks for something. Returns our answer's packet.
    fn ask(&mut self, peer: [u8; 4]) -> Vec<u8> {
        let packet = |seq, ack: Option<u32>, payload: &[u8]| {
            let builder = PacketBuilder::ethernet2(PEER_MACS[0], OUR_MAC).ipv4(peer, OURS, 64);
            let tcp = builder.tcp(40_000, 7, seq, 60_000);
            let tcp = match ack {
                None => tcp.syn(),
                Some(number) => tcp.ack(number),
            };
            let mut bytes = Vec::new();
            tcp.write(&mut bytes, payload).unwrap();
            bytes
        };
        let opened = self.poll(Some(&packet(0, None, b"")));
        let Some(TransportHeader::Tcp(syn)) =
            PacketHeaders::from_ethernet_slice(&opened[0]).unwrap().transport
        else {
            panic!("no TCP: {opened:?}")
        };
        let answer = self.poll(Some(&packet(1, Some(syn.sequence_number + 1), b"x")));
        assert_eq!((answer.len(), &answer[0][..6]), (1, &PEER_MACS[0][..]));
        answer.into_iter().next().unwrap()
    }

    /// Everything comes home.
    fn end(mut self) {
        self.stack.release(&mut self.cache);
    }
}

/// An ARP request of ours for the peer.
fn is_question(packet: &[u8], peer: [u8; 4]) -> bool {
    packet[12..14] == ARP && packet[..6] == [0xff; 6] && packet[20..22] == [0, 1] && packet[38..42] == peer
}

#[test]
fn a_silent_peer_is_looked_for_and_found_elsewhere() {
    let peer = [10, 0, 0, 1];
    let mut bench = Bench::new(true);
    bench.ask(peer);
    let sent = bench.wait(4_500);
    let questions = sent.iter().filter(|packet| is_question(packet, peer)).count();
    let to_old = sent.iter().filter(|packet| packet[12..14] == [8, 0]).collect::<Vec<_>>();
    // Timeouts at 50, 150, 350, 750, 1550 and 3150 ms: from the second one on the peer is silent, and once a second it is
    // asked for.
    assert_eq!((questions, bench.counts.get(Count::NeighbourAsked)), (3, 3));
    assert!(!to_old.is_empty() && to_old.iter().all(|packet| packet[..6] == PEER_MACS[0]));

    let mut reply = [&OUR_MAC[..], &PEER_MACS[1], &ARP, &[0, 1, 8, 0, 6, 4, 0, 2]].concat();
    reply.extend([&PEER_MACS[1][..], &peer, &OUR_MAC, &OURS].concat());
    assert_eq!(bench.poll(Some(&reply)), Vec::<Vec<u8>>::new());
    let sent = bench.wait(10_000);
    let again: Vec<_> = sent.iter().filter(|packet| packet.ends_with(b"hello")).collect();
    assert!(!again.is_empty() && again.iter().all(|packet| packet[..6] == PEER_MACS[1]), "{sent:?}");
    bench.end();
}

/// Behind a router there is nobody to be asked for, and where the kernel has the address too, asking is its business.
#[test]
fn nobody_is_looked_for_behind_a_router_or_beside_the_kernel() {
    for (is_own, peer) in [(true, [10, 0, 1, 1]), (false, [10, 0, 0, 1])] {
        let mut bench = Bench::new(is_own);
        bench.ask(peer);
        let sent = bench.wait(10_000);
        assert!(
            sent.iter().all(|packet| packet[..6] == PEER_MACS[0] && packet[12..14] == [8, 0]),
            "{sent:?}"
        );
        assert!(sent.len() >= 2);
        bench.end();
    }
}
