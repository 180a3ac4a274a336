//! What is refused when ports are opened, and what the one line says about it.
//!
//! Here: what the interface can't do. `owners`: what others hold. `limits`: what the process may not do.
//! `calls`: what other machines refuse.

mod calls;
mod limits;
mod owners;

use std::fs;

use sheafio_tests::{Fwd, Netns, Veth, can_make_networks, refused, skip};

/// A namespace under test with `ve0`, and its kernel peer.
fn network(queues: u32) -> (Netns, Veth) {
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", "10.0.0.1", queues);
    (under_test, veth)
}

/// s2n-quic#2045: queues that are not there.
#[test]
fn too_many_queues_are_refused_with_how_many_there_are() {
    if !can_make_networks("too_many_queues_are_refused_with_how_many_there_are") {
        return;
    }
    let (netns, _veth) = network(1);
    let line = refused(&netns, &["-p", "ve0,queues=8"]);
    for part in ["ve0: queues 0-7", "it has 1", "ethtool -L ve0 combined 8"] {
        assert!(line.contains(part), "{line}");
    }
    let line = refused(&netns, &["-p", "ve0,start=1"]);
    assert!(line.contains("ve0: queues 1 were asked for, but it has 1"), "{line}");

    let (netns, _veth) = network(4);
    let fwd = Fwd::start(&netns, &["-p", "ve0,queues=4"]);
    fwd.end().assert_conserved();
}

#[test]
fn an_interface_that_is_not_there_is_told_with_those_that_are() {
    if !can_make_networks("an_interface_that_is_not_there_is_told_with_those_that_are") {
        return;
    }
    let (netns, _veth) = network(1);
    let line = refused(&netns, &["-p", "ve9"]);
    assert!(line.contains("ve9: no such network interface; there are: lo, ve0"), "{line}");
}

/// What the driver can do is looked up, and it is named.
#[test]
fn a_driver_without_the_asked_mode_is_named() {
    if !can_make_networks("a_driver_without_the_asked_mode_is_named") {
        return;
    }
    let (netns, _veth) = network(1);
    let line = refused(&netns, &["-p", "ve0,copy=zerocopy"]);
    let parts =
        ["ve0 queue 0: can't bind with copy=zerocopy", "Driver veth has no zero-copy (XDP features: "];
    assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    // Linux 6.3 and newer tell what a driver can do with XDP.
    let features =
        if kernel_is_at_least(6, 3) { ["basic, redirect", "none"] } else { ["not told by this kernel"; 2] };
    assert!(line.contains(&format!("(XDP features: {}", features[0])), "{line}");

    if !netns.succeeds("ip", &["link", "add", "link", "ve0", "mv0", "type", "macvlan"]) {
        skip("a_driver_without_the_asked_mode_is_named", "this kernel has no macvlan");
        return;
    }
    netns.ip(&["link", "set", "mv0", "up"]);
    let line = refused(&netns, &["-p", "mv0,mode=native"]);
    let words = format!("Driver macvlan has no native XDP (features: {})", features[1]);
    assert!(line.contains(&words), "{line}");
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}
