//! As many as are allowed, and no more: connections, half-open ones, memory.

use sheafio_net::{
    Count, Counts,
    tcp::{Config, ConfigError, Tcp},
};

use crate::{
    peer::{Client, Script, config, plain_syn_ack},
    segment::{SYN, ack, data, fin, rst, stream, syn},
    service::Service,
};

/// Somebody with an address of its own, who never answers.
pub(crate) fn spoofed(number: u32) -> Client {
    let [_, a, b, c] = number.to_be_bytes();
    Client { remote: [11, a, b, c].into(), number, ..Client::v4(1024 + (number % 60_000) as u16) }
}

/// Sends a SYN of somebody who is forgotten at once.
pub(crate) fn flood(s: &mut Script, number: u32) {
    let client = spoofed(number);
    let segment = crate::segment::Segment { seq: client.number, window: Some(1000), ..syn().mss(1460) };
    let packet = client.packet(&segment);
    s.raw(&packet);
}

#[test]
fn a_thousand_unanswered_syns_keep_nobody_out() {
    let mut s = Script::echo();
    for number in 0..1000 {
        flood(&mut s, number);
    }
    s.settle();
    assert_eq!(s.ignore(), 1000);
    assert_eq!((s.tcp().half_open(), s.count(Count::BacklogEvicted)), (8, 992));
    s.join(Client::v4(40_001));
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

/// Between each two segments of a real client there are hundreds of spoofed SYNs.
#[test]
fn a_client_is_served_at_once_in_a_flood_of_a_hundred_thousand() {
    let config = Config { backlog: 64, ..config() };
    let mut s = Script::new(config, Service::echo());
    let mut number = 0;
    let mut storm = |s: &mut Script| {
        let before = s.ignore();
        assert_eq!(before, 0);
        for _ in 0..500 {
            flood(s, number);
            number += 1;
        }
        s.settle();
        assert_eq!(s.ignore(), 500);
        s.now_us += 1000;
        assert!(s.tcp().half_open() <= 64);
    };
    for round in 0..33 {
        s.join(Client::v4(20_000 + round));
        storm(&mut s);
        s.send(syn().mss(1460));
        s.expect(plain_syn_ack());
        storm(&mut s); // Its place in the backlog is taken.
        s.send(ack(1, 1));
        storm(&mut s);
        s.send(data(1, 1, b"hello"));
        s.expect(data(1, 6, b"hello"));
        storm(&mut s);
        s.send(ack(6, 6));
        storm(&mut s);
        s.send(fin(6, 6));
        s.expect(fin(6, 7));
        storm(&mut s);
        s.send(ack(7, 7));
        assert_eq!(s.tcp().flows(), 0);
    }
    assert!(number > 98_000);
    assert_eq!((s.count(Count::CookieAccepted), s.count(Count::FlowsOpened)), (33, 33));
}

/// The places of those that were answered are free again, in any order.
#[test]
fn the_backlog_is_used_again_and_again() {
    let config = Config { max_flows: 100, ..config() };
    let mut s = Script::new(config, Service::echo());
    for round in 0..100 {
        let first = s.clients.len();
        for port in 0..6 {
            s.join(Client::v4(1 + 6 * round + port));
            s.send(syn());
            s.expect(plain_syn_ack());
        }
        s.wait(3);
        for (at, is_reset) in [(5, true), (0, false), (3, true), (2, true), (1, false), (4, true)] {
            s.at = first + at;
            s.send(if is_reset { rst(1) } else { ack(1, 1) });
            if !is_reset {
                s.send(rst(1));
            }
        }
        s.nothing();
        assert_eq!((s.tcp().half_open(), s.tcp().flows()), (0, 0));
    }
    assert_eq!(s.count(Count::BacklogEvicted), 0);
}

/// The oldest of those that are there makes room, also if others had its place before it.
#[test]
fn the_oldest_half_open_connection_makes_room() {
    let config = Config { max_flows: 100, ..config() };
    let mut s = Script::new(config, Service::echo());
    let begin = |s: &mut Script, port| {
        s.join(Client::v4(port));
        s.send(syn());
        s.expect(plain_syn_ack());
        s.wait(1);
    };
    for port in 1..=6 {
        begin(&mut s, port);
    }
    // Their places are free in another order than they were taken in.
    for at in [4, 1, 6, 2, 3, 5] {
        s.at = at;
        s.send(rst(1));
    }
    for port in 11..=19 {
        begin(&mut s, port);
    }
    assert_eq!((s.tcp().half_open(), s.count(Count::BacklogEvicted)), (8, 1));
    for at in 8..=15 {
        s.at = at;
        s.send(ack(1, 1));
    }
    assert_eq!((s.tcp().flows(), s.count(Count::CookieAccepted)), (8, 0));
    s.at = 7;
    s.send(ack(1, 1));
    assert_eq!((s.tcp().flows(), s.count(Count::CookieAccepted)), (9, 1));
}

#[test]
fn the_most_connections_and_one_more() {
    let config = Config { max_flows: 3, ..config() };
    let mut s = Script::new(config, Service::echo());
    for port in 1..=3 {
        s.join(Client::v4(port));
        s.open();
    }
    // This one is not answered, so that it tries again.
    let late = s.join(Client::v4(4));
    s.send(syn());
    s.nothing();
    assert_eq!((s.count(Count::FlowLimit), s.tcp().half_open()), (1, 0));
    // Those that are open go on.
    s.at = 2;
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.send(fin(6, 6));
    s.expect(fin(6, 7));
    s.send(ack(7, 7));
    s.at = late;
    s.open();
    assert_eq!(s.tcp().flows(), 3);
}

/// Half open while there was room, and answered when there is none: the answer comes again.
#[test]
fn the_last_place_goes_to_who_answers_first() {
    let config = Config { max_flows: 1, ..config() };
    let mut s = Script::new(config, Service::echo());
    for port in 1..=2 {
        s.join(Client::v4(port));
        s.send(syn());
        s.expect(plain_syn_ack());
    }
    s.at = 1;
    s.send(ack(1, 1));
    s.at = 2;
    s.send(ack(1, 1));
    s.nothing();
    assert_eq!((s.tcp().flows(), s.tcp().half_open(), s.count(Count::FlowLimit)), (1, 1, 1));
    s.at = 1;
    s.send(rst(1));
    s.at = 2;
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

/// Each of many connections holds no more than it was promised, and all of them together what was asked for.
#[test]
fn memory_is_bounded_and_all_of_it_comes_home() {
    let config = Config { max_flows: 100, receive_bytes: 4096, send_bytes: 8192, ..config() };
    let mut s = Script::new(config, Service { sip: 0, ..Service::sink() });
    for port in 0..100 {
        s.join(Client { window: 0, ..Client::v4(1000 + port) });
        s.open();
        // As much as can be had: all that the window takes, out of order first.
        s.service().reply = 100_000;
        s.service().sip = 1;
        s.send(data(1, 1, b"x"));
        s.service().sip = 0;
        s.send(data(2049, 1, &stream(0, 1400)));
        s.send(data(3449, 1, &stream(0, 649)));
        s.send(data(2, 1, &stream(0, 1400)));
        s.ignore();
        assert!(s.held() <= 6 * (u64::from(port) + 1));
    }
    assert_eq!(s.held(), 600);
    // The client whose connection is closed gives back what it had.
    s.send(rst(1402));
    assert_eq!((s.tcp().flows(), s.held()), (99, 594));
}

#[test]
fn what_can_not_be_is_refused() {
    let make = |config: Config, frames: u64| {
        let counts = std::sync::Arc::new(Counts::default());
        Tcp::new(config, Service::echo(), counts, 2048, (frames, 100), 0).map(|_| ())
    };
    let config = Config { max_flows: 1000, send_bytes: 2049, ..config() };
    assert_eq!(make(config.clone(), 3000), Ok(()));
    let error = make(config, 2999).unwrap_err();
    assert_eq!(error, ConfigError::Pool { flows: 1000, frames_a_flow: 3, frames: 2999, reserved: 100 });
    assert_eq!(
        error.to_string(),
        "1000 flows may hold 3000 frames, 3 each, and the pool has 2999 for them besides 100 for the rings; allowed: up \
         to 999 flows. Use a pool of 3100 frames or more, or fewer flows"
    );
    let least = Config { ports: vec![7], ..Config::default() };
    for (what, wrong) in [
        ("max_flows", Config { max_flows: 0, ..least.clone() }),
        ("backlog", Config { backlog: (1 << 20) + 1, ..least.clone() }),
        ("receive_bytes", Config { receive_bytes: 0, ..least.clone() }),
        ("send_bytes", Config { send_bytes: (1 << 20) + 1, ..least.clone() }),
        ("mtu", Config { mtu: 575, ..least.clone() }),
        // More than a frame of the pool can carry, beside its headroom and the longest Ethernet header.
        ("mtu", Config { mtu: 2048 - 256 - 22 + 1, ..least.clone() }),
        ("min_rto_us", Config { min_rto_us: 999, ..least.clone() }),
        ("time_wait_us", Config { time_wait_us: 600_000_001, ..least.clone() }),
        ("user_timeout_us", Config { user_timeout_us: 999_999, ..least.clone() }),
        ("keepalive_us", Config { keepalive_us: u64::MAX, ..least.clone() }),
    ] {
        match make(wrong, 1 << 30) {
            Err(ConfigError::Range { what: which, .. }) => assert_eq!(which, what),
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_eq!(make(Config { mtu: 2048 - 256 - 22, ..least }, 1 << 30), Ok(()));
}

/// A SYN that finds all places taken by connections in use does not end one.
#[test]
fn nobody_is_thrown_out() {
    let config = Config { max_flows: 2, ..config() };
    let mut s = Script::new(config, Service::echo());
    for port in 1..=2 {
        s.join(Client::v4(port));
        s.open();
    }
    for number in 0..100 {
        flood(&mut s, number);
    }
    s.settle();
    s.nothing();
    for at in 1..=2 {
        s.at = at;
        s.send(data(1, 1, b"hello"));
        assert_eq!(s.next().flags & SYN, 0);
        s.send(ack(6, 6));
    }
    assert_eq!(s.tcp().flows(), 2);
}

/// As many may be half open as a quarter of what may be open, but a thousand at least.
#[test]
fn the_backlog_grows_with_the_connections() {
    for (max_flows, expected) in [(8, 1024), (8000, 2000)] {
        let config = Config { max_flows, backlog: 0, receive_bytes: 1, send_bytes: 1, ..config() };
        let counts = std::sync::Arc::new(Counts::default());
        let tcp = Tcp::new(config, Service::echo(), counts, 2048, (16_000, 0), 5_000_000).unwrap();
        let mut s = Script::echo();
        let cache = s.cache.as_mut().unwrap();
        s.tcp.replace(tcp).unwrap().release(cache);
        for number in 0..3000 {
            flood(&mut s, number);
        }
        s.settle();
        s.ignore();
        assert_eq!(s.tcp().half_open(), expected);
    }
}
