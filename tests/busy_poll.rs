//! Busy polling: what it sets at the device, and who puts that back, however a run ends.

use std::{
    thread,
    time::{Duration, Instant},
};

use sheafio_tests::{Fwd, Netns, Veth, can_make_networks, sheafio};

const PEER: &str = "10.0.0.1";
const OURS: &str = "10.0.0.2";

fn network() -> (Netns, Veth) {
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", PEER, 1);
    (under_test, veth)
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
