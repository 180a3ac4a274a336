//! What a port does to its link as a whole: promiscuous mode while the port is open.
//!
//! Owns: the socket that asks for it. Never does: change a flag of the interface, which would outlive the process.
//! Invariant: the kernel counts who asks for promiscuous mode, and ends this request when the socket closes, however
//! the process ends.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use super::{cause, interface::Interface, process::Process, sys};
use crate::DriverError;

/// An interface that hands on packets to whatever address, as long as this lives. A NIC drops others' packets
/// otherwise, before any program sees them.
#[derive(Debug)]
pub(super) struct Promiscuous {
    /// Only kept open: it is bound to no protocol, so no packet comes to it.
    _socket: OwnedFd,
}

impl Promiscuous {
    /// Asks for it, by a membership of a packet socket (packet(7): `PACKET_MR_PROMISC`). Takes `CAP_NET_RAW`; ending
    /// it takes none.
    pub(super) fn start(interface: &Interface) -> Result<Self, DriverError> {
        let ask = || -> io::Result<Self> {
            let socket = sys::packet_socket()?;
            let membership = libc::packet_mreq {
                mr_ifindex: interface.index as i32,
                mr_type: libc::PACKET_MR_PROMISC as u16,
                mr_alen: 0,
                mr_address: [0; 8],
            };
            sys::set_packet_option(socket.as_fd(), libc::PACKET_ADD_MEMBERSHIP, &membership)?;
            Ok(Self { _socket: socket })
        };
        ask().map_err(|source| DriverError::Call {
            interface: interface.name.clone(),
            queue: 0,
            call: "asking for promiscuous mode (packet(7): PACKET_MR_PROMISC)",
            remedy: format!(
                "{}. Or do without packets to others' addresses: promisc=no",
                cause::of_call(source.raw_os_error(), &Process::look())
            ),
            source,
        })
    }
}
