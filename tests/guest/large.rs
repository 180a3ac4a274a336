//! Packets of MTU 9,000 on real drivers: forwarded byte for byte, in the driver where it has packets of several buffers, in
//! generic mode where it has not.
//!
//! No driver of the guest has them without copies. What can be had there is the last test's.

use sheafio_tests::{Fwd, kernel_has, note, sheafio};

use crate::{
    can_do_without_copies,
    nics::{DRIVERS, Nics, in_guest},
};

/// Bytes of an Ethernet, an IPv4 and a UDP header.
const HEADERS_BYTES: usize = 14 + 20 + 8;
/// What a frame holds behind its headroom.
const HEADROOM_BYTES: usize = 256;

#[test]
fn packets_of_mtu_9000_are_forwarded_byte_for_byte_by_every_driver() {
    let test = "packets_of_mtu_9000_are_forwarded_byte_for_byte_by_every_driver";
    if !in_guest(test) {
        return;
    }
    if !kernel_has(test, 6, 6, "packets of several frames (XDP_USE_SG)") {
        return;
    }
    for driver in DRIVERS {
        let mut nics = Nics::new(driver);
        nics.set_mtu("9000");
        for (options, frame_size) in [(",copy=copy", 4096), (",copy=copy", 2048), (",mode=generic", 2048)] {
            let holds = frame_size - HEADROOM_BYTES;
            // Around the lengths from which on a packet takes one frame more.
            let around = |frames| (0..4).map(move |step| frames * holds - HEADERS_BYTES - 2 + step);
            let most = 9014 / holds;
            let mut lens: Vec<usize> =
                [4, 1472, 8972].into_iter().chain((1..=most).flat_map(around)).collect();
            lens.extend([8972; 20]);
            let frame_size = frame_size.to_string();
            let line = nics.opened_with(options, &frame_size);
            let is_native = line.contains("native");
            // The MTU is too large for the others' native modes, for one buffer has to hold the packet.
            let is_able = driver == "virtio" && !options.contains("generic");
            assert_eq!(is_native, is_able, "{driver}{options}: {line}");
            let fwd = nics.forward_with(options, &frame_size, &[]);
            assert!(nics.pings(1), "{driver}{options}");
            match nics.try_exchange(&lens) {
                Ok(()) => {}
                // QEMU's vmxnet3 stops receiving at times when it has got its first large packet.
                Err(lost) if driver == "vmxnet" && nics.has_lost_on_the_wire() => {
                    note(test, &format!("the emulated NIC has stopped: {lost}"));
                    fwd.end().assert_conserved();
                    break;
                }
                Err(lost) => panic!("{lost}"),
            }
            let ended = fwd.end();
            let last = ended.assert_conserved();
            for port in 0..2 {
                for reason in ["rx_too_large", "rx_invalid", "tx_too_large", "tx_invalid"] {
                    assert_eq!(
                        ended.port(port, reason),
                        0,
                        "{driver}{options}, frames of {frame_size}: {last}"
                    );
                }
                assert!(ended.port(port, "rx_packets") >= lens.len() as u64, "{last}");
            }
        }
    }
}

/// A driver without copies that takes one frame a packet: either the kernel refuses it at MTU 9,000, and the line says how
/// large packets may be, or the port tells what becomes of larger ones. With the MTU that it names, all arrive.
#[test]
fn the_mtu_that_is_named_for_frames_without_copies_is_one_that_works() {
    let test = "the_mtu_that_is_named_for_frames_without_copies_is_one_that_works";
    if !can_do_without_copies(test) {
        return;
    }
    let mut nics = Nics::new("virtio");
    nics.set_mtu("9000");
    let args = ["fwd", "--json", "-p", "virtio1,copy=zerocopy", "--mode", "rxonly", "--duration", "100ms"];
    let args = [&args[..], &["--frame-size", "4096"]].concat();
    let ended = Fwd::start_program(&nics.under_test, sheafio(), &args).wait();
    let told = if ended.code == Some(0) { ended.stderr } else { ended.refusal() };
    for part in ["virtio1", "3840", "MTU 9000"] {
        assert!(told.contains(part), "'{part}' is missing in: {told}");
    }
    let named = told.split("ip link set dev virtio1 mtu ").nth(1);
    let named = named.and_then(|rest| rest.split(|one: char| !one.is_ascii_digit()).next());
    let mtu = named.unwrap_or_else(|| panic!("no MTU is named in: {told}"));
    nics.set_mtu(mtu);
    let fwd = nics.forward(",copy=zerocopy", &[]);
    assert!(nics.pings(1));
    let most = mtu.parse::<usize>().unwrap() - (HEADERS_BYTES - 14);
    nics.exchange_lens(&[4, 100, 1472, most - 2, most - 1, most]);
    fwd.end().assert_conserved();
}
