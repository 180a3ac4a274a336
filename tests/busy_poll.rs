//! Busy polling: what it sets at the device, and who puts that back, however a run ends.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use sheafio_core::Queue;
use sheafio_drivers::{
    Right,
    af_xdp::{self, Config, Mode},
    drop_rights,
};
use sheafio_mempool::{Burst, Hugepages, Mempool};
use sheafio_tests::{CommandCopy, Fwd, Netns, Veth, can_make_networks, run, sheafio, skip, succeeds};

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

fn set(netns: &Netns, setting: &str, value: &str) {
    netns.run("sh", &["-c", &format!("echo {value} > {}", path(setting))]);
}

#[track_caller]
fn assert_settings(netns: &Netns, (defer, timeout): (&str, &str), what: &str) {
    assert_eq!(settings(netns), (defer.to_owned(), timeout.to_owned()), "{what}");
}

/// Waits until something is so that takes another process's turn.
#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_mins(1), "not so after a minute: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The fields of /proc/PID/stat after the name, which ends with the last bracket (proc(5)): state, parent, ...
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit(')').next()?.split_whitespace().map(str::to_owned).collect())
}

/// The shells that wait beside a run to put its settings back: one for each.
fn guards(fwd: &Fwd) -> Vec<u32> {
    let parent = fwd.pid().to_string();
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    let guards: Vec<_> = pids.filter(|pid| stat(*pid).is_some_and(|stat| stat[1] == parent)).collect();
    assert_eq!(guards.len(), 2, "{guards:?}");
    guards
}

/// Whether nothing is left of these processes, but for their parent to notice.
fn have_ended(pids: &[u32]) -> bool {
    pids.iter().all(|pid| stat(*pid).is_none_or(|stat| ["Z", "X"].contains(&stat[0].as_str())))
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

/// The shell that waits for a run's end puts back only what is still that run's.
#[test]
fn someone_elses_setting_stays_after_a_kill() {
    if !can_make_networks("someone_elses_setting_stays_after_a_kill") {
        return;
    }
    let (netns, _veth) = network();
    let fwd = Fwd::start(&netns, &["-p", BUSY]);
    set(&netns, "napi_defer_hard_irqs", "7");
    let guards = guards(&fwd);
    fwd.signal(libc::SIGKILL);
    fwd.wait();
    wait_until("the guards have ended", || have_ended(&guards));
    assert_settings(&netns, ("7", "0"), "after SIGKILL");
}

/// The value of the other setting is not ours here.
#[test]
fn the_value_of_the_other_setting_is_someone_elses() {
    if !can_make_networks("the_value_of_the_other_setting_is_someone_elses") {
        return;
    }
    let (netns, _veth) = network();
    let fwd = Fwd::start(&netns, &["-p", BUSY]);
    set(&netns, "gro_flush_timeout", "2");
    fwd.end().assert_conserved();
    assert_settings(&netns, ("0", "2"), "someone else's setting was lost");
}

/// A supervisor starts the next run at once: it must not take the first one's values for the device's own.
#[test]
fn a_restart_waits_until_settings_are_put_back() {
    if !can_make_networks("a_restart_waits_until_settings_are_put_back") {
        return;
    }
    let (netns, _veth) = network();
    set(&netns, "napi_defer_hard_irqs", "1");
    let killed = Fwd::start(&netns, &["-p", BUSY]);
    // As long as this end of the pipes is open that they read from, the guards have not learned of it.
    let pipes: Vec<_> = guards(&killed)
        .iter()
        .map(|guard| fs::File::options().write(true).open(format!("/proc/{guard}/fd/0")).unwrap())
        .collect();
    killed.signal(libc::SIGKILL);
    killed.wait();
    let next = Fwd::start_program(&netns, sheafio(), &["fwd", "--json", "-p", BUSY]);
    let has_opened = || {
        let files = fs::read_dir(format!("/proc/{}/fd", next.pid())).into_iter().flatten().flatten();
        let mut files = files.filter_map(|file| fs::read_link(file.path()).ok());
        files.any(|file| file.ends_with("napi_defer_hard_irqs"))
    };
    wait_until("the next run has opened the setting", has_opened);
    drop(pipes);
    next.wait_for_xdp(&netns, "ve0");
    assert_settings(&netns, POLLED, "of the next run");
    let ended = next.end();
    ended.assert_conserved();
    assert!(!ended.stderr.contains("already"), "{}", ended.stderr);
    assert_settings(&netns, ("1", "0"), "put back");
}

/// Lcores wait for the guards when they close: not for ever.
#[test]
fn guards_that_hang_do_not_keep_a_run_from_closing() {
    if !can_make_networks("guards_that_hang_do_not_keep_a_run_from_closing") {
        return;
    }
    let (netns, _veth) = network();
    let fwd = Fwd::start(&netns, &["-p", BUSY]);
    let guards = guards(&fwd);
    for guard in &guards {
        run("kill", &["-STOP", &guard.to_string()]);
    }
    fwd.end().assert_conserved();
    assert_settings(&netns, OWN, "put back without them");
    wait_until("the guards have ended", || have_ended(&guards));
}

/// Values that are there already may be wanted so, or a killed run's: they are told of, and stay.
#[test]
fn a_value_that_is_there_already_is_told_of() {
    if !can_make_networks("a_value_that_is_there_already_is_told_of") {
        return;
    }
    let (netns, _veth) = network();
    set(&netns, "napi_defer_hard_irqs", "2");
    let ended = Fwd::start(&netns, &["-p", BUSY]).end();
    ended.assert_conserved();
    let warning = "warning: ve0: napi_defer_hard_irqs had the value for busy polling already";
    for part in [warning, "echo 0 > /sys/class/net/ve0/napi_defer_hard_irqs"] {
        assert!(ended.stderr.contains(part), "'{part}' is missing in: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("gro_flush_timeout"), "{}", ended.stderr);
    assert_settings(&netns, ("2", "0"), "as before");
}

/// Nobody would put the settings back after SIGKILL: that is told, and the run puts them back when it ends otherwise.
#[test]
fn a_guard_that_can_not_be_started_is_told_of() {
    if !can_make_networks("a_guard_that_can_not_be_started_is_told_of") {
        return;
    }
    let (netns, _veth) = network();
    let program = sheafio();
    // In the mounts that ip(8) has made for this command alone, by a shell that runs already.
    let script = r#"mount --bind /dev/null /bin/sh && exec "$0" "$@""#;
    let words = ["-c", script, program.to_str().unwrap(), "fwd", "--json", "-p", BUSY];
    let fwd = Fwd::start_program(&netns, "sh".into(), &words);
    fwd.wait_for_xdp(&netns, "ve0");
    assert_settings(&netns, POLLED, "set all the same");
    let ended = fwd.end();
    ended.assert_conserved();
    for part in [
        "warning: ve0: nobody puts napi_defer_hard_irqs back if this process is killed",
        "the shell that does could not be started (Permission denied",
        "echo 0 > /sys/class/net/ve0/gro_flush_timeout",
    ] {
        assert!(ended.stderr.contains(part), "'{part}' is missing in: {}", ended.stderr);
    }
    assert_settings(&netns, OWN, "put back");
}

/// A program that gives up all rights can't write to the settings any more: the shell beside it can.
#[test]
fn settings_are_put_back_for_a_program_without_rights() {
    if !can_make_networks("settings_are_put_back_for_a_program_without_rights") {
        return;
    }
    let (netns, _veth) = network();
    set(&netns, "gro_flush_timeout", "1000");
    let open = |busy_poll| {
        let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap();
        let config = Config { busy_poll, ..Config::default() };
        (pool, af_xdp::open_with("ve0", &config, pool).unwrap())
    };
    netns.enter(|| assert!(open(None).1.rights_to_close().is_empty()));
    for keeps in [false, true] {
        netns.enter(|| {
            let (pool, mut port) = open(Some(64));
            assert_eq!(port.rights_to_close(), [Right::NetAdmin]);
            let (mut queue, mut cache) = (port.queue(0).unwrap(), pool.cache().unwrap());
            assert_settings(&netns, ("2", "200000"), "polled");
            let kept = if keeps { port.rights_to_close() } else { &[] };
            // This thread has none any more; that other tests' threads do is no matter.
            let error = drop_rights(kept).unwrap_err().to_string();
            assert!(error.contains("threads that run already hold some"), "{error}");
            queue.close(&mut cache);
            drop(cache);
            assert_eq!(pool.audit().unwrap().home, 1024);
        });
        let is_back = || settings(&netns) == ("0".to_owned(), "1000".to_owned());
        assert!(!keeps || is_back(), "by the program itself, at once: {:?}", settings(&netns));
        wait_until("the settings are put back", is_back);
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
    let fwd = ["fwd", "--json", "-p", BUSY];
    let start = |mounts: &Netns, by: &[&[&str]]| {
        let words = [&by.concat()[..], &[program.to_str().unwrap()], &fwd].concat();
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

/// The driver runs in our system calls alone, and asks for none: each burst makes one. The first one after the device
/// is gone is told so; without that, only a look that comes once a second would tell.
#[test]
fn each_burst_runs_the_driver() {
    if !can_make_networks("each_burst_runs_the_driver") {
        return;
    }
    for (busy_poll, tells) in [(Some(64), true), (None, false)] {
        let (netns, _veth) = network();
        netns.enter(|| {
            let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap();
            let config = Config { busy_poll, ..Config::default() };
            let mut port = af_xdp::open_with("ve0", &config, pool).unwrap();
            let (mut queue, mut cache, mut burst) =
                (port.queue(0).unwrap(), pool.cache().unwrap(), Burst::new());
            assert_eq!((queue.rx_burst(&mut cache, &mut burst), queue.is_gone()), (0, false));
            netns.ip(&["link", "del", "ve0"]);
            assert_eq!((queue.rx_burst(&mut cache, &mut burst), queue.is_gone()), (0, tells));
            queue.close(&mut cache);
            drop(cache);
            assert_eq!(pool.audit().unwrap().home, 1024);
        });
    }
}

/// A file's capabilities let a user set the device up; those who could put that back after a kill would have none.
#[test]
fn a_guard_without_the_right_is_told_of() {
    let name = "a_guard_without_the_right_is_told_of";
    if !can_make_networks(name) {
        return;
    }
    let (netns, _veth) = network();
    let copy = CommandCopy::new("busy");
    let capabilities = "cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock,cap_dac_override+ep";
    if !succeeds("setcap", &[capabilities, copy.path()]) {
        skip(name, "the folder for temporary files keeps no file capabilities");
        return;
    }
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let start = |held: &[&str]| {
        let words = [&user[..], held, &["--", copy.path(), "fwd", "--json", "-p", BUSY]].concat();
        let fwd = Fwd::start_program(&netns, words[0].into(), &words[1..]);
        fwd.wait_for_xdp(&netns, "ve0");
        assert_settings(&netns, POLLED, "of a user with the capabilities");
        fwd
    };
    let ended = start(&[]).end();
    ended.assert_conserved();
    for part in ["nobody puts napi_defer_hard_irqs back", "no CAP_NET_ADMIN", "echo 0 > /sys/class/net/ve0/"]
    {
        assert!(ended.stderr.contains(part), "'{part}' is missing in: {}", ended.stderr);
    }
    assert_settings(&netns, OWN, "put back by the user");

    // Ambient capabilities are theirs too.
    run("setcap", &["-r", copy.path()]);
    let ambient = "+net_admin,+net_raw,+bpf,+ipc_lock,+dac_override";
    let held = ["--inh-caps", ambient, "--ambient-caps", ambient];
    let ended = start(&held).end();
    ended.assert_conserved();
    assert!(!ended.stderr.contains("nobody puts"), "{}", ended.stderr);
    let killed = start(&held);
    killed.signal(libc::SIGKILL);
    assert_eq!(killed.wait().code, None);
    wait_until("the guards have put the settings back", || {
        settings(&netns) == (OWN.0.to_owned(), OWN.1.to_owned())
    });
}
