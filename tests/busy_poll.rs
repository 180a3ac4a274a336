//! Busy polling: what it sets at the device, and who puts that back, however a run ends.

use std::{
    thread,
    time::{Duration, Instant},
};

use sheafio_drivers::af_xdp::{self, Config, Mode};
use sheafio_mempool::{Hugepages, Mempool};
use sheafio_tests::{Fwd, Netns, Veth, can_make_networks, sheafio, skip};

const PEER: &str = "10.0.0.1";
const OURS: &str = "10.0.0.2";
const BUSY: &str = "ve0,busy_poll=64";

/// The settings of `ve0` while it is polled, and a device's own.
const POLLED: (&str, &str) = ("2", "200000");
const OWN: (&str, &str) = ("0", "0");

fn network() -> (Netns, Veth) {
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", PEER, 1);
    (under_test, veth)
}

fn path(setting: &str) -> String {
    format!("/sys/class/net/ve0/{setting}")
}

fn settings(netns: &Netns) -> (String, String) {
    let read = |name: &str| netns.run("cat", &[&path(name)]).trim().to_owned();
    (read("napi_defer_hard_irqs"), read("gro_flush_timeout"))
}

#[track_caller]
fn assert_settings(netns: &Netns, (defer, timeout): (&str, &str), what: &str) {
    assert_eq!(settings(netns), (defer.to_owned(), timeout.to_owned()), "{what}");
}

/// Busy polling sets the device up for it and puts its settings back; packets flow all the same.
#[test]
fn busy_polling_forwards_and_puts_the_settings_back() {
    if !can_make_networks("busy_polling_forwards_and_puts_the_settings_back") {
        return;
    }
    for (mode, idle) in [("native", "spin"), ("native", "adaptive"), ("generic", "spin")] {
        let (netns, veth) = network();
        let read = |name: &str| netns.run("cat", &[&format!("/sys/class/net/ve0/{name}")]).trim().to_owned();
        let settings = || (read("napi_defer_hard_irqs"), read("gro_flush_timeout"));
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        netns.run("sh", &["-c", "echo 1 > /sys/class/net/ve0/napi_defer_hard_irqs"]);
        let port = format!("ve0,mode={mode},busy_poll=64");
        let fwd = Fwd::start(&netns, &["-p", &port, "--mode", "icmpecho", "--idle", idle]);
        assert_eq!(settings(), pair("2", "200000"), "{mode}");
        assert!(veth.peer.succeeds("ping", &["-c", "20", "-i", "0.01", "-w", "10", OURS]), "{mode}, {idle}");
        let ended = fwd.end();
        ended.assert_conserved();
        assert!(ended.port(0, "tx_packets") >= 20, "{mode}, {idle}: {:?}", ended.lines.last());
        assert_eq!(settings(), pair("1", "0"), "{mode}: not as before");

        // After SIGKILL too, of which nobody else but a process beside it learns.
        let fwd = Fwd::start(&netns, &["-p", &port, "--mode", "icmpecho"]);
        assert_eq!(settings(), pair("2", "200000"), "{mode}");
        fwd.signal(libc::SIGKILL);
        assert_eq!(fwd.wait().code, None);
        let start = Instant::now();
        while settings() != pair("1", "0") {
            assert!(
                start.elapsed() < Duration::from_mins(1),
                "{mode}: left behind after SIGKILL: {:?}",
                settings()
            );
            thread::sleep(Duration::from_millis(10));
        }

        // What someone else has set meanwhile stays.
        let fwd = Fwd::start(&netns, &["-p", &port, "--mode", "icmpecho"]);
        netns.run("sh", &["-c", "echo 7 > /sys/class/net/ve0/napi_defer_hard_irqs"]);
        fwd.end().assert_conserved();
        assert_eq!(settings(), pair("7", "0"), "{mode}: someone else's setting was lost");
    }
}

/// A container's /sys cannot be written to: what that costs is told, with the commands for whoever can.
#[test]
fn busy_polling_goes_on_where_settings_can_not_be_written() {
    if !can_make_networks("busy_polling_goes_on_where_settings_can_not_be_written") {
        return;
    }
    let (netns, veth) = network();
    let program = sheafio();
    // In the mounts that ip(8) has made for this command alone.
    let script = r#"mount -o remount,bind,ro /sys && exec "$0" "$@""#;
    let words = ["fwd", "--json", "-p", "ve0,busy_poll=64", "--mode", "icmpecho"];
    let fwd = Fwd::start_program(
        &netns,
        "sh".into(),
        &[&["-c", script, program.to_str().unwrap()][..], &words].concat(),
    );
    fwd.wait_for_xdp(&netns, "ve0");
    assert!(veth.peer.succeeds("ping", &["-c", "20", "-i", "0.01", "-w", "10", OURS]));
    let ended = fwd.end();
    ended.assert_conserved();
    assert!(ended.port(0, "tx_packets") >= 20, "{:?}", ended.lines.last());
    for part in [
        "warning: ve0: busy polling goes on with interrupts between",
        "napi_defer_hard_irqs (Read-only file system",
        "gro_flush_timeout (Read-only file system",
        "echo 2 > /sys/class/net/ve0/napi_defer_hard_irqs",
    ] {
        assert!(ended.stderr.contains(part), "'{part}' is missing in: {}", ended.stderr);
    }
}

/// /sys shows the network namespace in which it was mounted; the interfaces are those of the process's own.
#[test]
fn the_device_is_never_another_namespaces() {
    if !can_make_networks("the_device_is_never_another_namespaces") {
        return;
    }
    let (netns, _veth) = network();
    let (elsewhere, _other) = network();
    let program = sheafio();
    let inside = format!("--net=/run/netns/{}", netns.name);
    let enter = ["nsenter", &inside];
    // Without CAP_SYS_ADMIN a process can't get a sysfs of its own namespace.
    let bound = ["setpriv", "--inh-caps", "-sys_admin", "--bounding-set", "-sys_admin"];
    let run = ["fwd", "--json", "-p", BUSY];
    let start = |mounts: &Netns, by: &[&[&str]]| {
        let words = [&by.concat()[..], &[program.to_str().unwrap()], &run].concat();
        let fwd = Fwd::start_program(mounts, words[0].into(), &words[1..]);
        fwd.wait_for_xdp(&netns, "ve0");
        fwd
    };
    for (mounts, by, is_set) in [
        (&elsewhere, &[&enter[..]][..], true),
        (&elsewhere, &[&enter, &bound], false),
        (&netns, &[&bound], true),
    ] {
        let fwd = start(mounts, by);
        assert_settings(&netns, if is_set { POLLED } else { OWN }, "while it runs");
        assert_settings(&elsewhere, OWN, "another namespace's");
        let ended = fwd.end();
        ended.assert_conserved();
        assert_settings(&netns, OWN, "put back");
        let refusal = "napi_defer_hard_irqs (/sys/class/net/ve0 is missing or another device: this /sys is not of the \
                       interface's network namespace), gro_flush_timeout (";
        assert_eq!(ended.stderr.contains(refusal), !is_set, "{}", ended.stderr);
    }
}

/// The number of queues comes from there where the driver does not tell.
#[test]
fn queues_are_counted_in_the_threads_own_namespace() {
    let name = "queues_are_counted_in_the_threads_own_namespace";
    if !can_make_networks(name) {
        return;
    }
    let (netns, _veth) = network();
    let add = ["link", "add", "link", "ve0", "name", "mv0", "numrxqueues", "3", "numtxqueues", "3"];
    if !netns.succeeds("ip", &[&add[..], &["type", "macvlan", "mode", "bridge"]].concat()) {
        skip(name, "this kernel has no macvlan");
        return;
    }
    netns.ip(&["link", "set", "mv0", "up"]);
    // This process's /sys knows no such interface.
    netns.enter(|| {
        let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap();
        let config = Config { mode: Mode::Generic, ..Config::default() };
        let port = af_xdp::open_with("mv0", &config, pool).unwrap();
        let warnings = port.warnings().join("\n");
        assert!(warnings.contains("mv0: it has 3 RX queues, not opened of these: 1-2."), "{warnings}");
        drop(port);
        assert_eq!(pool.audit().unwrap().home, 1024);
    });
}
