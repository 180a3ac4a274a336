//! The data path of the forwarding modes.

use std::sync::Arc;

use sheafio_core::{DropReason, Queue};
use sheafio_mempool::{Burst, Frame, PoolCache};

use super::{
    budget::Budget,
    icmpecho,
    plan::{End, Link},
};
use crate::cli::Mode;

/// One lcore's work: its links, in turn.
pub(crate) struct Forwarder {
    mode: Mode,
    links: Vec<Link>,
    burst: Burst,
    burst_limit: usize,
    /// Packets that may still be received (txonly: sent), by all lcores.
    budget: Option<Arc<Budget>>,
}

/// Length of a generated packet in bytes, without the FCS.
const TX_LEN: usize = 64;

impl Forwarder {
    pub(crate) fn new(mode: Mode, links: Vec<Link>, burst_limit: usize, budget: Option<Arc<Budget>>) -> Self {
        let burst = Burst::with_limit(burst_limit);
        Self { mode, links, burst, burst_limit, budget }
    }

    /// All queues of this lcore.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &dyn Queue> {
        self.links
            .iter()
            .flat_map(|link| match link {
                Link::Pair(ends) => ends.as_slice(),
                Link::Alone(end) => std::slice::from_ref(end),
            })
            .map(|end| &*end.queue)
    }

    /// All queues of this lcore, to be closed.
    pub(crate) fn queues_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Queue>> {
        self.links
            .iter_mut()
            .flat_map(|link| match link {
                Link::Pair(ends) => ends.as_mut_slice(),
                Link::Alone(end) => std::slice::from_mut(end),
            })
            .map(|end| &mut end.queue)
    }

    /// Moves a burst over each link. Returns how many packets were received (txonly: sent).
    #[inline]
    pub(crate) fn poll(&mut self, cache: &mut PoolCache) -> usize {
        let (mode, burst, budget, limit) =
            (self.mode, &mut self.burst, self.budget.as_deref(), self.burst_limit);
        let mut work = 0;
        for link in &mut self.links {
            work += match link {
                Link::Pair([one, other]) => {
                    within(budget, limit, burst, |burst| forward(mode, one, other, cache, burst))
                        + within(budget, limit, burst, |burst| forward(mode, other, one, cache, burst))
                }
                Link::Alone(end) if mode == Mode::Txonly => {
                    within(budget, limit, burst, |burst| transmit(end, cache, burst))
                }
                Link::Alone(end) => within(budget, limit, burst, |burst| {
                    let received = end.queue.rx_burst(cache, burst);
                    answer(mode, end, cache, burst);
                    end.queue.tx_or_drop(cache, burst);
                    received
                }),
            };
        }
        work
    }
}

/// Moves a burst, no larger than the budget allows.
#[inline(always)]
fn within(
    budget: Option<&Budget>,
    limit: usize,
    burst: &mut Burst,
    mut move_burst: impl FnMut(&mut Burst) -> usize,
) -> usize {
    let Some(budget) = budget else { return move_burst(burst) };
    let claimed = budget.claim(limit);
    burst.set_limit(claimed);
    let moved = move_burst(burst);
    budget.settle(claimed, moved);
    moved
}

/// Receives from one end, changes the packets as the mode says, sends to the other end.
#[inline]
fn forward(mode: Mode, from: &mut End, to: &mut End, cache: &mut PoolCache, burst: &mut Burst) -> usize {
    let received = from.queue.rx_burst(cache, burst);
    match mode {
        Mode::Mac => burst.heads_mut().for_each(|frame| set_macs(frame, to)),
        Mode::Macswap => burst.heads_mut().for_each(swap_macs),
        _ => {}
    }
    to.queue.tx_or_drop(cache, burst);
    received
}

/// What goes back to the end it came from.
#[inline]
fn answer(mode: Mode, end: &End, cache: &mut PoolCache, burst: &mut Burst) {
    match mode {
        Mode::Mac => burst.heads_mut().for_each(|frame| set_macs(frame, end)),
        Mode::Macswap => burst.heads_mut().for_each(swap_macs),
        Mode::Rxonly => _ = cache.free_burst(burst),
        Mode::Icmpecho => {
            let (counters, mac) = (end.queue.counters(), end.mac);
            burst.retain_packets(cache, |packet| {
                // A ping that is larger than a frame is not answered.
                let answered = match packet {
                    [frame] => icmpecho::answer(frame, mac),
                    _ => Err(DropReason::NotForUs),
                };
                answered.map_err(|reason| counters.add_drops(reason, 1)).is_ok()
            });
        }
        Mode::Io | Mode::Txonly => {}
    }
}

/// Sends generated packets; what does not fit into the TX ring is not generated again but freed.
#[inline]
fn transmit(end: &mut End, cache: &mut PoolCache, burst: &mut Burst) -> usize {
    let limit = burst.limit();
    cache.alloc_packets(burst, limit, TX_LEN as u32);
    for frame in burst.iter_mut() {
        frame.copy_from_slice(&TX_PACKET);
        frame[6..12].copy_from_slice(&end.mac);
    }
    let sent = end.queue.tx_burst(cache, burst);
    cache.free_burst(burst);
    sent
}

/// As testpmd's mac mode: this hop's address as the source, 02:00:00:00:00:PORT as the destination.
#[inline]
fn set_macs(frame: &mut Frame, to: &End) {
    if let Some(macs) = frame.get_mut(..12) {
        macs[..6].copy_from_slice(&[0x02, 0, 0, 0, 0, to.port]);
        macs[6..].copy_from_slice(&to.mac);
    }
}

/// Source and destination change places.
#[inline]
fn swap_macs(frame: &mut Frame) {
    if let Some(macs) = frame.first_chunk_mut::<12>() {
        macs.rotate_left(6);
    }
}

/// A UDP packet between two addresses of the benchmarking network (RFC 2544, 198.18.0.0/15) to the
/// discard port, with checksums.
const TX_PACKET: [u8; TX_LEN] = {
    let mut packet = [0; TX_LEN];
    let header: [u8; 42] = [
        0x02, 0, 0, 0, 0, 0xff, 0x02, 0, 0, 0, 0, 0, 0x08, 0x00, // Ethernet; the source is set later
        0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, // IPv4
        0x04, 0, 0, 9, 0, 30, 0, 0, // UDP; checksum 0: none (RFC 768)
    ];
    let mut at = 0;
    while at < header.len() {
        packet[at] = header[at];
        at += 1;
    }
    let mut sum = 0_u32;
    at = 14;
    while at < 34 {
        sum += (packet[at] as u32) << 8 | packet[at + 1] as u32;
        at += 2;
    }
    sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[24] = (checksum >> 8) as u8;
    packet[25] = checksum as u8;
    packet
};

#[cfg(test)]
mod tests {
    use smoltcp::wire::Ipv4Packet;

    use super::*;

    #[test]
    fn the_generated_packet_is_valid() {
        let packet = Ipv4Packet::new_checked(&TX_PACKET[14..]).unwrap();
        assert!(packet.verify_checksum());
        assert_eq!(usize::from(packet.total_len()), TX_LEN - 14);
    }
}
