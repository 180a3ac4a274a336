//! Datagrams: which are answered, from which address, and which are not.

use std::{
    net::{IpAddr, SocketAddr, SocketAddrV6},
    time::Duration,
};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socket_with};
use sheafio_tests::{can_make_networks, datagram, socket};

use crate::{CLIENT, CLIENT6, Network, PATIENCE, SERVER, SERVER6, assert_well, drops, end, number};

#[test]
fn datagrams_are_answered_and_those_that_would_loop_are_not() {
    if !can_make_networks("datagrams_are_answered_and_those_that_would_loop_are_not") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--udp", "7,9000"]);
    let mut transactions = 0;
    for size in ["1", "64", "1400", "1708"] {
        let ended = network.rr(&["--proto", "udp", "--flows", "50", "--size", size, "--duration", "200ms"]);
        transactions += assert_well(&ended);
    }
    let peer = socket(&network.client.peer, CLIENT);
    peer.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let ask = |socket: &std::net::UdpSocket, bytes: &[u8]| {
        socket.send_to(bytes, (SERVER, 9000)).unwrap();
        let mut buffer = [0; 4000];
        sheafio_tests::recv(socket, &mut buffer).map(|len| buffer[..len].to_vec()).ok()
    };
    assert_eq!(ask(&peer, b""), Some(Vec::new()), "a datagram without bytes");
    assert_eq!(ask(&peer, &datagram(1, 1708)), Some(datagram(1, 1708)));
    assert_eq!(ask(&peer, &datagram(1, 1709)), None, "one that no frame holds");
    // Echo, daytime, quote of the day, chargen, and one that is ours.
    let looping = [7, 13, 17, 19, 9000];
    for port in looping {
        let looping = network.client.peer.enter(|| std::net::UdpSocket::bind((CLIENT, port)).unwrap());
        looping.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert_eq!(ask(&looping, b"x"), None, "from port {port}");
    }
    // To all hosts of the network, by either family.
    peer.set_broadcast(true).unwrap();
    peer.send_to(b"x", ("10.0.0.255", 9000)).unwrap();
    let text = network.client.peer.ip(&["-o", "link", "show", "dev", "ve1"]);
    let link = text.split(':').next().unwrap().parse().unwrap();
    let peer6 = network.client.peer.enter(|| std::net::UdpSocket::bind((CLIENT6, 0)).unwrap());
    peer6.send_to(b"x", SocketAddrV6::new("ff02::1".parse().unwrap(), 9000, 0, link)).unwrap();
    // What comes after them is answered, and nothing before it was.
    for (socket, to) in [(&peer, SERVER), (&peer6, SERVER6)] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 10];
        socket.send_to(b"yes", (to, 9000)).unwrap();
        assert_eq!(
            sheafio_tests::recv(socket, &mut buffer).map(|len| buffer[..len].to_vec()).unwrap(),
            b"yes"
        );
    }
    let last = end(server);
    assert_eq!((drops(&last, "udp_too_large"), drops(&last, "udp_group")), (1, 2), "{last}");
    assert_eq!(
        (drops(&last, "udp_loop"), drops(&last, "udp_send_errors")),
        (looping.len() as u64, 0),
        "{last}"
    );
    assert_eq!(number(&last["transactions"]), transactions + 4);
}

/// Port 0 says that no answer is wanted; only a packet that is made by hand comes from there.
#[test]
fn datagrams_from_port_0_are_not_answered() {
    if !can_make_networks("datagrams_from_port_0_are_not_answered") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--udp", "7"]);
    let raw = network.client.peer.enter(|| {
        let protocol = rustix::net::Protocol::from_raw(17.try_into().unwrap());
        socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol)).unwrap()
    });
    // Ports 0 and 7, 9 bytes, no checksum.
    let to: SocketAddr = (SERVER.parse::<IpAddr>().unwrap(), 0).into();
    rustix::net::sendto(&raw, &[0, 0, 0, 7, 0, 9, 0, 0, b'x'], SendFlags::empty(), &to).unwrap();
    server.wait_for_object("a datagram", |line| drops(line, "udp_port_zero") == 1);
    let last = end(server);
    assert_eq!((number(&last["transactions"]), drops(&last, "udp_send_errors")), (0, 0), "{last}");
}

/// A host of several addresses answers from the one that was asked, whatever its routes prefer; and where all are served,
/// responses have their size by UDP too.
#[test]
fn each_address_of_the_host_answers_for_itself() {
    if !can_make_networks("each_address_of_the_host_answers_for_itself") {
        return;
    }
    let network = Network::new();
    network.server.ip(&["addr", "add", "10.0.0.3/24", "dev", "ve0"]);
    network.server.add_ipv6("ve0", "fd00::3/64");
    network.server.add_ipv6("ve0", "fe80::3/64");
    network.client.peer.add_ipv6("ve1", "fe80::4/64");
    for (args, response) in [(&[][..], 50), (&["--response-size", "1000"][..], 1000)] {
        let server = network.echo(&[&["--udp", "7"], args].concat());
        let mut transactions = 0;
        for to in ["10.0.0.2:7", "10.0.0.3:7", "[fd00::2]:7", "[fd00::3]:7"] {
            let response = response.to_string();
            let asked =
                ["--size", "50", "--response-size", &response, "--flows", "20", "--duration", "200ms"];
            for proto in ["tcp", "udp"] {
                let args = [&asked[..], &["--proto", proto]].concat();
                transactions += assert_well(&network.start_rr_to(to, &args).wait());
            }
        }
        // An address that is one of its link's alone.
        let text = network.client.peer.ip(&["-o", "link", "show", "dev", "ve1"]);
        let link = text.split(':').next().unwrap().parse().unwrap();
        let socket = network.client.peer.enter(|| std::net::UdpSocket::bind(("::", 0)).unwrap());
        socket.connect(SocketAddrV6::new("fe80::3".parse().unwrap(), 7, 0, link)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send(&[7; 50]).unwrap();
        let mut buffer = [0; 2000];
        assert_eq!(sheafio_tests::recv(&socket, &mut buffer).unwrap(), response);
        assert_eq!(buffer[..response], vec![7; response]);
        let last = end(server);
        assert_eq!(number(&last["transactions"]), transactions + 1, "{last}");
        assert_eq!(number(&last["rx_bytes"]), 50 * (transactions + 1), "{last}");
        assert_eq!(number(&last["tx_bytes"]), response as u64 * (transactions + 1), "{last}");
        assert_eq!(drops(&last, "udp_send_errors"), 0, "{last}");
    }
}
