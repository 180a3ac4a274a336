//! What becomes of packets, by name.
//!
//! Owns: one block of counters for each lcore. Never does: an atomic read-modify-write. Invariant: one thread adds to a
//! block; any thread may read it.

use sheafio_mempool::sync::{AtomicU64, Ordering, add};

/// Defines the counters with the names that tables and JSON show.
macro_rules! counts {
    ($($(#[doc = $doc:literal])* $variant:ident $name:literal,)*) => {
        /// What a counter counts: packets, unless its text says otherwise.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Count {
            /// All counters, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name that tables and JSON show.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// What it counts, in words, for people.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc),*).trim_ascii(),)*
                }
            }
        }
    };
}

counts! {
    /// The frame is shorter than the headers that it announces.
    Truncated "truncated",
    /// Neither IPv4 nor IPv6, nor ARP where that is ours.
    OtherEthertype "other_ethertype",
    /// An IP header that contradicts itself: its version, its length, or that of the packet (RFC 791, RFC 8200).
    BadIpHeader "bad_ip_header",
    /// The IPv4 header's checksum is wrong.
    BadIpChecksum "bad_ip_checksum",
    /// A fragment, first or later: they are not put together here.
    Fragment "fragment",
    /// IPv6 extension headers that we have no use for: unknown, more than eight, or one for each hop behind others.
    UnknownExtension "unknown_extension",
    /// An option of an IPv6 extension header that says that who does not know it is to drop the packet.
    UnknownOption "unknown_option",
    /// For another Ethernet address than the port's.
    OtherMac "other_mac",
    /// For one host, in a frame to many of them.
    GroupMac "group_mac",
    /// From an Ethernet address that no answer can go to: ours, one of many, or none.
    SourceMac "source_mac",
    /// For an address that is not ours.
    OtherAddress "other_address",
    /// For many hosts: multicast or broadcast.
    GroupAddress "group_address",
    /// An IPv6 packet from or for an IPv4-mapped address, which has no meaning on a wire.
    MappedAddress "mapped_address",
    /// From one of our own addresses.
    SourceOwn "source_own",
    /// From the unspecified address, or from network 0.
    SourceUnspecified "source_unspecified",
    /// From a loopback address.
    SourceLoopback "source_loopback",
    /// From a multicast address.
    SourceMulticast "source_multicast",
    /// From a broadcast address, that of a network of ours or that of all.
    SourceBroadcast "source_broadcast",
    /// A transport protocol that is not served: neither TCP, UDP nor ICMP.
    OtherProtocol "other_protocol",
    /// Datagrams sent back.
    UdpEchoed "udp_echoed",
    /// Bytes of payload that came in these datagrams.
    UdpRxBytes "udp_rx_bytes",
    /// Bytes of payload that they were answered with.
    UdpTxBytes "udp_tx_bytes",
    /// UDP, with a length that is less than its header, or more than the packet has.
    BadUdpLength "bad_udp_length",
    /// UDP, with a checksum that is neither that of the datagram nor that of its pseudo header alone.
    BadUdpChecksum "bad_udp_checksum",
    /// UDP over IPv6 without a checksum.
    UdpNoChecksum "udp_no_checksum",
    /// UDP to a port that is not served, on an address that the kernel answers errors for.
    PortNotServed "port_not_served",
    /// UDP from port 0: no answer is wanted.
    SourcePortZero "source_port_zero",
    /// UDP from a port that would answer the answer: an echo port of ours, or a well-known one such as 7 and 19.
    SourcePortAnswers "source_port_answers",
    /// Errors sent because of a UDP port that is not served.
    PortUnreachable "port_unreachable_sent",
    /// As that, but the sender, or all of them together, had errors enough.
    ErrorLimited "error_limited",
    /// Pings answered.
    PingAnswered "ping_answered",
    /// ICMP, which is not ours to answer.
    IcmpNotServed "icmp_not_served",
    /// An ICMP message that is cut short.
    BadIcmp "bad_icmp",
    /// An ICMP message with a wrong checksum.
    BadIcmpChecksum "bad_icmp_checksum",
    /// An ICMP message that is no ping.
    OtherIcmp "other_icmp",
    /// ARP requests answered.
    ArpAnswered "arp_answered",
    /// ARP, which is not ours to answer.
    ArpNotServed "arp_not_served",
    /// ARP that is not of IPv4 over Ethernet, cut short, or from an address that nobody has.
    BadArp "bad_arp",
    /// An ARP request for another host.
    OtherArp "other_arp",
    /// Neighbour solicitations answered.
    NdAnswered "nd_answered",
    /// Neighbour discovery, which is not ours to answer.
    NdNotServed "nd_not_served",
    /// A neighbour solicitation or advertisement that RFC 4861 section 7.1 forbids.
    BadNd "bad_nd",
    /// A neighbour solicitation for another host.
    OtherNd "other_nd",
    /// Questions sent where a neighbour is.
    NeighbourAsked "neighbour_asked",
    /// An ARP reply or a neighbour advertisement of another host.
    NeighbourHeard "neighbour_heard",
    /// How often another host claimed an address of ours. These packets count as one of the next two as well.
    AddressConflict "address_conflict",
    /// Claims of others that were contradicted.
    AddressDefended "address_defended",
    /// A claim of another host so soon after the last one that it was left at that.
    DefenceLimited "defence_limited",
    /// Announcements sent of our addresses.
    Announced "announced",
    /// There was no room in the frame for the answer.
    NoRoomInFrame "no_room_in_frame",
    /// The packet goes on in a further frame: what is answered here fits into one.
    SeveralFrames "several_frames",
    /// The transport header's checksum is wrong.
    BadChecksum "tcp_bad_checksum",
    /// A segment of no connection from an address or a port that nobody can be answered at, from our own address, or to one
    /// that is no host's.
    BadSource "tcp_bad_source",
    /// A TCP header that is cut short or lies about its length (RFC 9293 section 3.1).
    BadTcpHeader "tcp_bad_header",
    /// Connections that were opened.
    FlowsOpened "tcp_flows_opened",
    /// Connections that are over.
    FlowsEnded "tcp_flows_ended",
    /// SYNs that were not answered, and answers to ours that opened nothing, for there are as many connections as are
    /// allowed. Both come again.
    FlowLimit "tcp_flow_limit",
    /// SYNs that were answered.
    SynReceived "tcp_syn_received",
    /// SYNs of half-open connections that came again; they were answered again.
    SynRepeated "tcp_syn_repeated",
    /// SYNs with other flags that have no place in one.
    BadSyn "tcp_bad_syn",
    /// Half-open connections that made room for newer ones.
    BacklogEvicted "tcp_backlog_evicted",
    /// Connections whose opening was recognised by a cookie.
    CookieAccepted "tcp_cookie_accepted",
    /// Segments of no connection of ours; they were answered by a reset, unless they are one.
    NoFlow "tcp_no_flow",
    /// Segments of no connection of this queue, which may be of another one's: they were not answered.
    OtherQueue "tcp_other_queue",
    /// Segments without an acknowledgement in an open connection.
    NoAck "tcp_no_ack",
    /// Acknowledgements of what was never sent, or long ago (RFC 5961 section 5).
    BadAck "tcp_bad_ack",
    /// Segments outside of the receive window.
    OutOfWindow "tcp_out_of_window",
    /// Segments with a timestamp that is older than what came before (PAWS, RFC 7323 section 5).
    OldTimestamp "tcp_old_timestamp",
    /// Segments without the timestamp that was agreed on.
    NoTimestamp "tcp_no_timestamp",
    /// Resets that ended a connection.
    ResetReceived "tcp_reset_received",
    /// Resets within the window that did not hit its first number (RFC 5961 section 3).
    ChallengedReset "tcp_challenged_reset",
    /// Resets outside of the window.
    ResetIgnored "tcp_reset_ignored",
    /// SYNs within an open connection (RFC 5961 section 4).
    ChallengedSyn "tcp_challenged_syn",
    /// Segments that came before those in front of them.
    OutOfOrder "tcp_out_of_order",
    /// Segments that came beyond more gaps than are kept track of.
    TooManyGaps "tcp_too_many_gaps",
    /// Times that the pool had no frame for what had to be kept or sent.
    NoFrame "tcp_no_frame",
    /// Answers that were left out, for the burst of packets to be sent had no room.
    NotSent "not_sent",
    /// Segments that were sent.
    SegmentsSent "tcp_segments_sent",
    /// Segments that were sent again.
    Retransmit "tcp_retransmits",
    /// Losses told by duplicate acknowledgements (RFC 5681 section 3.2).
    FastRetransmit "tcp_fast_retransmits",
    /// Losses told by time (RFC 6298 section 5).
    Timeout "tcp_timeouts",
    /// Probes of a closed window.
    WindowProbe "tcp_window_probes",
    /// Probes of a silent peer.
    KeepaliveProbe "tcp_keepalive_probes",
    /// Connections whose peer did not answer to probes.
    KeepaliveExpired "tcp_keepalive_expired",
    /// Connections that made no progress for too long.
    GivenUp "tcp_given_up",
    /// Resets that were sent.
    ResetSent "tcp_resets_sent",
    /// Connections in TIME-WAIT that made room for new ones: the same peer's, or another's when all were in use.
    TimeWaitReused "tcp_time_wait_reused",
}

/// A block of counters: one writer, any number of readers.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counts([AtomicU64; Count::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Count::ALL.len()])
    }
}

impl Counts {
    /// Adds one. Only the block's one writer may call this.
    #[inline]
    pub fn add(&self, count: Count) {
        self.add_many(count, 1);
    }

    /// Adds some. Only the block's one writer may call this.
    #[inline]
    pub fn add_many(&self, count: Count, many: u64) {
        add(&self.0[count as usize], many);
    }

    /// What was counted so far.
    pub fn get(&self, count: Count) -> u64 {
        // Relaxed: a counter orders nothing.
        self.0[count as usize].load(Ordering::Relaxed)
    }
}
