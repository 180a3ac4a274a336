//! Pings, and errors about closed ports.

use sheafio_net::Count;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv4Repr, Icmpv6Message, Icmpv6Packet, Icmpv6Repr,
    IpProtocol, Ipv4Packet, Ipv4Repr,
};

use crate::{
    bench::{Bench, Outcome, config},
    packets::*,
};

const SECOND: u64 = 1_000_000_000;

#[test]
fn pings_of_all_sizes_are_answered() {
    for mut bench in [Bench::own(), Bench::shared()] {
        for len in (0..=1472).rev().step_by(11).chain(0..40) {
            let data: Vec<u8> = (0..len).map(|at| (at * 3 + len) as u8).collect();
            let answer = bench.send(&ping_v4(&data)).answer();
            let icmp = Icmpv4Packet::new_checked(&answer[34..]).unwrap();
            assert_eq!((icmp.msg_type(), icmp.msg_code()), (Icmpv4Message::EchoReply, 0));
            assert_eq!((icmp.echo_ident(), icmp.echo_seq_no(), icmp.data()), (7, 1, &data[..]));
            let answer = bench.send(&ping_v6(&data)).answer();
            let icmp = Icmpv6Packet::new_checked(&answer[54..]).unwrap();
            assert_eq!((icmp.msg_type(), icmp.msg_code()), (Icmpv6Message::EchoReply, 0));
            assert_eq!((icmp.echo_ident(), icmp.echo_seq_no(), icmp.payload()), (7, 1, &data[..]));
        }
    }
}

#[test]
fn a_ping_of_nothing_but_zeroes_has_an_answer_that_sums_up() {
    let mut bench = Bench::shared();
    let zeroes = icmpv4(PEER_V4, OUR_V4, &Icmpv4Repr::EchoRequest { ident: 0, seq_no: 0, data: &[0; 8] });
    let answer = bench.send(&zeroes).answer();
    assert_eq!(
        Icmpv4Packet::new_unchecked(&answer[34..]).checksum(),
        0xffff,
        "zero would not sum up to all ones"
    );
}

#[test]
fn messages_that_are_no_ping_have_names() {
    let data = &[0; 8];
    let header = Ipv4Repr {
        src_addr: v4(OUR_V4),
        dst_addr: v4(PEER_V4),
        next_header: IpProtocol::Udp,
        payload_len: 8,
        hop_limit: 64,
    };
    let unreachable =
        Icmpv4Repr::DstUnreachable { reason: Icmpv4DstUnreachable::PortUnreachable, header, data };
    let mut bench = Bench::own();
    for repr in [Icmpv4Repr::EchoReply { ident: 1, seq_no: 1, data }, unreachable] {
        assert_eq!(bench.send(&icmpv4(PEER_V4, OUR_V4, &repr)), Outcome::Dropped(Count::OtherIcmp));
    }
    let reply = Icmpv6Repr::EchoReply { ident: 1, seq_no: 1, data };
    assert_eq!(bench.send(&icmpv6(PEER_V6, OUR_V6, &reply)), Outcome::Dropped(Count::OtherIcmp));
    for (mut packet, transport) in [(ping_v4(b"hello"), 34), (ping_v6(b"hello"), 54)] {
        for kind in [42, 155, 200] {
            packet[transport] = kind;
            mend(&mut packet);
            assert_eq!(bench.send(&packet), Outcome::Dropped(Count::OtherIcmp), "{kind}");
        }
    }
    for (mut packet, transport) in [(ping_v4(b"hello"), 34), (ping_v6(b"hello"), 54)] {
        packet[transport + 1] = 1; // A code that pings do not have.
        mend(&mut packet);
        assert_eq!(bench.send(&packet), Outcome::Dropped(Count::OtherIcmp));
    }
    for (mut packet, transport) in [(ping_v4(b"hello"), 34), (ping_v6(b"hello"), 54)] {
        packet[transport + 2] ^= 1;
        assert_eq!(bench.send(&packet), Outcome::Dropped(Count::BadIcmpChecksum));
    }
    for len in 0..8 {
        let bytes = &[8, 0, 0, 0, 0, 0, 0][..len.min(7)];
        let packet = ip(PEER_V4, OUR_V4, IpProtocol::Icmp, bytes);
        assert_eq!(bench.send(&packet), Outcome::Dropped(Count::BadIcmp), "{len}");
        let packet = ip(PEER_V6, OUR_V6, IpProtocol::Icmpv6, bytes);
        assert_eq!(bench.send(&packet), Outcome::Dropped(Count::BadIcmp), "{len}");
    }
}

#[test]
fn pings_are_left_alone_where_they_are_not_ours() {
    let mut bench = Bench::new(&sheafio_net::HostConfig { icmp: false, ..config(false) });
    for packet in [ping_v4(b"x"), ping_v6(b"x")] {
        assert_eq!(bench.send(&packet), Outcome::Dropped(Count::IcmpNotServed));
    }
}

/// Datagrams to a closed port, of either kind, with the size of the quotation's header and the largest answer.
fn closed(len: usize) -> [(Vec<u8>, usize, usize); 2] {
    let payload = vec![7; len];
    [
        (udp(PEER_V4, OUR_V4, (40_000, 5001), &payload), 20, 576),
        (udp(PEER_V6, OUR_V6, (40_000, 5001), &payload), 40, 1280),
    ]
}

#[test]
fn a_closed_port_of_our_own_address_is_said_to_be_closed() {
    for len in [0, 1, 5, 519, 520, 521, 1183, 1184, 1185, 1400] {
        for (packet, header, len_max) in closed(len) {
            let mut bench = Bench::own();
            let answer = bench.send(&packet).answer();
            assert_eq!(bench.count(Count::PortUnreachable), 1);
            let quoted = &packet[14..packet.len().min(14 + len_max - header - 8)];
            assert_eq!(answer.len(), 14 + header + 8 + quoted.len());
            let (icmp, quotation) = answer[14 + header..].split_at(8);
            assert_eq!(icmp[..2], if header == 20 { [3, 3] } else { [1, 4] });
            assert_eq!(icmp[4..], [0; 4], "unused");
            assert_eq!(quotation, quoted);
            // The same with padding and tags.
            let tags = [[0x88, 0xa8, 0, 9], [0x81, 0, 0x20, 5]];
            let padded = [&with_tags(&packet, &tags)[..], &[0xaa; 20]].concat();
            assert_eq!(Bench::own().send(&padded).answer(), with_tags(&answer, &tags));
        }
    }
    let (packet, ..) = &closed(0)[0];
    let answer = Bench::own().send(packet).answer();
    let ip = Ipv4Packet::new_checked(&answer[14..]).unwrap();
    assert_eq!((ip.dscp(), ip.dont_frag(), ip.ident()), (48, true, 0));
}

#[test]
fn a_sender_gets_few_errors_and_others_still_get_theirs() {
    for at in 0..2 {
        let mut bench = Bench::own();
        let send = |bench: &mut Bench, packet: &[u8]| match bench.send(packet) {
            Outcome::Answer(_) => 1,
            outcome => {
                assert_eq!(outcome, Outcome::Dropped(Count::ErrorLimited));
                0
            }
        };
        let (packet, ..) = &closed(5)[at];
        assert_eq!((0..20).map(|_| send(&mut bench, packet)).sum::<u32>(), 6);
        bench.now_ns += SECOND;
        assert_eq!((0..20).map(|_| send(&mut bench, packet)).sum::<u32>(), 1);
        let (other, ..) = &closed(5)[1 - at];
        assert_eq!(send(&mut bench, other), 1);
        // However many there are, all of them get no more than a thousand a second and fifty.
        let many = (0..2000_u32).map(|number| {
            let source = std::net::Ipv4Addr::from_bits(0x0b00_0001 + number).to_string();
            bench.now_ns += SECOND / 4000;
            send(&mut bench, &udp(&source, OUR_V4, (40_000, 5001), b"x"))
        });
        let many: u32 = many.sum();
        assert!((500..=550).contains(&many), "{many} within half a second");
        assert_eq!(bench.count(Count::PortUnreachable), u64::from(8 + many));
    }
}

#[test]
fn no_error_without_room_in_the_frame() {
    for (packet, ..) in closed(5) {
        let outcome = Bench::own().send_frame(|frame| {
            let headroom = frame.headroom();
            frame.prepend(headroom).unwrap().fill(0);
            frame.trim_back(frame.len());
            frame.append(packet.len()).unwrap().copy_from_slice(&packet);
        });
        assert_eq!(outcome, Outcome::Dropped(Count::NoRoomInFrame));
    }
}
