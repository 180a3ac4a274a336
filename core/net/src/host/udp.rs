//! UDP echo (RFC 862): what came goes back.
//!
//! Owns: nothing but the list of ports. Never does: answer a port that may answer back. Invariant: every answer carries a
//! full checksum, whatever the request carried.

use sheafio_mempool::Frame;
use smoltcp::wire::{EthernetAddress, UDP_HEADER_LEN, UdpPacket};

use super::{Outcome, turn};
use crate::{Count, Headers, checksum::Sum, headers::Network};

/// Ports whose services answer whatever comes: echo (RFC 862), daytime (RFC 867), quote of the day (RFC 865) and
/// character generator (RFC 864). Between two of them, one packet is sent for ever.
const CHATTERERS: [u16; 4] = [7, 13, 17, 19];

/// Where the checksum lies in a UDP header (RFC 768).
const CHECKSUM: std::ops::Range<usize> = 6..8;

/// The ports that echo.
#[derive(Debug)]
pub(super) struct Ports(Box<[u16]>);

impl Ports {
    pub(super) fn new(ports: &[u16]) -> Self {
        let mut ports = ports.to_vec();
        ports.sort_unstable();
        ports.dedup();
        Self(ports.into())
    }

    #[inline]
    fn contains(&self, port: u16) -> bool {
        self.0.binary_search(&port).is_ok()
    }
}

/// Sends a datagram back. [`Count::PortNotServed`] if its port is not ours, with the frame as it was.
#[inline]
pub(super) fn answer(
    headers: &Headers,
    frame: &mut Frame,
    ports: &Ports,
    mac: EthernetAddress,
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
    if !ports.contains(destination) {
        return Err(Count::PortNotServed);
    }
    // An answer to port 0 reaches nobody: it says that none is wanted (RFC 768).
    if source == 0 {
        return Err(Count::SourcePortZero);
    }
    if ports.contains(source) || CHATTERERS.contains(&source) {
        return Err(Count::SourcePortAnswers);
    }
    udp.set_src_port(destination);
    udp.set_dst_port(source);
    // The same words stand in other places, so their sum is the same.
    udp.set_checksum(sums.full);
    turn::turn(frame, headers, usize::from(len), mac);
    Ok(Outcome::Answered(Count::UdpEchoed))
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
