//! A host with packet memory of its own.

use std::{net::IpAddr, sync::Arc};

use sheafio_mempool::{Burst, Frame, Hugepages, Mempool, PoolCache};
use sheafio_net::{Count, Counts, Headers, Host, HostConfig, Verdict};

use crate::{
    oracle,
    packets::{OUR_MAC, OUR_V4, OUR_V6, with_tags},
};

const FRAMES: usize = 64;

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answer(Vec<u8>),
    Dropped(Count),
    Tcp(Headers),
}

impl Outcome {
    /// The answer's bytes.
    pub(crate) fn answer(self) -> Vec<u8> {
        match self {
            Self::Answer(bytes) => bytes,
            other => panic!("no answer: {other:?}"),
        }
    }
}

pub(crate) struct Bench {
    pool: &'static Mempool,
    cache: PoolCache,
    host: Host,
    counts: Arc<Counts>,
    pub(crate) now_ns: u64,
}

/// Ports 7 and 5000 echo on two addresses of either kind.
pub(crate) fn config(is_own: bool) -> HostConfig {
    let addresses =
        [format!("{OUR_V4}/24"), "192.0.2.9/30".into(), format!("{OUR_V6}/64"), "fe80::9/64".into()];
    HostConfig {
        mac: OUR_MAC,
        addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
        is_own,
        udp_ports: vec![5000, 7],
        udp_response_bytes: None,
        icmp: true,
        announces: is_own,
    }
}

impl Bench {
    pub(crate) fn new(config: &HostConfig) -> Self {
        let pool =
            Mempool::builder().frames(FRAMES as u64).hugepages(Hugepages::Off).build().expect("a pool");
        let counts = Arc::new(Counts::default());
        Self {
            pool,
            cache: pool.cache().expect("a cache"),
            host: Host::new(config, counts.clone()),
            counts,
            now_ns: 0,
        }
    }

    /// One with addresses of its own.
    pub(crate) fn own() -> Self {
        Self::new(&config(true))
    }

    /// One that shares them with the kernel.
    pub(crate) fn shared() -> Self {
        Self::new(&config(false))
    }

    /// Starts again with another host, on the same memory.
    pub(crate) fn restart(&mut self, config: &HostConfig) {
        self.counts = Arc::new(Counts::default());
        self.host = Host::new(config, self.counts.clone());
        self.now_ns = 0;
    }

    pub(crate) fn count(&self, count: Count) -> u64 {
        self.counts.get(count)
    }

    /// Lets the host answer a packet, and checks what it did.
    pub(crate) fn send(&mut self, packet: &[u8]) -> Outcome {
        self.send_frame(|frame| frame.append(packet.len()).expect("room").copy_from_slice(packet))
    }

    /// As `send`, with a frame as the test likes it.
    pub(crate) fn send_frame(&mut self, fill: impl FnOnce(&mut Frame)) -> Outcome {
        let mut frame = self.cache.alloc().expect("a frame");
        fill(&mut frame);
        let mut request = frame.to_vec();
        if let Some(tag) =
            frame.rx_metadata().and_then(|metadata| metadata.vlan).filter(|_| request.len() >= 12)
        {
            // The device took it out; the host is to act as if it had not.
            let (protocol, tag) = (tag.protocol.to_be_bytes(), tag.tag.to_be_bytes());
            request = with_tags(&request, &[[protocol[0], protocol[1], tag[0], tag[1]]]);
        }
        let before = Count::ALL.iter().map(|&count| self.counts.get(count)).collect();
        let mut packet = [frame];
        let verdict = self.host.answer(&mut packet, self.now_ns);
        let [frame] = packet;
        let outcome = match verdict {
            Verdict::Send => Outcome::Answer(frame.to_vec()),
            Verdict::Drop(count) => Outcome::Dropped(count),
            Verdict::Tcp(headers) => Outcome::Tcp(headers),
        };
        self.cache.free(frame);
        oracle::check(&request, &outcome, before, &self.counts);
        outcome
    }

    /// Two frames of one packet.
    pub(crate) fn send_in_two(&mut self, packet: &[u8]) -> Verdict {
        let mut frames = [self.cache.alloc().expect("a frame"), self.cache.alloc().expect("a frame")];
        for frame in &mut frames {
            frame.append(packet.len()).expect("room").copy_from_slice(packet);
        }
        frames[0].set_continues(true);
        let verdict = self.host.answer(&mut frames, self.now_ns);
        for frame in frames {
            self.cache.free(frame);
        }
        verdict
    }

    /// What is announced now, into a burst with so much room.
    pub(crate) fn announced(&mut self, room: usize) -> Vec<Vec<u8>> {
        let mut burst = Burst::with_limit(room);
        let count = self.host.announce(&mut self.cache, &mut burst, self.now_ns);
        assert_eq!(count, burst.len());
        let frames = burst.iter().map(|frame| frame.to_vec()).collect();
        self.cache.free_burst(&mut burst);
        frames
    }

    /// Takes all frames that there are, does something, and gives them back.
    pub(crate) fn without_frames<T>(&mut self, test: impl FnOnce(&mut Self) -> T) -> T {
        let mut all = Burst::with_limit(FRAMES);
        assert_eq!(self.cache.alloc_burst(&mut all, FRAMES), FRAMES);
        let result = test(self);
        self.cache.free_burst(&mut all);
        result
    }

    /// The question where a peer is, if there is one.
    pub(crate) fn ask(&mut self, peer: &str, own: &str, like: &[u8]) -> Option<Vec<u8>> {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut frame = self.cache.alloc().expect("a frame");
        let asked = self.host.ask(ip(peer), ip(own), like, &mut frame, self.now_ns);
        let question = frame.to_vec();
        self.cache.free(frame);
        assert_eq!(asked, !question.is_empty());
        asked.then_some(question)
    }

    pub(crate) fn neighbour(&self, peer: &str) -> Option<[u8; 6]> {
        self.host.neighbour(peer.parse().expect("an address"), self.now_ns)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.pool.census().free(), FRAMES as u64, "all frames are home");
        }
    }
}
