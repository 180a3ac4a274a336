//! VLAN tags that lie beside packets: `sheafio fwd` sends them in the packets, or says that they are lost.

use std::time::Instant;

use sheafio_drivers::af_xdp::{self, Config, Mode};
use sheafio_tests::{
    BpfObject, Fwd, Netns, Network, PacketSocket, can_make_networks, kernel_has, kernel_is_at_least,
};

use crate::{PATIENCE, pool};

/// Tags of the kernel's egress, in the order in which they are pushed: the last lies beside the packet, as those of the
/// kernel's VLAN devices do, the others in it. Each is a protocol and a tag.
pub(crate) fn push(peer: &Netns, tags: &[(u16, u16)]) {
    let push = |(protocol, tag): &(u16, u16)| format!("vlan_push(skb, {}, {tag});", protocol.to_be());
    let pushes = tags.iter().map(push).collect::<Vec<_>>().join(" ");
    let text = format!(
        "static long (*vlan_push)(void *, unsigned short, unsigned short) = (void *)18;\n\
         __attribute__((section(\"tcx/egress\"), used)) int push(void *skb) {{ {pushes} return 0; }}\n"
    );
    let object = BpfObject::new(&text);
    // Whatever was pushed before is not any more.
    peer.succeeds("tc", &["qdisc", "del", "dev", "ve1", "clsact"]);
    peer.run("tc", &["qdisc", "add", "dev", "ve1", "clsact"]);
    peer.run(
        "tc",
        &["filter", "add", "dev", "ve1", "egress", "bpf", "da", "obj", object.path(), "sec", "tcx/egress"],
    );
}

/// An ethertype for experiments (IEEE 802): whatever the kernels say meanwhile has another.
const OURS: [u8; 2] = 0x88b5_u16.to_be_bytes();
const TO: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FROM: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A frame of `len` bytes with its number in it.
fn frame(number: u8, len: usize) -> Vec<u8> {
    let mut frame = [&TO[..], &FROM, &OURS, &[number]].concat();
    frame.extend((frame.len()..len).map(|at| at as u8 ^ number));
    frame
}

/// The same behind these tags, of which the last is the outermost.
fn tagged(frame: &[u8], macs: [[u8; 6]; 2], tags: &[(u16, u16)]) -> Vec<u8> {
    let bytes = tags.iter().rev().flat_map(|(protocol, tag)| [protocol.to_be_bytes(), tag.to_be_bytes()]);
    [macs.as_flattened(), bytes.collect::<Vec<_>>().as_flattened(), &frame[12..]].concat()
}

/// Frames of ours that come to a socket, as many as are expected; a packet socket also sees what its own kernel sends,
/// so those with these addresses are passed over.
fn receive(socket: &PacketSocket, count: usize, but: Option<[[u8; 6]; 2]>) -> Vec<Vec<u8>> {
    let (mut received, start) = (Vec::new(), Instant::now());
    while received.len() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count} frames came: {received:x?}", received.len());
        let frame = socket.receive(PATIENCE).expect("a frame");
        let mut behind = &frame[12..];
        while behind.starts_with(&[0x81, 0]) || behind.starts_with(&[0x88, 0xa8]) {
            behind = &behind[4..];
        }
        if behind.starts_with(&OURS) && but.is_none_or(|but| frame[..12] != *but.as_flattened()) {
            received.push(frame);
        }
    }
    received
}

/// With priority, in both protocols, beside one that is in the packet already, in one frame and in several, through
/// another port and back through the same one. Without metadata they are lost; that is known to be so.
#[test]
fn what_came_over_a_vlan_is_forwarded_over_it() {
    let name = "what_came_over_a_vlan_is_forwarded_over_it";
    if !can_make_networks(name) || !kernel_has(name, 6, 8, "the VLAN tag in RX metadata") {
        return;
    }
    let network = Network::new(1);
    let (left, right) = (&network.left, &network.right);
    for veth in [left, right] {
        network.under_test.ip(&["link", "set", &veth.interface, "mtu", "9000"]);
        veth.peer.ip(&["link", "set", "ve1", "mtu", "9000"]);
        veth.peer.ip(&["link", "set", "ve1", "promisc", "on"]);
    }
    let sender = PacketSocket::new(&left.peer, "ve1");
    let receiver = PacketSocket::new(&right.peer, "ve1");
    let send = |frames: &[Vec<u8>]| {
        for frame in frames {
            sender.send(frame);
        }
    };
    let lens = [60, 61, 1500, 1792, 1796, 8000];
    let frames: Vec<_> = (0..).zip(lens).map(|(number, len)| frame(number, len)).collect();
    for tags in [&[(0x8100, 0x2064)][..], &[(0x88a8, 0xf001)], &[(0x8100, 0x0007), (0x88a8, 0xaffe)]] {
        push(&left.peer, tags);
        for (mode, metadata) in [("io", "yes"), ("macswap", "yes"), ("io", "no")] {
            let fwd = network.forward(&format!(",mode=native,metadata={metadata}"), &["--mode", mode]);
            send(&frames);
            // The last one lies beside the packet.
            let told = if metadata == "yes" { tags } else { &tags[..tags.len() - 1] };
            let macs = if mode == "io" { [TO, FROM] } else { [FROM, TO] };
            let expected: Vec<_> = frames.iter().map(|frame| tagged(frame, macs, told)).collect();
            let received = receive(&receiver, frames.len(), None);
            assert!(received == expected, "{tags:x?}, {mode}, metadata={metadata}: {received:x?}");
            let ended = fwd.end();
            ended.assert_conserved();
            let bytes = |port, key| ended.port(port, key);
            assert!(bytes(1, "tx_bytes") >= expected.iter().map(|frame| frame.len() as u64).sum());
            assert_eq!(ended.retired(), 0);
            // The peers lie in other namespaces, where nobody can look.
            assert!(!ended.stderr.contains("VLAN"), "{}", ended.stderr);
        }

        let args = ["-p", "ve0,mode=native,metadata=yes", "--mode", "macswap"];
        let fwd = Fwd::start(&network.under_test, &args);
        send(&frames);
        let expected: Vec<_> = frames.iter().map(|frame| tagged(frame, [FROM, TO], tags)).collect();
        let received = receive(&sender, frames.len(), Some([TO, FROM]));
        assert!(received == expected, "{tags:x?}, back: {received:x?}");
        fwd.end().assert_conserved();
    }
}

/// The largest packets of a veth have one tag; with one in the packet and one beside, what comes through is too large to
/// be sent on, and counted.
#[test]
fn a_packet_that_has_grown_too_large_is_counted() {
    let name = "a_packet_that_has_grown_too_large_is_counted";
    if !can_make_networks(name) || !kernel_has(name, 6, 8, "the VLAN tag in RX metadata") {
        return;
    }
    let network = Network::new(1);
    network.right.peer.ip(&["link", "set", "ve1", "promisc", "on"]);
    let sender = PacketSocket::new(&network.left.peer, "ve1");
    let receiver = PacketSocket::new(&network.right.peer, "ve1");
    let tags = [(0x8100, 0x0007), (0x88a8, 0xaffe)];
    push(&network.left.peer, &tags);
    let fwd = network.forward(",mode=native,metadata=yes", &["--mode", "io"]);
    // MTU 1500, an Ethernet header and a tag.
    let (large, fits) = (frame(1, 1514), frame(2, 1510));
    sender.send(&large);
    sender.send(&fits);
    assert_eq!(receive(&receiver, 1, None), [tagged(&fits, [TO, FROM], &tags)]);
    let ended = fwd.end();
    ended.assert_conserved();
    assert_eq!(ended.port(1, "tx_dropped"), 1, "{}", ended.stdout);
}

/// Of a veth whose peer is at hand it is known where its tags are, and the command that is told helps.
#[test]
fn that_tags_are_lost_is_told_where_it_is_known() {
    let name = "that_tags_are_lost_is_told_where_it_is_known";
    if !can_make_networks(name) {
        return;
    }
    let netns = Netns::new("tags");
    netns.ip(&["link", "add", "ve0", "type", "veth", "peer", "name", "ve1"]);
    netns.ip(&["link", "set", "ve0", "up"]);
    netns.ip(&["link", "set", "ve1", "up"]);
    let warned = |mode, metadata| {
        netns.enter(|| {
            let pool = pool();
            let config = Config { mode, metadata, ..Config::default() };
            let mut port = af_xdp::open_with("ve0", &config, pool).unwrap();
            let (mut queue, mut cache) = (port.queue(0).unwrap(), pool.cache().unwrap());
            sheafio_core::Queue::close(&mut queue, &mut cache);
            let warnings = port.warnings().iter().filter(|line| line.contains("VLAN tags"));
            (warnings.cloned().collect::<Vec<_>>(), port.tells_tags())
        })
    };
    let can_tell = kernel_is_at_least(6, 8);
    let remedy = "ethtool -K ve1 txvlan off tx-vlan-stag-hw-insert off";
    let line = |why: &str, more: &str| {
        format!(
            "ve0: its peer ve1 leaves VLAN tags beside packets instead of in them, and {why}: tagged packets pass for \
             untagged ones. Leave tags where they are: {remedy}{more}"
        )
    };
    let or = if can_tell { "; or have them told: metadata=yes" } else { "" };
    let (nobody, none) = ("nobody looks for them", "metadata=yes tells none of them here");
    assert_eq!(warned(Mode::Native, false), (vec![line(nobody, or)], false));
    let told = if can_tell { vec![] } else { vec![line(none, "")] };
    assert_eq!(warned(Mode::Native, true), (told, can_tell));
    assert_eq!(warned(Mode::Generic, false), (vec![line(nobody, "")], false));
    assert_eq!(warned(Mode::Generic, true), (vec![line(none, "")], false));

    let words: Vec<_> = remedy.split(' ').collect();
    netns.run(words[0], &words[1..]);
    assert_eq!(warned(Mode::Native, false), (vec![], false));
    assert_eq!(warned(Mode::Generic, true).0, [""; 0]);

    // Nor do tags lie elsewhere than in the packets then.
    push(&netns, &[(0x8100, 0x2064)]);
    let fwd = Fwd::start(&netns, &["-p", "ve0,mode=native", "--mode", "macswap"]);
    let socket = PacketSocket::new(&netns, "ve1");
    let sent = frame(1, 100);
    socket.send(&sent);
    let back = receive(&socket, 1, Some([TO, FROM]));
    assert_eq!(back, [tagged(&sent, [FROM, TO], &[(0x8100, 0x2064)])]);
    let ended = fwd.end();
    ended.assert_conserved();
    assert!(!ended.stderr.contains("VLAN"), "{}", ended.stderr);

    // With its peer elsewhere nothing is known, whatever the peer does.
    netns.run("ethtool", &["-K", "ve1", "txvlan", "on"]);
    assert_eq!(warned(Mode::Native, false).0.len(), 1);
    let other = Netns::new("tags-peer");
    netns.ip(&["link", "set", "ve1", "netns", &other.name]);
    // One that has the peer's index here is another.
    let index = netns.run("cat", &["/sys/class/net/ve0/iflink"]);
    netns.ip(&["link", "add", "vo0", "index", index.trim(), "type", "veth", "peer", "name", "vo1"]);
    assert_eq!(warned(Mode::Native, false).0, [""; 0]);
}
