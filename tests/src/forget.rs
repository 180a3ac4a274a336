//! A connection that its client forgets, as a machine does that loses its power.

use std::{io, net::TcpStream, os::fd::AsRawFd};

/// Closes a connection without a word to its peer: `TCP_REPAIR` (linux/tcp.h).
///
/// # Panics
/// Without CAP_NET_ADMIN in its namespace.
pub fn forget(stream: TcpStream) {
    let (yes, len) = (1_i32, size_of::<i32>() as u32);
    // SAFETY: the kernel reads one i32.
    let done = unsafe {
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_TCP, libc::TCP_REPAIR, (&raw const yes).cast(), len)
    };
    assert_eq!(done, 0, "TCP_REPAIR: {}", io::Error::last_os_error());
    drop(stream);
}
