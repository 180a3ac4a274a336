//! What `sheafio rr` counts, and what it says of it: time, latency, what was due.

use std::{
    fs,
    io::{self, BufRead as _, Read, Write},
    net::TcpListener,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::Value;
use sheafio_tests::{Fwd, sheafio};

use super::{assert_wrong, last, loopback, request, rr, serve};

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
    assert_eq!(last["latency_us"]["count"], 600, "{last}");
}

/// Flows that are reset, and others that never were connected, have transactions due to the end all the same.
#[test]
fn the_open_loop_omits_nothing_of_dead_flows() {
    let Some(netns) = loopback("the_open_loop_omits_nothing_of_dead_flows") else { return };
    let number = Arc::new(AtomicUsize::new(0));
    let to = serve(&netns, move |mut stream| {
        let is_good = number.fetch_add(1, Ordering::Relaxed) == 0;
        for number in 0.. {
            // Closing what has not been read is a reset (RFC 2525, 2.17).
            while !is_good && number == 5 && stream.peek(&mut [0]).unwrap() == 0 {}
            if !is_good && number == 5 {
                return;
            }
            let Some(bytes) = request(&mut stream) else { return };
            let _ = stream.write_all(&bytes);
        }
    });
    let words = [
        "rr",
        "--json",
        "--duration",
        "2s",
        "--flows",
        "6",
        "--rate",
        "300",
        "--to",
        &to,
        "--to",
        "127.0.0.1:9",
    ];
    let ended = Fwd::start_program(&netns, sheafio(), &words).wait();
    assert_wrong(&ended, &[("connect", 3), ("resets", 2)], "nothing listens");
    let last = last(&ended);
    let count = |value: &Value| value.as_u64().unwrap();
    let answered = count(&last["transactions"]) + count(&last["after_end"]);
    // The two that were reset had one request each under way. Of the 600 transactions that were due half were those of
    // flows that could not be connected, and a sixth those of the one that was answered.
    assert_eq!(answered + 2 + count(&last["unsent"]), 600, "{last}");
    assert_eq!((count(&last["latency_us"]["count"]), &last["flows"]), (600, &1.into()), "{last}");
    assert!(answered <= 100 + 2 * 5 && count(&last["unsent"]) >= 300 + 2 * (100 - 6), "{last}");
}

/// A run is as long as requests were sent: what is told of a part of it is not the whole duration's.
#[test]
fn a_run_that_ends_early_is_not_told_as_a_full_one() {
    let Some(netns) = loopback("a_run_that_ends_early_is_not_told_as_a_full_one") else { return };
    let to = serve(&netns, |mut stream| {
        for _ in 0..5 {
            let bytes = request(&mut stream).unwrap();
            let _ = stream.write_all(&bytes);
        }
        let _ = request(&mut stream);
    });
    let words = ["rr", "--json", "--duration", "1h", "--flows", "3", "--to", &to];
    let ended = Fwd::start_program(&netns, sheafio(), &words).wait();
    assert_wrong(&ended, &[("closed", 3)], "the server has closed the connection");
    let last = last(&ended);
    let (seconds, tps) = (last["t_s"].as_f64().unwrap(), last["tps"].as_f64().unwrap());
    assert!(seconds > 0.0 && seconds < 3600.0, "{last}");
    assert!((tps * seconds - 15.0).abs() < 1.0 + seconds, "{last}");
}

/// A signal while flows are being connected: nothing ran, and nothing is told of it.
#[test]
fn what_never_ran_has_no_time_and_no_latency() {
    let Some(netns) = loopback("what_never_ran_has_no_time_and_no_latency") else { return };
    // Nobody accepts, and the backlog has room for one: the kernel drops further connections, which try for long.
    let listener = netns.enter(|| TcpListener::bind("127.0.0.1:0").unwrap());
    rustix::net::listen(&listener, 0).unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let running = Fwd::start_program(&netns, sheafio(), &["rr", "--json", "--flows", "4", "--to", &to]);
    // A connection whose state is 2, TCP_SYN_SENT (net/tcp_states.h), is in the fourth column.
    let is_connecting = |line: &str| line.split_whitespace().nth(3) == Some("02");
    let connections = || netns.enter(|| fs::read_to_string("/proc/thread-self/net/tcp").unwrap());
    while !connections().lines().any(is_connecting) {
        thread::sleep(Duration::from_millis(1));
    }
    let ended = running.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let last = last(&ended);
    assert_eq!((&last["t_s"], &last["tps"]), (&0.0.into(), &0.0.into()), "{last}");
    for quantile in ["p50", "p99", "p99_9", "max"] {
        assert_eq!(last["latency_us"].get(quantile), Some(&Value::Null), "{last}");
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
    // Ended by hand, for on a busy machine no line may come in a given time.
    let mut child = netns.enter(|| {
        let mut command = Command::new(sheafio());
        command.args(["rr", "--to", &to, "--flows", "3", "--duration", "1h"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    });
    let mut out = io::BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("\nt = ") {
        assert!(out.read_line(&mut text).unwrap() > 0, "it has ended: {text}");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    out.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    for part in [
        "rr: tcp to 127.0.0.1",
        "3 flow(s)",
        " s: 3 flows",
        "/s",
        "p99.9",
        " us",
        "from sending",
        "errors        none",
    ] {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
}

/// What a count means is said where it is shown, and what there is none of has no figure.
#[test]
fn the_text_says_what_its_counts_mean() {
    let Some(netns) = loopback("the_text_says_what_its_counts_mean") else { return };
    let text = |to: &str, args: &[&str]| {
        let output = netns.enter(|| {
            let mut command = Command::new(sheafio());
            command.args(["rr", "--flows", "2", "--duration", "100ms", "--to", to]).args(args);
            command.stdin(Stdio::null()).output().unwrap()
        });
        String::from_utf8(output.stdout).unwrap()
    };
    // Answers that all come after the end: the first request of each flow is answered when the whole time is over.
    let to = serve(&netns, |mut stream| {
        while let Some(bytes) = request(&mut stream) {
            thread::sleep(Duration::from_secs(2));
            let _ = stream.write_all(&bytes);
        }
    });
    let slow = text(&to, &["--rate", "100"]);
    for part in
        ["after the end 2 (answered once the time was over", "unsent        8 (were due, and waited", "p50 "]
    {
        assert!(slow.contains(part), "no '{part}' in:\n{slow}");
    }
    let refused = text("127.0.0.1:9", &[]);
    assert!(refused.contains("latency       -\n"), "{refused}");
}
