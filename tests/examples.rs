//! The examples, each between real kernels.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use sheafio_tests::{Ended, Fwd, Netns, Veth, can_make_networks, example};

const LEFT: &str = "10.0.0.1";
const RIGHT: &str = "10.0.0.2";

fn cpu() -> String {
    sheafio_core::allowed_cpus().0.last().unwrap().to_string()
}

/// It ended well, with the whole pool in the pool.
fn assert_all_home(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let census = ended.stdout.lines().last().and_then(|line| line.split_once(": ")).expect("a line").1;
    let frames = census.split(' ').next().unwrap();
    assert_eq!(census, format!("{frames} frames: {frames} free, 0 in flight, 0 retired"));
}

#[test]
fn l2fwd_forwards_with_swapped_addresses() {
    if !can_make_networks("l2fwd_forwards_with_swapped_addresses") {
        return;
    }
    let netns = Netns::new("fwd");
    let (left, right) = (Veth::new(&netns, "ve0", LEFT, 1), Veth::new(&netns, "vf0", RIGHT, 1));
    // A packet leaves for the address that it came from, so each peer gives the other one its own.
    left.peer.ip(&["link", "set", "ve1", "address", "02:00:00:00:00:01"]);
    right.peer.ip(&["link", "set", "ve1", "address", "02:00:00:00:00:01"]);
    left.set_neighbour(RIGHT, "02:00:00:00:00:02");
    right.set_neighbour(LEFT, "02:00:00:00:00:02");
    let fwd = Fwd::start_program(&netns, example("l2fwd"), &["ve0", "vf0", &cpu()]);
    fwd.wait_for_xdp(&netns, "ve0");
    fwd.wait_for_xdp(&netns, "vf0");
    assert!(left.peer.succeeds("ping", &["-c", "5", "-i", "0.05", "-W", "2", RIGHT]));
    assert_all_home(&fwd.end());
}

#[test]
fn udp_echo_answers_a_kernel_client_that_leaves_checksums_to_the_device() {
    if !can_make_networks("udp_echo_answers_a_kernel_client_that_leaves_checksums_to_the_device") {
        return;
    }
    let netns = Netns::new("fwd");
    let veth = Veth::new(&netns, "ve0", LEFT, 1);
    veth.peer.run("ethtool", &["-K", "ve1", "tx", "on"]);
    veth.set_neighbour(RIGHT, "02:00:00:00:00:02");
    let echo = Fwd::start_program(&netns, example("udp_echo"), &["ve0", &cpu()]);
    echo.wait_for_xdp(&netns, "ve0");
    let socket = veth.peer.enter(|| UdpSocket::bind((LEFT, 0)).unwrap());
    socket.connect((RIGHT, 7)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for len in [0, 1, 2, 63, 64, 1000, 1471, 1472] {
        let sent: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        socket.send(&sent).unwrap();
        let mut received = [0; 2000];
        let received_len = sheafio_tests::recv(&socket, &mut received)
            .unwrap_or_else(|error| panic!("{len} bytes: {error}"));
        assert_eq!(received[..received_len], sent);
    }
    assert_eq!(veth.peer.snmp("Udp", "InCsumErrors"), 0);
    assert_all_home(&echo.end());
}

#[test]
fn a_pipeline_over_two_cores_forwards_what_a_kernel_sends() {
    if !can_make_networks("a_pipeline_over_two_cores_forwards_what_a_kernel_sends") {
        return;
    }
    let netns = Netns::new("fwd");
    let (left, right) = (Veth::new(&netns, "ve0", LEFT, 1), Veth::new(&netns, "vf0", RIGHT, 1));
    right.peer.ip(&["link", "set", "ve1", "address", "02:00:00:00:00:02"]);
    left.set_neighbour(RIGHT, "02:00:00:00:00:02");
    let cpus = sheafio_core::allowed_cpus().0;
    let (rx_cpu, tx_cpu) = (cpus[0].to_string(), cpus[cpus.len() - 1].to_string());
    let pipeline = Fwd::start_program(&netns, example("pipeline"), &["ve0", "vf0", &rx_cpu, &tx_cpu]);
    pipeline.wait_for_xdp(&netns, "ve0");
    pipeline.wait_for_xdp(&netns, "vf0");
    let sender = left.peer.enter(|| UdpSocket::bind((LEFT, 0)).unwrap());
    let receiver = right.peer.enter(|| UdpSocket::bind((RIGHT, 7)).unwrap());
    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // More packets than a pool has frames, so that they go round.
    for number in 0..20_000_u32 {
        sender.send_to(&number.to_le_bytes(), (RIGHT, 7)).unwrap();
        let mut received = [0; 8];
        let len = sheafio_tests::recv(&receiver, &mut received)
            .unwrap_or_else(|error| panic!("packet {number}: {error}"));
        assert_eq!(received[..len], number.to_le_bytes());
    }
    assert_all_home(&pipeline.end());
}

#[test]
fn examples_say_how_to_run_them() {
    for (name, usage) in [
        ("l2fwd", "usage: l2fwd LEFT RIGHT CPU"),
        ("pipeline", "usage: pipeline LEFT RIGHT RX_CPU TX_CPU"),
        ("udp_echo", "usage: udp_echo INTERFACE CPU"),
    ] {
        let output = std::process::Command::new(example(name)).output().unwrap();
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains(usage));
    }
}

/// What can't be read is said before anything is opened or announced.
#[test]
fn examples_name_the_argument_that_they_cannot_read() {
    for (name, args, told) in [
        ("l2fwd", &["none0", "none1", "x"][..], "l2fwd: 'x' is no CPU number, such as 1"),
        ("pipeline", &["none0", "none1", "0", "x"], "pipeline: 'x' is no CPU number, such as 1"),
        ("udp_echo", &["none0", "x"], "udp_echo: 'x' is no CPU number, such as 1"),
        ("tcp_sum", &["none0", RIGHT, "7000", "x"], "tcp_sum: 'x' is no CPU number, such as 1"),
        ("tcp_sum", &["none0", RIGHT, "x", "0"], "tcp_sum: 'x' is no port, such as 7000"),
        ("tcp_sum", &["none0", "host", "7000", "0"], "tcp_sum: 'host' is no IP address, such as 10.0.0.2"),
    ] {
        let output = std::process::Command::new(example(name)).args(args).output().unwrap();
        let printed = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(printed, ("".into(), format!("{told}\n").into()));
        assert_eq!(output.status.code(), Some(2));
    }
}

/// The one who is in the way is the process itself: to kill it is no remedy.
#[test]
fn an_interface_that_a_program_opens_twice_is_its_own() {
    if !can_make_networks("an_interface_that_a_program_opens_twice_is_its_own") {
        return;
    }
    let netns = Netns::new("fwd");
    let _veth = Veth::new(&netns, "ve0", LEFT, 1);
    let ended = Fwd::start_program(&netns, example("l2fwd"), &["ve0", "ve0", &cpu()]).wait();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("This process has the interface open itself: once is"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("kill") && !ended.stderr.contains("force"), "{}", ended.stderr);
    assert!(!netns.has_xdp("ve0"));
}

/// The example answers on its port of an address that the kernel has, and the kernel on another port of the same address.
#[test]
fn tcp_sum_adds_beside_a_server_of_the_kernels() {
    if !can_make_networks("tcp_sum_adds_beside_a_server_of_the_kernels") {
        return;
    }
    let netns = Netns::new("fwd");
    let veth = Veth::new(&netns, "ve0", LEFT, 1);
    netns.ip(&["addr", "add", "10.0.0.2/24", "dev", "ve0"]);
    let kernels = netns.enter(|| TcpListener::bind((RIGHT, 8000)).unwrap());
    let kernels = thread::spawn(move || {
        let (mut stream, _) = kernels.accept().unwrap();
        stream.write_all(b"the kernel's").unwrap();
    });
    let sum = Fwd::start_program(&netns, example("tcp_sum"), &["ve0", RIGHT, "7000", &cpu()]);
    sum.wait_for_xdp(&netns, "ve0");
    let connect = |port: u16| {
        let stream = veth.peer.enter(|| TcpStream::connect((RIGHT, port)).unwrap());
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    };
    let (mut stream, mut other) = (connect(7000), connect(8000));
    for (a, b) in [(1_u32, 2_u32), (u32::MAX, 3), (40_000, 2_000_000)] {
        // Requests are split anywhere.
        stream.write_all(&a.to_be_bytes()).unwrap();
        thread::sleep(Duration::from_millis(20));
        stream.write_all(&b.to_be_bytes()).unwrap();
        let mut response = [0; 4];
        stream.read_exact(&mut response).unwrap();
        assert_eq!(u32::from_be_bytes(response), a.wrapping_add(b));
    }
    // Half a request that nothing follows does not keep it open.
    stream.write_all(&[1, 2, 3]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it closes when the client has");
    let mut text = String::new();
    other.read_to_string(&mut text).unwrap();
    assert_eq!(text, "the kernel's");
    kernels.join().unwrap();
    assert_all_home(&sum.end());
}

/// An IPv6 address and a port are told apart, and no packet to another port is taken.
#[test]
fn tcp_sum_adds_on_a_port_of_an_ipv6_address() {
    if !can_make_networks("tcp_sum_adds_on_a_port_of_an_ipv6_address") {
        return;
    }
    let netns = Netns::new("fwd");
    let veth = Veth::new(&netns, "ve0", LEFT, 1);
    netns.add_ipv6("ve0", "fd00::2/64");
    veth.peer.add_ipv6("ve1", "fd00::1/64");
    let kernels = netns.enter(|| TcpListener::bind(("fd00::2", 8000)).unwrap());
    let sum = Fwd::start_program(&netns, example("tcp_sum"), &["ve0", "fd00::2", "7000", &cpu()]);
    sum.wait_for_xdp(&netns, "ve0");
    let mut stream = veth.peer.enter(|| TcpStream::connect(("fd00::2", 7000)).unwrap());
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&[0, 0, 0, 1, 0, 0, 0, 2]).unwrap();
    let mut response = [0; 4];
    stream.read_exact(&mut response).unwrap();
    assert_eq!(u32::from_be_bytes(response), 3);
    let other = veth.peer.enter(|| TcpStream::connect(("fd00::2", 8000)).unwrap());
    drop((stream, other, kernels));
    assert_all_home(&sum.end());
}
