//! Datagrams in frames: how they are received, and what is said to the kernel when they are sent back.
//!
//! Owns: nothing. Never does: touch a datagram's own bytes. Invariant: an answer goes to where the datagram came from, and
//! comes from the address that it was sent to: a socket that is bound to all addresses would send from the one that the
//! route prefers, which is not the one that the client talks to.
//!
//! ```text
//! received             | namelen controllen payloadlen flags | sender's address | PKTINFO | datagram ...
//! sent back  | msghdr | iovec | the same                     |  ^ name          |  ^ control |  ^ iovec's
//! ```

use std::mem::offset_of;

use sheafio_mempool::Frame;

/// `struct io_uring_recvmsg_out` (linux/io_uring.h), four words of 32 bits.
const HEADER_BYTES: usize = 16;
/// Bytes behind that for the sender's address: `struct sockaddr_in6` (linux/in6.h), the larger of the two kinds.
pub(super) const NAME_BYTES: usize = 28;
/// Bytes behind that for which of our addresses it was sent to: a `struct cmsghdr` (linux/socket.h) of 16 bytes with a
/// `struct in6_pktinfo` (linux/ipv6.h) of 20, the larger of the two kinds, rounded up to whole words.
pub(super) const CONTROL_BYTES: usize = 40;
/// Where a datagram's own bytes begin in the frame that it was received into.
pub(crate) const DATAGRAM_START: usize = HEADER_BYTES + NAME_BYTES + CONTROL_BYTES;

/// What is told of it, from the start of the control data: level and type, and, behind the header, for IPv4 a
/// `struct in_pktinfo` (linux/in.h: interface, our address, the packet's destination), for IPv6 a `struct in6_pktinfo`
/// (destination, interface).
const CONTROL: usize = HEADER_BYTES + NAME_BYTES;
const LEVEL: usize = CONTROL + 8;
const INFO: usize = CONTROL + 16;
const V4_CONTROL_BYTES: usize = 32;

/// `struct msghdr` and `struct iovec` (linux/socket.h, linux/uio.h), one behind the other.
const MESSAGE_BYTES: usize = size_of::<libc::msghdr>() + size_of::<libc::iovec>();

const _: () = assert!(
    cfg!(target_endian = "little") // For the half of a word that the length of the name is.
        && size_of::<libc::msghdr>() == 56
        && offset_of!(libc::msghdr, msg_namelen) == 8
        && offset_of!(libc::msghdr, msg_iov) == 16
        && offset_of!(libc::msghdr, msg_control) == 32
        && offset_of!(libc::msghdr, msg_controllen) == 40
        && size_of::<libc::iovec>() == 16,
    "struct user_msghdr of 64 bits, as write_message writes it"
);

/// What the kernel says of a received datagram in front of its bytes.
pub(crate) struct DatagramHeader {
    /// Bytes of the sender's address.
    name_len: usize,
    /// Bytes of control data; 0 if it does not tell our address.
    control_len: usize,
    /// The sender's port.
    pub(crate) port: u16,
    /// The datagram was larger than the frame; the rest is lost.
    pub(crate) is_cut: bool,
    /// It was sent to many: to a broadcast address or a multicast group.
    pub(crate) is_to_group: bool,
}

impl DatagramHeader {
    /// Reads it. `None` if the frame is not one that a datagram was received into.
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let front: &[u8; DATAGRAM_START] = frame.first_chunk()?;
        // In the byte order of this machine.
        let word = |at: usize| u32::from_ne_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]);
        let name_len = word(0) as usize;
        if !(4..=NAME_BYTES).contains(&name_len) {
            return None;
        }
        // In both sockaddr_in and sockaddr_in6 the port follows the family's two bytes, in network order.
        let port = u16::from_be_bytes([front[HEADER_BYTES + 2], front[HEADER_BYTES + 3]]);
        let is_cut = word(12) & libc::MSG_TRUNC as u32 != 0;
        let kind = (word(LEVEL) as i32, word(LEVEL + 4) as i32);
        let (control_len, is_to_group) = match (word(4) as usize, kind) {
            // The kernel's choice of an address of ours to answer from is the destination, unless that is many hosts'.
            (V4_CONTROL_BYTES, (libc::IPPROTO_IP, libc::IP_PKTINFO)) => {
                (V4_CONTROL_BYTES, word(INFO + 4) != word(INFO + 8))
            }
            (CONTROL_BYTES, (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)) => (CONTROL_BYTES, front[INFO] == 0xff),
            _ => (0, false),
        };
        Some(Self { name_len, control_len, port, is_cut, is_to_group })
    }
}

/// Writes, in front of a received datagram and what lies there, what sends it back. The frame begins with the `msghdr`
/// then, whose pointers lead to other parts of it.
///
/// # Panics
/// If the frame is not one that a datagram was received into.
pub(super) fn write_message(frame: &mut Frame) {
    let header = DatagramHeader::read(frame).expect("a datagram was received into this frame");
    let datagram_len = frame.len() - DATAGRAM_START;
    // The interface that it came by is no part of the answer's way, which the routes know; but a link-local address has a
    // meaning on one alone (RFC 4291 section 2.5.6).
    match header.control_len {
        V4_CONTROL_BYTES => frame[INFO..INFO + 4].fill(0),
        CONTROL_BYTES if !(frame[INFO] == 0xfe && frame[INFO + 1] & 0xc0 == 0x80) => {
            frame[INFO + 16..INFO + 20].fill(0);
        }
        _ => {}
    }
    let front = frame.prepend(MESSAGE_BYTES).expect("frames are received into behind the kernel's headroom");
    let start = front.as_ptr().expose_provenance();
    let words = [
        start + MESSAGE_BYTES + HEADER_BYTES,   // msg_name
        header.name_len,                        // msg_namelen, and padding
        start + size_of::<libc::msghdr>(),      // msg_iov
        1,                                      // msg_iovlen
        start + MESSAGE_BYTES + CONTROL,        // msg_control
        header.control_len,                     // msg_controllen
        0,                                      // msg_flags, and padding
        start + MESSAGE_BYTES + DATAGRAM_START, // iov_base
        datagram_len,                           // iov_len
    ];
    for (to, word) in front.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use sheafio_mempool::{Hugepages, Mempool};

    use super::*;

    /// The front of a frame into which a datagram from a port came, to an IPv4 address by interface 5.
    fn front(port: u16, destination: [u8; 4]) -> Vec<u8> {
        let mut front = vec![0; DATAGRAM_START];
        front[..4].copy_from_slice(&16_u32.to_ne_bytes());
        front[4..8].copy_from_slice(&(V4_CONTROL_BYTES as u32).to_ne_bytes());
        front[18..20].copy_from_slice(&port.to_be_bytes());
        front[LEVEL..LEVEL + 4].copy_from_slice(&libc::IPPROTO_IP.to_ne_bytes());
        front[LEVEL + 4..LEVEL + 8].copy_from_slice(&libc::IP_PKTINFO.to_ne_bytes());
        front[INFO..INFO + 4].copy_from_slice(&5_u32.to_ne_bytes());
        front[INFO + 4..INFO + 8].copy_from_slice(&[10, 0, 0, 2]);
        front[INFO + 8..INFO + 12].copy_from_slice(&destination);
        front
    }

    #[test]
    fn headers_of_datagrams_are_read_and_others_refused() {
        assert!(DatagramHeader::read(&[0; DATAGRAM_START + 5]).is_none(), "no address");
        let mut frame = front(7, [10, 0, 0, 2]);
        let header = DatagramHeader::read(&frame).unwrap();
        assert_eq!((header.name_len, header.control_len, header.port), (16, 32, 7));
        assert!(!header.is_cut && !header.is_to_group);
        assert!(DatagramHeader::read(&front(7, [10, 0, 0, 255])).unwrap().is_to_group);
        frame[12..16].copy_from_slice(&(libc::MSG_TRUNC as u32).to_ne_bytes());
        assert!(DatagramHeader::read(&frame).unwrap().is_cut);
        frame[LEVEL] = 99;
        assert_eq!(DatagramHeader::read(&frame).unwrap().control_len, 0, "of another kind");
        frame[..4].copy_from_slice(&29_u32.to_ne_bytes());
        assert!(DatagramHeader::read(&frame).is_none(), "an address that does not fit");
        assert!(DatagramHeader::read(&frame[..DATAGRAM_START - 1]).is_none());
    }

    #[test]
    fn a_message_leads_to_the_parts_of_its_frame() {
        let pool = Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap();
        let mut cache = pool.cache().unwrap();
        let mut frame = cache.alloc().unwrap();
        let received = [&front(4711, [10, 0, 0, 2])[..], b"hello"].concat();
        frame.append(received.len()).unwrap().copy_from_slice(&received);
        write_message(&mut frame);
        let word = |at: usize| usize::from_ne_bytes(frame[8 * at..8 * at + 8].try_into().unwrap());
        let part = |at: usize, len: usize| {
            let from = word(at) - frame.as_ptr().addr();
            &frame[from..from + len]
        };
        assert_eq!(part(0, word(1)), &received[16..32]);
        assert_eq!((word(2) - frame.as_ptr().addr(), word(3), word(6)), (56, 1, 0));
        assert_eq!(part(7, word(8)), b"hello");
        let control = part(4, word(5));
        assert_eq!(
            (control.len(), &control[16..20], &control[20..24]),
            (32, &[0; 4][..], &[10, 0, 0, 2][..])
        );
        cache.free(frame);
    }
}
