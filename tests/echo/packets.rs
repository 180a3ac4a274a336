//! Packets that no kernel would send, made byte by byte.
//!
//! Owns: nothing. Never does: use the code under test. Invariant: every checksum is right.

use std::net::{IpAddr, Ipv4Addr};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;

/// Ethertypes (linux/if_ether.h).
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const ARP: u16 = 0x0806;
pub(crate) const IPV6: u16 = 0x86dd;

pub(crate) type Mac = [u8; 6];

/// A frame with VLAN tags, each of its protocol and number, of at least the 60 bytes that Ethernet asks for.
pub(crate) fn frame(to: Mac, from: Mac, tags: &[(u16, u16)], ethertype: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = [to, from].concat();
    for (protocol, number) in tags {
        frame.extend(protocol.to_be_bytes());
        frame.extend(number.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(body);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// An IP packet with what it carries, whose checksum of 16 bits at `checksum_at` is filled in.
pub(crate) fn ip(
    protocol: u8,
    from: IpAddr,
    to: IpAddr,
    mut carried: Vec<u8>,
    checksum_at: usize,
) -> Vec<u8> {
    let len = carried.len() as u16;
    let (mut header, mut pseudo) = (Vec::new(), Vec::new());
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            header.extend([0x45, 0]);
            header.extend((20 + len).to_be_bytes());
            header.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum);
            // The checksum of ICMP covers no addresses (RFC 792).
            if protocol != ICMP {
                pseudo.extend([from.octets(), to.octets()].concat());
            }
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            header.extend([0x60, 0, 0, 0]);
            header.extend(len.to_be_bytes());
            header.extend([protocol, 64]);
            header.extend(from.octets());
            header.extend(to.octets());
            pseudo.extend([from.octets(), to.octets()].concat());
        }
        _ => panic!("addresses of two kinds"),
    }
    if !pseudo.is_empty() {
        pseudo.extend([0, protocol]);
        pseudo.extend(len.to_be_bytes());
    }
    pseudo.extend(&carried);
    let sum = checksum(&pseudo);
    carried[checksum_at..checksum_at + 2].copy_from_slice(&sum);
    header.extend(carried);
    header
}

/// A UDP datagram.
pub(crate) fn udp(from: (IpAddr, u16), to: (IpAddr, u16), bytes: &[u8]) -> Vec<u8> {
    let mut header =
        [from.1.to_be_bytes(), to.1.to_be_bytes(), (8 + bytes.len() as u16).to_be_bytes()].concat();
    header.extend([0, 0]);
    header.extend(bytes);
    ip(UDP, from.0, to.0, header, 6)
}

/// A TCP segment without options.
pub(crate) fn tcp(from: (IpAddr, u16), to: (IpAddr, u16), seq: u32, ack: u32, flags: u8) -> Vec<u8> {
    let mut header = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    header.extend(seq.to_be_bytes());
    header.extend(ack.to_be_bytes());
    header.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    ip(TCP, from.0, to.0, header, 16)
}

/// An ARP request (RFC 826).
pub(crate) fn arp_request(mac: Mac, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, 1];
    [&head[..], &mac, &from.octets(), &[0; 6], &to.octets()].concat()
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Whether the checksum of a transport header in an IPv4 or IPv6 packet is right.
pub(crate) fn is_right(protocol: u8, from: &[u8], to: &[u8], carried: &[u8]) -> bool {
    let mut all = if protocol == ICMP { Vec::new() } else { [from, to].concat() };
    if protocol != ICMP {
        all.extend([0, protocol]);
        all.extend((carried.len() as u16).to_be_bytes());
    }
    all.extend(carried);
    checksum(&all) == [0, 0]
}
