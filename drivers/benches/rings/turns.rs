//! How the cost of a packet is taken, for whoever works on four rings: by the bench beside this file, and by xsk-rs,
//! which lives in a package of its own (`tests/peers/xsk-rs/`).
//!
//! Owns: the order of the steps, the clock and the medians. Never does: look into a ring.

use std::{hint::black_box, time::Instant};

use super::cycles;

/// Packets in a burst.
pub(crate) const BURST: usize = 32;
/// Bytes of a packet, which nobody reads.
pub(crate) const PACKET_BYTES: u32 = 64;
/// Blocks that a round times.
const BLOCKS: usize = 4000;

/// What is timed: one side of four rings; the other side is moved by hand.
pub(crate) trait Driver {
    /// Slots of each ring. A block is half of them.
    const SLOTS: usize;
    /// The kernel by hand, for a block of packets: takes frames from the fill ring and writes the packets to the RX
    /// ring, takes the packets of the last block from the TX ring and writes them to the completion ring. Of what it
    /// writes it publishes nothing.
    fn stage(&mut self);
    /// The kernel publishes 32 packets and 32 completions, two stores. Then the one side does its four steps: refill,
    /// receive, reclaim, send.
    fn turn(&mut self);
}

/// Packets in a block.
pub(crate) const fn block<D: Driver>() -> usize {
    D::SLOTS / 2
}

/// Nanoseconds a packet: the median over blocks.
pub(crate) fn measure(driver: &mut impl Driver, ns_a_cycle: f64) -> f64 {
    let blocks = (0..BLOCKS).map(|_| {
        driver.stage();
        let start = cycles();
        turns(black_box(driver));
        (cycles() - start) as f64
    });
    median(blocks.collect()) * ns_a_cycle / packets(driver)
}

fn packets<D: Driver>(_: &D) -> f64 {
    block::<D>() as f64
}

// Not inlined, so that a driver is one function of a profile.
#[inline(never)]
fn turns<D: Driver>(driver: &mut D) {
    for _ in 0..block::<D>() / BURST {
        driver.turn();
    }
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How long a cycle of the time-stamp counter is, in nanoseconds, over a tenth of a second.
pub(crate) fn ns_a_cycle() -> f64 {
    let (start, first) = (Instant::now(), cycles());
    loop {
        let (elapsed, last) = (start.elapsed(), cycles());
        if elapsed.as_millis() >= 100 {
            return elapsed.as_nanos() as f64 / (last - first) as f64;
        }
    }
}
