//! Local addresses without a port: the one thing about sockets that rustix does not set.
//!
//! Owns: nothing. Never does: pass on memory that outlives the call. Invariant: none.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Binding a socket to an address and port 0 takes no port; connecting takes one, which has to be free towards that
/// server alone (`IP_BIND_ADDRESS_NO_PORT`, linux/in.h, since Linux 4.2). Else a port is taken for all servers at once. A kernel
/// that does not know it goes on without.
pub(super) fn bind_without_port(socket: BorrowedFd<'_>) {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads an int from where `on` is, which lives until the call has returned.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
}
