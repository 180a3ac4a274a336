//! Raw Ethernet frames, sent and received by a packet socket (packet(7)).

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use crate::{Netns, datagrams::set_receive_buffer};

/// A socket that sends whole frames on one interface, and receives all that its kernel gets there.
#[derive(Debug)]
pub struct PacketSocket(File);

impl PacketSocket {
    /// Opens one in a namespace, with room for every packet that a test sends before it reads.
    ///
    /// # Panics
    /// If the kernel refuses, or there is no such interface.
    #[must_use]
    pub fn new(netns: &Netns, interface: &str) -> Self {
        netns.enter(|| {
            let all = (libc::ETH_P_ALL as u16).to_be();
            let name = std::ffi::CString::new(interface).expect("a name");
            // SAFETY: the name is a C string; the descriptor is new and nobody else's; the kernel reads the address
            // in its whole length, and all zeroes is a valid one.
            let socket = unsafe {
                let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(all));
                assert!(fd >= 0, "socket: {}", io::Error::last_os_error());
                let socket = OwnedFd::from_raw_fd(fd);
                let mut address: libc::sockaddr_ll = std::mem::zeroed();
                address.sll_family = libc::AF_PACKET as u16;
                address.sll_protocol = all;
                address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
                assert!(address.sll_ifindex > 0, "no interface {interface}");
                let len = size_of_val(&address) as u32;
                let bound = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len);
                assert_eq!(bound, 0, "bind: {}", io::Error::last_os_error());
                set_receive_buffer(&socket, 8 << 20);
                socket
            };
            Self(File::from(socket))
        })
    }

    /// Sends a frame.
    ///
    /// # Panics
    /// If it can't be sent whole.
    pub fn send(&self, frame: &[u8]) {
        assert_eq!((&self.0).write(frame).expect("sent"), frame.len());
    }

    /// Receives a frame; `None` if none comes within the time.
    ///
    /// # Panics
    /// If the interface fails.
    pub fn receive(&self, within: Duration) -> Option<Vec<u8>> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel writes one pollfd.
        if unsafe { libc::poll(&raw mut poll, 1, within.as_millis() as i32) } != 1 {
            return None;
        }
        let mut frame = vec![0; 65_536];
        let len = (&self.0).read(&mut frame).expect("a frame");
        frame.truncate(len);
        Some(frame)
    }
}
