//! What a machine does not allow, and what a server does with the rights that it has.

use std::{
    fs,
    io::{Read, Write},
    thread,
    time::{Duration, Instant},
};

use sheafio_tests::{CommandCopy, Fwd, Refusal, can_make_networks, sheafio};

use crate::{Network, PATIENCE, end};

#[test]
fn a_machine_without_io_uring_is_told_why() {
    if !can_make_networks("a_machine_without_io_uring_is_told_why") {
        return;
    }
    let network = Network::new();
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
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
        (&["--tcp", "8", "--frames", "16777216"], &["--frames 16777216", "up to 16777215"]),
        (&["--tcp", "8", "--frames", "0"], &["--frames <N>", "from 1 to 1073741824"]),
        (&["--tcp", "8,9,8"], &["--tcp: port 8 is named twice"]),
        (&["--tcp", "0"], &["ports from 1 to 65535"]),
        (&[], &["nothing to serve", "--tcp"]),
        (&["--icmp"], &["--icmp", "the kernel answers pings itself"]),
        (&["--tcp", "8", "-p", "ve0"], &["-p ve0", "--stack user"]),
        (&["--tcp", "8", "--request-size", "5"], &["--response-size"]),
        (&["--udp", "8", "--response-size", "4000"], &["room for 1708 bytes", "--frame-size 4096"]),
    ] {
        let words = [&["echo", "--stack", "kernel", "--json"], args].concat();
        let line = Fwd::start_program(&network.server, sheafio(), &words).wait().refusal();
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
    // A limit that is certainly less, whatever this machine allows.
    let program = sheafio();
    let few = ["--nofile=4096:4096", program.to_str().unwrap()];
    let words =
        [&few[..], &["echo", "--stack", "kernel", "--json", "--tcp", "8", "--max-flows", "4097"]].concat();
    let line = Fwd::start_program(&network.server, "prlimit".into(), &words).wait().refusal();
    for part in ["--max-flows 4097", "limit of open files is 4096", "1 to 4096", "ulimit -n"] {
        assert!(line.contains(part), "{line}");
    }
    // A port that takes a right, and who may have that.
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all", "--"];
    let copy = CommandCopy::new("echo");
    let words = [&user[..], &[copy.path(), "echo", "--stack", "kernel", "--json", "--tcp", "80"]].concat();
    let line = Fwd::start_program(&network.server, "setpriv".into(), &words).wait().refusal();
    let setcap = format!("setcap cap_net_bind_service+ep {}", copy.path());
    for part in ["tcp 0.0.0.0:80: Permission denied", &setcap, "net.ipv4.ip_unprivileged_port_start=80"] {
        assert!(line.contains(part), "{line}");
    }
}

/// Has a program see this value of kernel.io_uring_disabled, and its kernel behave as ever: a file of a mount namespace of
/// its own lies over that of /proc.
const OVER_SYSCTL: &str = "\
    mount -t tmpfs none /mnt && echo \"$0\" >/mnt/value && \
    mount --bind /mnt/value /proc/sys/kernel/io_uring_disabled && exec \"$@\"";

/// The words that start a program so; the program follows.
fn seeing<'a>(value: &'a str, program: &'a str) -> Vec<&'a str> {
    vec!["unshare", "--mount", "--", "sh", "-c", OVER_SYSCTL, value, program]
}

#[test]
fn io_uring_that_is_off_is_said_to_be() {
    if !can_make_networks("io_uring_that_is_off_is_said_to_be") {
        return;
    }
    let network = Network::new();
    let program = sheafio();
    for (value, parts) in [
        ("2", &["io_uring_disabled is 2", "off for everyone"][..]),
        ("1", &["is 1", "kernel.io_uring_group"]),
    ] {
        let words =
            [&seeing(value, program.to_str().unwrap())[..], &["echo", "--stack", "kernel", "--tcp", "7"]];
        let refusal = Refusal { call: libc::SYS_io_uring_setup, arguments: &[], error: libc::EPERM };
        let ended = refusal.start_program(&network.server, &words.concat()).wait();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(parts.iter().all(|part| ended.stderr.contains(part)), "{}", ended.stderr);
        assert!(ended.stderr.contains("sysctl -w kernel.io_uring_disabled=0"), "{}", ended.stderr);
    }
}

/// Rights are given up where rings are for all, and, once they are made, where they are for few.
#[test]
fn a_server_of_roots_gives_up_all_rights() {
    if !can_make_networks("a_server_of_roots_gives_up_all_rights") {
        return;
    }
    let network = Network::new();
    let program = sheafio();
    let cpus = sheafio_core::allowed_cpus();
    let cores = cpus.0.iter().take(2).map(ToString::to_string).collect::<Vec<_>>().join(",");
    for value in ["0", "1", "2"] {
        let serve =
            ["echo", "--stack", "kernel", "--json", "--hugepages", "off", "--idle", "adaptive", "--tcp", "7"];
        let seen = [&seeing(value, program.to_str().unwrap())[..], &serve, &["--cores", &cores]].concat();
        let server = Fwd::start_program(&network.server, seen[0].into(), &seen[1..]);
        let mut stream = network.connect();
        let start = Instant::now();
        loop {
            let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().flatten();
            let statuses: Vec<_> =
                tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok()).collect();
            let holds_none = |status: &String| {
                let none = |set: &str| status.contains(&format!("\n{set}:\t0000000000000000\n"));
                ["CapEff", "CapPrm", "CapInh", "CapAmb"].into_iter().all(none)
            };
            // The first thread and the lcores.
            if statuses.len() > cpus.0.len().min(2) && statuses.iter().all(holds_none) {
                break;
            }
            // Connections come about from when the sockets are there: lcores may still have to start and, where rings are for
            // few, to make theirs.
            assert!(start.elapsed() < PATIENCE, "where it is {value}, threads hold rights: {statuses:?}");
            thread::sleep(Duration::from_millis(10));
        }
        stream.write_all(b"hello").unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        drop(stream);
        end(server);
    }
}
