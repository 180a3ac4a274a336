//! What `sheafio rr` says of servers that do not behave, and of input that can't be.

mod accounts;

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream, UdpSocket},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::Value;
use sheafio_tests::{Ended, Fwd, Netns, can_make_networks, run_sheafio, sheafio};

/// A namespace with nothing but its loopback.
fn loopback(test: &str) -> Option<Netns> {
    can_make_networks(test).then(|| Netns::new("rr"))
}

/// A server whose connections are each handled by a thread.
fn serve(netns: &Netns, handle: impl Fn(TcpStream) + Clone + Send + 'static) -> String {
    let listener = netns.enter(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let handle = handle.clone();
            thread::spawn(move || handle(stream.unwrap()));
        }
    });
    address
}

fn rr(netns: &Netns, to: &str, args: &[&str]) -> Ended {
    let words = [&["rr", "--json", "--duration", "300ms", "--to", to], args].concat();
    Fwd::start_program(netns, sheafio(), &words).wait()
}

/// Answers requests until there are no more.
fn echo(mut stream: TcpStream) {
    while let Some(bytes) = request(&mut stream) {
        let _ = stream.write_all(&bytes);
    }
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

/// A flow that has died is closed: else it would stay one of the server's, who has to keep it.
#[test]
fn the_server_is_told_of_a_flow_that_has_died() {
    let Some(netns) = loopback("the_server_is_told_of_a_flow_that_has_died") else { return };
    let (number, is_told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let to = serve(&netns, move |mut stream| {
        if number.fetch_add(1, Ordering::Relaxed) == 0 {
            request(&mut stream);
            let _ = stream.write_all(&[0; 64]);
            let _ = stream.read_to_end(&mut Vec::new());
            is_told.store(true, Ordering::Relaxed);
            return;
        }
        while let Some(bytes) = request(&mut stream) {
            if is_told.load(Ordering::Relaxed) {
                return;
            }
            let _ = stream.write_all(&bytes);
        }
    });
    // The second flow goes on until the server has seen the end of the first one, and the run as long as that does.
    let words = ["rr", "--json", "--duration", "100s", "--flows", "2", "--to", &to];
    let ended = Fwd::start_program(&netns, sheafio(), &words).wait();
    assert_eq!((ended.code, &last(&ended)["errors"]["closed"]), (Some(1), &1.into()), "{ended:?}");
    assert!(last(&ended)["errors"]["wrong_bytes"].as_u64() > Some(0), "{ended:?}");
}

/// A local port is one towards each server, not one for all of them.
#[test]
fn each_server_has_all_ports_of_a_local_address() {
    let Some(netns) = loopback("each_server_has_all_ports_of_a_local_address") else { return };
    let (one, other) = (serve(&netns, echo), serve(&netns, echo));
    netns.enter(|| fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40019").unwrap());
    let args = ["--to", &other, "--from", "127.0.0.2", "--flows", "40"];
    let ended = rr(&netns, &one, &args);
    assert_eq!((ended.code, &last(&ended)["flows"]), (Some(0), &40.into()), "{ended:?}");
    // 21 to each of them are one too many.
    let args = ["--to", &other, "--from", "127.0.0.3", "--flows", "42"];
    assert_wrong(&rr(&netns, &one, &args), &[("connect", 2)], "local ports have run out");
}

#[test]
fn several_threads_addresses_and_servers_share_the_flows() {
    let Some(netns) = loopback("several_threads_addresses_and_servers_share_the_flows") else { return };
    let peers = [(); 2].map(|()| Arc::new(Mutex::new(BTreeMap::<IpAddr, usize>::new())));
    let [one, other] = peers.clone().map(|peers| {
        serve(&netns, move |stream| {
            *peers.lock().unwrap().entry(stream.peer_addr().unwrap().ip()).or_default() += 1;
            echo(stream);
        })
    });
    let cpus: Vec<_> = sheafio_core::allowed_cpus().0.into_iter().take(2).collect();
    let list = sheafio_core::CpuList(cpus.clone()).to_string();
    let words = ["rr", "--json", "--duration", "1h", "--to", &one, "--to", &other];
    let words =
        [&words[..], &["--from", "127.0.0.2", "--from", "127.0.0.3"], &["--flows", "9", "--cores", &list]];
    let running = Fwd::start_program(&netns, sheafio(), &words.concat());
    running.wait_for_lines(1);
    let names: Vec<_> = fs::read_dir(format!("/proc/{}/task", running.pid()))
        .unwrap()
        .map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap())
        .collect();
    for cpu in cpus {
        assert!(names.contains(&format!("client-{cpu}\n")), "{names:?}");
    }
    let ended = running.end();
    assert_eq!((ended.code, &last(&ended)["flows"]), (Some(0), &9.into()), "{ended:?}");
    // Dealt out over the servers first, then over the addresses.
    let from =
        |first, second| BTreeMap::from([([127, 0, 0, 2].into(), first), ([127, 0, 0, 3].into(), second)]);
    assert_eq!(peers.map(|peers| peers.lock().unwrap().clone()), [from(3, 2), from(2, 2)]);
    // An address that is not this machine's.
    let ended = rr(&netns, &one, &["--from", "10.1.1.1", "--flows", "2"]);
    assert_wrong(&ended, &[("connect", 2)], "--from is no address of this machine");
}

#[test]
fn bad_input_gets_one_line_and_exit_code_2() {
    for (args, parts) in [
        (&["--to", "nowhere"][..], &["--to nowhere", "HOST:PORT"][..]),
        (&["--to", "127.0.0.1:0"], &["--to 127.0.0.1:0", "1 to 65535"]),
        (&["--to", "fd00::2:7"], &["--to fd00::2:7", "brackets", "[fd00::2]:7"]),
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

#[test]
fn more_flows_than_open_files_are_refused() {
    // On some machines a process may open a million.
    let script = "ulimit -n 1000 && exec \"$0\" rr --to 127.0.0.1:7 --flows 1000";
    let output =
        Command::new("sh").args(["-c", script]).arg(sheafio()).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.trim_end().lines().count()), (Some(2), 1), "{stderr}");
    for part in
        ["--flows 1000:", "open files", "limit is 1000", "935 or fewer", "ulimit -Hn", "several processes"]
    {
        assert!(stderr.contains(part), "no '{part}' in: {stderr}");
    }
}
