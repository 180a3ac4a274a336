//! Proof that a driver has let go of a closed zero-copy queue, and of every frame that it had.
//!
//! Owns: a socket that is bound to nothing until then. Never does: receive or send by it. Invariant: it says so only if
//! the kernel said so.
//!
//! Closing a zero-copy socket only asks for the end of its queue. The kernel does the rest later, in one work item under
//! the lock of all devices (net/xdp/xsk_buff_pool.c, xp_release_deferred and xp_clear_dev): the driver stops the queue
//! and unmaps the frames (`XDP_SETUP_XSK_POOL` without a pool), and only then the queue is free for another socket. Until
//! it is, bind(2), which takes the same lock, says EBUSY (xp_assign_dev looks for a pool on the queue before anything else).
//! So a bind that succeeds comes after the driver's last access to a frame.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use super::sys;

/// How long to wait for it: some tens of ms are usual, a NIC that is reset takes longer.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
const RELEASE_RETRY: Duration = Duration::from_millis(2);

/// Bytes of the memory that the socket must have.
const PAGE_BYTES: usize = 4096;
/// Slots of its rings.
const SLOTS: u32 = 1;

#[repr(align(4096))]
struct Page(#[allow(dead_code, reason = "the kernel only wants to have it")] [u8; PAGE_BYTES]);

/// A socket that can be bound to a queue once nobody has it.
pub(super) struct Release {
    // Closed before the page goes.
    socket: OwnedFd,
    _page: Box<Page>,
    address: libc::sockaddr_xdp,
}

impl Release {
    /// Makes it, while the process still has the right to: later, binding takes none.
    pub(super) fn prepare(interface: u32, queue: u32) -> io::Result<Self> {
        let (socket, page) = (sys::socket()?, Box::new(Page([0; PAGE_BYTES])));
        let umem = libc::xdp_umem_reg {
            addr: (&raw const *page) as u64,
            len: PAGE_BYTES as u64,
            chunk_size: PAGE_BYTES as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        sys::set_option(socket.as_fd(), libc::XDP_UMEM_REG, &umem)?;
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
            sys::set_option(socket.as_fd(), ring, &SLOTS)?;
        }
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            // In copy mode the driver is not told of it.
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        Ok(Self { socket, _page: page, address })
    }

    /// Waits, within a bound, until the driver has let go. Returns whether that is certain: it is not if another
    /// socket is bound to the queue first, or the device is gone.
    pub(super) fn wait(&self) -> bool {
        let start = Instant::now();
        loop {
            match sys::bind(self.socket.as_fd(), &self.address) {
                Ok(()) => return true,
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < RELEASE_LIMIT => {}
                Err(_) => return false,
            }
            thread::sleep(RELEASE_RETRY);
        }
    }
}
