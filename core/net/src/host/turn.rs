//! Turning a packet round: its Ethernet and IP headers become those of the answer.
//!
//! Owns: nothing. Never does: touch what the IP packet carries. Invariant: the answer ends where its IP header says, so
//! neither padding nor IP options nor extension headers of the request are in it.
//!
//! ```text
//! received  | Ethernet, tags | IP | options | transport | padding |
//! answer              | Ethernet, tags | IP | transport |
//! ```

use sheafio_mempool::Frame;
use smoltcp::wire::{EthernetAddress, IPV4_HEADER_LEN, IPV6_HEADER_LEN, Ipv4Packet, Ipv6Packet};

use crate::{Count, Headers, headers::Network};

/// `ETH_P_ARP` and `ETH_P_IPV6` (linux/if_ether.h), as they stand in a frame.
pub(super) const ARP: [u8; 2] = 0x0806_u16.to_be_bytes();
pub(super) const IPV6: [u8; 2] = 0x86dd_u16.to_be_bytes();

/// Hop limit of all answers but those of neighbour discovery.
pub(super) const HOP_LIMIT: u8 = 64;

/// The two bits of congestion notification (RFC 3168): what the path did to the request is no news to its sender.
const ECN: u8 = 0b11;

/// Turns the headers of an IP packet round, of which the first `len_bytes` behind the transport offset are the answer.
///
/// The IPv4 identification and "don't fragment" stay what they were: with that bit they have no meaning, and without it
/// the sender's number is as good for the way back, where the same pair of hosts has no other.
pub(super) fn turn(frame: &mut Frame, headers: &Headers, len_bytes: usize, mac: EthernetAddress) {
    let (network, transport) = (usize::from(headers.network), usize::from(headers.transport));
    turn_ethernet(frame, mac);
    let base = match headers.kind {
        Network::Ipv4 => {
            let mut ip = Ipv4Packet::new_unchecked(&mut frame[network..]);
            let (source, destination) = (ip.src_addr(), ip.dst_addr());
            let dont_fragment = ip.dont_frag();
            ip.set_header_len(IPV4_HEADER_LEN as u8);
            ip.set_ecn(0);
            ip.set_total_len((IPV4_HEADER_LEN + len_bytes) as u16);
            ip.clear_flags();
            ip.set_dont_frag(dont_fragment);
            ip.set_hop_limit(HOP_LIMIT);
            ip.set_src_addr(destination);
            ip.set_dst_addr(source);
            ip.fill_checksum();
            IPV4_HEADER_LEN
        }
        Network::Ipv6 => {
            let mut ip = Ipv6Packet::new_unchecked(&mut frame[network..]);
            let (source, destination) = (ip.src_addr(), ip.dst_addr());
            ip.set_traffic_class(ip.traffic_class() & !ECN);
            ip.set_flow_label(0);
            ip.set_payload_len(len_bytes as u16);
            ip.set_next_header(headers.protocol);
            ip.set_hop_limit(HOP_LIMIT);
            ip.set_src_addr(destination);
            ip.set_dst_addr(source);
            IPV6_HEADER_LEN
        }
        Network::Arp => unreachable!("ARP has no IP header"),
    };
    frame.trim_back(frame.len() - (transport + len_bytes));
    let surplus = transport - network - base;
    if surplus > 0 {
        frame.copy_within(..network + base, surplus);
        frame.trim_front(surplus);
    }
}

/// Where a frame goes to and where it comes from.
///
/// # Panics
/// If it is shorter than an Ethernet header.
#[inline]
pub(super) fn macs(frame: &[u8]) -> (EthernetAddress, EthernetAddress) {
    (EthernetAddress::from_bytes(&frame[..6]), EthernetAddress::from_bytes(&frame[6..12]))
}

/// From us to where the frame came from.
pub(super) fn turn_ethernet(frame: &mut [u8], mac: EthernetAddress) {
    let (_, asking) = macs(frame);
    address(frame, asking, mac);
}

/// Writes the Ethernet addresses of a frame.
pub(super) fn address(frame: &mut [u8], to: EthernetAddress, from: EthernetAddress) {
    frame[..6].copy_from_slice(to.as_bytes());
    frame[6..12].copy_from_slice(from.as_bytes());
}

/// Puts a VLAN tag that the device took out of the packet back into it, behind the Ethernet addresses.
#[inline]
pub(super) fn restore_tag(frame: &mut Frame) -> Result<(), Count> {
    if frame.restore_vlan_tag() { Ok(()) } else { Err(Count::Truncated) }
}

/// Makes the frame `len_bytes` long; what is new is undefined.
pub(super) fn resize(frame: &mut Frame, len_bytes: usize) -> Result<(), Count> {
    if let Some(more) = len_bytes.checked_sub(frame.len()) {
        return frame.append(more).map(drop).ok_or(Count::NoRoomInFrame);
    }
    frame.trim_back(frame.len() - len_bytes);
    Ok(())
}
