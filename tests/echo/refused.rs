//! Bad input: one line that names it and what is possible, and exit code 2.

use std::net::{SocketAddrV6, TcpStream};

use sheafio_tests::{Fwd, can_make_networks, run_sheafio, sheafio};

use crate::{Network, exchange};

#[test]
fn what_can_not_be_had_is_refused_in_one_line() {
    if !can_make_networks("what_can_not_be_had_is_refused_in_one_line") {
        return;
    }
    let network = Network::new();
    let port = ["-p", "ve0"];
    for (args, parts) in [
        // What the pool can't carry: how many frames it takes, and what would do.
        (
            &["--tcp", "7", "--frames", "4096", "--max-flows", "5000"][..],
            &["--max-flows 5000", "2 frames", "4096", "allowed: up to ", "--frames 16384"][..],
        ),
        (
            &["--tcp", "7", "--frames", "4096", "--max-flows", "100", "--buffer", "1048576"],
            &["--max-flows 100", "1024 frames", "--frames 131072"],
        ),
        (&["--tcp", "7", "--frames", "64"], &["--frames 64"]),
        (&["--tcp", "7", "--max-flows", "0"], &["--max-flows <N>"]),
        (&["--tcp", "7", "--max-flows", "2000000"], &["--max-flows <N>", "1048576"]),
        (&["--tcp", "7", "--buffer", "0"], &["--buffer <BYTES>"]),
        (&["--tcp", "7", "--buffer", "1048577"], &["--buffer <BYTES>", "1048576"]),
        (&["--tcp", "7", "--keepalive", "soon"], &["--keepalive <TIME>", "such as 500ms"]),
        (&["--tcp", "7", "--keepalive", "99ms"], &["--keepalive 99ms", "100ms or more"]),
        (&["--tcp", "7,8,7"], &["--tcp: port 7 is named twice"]),
        (&["--udp", "0"], &["'0'", "ports from 1 to 65535"]),
        (&["--tcp", "7-9"], &["'7-9'", "one by one, such as 7,12867"]),
        (&["--udp", "7,x"], &["'x'", "--udp <LIST>"]),
        (&[], &["nothing to serve", "--tcp", "--icmp"]),
        (&["--udp", "7", "--response-size", "1453"], &["--response-size 1453", "1452 bytes", "1 to 1452"]),
        (&["--udp", "7", "--response-size", "1473", "--ip", "10.0.0.9/24"], &["1473", "1472 bytes", "IPv4"]),
        (&["--tcp", "7", "--ip", "10.0.0"], &["'10.0.0'", "10.0.0.2/24"]),
        (&["--tcp", "7", "--ip", "10.0.0.9/33"], &["'10.0.0.9/33'", "10.0.0.2/24"]),
        (&["--tcp", "7", "--ip", "10.0.0.255/24"], &["10.0.0.255/24", "broadcast address"]),
        (&["--tcp", "7", "--ip", "224.0.0.1/4"], &["224.0.0.1/4", "multicast"]),
        (&["--tcp", "7", "--ip", "::/64"], &["::/64", "unspecified"]),
        (&["--tcp", "7", "--request-size", "5"], &["--response-size"]),
        (&["--tcp", "7", "--stack", "ours"], &["'ours'", "user, kernel"]),
        (&["--tcp", "7", "--cores", "4000"], &["4000", "allowed"]),
        (&["--tcp", "7", "-p", "nowhere"], &["nowhere"]),
        (&["--tcp", "7", "-p", "ve0,steer=udp:9"], &["steer=", "--tcp, --udp, --icmp", "leave it out"]),
        (&["--tcp", "7", "-p", "null:0"], &["'null:0'", "no interface", "--ip ADDRESS/BITS"]),
    ] {
        let words = [&["echo", "--json", "--hugepages", "off"][..], &port, args].concat();
        let line = Fwd::start_program(&network.server, sheafio(), &words).wait().refusal();
        assert!(parts.iter().all(|part| line.contains(part)), "{args:?}: {line}");
    }
    assert!(!network.server.has_xdp("ve0"), "a program was left behind");

    // Without a port, all that is missing is named at once.
    let output = run_sheafio(&["echo"]);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), line.trim_end().lines().count()), (Some(2), 1), "{line}");
    for part in ["-p INTERFACE", "--tcp", "--udp", "--icmp", "--stack kernel"] {
        assert!(line.contains(part), "{line}");
    }

    let kernels = ["echo", "--stack", "kernel", "--tcp", "7"];
    for args in [&["--buffer", "4096"], &["--keepalive", "10s"]] {
        let output = run_sheafio(&[&kernels[..], args].concat());
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), line.trim_end().lines().count()), (Some(2), 1), "{line}");
        assert!(
            line.contains(args[0]) && line.contains("--stack user") && line.contains("net.ipv4.tcp_"),
            "{line}"
        );
    }
}

#[test]
fn an_interface_without_an_address_is_told_what_to_do() {
    if !can_make_networks("an_interface_without_an_address_is_told_what_to_do") {
        return;
    }
    let network = Network::new();
    network.server.ip(&["addr", "flush", "dev", "ve0"]);
    let words = ["echo", "--json", "-p", "ve0", "--tcp", "7"];
    let line = Fwd::start_program(&network.server, sheafio(), &words).wait().refusal();
    for part in ["'ve0'", "no address to share", "ip address add", "--ip 10.0.0.2/24"] {
        assert!(line.contains(part), "{line}");
    }
}

/// Each interface gets one by itself, so an address was forgotten, most likely; but not certainly.
#[test]
fn an_interface_with_a_link_local_address_alone_is_served_with_a_warning() {
    if !can_make_networks("an_interface_with_a_link_local_address_alone_is_served_with_a_warning") {
        return;
    }
    let network = Network::new();
    network.server.ip(&["addr", "flush", "dev", "ve0"]);
    network.server.add_ipv6("ve0", "fe80::5/64");
    let server = network.echo(&["--max-flows", "10"]);
    server.fwd.wait_for_text("ve0: its only address is link-local", 1);
    server.fwd.wait_for_text("fe80::5%INTERFACE", 1);
    network.client.add_ipv6("ve1", "fe80::6/64");
    let text = network.client.ip(&["-o", "link", "show", "dev", "ve1"]);
    let link = text.split(':').next().unwrap().parse().unwrap();
    let mut stream = network
        .client
        .enter(|| TcpStream::connect(SocketAddrV6::new("fe80::5".parse().unwrap(), 7, 0, link)).unwrap());
    exchange(&mut stream, b"hello");
    drop(stream);
    server.end();
}
