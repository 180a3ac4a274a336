//! ARP for addresses of our own.

use sheafio_net::Count;
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};

use crate::{
    bench::{Bench, Outcome},
    packets::*,
};

const SECOND: u64 = 1_000_000_000;

fn request(sender: &str, target: &str) -> Vec<u8> {
    arp(ArpOperation::Request, sender, target)
}

fn read(frame: &[u8]) -> ArpRepr {
    ArpRepr::parse(&ArpPacket::new_checked(&frame[14..]).unwrap()).unwrap()
}

#[test]
fn who_asks_for_an_address_of_ours_gets_an_answer() {
    for target in [OUR_V4, "192.0.2.9"] {
        // From hosts of the network and of others, and from one that has no address yet.
        for sender in [PEER_V4, "198.51.100.1", "0.0.0.0"] {
            let wanted = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: EthernetAddress(OUR_MAC),
                source_protocol_addr: v4(target),
                target_hardware_addr: EthernetAddress(PEER_MAC),
                target_protocol_addr: v4(sender),
            };
            let mut packet = request(sender, target);
            for to in [BROADCAST_MAC, OUR_MAC] {
                packet[..6].copy_from_slice(&to);
                let answer = Bench::own().send(&packet).answer();
                assert_eq!((&answer[..6], read(&answer)), (&PEER_MAC[..], wanted));
                // With padding, as a device sends it, and with tags.
                let tags = [[0x88, 0xa8, 0, 9], [0x81, 0, 0x20, 5]];
                let padded = [&with_tags(&packet, &tags)[..], &[0xaa; 18]].concat();
                assert_eq!(Bench::own().send(&padded).answer(), with_tags(&answer, &tags));
            }
        }
    }
}

#[test]
fn the_answer_goes_to_the_address_in_the_request() {
    let mut packet = request(PEER_V4, OUR_V4);
    packet[22..28].copy_from_slice(&[2, 0, 0, 0, 0, 0x77]);
    let answer = Bench::own().send(&packet).answer();
    assert_eq!((&answer[..6], &answer[32..38]), (&[2, 0, 0, 0, 0, 0x77][..], &[2, 0, 0, 0, 0, 0x77][..]));
}

#[test]
fn arp_for_others_has_no_answer() {
    let mut bench = Bench::own();
    for target in ["10.0.0.3", PEER_V4, "10.0.0.255", "0.0.0.0"] {
        assert_eq!(bench.send(&request(PEER_V4, target)), Outcome::Dropped(Count::OtherArp), "{target}");
    }
    let mut packet = request(PEER_V4, OUR_V4);
    packet[..6].copy_from_slice(&[2, 0, 0, 0, 0, 8]);
    assert_eq!(bench.send(&packet), Outcome::Dropped(Count::OtherMac));
    for mac in [OUR_MAC, BROADCAST_MAC, [0; 6]] {
        let mut packet = request(PEER_V4, OUR_V4);
        packet[6..12].copy_from_slice(&mac);
        assert_eq!(bench.send(&packet), Outcome::Dropped(Count::SourceMac));
    }
}

#[test]
fn arp_that_makes_no_sense_is_counted() {
    let mut bench = Bench::own();
    // Kind of hardware, of protocol, their lengths, operation.
    for (at, byte) in
        [(15, 6), (16, 0x86), (18, 8), (18, 255), (19, 16), (19, 255), (21, 0), (21, 3), (20, 1)]
    {
        let mut packet = request(PEER_V4, OUR_V4);
        packet[at] = byte;
        assert_eq!(bench.send(&packet), Outcome::Dropped(Count::BadArp), "byte {at}");
    }
    for sender in ["10.0.0.255", "255.255.255.255", "224.0.0.1", "127.0.0.1", "0.0.0.1"] {
        assert_eq!(bench.send(&request(sender, OUR_V4)), Outcome::Dropped(Count::BadArp), "{sender}");
    }
    for mac in [OUR_MAC, BROADCAST_MAC, [0; 6], [1, 0, 0x5e, 0, 0, 1]] {
        let mut packet = request(PEER_V4, OUR_V4);
        packet[22..28].copy_from_slice(&mac);
        assert_eq!(bench.send(&packet), Outcome::Dropped(Count::BadArp), "{mac:?}");
    }
}

#[test]
fn arp_is_the_kernels_where_addresses_are_shared() {
    assert_eq!(Bench::shared().send(&request(PEER_V4, OUR_V4)), Outcome::Dropped(Count::ArpNotServed));
}

#[test]
fn who_claims_an_address_of_ours_is_contradicted_once_in_ten_seconds() {
    for claim in
        [request(OUR_V4, OUR_V4), request(OUR_V4, "10.0.0.3"), arp(ArpOperation::Reply, OUR_V4, PEER_V4)]
    {
        let mut bench = Bench::own();
        let answer = bench.send(&claim).answer();
        let wanted = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: EthernetAddress(OUR_MAC),
            source_protocol_addr: v4(OUR_V4),
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: v4(OUR_V4),
        };
        assert_eq!((&answer[..6], read(&answer)), (&BROADCAST_MAC[..], wanted));
        bench.now_ns = 9 * SECOND;
        assert_eq!(bench.send(&claim), Outcome::Dropped(Count::DefenceLimited));
        bench.now_ns = 10 * SECOND;
        assert_eq!(bench.send(&claim).answer(), answer);
        assert_eq!((bench.count(Count::AddressConflict), bench.count(Count::AddressDefended)), (3, 2));
    }
    // Each address on its own.
    let mut bench = Bench::own();
    bench.send(&request(OUR_V4, OUR_V4)).answer();
    bench.send(&request("192.0.2.9", OUR_V4)).answer();
}
