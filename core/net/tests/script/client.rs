//! A peer's end of a connection, and its packets.
//!
//! Owns: its names and numbers. Never does: keep a state, for the script is that. Invariant: what it is told to send goes
//! over the wire as it is, right or wrong, but for lengths and checksums.

use std::net::IpAddr;

use etherparse::{
    EtherType, IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, SingleVlanHeader, TcpHeader,
    TcpOptionElement, VlanId, VlanPcp,
};

use crate::{
    segment::{ACK, FIN, PSH, RST, SYN, Segment, URG},
    watch::Watch,
};

pub(crate) const PORT: u16 = 7;
pub(crate) const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const THEIR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const OURS_V4: [u8; 4] = [10, 0, 0, 2];
pub(crate) const OURS_V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// A peer's end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) remote: IpAddr,
    pub(crate) local: IpAddr,
    pub(crate) port: u16,
    pub(crate) local_port: u16,
    /// Who sends its packets to the server, and should get those of the server.
    pub(crate) mac: [u8; 6],
    /// VLAN tags, outer first.
    pub(crate) tags: Vec<u16>,
    /// The number of its SYN.
    pub(crate) number: u32,
    /// The number of the server's SYN, once it has come.
    pub(crate) theirs: u32,
    /// The window that its segments have which name none.
    pub(crate) window: u16,
    /// Each segment has a timestamp, of a clock of milliseconds.
    pub(crate) timestamps: bool,
    /// The server's newest one.
    pub(crate) echo: u32,
    pub(crate) watch: Watch,
}

impl Client {
    pub(crate) fn v4(port: u16) -> Self {
        Self {
            remote: [10, 0, 0, 1].into(),
            local: OURS_V4.into(),
            port,
            local_port: PORT,
            mac: THEIR_MAC,
            tags: Vec::new(),
            number: u32::MAX - 700, // Scripts go over the wrap.
            theirs: 0,
            window: u16::MAX,
            timestamps: false,
            echo: 0,
            watch: Watch::default(),
        }
    }

    pub(crate) fn v6(port: u16) -> Self {
        let remote = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        Self { remote: remote.into(), local: OURS_V6.into(), ..Self::v4(port) }
    }

    pub(crate) fn with_timestamps(port: u16) -> Self {
        Self { timestamps: true, ..Self::v4(port) }
    }

    /// A segment of it, as it goes over the wire. The numbers are absolute.
    pub(crate) fn packet(&self, segment: &Segment) -> Vec<u8> {
        let mut tcp = TcpHeader::new(self.port, self.local_port, segment.seq, segment.window.unwrap());
        (tcp.fin, tcp.syn, tcp.rst) = (segment.has(FIN), segment.has(SYN), segment.has(RST));
        (tcp.psh, tcp.ack, tcp.urg) = (segment.has(PSH), segment.has(ACK), segment.has(URG));
        tcp.acknowledgment_number = segment.ack;
        let mut options = Vec::new();
        options.extend(segment.mss.map(TcpOptionElement::MaximumSegmentSize));
        options.extend(segment.shift.map(TcpOptionElement::WindowScale));
        options.extend(segment.sack_permitted.then_some(TcpOptionElement::SelectiveAcknowledgementPermitted));
        options.extend(segment.timestamps.map(|(value, echo)| TcpOptionElement::Timestamp(value, echo)));
        tcp.set_options(&options).expect("the options fit");
        let payload = &segment.payload;
        let len = tcp.header_len() + payload.len();
        let ip = match (self.remote, self.local) {
            (IpAddr::V4(remote), IpAddr::V4(local)) => {
                let (remote, local) = (remote.octets(), local.octets());
                let mut ip = Ipv4Header::new(len as u16, 64, IpNumber::TCP, remote, local).unwrap();
                ip.header_checksum = ip.calc_header_checksum();
                tcp.checksum = tcp.calc_checksum_ipv4(&ip, payload).unwrap();
                IpHeaders::Ipv4(ip, etherparse::Ipv4Extensions::default())
            }
            (IpAddr::V6(remote), IpAddr::V6(local)) => {
                let ip = Ipv6Header {
                    traffic_class: 0,
                    flow_label: Ipv6FlowLabel::ZERO,
                    payload_length: len as u16,
                    next_header: IpNumber::TCP,
                    hop_limit: 64,
                    source: remote.octets(),
                    destination: local.octets(),
                };
                tcp.checksum = tcp.calc_checksum_ipv6(&ip, payload).unwrap();
                IpHeaders::Ipv6(ip, etherparse::Ipv6Extensions::default())
            }
            _ => panic!("addresses of two families"),
        };
        let mut packet = [OUR_MAC, self.mac].concat();
        let network = if self.remote.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        for (at, tag) in self.tags.iter().enumerate() {
            let is_outer_of_two = at + 1 < self.tags.len();
            let kind =
                if is_outer_of_two { EtherType::PROVIDER_BRIDGING } else { EtherType::VLAN_TAGGED_FRAME };
            packet.extend(kind.0.to_be_bytes());
            let header = SingleVlanHeader {
                pcp: VlanPcp::ZERO,
                drop_eligible_indicator: false,
                vlan_id: VlanId::try_new(*tag).unwrap(),
                ether_type: EtherType(0),
            };
            packet.extend(&header.to_bytes()[..2]);
        }
        packet.extend(network.0.to_be_bytes());
        ip.write(&mut packet).unwrap();
        tcp.write(&mut packet).unwrap();
        packet.extend(payload);
        packet
    }
}
