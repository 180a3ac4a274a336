//! Neighbour discovery for addresses of our own.

use sheafio_net::Count;
use smoltcp::wire::{EthernetAddress, Icmpv6Packet, NdiscNeighborFlags, NdiscRepr};

use crate::{
    bench::{Bench, Outcome},
    packets::*,
};

const SECOND: u64 = 1_000_000_000;
const TAGS: [[u8; 4]; 2] = [[0x88, 0xa8, 0, 9], [0x81, 0, 0x20, 5]];

fn read(frame: &[u8]) -> NdiscRepr<'_> {
    NdiscRepr::parse(&Icmpv6Packet::new_checked(&frame[54..]).unwrap()).unwrap()
}

fn advert(target: &str, flags: NdiscNeighborFlags) -> NdiscRepr<'static> {
    NdiscRepr::NeighborAdvert {
        flags,
        target_addr: v6(target),
        lladdr: Some(EthernetAddress(OUR_MAC).into()),
    }
}

#[test]
fn who_asks_for_an_address_of_ours_gets_an_answer() {
    let wanted = |target| advert(target, NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE);
    let mut bench = Bench::own();
    for (destination, target) in [
        (OUR_GROUP, OUR_V6),
        (OUR_V6, OUR_V6),
        ("ff02::1:ff00:9", "fe80::9"),
        ("fe80::9", "fe80::9"),
        ("fe80::9", OUR_V6),
    ] {
        for source in [PEER_V6, "fe80::1", "2001:db8::1"] {
            for with_mac in [true, false] {
                let packet = solicitation(source, destination, target, with_mac);
                let answer = bench.send(&packet).answer();
                assert_eq!((&answer[..6], read(&answer)), (&PEER_MAC[..], wanted(target)));
                assert_eq!(answer[22..38], v6(target).octets(), "from the address that was asked for");
                let padded = [&with_tags(&packet, &TAGS)[..], &[0xaa; 18]].concat();
                assert_eq!(bench.send(&padded).answer(), with_tags(&answer, &TAGS));
            }
        }
    }
}

#[test]
fn the_answer_goes_to_the_address_in_the_request() {
    let mut packet = solicitation(PEER_V6, OUR_GROUP, OUR_V6, true);
    let at = packet.len() - 1;
    packet[at] = 0x77;
    mend(&mut packet);
    assert_eq!(Bench::own().send(&packet).answer()[..6], [2, 0, 0, 0, 0, 0x77]);
}

#[test]
fn options_of_other_kinds_are_passed_by() {
    let mut bench = Bench::own();
    let plain = solicitation(PEER_V6, OUR_GROUP, OUR_V6, false);
    let answer = bench.send(&plain).answer();
    let with = |options: &[u8]| {
        let mut packet = [&plain[..], options].concat();
        packet[18..20].copy_from_slice(&(24 + options.len() as u16).to_be_bytes());
        mend(&mut packet);
        packet
    };
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6]; // RFC 3971.
    let short_prefix = [3, 1, 0, 0, 0, 0, 0, 0];
    for options in [&nonce[..], &short_prefix, &[nonce, short_prefix].concat()] {
        assert_eq!(bench.send(&with(options)).answer(), answer);
    }
    let mac = [1, 1, 2, 0, 0, 0, 0, 0x77];
    assert_eq!(bench.send(&with(&[nonce, mac, nonce].concat())).answer()[..6], mac[2..]);
    for options in [
        &[0, 0][..],                                       // Of no length.
        &[14, 0, 0, 0, 0, 0, 0, 0],                        // Likewise.
        &[14, 2, 0, 0, 0, 0, 0, 0],                        // Longer than the packet.
        &[14],                                             // Not even a length.
        &[&mac[..], &[1]].concat(),                        // Likewise, behind one that is whole.
        &[1, 2, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], // No Ethernet address.
        &[1, 1, 3, 0, 0, 0, 0, 1],                         // That of a group.
        &[1, 1, 0, 0, 0, 0, 0, 0],                         // That of nobody.
    ] {
        assert_eq!(bench.send(&with(options)), Outcome::Dropped(Count::BadNd), "{options:?}");
    }
}

#[test]
fn a_probe_for_an_address_of_ours_is_answered_to_all() {
    let mut bench = Bench::own();
    let answer = bench.send(&solicitation("::", OUR_GROUP, OUR_V6, false)).answer();
    assert_eq!(read(&answer), advert(OUR_V6, NdiscNeighborFlags::OVERRIDE));
    // RFC 4861 section 7.1.1: to the group alone, and without a MAC.
    for packet in [solicitation("::", OUR_V6, OUR_V6, false), solicitation("::", OUR_GROUP, OUR_V6, true)] {
        assert_eq!(bench.send(&packet), Outcome::Dropped(Count::BadNd));
    }
}

#[test]
fn questions_for_others_have_no_answer() {
    let mut bench = Bench::own();
    for (destination, target, count) in [
        // The same group, for it knows 24 bits only.
        (OUR_GROUP, "fd00:0:0:1::2", Count::OtherNd),
        (OUR_V6, "fd00::3", Count::OtherNd),
        ("ff02::1:ff00:3", "fd00::3", Count::OtherNd),
        ("ff02::1:ff00:3", OUR_V6, Count::OtherNd),
        ("ff02::1", OUR_V6, Count::OtherNd),
        ("fd00::3", OUR_V6, Count::OtherNd),
    ] {
        let packet = solicitation(PEER_V6, destination, target, true);
        assert_eq!(bench.send(&packet), Outcome::Dropped(count), "{target} at {destination}");
    }
    for (source, count) in
        [(OUR_V6, Count::SourceOwn), ("::1", Count::SourceLoopback), ("ff02::1", Count::SourceMulticast)]
    {
        assert_eq!(
            bench.send(&solicitation(source, OUR_GROUP, OUR_V6, true)),
            Outcome::Dropped(count),
            "{source}"
        );
    }
    for (at, mac, count) in [
        (0, BROADCAST_MAC, Count::GroupMac),
        (0, [0x33, 0x33, 0xff, 0, 0, 3], Count::GroupMac),
        (0, [2, 0, 0, 0, 0, 8], Count::OtherMac),
        (6, OUR_MAC, Count::SourceMac),
        (6, BROADCAST_MAC, Count::SourceMac),
    ] {
        let mut packet = solicitation(PEER_V6, OUR_GROUP, OUR_V6, true);
        packet[at..at + 6].copy_from_slice(&mac);
        assert_eq!(bench.send(&packet), Outcome::Dropped(count), "{mac:?}");
    }
    // In a frame to a group that stands for these 32 bits, but the packet is to one host.
    let mut packet = solicitation(PEER_V6, OUR_V6, OUR_V6, true);
    packet[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 2]);
    assert_eq!(bench.send(&packet), Outcome::Dropped(Count::GroupMac));
}

#[test]
fn what_the_rfc_forbids_is_counted() {
    let mut bench = Bench::own();
    let good = solicitation(PEER_V6, OUR_GROUP, OUR_V6, true);
    assert_eq!(good[..6], OUR_GROUP_MAC);
    bench.send(&good).answer();
    // Hop limit, code, and a target that is a group or an IPv4 address.
    for (at, bytes) in
        [(21, &[254][..]), (55, &[1]), (62, &v6("ff02::1").octets()), (62, &v6("::ffff:10.0.0.2").octets())]
    {
        let mut packet = good.clone();
        packet[at..at + bytes.len()].copy_from_slice(bytes);
        mend(&mut packet);
        assert_eq!(bench.send(&packet), Outcome::Dropped(Count::BadNd), "byte {at}");
    }
    let mut packet = good.clone();
    packet[56] ^= 1;
    assert_eq!(bench.send(&packet), Outcome::Dropped(Count::BadIcmpChecksum));
    let short = solicitation(PEER_V6, OUR_V6, OUR_V6, false);
    for len in 0..24_u16 {
        let mut packet = short.clone();
        packet[18..20].copy_from_slice(&len.to_be_bytes());
        mend(&mut packet);
        let count = if len == 0 { Count::BadIcmp } else { Count::BadNd };
        assert_eq!(bench.send(&packet), Outcome::Dropped(count), "{len}");
    }
    let to_all = advertisement(PEER_V6, "ff02::1", PEER_V6, NdiscNeighborFlags::SOLICITED, Some(PEER_MAC));
    assert_eq!(bench.send(&to_all), Outcome::Dropped(Count::BadNd));
}

#[test]
fn neighbour_discovery_is_the_kernels_where_addresses_are_shared() {
    let mut bench = Bench::shared();
    for packet in [
        solicitation(PEER_V6, OUR_GROUP, OUR_V6, true),
        advertisement(PEER_V6, OUR_V6, PEER_V6, NdiscNeighborFlags::SOLICITED, None),
    ] {
        assert_eq!(bench.send(&packet), Outcome::Dropped(Count::NdNotServed));
    }
}

#[test]
fn who_claims_an_address_of_ours_is_contradicted_once_in_ten_seconds() {
    let mut bench = Bench::own();
    let claim = advertisement(PEER_V6, "ff02::1", OUR_V6, NdiscNeighborFlags::OVERRIDE, Some(PEER_MAC));
    let answer = bench.send(&claim).answer();
    assert_eq!(read(&answer), advert(OUR_V6, NdiscNeighborFlags::OVERRIDE));
    bench.now_ns = 9 * SECOND;
    assert_eq!(bench.send(&claim), Outcome::Dropped(Count::DefenceLimited));
    bench.now_ns = 10 * SECOND;
    // From the very address, too.
    let claim = advertisement(OUR_V6, "ff02::1", OUR_V6, NdiscNeighborFlags::OVERRIDE, None);
    assert_eq!(bench.send(&with_tags(&claim, &TAGS)).answer(), with_tags(&answer, &TAGS));
    assert_eq!((bench.count(Count::AddressConflict), bench.count(Count::AddressDefended)), (3, 2));
}
