//! Programs that nobody here wrote: what they send is answered as they expect.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
};

use rustix::process::{Pid, Signal, kill_process};
use sheafio_tests::{Direction, Fwd, can_make_networks, faithful, transport_at};

use crate::{Network, OWN, OWN6, SHARED, SHARED6, count, exchange, packets, pattern};

/// A program that talks, by its standard input and output.
struct Talk {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Talk {
    fn start(network: &Network, words: &[&str]) -> Self {
        let mut command = Command::new("ip");
        // However it goes on, it ends.
        command.args(["netns", "exec", &network.client.name, "timeout", "60"]).args(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, to, from }
    }

    /// Says something that is answered by itself, a line.
    fn assert_answers(&mut self, line: &str) {
        let to = self.to.as_mut().unwrap();
        to.write_all(line.as_bytes()).unwrap();
        to.flush().unwrap();
        let mut answer = String::new();
        self.from.read_line(&mut answer).unwrap();
        assert_eq!(answer, line);
    }

    /// Says all of this and no more; must get it back, and end well.
    fn assert_echoes(mut self, bytes: &[u8]) {
        let mut to = self.to.take().unwrap();
        let mut back = Vec::new();
        thread::scope(|scope| {
            scope.spawn(move || to.write_all(bytes).unwrap());
            self.from.read_to_end(&mut back).unwrap();
        });
        assert!(back == bytes, "{} of {} bytes came back", back.len(), bytes.len());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // timeout(1) passes it on. It has ended by itself already if it is waited for.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

#[test]
fn nc_and_curl_get_back_what_they_send() {
    if !can_make_networks("nc_and_curl_get_back_what_they_send") {
        return;
    }
    let network = Network::new();
    let own = ["--ip", "10.0.0.9/24", "--ip", "fd00::9/64"];
    for (options, v4, v6) in [(&[][..], SHARED, SHARED6), (&own[..], OWN, OWN6)] {
        let server = network.echo(&[&["--max-flows", "100"], options].concat());
        for address in [v4, v6] {
            for bytes in [&b""[..], b"hello\n", &pattern(1_000_000)] {
                // -N: its half ends when its input does.
                Talk::start(&network, &["nc", "-N", address, "7"]).assert_echoes(bytes);
            }
            let mut by_udp = Talk::start(&network, &["nc", "-u", address, "7"]);
            let url = if address == v4 { format!("telnet://{v4}:7") } else { format!("telnet://[{v6}]:7") };
            let mut by_curl = Talk::start(&network, &["curl", "--silent", "--no-buffer", &url]);
            for number in 0..10 {
                let line = format!("line {number}: {}\n", "x".repeat(number * 100));
                by_udp.assert_answers(&line);
                by_curl.assert_answers(&line);
            }
        }
        server.wait_until_idle();
        let last = server.end();
        assert_eq!((count(&last, "tcp_flows_opened"), count(&last, "udp_echoed")), (8, 20), "{last}");
    }
}

/// sockperf takes for an answer only what has the bit of its header cleared that says it is from a client. An echo server
/// does not know of it; so the wire clears it.
fn answers() -> Direction {
    /// Where its flags lie in a message: behind a number of 64 bits, the low byte last.
    const FLAGS_AT: usize = 9;
    const FROM_CLIENT: u8 = 1;
    Box::new(|frame, out| {
        out.extend(frame.map(|mut frame| {
            let udp = transport_at(&frame, packets::UDP).map(|at| (at + 6, at + 8));
            let tcp = transport_at(&frame, packets::TCP)
                .map(|at| (at + 16, at + usize::from(frame[at + 12] >> 4) * 4));
            if let Some((checksum_at, message_at)) = udp.or(tcp) {
                clear(&mut frame, checksum_at, message_at + FLAGS_AT, FROM_CLIENT);
            }
            frame
        }));
    })
}

/// Clears a bit, if there is a byte at all and the bit is set, and mends the checksum (RFC 1624).
fn clear(frame: &mut [u8], checksum_at: usize, at: usize, bit: u8) {
    // The checksum counts 16-bit words, of which messages begin at even places: this is a low byte.
    if frame.get(at).is_some_and(|byte| byte & bit != 0) {
        frame[at] &= !bit;
        let old = u16::from_be_bytes([frame[checksum_at], frame[checksum_at + 1]]);
        let mut sum = u32::from(old) + u32::from(bit);
        sum = (sum & 0xffff) + (sum >> 16);
        frame[checksum_at..checksum_at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
    }
}

#[test]
fn sockperf_measures_tcp_and_udp() {
    if !can_make_networks("sockperf_measures_tcp_and_udp") {
        return;
    }
    let network = Network::with_something_between();
    let _relay = network.relay(faithful(), answers());
    let server = network.echo(&["--max-flows", "10"]);
    // It knows no IPv6.
    for protocol in [&["--tcp"][..], &[]] {
        let words = ["ping-pong", "-i", SHARED, "-p", "7", "-t", "1", "-m", "200", "--data-integrity"];
        let text = network.client.run("sockperf", &[&words[..], protocol].concat());
        // It says so of each message that was lost, doubled, changed or out of order.
        let well = "# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0";
        assert!(text.contains(well) && text.contains("Summary: Latency is"), "{text}");
        assert!(!text.to_lowercase().contains("integrity"), "{text}");
    }
    server.wait_until_idle();
    let last = server.end();
    assert!(count(&last, "udp_echoed") > 20 && count(&last, "tcp_flows_opened") == 1, "{last}");
}

/// iperf3 needs a server of its own: it is the kernel's, on another port of the address that is shared.
#[test]
fn iperf3_and_its_server_go_on_beside_ours() {
    if !can_make_networks("iperf3_and_its_server_go_on_beside_ours") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--max-flows", "10"]);
    let mut stream = network.connect(SHARED);
    for extra in [&[][..], &["--reverse"]] {
        let args = ["--server", "--one-off", "--forceflush", "--bind", SHARED];
        let service = Fwd::start_program(&network.server, "iperf3".into(), &args);
        network.wait_for_listener("5201");
        let args = [&["--client", SHARED, "--bytes", "20M", "--json"], extra].concat();
        let text = thread::scope(|scope| {
            let client = scope.spawn(|| network.client.run("iperf3", &args));
            while !client.is_finished() {
                exchange(&mut stream, &pattern(1000));
            }
            client.join().unwrap()
        });
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        // What is still on its way when it has sent all, it does not count as received.
        assert!(report["end"]["sum_sent"]["bytes"].as_u64() >= Some(20_000_000), "{text}");
        assert!(report["end"]["sum_received"]["bytes"].as_u64() >= Some(1_000_000), "{text}");
        assert_eq!(service.wait().code, Some(0));
    }
    drop(stream);
    server.wait_until_idle();
    let last = server.end();
    assert_eq!((count(&last, "tcp_flows_opened"), count(&last, "tcp_no_flow")), (1, 0), "{last}");
}
