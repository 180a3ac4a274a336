//! Where neighbours are, of whom we have asked.
//!
//! Owns: the last questions and their answers. Never does: grow, keep a packet that waits for an answer, or learn what
//! nobody asked for, so that no peer can fill the table or lead others astray at will. Invariant: each target is asked at
//! most once a second, and one that never answers is in the way of no other.
//!
//! Answers to packets do not need it, see `mod.rs`. It is for those who send again to a peer that stays silent: it may
//! have moved to another MAC. Only peers of the same network can be asked for; for others the router that they came
//! through is all that is known.

use std::net::{IpAddr, Ipv6Addr};

use sheafio_mempool::Frame;
use smoltcp::wire::EthernetAddress;

use super::{
    Address, Host,
    addresses::mapped,
    arp,
    limits::{Limits, Rate},
    ndisc, turn,
};
use crate::{
    Count,
    headers::{ETHERNET_BYTES, as_ipv4},
};

/// `RETRANS_TIMER` of RFC 4861 section 10; the same for ARP (RFC 1122 section 2.3.2.1).
const QUESTIONS_EACH: Rate = Rate { interval_ns: 1_000_000_000, burst: 1 };
/// So that a network that is gone as a whole is not flooded with questions, at 10,000 flows.
const QUESTIONS_ALL: Rate = Rate { interval_ns: 1_000_000, burst: 50 };
/// `REACHABLE_TIME` of RFC 4861 section 10.
const FRESH_NS: u64 = 30_000_000_000;

/// Targets that are remembered.
const TARGETS: usize = 256;

#[derive(Clone, Copy, Debug)]
struct Target {
    address: Ipv6Addr,
    asked_ns: u64,
    /// Where it is, and when it said so.
    heard: Option<(EthernetAddress, u64)>,
}

#[derive(Debug)]
pub(super) struct Neighbours {
    own: Box<[Address]>,
    questions: Limits,
    /// At most `TARGETS`; its room is there from the start.
    targets: Vec<Target>,
}

impl Neighbours {
    pub(super) fn new(own: &[Address]) -> Self {
        Self {
            own: own.into(),
            questions: Limits::new(QUESTIONS_EACH, QUESTIONS_ALL),
            targets: Vec::with_capacity(TARGETS),
        }
    }

    /// Notes where a neighbour says that it is, if it was asked for.
    pub(super) fn learn(&mut self, address: Ipv6Addr, mac: EthernetAddress, now_ns: u64) {
        if let Some(target) = self.targets.iter_mut().find(|target| target.address == address) {
            target.heard = Some((mac, now_ns));
        }
    }

    fn find(&self, address: Ipv6Addr, now_ns: u64) -> Option<EthernetAddress> {
        let (mac, heard_ns) = self.targets.iter().find(|target| target.address == address)?.heard?;
        (now_ns.saturating_sub(heard_ns) < FRESH_NS).then_some(mac)
    }

    /// Notes that a target is asked for, in place of the one that was asked for the longest time ago.
    fn note(&mut self, address: Ipv6Addr, now_ns: u64) {
        if let Some(target) = self.targets.iter_mut().find(|target| target.address == address) {
            target.asked_ns = now_ns;
            return;
        }
        let target = Target { address, asked_ns: now_ns, heard: None };
        if self.targets.len() < TARGETS {
            self.targets.push(target);
        } else if let Some(oldest) = self.targets.iter_mut().min_by_key(|target| target.asked_ns) {
            *oldest = target;
        }
    }
}

impl Host {
    /// Where a peer said in the last 30 seconds that it is, when [`ask`](Self::ask) had asked for it.
    pub fn neighbour(&self, peer: IpAddr, now_ns: u64) -> Option<[u8; 6]> {
        self.neighbours.find(mapped(peer), now_ns).map(|mac| mac.0)
    }

    /// Writes the question where a peer is into an empty frame: an ARP request or a neighbour solicitation from `own`,
    /// one of our addresses. `like` is the Ethernet header of a frame to that peer, 14 bytes or 18 or 22 with tags, which
    /// the question has as well.
    ///
    /// False if there is nothing to send: the addresses are shared with the kernel, the peer is in another network, it was
    /// asked for within the last second, or there is no room in the frame.
    #[must_use]
    pub fn ask(&mut self, peer: IpAddr, own: IpAddr, like: &[u8], frame: &mut Frame, now_ns: u64) -> bool {
        let target = mapped(peer);
        let is_on_link = self.neighbours.own.iter().any(|known| known.ip() == own && known.is_on_link(peer));
        if !self.is_own || !is_on_link || like.len() < ETHERNET_BYTES || !frame.is_empty() {
            return false;
        }
        if !self.neighbours.questions.allow(target, now_ns) {
            return false;
        }
        let Some(header) = frame.append(like.len()) else { return false };
        header.copy_from_slice(like);
        header[like.len() - 2..].copy_from_slice(if peer.is_ipv4() { &turn::ARP } else { &turn::IPV6 });
        let written = match (as_ipv4(target), as_ipv4(mapped(own))) {
            (Some(target), Some(own)) => {
                let question = arp::request(self.mac, own, target);
                arp::write(&question, like.len(), frame, EthernetAddress::BROADCAST)
            }
            _ => ndisc::write_solicitation(self.mac, mapped(own), target, like.len(), frame),
        };
        if written.is_err() {
            frame.trim_back(frame.len());
            return false;
        }
        self.neighbours.note(target, now_ns);
        self.counts.add(Count::NeighbourAsked);
        true
    }
}
