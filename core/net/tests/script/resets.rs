//! Resets, and acknowledgements that can't be right (RFC 5961).

use sheafio_net::Count;

use crate::{
    peer::{Client, Script, config},
    segment::{ACK, ack, data, fin, rst, rst_ack, stream, syn},
    service::{Close, Service},
};

#[test]
fn a_reset_at_the_expected_number_ends_the_connection() {
    for reset in [rst(1), rst_ack(1, 1), rst_ack(1, 99)] {
        let mut s = Script::echo();
        s.open();
        s.send(reset);
        s.nothing();
        assert_eq!((s.tcp().flows(), s.count(Count::ResetReceived)), (0, 1));
        s.silence(1000);
    }
}

#[test]
fn a_reset_elsewhere_in_the_window_is_challenged_twice_a_second() {
    let mut s = Script::echo();
    s.open();
    s.send(rst(2));
    s.expect(ack(1, 1));
    s.send(rst(2048));
    s.silence(499);
    s.wait(1);
    s.send(rst_ack(1000, 1));
    s.expect(ack(1, 1));
    assert_eq!((s.tcp().flows(), s.count(Count::ChallengedReset)), (1, 3));
    // The peer, if it was its word, resets at the number that it was told.
    s.send(rst(1));
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn a_reset_outside_of_the_window_is_ignored() {
    let mut s = Script::echo();
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    let edge = 6 + 2048;
    s.burst([rst(1), rst(5), rst(edge + 1), rst(1 << 31), rst(u32::MAX - 70_000)]);
    s.nothing();
    assert_eq!((s.tcp().flows(), s.count(Count::ResetIgnored)), (1, 5));
}

/// A reset without timestamps is as good as one with (RFC 7323 section 3.2).
#[test]
fn a_reset_needs_no_timestamp() {
    let mut s = Script::echo().with_client(Client::with_timestamps(40_000));
    s.open_with(syn());
    s.send(rst(1).bare());
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn what_was_never_sent_can_not_be_acknowledged() {
    let mut s = Script::echo();
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.wait(1);
    s.send(ack(6, 7));
    s.expect(ack(6, 6));
    s.send(ack(6, 1 << 31));
    s.nothing();
    assert_eq!(s.count(Count::BadAck), 2);
    // What we sent is still open.
    s.wait(49);
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

/// And what comes along with such an acknowledgement is not of this connection.
#[test]
fn bytes_with_a_wrong_acknowledgement_are_not_taken() {
    // Too new, and older than any window.
    for wrong in [2, 100_000, 1 << 31, 1_u32.wrapping_sub(70_000)] {
        let mut s = Script::echo();
        s.open();
        s.send(data(1, wrong, b"forged"));
        s.expect(ack(1, 1));
        s.wait(500);
        s.send(fin(1, wrong));
        s.expect(ack(1, 1));
        assert!(s.service().got.is_empty() && s.service().ended == 0);
        assert_eq!(s.count(Count::BadAck), 2);
        s.send(data(1, 1, b"true"));
        s.expect(data(1, 5, b"true"));
    }
}

#[test]
fn an_old_acknowledgement_within_a_window_is_as_good_as_none() {
    let mut s = Script::echo();
    s.open();
    s.send(data(1, 1, &stream(0, 1000)));
    s.expect(data(1, 1001, &stream(0, 1000)));
    s.send(ack(1001, 1001));
    // Sent before that, and late.
    s.send(data(1001, 500, b"late"));
    s.expect(data(1001, 1005, b"late"));
    assert_eq!(s.count(Count::BadAck), 0);
}

#[test]
fn a_segment_without_an_acknowledgement_is_dropped() {
    let mut s = Script::echo();
    s.open();
    s.send(data(1, 0, b"forged").without(ACK));
    s.send(fin(1, 0).without(ACK));
    s.nothing();
    assert_eq!((s.count(Count::NoAck), s.service().calls), (2, 0));
}

#[test]
fn unacceptable_numbers_are_answered_in_each_state() {
    // CLOSE-WAIT.
    let mut s = Script::new(config(), Service { close: Close::Never, ..Service::sink() });
    s.open();
    s.send(fin(1, 1));
    s.expect(ack(1, 2));
    s.send(data(30_000, 1, b"far"));
    s.expect(ack(1, 2));
    s.send(ack(2, 50));
    s.expect(ack(1, 2));
    assert_eq!(s.tcp().flows(), 1);

    // FIN-WAIT-1, FIN-WAIT-2.
    for ours in [1, 2] {
        let mut s = Script::new(config(), Service { close: Close::AtOnce, ..Service::sink() });
        s.open();
        s.send(data(1, 1, b"x"));
        s.expect(fin(1, 2));
        s.send(ack(2, ours));
        s.send(data(30_000, ours, b"far"));
        s.expect(ack(2, 2));
        s.send(ack(2, 50));
        s.expect(ack(2, 2));
        assert_eq!(s.tcp().flows(), 1);
    }

    // CLOSING, LAST-ACK.
    for close in [Close::AtOnce, Close::WhenEnded] {
        let mut s = Script::new(config(), Service { close, ..Service::sink() });
        s.open();
        s.send(data(1, 1, b"x"));
        s.next();
        s.send(fin(2, 1));
        s.next();
        s.send(data(30_000, 1, b"far"));
        s.expect(ack(2, 3));
        s.send(ack(3, 50));
        s.expect(ack(2, 3));
        assert_eq!(s.tcp().flows(), 1);
        s.send(ack(3, 2));
        s.nothing();
    }
}

/// Two ends that are at odds don't answer each other for ever.
#[test]
fn empty_segments_off_the_window_are_answered_twice_a_second() {
    let mut s = Script::echo();
    s.open();
    for _ in 0..100 {
        s.send(ack(90_000, 1));
    }
    assert_eq!(s.ignore(), 1);
    s.wait(500);
    for _ in 0..100 {
        s.send(ack(0, 1)); // Of the kind that keepalive probes are.
    }
    assert_eq!(s.ignore(), 1);
    assert_eq!(s.count(Count::OutOfWindow), 200);
}
