//! What the kernel says of a driver's XDP abilities: the generic netlink family `netdev` (linux/netdev.h).
//!
//! Owns: two requests and the reading of their answers. Never does: judge, or change anything. Invariant: what is not
//! told is `None`, not "no": Linux tells features since 6.3, metadata of received packets since 6.7, and what
//! drivers do for packets that are sent since 6.8.

use std::{
    fs::File,
    io::{self, Read, Write},
};

use super::{interface::index_of, sys};

// linux/genetlink.h.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Bytes of `struct nlmsghdr` (linux/netlink.h) and `struct genlmsghdr`, and of `struct nlattr`.
const HEADERS_BYTES: usize = 20;
const ATTRIBUTE_BYTES: usize = 4;
/// Where `nlmsg_type` lies, and the error of a message that is one.
const TYPE_AT: usize = 4;
const ERROR_AT: usize = 16;
/// More than an answer to either request takes.
const ANSWER_BYTES: usize = 16_384;

// linux/netdev.h.
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_ACT_XSK_ZEROCOPY: u64 = 8;
const NETDEV_XSK_FLAGS_TX_CHECKSUM: u64 = 2;
/// `NETDEV_XDP_RX_METADATA_VLAN_TAG` (Linux 6.8).
pub(super) const RX_METADATA_VLAN_TAG: u64 = 4;

/// The names of `enum netdev_xdp_rx_metadata` and `enum netdev_xsk_flags`, bit by bit.
const RX_METADATA: [&str; 3] = ["timestamp", "hash", "VLAN tag"];
const TX_OFFLOADS: [&str; 3] = ["timestamp", "checksum", "launch time"];

/// A driver's abilities, as the kernel tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Netdev {
    features: Option<u64>,
    zero_copy_frames: Option<u64>,
    rx_metadata: Option<u64>,
    tx_offloads: Option<u64>,
}

impl Netdev {
    /// Asks for an interface of this thread's network namespace, by its name or an alternative one. `None` if there is
    /// no such interface, or the kernel has no such family: before Linux 6.3.
    pub fn of(interface: &str) -> Option<Self> {
        Self::of_index(index_of(interface)?)
    }

    /// The same, by the interface's index.
    pub(super) fn of_index(index: u32) -> Option<Self> {
        let mut socket = File::from(sys::generic_socket().ok()?);
        let name = (CTRL_ATTR_FAMILY_NAME, &b"netdev\0"[..]);
        let family = ask(&mut socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, name).ok()?;
        let family = find(&family, CTRL_ATTR_FAMILY_ID)? as u16;
        let device = (NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes()[..]);
        Some(Self::read(&ask(&mut socket, family, NETDEV_CMD_DEV_GET, device).ok()?))
    }

    fn read(attributes: &[u8]) -> Self {
        Self {
            features: find(attributes, NETDEV_A_DEV_XDP_FEATURES),
            zero_copy_frames: find(attributes, NETDEV_A_DEV_XDP_ZC_MAX_SEGS),
            rx_metadata: find(attributes, NETDEV_A_DEV_XDP_RX_METADATA_FEATURES),
            tx_offloads: find(attributes, NETDEV_A_DEV_XSK_FEATURES),
        }
    }

    /// Whether XDP programs run in the driver (`NETDEV_XDP_ACT_BASIC`).
    pub fn has_native(&self) -> bool {
        self.features.is_some_and(|features| features & NETDEV_XDP_ACT_BASIC != 0)
    }

    /// Whether it has AF_XDP without copies (`NETDEV_XDP_ACT_XSK_ZEROCOPY`).
    pub fn has_zero_copy(&self) -> bool {
        self.features.is_some_and(|features| features & NETDEV_XDP_ACT_XSK_ZEROCOPY != 0)
    }

    /// Frames that a packet may have without copies, at most (`NETDEV_A_DEV_XDP_ZC_MAX_SEGS`, Linux 6.6); 1 where that
    /// is not told.
    pub fn zero_copy_frames(&self) -> u64 {
        self.zero_copy_frames.unwrap_or(1)
    }

    /// What XDP programs may read of a received packet, in words; `None`: not told.
    pub fn rx_metadata(&self) -> Option<Vec<&'static str>> {
        self.rx_metadata.map(|bits| names(bits, RX_METADATA))
    }

    /// The same, as bits of `enum netdev_xdp_rx_metadata`: 1 timestamp, 2 hash, 4 VLAN tag.
    pub(super) fn rx_metadata_bits(&self) -> Option<u64> {
        self.rx_metadata
    }

    /// Whether VLAN tags are among that.
    pub(super) fn tells_tags(&self) -> bool {
        self.rx_metadata.is_some_and(|bits| bits & RX_METADATA_VLAN_TAG != 0)
    }

    /// What the driver does for packets that are sent without copies, in words; `None`: not told.
    pub fn tx_offloads(&self) -> Option<Vec<&'static str>> {
        self.tx_offloads.map(|bits| names(bits, TX_OFFLOADS))
    }

    /// Whether checksums are among that (`NETDEV_XSK_FLAGS_TX_CHECKSUM`).
    pub fn offloads_checksums(&self) -> bool {
        self.tx_offloads.is_some_and(|bits| bits & NETDEV_XSK_FLAGS_TX_CHECKSUM != 0)
    }
}

fn names(bits: u64, names: [&'static str; 3]) -> Vec<&'static str> {
    names.into_iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1).map(|(_, name)| name).collect()
}

/// Sends a command with one attribute, and returns the attributes of the answer, which the kernel makes while it takes
/// the command.
fn ask(
    socket: &mut (impl Read + Write),
    family: u16,
    command: u8,
    attribute: (u16, &[u8]),
) -> io::Result<Vec<u8>> {
    socket.write_all(&request(family, command, attribute))?;
    let mut answer = vec![0; ANSWER_BYTES];
    let len = socket.read(&mut answer)?;
    attributes_of(&answer[..len]).map(<[u8]>::to_vec)
}

/// ```text
///   | nlmsghdr: length, type, flags, sequence, port | genlmsghdr: command, version | nlattr: length, type, value | padding |
/// ```
fn request(family: u16, command: u8, (attribute, value): (u16, &[u8])) -> Vec<u8> {
    let attribute_bytes = ATTRIBUTE_BYTES + value.len();
    let len = HEADERS_BYTES + attribute_bytes.next_multiple_of(4);
    let mut message = Vec::with_capacity(len);
    message.extend((len as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 8]); // Sequence number and port.
    message.extend([command, 1, 0, 0]);
    message.extend((attribute_bytes as u16).to_ne_bytes());
    message.extend(attribute.to_ne_bytes());
    message.extend(value);
    message.resize(len, 0);
    message
}

/// The attributes of an answer that is none of an error.
fn attributes_of(answer: &[u8]) -> io::Result<&[u8]> {
    let is_short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let (len, kind) =
        (word_at(answer, 0).ok_or_else(is_short)?, word_at(answer, TYPE_AT).ok_or_else(is_short)?);
    if i32::from(kind as u16) == libc::NLMSG_ERROR {
        let error = word_at(answer, ERROR_AT).ok_or_else(is_short)? as i32;
        return Err(io::Error::from_raw_os_error(error.saturating_neg()));
    }
    answer.get(HEADERS_BYTES..len as usize).ok_or_else(is_short)
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

/// The number in an attribute, of up to 8 bytes.
pub(super) fn find(attributes: &[u8], asked: u16) -> Option<u64> {
    let mut rest = attributes;
    loop {
        let header = word_at(rest, 0)?;
        let (len, kind) = (usize::from(header as u16), (header >> 16) as u16);
        let value = rest.get(ATTRIBUTE_BYTES..len)?;
        if kind == asked {
            let mut number = [0; 8];
            number.get_mut(..value.len())?.copy_from_slice(value);
            return Some(u64::from_ne_bytes(number));
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As linux/netdev.h has it: an index of 4 bytes, then numbers of 8 with padding before them, one of 4.
    fn answer(features: u64, metadata: Option<[u64; 2]>) -> Vec<u8> {
        let mut attributes =
            vec![(1, 7_u32.to_ne_bytes().to_vec()), (2, vec![]), (3, features.to_ne_bytes().to_vec())];
        if let Some([rx, tx]) = metadata {
            attributes.extend([(5, rx.to_ne_bytes().to_vec()), (6, tx.to_ne_bytes().to_vec())]);
        }
        attributes.push((4, 8_u32.to_ne_bytes().to_vec()));
        let attributes = attributes.into_iter().flat_map(|(kind, value): (u16, Vec<u8>)| {
            let len = 4 + value.len() as u16;
            [&len.to_ne_bytes(), &kind.to_ne_bytes(), &value[..]].concat()
        });
        attributes.collect()
    }

    #[test]
    fn what_a_driver_can_do_is_read_and_what_is_not_told_is_no_no() {
        let netdev = Netdev::read(&answer(0x8b, Some([5, 3])));
        assert!(netdev.has_native() && netdev.has_zero_copy() && netdev.offloads_checksums());
        assert_eq!(netdev.zero_copy_frames(), 8);
        assert_eq!(netdev.rx_metadata(), Some(vec!["timestamp", "VLAN tag"]));
        assert!(netdev.tells_tags());
        assert_eq!(netdev.tx_offloads(), Some(vec!["timestamp", "checksum"]));

        let netdev = Netdev::read(&answer(1, Some([0, 1])));
        assert!(netdev.has_native() && !netdev.has_zero_copy() && !netdev.offloads_checksums());
        assert_eq!((netdev.rx_metadata(), netdev.rx_metadata_bits()), (Some(vec![]), Some(0)));
        assert!(!netdev.tells_tags());

        let old = Netdev::read(&answer(9, None));
        assert!(old.has_zero_copy() && !old.offloads_checksums());
        assert_eq!((old.rx_metadata(), old.tx_offloads(), old.tells_tags()), (None, None, false));
        assert_eq!(Netdev::read(&[]).zero_copy_frames(), 1);
    }

    #[test]
    fn an_answer_that_is_an_error_or_cut_has_no_attributes() {
        let mut message = request(7, 1, (1, &[1, 2, 3]));
        assert_eq!(message.len(), 28);
        assert_eq!(attributes_of(&message).unwrap(), [7, 0, 1, 0, 1, 2, 3, 0]);
        assert_eq!(find(attributes_of(&message).unwrap(), 1), Some(0x03_0201));
        assert!((0..28).all(|len| attributes_of(&message[..len]).is_err()));
        message[TYPE_AT..][..2].copy_from_slice(&2_u16.to_ne_bytes()); // NLMSG_ERROR.
        message[ERROR_AT..][..4].copy_from_slice(&(-libc::ENOENT).to_ne_bytes());
        assert_eq!(attributes_of(&message).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        // Attributes that say that they are longer or shorter than they can be.
        for len in [0_u16, 3, 9, u16::MAX] {
            let attribute = [&len.to_ne_bytes()[..], &[1, 0, 5, 0, 0, 0]].concat();
            assert_eq!(find(&attribute, 1), None, "{len}");
            assert_eq!(find(&attribute, 2), None, "{len}");
        }
    }

    /// Every network namespace has a loopback device, which has no XDP of its own.
    #[test]
    fn the_loopback_device_is_asked_and_one_that_is_not_there_is_not() {
        let netdev = Netdev::of("lo").unwrap_or_default();
        assert!(
            !netdev.has_native() && !netdev.has_zero_copy() && !netdev.offloads_checksums(),
            "{netdev:?}"
        );
        assert_eq!(Netdev::of("no-such-device"), None);
        assert_eq!(Netdev::of_index(u32::MAX), None);
    }
}
