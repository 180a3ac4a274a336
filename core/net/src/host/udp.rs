//! UDP echo (RFC 862): what came goes back, or a response of a given size.
//!
//! Owns: nothing but what is served. Never does: answer a port that may answer back. Invariant: every answer carries a
//! full checksum, whatever the request carried.

use sheafio_mempool::Frame;
use smoltcp::wire::{EthernetAddress, UDP_HEADER_LEN, UdpPacket};

use super::{Outcome, turn};
use crate::{Count, Counts, Headers, checksum::Sum, headers::Network};

/// Ports whose services answer whatever comes: echo (RFC 862), daytime (RFC 867), quote of the day (RFC 865) and
/// character generator (RFC 864). Between two of them, one packet is sent for ever.
const CHATTERERS: [u16; 4] = [7, 13, 17, 19];

/// Bytes of a request that a response of a given size repeats, at most.
const REPEATED_BYTES: usize = 64;

/// Where the checksum lies in a UDP header (RFC 768).
const CHECKSUM: std::ops::Range<usize> = 6..8;

/// Whether what is sent to a UDP port is answered by itself, whatever it is, by services that are known for that: an echo
/// server that answers it sends one datagram for ever.
#[inline]
pub fn is_chatterer(port: u16) -> bool {
    CHATTERERS.contains(&port)
}

/// What is served.
#[derive(Debug)]
pub(super) struct Service {
    /// The ports that echo, sorted.
    ports: Box<[u16]>,
    response_bytes: Option<u16>,
}

impl Service {
    pub(super) fn new(ports: &[u16], response_bytes: Option<u16>) -> Self {
        let mut ports = ports.to_vec();
        ports.sort_unstable();
        ports.dedup();
        Self { ports: ports.into(), response_bytes }
    }

    #[inline]
    fn has(&self, port: u16) -> bool {
        self.ports.binary_search(&port).is_ok()
    }

    /// Answers a datagram in its place. [`Count::PortNotServed`] if its port is not ours, with the frame as it was.
    #[inline]
    pub(super) fn answer(
        &self,
        headers: &Headers,
        frame: &mut Frame,
        mac: EthernetAddress,
        counts: &Counts,
    ) -> Result<Outcome, Count> {
        let (transport, end) = (usize::from(headers.transport), usize::from(headers.end));
        let len = UdpPacket::new_checked(&frame[transport..end]).map_err(|_| Count::BadUdpLength)?.len();
        let pseudo = headers.pseudo_header(frame, len);
        let mut udp = UdpPacket::new_unchecked(&mut frame[transport..end]);
        let (source, destination) = (udp.src_port(), udp.dst_port());
        let sums = Sums::of(&udp, pseudo);
        match udp.checksum() {
            // No checksum, which IPv6 does not allow (RFC 8200 section 8.1).
            0 if headers.kind == Network::Ipv4 => {}
            0 => return Err(Count::UdpNoChecksum),
            // Kernels on virtual links leave it at the sum of the pseudo header, for a device to go on with, and nothing
            // that reaches us says so (`CHECKSUM_PARTIAL`, linux/skbuff.h).
            given if given == sums.full || given == sums.partial => {}
            _ => return Err(Count::BadUdpChecksum),
        }
        if !self.has(destination) {
            return Err(Count::PortNotServed);
        }
        // An answer to port 0 reaches nobody: it says that none is wanted (RFC 768).
        if source == 0 {
            return Err(Count::SourcePortZero);
        }
        if self.has(source) || is_chatterer(source) {
            return Err(Count::SourcePortAnswers);
        }
        udp.set_src_port(destination);
        udp.set_dst_port(source);
        // The same words stand in other places, so their sum is the same.
        udp.set_checksum(sums.full);
        let answered = match self.response_bytes {
            Some(bytes) => respond(headers, frame, len, bytes)?,
            None => len,
        };
        turn::turn(frame, headers, usize::from(answered), mac);
        let payload = |len: u16| u64::from(len) - UDP_HEADER_LEN as u64;
        counts.add_many(Count::UdpRxBytes, payload(len));
        counts.add_many(Count::UdpTxBytes, payload(answered));
        Ok(Outcome::Answered(Count::UdpEchoed))
    }
}

/// Makes the datagram of `len` bytes one with `bytes` bytes of payload: its first ones, over and over. One without bytes
/// stays as it is. Returns how long it is, with its header.
fn respond(headers: &Headers, frame: &mut Frame, len: u16, bytes: u16) -> Result<u16, Count> {
    let transport = usize::from(headers.transport);
    let start = transport + UDP_HEADER_LEN;
    let mut head = [0; REPEATED_BYTES];
    let head = &mut head[..REPEATED_BYTES.min(usize::from(len) - UDP_HEADER_LEN)];
    if head.is_empty() {
        return Ok(len);
    }
    head.copy_from_slice(&frame[start..start + head.len()]);
    let answered = UDP_HEADER_LEN as u16 + bytes;
    turn::resize(frame, transport + usize::from(answered))?;
    for piece in frame[start..].chunks_mut(head.len()) {
        piece.copy_from_slice(&head[..piece.len()]);
    }
    let pseudo = headers.pseudo_header(frame, answered);
    let mut udp = UdpPacket::new_unchecked(&mut frame[transport..]);
    udp.set_len(answered);
    let full = Sums::of(&udp, pseudo).full;
    udp.set_checksum(full);
    Ok(answered)
}

/// The checksums that a datagram may have.
struct Sums {
    /// Of all of it.
    full: u16,
    /// Of the pseudo header alone, not inverted.
    partial: u16,
}

impl Sums {
    #[inline]
    fn of<T: AsRef<[u8]>>(udp: &UdpPacket<T>, pseudo: Sum) -> Self {
        let datagram = &udp.as_ref()[..usize::from(udp.len())];
        let sum = pseudo.and(&datagram[..CHECKSUM.start]).and(&datagram[UDP_HEADER_LEN..]);
        // Zero would say that there is none; all ones stand for the same sum (RFC 768).
        let full = match u16::from_be_bytes(sum.finished()) {
            0 => 0xffff,
            full => full,
        };
        Self { full, partial: u16::from_be_bytes(pseudo.folded()) }
    }
}
