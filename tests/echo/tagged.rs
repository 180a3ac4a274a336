//! Frames with VLAN tags are answered with the same tags. Made byte by byte, for there need be no VLAN device here.

use std::time::{Duration, Instant};

use sheafio_tests::{PacketSocket, can_make_networks};

use crate::{
    Network, OWN, OWN6, PATIENCE, count, ip,
    packets::{self, ARP, ICMP, ICMPV6, IPV4, IPV6, Mac, TCP, UDP},
};

/// Somebody on the VLAN, whom no kernel here knows.
const SOMEBODY: Mac = [2, 0, 0, 0, 0, 0x77];
const SOMEBODY_IP: &str = "10.0.0.77";
const SOMEBODY_IP6: &str = "fd00::77";

#[test]
fn tagged_frames_are_answered_with_their_tags() {
    if !can_make_networks("tagged_frames_are_answered_with_their_tags") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--icmp", "--ip", "10.0.0.9/24", "--ip", "fd00::9/64"]);
    let mac = network.mac_of_server();
    let wire = PacketSocket::new(&network.client, "ve1");
    let all_tags: [&[(u16, u16)]; 4] =
        [&[], &[(0x8100, 5)], &[(0x8100, 0x6005)], &[(0x88a8, 100), (0x8100, 5)]];
    for tags in all_tags {
        let ask = |to: Mac, ethertype: u16, body: &[u8]| {
            wire.send(&packets::frame(to, SOMEBODY, tags, ethertype, body));
            answer(&wire, mac, tags)
        };
        let (own, somebody) = (ip(OWN), ip(SOMEBODY_IP));
        let (own6, somebody6) = (ip(OWN6), ip(SOMEBODY_IP6));

        // ARP: it has our address.
        let question = packets::arp_request(SOMEBODY, SOMEBODY_IP.parse().unwrap(), OWN.parse().unwrap());
        let (ethertype, body) = ask([0xff; 6], ARP, &question);
        assert_eq!((ethertype, &body[6..8], &body[8..14]), (ARP, &[0, 2][..], &mac[..]), "{tags:?}");
        assert_eq!((&body[14..18], &body[18..24]), (&[10, 0, 0, 9][..], &SOMEBODY[..]));

        // Neighbour discovery (RFC 4861 section 4.3), to the group of our address.
        let group = ip("ff02::1:ff00:9");
        let mut question = vec![135, 0, 0, 0, 0, 0, 0, 0];
        question.extend(own6_octets());
        question.extend([1, 1]);
        question.extend(SOMEBODY);
        let mut packet = packets::ip(ICMPV6, somebody6, group, question, 2);
        packet[7] = 255;
        let (ethertype, body) = ask([0x33, 0x33, 0xff, 0, 0, 9], IPV6, &packet);
        assert_eq!((ethertype, body[40], &body[48..64]), (IPV6, 136, &own6_octets()[..]), "{tags:?}");
        assert_eq!(&body[66..72], &mac);

        // Pings.
        let ping = |kind: u8| vec![kind, 0, 0, 0, 1, 2, 0, 3, 9, 8, 7, 6, 5];
        let (_, body) = ask(mac, IPV4, &packets::ip(ICMP, somebody, own, ping(8), 2));
        assert_eq!((body[20], &body[24..33]), (0, &ping(8)[4..]), "{tags:?}");
        assert!(packets::is_right(ICMP, &body[12..16], &body[16..20], &body[20..33]));
        let (_, body) = ask(mac, IPV6, &packets::ip(ICMPV6, somebody6, own6, ping(128), 2));
        assert_eq!((body[40], &body[44..53]), (129, &ping(128)[4..]), "{tags:?}");
        assert!(packets::is_right(ICMPV6, &body[8..24], &body[24..40], &body[40..53]));

        // UDP, over both.
        let (_, body) = ask(mac, IPV4, &packets::udp((somebody, 4000), (own, 7), b"over a VLAN"));
        assert_eq!((&body[20..24], &body[28..39]), (&[0, 7, 0xf, 0xa0][..], &b"over a VLAN"[..]), "{tags:?}");
        assert!(packets::is_right(UDP, &body[12..16], &body[16..20], &body[20..39]));
        let (_, body) = ask(mac, IPV6, &packets::udp((somebody6, 4000), (own6, 7), b"over a VLAN"));
        assert_eq!((&body[40..44], &body[48..59]), (&[0, 7, 0xf, 0xa0][..], &b"over a VLAN"[..]), "{tags:?}");
        assert!(packets::is_right(UDP, &body[8..24], &body[24..40], &body[40..59]));

        // TCP: a connection is opened, and reset.
        let port = 5000 + tags.len() as u16 * 10 + tags.first().map_or(0, |tag| tag.1 >> 12);
        let (from, to) = ((somebody, port), (own, 7));
        let (_, body) = ask(mac, IPV4, &packets::tcp(from, to, 1000, 0, SYN));
        let segment = &body[20..];
        let word = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().unwrap());
        assert_eq!((segment[13], word(8)), (SYN | ACK, 1001), "{tags:?}");
        assert!(packets::is_right(TCP, &body[12..16], &body[16..20], &body[20..total_len(&body)]));
        // What is beyond the window is answered by what is expected, on the VLAN too.
        let ours = word(4) + 1;
        wire.send(&packets::frame(mac, SOMEBODY, tags, IPV4, &packets::tcp(from, to, 1001, ours, ACK)));
        let (_, body) = ask(mac, IPV4, &packets::tcp(from, to, 900, ours, ACK | FIN));
        assert_eq!((body[20 + 13], &body[28..32]), (ACK, &1001_u32.to_be_bytes()[..]), "{tags:?}");
        wire.send(&packets::frame(mac, SOMEBODY, tags, IPV4, &packets::tcp(from, to, 1001, ours, RST)));
    }
    let last = server.end();
    let tags = all_tags.len() as u64;
    for (name, each) in
        [("ping_answered", 2), ("udp_echoed", 2), ("tcp_flows_opened", 1), ("tcp_reset_received", 1)]
    {
        assert_eq!(count(&last, name), each * tags, "{name}: {last}");
    }
}

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

fn own6_octets() -> [u8; 16] {
    OWN6.parse::<std::net::Ipv6Addr>().unwrap().octets()
}

/// Bytes of an IPv4 packet, by its header.
fn total_len(packet: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([packet[2], packet[3]]))
}

/// The next frame from us to somebody: its ethertype and what follows, behind exactly these tags.
fn answer(wire: &PacketSocket, mac: Mac, tags: &[(u16, u16)]) -> (u16, Vec<u8>) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "no answer with the tags {tags:?}");
        let Some(frame) = wire.receive(Duration::from_millis(100)) else { continue };
        if frame[..6] != SOMEBODY || frame[6..12] != mac {
            continue;
        }
        let words: Vec<u16> =
            frame[12..].chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        let expected: Vec<u16> = tags.iter().flat_map(|(protocol, number)| [*protocol, *number]).collect();
        assert_eq!(words[..expected.len()], expected, "the tags of the answer");
        let ethertype = words[expected.len()];
        return (ethertype, frame[12 + expected.len() * 2 + 2..].to_vec());
    }
}
