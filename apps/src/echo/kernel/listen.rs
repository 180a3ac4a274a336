//! The sockets that the server listens on, a set for each lcore.
//!
//! Owns: nothing. Never does: accept or receive. Invariant: all sockets of a port are made before any lcore runs, so the
//! kernel shares connections out among all lcores from the first one on (SO_REUSEPORT, socket(7)).

use std::{
    env, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
};

use nix::sys::socket::{setsockopt, sockopt as nix_sockopt};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use crate::{Error, echo::options::EchoArgs};

/// Connections that wait to be accepted, at most; the kernel takes less where net.core.somaxconn says so.
const BACKLOG: i32 = 65_535;
/// Bytes that a UDP socket may hold, if the kernel allows it (net.core.rmem_max; more with CAP_NET_ADMIN).
const UDP_BUFFER_BYTES: usize = 4 << 20;

/// The sockets of an lcore.
#[derive(Default)]
pub(super) struct Listening {
    pub(super) tcp: Vec<OwnedFd>,
    pub(super) udp: Vec<OwnedFd>,
}

/// Makes the sockets of so many lcores; and says what the user should know about it, a line each.
pub(super) fn listen_on(args: &EchoArgs, lcores: usize) -> Result<(Vec<Listening>, Vec<String>), Error> {
    let mut warnings = Vec::new();
    let addresses: Vec<IpAddr> = if args.addresses.is_empty() {
        let mut all = vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        match socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None) {
            Ok(_) => all.push(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
            Err(error) => {
                warnings.push(format!("echo: no IPv6 here ({}): IPv4 alone", io::Error::from(error)));
            }
        }
        all
    } else {
        args.addresses.iter().map(|spec| spec.address).collect()
    };
    if lcores > 1 {
        // Sockets that share their port would share it with another program's of the same user too, unnoticed.
        sockets(args, &addresses, false)?;
    }
    let sets = (0..lcores).map(|_| sockets(args, &addresses, lcores > 1)).collect::<Result<_, _>>()?;
    Ok((sets, warnings))
}

/// A socket for each address and port.
fn sockets(args: &EchoArgs, addresses: &[IpAddr], is_shared: bool) -> Result<Listening, Error> {
    let mut set = Listening::default();
    for address in addresses {
        for port in &args.tcp {
            let address = SocketAddr::new(*address, *port);
            set.tcp.push(tcp(address, is_shared).map_err(|error| refused("tcp", address, &error))?);
        }
        for port in &args.udp {
            let address = SocketAddr::new(*address, *port);
            set.udp.push(udp(address, is_shared).map_err(|error| refused("udp", address, &error))?);
        }
    }
    Ok(set)
}

fn socket(address: SocketAddr, kind: SocketType, is_shared: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        // IPv4 has a socket of its own.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    sockopt::set_socket_reuseport(&socket, is_shared)?;
    Ok(socket)
}

fn tcp(address: SocketAddr, is_shared: bool) -> io::Result<OwnedFd> {
    let socket = socket(address, SocketType::STREAM, is_shared)?;
    // A server that comes again at once is not kept away by its old connections.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Accepted sockets have the options of their listener. Answers are not held back for more to send; clients that have
    // vanished are found out.
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn udp(address: SocketAddr, is_shared: bool) -> io::Result<OwnedFd> {
    let socket = socket(address, SocketType::DGRAM, is_shared)?;
    if sockopt::set_socket_recv_buffer_size_force(&socket, UDP_BUFFER_BYTES).is_err() {
        // As much as is allowed, then.
        sockopt::set_socket_recv_buffer_size(&socket, UDP_BUFFER_BYTES)?;
    }
    // Which of our addresses a datagram was sent to, so that it is answered from there (ip(7), ipv6(7)).
    if address.is_ipv4() {
        setsockopt(&socket, nix_sockopt::Ipv4PacketInfo, &true)?;
    } else {
        setsockopt(&socket, nix_sockopt::Ipv6RecvPacketInfo, &true)?;
    }
    bind(&socket, &address)?;
    Ok(socket)
}

fn refused(protocol: &str, address: SocketAddr, error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EADDRINUSE) => format!("Another program listens there; see: ss -{}lnp", &protocol[..1]),
        Some(libc::EADDRNOTAVAIL) => "No interface has this address; see: ip addr".to_owned(),
        Some(libc::EACCES) => {
            let program =
                env::current_exe().map_or_else(|_| "sheafio".to_owned(), |path| path.display().to_string());
            format!(
                "Ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE: run as root, or: \
                 setcap cap_net_bind_service+ep {program}, or: sysctl -w net.ipv4.ip_unprivileged_port_start={}",
                address.port()
            )
        }
        Some(libc::EMFILE) => {
            "Each port takes a socket for each address and lcore; see: ulimit -n".to_owned()
        }
        _ => "See: ip addr, ss -anp".to_owned(),
    };
    format!("echo: can't listen on {protocol} {address}: {error}. {remedy}")
}
