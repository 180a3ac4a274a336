//! What a packet looks like around its segment: tags, checksums, padding, options of IP; and what is no packet at all.

use sheafio_net::{Count, Headers};
use smoltcp::wire::{IpProtocol, Ipv4Packet, TcpPacket};

use crate::{
    peer::{Client, Script, config, plain_syn_ack},
    segment::{FIN, Segment, ack, data, fin, rst, stream, syn},
    service::Service,
};

/// Puts the right checksum into an IPv4 header.
fn mend_network(packet: &mut [u8]) {
    let Some(mut ip) = packet.get_mut(14..).and_then(|packet| Ipv4Packet::new_checked(packet).ok()) else {
        return;
    };
    ip.fill_checksum();
}

/// Puts the right checksums into a packet, as far as it has any.
pub(crate) fn mend(packet: &mut [u8]) {
    if packet.len() > 14 && packet[12..14] == [8, 0] {
        mend_network(packet);
    }
    let Ok(headers) = Headers::read(packet) else { return };
    let (transport, end) = (usize::from(headers.transport), usize::from(headers.end));
    if headers.protocol != IpProtocol::Tcp || end < transport + 20 {
        return;
    }
    let (remote, local) = headers.addresses(packet);
    let segment = &mut packet[transport..end];
    let mut tcp = TcpPacket::new_unchecked(segment);
    match (remote.to_ipv4_mapped(), local.to_ipv4_mapped()) {
        (Some(remote), Some(local)) => tcp.fill_checksum(&remote.into(), &local.into()),
        _ => tcp.fill_checksum(&remote.into(), &local.into()),
    }
}

/// Packets of all kinds on a connection, which is open.
fn packets(s: &mut Script) -> Vec<Vec<u8>> {
    let all: [Segment; 9] = [
        syn().mss(1460).shift(7).sack_permitted(),
        syn().mss(1460).shift(7).sack_permitted().timestamps(1, 0),
        ack(1, 1),
        data(1, 1, &stream(0, 100)),
        data(50, 1, &stream(49, 100)),
        fin(101, 1),
        fin(1, 1).bytes(b"all"),
        rst(500),
        ack(1, 1).timestamps(2, 3),
    ];
    all.into_iter().map(|segment| s.clients[s.at].packet(&s.absolute(segment))).collect()
}

#[test]
fn tags_are_kept_in_answers() {
    for tags in [vec![5], vec![4000, 1]] {
        for client in [Client::v4(40_000), Client::v6(40_000)] {
            let mut s = Script::echo().with_client(Client { tags: tags.clone(), ..client });
            s.open();
            s.send(data(1, 1, b"hello"));
            s.expect(data(1, 6, b"hello"));
            s.wait(50);
            s.expect(data(1, 6, b"hello"));
            s.send(ack(6, 6));
            // A refusal as well.
            s.client().local_port = 9;
            s.send(ack(1, 1));
            s.expect(rst(1));
            s.client().local_port = crate::peer::PORT;
        }
    }
}

#[test]
fn a_wrong_checksum_is_dropped() {
    for client in [Client::v4(40_000), Client::v6(40_000)] {
        let mut s = Script::echo().with_client(client);
        s.open();
        let good = s.clients[0].packet(&s.absolute(data(1, 1, b"hello")));
        let transport = usize::from(Headers::read(&good).unwrap().transport);
        // Each bit of the segment, and of the addresses.
        let addresses = if s.clients[0].remote.is_ipv4() { 26..34 } else { 22..54 };
        let mut dropped = 0;
        for at in addresses.chain(transport..good.len()) {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let before = s.count(Count::BadChecksum) + s.count(Count::BadTcpHeader);
                s.raw(&bad);
                s.settle();
                dropped += s.count(Count::BadChecksum) + s.count(Count::BadTcpHeader) - before;
            }
        }
        // The IPv4 header has a checksum of its own, so that is not even TCP.
        let expected = good.len() - transport + if s.clients[0].remote.is_ipv4() { 0 } else { 32 };
        assert_eq!(dropped, 8 * expected as u64);
        s.nothing();
        assert_eq!(s.service().calls, 0);
        s.raw(&good);
        s.settle();
        s.expect(data(1, 6, b"hello"));
        s.send(ack(6, 6));
    }
}

/// What a kernel leaves for hardware to finish on a virtual link: the sum of the pseudo header alone.
#[test]
fn an_unfinished_checksum_is_taken() {
    for client in [Client::v4(40_000), Client::v6(40_000)] {
        let mut s = Script::echo().with_client(client);
        s.open();
        let mut packet = s.clients[0].packet(&s.absolute(data(1, 1, b"hello")));
        let headers = Headers::read(&packet).unwrap();
        let transport = usize::from(headers.transport);
        let addresses = if s.clients[0].remote.is_ipv4() { 26..34 } else { 22..54 };
        let mut sum: u32 = 6 + (packet.len() - transport) as u32;
        for word in packet[addresses].chunks(2) {
            sum += u32::from(u16::from_be_bytes([word[0], word[1]]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let partial = sum as u16;
        for (field, is_taken) in [(partial.wrapping_add(1), false), (!partial, false), (partial, true)] {
            packet[transport + 16..transport + 18].copy_from_slice(&field.to_be_bytes());
            s.raw(&packet);
            s.settle();
            assert_eq!(s.service().got.len(), if is_taken { 5 } else { 0 });
        }
        s.expect(data(1, 6, b"hello"));
        s.send(ack(6, 6));
    }
}

#[test]
fn padding_is_no_data() {
    let mut s = Script::echo();
    s.open();
    let mut packet = s.clients[0].packet(&s.absolute(data(1, 1, b"x")));
    packet.resize(60, 0xee);
    s.raw(&packet);
    s.settle();
    s.expect(data(1, 2, b"x"));
    s.send(ack(2, 2));
}

#[test]
fn options_of_ip_are_passed_by() {
    let mut s = Script::echo();
    s.open();
    let packet = s.clients[0].packet(&s.absolute(data(1, 1, b"x")));
    let mut with = packet[..34].to_vec();
    with.extend([1, 1, 1, 0]);
    with.extend(&packet[34..]);
    let len = (with.len() - 14) as u16;
    with[14] = 0x46;
    with[16..18].copy_from_slice(&len.to_be_bytes());
    mend(&mut with);
    s.raw(&with);
    s.settle();
    s.expect(data(1, 2, b"x"));
    s.send(ack(2, 2));

    // Hop-by-hop and destination options of IPv6.
    let mut s = Script::echo().with_client(Client::v6(40_000));
    s.open();
    let packet = s.clients[0].packet(&s.absolute(data(1, 1, b"x")));
    let mut with = packet[..54].to_vec();
    with.extend([60, 0, 1, 4, 0, 0, 0, 0]);
    with.extend([6, 0, 1, 4, 0, 0, 0, 0]);
    with.extend(&packet[54..]);
    let len = (with.len() - 54) as u16;
    with[18..20].copy_from_slice(&len.to_be_bytes());
    with[20] = 0;
    s.raw(&with);
    s.settle();
    s.expect(data(1, 2, b"x"));
    s.send(ack(2, 2));
}

/// Options of TCP that are cut short, lie about their length, or are not known.
#[test]
fn options_that_can_not_be_read() {
    let options: [&[u8]; 12] = [
        &[2, 4, 5],           // A segment size that is cut short,
        &[2, 3, 5, 0],        // too short,
        &[2, 0, 5, 180],      // of no length,
        &[2],                 // or nothing but its kind.
        &[3, 2, 7, 1],        // A shift that is cut short.
        &[8, 10, 0, 0, 0, 1], // Timestamps.
        &[8, 8, 0, 0, 0, 1, 0, 0],
        &[5, 9, 0, 0, 0, 0, 0, 0, 0], // A range of nine bytes.
        &[4, 3, 0],
        &[0, 3, 3, 7], // Behind the end of the list.
        &[254, 4, 0xf9, 0x89, 1, 1, 1, 1],
        &[255; 40],
    ];
    for option in options {
        let mut s = Script::echo();
        let mut packet = s.clients[0].packet(&s.absolute(syn()));
        let padded = option.len().next_multiple_of(4);
        packet.extend(option);
        packet.resize(packet.len() + padded - option.len(), 0);
        let len = (packet.len() - 14) as u16;
        packet[16..18].copy_from_slice(&len.to_be_bytes());
        mend(&mut packet);
        packet[34 + 12] = ((20 + padded) / 4 * 16) as u8;
        mend(&mut packet);
        s.raw(&packet);
        s.settle();
        s.expect(plain_syn_ack());
        s.send(ack(1, 1));
        s.send(data(1, 1, b"x"));
        s.expect(data(1, 2, b"x"));
        s.send(ack(2, 2));
    }
}

#[test]
fn a_header_that_lies_about_its_length() {
    let mut s = Script::echo();
    s.open();
    let packet = s.clients[0].packet(&s.absolute(data(1, 1, b"hello")));
    for words in (0..5).chain(7..16) {
        let mut packet = packet.clone();
        packet[34 + 12] = words << 4;
        mend(&mut packet);
        s.raw(&packet);
    }
    assert_eq!(s.count(Count::BadTcpHeader), 14);
    assert_eq!(s.service().calls, 0);
}

/// Each packet cut at each length, with the IP header's own length cut as well, and then the checksums mended.
#[test]
fn packets_that_are_cut_at_each_length() {
    for client in [Client::v4(40_000), Client::v6(40_000)] {
        let mut s = Script::echo().with_client(client);
        s.open();
        s.is_wild = true;
        let (mut cut_headers, mut passed) = (0, 0);
        for packet in packets(&mut s) {
            let transport = usize::from(Headers::read(&packet).unwrap().transport);
            let header = transport..transport + usize::from(packet[transport + 12] >> 4) * 4;
            for len in 0..packet.len() {
                let mut cut = packet[..len].to_vec();
                s.raw(&cut);
                s.settle();
                if s.clients[0].remote.is_ipv4() && len >= 34 {
                    cut[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
                    mend(&mut cut);
                } else if s.clients[0].remote.is_ipv6() && len >= 54 {
                    cut[18..20].copy_from_slice(&((len - 54) as u16).to_be_bytes());
                }
                mend(&mut cut);
                let before = s.count(Count::BadTcpHeader);
                s.raw(&cut);
                s.settle();
                // A header that is cut is counted as that, and whatever has a whole one is not.
                let is_cut = header.contains(&len);
                assert_eq!(s.count(Count::BadTcpHeader) - before, u64::from(is_cut), "{len} of {packet:?}");
                (cut_headers, passed) =
                    (cut_headers + u32::from(is_cut), passed + u32::from(len >= header.end));
            }
        }
        s.ignore();
        assert!(cut_headers > 100 && passed > 100, "{cut_headers} cut headers, {passed} whole ones");
        assert_eq!(s.count(Count::BadChecksum), 0);
    }
}

#[test]
fn random_bytes_in_place_of_a_segment() {
    let mut random = fastrand::Rng::with_seed(11);
    for client in [Client::v4(40_000), Client::v6(40_000)] {
        let mut s = Script::echo().with_client(client);
        s.open();
        s.is_wild = true;
        let good = packets(&mut s);
        for _ in 0..30_000 {
            let mut packet = good[random.usize(0..good.len())].clone();
            let transport = usize::from(Headers::read(&packet).unwrap().transport);
            for _ in 0..random.usize(1..6) {
                let at = random.usize(transport..packet.len());
                packet[at] = random.u8(..);
            }
            if random.bool() {
                mend(&mut packet);
            }
            s.raw(&packet);
            s.now_us += random.u64(0..3000);
            s.settle();
            s.ignore();
        }
        let counts =
            [Count::BadChecksum, Count::BadTcpHeader, Count::NoFlow, Count::OutOfWindow, Count::BadAck];
        assert!(counts.iter().all(|count| s.count(*count) > 0));
    }
}

#[test]
fn the_other_flags_are_passed_by() {
    let mut s = Script::new(config(), Service::echo());
    s.open();
    let mut packet = s.clients[0].packet(&s.absolute(data(1, 1, b"x")));
    packet[34 + 12] |= 0x0f; // AE, and what is reserved
    packet[34 + 13] |= 0xc0 | 0x20; // CWR, ECE, URG
    packet[34 + 19] = 1;
    mend(&mut packet);
    s.raw(&packet);
    s.settle();
    s.expect(data(1, 2, b"x"));
    s.send(ack(2, 2).with(FIN));
    s.expect(fin(2, 3));
    s.send(ack(3, 3));
}

/// Whoever hands in a packet that is not even of IP has made a mistake, and it ends nothing.
#[test]
fn a_packet_of_arp_is_no_segment() {
    let mut s = Script::echo();
    s.open();
    let mut arp = [0; 60];
    arp[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    s.raw(&arp);
    s.settle();
    s.nothing();
    s.send(data(1, 1, b"x"));
    s.expect(data(1, 2, b"x"));
}
