//! An AF_XDP socket of xsk-rs as the link partner: no code of ours at the other end of the veth.
//!
//! ```text
//!   partner (tests/peers/xsk-rs)         under test          a second partner
//!   | ve1, XDP socket | ---------- | ve0 | fwd | vf0 | ---------- | ve1, XDP socket |
//! ```

use serde_json::Value;
use sheafio_tests::{Ended, Fwd, Netns, Veth, can_make_networks, partner};

/// Bounds a partner's run, in seconds: far above what it takes.
const SECONDS: &str = "20";

/// Starts a partner at the far end of a veth: `ve1 QUEUES MODE COUNT LENGTH`, then `native` or `generic`.
fn start(veth: &Veth, queues: &str, mode: &str, count: u64, length: u32, xdp: &str) -> Fwd {
    let (count, length) = (count.to_string(), length.to_string());
    let args = ["ve1", queues, mode, &count, &length, SECONDS, xdp];
    let partner = Fwd::start_program(&veth.peer, partner(), &args);
    partner.wait_for_xdp(&veth.peer, "ve1");
    partner
}

/// What a partner reports at its end.
fn report(partner: Fwd) -> Value {
    let ended = partner.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.lines.last().cloned().unwrap_or_else(|| panic!("no report: {ended:?}"));
    let of = |key: &str| &report[key];
    assert_eq!((of("repeated"), of("damaged"), of("foreign")), (&0.into(), &0.into(), &0.into()), "{report}");
    report
}

fn number(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {report}"))
}

/// Nothing was dropped at any port.
fn assert_no_drops(ended: &Ended) {
    let last = ended.assert_conserved();
    for (number, port) in last["ports"].as_array().expect("ports").iter().enumerate() {
        for reason in port["drops"].as_object().expect("drops").keys() {
            assert_eq!(ended.port(number, reason), 0, "port {number}, {reason}: {last}");
        }
    }
    assert_eq!(ended.retired(), 0);
}

#[test]
fn every_packet_comes_back_once_and_unchanged_but_for_its_addresses() {
    if !can_make_networks("every_packet_comes_back_once_and_unchanged_but_for_its_addresses") {
        return;
    }
    for (ours, theirs, queues, length) in [
        ("native", "native", 1, 60),
        ("native", "generic", 1, 1514),
        ("generic", "native", 1, 333),
        ("generic", "generic", 1, 1514),
        ("native", "native", 2, 1514),
        ("native", "generic", 2, 60),
        ("generic", "native", 2, 777),
    ] {
        let under_test = Netns::new("fwd");
        let veth = Veth::new(&under_test, "ve0", "10.0.0.1", queues);
        let port = format!("ve0,mode={ours},queues={queues}");
        let fwd = Fwd::start(&under_test, &["-p", &port, "--mode", "macswap"]);
        let numbers = if queues == 1 { "0" } else { "0,1" };
        // More than a lap of the rings, which have 2,048 slots.
        let report = report(start(&veth, numbers, "both", 5000, length, theirs));
        let ended = fwd.end();
        assert_no_drops(&ended);
        let case = format!("{ours}, partner {theirs}, {queues} queue(s), {length} bytes: {report}");
        for key in ["sent", "received", "swapped"] {
            assert_eq!(number(&report, key), 5000, "{key} in {case}");
        }
        assert_eq!((ended.port(0, "rx_packets"), ended.port(0, "tx_packets")), (5000, 5000), "{case}");
        let bytes = 5000 * u64::from(length);
        assert_eq!((ended.port(0, "rx_bytes"), ended.port(0, "tx_bytes")), (bytes, bytes), "{case}");
        for queue in report["queues"].as_array().expect("queues") {
            assert!(number(queue, "sent") > 0, "{case}");
            assert_eq!((number(queue, "in_flight"), number(queue, "dropped")), (0, 0), "{case}");
            // What a socket sends from queue 1 arrives at queue 0 in generic mode: the kernel takes the number that
            // the sender's queue left in the packet for one that counts from 1 (`skb_get_rx_queue`).
            if ours == "native" && theirs == "native" {
                assert_eq!(number(queue, "received"), number(queue, "sent"), "{case}");
            }
        }
    }
}

/// There and back through two ports, where the far partner turns packets round.
#[test]
fn what_a_partner_echoes_comes_back_through_both_ports() {
    if !can_make_networks("what_a_partner_echoes_comes_back_through_both_ports") {
        return;
    }
    for mode in ["native", "generic"] {
        let under_test = Netns::new("fwd");
        let left = Veth::new(&under_test, "ve0", "10.0.0.1", 1);
        let right = Veth::new(&under_test, "vf0", "10.0.0.2", 1);
        let ports = [format!("ve0,mode={mode}"), format!("vf0,mode={mode}")];
        let fwd = Fwd::start(&under_test, &["-p", &ports[0], "-p", &ports[1], "--mode", "io"]);
        let echo = start(&right, "0", "echo", 5000, 60, mode);
        let sender = start(&left, "0", "both", 5000, 500, mode);
        let (sent, echoed) = (report(sender), report(echo));
        let ended = fwd.end();
        assert_no_drops(&ended);
        for key in ["sent", "received", "swapped"] {
            assert_eq!(number(&sent, key), 5000, "{key}, {mode}: {sent}");
        }
        assert_eq!(
            (number(&echoed, "received"), number(&echoed, "echoed")),
            (5000, 5000),
            "{mode}: {echoed}"
        );
        for port in 0..2 {
            assert_eq!(
                (ended.port(port, "rx_packets"), ended.port(port, "tx_packets")),
                (5000, 5000),
                "{mode}"
            );
        }
    }
}

/// A sender that does not wait: what does not arrive is counted by someone, and nothing arrives twice or damaged.
#[test]
fn a_sender_that_does_not_wait_loses_no_packet_without_a_name() {
    if !can_make_networks("a_sender_that_does_not_wait_loses_no_packet_without_a_name") {
        return;
    }
    for mode in ["native", "generic"] {
        let under_test = Netns::new("fwd");
        let left = Veth::new(&under_test, "ve0", "10.0.0.1", 1);
        let right = Veth::new(&under_test, "vf0", "10.0.0.2", 1);
        // Rings of 64, so that packets are lost.
        let ports = [format!("ve0,mode={mode},ring=64"), format!("vf0,mode={mode},ring=64")];
        let fwd =
            Fwd::start(&under_test, &["-p", &ports[0], "-p", &ports[1], "--mode", "io", "--frames", "1024"]);
        let receiver = start(&right, "0", "receive", 20_000, 60, mode);
        let sent = report(start(&left, "0", "send", 20_000, 60, mode));
        assert_eq!(number(&sent, "sent"), 20_000, "{mode}: {sent}");
        let ended = fwd.end();
        let last = ended.assert_conserved();
        let received = report(receiver);
        let drops =
            last["ports"].as_array().expect("ports").iter().filter_map(|port| port["drops"].as_object());
        let drops: u64 = drops.flat_map(|drops| drops.values()).filter_map(Value::as_u64).sum();
        let at_receiver = number(&received["queues"][0], "dropped");
        let arrived = number(&received, "received");
        assert_eq!(arrived + drops + at_receiver, 20_000, "{mode}: {received} {last}");
        assert!(arrived > 64, "{mode}: no more arrives than a ring holds: {received} {last}");
    }
}
