//! `sheafio rr` against `sheafio echo --stack kernel`, over a veth between namespaces: every byte of every flow; how flows
//! end; what becomes of clients and of machines that do not behave.
//!
//! What lies where: `datagrams` is about UDP, `ending` about how connections end, `machine` about what is not allowed here. What
//! `rr` says of servers that do not behave is in `rr.rs`.

mod datagrams;
mod ending;
mod machine;

use std::{
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use sheafio_tests::{
    Ended, Fwd, Netns, Veth, can_make_networks, read_what_was_held, sheafio, write_until_held,
};

const SERVER: &str = "10.0.0.2";
const CLIENT: &str = "10.0.0.1";
const SERVER6: &str = "fd00::2";
const CLIENT6: &str = "fd00::1";

/// The longest that anything may take: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(30);

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
        server.add_ipv6("ve0", &format!("{SERVER6}/64"));
        client.peer.add_ipv6("ve1", &format!("{CLIENT6}/64"));
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
        self.start_rr_to("10.0.0.2:7", args)
    }

    fn start_rr_to(&self, to: &str, args: &[&str]) -> Fwd {
        // The server's default is another one, where there are two.
        let cpu = sheafio_core::allowed_cpus().0[0].to_string();
        let cores: &[&str] = if args.contains(&"--cores") { &[] } else { &["--cores", &cpu] };
        let words = [&["rr", "--json", "--to", to], cores, args].concat();
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
    // However long the machine takes for 10,000 ends, they are the clients'.
    server.wait_for_object("an end of all flows", |line| line["closed"] == flows + 1);
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

/// A client that writes and does not read is not read from either, and gets everything in the end.
#[test]
fn a_client_that_does_not_read_is_held_back() {
    if !can_make_networks("a_client_that_does_not_read_is_held_back") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&[]);
    let mut stream = network.connect();
    let written = write_until_held(&mut stream);
    // Meanwhile others are served.
    assert_well(&network.rr(&["--flows", "10", "--duration", "300ms"]));
    read_what_was_held(&mut stream, written);
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
