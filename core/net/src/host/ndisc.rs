//! Neighbour discovery (RFC 4861) for addresses of our own.
//!
//! Owns: nothing. Never does: learn from a solicitation; only an answer to a question of ours says where a neighbour is.
//! Invariant: what is sent is an IPv6 packet of 72 bytes with the link-layer address as its one option, whatever came.

use std::net::Ipv6Addr;

use sheafio_mempool::Frame;
use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{
        EthernetAddress, IPV6_HEADER_LEN, IPV6_LINK_LOCAL_ALL_NODES, Icmpv6Message, Icmpv6Packet, Icmpv6Repr,
        IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscOptionType, NdiscRepr,
    },
};

use super::{Host, Outcome, icmp, turn};
use crate::{
    Count, Headers,
    headers::{Network, as_ipv4},
};

/// Bytes of an IPv6 packet with a solicitation or an advertisement and one link-layer address.
pub(super) const ND_BYTES: usize = IPV6_HEADER_LEN + 32;

/// Bytes of a solicitation or an advertisement in front of its options (RFC 4861 sections 4.3 and 4.4).
const MESSAGE_BYTES: usize = 24;

/// What no router lets through with: so the packet was sent on this link (RFC 4861 section 7.1).
const HOP_LIMIT: u8 = 255;

/// Whether a packet is a neighbour solicitation or advertisement, as far as its type says.
#[inline]
pub(super) fn is_neighbour_discovery(headers: &Headers, frame: &[u8]) -> bool {
    headers.kind == Network::Ipv6
        && headers.protocol == IpProtocol::Icmpv6
        && headers.payload(frame).first().is_some_and(|&kind| {
            matches!(
                Icmpv6Message::from(kind),
                Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert
            )
        })
}

/// The group in which a node hears questions for an address (RFC 4291 section 2.7.1).
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | address.to_bits() & 0xff_ffff)
}

/// The Ethernet address of an IPv6 group (RFC 2464 section 7).
pub(super) fn group_mac(group: Ipv6Addr) -> EthernetAddress {
    let [.., a, b, c, d] = group.octets();
    EthernetAddress([0x33, 0x33, a, b, c, d])
}

/// A valid solicitation or advertisement.
struct Message {
    kind: Icmpv6Message,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    target: Ipv6Addr,
    /// The link-layer address in its option.
    given: Option<EthernetAddress>,
    /// That of the frame.
    from: EthernetAddress,
}

impl Host {
    /// Answers who asks for one of our addresses, and contradicts who claims one.
    #[cold]
    pub(super) fn answer_ndisc(
        &mut self,
        headers: &Headers,
        frame: &mut Frame,
        now_ns: u64,
    ) -> Result<Outcome, Count> {
        if !self.is_own {
            return Err(Count::NdNotServed);
        }
        let network = usize::from(headers.network);
        let message = self.read_ndisc(headers, frame)?;
        if message.kind == Icmpv6Message::NeighborSolicit {
            return self.answer_solicitation(&message, network, frame);
        }
        if self.addresses.contains(message.target) {
            return self.defend_v6(message.target, network, frame, now_ns);
        }
        self.addresses.check_source(message.source)?;
        self.neighbours.learn(message.target, message.given.unwrap_or(message.from), now_ns);
        Err(Count::NeighbourHeard)
    }

    /// Reads a message and checks it (RFC 4861 sections 7.1.1 and 7.1.2).
    fn read_ndisc(&self, headers: &Headers, frame: &mut Frame) -> Result<Message, Count> {
        let (transport, end) = (usize::from(headers.transport), usize::from(headers.end));
        let (to, from) = turn::macs(frame);
        let (source, destination) = headers.addresses(frame);
        if to != self.mac && !(destination.is_multicast() && to == group_mac(destination)) {
            return Err(if to.is_unicast() { Count::OtherMac } else { Count::GroupMac });
        }
        self.check_source_mac(from)?;
        let hop_limit = Ipv6Packet::new_unchecked(&frame[usize::from(headers.network)..]).hop_limit();
        let icmp = icmp::checked_v6(&mut frame[transport..end]).map_err(|_| Count::BadNd)?;
        if !icmp.verify_checksum(&source, &destination) {
            return Err(Count::BadIcmpChecksum);
        }
        let (kind, code, target) = (icmp.msg_type(), icmp.msg_code(), icmp.target_addr());
        let is_solicited = icmp.neighbor_flags().contains(NdiscNeighborFlags::SOLICITED);
        let (option, is_contradictory) = match kind {
            // A solicitation has no flags, so whatever stands there is passed by.
            Icmpv6Message::NeighborSolicit => (NdiscOptionType::SourceLinkLayerAddr, false),
            _ => (NdiscOptionType::TargetLinkLayerAddr, is_solicited && destination.is_multicast()),
        };
        let given = link_layer_address(&frame[transport + MESSAGE_BYTES..end], option)?;
        let is_probe = kind == Icmpv6Message::NeighborSolicit && source.is_unspecified();
        let is_valid = hop_limit == HOP_LIMIT
            && code == 0
            && !target.is_multicast()
            && !is_contradictory
            && !(is_probe && (given.is_some() || destination != solicited_node(target)))
            && given.is_none_or(|given| self.check_source_mac(given).is_ok())
            && [source, destination, target].iter().all(|address| as_ipv4(*address).is_none());
        if !is_valid {
            return Err(Count::BadNd);
        }
        Ok(Message { kind, source, destination, target, given, from })
    }

    fn answer_solicitation(
        &self,
        asked: &Message,
        network: usize,
        frame: &mut Frame,
    ) -> Result<Outcome, Count> {
        let is_for_us =
            asked.destination == solicited_node(asked.target) || self.addresses.contains(asked.destination);
        if !is_for_us || !self.addresses.contains(asked.target) {
            return Err(Count::OtherNd);
        }
        if asked.source.is_unspecified() {
            // Who asks whether an address is in use (RFC 4862 section 5.4) has none that an answer could go to.
            self.write_advertisement(asked.target, network, frame)?;
        } else {
            self.addresses.check_source(asked.source)?;
            write(&self.advertisement(asked.target, true), asked.target, asked.source, network, frame)?;
            turn::address(frame, asked.given.unwrap_or(asked.from), self.mac);
        }
        Ok(Outcome::Answered(Count::NdAnswered))
    }

    /// Says to all that an address is ours, unless that was said just now; as ARP has it, for neighbour discovery leaves
    /// it open what a node does whose address another one claims (RFC 4862 section 5.4.5).
    fn defend_v6(
        &mut self,
        address: Ipv6Addr,
        network: usize,
        frame: &mut Frame,
        now_ns: u64,
    ) -> Result<Outcome, Count> {
        self.counts.add(Count::AddressConflict);
        if !self.defences.allow(address, now_ns) {
            return Err(Count::DefenceLimited);
        }
        self.write_advertisement(address, network, frame)?;
        Ok(Outcome::Answered(Count::AddressDefended))
    }

    /// Tells all of a link where one of our addresses is (RFC 4861 section 7.2.6), behind an Ethernet header of
    /// `network` bytes that is there already, but for its addresses.
    pub(super) fn write_advertisement(
        &self,
        address: Ipv6Addr,
        network: usize,
        frame: &mut Frame,
    ) -> Result<(), Count> {
        let all = IPV6_LINK_LOCAL_ALL_NODES;
        write(&self.advertisement(address, false), address, all, network, frame)?;
        turn::address(frame, group_mac(all), self.mac);
        Ok(())
    }

    fn advertisement(&self, target: Ipv6Addr, is_solicited: bool) -> NdiscRepr<'static> {
        let mut flags = NdiscNeighborFlags::OVERRIDE;
        flags.set(NdiscNeighborFlags::SOLICITED, is_solicited);
        NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr: Some(self.mac.into()) }
    }
}

/// Asks the group of an address who has it, behind an Ethernet header as above.
pub(super) fn write_solicitation(
    mac: EthernetAddress,
    own: Ipv6Addr,
    target: Ipv6Addr,
    network: usize,
    frame: &mut Frame,
) -> Result<(), Count> {
    let question = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(mac.into()) };
    let group = solicited_node(target);
    write(&question, own, group, network, frame)?;
    turn::address(frame, group_mac(group), mac);
    Ok(())
}

/// The Ethernet address in the first option of a kind. Options of other kinds are passed by; one of no length is a fault
/// (RFC 4861 section 4.6).
fn link_layer_address(mut options: &[u8], wanted: NdiscOptionType) -> Result<Option<EthernetAddress>, Count> {
    let mut found = None;
    while let &[kind, units, ..] = options {
        let len = 8 * usize::from(units);
        let option = options.get(..len).filter(|option| !option.is_empty()).ok_or(Count::BadNd)?;
        if NdiscOptionType::from(kind) == wanted && found.is_none() {
            // Eight bytes: that of Ethernet (RFC 2464 section 6).
            found = Some(EthernetAddress::from_bytes(
                option.get(2..8).filter(|_| units == 1).ok_or(Count::BadNd)?,
            ));
        }
        options = &options[len..];
    }
    if options.is_empty() { Ok(found) } else { Err(Count::BadNd) }
}

/// Writes a packet behind an Ethernet header of `network` bytes that is there already, but for its addresses.
fn write(
    message: &NdiscRepr,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    network: usize,
    frame: &mut Frame,
) -> Result<(), Count> {
    turn::resize(frame, network + ND_BYTES)?;
    let packet = &mut frame[network..];
    packet.fill(0);
    Ipv6Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmpv6,
        payload_len: ND_BYTES - IPV6_HEADER_LEN,
        hop_limit: HOP_LIMIT,
    }
    .emit(&mut Ipv6Packet::new_unchecked(&mut packet[..]));
    let mut icmp = Icmpv6Packet::new_unchecked(&mut packet[IPV6_HEADER_LEN..]);
    Icmpv6Repr::Ndisc(*message).emit(&source, &destination, &mut icmp, &ChecksumCapabilities::default());
    Ok(())
}
