//! How much is in flight: the congestion window (RFC 5681, RFC 6928).

use sheafio_net::{Count, tcp::Config};

use crate::{
    peer::Script,
    recovery::{MSS, got, large, numbers},
    segment::{ack, data, stream, syn},
    service::Service,
};

/// RFC 5681 section 3.1: ten segments at first, then twice as many in each round trip.
#[test]
fn what_is_in_flight_grows_with_each_acknowledgement() {
    for timestamps in [false, true] {
        let mut s = Script::new(large(), Service::replies(150_000));
        s.client().timestamps = timestamps;
        let options = if timestamps { 12 } else { 0 };
        s.open_with(syn().mss(MSS as u16 + options).shift(4));
        s.send(data(1, 1, b"x"));
        let mut next = 0;
        let mut flight: u32 = s.ignore() as u32;
        assert_eq!(flight, 10);
        for _ in 0..3 {
            let before = flight;
            for _ in 0..before {
                next += 1;
                s.send(got(next));
                flight = flight - 1 + s.ignore() as u32;
            }
            assert!(
                flight >= 2 * before && flight <= 2 * before + 2,
                "{before} grew to {flight}, {timestamps}"
            );
        }
    }
}

/// After a timeout: one segment, and again twice as many in each round trip, up to half of what it was; then one more.
#[test]
fn after_a_timeout_it_begins_with_one_segment() {
    for timestamps in [false, true] {
        let mut s = Script::new(large(), Service::replies(150_000));
        s.client().timestamps = timestamps;
        let options = if timestamps { 12 } else { 0 };
        s.open_with(syn().mss(MSS as u16 + options).shift(4));
        s.send(data(1, 1, b"x"));
        let mut next = 0;
        for _ in 0..10 {
            next += 1;
            s.send(got(next));
        }
        s.ignore();
        // Twenty in flight. Of these all are lost.
        s.wait(51);
        let mut sent = numbers(&s.all());
        assert_eq!(sent, [10], "{timestamps}");
        let mut flights = Vec::new();
        for _ in 0..8 {
            flights.push(sent.len());
            let mut new = Vec::new();
            for _ in 0..sent.len() {
                next += 1;
                s.send(got(next));
                new.extend(numbers(&s.all()));
            }
            sent = new;
        }
        assert_eq!(flights[..4], [1, 2, 4, 8], "{timestamps}");
        // From ten on by one in a round trip.
        assert!(flights[4] >= 10 && flights[4] <= 12, "{flights:?}");
        assert!(flights[5..].windows(2).all(|pair| pair[1] - pair[0] <= 1), "{flights:?}");
        assert!(flights[7] > flights[4], "{flights:?}");
    }
}

/// What an application has not filled does not grow: only what was needed and used does.
#[test]
fn a_connection_that_says_little_does_not_grow() {
    let mut s = Script::new(large(), Service::echo());
    s.open_with(syn().mss(MSS as u16).shift(4));
    for at in 0..200 {
        s.send(data(1 + at, 1 + at, b"x"));
        s.expect(data(1 + at, 2 + at, b"x"));
    }
    s.send(ack(201, 201));
    s.service().echo = false;
    s.service().reply = 150_000;
    s.send(data(201, 201, b"y"));
    assert_eq!(s.ignore(), 10);
}

/// A loss of what was sent again by duplicates is told by time, and that ends the recovery.
#[test]
fn a_timeout_ends_a_recovery() {
    let mut s = Script::new(large(), Service::replies(150_000));
    s.open_with(syn().mss(MSS as u16).shift(4));
    s.send(data(1, 1, b"x"));
    assert_eq!(numbers(&s.all()).len(), 10);
    s.burst([got(0), got(0), got(0)]);
    assert_eq!(numbers(&s.all()), [0]);
    s.wait(50);
    assert_eq!(numbers(&s.all()), [0]);
    s.send(got(1));
    assert_eq!(numbers(&s.all()), [1, 2]);
    s.send(got(3));
    assert_eq!(numbers(&s.all()), [3, 4, 5]);
}

/// Of a flight the first segment is timed, and until that is acknowledged no other.
#[test]
fn the_first_segment_of_a_flight_is_timed() {
    let mut s = Script::new(large(), Service::replies(150_000));
    s.send(syn().mss(MSS as u16).shift(4));
    s.next();
    s.wait(100);
    s.burst([ack(1, 1), data(1, 1, b"x")]);
    assert_eq!(numbers(&s.all()).len(), 10);
    s.wait(260);
    s.send(got(1));
    assert_eq!(numbers(&s.all()), [10, 11]);
    s.silence(429); // 7/8 * 100 + 1/8 * 260, and four times 3/4 * 50 + 1/4 * 160
    s.wait(1);
    assert_eq!(numbers(&s.all()), [1]);
}

/// Ten segments at first, but one if our SYN was lost more than once, and what is timed then is not from the first.
#[test]
fn a_path_that_loses_syns_begins_with_one_segment() {
    for (lost, expected) in [(0, 10), (1, 10), (2, 1), (4, 1)] {
        let mut s = Script::new(large(), Service::replies(150_000));
        s.send(syn().mss(MSS as u16).shift(4));
        s.next();
        for turn in 0..lost {
            s.wait(1000 << turn);
            s.next();
        }
        s.send(ack(1, 1));
        s.send(data(1, 1, b"x"));
        assert_eq!(s.ignore(), expected, "{lost}");
        // Not timed: a second, as before any sample.
        s.silence(if lost == 0 { 49 } else { 999 });
        s.wait(1);
        assert_eq!(s.ignore(), 1);
    }
}

/// After a pause a burst is as long as at the begin (RFC 5681 section 4.1).
#[test]
fn a_pause_makes_the_next_burst_short() {
    for (pause, expected) in [(40, 30..=40), (60, 10..=10)] {
        let config = Config { receive_bytes: 100_000, ..large() };
        let mut s = Script::new(config, Service::echo());
        s.open_with(syn().mss(MSS as u16).shift(4));
        let mut at = 1;
        // So many segments, which come back; how many of them at once.
        let mut exchange = |s: &mut Script, count: u32| {
            let bytes = stream(0, MSS as usize);
            s.burst((0..count).map(|number| data(at + number * MSS, at, &bytes)));
            let first = s.ignore() as u32;
            let end = at + count * MSS;
            for number in 1..=count {
                s.send(ack(end, at + number * MSS));
                s.ignore();
            }
            at = end;
            first
        };
        for _ in 0..3 {
            exchange(&mut s, 40);
        }
        assert!((30..=40).contains(&exchange(&mut s, 40)));
        s.wait(pause);
        let burst = exchange(&mut s, 40);
        assert!(expected.contains(&burst), "{burst} after {pause} ms");
        // And what it had is reached again as quickly as by a connection that begins.
        let burst = exchange(&mut s, 40);
        assert!((20..=40).contains(&burst), "{burst}");
    }
}

/// What three duplicates would have sent again has come by the time that it could be sent: it is not.
#[test]
fn what_is_acknowledged_in_time_is_not_sent_again() {
    let mut s = Script::new(large(), Service::replies(150_000));
    s.open_with(syn().mss(MSS as u16).shift(4));
    s.send(data(1, 1, b"x"));
    assert_eq!(s.ignore(), 10);
    s.burst([got(0), got(0), got(0), got(10)]);
    let sent = numbers(&s.all());
    assert!(sent.first() == Some(&10) && sent.is_sorted(), "{sent:?}");
    assert_eq!((s.count(Count::FastRetransmit), s.count(Count::Retransmit)), (1, 0));
}

/// Without a frame neither duplicates nor the timeout get it sent again; once there is one, both together do it once.
#[test]
fn what_waits_for_a_frame_is_sent_again_once() {
    let mut s = Script::new(large(), Service::replies(150_000));
    s.open_with(syn().mss(MSS as u16).shift(4));
    s.send(data(1, 1, b"x"));
    assert_eq!(s.ignore(), 10);
    s.starve(0);
    s.burst([got(0), got(0), got(0)]);
    s.silence(51);
    assert_eq!((s.count(Count::FastRetransmit), s.count(Count::Timeout)), (1, 1));
    s.feed();
    s.settle();
    assert_eq!(numbers(&s.all()), [0]);
}
