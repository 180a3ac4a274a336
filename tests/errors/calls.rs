//! Every system call of set-up, failing as it would on a machine that is not this one.

use sheafio_core::Queue;
use sheafio_drivers::af_xdp;
use sheafio_mempool::{Hugepages, Mempool};
use sheafio_tests::{Fwd, Refusal, can_make_networks};

use crate::network;

/// Kernels, containers and lack of memory that this machine may not have: the system calls fail as they would there.
#[test]
fn each_call_that_fails_names_itself_and_its_cause() {
    if !can_make_networks("each_call_that_fails_names_itself_and_its_cause") {
        return;
    }
    let (netns, _veth) = network(1);
    let (sol_xdp, af_xdp) = (libc::SOL_XDP as u32, libc::AF_XDP as u32);
    let option = |option: i32| [(1, sol_xdp), (2, option as u32)];
    let any = "ve0";
    for (port, call, arguments, error, parts) in [
        (
            any,
            libc::SYS_socket,
            &[(0, af_xdp)][..],
            libc::EAFNOSUPPORT,
            &["ve0 queue 0: opening an AF_XDP socket", "CONFIG_XDP_SOCKETS=y", "seccomp filter is in force"]
                [..],
        ),
        (
            any,
            libc::SYS_socket,
            &[(0, af_xdp)],
            libc::EPERM,
            &["AF_XDP socket", "seccomp filter is in force"],
        ),
        (any, libc::SYS_socket, &[(0, af_xdp)], libc::ENFILE, &["AF_XDP socket", "fs.file-max"]),
        (any, libc::SYS_bpf, &[], libc::ENOSYS, &["ve0: can't load the XDP program", "CONFIG_BPF_SYSCALL=y"]),
        (
            any,
            libc::SYS_bpf,
            &[],
            libc::EPERM,
            &["ve0: can't load the XDP program", "seccomp filter is in force"],
        ),
        (any, libc::SYS_bpf, &[(0, BPF_MAP_CREATE)], libc::EINVAL, &["xsks", "CONFIG_XDP_SOCKETS=y"]),
        (
            any,
            libc::SYS_setsockopt,
            &option(libc::XDP_UMEM_REG),
            libc::ENOMEM,
            &["ve0: the kernel refused 32768 KiB of packet memory", "fewer frames", "free -m"],
        ),
        (
            any,
            libc::SYS_setsockopt,
            &option(libc::XDP_UMEM_REG),
            libc::EINVAL,
            &["ve0 queue 0: registering the packet memory", "5.10 or newer"],
        ),
        (
            "ve0,ring=1024",
            libc::SYS_setsockopt,
            &option(libc::XDP_TX_RING),
            libc::ENOMEM,
            &["ve0 queue 0: making the TX ring", "1024 slots takes 16 KiB", "ring=256", "free -m"],
        ),
        (
            any,
            libc::SYS_setsockopt,
            &option(libc::XDP_UMEM_FILL_RING),
            libc::ENOMEM,
            &["making the fill ring"],
        ),
        (
            any,
            libc::SYS_setsockopt,
            &option(libc::XDP_UMEM_COMPLETION_RING),
            libc::ENOMEM,
            &["making the completion ring"],
        ),
        (any, libc::SYS_setsockopt, &option(libc::XDP_RX_RING), libc::ENOMEM, &["making the RX ring"]),
        (any, libc::SYS_getsockopt, &option(libc::XDP_MMAP_OFFSETS), libc::ENOMEM, &["mapping the rings"]),
        (any, libc::SYS_getsockopt, &option(libc::XDP_OPTIONS), libc::EINVAL, &["asking for the copy mode"]),
        (
            "ve0,copy=zerocopy",
            libc::SYS_bind,
            &[(2, ADDRESS_BYTES)],
            libc::EINVAL,
            &[
                "ve0 queue 0: can't bind with copy=zerocopy",
                "Driver veth refuses",
                "MTU 1500",
                "rings of 2048 slots",
            ],
        ),
        (any, libc::SYS_bind, &[(2, ADDRESS_BYTES)], libc::EINVAL, &["had 1 queues", "ethtool -l ve0"]),
        (any, libc::SYS_bind, &[(2, ADDRESS_BYTES)], libc::ENOMEM, &["can't bind with copy=auto", "free -m"]),
        (any, libc::SYS_bind, &[(2, ADDRESS_BYTES)], libc::ENODEV, &["gone away"]),
        (
            "ve0,mode=native",
            libc::SYS_bpf,
            &[(0, BPF_LINK_CREATE)],
            libc::EPERM,
            &["ve0: can't attach the XDP program in native mode", "seccomp filter is in force"],
        ),
        (
            "ve0,mode=generic",
            libc::SYS_bpf,
            &[(0, BPF_LINK_CREATE)],
            libc::EINVAL,
            &["ve0: can't attach the XDP program in generic mode", "mode=native"],
        ),
        (
            any,
            libc::SYS_bpf,
            &[(0, BPF_LINK_CREATE)],
            libc::EINVAL,
            &[
                "ve0: can't attach the XDP program in native mode: Invalid argument",
                "Driver veth",
                "; and in generic mode: ve0: can't attach the XDP program in generic mode: Invalid argument",
            ],
        ),
        (
            "ve0,busy_poll=64",
            libc::SYS_setsockopt,
            &[(1, libc::SOL_SOCKET as u32), (2, SO_PREFER_BUSY_POLL)],
            libc::ENOPROTOOPT,
            &[
                "ve0 queue 0: asking for busy polling",
                "CONFIG_NET_RX_BUSY_POLL=y",
                ". Or do without: busy_poll=no",
            ],
        ),
        (
            "ve0,busy_poll=64",
            libc::SYS_setsockopt,
            &[(1, libc::SOL_SOCKET as u32), (2, SO_BUSY_POLL)],
            libc::EPERM,
            &["asking for busy polling", "seccomp filter is in force", ". Or do without: busy_poll=no"],
        ),
        (
            "ve0,busy_poll=64",
            libc::SYS_setsockopt,
            &[(1, libc::SOL_SOCKET as u32), (2, SO_BUSY_POLL_BUDGET)],
            libc::EPERM,
            &["asking for busy polling", "seccomp filter is in force", ". Or do without: busy_poll=no"],
        ),
        (
            any,
            libc::SYS_socket,
            &[(0, libc::AF_PACKET as u32)],
            libc::ENFILE,
            &["ve0: making a packet socket", "fs.file-max", "promisc=no"],
        ),
        (
            any,
            libc::SYS_socket,
            &[(0, libc::AF_PACKET as u32)],
            libc::EAFNOSUPPORT,
            &["ve0: making a packet socket", "CONFIG_PACKET=y", "RestrictAddressFamilies=", "promisc=no"],
        ),
        (
            any,
            libc::SYS_setsockopt,
            &[(1, libc::SOL_PACKET as u32), (2, libc::PACKET_ADD_MEMBERSHIP as u32)],
            libc::EPERM,
            &["ve0: asking for promiscuous mode", "seccomp filter is in force", "promisc=no"],
        ),
        (
            any,
            libc::SYS_mmap,
            &[(5, TX_RING_OFFSET)],
            libc::ENOMEM,
            &["ve0 queue 0: mapping the rings", "free -m"],
        ),
        // The one mapping of its size: rings have more slots than fit into it.
        (
            any,
            libc::SYS_mmap,
            &[(1, ROOM_BYTES)],
            libc::ENOMEM,
            &["ve0: can't load the XDP program", "mapping its map of rooms", "free -m"],
        ),
        (
            any,
            libc::SYS_capset,
            &[],
            libc::EPERM,
            &[
                "can't give up capabilities after set-up",
                "capset(2)",
                "Allow these calls in the seccomp filter",
            ],
        ),
        (
            any,
            libc::SYS_prctl,
            &[(0, libc::PR_SET_NO_NEW_PRIVS as u32)],
            libc::EPERM,
            &["can't give up capabilities after set-up", "prctl(2)"],
        ),
        (
            any,
            libc::SYS_ioctl,
            &[(1, SIOCGIFMTU)],
            libc::ENODEV,
            &["ve0: asking the interface for its properties", "gone away"],
        ),
        (any, libc::SYS_ioctl, &[(1, SIOCGIFMTU)], libc::ENOMEM, &["ve0: asking the interface", "free -m"]),
    ] {
        let refusal = Refusal { call, arguments, error };
        let line = refusal.start(&netns, &["-p", port, "--duration", "2s"]).wait().refusal();
        for part in parts {
            assert!(line.contains(part), "{refusal:?}: '{part}' is missing in: {line}");
        }
        // Where modes were tried one after the other, none is named as a remedy.
        assert!(port != any || !line.contains("mode="), "{refusal:?}: {line}");
        assert!(!netns.has_xdp("ve0"), "{refusal:?}");
    }
    // None of them has kept anything: the queue is free.
    Fwd::start(&netns, &["-p", "ve0"]).end().assert_conserved();
}

/// `echo` joins the group by which its address is looked for, instead of asking for promiscuous mode.
#[test]
fn a_group_that_can_not_be_joined_is_told_with_what_does_without() {
    if !can_make_networks("a_group_that_can_not_be_joined_is_told_with_what_does_without") {
        return;
    }
    let (netns, _veth) = network(1);
    let refusal = Refusal {
        call: libc::SYS_setsockopt,
        arguments: &[(1, libc::SOL_PACKET as u32), (2, libc::PACKET_ADD_MEMBERSHIP as u32)],
        error: libc::EPERM,
    };
    let words = ["echo", "--json", "-p", "ve0", "--ip", "fd00::9/64", "--udp", "7", "--hugepages", "off"];
    let line = refusal.start_command(&netns, &words).wait().refusal();
    for part in [
        "ve0: joining a group address",
        "seccomp filter is in force",
        ". Or take packets to every address: promisc=yes",
    ] {
        assert!(line.contains(part), "'{part}' is missing in: {line}");
    }
    assert!(!netns.has_xdp("ve0"));
    // Without the socket there is no promiscuous mode either.
    let refusal = Refusal {
        call: libc::SYS_socket,
        arguments: &[(0, libc::AF_PACKET as u32)],
        error: libc::EAFNOSUPPORT,
    };
    let line = refusal.start_command(&netns, &words).wait().refusal();
    assert!(line.contains("CONFIG_PACKET=y") && !line.contains("promisc="), "{line}");
}

/// Each map that is written to while a port is opened may be the one that the kernel refuses.
#[test]
fn a_map_that_can_not_be_written_to_is_told_by_what_it_is_for() {
    if !can_make_networks("a_map_that_can_not_be_written_to_is_told_by_what_it_is_for") {
        return;
    }
    let (netns, _veth) = network(1);
    let pool = Mempool::builder().frames(4096).hugepages(Hugepages::Off).build().unwrap();
    let refusal =
        Refusal { call: libc::SYS_bpf, arguments: &[(0, BPF_MAP_UPDATE_ELEM)], error: libc::ENOMEM };
    let mut lines = Vec::new();
    for nth in 0.. {
        let open = || netns.enter(|| af_xdp::open("ve0", pool).map(drop));
        let (opened, is_refused) = refusal.refuse_nth_in(nth, open);
        if !is_refused {
            opened.unwrap();
            break;
        }
        // A program that can't be loaded has simpler ones in its place.
        lines.extend(opened.err().map(|error| error.to_string()));
        assert!(!netns.has_xdp("ve0"), "{nth}");
    }
    assert!(lines.iter().all(|line| line.starts_with("ve0: ")), "{lines:#?}");
    let of_sockets = lines.iter().find(|line| line.contains("putting the sockets into its map"));
    let of_sockets = of_sockets.unwrap_or_else(|| panic!("{lines:#?}"));
    for part in ["ve0: can't load the XDP program: ", "Cannot allocate memory", "free -m"] {
        assert!(of_sockets.contains(part), "'{part}' is missing in: {of_sockets}");
    }
    assert_eq!(pool.audit().unwrap().home, 4096);
}

/// A change that the kernel refuses, as after capabilities were given up on an old kernel: what is ours stays what it was,
/// and the next change is made as if there had been none.
#[test]
fn rules_that_can_not_be_changed_stay_as_they_were() {
    if !can_make_networks("rules_that_can_not_be_changed_stay_as_they_were") {
        return;
    }
    let (netns, _veth) = network(1);
    let pool = Mempool::builder().frames(4096).hugepages(Hugepages::Off).build().unwrap();
    let steering = |text: &str| text.parse::<af_xdp::Steering>().unwrap();
    netns.enter(|| {
        let config = af_xdp::Config { steer: steering("udp:7"), ..af_xdp::Config::default() };
        let mut port = af_xdp::open_with("ve0", &config, pool).unwrap();
        let mut queue = port.queue(0).unwrap();
        let handle = port.steer_handle();
        for (command, asked) in [(BPF_MAP_UPDATE_ELEM, "tcp:80"), (BPF_MAP_DELETE_ELEM, "all")] {
            let refusal = Refusal { call: libc::SYS_bpf, arguments: &[(0, command)], error: libc::EPERM };
            let error = refusal.refuse_in(|| handle.set(&steering(asked))).unwrap_err().to_string();
            for part in [
                &format!("ve0: the XDP program was asked for '{asked}', but the kernel refused: "),
                "Operation not permitted",
                "What it takes is as before; run as root or with CAP_BPF",
            ] {
                assert!(error.contains(part), "'{part}' is missing in: {error}");
            }
            assert_eq!(handle.steering(), steering("udp:7"));
        }
        let refusal =
            Refusal { call: libc::SYS_bpf, arguments: &[(0, BPF_MAP_LOOKUP_ELEM)], error: libc::EPERM };
        let error = refusal.refuse_in(|| handle.counts()).unwrap_err().to_string();
        assert!(error.contains("ve0: the XDP program was asked for 'its counts'"), "{error}");
        handle.counts().unwrap();
        handle.set(&steering("tcp:80")).unwrap();
        assert_eq!(handle.steering(), steering("tcp:80"));
        let mut cache = pool.cache().unwrap();
        queue.close(&mut cache);
    });
    assert_eq!(pool.audit().unwrap().home, 4096);
}

// asm-generic/socket.h; XDP_PGOFF_TX_RING of linux/if_xdp.h.
const SO_PREFER_BUSY_POLL: u32 = 69;
const SO_BUSY_POLL: u32 = 46;
const SO_BUSY_POLL_BUDGET: u32 = 70;
const TX_RING_OFFSET: u32 = 0x8000_0000;
// `struct room` of xdp.bpf.c, of one queue.
const ROOM_BYTES: u32 = 256;
// Commands of linux/bpf.h; the bytes of a struct sockaddr_xdp (linux/if_xdp.h); SIOCGIFMTU of linux/sockios.h.
const BPF_MAP_CREATE: u32 = 0;
const BPF_MAP_LOOKUP_ELEM: u32 = 1;
const BPF_MAP_UPDATE_ELEM: u32 = 2;
const BPF_MAP_DELETE_ELEM: u32 = 3;
const BPF_LINK_CREATE: u32 = 28;
const ADDRESS_BYTES: u32 = 16;
const SIOCGIFMTU: u32 = 0x8921;
