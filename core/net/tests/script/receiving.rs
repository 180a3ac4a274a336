//! What arrives: in order, out of order, twice, over each other, and beyond the window.

use sheafio_net::{Count, tcp::Config};

use crate::{
    peer::{Script, config, plain_syn_ack},
    segment::{ack, data, fin, stream, syn},
    service::Service,
};

/// A connection whose bytes are only taken, with selective acknowledgements.
fn sink() -> Script {
    let mut s = Script::new(config(), Service::sink());
    s.open_with(syn().sack_permitted());
    s
}

#[test]
fn a_burst_gets_one_answer() {
    let mut s = Script::echo();
    s.open();
    s.burst([data(1, 1, b"one"), data(4, 1, b"two"), data(7, 1, b"three")]);
    s.expect(data(1, 12, b"onetwothree"));
    s.nothing();
}

#[test]
fn ranges_beyond_gaps_are_told_the_newest_first() {
    let mut s = sink();
    let bytes = stream(0, 1000);
    s.send(data(201, 1, &bytes[200..300]));
    s.expect(ack(1, 1).sacks(&[(201, 301)]));
    s.send(data(401, 1, &bytes[400..500]));
    s.expect(ack(1, 1).sacks(&[(401, 501), (201, 301)]));
    s.send(data(601, 1, &bytes[600..700]));
    s.expect(ack(1, 1).sacks(&[(601, 701), (201, 301), (401, 501)]));
    // The one that has grown now is the first, and they are three at most.
    s.send(data(301, 1, &bytes[300..350]));
    s.expect(ack(1, 1).sacks(&[(201, 351), (401, 501), (601, 701)]));
    s.send(data(801, 1, &bytes[800..900]));
    s.expect(ack(1, 1).sacks(&[(801, 901), (201, 351), (401, 501)]));
    // Two become one.
    s.send(data(351, 1, &bytes[350..400]));
    s.expect(ack(1, 1).sacks(&[(201, 501), (601, 701), (801, 901)]));
    // The gaps are filled from the front.
    s.send(data(1, 1, &bytes[..200]));
    s.expect(ack(1, 501).sacks(&[(601, 701), (801, 901)]));
    s.send(data(701, 1, &bytes[700..800]));
    s.expect(ack(1, 501).sacks(&[(601, 901)]));
    s.send(data(501, 1, &bytes[500..600]));
    s.expect(ack(1, 901));
    s.send(data(901, 1, &bytes[900..]));
    s.expect(ack(1, 1001));
    assert!(s.service().got == bytes);
    assert_eq!(s.held(), 0);
}

#[test]
fn without_permission_no_ranges_are_told() {
    let mut s = Script::new(config(), Service::sink());
    s.open();
    s.send(data(6, 1, b"world"));
    s.expect(ack(1, 1));
    s.send(data(1, 1, b"hello"));
    s.expect(ack(1, 11));
    assert_eq!(s.service().got, b"helloworld");
}

#[test]
fn more_gaps_than_are_kept_track_of_come_again() {
    let mut s = sink();
    let bytes = stream(0, 600);
    for at in (100..600).step_by(100) {
        s.send(data(1 + at as u32, 1, &bytes[at..at + 50]));
    }
    assert_eq!(s.count(Count::TooManyGaps), 1);
    s.ignore();
    // What is in order is taken all the same.
    for at in (0..550).step_by(50) {
        s.send(data(1 + at as u32, 1, &bytes[at..at + 50]));
    }
    s.ignore();
    s.send(data(551, 1, &bytes[550..]));
    s.expect(ack(1, 601));
    assert!(s.service().got == bytes);
}

/// Each order in which five segments can come, one of which ends the stream.
#[test]
fn every_order_gives_the_same_stream() {
    let bytes = stream(0, 500);
    let mut orders = vec![vec![]];
    for piece in 0..5 {
        orders = (orders.iter())
            .flat_map(|order: &Vec<usize>| {
                (0..=order.len()).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, piece);
                    order
                })
            })
            .collect();
    }
    assert_eq!(orders.len(), 120);
    for order in orders {
        let mut s = sink();
        let mut answer = None;
        for piece in &order {
            let from = piece * 100;
            let bytes = &bytes[from..from + 100];
            let seq = 1 + from as u32;
            s.send(if *piece == 4 { fin(seq, 1).bytes(bytes) } else { data(seq, 1, bytes) });
            answer = s.all().pop();
        }
        assert!(s.service().got == bytes, "{order:?}");
        assert_eq!((answer.unwrap().ack, s.service().ended), (502, 1), "{order:?}");
        assert_eq!(s.held(), 0);
    }
}

#[test]
fn what_comes_twice_counts_once() {
    let mut s = sink();
    s.send(data(1, 1, b"hello"));
    s.expect(ack(1, 6));
    s.send(data(1, 1, b"hello"));
    s.expect(ack(1, 6));
    // A part of it is new.
    s.send(data(3, 1, b"llo world"));
    s.expect(ack(1, 12));
    // It lies within what came.
    s.send(data(4, 1, b"lo w"));
    s.expect(ack(1, 12));
    assert_eq!(s.service().got, b"hello world");
    assert_eq!(s.count(Count::OutOfWindow), 2);
}

#[test]
fn segments_over_each_other_beyond_a_gap() {
    let bytes = stream(0, 400);
    let piece = |from: usize, to: usize| data(1 + from as u32, 1, &bytes[from..to]);
    // Over the front, over the back, inside, all around, the same, touching.
    for (first, second) in [
        ((200, 300), (150, 250)),
        ((200, 300), (250, 350)),
        ((200, 300), (220, 280)),
        ((220, 280), (200, 300)),
        ((200, 300), (200, 300)),
        ((200, 300), (300, 350)),
        ((200, 300), (150, 200)),
    ] {
        let mut s = sink();
        s.send(piece(first.0, first.1));
        s.next();
        s.send(piece(second.0, second.1));
        let (start, end) = (first.0.min(second.0) as u32, first.1.max(second.1) as u32);
        s.expect(ack(1, 1).sacks(&[(1 + start, 1 + end)]));
        // What fills the gap lies over a part of it as well.
        s.send(piece(0, 230));
        s.expect(ack(1, 1 + end));
        assert!(s.service().got == bytes[..end as usize], "{first:?} {second:?}");
        s.send(piece(100, 400));
        s.expect(ack(1, 401));
        assert!(s.service().got == bytes, "{first:?} {second:?}");
        assert_eq!(s.held(), 0);
    }
}

#[test]
fn what_lies_beyond_the_window_is_cut_off_and_comes_again() {
    let bytes = stream(0, 2100);
    for is_end in [false, true] {
        let mut s = Script::new(config(), Service { sip: 0, ..Service::sink() });
        s.open();
        s.send(data(1, 1, &bytes[..1000]));
        s.expect(ack(1, 1001).window(1048));
        let rest = data(1001, 1, &bytes[1000..]);
        s.send(if is_end { rest.with(crate::segment::FIN) } else { rest });
        s.expect(ack(1, 2049).window(0));
        assert_eq!(s.service().ended, 0);
        // A window that is closed takes nothing, and says so.
        s.send(data(2049, 1, &bytes[2048..]));
        s.expect(ack(1, 2049).window(0));
        s.send(fin(2049, 1));
        s.expect(ack(1, 2049).window(0));
        assert_eq!(s.service().ended, 0);
    }
}

#[test]
fn segments_at_the_edges_of_the_window() {
    let mut s = Script::new(config(), Service::sink());
    s.open();
    // Within the window, and the first number behind it.
    s.send(data(2047, 1, b"z"));
    s.expect(ack(1, 1));
    assert_eq!((s.count(Count::OutOfOrder), s.count(Count::OutOfWindow)), (1, 0));
    s.send(data(2049, 1, b"z"));
    s.expect(ack(1, 1));
    assert_eq!((s.count(Count::OutOfOrder), s.count(Count::OutOfWindow)), (1, 1));
    // Empty ones up to the edge are fine, as they are sent behind bytes that are on their way.
    s.send(ack(2049, 1));
    s.nothing();
    s.send(ack(2050, 1));
    s.expect(ack(1, 1));
    // An end behind the edge, and one in the last number.
    s.send(fin(2049, 1));
    s.expect(ack(1, 1));
    assert_eq!(s.count(Count::OutOfWindow), 3);
    s.send(fin(2048, 1));
    s.expect(ack(1, 1));
    s.send(data(1, 1, &stream(0, 2046)));
    s.expect(fin(1, 2049)); // The byte beyond the gap, and the end behind it.
    s.send(ack(2049, 2));
}

#[test]
fn the_window_in_the_answer_to_a_syn_is_kept() {
    let mut s = Script::new(Config { receive_bytes: 4096, ..config() }, Service::sink());
    s.send(syn());
    s.expect(plain_syn_ack().window(4096));
    s.send(ack(1, 1));
    s.burst([data(1, 1, &stream(0, 2048)), data(2049, 1, &stream(2048, 2048))]);
    s.expect(ack(1, 4097));
    assert!(s.service().got == stream(0, 4096));
}

/// The application is shown a request in pieces until it is whole, and what it does not take is shown again.
#[test]
fn what_is_not_taken_is_shown_again() {
    let mut s = Script::new(config(), Service { sip: 3, ..Service::echo() });
    s.open();
    s.send(data(1, 1, b"abcdefgh"));
    s.expect(data(1, 9, b"abc"));
    s.send(data(9, 4, b"i"));
    s.expect(data(4, 10, b"def"));
    s.send(data(10, 7, b"j"));
    s.expect(data(7, 11, b"ghi"));
    s.send(fin(11, 10));
    s.expect(fin(10, 12).bytes(b"j"));
    s.send(ack(12, 12));
    assert_eq!((s.tcp().flows(), s.held()), (0, 0));
}
