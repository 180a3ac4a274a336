//! The end of a server: no new connections, and what becomes of the old ones.

use sheafio_net::{Count, tcp::Config};

use crate::{
    closing::waiting,
    peer::{Client, Script, config, plain_syn_ack},
    segment::{ack, data, fin, rst, rst_ack, stream, syn},
    service::{Close, Service},
};

impl Script {
    /// Closes the whole server.
    fn close(&mut self) {
        let (tcp, cache) = (self.tcp.as_mut().unwrap(), self.cache.as_mut().unwrap());
        tcp.close(cache);
        self.settle();
    }

    /// Resets what there is, as much as goes into a burst. Whether that was all, and how many segments were sent.
    fn abort(&mut self) -> (bool, usize) {
        let (tcp, cache) = (self.tcp.as_mut().unwrap(), self.cache.as_mut().unwrap());
        let is_done = tcp.abort(cache, &mut self.out);
        self.look();
        (is_done, self.ignore())
    }
}

/// `Tcp::close`: no new connections, the old ones end behind what was written, and no name is kept.
#[test]
fn a_server_that_closes_lets_all_connections_end() {
    let mut s = Script::new(config(), Service { close: Close::Never, ..Service::replies(3000) });
    s.client().window = 1000;
    s.open();
    s.send(data(1, 1, b"x"));
    s.expect(data(1, 2, &stream(0, 1000)));
    // One is half open, one in TIME-WAIT would be left out as well.
    let half_open = s.join(Client::v4(40_001));
    s.send(syn());
    s.expect(plain_syn_ack());
    s.close();
    s.settle();
    assert_eq!(s.tcp().half_open(), 0);
    s.at = half_open;
    s.send(ack(1, 1));
    s.expect(rst(1));
    s.send(syn().at(9));
    s.expect(rst_ack(0_u32.wrapping_sub(s.clients[half_open].theirs), 10));

    s.at = 0;
    s.send(ack(2, 1001));
    s.expect(data(1001, 2, &stream(1000, 1000)));
    s.send(ack(2, 2001));
    // What the server had begun to answer it answers to the end.
    s.expect(data(2001, 2, &stream(2000, 1000)));
    s.send(ack(2, 3001));
    s.expect(fin(3001, 2));
    s.send(fin(2, 3002));
    s.expect(ack(3002, 3));
    s.wait(1);
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn a_server_that_closes_forgets_what_was_in_time_wait() {
    let mut s = waiting();
    s.close();
    assert_eq!(s.tcp().flows(), 0);
}

/// `Tcp::abort`: every peer hears of it, a burst at a time.
#[test]
fn a_server_that_aborts_resets_all_connections() {
    let config = Config { max_flows: 40, ..config() };
    let mut s = Script::new(config, Service { sip: 0, ..Service::echo() });
    for port in 1..=40 {
        s.join(Client::v4(port));
        s.open();
        s.send(data(1, 1, b"kept"));
        s.expect(ack(1, 5));
    }
    assert_eq!(s.held(), 40);
    s.out.set_limit(16);
    let mut resets = 0;
    let mut calls = 0;
    loop {
        let (tcp, cache) = (s.tcp.as_mut().unwrap(), s.cache.as_mut().unwrap());
        let is_done = tcp.abort(cache, &mut s.out);
        calls += 1;
        s.look();
        resets += s.ignore();
        if is_done {
            break;
        }
    }
    assert_eq!((resets, calls), (40, 3));
    assert_eq!((s.tcp().flows(), s.held()), (0, 0));
}

/// What was acknowledged is answered, even if there was no room for the answer when the server closed.
#[test]
fn a_server_that_closes_answers_what_it_has_taken() {
    let mut s = Script::echo();
    s.client().window = 0;
    s.open();
    let bytes = stream(0, 3000);
    for at in [0, 1000, 2000] {
        s.send(data(1 + at, 1, &bytes[at as usize..][..1000]));
    }
    s.ignore();
    assert_eq!(s.service().got.len(), 2048);
    s.close();
    s.ignore();
    s.send(ack(3001, 1).window(2048));
    assert_eq!(s.all().iter().map(|answer| answer.payload.len()).sum::<usize>(), 2048);
    s.send(ack(3001, 2049).window(2048));
    s.expect(fin(2049, 3001).bytes(&bytes[2048..]));
    s.send(fin(3001, 3002));
    s.expect(ack(3002, 3002));
}

/// A part of a request is waited for, also if it lies beyond a gap; what of it does not come is reset in the end.
#[test]
fn a_server_that_closes_waits_for_the_rest_of_a_request() {
    let bytes = [1, 0, 1, 2, 3, 4, 5, 6, 7];
    for (there, comes) in [(0..4, true), (4..9, true), (0..4, false), (4..9, false)] {
        let mut s = Script::new(config(), Service::echoes_records());
        s.open();
        s.send(data(1 + there.start, 1, &bytes[there.start as usize..there.end as usize]));
        s.expect(ack(1, if there.start == 0 { 1 + there.end } else { 1 }));
        s.close();
        s.nothing();
        if comes {
            let rest = if there.start == 0 { there.end..9 } else { 0..there.start };
            s.send(data(1 + rest.start, 1, &bytes[rest.start as usize..rest.end as usize]));
            s.expect(fin(1, 10).bytes(&bytes));
            s.send(ack(10, 11));
        } else {
            assert_eq!(s.abort(), (true, 1));
        }
    }
}

/// What comes behind our end is acknowledged and not answered; so the end is none in good order.
#[test]
fn a_request_behind_the_end_of_the_server_is_reset() {
    let mut s = Script::echo();
    s.open();
    s.close();
    s.expect(fin(1, 1));
    s.send(data(1, 1, b"late"));
    s.expect(ack(2, 5));
    s.send(fin(5, 2));
    s.expect(rst_ack(2, 6));
    assert_eq!(s.tcp().flows(), 0);
}

/// A closing server does not wait for ever.
#[test]
fn a_peer_that_does_not_end_is_given_up_by_a_server_that_closes() {
    let mut s = Script::echo();
    s.open();
    s.close();
    s.expect(fin(1, 1));
    s.send(ack(1, 2));
    s.silence(59_999);
    s.wait(1);
    s.expect(rst_ack(2, 1));
    assert_eq!((s.tcp().flows(), s.count(Count::GivenUp)), (0, 1));
}

/// `Tcp::abort` by itself, without a close before it.
#[test]
fn a_server_that_aborts_listens_no_more() {
    let mut s = Script::echo();
    s.open();
    let half_open = s.join(Client::v4(40_001));
    s.send(syn());
    s.expect(plain_syn_ack());
    assert_eq!(s.abort(), (true, 1));
    assert_eq!((s.tcp().flows(), s.tcp().half_open()), (0, 0));
    s.at = half_open;
    s.send(ack(1, 1));
    s.expect(rst(1));
    s.silence(2000);
    s.send(syn().at(9));
    s.expect(rst_ack(0_u32.wrapping_sub(s.clients[half_open].theirs), 10));
}

/// A session is dropped with its connection, not when another needs its place.
#[test]
fn sessions_end_with_their_connections() {
    let mut s = Script::echo();
    for port in 1..=3 {
        s.join(Client::v4(port));
        s.open();
        s.send(data(1, 1, b"hello"));
        s.expect(data(1, 6, b"hello"));
        s.send(ack(6, 6));
    }
    let alive = s.service().alive.clone();
    let count = || std::sync::Arc::strong_count(&alive) - 2;
    assert_eq!(count(), 3);
    s.at = 1;
    s.send(rst(6));
    assert_eq!(count(), 2);
    s.at = 2;
    s.send(fin(6, 6));
    s.expect(fin(6, 7));
    s.send(ack(7, 7));
    assert_eq!(count(), 1);
    assert_eq!(s.abort(), (true, 1));
    assert_eq!(count(), 0);
}
