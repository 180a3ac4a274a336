//! Proof that a driver has let go of a closed zero-copy queue, and of every frame that it had.
//!
//! Owns: a socket that is bound to nothing until then. Never does: receive or send by it. Invariant: it says so only if
//! the kernel said so.
//!
//! Closing a zero-copy socket only asks for the end of its queue. The kernel does the rest later, in one work item under
//! the lock of all devices (net/xdp/xsk_buff_pool.c, xp_release_deferred and xp_clear_dev): the driver stops the queue
//! (`XDP_SETUP_XSK_POOL` without a pool), and only then the queue is free for another socket. Until
//! it is, bind(2), which takes the same lock, says EBUSY (xp_assign_dev looks for a pool on the queue before anything else).
//! So a bind that succeeds comes after the driver's last access to a frame.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use super::{process::raise_memlock_limit, sys};

/// Between two looks: some tens of ms are usual until it has let go, a NIC that is reset takes longer.
const RELEASE_RETRY: Duration = Duration::from_millis(2);

/// Slots of its rings.
const SLOTS: u32 = 1;

/// A socket that can be bound to a queue once nobody has it.
pub(super) struct Release {
    // Closed before the memory goes, which the kernel only wants to have.
    socket: OwnedFd,
    _memory: Box<[u8]>,
    address: libc::sockaddr_xdp,
}

impl Release {
    /// Makes it, while the process still has the right to: later, binding takes none.
    pub(super) fn prepare(interface: u32, queue: u32) -> io::Result<Self> {
        let (socket, page_bytes) = (sys::socket()?, sys::page_bytes());
        let (memory, page_at) = with_a_page(page_bytes);
        let umem = libc::xdp_umem_reg {
            addr: memory[page_at..].as_ptr() as u64,
            len: page_bytes as u64,
            chunk_size: page_bytes as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        // The limit of locked memory may be just the pool's size, and the hard one higher.
        while let Err(error) = sys::set_option(socket.as_fd(), libc::XDP_UMEM_REG, &umem) {
            if error.raw_os_error() != Some(libc::ENOBUFS) || !raise_memlock_limit() {
                return Err(error);
            }
        }
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
        Ok(Self { socket, _memory: memory, address })
    }

    /// Waits until `end`, and looks at least once, whether the driver has let go. Returns whether that is certain: it is not if another
    /// socket is bound to the queue first, or the device is gone.
    pub(super) fn wait(&self, end: Instant) -> bool {
        loop {
            match sys::bind(self.socket.as_fd(), &self.address) {
                Ok(()) => return true,
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {}
                Err(_) => return false,
            }
            thread::sleep(RELEASE_RETRY);
        }
    }
}

/// Memory in which a page of the machine lies whole, and where: the kernel registers whole pages only, which are larger
/// than 4 KiB on some machines (xdp_umem_reg in net/xdp/xdp_umem.c).
fn with_a_page(page_bytes: usize) -> (Box<[u8]>, usize) {
    let memory = vec![0_u8; 2 * page_bytes - 1].into_boxed_slice();
    let page_at = memory.as_ptr().align_offset(page_bytes);
    (memory, page_at)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_any_machine_lies_whole_in_the_memory() {
        for page_bytes in [4096, 16_384, 65_536, sys::page_bytes()] {
            // Wherever the allocator puts it.
            let memories: Vec<_> = (0..8).map(|_| with_a_page(page_bytes)).collect();
            for (memory, page_at) in &memories {
                let page = &memory[*page_at..][..page_bytes];
                assert!(page.as_ptr().addr().is_multiple_of(page_bytes), "{page_bytes}: {page_at}");
            }
        }
        assert!(sys::page_bytes() >= 4096);
    }
}
