//! The pool runs empty, or the burst that is sent has no room: nothing is lost, and all goes on afterwards.

use sheafio_net::{Count, tcp::Config};

use crate::{
    peer::{Client, Script, config, plain_syn_ack},
    segment::{ack, data, fin, rst, stream, syn},
    service::Service,
};

#[test]
fn without_a_frame_nothing_is_acknowledged_that_is_not_kept() {
    let mut s = Script::echo();
    s.open();
    s.starve(0);
    s.send(data(1, 1, b"hello"));
    s.send(fin(6, 1));
    s.wait(10);
    s.nothing();
    assert!(s.count(Count::NoFrame) > 0);
    s.feed();
    s.settle();
    // Nothing was kept; so nothing is acknowledged, and both come again.
    s.expect(ack(1, 1));
    s.send(data(1, 1, b"hello"));
    s.next();
    s.send(fin(6, 6));
    let answer = s.all().pop().unwrap();
    assert_eq!(answer.ack, 7);
    assert_eq!(s.service().got, b"hello");
    assert_eq!(s.service().ended, 1);
    s.send(ack(7, 7));
    assert_eq!((s.tcp().flows(), s.held()), (0, 0));
}

#[test]
fn an_end_behind_bytes_that_could_not_be_kept_is_not_taken() {
    let mut s = Script::echo();
    s.open();
    s.starve(0);
    s.send(fin(1, 1).bytes(b"hello"));
    assert_eq!(s.service().ended, 0);
    s.feed();
    s.settle();
    s.expect(ack(1, 1));
    s.send(fin(1, 1).bytes(b"hello"));
    s.expect(fin(1, 7).bytes(b"hello"));
    s.send(ack(7, 7));
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn out_of_order_bytes_that_could_not_be_kept_come_again() {
    let mut s = Script::new(config(), Service::sink());
    s.open_with(syn().sack_permitted());
    s.starve(0);
    s.send(fin(6, 1).bytes(b"world"));
    s.feed();
    s.settle();
    s.expect(ack(1, 1));
    s.send(data(1, 1, b"hello"));
    s.expect(ack(1, 6));
    s.send(fin(6, 1).bytes(b"world"));
    s.expect(fin(1, 12));
    s.send(ack(12, 2));
    assert_eq!(s.service().got, b"helloworld");
}

/// Whatever the moment at which the pool runs empty, and with however many frames left.
#[test]
fn a_stream_goes_through_a_pool_that_runs_empty_again_and_again() {
    for left in 0..6 {
        let config = Config { receive_bytes: 8192, send_bytes: 8192, ..config() };
        let mut s = Script::new(config, Service::echo());
        s.open_with(syn().mss(1460).sack_permitted());
        let bytes = stream(0, 60_000);
        let (mut taken, mut returned) = (0_u32, 0_u32);
        let mut edge = 8192;
        let mut held = Vec::new();
        let mut round: u32 = 0;
        while returned < 60_000 {
            round += 1;
            assert!(round < 20_000, "{left}: {taken} bytes were taken, {returned} came back");
            match round % 16 {
                2 => s.starve(left),
                7 => s.feed(),
                _ => {}
            }
            // A segment in order, and one beyond it; both come again until they are acknowledged.
            let piece = |from: u32| {
                let to = (from + 1000).min(60_000).min(edge);
                &bytes[from.min(to) as usize..to as usize]
            };
            let mut segments = vec![data(1 + taken, 1 + returned, piece(taken))];
            if round.is_multiple_of(3) {
                segments.insert(0, data(1001 + taken, 1 + returned, piece(taken + 1000)));
            }
            segments.retain(|segment| !segment.payload.is_empty());
            segments.push(ack(1 + taken, 1 + returned));
            s.burst(segments);
            s.wait(1);
            for answer in s.all() {
                taken = taken.max(answer.ack - 1);
                edge = edge.max(answer.ack - 1 + u32::from(answer.window.unwrap()));
                let from = answer.seq - 1;
                let to = from + answer.payload.len() as u32;
                if !answer.payload.is_empty() && from <= returned && to > returned {
                    assert!(answer.payload == bytes[from as usize..to as usize]);
                    returned = to;
                }
            }
            held.push(s.held());
        }
        assert!(held.iter().all(|count| *count <= 8), "a flow holds 4 frames in each direction at most");
        s.feed();
        s.send(ack(1 + taken, 1 + returned));
        assert!(s.service().got == bytes);
    }
}

/// A server whose write was cut short for want of a frame is called again once there is one, though the peer is silent.
#[test]
fn a_server_that_waits_for_a_frame_is_called_when_there_is_one() {
    let mut s = Script::new(config(), Service::replies(500));
    s.open();
    s.starve(0);
    s.send(data(1, 1, b"request"));
    s.wait(200);
    s.feed();
    s.wait(200);
    let all = s.all();
    let replied: usize = all.iter().map(|segment| segment.payload.len()).max().unwrap_or(0);
    assert_eq!(replied, 500, "{all:?}");
    s.send(ack(8, 501));
}

/// Timers that are due while the pool is empty wait for it, and nobody spins.
#[test]
fn timers_wait_for_frames() {
    // A keepalive probe.
    let config = Config { keepalive_us: 1_000_000, ..config() };
    let mut s = Script::new(config.clone(), Service::echo());
    s.open();
    s.starve(0);
    s.wait(1050);
    s.nothing();
    s.feed();
    s.wait(1);
    s.expect(ack(0, 1));
    assert_eq!(s.count(Count::KeepaliveProbe), 1);
    s.send(ack(1, 1));

    // A segment that is sent again.
    let mut s = Script::new(config.clone(), Service::echo());
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.starve(0);
    s.wait(60);
    s.nothing();
    s.feed();
    s.wait(1);
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));

    // A probe of a closed window.
    let mut s = Script::new(config, Service::echo());
    s.open();
    s.send(data(1, 1, b"hello").window(0));
    s.expect(ack(1, 6));
    s.starve(0);
    s.wait(60);
    s.nothing();
    s.feed();
    s.wait(50);
    s.expect(ack(0, 6));
    s.send(ack(6, 1));
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

#[test]
fn a_syn_that_could_not_be_answered_is_answered_in_a_second() {
    let mut s = Script::echo();
    s.starve(0);
    s.send(syn());
    s.nothing();
    assert_eq!((s.count(Count::NotSent), s.tcp().half_open()), (1, 1));
    s.feed();
    s.wait(1000);
    s.expect(plain_syn_ack());
}

#[test]
fn an_end_for_want_of_time_needs_no_frame() {
    let config = Config { keepalive_us: 1_000_000, user_timeout_us: 1_000_000, ..config() };
    let mut s = Script::new(config, Service::echo());
    s.open();
    s.send(data(1, 1, b"hello"));
    s.ignore();
    s.starve(0);
    s.wait(3000);
    assert_eq!((s.tcp().flows(), s.count(Count::NotSent)), (0, 1));
}

/// A burst with little room: what did not fit comes with the next ones, and no flow is passed over.
#[test]
fn a_full_burst_goes_on_with_the_next() {
    for limit in [1, 2, 3, 7] {
        let config = Config { max_flows: 20, ..config() };
        let mut s = Script::new(config, Service::echo());
        for port in 1..=20 {
            s.join(Client::v4(port));
            s.open();
        }
        s.out.set_limit(limit);
        for at in 1..=20 {
            s.at = at;
            let segment = s.absolute(data(1, 1, &stream(at, 1600)[..1500]));
            s.client().watch.sent(&segment);
            let packet = s.client().packet(&segment);
            s.raw(&packet);
        }
        s.settle();
        for at in 1..=20 {
            s.at = at;
            s.expect(data(1, 1501, &stream(at, 1460)));
            s.expect(data(1461, 1501, &stream(at + 1460, 40)));
        }
        s.nothing();
        // All are due at the same time.
        s.wait(50);
        assert_eq!(s.ignore(), 20); // Of each the first segment.
        assert_eq!(s.count(Count::Timeout), 20);
        for at in 1..=20 {
            s.at = at;
            s.send(ack(1501, 1501));
        }
        s.out.set_limit(64);
        assert_eq!((s.ignore(), s.held()), (0, 0));
    }
}

/// Connections that come and go while nothing can be sent take no more room in the list of those that have something to send.
#[test]
fn connections_that_come_and_go_between_two_bursts() {
    let config = Config { max_flows: 2, ..config() };
    let mut s = Script::new(config, Service::echo());
    s.out.set_limit(64);
    for _ in 0..10 {
        // Each packet is taken in, and nothing is sent but what opens a connection.
        let offer = s.absolute(syn().mss(1460));
        s.client().watch.sent(&offer);
        let packet = s.client().packet(&offer);
        s.raw(&packet);
        s.look();
        s.expect(plain_syn_ack());
        for segment in [data(1, 1, b"hello"), rst(6)] {
            let segment = s.absolute(segment);
            let packet = s.client().packet(&segment);
            s.raw(&packet);
        }
    }
    assert_eq!((s.tcp().flows(), s.count(Count::FlowsEnded), s.held()), (0, 10, 0));
    s.settle();
    s.nothing();
    // The place is used by the next one as if it were new.
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

/// Frames that an idle connection holds: none.
#[test]
fn an_idle_connection_holds_no_frame() {
    let mut s = Script::echo();
    s.open();
    for at in 0..10 {
        let seq = 1 + 100 * at;
        s.send(data(seq, seq, &stream(seq as usize, 100)));
        s.expect(data(seq, seq + 100, &stream(seq as usize, 100)));
        assert_eq!(s.held(), 1);
        s.send(ack(seq + 100, seq + 100));
        assert_eq!(s.held(), 0);
    }
}

/// Each time that bytes find no frame is counted: behind others that wait as well.
#[test]
fn bytes_that_find_no_frame_are_counted() {
    let config = Config { receive_bytes: 4096, ..config() };
    let mut s = Script::new(config, Service { sip: 0, ..Service::sink() });
    s.open();
    for at in [0, 1000] {
        s.send(data(1 + at, 1, &stream(at as usize, 1000)));
    }
    s.ignore();
    s.starve(0);
    let before = s.count(Count::NoFrame);
    let packet = s.clients[0].packet(&s.absolute(data(2001, 1, &stream(2000, 1000))));
    s.raw(&packet);
    assert_eq!(s.count(Count::NoFrame), before + 1);
    s.feed();
    s.settle();
    s.expect(ack(1, 2049));
}
