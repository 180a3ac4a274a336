//! How connections are opened, and what is answered to segments of none.

use sheafio_net::{Count, tcp::Config};

use crate::{
    peer::{Client, PORT, Script, config, plain_syn_ack},
    segment::{ACK, FIN, PSH, RST, URG, ack, data, fin, rst, rst_ack, syn, syn_ack},
    service::Service,
};

#[test]
fn a_connection_is_opened_used_and_closed() {
    let mut s = Script::echo();
    s.send(syn().mss(1460));
    s.expect(plain_syn_ack().window(2048));
    s.send(ack(1, 1));
    s.nothing();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
    s.nothing();
    s.send(fin(6, 6));
    s.expect(fin(6, 7));
    s.send(ack(7, 7));
    s.nothing();
    assert_eq!((s.tcp().flows(), s.tcp().half_open()), (0, 0));
    assert_eq!((s.count(Count::FlowsOpened), s.count(Count::FlowsEnded)), (1, 1));
}

#[test]
fn the_same_over_ipv6() {
    let mut s = Script::echo().with_client(Client::v6(40_000));
    s.send(syn());
    s.expect(syn_ack().mss(1440));
    s.send(data(1, 1, b"hello").with(PSH));
    s.expect(data(1, 6, b"hello"));
    s.send(fin(6, 6));
    s.expect(fin(6, 7));
    s.send(ack(7, 7));
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn each_option_is_agreed_on_only_if_it_is_offered() {
    for offered in 0..8 {
        let mut s = Script::echo();
        s.client().timestamps = offered & 4 != 0;
        let (mut offer, mut answer) = (syn(), plain_syn_ack());
        if offered & 1 != 0 {
            (offer, answer) = (offer.shift(7), answer.shift(0));
        }
        if offered & 2 != 0 {
            (offer, answer) = (offer.sack_permitted(), answer.sack_permitted());
        }
        s.send(offer);
        if offered & 4 != 0 {
            answer = answer.echo(s.timestamp());
        }
        let came = s.expect(answer);
        assert_eq!(came.timestamps.is_some(), offered & 4 != 0);
    }
}

#[test]
fn a_large_buffer_is_told_by_a_shift_and_only_if_the_peer_has_one() {
    let config = Config { receive_bytes: 200_000, ..config() };
    let mut s = Script::new(config.clone(), Service::echo());
    s.send(syn().shift(3));
    s.expect(plain_syn_ack().shift(2).window(65_535));
    s.send(ack(1, 1));
    s.send(data(1, 1, b"x"));
    s.expect(data(1, 2, b"x").window((98 * 2048 / 4) as u16));

    let mut s = Script::new(config, Service::echo());
    s.send(syn());
    s.expect(plain_syn_ack().window(65_535));
    s.send(data(1, 1, b"x"));
    s.expect(data(1, 2, b"x").window(65_535));
}

#[test]
fn a_shift_above_fourteen_is_taken_for_fourteen() {
    let mut s = Script::new(config(), Service::replies(2000));
    s.client().window = 1; // 16 KiB
    s.open_with(syn().mss(1460).shift(255));
    s.send(data(1, 1, b"x"));
    assert_eq!(s.all().iter().map(|segment| segment.payload.len()).sum::<usize>(), 2000);
    s.send(ack(2, 2001));
}

#[test]
fn bytes_in_a_syn_are_left_to_come_again() {
    let mut s = Script::echo();
    s.send(syn().bytes(b"early"));
    s.expect(plain_syn_ack());
    s.send(data(1, 1, b"early"));
    s.expect(data(1, 6, b"early"));
    s.send(ack(6, 6));
}

#[test]
fn a_syn_with_other_flags_is_no_syn() {
    let mut s = Script::echo();
    s.send(syn().with(FIN));
    s.send(syn().with(FIN | PSH | URG));
    s.nothing();
    assert_eq!(s.count(Count::BadSyn), 2);
    s.send(syn().with(RST));
    s.send(syn().with(RST | FIN));
    s.nothing();
    assert_eq!((s.count(Count::ResetIgnored), s.tcp().half_open()), (2, 0));
    // A SYN that acknowledges what nobody sent.
    s.send(syn().with(ACK));
    s.expect(rst(0));
    // Flags that have no say in it.
    s.send(syn().with(PSH | URG));
    s.expect(plain_syn_ack());
}

/// The packet that made hosts answer themselves: from our own address and port ("LAND"), and its relatives.
#[test]
fn a_source_that_nobody_can_be_answered_at_is_dropped() {
    let sources: [(std::net::IpAddr, bool); 8] = [
        ([10, 0, 0, 2].into(), true),
        ([224, 0, 0, 1].into(), true),
        ([255, 255, 255, 255].into(), true),
        ([0, 0, 0, 0].into(), true),
        (crate::client::OURS_V6.into(), false),
        ([0xff02, 0, 0, 0, 0, 0, 0, 1].into(), false),
        ([0; 8].into(), false),
        ([0, 0, 0, 0, 0, 0xffff, 0xffff, 0xffff].into(), false),
    ];
    let mut s = Script::echo();
    for (number, (remote, is_ipv4)) in sources.into_iter().enumerate() {
        let client = if is_ipv4 { Client::v4(PORT) } else { Client::v6(PORT) };
        s.join(Client { remote, ..client });
        let before = s.count(Count::BadSource);
        let segments = [syn(), ack(1, 1), fin(1, 1), syn_ack(), syn().with(URG)];
        let many = segments.len() as u64;
        s.burst(segments);
        s.nothing();
        assert_eq!(s.count(Count::BadSource), before + many, "source {number}");
    }
    s.join(Client::v4(0));
    s.send(syn());
    s.nothing();
    assert_eq!(s.tcp().half_open(), 0);
}

#[test]
fn nobody_connects_to_a_group() {
    let mut s = Script::echo();
    for local in [[224, 0, 0, 5], [255, 255, 255, 255], [0, 0, 0, 0]] {
        s.join(Client { local: local.into(), ..Client::v4(40_001) });
        s.burst([syn(), ack(1, 1)]);
        s.nothing();
    }
    s.join(Client { local: [0xff02, 0, 0, 0, 0, 0, 0, 5].into(), ..Client::v6(40_001) });
    s.burst([syn(), ack(1, 1)]);
    s.nothing();
    assert_eq!(s.count(Count::BadSource), 8);
}

#[test]
fn a_closed_port_refuses() {
    let mut s = Script::echo();
    s.join(Client { local_port: 8, ..Client::v4(40_001) });
    s.send(syn());
    s.expect(rst_ack(0, 1).window(0));
    // The bytes and the FIN are acknowledged as well (RFC 9293 section 3.10.7.1).
    s.send(syn().bytes(b"abc"));
    s.expect(rst_ack(0, 4));
    assert_eq!((s.tcp().half_open(), s.count(Count::ResetSent)), (0, 2));
}

#[test]
fn segments_of_no_connection_are_refused_and_resets_are_not() {
    let mut s = Script::echo();
    s.send(ack(1, 77));
    s.expect(rst(77));
    s.send(data(1, 78, b"abc"));
    s.expect(rst(78));
    s.send(fin(1, 79));
    s.expect(rst(79));
    s.send(syn_ack().at(5));
    s.expect(rst(1));
    // Without an acknowledgement there is no number to use but 0, and all that came is acknowledged.
    s.send(data(10, 0, b"abc").without(ACK));
    s.expect(rst_ack(0, 13));
    s.send(fin(10, 0).without(ACK).bytes(b"abc"));
    s.expect(rst_ack(0, 14));
    s.burst([rst(1), rst_ack(1, 1), rst(1).with(FIN)]);
    s.nothing();
    assert_eq!((s.count(Count::NoFlow), s.count(Count::ResetIgnored)), (6, 3));
}

#[test]
fn our_syn_is_sent_again_at_doubled_times_and_then_forgotten() {
    let mut s = Script::echo();
    s.send(syn().mss(1460).shift(1).sack_permitted());
    let answer = plain_syn_ack().shift(0).sack_permitted();
    s.expect(answer.clone());
    for second in [1, 2, 4, 8] {
        s.silence(second * 1000 - 1);
        s.wait(1);
        s.expect(answer.clone());
    }
    s.silence(60_000);
    assert_eq!(s.tcp().half_open(), 0);
    // Whoever answers now, within the time of a cookie, is still known.
    s.send(ack(1, 1));
    s.nothing();
    assert_eq!((s.tcp().flows(), s.count(Count::CookieAccepted)), (1, 1));
}

#[test]
fn a_syn_that_comes_again_is_answered_again() {
    let mut s = Script::echo();
    for _ in 0..3 {
        s.send(syn());
        s.expect(plain_syn_ack());
        s.wait(700);
        s.ignore();
    }
    assert_eq!((s.count(Count::SynRepeated), s.count(Count::ChallengedSyn)), (2, 0));
    assert_eq!(s.tcp().half_open(), 1);
    s.send(ack(1, 1));
    s.send(data(1, 1, b"x"));
    s.expect(data(1, 2, b"x"));
}

/// It is not known then which of ours is answered, so there is no round-trip time: not that from the first one.
#[test]
fn an_answer_to_one_of_two_syns_is_not_timed() {
    let mut s = Script::echo();
    s.send(syn());
    s.expect(plain_syn_ack());
    s.wait(700);
    s.send(syn());
    s.expect(plain_syn_ack());
    s.send(ack(1, 1));
    s.send(data(1, 1, b"x"));
    s.expect(data(1, 2, b"x"));
    s.silence(999); // Without a sample; with one of 700 ms it would be 2,100.
    s.wait(1);
    s.expect(data(1, 2, b"x"));
    s.send(ack(2, 2));
}

#[test]
fn another_syn_of_the_same_name_hears_of_the_old_one_and_resets_it() {
    let mut s = Script::echo();
    s.send(syn());
    s.expect(plain_syn_ack());
    // The peer has started anew. Our answer is not to its SYN, so it resets what we believe in.
    s.send(syn().at(5000));
    s.expect(plain_syn_ack());
    s.send(rst(1));
    assert_eq!(s.tcp().half_open(), 0);
    s.client().number = 9;
    s.send(syn());
    s.expect(plain_syn_ack());
    s.send(ack(1, 1));
    assert_eq!(s.tcp().flows(), 1);
}

#[test]
fn a_reset_ends_a_half_open_connection_only_at_its_number() {
    let mut s = Script::echo();
    s.send(syn());
    s.expect(plain_syn_ack());
    s.burst([rst(0), rst(2), rst(1000), rst(3000), rst(1 << 31), rst_ack(2, 1)]);
    s.nothing();
    assert_eq!(s.tcp().half_open(), 1);
    s.send(rst_ack(1, 1));
    assert_eq!((s.tcp().half_open(), s.count(Count::ResetReceived)), (0, 1));
    // And nothing is left of it.
    s.silence(3000);
}

#[test]
fn a_wrong_acknowledgement_of_our_syn_is_refused_and_the_right_one_still_opens() {
    let mut s = Script::echo();
    s.send(syn());
    s.expect(plain_syn_ack());
    for wrong in [0, 2, 1000, 1 << 31] {
        s.send(ack(1, wrong));
        s.expect(rst(wrong));
    }
    assert_eq!((s.tcp().half_open(), s.tcp().flows()), (1, 0));
    // Out of the window: our SYN once more says what is expected.
    for wrong in [0, 3000, 1 << 31] {
        s.send(ack(wrong, 1));
        s.expect(plain_syn_ack());
    }
    s.send(ack(1, 1));
    s.nothing();
    assert_eq!(s.tcp().flows(), 1);
}

#[test]
fn the_segment_that_opens_a_connection_may_carry_bytes_and_a_fin() {
    let mut s = Script::echo();
    s.send(syn());
    s.expect(plain_syn_ack());
    s.send(fin(1, 1).bytes(b"all at once"));
    s.expect(fin(1, 13).bytes(b"all at once"));
    s.send(ack(13, 13));
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn bytes_that_overtake_the_opening_acknowledgement_open() {
    let mut s = Script::echo();
    s.send(syn().sack_permitted());
    s.expect(plain_syn_ack().sack_permitted());
    s.send(data(6, 1, b"world"));
    s.expect(ack(1, 1).sacks(&[(6, 11)]));
    s.send(ack(1, 1));
    s.nothing();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 11, b"helloworld"));
    s.send(ack(11, 11));
}

#[test]
fn a_syn_in_an_open_connection_changes_nothing() {
    let mut s = Script::echo();
    s.open();
    // In the window: an acknowledgement says what is expected, twice a second at most (RFC 5961 section 4).
    s.burst([syn().at(1), syn().at(100)]);
    s.expect(ack(1, 1));
    s.nothing();
    s.wait(500);
    s.send(syn().at(7));
    s.expect(ack(1, 1));
    // That of the handshake once more, and one from elsewhere.
    s.send(syn());
    s.expect(ack(1, 1));
    s.send(syn().at(1 << 30));
    s.expect(ack(1, 1));
    s.send(syn_ack());
    s.expect(ack(1, 1));
    s.send(data(1, 1, b"x"));
    s.expect(data(1, 2, b"x"));
}

/// That of the handshake once more, with bytes: it takes a number as a byte does, and they are those behind it.
#[test]
fn a_syn_before_the_window_may_carry_what_lies_within() {
    let mut s = Script::echo();
    s.open();
    s.send(syn_ack().bytes(b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

/// A peer that crashed and comes back under the same name gets its connection.
#[test]
fn a_peer_that_has_forgotten_an_open_connection_resets_it_and_connects() {
    let mut s = Script::echo();
    s.open();
    let old = s.client().clone();
    s.send(syn().at(77_777));
    s.expect(ack(1, 1));
    s.send(rst(1));
    assert_eq!(s.tcp().flows(), 0);
    s.client().number = old.number.wrapping_add(77_777);
    s.open();
}
