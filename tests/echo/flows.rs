//! Connections: many of them, and odd ones.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::OwnedFd,
    thread,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use serde_json::Value;
use sheafio_tests::{Netns, can_make_networks, forget, read_what_was_held, write_until_held};

use crate::{
    CLIENT, Echo, Network, PATIENCE, SHARED, SHARED6, assert_echoes, assert_well, count, exchange, last,
    number, pattern, wait_until,
};

#[test]
fn every_byte_of_1_to_10_000_flows_comes_back() {
    if !can_make_networks("every_byte_of_1_to_10_000_flows_comes_back") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&[]);
    let (mut bytes, mut flows) = (0, 0);
    // An emulated machine is ten times as slow.
    let is_slow = std::env::var_os("SHEAFIO_GUEST").is_some();
    let (most, rate) = if is_slow { (1000, "400") } else { (10_000, "4000") };
    for (to, count, size, pace) in [
        (SHARED, 1, 1, &["--duration", "500ms"][..]),
        (SHARED6, 1, 64, &["--duration", "500ms"]),
        (SHARED, 100, 64, &["--duration", "500ms"]),
        (SHARED6, 100, 64, &["--duration", "500ms"]),
        // More than the buffers of a flow hold.
        (SHARED, 10, 10_000, &["--duration", "500ms"]),
        (SHARED6, 3, 500_000, &["--duration", "1s"]),
        // Each of them twice, and not all at once: 10,000 requests at a time are more than rings hold for a server that
        // has to wait for its CPU, and what gets lost again and again is asked again ever later.
        (SHARED, most, 64, &["--duration", "5s", "--rate", rate]),
    ] {
        let (count_text, size_text) = (count.to_string(), size.to_string());
        let ended = network.rr(to, &[&["--flows", &count_text, "--size", &size_text], pace].concat());
        let transactions = assert_well(&ended);
        assert!(transactions >= count, "each flow once: {ended:?}");
        assert_eq!(number(&last(&ended)["flows"]), count);
        flows += count;
        bytes += transactions * size;
    }
    let last = server.end();
    assert_eq!(crate::count(&last, "tcp_flows_opened"), flows, "{last}");
    assert_eq!((number(&last["rx_bytes"]), number(&last["tx_bytes"])), (bytes, bytes), "{last}");
    assert_eq!(crate::count(&last, "tcp_flow_limit") + crate::count(&last, "tcp_no_frame"), 0, "{last}");
}

#[test]
fn many_sockets_of_udp_are_answered() {
    if !can_make_networks("many_sockets_of_udp_are_answered") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--max-flows", "100"]);
    for (to, flows, size) in [(SHARED, "1", "1"), (SHARED6, "100", "1400"), (SHARED, "200", "64")] {
        let args = ["--proto", "udp", "--flows", flows, "--size", size, "--duration", "500ms"];
        assert_well(&network.rr(to, &args));
    }
    let last = server.end();
    assert!(count(&last, "udp_echoed") >= 301, "{last}");
}

#[test]
fn responses_may_be_larger_than_the_buffers() {
    if !can_make_networks("responses_may_be_larger_than_the_buffers") {
        return;
    }
    let network = Network::new();
    for (request, response, flows) in [("100", "100000", "5"), ("5000", "1", "5"), ("3", "3000", "100")] {
        let server =
            network.echo_tcp(&["--response-size", response, "--request-size", request, "--max-flows", "200"]);
        let args = ["--flows", flows, "--size", request, "--response-size", response, "--duration", "500ms"];
        let transactions = assert_well(&network.rr(SHARED, &args));
        let last = server.end();
        assert_eq!(number(&last["transactions"]), transactions, "{last}");
        assert_eq!(number(&last["tx_bytes"]), transactions * response.parse::<u64>().unwrap(), "{last}");
    }
}

/// Datagrams by the same rule, each answered by one; and counted as transactions, with TCP's.
#[test]
fn responses_of_udp_have_the_size_that_is_asked_for() {
    if !can_make_networks("responses_of_udp_have_the_size_that_is_asked_for") {
        return;
    }
    let network = Network::new();
    for (size, response) in [(64, 100), (1000, 3), (1, 1452)] {
        let (size_text, response_text) = (size.to_string(), response.to_string());
        let server = network.echo(&["--response-size", &response_text, "--max-flows", "100"]);
        let args = ["--flows", "20", "--size", &size_text, "--response-size", &response_text];
        let args = [&args[..], &["--duration", "300ms"]].concat();
        let mut transactions = 0;
        for to in [SHARED, SHARED6] {
            transactions += assert_well(&network.rr(to, &[&args[..], &["--proto", "udp"]].concat()));
        }
        let of_udp = transactions;
        // A request of TCP's is a reception.
        transactions += assert_well(&network.rr(SHARED, &args));
        let last = server.end();
        assert_eq!(count(&last, "udp_echoed"), of_udp, "{last}");
        let value = |key: &str| number(&last[key]);
        assert_eq!(value("transactions"), transactions, "{last}");
        assert_eq!((value("rx_bytes"), value("tx_bytes")), (transactions * size, transactions * response));
        assert!(
            last["tps"].as_f64() > Some(0.0) && last["cycles_per_transaction"].as_f64() > Some(0.0),
            "{last}"
        );
    }
    // Nothing was done, so there is nothing to divide by.
    let last = network.echo(&["--max-flows", "100"]).end();
    assert_eq!(last["cycles_per_transaction"], 0.0, "{last}");
}

/// A tunnel's interface carries less than the client believes: both directions have to keep to that.
#[test]
fn segments_fit_into_the_mtu_of_the_interface() {
    if !can_make_networks("segments_fit_into_the_mtu_of_the_interface") {
        return;
    }
    for mtu in ["1300", "1700"] {
        let network = Network::new();
        network.server.ip(&["link", "set", "ve0", "mtu", mtu]);
        // More than two segments, for no peer sends more than half of a window at once.
        let server = network.echo(&["--max-flows", "10", "--buffer", "65536"]);
        for (address, headers) in [(SHARED, 40), (SHARED6, 60)] {
            let mut stream = network.connect(address);
            // The client's own MTU is 1,500. Of each segment its kernel takes 12 bytes for timestamps.
            let largest = mtu.parse::<u32>().unwrap().min(1500) - headers - 12;
            let text = network.client.run("ss", &["--tcp", "--info", "--numeric", "--no-header"]);
            assert!(text.contains(&format!(" mss:{largest} ")), "MTU {mtu}, {address}: {text}");
            assert_echoes(&mut stream, &pattern(300_000));
        }
        server.wait_until_idle();
        let last = server.end();
        assert_eq!(count(&last, "tcp_timeouts"), 0, "{last}");
    }
}

/// A client whose kernel leaves checksums, and the cutting of segments, to its device, as all do if nobody tells them
/// otherwise. In generic mode nobody cuts them then, and what does not fit into a frame has a name and a remedy.
#[test]
fn a_client_may_leave_checksums_and_segments_to_its_device() {
    if !can_make_networks("a_client_may_leave_checksums_and_segments_to_its_device") {
        return;
    }
    for (mode, bytes) in [("native", 1_000_000), ("generic", 30_000)] {
        let network = Network::new();
        network.client.run("ethtool", &["-K", "ve1", "tx", "on", "tso", "on"]);
        let port = format!("ve0,mode={mode}");
        let cpu = sheafio_core::allowed_cpus().0.last().unwrap().to_string();
        let server = network.echo_at(&port, &["--udp", "7", "--cores", &cpu, "--max-flows", "10"]);
        for address in [SHARED, SHARED6] {
            assert_echoes(&mut network.connect(address), &pattern(bytes));
            let socket = network.udp(address);
            for len in [0, 1, 100, 1001, 1400] {
                let sent = pattern(len);
                socket.send(&sent).unwrap();
                let mut received = [0; 2000];
                let count = sheafio_tests::recv(&socket, &mut received).unwrap();
                assert!(received[..count] == sent, "{mode}, {address}: {count} of {len} bytes");
            }
        }
        server.wait_until_idle();
        network.assert_client_is_content();
        server.fwd.signal(libc::SIGTERM);
        let ended = server.fwd.wait();
        let last = Echo::assert_well(&ended);
        let too_large = ended.port(0, "rx_too_large") > 0;
        assert!(mode == "generic" || !too_large, "{last}");
        let is_told =
            ended.stderr.contains("rx_too_large: ") && ended.stderr.contains("ethtool -K PEER tso off");
        assert_eq!(is_told, too_large, "{}", ended.stderr);
    }
}

/// The client ends first: it gets the rest of what it sent, then our end. We end first: the client sees that, and may take
/// its time.
#[test]
fn each_side_may_end_first() {
    if !can_make_networks("each_side_may_end_first") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--max-flows", "100"]);
    for (address, bytes) in [(SHARED, 1_000_000), (SHARED6, 1_000_000), (SHARED, 1), (SHARED, 0)] {
        assert_echoes(&mut network.connect(address), &pattern(bytes));
    }
    server.wait_until_idle();

    let mut stream = network.connect(SHARED);
    exchange(&mut stream, b"hello");
    server.fwd.signal(libc::SIGTERM);
    assert_eq!(stream.read(&mut [0; 5]).unwrap(), 0, "an end, no reset");
    stream.write_all(b"nobody answers this").unwrap();
    drop(stream);
    let last = server.has_ended();
    assert_eq!(count(&last, "tcp_flows_opened"), 5, "{last}");
}

/// A client goes away while what it has asked for is on its way to it, with an end or with a reset.
#[test]
fn a_close_with_data_in_flight_leaves_nothing_behind() {
    if !can_make_networks("a_close_with_data_in_flight_leaves_nothing_behind") {
        return;
    }
    let network = Network::new();
    let server = network.echo_tcp(&["--response-size", "50000", "--request-size", "5", "--max-flows", "200"]);
    let mut streams: Vec<_> = (0..100).map(|_| network.connect(SHARED)).collect();
    for (stream, number) in streams.iter_mut().zip(0..) {
        stream.write_all(b"hello").unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        if number % 3 == 0 {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        if number % 2 == 0 {
            sockopt::set_socket_linger(&*stream, Some(Duration::ZERO)).unwrap();
        }
    }
    drop(streams);
    server.wait_until_idle();
    let last = server.end();
    assert_eq!(count(&last, "tcp_flows_opened"), 100, "{last}");
    assert!(count(&last, "tcp_reset_received") > 0, "{last}");
}

/// A socket that is bound to a port of the client's, and may have it again at once.
fn from_port(client: &Netns, port: u16) -> OwnedFd {
    client.enter(|| {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        sockopt::set_tcp_nodelay(&socket, true).unwrap();
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
        bind(&socket, &SocketAddr::new(crate::ip(CLIENT), port)).unwrap();
        socket
    })
}

/// A new connection from a port that had one just now, whatever became of that: it was ended by the client, was reset, or
/// is forgotten by the client without a word.
#[test]
fn one_port_connects_a_thousand_times() {
    if !can_make_networks("one_port_connects_a_thousand_times") {
        return;
    }
    let network = Network::new();
    // The client's own TIME-WAIT may be used again by its next connection, from the next tick of its clock on.
    let settings = ["-q", "-w", "net.ipv4.tcp_tw_reuse=1"];
    network.client.run("sysctl", &settings);
    let delay = ["-q", "-w", "net.ipv4.tcp_tw_reuse_delay=1"];
    let ends_too = network.client.succeeds("sysctl", &delay);
    if !ends_too {
        // Linux 6.14 has brought it; before, a second has to pass.
        println!("net.ipv4.tcp_tw_reuse_delay is not known here: each connection is reset");
    }
    let server = network.echo(&["--max-flows", "10"]);
    let to = SocketAddr::new(crate::ip(SHARED), 7);
    for number in 0..1000_u32 {
        let socket = from_port(&network.client, 4000);
        wait_until("a connection from the same port", || match connect(&socket, &to) {
            Ok(()) => true,
            // The client's clock has not ticked since the last one.
            Err(rustix::io::Errno::ADDRNOTAVAIL) => false,
            Err(error) => panic!("connection {number}: {error}"),
        });
        if number % 2 == 0 || !ends_too {
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        }
        exchange(&mut TcpStream::from(socket), &number.to_be_bytes());
    }
    // A client that was started anew does not know what it had; the server does, and has to find out.
    for number in 0..2_u32 {
        let socket = from_port(&network.client, 4001);
        connect(&socket, &to).unwrap();
        let mut stream = TcpStream::from(socket);
        exchange(&mut stream, &number.to_be_bytes());
        forget(stream);
    }
    let mut stream = TcpStream::from({
        let socket = from_port(&network.client, 4001);
        connect(&socket, &to).unwrap();
        socket
    });
    exchange(&mut stream, b"at last");
    drop(stream);
    server.wait_until_idle();
    let last = server.end();
    assert_eq!(count(&last, "tcp_flows_opened"), 1003, "{last}");
    let asked = count(&last, "tcp_challenged_syn") + count(&last, "tcp_out_of_window");
    assert!(asked >= 2, "the second connection is there at once: {last}");
}

/// Ended while 200 connections are busy and one is idle: each sees an end or a reset, and all frames come home.
#[test]
fn a_busy_server_ends_in_order() {
    if !can_make_networks("a_busy_server_ends_in_order") {
        return;
    }
    for size in ["64", "10000"] {
        let network = Network::new();
        let server = network.echo(&["--max-flows", "1000"]);
        let mut idle = network.connect(SHARED);
        let client = network.start_rr(SHARED, &["--flows", "200", "--size", size, "--duration", "25s"]);
        server.fwd.wait_for_object("traffic of all flows", |line| {
            line["flows"] == 201 && number(&line["transactions"]) > 2000
        });
        let last_of_server = server.end();
        let ended = client.wait();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let errors = &last(&ended)["errors"];
        assert_eq!(number(&errors["closed"]) + number(&errors["resets"]), 200, "{errors}");
        assert_eq!((&errors["wrong_bytes"], &last(&ended)["flows"]), (&0.into(), &0.into()), "{errors}");
        // The idle client saw an end, and did not end in turn, so it was reset.
        assert_eq!(idle.read(&mut [0]).unwrap(), 0);
        assert!(count(&last_of_server, "tcp_resets_sent") >= 1, "{last_of_server}");
        let error = idle.write_all(b"x").and_then(|()| idle.write_all(b"x")).unwrap_err().kind();
        assert!(matches!(error, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
    }
}

/// How often the client of the next test falls silent.
const ROUNDS: u64 = 15;

/// A client that has got its response and says nothing acknowledges it late, to save a packet. That is no loss.
#[test]
fn acknowledgements_that_come_late_repeat_nothing() {
    if !can_make_networks("acknowledgements_that_come_late_repeat_nothing") {
        return;
    }
    // A machine that is short of CPU time can be late by more than any client: then once more. A server that takes
    // lateness for loss is wrong in each round of each run.
    let mut repeated = Vec::new();
    for _ in 0..5 {
        let network = Network::new();
        let server = network.echo(&["--max-flows", "10"]);
        let mut stream = network.connect(SHARED);
        // The first acknowledgements of a connection come at once, and later those to a client that seldom speaks: it has to
        // ask some times in a row to have its kernel expect that an acknowledgement may go along with what it asks next.
        for _ in 0..50 {
            exchange(&mut stream, &pattern(64));
        }
        for _ in 0..ROUNDS {
            for _ in 0..5 {
                exchange(&mut stream, &pattern(64));
            }
            thread::sleep(Duration::from_millis(120));
        }
        let late = number(&network.client.nstat()["TcpExtDelayedACKs"]);
        drop(stream);
        server.wait_until_idle();
        let last = server.end();
        if count(&last, "tcp_retransmits") == 0 {
            assert!(late >= ROUNDS / 2, "the client acknowledged late {late} times: nothing was tried");
            return;
        }
        repeated.push(count(&last, "tcp_retransmits"));
    }
    panic!("segments were sent again in each of five runs: {repeated:?}");
}

/// A client that writes and does not read is not read from either, and gets everything in the end; others are served.
#[test]
fn a_client_that_does_not_read_is_held_back() {
    if !can_make_networks("a_client_that_does_not_read_is_held_back") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--max-flows", "100"]);
    let mut stream = network.connect(SHARED);
    let written = write_until_held(&mut stream);
    assert_well(&network.rr(SHARED, &["--flows", "10", "--duration", "300ms"]));
    // A line of the time in which it is held back.
    let held: Value = server.fwd.wait_for_object("a held client", |line| line["flows"] == 1);
    assert!(number(&held["pool"]["application"]) < 300, "what waits is bounded: {held}");
    read_what_was_held(&mut stream, written);
    server.wait_until_idle();
    let last = server.end();
    assert!(count(&last, "tcp_window_probes") > 0, "{last}");
}
