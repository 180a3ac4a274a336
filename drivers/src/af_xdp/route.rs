//! Questions to rtnetlink(7) about one link: by its index, or by an alternative name that is too long for the kernel's
//! older calls (ip-link(8): property add altname).
//!
//! Owns: a socket, of the network namespace in which it was made. Never does: list or change interfaces. Invariant: no
//! byte of an answer is read that did not come.
//!
//! Names below `IFNAMSIZ` bytes need it not: `if_nametoindex` knows alternative names too.

use std::{
    fs::File,
    io::{self, Read, Write},
};

use super::{netdev::find, sys};

/// `struct nlmsghdr` (linux/netlink.h) and `struct ifinfomsg` (linux/rtnetlink.h), which follows it, in bytes.
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
/// Where `nlmsg_type`, `ifi_index` and `ifi_flags` lie in a message of both.
const TYPE_AT: usize = 4;
const INDEX_AT: usize = HEADER_BYTES + 4;
const FLAGS_AT: usize = HEADER_BYTES + 8;

/// More than the attributes of a veth take; an answer that is cut counts as none.
const ANSWER_BYTES: usize = 16_384;

/// By what a link is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum By<'a> {
    Index(u32),
    /// An alternative name.
    Name(&'a str),
}

/// What the kernel says of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    /// `IFF_*` of linux/if.h.
    pub(super) flags: u32,
}

/// A socket to rtnetlink.
#[derive(Debug)]
pub(super) struct Route(File);

impl Route {
    pub(super) fn open() -> io::Result<Self> {
        sys::route_socket().map(|socket| Self(File::from(socket)))
    }

    /// Asks (`RTM_GETLINK`). The kernel answers while it takes the question, so nothing waits.
    pub(super) fn link(&mut self, by: By<'_>) -> io::Result<Link> {
        self.0.write_all(&question(by))?;
        // The attributes that follow are cut off.
        let mut answer = [0; HEADER_BYTES + LINK_BYTES];
        let len = self.0.read(&mut answer)?;
        link_in(&answer[..len]).ok_or_else(|| io::Error::other("rtnetlink knows no such link"))
    }

    /// The index of a veth's other end; `None` if that lies in another network namespace, or nothing is told.
    pub(super) fn peer(&mut self, index: u32) -> Option<u32> {
        self.0.write_all(&question(By::Index(index))).ok()?;
        let mut answer = vec![0; ANSWER_BYTES];
        let len = self.0.read(&mut answer).ok()?;
        peer_in(&answer[..len])
    }
}

/// The index of the interface that has an alternative name. `None` if none has, or the kernel (before Linux 5.5)
/// knows no such names.
pub(super) fn index_of(name: &str) -> Option<u32> {
    Some(Route::open().ok()?.link(By::Name(name)).ok()?.index)
}

/// `RTM_GETLINK` by `ifi_index`, or by `IFLA_ALT_IFNAME` (linux/if_link.h).
///
/// ```text
///   | nlmsghdr: length, type, flags, sequence, port | ifinfomsg: zeroes, index, zeroes |
///                                                   by name: | rtattr: length, type, name, 0 | padding |
/// ```
fn question(by: By<'_>) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES + LINK_BYTES];
    match by {
        By::Index(index) => message[INDEX_AT..INDEX_AT + 4].copy_from_slice(&index.to_ne_bytes()),
        By::Name(name) => {
            let attribute = 4 + name.len() + 1;
            message.extend((attribute as u16).to_ne_bytes());
            message.extend(libc::IFLA_ALT_IFNAME.to_ne_bytes());
            message.extend(name.as_bytes());
            message.resize(HEADER_BYTES + LINK_BYTES + attribute.next_multiple_of(4), 0);
        }
    }
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[TYPE_AT..TYPE_AT + 2].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message
}

/// The link in an answer; an error message has none.
fn link_in(answer: &[u8]) -> Option<Link> {
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(answer.get(TYPE_AT..TYPE_AT + 2)?.try_into().ok()?);
    let link = Link { index: word(INDEX_AT)?, flags: word(FLAGS_AT)? };
    (kind == libc::RTM_NEWLINK).then_some(link)
}

/// The index of the device at the other end (`IFLA_LINK`, linux/if_link.h), in a whole answer, if it is in the same
/// network namespace.
fn peer_in(answer: &[u8]) -> Option<u32> {
    link_in(answer)?;
    let len = u32::from_ne_bytes(*answer.first_chunk()?) as usize;
    let attributes = answer.get(HEADER_BYTES + LINK_BYTES..len)?;
    // The kernel names the namespace only if it is another one (`rtnl_fill_link_netnsid` in net/core/rtnetlink.c).
    let is_elsewhere = find(attributes, libc::IFLA_LINK_NETNSID).is_some();
    let peer = find(attributes, libc::IFLA_LINK)? as u32;
    (!is_elsewhere).then_some(peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel's headers lay it out, for a name whose attribute needs padding.
    #[test]
    fn a_question_is_as_long_as_it_says_and_padded() {
        let message = question(By::Name("a-name-of-18-bytes"));
        let attribute = 4 + 18 + 1_u16;
        assert_eq!(message.len(), 32 + 24);
        assert_eq!(message[..4], 56_u32.to_ne_bytes());
        assert_eq!(message[32..36], [attribute.to_ne_bytes(), 53_u16.to_ne_bytes()].concat());
        assert_eq!(&message[36..], b"a-name-of-18-bytes\0\0");
        let message = question(By::Index(7));
        assert_eq!((message.len(), &message[..4]), (32, &32_u32.to_ne_bytes()[..]));
        assert_eq!(message[20..24], 7_u32.to_ne_bytes());
    }

    #[test]
    fn an_answer_that_is_short_or_an_error_has_no_link() {
        let mut answer = vec![0; 32];
        answer[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        answer[20..24].copy_from_slice(&7_u32.to_ne_bytes());
        answer[24..28].copy_from_slice(&9_u32.to_ne_bytes());
        assert_eq!(link_in(&answer), Some(Link { index: 7, flags: 9 }));
        assert_eq!(link_in(&answer[..27]), None);
        assert_eq!(link_in(&[]), None);
        answer[4..6].copy_from_slice(&2_u16.to_ne_bytes()); // NLMSG_ERROR.
        assert_eq!(link_in(&answer), None);
    }

    /// An answer of rtnetlink with these attributes.
    fn answer(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut message = vec![0; HEADER_BYTES + LINK_BYTES];
        message[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        for (kind, value) in attributes {
            message.extend((4 + value.len() as u16).to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(*value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        message
    }

    #[test]
    fn a_peer_is_known_only_in_the_same_namespace_and_from_a_whole_answer() {
        let (name, peer) = ((libc::IFLA_IFNAME, &b"ve0\0"[..]), (libc::IFLA_LINK, &7_u32.to_ne_bytes()[..]));
        let here = answer(&[name, (libc::IFLA_STATS64, &[1; 200]), peer]);
        assert_eq!(peer_in(&here), Some(7));
        assert!((0..here.len()).all(|len| peer_in(&here[..len]).is_none()));
        let elsewhere = answer(&[name, peer, (libc::IFLA_LINK_NETNSID, &0_u32.to_ne_bytes())]);
        assert_eq!(peer_in(&elsewhere), None);
        assert_eq!(peer_in(&answer(&[name])), None);
        let mut error = here;
        error[4..6].copy_from_slice(&2_u16.to_ne_bytes()); // NLMSG_ERROR.
        assert_eq!(peer_in(&error), None);
    }

    /// Every network namespace has a loopback device, the first one.
    #[test]
    fn a_link_is_found_by_its_index_again_and_again_and_what_is_not_there_is_not() {
        let mut route = Route::open().unwrap();
        for _ in 0..3 {
            let link = route.link(By::Index(1)).unwrap();
            assert_eq!((link.index, link.flags & libc::IFF_LOOPBACK as u32), (1, libc::IFF_LOOPBACK as u32));
            assert!(route.link(By::Index(i32::MAX as u32)).is_err());
        }
        assert_eq!(index_of("no-interface-has-a-name-like-this"), None);
    }
}
