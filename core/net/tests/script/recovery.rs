//! Losses: timeouts (RFC 6298), fast retransmit and recovery (RFC 5681, RFC 6582), and how much is in flight.

use std::collections::BTreeMap;

use sheafio_net::{Count, tcp::Config};

use crate::{
    peer::{Client, Script, config},
    segment::{Segment, ack, data, fin, stream, syn},
    service::{Close, ENDLESS, Service},
};

pub(crate) const MSS: u32 = 1000;

pub(crate) fn large() -> Config {
    Config { send_bytes: 150_000, receive_bytes: 2048, max_flows: 4, ..config() }
}

/// A connection whose server has a reply of 150,000 bytes to send in segments of 1,000, and has begun.
fn sending() -> Script {
    let mut s = Script::new(large(), Service::replies(150_000));
    s.open_with(syn().mss(MSS as u16).shift(4));
    s.send(data(1, 1, b"x"));
    s
}

/// The numbers of segments, in thousands of bytes.
pub(crate) fn numbers(segments: &[Segment]) -> Vec<u32> {
    for segment in segments {
        let from = segment.seq as usize - 1;
        assert!(segment.payload == stream(from, segment.payload.len()), "{segment:?}");
    }
    segments.iter().map(|segment| (segment.seq - 1) / MSS).collect()
}

/// Acknowledges so many segments.
pub(crate) fn got(count: u32) -> Segment {
    ack(2, 1 + count * MSS)
}

#[test]
fn a_segment_is_sent_again_after_50_ms_and_then_at_doubled_times() {
    let mut s = Script::echo();
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    for ms in [50, 100, 200, 400, 800, 1600] {
        s.silence(ms - 1);
        s.wait(1);
        s.expect(data(1, 6, b"hello"));
    }
    assert_eq!((s.count(Count::Timeout), s.count(Count::Retransmit)), (6, 6));
    s.send(ack(6, 6));
    s.silence(10_000);
}

#[test]
fn the_longest_timeout_is_a_minute() {
    let mut s = Script::new(Config { user_timeout_us: u64::MAX >> 8, ..config() }, Service::echo());
    s.open();
    s.send(data(1, 1, b"hello"));
    s.wait(51_200 * 2 - 50); // 50 + 100 + ... + 51,200 ms
    s.ignore();
    for _ in 0..3 {
        s.silence(59_999);
        s.wait(1);
        s.expect(data(1, 6, b"hello"));
    }
}

#[test]
fn the_shortest_timeout_is_what_is_configured() {
    let mut s = Script::new(Config { min_rto_us: 7_000, ..config() }, Service::echo());
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.silence(6);
    s.wait(1);
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

/// RFC 6298 section 2: the round trip of the handshake, then R' = 7/8 R + 1/8 sample, and four deviations.
#[test]
fn the_timeout_follows_the_round_trip_time() {
    let mut s = Script::echo();
    s.send(syn());
    s.next();
    s.wait(200);
    s.send(ack(1, 1));
    s.send(data(1, 1, b"one"));
    s.expect(data(1, 4, b"one"));
    s.silence(599); // 200 + 4 * 100
    s.wait(1);
    s.expect(data(1, 4, b"one"));
    s.send(ack(4, 4));
    // No sample of that, for it was sent twice; the next one is twice as patient until there is one.
    s.send(data(4, 4, b"two"));
    s.expect(data(4, 7, b"two"));
    s.silence(200);
    s.send(ack(7, 7));
    s.send(data(7, 7, b"three"));
    s.expect(data(7, 12, b"three"));
    s.silence(499); // 200 + 4 * 75
    s.wait(1);
    s.expect(data(7, 12, b"three"));
    s.send(ack(12, 12));
}

/// A path that has become slower than the timeout is learned, for the doubled timeout stands until there is a sample
/// (Karn's algorithm, RFC 6298 section 5).
#[test]
fn a_path_that_becomes_slower_is_learned() {
    let mut s = Script::echo();
    s.open();
    let mut again = Vec::new();
    for round in 0..6 {
        let at = 1 + round;
        s.send(data(at, at, b"x"));
        s.expect(data(at, at + 1, b"x"));
        s.wait(180);
        again.push(s.ignore());
        s.send(ack(at + 1, at + 1));
        s.nothing();
    }
    assert_eq!(again, [2, 0, 0, 0, 0, 0]);
}

/// With timestamps what was sent twice is a sample as well, for its echo says which of the two came (RFC 7323 section 4).
#[test]
fn an_echo_says_which_of_two_sendings_came() {
    for (echoes_first, expected) in [(true, 180), (false, 50)] {
        let mut s = Script::echo().with_client(Client::with_timestamps(40_000));
        s.open_with(syn());
        s.send(data(1, 1, b"one"));
        let first = s.expect(data(1, 4, b"one")).timestamps.unwrap().0;
        s.wait(150);
        assert_eq!(s.ignore(), 2);
        let echo = if echoes_first { first } else { s.client().echo };
        s.wait(10);
        let now = s.timestamp();
        s.send(ack(4, 4).timestamps(now, echo));
        s.send(data(4, 4, b"two"));
        s.next();
        s.silence(expected - 1);
        s.wait(15);
        assert_eq!(s.ignore(), 1, "{echoes_first}");
        s.send(ack(7, 7));
    }
}

/// Where the loss was told by duplicates: what was sent twice is not timed.
#[test]
fn what_was_sent_again_by_duplicates_is_not_timed() {
    let mut s = Script::new(large(), Service::replies(150_000));
    s.send(syn().mss(MSS as u16).shift(4));
    s.next();
    s.wait(100);
    s.burst([ack(1, 1), data(1, 1, b"x")]);
    assert_eq!(numbers(&s.all()), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    s.wait(250);
    s.burst([got(0), got(0), got(0)]);
    assert_eq!(numbers(&s.all()), [0]);
    // The answer to the second one. If it were timed from the first, the round trip would be 251 ms.
    s.wait(1);
    s.send(got(10));
    assert_eq!(numbers(&s.all())[0], 10);
    s.silence(299); // 100 + 4 * 50
    s.wait(1);
    assert_eq!(numbers(&s.all()), [10]);
}

/// Our end goes along with the bytes in front of it, the second time as well.
#[test]
fn an_end_is_sent_again_with_its_bytes() {
    let mut s = Script::new(large(), Service { close: Close::AtOnce, ..Service::replies(500) });
    s.open();
    s.send(data(1, 1, b"x"));
    let end = fin(1, 2).bytes(&stream(0, 500));
    s.expect(end.clone());
    s.burst([got(0), got(0), got(0)]);
    s.expect(end.clone());
    s.wait(50);
    s.expect(end);
    s.send(ack(2, 502));
}

#[test]
fn the_third_duplicate_has_the_oldest_segment_sent_again() {
    let mut s = sending();
    assert_eq!(numbers(&s.all()), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    s.send(got(1));
    assert_eq!(numbers(&s.all()), [10, 11]);
    // A new segment for each of the first two (limited transmit, RFC 3042).
    s.send(got(1));
    assert_eq!(numbers(&s.all()), [12]);
    s.send(got(1));
    assert_eq!(numbers(&s.all()), [13]);
    assert_eq!(s.count(Count::FastRetransmit), 0);
    s.send(got(1));
    assert_eq!(numbers(&s.all()), [1]);
    assert_eq!((s.count(Count::FastRetransmit), s.count(Count::Retransmit)), (1, 1));
    // 13 in flight, of which half and three is 9.5. Each further duplicate tells of one that has left the network.
    for _ in 0..4 {
        s.send(got(1));
        s.nothing();
    }
    s.send(got(1));
    assert_eq!(numbers(&s.all()), [14]);
    // All of it: half of what was in flight then.
    s.send(got(15));
    assert_eq!(numbers(&s.all()), [15, 16, 17, 18, 19, 20]);
    assert_eq!(s.count(Count::Timeout), 0);
}

/// NewReno: an acknowledgement of a part tells of the next loss.
#[test]
fn several_losses_are_mended_one_in_a_round_trip() {
    let mut s = sending();
    assert_eq!(numbers(&s.all()).len(), 10);
    // 0, 3 and 6 are lost.
    s.burst([got(0), got(0), got(0), got(0), got(0), got(0), got(0)]);
    let sent = numbers(&s.all());
    assert_eq!(sent[0], 0);
    s.wait(10);
    s.send(got(3));
    assert_eq!(numbers(&s.all())[0], 3);
    s.wait(10);
    s.send(got(6));
    assert_eq!(numbers(&s.all())[0], 6);
    s.wait(10);
    let newest = 10 + sent.len() as u32 - 1;
    s.send(got(newest));
    s.ignore();
    assert_eq!(
        (s.count(Count::Retransmit), s.count(Count::FastRetransmit), s.count(Count::Timeout)),
        (3, 1, 0)
    );
}

#[test]
fn duplicates_are_empty_and_of_the_same_window() {
    let mut s = sending();
    s.ignore();
    let window = 4000;
    s.send(got(0).window(window));
    for at in 1..5 {
        s.send(got(0).window(window + at));
    }
    for at in 0..5 {
        s.send(data(2 + at, 1, b"x").window(window));
    }
    assert_eq!(s.count(Count::FastRetransmit), 0);
    s.burst([ack(7, 1).window(window), ack(7, 1).window(window), ack(7, 1).window(window)]);
    assert_eq!(s.count(Count::FastRetransmit), 1);
}

/// Duplicates of what was sent before a timeout are no news (RFC 6582 section 4).
#[test]
fn duplicates_after_a_timeout_start_nothing() {
    let mut s = sending();
    s.ignore();
    s.wait(51);
    assert_eq!(numbers(&s.all()), [0]);
    s.burst([got(0), got(0), got(0), got(0)]);
    s.nothing();
    assert_eq!(s.count(Count::FastRetransmit), 0);
}

/// What was written but never sent is not sent by mistake, when what was sent is sent again.
#[test]
fn only_what_was_sent_is_sent_again() {
    let mut s = Script::new(large(), Service::replies(5000));
    s.client().window = 10;
    s.open_with(syn().mss(MSS as u16));
    s.send(data(1, 1, b"x"));
    s.expect(data(1, 2, &stream(0, 10)));
    s.burst([got(0), got(0), got(0), got(0)]);
    s.expect(data(1, 2, &stream(0, 10)));
    s.nothing();
    s.send(ack(2, 11));
    assert_eq!(s.next().payload, stream(10, 10));
}

#[test]
fn a_whole_flight_is_sent_again_and_arrives() {
    // Every third segment is lost, again and again, or every eighth. The first of these peers takes nothing out of order.
    for (timestamps, lost, keeps) in [(true, 3, false), (false, 8, true)] {
        let mut s = Script::new(large(), Service::replies(150_000));
        s.client().timestamps = timestamps;
        s.open_with(syn().mss(MSS as u16).shift(4));
        s.send(data(1, 1, b"x"));
        let (mut acked, mut turn, mut ms) = (0, 0, 0);
        let mut kept = BTreeMap::new();
        while acked < 150_000 {
            ms += 1;
            assert!(ms < 20_000, "{acked} bytes have arrived, {timestamps}");
            s.wait(1);
            for segment in s.all() {
                turn += 1;
                assert!(segment.payload == stream(segment.seq as usize - 1, segment.payload.len()));
                if turn % lost != 0 && (keeps || segment.seq - 1 == acked) {
                    kept.insert(segment.seq - 1, segment.seq - 1 + segment.payload.len() as u32);
                    acked = kept.iter().fold(
                        acked,
                        |acked, (start, end)| {
                            if *start <= acked { acked.max(*end) } else { acked }
                        },
                    );
                }
                s.send(ack(2, 1 + acked));
            }
        }
    }
}

/// One that was acknowledged late counts for all before it.
#[test]
fn an_acknowledgement_of_a_part_of_a_segment() {
    let mut s = Script::echo();
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 3));
    s.silence(49);
    s.wait(1);
    s.expect(data(3, 6, b"llo"));
    s.send(ack(6, 6));
    s.silence(1000);
}

#[test]
fn a_client_with_timestamps_is_as_quick() {
    let mut s = Script::echo().with_client(Client::with_timestamps(40_000));
    s.open_with(syn());
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.silence(49);
    s.wait(1);
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

/// What a loss is told from still tells after more bytes than half of the numbers: 2 GiB without a loss, then one.
#[test]
fn a_loss_after_a_long_stream_is_noticed() {
    let config = Config { send_bytes: 1 << 20, mtu: 1770, max_flows: 1, ..config() };
    let mut s = Script::new(config, Service::replies(ENDLESS));
    s.open_with(syn().mss(9000).shift(10));
    let theirs = s.client().theirs;
    let mut request = s.absolute(data(1, 1, b"x"));
    let first = s.client().packet(&request);
    // All acknowledgements are the same but for one field, with the sum of the pseudo header alone for a checksum.
    request = s.absolute(ack(2, 1));
    let mut acknowledgement = s.client().packet(&request);
    let sum: u32 =
        acknowledgement[26..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let sum = sum + 6 + 20;
    acknowledgement[50..52].copy_from_slice(&(((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());

    s.raw(&first);
    let (mut sent, mut newest) = (0_u64, theirs.wrapping_add(1));
    while sent < (1 << 31) + (1 << 20) {
        let (tcp, cache) = (s.tcp.as_mut().unwrap(), s.cache.as_mut().unwrap());
        tcp.transmit(cache, &mut s.out);
        assert!(!s.out.is_empty());
        for segment in s.out.iter() {
            let seq = u32::from_be_bytes(segment[38..42].try_into().unwrap());
            assert_eq!(seq, newest);
            let len = segment.len() as u32 - 54;
            newest = newest.wrapping_add(len);
            sent += u64::from(len);
        }
        cache.free_burst(&mut s.out);
        acknowledgement[42..46].copy_from_slice(&newest.to_be_bytes());
        s.raw(&acknowledgement);
    }
    // Of these the first is lost.
    let (tcp, cache) = (s.tcp.as_mut().unwrap(), s.cache.as_mut().unwrap());
    tcp.transmit(cache, &mut s.out);
    assert!(s.out.len() > 4);
    cache.free_burst(&mut s.out);
    for _ in 0..3 {
        s.raw(&acknowledgement);
    }
    assert_eq!((s.count(Count::FastRetransmit), s.count(Count::Timeout)), (1, 0));
    s.is_wild = true;
    s.settle();
    s.ignore();
}
