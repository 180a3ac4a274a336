//! Real NIC drivers, zero-copy and not, on a machine with two NUMA nodes: the guest that `tests/guest/run` boots.
//!
//! Owns: the guest's NICs. Never does: run elsewhere; there each test says that it was skipped. Invariant: every
//! run of the command ends with every frame accounted for.

mod account;
#[path = "../selftests/bench.rs"]
mod bench;
mod close;
mod fallbacks;
mod features;
mod large;
mod link;
mod nics;
mod selftests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, thread,
    time::Duration,
};

use nics::{DRIVERS, LEFT, Nics, RIGHT, in_guest};
use sheafio_drivers::af_xdp::Netdev;
use sheafio_tests::{Fwd, datagram, kernel_has, kernel_is_at_least, sheafio, socket};

/// Drivers that do without copies on this kernel, as it says itself.
fn zero_copy_drivers() -> Vec<&'static str> {
    let has_zero_copy =
        |driver: &&str| Netdev::of(&format!("{driver}1")).is_some_and(|netdev| netdev.has_zero_copy());
    let drivers: Vec<_> = DRIVERS.into_iter().filter(has_zero_copy).collect();
    // Both, or none, on the kernels of the table of features.
    assert_eq!(drivers, if kernel_is_at_least(6, 18) { vec!["igb", "virtio"] } else { vec![] });
    drivers
}

/// Whether a test that is about them alone can be run.
fn can_do_without_copies(test: &str) -> bool {
    in_guest(test) && kernel_has(test, 6, 18, "drivers that do without copies")
}

/// Ping and UDP both ways through a forwarder; all of it arrives, and every packet and frame is explained.
fn ping_and_udp(nics: &Nics, fwd: Fwd, datagrams: u32) {
    assert!(nics.pings(3));
    nics.exchange(datagrams);
    let ended = fwd.end();
    let last = ended.assert_conserved();
    for port in 0..2 {
        assert!(ended.port(port, "rx_packets") >= u64::from(datagrams), "{last}");
        assert!(ended.port(port, "tx_packets") >= u64::from(datagrams), "{last}");
    }
    for peer in [&nics.left, &nics.right] {
        assert_eq!((peer.snmp("Ip", "InHdrErrors"), peer.snmp("Udp", "InCsumErrors")), (0, 0));
    }
}

#[test]
fn zero_copy_binds_and_forwards() {
    if !can_do_without_copies("zero_copy_binds_and_forwards") {
        return;
    }
    for driver in zero_copy_drivers() {
        let nics = Nics::new(driver);
        let line = nics.opened(",copy=zerocopy");
        assert!(line.contains("AF_XDP native zero-copy"), "{line}");
        let fwd = nics.forward(",copy=zerocopy", &[]);
        ping_and_udp(&nics, fwd, 300);
    }
}

#[test]
fn copy_and_generic_modes_forward_on_every_driver() {
    if !in_guest("copy_and_generic_modes_forward_on_every_driver") {
        return;
    }
    for driver in DRIVERS {
        let nics = Nics::new(driver);
        for options in [",copy=copy", ",mode=generic"] {
            let (line, generic) = (nics.opened(options), options.contains("generic"));
            // What has no native mode goes on in generic; which one has is what features.rs asks.
            let mode = if generic { "AF_XDP generic copy" } else { " copy, MTU" };
            assert!(line.contains(mode), "{line}");
            assert!(
                driver == "e1000e" || generic || line.contains("native") || !kernel_is_at_least(7, 0),
                "{line}"
            );
            let fwd = nics.forward(options, &[]);
            ping_and_udp(&nics, fwd, 100);
        }
    }
}

#[test]
fn zero_copy_answers_pings() {
    if !can_do_without_copies("zero_copy_answers_pings") {
        return;
    }
    for driver in zero_copy_drivers() {
        let nics = Nics::new(driver);
        let fwd = nics.serve(",copy=zerocopy", &["--mode", "icmpecho"]);
        assert!(nics.pings(3));
        for size in ["0", "56", "1000", "1472"] {
            let ping = ["-c", "3", "-i", "0.05", "-W", "5", "-s", size, RIGHT];
            assert!(nics.left.succeeds("ping", &ping), "{driver}, {size} bytes");
        }
        fwd.end().assert_conserved();
        assert_eq!(nics.left.snmp("Icmp", "InCsumErrors"), 0);
    }
}

#[test]
fn zero_copy_sends_back_and_sends_alone() {
    if !can_do_without_copies("zero_copy_sends_back_and_sends_alone") {
        return;
    }
    for driver in zero_copy_drivers() {
        let nics = Nics::new(driver);
        let peer = nics.interface(0);
        let fwd = nics.serve(",copy=zerocopy", &["--mode", "macswap"]);
        // Asked and answered by nobody: the peer knows the address that it sends to.
        nics.left.ip(&["neigh", "replace", RIGHT, "lladdr", "02:00:00:00:00:aa", "dev", &peer]);
        let (before, left) = (nics.received(0), socket(&nics.left, LEFT));
        for number in 0..100 {
            left.send_to(&datagram(number, 100), (RIGHT, 9)).unwrap();
        }
        nics.wait_until(|| nics.received(0) >= before + 100);
        let ended = fwd.end();
        ended.assert_conserved();
        assert_eq!(ended.port(0, "rx_packets"), ended.port(0, "tx_packets"), "{driver}");

        // Nothing arrives here, so nothing but the sender itself wakes the driver.
        nics.left.ip(&["link", "set", &peer, "promisc", "on"]);
        let fwd = nics.serve(",copy=zerocopy", &["--mode", "txonly"]);
        let before = nics.received(0);
        nics.wait_until(|| nics.received(0) >= before + 5000);
        let ended = fwd.end();
        ended.assert_conserved();
        assert!(ended.port(0, "tx_packets") >= 5000, "{driver}");
        nics.left.ip(&["link", "set", &peer, "promisc", "off"]);
    }
}

/// A tag that the NIC has taken out is lost, and the user is told so: with metadata too, for igb tells no tags.
#[test]
fn tags_that_a_nic_takes_out_are_warned_of() {
    if !in_guest("tags_that_a_nic_takes_out_are_warned_of") {
        return;
    }
    let nics = Nics::new("igb");
    let warnings = |options: &str| {
        let fwd = Fwd::start(&nics.under_test, &["-p", &format!("igb1{options}"), "--mode", "rxonly"]);
        let ended = fwd.end();
        ended.assert_conserved();
        let lines = ended.stderr.lines().filter(|line| line.contains("VLAN tags"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let line = |why: &str| {
        format!(
            "warning: igb1: the device takes VLAN tags out of packets, and {why}: tagged packets pass for untagged \
             ones. Leave tags where they are: ethtool -K igb1 rxvlan off"
        )
    };
    for mode in ["", ",mode=generic"] {
        assert_eq!(warnings(mode), [line("nobody looks for them")]);
        let told = line("metadata=yes tells none of them here");
        assert_eq!(warnings(&format!("{mode},metadata=yes")), [told]);
    }
    nics.under_test.run("ethtool", &["-K", "igb1", "rxvlan", "off"]);
    let left = [warnings(""), warnings(",metadata=yes")];
    nics.under_test.run("ethtool", &["-K", "igb1", "rxvlan", "on"]);
    assert_eq!(left, [[""; 0]; 2]);
}

/// igb would receive a packet of 1500 bytes as two, into frames of 2048 bytes without copies.
#[test]
fn frames_that_igb_would_split_packets_for_are_not_used_without_copies() {
    if !can_do_without_copies("frames_that_igb_would_split_packets_for_are_not_used_without_copies") {
        return;
    }
    let nics = Nics::new("igb");
    let small = ["--mode", "icmpecho", "--frame-size", "2048"];
    let args = [&["fwd", "-p", "igb1,copy=zerocopy"], &small[..]].concat();
    let refused = Fwd::start_program(&nics.under_test, sheafio(), &args).wait();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for part in ["igb1: ", "1024 bytes into a frame of 2048", "--frame-size 4096", "copy=copy", "mtu 1006"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    let answers =
        |bytes| nics.left.succeeds("ping", &["-c", "3", "-i", "0.05", "-W", "5", "-s", bytes, RIGHT]);
    let fwd = Fwd::start(&nics.under_test, &[&["-p", "igb1"], &small[..]].concat());
    nics.wait_for_links();
    assert!(nics.pings(1) && answers("1472"));
    let ended = fwd.end();
    ended.assert_conserved();
    assert!(ended.stderr.contains("goes on in copy mode"), "{}", ended.stderr);

    // Packets that fit are no reason; the answers to pings of 978 bytes have just the 1020 bytes without a tag.
    nics.under_test.ip(&["link", "set", "igb1", "mtu", "1006"]);
    let args = [&["-p", "igb1,copy=zerocopy"], &small[..]].concat();
    let fwd = Fwd::start(&nics.under_test, &args);
    nics.wait_for_links();
    assert!(nics.pings(1) && answers("978"));
    fwd.end().assert_conserved();
    nics.under_test.ip(&["link", "set", "igb1", "mtu", "1500"]);
}

/// Two queues of NICs on different nodes, served by CPUs on different nodes: the pool has a zone on each, and every
/// page of a zone lies where it should.
#[test]
fn packet_memory_lies_on_both_nodes_while_nics_of_both_forward() {
    if !in_guest("packet_memory_lies_on_both_nodes_while_nics_of_both_forward") {
        return;
    }
    let zero_copy = zero_copy_drivers().contains(&"igb").then_some(",queues=2,copy=zerocopy");
    let nics = Nics::new("igb");
    for (number, node) in [(1, "0"), (2, "1")] {
        let path = format!("/sys/class/net/{}/device/numa_node", nics.interface(number));
        assert_eq!(nics.under_test.run("cat", &[&path]).trim(), node);
    }
    assert!(nics.queues(2), "igb has a queue for each CPU");
    nics.wait_for_links();
    for options in [",queues=2,copy=copy"].into_iter().chain(zero_copy) {
        let fwd = nics.forward(options, &["--cores", "0,1", "--frames", "16384", "--hugepages", "off"]);
        let pages = pages_by_policy(fwd.pid());
        // A zone has half of the frames, of a base page each.
        assert_eq!(pages, [("bind:0".to_owned(), [8192, 0]), ("bind:1".to_owned(), [0, 8192])]);
        assert!(nics.pings(3));
        nics.exchange(100);
        let running = fwd.wait_for_object("a line of a second", |line| line["final"] != true);
        let ended = fwd.end();
        ended.assert_conserved();
        for (number, node, far) in [(1, 0, 1), (2, 1, 0)] {
            let warning = format!(
                "igb{number}: its device is on NUMA node {node}, and CPUs {far}, which serve it, are not"
            );
            assert!(ended.stderr.contains(&warning), "{}", ended.stderr);
        }
        let caches = running["pool"]["by_cache"].as_array().unwrap();
        let zones: BTreeSet<_> = caches.iter().map(|cache| cache["zone"].as_u64().unwrap()).collect();
        assert_eq!(zones, BTreeSet::from([0, 1]), "{running}");
    }
}

/// The pages of a process that are bound to a node, by that binding, on node 0 and node 1 (numa_maps in proc(5)).
fn pages_by_policy(process: u32) -> Vec<(String, [u64; 2])> {
    let text = fs::read_to_string(format!("/proc/{process}/numa_maps")).unwrap();
    let mut pages: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split_whitespace().skip(1);
        let Some(policy) = fields.next().filter(|policy| policy.starts_with("bind:")) else { continue };
        let on_nodes = pages.entry(policy.to_owned()).or_default();
        for field in fields {
            for (on_node, prefix) in on_nodes.iter_mut().zip(["N0=", "N1="]) {
                *on_node += field.strip_prefix(prefix).map_or(0, |count| count.parse().unwrap());
            }
        }
    }
    pages.into_iter().collect()
}

#[test]
fn zero_copy_closes_under_load_and_opens_again() {
    if !can_do_without_copies("zero_copy_closes_under_load_and_opens_again") {
        return;
    }
    for driver in zero_copy_drivers() {
        let nics = Nics::new(driver);
        for round in 0..=close::rounds() {
            let fwd = nics.forward(",copy=zerocopy", &[]);
            assert!(nics.pings(1), "{driver}, round {round}");
            let load = Fwd::start_program(&nics.left, "ping".into(), &["-q", "-f", "-w", "20", RIGHT]);
            thread::sleep(Duration::from_millis(500));
            fwd.signal(libc::SIGTERM);
            let ended = fwd.wait();
            ended.assert_conserved();
            println!("{driver}, round {round}: {} frames retired", ended.retired());
            drop(load);
            assert!(!nics.under_test.has_xdp(&nics.interface(1)));
        }
        // Taking the program off takes an igb half a second, in which its port is looked at: at 1 s.
        let port = format!("{driver}1,copy=zerocopy");
        let args = ["fwd", "--json", "-p", &port, "--mode", "rxonly", "--duration", "900ms"];
        let args = [&args[..], &["--frame-size", "4096"]].concat();
        let ended = Fwd::start_program(&nics.under_test, sheafio(), &args).wait();
        ended.assert_conserved();
        assert!(!ended.stderr.contains("took our XDP program off"), "{driver}: {}", ended.stderr);
    }
}
