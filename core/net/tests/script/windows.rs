//! Windows: closed, reopened, shrunk, silly, scaled; and the size of segments.

use sheafio_net::{Count, tcp::Config};

use crate::{
    peer::{Client, Script, config, plain_syn_ack},
    segment::{Segment, ack, data, fin, stream, syn},
    service::{Close, Service},
};

/// A connection whose server has sent so many bytes as the window allows, of a reply of so many.
fn replying(reply: usize, window: u16) -> Script {
    let config = Config { send_bytes: 65_536, keepalive_us: 0, ..config() };
    let mut s = Script::new(config, Service::replies(reply));
    s.client().window = window;
    s.open();
    s.send(data(1, 1, b"x"));
    s
}

fn lens(segments: &[Segment]) -> Vec<usize> {
    segments.iter().map(|segment| segment.payload.len()).collect()
}

#[test]
fn a_closed_window_is_probed_at_doubled_times_for_as_long_as_the_peer_answers() {
    let mut s = replying(2000, 1000);
    s.expect(data(1, 2, &stream(0, 1000)));
    s.send(ack(2, 1001).window(0));
    s.nothing();
    // A number before its window makes the peer say what it expects.
    let mut ms = 50;
    let mut passed = 0;
    for _ in 0..14 {
        s.silence(ms - 1);
        s.wait(1);
        s.expect(ack(1000, 2));
        s.send(ack(2, 1001).window(0));
        passed += ms;
        ms = (2 * ms).min(60_000);
    }
    assert!(passed > 3 * 60_000, "longer than a peer that is silent would be waited for");
    assert_eq!(s.count(Count::WindowProbe), 14);
    // It goes on at once when the window opens, and in time after that.
    s.send(ack(2, 1001).window(1000));
    s.expect(data(1001, 2, &stream(1000, 1000)));
    s.silence(49);
    s.wait(1);
    s.expect(data(1001, 2, &stream(1000, 1000)));
    s.send(ack(2, 2001));
}

#[test]
fn a_peer_that_closes_its_window_and_is_silent_is_given_up() {
    let mut s = replying(2000, 1000);
    s.expect(data(1, 2, &stream(0, 1000)));
    s.send(ack(2, 1001).window(0));
    s.wait(59_999);
    assert_eq!(s.tcp().flows(), 1);
    s.wait(60_000); // At the next probe.
    assert_eq!((s.tcp().flows(), s.count(Count::GivenUp)), (0, 1));
    assert!(s.all().pop().unwrap().has(crate::segment::RST));
}

#[test]
fn a_window_that_is_closed_from_the_start_is_probed() {
    let mut s = Script::echo();
    s.client().window = 0;
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(ack(1, 6));
    s.silence(49);
    s.wait(1);
    s.expect(ack(0, 6));
    s.send(ack(6, 1).window(1));
    s.expect(data(1, 6, b"h"));
    s.send(ack(6, 2).window(100));
    s.expect(data(2, 6, b"ello"));
    s.send(ack(6, 6));
}

#[test]
fn our_end_waits_for_the_window_as_bytes_do() {
    let mut s = Script::new(config(), Service { close: Close::AtOnce, ..Service::replies(100) });
    s.client().window = 100;
    s.open();
    s.send(data(1, 1, b"x"));
    s.expect(data(1, 2, &stream(0, 100)));
    s.send(ack(2, 101).window(0));
    s.silence(49);
    s.wait(1);
    s.expect(ack(100, 2));
    s.send(ack(2, 101).window(1));
    s.expect(fin(101, 2));
}

/// RFC 9293 section 3.8.6: a window that shrinks is discouraged, and has to be lived with.
#[test]
fn a_window_that_shrinks_holds_new_bytes_back_and_old_ones_are_sent_again_within_it() {
    let mut s = replying(3000, 2920);
    assert_eq!(lens(&s.all()), [1460, 1460]);
    // Nothing of it has come, and there is room for a part only.
    s.send(ack(2, 1).window(700));
    s.silence(49);
    s.wait(1);
    s.expect(data(1, 2, &stream(0, 700)));
    s.nothing();
    s.send(ack(2, 701).window(700));
    s.expect(data(701, 2, &stream(700, 700)));
    s.send(ack(2, 1401).window(3000));
    assert_eq!(lens(&s.all()), [1460, 140]);
    s.send(ack(2, 3001));
    s.silence(1000);
}

/// An acknowledgement without bytes lies behind all that was sent, or a peer that has got that would take it for an old one;
/// but not behind the edge of a window that has shrunk, where it would be none of the connection's.
#[test]
fn an_acknowledgement_lies_behind_all_that_was_sent_and_within_the_window() {
    let mut s = replying(14_600, 65_535);
    assert_eq!(lens(&s.all()), [1460; 10]);
    s.wait(50);
    assert_eq!(lens(&s.all()), [1460]);
    s.send(data(2, 1, b"y"));
    s.expect(ack(14_601, 3));
    s.send(data(3, 1, b"z").window(5000));
    s.expect(ack(5001, 4));
}

/// What is in flight when the window closes is sent again once it opens, even if the peer has lost all of it.
#[test]
fn a_window_that_shrinks_to_nothing_and_opens_again() {
    for ms in [0, 20, 60, 1000] {
        let mut s = replying(1000, 1000);
        s.expect(data(1, 2, &stream(0, 1000)));
        s.send(ack(2, 1).window(0));
        s.wait(ms);
        s.ignore();
        s.send(ack(2, 1).window(1000));
        s.expect(data(1, 2, &stream(0, 1000)));
        s.send(ack(2, 1001));
        s.silence(1000);
    }
}

/// However long it was closed, as long as the peer answered: a loss when it opens is one like any other.
#[test]
fn a_loss_after_a_window_was_closed_for_long_ends_nothing() {
    let mut s = replying(1000, 1000);
    s.expect(data(1, 2, &stream(0, 1000)));
    s.send(ack(2, 1).window(0));
    for _ in 0..200 {
        s.wait(1000);
        if s.ignore() > 0 {
            s.send(ack(2, 1).window(0));
        }
    }
    s.send(ack(2, 1).window(1000));
    s.expect(data(1, 2, &stream(0, 1000)));
    s.silence(49);
    s.wait(1);
    s.expect(data(1, 2, &stream(0, 1000)));
    s.send(ack(2, 1001));
    assert_eq!((s.tcp().flows(), s.count(Count::GivenUp)), (1, 0));
}

#[test]
fn an_older_segment_does_not_change_the_window() {
    let mut s = replying(3000, 1000);
    s.expect(data(1, 2, &stream(0, 1000)));
    // The second of these overtakes the first, which says less.
    s.send(data(3, 1001, b"z").window(0));
    s.expect(ack(1001, 2));
    s.send(data(2, 1001, b"y").window(1000));
    s.expect(ack(1001, 4));
    s.send(ack(4, 1001).window(500));
    s.expect(data(1001, 4, &stream(1000, 500)));
}

#[test]
fn a_window_with_its_highest_bit_is_a_large_one() {
    let mut s = replying(14_600, 0x8001);
    assert_eq!(lens(&s.all()), [1460; 10]);
}

#[test]
fn a_shifted_window() {
    let mut s = Script::new(Config { send_bytes: 4096, ..config() }, Service::replies(4000));
    s.client().window = 183;
    s.open_with(syn().mss(1460).shift(4));
    s.send(data(1, 1, b"x"));
    assert_eq!(lens(&s.all()), [1460, 1460]);
    s.send(ack(2, 2921).window(100));
    s.expect(data(2921, 2, &stream(2920, 1080)));
    s.send(ack(2, 4001));
}

/// The window of a SYN is never shifted (RFC 7323 section 2.2). What opens the connection says a newer one, so all that is
/// left of it is how old an acknowledgement may be: as old as the largest window.
#[test]
fn the_window_of_a_syn_is_not_shifted() {
    let mut s = Script::new(config(), Service::sink());
    s.client().window = 10;
    s.send(syn().shift(10));
    s.expect(plain_syn_ack().shift(0));
    s.client().window = 0;
    s.send(ack(1, 1));
    s.send(data(1, 1_u32.wrapping_sub(11), b"x"));
    s.expect(ack(1, 1));
    assert_eq!((s.count(Count::BadAck), s.service().calls), (1, 0));
    s.send(data(1, 1_u32.wrapping_sub(10), b"x"));
    s.expect(ack(1, 2));
    assert_eq!((s.count(Count::BadAck), s.service().calls), (1, 1));
}

/// The sender's side of the silly window syndrome (RFC 9293 section 3.8.6.2.1).
#[test]
fn a_window_that_opens_a_little_is_not_filled_a_little() {
    let mut s = replying(10_000, 5840);
    assert_eq!(lens(&s.all()), [1460; 4]);
    // Ten bytes at a time: while there is something in flight.
    s.send(ack(2, 1461).window(4390));
    s.nothing();
    s.send(ack(2, 1461).window(4400));
    s.nothing();
    // A whole segment.
    s.send(ack(2, 1461).window(5840));
    assert_eq!(lens(&s.all()), [1460]);
    // And when nothing is in flight any more, it waits a while for a better one.
    s.send(ack(2, 7301).window(10));
    s.nothing();
    s.send(ack(2, 7301).window(20));
    s.silence(49);
    s.wait(2);
    s.expect(data(7301, 2, &stream(7300, 20)));
    s.send(ack(2, 7321).window(5840));
    assert_eq!(lens(&s.all()), [1460, 1220]);
}

/// What waited for a larger window has its own time from when it is sent.
#[test]
fn the_wait_for_a_larger_window_does_not_shorten_the_timeout() {
    let mut s = replying(3000, 2920);
    assert_eq!(lens(&s.all()), [1460, 1460]);
    s.send(ack(2, 2921).window(10));
    s.silence(30);
    s.send(ack(2, 2921).window(2920));
    s.expect(data(2921, 2, &stream(2920, 80)));
    s.silence(49);
    s.wait(1);
    s.expect(data(2921, 2, &stream(2920, 80)));
}

/// A server that was held up by its send buffer takes more once that has room, and the peer hears of the room that makes
/// even if nothing can be sent to it.
#[test]
fn our_window_opens_without_a_segment_to_go_along_with() {
    let mut s = Script::echo();
    s.open();
    let bytes = stream(0, 4096);
    s.burst([data(1, 1, &bytes[..1024]), data(1025, 1, &bytes[1024..2048])]);
    assert_eq!(lens(&s.all()), [1460, 588]);
    s.burst([data(2049, 1, &bytes[2048..3072]), data(3073, 1, &bytes[3072..])]);
    s.expect(ack(2049, 4097).window(0));
    s.send(ack(4097, 2049).window(0));
    s.expect(ack(2049, 4097).window(2048));
    s.send(ack(4097, 2049));
    assert_eq!(lens(&s.all()), [1460, 588]);
    s.send(ack(4097, 4097));
}

/// The same where the peer has a large window still: it hears of a whole segment more.
#[test]
fn a_large_window_opens_without_a_segment_to_go_along_with() {
    let mut s = Script::new(Config { receive_bytes: 8192, ..config() }, Service::echo());
    s.open();
    let bytes = stream(0, 6000);
    s.burst((0..6).map(|at| data(1 + 1000 * at, 1, &bytes[1000 * at as usize..][..1000])));
    assert_eq!(s.all().last().unwrap().window, Some(8192 - (6000 - 2048)));
    // Room for a little to go out: a little is taken in, and not worth a segment.
    s.send(ack(6001, 101).window(0));
    s.nothing();
    s.send(ack(6001, 2049).window(0));
    s.expect(ack(2049, 6001).window(8192 - (6000 - 2 * 2048)));
    s.send(ack(6001, 2049));
    assert_eq!(lens(&s.all()), [1460, 588]);
    s.send(ack(6001, 4097));
    s.ignore();
    s.send(ack(6001, 6001));
}

/// The receiver's side (section 3.8.6.2.2): with a server that gets room for its answers in sips the window opens by half
/// of the buffer, not by each sip.
#[test]
fn a_server_that_is_held_up_shows_no_silly_window() {
    let mut s = Script::echo();
    s.open();
    let (mut next, mut edge, mut acked, mut opened) = (1, 2049, 1, 0);
    for _ in 0..200 {
        let len = (edge - next).min(1000);
        let segment = data(next, acked, &stream(next as usize - 1, len as usize));
        next += len;
        s.send(if len > 0 { segment } else { ack(next, acked) });
        let mut newest = acked;
        for answer in s.all() {
            let new = answer.ack + u32::from(answer.window.unwrap());
            assert!(new == edge || new - answer.ack >= 1024, "{answer:?}, after an edge at {edge}");
            opened += u32::from(new > edge);
            edge = new;
            newest = newest.max(answer.seq + answer.payload.len() as u32);
        }
        acked += (newest - acked).min(150);
    }
    assert!(opened > 5 && next > 10_000, "{opened} times, {next} bytes");
}

#[test]
fn segments_are_as_large_as_the_peer_takes() {
    for (v6, offered, expected) in [
        (false, Some(1460), 1460),
        (false, Some(9000), 1460),
        (false, Some(700), 700),
        (false, None, 536),
        (false, Some(0), 48),
        (false, Some(47), 48),
        (true, Some(1440), 1440),
        (true, Some(9000), 1440),
        (true, None, 1220),
    ] {
        let mut s = Script::new(config(), Service::replies(2000));
        if v6 {
            s = s.with_client(Client::v6(40_000));
        }
        let mut offer = syn();
        offer.mss = offered;
        s.open_with(offer);
        s.send(data(1, 1, b"x"));
        let segments = s.all();
        let total: usize = lens(&segments).iter().sum();
        // Ten segments at first (RFC 6928).
        assert_eq!((total, segments[0].payload.len()), ((10 * expected).min(2000), expected), "{offered:?}");
    }
}

/// Options take of a segment's room (RFC 6691).
#[test]
fn options_make_segments_smaller() {
    let mut s = Script::new(config(), Service::replies(2000)).with_client(Client::with_timestamps(40_000));
    s.open_with(syn().mss(500).sack_permitted());
    s.send(data(1, 1, b"x"));
    assert_eq!(lens(&s.all()), [488, 488, 488, 488, 48]);
    // With ranges beyond gaps.
    let mut s = Script::new(config(), Service::replies(2000)).with_client(Client::with_timestamps(40_000));
    s.open_with(syn().mss(500).sack_permitted());
    s.burst([data(11, 1, b"a"), data(21, 1, b"b"), data(31, 1, b"c"), data(1, 1, b"x")]);
    let segments = s.all();
    assert_eq!(segments[0].sacks.len(), 3);
    assert_eq!(lens(&segments), [460, 460, 460, 460, 160]);
}

#[test]
fn small_frames_make_small_segments() {
    let config = Config { mtu: 1700, ..config() };
    let mut s = Script::new(config, Service::replies(1660));
    s.send(syn().mss(9000));
    s.expect(crate::segment::syn_ack().mss(1660));
    s.send(data(1, 1, b"x"));
    s.expect(data(1, 2, &stream(0, 1660)));
}
