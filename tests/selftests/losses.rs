//! Packets that are lost on the way to us: counted to the packet, under the name of what was missing.

use sheafio_core::{DropReason, Queue};
use sheafio_drivers::af_xdp::{Config, Frags};
use sheafio_mempool::{Burst, Mempool};
use sheafio_tests::{can_make_networks, kernel_has};

use super::{Bench, Link, MODES, all, numbers, packet, packets, pool};

/// Everything that was dropped; closes the queue.
fn all_drops(bench: &mut Bench<'_>) -> Vec<(DropReason, u64)> {
    bench.queue.close(&mut bench.cache);
    bench.queue.counters().totals().all_drops().collect()
}

#[test]
fn packets_that_do_not_fit_into_a_frame_are_counted() {
    if !can_make_networks("packets_that_do_not_fit_into_a_frame_are_counted") {
        return;
    }
    for mode in MODES {
        let link = Link::new(3000);
        link.run(&Config { mode, frags: Frags::No, ..Config::default() }, pool(), |bench| {
            for number in 0..100 {
                let lens = [1792, 1793, 3014];
                bench.send(lens.map(|len| packet(number, len)));
            }
            assert_eq!(numbers(&bench.receive(100)), all(0..100), "{mode:?}");
            assert_eq!(all_drops(bench), [(DropReason::RxTooLarge, 200)], "{mode:?}");
        });
    }
}

/// A queue never has more frames out than its RX ring has slots, so a receiver that does not come lacks frames, and
/// finds no full ring (`rx_ring_full`).
#[test]
fn packets_that_nobody_receives_in_time_are_counted() {
    if !can_make_networks("packets_that_nobody_receives_in_time_are_counted") {
        return;
    }
    for mode in MODES {
        for fill in [10, 64] {
            let link = Link::new(1500);
            let config = Config { mode, ring: 64, fill: Some(fill), ..Config::default() };
            link.run(&config, pool(), |bench| {
                for round in 0..3 {
                    bench.send(packets(0..200, 60));
                    let received = numbers(&bench.receive(fill as usize));
                    assert_eq!(received, all(0..fill), "{mode:?}, round {round}");
                }
                let lost = u64::from(3 * (200 - fill));
                assert_eq!(all_drops(bench), [(DropReason::RxNoFrame, lost)], "{mode:?}");
            });
        }
    }
}

#[test]
fn packets_that_find_the_pool_empty_are_counted_and_reception_goes_on_later() {
    if !can_make_networks("packets_that_find_the_pool_empty_are_counted_and_reception_goes_on_later") {
        return;
    }
    for mode in MODES {
        let link = Link::new(1500);
        let config = Config { mode, ring: 64, ..Config::default() };
        link.run(&config, Mempool::builder().frames(256), |bench| {
            // The application keeps every frame, those that it receives too.
            let mut kept: Vec<_> = std::iter::from_fn(|| bench.cache.alloc()).collect();
            assert_eq!(kept.len(), 256 - 64, "{mode:?}: the others lie ready for reception");
            bench.send(packets(0..100, 60));
            let mut burst = Burst::with_limit(Burst::MAX);
            while bench.queue.rx_burst(&mut bench.cache, &mut burst) > 0 {}
            assert_eq!(burst.len(), 64, "{mode:?}");
            bench.send(packets(100..150, 60));
            assert_eq!(bench.queue.rx_burst(&mut bench.cache, &mut burst), 0, "{mode:?}");
            assert_eq!(bench.pool.census().free(), 0, "{mode:?}");
            // It gives them back.
            kept.drain(..).for_each(|frame| bench.cache.free(frame));
            bench.cache.free_burst(&mut burst);
            bench.queue.rx_burst(&mut bench.cache, &mut burst);
            bench.send(packets(150..200, 60));
            assert_eq!(numbers(&bench.receive(50)), all(150..200), "{mode:?}");
            assert_eq!(all_drops(bench), [(DropReason::RxNoFrame, 36 + 50)], "{mode:?}");
        });
    }
}

/// A packet of several frames takes none if there are too few for all of it, and what was missing is frames.
#[test]
fn packets_that_find_too_few_frames_are_counted_as_such() {
    let name = "packets_that_find_too_few_frames_are_counted_as_such";
    if !can_make_networks(name) || !kernel_has(name, 6, 6, "packets in several frames") {
        return;
    }
    for mode in MODES {
        let link = Link::new(9000);
        let config = Config { mode, ring: 64, frags: Frags::Yes, ..Config::default() };
        link.run(&config, pool(), |bench| {
            // Six frames each: ten take 60 of 64. The next ones lack two; two small ones fit, as do two more.
            bench.send(packets(0..15, 9014));
            bench.send(packets(15..17, 60));
            bench.send(packets(17..20, 9014));
            bench.send(packets(20..30, 60));
            let received = numbers(&bench.receive(10 + 4));
            assert_eq!(received, [all(0..10), all(15..17), all(20..22)].concat(), "{mode:?}");
            assert_eq!(all_drops(bench), [(DropReason::RxNoFrame, 5 + 3 + 8)], "{mode:?}");
        });
    }
}
