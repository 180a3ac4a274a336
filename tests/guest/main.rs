//! Real NIC drivers, zero-copy and not, on a machine with two NUMA nodes: the guest that `tests/guest/run` boots.
//!
//! Owns: the guest's NICs. Never does: run elsewhere; there each test says that it was skipped. Invariant: every
//! run of the command ends with every frame accounted for.

mod nics;

use std::{thread, time::Duration};

use nics::{DRIVERS, Nics, RIGHT, in_guest};
use sheafio_tests::Fwd;

/// Drivers that do without copies on this kernel.
fn zero_copy_drivers() -> Vec<&'static str> {
    vec!["igb", "virtio"]
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
    if !in_guest("zero_copy_binds_and_forwards") {
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
            // e1000e has no native XDP on any kernel so far.
            let mode = if generic || driver == "e1000e" { "generic" } else { "native" };
            assert!(line.contains(&format!("AF_XDP {mode} copy")), "{line}");
            let fwd = nics.forward(options, &[]);
            ping_and_udp(&nics, fwd, 100);
        }
    }
}

#[test]
fn zero_copy_answers_pings() {
    if !in_guest("zero_copy_answers_pings") {
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
fn zero_copy_closes_under_load_and_opens_again() {
    if !in_guest("zero_copy_closes_under_load_and_opens_again") {
        return;
    }
    for driver in zero_copy_drivers() {
        let nics = Nics::new(driver);
        for round in 0..5 {
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
    }
}
