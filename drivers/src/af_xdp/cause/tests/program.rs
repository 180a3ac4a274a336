//! Causes for which the program can't be attached, and who is in the way.

use std::path::PathBuf;

use super::*;
use crate::af_xdp::owner::{Holder, Holding, QueueHolder};

#[test]
fn a_program_that_is_refused_names_driver_mtu_and_offloads() {
    let attach = |number, mode, has_other_mode, driver: &Driver| {
        let ask = AttachAsk { mode, has_other_mode, above: &[] };
        of_attach(&error(number), ask, &interface(), driver, &process())
    };
    let say = |number, mode, driver: &Driver| attach(number, mode, true, driver);
    let native = Mode::Native;
    let words = say(libc::EOPNOTSUPP, native, &driver(Some(0)));
    has(&words, &["Driver fast has no native XDP (features: none)", "mode=generic"]);
    let words = say(libc::EOPNOTSUPP, native, &driver(Some(0b11)));
    has(&words, &["has native XDP (features: basic, redirect)", "MTU 1500", "4 queues", "mode=generic"]);
    has(&say(libc::ERANGE, native, &driver(Some(0b11))), &["mtu 1500", "one page"]);
    has(&say(libc::ENOSPC, native, &driver(Some(0b11))), &["RX queues (4)", "ethtool -L eth7 rx"]);
    has(
        &say(libc::EIO, native, &driver(Some(0b11))),
        &["Driver fast (XDP features: basic, redirect) refused it", "mode=generic"],
    );
    has(&say(libc::EPERM, native, &driver(Some(0b11))), &["nothing was found"]);

    let offloads = vec!["rx-lro".to_owned(), "rx-gro-hw".to_owned()];
    let glued = Driver { offloads, ..driver(Some(0b11)) };
    for number in [libc::EOPNOTSUPP, libc::EINVAL] {
        let words = say(number, native, &glued);
        has(
            &words,
            &["rx-lro and rx-gro-hw may", "ethtool -K eth7 rx-lro off rx-gro-hw off", "mode=generic"],
        );
    }
    has(&say(libc::EMFILE, native, &glued), &["20 files"]);

    let words = say(libc::EOPNOTSUPP, Mode::Generic, &driver(Some(0b11)));
    assert!(words.contains("mode=native") && !words.contains("mode=generic"), "{words}");
    has(&say(libc::EMFILE, Mode::Generic, &driver(Some(0b11))), &["20 files"]);

    // Where modes are tried one after the other, none is named that has failed, or comes next by itself.
    for (mode, driver) in [(native, driver(Some(0))), (native, driver(Some(0b11))), (native, glued)]
        .into_iter()
        .chain([(Mode::Generic, driver(Some(0b11)))])
    {
        for number in [libc::EOPNOTSUPP, libc::EINVAL, libc::ERANGE, libc::ENOSPC, libc::EIO] {
            let words = attach(number, mode, false, &driver);
            assert!(!words.contains("mode="), "{words}");
            let all = attach(number, mode, true, &driver);
            assert!(all.starts_with(&words) || mode == Mode::Generic, "{all}");
        }
    }
}

#[test]
fn a_kernel_without_links_of_xdp_programs_is_told_as_one() {
    let say = |kernel: &str, number, mode| {
        let process = Process { kernel: kernel.to_owned(), ..process() };
        let ask = AttachAsk { mode, has_other_mode: true, above: &[] };
        let words = of_attach(&error(number), ask, &interface(), &driver(None), &process);
        (words, is_of_mode(&error(number), &process))
    };
    for mode in [Mode::Native, Mode::Generic] {
        let (words, is_of_mode) = say("5.8.18", libc::EINVAL, mode);
        has(&words, &["Kernel 5.8.18", "BPF link", "5.10 or newer"]);
        assert!(!words.contains("mode=") && !is_of_mode, "{words}");
        let (words, is_of_mode) = say("6.18.4", libc::EINVAL, mode);
        assert!(words.contains("mode=") && is_of_mode, "{words}");
    }
    assert!(say("5.8.18", libc::EOPNOTSUPP, Mode::Native).1);
    assert!(!say("6.18.4", libc::EMFILE, Mode::Native).1);
}

#[test]
fn a_program_above_is_named_in_every_mode() {
    let upper = |name: &str, has_program: bool| Above {
        interface: name.to_owned(),
        program: has_program
            .then(|| ("'pass_all' (id 7)".to_owned(), format!("ip link set dev {name} xdpgeneric off"))),
    };
    for mode in [Mode::Native, Mode::Generic] {
        let say = |above: &[Above]| {
            let ask = AttachAsk { mode, has_other_mode: true, above };
            let words = of_attach(&error(libc::EEXIST), ask, &interface(), &driver(None), &process());
            assert!(!words.contains("mode=") && !words.contains("CONFIG"), "{words}");
            words
        };
        let words = say(&[upper("mv0", false), upper("bond0", true)]);
        has(
            &words,
            &["bond0, a device above it, has XDP program 'pass_all' (id 7)", "dev bond0 xdpgeneric off"],
        );
        assert!(!words.contains("mv0"), "{words}");
        has(&say(&[upper("bond0", false)]), &["may have an XDP program", ": bond0.", "dev bond0 xdp off"]);
        has(&say(&[]), &["bond, bridge, VLAN, macvlan", "another network namespace", "dev UPPER xdp off"]);
    }
    assert!(!is_of_mode(&error(libc::EEXIST), &process()));
}

#[test]
fn the_owner_of_a_program_is_told_with_the_command_that_ends_it() {
    let holder = |pid, name: &str| Holder { pid, name: name.to_owned() };
    let say = |link, sees_links, holding: &Holding| {
        of_attached(Attached { interface: "eth7", is_generic: true, link, sees_links, holding })
    };
    let nobody = Holding::default();
    let (owner, remedy) = say(None, true, &nobody);
    has(&owner, &["by netlink"]);
    assert_eq!(remedy, "ip link set dev eth7 xdpgeneric off");

    let (owner, remedy) = say(Some(9), true, &nobody);
    has(&owner, &["by BPF link 9", "no process that can be seen"]);
    assert_eq!(remedy, "bpftool link detach id 9");

    let held = Holding {
        processes: vec![holder(12, "sheafio"), holder(13, "monitor")],
        pins: vec![PathBuf::from("/sys/fs/bpf/xdp")],
        link: Some(9),
    };
    let (owner, remedy) = say(Some(9), true, &held);
    has(
        &owner,
        &["by BPF link 9", "held by sheafio (pid 12) or monitor (pid 13)", "pinned as /sys/fs/bpf/xdp"],
    );
    assert_eq!(remedy, "kill 12 or 13, or: rm /sys/fs/bpf/xdp, or: bpftool link detach id 9");

    // Without CAP_SYS_ADMIN the holders' descriptors may still tell the link.
    let (owner, _) = say(None, false, &held);
    has(&owner, &["by BPF link 9"]);
    let (owner, remedy) = say(None, false, &nobody);
    has(&owner, &["can't be seen without CAP_SYS_ADMIN"]);
    has(&remedy, &["as root: bpftool net", "ip link set dev eth7 xdpgeneric off"]);
}

/// Of the ways out for other programs, none helps a process that is in its own way.
#[test]
fn a_program_of_this_process_is_told_from_those_of_others() {
    let own = Holder { pid: std::process::id(), name: "l2fwd".to_owned() };
    let own = Holding { processes: vec![own], pins: Vec::new(), link: Some(9) };
    let other = Holding { processes: vec![Holder { pid: 0, name: "sheafio".to_owned() }], ..own.clone() };
    let off = |holding| {
        let at = Attached { interface: "eth7", is_generic: false, link: Some(9), sees_links: true, holding };
        of_attached(at).1
    };
    assert_eq!(off(&own), "close the port that this process has on eth7");
    has(&beside_attached("eth7", &own, &off(&own)), &["once is enough", "AfXdpPort::queue"]);
    assert_eq!(
        beside_attached("eth7", &other, &off(&other)),
        "Take it off: kill 0, or: bpftool link detach id 9; or replace it: -p eth7,force=yes (or fwd --force)"
    );
}

#[test]
fn who_loses_by_a_forced_take_off_is_told_where_it_can_be_seen() {
    let holders = [Holder { pid: 12, name: "sheafio".to_owned() }];
    let program = "'sheafio_frags' (id 7)";
    assert_eq!(
        of_taken_off("eth7", program, &holders),
        "eth7: took off XDP program 'sheafio_frags' (id 7), held by sheafio (pid 12), which receives nothing there any \
         more. It is not put back when this ends"
    );
    assert_eq!(
        of_taken_off("eth7", program, &[]),
        "eth7: took off XDP program 'sheafio_frags' (id 7). It is not put back when this ends"
    );
}

#[test]
fn the_owner_of_a_queue_is_told_as_surely_as_the_kernel_tells() {
    let one = vec![Holder { pid: 12, name: "sheafio".to_owned() }];
    let (owner, remedy) = of_queue(&QueueHolder::Known(one.clone()));
    has(&owner, &["it is held by sheafio (pid 12)"]);
    assert_eq!(remedy, "End it: kill 12");
    let (owner, _) = of_queue(&QueueHolder::Among(one));
    has(&owner, &["likely that of sheafio (pid 12)", "CONFIG_XDP_SOCKETS_DIAG"]);
    for nobody in [QueueHolder::Known(Vec::new()), QueueHolder::Among(Vec::new())] {
        let (owner, remedy) = of_queue(&nobody);
        has(&owner, &["be seen from here"]);
        has(&remedy, &["ss -a --xdp"]);
    }
}
