//! Whose addresses are served on a port, and which of its packets are ours.
//!
//! Owns: the list of addresses. Never does: change what the kernel has. Invariant: what is not served is left to the
//! kernel, so that an interface whose addresses are shared keeps everything else that it does.

use std::net::{IpAddr, Ipv6Addr};

use nix::{ifaddrs::getifaddrs, net::if_::if_nametoindex};
use sheafio_drivers::{
    DriverError, PortSpec,
    af_xdp::{Rule, Steering, name_of},
};
use sheafio_net::host::Address;

use crate::{Error, echo::EchoArgs};

/// `ETH_P_IP`, `ETH_P_IPV6`, `ETH_P_ARP` (linux/if_ether.h), and IP protocols (IANA).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// The addresses that are served on a port.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) addresses: Vec<Address>,
    /// Whether they are ours alone, and not shared with the kernel.
    pub(super) is_own: bool,
    /// What the user should know about them.
    pub(super) warning: Option<String>,
}

impl Served {
    /// Those that were asked for, or those that the interface has.
    pub(super) fn new(spec: &PortSpec, args: &EchoArgs) -> Result<Self, Error> {
        if !args.addresses.is_empty() {
            let addresses = args.addresses.iter().map(|spec| {
                let most = if spec.address.is_ipv4() { 32 } else { 128 };
                Address::new(spec.address, spec.prefix_bits.unwrap_or(most))
            });
            let addresses: Vec<_> =
                addresses.collect::<Result<_, _>>().map_err(|error| format!("--ip: {error}"))?;
            refuse_those_of_the_kernel(&addresses)?;
            return Ok(Self { addresses, is_own: true, warning: None });
        }
        let Some(interface) = spec.interface() else {
            return Err(format!(
                "port '{spec}' is no interface, so it has no addresses; give --ip ADDRESS/BITS"
            )
            .into());
        };
        let interface = name_of(interface).unwrap_or_else(|| interface.to_owned());
        let addresses = of_interface(&interface)?;
        // That there is no such interface is said when the port is opened.
        if addresses.is_empty() && if_nametoindex(interface.as_str()).is_ok() {
            return Err(format!(
                "port '{spec}': interface {interface} has no address to share with the kernel; give it one (ip address add \
                 10.0.0.2/24 dev {interface}), or use an address of our own (--ip 10.0.0.2/24)"
            )
            .into());
        }
        let warning = of_link_local_ones(&addresses, &interface);
        Ok(Self { addresses, is_own: false, warning })
    }

    /// Which packets come to us.
    pub(super) fn steering(&self, args: &EchoArgs) -> Result<Steering, DriverError> {
        let mut rules = Vec::new();
        for address in &self.addresses {
            let ip = address.ip();
            let bits = if ip.is_ipv4() { 32 } else { 128 };
            match ip {
                // All that is for an address of our own, and who asks where it is.
                IpAddr::V4(_) if self.is_own => {
                    rules.push(Rule::ethertype(ARP)?.to(ip, bits)?);
                    rules.push(Rule::ethertype(IPV4)?.to(ip, bits)?);
                }
                IpAddr::V6(v6) if self.is_own => {
                    rules.push(Rule::ethertype(IPV6)?.to(ip, bits)?);
                    rules.push(Rule::protocol(ICMPV6).to(solicited_node(v6).into(), bits)?);
                }
                _ => {
                    for port in &args.tcp {
                        rules.push(Rule::protocol(TCP).to(ip, bits)?.port(*port)?);
                    }
                    for port in &args.udp {
                        rules.push(Rule::protocol(UDP).to(ip, bits)?.port(*port)?);
                    }
                    // ICMPv6 is neighbour discovery too, which the kernel does for an address that is shared; so pings of
                    // such an address stay with it.
                    if args.icmp && ip.is_ipv4() {
                        rules.push(Rule::protocol(ICMP).to(ip, bits)?);
                    }
                }
            }
        }
        rules.dedup();
        Ok(Steering::Only(rules))
    }

    /// The groups where others ask for our addresses: the kernel has joined those of its own addresses alone, and a NIC
    /// hands on packets to groups that somebody has joined.
    pub(super) fn groups(&self) -> Vec<[u8; 6]> {
        let own = self.addresses.iter().filter(|_| self.is_own);
        own.filter_map(Address::group).collect()
    }
}

/// Says so if an interface has nothing but the link-local address that each gets by itself, for then an address was most
/// likely forgotten.
fn of_link_local_ones(addresses: &[Address], interface: &str) -> Option<String> {
    let is_link_local =
        |address: &Address| matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
    let first = addresses.first().filter(|_| addresses.iter().all(is_link_local))?;
    Some(format!(
        "{interface}: its only address is link-local, so it is reached from its own link alone, as {}%INTERFACE; for others give \
         it one (ip address add 10.0.0.2/24 dev {interface}), or use an address of our own (--ip 10.0.0.2/24)",
        first.ip()
    ))
}

/// An address is ours alone or shared; whoever means the latter would lose everything else that the kernel has on it.
fn refuse_those_of_the_kernel(addresses: &[Address]) -> Result<(), Error> {
    for (interface, address) in of_all_interfaces()? {
        if let Some(ours) = addresses.iter().find(|ours| ours.ip() == address.ip()) {
            return Err(format!(
                "--ip {ours}: the kernel has this address on {interface}; give one that nobody has, or leave --ip out to share \
                 the addresses of the port's interface with it"
            )
            .into());
        }
    }
    Ok(())
}

/// The addresses that the kernel has on an interface.
fn of_interface(interface: &str) -> Result<Vec<Address>, Error> {
    let all = of_all_interfaces()?.into_iter();
    Ok(all.filter(|(name, _)| name == interface).map(|(_, address)| address).collect())
}

/// All addresses that the kernel has here, with their interfaces.
fn of_all_interfaces() -> Result<Vec<(String, Address)>, Error> {
    let all = getifaddrs().map_err(|error| format!("the interfaces' addresses can't be read: {error}"))?;
    let mut addresses = Vec::new();
    for entry in all {
        let ip = |storage: &nix::sys::socket::SockaddrStorage| {
            let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        };
        let (Some(address), Some(mask)) =
            (entry.address.as_ref().and_then(ip), entry.netmask.as_ref().and_then(ip))
        else {
            continue;
        };
        let bits = match mask {
            IpAddr::V4(mask) => mask.to_bits().count_ones(),
            IpAddr::V6(mask) => mask.to_bits().count_ones(),
        };
        // Some have none that can be served, such as the number of its network for a point-to-point link.
        addresses
            .extend(Address::new(address, bits as u8).map(|address| (entry.interface_name.clone(), address)));
    }
    Ok(addresses)
}

/// The group in which others ask for an IPv6 address (RFC 4291 section 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_for_an_address_go_to_its_group() {
        let address = "fd00::12:3456:789a".parse().unwrap();
        assert_eq!(solicited_node(address).to_string(), "ff02::1:ff56:789a");
    }
}
