//! What the XDP program does with a packet, said again in Rust.
//!
//! Owns: nothing. Never does: run on the data path; applications may ask it what their rules mean, and tests hold
//! the XDP program against it. Invariant: it is written from the headers' definitions (IEEE 802.1Q-2018 9.6, RFC
//! 826, RFC 791 3.1, RFC 8200 3 and 4), and shares no code with `words.rs`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{ARP, ICMP, ICMP6, IPV4, IPV6, Prefix, Rule, SCTP, Steering, TAGS, TCP, Traffic, UDP, network};

/// The most VLAN tags and the most IPv6 extension headers that are looked through.
const MAX_TAGS: usize = 2;
const MAX_EXTENSIONS: usize = 6;
/// IPv6 extension headers that are looked through: hop-by-hop, routing, fragment, destination options.
const EXTENSIONS: [u8; 4] = [0, 43, FRAGMENT, 60];
const FRAGMENT: u8 = 44;

impl Steering {
    /// Whether a packet, from its Ethernet header on, is taken from the kernel.
    pub fn takes(&self, packet: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Only(rules) => {
                Headers::read(packet).is_some_and(|headers| rules.iter().any(|rule| rule.takes(&headers)))
            }
        }
    }
}

/// What rules ask for.
pub(super) struct Headers {
    ethertype: u16,
    destination: Option<IpAddr>,
    protocol: Option<u8>,
    port: Option<u16>,
}

impl Rule {
    fn takes(&self, headers: &Headers) -> bool {
        let traffic = match self.traffic {
            Traffic::Ethertype(ethertype) => ethertype == headers.ethertype,
            Traffic::Protocol(protocol) => {
                let version_fits = match protocol {
                    ICMP => headers.ethertype == IPV4,
                    ICMP6 => headers.ethertype == IPV6,
                    _ => true,
                };
                version_fits && headers.protocol == Some(protocol)
            }
        };
        let to = self.to.is_none_or(|Prefix { address, bits }| {
            headers.destination.is_some_and(|destination| {
                destination.is_ipv4() == address.is_ipv4() && network(destination, bits) == address
            })
        });
        traffic && to && self.port.is_none_or(|port| headers.port == Some(port))
    }
}

impl Headers {
    /// Reads the headers; `None` if one up to the IP header is cut short or contradicts itself.
    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        let mut packet = packet.get(12..)?;
        let mut ethertype = word(packet, 0)?;
        for _ in 0..MAX_TAGS {
            if TAGS.contains(&ethertype) {
                packet = packet.get(4..)?;
                ethertype = word(packet, 0)?;
            }
        }
        let headers = Self { ethertype, destination: None, protocol: None, port: None };
        match ethertype {
            ARP => Some(headers.read_arp(&packet[2..])),
            IPV4 => headers.read_ipv4(&packet[2..]),
            IPV6 => headers.read_ipv6(&packet[2..]),
            _ => Some(headers),
        }
    }

    fn read_arp(mut self, packet: &[u8]) -> Self {
        if let Some(packet) = packet.first_chunk::<28>()
            && packet[2..6] == [0x08, 0x00, 6, 4]
        {
            self.destination =
                Some(Ipv4Addr::from_octets([packet[24], packet[25], packet[26], packet[27]]).into());
        }
        self
    }

    fn read_ipv4(mut self, packet: &[u8]) -> Option<Self> {
        let fixed = packet.get(..20)?;
        let (version, header_bytes) = (fixed[0] >> 4, usize::from(fixed[0] & 0xf) * 4);
        let total_bytes = usize::from(word(fixed, 2)?);
        if version != 4 || header_bytes < 20 || total_bytes < header_bytes {
            return None;
        }
        self.protocol = Some(fixed[9]);
        self.destination = Some(Ipv4Addr::from(*fixed[16..].first_chunk()?).into());
        if word(fixed, 6)? % (1 << 13) == 0 {
            let datagram = &packet[..total_bytes.min(packet.len())];
            self.read_port(datagram.get(header_bytes..).unwrap_or_default());
        }
        Some(self)
    }

    fn read_ipv6(mut self, packet: &[u8]) -> Option<Self> {
        let fixed = packet.get(..40)?;
        if fixed[0] >> 4 != 6 {
            return None;
        }
        self.destination = Some(Ipv6Addr::from(*fixed[24..].first_chunk::<16>()?).into());
        let payload_bytes = usize::from(word(fixed, 4)?);
        let mut rest = &packet[40..packet.len().min(40 + payload_bytes)];
        let mut next = fixed[6];
        let mut seen = 0;
        while EXTENSIONS.contains(&next) {
            seen += 1;
            // The headers that are looked through must be there in their first 8 bytes.
            if seen > MAX_EXTENSIONS || rest.len() < 8 {
                return Some(self);
            }
            let is_fragment = next == FRAGMENT;
            next = rest[0];
            if is_fragment && word(rest, 2)? >> 3 != 0 {
                self.protocol = (!EXTENSIONS.contains(&next)).then_some(next);
                return Some(self);
            }
            let header_bytes = if is_fragment { 8 } else { (usize::from(rest[1]) + 1) * 8 };
            rest = rest.get(header_bytes..).unwrap_or_default();
        }
        self.protocol = Some(next);
        self.read_port(rest);
        Some(self)
    }

    /// The destination port lies at the same place in TCP, UDP and SCTP.
    fn read_port(&mut self, payload: &[u8]) {
        if matches!(self.protocol, Some(TCP | UDP | SCTP)) && payload.len() >= 4 {
            self.port = word(payload, 2);
        }
    }
}

/// Two bytes in the order of the wire.
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}
