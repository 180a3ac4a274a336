//! What a host sends unasked: announcements, and questions for neighbours.

use sheafio_net::Count;
use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{
        ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Icmpv6Repr, Ipv6Packet,
        NdiscNeighborFlags, NdiscRepr,
    },
};

use crate::{
    bench::{Bench, Outcome, config},
    packets::*,
};

const SECOND: u64 = 1_000_000_000;
/// Ethernet headers of frames to the peer.
const LIKE_V4: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x08, 0x00];
const LIKE_V6: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd];

/// Reads ARP.
fn read_arp(frame: &[u8]) -> ArpRepr {
    assert_eq!(
        (frame.len(), &frame[..14]),
        (42, &[&BROADCAST_MAC[..], &OUR_MAC, &[0x08, 0x06]].concat()[..])
    );
    ArpRepr::parse(&ArpPacket::new_checked(&frame[14..]).unwrap()).unwrap()
}

/// Reads neighbour discovery: from, to, and what it says.
fn read_ndisc(frame: &[u8]) -> (String, String, NdiscRepr<'_>) {
    assert_eq!((frame.len(), &frame[6..14]), (86, &[&OUR_MAC[..], &[0x86, 0xdd]].concat()[..]));
    let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
    assert_eq!(ip.hop_limit(), 255);
    let [.., a, b, c, d] = ip.dst_addr().octets();
    assert_eq!(frame[..6], [0x33, 0x33, a, b, c, d]);
    let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    let parsed =
        Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &ChecksumCapabilities::default()).unwrap();
    let Icmpv6Repr::Ndisc(repr) = parsed else { panic!("{parsed:?}") };
    (ip.src_addr().to_string(), ip.dst_addr().to_string(), repr)
}

fn arp_request(own: &str, target: &str) -> ArpRepr {
    ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: EthernetAddress(OUR_MAC),
        source_protocol_addr: v4(own),
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: v4(target),
    }
}

#[test]
fn each_address_is_announced_twice_two_seconds_apart() {
    let mut bench = Bench::own();
    for start in [0, 2 * SECOND] {
        bench.now_ns = start;
        let mut frames = bench.announced(32);
        frames.sort();
        let [v6_one, v6_two, v4_one, v4_two] = &frames[..] else { panic!("{} frames", frames.len()) };
        assert_eq!(read_arp(v4_one), arp_request(OUR_V4, OUR_V4));
        assert_eq!(read_arp(v4_two), arp_request("192.0.2.9", "192.0.2.9"));
        for (frame, own) in [(v6_one, OUR_V6), (v6_two, "fe80::9")] {
            let repr = NdiscRepr::NeighborAdvert {
                flags: NdiscNeighborFlags::OVERRIDE,
                target_addr: v6(own),
                lladdr: Some(EthernetAddress(OUR_MAC).into()),
            };
            assert_eq!(read_ndisc(frame), (own.into(), "ff02::1".into(), repr));
        }
        bench.now_ns = start + 2 * SECOND - 1;
        assert!(bench.announced(32).is_empty());
    }
    for second in 4..100 {
        bench.now_ns = second * SECOND;
        assert!(bench.announced(32).is_empty());
    }
    assert_eq!(bench.count(Count::Announced), 8);
}

#[test]
fn announcements_wait_for_room_and_frames() {
    let mut bench = Bench::own();
    let all = Bench::own().announced(32);
    assert!(bench.without_frames(|bench| bench.announced(32)).is_empty());
    let mut one_by_one = Vec::new();
    for _ in 0..4 {
        assert!(bench.without_frames(|bench| bench.announced(1)).is_empty());
        one_by_one.extend(bench.announced(1));
    }
    assert_eq!(one_by_one, all);
    assert!(bench.announced(1).is_empty());
}

#[test]
fn nobody_else_announces() {
    assert!(Bench::shared().announced(32).is_empty());
    let mut bench = Bench::new(&sheafio_net::HostConfig { announces: true, ..config(false) });
    assert!(bench.announced(32).is_empty(), "the addresses are the kernel's as well");
    let mut bench = Bench::new(&sheafio_net::HostConfig { announces: false, ..config(true) });
    assert!(bench.announced(32).is_empty(), "another lcore does");
}

#[test]
fn a_neighbour_that_was_asked_for_is_known_for_half_a_minute() {
    let mut bench = Bench::own();
    let reply = arp(ArpOperation::Reply, PEER_V4, OUR_V4);
    assert_eq!(bench.send(&reply), Outcome::Dropped(Count::NeighbourHeard));
    assert_eq!(bench.neighbour(PEER_V4), None, "nobody asked");
    let question = bench.ask(PEER_V4, OUR_V4, &LIKE_V4).unwrap();
    assert_eq!(read_arp(&question), arp_request(OUR_V4, PEER_V4));
    assert_eq!(bench.neighbour(PEER_V4), None);
    bench.send(&reply);
    assert_eq!(bench.neighbour(PEER_V4), Some(PEER_MAC));
    // It moves.
    let mut moved = reply.clone();
    moved[22..28].copy_from_slice(&[2, 0, 0, 0, 0, 0x77]);
    bench.send(&moved);
    assert_eq!(bench.neighbour(PEER_V4), Some([2, 0, 0, 0, 0, 0x77]));
    bench.now_ns = 30 * SECOND - 1;
    assert_eq!(bench.neighbour(PEER_V4), Some([2, 0, 0, 0, 0, 0x77]));
    bench.now_ns = 30 * SECOND;
    assert_eq!(bench.neighbour(PEER_V4), None);

    let question = bench.ask(PEER_V6, OUR_V6, &LIKE_V6).unwrap();
    let repr = NdiscRepr::NeighborSolicit {
        target_addr: v6(PEER_V6),
        lladdr: Some(EthernetAddress(OUR_MAC).into()),
    };
    assert_eq!(read_ndisc(&question), (OUR_V6.into(), "ff02::1:ff00:1".into(), repr));
    // With the MAC in the option, and without one.
    for mac in [Some([2, 0, 0, 0, 0, 0x78]), None] {
        let answer = advertisement(PEER_V6, OUR_V6, PEER_V6, NdiscNeighborFlags::SOLICITED, mac);
        assert_eq!(bench.send(&answer), Outcome::Dropped(Count::NeighbourHeard));
        assert_eq!(bench.neighbour(PEER_V6), mac.or(Some(PEER_MAC)));
    }
    assert_eq!(bench.count(Count::NeighbourAsked), 2);
}

#[test]
fn a_question_has_the_tags_of_its_peer() {
    let tags = [[0x88, 0xa8, 0, 9], [0x81, 0, 0x20, 5]];
    let plain = Bench::own().ask(PEER_V4, OUR_V4, &LIKE_V4).unwrap();
    let tagged = Bench::own().ask(PEER_V4, OUR_V4, &with_tags(&LIKE_V4, &tags)).unwrap();
    assert_eq!(tagged, with_tags(&plain, &tags));
    let plain = Bench::own().ask(PEER_V6, OUR_V6, &LIKE_V6).unwrap();
    let tagged = Bench::own().ask(PEER_V6, OUR_V6, &with_tags(&LIKE_V6, &tags)).unwrap();
    assert_eq!(tagged, with_tags(&plain, &tags));
}

#[test]
fn questions_that_make_no_sense_are_not_asked() {
    let mut bench = Bench::own();
    for (peer, own) in [
        ("10.0.1.1", OUR_V4),   // Behind a router.
        (PEER_V4, "10.0.0.3"),  // From an address that is not ours.
        (PEER_V4, "192.0.2.9"), // From one in another network.
        (PEER_V6, OUR_V4),      // From one of another kind.
        ("fd00:0:0:1::1", OUR_V6),
    ] {
        assert_eq!(bench.ask(peer, own, &LIKE_V4), None, "{peer} from {own}");
    }
    assert_eq!(bench.ask(PEER_V4, OUR_V4, &LIKE_V4[..13]), None);
    assert_eq!(Bench::shared().ask(PEER_V4, OUR_V4, &LIKE_V4), None, "the kernel knows");
    assert_eq!(bench.count(Count::NeighbourAsked), 0);
}

#[test]
fn one_dead_target_does_not_keep_others_from_being_asked() {
    let mut bench = Bench::own();
    let mut asked = [0; 2];
    for millisecond in 0..10_000 {
        bench.now_ns = millisecond * SECOND / 1000;
        // The dead one is asked for without end, the live one now and then.
        for _ in 0..10 {
            asked[0] += u32::from(bench.ask("10.0.0.99", OUR_V4, &LIKE_V4).is_some());
        }
        if millisecond % 2500 == 1 {
            asked[1] += u32::from(bench.ask(PEER_V4, OUR_V4, &LIKE_V4).is_some());
        }
    }
    assert_eq!(asked, [10, 4]);
}

#[test]
fn the_table_of_neighbours_forgets_the_oldest() {
    let mut bench = Bench::new(&sheafio_net::HostConfig {
        addresses: vec!["10.0.0.2/16".parse().unwrap()],
        ..config(true)
    });
    let address = |number: u32| format!("10.0.{}.{}", 1 + number / 250, 1 + number % 250);
    for number in 0..257 {
        bench.now_ns += SECOND / 100;
        assert!(bench.ask(&address(number), OUR_V4, &LIKE_V4).is_some(), "{number}");
    }
    for number in 0..257 {
        bench.send(&arp(ArpOperation::Reply, &address(number), OUR_V4));
    }
    let known = (0..257).filter(|&number| bench.neighbour(&address(number)) == Some(PEER_MAC));
    assert_eq!(known.collect::<Vec<_>>(), (1..257).collect::<Vec<_>>());
}
