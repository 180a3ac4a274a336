//! Who a flow is with: the four of its addresses and ports, and the way back to its sender.

use std::{
    hash::{Hash, Hasher},
    net::Ipv6Addr,
};

use smoltcp::wire::IpProtocol;

use crate::{Headers, checksum::Sum, headers::Network};

/// A connection's name: both addresses and ports, and the VLAN, for two of them may use the same addresses. IPv4 addresses
/// are mapped ones (RFC 4291 section 2.5.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) remote: Ipv6Addr,
    pub(super) local: Ipv6Addr,
    pub(super) remote_port: u16,
    pub(super) local_port: u16,
    /// As [`Headers::vlan_ids`] has them.
    pub(super) vlan_ids: u32,
}

impl Key {
    /// Of a packet that carries TCP. Any name if it does not, or is cut: that is found out later.
    #[inline]
    pub(super) fn of(headers: &Headers, packet: &[u8]) -> Self {
        let (remote, local) = match headers.kind {
            Network::Ipv4 | Network::Ipv6 => headers.addresses(packet),
            Network::Arp => (Ipv6Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED),
        };
        let [a, b, c, d] = headers.payload(packet).first_chunk().copied().unwrap_or_default();
        let (remote_port, local_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self { remote, local, remote_port, local_port, vlan_ids: headers.vlan_ids(packet) }
    }

    pub(super) fn is_ipv4(&self) -> bool {
        self.remote.to_ipv4_mapped().is_some()
    }

    #[inline]
    fn ports(&self) -> u32 {
        u32::from(self.remote_port) << 16 | u32::from(self.local_port)
    }
}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from(self.remote));
        state.write_u128(u128::from(self.local));
        state.write_u64(u64::from(self.vlan_ids) << 32 | u64::from(self.ports()));
    }
}

/// The longest way: Ethernet, two VLAN tags, IPv6.
const LONGEST: usize = 22 + 40;
/// Hops that our packets may take (RFC 1700).
const HOP_LIMIT: u8 = 64;

/// All headers of a segment in front of TCP's, on the way back to a sender, with the VLAN tags that its packets have.
/// The packet's length is left open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    header: [u8; LONGEST],
    len: u8,
    /// Offset of the IP header.
    network: u8,
    is_ipv4: bool,
    /// Sums without lengths: of an IPv4 header, and of TCP's pseudo header.
    network_sum: Sum,
    pseudo_sum: Sum,
}

impl Path {
    /// The way back of a packet.
    pub(super) fn back(headers: &Headers, packet: &[u8]) -> Self {
        let network = usize::from(headers.network);
        let mut header = [0; LONGEST];
        header[..6].copy_from_slice(&packet[6..12]);
        header[6..12].copy_from_slice(&packet[..6]);
        header[12..network].copy_from_slice(&packet[12..network]);
        let from = &packet[network..];
        let ip = &mut header[network..];
        let is_ipv4 = headers.kind == Network::Ipv4;
        let (len, pseudo_sum) = if is_ipv4 {
            // Not to be fragmented, so that no two packets need different identifications (RFC 791, RFC 6864).
            ip[..12].copy_from_slice(&[
                0x45,
                0,
                0,
                0,
                0,
                0,
                0x40,
                0,
                HOP_LIMIT,
                IpProtocol::Tcp.into(),
                0,
                0,
            ]);
            ip[12..16].copy_from_slice(&from[16..20]);
            ip[16..20].copy_from_slice(&from[12..16]);
            (20, Sum::of_pseudo_header(&ip[12..20], IpProtocol::Tcp))
        } else {
            // RFC 8200 section 3.
            ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, IpProtocol::Tcp.into(), HOP_LIMIT]);
            ip[8..24].copy_from_slice(&from[24..40]);
            ip[24..40].copy_from_slice(&from[8..24]);
            (40, Sum::of_pseudo_header(&ip[8..40], IpProtocol::Tcp))
        };
        let network_sum = Sum::of(&ip[..20]);
        Self { header, len: (network + len) as u8, network: network as u8, is_ipv4, network_sum, pseudo_sum }
    }

    /// Goes the way back of this packet from now on, which is of the same flow: its sender may be another by now, such as
    /// the gateway that took the place of one that has failed.
    #[inline]
    pub(super) fn follow(&mut self, packet: &[u8]) {
        if let Some(&[_, _, _, _, _, _, ref source @ ..]) = packet.first_chunk::<12>()
            && self.header[..6] != *source
        {
            self.header[..6].copy_from_slice(source);
        }
    }

    /// Goes to this Ethernet address from now on.
    pub(super) fn lead(&mut self, mac: [u8; 6]) {
        self.header[..6].copy_from_slice(&mac);
    }

    /// The Ethernet header, with VLAN tags if there are any.
    pub(super) fn ethernet(&self) -> &[u8] {
        &self.header[..usize::from(self.network)]
    }

    /// Bytes of the headers.
    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Writes the headers for a segment of so many bytes, and returns the sum of its pseudo header.
    #[inline]
    pub(super) fn write(&self, packet: &mut [u8], segment_bytes: usize) -> Sum {
        let network = usize::from(self.network);
        packet[..self.len()].copy_from_slice(&self.header[..self.len()]);
        let ip = &mut packet[network..];
        if self.is_ipv4 {
            let total = (segment_bytes + 20) as u16;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[10..12].copy_from_slice(&self.network_sum.and_word(total).finished());
        } else {
            ip[4..6].copy_from_slice(&(segment_bytes as u16).to_be_bytes());
        }
        self.pseudo_sum.and_word(segment_bytes as u16)
    }
}
