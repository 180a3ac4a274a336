//! `sheafio echo --stack user` against the kernel's TCP, UDP, ARP and neighbour discovery, and against programs that
//! nobody here wrote.
//!
//! ```text
//!   client: a kernel            under test
//!   | ve1 10.0.0.1 | --------- | ve0 | sheafio echo        10.0.0.2 shared with its kernel, or 10.0.0.9 of its own
//!   |     fd00::1  |           |     |                     fd00::2                            fd00::9
//! ```
//!
//! `addresses` and `tagged` ask who answers for which address, `flows` what becomes of many and of odd connections,
//! `queues` of those of a port with several queues, `bad_wire` of one whose segments are lost and overtaken, `clients` what
//! real programs get, `hostile` what floods, dead peers and limits do, `refused` what is said to bad input. The server that
//! is started here has to give every frame back in the end.

mod addresses;
mod bad_wire;
mod clients;
mod flows;
mod hostile;
mod packets;
mod queues;
mod refused;
mod tagged;

use std::{
    io::{Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use sheafio_tests::{Direction, Ended, Fwd, Netns, Relay, Veth, run, sheafio};

/// The longest that anything may take: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The client's addresses.
const CLIENT: &str = "10.0.0.1";
const CLIENT6: &str = "fd00::1";
/// Addresses that the server shares with its kernel.
const SHARED: &str = "10.0.0.2";
const SHARED6: &str = "fd00::2";
/// Addresses of the server's own.
const OWN: &str = "10.0.0.9";
const OWN6: &str = "fd00::9";

/// A server's namespace and a client's.
struct Network {
    /// With `ve0`.
    server: Netns,
    /// With `ve1`.
    client: Netns,
    /// What lies between both, if it is more than a wire.
    between: Option<Netns>,
}

impl Network {
    /// A wire between both.
    fn new() -> Self {
        Self::with_queues(1)
    }

    /// A wire of so many queues.
    fn with_queues(queues: u32) -> Self {
        let server = Netns::new("echo");
        let Veth { peer: client, .. } = Veth::new(&server, "ve0", CLIENT, queues);
        let network = Self { server, client, between: None };
        network.give_addresses();
        network
    }

    /// A namespace between both, with `vl` to the client and `vr` to the server, which carries nothing by itself.
    fn with_something_between() -> Self {
        let (server, client, between) = (Netns::new("echo"), Netns::new("client"), Netns::new("between"));
        for (netns, interface, inner) in [(&client, "ve1", "vl"), (&server, "ve0", "vr")] {
            let ours = ["link", "add", interface, "netns", &netns.name];
            run(
                "ip",
                &[&ours[..], &["type", "veth", "peer", "name", inner, "netns", &between.name]].concat(),
            );
            between.ip(&["link", "set", inner, "up"]);
            netns.ip(&["link", "set", interface, "up"]);
        }
        // What is relayed by a packet socket must have its checksum, and must not be larger than the MTU.
        client.run("ethtool", &["-K", "ve1", "tx", "off"]);
        client.ip(&["addr", "add", &format!("{CLIENT}/24"), "dev", "ve1"]);
        let network = Self { server, client, between: Some(between) };
        network.give_addresses();
        network
    }

    fn give_addresses(&self) {
        self.server.ip(&["addr", "add", &format!("{SHARED}/24"), "dev", "ve0"]);
        self.server.add_ipv6("ve0", &format!("{SHARED6}/64"));
        self.client.add_ipv6("ve1", &format!("{CLIENT6}/64"));
    }

    /// Carries frames through what is between both.
    fn relay(&self, to_server: Direction, to_client: Direction) -> Relay {
        let between = self.between.as_ref().expect("there is something between");
        Relay::start(between, "vl", "vr", to_server, to_client)
    }

    /// `sheafio echo` with TCP and UDP port 7 and more arguments, once it serves.
    fn echo(&self, args: &[&str]) -> Echo<'_> {
        self.echo_tcp(&[&["--udp", "7"], args].concat())
    }

    /// The same without UDP, for responses that no datagram holds.
    fn echo_tcp(&self, args: &[&str]) -> Echo<'_> {
        let cpus = sheafio_core::allowed_cpus();
        // Beside the client, which takes the first one.
        let cpu = cpus.0.last().expect("there is a CPU").to_string();
        self.echo_at("ve0", &[&["--cores", &cpu], args].concat())
    }

    /// `sheafio echo` with TCP port 7 at any port of `ve0`, on CPUs that the arguments name.
    fn echo_at(&self, port: &str, args: &[&str]) -> Echo<'_> {
        let always = ["echo", "--json", "-p", port, "--tcp", "7", "--hugepages", "off"];
        let words = [&always[..], &["--idle", "adaptive"], args].concat();
        let fwd = Fwd::start_program(&self.server, sheafio(), &words);
        fwd.wait_for_xdp(&self.server, "ve0");
        Echo { fwd, network: self }
    }

    /// Runs `sheafio rr` to its end.
    fn rr(&self, to: &str, args: &[&str]) -> Ended {
        self.start_rr(to, args).wait()
    }

    fn start_rr(&self, to: &str, args: &[&str]) -> Fwd {
        let cpus = sheafio_core::allowed_cpus();
        let cpu = cpus.0.first().expect("there is a CPU").to_string();
        let to = SocketAddr::new(ip(to), 7).to_string();
        let words = [&["rr", "--json", "--cores", &cpu, "--to", &to], args].concat();
        Fwd::start_program(&self.client, sheafio(), &words)
    }

    /// A connection to port 7 of an address, which has to come about.
    fn connect(&self, to: &str) -> TcpStream {
        self.client.enter(|| {
            let stream = TcpStream::connect_timeout(&SocketAddr::new(ip(to), 7), PATIENCE).expect("a server");
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        })
    }

    /// A UDP socket of the client's that is connected to port 7 of an address.
    fn udp(&self, to: &str) -> UdpSocket {
        self.client.enter(|| {
            let from = if ip(to).is_ipv4() { CLIENT } else { CLIENT6 };
            let socket = UdpSocket::bind(SocketAddr::new(ip(from), 0)).unwrap();
            socket.connect(SocketAddr::new(ip(to), 7)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        })
    }

    /// The Ethernet address of `ve0`.
    fn mac_of_server(&self) -> packets::Mac {
        let text = self.server.ip(&["-o", "link", "show", "dev", "ve0"]);
        let after = text.split("link/ether ").nth(1).expect("an Ethernet address");
        let bytes = after.split([' ', ':']).take(6).map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
        bytes.collect::<Vec<_>>().try_into().expect("six bytes")
    }

    /// Waits until the server's kernel listens on a TCP port.
    fn wait_for_listener(&self, port: &str) {
        wait_until("a listener", || {
            self.server
                .run("ss", &["--tcp", "--listening", "--numeric", "--no-header"])
                .contains(&format!(":{port} "))
        });
    }

    /// The client's kernel had nothing to complain about in any packet that it got.
    fn assert_client_is_content(&self) {
        let all = self.client.nstat();
        let faults = ["CsumErrors", "InHdrErrors", "TcpInErrs"];
        let counts = all.as_object().expect("numbers by name").iter();
        let counts: Vec<_> =
            counts.filter(|(name, _)| faults.iter().any(|fault| name.ends_with(fault))).collect();
        assert!(counts.len() > 6 && counts.iter().all(|(_, count)| **count == 0), "{counts:?}");
    }
}

/// A running server.
struct Echo<'a> {
    fwd: Fwd,
    network: &'a Network,
}

impl Echo<'_> {
    /// Ends it by SIGTERM. It must end well, with every frame home and no connection left. Returns its last object.
    fn end(self) -> Value {
        self.fwd.signal(libc::SIGTERM);
        self.has_ended()
    }

    /// The same of one that was told to end already.
    fn has_ended(self) -> Value {
        let last = Self::assert_well(&self.fwd.wait());
        self.network.assert_client_is_content();
        last
    }

    /// The last object of a server that ended well.
    fn assert_well(ended: &Ended) -> Value {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let last = last(ended);
        assert_eq!(last["conserved"], true, "{last}");
        let pool = |key: &str| number(&last["pool"][key]);
        assert_eq!(pool("free") + pool("retired"), pool("frames"), "{last}");
        assert_eq!((pool("in_flight"), number(&last["flows"])), (0, 0), "{last}");
        assert_eq!(count(last, "tcp_flows_opened"), count(last, "tcp_flows_ended"), "{last}");
        last.clone()
    }

    /// Waits until no connection is open.
    fn wait_until_idle(&self) {
        self.fwd.wait_for_object("an end of all flows", |line| line["flows"] == 0);
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn last(ended: &Ended) -> &Value {
    let last = ended.lines.last().unwrap_or_else(|| panic!("nothing was printed: {ended:?}"));
    assert_eq!(last["final"], true, "{ended:?}");
    last
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// What a server counted under a name.
fn count(object: &Value, name: &str) -> u64 {
    number(&object["counts"][name])
}

/// A client for which all went well. Returns how many transactions it had.
fn assert_well(ended: &Ended) -> u64 {
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let last = last(ended);
    number(&last["transactions"]) + number(&last["after_end"])
}

/// Bytes that follow from their place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Sends bytes, ends the client's half, and reads to the end: it must be the same.
fn assert_echoes(stream: &mut TcpStream, bytes: &[u8]) {
    let mut back = Vec::new();
    thread::scope(|scope| {
        let mut writer = stream.try_clone().unwrap();
        scope.spawn(move || {
            writer.write_all(bytes).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        stream.read_to_end(&mut back).unwrap();
    });
    assert!(back == bytes, "{} of {} bytes came back", back.len(), bytes.len());
}

/// A request and its response of the same bytes.
fn exchange(stream: &mut TcpStream, bytes: &[u8]) {
    let mut back = vec![0; bytes.len()];
    stream.write_all(bytes).unwrap();
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, bytes);
}

/// Sends datagrams of many lengths, each of which must come back whole. They may get lost only if their server says so:
/// none does here, for the next one is sent when the one before is back.
fn assert_echoes_datagrams(socket: &UdpSocket, lengths: impl Iterator<Item = usize>) {
    let mut buffer = vec![0; 65_536];
    for len in lengths {
        let bytes = pattern(len);
        socket.send(&bytes).unwrap();
        let came =
            sheafio_tests::recv(socket, &mut buffer).unwrap_or_else(|error| panic!("{len} bytes: {error}"));
        assert!(buffer[..came] == bytes, "{came} of {len} bytes came back");
    }
}

/// Waits until something holds.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        thread::sleep(Duration::from_millis(10));
    }
}
