//! Kernel sockets by io_uring, on frames of the pool: what `sheafio rr` and `sheafio echo --stack kernel` stand on.
//!
//! ```text
//!   pool cache --alloc--> provided buffers --kernel receives--> Frame in a Completion --> application
//!        ^                                                                                   |
//!        +-------------free-------------- Frame in a Completion <--kernel sends-- send() <---+
//! ```
//!
//! Owns: nothing itself; `ring` is the ring with what the kernel sends from, `buffers` what it receives into, `refusal`
//! why a machine has no ring, `rest` what a loop does without work. Never does: lend memory to the kernel that someone else can touch: a frame is moved in
//! with an operation and comes back with its last completion. Invariant: all frames are the application's again once
//! [`Ring::close`] has found no operation open.
//!
//! The kernel side is in linux/io_uring.h. Linux 6.2 is the oldest that has all of it (addresses with
//! `IORING_OP_SEND`); better task work is used where there is (`IORING_SETUP_DEFER_TASKRUN`, 6.1).

#[expect(unsafe_code, reason = "the kernel reads this memory; ARCHITECTURE.md lists it")]
mod buffers;
mod refusal;
mod rest;
#[expect(unsafe_code, reason = "operations name memory that the kernel reads; ARCHITECTURE.md lists it")]
mod ring;
mod sending;

pub(crate) use self::{
    refusal::Refused,
    rest::Rest,
    ring::{Completion, Kind, Operation, Ring, Socket},
};

/// Bytes in front of a received datagram: `struct io_uring_recvmsg_out` (linux/io_uring.h), four words of 32 bits.
const DATAGRAM_HEADER_BYTES: usize = 16;
/// Bytes behind that for the sender's address: `struct sockaddr_in6` (linux/in6.h), the larger of the two kinds.
const DATAGRAM_NAME_BYTES: usize = 28;
/// Where a datagram's own bytes begin in the frame that it was received into.
pub(crate) const DATAGRAM_START: usize = DATAGRAM_HEADER_BYTES + DATAGRAM_NAME_BYTES;

/// What the kernel says of a received datagram in front of its bytes.
pub(crate) struct DatagramHeader {
    /// Bytes of the sender's address.
    name_len: usize,
    /// The sender's port.
    pub(crate) port: u16,
    /// The datagram was larger than the frame; the rest is lost.
    pub(crate) is_cut: bool,
}

impl DatagramHeader {
    /// Reads it. `None` if the frame is not one that a datagram was received into.
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let (header, name) = frame.get(..DATAGRAM_START)?.split_at(DATAGRAM_HEADER_BYTES);
        // namelen, controllen, payloadlen, flags, in the byte order of this machine.
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let name_len = word(0) as usize;
        // In both sockaddr_in and sockaddr_in6 the port follows the family's two bytes, in network order.
        let port = u16::from_be_bytes([name[2], name[3]]);
        let is_cut = word(12) & libc::MSG_TRUNC as u32 != 0;
        (4..=DATAGRAM_NAME_BYTES).contains(&name_len).then_some(Self { name_len, port, is_cut })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_datagrams_are_read_and_others_refused() {
        let mut frame = vec![0; DATAGRAM_START + 5];
        assert!(DatagramHeader::read(&frame).is_none(), "no address");
        frame[..4].copy_from_slice(&16_u32.to_ne_bytes());
        frame[18..20].copy_from_slice(&7_u16.to_be_bytes());
        let header = DatagramHeader::read(&frame).unwrap();
        assert_eq!((header.name_len, header.port, header.is_cut), (16, 7, false));
        frame[12..16].copy_from_slice(&(libc::MSG_TRUNC as u32).to_ne_bytes());
        assert!(DatagramHeader::read(&frame).unwrap().is_cut);
        frame[..4].copy_from_slice(&29_u32.to_ne_bytes());
        assert!(DatagramHeader::read(&frame).is_none(), "an address that does not fit");
        assert!(DatagramHeader::read(&frame[..DATAGRAM_START - 1]).is_none());
    }
}
