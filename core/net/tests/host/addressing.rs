//! For whom a packet is, from whom, and by which name it is dropped.

use sheafio_net::{Count, Headers, Verdict};
use smoltcp::wire::{IpProtocol, Ipv4Packet};

use crate::{
    bench::{Bench, Outcome, config},
    packets::*,
};

/// Sends a packet to hosts of both kinds, which treat it alike.
fn both(packet: &[u8]) -> Outcome {
    let (own, shared) = (Bench::own().send(packet), Bench::shared().send(packet));
    assert_eq!(own, shared);
    own
}

#[test]
fn sources_that_no_answer_can_go_to_have_names_of_their_own() {
    for (source, count) in [
        (OUR_V4, Count::SourceOwn),
        ("192.0.2.9", Count::SourceOwn),
        ("0.0.0.0", Count::SourceUnspecified),
        ("0.1.2.3", Count::SourceUnspecified),
        ("127.0.0.1", Count::SourceLoopback),
        ("224.0.0.1", Count::SourceMulticast),
        ("255.255.255.255", Count::SourceBroadcast),
        ("10.0.0.255", Count::SourceBroadcast),
        ("192.0.2.11", Count::SourceBroadcast),
    ] {
        assert_eq!(both(&udp(source, OUR_V4, (40_000, 5000), b"x")), Outcome::Dropped(count), "{source}");
        assert_eq!(both(&tcp(source, OUR_V4)), Outcome::Dropped(count), "{source}");
    }
    for (source, count) in [
        (OUR_V6, Count::SourceOwn),
        ("::", Count::SourceUnspecified),
        ("::1", Count::SourceLoopback),
        ("ff02::1", Count::SourceMulticast),
        ("::ffff:10.0.0.1", Count::MappedAddress),
    ] {
        assert_eq!(both(&udp(source, OUR_V6, (40_000, 5000), b"x")), Outcome::Dropped(count), "{source}");
        assert_eq!(both(&tcp(source, OUR_V6)), Outcome::Dropped(count), "{source}");
    }
}

#[test]
fn destinations_that_are_not_ours_have_names_of_their_own() {
    for (destination, count) in [
        ("10.0.0.3", Count::OtherAddress),
        ("10.0.0.255", Count::GroupAddress),
        ("255.255.255.255", Count::GroupAddress),
        ("224.0.0.1", Count::GroupAddress),
    ] {
        assert_eq!(both(&udp(PEER_V4, destination, (40_000, 5000), b"x")), Outcome::Dropped(count));
        assert_eq!(both(&tcp(PEER_V4, destination)), Outcome::Dropped(count));
    }
    for (destination, count) in [
        ("fd00::3", Count::OtherAddress),
        ("ff02::1", Count::GroupAddress),
        ("::ffff:10.0.0.2", Count::MappedAddress),
    ] {
        assert_eq!(both(&udp(PEER_V6, destination, (40_000, 5000), b"x")), Outcome::Dropped(count));
        assert_eq!(both(&tcp(PEER_V6, destination)), Outcome::Dropped(count));
    }
}

#[test]
fn ethernet_addresses_are_judged_first() {
    let with_macs = |to: [u8; 6], from: [u8; 6]| {
        let mut packet = echo_v4(b"x");
        packet[..6].copy_from_slice(&to);
        packet[6..12].copy_from_slice(&from);
        both(&packet)
    };
    with_macs(OUR_MAC, PEER_MAC).answer();
    for (to, from, count) in [
        ([2, 0, 0, 0, 0, 8], PEER_MAC, Count::OtherMac),
        (BROADCAST_MAC, PEER_MAC, Count::GroupMac),
        ([1, 0, 0x5e, 0, 0, 1], PEER_MAC, Count::GroupMac),
        (OUR_MAC, OUR_MAC, Count::SourceMac),
        (OUR_MAC, BROADCAST_MAC, Count::SourceMac),
        (OUR_MAC, [3, 0, 0, 0, 0, 1], Count::SourceMac),
        (OUR_MAC, [0; 6], Count::SourceMac),
    ] {
        assert_eq!(with_macs(to, from), Outcome::Dropped(count), "{from:?} to {to:?}");
    }
}

#[test]
fn tcp_is_handed_on_as_it_came() {
    for packet in
        [tcp(PEER_V4, OUR_V4), tcp(PEER_V6, OUR_V6), with_tags(&tcp(PEER_V4, OUR_V4), &[[0x81, 0, 0, 5]])]
    {
        assert_eq!(both(&packet), Outcome::Tcp(Headers::read(&packet).unwrap()));
    }
}

#[test]
fn other_protocols_are_counted() {
    for (source, destination, protocol) in [
        (PEER_V4, OUR_V4, IpProtocol::Igmp),
        (PEER_V4, OUR_V4, IpProtocol::Unknown(132)),
        (PEER_V4, OUR_V4, IpProtocol::Icmpv6),
        (PEER_V4, OUR_V4, IpProtocol::HopByHop),
        (PEER_V6, OUR_V6, IpProtocol::Icmp),
        (PEER_V6, OUR_V6, IpProtocol::Ipv6NoNxt),
        (PEER_V6, OUR_V6, IpProtocol::IpSecEsp),
    ] {
        let packet = ip(source, destination, protocol, &[0; 40]);
        assert_eq!(both(&packet), Outcome::Dropped(Count::OtherProtocol), "{protocol}");
    }
    let mut packet = echo_v4(b"x");
    packet[12..14].copy_from_slice(&[0x88, 0xcc]);
    assert_eq!(both(&packet), Outcome::Dropped(Count::OtherEthertype));
}

#[test]
fn fragments_are_counted_first_and_later_ones() {
    for (flags, offset) in [(true, 0), (true, 1480), (false, 1480)] {
        let mut packet = echo_v4(&[7; 64]);
        let mut ip = Ipv4Packet::new_unchecked(&mut packet[14..]);
        ip.set_more_frags(flags);
        ip.set_frag_offset(offset);
        ip.fill_checksum();
        assert_eq!(both(&packet), Outcome::Dropped(Count::Fragment));
    }
    for bytes in [[0, 1, 0, 0, 0, 9], [5, 0xc8, 0, 0, 0, 9], [0, 0, 0, 0, 0, 9]] {
        let packet = with_extension(&echo_v6(&[7; 64]), IpProtocol::Ipv6Frag, &bytes);
        assert_eq!(both(&packet), Outcome::Dropped(Count::Fragment));
    }
}

#[test]
fn packets_in_several_frames_are_counted() {
    let mut bench = Bench::own();
    assert_eq!(bench.send_in_two(&echo_v4(b"x")), Verdict::Drop(Count::SeveralFrames));
    assert_eq!(bench.count(Count::SeveralFrames), 1);
}

#[test]
fn extension_headers_that_can_not_be_passed_by_are_counted() {
    let over = |kind, bytes: &[u8]| both(&with_extension(&echo_v6(b"x"), kind, bytes));
    // A routing header that has somewhere to go; options that want the packet dropped if they are unknown.
    assert_eq!(over(IpProtocol::Ipv6Route, &[0, 1, 0, 0, 0, 0]), Outcome::Dropped(Count::UnknownExtension));
    for kind in [IpProtocol::HopByHop, IpProtocol::Ipv6Opts] {
        for option in [0x40, 0x80, 0xc2] {
            assert_eq!(over(kind, &[option, 4, 0, 0, 0, 0]), Outcome::Dropped(Count::UnknownOption));
            assert_eq!(over(kind, &[0, 0, option, 2, 0, 0]), Outcome::Dropped(Count::UnknownOption));
        }
        over(kind, &[0x1e, 4, 0, 0, 0, 0]).answer();
        over(kind, &[0; 6]).answer();
        // Inside of an option that may be passed by nothing is an option.
        over(kind, &[0x1e, 4, 0xc2, 0xc2, 0xc2, 0xc2]).answer();
        assert_eq!(over(kind, &[0x1e, 5, 0, 0, 0, 0]), Outcome::Dropped(Count::BadIpHeader));
        assert_eq!(over(kind, &[0, 0, 0, 0, 0, 1]), Outcome::Dropped(Count::BadIpHeader));
    }
    // One for each hop that is not the first (RFC 8200 section 4.1).
    let hops = with_extension(&echo_v6(b"x"), IpProtocol::HopByHop, &[0; 6]);
    both(&hops).answer();
    for kind in [IpProtocol::HopByHop, IpProtocol::Ipv6Opts, IpProtocol::Ipv6Route] {
        let behind = with_extension(&hops, kind, &[0; 6]);
        assert_eq!(both(&behind), Outcome::Dropped(Count::UnknownExtension), "{kind}");
    }
    let mut many = echo_v6(b"x");
    for _ in 0..8 {
        many = with_extension(&many, IpProtocol::Ipv6Opts, &[1, 4, 0, 0, 0, 0]);
    }
    both(&many).answer();
    many = with_extension(&many, IpProtocol::Ipv6Opts, &[1, 4, 0, 0, 0, 0]);
    assert_eq!(both(&many), Outcome::Dropped(Count::UnknownExtension));
}

#[test]
fn lengths_that_lie_are_counted() {
    let change = |change: fn(&mut Ipv4Packet<&mut [u8]>)| {
        let mut packet = echo_v4(b"hello");
        let mut ip = Ipv4Packet::new_unchecked(&mut packet[14..]);
        change(&mut ip);
        ip.fill_checksum();
        both(&packet)
    };
    for header_len in [0, 4, 16, 60] {
        let mut packet = echo_v4(b"hello");
        Ipv4Packet::new_unchecked(&mut packet[14..]).set_header_len(header_len);
        assert_eq!(both(&packet), Outcome::Dropped(Count::BadIpHeader), "{header_len}");
    }
    assert_eq!(change(|ip| ip.set_total_len(19)), Outcome::Dropped(Count::BadIpHeader));
    assert_eq!(change(|ip| ip.set_total_len(34)), Outcome::Dropped(Count::Truncated));
    assert_eq!(change(|ip| ip.set_total_len(u16::MAX)), Outcome::Dropped(Count::Truncated));
    assert_eq!(change(|ip| ip.set_version(5)), Outcome::Dropped(Count::BadIpHeader));
    // A packet that ends with its header carries no UDP header.
    assert_eq!(change(|ip| ip.set_total_len(20)), Outcome::Dropped(Count::BadUdpLength));
    let mut packet = echo_v4(b"hello");
    packet[24] ^= 1;
    assert_eq!(both(&packet), Outcome::Dropped(Count::BadIpChecksum));
    for (len, count) in [(14_u16, Count::Truncated), (u16::MAX, Count::Truncated), (0, Count::BadUdpLength)] {
        let mut packet = echo_v6(b"hello");
        packet[18..20].copy_from_slice(&len.to_be_bytes());
        assert_eq!(both(&packet), Outcome::Dropped(count), "{len}");
    }
}

#[test]
fn a_host_without_addresses_answers_nobody() {
    for is_own in [false, true] {
        let mut config = config(is_own);
        config.addresses.clear();
        let mut bench = Bench::new(&config);
        for (name, packet) in every_kind() {
            assert!(matches!(bench.send(&packet), Outcome::Dropped(_)), "{name}");
        }
        assert_eq!(bench.announced(32), Vec::<Vec<u8>>::new());
    }
}
