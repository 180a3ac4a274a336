//! ARP (RFC 826) for addresses of our own, and their defence (RFC 5227).
//!
//! Owns: nothing. Never does: learn from a request; only an answer to a question of ours says where a neighbour is.
//! Invariant: what is sent is 28 bytes behind the Ethernet header and its tags, whatever came.

use std::net::Ipv4Addr;

use sheafio_mempool::Frame;
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};

use super::{Host, Outcome, limits::Rate, turn};
use crate::{Count, Headers};

/// Bytes of an ARP packet for IPv4 over Ethernet.
pub(super) const ARP_BYTES: usize = 28;

/// `DEFEND_INTERVAL` of RFC 5227: an address is defended once in ten seconds, lest two hosts shout at each other.
pub(super) const DEFENCES_EACH: Rate = Rate { interval_ns: 10_000_000_000, burst: 1 };
/// Of all addresses, each of which is one of ours.
pub(super) const DEFENCES_ALL: Rate = Rate { interval_ns: 10_000_000, burst: 50 };

impl Host {
    /// Answers who asks for one of our addresses, and contradicts who claims one.
    #[cold]
    pub(super) fn answer_arp(
        &mut self,
        headers: &Headers,
        frame: &mut Frame,
        now_ns: u64,
    ) -> Result<Outcome, Count> {
        if !self.is_own {
            return Err(Count::ArpNotServed);
        }
        let (to, from) = turn::macs(frame);
        if to != self.mac && !to.is_broadcast() {
            return Err(Count::OtherMac);
        }
        self.check_source_mac(from)?;
        let network = usize::from(headers.network);
        let arp = ArpPacket::new_checked(&frame[network..]).map_err(|_| Count::BadArp)?;
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: sender_mac,
            source_protocol_addr: sender,
            target_protocol_addr: target,
            ..
        }) = ArpRepr::parse(&arp)
        else {
            return Err(Count::BadArp);
        };
        self.check_source_mac(sender_mac).map_err(|_| Count::BadArp)?;
        match self.addresses.check_source(sender.to_ipv6_mapped()) {
            // A probe, which asks whether an address is in use, comes from nobody (RFC 5227 section 2.1.1).
            Ok(()) => {}
            Err(Count::SourceUnspecified) if sender.is_unspecified() => {}
            Err(Count::SourceOwn) => return self.defend(network, frame, sender, now_ns),
            Err(_) => return Err(Count::BadArp),
        }
        match operation {
            ArpOperation::Reply => {
                self.neighbours.learn(sender.to_ipv6_mapped(), sender_mac, now_ns);
                Err(Count::NeighbourHeard)
            }
            ArpOperation::Request if self.addresses.contains(target.to_ipv6_mapped()) => {
                let reply = ArpRepr::EthernetIpv4 {
                    operation: ArpOperation::Reply,
                    source_hardware_addr: self.mac,
                    source_protocol_addr: target,
                    target_hardware_addr: sender_mac,
                    target_protocol_addr: sender,
                };
                write(&reply, network, frame, sender_mac)?;
                Ok(Outcome::Answered(Count::ArpAnswered))
            }
            ArpOperation::Request => Err(Count::OtherArp),
            ArpOperation::Unknown(_) => Err(Count::BadArp),
        }
    }

    /// Somebody else claims an address of ours: says to all that it is ours (RFC 5227 section 2.4 (c)), unless that was
    /// said just now.
    fn defend(
        &mut self,
        network: usize,
        frame: &mut Frame,
        address: Ipv4Addr,
        now_ns: u64,
    ) -> Result<Outcome, Count> {
        self.counts.add(Count::AddressConflict);
        if !self.defences.allow(address.to_ipv6_mapped(), now_ns) {
            return Err(Count::DefenceLimited);
        }
        write(&announcement(self.mac, address), network, frame, EthernetAddress::BROADCAST)?;
        Ok(Outcome::Answered(Count::AddressDefended))
    }
}

/// What says to all of a link where an address is: a request for it, from itself (RFC 5227 section 2.3).
pub(super) fn announcement(mac: EthernetAddress, address: Ipv4Addr) -> ArpRepr {
    request(mac, address, address)
}

/// Asks all of a link who has an address.
pub(super) fn request(mac: EthernetAddress, own: Ipv4Addr, target: Ipv4Addr) -> ArpRepr {
    ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: mac,
        source_protocol_addr: own,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: target,
    }
}

/// Writes a packet behind an Ethernet header of `network` bytes that is there already, but for its addresses.
pub(super) fn write(
    arp: &ArpRepr,
    network: usize,
    frame: &mut Frame,
    destination: EthernetAddress,
) -> Result<(), Count> {
    let ArpRepr::EthernetIpv4 { source_hardware_addr: source, .. } = *arp else { return Err(Count::BadArp) };
    turn::resize(frame, network + ARP_BYTES)?;
    turn::address(frame, destination, source);
    arp.emit(&mut ArpPacket::new_unchecked(&mut frame[network..]));
    Ok(())
}
