//! Who a flow is with: the four of its addresses and ports, and the way back to its sender.

use std::{
    hash::{Hash, Hasher},
    net::Ipv6Addr,
};

use crate::headers::ETHERNET_BYTES;

/// A connection's name: both addresses and ports. IPv4 addresses are mapped ones (RFC 4291 section 2.5.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) remote: Ipv6Addr,
    pub(super) local: Ipv6Addr,
    pub(super) remote_port: u16,
    pub(super) local_port: u16,
}

impl Key {
    #[inline]
    pub(super) fn is_ipv4(&self) -> bool {
        self.remote.to_ipv4_mapped().is_some()
    }

    fn ports(&self) -> u32 {
        u32::from(self.remote_port) << 16 | u32::from(self.local_port)
    }
}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from(self.remote));
        state.write_u128(u128::from(self.local));
        state.write_u32(self.ports());
    }
}

/// The longest header: Ethernet and two VLAN tags.
const LONGEST: usize = 22;

/// The Ethernet header of a packet back to a sender, with the tags that its packets have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    header: [u8; LONGEST],
    len: u8,
}

impl Path {
    /// The way back of a packet whose network header starts at `network`.
    #[inline]
    pub(super) fn back(packet: &[u8], network: u16) -> Self {
        let len = usize::from(network).min(LONGEST);
        debug_assert!(len >= ETHERNET_BYTES);
        let mut header = [0; LONGEST];
        header[..6].copy_from_slice(&packet[6..12]);
        header[6..12].copy_from_slice(&packet[..6]);
        header[12..len].copy_from_slice(&packet[12..len]);
        Self { header, len: len as u8 }
    }

    #[inline]
    pub(super) fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.len)]
    }
}
