//! Which packets of an interface are ours: everything, or what rules take.
//!
//! Owns: the rules, as applications name them. Never does: look at a packet; the XDP program does that. Invariant:
//! a rule asks only for what a packet of its kind can have, so a port is asked of TCP, UDP and SCTP alone, and an
//! address of the IP version that the kind allows.
//!
//! `text` reads and writes rules, `words` turns them into what the XDP program compares, `taken` says in Rust what
//! that program does, `handle` changes rules while packets flow.

mod handle;
mod taken;
#[cfg(all(test, not(loom)))]
mod tests;
mod text;
mod words;

use std::net::IpAddr;

pub use self::handle::Steer;
use crate::DriverError;

/// Which packets the XDP program takes for the sockets of its port; all others go on to the kernel's own stack.
///
/// As text: `all`, `none`, or [`Rule`]s joined by `+`.
///
/// ```
/// use sheafio_drivers::af_xdp::Steering;
///
/// let steering: Steering = "arp+udp@10.0.0.2:7+tcp@[fd00::2]:80".parse()?;
/// assert_eq!(steering.to_string(), "arp+udp@10.0.0.2:7+tcp@[fd00::2]:80");
/// # Ok::<(), sheafio_drivers::DriverError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Steering {
    /// Every packet.
    #[default]
    All,
    /// Packets that at least one of the rules takes, at most [`Steering::MAX_RULES`]; without rules, none.
    Only(Vec<Rule>),
}

impl Steering {
    /// The most rules: the XDP program tries them one by one.
    pub const MAX_RULES: usize = 64;

    /// Refuses more rules than there is room for.
    pub(super) fn check(&self) -> Result<(), DriverError> {
        match self {
            Self::Only(rules) if rules.len() > Self::MAX_RULES => Err(DriverError::Rule {
                rule: format!("{}+...", rules[0]),
                problem: format!("{} rules are too many", rules.len()),
                allowed: format!("up to {} rules; a prefix takes many addresses at once", Self::MAX_RULES),
            }),
            _ => Ok(()),
        }
    }
}

/// A kind of packets: by ethertype or IP protocol, and by destination.
///
/// Up to two VLAN tags (0x8100, 0x88a8) are looked through; a packet with more is taken by no rule. Neither is one
/// whose IP header is cut short or contradicts itself. IPv6 extension headers (hop-by-hop, routing, fragment,
/// destination options) are looked through, up to six. Of a fragmented packet only the first fragment has a port:
/// a rule without a port takes all of it.
///
/// As text: `arp`, `ip`, `ip6`, `tcp`, `udp`, `sctp`, `icmp`, `icmp6`, `proto47` (an IP protocol), `0x88b5` (an
/// ethertype); then `@ADDRESS` or `@ADDRESS/BITS`, and `:PORT`, as in `udp:7`, `ip@10.0.0.0/24`, `tcp@[fd00::2]:80`.
/// The address of `arp` is the target's, so `arp+udp:7` would keep ARP from the kernel and `arp@10.0.0.2+udp:7` does not.
/// Without an address, TCP, UDP, SCTP and other protocols are taken of both IP versions; protocol 1 (ICMP) is
/// IPv4's alone, 58 (ICMPv6) IPv6's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    traffic: Traffic,
    to: Option<Prefix>,
    port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Ethertype(u16),
    Protocol(u8),
}

impl Traffic {
    /// Whether such packets have ports.
    fn has_ports(self) -> bool {
        matches!(self, Self::Protocol(TCP | UDP | SCTP))
    }
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// Ethertypes (IANA, IEEE 802 numbers).
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// Smaller values of that field are lengths (IEEE 802.3 3.2.6).
const SMALLEST_ETHERTYPE: u16 = 0x0600;
/// IP protocols (IANA, protocol numbers).
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP6: u8 = 58;
const SCTP: u8 = 132;

impl Rule {
    /// Packets of an ethertype, 0x0600 to 0xffff, behind VLAN tags if there are any.
    ///
    /// # Errors
    /// [`DriverError::Rule`] for a VLAN tag's own type, and for a length.
    pub fn ethertype(ethertype: u16) -> Result<Self, DriverError> {
        Self { traffic: Traffic::Ethertype(ethertype), to: None, port: None }.checked()
    }

    /// IP packets of a protocol, 0 to 255.
    pub fn protocol(protocol: u8) -> Self {
        Self { traffic: Traffic::Protocol(protocol), to: None, port: None }
    }

    /// Of these only such to an address, or to all that begin with the same `bits`: 0 to 32 for IPv4, to 128 for
    /// IPv6. The other bits of the address must be 0.
    ///
    /// # Errors
    /// [`DriverError::Rule`] for such that have no IP address, or none of this version.
    pub fn to(self, address: IpAddr, bits: u8) -> Result<Self, DriverError> {
        Self { to: Some(Prefix { address, bits }), ..self }.checked()
    }

    /// Of these only such to a port, 1 to 65535.
    ///
    /// # Errors
    /// [`DriverError::Rule`] for such that have no ports.
    pub fn port(self, port: u16) -> Result<Self, DriverError> {
        Self { port: Some(port), ..self }.checked()
    }

    fn checked(self) -> Result<Self, DriverError> {
        let refuse = |problem: String, allowed: &str| {
            Err(DriverError::Rule { rule: self.to_string(), problem, allowed: allowed.to_owned() })
        };
        if let Traffic::Ethertype(ethertype) = self.traffic {
            if TAGS.contains(&ethertype) {
                let problem = format!("0x{ethertype:04x} is a VLAN tag, and tags are looked through");
                return refuse(problem, "the ethertype behind the tag, such as arp, ip or 0x88b5");
            }
            if ethertype < SMALLEST_ETHERTYPE {
                return refuse(format!("0x{ethertype:04x} is a length, no ethertype"), "0x0600 to 0xffff");
            }
        }
        if let Some(Prefix { address, bits }) = self.to {
            let most = if address.is_ipv4() { 32 } else { 128 };
            if bits > most {
                return refuse(format!("{address} does not have {bits} bits"), &format!("/0 to /{most}"));
            }
            if host_bits(address, bits) != 0 {
                let network = network(address, bits);
                let problem = format!("{address} has bits set beyond its first {bits}");
                return refuse(problem, &format!("{network}/{bits}, or {address} alone"));
            }
            match (self.traffic, address.is_ipv4()) {
                (Traffic::Ethertype(IPV4 | ARP) | Traffic::Protocol(ICMP), false) => {
                    return refuse(
                        format!("IPv4 has no address {address}"),
                        "an IPv4 address, such as 10.0.0.2",
                    );
                }
                (Traffic::Ethertype(IPV6) | Traffic::Protocol(ICMP6), true) => {
                    return refuse(
                        format!("IPv6 has no address {address}"),
                        "an IPv6 address, such as fd00::2",
                    );
                }
                (Traffic::Ethertype(IPV4 | ARP | IPV6) | Traffic::Protocol(_), _) => {}
                (Traffic::Ethertype(_), _) => {
                    let allowed = "an address with arp, ip, ip6, tcp, udp, sctp, icmp, icmp6 or protoN";
                    return refuse("such packets have no IP address".to_owned(), allowed);
                }
            }
        }
        match (self.traffic, self.port) {
            (_, None) | (Traffic::Protocol(TCP | UDP | SCTP), Some(1..)) => Ok(self),
            (Traffic::Protocol(TCP | UDP | SCTP), Some(0)) => {
                refuse("port 0 is nobody's".to_owned(), "a port from 1 to 65535")
            }
            _ => refuse("such packets have no port".to_owned(), "a port with tcp, udp or sctp"),
        }
    }
}

/// The bits of an address after the first `bits`, which a prefix leaves out.
fn host_bits(address: IpAddr, bits: u8) -> u128 {
    match address {
        IpAddr::V4(address) => (u32::from(address) & u32::MAX.checked_shr(bits.into()).unwrap_or(0)).into(),
        IpAddr::V6(address) => u128::from(address) & u128::MAX.checked_shr(bits.into()).unwrap_or(0),
    }
}

/// The address with those bits 0.
fn network(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4((u32::from(v4) - host_bits(address, bits) as u32).into()),
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) - host_bits(address, bits)).into()),
    }
}
