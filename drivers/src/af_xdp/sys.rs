//! The system calls of AF_XDP sockets and of the few beside them, each as a function that returns `io::Result`.
//!
//! Owns: nothing. Never does: decide; that is `socket.rs`'s part. Invariant: every struct is of the
//! size and layout of linux/if_xdp.h (libc's definitions, asserted below).

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
};

// linux/if_xdp.h of Linux 5.9 and newer; older kernels fill in shorter structs.
const _: () = assert!(size_of::<libc::xdp_mmap_offsets>() == 128);
const _: () = assert!(size_of::<libc::xdp_umem_reg>() == 32);
const _: () = assert!(size_of::<libc::sockaddr_xdp>() == 16);
const _: () = assert!(size_of::<libc::xdp_statistics>() == 48);

/// `XDP_MAX_TX_SKB_BUDGET` (linux/if_xdp.h, Linux 6.17): packets sent for one kick in copy mode.
pub(super) const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// Turns a system call's -1 into the error it stands for.
fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// socket(2) of family AF_XDP.
pub(super) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: socket takes no pointer.
    let fd = check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// socket(2) of family AF_PACKET that receives nothing: it is of no protocol (packet(7)).
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: socket takes no pointer.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// socket(2) of family AF_NETLINK, to the kernel's rtnetlink (rtnetlink(7)). Reading does not wait.
pub(super) fn route_socket() -> io::Result<OwnedFd> {
    netlink_socket(libc::NETLINK_ROUTE)
}

/// The same, to generic netlink, whose families are asked for by name (linux/genetlink.h).
pub(super) fn generic_socket() -> io::Result<OwnedFd> {
    netlink_socket(libc::NETLINK_GENERIC)
}

fn netlink_socket(protocol: i32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes no pointer.
    let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// setsockopt(2) at level SOL_XDP.
pub(super) fn set_option<T>(fd: BorrowedFd<'_>, option: i32, value: &T) -> io::Result<()> {
    set_option_at(fd, libc::SOL_XDP, option, value)
}

/// setsockopt(2) at level SOL_SOCKET, with a number.
pub(super) fn set_socket_option(fd: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    set_option_at(fd, libc::SOL_SOCKET, option, &value)
}

/// setsockopt(2) at level SOL_PACKET.
pub(super) fn set_packet_option<T>(fd: BorrowedFd<'_>, option: i32, value: &T) -> io::Result<()> {
    set_option_at(fd, libc::SOL_PACKET, option, value)
}

fn set_option_at<T>(fd: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    let (value, len) = (ptr::from_ref(value).cast(), mem::size_of::<T>() as u32);
    // SAFETY: the kernel reads `len` bytes of the value.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, len) }).map(drop)
}

/// getsockopt(2) at level SOL_XDP. What the kernel does not write stays zero.
pub(super) fn option<T: Copy + Default>(fd: BorrowedFd<'_>, option: i32) -> io::Result<T> {
    let mut value = T::default();
    let mut len = mem::size_of::<T>() as u32;
    let to = ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes of the value; T is plain data (Copy + Default).
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, to, &raw mut len) })?;
    Ok(value)
}

/// `struct xdp_mmap_offsets`, for which libc has no Default.
pub(super) fn mmap_offsets(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    let words: [u64; 16] = option(fd, libc::XDP_MMAP_OFFSETS)?;
    let ring = |at: usize| libc::xdp_ring_offset {
        producer: words[at],
        consumer: words[at + 1],
        desc: words[at + 2],
        flags: words[at + 3],
    };
    Ok(libc::xdp_mmap_offsets { rx: ring(0), tx: ring(4), fr: ring(8), cr: ring(12) })
}

/// The counts of `struct xdp_statistics`, in its order.
pub(super) fn statistics(fd: BorrowedFd<'_>) -> io::Result<[u64; 6]> {
    option(fd, libc::XDP_STATISTICS)
}

/// The error that the kernel left at the socket (`SO_ERROR`, socket(7)), as an errno; it is told once. 0: none.
pub(super) fn socket_error(fd: BorrowedFd<'_>) -> i32 {
    let mut error = 0_i32;
    let mut len = mem::size_of_val(&error) as u32;
    let to = ptr::from_mut(&mut error).cast();
    // SAFETY: the kernel writes at most `len` bytes, an i32.
    let told =
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, to, &raw mut len) };
    if told < 0 { 0 } else { error }
}

/// bind(2) to a queue of an interface.
pub(super) fn bind(fd: BorrowedFd<'_>, address: &libc::sockaddr_xdp) -> io::Result<()> {
    let len = mem::size_of::<libc::sockaddr_xdp>() as u32;
    // SAFETY: the kernel reads `len` bytes of the address.
    check(unsafe { libc::bind(fd.as_raw_fd(), ptr::from_ref(address).cast(), len) }).map(drop)
}

/// Whether the kernel hands packets of several buffers to AF_XDP sockets: since Linux 6.6, where they say `XDP_USE_SG`.
/// bind(2) looks at the flags first, and for the device later (`xsk_bind` in net/xdp/xsk.c); here there is none.
pub(super) fn hands_on_runs() -> bool {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_USE_SG,
        sxdp_ifindex: 0,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    let said = socket().and_then(|fd| bind(fd.as_fd(), &address));
    said.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
}

/// A mapping of a ring, unmapped when dropped.
pub(super) struct RingMap {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the map only keeps memory alive; the rings on it say who accesses what.
unsafe impl Send for RingMap {}
// SAFETY: as above.
unsafe impl Sync for RingMap {}

impl RingMap {
    /// Maps a ring of a socket at one of the `XDP_PGOFF_*` offsets.
    pub(super) fn new(fd: BorrowedFd<'_>, len_bytes: usize, offset: i64) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), len_bytes, protection, flags, fd.as_raw_fd(), offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, len_bytes })
    }

    /// The address of what lies `offset` bytes into the ring, `len_bytes` long.
    pub(super) fn at<T>(&self, offset: u64, len_bytes: usize) -> NonNull<T> {
        let offset = offset as usize;
        assert!(offset + len_bytes <= self.len_bytes && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: the offset was just checked to lie within the mapping.
        unsafe { self.start.add(offset).cast() }
    }
}

impl Drop for RingMap {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; whoever has pointers into it keeps it alive.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

/// recvfrom(2) without a buffer: wakes a driver that waits for frames in the fill ring.
pub(super) fn wake_rx(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no buffer and no address are given.
    let result = unsafe {
        libc::recvfrom(
            fd.as_raw_fd(),
            ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    check(result as i32).map(drop)
}

/// sendto(2) without a buffer: makes the kernel send what lies in the TX ring.
pub(super) fn kick_tx(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no buffer and no address are given.
    let result = unsafe { libc::sendto(fd.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
    check(result as i32).map(drop)
}

/// Bytes of a page of the machine (sysconf(3)).
pub(super) fn page_bytes() -> usize {
    // SAFETY: sysconf takes no pointer.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("every Linux tells the size of its pages")
}

/// Waits until every CPU has left the code that it ran in the kernel when this was called
/// (membarrier(2), MEMBARRIER_CMD_GLOBAL: an RCU grace period). Afterwards no XDP program that was
/// detached before is still running. Returns whether the kernel did so: it refuses on machines with
/// nohz_full CPUs.
pub(super) fn wait_for_programs_to_end() -> bool {
    const MEMBARRIER_CMD_GLOBAL: i32 = 1;
    // SAFETY: membarrier takes no pointer.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) == 0 }
}
