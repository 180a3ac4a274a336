//! What holds for every packet that a host is given, and every answer, read by etherparse.

use std::net::{IpAddr, Ipv6Addr};

use etherparse::{LinkExtSlice, LinkSlice, NetSlice, SlicedPacket, TransportSlice};
use sheafio_net::{Count, Counts};

use crate::{
    bench::{Outcome, config},
    packets::{BROADCAST_MAC, OUR_MAC},
};

/// Checks an outcome, and that it was counted once, by its name.
pub(crate) fn check(request: &[u8], outcome: &Outcome, before: Vec<u64>, after: &Counts) {
    let mut changed: Vec<_> = Count::ALL
        .iter()
        .zip(before)
        .filter(|&(&count, before)| after.get(count) != before)
        .map(|(&count, before)| (count, after.get(count) - before))
        .collect();
    let is_conflict = changed.iter().any(|(count, _)| *count == Count::AddressConflict);
    changed.retain(|(count, _)| *count != Count::AddressConflict);
    let is_bytes = |(count, _): &(Count, u64)| matches!(count, Count::UdpRxBytes | Count::UdpTxBytes);
    let bytes: Vec<_> = changed.extract_if(.., |change| is_bytes(change)).collect();
    assert!(
        bytes.is_empty() || changed == [(Count::UdpEchoed, 1)],
        "bytes of what was not answered: {bytes:?}"
    );
    match outcome {
        Outcome::Tcp(_) => assert_eq!(changed, []),
        Outcome::Dropped(count) => assert_eq!(changed, [(*count, 1)]),
        Outcome::Answer(answer) => {
            let [(count, 1)] = changed[..] else { panic!("counted as {changed:?}") };
            assert_eq!(is_conflict, count == Count::AddressDefended);
            check_answer(request, answer, count);
            if count == Count::UdpEchoed {
                let of = |count| bytes.iter().find(|(other, _)| *other == count).map_or(0, |(_, many)| *many);
                let (came, went) = (payload_len(request), payload_len(answer));
                assert_eq!((of(Count::UdpRxBytes), of(Count::UdpTxBytes)), (came, went));
            }
        }
    }
}

/// Bytes of payload of a datagram, as its UDP header says.
fn payload_len(packet: &[u8]) -> u64 {
    let packet = SlicedPacket::from_ethernet(packet).expect("a datagram");
    let Some(TransportSlice::Udp(udp)) = &packet.transport else { panic!("no datagram") };
    u64::from(udp.length()) - 8
}

/// Checks an answer that counts by a name.
fn check_answer(request: &[u8], answer: &[u8], count: Count) {
    let packet = SlicedPacket::from_ethernet(answer).expect("an answer that can be read");
    let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else { panic!("no Ethernet header") };
    assert_eq!(ethernet.source(), OUR_MAC);
    // All tags and nothing but tags stand between the addresses and the packet.
    let tags = packet.link_exts.iter().filter(|tag| matches!(tag, LinkExtSlice::Vlan(_))).count();
    let network = 14 + 4 * tags;
    assert_eq!(answer[12..network], request[12..network], "tags and what they hold");
    let to_all = match count {
        Count::AddressDefended => true,
        Count::NdAnswered => answer[network + 24] == 0xff,
        _ => false,
    };
    let ours: Vec<_> = config(true).addresses.iter().map(|address| address.ip()).collect();
    match packet.net.as_ref().expect("a network header") {
        NetSlice::Arp(arp) => {
            assert_eq!(answer.len(), network + 28, "no padding");
            assert!(matches!(count, Count::ArpAnswered | Count::AddressDefended));
            assert_eq!(arp.sender_hw_addr(), OUR_MAC);
            let sender: [u8; 4] = arp.sender_protocol_addr().try_into().unwrap();
            assert!(ours.contains(&IpAddr::from(sender)));
            let wanted =
                if to_all { BROADCAST_MAC } else { request[network + 8..network + 14].try_into().unwrap() };
            assert_eq!(ethernet.destination(), wanted);
        }
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            assert_eq!(answer.len(), network + usize::from(header.total_len), "no padding");
            assert_eq!((header.time_to_live, header.options.len()), (64, 0));
            assert!(!header.more_fragments && header.fragment_offset.value() == 0);
            assert_eq!(u8::from(header.ecn), 0);
            assert!(ours.contains(&header.source.into()));
            let asking: [u8; 4] = request[network + 12..network + 16].try_into().unwrap();
            assert_eq!(header.destination, asking);
            assert_eq!(ethernet.destination(), request[6..12]);
            check_transport(&packet, header.source.into(), header.destination.into());
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header().to_header();
            assert_eq!(answer.len(), network + 40 + usize::from(header.payload_length), "no padding");
            let is_nd = matches!(count, Count::NdAnswered | Count::AddressDefended);
            assert_eq!(header.hop_limit, if is_nd { 255 } else { 64 });
            assert!(
                header.next_header != etherparse::IpNumber::IPV6_FRAGMENTATION_HEADER
                    && ip.extensions().is_empty()
            );
            assert!(ours.contains(&header.source.into()));
            let asking: [u8; 16] = request[network + 8..network + 24].try_into().unwrap();
            if to_all {
                assert_eq!(header.destination_addr(), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
                assert_eq!(ethernet.destination(), [0x33, 0x33, 0, 0, 0, 1]);
            } else {
                assert_eq!(header.destination, asking);
                // A solicitation may name the MAC that it wants to have the answer.
                assert!(is_nd || ethernet.destination() == request[6..12]);
            }
            check_transport(&packet, header.source.into(), header.destination.into());
        }
    }
    assert_eq!(ethernet.destination()[0] & 1 == 1, to_all, "to one, unless it is for all");
}

/// Checks the checksums behind the IP header.
fn check_transport(packet: &SlicedPacket, source: IpAddr, destination: IpAddr) {
    match (packet.transport.as_ref().expect("a transport header"), source, destination) {
        (TransportSlice::Udp(udp), IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = udp.to_header();
            let right =
                header.calc_checksum_ipv4_raw(source.octets(), destination.octets(), udp.payload()).unwrap();
            assert_eq!(header.checksum, right);
            assert_ne!(header.checksum, 0, "all answers have one");
        }
        (TransportSlice::Udp(udp), IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = udp.to_header();
            let right =
                header.calc_checksum_ipv6_raw(source.octets(), destination.octets(), udp.payload()).unwrap();
            assert_eq!(header.checksum, right);
            assert_ne!(header.checksum, 0, "all answers have one");
        }
        (TransportSlice::Icmpv4(icmp), _, _) => {
            assert_eq!(icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()));
        }
        (TransportSlice::Icmpv6(icmp), IpAddr::V6(source), IpAddr::V6(destination)) => {
            assert!(icmp.is_checksum_valid(source.octets(), destination.octets()));
        }
        other => panic!("an answer of another kind: {other:?}"),
    }
}
