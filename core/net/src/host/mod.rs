//! A host's answers: ARP, neighbour discovery, ping, UDP echo; and which TCP packets are for us at all.
//!
//! Owns: what one lcore must know to answer for a set of addresses. Never does: allocate once it is made, copy a packet, or
//! keep one; answers are written where the request lies. Invariant: an answer goes to one host, which is not us: sources
//! and MACs that stand for many, for nobody or for ourselves are refused before anything else looks at the packet, each
//! under a name of its own.
//!
//! Two ways to have addresses:
//! - *shared* with the kernel, which answers ARP, ND and all that is not steered to us. What reaches us and is not served
//!   is a mistake of the steering, and dropped; errors about it are the kernel's business.
//! - *our own*: nobody else speaks for them, so we answer ARP and ND, announce them, and say which ports are closed.
//!
//! Answers go to the MAC that the request came from, so that no next hop has to be found before the first answer, and no
//! dead one can be in the way of others. Who sends unasked, such as TCP when it sends again, may find that the peer has
//! another MAC by now: for that alone there is a table of neighbours (`neighbours.rs`), of those who were asked for.
//!
//! What lies where: `mod` judges addresses and hands packets on; `udp`, `icmp`, `arp` and `ndisc` answer; `turn` turns a
//! packet's Ethernet and IP headers round; `announce` speaks first; `addresses` and `limits` are tables.

mod addresses;
mod announce;
mod arp;
mod icmp;
mod limits;
mod ndisc;
mod neighbours;
mod turn;
mod udp;

use std::{net::Ipv6Addr, sync::Arc};

use sheafio_mempool::Frame;
use smoltcp::wire::{EthernetAddress, IpProtocol};

pub use addresses::{Address, AddressError};
pub use udp::is_chatterer;

use crate::{
    Count, Counts, Headers,
    headers::{Network, as_ipv4},
};

use self::{
    addresses::Addresses, announce::Announcements, limits::Limits, neighbours::Neighbours, udp::Service,
};

/// What a host is to be.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The port's Ethernet address.
    pub mac: [u8; 6],
    /// The addresses that are served.
    pub addresses: Vec<Address>,
    /// Whether they are ours alone; else they are shared with the kernel, which answers ARP and ND and sends errors.
    pub is_own: bool,
    /// The UDP ports that echo.
    pub udp_ports: Vec<u16>,
    /// Bytes of the answer to each datagram: its first 64 ones (or all, if it has fewer), over and over; `None`: what came.
    /// Up to what a packet of the link carries behind its IP and UDP headers, for nothing is sent in fragments. Packets
    /// whose answer does not fit into a frame are dropped ([`Count::NoRoomInFrame`]); a datagram without bytes is answered
    /// by one.
    pub udp_response_bytes: Option<u16>,
    /// Whether pings are answered.
    pub icmp: bool,
    /// Whether this is the lcore that announces the addresses, if they are our own: one of those that share a port.
    pub announces: bool,
}

impl HostConfig {
    /// A host with addresses that it shares with the kernel, and nothing of its own but TCP.
    pub fn shared(mac: [u8; 6], addresses: Vec<Address>) -> Self {
        Self {
            mac,
            addresses,
            is_own: false,
            udp_ports: Vec::new(),
            udp_response_bytes: None,
            icmp: false,
            announces: false,
        }
    }
}

/// What is to become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame holds the answer now: send it.
    Send,
    /// There is no answer: free the frames. Why is counted already.
    Drop(Count),
    /// It is TCP, for one of our addresses, from one that can be answered. Its own header has not been looked at.
    Tcp(Headers),
}

/// One lcore's answers for the addresses of one port.
#[derive(Debug)]
pub struct Host {
    counts: Arc<Counts>,
    mac: EthernetAddress,
    addresses: Addresses,
    udp: Service,
    is_own: bool,
    icmp: bool,
    // Cold: own addresses only.
    announcements: Announcements,
    neighbours: Neighbours,
    /// Of errors, by target.
    errors: Limits,
    /// Of defences against others that claim an address of ours.
    defences: Limits,
}

impl Host {
    /// A host that counts in `counts`, whose one writer is the thread that uses the host.
    pub fn new(config: &HostConfig, counts: Arc<Counts>) -> Self {
        let addresses = Addresses::new(&config.addresses);
        Self {
            counts,
            mac: EthernetAddress(config.mac),
            announcements: Announcements::new(config.is_own && config.announces, &addresses),
            addresses,
            udp: Service::new(&config.udp_ports, config.udp_response_bytes),
            is_own: config.is_own,
            icmp: config.icmp,
            neighbours: Neighbours::new(&config.addresses),
            errors: Limits::new(icmp::ERRORS_EACH, icmp::ERRORS_ALL),
            defences: Limits::new(arp::DEFENCES_EACH, arp::DEFENCES_ALL),
        }
    }

    /// Writes the answer to a received packet in its place, or says why there is none. `packet` is all of its frames;
    /// `now_ns` a time in ns from any start, that does not go back.
    ///
    /// A VLAN tag that the device took out of the packet, and told of, is put back, so the answer has it as well.
    #[inline]
    pub fn answer(&mut self, packet: &mut [Frame], now_ns: u64) -> Verdict {
        match self.judge(packet, now_ns) {
            Ok(Outcome::Tcp(headers)) => Verdict::Tcp(headers),
            Ok(Outcome::Answered(count)) => {
                self.counts.add(count);
                Verdict::Send
            }
            Err(count) => {
                self.counts.add(count);
                Verdict::Drop(count)
            }
        }
    }

    #[inline]
    fn judge(&mut self, packet: &mut [Frame], now_ns: u64) -> Result<Outcome, Count> {
        let [frame] = packet else { return Err(Count::SeveralFrames) };
        turn::restore_tag(frame)?;
        let headers = Headers::read(frame)?;
        if headers.kind == Network::Arp {
            return self.answer_arp(&headers, frame, now_ns);
        }
        if ndisc::is_neighbour_discovery(&headers, frame) {
            return self.answer_ndisc(&headers, frame, now_ns);
        }
        let source = self.admit(&headers, frame)?;
        match (headers.protocol, headers.kind) {
            (IpProtocol::Tcp, _) => Ok(Outcome::Tcp(headers)),
            (IpProtocol::Udp, _) => match self.udp.answer(&headers, frame, self.mac, &self.counts) {
                Err(Count::PortNotServed) if self.is_own => self.refuse(&headers, frame, source, now_ns),
                result => result,
            },
            (IpProtocol::Icmp, Network::Ipv4) if self.icmp => icmp::answer_v4(&headers, frame, self.mac),
            (IpProtocol::Icmpv6, Network::Ipv6) if self.icmp => icmp::answer_v6(&headers, frame, self.mac),
            (IpProtocol::Icmp, Network::Ipv4) | (IpProtocol::Icmpv6, Network::Ipv6) => {
                Err(Count::IcmpNotServed)
            }
            _ => Err(Count::OtherProtocol),
        }
    }

    /// Whether an IP packet is for us and can be answered; the address that it is from.
    #[inline]
    fn admit(&self, headers: &Headers, frame: &[u8]) -> Result<Ipv6Addr, Count> {
        let (destination, source) = turn::macs(frame);
        if destination != self.mac {
            // A packet to one address in a frame to many is to be discarded (RFC 1122 section 3.3.6).
            return Err(if destination.is_unicast() { Count::OtherMac } else { Count::GroupMac });
        }
        self.check_source_mac(source)?;
        let (from, to) = headers.addresses(frame);
        if headers.kind == Network::Ipv6 && (as_ipv4(from).is_some() || as_ipv4(to).is_some()) {
            // It would pass for the IPv4 address from here on; on no wire it has a meaning (RFC 4291 section 2.5.5.2).
            return Err(Count::MappedAddress);
        }
        self.addresses.check_destination(to)?;
        self.addresses.check_source(from)?;
        Ok(from)
    }

    /// Whether an answer can go to an Ethernet address.
    #[inline]
    fn check_source_mac(&self, source: EthernetAddress) -> Result<(), Count> {
        if source == self.mac || !source.is_unicast() || source.0 == [0; 6] {
            return Err(Count::SourceMac);
        }
        Ok(())
    }

    /// Answers a UDP packet to a port that is not served, unless its sender has had enough of that.
    #[cold]
    fn refuse(
        &mut self,
        headers: &Headers,
        frame: &mut Frame,
        source: Ipv6Addr,
        now_ns: u64,
    ) -> Result<Outcome, Count> {
        if !self.errors.allow(source, now_ns) {
            return Err(Count::ErrorLimited);
        }
        icmp::port_unreachable(headers, frame, self.mac)
    }
}

/// What became of a packet that was not dropped.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// The frame is to be sent; what it counts as.
    Answered(Count),
    Tcp(Headers),
}
