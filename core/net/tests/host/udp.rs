//! UDP echo.

use std::net::IpAddr;

use sheafio_net::{Count, HostConfig};
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket, checksum};

use crate::{
    bench::{Bench, Outcome, config},
    packets::*,
};

/// Offsets of the transport header in frames without tags, options and extensions.
const V4: usize = 34;
const V6: usize = 54;

#[test]
fn datagrams_of_all_lengths_come_back() {
    let mut bench = Bench::shared();
    for len in (0..=1472).rev().step_by(7).chain(0..70) {
        let payload: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
        for (packet, transport, ip) in [(echo_v4(&payload), V4, 20), (echo_v6(&payload), V6, 40)] {
            let answer = bench.send(&packet).answer();
            assert_eq!(answer.len(), 14 + ip + 8 + len);
            let udp = UdpPacket::new_checked(&answer[transport..]).unwrap();
            assert_eq!((udp.src_port(), udp.dst_port()), (5000, 40_000));
            assert_eq!(udp.payload(), payload);
        }
    }
}

/// The rule of `sheafio echo --response-size`, here for packets with options, tags and padding as well.
#[test]
fn responses_have_the_size_that_is_asked_for() {
    for bytes in [1, 5, 63, 64, 65, 1000, 1452] {
        let config = |own| HostConfig { udp_response_bytes: Some(bytes), ..config(own) };
        let mut bench = Bench::new(&config(false));
        for len in [1, 5, 63, 64, 65, 1472] {
            let payload: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            let expected: Vec<u8> =
                payload[..len.min(64)].iter().copied().cycle().take(usize::from(bytes)).collect();
            let v4 = echo_v4(&payload);
            let tags = [[0x81, 0, 0x20, 5]];
            for packet in [v4.clone(), with_options(&v4, &[1; 40]), [&v4[..], &[0xaa; 17]].concat()] {
                let answer = bench.send(&packet).answer();
                let udp = UdpPacket::new_checked(&answer[V4..]).unwrap();
                assert_eq!((udp.payload(), answer.len()), (&expected[..], V4 + 8 + usize::from(bytes)));
                assert_eq!(bench.send(&with_tags(&packet, &tags)).answer(), with_tags(&answer, &tags));
            }
            let answer = bench.send(&echo_v6(&payload)).answer();
            assert_eq!(UdpPacket::new_checked(&answer[V6..]).unwrap().payload(), expected);
        }
        assert_eq!(bench.send(&echo_v4(b"")).answer().len(), V4 + 8, "nothing has nothing to repeat");
    }
    let mut bench = Bench::new(&HostConfig { udp_response_bytes: Some(2000), ..config(false) });
    assert_eq!(bench.send(&echo_v4(b"hello")), Outcome::Dropped(Count::NoRoomInFrame));
}

#[test]
fn padding_does_not_come_back() {
    let mut bench = Bench::shared();
    for packet in [echo_v4(b"x"), echo_v6(b"x"), ping_v4(b"x"), ping_v6(b"x")] {
        let answer = bench.send(&packet).answer();
        let padded = [&packet[..], &[0xaa; 17]].concat();
        assert_eq!(bench.send(&padded).answer(), answer);
    }
    // Nor does what lies between the end of the datagram and that of the packet.
    let mut packet = echo_v4(b"hello");
    UdpPacket::new_unchecked(&mut packet[V4..]).set_len(10);
    mend(&mut packet);
    let answer = bench.send(&packet).answer();
    assert_eq!(UdpPacket::new_checked(&answer[V4..]).unwrap().payload(), b"he");
    assert_eq!(answer.len(), V4 + 10);
}

#[test]
fn a_datagram_has_a_full_checksum_or_that_of_its_pseudo_header() {
    let ips = |source: &str, destination: &str| -> (IpAddr, IpAddr) {
        (source.parse().unwrap(), destination.parse().unwrap())
    };
    for (packet, transport, (source, destination)) in [
        (echo_v4(b"hello"), V4, ips(PEER_V4, OUR_V4)),
        (echo_v6(b"hello"), V6, ips(PEER_V6, OUR_V6)),
        (echo_v4(b""), V4, ips(PEER_V4, OUR_V4)),
    ] {
        let mut bench = Bench::shared();
        let answer = bench.send(&packet).answer();
        let with = |sum: u16| {
            let mut packet = packet.clone();
            UdpPacket::new_unchecked(&mut packet[transport..]).set_checksum(sum);
            packet
        };
        let len = u32::try_from(packet.len() - transport).unwrap();
        let partial = checksum::pseudo_header(&source.into(), &destination.into(), IpProtocol::Udp, len);
        let right = UdpPacket::new_unchecked(&packet[transport..]).checksum();
        assert_ne!(partial, right);
        assert_eq!(bench.send(&with(partial)).answer(), answer, "the answer has a full one");
        for wrong in [partial + 1, !partial, right + 1, !right, 0xffff] {
            assert_eq!(bench.send(&with(wrong)), Outcome::Dropped(Count::BadUdpChecksum), "{wrong:#x}");
        }
        if source.is_ipv4() {
            assert_eq!(bench.send(&with(0)).answer(), answer, "none");
        } else {
            assert_eq!(bench.send(&with(0)), Outcome::Dropped(Count::UdpNoChecksum));
        }
    }
}

#[test]
fn a_checksum_that_comes_to_zero_is_sent_as_all_ones() {
    let mut bench = Bench::shared();
    for (make, transport) in [(echo_v4 as fn(&[u8]) -> Vec<u8>, V4), (echo_v6, V6)] {
        // Whatever the sum is without it, as one more word it makes the sum all ones.
        let sum = UdpPacket::new_unchecked(&make(&[0, 0])[transport..]).checksum();
        let packet = make(&sum.to_be_bytes());
        assert_eq!(UdpPacket::new_unchecked(&packet[transport..]).checksum(), 0xffff);
        let answer = bench.send(&packet).answer();
        assert_eq!(UdpPacket::new_unchecked(&answer[transport..]).checksum(), 0xffff);
    }
}

#[test]
fn lengths_of_a_datagram_that_lie_are_counted() {
    for len in [0, 1, 7, 14, 1500, u16::MAX] {
        for (mut packet, transport) in [(echo_v4(b"hello"), V4), (echo_v6(b"hello"), V6)] {
            UdpPacket::new_unchecked(&mut packet[transport..]).set_len(len);
            let outcome = Bench::shared().send(&packet);
            assert_eq!(outcome, Outcome::Dropped(Count::BadUdpLength), "{len}");
        }
    }
    let mut packet = [&echo_v4(b"hello")[..], &[0; 20]].concat();
    UdpPacket::new_unchecked(&mut packet[V4..]).set_len(14);
    assert_eq!(
        Bench::shared().send(&packet),
        Outcome::Dropped(Count::BadUdpLength),
        "padding is no part of it"
    );
}

#[test]
fn ports_that_answer_are_not_answered() {
    for (source, count) in [
        (0, Count::SourcePortZero),
        (5000, Count::SourcePortAnswers),
        (7, Count::SourcePortAnswers),
        (13, Count::SourcePortAnswers),
        (17, Count::SourcePortAnswers),
        (19, Count::SourcePortAnswers),
    ] {
        for (from, to) in [(PEER_V4, OUR_V4), (PEER_V6, OUR_V6)] {
            for port in [5000, 7] {
                let outcome = Bench::own().send(&udp(from, to, (source, port), b"x"));
                assert_eq!(outcome, Outcome::Dropped(count), "{source}");
            }
        }
    }
    for source in [1, 53, 4999, 5001, 65_535] {
        Bench::own().send(&udp(PEER_V4, OUR_V4, (source, 5000), b"x")).answer();
    }
}

#[test]
fn ports_that_are_not_served_are_the_kernels_business_on_shared_addresses() {
    for port in [0, 5001, 65_535] {
        let outcome = Bench::shared().send(&udp(PEER_V4, OUR_V4, (40_000, port), b"x"));
        assert_eq!(outcome, Outcome::Dropped(Count::PortNotServed));
        let outcome = Bench::shared().send(&udp(PEER_V6, OUR_V6, (40_000, port), b"x"));
        assert_eq!(outcome, Outcome::Dropped(Count::PortNotServed));
    }
}

#[test]
fn options_and_extension_headers_do_not_come_back() {
    let mut bench = Bench::shared();
    let answer = bench.send(&echo_v4(b"hello")).answer();
    for options in [vec![1, 1, 1, 0], vec![7, 7, 4, 0, 0, 0, 0, 0], vec![1; 40]] {
        let packet = with_options(&echo_v4(b"hello"), &options);
        assert_eq!(bench.send(&packet).answer(), answer);
        let tags = [[0x88, 0xa8, 0, 9], [0x81, 0, 0x20, 5]];
        assert_eq!(bench.send(&with_tags(&packet, &tags)).answer(), with_tags(&answer, &tags));
    }
    let answer = bench.send(&echo_v6(b"hello")).answer();
    let (_, packet) = every_kind().into_iter().find(|(name, _)| *name == "udp_v6_extensions").unwrap();
    assert_eq!(bench.send(&packet).answer(), answer);
    let long = with_extension(&echo_v6(b"hello"), IpProtocol::Ipv6Opts, &[&[1, 252][..], &[0; 252]].concat());
    assert_eq!(bench.send(&long).answer(), answer);
}

#[test]
fn answers_keep_their_tags() {
    let mut bench = Bench::shared();
    for packet in [echo_v4(b"hello"), echo_v6(b"hello"), ping_v4(b"hello"), ping_v6(b"hello")] {
        let answer = bench.send(&packet).answer();
        for tags in [&[[0x81, 0, 0x20, 5]][..], &[[0x88, 0xa8, 0, 9], [0x81, 0, 0x20, 5]]] {
            assert_eq!(bench.send(&with_tags(&packet, tags)).answer(), with_tags(&answer, tags));
        }
        let three = with_tags(&packet, &[[0x81, 0, 0, 1]; 3]);
        assert_eq!(bench.send(&three), Outcome::Dropped(Count::OtherEthertype));
        // A tag that the device took out comes in front of those that are left.
        for tags in [&[][..], &[[0x81, 0, 0, 7]]] {
            let outcome = bench.send_frame(|frame| {
                let packet = with_tags(&packet, tags);
                frame.append(packet.len()).unwrap().copy_from_slice(&packet);
                write_metadata(frame, 0x88a8, 0x2005);
            });
            let tags = [&[[0x88, 0xa8, 0x20, 5]], tags].concat();
            assert_eq!(outcome.answer(), with_tags(&answer, &tags));
        }
    }
    for len in 0..14 {
        let outcome = bench.send_frame(|frame| {
            frame.append(len).unwrap().fill(0);
            write_metadata(frame, 0x8100, 5);
        });
        assert!(matches!(outcome, Outcome::Dropped(Count::Truncated | Count::OtherEthertype)), "{outcome:?}");
    }
}

/// Writes what the XDP program does of a tag; see mempool/src/metadata.rs.
fn write_metadata(frame: &mut sheafio_mempool::Frame, protocol: u16, tag: u16) {
    let bytes = frame.prepend(32).unwrap();
    bytes.fill(0);
    bytes[16..18].copy_from_slice(&protocol.to_ne_bytes());
    bytes[18..20].copy_from_slice(&tag.to_ne_bytes());
    bytes[20..24].copy_from_slice(&4_u32.to_ne_bytes());
    bytes[24..].copy_from_slice(&42_u64.to_ne_bytes());
    frame.trim_front(32);
    frame.find_rx_metadata(42);
}

#[test]
fn what_the_sender_says_of_its_packet_stays_and_what_the_path_did_does_not() {
    let mut bench = Bench::shared();
    for dont_fragment in [false, true] {
        let mut packet = echo_v4(b"hello");
        let mut ip = Ipv4Packet::new_unchecked(&mut packet[14..]);
        ip.set_dscp(46);
        ip.set_ecn(3);
        ip.set_ident(4711);
        ip.set_dont_frag(dont_fragment);
        ip.set_hop_limit(0); // A host takes what arrives (RFC 1122 section 3.2.1.7).
        ip.fill_checksum();
        packet[20] |= 0x80; // The reserved bit.
        mend(&mut packet);
        let answer = bench.send(&packet).answer();
        let ip = Ipv4Packet::new_checked(&answer[14..]).unwrap();
        assert_eq!((ip.dscp(), ip.ecn(), ip.ident(), ip.dont_frag()), (46, 0, 4711, dont_fragment));
        assert_eq!(answer[20] & 0x80, 0);
    }
    let mut packet = echo_v6(b"hello");
    let mut ip = Ipv6Packet::new_unchecked(&mut packet[14..]);
    ip.set_traffic_class(46 << 2 | 3);
    ip.set_flow_label(0x12345);
    ip.set_hop_limit(0);
    let answer = bench.send(&packet).answer();
    let ip = Ipv6Packet::new_checked(&answer[14..]).unwrap();
    assert_eq!((ip.traffic_class(), ip.flow_label()), (46 << 2, 0), "a label is the sender's own (RFC 6437)");
}
