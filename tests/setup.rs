//! Opening and closing AF_XDP ports: what falls back, what is warned of, what is left behind.

use std::{net::UdpSocket, thread, time::Duration};

use sheafio_core::Queue;
use sheafio_drivers::{DriverError, af_xdp};
use sheafio_mempool::{Hugepages, Mempool};
use sheafio_tests::{Fwd, Netns, Veth, can_make_networks, kernel_is_at_least, refused, sheafio, skip};

const PEER: &str = "10.0.0.1";

/// A namespace under test with `ve0`, and its kernel peer.
fn network(queues: u32) -> (Netns, Veth) {
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", PEER, queues);
    (under_test, veth)
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

/// What a pool can have and the kernel does not take is named with what it takes; kernels differ.
#[test]
fn a_headroom_that_the_kernel_refuses_is_named() {
    if !can_make_networks("a_headroom_that_the_kernel_refuses_is_named") {
        return;
    }
    let (netns, _veth) = network(1);
    netns.enter(|| {
        for headroom in [1344, 1345, 1728] {
            let pool = Mempool::builder().frames(512).headroom(headroom).hugepages(Hugepages::Off);
            let pool = pool.build().unwrap();
            match af_xdp::open("ve0", pool) {
                Ok(port) => drop(port),
                Err(error) => {
                    let error = error.to_string();
                    assert!(headroom > 1344, "{error}");
                    let named =
                        format!("A headroom of {headroom} bytes leaves too little of frames of 2048 bytes");
                    assert!(error.contains(&named) && error.contains("at most 1344"), "{error}");
                }
            }
            assert_eq!(pool.audit().unwrap().home, 512);
        }
    });
}

/// xdp-tools#364, #287: no bpffs is needed, and the same number of interface in two namespaces does not matter.
#[test]
fn interfaces_of_one_number_in_two_namespaces_do_not_collide() {
    if !can_make_networks("interfaces_of_one_number_in_two_namespaces_do_not_collide") {
        return;
    }
    let networks = [network(1), network(1)];
    let numbers = networks.each_ref().map(|(netns, _)| {
        let shown = netns.ip(&["-o", "link", "show", "dev", "ve0"]);
        shown.split(':').next().expect("ip shows the number").to_owned()
    });
    assert_eq!(numbers[0], numbers[1]);
    let runs = networks.each_ref().map(|(netns, _)| Fwd::start(netns, &["-p", "ve0", "--mode", "icmpecho"]));
    let answers = |veth: &Veth| veth.peer.succeeds("ping", &["-c", "2", "-W", "2", "-i", "0.2", "10.0.0.2"]);
    assert!(networks.iter().all(|(_, veth)| answers(veth)));
    let [first, second] = runs;
    first.end().assert_conserved();
    assert!(!networks[0].0.has_xdp("ve0") && networks[1].0.has_xdp("ve0"));
    assert!(answers(&networks[1].1), "the other's end took this one's program off");
    second.end().assert_conserved();
}

/// A program that someone takes off is noticed by the run that lost it.
#[test]
fn a_program_that_was_taken_off_is_told() {
    if !can_make_networks("a_program_that_was_taken_off_is_told") {
        return;
    }
    let (netns, veth) = network(2);
    let first = Fwd::start(&netns, &["-p", "ve0", "--mode", "rxonly"]);
    let socket = veth.peer.enter(|| UdpSocket::bind((PEER, 0)).unwrap());
    veth.set_neighbour("10.0.0.2", "02:00:00:00:00:aa");
    let send = || (0..20).for_each(|_| assert!(socket.send_to(&[0; 60], ("10.0.0.2", 9)).is_ok()));
    // What comes before the first look at the device may have come to the program or not, and would hide what comes later.
    first.wait_for_lines(1);
    send();
    // Another queue is free, so by force it can be had.
    let second = Fwd::start_program(
        &netns,
        sheafio(),
        &["fwd", "-p", "ve0,start=1,force=yes", "--duration", "1500ms"],
    );
    let second = second.wait();
    assert_eq!(second.code, Some(0));
    let told = format!("held by sheafio (pid {}), which receives nothing there any more", first.pid());
    assert!(second.stderr.contains(&told) && second.stderr.contains("not put back"), "{}", second.stderr);
    first.wait_for_text("ve0: another program took our XDP program off", 1);
    send(); // To nobody's program.
    let ended = first.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let last = ended.assert_all_home();
    let port = &last["ports"][0];
    assert_eq!((&port["unexplained_rx"], &port["unexplained_tx"]), (&0.into(), &0.into()), "{last}");
    let seen: u64 = port["program"].as_object().unwrap().values().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(ended.port(0, "wire_rx"), seen, "{last}");
    assert!(seen >= 20, "{last}");
}

/// So does a server, which nobody reaches any more.
#[test]
fn a_server_whose_program_was_taken_off_ends_with_1() {
    if !can_make_networks("a_server_whose_program_was_taken_off_ends_with_1") {
        return;
    }
    let (netns, _veth) = network(2);
    let serve = ["echo", "-p", "ve0,queues=1", "--json", "--tcp", "7", "--ip", "10.0.0.9/24"];
    let server = Fwd::start_program(&netns, sheafio(), &serve);
    server.wait_for_xdp(&netns, "ve0");
    let other = ["fwd", "-p", "ve0,start=1,force=yes", "--duration", "500ms"];
    assert_eq!(Fwd::start_program(&netns, sheafio(), &other).wait().code, Some(0));
    server.wait_for_text("ve0: another program took our XDP program off", 1);
    let ended = server.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.lines().last().unwrap().contains(r#""conserved":true"#), "{ended:?}");
}

/// It may happen just before the end, when nobody looks any more: here the run stands still meanwhile.
#[test]
fn a_program_that_was_taken_off_just_before_the_end_is_no_good_end() {
    if !can_make_networks("a_program_that_was_taken_off_just_before_the_end_is_no_good_end") {
        return;
    }
    let (netns, veth) = network(2);
    let socket = veth.peer.enter(|| UdpSocket::bind((PEER, 0)).unwrap());
    veth.set_neighbour("10.0.0.2", "02:00:00:00:00:aa");
    for takes_off in [false, true] {
        let first = Fwd::start(&netns, &["-p", "ve0", "--mode", "rxonly"]);
        first.wait_for_lines(1);
        first.pause();
        if takes_off {
            let other = ["fwd", "-p", "ve0,start=1,force=yes", "--duration", "100ms"];
            assert_eq!(Fwd::start_program(&netns, sheafio(), &other).wait().code, Some(0));
        }
        // To a program that counts them, or to none.
        (0..20).for_each(|_| assert!(socket.send_to(&[0; 60], ("10.0.0.2", 9)).is_ok()));
        first.signal(libc::SIGTERM);
        first.signal(libc::SIGCONT);
        let ended = first.wait();
        assert_eq!(ended.code, Some(i32::from(takes_off)), "{ended:?}");
        let port = &ended.assert_all_home()["ports"][0];
        assert_eq!((&port["unexplained_rx"], &port["unexplained_tx"]), (&0.into(), &0.into()), "{port}");
    }
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
        let fwd = Fwd::start(&netns, &["-p", "ve0,frags=no", "--frame-size", size]);
        let ended = fwd.end();
        ended.assert_conserved();
        ended.stderr.contains("packets have up to 3018 bytes, but a frame holds 1792")
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

/// A limit of native mode is named, in the kernel's words, and generic mode taken instead. That packets must fit into a
/// page is none any more: the program takes packets of several buffers.
#[test]
fn too_many_peer_queues_fall_back_to_generic_and_a_large_mtu_does_not() {
    if !can_make_networks("too_many_peer_queues_fall_back_to_generic_and_a_large_mtu_does_not") {
        return;
    }
    let run = |netns: &Netns, port: &str| {
        let ended = Fwd::start(netns, &["-p", port]).end();
        ended.assert_conserved();
        ended.stderr
    };
    let (netns, veth) = network(1);
    veth.peer.ip(&["link", "set", "ve1", "mtu", "9000"]);
    if kernel_is_at_least(6, 6) {
        assert!(!run(&netns, "ve0,mode=native").contains("generic"));
    } else {
        // Its sockets take no packets of several buffers, which veth makes at that MTU.
        let line = refused(&netns, &["-p", "ve0,mode=native"]);
        assert!(line.contains("Packets must fit into one page") && line.contains("mtu 1500"), "{line}");
        assert!(run(&netns, "ve0").contains("goes on in generic mode"));
    }

    let (netns, veth) = network(4);
    netns.run("ethtool", &["-L", "ve0", "rx", "1"]);
    let line = refused(&netns, &["-p", "ve0,mode=native"]);
    assert!(line.contains("TX queues") && line.contains("ethtool -L ve0 rx"), "{line}");
    let stderr = run(&netns, "ve0");
    assert!(stderr.contains("TX queues") && stderr.contains("goes on in generic mode"), "{stderr}");
    drop(veth);
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
