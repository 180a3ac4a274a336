//! What the command may do: which capabilities it needs, and that it has none left once it forwards.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities};
use sheafio_drivers::drop_rights;
use sheafio_tests::{
    CommandCopy, Fwd, Netns, Refusal, Veth, can_make_networks, run, sheafio, skip, succeeds,
};

const PEER: &str = "10.0.0.1";
/// As setpriv names them.
const NEEDED: &str = "+net_admin,+net_raw,+bpf";

/// A namespace under test with `ve0`, and its kernel peer.
fn network(queues: u32) -> (Netns, Veth) {
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", PEER, queues);
    (under_test, veth)
}

/// What makes a command of root's one of an ordinary user, who holds these capabilities.
fn as_nobody(capabilities: &str) -> Vec<&str> {
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let held = ["--inh-caps", capabilities, "--ambient-caps", capabilities, "--"];
    if capabilities.is_empty() { [&user[..], &["--"]].concat() } else { [&user[..], &held].concat() }
}

/// The fields of every thread's status (proc_pid_status(5)), once its lcores run.
fn statuses(fwd: &Fwd, lcores: usize) -> Vec<String> {
    let start = Instant::now();
    loop {
        let tasks = fs::read_dir(format!("/proc/{}/task", fwd.pid())).unwrap().flatten();
        let read = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
        let statuses: Vec<_> = tasks.filter_map(read).collect();
        if statuses.iter().filter(|status| field(status, "Name").starts_with("lcore-")).count() == lcores {
            return statuses;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "the lcores did not start: {statuses:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim()
}

/// While packets flow no thread of the command has rights; afterwards everything has been closed as it should:
/// the program is off, the kernel has its interface back, and every frame has come home.
fn forwards_without_rights(netns: &Netns, veth: &Veth, fwd: Fwd, lcores: usize, may_set_bounds: bool) {
    fwd.wait_for_xdp(netns, "ve0");
    for status in statuses(&fwd, lcores) {
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert_eq!(field(&status, set), "0000000000000000", "{set} in {status}");
        }
        if may_set_bounds {
            assert_eq!(field(&status, "CapBnd"), "0000000000000000", "{status}");
        } else {
            assert!(field(&status, "Uid").starts_with("65534"), "{status}");
        }
        assert_eq!(field(&status, "NoNewPrivs"), "1", "{status}");
    }
    assert!(veth.peer.succeeds("ping", &["-c", "3", "-W", "2", "-i", "0.2", "10.0.0.2"]));
    let ended = fwd.end();
    ended.assert_conserved();
    // Nothing is retired only if the queues could leave the program's map.
    assert_eq!(ended.retired(), 0, "{}", ended.stderr);
    assert!(ended.port(0, "rx_packets") >= 3);
    assert!(!netns.has_xdp("ve0"), "the program is still attached");
}

const ECHO: [&str; 6] = ["fwd", "--json", "--mode", "icmpecho", "-p", "ve0"];

#[test]
fn a_run_of_root_gives_up_all_rights_and_closes_in_order() {
    if !can_make_networks("a_run_of_root_gives_up_all_rights_and_closes_in_order") {
        return;
    }
    let (netns, veth) = network(2);
    let args = ["fwd", "--json", "--mode", "icmpecho", "-p", "ve0,queues=2", "--cores", "0"];
    let fwd = Fwd::start_program(&netns, sheafio(), &args);
    forwards_without_rights(&netns, &veth, fwd, 1, true);
}

/// Before Linux 5.19 bpf(2) may be closed altogether to those without CAP_BPF, by which queues leave at the end. Played
/// here by a filter.
#[test]
fn the_right_to_bpf_is_kept_where_the_kernel_would_let_nobody_in_without() {
    if !can_make_networks("the_right_to_bpf_is_kept_where_the_kernel_would_let_nobody_in_without") {
        return;
    }
    let asking =
        Refusal { call: libc::SYS_bpf, arguments: &[(0, BPF_OBJ_GET_INFO_BY_FD)], error: libc::EPERM };
    let other = Refusal { arguments: &[(0, u32::MAX)], ..asking };
    for (refusal, kept) in [(asking, CapabilitySet::BPF), (other, CapabilitySet::empty())] {
        // Rights are a thread's; that others of the tests hold some is told as an error, which comes last.
        let left = refusal.refuse_in(|| (drop_rights(&[]).is_err(), capabilities(None).unwrap()));
        let none = CapabilitySet::empty();
        let wanted = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
        assert_eq!(left, (true, wanted));
    }
}

// A command of linux/bpf.h.
const BPF_OBJ_GET_INFO_BY_FD: u32 = 15;

/// Settings of the device that were changed are put back, for which one right is kept.
#[test]
fn busy_polling_keeps_the_right_to_put_settings_back() {
    if !can_make_networks("busy_polling_keeps_the_right_to_put_settings_back") {
        return;
    }
    let (netns, _veth) = network(1);
    let settings = || {
        let of = |name: &str| format!("/sys/class/net/ve0/{name}");
        netns.run("cat", &[&of("napi_defer_hard_irqs"), &of("gro_flush_timeout")])
    };
    let before = settings();
    let fwd = Fwd::start(&netns, &["-p", "ve0,busy_poll=64"]);
    for status in statuses(&fwd, 1) {
        assert_eq!(field(&status, "CapEff"), "0000000000001000", "CAP_NET_ADMIN alone: {status}");
        assert_eq!(field(&status, "CapPrm"), "0000000000001000", "{status}");
        assert_eq!(field(&status, "NoNewPrivs"), "1", "{status}");
    }
    assert_ne!(settings(), before);
    fwd.end().assert_conserved();
    assert_eq!(settings(), before);
}

#[test]
fn an_ordinary_user_with_the_capabilities_needs_no_root() {
    if !can_make_networks("an_ordinary_user_with_the_capabilities_needs_no_root") {
        return;
    }
    let (netns, veth) = network(1);
    let copy = CommandCopy::new("ambient");
    let with_lock = format!("{NEEDED},+ipc_lock");
    // Without CAP_IPC_LOCK, with a limit of exactly what one port needs: 2048 frames of 2048 bytes.
    let limited = ["prlimit", "--memlock=4194304:4194304", "--"];
    for (before, capabilities, port) in [
        (&[][..], with_lock.as_str(), "ve0"),
        // The whole of the XDP program.
        (&[], &with_lock, "ve0,metadata=yes,steer=arp+icmp"),
        (&limited, NEEDED, "ve0"),
    ] {
        let echo = [&ECHO[..5], &[port]].concat();
        let user = as_nobody(capabilities);
        let words = [before, &user, &[copy.path()], &echo, &["--frames", "2048"]].concat();
        let fwd = Fwd::start_program(&netns, words[0].into(), &words[1..]);
        forwards_without_rights(&netns, &veth, fwd, 1, false);
    }
}

#[test]
fn file_capabilities_are_enough() {
    if !can_make_networks("file_capabilities_are_enough") {
        return;
    }
    let (netns, veth) = network(1);
    let copy = CommandCopy::new("setcap");
    if !succeeds("setcap", &["cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep", copy.path()]) {
        skip("file_capabilities_are_enough", "the folder for temporary files keeps no file capabilities");
        return;
    }
    let words = [&as_nobody("")[..], &[copy.path()], &ECHO].concat();
    let fwd = Fwd::start_program(&netns, words[0].into(), &words[1..]);
    forwards_without_rights(&netns, &veth, fwd, 1, false);
    run("setcap", &["-r", copy.path()]);
    // Without them the same user is refused, with the command that would help.
    let ended = Fwd::start_program(&netns, words[0].into(), &words[1..]).wait();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let all = "cap_net_admin,cap_net_raw,cap_bpf";
    assert!(ended.stderr.contains(&format!("setcap {all}")), "{}", ended.stderr);
}
