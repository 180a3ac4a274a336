//! Every packet that a real NIC received is delivered, dropped by a name, or left to the kernel, with copies and without.
//!
//! The NICs count what came to them, and that is where the sum begins: what a receiver that stands still keeps from
//! coming, the emulated wire holds back and in the end drops, and no NIC has seen it.

use std::{thread, time::Duration};

use serde_json::Value;
use sheafio_tests::{datagram, socket};

use crate::{
    nics::{LEFT, Nics, RIGHT, in_guest},
    zero_copy_drivers,
};

/// Ports of the datagrams: the first is ours.
const PORTS: [u16; 2] = [9, 10];
const DATAGRAM_BYTES: usize = 100;
/// Drops before reception.
const BEFORE_RX: [&str; 4] = ["rx_no_frame", "rx_ring_full", "rx_too_large", "rx_invalid"];

/// Sends datagrams, in turns to each port; a few at a time. Returns how many the peer's kernel took: a wire that is held
/// back holds back the sender, which does not wait, for the receiver stands still until it has sent.
fn send(nics: &Nics, count: u32) -> u64 {
    let left = socket(&nics.left, LEFT);
    left.set_nonblocking(true).unwrap();
    let mut taken = 0;
    for number in 0..count {
        let sent = left.send_to(&datagram(number, DATAGRAM_BYTES), (RIGHT, PORTS[number as usize % 2]));
        taken += u64::from(sent.is_ok());
        if number % 16 == 15 {
            thread::sleep(Duration::from_millis(2));
        }
    }
    taken
}

/// Waits until nothing is on its way any more. A peer's driver that was reset on a busy host has lost what it had, and does
/// not count it as sent.
fn settle(nics: &Nics) {
    let counts = || [nics.sent(0), nics.received(1)];
    nics.wait_until(|| {
        let before = counts();
        thread::sleep(Duration::from_millis(500));
        counts() == before
    });
}

#[test]
fn what_a_slow_receiver_loses_adds_up_on_real_drivers() {
    if !in_guest("what_a_slow_receiver_loses_adds_up_on_real_drivers") {
        return;
    }
    for driver in ["igb", "virtio"] {
        let direct = zero_copy_drivers().contains(&driver).then_some(",copy=zerocopy");
        for options in [",copy=copy"].into_iter().chain(direct) {
            let nics = Nics::new(driver);
            nics.send_to_port();
            let options = format!("{options},ring=512,steer=udp:{}", PORTS[0]);
            let fwd = nics.serve(&options, &["--mode", "rxonly", "--frames", "4096"]);
            let before = (nics.sent(0), nics.received(1));
            let mut taken = send(&nics, 400);
            settle(&nics);
            for _ in 0..2 {
                fwd.pause();
                taken += send(&nics, 2000);
                fwd.signal(libc::SIGCONT);
                thread::sleep(Duration::from_millis(100));
                taken += send(&nics, 200);
            }
            settle(&nics);
            let (sent, came) = (nics.sent(0) - before.0, nics.received(1) - before.1);
            let ended = fwd.end();
            let last = ended.assert_conserved();
            let port = &last["ports"][0];
            println!("{driver}{options}: {sent} sent, {came} came: {port}");
            let is_missed = |name: &String| name.contains("missed") || name.contains("fifo");
            let has_missed = port["device"].as_object().unwrap().keys().any(is_missed);
            let is_told = ended.stderr.contains("the device lost packets before any program saw them");
            assert!(is_told || !has_missed, "{port}: {}", ended.stderr);
            let number = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("{port}"));
            let unexplained = (number(&port["unexplained_rx"]), number(&port["unexplained_tx"]));
            assert_eq!(unexplained, (0, 0), "{driver}{options}: {port}");
            let wire = ended.port(0, "wire_rx");
            let passed = number(&port["program"]["passed"]) as u64;
            let drops: u64 = BEFORE_RX.iter().map(|reason| ended.port(0, reason)).sum();
            assert!(came <= wire, "{driver}{options}: {came} came of {sent}: {port}");
            // Without copies an igb that has run out of frames goes through its ring once more, and counts what it
            // finds there as received (close.rs): its own count is above what was sent, and the sum is of its count.
            assert!(
                wire <= sent || options.starts_with(",copy=zerocopy") && driver == "igb",
                "{wire}, {sent}"
            );
            assert_eq!(ended.port(0, "rx_packets") + drops + passed, wire, "{driver}{options}: {port}");
            assert!(passed > 500 && ended.port(0, "rx_packets") > 512, "{port}");
            // A virtio-net that has no frames gives its device no buffers, so the wire holds all back and none is lost.
            let holds_back = options.starts_with(",copy=zerocopy") && driver == "virtio";
            assert!(if holds_back { taken < 4800 } else { drops > 0 }, "{driver}{options}, {taken}: {port}");
        }
    }
}
