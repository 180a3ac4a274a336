//! Raw Ethernet frames, sent and received by a packet socket (packet(7)).

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use crate::{Netns, datagrams::set_receive_buffer};

/// The longest that a device may have no room: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(10);

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
                let (yes, len) = (1_i32, size_of::<i32>() as u32);
                let told = libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_PACKET,
                    libc::PACKET_AUXDATA,
                    (&raw const yes).cast(),
                    len,
                );
                assert_eq!(told, 0, "PACKET_AUXDATA: {}", io::Error::last_os_error());
                socket
            };
            Self(File::from(socket))
        })
    }

    /// Sends a frame, as soon as the device has room for it.
    ///
    /// # Panics
    /// If it can't be sent whole, or the device has no room for a long time.
    pub fn send(&self, frame: &[u8]) {
        let start = Instant::now();
        while let Err(error) = self.try_send(frame) {
            let is_full = error.raw_os_error() == Some(libc::ENOBUFS);
            assert!(is_full && start.elapsed() < PATIENCE, "a frame can't be sent: {error}");
            thread::yield_now();
        }
    }

    /// Sends a frame, from an interface that may have vanished.
    pub(crate) fn try_send(&self, frame: &[u8]) -> io::Result<()> {
        let len = (&self.0).write(frame)?;
        assert_eq!(len, frame.len(), "a packet socket sends all of a frame");
        Ok(())
    }

    /// Receives a frame as it was on the wire; `None` if none comes within the time.
    ///
    /// # Panics
    /// If the interface fails.
    pub fn receive(&self, within: Duration) -> Option<Vec<u8>> {
        self.try_receive(within).expect("a frame")
    }

    /// Receives a frame, from an interface that may have vanished.
    pub(crate) fn try_receive(&self, within: Duration) -> io::Result<Option<Vec<u8>>> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel writes one pollfd.
        if unsafe { libc::poll(&raw mut poll, 1, within.as_millis() as i32) } != 1 {
            return Ok(None);
        }
        let mut frame = vec![0; 65_536];
        // As large as a header and a `tpacket_auxdata`, and aligned as a header must be.
        let mut control = [0_u64; 8];
        let mut piece = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: the message names memory of this function with its lengths; the kernel writes within them, and what it
        // has written of control messages is read through libc's own macros, unaligned.
        let (len, tag) = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
            (message.msg_control, message.msg_controllen) =
                (control.as_mut_ptr().cast(), size_of_val(&control));
            let len = libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0);
            if len < 0 {
                return Err(io::Error::last_os_error());
            }
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            let is_told = !header.is_null()
                && ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA);
            let told =
                is_told.then(|| libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned());
            (len as usize, told.and_then(|told| tag(&told)))
        };
        frame.truncate(len);
        if let Some(tag) = tag {
            frame.splice(12..12, tag);
        }
        Ok(Some(frame))
    }
}

/// The VLAN tag that the kernel took out of a frame before it showed it (linux/if_packet.h).
fn tag(told: &libc::tpacket_auxdata) -> Option<[u8; 4]> {
    let has = |flag| told.tp_status & flag != 0;
    let protocol = if has(libc::TP_STATUS_VLAN_TPID_VALID) { told.tp_vlan_tpid } else { 0x8100 };
    let ([high, low], [id_high, id_low]) = (protocol.to_be_bytes(), told.tp_vlan_tci.to_be_bytes());
    has(libc::TP_STATUS_VLAN_VALID).then_some([high, low, id_high, id_low])
}
