//! What time does: connections that are given up, and those that are not.

use sheafio_net::{Count, tcp::Config};

use crate::{
    peer::{Client, Script, config},
    segment::{ack, data, fin, rst, rst_ack, stream},
    service::Service,
};

/// RFC 9293 section 3.8.3: from when the oldest byte was sent first, however often it was sent again.
#[test]
fn a_peer_that_acknowledges_nothing_is_given_up_in_time() {
    for seconds in [1, 5, 60] {
        let config = Config { user_timeout_us: seconds * 1_000_000, ..config() };
        let mut s = Script::new(config, Service::echo());
        s.open();
        s.send(data(1, 1, b"hello"));
        s.wait(seconds * 1000 - 1);
        assert_eq!(s.tcp().flows(), 1);
        s.wait(1);
        assert_eq!((s.tcp().flows(), s.count(Count::GivenUp)), (0, 1), "{seconds} s");
        let reset = s.all().pop().unwrap();
        assert_eq!((reset.flags, reset.seq, reset.ack), (rst_ack(6, 6).flags, 6, 6));
    }
}

/// And progress starts it anew.
#[test]
fn a_slow_peer_is_not_given_up() {
    let config = Config { user_timeout_us: 2_000_000, ..config() };
    let mut s = Script::new(config, Service::replies(20));
    s.client().window = 1;
    s.open();
    s.send(data(1, 1, b"x"));
    for at in 1..20 {
        s.wait(1500);
        s.ignore();
        s.send(ack(2, 1 + at));
    }
    assert_eq!((s.tcp().flows(), s.count(Count::GivenUp)), (1, 0));
    s.send(ack(2, 21));
}

/// Nor one that leaves something in flight all the time.
#[test]
fn a_slow_peer_with_much_in_flight_is_not_given_up() {
    let config = Config { user_timeout_us: 2_000_000, send_bytes: 100_000, max_flows: 4, ..config() };
    let mut s = Script::new(config, Service::replies(60_000));
    s.open();
    s.send(data(1, 1, b"x"));
    for at in 1..20 {
        s.wait(1500);
        s.ignore();
        s.send(ack(2, 1 + at * 1460));
    }
    assert_eq!((s.tcp().flows(), s.count(Count::GivenUp)), (1, 0));
}

#[test]
fn an_idle_connection_is_probed_and_survives_as_long_as_it_answers() {
    let config = Config { keepalive_us: 2_000_000, ..config() };
    let mut s = Script::new(config, Service::echo());
    s.open();
    for _ in 0..20 {
        s.silence(1999);
        s.wait(1);
        s.expect(ack(0, 1));
        s.send(ack(1, 1));
        s.nothing();
    }
    s.send(data(1, 1, b"still here"));
    s.expect(data(1, 11, b"still here"));
    s.send(ack(11, 11));
    assert_eq!((s.count(Count::KeepaliveProbe), s.count(Count::KeepaliveExpired)), (20, 0));
}

/// A timer that is set a little later moves.
#[test]
fn a_timeout_shortly_before_a_probe_comes_in_time() {
    let mut s = Script::new(Config { keepalive_us: 53_000, ..config() }, Service::echo());
    s.open();
    s.wait(1);
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.silence(49);
    s.wait(1);
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

#[test]
fn a_peer_that_has_vanished_is_reaped() {
    let config = Config { keepalive_us: 2_000_000, ..config() };
    let mut s = Script::new(config, Service::echo());
    s.open();
    s.wait(1999);
    s.nothing();
    for _ in 0..5 {
        s.wait(1);
        s.expect(ack(0, 1));
        s.silence(199);
    }
    s.wait(1);
    s.expect(rst_ack(1, 1));
    assert_eq!((s.tcp().flows(), s.count(Count::KeepaliveExpired)), (0, 1));
}

#[test]
fn a_probe_that_is_answered_late_still_counts() {
    let config = Config { keepalive_us: 2_000_000, ..config() };
    let mut s = Script::new(config, Service::echo());
    s.open();
    s.wait(2000 + 3 * 200);
    assert_eq!(s.ignore(), 4);
    s.send(ack(1, 1));
    s.silence(1999);
    s.wait(1);
    s.expect(ack(0, 1));
}

#[test]
fn a_peer_that_has_rebooted_resets_what_is_probed() {
    let config = Config { keepalive_us: 2_000_000, ..config() };
    let mut s = Script::new(config, Service::echo());
    s.open();
    s.wait(2000);
    s.expect(ack(0, 1));
    s.send(rst(1));
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn without_keepalive_an_idle_connection_is_kept() {
    let config = Config { keepalive_us: 0, ..config() };
    let mut s = Script::new(config, Service::echo());
    s.open();
    s.silence(600_000);
    assert_eq!(s.tcp().flows(), 1);
}

/// Whose half has ended is probed as well.
#[test]
fn a_peer_that_vanishes_after_its_end_is_reaped() {
    let config = Config { keepalive_us: 2_000_000, ..config() };
    let mut s = Script::new(config, Service { close: crate::service::Close::Never, ..Service::sink() });
    s.open();
    s.send(fin(1, 1));
    s.expect(ack(1, 2));
    s.wait(3000);
    assert_eq!(s.tcp().flows(), 0);
}

/// Each deadline holds however long nobody looked: a poll loop may stand still.
#[test]
fn after_a_long_pause_all_that_is_due_is_done_once() {
    let mut s = Script::echo();
    for port in 1..=4 {
        s.join(Client::v4(port));
        s.open();
        s.send(data(1, 1, b"hello"));
        s.expect(data(1, 6, b"hello"));
    }
    s.now_us += 30_000_000;
    s.settle();
    assert_eq!(s.ignore(), 4);
    assert_eq!(s.count(Count::Timeout), 4);
    for at in 1..=4 {
        s.at = at;
        s.send(ack(6, 6));
        s.nothing();
    }
}

#[test]
fn a_clock_that_goes_back_stands_still() {
    let mut s = Script::echo();
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.now_us -= 3_000_000;
    s.silence(1000);
    s.now_us += 2_000_000;
    s.silence(49);
    s.wait(1);
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

/// Many flows, each with its own deadline, over more than a turn of the wheel.
#[test]
fn deadlines_of_many_flows() {
    let config = Config { max_flows: 200, keepalive_us: 7_000_000, ..config() };
    let mut s = Script::new(config, Service::echo());
    for port in 0..200 {
        s.join(Client::v4(1000 + port));
        s.open();
        s.wait(11);
        s.ignore();
    }
    let mut probes = vec![0; s.clients.len()];
    for _ in 0..15_000 {
        s.wait(1);
        let mut came = Vec::new();
        for at in 1..s.clients.len() {
            s.at = at;
            while s.has_next() {
                s.expect(ack(0, 1));
                came.push(at);
            }
        }
        for at in came {
            probes[at] += 1;
            s.at = at;
            s.send(ack(1, 1));
        }
    }
    assert!(probes[1..].iter().all(|count| (2..=3).contains(count)), "{probes:?}");
    assert_eq!(s.tcp().flows(), 200);
    s.at = 1;
    let bytes = stream(0, 100);
    s.send(data(1, 1, &bytes));
    s.expect(data(1, 101, &bytes));
}
