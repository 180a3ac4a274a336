//! The peers of a script, the server that they talk to, and the clock.
//!
//! Owns: the server, its pool, and what it has sent that was not looked at. Never does: send by itself. Invariant: at the
//! end of each script all frames are home.

use std::{cell::Cell, collections::VecDeque, net::IpAddr, sync::Arc};

use etherparse::{IpNumber, LinkExtSlice, NetSlice, SlicedPacket, TcpOptionElement, TransportSlice};
use sheafio_mempool::{Burst, Frame, Hugepages, Mempool, PoolCache};
use sheafio_net::{
    Count, Counts, Headers,
    tcp::{Config, Tcp},
};

pub(crate) use crate::client::{Client, PORT};
use crate::{
    client::{OUR_MAC, THEIR_MAC},
    segment::{ACK, FIN, PSH, RST, SYN, Segment, ack, syn, syn_ack},
    service::Service,
};

pub(crate) const FRAMES: u64 = 1024;

/// What a server has sent: to which of the peers, if to one of them.
#[derive(Debug)]
struct Answer {
    to: Option<usize>,
    segment: Segment,
}

/// A script.
pub(crate) struct Script {
    pub(crate) tcp: Option<Tcp<Service>>,
    pub(crate) pool: &'static Mempool,
    pub(crate) cache: Option<PoolCache>,
    pub(crate) out: Burst,
    pub(crate) now_us: u64,
    pub(crate) clients: Vec<Client>,
    /// The peer that the script speaks for.
    pub(crate) at: usize,
    pub(crate) mtu: usize,
    /// What goes to the server is not known, so what comes back is not watched.
    pub(crate) is_wild: bool,
    answers: VecDeque<Answer>,
    /// Frames that were taken out of the pool.
    pub(crate) hoard: Vec<Frame>,
}

/// A pool for the scripts of a thread, as long as none loses frames of it.
fn pool() -> &'static Mempool {
    thread_local!(static POOL: Cell<Option<&'static Mempool>> = const { Cell::new(None) });
    let usable = POOL.get().filter(|pool| pool.census().free() == FRAMES);
    let pool = usable
        .unwrap_or_else(|| Mempool::builder().frames(FRAMES).hugepages(Hugepages::Off).build().unwrap());
    POOL.set(Some(pool));
    pool
}

/// Settings with room for a few connections.
pub(crate) fn config() -> Config {
    Config { ports: vec![PORT], max_flows: 8, backlog: 8, ..Config::default() }
}

impl Script {
    /// A script with one peer, of IPv4.
    pub(crate) fn new(config: Config, service: Service) -> Self {
        let pool = pool();
        let mtu = usize::from(config.mtu);
        let now_us = 5_000_000;
        let tcp = Tcp::new(config, service, Arc::new(Counts::default()), 2048, (FRAMES, 0), now_us).unwrap();
        Self {
            tcp: Some(tcp),
            pool,
            cache: Some(pool.cache().unwrap()),
            out: Burst::with_limit(64),
            now_us,
            clients: vec![Client::v4(40_000)],
            at: 0,
            mtu,
            is_wild: false,
            answers: VecDeque::new(),
            hoard: Vec::new(),
        }
    }

    pub(crate) fn echo() -> Self {
        Self::new(config(), Service::echo())
    }

    /// Speaks for this peer from now on, which is a new one.
    pub(crate) fn join(&mut self, client: Client) -> usize {
        self.clients.push(client);
        self.at = self.clients.len() - 1;
        self.at
    }

    /// Speaks for this one instead of the first.
    pub(crate) fn with_client(mut self, client: Client) -> Self {
        self.clients[0] = client;
        self
    }

    pub(crate) fn client(&mut self) -> &mut Client {
        &mut self.clients[self.at]
    }

    pub(crate) fn tcp(&mut self) -> &mut Tcp<Service> {
        self.tcp.as_mut().unwrap()
    }

    pub(crate) fn service(&mut self) -> &mut Service {
        self.tcp().server()
    }

    pub(crate) fn count(&mut self, count: Count) -> u64 {
        self.tcp().counts().get(count)
    }

    /// A segment with absolute numbers, and what this peer's segments have in common.
    pub(crate) fn absolute(&self, segment: Segment) -> Segment {
        let client = &self.clients[self.at];
        let mut segment = segment;
        segment.seq = segment.seq.wrapping_add(client.number);
        if segment.has(ACK) {
            segment.ack = segment.ack.wrapping_add(client.theirs);
        }
        segment.window = segment.window.or(Some(client.window));
        if client.timestamps && segment.timestamps.is_none() && !segment.is_bare {
            segment.timestamps = Some((self.timestamp(), if segment.has(ACK) { client.echo } else { 0 }));
        }
        segment
    }

    /// What the peers' clock says now.
    pub(crate) fn timestamp(&self) -> u32 {
        (self.now_us / 1000) as u32 + 4_000_000_000
    }

    /// Sends a segment and lets the server answer.
    pub(crate) fn send(&mut self, segment: Segment) {
        self.burst([segment]);
    }

    /// Sends several, which the server sees in one burst.
    pub(crate) fn burst(&mut self, segments: impl IntoIterator<Item = Segment>) {
        for segment in segments {
            let segment = self.absolute(segment);
            let client = self.client();
            client.watch.sent(&segment);
            let packet = client.packet(&segment);
            self.raw(&packet);
        }
        self.settle();
    }

    /// Gives the server a packet, if headers can be found in it. What it answers waits for `settle`.
    pub(crate) fn raw(&mut self, packet: &[u8]) {
        let Ok(headers) = Headers::read(packet) else { return };
        let (tcp, cache) = (self.tcp.as_mut().unwrap(), self.cache.as_mut().unwrap());
        tcp.set_now(self.now_us);
        tcp.receive(&headers, packet, cache, &mut self.out);
        if self.out.room() == 0 {
            self.look();
        }
    }

    /// Lets the server send until it has nothing more to send. What a timer asks for comes with the call after it.
    pub(crate) fn settle(&mut self) {
        let mut idle = 0;
        while idle < 2 {
            let (tcp, cache) = (self.tcp.as_mut().unwrap(), self.cache.as_mut().unwrap());
            tcp.set_now(self.now_us);
            let added = tcp.transmit(cache, &mut self.out);
            let had = self.out.len();
            self.look();
            idle = if added == 0 && had == 0 { idle + 1 } else { 0 };
        }
    }

    /// Reads what the server has sent.
    pub(crate) fn look(&mut self) {
        for at in 0..self.out.len() {
            let packet = self.out[at].to_vec();
            assert!(packet.len() - 14 <= self.mtu + 8, "{} bytes", packet.len());
            let answer = self.read(&packet);
            self.answers.push_back(answer);
        }
        self.cache.as_mut().unwrap().free_burst(&mut self.out);
    }

    /// Reads and checks a packet of the server.
    fn read(&mut self, packet: &[u8]) -> Answer {
        let sliced = SlicedPacket::from_ethernet(packet).expect("a packet");
        assert_eq!(packet[6..12], OUR_MAC);
        let tags: Vec<u16> = (sliced.link_exts.iter())
            .map(|tag| if let LinkExtSlice::Vlan(tag) = tag { tag.vlan_identifier().value() } else { 0 })
            .collect();
        let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("no TCP") };
        let (remote, local): (IpAddr, IpAddr) = match sliced.net.as_ref().unwrap() {
            NetSlice::Ipv4(ip) => {
                let header = ip.header();
                assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
                assert!(header.dont_fragment() && header.ttl() == 64 && header.options().is_empty());
                let sum = tcp.calc_checksum_ipv4(header.source(), header.destination()).unwrap();
                assert_eq!(tcp.checksum(), sum);
                assert_eq!(usize::from(header.total_len()), packet.len() - 14 - 4 * tags.len());
                (header.destination_addr().into(), header.source_addr().into())
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header();
                assert_eq!((header.next_header(), header.hop_limit()), (IpNumber::TCP, 64));
                let sum = tcp.calc_checksum_ipv6(header.source(), header.destination()).unwrap();
                assert_eq!(tcp.checksum(), sum);
                assert_eq!(usize::from(header.payload_length()), packet.len() - 54 - 4 * tags.len());
                (header.destination_addr().into(), header.source_addr().into())
            }
            NetSlice::Arp(_) => panic!("ARP"),
        };
        assert_eq!((tcp.urgent_pointer(), tcp.urg(), tcp.ece(), tcp.cwr()), (0, false, false, false));
        let flags =
            [(FIN, tcp.fin()), (SYN, tcp.syn()), (RST, tcp.rst()), (PSH, tcp.psh()), (ACK, tcp.ack())];
        let mut segment = Segment {
            flags: flags.iter().map(|(flag, is_set)| if *is_set { *flag } else { 0 }).sum(),
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            window: Some(tcp.window_size()),
            payload: tcp.payload().to_vec(),
            ..Segment::default()
        };
        for option in tcp.options_iterator() {
            match option.expect("options that can be read") {
                TcpOptionElement::Noop => {}
                TcpOptionElement::MaximumSegmentSize(mss) => segment.mss = Some(mss),
                TcpOptionElement::WindowScale(shift) => segment.shift = Some(shift),
                TcpOptionElement::SelectiveAcknowledgementPermitted => segment.sack_permitted = true,
                TcpOptionElement::SelectiveAcknowledgement(first, rest) => {
                    segment.sacks = [Some(first)].into_iter().chain(rest).flatten().collect();
                }
                TcpOptionElement::Timestamp(value, echo) => segment.timestamps = Some((value, echo)),
            }
        }
        let port = tcp.destination_port();
        let is_wild = self.is_wild;
        let to = self.clients.iter().rposition(|client| {
            (client.remote, client.port) == (remote, port) && (is_wild || client.tags == tags)
        });
        let Some(to) = to else {
            assert_eq!(packet[..6], THEIR_MAC);
            return Answer { to: None, segment };
        };
        let client = &mut self.clients[to];
        if !self.is_wild {
            assert_eq!(packet[..6], client.mac, "the way back");
            assert_eq!((tcp.source_port(), local), (client.local_port, client.local));
        }
        if segment.has(SYN) {
            client.theirs = segment.seq;
        }
        if let Some((value, _)) = segment.timestamps {
            client.echo = value;
        }
        let default_mss = if client.remote.is_ipv4() { 536 } else { 1220 };
        if !self.is_wild {
            client.watch.answered(&segment, tcp.options().len(), default_mss);
        }
        segment.seq = segment.seq.wrapping_sub(client.theirs);
        if segment.has(ACK) {
            segment.ack = segment.ack.wrapping_sub(client.number);
        }
        for (start, end) in &mut segment.sacks {
            *start = start.wrapping_sub(client.number);
            *end = end.wrapping_sub(client.number);
        }
        Answer { to: Some(to), segment }
    }

    /// The next segment that the server has sent to this peer.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Segment {
        let answer = self.answers.pop_front().expect("the server has sent nothing more");
        assert_eq!(answer.to, Some(self.at), "{answer:?} is for another");
        answer.segment
    }

    /// Whether the next segment is for this peer.
    pub(crate) fn has_next(&self) -> bool {
        self.answers.front().is_some_and(|answer| answer.to == Some(self.at))
    }

    /// The next segment is this one.
    #[track_caller]
    #[allow(
        clippy::needless_pass_by_value,
        reason = "scripts make it in the call, and are read more often than this"
    )]
    pub(crate) fn expect(&mut self, expected: Segment) -> Segment {
        let came = self.next();
        let mut seen = came.clone();
        seen.flags &= !PSH;
        if expected.window.is_none() {
            seen.window = None;
        }
        match (&expected.timestamps, &mut seen.timestamps) {
            (None, timestamps) => *timestamps = None,
            (Some((value, _)), Some((seen, _))) => *seen = *value,
            _ => {}
        }
        assert!(seen == expected, "expected {expected:?}\n    came {came:?}, then {:?}", self.answers);
        came
    }

    /// The server has sent nothing more.
    #[track_caller]
    pub(crate) fn nothing(&mut self) {
        assert!(self.answers.is_empty(), "came {:?}", self.answers);
    }

    /// Forgets what the server has sent, and says how many packets that were.
    pub(crate) fn ignore(&mut self) -> usize {
        self.answers.drain(..).count()
    }

    /// Everything that the server has sent to this peer.
    pub(crate) fn all(&mut self) -> Vec<Segment> {
        (0..self.answers.len()).map(|_| self.next()).collect()
    }

    /// Lets time pass, in steps of a millisecond.
    pub(crate) fn wait(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_us += 1000;
            self.settle();
        }
    }

    /// Lets time pass in which nothing is sent.
    #[track_caller]
    pub(crate) fn silence(&mut self, ms: u64) {
        for passed in 1..=ms {
            self.wait(1);
            assert!(self.answers.is_empty(), "after {passed} ms came {:?}", self.answers);
        }
    }

    /// Opens a connection with what this SYN offers.
    #[track_caller]
    pub(crate) fn open_with(&mut self, offer: Segment) -> Segment {
        self.send(offer);
        let answer = self.next();
        assert_eq!(answer.flags, SYN | ACK, "{answer:?}");
        assert_eq!((answer.seq, answer.ack), (0, 1));
        self.send(ack(1, 1));
        self.nothing();
        answer
    }

    /// Opens a connection without options but a segment size.
    #[track_caller]
    pub(crate) fn open(&mut self) {
        self.open_with(syn().mss(1460));
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The frames that are lost are the least of it now; without this the pool says so in a second panic.
            std::mem::forget((self.tcp.take(), std::mem::take(&mut self.hoard), self.cache.take()));
            std::mem::forget(std::mem::take(&mut self.out));
            return;
        }
        self.look();
        self.feed();
        let mut cache = self.cache.take().unwrap();
        self.tcp.take().unwrap().release(&mut cache);
        drop(cache);
        let census = self.pool.census();
        assert_eq!((census.free(), census.in_flight), (FRAMES, 0), "frames are missing");
    }
}

/// The answer to a SYN that offers no more than a segment size.
pub(crate) fn plain_syn_ack() -> Segment {
    syn_ack().mss(1460)
}
