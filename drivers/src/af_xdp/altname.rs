//! Alternative names of interfaces that are too long for the kernel's older calls (ip-link(8): property add altname).
//!
//! Owns: one request to rtnetlink (rtnetlink(7)). Never does: list or change interfaces. Invariant: no byte of the
//! answer is read that did not come.
//!
//! Names below `IFNAMSIZ` bytes need it not: `if_nametoindex` knows alternative names too.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// `struct nlmsghdr` (linux/netlink.h) and `struct ifinfomsg` (linux/rtnetlink.h), which follows it, in bytes.
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
/// Where `nlmsg_type` and `ifi_index` lie in an answer of both.
const TYPE_AT: usize = 4;
const INDEX_AT: usize = HEADER_BYTES + 4;

/// The index of the interface that has an alternative name. `None` if none has, or the kernel (before Linux 5.5)
/// knows no such names.
pub(super) fn index_of(name: &str) -> Option<u32> {
    let answer = ask(&request(name)).ok()?;
    index_in(&answer)
}

/// `RTM_GETLINK` by `IFLA_ALT_IFNAME` (linux/if_link.h).
///
/// ```text
///   | nlmsghdr: length, type, flags, sequence, port | ifinfomsg: zeroes | rtattr: length, type, name, 0 | padding |
/// ```
fn request(name: &str) -> Vec<u8> {
    let attribute = 4 + name.len() + 1;
    let mut message = vec![0; HEADER_BYTES + LINK_BYTES + attribute.next_multiple_of(4)];
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[TYPE_AT..TYPE_AT + 2].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    let at = HEADER_BYTES + LINK_BYTES;
    message[at..at + 2].copy_from_slice(&(attribute as u16).to_ne_bytes());
    message[at + 2..at + 4].copy_from_slice(&libc::IFLA_ALT_IFNAME.to_ne_bytes());
    message[at + 4..at + 4 + name.len()].copy_from_slice(name.as_bytes());
    message
}

/// The index in an answer; an error message has none.
fn index_in(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(TYPE_AT..TYPE_AT + 2)?.try_into().ok()?);
    let index = u32::from_ne_bytes(answer.get(INDEX_AT..INDEX_AT + 4)?.try_into().ok()?);
    (kind == libc::RTM_NEWLINK).then_some(index)
}

/// Sends a request and returns the start of the answer, which the kernel makes while it takes the request.
fn ask(request: &[u8]) -> io::Result<Vec<u8>> {
    // SAFETY: socket takes no pointer.
    let fd =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut answer = vec![0; HEADER_BYTES + LINK_BYTES];
    // SAFETY: the kernel reads the request and writes at most the answer's length into it.
    let len = unsafe {
        if libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
    };
    answer.truncate(usize::try_from(len).map_err(|_| io::Error::last_os_error())?);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel's headers lay it out, for a name whose attribute needs padding.
    #[test]
    fn a_request_is_as_long_as_it_says_and_padded() {
        let message = request("a-name-of-18-bytes");
        let attribute = 4 + 18 + 1_u16;
        assert_eq!(message.len(), 32 + 24);
        assert_eq!(message[..4], 56_u32.to_ne_bytes());
        assert_eq!(message[32..36], [attribute.to_ne_bytes(), 53_u16.to_ne_bytes()].concat());
        assert_eq!(&message[36..], b"a-name-of-18-bytes\0\0");
    }

    #[test]
    fn an_answer_that_is_short_or_an_error_has_no_index() {
        let mut answer = vec![0; 32];
        answer[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        answer[20..24].copy_from_slice(&7_u32.to_ne_bytes());
        assert_eq!(index_in(&answer), Some(7));
        assert_eq!(index_in(&answer[..23]), None);
        assert_eq!(index_in(&[]), None);
        answer[4..6].copy_from_slice(&2_u16.to_ne_bytes()); // NLMSG_ERROR.
        assert_eq!(index_in(&answer), None);
    }

    #[test]
    fn a_name_that_no_interface_has_is_not_found() {
        assert_eq!(index_of("no-interface-has-a-name-like-this"), None);
    }
}
