//! Causes that this machine may not have, in words.

mod program;

use super::*;
use crate::af_xdp::driver::HardwareRings;

fn process() -> Process {
    Process {
        program: "/usr/bin/sheafio".to_owned(),
        kernel: "6.18.4".to_owned(),
        files: Some(20),
        ..Process::default()
    }
}

fn interface() -> Interface {
    Interface {
        name: "eth7".to_owned(),
        index: 7,
        mac: [0; 6],
        mtu: 1500,
        rx_queues: 4,
        tx_queues: 4,
        is_up: true,
        has_default_route: false,
        driver: "fast".to_owned(),
    }
}

fn driver(features: Option<u64>) -> Driver {
    Driver { name: Some("fast".to_owned()), features, ..Driver::default() }
}

fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
    assert!(!text.contains('\n') && !text.contains("  "), "{text}");
}

#[test]
fn what_a_process_may_not_have_is_named_with_the_limit() {
    for call in CALLS {
        let say = |number| of_call(call, Some(number), &process());
        has(&say(libc::EMFILE), &["20 files", "RLIMIT_NOFILE", "ulimit -n 1024"]);
        has(&say(libc::ENFILE), &["fs.file-max"]);
        has(&say(libc::ENOMEM), &["free -m", "memory.max"]);
        has(&say(libc::EIO), &["6.18.4", "dmesg"]);
        let bounded = Process { address_space_bytes: Some(64 << 20), ..process() };
        has(
            &of_call(call, Some(libc::ENOMEM), &bounded),
            // Few of these calls take address space.
            &["64 MiB of address space (RLIMIT_AS), which may be why", "ulimit -v unlimited", "free -m"],
        );
    }
}

const CALLS: [Call; 5] = [Call::Xdp, Call::Bpf, Call::Interface, Call::Packet, Call::BusyPolling];

/// The same error is another thing for each call; a word of AF_XDP where it is none of AF_XDP's would mislead.
#[test]
fn what_a_kernel_lacks_is_told_by_the_call() {
    for (call, number, parts) in [
        (Call::Xdp, libc::EAFNOSUPPORT, &["Kernel 6.18.4", "5.10 or newer", "CONFIG_XDP_SOCKETS=y"][..]),
        (Call::Xdp, libc::EINVAL, &["CONFIG_XDP_SOCKETS", "5.10 or newer", "6.18.4", "dmesg"]),
        (Call::Xdp, libc::ENOPROTOOPT, &["CONFIG_XDP_SOCKETS", "5.10 or newer"]),
        (Call::Xdp, libc::ENODEV, &["gone away", "ip link"]),
        (Call::Bpf, libc::ENOSYS, &["Kernel 6.18.4", "CONFIG_BPF_SYSCALL=y"]),
        (Call::Packet, libc::EAFNOSUPPORT, &["Kernel 6.18.4", "CONFIG_PACKET=y", "modprobe af_packet"]),
        (Call::Packet, libc::EINVAL, &["6 bytes", "ip link"]),
        (Call::Packet, libc::ENODEV, &["gone away", "ip link"]),
        (Call::Packet, libc::ENOBUFS, &["free -m"]),
        (Call::Interface, libc::EAFNOSUPPORT, &["Kernel 6.18.4", "CONFIG_INET=y"]),
        (Call::Interface, libc::ENODEV, &["gone away", "ip link"]),
        (Call::BusyPolling, libc::ENOPROTOOPT, &["5.11 or newer", "CONFIG_NET_RX_BUSY_POLL=y"]),
    ] {
        let words = of_call(call, Some(number), &process());
        has(&words, parts);
        assert!(call == Call::Xdp || !words.contains("XDP"), "{call:?}: {words}");
    }
    for call in CALLS {
        let words = of_call(call, Some(libc::EIO), &process());
        assert!(!words.contains("newer") && !words.contains("XDP"), "{call:?}: {words}");
    }
}

#[test]
fn a_refusal_names_what_was_found_and_nothing_else() {
    let plain = of_call(Call::Bpf, Some(libc::EPERM), &process());
    has(&plain, &["nothing was found that forbids it"]);
    let found = Process {
        in_user_namespace: true,
        has_seccomp_filter: true,
        lockdown: Some("confidentiality".to_owned()),
        security_modules: vec!["selinux".to_owned(), "bpf".to_owned()],
        ..process()
    };
    let words = ["user namespace", "seccomp filter", "locked down (confidentiality)", "(selinux, bpf)"];
    has(&of_call(Call::Xdp, Some(libc::EACCES), &found), &words);
    for word in words {
        assert!(!plain.contains(word), "{plain}");
    }
    // A filter may stand behind what looks like an old kernel, too.
    let filtered = Process { has_seccomp_filter: true, ..process() };
    for (call, number) in [
        (Call::Xdp, libc::EAFNOSUPPORT),
        (Call::Packet, libc::EAFNOSUPPORT),
        (Call::Interface, libc::EAFNOSUPPORT),
        (Call::Bpf, libc::ENOSYS),
    ] {
        has(&of_call(call, Some(number), &filtered), &["seccomp filter", "RestrictAddressFamilies="]);
        assert!(!of_call(call, Some(number), &process()).contains("seccomp"));
    }
}

#[test]
fn missing_capabilities_have_a_command_that_gives_all_of_them() {
    let setcap = "setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep /usr/bin/sheafio";
    has(&of_missing_rights(&process()), &["Run as root", setcap]);
    let bound = Process { no_new_privs: true, in_user_namespace: true, ..process() };
    has(&of_missing_rights(&bound), &["no_new_privs", "ambient", "user namespace"]);
}

#[test]
fn the_program_and_the_rings_name_what_the_kernel_lacks() {
    has(
        &of_load(Some(libc::EINVAL), &process()),
        &["Kernel 6.18.4", "CONFIG_BPF_SYSCALL=y", "CONFIG_XDP_SOCKETS=y"],
    );
    has(&of_load(Some(libc::EACCES), &process()), &["needs CAP_PERFMON", "cap_ipc_lock,cap_perfmon+ep"]);
    let trusted = Process { has_perfmon: true, ..process() };
    has(&of_load(Some(libc::EACCES), &trusted), &["nothing was found"]);
    has(&of_load(Some(libc::EMFILE), &process()), &["20 files"]);
    has(&of_load(None, &process()), &["6.18.4"]);
    let bounded = Process { address_space_bytes: Some(64 << 20), ..process() };
    let words = of_ring(&error(libc::ENOMEM), 32_768, &bounded);
    has(&words, &["32768 slots takes 512 KiB", "ring=8192", "64 MiB of address space"]);
    has(&of_ring(&error(libc::ENOMEM), 64, &process()), &["ring=64"]);
    has(&of_ring(&error(libc::EMFILE), 64, &process()), &["20 files"]);
}

#[test]
fn locked_memory_is_told_with_what_is_needed_and_what_fits() {
    let say = |kib, locked_kib, limit_kib| {
        let ask = MemoryAsk { kib, locked_kib, limit_kib, frame_bytes: 2048, headroom_bytes: 0 };
        of_memory(&error(libc::ENOBUFS), ask, &process())
    };
    let one = say(32_768, 0, 8192);
    has(&one, &["8192 KiB", "ulimit -l 32768", "LimitMEMLOCK=32768K", "cap_ipc_lock", "4096 fit"]);
    // The second port locks the pool once more.
    let two = say(8192, 8192, 8192);
    has(&two, &["other ports of this process take 8192 KiB", "ulimit -l 16384", "2048 fit"]);
    // It should have been enough: others of the same user have locked.
    let shared = say(4096, 0, 8192);
    has(&shared, &["other programs of this user", "ulimit -l 12288"]);
    assert!(!shared.contains("fit"), "{shared}");
    let ask = MemoryAsk { kib: 4096, locked_kib: 0, limit_kib: 0, frame_bytes: 2048, headroom_bytes: 0 };
    has(&of_memory(&error(libc::ENOMEM), ask, &process()), &["fewer frames", "free -m"]);
    has(&of_memory(&error(libc::EPERM), ask, &process()), &["nothing was found"]);
    assert!(!of_memory(&error(libc::ENOBUFS), ask, &process()).contains("fit"));
}

#[test]
fn what_proves_that_a_driver_has_let_go_is_told_with_the_page_that_it_takes() {
    let ask = ReleaseAsk { queues: 3, page_kib: 4, limit_kib: 8192 };
    let say = |number| of_release(&error(number), ask, &process());
    has(
        &say(libc::ENOBUFS),
        &[
            "4 KiB of locked memory for each",
            "8192 KiB",
            "ulimit -l 8204",
            "LimitMEMLOCK=8204K",
            "cap_ipc_lock+ep",
        ],
    );
    has(&say(libc::EMFILE), &["20 files", "ulimit -n"]);
    assert!(!say(libc::EMFILE).contains("ulimit -l"));
}

#[test]
fn a_headroom_that_is_too_large_for_the_kernel_is_named_with_what_it_takes() {
    let say = |frame_bytes, headroom_bytes| {
        let ask = MemoryAsk { kib: 4096, locked_kib: 0, limit_kib: 0, frame_bytes, headroom_bytes };
        of_memory(&error(libc::EINVAL), ask, &process())
    };
    let parts =
        ["1345 bytes", "frames of 2048", "kernel 6.18.4", "at most 1344", "of 4096 bytes, which leave 3392"];
    has(&say(2048, 1345), &parts);
    has(&say(4096, 3400), &["3400 bytes", "at most 3392"]);
    assert!(!say(4096, 3400).contains("or for frames"));
    for fits in [0, 1344] {
        assert!(!say(2048, fits).contains("headroom"));
    }
}

#[test]
fn a_bind_that_fails_names_driver_features_and_rings() {
    let ask = |copy| BindAsk {
        copy,
        frags: Frags::Auto,
        ring: 2048,
        frame_bytes: 2048,
        data_bytes: 1792,
        driver_frames: 1,
        falls_back: false,
    };
    let say =
        |number, copy, driver: &Driver| of_bind(&error(number), ask(copy), &interface(), driver, &process());
    let zero = CopyMode::ZeroCopy;

    let words = say(libc::EOPNOTSUPP, zero, &driver(Some(0b11)));
    has(&words, &["Driver fast has no zero-copy (XDP features: basic, redirect)", "copy=copy"]);
    has(&say(libc::EOPNOTSUPP, zero, &driver(None)), &["not told by this kernel"]);
    let words = say(libc::EOPNOTSUPP, zero, &driver(Some(0b1011)));
    has(&words, &["has zero-copy", "but not for this queue", "MTU 1500", "frames of 2048 bytes"]);

    let frags = |number, copy| {
        let ask = BindAsk { frags: Frags::Yes, ..ask(copy) };
        of_bind(&error(number), ask, &interface(), &driver(Some(0b1011)), &process())
    };
    has(&frags(libc::EOPNOTSUPP, zero), &["no zero-copy with packets in several frames", "frags=no"]);
    has(&frags(libc::EINVAL, CopyMode::Copy), &["need Linux 6.6", "this is 6.18.4", "frags=auto"]);

    let small = HardwareRings { rx: 512, rx_max: 4096, tx: 1000, tx_max: 4096 };
    let with_rings = Driver { rings: Some(small), ..driver(Some(0b1011)) };
    let with_small_rings = with_rings.clone();
    let words = say(libc::EINVAL, zero, &with_rings);
    let parts =
        ["rings of 2048 slots", "512 for rx and 1000 for tx", "ring=512", "ethtool -G eth7 rx 2048 tx 2048"];
    has(&words, &parts);
    let fixed = HardwareRings { rx_max: 512, ..small };
    let words = say(libc::EINVAL, zero, &Driver { rings: Some(fixed), ..with_rings.clone() });
    assert!(words.contains("ring=512") && !words.contains("ethtool -G"), "{words}");
    let large = HardwareRings { rx: 4096, rx_max: 4096, tx: 4096, tx_max: 4096 };
    let words = say(libc::EINVAL, zero, &Driver { rings: Some(large), ..with_rings });
    assert!(words.contains("4096 for rx") && !words.contains("larger than its own"), "{words}");

    // What newer kernels want room for, to the byte: 1,792 in one frame, 1,408 in each of several.
    let at_mtu = |mtu, frags, driver_frames| {
        let ask = BindAsk { frags, driver_frames, ..ask(zero) };
        of_bind(
            &error(libc::EINVAL),
            ask,
            &Interface { mtu, ..interface() },
            &driver(Some(0b1011)),
            &process(),
        )
    };
    let words = at_mtu(1767, Frags::Auto, 1);
    has(
        &words,
        &["want 1793 bytes", "MTU 1767", "have 1792: --frame-size 4096, or", "mtu 1766", "copy=auto"],
    );
    for (mtu, frags, driver_frames) in [(1766, Frags::Auto, 1), (8 * 1408 - 26, Frags::Auto, 8)] {
        let words = at_mtu(mtu, frags, driver_frames);
        assert!(!words.contains("bytes of room") && words.contains("refuses zero-copy"), "{words}");
    }
    has(&at_mtu(8 * 1408 - 25, Frags::Auto, 8), &["have 11264"]);
    has(&at_mtu(1767, Frags::No, 8), &["have 1792"]);

    // What comes next by itself is no remedy; all else is told as before.
    for number in [libc::EOPNOTSUPP, libc::EINVAL, libc::EIO, libc::ENETDOWN] {
        for driver in [driver(Some(0b1011)), driver(None), with_small_rings.clone()] {
            for frags in [Frags::No, Frags::Yes] {
                for mtu in [1500, 1767] {
                    let say = |falls_back| {
                        let ask = BindAsk { frags, falls_back, ..ask(zero) };
                        let interface = Interface { mtu, ..interface() };
                        of_bind(&error(number), ask, &interface, &driver, &process())
                    };
                    let words = say(true);
                    has(&words, &[]);
                    assert!(!words.contains("copy=") && !words.ends_with([':', ' ', ';']), "{words}");
                    let without =
                        [": use copy=auto or copy=copy", "; or use copy=auto or copy=copy", " or copy=auto"];
                    let plain = without.iter().fold(say(false), |words, other| words.replace(other, ""));
                    assert_eq!(plain, words);
                }
            }
        }
    }

    has(&say(libc::EINVAL, CopyMode::Copy, &driver(None)), &["eth7 had 4 queues", "ethtool -l eth7"]);
    has(&say(libc::ENETDOWN, zero, &driver(None)), &["ip link set dev eth7 up"]);
    has(&say(libc::ENODEV, zero, &driver(None)), &["gone"]);
    has(&say(libc::ENOMEM, zero, &driver(None)), &["free -m"]);
    has(&say(libc::EOPNOTSUPP, CopyMode::Copy, &driver(None)), &["Kernel 6.18.4"]);
}
