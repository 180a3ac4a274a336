//! Where the headers of a packet lie.
//!
//! Owns: nothing; `Headers` is four offsets and what was read on the way. Never does: look behind the IP header's own
//! length, or believe a length that the frame does not have. Invariant: `network <= transport <= end <= frame.len()`.
//!
//! ```text
//! | Ethernet, 0 to 2 VLAN tags | IP | options, extension headers | transport ... | padding |
//! 0                            network                          transport       end
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet};

use crate::{Count, checksum::Sum};

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of a VLAN tag (IEEE 802.1Q).
pub const VLAN_TAG_BYTES: usize = 4;

/// `ETH_P_IP`, `ETH_P_IPV6`, `ETH_P_ARP`, `ETH_P_8021Q`, `ETH_P_8021AD` (linux/if_ether.h).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;

/// More than any sane packet has, and few enough that walking them costs nothing.
const EXTENSIONS_MAX: usize = 8;

/// What lies behind the Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4 (RFC 791).
    Ipv4,
    /// IPv6 (RFC 8200).
    Ipv6,
    /// ARP (RFC 826).
    Arp,
}

/// Where the headers of a frame lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// What follows the Ethernet header and its tags.
    pub kind: Network,
    /// The transport protocol (IANA protocol numbers); not used for ARP.
    pub protocol: IpProtocol,
    /// Offset of the IP or ARP header in bytes from the frame's start: 14, or 18 or 22 with tags.
    pub network: u16,
    /// Offset of what the IP packet carries; for ARP the same as `network`.
    pub transport: u16,
    /// Offset of the end of the IP packet; behind it there is only padding.
    pub end: u16,
}

impl Headers {
    /// Finds the headers of a packet that lies in one frame.
    ///
    /// # Errors
    /// Why the packet can't be used: [`Count::Truncated`], [`Count::OtherEthertype`], [`Count::BadIpHeader`],
    /// [`Count::BadIpChecksum`], [`Count::Fragment`], [`Count::UnknownExtension`] or [`Count::UnknownOption`].
    #[inline]
    pub fn read(frame: &[u8]) -> Result<Self, Count> {
        let mut network = ETHERNET_BYTES;
        let mut ethertype = word(frame, network - 2)?;
        while matches!(ethertype, VLAN | SERVICE_VLAN) && network < ETHERNET_BYTES + 2 * VLAN_TAG_BYTES {
            network += VLAN_TAG_BYTES;
            ethertype = word(frame, network - 2)?;
        }
        let packet = frame.get(network..).ok_or(Count::Truncated)?;
        match ethertype {
            IPV4 => Self::read_ipv4(packet, network),
            IPV6 => Self::read_ipv6(packet, network),
            ARP => Ok(Self {
                kind: Network::Arp,
                protocol: IpProtocol::Unknown(0xff),
                network: network as u16,
                transport: network as u16,
                end: frame.len() as u16,
            }),
            _ => Err(Count::OtherEthertype),
        }
    }

    #[inline]
    fn read_ipv4(packet: &[u8], network: usize) -> Result<Self, Count> {
        let ip = Ipv4Packet::new_unchecked(packet);
        if packet.len() < 20 {
            return Err(Count::Truncated);
        }
        let (header, total) = (usize::from(ip.header_len()), usize::from(ip.total_len()));
        if ip.version() != 4 || header < 20 || header > total {
            return Err(Count::BadIpHeader);
        }
        if total > packet.len() {
            return Err(Count::Truncated);
        }
        if Sum::of(&packet[..header]).folded() != [0xff, 0xff] {
            return Err(Count::BadIpChecksum);
        }
        if ip.more_frags() || ip.frag_offset() > 0 {
            return Err(Count::Fragment);
        }
        Ok(Self {
            kind: Network::Ipv4,
            protocol: ip.next_header(),
            network: network as u16,
            transport: (network + header) as u16,
            end: (network + total) as u16,
        })
    }

    #[inline]
    fn read_ipv6(packet: &[u8], network: usize) -> Result<Self, Count> {
        const HEADER: usize = 40;
        if packet.len() < HEADER {
            return Err(Count::Truncated);
        }
        let ip = Ipv6Packet::new_unchecked(packet);
        let end = HEADER + usize::from(ip.payload_len());
        if ip.version() != 6 {
            return Err(Count::BadIpHeader);
        }
        if end > packet.len() {
            return Err(Count::Truncated);
        }
        let (protocol, transport) = skip_extensions(&packet[..end], ip.next_header(), HEADER)?;
        Ok(Self {
            kind: Network::Ipv6,
            protocol,
            network: network as u16,
            transport: (network + transport) as u16,
            end: (network + end) as u16,
        })
    }

    /// The identifiers of the frame's VLAN tags (IEEE 802.1Q, 12 bits each), the inner one below; 0 where there is none, and
    /// for a tag that only carries a priority.
    #[inline]
    pub fn vlan_ids(&self, frame: &[u8]) -> u32 {
        let tags = usize::from(self.network).saturating_sub(ETHERNET_BYTES) / VLAN_TAG_BYTES;
        (0..tags).fold(0, |ids, tag| {
            let id = word(frame, ETHERNET_BYTES + tag * VLAN_TAG_BYTES).unwrap_or(0) & 0x0fff;
            ids << 16 | u32::from(id)
        })
    }

    /// The source and the destination address of an IP packet; an IPv4 address as an IPv4-mapped one (RFC 4291 section
    /// 2.5.5.2).
    ///
    /// # Panics
    /// If these are not the frame's headers, or those of an ARP packet.
    #[inline]
    pub fn addresses(&self, frame: &[u8]) -> (Ipv6Addr, Ipv6Addr) {
        let packet = &frame[usize::from(self.network)..];
        match self.kind {
            Network::Ipv4 => {
                let ip = Ipv4Packet::new_unchecked(packet);
                (ip.src_addr().to_ipv6_mapped(), ip.dst_addr().to_ipv6_mapped())
            }
            Network::Ipv6 => {
                let ip = Ipv6Packet::new_unchecked(packet);
                (ip.src_addr(), ip.dst_addr())
            }
            Network::Arp => panic!("an ARP packet has no IP header"),
        }
    }

    /// The sum of the pseudo header of what the packet carries, with a length of it in bytes; the same for an answer of that
    /// length.
    ///
    /// # Panics
    /// If these are not the frame's headers, or those of an ARP packet.
    #[inline]
    pub fn pseudo_header(&self, frame: &[u8], len: u16) -> Sum {
        let addresses = match self.kind {
            Network::Ipv4 => 12..20,
            Network::Ipv6 => 8..40,
            Network::Arp => panic!("an ARP packet has no IP header"),
        };
        let network = usize::from(self.network);
        let addresses = &frame[network + addresses.start..network + addresses.end];
        Sum::of_pseudo_header(addresses, self.protocol).and_word(len)
    }

    /// The transport header and what follows it, without padding.
    ///
    /// # Panics
    /// If these are not the frame's headers.
    #[inline]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[usize::from(self.transport)..usize::from(self.end)]
    }
}

/// The 16-bit word at an offset, in network byte order.
#[inline]
fn word(bytes: &[u8], at: usize) -> Result<u16, Count> {
    let word = bytes.get(at..at + 2).ok_or(Count::Truncated)?;
    Ok(u16::from_be_bytes([word[0], word[1]]))
}

/// Goes over the extension headers that a receiver may pass by (RFC 8200 section 4): hop-by-hop and destination options,
/// and a routing header that has no segment left. Returns the protocol behind them, and where it starts.
#[inline]
fn skip_extensions(packet: &[u8], first: IpProtocol, start: usize) -> Result<(IpProtocol, usize), Count> {
    let (mut protocol, mut at) = (first, start);
    for _ in 0..=EXTENSIONS_MAX {
        match protocol {
            // The header for each hop is the first, or none that we know (RFC 8200 section 4.1).
            IpProtocol::HopByHop if at > start => return Err(Count::UnknownExtension),
            IpProtocol::HopByHop | IpProtocol::Ipv6Opts | IpProtocol::Ipv6Route => {}
            IpProtocol::Ipv6Frag => return Err(Count::Fragment),
            _ => return Ok((protocol, at)),
        }
        let header = packet.get(at..at + 8).ok_or(Count::Truncated)?;
        if protocol == IpProtocol::Ipv6Route && header[3] > 0 {
            return Err(Count::UnknownExtension);
        }
        let next = at + 8 + 8 * usize::from(header[1]);
        let options = packet.get(at + 2..next).ok_or(Count::Truncated)?;
        if protocol != IpProtocol::Ipv6Route {
            check_options(options)?;
        }
        (protocol, at) = (IpProtocol::from(header[0]), next);
    }
    Err(Count::UnknownExtension)
}

/// Whether a receiver may pass by all options of an extension header: those whose type says so, of which padding is one
/// (RFC 8200 section 4.2).
fn check_options(mut options: &[u8]) -> Result<(), Count> {
    const PAD1: u8 = 0;
    const ACTION: u8 = 0b1100_0000;
    while let [kind, rest @ ..] = options {
        if kind & ACTION != 0 {
            return Err(Count::UnknownOption);
        }
        options = if *kind == PAD1 {
            rest
        } else {
            let (len, data) = rest.split_first().ok_or(Count::BadIpHeader)?;
            data.get(usize::from(*len)..).ok_or(Count::BadIpHeader)?
        };
    }
    Ok(())
}

/// An IPv4-mapped address as the IPv4 address that it is.
#[inline]
pub fn as_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    address.to_ipv4_mapped()
}
