//! How connections are closed, by either side, both, and once more under the same name.

use sheafio_net::{Count, tcp::Config};

use crate::{
    peer::{Script, config},
    segment::{FIN, ack, data, fin, rst, rst_ack, stream, syn},
    service::{Close, Service},
};

/// A script whose server ends its half after a reply of so many bytes.
fn closer(reply: usize) -> Script {
    let mut s = Script::new(config(), Service { close: Close::AtOnce, ..Service::replies(reply) });
    s.open();
    s
}

/// A connection in TIME-WAIT; the next number of the peer is 3, ours 2.
pub(crate) fn waiting() -> Script {
    let mut s = closer(0);
    s.send(data(1, 1, b"x"));
    s.expect(fin(1, 2));
    s.send(fin(2, 2));
    s.expect(ack(2, 3));
    assert_eq!(s.tcp().flows(), 1);
    s
}

#[test]
fn the_peer_closes_first() {
    let mut s = Script::new(config(), Service { close: Close::Never, ..Service::sink() });
    s.open();
    s.send(fin(1, 1));
    s.expect(ack(1, 2));
    assert_eq!(s.service().ended, 1);
    // Closed on our side later: that takes a call, which another segment brings here, at the peer's word only.
    assert_eq!(s.tcp().flows(), 1);
    s.send(rst(2));
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn the_server_closes_first() {
    let mut s = closer(5);
    s.send(data(1, 1, b"x"));
    s.expect(fin(1, 2).bytes(&stream(0, 5)));
    s.send(ack(2, 7));
    s.nothing();
    s.send(fin(2, 7));
    s.expect(ack(7, 3));
    // The name is kept for a minute.
    s.silence(59_999);
    assert_eq!(s.tcp().flows(), 1);
    s.wait(1);
    s.nothing();
    assert_eq!(s.tcp().flows(), 0);
    s.send(ack(3, 7));
    s.expect(rst(7));
}

#[test]
fn an_end_that_crosses_ours() {
    let mut s = closer(0);
    s.send(data(1, 1, b"x"));
    s.expect(fin(1, 2));
    // The peer has ended before it got that.
    s.send(fin(2, 1));
    s.expect(ack(2, 3));
    assert_eq!(s.tcp().flows(), 1);
    s.wait(50);
    s.expect(fin(1, 3));
    s.send(ack(3, 2));
    s.silence(59_999);
    s.wait(1);
    s.nothing();
    assert_eq!((s.tcp().flows(), s.count(Count::GivenUp)), (0, 0));
}

#[test]
fn a_simultaneous_end_is_reset_at_its_number_only() {
    let mut s = closer(0);
    s.send(data(1, 1, b"x"));
    s.expect(fin(1, 2));
    s.send(fin(2, 1));
    s.expect(ack(2, 3));
    s.send(rst(2));
    s.nothing();
    assert_eq!(s.tcp().flows(), 1);
    s.send(rst(3));
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn an_end_with_bytes() {
    let mut s = Script::echo();
    s.open();
    s.send(fin(1, 1).bytes(b"hello"));
    s.expect(fin(1, 7).bytes(b"hello"));
    s.send(ack(7, 7));
    assert_eq!((s.tcp().flows(), s.service().ended), (0, 1));
}

#[test]
fn an_end_that_comes_before_its_bytes() {
    for has_own in [false, true] {
        let mut s = Script::echo();
        s.open_with(syn().sack_permitted());
        let end = if has_own { fin(4, 1).bytes(b"lo") } else { fin(6, 1) };
        let sacks = if has_own { vec![(4, 6)] } else { Vec::new() };
        s.send(end);
        s.expect(ack(1, 1).sacks(&sacks));
        assert_eq!(s.service().ended, 0);
        s.send(data(1, 1, b"hello"));
        s.expect(fin(1, 7).bytes(b"hello"));
        s.send(ack(7, 7));
        assert_eq!(s.tcp().flows(), 0);
    }
}

#[test]
fn an_end_that_comes_again_is_acknowledged_again() {
    let mut s = Script::new(config(), Service { close: Close::Never, ..Service::sink() });
    s.open();
    for _ in 0..3 {
        s.send(fin(1, 1));
        s.expect(ack(1, 2));
    }
    assert_eq!(s.service().ended, 1);
    // Bytes behind it are none of this connection.
    s.send(data(2, 1, b"more"));
    s.expect(ack(1, 2));
    assert!(s.service().got.is_empty());
}

#[test]
fn our_end_is_sent_again_until_it_is_acknowledged() {
    for by_peer in [false, true] {
        let mut s = if by_peer { Script::echo() } else { closer(0) };
        let end = if by_peer {
            s.open();
            s.send(fin(1, 1));
            fin(1, 2)
        } else {
            s.send(data(1, 1, b"x"));
            fin(1, 2)
        };
        s.expect(end.clone());
        for ms in [50, 100, 200] {
            s.silence(ms - 1);
            s.wait(1);
            s.expect(end.clone());
        }
        s.send(ack(2, 2));
        s.silence(1000);
        assert_eq!(s.tcp().flows(), usize::from(!by_peer));
    }
}

#[test]
fn the_server_goes_on_sending_after_the_peer_has_ended() {
    let mut s = Script::new(config(), Service::replies(6000));
    s.open();
    s.send(fin(1, 1).bytes(b"x"));
    let mut received: Vec<u8> = Vec::new();
    let mut ended = false;
    while !ended {
        let mut answers = s.all();
        assert!(!answers.is_empty(), "after {} bytes", received.len());
        for answer in answers.drain(..) {
            assert_eq!((answer.seq, answer.ack), (1 + received.len() as u32, 3));
            received.extend(&answer.payload);
            ended = answer.has(FIN);
        }
        s.send(ack(3, 1 + received.len() as u32 + u32::from(ended)));
    }
    assert!(received == stream(0, 6000));
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn the_peer_goes_on_sending_after_the_server_has_ended() {
    let mut s = closer(0);
    s.send(data(1, 1, b"x"));
    s.expect(fin(1, 2));
    s.send(ack(2, 2));
    for at in 0..20 {
        s.wait(2000);
        s.send(data(2 + 1000 * at, 2, &stream(0, 1000)));
        s.expect(ack(2, 1002 + 1000 * at));
    }
    assert_eq!(s.service().got.len(), 20_001);
    s.send(fin(20_002, 2));
    s.expect(ack(2, 20_003));
}

/// A peer that takes its time, for it has more to send, is probed and kept.
#[test]
fn a_peer_that_pauses_after_our_end_is_kept() {
    let mut s = closer(0);
    s.send(data(1, 1, b"x"));
    s.expect(fin(1, 2));
    s.send(ack(2, 2));
    for at in 0..3 {
        s.silence(59_999);
        s.wait(1);
        s.expect(ack(1, 2 + at));
        s.send(ack(2 + at, 2));
        s.silence(30_000);
        s.send(data(2 + at, 2, b"y"));
        s.expect(ack(2, 3 + at));
    }
    // And it is reaped once it does not answer.
    s.wait(60_000 + 4 * 6000);
    assert_eq!((s.ignore(), s.tcp().flows()), (5, 1));
    s.wait(6000);
    s.expect(rst_ack(2, 5));
    assert_eq!((s.tcp().flows(), s.count(Count::KeepaliveExpired)), (0, 1));
}

/// Where nobody probes it can't be known whether a silent peer is there.
#[test]
fn a_peer_that_never_ends_its_half_is_given_up() {
    let config = Config { keepalive_us: 0, ..config() };
    let mut s = Script::new(config, Service { close: Close::AtOnce, ..Service::sink() });
    s.open();
    s.send(data(1, 1, b"x"));
    s.expect(fin(1, 2));
    s.send(ack(2, 2));
    s.silence(59_999);
    s.wait(1);
    s.expect(rst_ack(2, 2));
    assert_eq!((s.tcp().flows(), s.count(Count::GivenUp)), (0, 1));
}

/// A server that goes on writing after its end is not asked again and again, nor does that keep the connection.
#[test]
fn a_server_that_writes_after_its_end_keeps_nothing() {
    let config = Config { keepalive_us: 0, ..config() };
    let mut s = Script::new(config, Service { close: Close::AtOnce, ..Service::echo() });
    s.open();
    s.send(data(1, 1, b"x"));
    s.expect(fin(1, 2).bytes(b"x"));
    s.send(ack(2, 3));
    s.send(data(2, 3, b"y"));
    s.expect(ack(3, 3));
    let calls = s.service().calls;
    s.silence(59_999);
    assert_eq!((s.service().calls, s.tcp().flows()), (calls, 1));
    s.wait(1);
    s.expect(rst_ack(3, 3));
    assert_eq!((s.tcp().flows(), s.held()), (0, 0));
}

#[test]
fn a_reset_ends_each_state() {
    // FIN-WAIT-1, FIN-WAIT-2.
    for ours in [1, 2] {
        let mut s = closer(0);
        s.send(data(1, 1, b"x"));
        s.expect(fin(1, 2));
        s.send(ack(2, ours));
        s.send(rst(2));
        assert_eq!(s.tcp().flows(), 0);
        s.silence(500);
    }
    // LAST-ACK.
    let mut s = Script::echo();
    s.open();
    s.send(fin(1, 1));
    s.expect(fin(1, 2));
    s.send(rst(2));
    assert_eq!(s.tcp().flows(), 0);
    s.silence(500);
}

#[test]
fn the_application_aborts() {
    let mut s = Script::new(config(), Service { abort: true, ..Service::echo() });
    s.open();
    s.send(data(1, 1, b"x"));
    s.expect(rst_ack(1, 2));
    assert_eq!((s.tcp().flows(), s.held()), (0, 0));
    // The reset is lost, and the peer sends the same again.
    s.send(data(1, 1, b"x"));
    s.expect(rst(1));
    assert_eq!(s.service().calls, 1);
    s.send(data(2, 1, b"x"));
    s.expect(rst(1));
}
