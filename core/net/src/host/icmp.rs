//! Ping (RFC 792, RFC 4443), and the error that says that a port is closed.
//!
//! Owns: nothing. Never does: answer an error, or send one about a packet that was not for us alone. Invariant: the
//! caller has judged both addresses, and how many errors the sender may still get.

use sheafio_mempool::Frame;
use smoltcp::wire::{
    EthernetAddress, IPV4_HEADER_LEN, IPV4_MIN_MTU, IPV6_HEADER_LEN, IPV6_MIN_MTU, Icmpv4DstUnreachable,
    Icmpv4Message, Icmpv4Packet, Icmpv6DstUnreachable, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet,
    Ipv6Packet,
};

use super::{Outcome, limits::Rate, turn};
use crate::{Count, Headers, headers::Network};

/// Errors to one target: as many as Linux sends (`icmp_ratelimit`, and `XRLIM_BURST_FACTOR` of net/ipv4/route.c).
pub(super) const ERRORS_EACH: Rate = Rate { interval_ns: 1_000_000_000, burst: 6 };
/// Errors to all targets of an lcore: likewise (`icmp_msgs_per_sec`, `icmp_msgs_burst`; RFC 4443 section 2.4 (f)).
pub(super) const ERRORS_ALL: Rate = Rate { interval_ns: 1_000_000, burst: 50 };

/// Bytes of the header of all these messages.
const ICMP_BYTES: usize = 8;
/// Class selector 6, for network control (RFC 2474): what errors are sent with (RFC 1812 section 4.3.2.5).
const NETWORK_CONTROL: u8 = 48;

/// Answers a ping over IPv4.
pub(super) fn answer_v4(
    headers: &Headers,
    frame: &mut Frame,
    mac: EthernetAddress,
) -> Result<Outcome, Count> {
    let (transport, end) = (usize::from(headers.transport), usize::from(headers.end));
    let mut icmp = Icmpv4Packet::new_checked(&mut frame[transport..end]).map_err(|_| Count::BadIcmp)?;
    if !icmp.verify_checksum() {
        return Err(Count::BadIcmpChecksum);
    }
    if (icmp.msg_type(), icmp.msg_code()) != (Icmpv4Message::EchoRequest, 0) {
        return Err(Count::OtherIcmp);
    }
    icmp.set_msg_type(Icmpv4Message::EchoReply);
    // In full: an update of the old one comes to zero in place of all ones where all other words are zero.
    icmp.fill_checksum();
    turn::turn(frame, headers, end - transport, mac);
    Ok(Outcome::Answered(Count::PingAnswered))
}

/// Answers a ping over IPv6.
pub(super) fn answer_v6(
    headers: &Headers,
    frame: &mut Frame,
    mac: EthernetAddress,
) -> Result<Outcome, Count> {
    let (transport, end) = (usize::from(headers.transport), usize::from(headers.end));
    let (source, destination) = headers.addresses(frame);
    let mut icmp = checked_v6(&mut frame[transport..end])?;
    if !icmp.verify_checksum(&source, &destination) {
        return Err(Count::BadIcmpChecksum);
    }
    if (icmp.msg_type(), icmp.msg_code()) != (Icmpv6Message::EchoRequest, 0) {
        return Err(Count::OtherIcmp);
    }
    icmp.set_msg_type(Icmpv6Message::EchoReply);
    icmp.fill_checksum(&destination, &source);
    turn::turn(frame, headers, end - transport, mac);
    Ok(Outcome::Answered(Count::PingAnswered))
}

/// A message of ICMPv6. Types that the view does not know are no fault of the packet's.
pub(super) fn checked_v6(bytes: &mut [u8]) -> Result<Icmpv6Packet<&mut [u8]>, Count> {
    let known = bytes.first().is_some_and(|&kind| {
        !matches!(Icmpv6Message::from(kind), Icmpv6Message::Unknown(_) | Icmpv6Message::RplControl)
    });
    if bytes.len() >= ICMP_BYTES && !known {
        return Err(Count::OtherIcmp);
    }
    Icmpv6Packet::new_checked(bytes).map_err(|_| Count::BadIcmp)
}

/// Makes the error of a UDP packet to a closed port: the packet, as far as it fits, behind new headers.
///
/// ```text
/// received  | Ethernet, tags | IP | ... | padding |
/// answer    | Ethernet, tags | IP | ICMP | IP | ... |
/// ```
pub(super) fn port_unreachable(
    headers: &Headers,
    frame: &mut Frame,
    mac: EthernetAddress,
) -> Result<Outcome, Count> {
    let (network, end) = (usize::from(headers.network), usize::from(headers.end));
    let (source, destination) = headers.addresses(frame);
    // As much of the packet as an answer of this size can hold (RFC 1812 section 4.3.2.3, RFC 4443 section 3.1).
    let (base, len_max) = match headers.kind {
        Network::Ipv4 => (IPV4_HEADER_LEN, IPV4_MIN_MTU),
        _ => (IPV6_HEADER_LEN, IPV6_MIN_MTU),
    };
    let quoted = (end - network).min(len_max - base - ICMP_BYTES);
    let len = ICMP_BYTES + quoted;
    turn::resize(frame, network + quoted)?;
    frame.prepend(base + ICMP_BYTES).ok_or(Count::NoRoomInFrame)?;
    frame.copy_within(base + ICMP_BYTES..base + ICMP_BYTES + network, 0);
    turn::turn_ethernet(frame, mac);
    let packet = &mut frame[network..];
    packet[..base + ICMP_BYTES].fill(0);
    if let (Some(source), Some(destination)) = (source.to_ipv4_mapped(), destination.to_ipv4_mapped()) {
        let mut ip = Ipv4Packet::new_unchecked(&mut packet[..]);
        ip.set_version(4);
        ip.set_header_len(IPV4_HEADER_LEN as u8);
        ip.set_dscp(NETWORK_CONTROL);
        ip.set_total_len((IPV4_HEADER_LEN + len) as u16);
        ip.set_dont_frag(true); // So it needs no number of its own (RFC 6864).
        ip.set_hop_limit(turn::HOP_LIMIT);
        ip.set_next_header(IpProtocol::Icmp);
        ip.set_src_addr(destination);
        ip.set_dst_addr(source);
        ip.fill_checksum();
        let mut icmp = Icmpv4Packet::new_unchecked(&mut packet[IPV4_HEADER_LEN..]);
        icmp.set_msg_type(Icmpv4Message::DstUnreachable);
        icmp.set_msg_code(Icmpv4DstUnreachable::PortUnreachable.into());
        icmp.fill_checksum();
    } else {
        let mut ip = Ipv6Packet::new_unchecked(&mut packet[..]);
        ip.set_version(6);
        ip.set_payload_len(len as u16);
        ip.set_hop_limit(turn::HOP_LIMIT);
        ip.set_next_header(IpProtocol::Icmpv6);
        ip.set_src_addr(destination);
        ip.set_dst_addr(source);
        let mut icmp = Icmpv6Packet::new_unchecked(&mut packet[IPV6_HEADER_LEN..]);
        icmp.set_msg_type(Icmpv6Message::DstUnreachable);
        icmp.set_msg_code(Icmpv6DstUnreachable::PortUnreachable.into());
        icmp.fill_checksum(&destination, &source);
    }
    Ok(Outcome::Answered(Count::PortUnreachable))
}
