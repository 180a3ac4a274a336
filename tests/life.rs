//! The life of a device while packets flow: link down and up, renamed, moved, removed, other queues; and the end of
//! the run. Each test ends with the census equal to the total. (Above 400 lines: one network, one load, and one table of
//! ways to forward serve all of it.)
//!
//! ```text
//!   peer LEFT               under test             peer RIGHT
//!   | ve1 | ---------- | ve0 | fwd | vf0 | ---------- | ve1 |
//! ```

use std::{
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sheafio_drivers::af_xdp::Config;
use sheafio_tests::{
    Ended, Fwd, LEFT, Netns, Network, RIGHT, Veth, can_make_networks, kernel_has, kernel_is_at_least, sheafio,
};

/// The longest that anything may take: far above what it takes.
const PATIENCE: Duration = Duration::from_mins(1);
/// Ways to forward that differ in what the kernel and the lcore do.
const WAYS: [(&str, &str); 3] =
    [(",mode=native", "spin"), (",mode=native", "adaptive"), (",mode=generic", "spin")];

/// Packets from the left peer to the right one, as many as it can send, until it is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn new(network: &Network) -> Self {
        introduce(network);
        let socket = network.left.peer.enter(|| UdpSocket::bind((LEFT, 0)).unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let send = move || {
            while !stopped.load(Ordering::Relaxed) {
                // While the link is down, sending fails; that is the point.
                let _ = socket.send_to(&[0; 60], (RIGHT, 9));
            }
        };
        Self { stop, thread: Some(thread::spawn(send)) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Tells the left peer the right one's Ethernet address, so that it need not ask; a link that goes down forgets it.
fn introduce(network: &Network) {
    let links = network.right.peer.ip(&["-j", "link", "show", "dev", "ve1"]);
    let links: serde_json::Value = serde_json::from_str(&links).unwrap();
    network.left.set_neighbour(RIGHT, links[0]["address"].as_str().unwrap());
}

/// Waits until a packet that is sent from now on comes through.
fn comes_through(network: &Network) {
    introduce(network);
    let right = network.right.peer.enter(|| UdpSocket::bind((RIGHT, 0)).unwrap());
    let left = network.left.peer.enter(|| UdpSocket::bind((LEFT, 0)).unwrap());
    right.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let (start, mut buffer) = (Instant::now(), [0; 100]);
    loop {
        let _ = left.send_to(b"once more", right.local_addr().unwrap());
        if sheafio_tests::recv(&right, &mut buffer).is_ok() {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "no packet comes through any more");
    }
}

/// How often a text was printed on the standard error output.
fn told(ended: &Ended, text: &str) -> usize {
    ended.stderr.matches(text).count()
}

/// Frames that a run has lost to the kernel, and need not have. Before Linux 6.17 the kernel does not tell at once which
/// packets of a TX ring it has taken, and later ones do not after they have dropped one; a device that is gone completes
/// none: what is on its way then is retired, a ring full of the port at most.
fn retired(ended: &Ended) -> u64 {
    let ports = ended.lines.last().unwrap()["ports"].as_array().unwrap().len();
    let does_not_tell = |port: &usize| !kernel_is_at_least(6, 17) || ended.port(*port, "tx_dropped") > 0;
    let rings = (0..ports).filter(does_not_tell).count() as u64;
    ended.retired().saturating_sub(rings * u64::from(Config::default().ring))
}

/// Whether interfaces can be renamed while they are up.
fn can_rename(test: &str) -> bool {
    kernel_has(test, 6, 2, "new names for interfaces that are up")
}

/// agave#15217: each link goes down and up under load, and is used again; each is told once.
#[test]
fn links_that_were_down_are_used_again() {
    if !can_make_networks("links_that_were_down_are_used_again") {
        return;
    }
    for (options, idle) in WAYS {
        let network = Network::new(1);
        let fwd = network.forward(options, &["--idle", idle]);
        let load = Load::new(&network);
        comes_through(&network);
        let links = [
            (&network.under_test, "vf0", "warning: vf0: the link is down", "vf0: the link is up again"),
            (&network.under_test, "ve0", "warning: ve0: the link is down", "ve0: the link is up again"),
            (
                &network.right.peer,
                "ve1",
                "warning: vf0: the link has no carrier",
                "vf0: the link is up again",
            ),
            (&network.left.peer, "ve1", "warning: ve0: the link has no carrier", "ve0: the link is up again"),
            (&network.under_test, "vf0", "warning: vf0: the link is down", "vf0: the link is up again"),
        ];
        for (round, (netns, interface, down, up)) in links.into_iter().enumerate() {
            let so_far =
                |text| links[..=round].iter().filter(|link| link.2 == text || link.3 == text).count();
            netns.ip(&["link", "set", interface, "down"]);
            fwd.wait_for_text(down, so_far(down));
            netns.ip(&["link", "set", interface, "up"]);
            comes_through(&network);
            fwd.wait_for_text(up, so_far(up));
        }
        drop(load);
        let ended = fwd.end();
        let last = ended.assert_conserved();
        assert_eq!((retired(&ended), ended.port(1, "device_gone")), (0, 0), "{last}");
        for (text, times) in [("is down", 3), ("is up again", 5), ("gone", 0)] {
            assert_eq!(told(&ended, text), times, "{text}: {}", ended.stderr);
        }
        // A link that is being taken down has no carrier for a moment before.
        assert!((2..=5).contains(&told(&ended, "no carrier")), "{}", ended.stderr);
    }
}

/// Links that go down and up under load as fast as they can: traffic goes on, and no frame is lost.
#[test]
fn links_that_go_down_and_up_lose_no_frames() {
    if !can_make_networks("links_that_go_down_and_up_lose_no_frames") {
        return;
    }
    let seconds =
        std::env::var("SHEAFIO_FLAP_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(3);
    let network = Network::new(1);
    let fwd = network.forward("", &[]);
    let load = Load::new(&network);
    comes_through(&network);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        for (netns, interface) in [
            (&network.under_test, "vf0"),
            (&network.under_test, "ve0"),
            (&network.right.peer, "ve1"),
            (&network.left.peer, "ve1"),
        ] {
            netns.ip(&["link", "set", interface, "down"]);
            thread::sleep(Duration::from_millis(50));
            netns.ip(&["link", "set", interface, "up"]);
            introduce(&network);
            thread::sleep(Duration::from_millis(100));
        }
    }
    drop(load);
    comes_through(&network);
    let ended = fwd.end();
    ended.assert_conserved();
    assert!(ended.port(0, "rx_packets") > 1000);
    assert_eq!(retired(&ended), 0);
}

/// A new name stops nothing; what is told later has it.
#[test]
fn a_renamed_interface_works_on_under_its_new_name() {
    if !can_make_networks("a_renamed_interface_works_on_under_its_new_name")
        || !can_rename("a_renamed_interface_works_on_under_its_new_name")
    {
        return;
    }
    let network = Network::new(1);
    let fwd = network.forward("", &[]);
    let load = Load::new(&network);
    comes_through(&network);
    network.under_test.ip(&["link", "set", "vf0", "name", "outside0"]);
    fwd.wait_for_text("vf0: the interface has a new name: outside0", 1);
    comes_through(&network);
    network.under_test.ip(&["link", "set", "outside0", "down"]);
    fwd.wait_for_text("outside0: the link is down: nothing comes in, and what is to be sent waits. The port works again by itself after: ip link set dev outside0 up", 1);
    network.under_test.ip(&["link", "set", "outside0", "up"]);
    comes_through(&network);
    drop(load);
    let ended = fwd.end();
    let last = ended.assert_conserved();
    assert_eq!(last["ports"][1]["name"], "outside0");
    assert_eq!((told(&ended, "new name"), retired(&ended)), (1, 0), "{}", ended.stderr);
    assert!(!network.under_test.has_xdp("outside0"));
}

/// What was set at the device for busy polling is put back there, not at what has its old name meanwhile.
#[test]
fn settings_of_a_renamed_interface_are_put_back() {
    if !can_make_networks("settings_of_a_renamed_interface_are_put_back")
        || !can_rename("settings_of_a_renamed_interface_are_put_back")
    {
        return;
    }
    let network = Network::new(1);
    let setting = |interface: &str| {
        let path = format!("/sys/class/net/{interface}/gro_flush_timeout");
        network.under_test.run("cat", &[&path]).trim().to_owned()
    };
    let before = setting("ve0");
    let fwd = Fwd::start(&network.under_test, &["-p", "ve0,busy_poll=64"]);
    assert_ne!(setting("ve0"), before);
    network.under_test.ip(&["link", "set", "ve0", "name", "outside0"]);
    network.under_test.ip(&["link", "set", "vf0", "name", "ve0"]);
    fwd.wait_for_text("ve0: the interface has a new name: outside0", 1);
    fwd.end().assert_conserved();
    assert_eq!([setting("outside0"), setting("ve0")], [before.clone(), before]);
}

/// suricata#16157: alternative names, longer than the kernel's own can be, of two ports.
#[test]
fn two_ports_with_alternative_names_go_by_their_own() {
    if !can_make_networks("two_ports_with_alternative_names_go_by_their_own") {
        return;
    }
    let network = Network::new(1);
    let names = ["the-interface-to-the-left", "the-interface-to-the-right"];
    for (interface, name) in ["ve0", "vf0"].into_iter().zip(names) {
        network.under_test.ip(&["link", "property", "add", "dev", interface, "altname", name]);
    }
    let fwd = Fwd::start(&network.under_test, &["-p", names[0], "-p", names[1]]);
    comes_through(&network);
    network.under_test.ip(&["link", "set", "vf0", "down"]);
    fwd.wait_for_text("warning: vf0: the link is down", 1);
    network.under_test.ip(&["link", "set", "vf0", "up"]);
    comes_through(&network);
    let ended = fwd.end();
    let last = ended.assert_conserved();
    assert_eq!([&last["ports"][0]["name"], &last["ports"][1]["name"]], ["ve0", "vf0"]);
}

/// What a device that is gone has in common, whatever took it away: the run goes on with the other port, packets to
/// the gone one are dropped and counted, and it is told once.
fn assert_goes_on_without_vf0(network: &Network, fwd: Fwd, load: Load, line: &str) {
    fwd.wait_for_text(line, 1);
    // The other port is still served: its device comes and goes.
    network.under_test.ip(&["link", "set", "ve0", "down"]);
    fwd.wait_for_text("ve0: the link is down", 1);
    network.under_test.ip(&["link", "set", "ve0", "up"]);
    fwd.wait_for_text("ve0: the link is up again", 1);
    network.left.set_neighbour(RIGHT, "02:00:00:00:00:aa");
    thread::sleep(Duration::from_millis(300));
    drop(load);
    let ended = fwd.end();
    let last = ended.assert_conserved();
    // Besides, what helps against full rings may be told of it.
    assert_eq!((told(&ended, "gone"), told(&ended, "vf0: the")), (1, 1), "{}", ended.stderr);
    assert!(ended.port(1, "device_gone") > 100, "{last}");
    assert_eq!(retired(&ended), 0, "{last}");
}

#[test]
fn a_removed_interface_does_not_end_the_run() {
    if !can_make_networks("a_removed_interface_does_not_end_the_run") {
        return;
    }
    for (options, idle) in WAYS {
        let network = Network::new(1);
        let fwd = network.forward(options, &["--idle", idle]);
        let load = Load::new(&network);
        comes_through(&network);
        network.under_test.ip(&["link", "del", "vf0"]);
        assert_goes_on_without_vf0(&network, fwd, load, "warning: vf0: the device is gone: it was removed");
    }
}

/// Its sockets are dead also when it comes back with its old name and index; the kernel of the other namespace gets
/// its packets.
#[test]
fn an_interface_that_moves_to_another_namespace_is_let_go() {
    if !can_make_networks("an_interface_that_moves_to_another_namespace_is_let_go") {
        return;
    }
    let line = "warning: vf0: the device is gone: it was moved to another network namespace";
    for (options, idle) in WAYS {
        for comes_back in [false, true] {
            let network = Network::new(1);
            let other = Netns::new("other");
            let fwd = network.forward(options, &["--idle", idle]);
            let load = Load::new(&network);
            comes_through(&network);
            network.under_test.ip(&["link", "set", "vf0", "netns", &other.name]);
            if comes_back {
                other.ip(&["link", "set", "vf0", "netns", &network.under_test.name]);
                network.under_test.ip(&["link", "set", "vf0", "up"]);
            }
            fwd.wait_for_text(line, 1);
            let now_in = if comes_back { &network.under_test } else { &other };
            let start = Instant::now();
            while now_in.has_xdp("vf0") {
                assert!(start.elapsed() < PATIENCE, "our program is still on the device that was moved");
                thread::sleep(Duration::from_millis(10));
            }
            assert_goes_on_without_vf0(&network, fwd, load, line);
        }
    }
}

#[test]
fn a_deleted_namespace_of_the_peer_takes_one_port_only() {
    if !can_make_networks("a_deleted_namespace_of_the_peer_takes_one_port_only") {
        return;
    }
    let network = Network::new(1);
    let fwd = network.forward("", &[]);
    let load = Load::new(&network);
    comes_through(&network);
    sheafio_tests::run("ip", &["netns", "del", &network.right.peer.name]);
    assert_goes_on_without_vf0(&network, fwd, load, "warning: vf0: the device is gone: it was removed");
}

/// Two pairs: the other one forwards on. The lcore that has only queues of the gone one sleeps, with the policy that
/// never does: it gives its CPU up again and again, where a loop that burns never would.
#[test]
fn a_pair_forwards_on_while_the_other_vanishes_and_its_lcore_rests() {
    if !can_make_networks("a_pair_forwards_on_while_the_other_vanishes_and_its_lcore_rests") {
        return;
    }
    let network = Network::new(1);
    let pair = ["vg0", "vh0"].map(|name| Veth::new(&network.under_test, name, "10.0.1.1", 2));
    let ports = ["-p", "ve0", "-p", "vf0", "-p", "vg0,queues=2", "-p", "vh0,queues=2", "--cores", "0,1"];
    let fwd = Fwd::start(&network.under_test, &ports);
    let load = Load::new(&network);
    comes_through(&network);
    drop(pair);
    for gone in ["vg0", "vh0"] {
        fwd.wait_for_text(&format!("warning: {gone}: the device is gone: it was removed"), 1);
    }
    let (start, before) = (Instant::now(), sleeps_of(&fwd, "lcore-1"));
    while sleeps_of(&fwd, "lcore-1") < before + 20 {
        assert!(start.elapsed() < PATIENCE, "the lcore whose devices are all gone does not rest");
        thread::sleep(Duration::from_millis(10));
    }
    comes_through(&network);
    drop(load);
    let ended = fwd.end();
    ended.assert_conserved();
    assert_eq!((told(&ended, "gone"), retired(&ended)), (2, 0), "{}", ended.stderr);
}

/// How often a thread of the program has given its CPU up by itself (proc_pid_status(5)).
fn sleeps_of(fwd: &Fwd, thread: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", fwd.pid())).unwrap();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let of_thread = |status: &String| status.starts_with(&format!("Name:\t{thread}\n"));
    let status = statuses.into_iter().find(of_thread).expect("the thread runs");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).expect("a number")
}

/// Without any device left there is nothing to wait for.
#[test]
fn a_run_ends_when_all_devices_are_gone() {
    if !can_make_networks("a_run_ends_when_all_devices_are_gone") {
        return;
    }
    for args in [
        &["-p", "ve0", "-p", "vf0"][..],
        &["-p", "ve0", "-p", "vf0", "--idle", "adaptive", "--mode", "rxonly"],
        &["-p", "ve0,mode=generic", "-p", "vf0,mode=generic", "--mode", "txonly"],
    ] {
        let network = Network::new(1);
        let fwd = Fwd::start(&network.under_test, args);
        let load = Load::new(&network);
        network.under_test.ip(&["link", "del", "vf0"]);
        fwd.wait_for_text("warning: vf0: the device is gone: it was removed", 1);
        network.under_test.ip(&["link", "del", "ve0"]);
        let ended = fwd.wait();
        drop(load);
        let last = ended.assert_all_home();
        assert_eq!((ended.code, retired(&ended)), (Some(1), 0), "{args:?}: {last}");
        let line = "sheafio: the devices of all ports are gone: this ends the run";
        assert_eq!(told(&ended, line), 1, "{}", ended.stderr);
    }
}

/// Under as much load as there can be, with links up and down: it detaches, closes, and reports every frame.
#[test]
fn signals_end_it_in_order_under_load() {
    if !can_make_networks("signals_end_it_in_order_under_load") {
        return;
    }
    for (options, idle) in WAYS {
        for (signal, down) in [(libc::SIGTERM, false), (libc::SIGINT, false), (libc::SIGTERM, true)] {
            let network = Network::new(1);
            let fwd = network.forward(options, &["--idle", idle]);
            let load = Load::new(&network);
            comes_through(&network);
            if down {
                network.under_test.ip(&["link", "set", "vf0", "down"]);
                fwd.wait_for_text("vf0: the link is down", 1);
            }
            fwd.signal(signal);
            let ended = fwd.wait();
            drop(load);
            let last = ended.assert_conserved();
            assert_eq!(retired(&ended), 0, "{last}");
            assert_eq!((told(&ended, "gone"), told(&ended, "took our")), (0, 0), "{}", ended.stderr);
            for interface in ["ve0", "vf0"] {
                assert!(!network.under_test.has_xdp(interface), "the program is still on {interface}");
            }
        }
    }
}

/// xdp-tutorial#108: flows that hash to a new queue were lost without a word.
#[test]
fn another_number_of_queues_is_told() {
    if !can_make_networks("another_number_of_queues_is_told") {
        return;
    }
    for mode in ["native", "generic"] {
        let under_test = Netns::new("fwd");
        let veth = Veth::new(&under_test, "ve0", LEFT, 2);
        let set = |queues: &str| {
            // The peer must not have more TX queues than the device has RX queues.
            veth.peer.run("ethtool", &["-L", "ve1", "tx", "1"]);
            under_test.succeeds("ethtool", &["-L", "ve0", "rx", queues])
        };
        assert!(set("1"));
        let fwd = Fwd::start(&under_test, &["-p", &format!("ve0,mode={mode}")]);
        assert!(set("2"));
        let line = "warning: ve0: the number of RX queues was changed, 1 before: it has 2 RX queues, not opened of these: 1.";
        fwd.wait_for_text(line, 1);
        assert!(set("1"));
        fwd.wait_for_text("ve0: the number of RX queues was changed, 2 before: it has 1, and all of them", 1);
        let ended = fwd.end();
        ended.assert_conserved();
        for part in ["Open all: queues=2", "ethtool -L ve0 combined 1 (veth: rx 1 tx 1)", "ethtool -X ve0"] {
            assert_eq!(told(&ended, part), 1, "{part}: {}", ended.stderr);
        }

        // Queues that are in use can't be taken away; a kernel that lets it happen is told of.
        assert!(set("2"));
        let fwd = Fwd::start(&under_test, &["-p", &format!("ve0,mode={mode},queues=2")]);
        let were_taken = set("1");
        if were_taken {
            fwd.wait_for_text("so our queues 1 get no packets", 1);
        }
        let ended = fwd.end();
        ended.assert_conserved();
        assert_eq!(told(&ended, "RX queues"), usize::from(were_taken), "{}", ended.stderr);
    }
}

/// xsk-rs#47: packets that became too large for a frame vanish no more without a word.
#[test]
fn an_mtu_that_grows_beyond_a_frame_is_told() {
    if !can_make_networks("an_mtu_that_grows_beyond_a_frame_is_told") {
        return;
    }
    let under_test = Netns::new("fwd");
    let _veth = Veth::new(&under_test, "ve0", LEFT, 1);
    let fwd = Fwd::start(&under_test, &["-p", "ve0,mode=generic"]);
    under_test.ip(&["link", "set", "ve0", "mtu", "1600"]); // Fits; it looks five times a second, and prints once.
    fwd.wait_for_lines(2);
    under_test.ip(&["link", "set", "ve0", "mtu", "3000"]);
    fwd.wait_for_text("warning: ve0: the MTU was changed from", 1);
    under_test.ip(&["link", "set", "ve0", "mtu", "1500"]);
    fwd.wait_for_text("ve0: the MTU is 1500: every packet of that size is received again", 1);
    let ended = fwd.end();
    ended.assert_conserved();
    let part = "packets may have 3018 bytes, but the frames of one hold 1792, and larger ones are dropped";
    assert_eq!((told(&ended, part), told(&ended, "mtu 1774")), (1, 1), "{}", ended.stderr);
}

/// xdp-firewall#10: killed under load, it leaves nothing behind that is in the way of the next run.
#[test]
fn a_program_that_is_killed_leaves_no_program_on_the_device() {
    if !can_make_networks("a_program_that_is_killed_leaves_no_program_on_the_device") {
        return;
    }
    let network = Network::new(1);
    let args = ["fwd", "--json", "-p", "ve0", "-p", "vf0"];
    let fwd = Fwd::start_program(&network.under_test, sheafio(), &args);
    fwd.wait_for_xdp(&network.under_test, "vf0");
    let load = Load::new(&network);
    comes_through(&network);
    fwd.signal(libc::SIGKILL);
    assert_eq!(fwd.wait().code, None);
    drop(load);
    let start = Instant::now();
    while ["ve0", "vf0"].iter().any(|interface| network.under_test.has_xdp(interface)) {
        assert!(start.elapsed() < PATIENCE, "the program is still attached after SIGKILL");
        thread::sleep(Duration::from_millis(10));
    }
    // A new run gets the queues.
    let fwd = network.forward("", &[]);
    comes_through(&network);
    fwd.end().assert_conserved();
}
