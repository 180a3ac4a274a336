//! What a port does to its link as a whole: promiscuous mode and group addresses while the port is open, and waiting until
//! a link is back that opening took away.
//!
//! Owns: the socket that asks for the one, and the socket that asks for the other. Never does: change a flag of the
//! interface, which would outlive the process. Invariant: the kernel counts who asks for promiscuous mode or a group, and ends these
//! requests when the socket closes, however the process ends.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use super::{
    cause::{self, Call},
    interface::Interface,
    process::Process,
    route::{By, Route},
    sys,
};
use crate::DriverError;

/// How long a link may take to come back: NICs of 1 to 100 Gbit/s take 2 to 4 s.
const RETURN_LIMIT: Duration = Duration::from_secs(5);
const RETURN_INTERVAL: Duration = Duration::from_millis(20);

/// An interface that hands on packets to whatever address, or to group addresses, as long as this lives. A NIC drops
/// others' packets otherwise, before any program sees them.
#[derive(Debug)]
pub(super) struct Memberships {
    /// Only kept open: it is bound to no protocol, so no packet comes to it.
    _socket: OwnedFd,
}

impl Memberships {
    /// Asks for them, by memberships of a packet socket (packet(7): `PACKET_MR_PROMISC`, `PACKET_MR_MULTICAST`). Takes
    /// `CAP_NET_RAW`; ending them takes none.
    pub(super) fn start(
        interface: &Interface,
        promisc: bool,
        groups: &[[u8; 6]],
    ) -> Result<Self, DriverError> {
        let failed = |call, instead: &str| {
            let (interface, instead) = (interface.name.clone(), instead.to_owned());
            move |source: io::Error| {
                let cause = cause::of_call(Call::Packet, source.raw_os_error(), &Process::look());
                DriverError::Call {
                    interface,
                    queue: None,
                    call,
                    remedy: format!("{cause}{instead}"),
                    source,
                }
            }
        };
        let without_promisc = ". Or do without packets to others' addresses: promisc=no";
        // Groups take one too.
        let without_socket = if groups.is_empty() { without_promisc } else { "" };
        let making =
            "making a packet socket (packet(7)), which asks for promiscuous mode and group addresses,";
        let socket = sys::packet_socket().map_err(failed(making, without_socket))?;
        let ask = |kind: i32, group: &[u8]| {
            let mut membership = libc::packet_mreq {
                mr_ifindex: interface.index as i32,
                mr_type: kind as u16,
                mr_alen: group.len() as u16,
                mr_address: [0; 8],
            };
            membership.mr_address[..group.len()].copy_from_slice(group);
            sys::set_packet_option(socket.as_fd(), libc::PACKET_ADD_MEMBERSHIP, &membership)
        };
        if promisc {
            ask(libc::PACKET_MR_PROMISC, &[]).map_err(failed(
                "asking for promiscuous mode (packet(7): PACKET_MR_PROMISC)",
                without_promisc,
            ))?;
        }
        for group in groups {
            ask(libc::PACKET_MR_MULTICAST, group).map_err(failed(
                "joining a group address (packet(7): PACKET_MR_MULTICAST)",
                ". Or take packets to every address: promisc=yes",
            ))?;
        }
        Ok(Self { _socket: socket })
    }
}

/// The link of an interface, of which it was seen whether there is a carrier.
///
/// Many drivers reset their NIC when it gets an XDP program or a zero-copy socket, and its link is down for some
/// seconds. `IFF_LOWER_UP` of rtnetlink is what the kernel itself goes by when it sends (`netif_carrier_ok`).
/// `IFF_RUNNING` of the ioctl comes later, by a work queue; `ETHTOOL_GLINK` asks the NIC, which has a link before its driver
/// sends again; sysfs may be that of another network namespace.
#[derive(Debug)]
pub(super) struct Carrier {
    route: Route,
    index: u32,
}

/// A link that was there until its port was opened.
#[derive(Debug)]
pub(crate) struct Returning {
    carrier: Carrier,
    interface: String,
    since: Instant,
}

impl Carrier {
    /// Looks whether there is one. `None` if there is none to lose, or the kernel can't be asked.
    pub(super) fn of(interface: &Interface) -> Option<Self> {
        let mut carrier = Self { route: Route::open().ok()?, index: interface.index };
        carrier.is_there().unwrap_or(false).then_some(carrier)
    }

    /// The same, once the port is open: `None` if the carrier is still there, as on most software devices.
    pub(super) fn has_gone(mut self, interface: &Interface) -> Option<Returning> {
        let is_there = self.is_there().unwrap_or(true);
        (!is_there).then(|| Returning {
            carrier: self,
            interface: interface.name.clone(),
            since: Instant::now(),
        })
    }

    fn is_there(&mut self) -> io::Result<bool> {
        Ok(self.route.link(By::Index(self.index))?.flags & libc::IFF_LOWER_UP as u32 != 0)
    }
}

/// Waits until each link is back or overdue, or the caller does not want to wait any more. Returns warnings of those
/// that are overdue.
pub(crate) fn wait_for_links(links: &mut Vec<Returning>, is_over: impl Fn() -> bool) -> Vec<String> {
    let mut warnings = Vec::new();
    while !links.is_empty() && !is_over() {
        links.retain_mut(|link| match link.carrier.is_there() {
            Ok(false) if link.since.elapsed() < RETURN_LIMIT => true,
            Ok(false) => {
                warnings.push(link.is_overdue());
                false
            }
            Ok(true) | Err(_) => false,
        });
        if !links.is_empty() {
            thread::sleep(RETURN_INTERVAL);
        }
    }
    warnings
}

impl Returning {
    fn is_overdue(&self) -> String {
        let name = &self.interface;
        format!(
            "{name}: its link went down when the port was opened, and was not back after {} s; until it is, nothing \
             arrives and what is sent is lost. See: ip link show dev {name}, ethtool {name}",
            RETURN_LIMIT.as_secs()
        )
    }
}
