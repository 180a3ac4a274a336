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
    restore_tags(from, cache, burst);
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
    restore_tags(end, cache, burst);
}

/// Puts VLAN tags that lie beside the packets of an end back into them, for whoever gets the packets next sees the bytes
/// alone. Where no device tells tags, packets are not looked at.
#[inline]
fn restore_tags(from: &End, cache: &mut PoolCache, burst: &mut Burst) {
    if !from.tells_tags {
        return;
    }
    let without = burst.heads_mut().map(|frame| u32::from(!frame.restore_vlan_tag())).sum::<u32>();
    if without > 0 {
        // It does no harm to ask those again that have their tags.
        burst.retain_packets(cache, |packet| {
            let is_restored = packet[0].restore_vlan_tag();
            if !is_restored {
                from.queue.counters().add_drops(DropReason::Malformed, 1);
            }
            is_restored
        });
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
    use std::{collections::VecDeque, mem, sync::Mutex, time::Instant};

    use sheafio_core::{Closed, QueueCounters};
    use sheafio_mempool::{Hugepages, METADATA_BYTES, Mempool};
    use smoltcp::wire::Ipv4Packet;

    use super::*;

    /// A packet as its frames, and the VLAN tag that lies beside it: protocol and tag.
    type Packet = (Vec<Vec<u8>>, Option<(u16, u16)>);

    /// A queue that receives one packet a burst, and keeps what is sent as the bytes of its frames.
    #[derive(Clone, Default)]
    struct Desk {
        counters: Arc<QueueCounters>,
        arriving: Arc<Mutex<VecDeque<Packet>>>,
        sent: Arc<Mutex<Vec<Vec<Vec<u8>>>>>,
    }

    impl Queue for Desk {
        fn rx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
            let Some((parts, tag)) = self.arriving.lock().unwrap().pop_front() else { return 0 };
            for (at, part) in parts.iter().enumerate() {
                let mut frame = cache.alloc().unwrap();
                frame.append(part.len()).unwrap().copy_from_slice(part);
                if let (0, Some((protocol, tag))) = (at, tag) {
                    // As the XDP program of the drivers does: mempool/src/metadata.rs has the layout.
                    let bytes = frame.prepend(METADATA_BYTES).unwrap();
                    bytes[16..18].copy_from_slice(&protocol.to_ne_bytes());
                    bytes[18..20].copy_from_slice(&tag.to_ne_bytes());
                    bytes[20..24].copy_from_slice(&4_u32.to_ne_bytes());
                    bytes[24..].copy_from_slice(&42_u64.to_ne_bytes());
                    frame.trim_front(METADATA_BYTES);
                    frame.find_rx_metadata(42);
                }
                frame.set_continues(at + 1 < parts.len());
                burst.push(frame).unwrap();
            }
            1
        }

        fn tx_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
            let bytes = |packet: &[Frame]| packet.iter().map(|frame| frame.to_vec()).collect();
            self.sent.lock().unwrap().extend(burst.packets().map(bytes));
            let count = burst.packet_count();
            cache.free_burst(burst);
            count
        }

        fn counters(&self) -> &Arc<QueueCounters> {
            &self.counters
        }

        fn close_by(&mut self, _: &mut PoolCache, _: Instant) -> Closed {
            Closed::default()
        }
    }

    /// What is sent for a packet, and how many packets were dropped as malformed; with both ports linked, or one with
    /// itself.
    fn sent_for(
        mode: Mode,
        is_pair: bool,
        tells_tags: bool,
        parts: &[&[u8]],
        tag: Option<(u16, u16)>,
    ) -> (Vec<Vec<Vec<u8>>>, u64) {
        let pool = Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap();
        let mut cache = pool.cache().unwrap();
        let (from, to) = (Desk::default(), Desk::default());
        let parts = parts.iter().map(|part| part.to_vec()).collect();
        from.arriving.lock().unwrap().push_back((parts, tag));
        let end = |desk: &Desk, port, tells_tags| End {
            queue: Box::new(desk.clone()),
            port,
            mac: [2, 0, 0, 0, 0, 0xa0 + port],
            tells_tags,
        };
        // What the other end tells does not matter: its packets are not looked at here.
        let link = if is_pair {
            Link::Pair([end(&from, 0, tells_tags), end(&to, 1, !tells_tags)])
        } else {
            Link::Alone(end(&from, 0, tells_tags))
        };
        let mut forwarder = Forwarder::new(mode, vec![link], 32, None);
        assert_eq!((forwarder.poll(&mut cache), forwarder.poll(&mut cache)), (1, 0));
        drop(cache);
        assert_eq!(pool.audit().unwrap().home, 64);
        let sent = mem::take(&mut *if is_pair { &to } else { &from }.sent.lock().unwrap());
        (sent, from.counters.totals().drops(DropReason::Malformed))
    }

    const TO: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const FROM: [u8; 6] = [2, 0, 0, 0, 0, 2];

    /// Of one frame and of several, to the other port and back: what leaves has the addresses that the mode gives it, the
    /// tag as it was told, and the rest as it came.
    #[test]
    fn a_tag_that_lies_beside_a_packet_is_sent_in_it() {
        let packet = [&TO[..], &FROM, &[0x08, 0x00], b"what is behind"].concat();
        let rest = &packet[12..];
        let cases = [(Mode::Io, true), (Mode::Io, false), (Mode::Mac, true), (Mode::Mac, false)];
        for (mode, is_pair) in cases.into_iter().chain([(Mode::Macswap, true), (Mode::Macswap, false)]) {
            let end = u8::from(is_pair);
            let macs = match mode {
                Mode::Io => [TO, FROM],
                Mode::Macswap => [FROM, TO],
                _ => [[2, 0, 0, 0, 0, end], [2, 0, 0, 0, 0, 0xa0 + end]],
            };
            let macs = macs.as_flattened();
            for (protocol, tag) in [(0x8100, 0x2064), (0x88a8, 0xf001)] {
                let bytes = [u16::to_be_bytes(protocol), u16::to_be_bytes(tag)].concat();
                let tagged = [macs, &bytes, rest].concat();
                for more in [&[][..], &[&[7_u8; 100][..], &[8; 3]]] {
                    let parts = [&[&packet[..]], more].concat();
                    let (sent, malformed) = sent_for(mode, is_pair, true, &parts, Some((protocol, tag)));
                    let expected: Vec<_> = [&[&tagged[..]], more].concat();
                    assert_eq!(
                        (&sent[..], malformed),
                        (&[expected.iter().map(|part| part.to_vec()).collect()][..], 0)
                    );
                }
            }
            // Of packets without one, and of ports that tell none, the bytes alone are sent on.
            for (tells_tags, tag) in [(true, None), (false, Some((0x8100, 5)))] {
                let (sent, _) = sent_for(mode, is_pair, tells_tags, &[&packet], tag);
                assert_eq!(sent, [[[macs, rest].concat()]], "{mode:?}, {tells_tags}");
            }
        }
    }

    #[test]
    fn a_packet_that_is_too_short_for_its_tag_is_counted_and_one_that_is_not_sent_needs_none() {
        let short = &[0; 11][..];
        assert_eq!(sent_for(Mode::Io, true, true, &[short, &[0; 60]], Some((0x8100, 5))), (vec![], 1));
        assert_eq!(sent_for(Mode::Io, false, true, &[short], None), (vec![vec![short.to_vec()]], 0));
        assert_eq!(sent_for(Mode::Rxonly, false, true, &[short], Some((0x8100, 5))), (vec![], 0));
    }

    /// An ARP request that came over a VLAN is answered there.
    #[test]
    fn an_answer_has_the_tag_of_what_was_asked() {
        let arp = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
        let request = [&[0xff; 6][..], &FROM, &[0x08, 0x06], &arp].concat();
        let (sent, _) = sent_for(Mode::Icmpecho, false, true, &[&request], Some((0x8100, 0xe007)));
        let [[answer]] = &sent.iter().map(|packet| &packet[..]).collect::<Vec<_>>()[..] else {
            panic!("{sent:?}")
        };
        let ours = [2, 0, 0, 0, 0, 0xa0];
        assert_eq!(answer[..18], [&FROM[..], &ours, &[0x81, 0, 0xe0, 7, 0x08, 0x06]].concat());
        assert_eq!(answer[24..36], [&[0, 2][..], &ours, &[10, 0, 0, 2]].concat());
    }

    #[test]
    fn the_generated_packet_is_valid() {
        let packet = Ipv4Packet::new_checked(&TX_PACKET[14..]).unwrap();
        assert!(packet.verify_checksum());
        assert_eq!(usize::from(packet.total_len()), TX_LEN - 14);
    }
}
