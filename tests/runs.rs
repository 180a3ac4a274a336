//! Packets that are larger than a frame, over the simulated kernel and the ring port: never cut, never mixed, each
//! one sent once and unchanged, or counted.

use std::sync::Mutex;

use sheafio_core::{DropReason, Queue};
use sheafio_drivers::{
    ring,
    sim::{Config, Faults, SimQueue, Wire},
};
use sheafio_mempool::{Burst, Frame, PoolCache};
use sheafio_tests::{assert_home, open_simulated as open, small_pool as pool};

/// A packet that tells its number and length in each of its parts.
fn packet(number: u32, len: usize) -> Vec<u8> {
    let word = |at: u32| number.wrapping_mul(2_654_435_761).wrapping_add(at).to_be_bytes();
    let head = [number.to_be_bytes(), (len as u32).to_be_bytes()].concat();
    head.into_iter().chain((0..).flat_map(word)).take(len).collect()
}

/// The number of a packet that is whole and unchanged.
fn number(bytes: &[u8]) -> u32 {
    let number = u32::from_be_bytes(bytes[..4].try_into().unwrap());
    assert!(bytes == packet(number, bytes.len()), "packet {number} of {} bytes was changed", bytes.len());
    assert_eq!(bytes[4..8], (bytes.len() as u32).to_be_bytes(), "packet {number} was cut or joined");
    number
}

/// The bytes of a packet's frames, joined.
fn joined(packet: &[Frame]) -> Vec<u8> {
    packet.iter().flat_map(|frame| frame.iter().copied()).collect()
}

/// Receives with one burst limit, until nothing has come for a while.
fn forward_all(
    from: &mut SimQueue,
    to: &mut impl Queue,
    cache: &mut PoolCache,
    wire: &Mutex<Wire>,
    limit: usize,
) {
    let (mut burst, mut quiet) = (Burst::with_limit(limit), 0);
    while quiet < 1000 {
        let received = from.rx_burst(cache, &mut burst);
        assert_eq!(burst.packet_count(), received);
        assert_eq!(burst.heads_mut().count(), received);
        assert!(burst.last().is_none_or(|frame| !frame.continues()), "a packet was cut");
        to.tx_or_drop(cache, &mut burst);
        from.tx_burst(cache, &mut burst);
        quiet = if received == 0 && wire.lock().unwrap().waiting() == 0 { quiet + 1 } else { 0 };
    }
}

const ALL: Faults = Faults { wakeup: true, late: true, reorder: true, full: true };

/// Packets of 1 to 11 frames, through rings from hardly larger than a packet to far larger, and bursts from a frame
/// to 256.
#[test]
fn packets_of_any_length_are_forwarded_whole_or_counted_under_every_fault() {
    let faults = [Faults::default(), Faults { full: true, ..Faults::default() }, ALL];
    for (seed, faults) in (1..).zip(faults) {
        for (ring, tx_budget, limit) in
            [(16, 32, 32), (16, 2048, 1), (64, 32, 4), (256, 2048, 256), (2048, 32, 32)]
        {
            let pool = pool(4096);
            let config =
                Config { seed, packets: 0, frags: true, ring, tx_budget, faults, ..Config::default() };
            let (mut left, left_wire) = open(pool, &Config { fill: Some(1024), ..config.clone() });
            let (mut right, right_wire) = open(pool, &config);
            let mut random = fastrand::Rng::with_seed(seed);
            for number in 0..3000 {
                let most = if random.bool() { 1700 } else { 19_000 };
                left_wire.lock().unwrap().inject(&packet(number, random.usize(60..most)));
            }
            let mut cache = pool.cache().unwrap();
            forward_all(&mut left, &mut right, &mut cache, &left_wire, limit);
            let closed = [left.close(&mut cache), right.close(&mut cache)];

            let sent = right_wire.lock().unwrap().take_sent();
            let numbers: Vec<u32> = sent.iter().map(|bytes| number(bytes)).collect();
            assert!(numbers.is_sorted_by(|one, next| one < next), "{faults:?}: a packet came twice or late");
            assert!(sent.iter().any(|bytes| bytes.len() > 10_000), "no large packet came through");
            let (arrived, forwarded) = (left.counters().totals(), right.counters().totals());
            let lost = |reason| arrived.drops(reason) + forwarded.drops(reason);
            let before = lost(DropReason::RxNoFrame) + lost(DropReason::RxRingFull);
            let after = lost(DropReason::TxFull) + lost(DropReason::RxUnread);
            assert_eq!(arrived.rx_packets + before, 3000, "{faults:?}, ring {ring}");
            assert_eq!(forwarded.tx_packets + after, arrived.rx_packets, "{faults:?}, ring {ring}");
            assert_eq!(
                numbers.len() as u64 + lost(DropReason::TxUnsent),
                forwarded.tx_packets,
                "ring {ring}"
            );
            assert_eq!(forwarded.tx_bytes, sent.iter().map(|bytes| bytes.len() as u64).sum::<u64>());
            drop(cache);
            assert_home(pool, &closed);
        }
    }
}

/// Sends what a function makes of packets of one to six frames; returns how many, and the queue's counts.
fn send(config: &Config, change: impl Fn(&mut Burst)) -> (usize, sheafio_core::QueueTotals, Vec<Vec<u8>>) {
    let pool = pool(1024);
    let (mut from, from_wire) = open(pool, &Config { packets: 0, frags: true, ..Config::default() });
    let (mut to, to_wire) = open(pool, &Config { packets: 0, ..config.clone() });
    let mut cache = pool.cache().unwrap();
    for (number, len) in [100, 10_000, 200, 3000, 300].into_iter().enumerate() {
        from_wire.lock().unwrap().inject(&packet(number as u32, len));
    }
    let mut burst = Burst::new();
    while burst.packet_count() < 5 {
        from.rx_burst(&mut cache, &mut burst);
    }
    change(&mut burst);
    let sent = to.tx_burst(&mut cache, &mut burst);
    to.tx_burst(&mut cache, &mut burst);
    cache.free_burst(&mut burst);
    let closed = [from.close(&mut cache), to.close(&mut cache)];
    drop(cache);
    assert_home(pool, &closed);
    let packets = to_wire.lock().unwrap().take_sent();
    (sent, to.counters().totals(), packets)
}

#[test]
fn what_can_never_be_sent_is_counted_by_its_reason_and_the_rest_is_sent() {
    let numbers = |packets: &[Vec<u8>]| packets.iter().map(|bytes| number(bytes)).collect::<Vec<_>>();
    let frags = Config { frags: true, ..Config::default() };

    let (sent, totals, packets) = send(&frags, |_| ());
    assert_eq!((sent, totals.all_drops().count(), numbers(&packets)), (5, 0, vec![0, 1, 2, 3, 4]));

    // No packets of several frames on that port.
    let (sent, totals, packets) = send(&Config::default(), |_| ());
    assert_eq!((sent, totals.drops(DropReason::TxTooLarge), numbers(&packets)), (3, 2, vec![0, 2, 4]));

    // A ring that is shorter than the packet of 6 frames.
    let (_, totals, packets) = send(&Config { ring: 4, ..frags.clone() }, |_| ());
    assert_eq!(totals.drops(DropReason::TxTooLarge), 1);
    assert_eq!(numbers(&packets), [0, 2, 3, 4]);

    // The burst ends within a packet.
    let (sent, totals, packets) = send(&frags, |burst| burst.last_mut().unwrap().set_continues(true));
    assert_eq!((sent, totals.drops(DropReason::TxNoEnd), numbers(&packets)), (4, 1, vec![0, 1, 2, 3]));

    // A part without bytes.
    let (sent, totals, packets) = send(&frags, |burst| {
        let part = &mut burst[2];
        part.trim_back(part.len());
    });
    assert_eq!((sent, totals.drops(DropReason::TxEmpty), numbers(&packets)), (4, 1, vec![0, 2, 3, 4]));
}

/// A ring that is hardly larger than a packet, and bursts that are smaller.
#[test]
fn a_ring_port_passes_large_packets_whole() {
    for (size, limit) in [(16, 32), (16, 1), (64, 3), (1024, 256)] {
        let pool = pool(2048);
        let (mut one, mut other) = ring::pair(pool, size);
        let (mut source, wire) = open(pool, &Config { packets: 0, frags: true, ..Config::default() });
        let mut random = fastrand::Rng::with_seed(7);
        for number in 0..500 {
            wire.lock().unwrap().inject(&packet(number, random.usize(60..20_000)));
        }
        let mut cache = pool.cache().unwrap();
        let (mut incoming, mut outgoing) = (Burst::new(), Burst::with_limit(limit));
        let (mut received, mut sent) = (Vec::new(), 0);
        while wire.lock().unwrap().waiting() > 0 || !incoming.is_empty() {
            source.rx_burst(&mut cache, &mut incoming);
            sent += one.tx_burst(&mut cache, &mut incoming);
            let packets = other.rx_burst(&mut cache, &mut outgoing);
            assert_eq!(packets, outgoing.packets().count());
            received.extend(outgoing.packets().map(joined));
            cache.free_burst(&mut outgoing);
        }
        let numbers: Vec<u32> = received.iter().map(|bytes| number(bytes)).collect();
        assert!(
            numbers.is_sorted_by(|one, next| one < next) && numbers.len() > 100,
            "size {size}, limit {limit}"
        );
        let closed = [source.close(&mut cache), one.close(&mut cache), other.close(&mut cache)];
        let source_unread = source.counters().totals().drops(DropReason::RxUnread);
        let unread = other.counters().totals().drops(DropReason::RxUnread);
        assert_eq!(sent as u64, numbers.len() as u64 + unread);
        assert_eq!(sent as u64, source.counters().totals().rx_packets - source_unread);
        assert_eq!(one.counters().totals().all_drops().count(), 0);
        drop(cache);
        assert_home(pool, &closed);
    }
}

/// An application that drops packets drops all of their frames.
#[test]
fn retain_packets_keeps_or_frees_whole_packets() {
    let pool = pool(1024);
    let (mut queue, wire) = open(pool, &Config { packets: 0, frags: true, ..Config::default() });
    let mut cache = pool.cache().unwrap();
    for number in 0..20 {
        wire.lock().unwrap().inject(&packet(number, 60 + number as usize * 400));
    }
    let mut burst = Burst::with_limit(256);
    while burst.packet_count() < 20 {
        queue.rx_burst(&mut cache, &mut burst);
    }
    burst.retain_packets(&mut cache, |packet| number(&joined(packet)).is_multiple_of(3));
    let kept: Vec<u32> = burst.packets().map(|packet| number(&joined(packet))).collect();
    assert_eq!(kept, [0, 3, 6, 9, 12, 15, 18]);
    for head in burst.heads_mut() {
        head[0] = 0xff;
    }
    assert!(
        burst
            .packets_mut()
            .all(|packet| packet[0][0] == 0xff && packet[1..].iter().all(|part| part[0] != 0xff))
    );
    cache.free_burst(&mut burst);
    let closed = [queue.close(&mut cache)];
    drop(cache);
    assert_home(pool, &closed);
}
