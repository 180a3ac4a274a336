//! `sheafio rr` against `sheafio echo --stack kernel`, over a veth between namespaces: every byte of every flow; how flows
//! end; what becomes of clients and of machines that do not behave.
//!
//! What `rr` says of servers that do not is in `rr.rs`.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use sheafio_tests::{Ended, Fwd, Netns, Refusal, Veth, can_make_networks, datagram, sheafio, socket};

const SERVER: &str = "10.0.0.2";
const CLIENT: &str = "10.0.0.1";

/// A server's namespace, and a client's with a veth to it.
struct Network {
    server: Netns,
    client: Veth,
}

impl Network {
    fn new() -> Self {
        let server = Netns::new("echo");
        let client = Veth::new(&server, "ve0", CLIENT, 1);
        server.ip(&["addr", "add", &format!("{SERVER}/24"), "dev", "ve0"]);
        Self { server, client }
    }

    /// `sheafio echo --stack kernel` with more arguments, once it accepts connections on port 7.
    fn echo(&self, args: &[&str]) -> Fwd {
        let always = ["echo", "--stack", "kernel", "--json", "--hugepages", "off", "--idle", "adaptive"];
        let words = [&always[..], &["--tcp", "7"], args].concat();
        let server = Fwd::start_program(&self.server, sheafio(), &words);
        drop(self.connect());
        server
    }

    fn connect(&self) -> TcpStream {
        let start = Instant::now();
        self.client.peer.enter(|| {
            loop {
                match TcpStream::connect((SERVER, 7)) {
                    Ok(stream) => return stream,
                    Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "no server: {error}"),
                }
                thread::sleep(Duration::from_millis(5));
            }
        })
    }

    fn start_rr(&self, args: &[&str]) -> Fwd {
        // The server's default is another one, where there are two.
        let cpu = sheafio_core::allowed_cpus().0[0].to_string();
        let cores: &[&str] = if args.contains(&"--cores") { &[] } else { &["--cores", &cpu] };
        let words = [&["rr", "--json", "--to", "10.0.0.2:7"], cores, args].concat();
        Fwd::start_program(&self.client.peer, sheafio(), &words)
    }

    /// `sheafio rr` to its end.
    fn rr(&self, args: &[&str]) -> Ended {
        self.start_rr(args).wait()
    }
}

fn last(ended: &Ended) -> &Value {
    let last = ended.lines.last().unwrap_or_else(|| panic!("nothing was printed: {ended:?}"));
    assert_eq!(last["final"], true, "{ended:?}");
    last
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A client for which all went well. Returns how many transactions it had.
fn assert_well(ended: &Ended) -> u64 {
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let last = last(ended);
    let errors = last["errors"].as_object().unwrap();
    assert_eq!(errors.len(), 7, "{last}");
    assert!(errors.iter().all(|(_, count)| *count == 0 || *count == serde_json::json!({})), "{last}");
    number(&last["transactions"]) + number(&last["after_end"])
}

/// Ends a server, whose frames must all be home. Returns its last object.
fn end(server: Fwd) -> Value {
    server.signal(libc::SIGTERM);
    wait(server)
}

/// The same for one that was told to end already.
fn wait(server: Fwd) -> Value {
    let ended = server.wait();
    assert_eq!((ended.code, &last(&ended)["conserved"]), (Some(0), &true.into()), "{ended:?}");
    let last = last(&ended);
    let pool = |key: &str| number(&last["pool"][key]);
    assert_eq!((pool("free"), pool("retired"), number(&last["flows"])), (pool("frames"), 0, 0), "{last}");
    assert_eq!(last["accepted"], last["closed"], "{last}");
    last.clone()
}

fn drops(last: &Value, reason: &str) -> u64 {
    number(&last["drops"][reason])
}

#[test]
fn every_byte_of_1_to_10_000_flows_comes_back() {
    if !can_make_networks("every_byte_of_1_to_10_000_flows_comes_back") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&[]);
    let (mut transactions, mut flows) = (0, 0);
    for (count, size) in [(1, 1), (1, 64), (100, 64), (10, 10_000), (3, 200_000), (10_000, 64)] {
        let (count_text, size_text) = (count.to_string(), size.to_string());
        let ended = network.rr(&["--flows", &count_text, "--size", &size_text, "--duration", "500ms"]);
        let here = assert_well(&ended);
        assert!(here >= count, "each flow once: {ended:?}");
        assert_eq!(number(&last(&ended)["flows"]), count);
        flows += count;
        transactions += here * size;
    }
    let last = end(server);
    // And the one that looked whether the server is there.
    assert_eq!(number(&last["accepted"]), flows + 1);
    assert_eq!(
        (number(&last["rx_bytes"]), number(&last["tx_bytes"])),
        (transactions, transactions),
        "{last}"
    );
    assert!(last["drops"].as_object().unwrap().values().all(|count| *count == 0), "{last}");
}

#[test]
fn two_lcores_share_the_flows() {
    if !can_make_networks("two_lcores_share_the_flows") {
        return;
    }
    let cpus = sheafio_core::allowed_cpus();
    if cpus.0.len() < 2 {
        return sheafio_tests::skip("two_lcores_share_the_flows", "there is one CPU");
    }
    let cores = format!("{},{}", cpus.0[0], cpus.0[1]);
    let network = Network::new();
    let server = network.echo(&["--cores", &cores]);
    let ended = network.rr(&["--flows", "200", "--cores", &cores, "--duration", "300ms"]);
    assert_well(&ended);
    let last = end(server);
    assert!(
        last["lcores"].as_array().unwrap().iter().all(|lcore| lcore["cycles_per_transaction"] != 0.0),
        "{last}"
    );
}

#[test]
fn responses_have_the_size_that_is_asked_for() {
    if !can_make_networks("responses_have_the_size_that_is_asked_for") {
        return;
    }
    let network = Network::new();
    for (server_args, client_args, requests) in [
        (&["--response-size", "5000"][..], &["--size", "10", "--response-size", "5000"][..], 5000),
        (
            &["--response-size", "100", "--request-size", "30000"],
            &["--size", "30000", "--response-size", "100"],
            100,
        ),
        (
            &["--response-size", "60000", "--request-size", "1"],
            &["--size", "1", "--response-size", "60000"],
            60_000,
        ),
    ] {
        let server = network.echo(server_args);
        let ended = network.rr(&[client_args, &["--flows", "8", "--duration", "300ms"]].concat());
        let transactions = assert_well(&ended);
        let last = end(server);
        assert_eq!(
            (number(&last["transactions"]), number(&last["tx_bytes"])),
            (transactions, transactions * requests)
        );
    }
    // What a wrong size leads to is seen.
    let server = network.echo(&["--response-size", "11"]);
    let ended = network.rr(&["--size", "10", "--response-size", "10", "--duration", "300ms"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(last(&ended)["errors"]["wrong_bytes"], 11, "{ended:?}");
    end(server);
}

#[test]
fn datagrams_are_answered_and_those_that_would_loop_are_not() {
    if !can_make_networks("datagrams_are_answered_and_those_that_would_loop_are_not") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--udp", "7,9000"]);
    let mut transactions = 0;
    for size in ["1", "64", "1400", "1748"] {
        let ended = network.rr(&["--proto", "udp", "--flows", "50", "--size", size, "--duration", "200ms"]);
        transactions += assert_well(&ended);
    }
    let peer = socket(&network.client.peer, CLIENT);
    peer.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let ask = |socket: &std::net::UdpSocket, bytes: &[u8]| {
        socket.send_to(bytes, (SERVER, 9000)).unwrap();
        let mut buffer = [0; 4000];
        socket.recv(&mut buffer).map(|len| buffer[..len].to_vec()).ok()
    };
    assert_eq!(ask(&peer, b""), Some(Vec::new()), "a datagram without bytes");
    assert_eq!(ask(&peer, &datagram(1, 1748)), Some(datagram(1, 1748)));
    assert_eq!(ask(&peer, &datagram(1, 1749)), None, "one that no frame holds");
    for port in [7, 9000] {
        let looping = network.client.peer.enter(|| std::net::UdpSocket::bind((CLIENT, port)).unwrap());
        looping.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert_eq!(ask(&looping, b"x"), None);
    }
    let last = end(server);
    assert_eq!((drops(&last, "udp_too_large"), drops(&last, "udp_loop")), (1, 2), "{last}");
    assert_eq!(number(&last["transactions"]), transactions + 2);
}

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

/// A client that writes and does not read is not read from either, and gets everything in the end.
#[test]
fn a_client_that_does_not_read_is_held_back() {
    if !can_make_networks("a_client_that_does_not_read_is_held_back") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&[]);
    let mut stream = network.connect();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let piece: Vec<u8> = (0..251).collect();
    let mut written = 0_usize;
    loop {
        // Ever on in the same pattern, however much of it is taken.
        let at = written % piece.len();
        match stream.write(&piece[at..]) {
            Ok(count) => written += count,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                break;
            }
        }
        assert!(written < 1 << 30, "nothing holds it back");
    }
    // Meanwhile others are served.
    assert_well(&network.rr(&["--flows", "10", "--duration", "300ms"]));
    stream.shutdown(Shutdown::Write).unwrap();
    let mut came = Vec::new();
    stream.read_to_end(&mut came).unwrap();
    assert_eq!(came.len(), written);
    assert!(came.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % piece.len()));
    server.signal(libc::SIGTERM);
    let ended = server.wait();
    // Each line of the run: what waited was never more than the few frames of one flow.
    for line in &ended.lines {
        assert!(number(&line["pool"]["in_flight"]) < 4096 + 128, "{line}");
    }
    assert_eq!((ended.code, &last(&ended)["conserved"]), (Some(0), &true.into()), "{ended:?}");
}

/// liburing#1275: more arrives at once than there are buffers; receptions end, and begin again when there are some.
#[test]
fn few_buffers_are_enough_for_many_flows() {
    if !can_make_networks("few_buffers_are_enough_for_many_flows") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--frames", "64", "--udp", "7"]);
    let ended = network.rr(&["--flows", "300", "--size", "3000", "--duration", "500ms"]);
    assert!(assert_well(&ended) >= 300);
    assert_well(&network.rr(&["--proto", "udp", "--flows", "100", "--duration", "300ms"]));
    let last = end(server);
    assert!(drops(&last, "no_buffer") > 0, "there were enough: {last}");
}

#[test]
fn flows_beyond_the_limit_are_closed_and_counted() {
    if !can_make_networks("flows_beyond_the_limit_are_closed_and_counted") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--max-flows", "5"]);
    // The connection that looked for the server may not be closed there yet.
    thread::sleep(Duration::from_millis(200));
    let ended = network.rr(&["--flows", "8", "--duration", "300ms"]);
    let errors = &last(&ended)["errors"];
    assert_eq!(
        (ended.code, number(&errors["closed"]) + number(&errors["resets"])),
        (Some(1), 3),
        "{ended:?}"
    );
    assert_eq!(drops(&end(server), "flows_refused"), 3);
}

#[test]
fn a_machine_without_io_uring_is_told_why() {
    if !can_make_networks("a_machine_without_io_uring_is_told_why") {
        return;
    }
    let network = Network::new();
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    for words in
        [&["echo", "--stack", "kernel", "--tcp", "7", "--json"][..], &["rr", "--to", "10.0.0.2:7", "--json"]]
    {
        for error in [libc::EPERM, libc::ENOSYS] {
            let refusal = Refusal { call: libc::SYS_io_uring_setup, arguments: &[], error };
            let ended = refusal.start_command(&network.server, words).wait();
            assert_eq!(ended.code, Some(1), "{ended:?}");
            let named = format!("kernel.io_uring_disabled is {}", disabled.trim());
            for part in ["io_uring: making a ring: ", "seccomp filter", &named] {
                assert!(ended.stderr.contains(part), "{}", ended.stderr);
            }
        }
    }
}

#[test]
fn what_can_not_be_had_is_refused_in_one_line() {
    if !can_make_networks("what_can_not_be_had_is_refused_in_one_line") {
        return;
    }
    let network = Network::new();
    let _server = network.echo(&[]);
    for (args, parts) in [
        (&["--tcp", "7"][..], &["can't listen on tcp 0.0.0.0:7", "Another program", "ss -tlnp"][..]),
        (&["--tcp", "8", "--ip", "10.9.9.9"], &["can't listen on tcp 10.9.9.9:8", "ip addr"]),
        (&["--tcp", "8", "--ip", "10.0.0.2/24"], &["--ip 10.0.0.2/...", "give --ip 10.0.0.2"]),
        (&["--tcp", "8", "--frames", "63"], &["--frames 63", "64 or more"]),
        (
            &["--tcp", "8", "--max-flows", "1000000"],
            &["--max-flows 1000000", "limit of open files", "ulimit -n"],
        ),
        (&["--tcp", "8,9,8"], &["--tcp: port 8 is named twice"]),
        (&["--tcp", "0"], &["0 is not in 1..=65535"]),
        (&[], &["nothing to serve", "--tcp"]),
        (&["--icmp"], &["--icmp", "the kernel answers pings itself"]),
        (&["--tcp", "8", "-p", "ve0"], &["-p ve0", "--stack user"]),
        (&["--tcp", "8", "--request-size", "5"], &["--response-size"]),
        (&["--udp", "8", "--response-size", "4000"], &["room for 1748 bytes", "--frame-size 4096"]),
    ] {
        let words = [&["echo", "--stack", "kernel", "--json"], args].concat();
        let line = Fwd::start_program(&network.server, sheafio(), &words).wait().refusal();
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
}
