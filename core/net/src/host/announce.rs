//! Telling the link where our addresses are, unasked, when they begin to be ours.
//!
//! Owns: how far that has come. Never does: wait, or keep more than a number. Invariant: each address is announced twice,
//! two seconds apart (RFC 5227 section 2.3; RFC 4861 section 7.2.6 allows three, a second apart), however little room
//! bursts have and however few frames there are.

use sheafio_mempool::{Burst, Frame, PoolCache};
use smoltcp::wire::EthernetAddress;

use super::{Host, addresses::Addresses, arp, turn};
use crate::{
    Count,
    headers::{ETHERNET_BYTES, as_ipv4},
};

/// `ANNOUNCE_NUM` and `ANNOUNCE_INTERVAL` of RFC 5227 section 1.1.
const ROUNDS: u8 = 2;
const INTERVAL_NS: u64 = 2_000_000_000;

#[derive(Debug)]
pub(super) struct Announcements {
    rounds_left: u8,
    /// The next address of the round.
    next: usize,
    due_ns: u64,
}

impl Announcements {
    pub(super) fn new(is_wanted: bool, addresses: &Addresses) -> Self {
        let rounds_left = if is_wanted && !addresses.own().is_empty() { ROUNDS } else { 0 };
        Self { rounds_left, next: 0, due_ns: 0 }
    }

    #[inline]
    fn are_due(&self, now_ns: u64) -> bool {
        self.rounds_left > 0 && now_ns >= self.due_ns
    }
}

impl Host {
    /// Adds what is to be announced now to a burst, as far as it has room and the cache frames; returns how many frames
    /// that are. Call it once a loop: it costs a comparison when nothing is due.
    ///
    /// It is for addresses of our own alone: gratuitous ARP requests and unsolicited neighbour advertisements, without
    /// VLAN tags.
    #[inline]
    pub fn announce(&mut self, cache: &mut PoolCache, burst: &mut Burst, now_ns: u64) -> usize {
        if self.announcements.are_due(now_ns) { self.announce_due(cache, burst, now_ns) } else { 0 }
    }

    #[cold]
    fn announce_due(&mut self, cache: &mut PoolCache, burst: &mut Burst, now_ns: u64) -> usize {
        let mut count = 0;
        while self.announcements.next < self.addresses.own().len() {
            if burst.room() == 0 {
                return count;
            }
            let Some(mut frame) = cache.alloc() else { return count };
            if self.write_announcement(self.announcements.next, &mut frame).is_err() {
                cache.free(frame); // No frame is as small as that.
                return count;
            }
            if let Err(frame) = burst.push(frame) {
                cache.free(frame);
                return count;
            }
            self.counts.add(Count::Announced);
            self.announcements.next += 1;
            count += 1;
        }
        self.announcements.next = 0;
        self.announcements.rounds_left -= 1;
        self.announcements.due_ns = now_ns + INTERVAL_NS;
        count
    }

    fn write_announcement(&self, at: usize, frame: &mut Frame) -> Result<(), Count> {
        let address = self.addresses.own()[at];
        turn::resize(frame, ETHERNET_BYTES)?;
        if let Some(address) = as_ipv4(address) {
            frame[12..].copy_from_slice(&turn::ARP);
            let announcement = arp::announcement(self.mac, address);
            return arp::write(&announcement, ETHERNET_BYTES, frame, EthernetAddress::BROADCAST);
        }
        frame[12..].copy_from_slice(&turn::IPV6);
        self.write_advertisement(address, ETHERNET_BYTES, frame)
    }
}
