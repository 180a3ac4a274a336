//! Opening and closing AF_XDP ports: what is refused and how, what falls back, what is left behind.

use std::{fs, thread, time::Duration};

use sheafio_core::Queue;
use sheafio_drivers::{DriverError, af_xdp};
use sheafio_mempool::{Hugepages, Mempool};
use sheafio_tests::{Fwd, Netns, Veth, can_make_networks, sheafio, skip};

const PEER: &str = "10.0.0.1";

/// A namespace under test with `ve0`, and its kernel peer.
fn network(queues: u32) -> (Netns, Veth) {
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", PEER, queues);
    (under_test, veth)
}

/// Starts the command, which must refuse with exit code 2 and one line; returns the line.
fn refused(netns: &Netns, args: &[&str]) -> String {
    let args = [&["fwd", "--json", "--duration", "5s"], args].concat();
    let ended = Fwd::start_program(netns, sheafio(), &args).wait();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let errors: Vec<_> = ended.stderr.lines().filter(|line| !line.starts_with("warning: ")).collect();
    assert_eq!(errors.len(), 1, "{}", ended.stderr);
    errors[0].to_owned()
}

/// xdp-tutorial#458: a queue that was just closed is busy for a while.
#[test]
fn a_port_opens_and_closes_20_times_in_one_process() {
    if !can_make_networks("a_port_opens_and_closes_20_times_in_one_process") {
        return;
    }
    let (netns, _veth) = network(1);
    netns.enter(|| {
        let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap();
        for round in 0..20 {
            let mut port = af_xdp::open("ve0", pool).unwrap_or_else(|error| panic!("round {round}: {error}"));
            let mut queue = port.queue(0).unwrap();
            assert!(matches!(port.queue(0), Err(DriverError::NoQueue { .. })));
            let mut cache = pool.cache().unwrap();
            let closed = queue.close(&mut cache);
            assert_eq!((closed.returned, closed.retired), (256, 0), "round {round}");
        }
        assert_eq!(pool.audit().unwrap().home, 1024);
    });
    assert!(!netns.has_xdp("ve0"));
}

/// s2n-quic#2045: queues that are not there.
#[test]
fn too_many_queues_are_refused_with_how_many_there_are() {
    if !can_make_networks("too_many_queues_are_refused_with_how_many_there_are") {
        return;
    }
    let (netns, _veth) = network(1);
    let line = refused(&netns, &["-p", "ve0,queues=8"]);
    for part in ["ve0: queues 0 to 7", "it has 1", "ethtool -L ve0 combined 8"] {
        assert!(line.contains(part), "{line}");
    }
    let line = refused(&netns, &["-p", "ve0,start=1"]);
    assert!(line.contains("queues 1 to 1"), "{line}");

    let (netns, _veth) = network(4);
    let fwd = Fwd::start(&netns, &["-p", "ve0,queues=4"]);
    fwd.end().assert_conserved();
}

/// xdp-tools#359: another program is attached, by netlink and by a link, in both modes.
#[test]
fn another_program_is_named_and_replaced_only_by_force() {
    if !can_make_networks("another_program_is_named_and_replaced_only_by_force") {
        return;
    }
    let (netns, _veth) = network(1);
    let object = pass_program();
    for (attach, mode, off) in [("xdpdrv", "native", "xdp off"), ("xdpgeneric", "generic", "xdpgeneric off")]
    {
        netns.ip(&["link", "set", "dev", "ve0", attach, "obj", &object, "sec", "xdp"]);
        for asked in ["ve0", "ve0,mode=generic", "ve0,mode=native"] {
            let line = refused(&netns, &["-p", asked]);
            for part in
                ["ve0: XDP program 'pass_all' (id ", mode, &format!("ip link set dev ve0 {off}"), "force"]
            {
                assert!(line.contains(part), "{line}");
            }
        }
        let fwd = Fwd::start(&netns, &["-p", "ve0", "--force"]);
        thread::sleep(Duration::from_millis(200));
        let ended = fwd.end();
        ended.assert_conserved();
        assert!(ended.stderr.contains("took off XDP program 'pass_all'"), "{}", ended.stderr);
        assert!(!netns.has_xdp("ve0"));
    }

    let first = Fwd::start(&netns, &["-p", "ve0"]);
    let line = refused(&netns, &["-p", "ve0"]);
    assert!(line.contains("'sheafio_xdp' (id ") && line.contains("BPF link"), "{line}");
    first.end().assert_conserved();
    fs::remove_file(object).unwrap();
}

/// An object file with a program that passes everything on.
fn pass_program() -> String {
    let folder = std::env::temp_dir();
    let source = folder.join(format!("sheafio-{}-pass.c", std::process::id()));
    let object = source.with_extension("o");
    let text = "__attribute__((section(\"xdp\"), used)) int pass_all(void *ctx) { return 2; }\n\
                char pass_license[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";
    fs::write(&source, text).unwrap();
    let paths = [source.to_str().unwrap(), object.to_str().unwrap()];
    sheafio_tests::run("clang", &["-O2", "-g", "-target", "bpf", "-c", paths[0], "-o", paths[1]]);
    fs::remove_file(&source).unwrap();
    paths[1].to_owned()
}

/// A queue that another process holds, without a program that would tell.
#[test]
fn a_queue_that_is_taken_is_named() {
    if !can_make_networks("a_queue_that_is_taken_is_named") {
        return;
    }
    let (netns, _veth) = network(1);
    let first = Fwd::start(&netns, &["-p", "ve0"]);
    let line = refused(&netns, &["-p", "ve0", "--force"]);
    assert!(line.contains("ve0 queue 0: another AF_XDP socket is bound to it"), "{line}");
    assert!(netns.has_xdp("ve0"), "force took a program off and could not use the queue");
    first.end().assert_conserved();
}

/// A program that someone takes off is noticed by the run that lost it.
#[test]
fn a_program_that_was_taken_off_is_told() {
    if !can_make_networks("a_program_that_was_taken_off_is_told") {
        return;
    }
    let (netns, _veth) = network(2);
    let first = Fwd::start(&netns, &["-p", "ve0"]);
    // Another queue is free, so by force it can be had.
    let second = Fwd::start_program(
        &netns,
        sheafio(),
        &["fwd", "-p", "ve0,start=1,force=yes", "--duration", "1500ms"],
    );
    assert_eq!(second.wait().code, Some(0));
    let ended = first.end();
    ended.assert_conserved();
    assert!(ended.stderr.contains("ve0: another program took our XDP program off"), "{}", ended.stderr);
}

/// One interface, named twice: its second opening would take the first one's packets.
#[test]
fn an_interface_can_be_named_once() {
    if !can_make_networks("an_interface_can_be_named_once") {
        return;
    }
    let (netns, _veth) = network(2);
    netns.ip(&["link", "property", "add", "dev", "ve0", "altname", "outside"]);
    for second in ["ve0,start=1", "outside,start=1"] {
        let line = refused(&netns, &["-p", "ve0", "-p", second, "--force"]);
        assert!(
            line.contains("interface ve0 is opened by another port already; allowed: each interface once"),
            "{line}"
        );
    }
    assert!(!netns.has_xdp("ve0"));
}

/// Packets that a frame can't hold are warned of before they are lost.
#[test]
fn a_frame_too_small_for_the_mtu_is_warned_of() {
    if !can_make_networks("a_frame_too_small_for_the_mtu_is_warned_of") {
        return;
    }
    let (netns, _veth) = network(1);
    netns.ip(&["link", "set", "ve0", "mtu", "3000"]);
    let warned = |size: &str| {
        let fwd = Fwd::start(&netns, &["-p", "ve0", "--frame-size", size]);
        let ended = fwd.end();
        ended.assert_conserved();
        ended.stderr.contains("packets have up to 3014 bytes, but a frame holds 1792")
    };
    assert!(warned("2048") && !warned("4096"));
}

/// xdp-firewall#10: killed, interrupted and restarted, it leaves nothing behind.
#[test]
fn nothing_is_left_after_kill_and_a_new_run_works() {
    if !can_make_networks("nothing_is_left_after_kill_and_a_new_run_works") {
        return;
    }
    let (netns, veth) = network(1);
    let answers = || veth.peer.succeeds("ping", &["-c", "1", "-W", "2", "-i", "0.2", "10.0.0.2"]);
    for _ in 0..3 {
        let fwd = Fwd::start(&netns, &["-p", "ve0", "--mode", "icmpecho"]);
        assert!(answers());
        fwd.signal(libc::SIGKILL);
        let ended = fwd.wait();
        assert_eq!(ended.code, None);
        for _ in 0..100 {
            if !netns.has_xdp("ve0") {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        assert!(!netns.has_xdp("ve0"), "the program is still attached after SIGKILL");
    }
    let fwd = Fwd::start(&netns, &["-p", "ve0", "--mode", "icmpecho"]);
    assert!(answers());
    fwd.signal(libc::SIGTERM);
    fwd.wait().assert_conserved();
    // The kernel has its interface back.
    netns.ip(&["addr", "add", "10.0.0.2/24", "dev", "ve0"]);
    assert!(answers());
}

/// tcpreplay#1080: no native XDP in the driver.
#[test]
fn a_device_without_native_xdp_falls_back_to_generic() {
    if !can_make_networks("a_device_without_native_xdp_falls_back_to_generic") {
        return;
    }
    let (netns, veth) = network(1);
    let add = ["link", "add", "link", "ve0", "mv0", "type", "macvlan", "mode", "bridge"];
    if !netns.succeeds("ip", &add) {
        skip("a_device_without_native_xdp_falls_back_to_generic", "this kernel has no macvlan");
        return;
    }
    netns.ip(&["link", "set", "mv0", "up"]);
    let line = refused(&netns, &["-p", "mv0,mode=native"]);
    assert!(
        line.contains("mv0: can't attach the XDP program in native mode") && line.contains("mode=generic"),
        "{line}"
    );

    let fwd = Fwd::start(&netns, &["-p", "mv0", "--mode", "icmpecho"]);
    assert!(veth.peer.succeeds("ping", &["-c", "2", "-i", "0.2", "-W", "2", "10.0.0.2"]));
    let ended = fwd.end();
    ended.assert_conserved();
    assert!(ended.stderr.contains("goes on in generic mode"), "{}", ended.stderr);
    assert!(!netns.has_xdp("mv0"));
}

/// A limit of native mode is named, in the kernel's words, and generic mode taken instead.
#[test]
fn a_large_mtu_and_too_many_peer_queues_fall_back_to_generic() {
    if !can_make_networks("a_large_mtu_and_too_many_peer_queues_fall_back_to_generic") {
        return;
    }
    let (netns, veth) = network(1);
    veth.peer.ip(&["link", "set", "ve1", "mtu", "9000"]);
    let line = refused(&netns, &["-p", "ve0,mode=native"]);
    assert!(line.contains("MTU") && line.contains("mtu 1500"), "{line}");
    let ended = {
        let fwd = Fwd::start(&netns, &["-p", "ve0"]);
        thread::sleep(Duration::from_millis(100));
        fwd.end()
    };
    ended.assert_conserved();
    assert!(ended.stderr.contains("goes on in generic mode"), "{}", ended.stderr);

    let (netns, veth) = network(4);
    netns.run("ethtool", &["-L", "ve0", "rx", "1"]);
    let line = refused(&netns, &["-p", "ve0,mode=native"]);
    assert!(line.contains("TX queues") && line.contains("ethtool -L ve0 rx"), "{line}");
    drop(veth);
}

/// Rights that are missing are named all at once.
#[test]
fn missing_capabilities_are_named_in_one_message() {
    if !can_make_networks("missing_capabilities_are_named_in_one_message") {
        return;
    }
    let (netns, _veth) = network(1);
    let run_without = |drop: &str| {
        let program = sheafio().to_str().unwrap().to_owned();
        let args = [
            "--bounding-set",
            drop,
            "--inh-caps",
            drop,
            "--",
            &program,
            "fwd",
            "-p",
            "ve0",
            "--duration",
            "1s",
        ];
        let ended = Fwd::start_program(&netns, "setpriv".into(), &args).wait();
        (ended.code, ended.stderr)
    };
    for (drop, missing) in [
        ("-net_raw", "needs CAP_NET_RAW,"),
        ("-net_admin", "needs CAP_NET_ADMIN,"),
        ("-net_admin,-net_raw,-bpf,-sys_admin", "needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF,"),
    ] {
        let (code, stderr) = run_without(drop);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(missing), "{stderr}");
    }
}

/// cmd-forwarder-vpp#283: what is not ours goes to the kernel; the default route's device is warned of.
#[test]
fn other_queues_go_on_to_the_kernel_and_the_default_route_is_warned_of() {
    if !can_make_networks("other_queues_go_on_to_the_kernel_and_the_default_route_is_warned_of") {
        return;
    }
    let (netns, veth) = network(2);
    netns.ip(&["addr", "add", "10.0.0.2/24", "dev", "ve0"]);
    netns.ip(&["route", "add", "default", "via", PEER]);
    // All that the peer sends leaves through its queue 1, and so arrives on ours.
    // Some kernels refuse a mask with more bits than the machine has CPUs.
    let cpus: u32 = sheafio_tests::run("nproc", &["--all"]).trim().parse().unwrap();
    let every_cpu = u32::MAX >> 32_u32.saturating_sub(cpus);
    for (queue, mask) in [(0, 0), (1, every_cpu)] {
        let path = format!("/sys/class/net/ve1/queues/tx-{queue}/xps_cpus");
        veth.peer.run("sh", &["-c", &format!("echo {mask:x} > {path}")]);
    }
    let ping = || veth.peer.succeeds("ping", &["-c", "2", "-i", "0.2", "-W", "2", "10.0.0.2"]);
    assert!(ping());
    let fwd = Fwd::start(&netns, &["-p", "ve0,queues=1", "--mode", "rxonly"]);
    assert!(ping(), "packets of a queue that is not opened did not reach the kernel");
    let ended = fwd.end();
    ended.assert_conserved();
    assert!(ended.stderr.contains("ve0: the default route leads through this interface"), "{}", ended.stderr);
    assert!(ping(), "the kernel has its interface back");
}
