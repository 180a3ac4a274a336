//! TIME-WAIT: how long it lasts, what is answered in it, and who takes the name before it ends.

use sheafio_net::{Count, tcp::Config};

use crate::{
    closing::waiting,
    peer::{Client, Script, config, plain_syn_ack},
    segment::{ACK, SYN, ack, data, fin, rst, rst_ack, stream, syn},
    service::{Close, Service},
};

#[test]
fn in_time_wait_an_end_is_acknowledged_again_and_the_time_starts_anew() {
    let mut s = waiting();
    s.silence(40_000);
    s.send(fin(2, 2));
    s.expect(ack(2, 3));
    s.silence(59_999);
    assert_eq!(s.tcp().flows(), 1);
    s.wait(1);
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn in_time_wait_resets_are_ignored() {
    let mut s = waiting();
    s.burst([rst(2), rst(3), rst(4), rst(5000), rst_ack(3, 2)]);
    s.nothing();
    assert_eq!(s.tcp().flows(), 1);
}

#[test]
fn in_time_wait_what_is_not_expected_is_answered() {
    let mut s = waiting();
    s.send(data(3, 2, b"late"));
    s.expect(ack(2, 3));
    s.send(data(30_000, 2, b"far"));
    s.expect(ack(2, 3));
    s.send(ack(30_000, 2));
    s.expect(ack(2, 3));
    s.send(ack(3, 500));
    s.nothing(); // Told just now.
    assert_eq!(s.service().got, b"x");
    assert_eq!(s.tcp().flows(), 1);
}

/// A peer whose window was closed when it ended, and opens it afterwards, does not keep us waiting for ever.
#[test]
fn time_wait_ends_whatever_the_window_does() {
    let config = Config { keepalive_us: 0, ..config() };
    let mut s = Script::new(config, Service { close: Close::AtOnce, ..Service::sink() });
    s.open();
    s.send(data(1, 1, b"x"));
    s.expect(fin(1, 2));
    s.send(fin(2, 2).window(0));
    s.expect(ack(2, 3));
    s.wait(100);
    s.send(ack(3, 2).window(1000));
    s.wait(60_000);
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn a_newer_syn_takes_the_name_of_one_in_time_wait() {
    let mut s = waiting();
    let (number, theirs) = (s.client().number, s.client().theirs);
    // Behind all that there was.
    s.client().number = number.wrapping_add(4);
    s.send(syn().mss(1460));
    s.expect(plain_syn_ack());
    // Our numbers lie above those that were, so that what is old fits nowhere.
    let above = s.client().theirs.wrapping_sub(theirs.wrapping_add(2));
    assert!((1..1 << 20).contains(&above), "{above}");
    assert_eq!((s.tcp().flows(), s.count(Count::TimeWaitReused)), (0, 1));
    s.send(data(1, 1, b"x"));
    s.expect(fin(1, 2));
}

#[test]
fn an_older_syn_does_not() {
    for back in [0, 1, 1000, (1 << 31) - 3] {
        let mut s = waiting();
        // The number that was expected next, which may still be an old one, and those before.
        s.send(syn().at(3_u32.wrapping_sub(back)));
        s.expect(ack(2, 3));
        assert_eq!((s.tcp().flows(), s.count(Count::TimeWaitReused)), (1, 0));
        // The peer, which knows nothing of it, may not end it by that.
        s.send(rst(3));
        assert_eq!(s.tcp().flows(), 1);
    }
}

#[test]
fn no_other_segment_takes_the_name() {
    let mut s = waiting();
    s.send(syn().at(100).with(ACK));
    s.ignore();
    s.send(syn().at(100).with(crate::segment::FIN));
    s.ignore();
    s.send(syn().at(100).with(crate::segment::RST));
    s.ignore();
    s.send(ack(100, 2));
    s.ignore();
    assert_eq!((s.tcp().flows(), s.count(Count::TimeWaitReused)), (1, 0));
}

#[test]
fn a_newer_timestamp_counts_for_more_than_a_number() {
    for (forward, number, is_taken) in
        [(1, -100_000, true), (0, 10, true), (0, -10, false), (-1, 10, false), (-1000, 100_000, false)]
    {
        let service = Service { close: Close::AtOnce, ..Service::sink() };
        let mut s = Script::new(config(), service).with_client(Client::with_timestamps(40_000));
        s.open_with(syn());
        s.send(data(1, 1, b"x"));
        s.expect(fin(1, 2));
        s.send(fin(2, 2));
        s.expect(ack(2, 3));
        let newest = s.timestamp();
        s.wait(10);
        let offer = syn().at(3_u32.wrapping_add_signed(number));
        s.send(offer.timestamps(newest.wrapping_add_signed(forward), 0));
        let answer = s.next();
        assert_eq!(answer.flags, if is_taken { SYN | ACK } else { ACK }, "{forward} {number}");
        assert_eq!(s.count(Count::TimeWaitReused), u64::from(is_taken));
    }
}

#[test]
fn one_port_connects_a_thousand_times() {
    let config = Config { max_flows: 2, ..config() };
    let mut s = Script::new(config, Service { close: Close::AtOnce, ..Service::replies(1) });
    for _ in 0..1000 {
        s.open();
        s.send(data(1, 1, b"x"));
        s.expect(fin(1, 2).bytes(&stream(0, 1)));
        s.send(fin(2, 3));
        s.expect(ack(3, 3));
        s.wait(1);
        let client = s.client();
        client.number = client.number.wrapping_add(64_000);
    }
    assert_eq!((s.count(Count::FlowsOpened), s.count(Count::TimeWaitReused)), (1000, 999));
    assert_eq!((s.tcp().flows(), s.held()), (1, 0));
}

#[test]
fn the_oldest_in_time_wait_makes_room_when_all_are_in_use() {
    let config = Config { max_flows: 3, ..config() };
    let mut s = Script::new(config, Service { close: Close::AtOnce, ..Service::sink() });
    let close = |s: &mut Script, port| {
        s.join(Client::v4(port));
        s.open();
        s.send(data(1, 1, b"x"));
        s.expect(fin(1, 2));
        s.send(fin(2, 2));
        s.expect(ack(2, 3));
        s.wait(1000);
    };
    for port in 1..=3 {
        close(&mut s, port);
    }
    close(&mut s, 4);
    assert_eq!((s.tcp().flows(), s.count(Count::TimeWaitReused)), (3, 1));
    // A SYN that nobody stands for ends none.
    s.join(Client::v4(5));
    s.send(syn());
    s.expect(plain_syn_ack());
    assert_eq!((s.tcp().flows(), s.count(Count::TimeWaitReused)), (3, 1));
    // The first is gone, the second is there.
    s.at = 1;
    s.send(fin(2, 2));
    s.expect(rst(2));
    s.at = 2;
    s.send(fin(2, 2));
    s.expect(ack(2, 3));
}

/// The oldest by when it came into TIME-WAIT, also if its place was another's before, or its own.
#[test]
fn the_oldest_is_known_though_names_were_used_again() {
    let config = Config { max_flows: 5, ..config() };
    let mut s = Script::new(config, Service { close: Close::AtOnce, ..Service::sink() });
    for port in 11..=12 {
        s.join(Client::v4(port));
        s.open();
    }
    let close = |s: &mut Script, at: usize| {
        s.at = at;
        let client = s.client();
        client.number = client.number.wrapping_add(64_000);
        s.open();
        s.send(data(1, 1, b"x"));
        s.expect(fin(1, 2));
        s.send(fin(2, 2));
        s.expect(ack(2, 3));
        s.wait(1000);
    };
    let all: Vec<usize> = (1..=4).map(|port| s.join(Client::v4(port))).collect();
    // The first once more behind the second: now that is the oldest.
    for at in [0, 1, 0, 2] {
        close(&mut s, all[at]);
    }
    close(&mut s, all[3]);
    for (at, is_there) in [(0, true), (1, false), (2, true), (3, true)] {
        s.at = all[at];
        s.send(fin(2, 2));
        s.expect(if is_there { ack(2, 3) } else { rst(2) });
    }
}
