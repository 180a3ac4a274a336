//! Packets that can't be sent, alone and among good ones: refused by name, and the good ones around them arrive.

use std::time::Duration;

use sheafio_core::{DropReason, Queue};
use sheafio_drivers::af_xdp::{Config, Frags};
use sheafio_mempool::Burst;
use sheafio_tests::{can_make_networks, kernel_has};

use super::{Link, MODES, all, numbers, packet, pool};

/// Frames of a packet that every device can send in copy mode, at most: the fragments of an sk_buff (MAX_SKB_FRAGS,
/// linux/skbuff.h, as kernels are usually configured).
const FRAMES_A_PACKET: usize = 17;

#[test]
fn bad_packets_are_refused_by_name_and_good_ones_around_them_arrive() {
    let name = "bad_packets_are_refused_by_name_and_good_ones_around_them_arrive";
    if !can_make_networks(name) || !kernel_has(name, 6, 6, "packets in several frames") {
        return;
    }
    for mode in MODES {
        for metadata in [false, true] {
            let link = Link::new(9000);
            let config = Config { mode, metadata, frags: Frags::Yes, ..Config::default() };
            link.run(&config, pool(), |bench| {
                let mut burst = Burst::with_limit(Burst::MAX);
                bench.push(&mut burst, &packet(0, 60), 60);
                // No bytes at all.
                burst.push(bench.cache.alloc().unwrap()).unwrap();
                bench.push(&mut burst, &packet(1, 3000), 1500);
                // No bytes in the middle of a packet.
                bench.push(&mut burst, &packet(99, 3000), 1000);
                let middle = burst.len() - 2;
                burst[middle].trim_back(1000);
                bench.push(&mut burst, &packet(2, 60), 60);
                // A checksum that is asked for, of bytes that are then cut off: sent as it is, and nothing gets stuck.
                for most in [60, 40] {
                    bench.push(&mut burst, &packet(99, 60), most);
                    let frame = burst.heads_mut().last().unwrap();
                    assert!(frame.request_checksum(14, 20));
                    frame.trim_back(10 + most - 40);
                }
                bench.push(&mut burst, &packet(3, 60), 60);
                // Where the kernel looks for requests in front of packets, no room for one.
                bench.push(&mut burst, &packet(99, 60), 60);
                let frame = burst.last_mut().unwrap();
                if metadata {
                    let headroom = frame.headroom();
                    frame.prepend(headroom - 31).unwrap().fill(0);
                } else {
                    frame.trim_back(60);
                }
                // The end is missing.
                bench.push(&mut burst, &packet(99, 2000), 1000);
                burst.last_mut().unwrap().set_continues(true);
                let refused = bench.queue.tx_burst(&mut bench.cache, &mut burst);
                assert!(burst.is_empty(), "{mode:?}: {} frames stay, {refused} packets sent", burst.len());
                // Alone, and then a good one.
                burst.push(bench.cache.alloc().unwrap()).unwrap();
                assert_eq!(bench.queue.tx_burst(&mut bench.cache, &mut burst), 0);
                bench.push(&mut burst, &packet(4, 60), 60);
                assert_eq!(bench.queue.tx_burst(&mut bench.cache, &mut burst), 1);
                let mut arrived = bench.arrived(7);
                let cut: Vec<_> = arrived.drain(3..5).collect();
                let whole = packet(99, 60);
                assert!(
                    cut == [whole[..30].to_vec(), [&whole[..30], &whole[40..]].concat()],
                    "{mode:?}: {cut:?}"
                );
                assert_eq!(numbers(&arrived), all(0..5), "{mode:?}, metadata {metadata}");
                assert_eq!(bench.peer.receive(Duration::from_millis(50)), None, "{mode:?}");
                bench.queue.close(&mut bench.cache);
                let drops: Vec<_> = bench.queue.counters().totals().all_drops().collect();
                let expected = if metadata {
                    vec![(DropReason::TxEmpty, 3), (DropReason::TxNoEnd, 1), (DropReason::TxNoHeadroom, 1)]
                } else {
                    vec![(DropReason::TxEmpty, 4), (DropReason::TxNoEnd, 1)]
                };
                assert_eq!(drops, expected, "{mode:?}, metadata {metadata}");
            });
        }
    }
}

#[test]
fn as_many_frames_as_the_kernel_takes_are_sent_and_no_more() {
    let name = "as_many_frames_as_the_kernel_takes_are_sent_and_no_more";
    if !can_make_networks(name) || !kernel_has(name, 6, 6, "packets in several frames") {
        return;
    }
    for mode in MODES {
        let link = Link::new(9000);
        let config = Config { mode, frags: Frags::Yes, ..Config::default() };
        link.run(&config, pool(), |bench| {
            let mut burst = Burst::with_limit(Burst::MAX);
            let packet_of = |number, frames: usize| packet(number, frames * 400);
            for (number, frames) in [
                (0, 1),
                (1, FRAMES_A_PACKET),
                (9, FRAMES_A_PACKET + 1),
                (2, 2),
                (9, 22),
                (3, FRAMES_A_PACKET),
            ] {
                bench.push(&mut burst, &packet_of(number, frames), 400);
            }
            bench.transmit_burst(&mut burst);
            let arrived = bench.arrived(4);
            assert_eq!(numbers(&arrived), all(0..4), "{mode:?}");
            assert_eq!(arrived[1].len(), FRAMES_A_PACKET * 400);
            bench.queue.close(&mut bench.cache);
            let drops: Vec<_> = bench.queue.counters().totals().all_drops().collect();
            assert_eq!(drops, [(DropReason::TxTooLarge, 2)], "{mode:?}: the kernel refuses none");
        });
    }
}

/// Without packets in several frames, one of two frames is as bad as one of twenty.
#[test]
fn without_frags_packets_of_two_frames_are_refused() {
    if !can_make_networks("without_frags_packets_of_two_frames_are_refused") {
        return;
    }
    for mode in MODES {
        let link = Link::new(1500);
        let config = Config { mode, frags: Frags::No, ..Config::default() };
        link.run(&config, pool(), |bench| {
            let mut burst = Burst::new();
            for (number, most) in [(0, 100), (9, 50), (1, 100)] {
                bench.push(&mut burst, &packet(number, 100), most);
            }
            bench.transmit_burst(&mut burst);
            assert_eq!(numbers(&bench.arrived(2)), [0, 1], "{mode:?}");
            assert_eq!(bench.drops(DropReason::TxTooLarge), 1, "{mode:?}");
            assert_eq!(bench.drops(DropReason::TxInvalid), 0, "{mode:?}");
        });
    }
}
