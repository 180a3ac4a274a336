//! What `sheafio rr` says of servers that do not behave, and of input that can't be.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use serde_json::Value;
use sheafio_tests::{Ended, Fwd, Netns, can_make_networks, run_sheafio, sheafio};

/// A namespace with nothing but its loopback.
fn loopback(test: &str) -> Option<Netns> {
    can_make_networks(test).then(|| Netns::new("rr"))
}

/// A server whose connections are each handled by a thread.
fn serve(netns: &Netns, handle: fn(TcpStream)) -> String {
    let listener = netns.enter(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || handle(stream.unwrap()));
        }
    });
    address
}

fn rr(netns: &Netns, to: &str, args: &[&str]) -> Ended {
    let words = [&["rr", "--json", "--duration", "300ms", "--to", to], args].concat();
    Fwd::start_program(netns, sheafio(), &words).wait()
}

fn last(ended: &Ended) -> &Value {
    ended.lines.last().unwrap_or_else(|| panic!("nothing was printed: {ended:?}"))
}

/// The end of a run in which something went wrong: exactly these, in so many words.
fn assert_wrong(ended: &Ended, errors: &[(&str, u64)], words: &str) {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    for (name, count) in last(ended)["errors"].as_object().unwrap() {
        let expected = errors.iter().find(|(error, _)| error == name).map_or(0, |(_, count)| *count);
        let found = count
            .as_u64()
            .unwrap_or_else(|| count.as_object().unwrap().values().filter_map(Value::as_u64).sum());
        assert_eq!(found, expected, "{name}: {ended:?}");
    }
}

/// Reads a request of 64 bytes; `None` at the end.
fn request(stream: &mut TcpStream) -> Option<[u8; 64]> {
    let mut bytes = [0; 64];
    stream.read_exact(&mut bytes).ok().map(|()| bytes)
}

#[test]
fn one_wrong_byte_is_found() {
    let Some(netns) = loopback("one_wrong_byte_is_found") else { return };
    let to = serve(&netns, |mut stream| {
        for number in 0.. {
            let Some(mut bytes) = request(&mut stream) else { return };
            bytes[40] ^= u8::from(number == 3);
            let _ = stream.write_all(&bytes);
        }
    });
    let ended = rr(&netns, &to, &["--flows", "5"]);
    assert_wrong(&ended, &[("wrong_bytes", 5)], "1 wrong bytes among");
    assert!(ended.stderr.contains("of the response to request 3"), "{}", ended.stderr);
    assert_eq!((&last(&ended)["flows"], &last(&ended)["transactions"]), (&0.into(), &15.into()));
}

/// The answers of two flows change places: the bytes are right, but others'.
#[test]
fn another_flows_answer_is_wrong() {
    let Some(netns) = loopback("another_flows_answer_is_wrong") else { return };
    let listener = netns.enter(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let to = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut one, mut other) = (listener.accept().unwrap().0, listener.accept().unwrap().0);
        let requests = (request(&mut one).unwrap(), request(&mut other).unwrap());
        one.write_all(&requests.1).unwrap();
        other.write_all(&requests.0).unwrap();
        let _ = (request(&mut one), request(&mut other));
    });
    let ended = rr(&netns, &to, &["--flows", "2"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let wrong = last(&ended)["errors"]["wrong_bytes"].as_u64().unwrap();
    assert!((100..=128).contains(&wrong) && last(&ended)["transactions"] == 0, "{ended:?}");
}

#[test]
fn bytes_that_nobody_asked_for_are_wrong() {
    let Some(netns) = loopback("bytes_that_nobody_asked_for_are_wrong") else { return };
    let to = serve(&netns, |mut stream| {
        let bytes = request(&mut stream).unwrap();
        let _ = stream.write_all(&[&bytes[..], b"more"].concat());
        let _ = request(&mut stream);
    });
    let ended = rr(&netns, &to, &[]);
    assert_eq!(
        (ended.code, ended.stderr.contains("that nobody asked for") || ended.stderr.contains("wrong bytes")),
        (Some(1), true),
        "{ended:?}"
    );
    assert!(last(&ended)["errors"]["wrong_bytes"].as_u64() > Some(0), "{ended:?}");
}

#[test]
fn resets_ends_silence_and_refusals_are_told_apart() {
    let Some(netns) = loopback("resets_ends_silence_and_refusals_are_told_apart") else { return };
    // Closing what has not been read is a reset (RFC 2525, 2.17).
    let to = serve(&netns, |stream| while stream.peek(&mut [0]).unwrap() == 0 {});
    assert_wrong(&rr(&netns, &to, &["--flows", "4"]), &[("resets", 4)], "no transaction was answered");
    let to = serve(&netns, |mut stream| _ = request(&mut stream));
    assert_wrong(
        &rr(&netns, &to, &["--flows", "4"]),
        &[("closed", 4)],
        "the server has closed the connection",
    );
    let to = serve(&netns, |mut stream| while request(&mut stream).is_some() {});
    assert_wrong(&rr(&netns, &to, &["--flows", "4"]), &[("unfinished", 4)], "no transaction was answered");
    let ended = rr(&netns, "127.0.0.1:9", &["--flows", "4"]);
    assert_wrong(&ended, &[("connect", 4)], "nothing listens at 127.0.0.1:9");
    assert_eq!(last(&ended)["errors"]["connect"]["Connection refused"], 4);
}

/// A server that answers some datagrams: lost ones cost a time-out, and the flow goes on; late answers are no wrong ones.
#[test]
fn lost_and_late_datagrams_are_told_apart() {
    let Some(netns) = loopback("lost_and_late_datagrams_are_told_apart") else { return };
    let server = netns.enter(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    let to = server.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut buffer, mut lost) = ([0; 2000], None);
        for number in 0.. {
            let Ok((len, from)) = server.recv_from(&mut buffer) else { return };
            if number == 1 {
                lost = Some(buffer[..len].to_vec());
                continue;
            }
            // The second one is answered when the client has given it up, and has asked again.
            if let Some(lost) = lost.take() {
                let _ = server.send_to(&lost, from);
            }
            let _ = server.send_to(&buffer[..len], from);
        }
    });
    let words = ["rr", "--json", "--proto", "udp", "--duration", "2s", "--to", &to];
    let ended = Fwd::start_program(&netns, sheafio(), &words).wait();
    assert_wrong(&ended, &[("timeouts", 1)], "");
    assert!(last(&ended)["late"] == 1 && last(&ended)["transactions"].as_u64() > Some(2), "{ended:?}");
}

/// Every transaction that was due is accounted for, though the server answers none after the first few.
#[test]
fn the_open_loop_omits_nothing() {
    let Some(netns) = loopback("the_open_loop_omits_nothing") else { return };
    let to = serve(&netns, |mut stream| {
        for number in 0.. {
            let Some(bytes) = request(&mut stream) else { return };
            if number < 5 {
                let _ = stream.write_all(&bytes);
            }
        }
    });
    let ended = rr(&netns, &to, &["--flows", "4", "--rate", "2000"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let last = last(&ended);
    let count = |value: &Value| value.as_u64().unwrap();
    let answered = count(&last["transactions"]) + count(&last["after_end"]);
    assert_eq!((answered, count(&last["errors"]["unfinished"])), (20, 4), "{last}");
    // 2,000/s for 300 ms.
    assert_eq!(answered + 4 + count(&last["unsent"]), 600, "{last}");
    assert_eq!(last["latency_us"]["from"], "due");
    // Most of them have waited for as long as answers are waited for at least, and count with that.
    assert!(last["latency_us"]["p50"].as_f64() >= Some(5e6), "{last}");
}

#[test]
fn several_threads_addresses_and_servers_share_the_flows() {
    let Some(netns) = loopback("several_threads_addresses_and_servers_share_the_flows") else { return };
    let echo = |mut stream: TcpStream| {
        while let Some(bytes) = request(&mut stream) {
            let _ = stream.write_all(&bytes);
        }
    };
    let (one, other) = (serve(&netns, echo), serve(&netns, echo));
    let cpus = sheafio_core::allowed_cpus().to_string();
    let args =
        ["--to", &other, "--from", "127.0.0.2", "--from", "127.0.0.3", "--flows", "9", "--cores", &cpus];
    let ended = rr(&netns, &one, &args);
    assert_eq!((ended.code, &last(&ended)["flows"]), (Some(0), &9.into()), "{ended:?}");
    // An address that is not this machine's.
    let ended = rr(&netns, &one, &["--from", "10.1.1.1", "--flows", "2"]);
    assert_wrong(&ended, &[("connect", 2)], "--from is no address of this machine");
}

#[test]
fn bad_input_gets_one_line_and_exit_code_2() {
    for (args, parts) in [
        (&["--to", "nowhere"][..], &["--to nowhere", "HOST:PORT"][..]),
        (&["--to", "127.0.0.1:0"], &["--to 127.0.0.1:0", "1 to 65535"]),
        (
            &["--to", "127.0.0.1:7", "--flows", "1000000"],
            &["--flows 1000000", "open files", "ulimit -Hn", "several processes"],
        ),
        (&["--to", "127.0.0.1:7", "--size", "0"], &["--size <BYTES>"]),
        (&["--to", "127.0.0.1:7", "--proto", "udp", "--size", "3841"], &["3841 bytes", "1 to 3840"]),
        (&["--to", "127.0.0.1:7", "--rate", "-1"], &["--rate <N>", "transactions/s"]),
        (&["--to", "127.0.0.1:7", "--from", "::1"], &["--to 127.0.0.1:7", "another kind than --from"]),
        (&["--to", "127.0.0.1:7", "--from", "::1", "--from", "127.0.0.1"], &["--from", "one kind"]),
        (&[], &["--to <HOST:PORT>"]),
    ] {
        let output = run_sheafio(&[&["rr"], args].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), stderr.trim_end().lines().count()),
            (Some(2), 1),
            "{args:?}: {stderr}"
        );
        assert!(parts.iter().all(|part| stderr.contains(part)), "{args:?}: {stderr}");
    }
}

/// People see a line a second, and the result with its units.
#[test]
fn the_text_names_units_and_errors() {
    let Some(netns) = loopback("the_text_names_units_and_errors") else { return };
    let to = serve(&netns, |mut stream| {
        while let Some(bytes) = request(&mut stream) {
            let _ = stream.write_all(&bytes);
            thread::sleep(Duration::from_millis(1));
        }
    });
    let program = sheafio();
    let text =
        netns.run(program.to_str().unwrap(), &["rr", "--to", &to, "--flows", "3", "--duration", "1200ms"]);
    for part in [
        "rr: tcp to 127.0.0.1",
        "3 flow(s)",
        "t = 1.0 s: 3 flows",
        "/s",
        "p99.9",
        " us",
        "from sending",
        "errors        none",
    ] {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
}
