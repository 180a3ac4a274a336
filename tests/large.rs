//! Large packets on a real veth: forwarded byte for byte in several frames, or counted with a word of what helps.
//!
//! ```text
//!   peer 10.0.0.1, MTU 9000        under test           peer 10.0.0.2, MTU 9000
//!   | ve1 | -------------- | ve0 | fwd | vf0 | -------------- | ve1 |
//! ```

use std::{thread, time::Duration};

use sheafio_tests::{
    Ended, Fwd, Netns, Veth, can_make_networks, datagram, kernel_has, kernel_is_at_least, receive_numbers,
    refused, socket,
};

const LEFT: &str = "10.0.0.1";
const RIGHT: &str = "10.0.0.2";

struct Network {
    under_test: Netns,
    left: Veth,
    right: Veth,
}

impl Network {
    fn new(mtu: &str) -> Self {
        let under_test = Netns::new("fwd");
        let left = Veth::new(&under_test, "ve0", LEFT, 1);
        let right = Veth::new(&under_test, "vf0", RIGHT, 1);
        for veth in [&left, &right] {
            under_test.ip(&["link", "set", &veth.interface, "mtu", mtu]);
            veth.peer.ip(&["link", "set", "ve1", "mtu", mtu]);
        }
        left.peer.ip(&["link", "set", "ve1", "address", "02:00:00:00:00:01"]);
        right.peer.ip(&["link", "set", "ve1", "address", "02:00:00:00:00:02"]);
        left.set_neighbour(RIGHT, "02:00:00:00:00:02");
        right.set_neighbour(LEFT, "02:00:00:00:00:01");
        Self { under_test, left, right }
    }

    /// Sends numbered datagrams of these lengths both ways through `sheafio fwd` with these options; returns which
    /// arrived at the right, which at the left, and how the run ended.
    fn run(&self, options: &str, args: &[&str], lens: &[usize]) -> (Vec<u32>, Vec<u32>, Ended) {
        let ports = [format!("ve0{options}"), format!("vf0{options}")];
        let fwd = Fwd::start(&self.under_test, &[&["-p", &ports[0], "-p", &ports[1]], args].concat());
        let (left, right) = (socket(&self.left.peer, LEFT), socket(&self.right.peer, RIGHT));
        let (to_left, to_right) = (left.local_addr().unwrap(), right.local_addr().unwrap());
        let patience = Some(Duration::from_secs(3));
        left.set_read_timeout(patience).unwrap();
        right.set_read_timeout(patience).unwrap();
        for (number, len) in (0..).zip(lens) {
            left.send_to(&datagram(number, *len), to_right).unwrap();
            right.send_to(&datagram(number, *len), to_left).unwrap();
            if number % 16 == 15 {
                thread::sleep(Duration::from_millis(2));
            }
        }
        let arrived = (receive_numbers(&right, lens.len()), receive_numbers(&left, lens.len()));
        let ended = fwd.end();
        ended.assert_conserved();
        assert_eq!(ended.retired(), 0);
        (arrived.0, arrived.1, ended)
    }
}

/// xsk-rs#47: packets up to MTU 9,000, in frames of 2,048 and 4,096 bytes, with bursts that are smaller than a packet.
/// In 4-byte steps around the length where a packet takes one frame more.
#[test]
fn packets_of_mtu_9000_are_forwarded_byte_for_byte() {
    let name = "packets_of_mtu_9000_are_forwarded_byte_for_byte";
    if !can_make_networks(name) || !kernel_has(name, 6, 6, "packets in several frames") {
        return;
    }
    let headers = 14 + 20 + 8;
    let around = |frames: usize| (0..16).map(move |step| frames * 1792 - headers - 32 + step * 4);
    let mut lens: Vec<usize> = [4, 100, 1472, 8972].into_iter().chain((1..=5).flat_map(around)).collect();
    lens.extend([8972; 100]);
    let all: Vec<u32> = (0..lens.len() as u32).collect();
    for (options, args) in [
        (",mode=native", ["--frame-size", "2048", "--burst", "32"]),
        (",mode=native", ["--frame-size", "4096", "--burst", "1"]),
        (",mode=native,copy=copy,frags=yes", ["--frame-size", "2048", "--burst", "3"]),
        (",mode=generic", ["--frame-size", "2048", "--burst", "32"]),
        (",mode=generic", ["--frame-size", "4096", "--burst", "1"]),
    ] {
        let network = Network::new("9000");
        let (right, left, ended) = network.run(options, &args, &lens);
        assert!(
            right == all && left == all,
            "{options} {args:?}: {} and {} arrived",
            right.len(),
            left.len()
        );
        for port in 0..2 {
            assert_eq!(ended.port(port, "rx_packets"), all.len() as u64, "packets are counted, not frames");
            let bytes: usize = lens.iter().map(|len| len + headers).sum();
            assert_eq!(ended.port(port, "rx_bytes"), bytes as u64);
            assert_eq!(ended.port(port, "tx_bytes"), bytes as u64);
        }
        assert!(!ended.stderr.contains("rx_too_large"), "{}", ended.stderr);
    }
}

/// Without packets in several frames a large one is a drop with a name, and the user is told before and when it
/// happens what would help.
#[test]
fn without_frags_large_packets_are_counted_and_the_remedy_is_told() {
    if !can_make_networks("without_frags_large_packets_are_counted_and_the_remedy_is_told") {
        return;
    }
    // Older kernels hand packets of several buffers to no socket: native mode is refused at that MTU.
    let native = if kernel_is_at_least(6, 6) { "native" } else { "auto" };
    for mode in [native, "generic"] {
        let network = Network::new("9000");
        let lens = [100, 8000, 200, 4000, 1750, 1751];
        let (right, left, ended) = network.run(&format!(",frags=no,mode={mode}"), &[], &lens);
        assert_eq!((&right, &left), (&vec![0, 2, 4], &vec![0, 2, 4]), "{mode}");
        for port in 0..2 {
            assert_eq!(ended.port(port, "rx_packets"), 3, "{mode}");
            assert_eq!(ended.port(port, "rx_too_large"), 3, "{mode}: {:?}", ended.lines.last());
        }
        if mode == "auto" {
            for part in ["goes on in generic mode", "Packets must fit into one page", "mtu 1500"] {
                assert!(ended.stderr.contains(part), "'{part}' is missing in: {}", ended.stderr);
            }
        }
        for part in
            ["ve0: at MTU 9000 packets have up to 9018 bytes", "frags=no was asked for", "--frame-size 4096"]
        {
            assert!(ended.stderr.contains(part), "{}", ended.stderr);
        }
    }
}

/// Whoever must have packets in several frames is told where they can't be had, and what to do without.
#[test]
fn frags_that_the_kernel_lacks_are_refused() {
    let name = "frags_that_the_kernel_lacks_are_refused";
    if !can_make_networks(name) || kernel_is_at_least(6, 6) {
        return;
    }
    let network = Network::new("9000");
    let line = refused(&network.under_test, &["-p", "ve0,frags=yes"]);
    for part in ["ve0 queue 0: ", "Packets in several frames need Linux 6.6 or newer", "use frags=auto"] {
        assert!(line.contains(part), "{line}");
    }
}

/// From a port with large packets to one that can't send them.
#[test]
fn a_port_without_frags_counts_what_it_can_not_send() {
    let name = "a_port_without_frags_counts_what_it_can_not_send";
    if !can_make_networks(name) || !kernel_has(name, 6, 6, "packets in several frames") {
        return;
    }
    let network = Network::new("9000");
    let fwd = Fwd::start(&network.under_test, &["-p", "ve0,frags=yes", "-p", "vf0,frags=no"]);
    let (left, right) = (socket(&network.left.peer, LEFT), socket(&network.right.peer, RIGHT));
    for (number, len) in (0..).zip([100, 8000, 200, 4000, 300]) {
        left.send_to(&datagram(number, len), right.local_addr().unwrap()).unwrap();
    }
    assert_eq!(receive_numbers(&right, 3), [0, 2, 4]);
    let ended = fwd.end();
    ended.assert_conserved();
    assert_eq!((ended.port(1, "tx_packets"), ended.port(1, "tx_too_large")), (3, 2));
    assert_eq!(ended.port(1, "tx_invalid"), 0);
}

/// pdns#16242: sizes around what a frame of 2,048 bytes holds behind its headroom.
#[test]
fn sizes_around_what_a_frame_holds_are_forwarded() {
    if !can_make_networks("sizes_around_what_a_frame_holds_are_forwarded") {
        return;
    }
    let headers = 14 + 20 + 8;
    let lens: Vec<usize> = (1700..=1800).map(|len| len - headers).collect();
    let fits = lens.iter().filter(|len| **len + headers <= 1792).count() as u32;
    let has_frags = kernel_is_at_least(6, 6);
    for (frags, arrive) in [("auto", if has_frags { lens.len() as u32 } else { fits }), ("no", fits)] {
        for mode in ["native", "generic"] {
            let network = Network::new("1800");
            let (right, left, ended) = network.run(&format!(",mode={mode},frags={frags}"), &[], &lens);
            let all: Vec<u32> = (0..arrive).collect();
            assert!(right == all && left == all, "{mode}, frags={frags}: {} and {}", right.len(), left.len());
            for port in 0..2 {
                assert_eq!((ended.port(port, "tx_invalid"), ended.port(port, "rx_invalid")), (0, 0));
                assert_eq!(ended.port(port, "rx_too_large"), u64::from(lens.len() as u32 - arrive));
            }
        }
    }
}
