//! Packets as peers send them, written by smoltcp; and what peers should not do to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{
        ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet,
        Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
        TcpPacket, UdpPacket, UdpRepr,
    },
};

pub(crate) const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
pub(crate) const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const BROADCAST_MAC: [u8; 6] = [0xff; 6];
pub(crate) const OUR_V4: &str = "10.0.0.2";
pub(crate) const PEER_V4: &str = "10.0.0.1";
pub(crate) const OUR_V6: &str = "fd00::2";
pub(crate) const PEER_V6: &str = "fd00::1";
/// The group in which questions for `OUR_V6` are heard, and its Ethernet address.
pub(crate) const OUR_GROUP: &str = "ff02::1:ff00:2";
pub(crate) const OUR_GROUP_MAC: [u8; 6] = [0x33, 0x33, 0xff, 0, 0, 2];

pub(crate) fn v4(text: &str) -> Ipv4Addr {
    text.parse().expect("an IPv4 address")
}

pub(crate) fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("an IPv6 address")
}

/// An Ethernet header from the peer to us.
fn ethernet(ethertype: u16) -> Vec<u8> {
    [&OUR_MAC[..], &PEER_MAC, &ethertype.to_be_bytes()].concat()
}

/// An IP packet from the peer's MAC to ours.
pub(crate) fn ip(source: &str, destination: &str, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let (source, destination): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
    let (payload_len, hop_limit) = (payload.len(), 3);
    match (source, destination) {
        (IpAddr::V4(src_addr), IpAddr::V4(dst_addr)) => {
            let repr = Ipv4Repr { src_addr, dst_addr, next_header: protocol, payload_len, hop_limit };
            let mut header = [0; 20];
            repr.emit(&mut Ipv4Packet::new_unchecked(&mut header[..]), &ChecksumCapabilities::default());
            [&ethernet(0x0800)[..], &header, payload].concat()
        }
        (IpAddr::V6(src_addr), IpAddr::V6(dst_addr)) => {
            let repr = Ipv6Repr { src_addr, dst_addr, next_header: protocol, payload_len, hop_limit };
            let mut header = [0; 40];
            repr.emit(&mut Ipv6Packet::new_unchecked(&mut header[..]));
            [&ethernet(0x86dd)[..], &header, payload].concat()
        }
        _ => panic!("addresses of two kinds"),
    }
}

/// A datagram.
pub(crate) fn udp(source: &str, destination: &str, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; 8 + payload.len()];
    UdpRepr { src_port: ports.0, dst_port: ports.1 }.emit(
        &mut UdpPacket::new_unchecked(&mut datagram[..]),
        &source.parse().unwrap(),
        &destination.parse().unwrap(),
        payload.len(),
        |bytes| bytes.copy_from_slice(payload),
        &ChecksumCapabilities::default(),
    );
    ip(source, destination, IpProtocol::Udp, &datagram)
}

/// A datagram to an echo port, from the peer.
pub(crate) fn echo_v4(payload: &[u8]) -> Vec<u8> {
    udp(PEER_V4, OUR_V4, (40_000, 5000), payload)
}

pub(crate) fn echo_v6(payload: &[u8]) -> Vec<u8> {
    udp(PEER_V6, OUR_V6, (40_000, 5000), payload)
}

/// A SYN, of which only its address matters here.
pub(crate) fn tcp(source: &str, destination: &str) -> Vec<u8> {
    let mut segment = [0; 20];
    let mut tcp = TcpPacket::new_unchecked(&mut segment[..]);
    tcp.set_src_port(40_000);
    tcp.set_dst_port(5000);
    tcp.set_header_len(20);
    tcp.set_syn(true);
    tcp.fill_checksum(&source.parse().unwrap(), &destination.parse().unwrap());
    ip(source, destination, IpProtocol::Tcp, &segment)
}

pub(crate) fn icmpv4(source: &str, destination: &str, repr: &Icmpv4Repr) -> Vec<u8> {
    let mut message = vec![0; repr.buffer_len()];
    repr.emit(&mut Icmpv4Packet::new_unchecked(&mut message[..]), &ChecksumCapabilities::default());
    ip(source, destination, IpProtocol::Icmp, &message)
}

pub(crate) fn icmpv6(source: &str, destination: &str, repr: &Icmpv6Repr) -> Vec<u8> {
    let mut message = vec![0; repr.buffer_len()];
    repr.emit(
        &v6(source),
        &v6(destination),
        &mut Icmpv6Packet::new_unchecked(&mut message[..]),
        &ChecksumCapabilities::default(),
    );
    ip(source, destination, IpProtocol::Icmpv6, &message)
}

pub(crate) fn ping_v4(data: &[u8]) -> Vec<u8> {
    icmpv4(PEER_V4, OUR_V4, &Icmpv4Repr::EchoRequest { ident: 7, seq_no: 1, data })
}

pub(crate) fn ping_v6(data: &[u8]) -> Vec<u8> {
    icmpv6(PEER_V6, OUR_V6, &Icmpv6Repr::EchoRequest { ident: 7, seq_no: 1, data })
}

/// ARP from the peer's MAC to all.
pub(crate) fn arp(operation: ArpOperation, sender: &str, target: &str) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(PEER_MAC),
        source_protocol_addr: v4(sender),
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: v4(target),
    };
    let mut frame = ethernet(0x0806);
    frame[..6].copy_from_slice(&BROADCAST_MAC);
    frame.resize(14 + 28, 0);
    repr.emit(&mut ArpPacket::new_unchecked(&mut frame[14..]));
    frame
}

/// A neighbour solicitation to a destination, with or without the peer's MAC in it.
pub(crate) fn solicitation(source: &str, destination: &str, target: &str, with_mac: bool) -> Vec<u8> {
    let lladdr = with_mac.then(|| EthernetAddress(PEER_MAC).into());
    ndisc(source, destination, NdiscRepr::NeighborSolicit { target_addr: v6(target), lladdr })
}

/// A neighbour advertisement.
pub(crate) fn advertisement(
    source: &str,
    destination: &str,
    target: &str,
    flags: NdiscNeighborFlags,
    mac: Option<[u8; 6]>,
) -> Vec<u8> {
    let lladdr = mac.map(|mac| EthernetAddress(mac).into());
    ndisc(source, destination, NdiscRepr::NeighborAdvert { flags, target_addr: v6(target), lladdr })
}

fn ndisc(source: &str, destination: &str, repr: NdiscRepr) -> Vec<u8> {
    let mut frame = icmpv6(source, destination, &Icmpv6Repr::Ndisc(repr));
    frame[14 + 7] = 255;
    if let [0xff, .., a, b, c, d] = v6(destination).octets() {
        frame[..6].copy_from_slice(&[0x33, 0x33, a, b, c, d]);
    }
    frame
}

/// The same with VLAN tags, outermost first.
pub(crate) fn with_tags(frame: &[u8], tags: &[[u8; 4]]) -> Vec<u8> {
    [&frame[..12], &tags.concat(), &frame[12..]].concat()
}

/// The same with IPv4 options, of a multiple of four bytes.
pub(crate) fn with_options(frame: &[u8], options: &[u8]) -> Vec<u8> {
    let mut frame = [&frame[..34], options, &frame[34..]].concat();
    let mut ip = Ipv4Packet::new_unchecked(&mut frame[14..]);
    ip.set_header_len(20 + options.len() as u8);
    ip.set_total_len(ip.total_len() + options.len() as u16);
    ip.fill_checksum();
    frame
}

/// The same with an IPv6 extension header in front of what there is: its kind, and its bytes from the third on.
pub(crate) fn with_extension(frame: &[u8], kind: IpProtocol, bytes: &[u8]) -> Vec<u8> {
    assert_eq!(bytes.len() % 8, 6, "whole units of eight");
    let head = [frame[20], (bytes.len() / 8) as u8];
    let mut frame = [&frame[..54], &head, bytes, &frame[54..]].concat();
    let mut ip = Ipv6Packet::new_unchecked(&mut frame[14..]);
    ip.set_next_header(kind);
    ip.set_payload_len(ip.payload_len() + 2 + bytes.len() as u16);
    frame
}

/// Sets all checksums right that a packet has, as far as its headers make sense.
pub(crate) fn mend(frame: &mut [u8]) {
    let mut network = 14;
    while network < 22
        && frame.len() >= network
        && matches!(frame[network - 2..network], [0x81, 0] | [0x88, 0xa8])
    {
        network += 4;
    }
    let Some(packet) = frame.get_mut(network..) else { return };
    if let Ok(mut ip) = Ipv4Packet::new_checked(&mut packet[..])
        && ip.version() == 4
        && ip.header_len() >= 20
    {
        ip.fill_checksum();
        let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
        match ip.next_header() {
            IpProtocol::Udp => {
                let _ = UdpPacket::new_checked(ip.payload_mut())
                    .map(|mut udp| udp.fill_checksum(&source, &destination));
            }
            IpProtocol::Icmp => {
                let _ = Icmpv4Packet::new_checked(ip.payload_mut()).map(|mut icmp| icmp.fill_checksum());
            }
            _ => {}
        }
    }
    if let Ok(mut ip) = Ipv6Packet::new_checked(&mut packet[..]) {
        let (source, destination) = (ip.src_addr(), ip.dst_addr());
        match ip.next_header() {
            _ if ip.version() != 6 => {}
            IpProtocol::Udp => {
                let _ = UdpPacket::new_checked(ip.payload_mut())
                    .map(|mut udp| udp.fill_checksum(&source.into(), &destination.into()));
            }
            IpProtocol::Icmpv6 => {
                let _ = Icmpv6Packet::new_checked(ip.payload_mut())
                    .map(|mut icmp| icmp.fill_checksum(&source, &destination));
            }
            _ => {}
        }
    }
}

/// One packet of each kind that means something to a host, by name.
pub(crate) fn every_kind() -> Vec<(&'static str, Vec<u8>)> {
    let router_alert = [5, 2, 0, 0, 1, 0];
    let padding = [1, 4, 0, 0, 0, 0];
    let no_segments_left = [0, 0, 0, 0, 0, 0];
    let probe = ("::", OUR_GROUP);
    vec![
        ("udp_v4", echo_v4(b"hello")),
        ("udp_v4_empty", echo_v4(b"")),
        ("udp_v4_options", with_options(&echo_v4(b"hello"), &[7, 7, 4, 0, 0, 0, 0, 0])),
        ("udp_v4_closed", udp(PEER_V4, OUR_V4, (40_000, 5001), b"hello")),
        ("udp_v4_tagged", with_tags(&echo_v4(b"hello"), &[[0x81, 0, 0x20, 5]])),
        ("udp_v6", echo_v6(b"hello")),
        ("udp_v6_closed", udp(PEER_V6, OUR_V6, (40_000, 5001), b"hello")),
        (
            "udp_v6_extensions",
            with_extension(
                &with_extension(
                    &with_extension(&echo_v6(b"hello"), IpProtocol::Ipv6Opts, &padding),
                    IpProtocol::Ipv6Route,
                    &no_segments_left,
                ),
                IpProtocol::HopByHop,
                &router_alert,
            ),
        ),
        ("udp_v6_tagged_twice", with_tags(&echo_v6(b"hello"), &[[0x88, 0xa8, 0, 9], [0x81, 0, 0x20, 5]])),
        ("ping_v4", ping_v4(b"hello")),
        ("ping_v6", ping_v6(b"hello")),
        ("tcp_v4", tcp(PEER_V4, OUR_V4)),
        ("tcp_v6", tcp(PEER_V6, OUR_V6)),
        ("arp_request", arp(ArpOperation::Request, PEER_V4, OUR_V4)),
        ("arp_probe", arp(ArpOperation::Request, "0.0.0.0", OUR_V4)),
        ("arp_claim", arp(ArpOperation::Request, OUR_V4, OUR_V4)),
        ("arp_reply", arp(ArpOperation::Reply, PEER_V4, OUR_V4)),
        ("solicitation", solicitation(PEER_V6, OUR_GROUP, OUR_V6, true)),
        ("solicitation_unicast", solicitation(PEER_V6, OUR_V6, OUR_V6, false)),
        ("solicitation_probe", solicitation(probe.0, probe.1, OUR_V6, false)),
        (
            "advertisement",
            advertisement(PEER_V6, OUR_V6, PEER_V6, NdiscNeighborFlags::SOLICITED, Some(PEER_MAC)),
        ),
        (
            "advertisement_claim",
            advertisement(PEER_V6, "ff02::1", OUR_V6, NdiscNeighborFlags::OVERRIDE, Some(PEER_MAC)),
        ),
    ]
}
