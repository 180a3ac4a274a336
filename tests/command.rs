//! The `sheafio` command over ports that need no rights.

use std::process::{Command, Stdio};

use serde_json::Value;
use sheafio_tests::{run_sheafio, sheafio};

/// Runs `sheafio fwd --json` and gives the JSON objects that it printed.
fn fwd(args: &[&str]) -> Vec<Value> {
    let output = run_sheafio(&[&["fwd", "--json", "--hugepages", "off"], args].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn every_mode_runs_over_sim_ports_and_conserves_frames() {
    for mode in ["io", "mac", "macswap", "rxonly", "txonly", "icmpecho"] {
        for faults in ["none", "wakeup", "late", "reorder", "full", "all"] {
            let port = |seed| format!("sim:{seed},seed={seed},packets=5000,faults={faults}");
            let (one, other) = (port(1), port(2));
            let lines = fwd(&["-p", &one, "-p", &other, "--mode", mode, "--duration", "100ms"]);
            let last = lines.last().unwrap();
            assert_eq!(
                (&last["final"], &last["conserved"], &last["unexplained"]),
                (&true.into(), &true.into(), &0.into())
            );
            let total = |key: &str| {
                last["ports"].as_array().unwrap().iter().map(|port| number(&port[key])).sum::<u64>()
            };
            match mode {
                "rxonly" => assert!(total("rx_packets") > 0 && total("tx_packets") == 0),
                "txonly" => assert!(total("rx_packets") == 0 && total("tx_packets") > 0),
                // Generated packets are UDP: nothing to answer.
                "icmpecho" => {
                    assert!(total("rx_packets") > 0 && total("tx_packets") == 0);
                    let drops = |port: usize| number(&last["ports"][port]["drops"]["not_for_us"]);
                    assert_eq!(drops(0) + drops(1), total("rx_packets"), "{last}");
                }
                _ => assert!(total("rx_packets") > 0 && total("tx_packets") > 0),
            }
        }
    }
}

#[test]
fn a_run_ends_when_all_devices_are_gone_and_not_before() {
    let run = |other: &str| {
        let args =
            ["fwd", "--json", "--hugepages", "off", "--duration", "2s", "-p", "sim:0,remove_at=100", "-p"];
        let output = run_sheafio(&[&args[..], &[other]].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let last: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        assert_eq!((&last["final"], &last["conserved"]), (&true.into(), &true.into()));
        let line = "warning: sim:0: the device of queue 0 is gone: it was removed\n";
        assert_eq!(stderr.matches(line).count(), 1, "{stderr}");
        (output.status.code(), stderr.contains("the devices of all ports are gone: this ends the run"))
    };
    assert_eq!(run("sim:1,remove_at=500"), (Some(1), true));
    assert_eq!(run("sim:1"), (Some(0), false));
    assert_eq!(run("null:0"), (Some(0), false));
}

#[test]
fn the_packet_limit_is_exact_and_shared_among_the_lcores() {
    for packets in [1, 31, 100, 4097] {
        let last = fwd(&["-p", "null:0", "-p", "null:1", "--packets", &packets.to_string()]).pop().unwrap();
        let received = number(&last["ports"][0]["rx_packets"]) + number(&last["ports"][1]["rx_packets"]);
        assert_eq!(received, packets);
    }
    // All packets come to one of two ports, then to one of two lcores.
    let ports = ["-p", "sim:0,packets=0", "-p", "sim:1,packets=9000,len=100"];
    let last = fwd(&[&ports[..], &["--mode", "rxonly", "--packets", "900"]].concat()).pop().unwrap();
    assert_eq!(
        number(&last["ports"][1]["rx_packets"]) - number(&last["ports"][1]["drops"]["rx_unread"]),
        900
    );
    let last = fwd(&["-p", "sim:0,packets=0", "--mode", "txonly", "--packets", "1000"]).pop().unwrap();
    assert_eq!(number(&last["ports"][0]["tx_packets"]), 1000);
}

#[test]
fn a_line_a_second_has_the_documented_keys_and_the_last_one_is_final() {
    let lines = fwd(&["-p", "null:0", "--duration", "2200ms"]);
    assert_eq!(lines.len(), 3);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for line in &lines[..2] {
        assert_eq!(keys(line), ["lcores", "pool", "ports", "t_s"]);
        let whole = ["frames", "free", "in_flight", "lanes", "retired", "rings"];
        assert_eq!(
            keys(&line["pool"]),
            [&["application", "barn", "by_cache", "caches", "counts"][..], &whole].concat()
        );
        assert_eq!(keys(&line["pool"]["by_cache"][0]), ["counts", "cpu", "frames", "zone"]);
        let counts =
            ["barn_failures", "barn_gets", "barn_in", "barn_out", "barn_puts", "borrowed", "flushes"];
        let more =
            ["foreign", "given", "given_slowly", "lane_gets", "lane_in", "lane_out", "lane_puts", "retired"];
        let rest = ["short", "taken", "taken_slowly"];
        assert_eq!(keys(&line["pool"]["counts"]), [&counts[..], &more, &rest].concat());
        assert_eq!(keys(&line["lcores"][0]), ["busy", "cpu", "cycles_per_packet"]);
        let port = ["rx_bytes", "rx_packets", "rx_pps", "tx_bytes", "tx_packets", "tx_pps"];
        assert_eq!(keys(&line["ports"][0]), [&["by_queue", "drops", "held", "name"][..], &port].concat());
        assert_eq!(keys(&line["ports"][0]["by_queue"][0]), ["dropped", "rx_packets", "tx_packets"]);
        assert!(line["ports"][0]["rx_pps"].as_f64().unwrap() > 0.0);
        assert!(line["lcores"][0]["busy"].as_f64().unwrap() > 0.9);
    }
    assert_eq!(keys(&lines[2]), ["conserved", "final", "lcores", "pool", "ports", "t_s", "unexplained"]);
}

#[test]
fn the_table_names_units_and_ends_with_a_verdict() {
    let output = run_sheafio(&["fwd", "-p", "null:0", "--duration", "1100ms"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in
        ["rx packets/s", "tx bits/s", "cycles/packet", "busy", "frames", "every frame is accounted for"]
    {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
}

/// A CPU that was given and has nothing to do is told of.
#[test]
fn cpus_without_work_are_told() {
    let all = sheafio_core::allowed_cpus();
    let [first, second, ..] = all.0[..] else {
        sheafio_tests::skip("cpus_without_work_are_told", "there is one CPU only");
        return;
    };
    let (one, both) = (first.to_string(), format!("{first},{second}"));
    for (cores, queues, idle) in [(&both, 1, true), (&both, 2, false), (&one, 1, false)] {
        let port = format!("null:0,queues={queues}");
        let output = run_sheafio(&["fwd", "-p", &port, "--duration", "100ms", "--cores", cores]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert_eq!(text.contains(&format!("CPUs {second} get no work")), idle, "{cores}, {queues}: {text}");
    }
}

/// PcapPlusPlus#1099: two ports need no second core.
#[test]
fn two_ports_run_on_one_core() {
    let cpu = sheafio_core::allowed_cpus().0[0].to_string();
    let run = |cores: &[&str]| {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu]).arg(sheafio()).args(["fwd", "-p", "sim:0,packets=1000,queues=2"]);
        command.args(["-p", "sim:1,packets=1000,queues=2", "--duration", "200ms", "--json"]).args(cores);
        command.stdin(Stdio::null()).output().unwrap()
    };
    for cores in [&[][..], &["--cores", &cpu]] {
        let output = run(cores);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(last["lcores"].as_array().unwrap().len(), 1);
        assert_eq!(number(&last["ports"][0]["rx_packets"]) + number(&last["ports"][1]["rx_packets"]), 2000);
    }
    // A CPU outside of the process's set is refused with those that are in it.
    let other = (0..64).find(|other| other.to_string() != cpu).unwrap().to_string();
    let output = run(&["--cores", &other]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr.contains(&format!("CPU {other} can't be used")) && stderr.contains(&format!("allowed: {cpu}")),
        "{stderr}"
    );
}

#[test]
fn bad_input_gets_one_line_and_exit_code_2() {
    for (args, expected) in [
        (&["fwd"][..], "--port <PORT>"),
        (&["fwd", "-p", "foo:1"], "unknown kind 'foo'; allowed: af_xdp:INTERFACE"),
        (&["fwd", "-p", "null:0,x=1"], "unknown key 'x'; allowed: queues=N, len=BYTES"),
        (
            &["fwd", "-p", "null:0", "--mode", "warp"],
            "possible values: io, mac, macswap, rxonly, txonly, icmpecho",
        ),
        (&["fwd", "-p", "null:0", "--cores", "8000"], "CPU 8000 can't be used by this process; allowed: "),
        (&["fwd", "-p", "null:0", "--cores", "1;2"], "numbers and ranges, such as 1,3-5"),
        (
            &["fwd", "-p", "null:0", "--frames", "0"],
            "'0' for '--frames <N>': allowed: a whole number from 1 to",
        ),
        (
            &["fwd", "-p", "null:0", "--frames", "999999999999"],
            "allowed: a whole number from 1 to 1073741824",
        ),
        (&["fwd", "-p", "null:0", "--frame-size", "1000"], "allowed: 2048 or 4096"),
        (&["fwd", "-p", "null:0", "--burst", "257"], "257 is not in 1..=256"),
        (&["fwd", "-p", "null:0", "--duration", "-1s"], "'-1s' for '--duration <TIME>': allowed: a time"),
        (
            &["fwd", "-p", "null:0", "--frames", "31", "--cores", "0"],
            "--frames 31: pool: 31 frames could starve",
        ),
        (
            &["fwd", "-p", "sim:0", "--frames", "215", "--cores", "0"],
            "1 x (64 + 64) + 1 x 2 x 28 + 1 x 32 = 216",
        ),
        (&["pool", "-p", "sim:0,ring=4096", "--frames", "8000"], "queues x (fill + tx)"),
        (
            &["pool", "-p", "sim:0", "--frames", "0"],
            "'0' for '--frames <N>': allowed: a whole number from 1 to",
        ),
        (&["pool", "-p", "sim:0", "--cores", "8000"], "CPU 8000 can't be used by this process; allowed: "),
        (
            &["fwd", "-p", "null:0", "--report", "/no/such/folder"],
            "--report /no/such/folder: can't be written",
        ),
        (&["fwd", "-p", "null:0,queues=2", "-p", "null:1"], "have 2 and 1 queues; allowed: the same number"),
        (&["fwd", "-p", "ring:a", "-p", "ring:a", "-p", "ring:a"], "both ends are in use"),
        (&["fwd", "-p", "no-such-if"], "no-such-if: no such network interface; there are: lo"),
    ] {
        let output = run_sheafio(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        if stderr.contains("CAP_") {
            continue; // Without rights, an interface is refused for that first.
        }
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
        assert!(
            stderr.starts_with("sheafio: ") && stderr.trim_end().lines().count() == 1,
            "{args:?}: {stderr}"
        );
        assert!(output.stdout.is_empty());
    }
}

/// What is printed of the pool says where each frame is, while packets flow.
#[test]
fn every_frame_has_a_place() {
    let ports =
        ["-p", "sim:0", "-p", "sim:1", "-p", "null:0", "-p", "ring:a", "-p", "ring:a", "-p", "null:1"];
    let lines = fwd(&[&ports[..], &["--duration", "2200ms"]].concat());
    assert!(lines.len() >= 3);
    for line in &lines {
        let pool = |key: &str| number(&line["pool"][key]);
        assert_eq!(pool("frames"), pool("free") + pool("in_flight") + pool("retired"), "{line}");
        assert_eq!(pool("free"), pool("barn") + pool("caches") + pool("lanes"), "{line}");
        assert_eq!(pool("in_flight"), pool("rings") + pool("application"), "{line}");
        let cached: u64 =
            line["pool"]["by_cache"].as_array().unwrap().iter().map(|cache| number(&cache["frames"])).sum();
        let is_final = line["final"] == Value::Bool(true);
        // The caches go on while they are counted.
        assert!(cached.abs_diff(pool("caches")) < 2000 && (!is_final || cached == 0), "{line}");
        assert_eq!(pool("rings") > 0, !is_final, "{line}");
    }
    let counts = &lines.last().unwrap()["pool"]["counts"];
    assert_eq!(counts["taken"], counts["given"]);
    assert!(number(&counts["taken"]) > number(&counts["taken_slowly"]));
    assert!(number(&counts["barn_gets"]) > 0);
}

#[test]
fn the_plan_says_what_the_forwarder_will_do() {
    let plan = |args: &[&str]| {
        let output = run_sheafio(&[&["pool", "--cores", "0"], args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = plan(&["-p", "sim:0", "-p", "sim:1", "--frames", "16384"]);
    for line in [
        "16384 of 2048 bytes: 32.0 MiB",
        "124 frames (the largest",
        "2 x (2048 + 2048) + 1 x 2 x 124 + 1 x 32 = 8472",
    ] {
        assert!(text.contains(line), "{text}");
    }
    // Rings shrink to what the frames allow, unless they are given; and frames grow to what rings take.
    assert!(plan(&["-p", "sim:0", "--frames", "1024"]).contains("rings of 256 slots"));
    assert!(plan(&["-p", "sim:0,ring=128", "--frames", "1024"]).contains("rings of 128 slots"));
    assert!(plan(&["-p", "sim:0,queues=8"]).contains("65536 of 2048 bytes"));
    // The forwarder starts, and forwards, with exactly the least.
    let last = fwd(&["-p", "sim:0", "--frames", "216", "--cores", "0", "--duration", "200ms"]).pop().unwrap();
    assert_eq!((&last["conserved"], number(&last["pool"]["frames"])), (&true.into(), 216));
    assert!(number(&last["ports"][0]["tx_packets"]) > 216);
}

/// A reader that goes away ends the run, in order.
#[test]
fn a_closed_pipe_ends_the_run() {
    for json in [&["--json"][..], &[]] {
        let mut command = Command::new(sheafio());
        command.args(["fwd", "-p", "null:0", "--hugepages", "off"]).args(json).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

/// Times beyond what a clock can tell mean for ever, not a panic.
#[test]
fn a_duration_of_ages_runs_until_the_packet_limit() {
    let last = fwd(&["-p", "null:0", "--duration", "500000000000y", "--packets", "64"]).pop().unwrap();
    assert_eq!(number(&last["ports"][0]["rx_packets"]), 64);
}

#[test]
fn a_pipeline_through_a_ring_port_conserves_frames() {
    let last = fwd(&["-p", "null:0", "-p", "ring:a", "-p", "ring:a", "-p", "null:1", "--duration", "200ms"])
        .pop()
        .unwrap();
    assert_eq!((&last["conserved"], &last["unexplained"]), (&true.into(), &0.into()));
    assert!(number(&last["ports"][3]["tx_packets"]) > 0);
}

#[test]
fn an_adaptive_lcore_works() {
    let last = fwd(&["-p", "sim:0,packets=1000", "--idle", "adaptive", "--duration", "200ms"]).pop().unwrap();
    assert_eq!(number(&last["ports"][0]["rx_packets"]), 1000);
}
