//! What the loopback device counts, and answers of the kernel that a device may not give.

use std::{iter, net::UdpSocket, os::fd::AsFd, sync::Arc};

use super::*;
use crate::af_xdp::{
    Interface,
    program::{Program, Variant},
    rights, sys,
};

fn link_of(counts: &[(usize, u64)]) -> Link {
    let mut link = [0; LINK_WORDS];
    for (at, count) in counts {
        link[*at] = *count;
    }
    link
}

/// Every network namespace has a loopback device, and it counts what it sends as received.
#[test]
fn the_loopback_device_counts_what_is_sent_over_it() {
    let index = Interface::lookup("lo").unwrap().index;
    let device = Device::look(index, Mode::Generic).expect("Linux 4.7 and newer tell");
    device.begin();
    let socket = UdpSocket::bind("127.0.0.1:0");
    let Ok(socket) = socket else { return }; // The device is down.
    for _ in 0..10 {
        socket.send_to(&[0], socket.local_addr().unwrap()).unwrap();
    }
    let counts = device.counts();
    assert!(*counts.rx_packets.start() >= 10 && counts.tx_packets >= 10, "{counts:?}");
    assert!(!counts.is_gone);
    // What comes after the end counts as sent, but not as received while the program was there.
    device.end();
    device.ended();
    let ended = device.counts();
    for _ in 0..10 {
        socket.send_to(&[0], socket.local_addr().unwrap()).unwrap();
    }
    let later = device.counts();
    assert_eq!(later.rx_packets, ended.rx_packets);
    assert!(later.tx_packets >= ended.tx_packets + 10);
}

#[test]
fn a_device_that_is_not_there_tells_nothing() {
    assert!(Device::look(u32::MAX >> 1, Mode::Native).is_none());
}

#[test]
fn counts_are_those_between_the_programs_coming_and_going() {
    let seen = Seen {
        start: (link_of(&[(RX_PACKETS, 100), (RX_DROPPED, 7)]), link_of(&[(RX_PACKETS, 103)])),
        statistics: BTreeMap::from([("rx_queue_drops".to_owned(), 5), ("rx_dropped".to_owned(), 1)]),
        has_lost_program: false,
        end: (Some(link_of(&[(RX_PACKETS, 1000)])), Some(link_of(&[(RX_PACKETS, 1005), (RX_DROPPED, 9)]))),
        last: link_of(&[(RX_PACKETS, 2000), (RX_DROPPED, 20), (TX_PACKETS, 50), (TX_DROPPED, 3)]),
        last_statistics: BTreeMap::from([("rx_queue_drops".to_owned(), 9), ("rx_dropped".to_owned(), 99)]),
    };
    let counts = seen.counts(Mode::Native, false);
    assert_eq!((counts.rx_packets.clone(), counts.rx_dropped_of_these), (897..=905, 2));
    assert_eq!((counts.tx_packets, counts.tx_dropped), (50, 3));
    let losses: Vec<_> = counts.losses.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(losses, [("rx_dropped", 13), ("rx_queue_drops", 4), ("tx_dropped", 3)]);
    assert_eq!(seen.counts(Mode::Generic, true).rx_dropped_of_these, 0);
    assert!(seen.counts(Mode::Generic, true).is_gone);

    // While the program is there, both ends are now; and a driver that begins again does not make counts fall
    // below 0.
    let seen = Seen { end: (None, None), last: link_of(&[(RX_PACKETS, 50)]), ..seen };
    assert_eq!(seen.counts(Mode::Native, false).rx_packets, 0..=0);
}

#[test]
fn answers_that_are_cut_short_tell_nothing() {
    let mut answer = vec![0; 28];
    answer[4..6].copy_from_slice(&libc::RTM_NEWSTATS.to_ne_bytes());
    // Padding, then the counts.
    answer.extend([4_u16.to_ne_bytes(), 0_u16.to_ne_bytes()].concat());
    answer.extend([(4 + LINK_WORDS as u16 * 8).to_ne_bytes(), 1_u16.to_ne_bytes()].concat());
    answer.extend((0..LINK_WORDS as u64).flat_map(u64::to_ne_bytes));
    assert_eq!(link_in(&answer), Some(std::array::from_fn(|at| at as u64)));
    for len in 0..answer.len() {
        assert_eq!(link_in(&answer[..len]), None, "{len} bytes");
    }
    answer[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
    assert_eq!(link_in(&answer), None);
}

/// A question whose answer nobody fetched, as when that call failed: the next answer is not taken for it.
#[test]
fn an_answer_that_was_left_is_not_taken_for_a_later_one() {
    let index = Interface::lookup("lo").unwrap().index;
    let netlink = File::from(route_socket().unwrap());
    let before = link(&netlink, index).unwrap();
    ask(&netlink, index).unwrap();
    ask(&netlink, u32::MAX >> 1).unwrap(); // Its answer is an error.
    let Ok(socket) = UdpSocket::bind("127.0.0.1:0") else { return }; // The device is down.
    for _ in 0..10 {
        socket.send_to(&[0], socket.local_addr().unwrap()).unwrap();
    }
    assert!(since(&link(&netlink, index).unwrap(), &before, TX_PACKETS) >= 10);
}

#[test]
fn statistics_that_a_driver_does_not_give_are_not_zero() {
    let name = |text: &str| -> [u32; STRING_WORDS] {
        let mut bytes = [0; STRING_WORDS * 4];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        std::array::from_fn(|at| u32::from_ne_bytes(bytes[at * 4..][..4].try_into().unwrap()))
    };
    let answers = |count, of_values| {
        let strings = [&[0, 0, count][..], &name("rx_drops"), &name("tx_drops")].concat();
        let [three, four] = [3_u64, 4].map(|value| {
            let bytes = value.to_ne_bytes();
            [0, 4].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()))
        });
        let values = [&[0, of_values][..], &three, &four].concat();
        losses_in(2, &strings, &values)
    };
    assert_eq!(answers(2, 2), Some(BTreeMap::from([("rx_drops".to_owned(), 3), ("tx_drops".to_owned(), 4)])));
    for (names, values) in [(0, 0), (1, 1), (2, 1), (1, 2), (3, 3)] {
        assert_eq!(answers(names, values), None, "{names} names, {values} values");
    }
}

/// The end of the program is the end of the count in whatever way it comes: also where no queue has taken it off.
#[test]
fn a_program_that_goes_with_its_port_ends_the_count() {
    // In a network namespace of this thread's own, which goes with it: nobody else has a program there.
    let count = std::thread::spawn(|| {
        // SAFETY: unshare takes no pointer, and a new network namespace leaves all else as it is.
        if !rights::missing().is_empty() || unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
            return None;
        }
        let interface = Interface::lookup("lo").unwrap();
        let program = Program::load(&interface, 1, Variant::Frags).unwrap();
        let socket = sys::socket().unwrap();
        let attachment = program.serve(&interface, iter::once((0, socket.as_fd()))).unwrap();
        let device = Arc::new(Device::look(interface.index, Mode::Generic).unwrap());
        program.attach(&attachment, &interface, Mode::Generic, Mode::Generic).unwrap();
        device.begin();
        attachment.look_at(device.clone());
        drop(attachment);
        let seen = device.seen();
        Some([seen.end.0.is_some(), seen.end.1.is_some()])
    });
    if let Some(ends) = count.join().unwrap() {
        assert_eq!(ends, [true; 2]);
    } else {
        assert!(std::env::var_os("SHEAFIO_NO_SKIP").is_none(), "it takes rights");
        println!("skipped: a_program_that_goes_with_its_port_ends_the_count: rights are missing");
    }
}
