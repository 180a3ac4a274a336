//! Timestamps (RFC 7323): what is echoed, and what old ones are good for.

use sheafio_net::Count;

use crate::{
    peer::{Client, Script, config, plain_syn_ack},
    segment::{ACK, ack, data, fin, rst, syn},
    service::Service,
};

fn open() -> Script {
    let mut s = Script::echo().with_client(Client::with_timestamps(40_000));
    s.send(syn());
    let now = s.timestamp();
    s.expect(plain_syn_ack().echo(now));
    s.send(ack(1, 1));
    s.nothing();
    s
}

#[test]
fn each_segment_echoes_what_came_last_in_order() {
    let mut s = open();
    s.wait(10);
    let first = s.timestamp();
    s.send(data(1, 1, b"one"));
    s.expect(data(1, 4, b"one").echo(first));
    // Beyond a gap: the echo is that of the segment before it, so that the time of the gap counts (section 4.3).
    s.wait(10);
    s.send(data(7, 4, b"three"));
    s.expect(ack(4, 4).echo(first));
    s.wait(10);
    let filled = s.timestamp();
    s.send(data(4, 4, b"two"));
    s.expect(data(4, 12, b"twothree").echo(filled));
    // Of two segments that get one answer it is that of the first (section 4.1).
    s.wait(10);
    let earlier = s.timestamp();
    s.burst([
        data(12, 12, b"a").timestamps(earlier, 0),
        data(13, 12, b"b").timestamps(earlier.wrapping_add(5), 0),
    ]);
    s.expect(data(12, 14, b"ab").echo(earlier));
    s.send(ack(14, 14));
}

#[test]
fn our_clock_goes_in_milliseconds() {
    let mut s = open();
    s.send(data(1, 1, b"a"));
    let first = s.next().timestamps.unwrap().0;
    s.wait(30);
    s.send(data(2, 2, b"b"));
    assert_eq!(s.next().timestamps.unwrap().0.wrapping_sub(first), 30);
    s.send(ack(3, 3));
}

#[test]
fn an_older_timestamp_is_acknowledged_and_dropped() {
    let mut s = open();
    s.send(data(1, 1, b"one"));
    s.expect(data(1, 4, b"one"));
    s.send(ack(4, 4));
    let now = s.timestamp();
    for back in [1, 1000, (1 << 31) - 1] {
        s.wait(500);
        s.send(data(4, 4, b"old").timestamps(now.wrapping_sub(back), 0));
        s.expect(ack(4, 4).echo(now));
    }
    // Told twice a second at most.
    s.send(fin(4, 4).timestamps(now.wrapping_sub(1), 0));
    s.nothing();
    assert_eq!((s.count(Count::OldTimestamp), s.service().got.len(), s.service().ended), (4, 3, 0));
    // The same and a newer one are fine.
    s.send(data(4, 4, b"a").timestamps(now, 0));
    s.expect(data(4, 5, b"a").echo(now));
    s.send(data(5, 5, b"b").timestamps(now.wrapping_add((1 << 31) - 1), 0));
    s.expect(data(5, 6, b"b"));
    s.send(ack(6, 6).timestamps(now.wrapping_add((1 << 31) - 1), 0));
}

/// Whoever guesses a port can't put the clock forward, so that the peer's own segments would be old.
#[test]
fn a_segment_that_is_not_acceptable_does_not_move_the_clock() {
    let mut s = open();
    s.send(data(1, 1, b"one"));
    s.expect(data(1, 4, b"one"));
    s.send(ack(4, 4));
    let now = s.timestamp();
    let future = now.wrapping_add(1 << 30);
    let forged = [
        ack(4_u32.wrapping_sub(100_000), 4), // Out of the window: before it,
        data(4_u32.wrapping_sub(100_000), 4, b"old"),
        ack(4 + 100_000, 4), // behind it,
        ack(4, 5000),        // an acknowledgement of what was never sent,
        ack(4, 4_u32.wrapping_sub(100_000)),
        ack(4, 4).without(crate::segment::ACK), // none,
        syn().at(4),                            // or a SYN.
    ];
    for segment in forged {
        s.send(segment.timestamps(future, 0));
        s.ignore();
        s.wait(500);
    }
    s.send(data(4, 4, b"two").timestamps(now.wrapping_add(1), 0));
    s.expect(data(4, 7, b"two").echo(now.wrapping_add(1)));
    s.send(ack(7, 7));
}

#[test]
fn a_missing_timestamp_is_dropped_without_a_word() {
    let mut s = open();
    s.send(data(1, 1, b"bare").bare());
    s.send(fin(1, 1).bare());
    s.nothing();
    assert_eq!((s.count(Count::NoTimestamp), s.service().calls), (2, 0));
    // A SYN is answered in any case, for another peer may have got this name and have no timestamps; it resets us then.
    // Whatever comes along with it is dropped.
    s.send(syn().at(77_777).bare());
    s.expect(ack(1, 1));
    s.send(syn().with(ACK).at(0).bytes(b"bare").bare());
    s.nothing(); // Told just now.
    assert_eq!((s.count(Count::ChallengedSyn), s.service().calls), (2, 0));
    s.send(rst(1).bare());
    assert_eq!(s.tcp().flows(), 0);
}

#[test]
fn timestamps_that_were_not_agreed_on_are_passed_by() {
    let mut s = Script::echo();
    s.open();
    s.send(data(1, 1, b"one").timestamps(1000, 0));
    s.expect(data(1, 4, b"one"));
    s.send(data(4, 4, b"two").timestamps(500, 0));
    s.expect(data(4, 7, b"two"));
    assert_eq!(s.count(Count::OldTimestamp), 0);
    s.send(ack(7, 7));
}

#[test]
fn a_handshake_needs_them_as_well() {
    let mut s = Script::echo().with_client(Client::with_timestamps(40_000));
    s.send(syn());
    s.expect(plain_syn_ack().echo(s.timestamp()));
    let now = s.timestamp();
    s.send(ack(1, 1).bare());
    s.expect(plain_syn_ack().echo(now));
    s.send(ack(1, 1).timestamps(now.wrapping_sub(1), 0));
    s.expect(plain_syn_ack().echo(now));
    assert_eq!(s.tcp().flows(), 0);
    s.send(ack(1, 1));
    assert_eq!(s.tcp().flows(), 1);
}

/// After 24 days without a word the peer's clock may have gone round (section 5.5).
#[test]
fn a_clock_that_went_round_is_believed() {
    let config = sheafio_net::tcp::Config { keepalive_us: 0, ..config() };
    let mut s = Script::new(config, Service::echo()).with_client(Client::with_timestamps(40_000));
    s.open_with(syn());
    let now = s.timestamp();
    s.now_us += 23 * 24 * 3600 * 1_000_000;
    s.send(data(1, 1, b"old").timestamps(now.wrapping_sub(1), 0));
    s.expect(ack(1, 1));
    s.now_us += 2 * 24 * 3600 * 1_000_000;
    s.send(data(1, 1, b"new").timestamps(now.wrapping_sub(1), 0));
    s.expect(data(1, 4, b"new").echo(now.wrapping_sub(1)));
    s.send(ack(4, 4).timestamps(now.wrapping_sub(1), 0));
}

/// A timestamps option is found wherever it lies among the others.
#[test]
fn options_in_any_order() {
    let mut s = open();
    let client = s.client().clone();
    let absolute = s.absolute(data(1, 1, b"x"));
    let mut packet = client.packet(&absolute);
    // etherparse puts two zeros behind the option; with no-operations they stand in front, at the back, or between.
    let at = 14 + 20 + 20;
    let option = packet[at..at + 10].to_vec();
    let mut padded = vec![1];
    padded.extend(&option);
    padded.push(1);
    packet[at..at + 12].copy_from_slice(&padded);
    crate::wire::mend(&mut packet);
    s.raw(&packet);
    s.settle();
    s.expect(data(1, 2, b"x"));
    s.send(ack(2, 2));
}
