//! Mode icmpecho: turns ARP requests and pings into their answers, in place.

use sheafio_core::DropReason;
use smoltcp::wire::{
    ArpHardware, ArpOperation, ArpPacket, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Message,
    Icmpv4Packet, IpProtocol, Ipv4Address, Ipv4Packet,
};

/// Turns a request into its answer from the port's Ethernet address. The reason why not, otherwise.
pub(crate) fn answer(packet: &mut [u8], mac: [u8; 6]) -> Result<(), DropReason> {
    let mut ethernet = EthernetFrame::new_checked(packet).map_err(|_| DropReason::Malformed)?;
    let ours = EthernetAddress(mac);
    match ethernet.ethertype() {
        EthernetProtocol::Arp => answer_arp(ethernet.payload_mut(), ours)?,
        // A ping to a group is not answered (RFC 1122 section 3.2.2.6 leaves it open).
        EthernetProtocol::Ipv4 if ethernet.dst_addr().is_unicast() => answer_ping(ethernet.payload_mut())?,
        _ => return Err(DropReason::NotForUs),
    }
    ethernet.set_dst_addr(ethernet.src_addr());
    ethernet.set_src_addr(ours);
    Ok(())
}

/// RFC 826. Probes (RFC 5227: sender 0.0.0.0) and announcements (sender = target) ask for nothing.
fn answer_arp(packet: &mut [u8], ours: EthernetAddress) -> Result<(), DropReason> {
    let mut arp = ArpPacket::new_checked(packet).map_err(|_| DropReason::Malformed)?;
    let is_request = arp.operation() == ArpOperation::Request
        && arp.hardware_type() == ArpHardware::Ethernet
        && arp.protocol_type() == EthernetProtocol::Ipv4
        && (arp.hardware_len(), arp.protocol_len()) == (6, 4);
    if !is_request {
        return Err(DropReason::NotForUs);
    }
    let address =
        |bytes: &[u8]| <[u8; 4]>::try_from(bytes).map(Ipv4Address::from).map_err(|_| DropReason::Malformed);
    let (sender, target) = (address(arp.source_protocol_addr())?, address(arp.target_protocol_addr())?);
    if sender.is_unspecified() || sender == target {
        return Err(DropReason::NotForUs);
    }
    let asking = EthernetAddress::from_bytes(arp.source_hardware_addr());
    arp.set_operation(ArpOperation::Reply);
    arp.set_source_hardware_addr(ours.as_bytes());
    arp.set_source_protocol_addr(&target.octets());
    arp.set_target_hardware_addr(asking.as_bytes());
    arp.set_target_protocol_addr(&sender.octets());
    Ok(())
}

/// RFC 792. A fragment is not answered: its checksum covers the whole packet.
fn answer_ping(packet: &mut [u8]) -> Result<(), DropReason> {
    let mut ip = Ipv4Packet::new_checked(packet).map_err(|_| DropReason::Malformed)?;
    if !ip.verify_checksum() {
        return Err(DropReason::Malformed);
    }
    if ip.next_header() != IpProtocol::Icmp || ip.more_frags() || ip.frag_offset() > 0 {
        return Err(DropReason::NotForUs);
    }
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    let mut icmp = Icmpv4Packet::new_checked(ip.payload_mut()).map_err(|_| DropReason::Malformed)?;
    if icmp.msg_type() != Icmpv4Message::EchoRequest {
        return Err(DropReason::NotForUs);
    }
    if !icmp.verify_checksum() {
        return Err(DropReason::Malformed);
    }
    icmp.set_msg_type(Icmpv4Message::EchoReply);
    icmp.fill_checksum();
    ip.set_src_addr(destination);
    ip.set_dst_addr(source);
    ip.set_hop_limit(64);
    ip.fill_checksum();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn ping() -> Vec<u8> {
        let mut packet = vec![0; 14 + 20 + 8 + 5];
        let mut ethernet = EthernetFrame::new_unchecked(&mut packet[..]);
        ethernet.set_dst_addr(EthernetAddress(MAC));
        ethernet.set_src_addr(EthernetAddress([2, 0, 0, 0, 0, 1]));
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let mut ip = Ipv4Packet::new_unchecked(ethernet.payload_mut());
        ip.set_version(4);
        ip.set_header_len(20);
        ip.set_total_len(33);
        ip.set_hop_limit(3);
        ip.set_next_header(IpProtocol::Icmp);
        ip.set_src_addr(Ipv4Address::new(10, 0, 0, 1));
        ip.set_dst_addr(Ipv4Address::new(10, 0, 0, 2));
        ip.fill_checksum();
        let mut icmp = Icmpv4Packet::new_unchecked(ip.payload_mut());
        icmp.set_msg_type(Icmpv4Message::EchoRequest);
        icmp.set_echo_ident(7);
        icmp.set_echo_seq_no(1);
        icmp.data_mut().copy_from_slice(b"hello");
        icmp.fill_checksum();
        packet
    }

    fn arp(sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let mut packet = vec![0xff; 6];
        packet.extend([2, 0, 0, 0, 0, 1, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1]);
        packet.extend(sender);
        packet.extend([0; 6]);
        packet.extend(target);
        packet
    }

    #[test]
    fn a_ping_is_answered_with_valid_checksums() {
        let mut packet = ping();
        answer(&mut packet, MAC).unwrap();
        let ethernet = EthernetFrame::new_checked(&packet[..]).unwrap();
        assert_eq!((ethernet.src_addr().0, ethernet.dst_addr().0), (MAC, [2, 0, 0, 0, 0, 1]));
        let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
        assert!(ip.verify_checksum());
        assert_eq!(
            (ip.src_addr(), ip.dst_addr()),
            (Ipv4Address::new(10, 0, 0, 2), Ipv4Address::new(10, 0, 0, 1))
        );
        let icmp = Icmpv4Packet::new_checked(ip.payload()).unwrap();
        assert!(icmp.verify_checksum());
        assert_eq!(
            (icmp.msg_type(), icmp.echo_ident(), icmp.data()),
            (Icmpv4Message::EchoReply, 7, &b"hello"[..])
        );
    }

    #[test]
    fn an_arp_request_is_answered_and_a_probe_is_not() {
        let mut packet = arp([10, 0, 0, 1], [10, 0, 0, 2]);
        answer(&mut packet, MAC).unwrap();
        assert_eq!(packet[..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x08, 0x06]);
        assert_eq!(packet[20..28], [0, 2, 2, 0, 0, 0, 0, 9]);
        assert_eq!(packet[28..32], [10, 0, 0, 2]);
        assert_eq!(answer(&mut arp([0, 0, 0, 0], [10, 0, 0, 2]), MAC), Err(DropReason::NotForUs));
        assert_eq!(answer(&mut arp([10, 0, 0, 2], [10, 0, 0, 2]), MAC), Err(DropReason::NotForUs));
    }

    #[test]
    fn a_packet_cut_at_any_length_is_dropped_without_a_panic() {
        for whole in [ping(), arp([10, 0, 0, 1], [10, 0, 0, 2])] {
            for len in 0..whole.len() {
                assert!(answer(&mut whole[..len].to_vec(), MAC).is_err(), "{len} of {}", whole.len());
            }
        }
    }

    #[test]
    fn a_damaged_ping_is_malformed() {
        for at in 14..47 {
            let mut packet = ping();
            packet[at] ^= 0x04;
            assert!(answer(&mut packet, MAC).is_err(), "byte {at}");
        }
        let mut fragment = ping();
        fragment[20] = 0x20; // More fragments.
        Ipv4Packet::new_unchecked(&mut fragment[14..]).fill_checksum();
        assert_eq!(answer(&mut fragment, MAC), Err(DropReason::NotForUs));
    }
}
