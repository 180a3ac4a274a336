//! Who answers for an address: one that is shared with the kernel, and one of the server's own.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv6Addr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use sheafio_tests::{PacketSocket, can_make_networks};

use crate::{
    CLIENT, Network, OWN, OWN6, PATIENCE, SHARED, SHARED6, assert_echoes, assert_echoes_datagrams, count,
    exchange, ip, number, packets, pattern,
};

/// The options of a server with addresses of its own.
const OWN_ADDRESSES: [&str; 5] = ["--icmp", "--ip", "10.0.0.9/24", "--ip", "fd00::9/64"];
/// UDP payloads that fit into a packet of IPv4 and of IPv6 with an MTU of 1,500.
const LARGEST: usize = 1472;
const LARGEST6: usize = 1452;

/// Every tenth length, and those around the smallest frame and the largest packet.
fn lengths(largest: usize) -> impl Iterator<Item = usize> {
    (0..20).chain((20..largest).step_by(10)).chain([largest - 1, largest])
}

/// Port 7 of an address is ours, and everything else of it the kernel's, at the same time.
#[test]
fn a_shared_address_serves_its_ports_beside_the_kernel() {
    if !can_make_networks("a_shared_address_serves_its_ports_beside_the_kernel") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&["--max-flows", "100"]);
    for (address, largest) in [(SHARED, LARGEST), (SHARED6, LARGEST6)] {
        // Another port of the same address is the kernel's, before, between and after our answers.
        let listener = network.server.enter(|| TcpListener::bind((address, 8)).unwrap());
        let mut ours = network.connect(address);
        let kernels = network.client.enter(|| TcpStream::connect((address, 8)).unwrap());
        let at_kernel = listener.accept().unwrap().0;
        for round in 0..20_usize {
            let bytes = pattern(1 + round * 500);
            exchange_with(&kernels, &at_kernel, &bytes);
            assert_echoes_large(&mut ours, &bytes);
        }
        assert_echoes(&mut ours, &pattern(300_000));
        assert_echoes_datagrams(&network.udp(address), lengths(largest));
        assert!(network.client.succeeds("ping", &["-c", "3", "-i", "0.1", "-W", "10", address]));
    }
    let last = server.end();
    // ARP, neighbour discovery and pings were the kernel's: we were not even asked.
    for name in
        ["arp_answered", "arp_not_served", "nd_answered", "nd_not_served", "ping_answered", "announced"]
    {
        assert_eq!(count(&last, name), 0, "{name}: {last}");
    }
    let at_kernel = network.server.nstat();
    for name in ["IcmpInEchos", "Icmp6InEchos"] {
        assert_eq!(at_kernel[name], 3, "{name}");
    }
    assert_eq!(count(&last, "tcp_flows_opened"), 2);
    assert_eq!(count(&last, "udp_echoed"), (lengths(LARGEST).count() + lengths(LARGEST6).count()) as u64);
    // What was said to a service of the kernel's did not come to us.
    assert_eq!(count(&last, "tcp_no_flow"), 0, "{last}");
}

/// Bytes from a client to a service of the kernel's and back.
fn exchange_with(client: &TcpStream, server: &TcpStream, bytes: &[u8]) {
    for (mut from, mut to) in [(client, server), (server, client)] {
        let mut came = vec![0; bytes.len()];
        thread::scope(|scope| {
            scope.spawn(|| from.write_all(bytes).unwrap());
            to.read_exact(&mut came).unwrap();
        });
        assert!(came == bytes);
    }
}

/// Bytes that do not fit into the server's buffers have to be read while they are written.
fn assert_echoes_large(stream: &mut TcpStream, bytes: &[u8]) {
    let mut writer = stream.try_clone().unwrap();
    let mut back = vec![0; bytes.len()];
    thread::scope(|scope| {
        scope.spawn(move || writer.write_all(bytes).unwrap());
        stream.read_exact(&mut back).unwrap();
    });
    assert!(back == bytes);
}

#[test]
fn an_own_address_is_found_announced_and_served() {
    if !can_make_networks("an_own_address_is_found_announced_and_served") {
        return;
    }
    let network = Network::new();
    let wire = PacketSocket::new(&network.client, "ve1");
    let server = network.echo(&[&OWN_ADDRESSES[..], &["--max-flows", "100"]].concat());

    // It says that it is there before anyone has asked: by ARP to everyone (RFC 5227 section 3), and by an advertisement
    // to all nodes (RFC 4861 section 7.2.6).
    let (mut by_arp, mut by_nd) = (false, false);
    let start = Instant::now();
    while !(by_arp && by_nd) {
        assert!(start.elapsed() < PATIENCE, "announced by ARP: {by_arp}, by ND: {by_nd}");
        let Some(frame) = wire.receive(Duration::from_millis(100)) else { continue };
        by_arp |= is_arp_announcement(&frame);
        by_nd |= is_advertisement(&frame);
    }

    for (address, largest) in [(OWN, LARGEST), (OWN6, LARGEST6)] {
        // The first ping to an address that nobody knows the way to is answered, and none is answered twice.
        network.client.ip(&["neigh", "flush", "dev", "ve1"]);
        let text = network.client.run("ping", &["-c", "1", "-W", "20", address]);
        assert!(text.contains("1 packets transmitted, 1 received, 0% packet loss"), "{text}");
        let size = (largest).to_string();
        let text = network.client.run("ping", &["-c", "5", "-i", "0.1", "-W", "20", "-s", &size, address]);
        assert!(text.contains("5 received") && !text.contains("DUP!"), "{text}");
        network.client.ip(&["neigh", "flush", "dev", "ve1"]);
        let mut stream = network.connect(address);
        exchange(&mut stream, b"hello");
        assert_echoes(&mut stream, &pattern(300_000));
        network.client.ip(&["neigh", "flush", "dev", "ve1"]);
        assert_echoes_datagrams(&network.udp(address), lengths(largest));
        let neighbours = network.client.ip(&["neigh", "show", "to", address]);
        assert!(neighbours.contains("lladdr"), "the kernel has found it: {neighbours}");
        // It says so that a port is closed, by TCP and by UDP.
        network.client.enter(|| {
            let refused = TcpStream::connect_timeout(&(ip(address), 9).into(), PATIENCE).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            let socket = UdpSocket::bind((if largest == LARGEST { "0.0.0.0" } else { "::" }, 0)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.connect((address, 9)).unwrap();
            socket.send(b"x").unwrap();
            assert_eq!(
                sheafio_tests::recv(&socket, &mut [0]).unwrap_err().kind(),
                ErrorKind::ConnectionRefused
            );
        });
        // The addresses of the kernel are its own still.
        let kernels = if largest == LARGEST { SHARED } else { SHARED6 };
        assert!(network.client.succeeds("ping", &["-c", "1", "-W", "20", kernels]));
        network.client.enter(|| {
            let refused = TcpStream::connect_timeout(&(ip(kernels), 7).into(), PATIENCE).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "port 7 of an address of the kernel's");
        });
    }
    let last = server.end();
    assert!(count(&last, "arp_answered") >= 1 && count(&last, "nd_answered") >= 1, "{last}");
    assert_eq!(count(&last, "ping_answered"), 12, "{last}");
    assert_eq!(count(&last, "tcp_flows_opened"), 2, "{last}");
    assert_eq!(count(&last, "port_unreachable_sent"), 2, "{last}");
}

/// An ARP packet to everyone whose sender and target are our address.
fn is_arp_announcement(frame: &[u8]) -> bool {
    let own = [10, 0, 0, 9];
    frame.len() >= 42
        && frame[..6] == [0xff; 6]
        && frame[12..14] == packets::ARP.to_be_bytes()
        && frame[28..32] == own
        && frame[38..42] == own
        && frame[22..28] == frame[6..12]
}

/// A neighbour advertisement of our address to all nodes.
fn is_advertisement(frame: &[u8]) -> bool {
    let (own, all): (Ipv6Addr, Ipv6Addr) = (OWN6.parse().unwrap(), "ff02::1".parse().unwrap());
    frame.len() >= 78
        && frame[12..14] == packets::IPV6.to_be_bytes()
        && frame[20] == packets::ICMPV6
        && frame[38..54] == all.octets()
        && frame[54] == 136
        && frame[62..78] == own.octets()
}

/// What would go round for ever, or is not whole, is not answered; and is counted.
#[test]
fn datagrams_that_must_not_be_answered_are_not() {
    if !can_make_networks("datagrams_that_must_not_be_answered_are_not") {
        return;
    }
    let network = Network::new();
    let server = network.echo(&OWN_ADDRESSES);
    let socket = |port: u16| {
        network.client.enter(|| {
            let socket = UdpSocket::bind((CLIENT, port)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket.set_broadcast(true).unwrap();
            socket
        })
    };
    // From ports that echo servers have: 7 everywhere, and chargen.
    let sockets = [socket(7), socket(19), socket(0)];
    for (socket, to, len) in [(&sockets[0], OWN, 10), (&sockets[1], OWN, 10), (&sockets[2], "10.0.0.255", 10)]
    {
        socket.send_to(&pattern(len), (to, 7)).unwrap();
    }
    // 4,000 bytes at an MTU of 1,500: three fragments.
    sockets[2].send_to(&pattern(4000), (OWN, 7)).unwrap();
    // What comes after all of them is answered, and nothing before it was.
    assert_echoes_datagrams(&network.udp(OWN), [100].into_iter());
    for socket in &sockets {
        let got = sheafio_tests::recv(socket, &mut [0; 5000]).map_err(|error| error.kind());
        assert_eq!(got, Err(ErrorKind::WouldBlock), "something was answered");
    }
    let last = server.end();
    assert_eq!((count(&last, "source_port_answers"), count(&last, "fragment")), (2, 3), "{last}");
    assert_eq!(count(&last, "udp_echoed"), 1, "{last}");
    assert_eq!(number(&last["ports"][0]["drops"]["rx_ring_full"]), 0, "{last}");
}
