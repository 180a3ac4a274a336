//! How connections end: by the client, by us, and by neither in order.

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    thread,
    time::Duration,
};

use rustix::net::sockopt;
use sheafio_tests::can_make_networks;

use crate::{Network, drops, end, last, number, wait};

/// The client ends first: it gets all that it sent, then our end. We end first: the client sees that, and may take its
/// time.
#[test]
fn each_side_may_end_first() {
    if !can_make_networks("each_side_may_end_first") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&[]);
    let mut stream = network.connect();
    let sent: Vec<u8> = (0..1_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut came = Vec::new();
    thread::scope(|scope| {
        let mut writer = stream.try_clone().unwrap();
        let sent = &sent;
        scope.spawn(move || {
            writer.write_all(sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        stream.read_to_end(&mut came).unwrap();
    });
    assert!(came == sent, "{} of {} bytes came", came.len(), sent.len());

    let mut stream = network.connect();
    stream.write_all(b"hello").unwrap();
    let mut five = [0; 5];
    stream.read_exact(&mut five).unwrap();
    server.signal(libc::SIGTERM);
    assert_eq!(stream.read(&mut five).unwrap(), 0, "an end, no reset");
    stream.write_all(b"nobody answers this").unwrap();
    drop(stream);
    let last = wait(server);
    assert_eq!((drops(&last, "cut"), drops(&last, "resets")), (0, 0), "{last}");
}

#[test]
fn a_busy_server_ends_in_order() {
    if !can_make_networks("a_busy_server_ends_in_order") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&[]);
    let idle = network.connect();
    let client = network.start_rr(&["--flows", "200", "--duration", "20s"]);
    client.wait_for_lines(1); // Its flows are connected and have run for a second.
    let last_of_server = end(server);
    assert!(number(&last_of_server["transactions"]) >= 200, "it was not busy: {last_of_server}");
    let ended = client.wait();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let errors = &last(&ended)["errors"];
    assert_eq!(number(&errors["closed"]) + number(&errors["resets"]), 200, "{errors}");
    assert_eq!((&errors["wrong_bytes"], &last(&ended)["flows"]), (&0.into(), &0.into()), "{errors}");
    // The one that did not end by itself.
    assert_eq!(drops(&last_of_server, "cut"), 1, "{last_of_server}");
    drop(idle);
}

/// A client goes away while what it has asked for is on its way to it, with an end or with a reset.
#[test]
fn a_close_with_data_in_flight_leaves_nothing_behind() {
    if !can_make_networks("a_close_with_data_in_flight_leaves_nothing_behind") {
        return;
    }
    let network = Network::new();
    let many = vec![7; 10_000_000];
    for (args, request) in [
        (&["--response-size", "3000000", "--request-size", "5"][..], &b"hello"[..]),
        // As many bytes as they send themselves, more than the client's kernel takes.
        (&[], &many),
    ] {
        let server = network.echo(args);
        let streams: Vec<_> = (0..30).map(|_| network.connect()).collect();
        thread::scope(|scope| {
            for (mut stream, number) in streams.into_iter().zip(0..) {
                scope.spawn(move || {
                    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
                    // All of it, or what is taken until we are held back for not reading.
                    let _ = stream.write_all(request);
                    stream.read_exact(&mut [0; 10]).unwrap();
                    if number % 3 == 0 {
                        stream.shutdown(Shutdown::Write).unwrap();
                    }
                    if number % 2 == 0 {
                        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                    }
                });
            }
        });
        server.wait_for_object("an end of all flows", |line| line["flows"] == 0 && line["closed"] == 31);
        let last = end(server);
        // Bytes that were not read are answered by a reset at the close of any kind.
        assert_eq!((number(&last["accepted"]), drops(&last, "resets")), (31, 30), "{last}");
        for name in ["cut", "accept_errors", "receive_errors", "send_errors"] {
            assert_eq!(drops(&last, name), 0, "{name}: {last}");
        }
    }
}

/// A response that is cut short because the server's time is over does not look like a whole one.
#[test]
fn what_is_cut_at_the_end_is_reset() {
    if !can_make_networks("what_is_cut_at_the_end_is_reset") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--response-size", "100000000", "--request-size", "5"]);
    let mut stream = network.connect();
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    let last = end(server);
    assert_eq!((drops(&last, "cut"), drops(&last, "resets")), (1, 0), "{last}");
    assert_eq!(number(&last["transactions"]), 0, "a part of a response is none: {last}");
    let error = stream.read_to_end(&mut Vec::new()).expect_err("an end in order");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Bytes of a response in the next test.
const RESPONSE: u64 = 1700;

/// Of many responses that a client does not read, one is cut somewhere: that is none, and its bytes are told all the same.
#[test]
fn a_response_that_is_cut_is_no_transaction() {
    if !can_make_networks("a_response_that_is_cut_is_no_transaction") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--response-size", &RESPONSE.to_string(), "--request-size", "5"]);
    let mut stream = network.connect();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    // As many as are taken while nothing is read.
    let _ = stream.write_all(&vec![7; 5_000_000]);
    let last = end(server);
    assert_eq!(drops(&last, "cut"), 1, "{last}");
    let (transactions, tx_bytes) = (number(&last["transactions"]), number(&last["tx_bytes"]));
    assert!(!tx_bytes.is_multiple_of(RESPONSE), "none was cut: {last}");
    assert_eq!(transactions, tx_bytes / RESPONSE, "{last}");
}
