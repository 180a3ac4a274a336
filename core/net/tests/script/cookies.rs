//! Who has lost its place in the backlog is known by a cookie; and nobody else is.

use sheafio_net::{Count, tcp::Config};

use crate::{
    limits::flood,
    peer::{Client, Script, config, plain_syn_ack},
    segment::{Segment, ack, data, fin, rst, syn},
    service::Service,
};

/// Drives a client out of the backlog.
pub(crate) fn evict(s: &mut Script) {
    for number in 0..8 {
        flood(s, 1_000_000 + number);
    }
    s.settle();
    s.ignore();
}

#[test]
fn a_cookie_opens_a_connection_with_what_it_could_keep() {
    for (offered, kept) in [
        (Some(1460), 1460),
        (Some(1459), 1440),
        (Some(9000), 1460),
        (Some(1400), 1400),
        (Some(1399), 1360),
        (Some(600), 536),
        (Some(100), 48),
        (None, 536),
    ] {
        let mut s = Script::new(Config { send_bytes: 8192, ..config() }, Service::replies(2000));
        let mut offer = syn().shift(3).sack_permitted();
        offer.mss = offered;
        s.send(offer);
        s.expect(plain_syn_ack().shift(0).sack_permitted());
        evict(&mut s);
        s.send(ack(1, 1));
        s.nothing();
        assert_eq!(s.count(Count::CookieAccepted), 1, "{offered:?}");
        s.send(data(1, 1, b"x"));
        assert_eq!(s.all()[0].payload.len(), kept, "{offered:?}");
        // No ranges any more: it is not known that the peer takes them.
        s.send(data(10, 1, b"z"));
        assert!(s.next().sacks.is_empty());
    }
}

#[test]
fn a_cookie_keeps_timestamps() {
    let mut s = Script::echo().with_client(Client::with_timestamps(40_000));
    s.send(syn());
    s.next();
    evict(&mut s);
    s.wait(5);
    s.send(ack(1, 1));
    let now = s.timestamp();
    s.send(data(1, 1, b"x"));
    s.expect(data(1, 2, b"x").echo(now));
    s.send(ack(2, 2));
    s.send(data(2, 2, b"old").timestamps(now.wrapping_sub(1), 0));
    s.expect(ack(2, 2));
}

/// Timestamps keep the rest: the scale of the peer's windows, and whether it takes selective acknowledgements.
#[test]
fn a_timestamp_keeps_what_a_cookie_has_no_room_for() {
    for shift in (0..=14).map(Some).chain([Some(255), None]) {
        for (sack, ms) in [(false, 0), (true, 1), (true, 17), (false, 31)] {
            let config = Config { send_bytes: 8192, ..config() };
            let mut s = Script::new(config, Service::replies(8000));
            s = s.with_client(Client { window: 5, ..Client::with_timestamps(40_000) });
            s.now_us += ms * 1000;
            let mut offer = syn().mss(1460);
            (offer.shift, offer.sack_permitted) = (shift, sack);
            s.send(offer);
            let answer = s.next();
            evict(&mut s);
            s.send(ack(1, 1));
            s.nothing();
            assert_eq!(s.count(Count::CookieAccepted), 1);
            s.send(data(1, 1, b"x"));
            let sent = s.all();
            let bytes: usize = sent.iter().map(|segment| segment.payload.len()).sum();
            // All that the window takes, but for a last segment that would be a small one.
            let window = 5_usize << shift.unwrap_or(0).min(14);
            let expected = if window > 1448 { window / 1448 * 1448 } else { window };
            assert_eq!(bytes, if window > 8000 { 8000 } else { expected }, "{shift:?}");
            s.send(data(10, 1, b"z"));
            assert_eq!(s.next().sacks, if sack { vec![(10, 11)] } else { vec![] }, "{shift:?}");
            // The clock has not gone back, and has not jumped.
            let clock = |segment: &Segment| segment.timestamps.unwrap().0;
            assert!(clock(&sent[0]).wrapping_sub(clock(&answer)) < 32);
        }
    }
}

#[test]
fn bytes_may_come_with_a_cookie() {
    let mut s = Script::echo();
    s.send(syn());
    s.next();
    evict(&mut s);
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

#[test]
fn whoever_did_not_get_our_syn_can_not_answer_it() {
    let mut s = Script::echo();
    s.send(syn());
    s.next();
    evict(&mut s);
    // Wrong numbers of ours, and of its own.
    for wrong in (2..2000).chain([0, 1 << 5, 1 << 16, 1 << 31]) {
        s.send(ack(1, wrong));
        s.expect(rst(wrong));
    }
    for wrong in [0, 2, 100] {
        s.send(ack(wrong, 1));
        s.expect(rst(1));
    }
    // The right one, of another name.
    let (number, theirs) = (s.client().number, s.client().theirs);
    s.join(Client { number, theirs, ..Client::v4(40_001) });
    s.send(ack(1, 1));
    s.expect(rst(1));
    s.join(Client { number, theirs, local_port: 8, ..Client::v4(40_002) });
    s.send(ack(1, 1));
    s.expect(rst(1));
    assert_eq!((s.tcp().flows(), s.count(Count::CookieAccepted)), (0, 0));
    s.at = 0;
    s.send(ack(1, 1));
    s.nothing();
    assert_eq!(s.tcp().flows(), 1);
}

#[test]
fn a_cookie_is_good_for_one_to_two_minutes() {
    for (seconds, is_good) in [(60, true), (130, false), (255, false), (257, false)] {
        let mut s = Script::echo();
        s.send(syn());
        s.next();
        evict(&mut s);
        s.now_us += seconds * 1_000_000;
        s.settle();
        s.ignore();
        s.send(ack(1, 1));
        assert_eq!(s.tcp().flows(), usize::from(is_good), "{seconds}");
    }
}

/// As long as nobody has lost its place, an acknowledgement without a connection is none of a cookie.
#[test]
fn without_a_loss_there_are_no_cookies() {
    let mut s = Script::echo();
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.send(fin(6, 6));
    s.expect(fin(6, 7));
    s.send(ack(7, 7));
    assert_eq!(s.tcp().flows(), 0);
    // Delayed in the network: what opened the connection, and its first request.
    for late in [ack(1, 1), data(1, 1, b"hello")] {
        s.send(late);
        s.expect(rst(1));
    }
    assert_eq!((s.tcp().flows(), s.service().got.len(), s.count(Count::CookieAccepted)), (0, 5, 0));
    // Nor is one that its peer has given up before it was open.
    s.client().number = 1000;
    s.send(syn());
    s.expect(plain_syn_ack());
    s.send(rst(1));
    s.send(ack(1, 1));
    s.expect(rst(1));
    assert_eq!(s.count(Count::CookieAccepted), 0);
}

/// And when somebody has, it was not one whose connection is over.
#[test]
fn a_connection_that_is_over_is_not_opened_again() {
    for by_cookie in [false, true] {
        let mut s = Script::echo();
        s.send(syn());
        s.expect(plain_syn_ack());
        if by_cookie {
            evict(&mut s);
        }
        s.send(data(1, 1, b"hello"));
        s.expect(data(1, 6, b"hello"));
        s.send(fin(6, 6));
        s.expect(fin(6, 7));
        s.send(ack(7, 7));
        evict(&mut s);
        for late in [ack(1, 1), data(1, 1, b"hello")] {
            s.send(late);
            s.expect(rst(1));
        }
        assert_eq!((s.tcp().flows(), s.service().got.len()), (0, 5));
        // The same peer once more is another connection.
        s.client().number = s.client().number.wrapping_add(100_000);
        s.send(syn());
        s.expect(plain_syn_ack());
        evict(&mut s);
        s.send(data(1, 1, b"hello"));
        s.expect(data(1, 6, b"hello"));
        s.send(ack(6, 6));
        assert_eq!(s.count(Count::CookieAccepted), 1 + u64::from(by_cookie));
    }
}
