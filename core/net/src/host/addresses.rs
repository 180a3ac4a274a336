//! Which addresses are ours, and which are nobody's to answer.
//!
//! Owns: the addresses of a host, sorted. Never does: look at links or ports. Invariant: IPv4 addresses lie here as
//! IPv4-mapped ones (RFC 4291 section 2.5.5.2), as in [`Headers::addresses`](crate::Headers::addresses); so packets that
//! carry mapped addresses on the wire must be refused before, or they would pass for IPv4.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use super::ndisc::{group_mac, solicited_node};
use crate::{Count, headers::as_ipv4};

/// An address with the length of its network's prefix, as in `10.0.0.2/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    ip: IpAddr,
    prefix_bits: u8,
}

/// Why an address can't be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It is no address with a prefix length.
    #[error("'{0}' is no address; write it as in 10.0.0.2/24 or fd00::2/64")]
    Syntax(String),
    /// The prefix is longer than the address.
    #[error(
        "{0}/{1}: the prefix of such an address has at most {2} bits; {0}/{2} stands for a network of its own"
    )]
    Prefix(IpAddr, u16, u8),
    /// Nobody can be reached at it.
    #[error("{0} is {1}, and no address that one host has; give one of the network's that is free")]
    Unusable(Address, &'static str),
}

impl Address {
    /// An address in a network with a prefix of `prefix_bits` bits, 0 to 32 or 128.
    ///
    /// # Errors
    /// If the prefix is longer than the address, or the address is unspecified, of the loopback network, multicast, the
    /// broadcast address or the number of its network, or an IPv4-mapped one.
    pub fn new(ip: IpAddr, prefix_bits: u8) -> Result<Self, AddressError> {
        let bits_max = if ip.is_ipv4() { 32 } else { 128 };
        if prefix_bits > bits_max {
            return Err(AddressError::Prefix(ip, u16::from(prefix_bits), bits_max));
        }
        let address = Self { ip, prefix_bits };
        match address.fault() {
            Some(fault) => Err(AddressError::Unusable(address, fault)),
            None => Ok(address),
        }
    }

    /// The address itself.
    pub fn ip(self) -> IpAddr {
        self.ip
    }

    /// Bits of the prefix, 0 to 32 or 128.
    pub fn prefix_bits(self) -> u8 {
        self.prefix_bits
    }

    /// The Ethernet group to which others send their questions for an IPv6 address (RFC 4291 section 2.7.1, RFC 2464 section
    /// 7); those for an IPv4 address are broadcast.
    pub fn group(&self) -> Option<[u8; 6]> {
        let IpAddr::V6(ip) = self.ip else { return None };
        Some(group_mac(solicited_node(ip)).0)
    }

    /// Whether another address lies in the same network, so that it is reached without a router.
    pub fn is_on_link(self, other: IpAddr) -> bool {
        match (self.ip, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= u32::from(self.prefix_bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= u32::from(self.prefix_bits)
            }
            _ => false,
        }
    }

    fn fault(self) -> Option<&'static str> {
        let mapped = matches!(self.ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
        let is_this_network = matches!(self.ip, IpAddr::V4(ip) if ip.octets()[0] == 0);
        let is_network = matches!(self.ip, IpAddr::V4(ip) if self.prefix_bits < 31
            && ip.to_bits() & (u32::MAX >> self.prefix_bits) == 0);
        [
            (self.ip.is_unspecified() || is_this_network, "unspecified (RFC 6890)"),
            (self.ip.is_loopback(), "of the loopback network"),
            (self.ip.is_multicast(), "a multicast group"),
            (mapped, "an IPv4 address in the clothes of IPv6"),
            (self.ip == IpAddr::V4(Ipv4Addr::BROADCAST), "the broadcast address"),
            (self.broadcast().map(IpAddr::V4) == Some(self.ip), "its network's broadcast address"),
            (is_network, "the number of its network"),
        ]
        .into_iter()
        .find_map(|(holds, fault)| holds.then_some(fault))
    }

    /// The address that reaches all of an IPv4 network; networks of one or two addresses have none (RFC 3021).
    fn broadcast(self) -> Option<Ipv4Addr> {
        match self.ip {
            IpAddr::V4(ip) if self.prefix_bits < 31 => {
                Some(Ipv4Addr::from_bits(ip.to_bits() | (u32::MAX >> self.prefix_bits)))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_bits)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let syntax = || AddressError::Syntax(text.to_owned());
        let (ip, bits) = text.split_once('/').ok_or_else(syntax)?;
        let (ip, bits): (IpAddr, u16) =
            (ip.parse().map_err(|_| syntax())?, bits.parse().map_err(|_| syntax())?);
        let bits_max = if ip.is_ipv4() { 32 } else { 128 };
        Self::new(ip, u8::try_from(bits).map_err(|_| AddressError::Prefix(ip, bits, bits_max))?)
    }
}

/// The addresses of a host, for look-ups.
#[derive(Debug)]
pub(super) struct Addresses {
    /// Sorted: a host may have hundreds, and each packet is looked up twice.
    own: Box<[Ipv6Addr]>,
    /// Directed broadcast addresses, sorted.
    broadcasts: Box<[Ipv4Addr]>,
}

impl Addresses {
    pub(super) fn new(addresses: &[Address]) -> Self {
        let mut own: Vec<_> = addresses.iter().map(|address| mapped(address.ip)).collect();
        let mut broadcasts: Vec<_> = addresses.iter().filter_map(|address| address.broadcast()).collect();
        own.sort_unstable();
        own.dedup();
        broadcasts.sort_unstable();
        broadcasts.dedup();
        Self { own: own.into(), broadcasts: broadcasts.into() }
    }

    /// All of them, sorted, none twice.
    pub(super) fn own(&self) -> &[Ipv6Addr] {
        &self.own
    }

    /// Whether an address is ours.
    #[inline]
    pub(super) fn contains(&self, address: Ipv6Addr) -> bool {
        self.own.binary_search(&address).is_ok()
    }

    /// Whether packets to an address are for us; by what name they are dropped, otherwise.
    #[inline]
    pub(super) fn check_destination(&self, address: Ipv6Addr) -> Result<(), Count> {
        if self.contains(address) {
            return Ok(());
        }
        let is_group = match as_ipv4(address) {
            Some(ip) => ip.is_multicast() || ip.is_broadcast() || self.broadcasts.binary_search(&ip).is_ok(),
            None => address.is_multicast(),
        };
        Err(if is_group { Count::GroupAddress } else { Count::OtherAddress })
    }

    /// Whether an address is one that an answer can go to; by what name the packet is dropped, otherwise: an answer
    /// would come back to us, go to many, or to nobody (RFC 1122 section 3.2.1.3, RFC 4291 section 2.5).
    #[inline]
    pub(super) fn check_source(&self, address: Ipv6Addr) -> Result<(), Count> {
        if self.contains(address) {
            return Err(Count::SourceOwn);
        }
        let (unspecified, loopback, multicast, broadcast) = match as_ipv4(address) {
            Some(ip) => (
                ip.octets()[0] == 0, // "This network", of which 0.0.0.0 is one.
                ip.is_loopback(),
                ip.is_multicast(),
                ip.is_broadcast() || self.broadcasts.binary_search(&ip).is_ok(),
            ),
            None => (address.is_unspecified(), address.is_loopback(), address.is_multicast(), false),
        };
        match () {
            () if unspecified => Err(Count::SourceUnspecified),
            () if loopback => Err(Count::SourceLoopback),
            () if multicast => Err(Count::SourceMulticast),
            () if broadcast => Err(Count::SourceBroadcast),
            () => Ok(()),
        }
    }
}

/// An IPv4 address as an IPv4-mapped one.
pub(super) fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in
            ["10.0.0.2/24", "10.0.0.0/31", "10.0.0.255/32", "10.0.0.255/16", "fd00::2/64", "fe80::1/128"]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in
            ["", "10.0.0.2", "10.0.0.2/", "/24", "10.0.0/24", "fd00::2/64/", "10.0.0.2/x", "10.0.0.2/-1"]
        {
            assert_eq!(text.parse::<Address>(), Err(AddressError::Syntax(text.to_owned())));
        }
    }

    #[test]
    fn addresses_that_no_host_has_are_refused() {
        for (text, why) in [
            ("10.0.0.2/33", "at most 32 bits"),
            ("10.0.0.2/300", "at most 32 bits"),
            ("fd00::2/129", "at most 128 bits"),
            ("0.0.0.0/0", "unspecified"),
            ("0.1.2.3/8", "unspecified"),
            ("::/0", "unspecified"),
            ("127.0.0.2/8", "loopback"),
            ("::1/128", "loopback"),
            ("224.0.0.5/4", "multicast"),
            ("ff02::1/16", "multicast"),
            ("255.255.255.255/32", "broadcast"),
            ("10.0.0.255/24", "broadcast"),
            ("10.0.0.0/24", "number of its network"),
            ("::ffff:10.0.0.2/128", "clothes"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn on_link_is_what_has_the_same_prefix() {
        let on_link =
            |own: &str, other: &str| own.parse::<Address>().unwrap().is_on_link(other.parse().unwrap());
        assert!(on_link("10.0.0.2/24", "10.0.0.200") && !on_link("10.0.0.2/24", "10.0.1.2"));
        assert!(on_link("10.0.0.2/32", "10.0.0.2") && !on_link("10.0.0.2/32", "10.0.0.3"));
        assert!(on_link("10.0.0.2/0", "192.0.2.1") && !on_link("10.0.0.2/0", "fd00::1"));
        assert!(on_link("fd00::2/64", "fd00::ffff:1") && !on_link("fd00::2/64", "fd00:0:0:1::1"));
    }

    #[test]
    fn sources_and_destinations_have_one_name_each() {
        let addresses: Vec<_> =
            ["10.0.0.2/24", "192.0.2.9/30", "fd00::2/64"].map(|text| text.parse().unwrap()).into();
        let addresses = Addresses::new(&addresses);
        let source = |text: &str| addresses.check_source(mapped(text.parse().unwrap()));
        let destination = |text: &str| addresses.check_destination(mapped(text.parse().unwrap()));
        for text in ["10.0.0.1", "10.0.1.255", "198.51.100.1", "fd00::1", "fe80::1", "2001:db8::1"] {
            assert_eq!((source(text), destination(text)), (Ok(()), Err(Count::OtherAddress)), "{text}");
        }
        for text in ["10.0.0.2", "192.0.2.9", "fd00::2"] {
            assert_eq!((source(text), destination(text)), (Err(Count::SourceOwn), Ok(())), "{text}");
        }
        for (text, count) in [
            ("0.0.0.0", Count::SourceUnspecified),
            ("0.0.0.9", Count::SourceUnspecified),
            ("::", Count::SourceUnspecified),
            ("127.0.0.1", Count::SourceLoopback),
            ("127.255.0.1", Count::SourceLoopback),
            ("::1", Count::SourceLoopback),
        ] {
            assert_eq!((source(text), destination(text)), (Err(count), Err(Count::OtherAddress)), "{text}");
        }
        for (text, count) in [
            ("224.0.0.1", Count::SourceMulticast),
            ("239.255.255.255", Count::SourceMulticast),
            ("ff02::1", Count::SourceMulticast),
            ("255.255.255.255", Count::SourceBroadcast),
            ("10.0.0.255", Count::SourceBroadcast),
            ("192.0.2.11", Count::SourceBroadcast),
        ] {
            assert_eq!((source(text), destination(text)), (Err(count), Err(Count::GroupAddress)), "{text}");
        }
    }
}
