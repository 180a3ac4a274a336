//! The wire of a simulated queue: packets that arrive, and packets that were sent.

use std::collections::VecDeque;

use sheafio_core::{DropReason, QueueCounters};

/// One queue's wire. Tests put packets on it and look at what was sent.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a trouble of its own, which a test turns on and off"
)]
pub struct Wire {
    /// Packets that arrive before any generated one.
    inject: VecDeque<Vec<u8>>,
    /// Generated packets that are still to arrive.
    to_generate: u64,
    /// The number of the next generated packet.
    next_number: u64,
    len_bytes: usize,
    /// The packets that were sent, if they are kept.
    sent: Option<Vec<Vec<u8>>>,
    /// What the simulated kernel has counted.
    pub statistics: SimStatistics,
    /// Whether the device is gone.
    pub is_removed: bool,
    /// Whether the device drops what is to be sent, as without a carrier.
    pub is_unready: bool,
    /// Whether the device keeps what it sends from now on, and never completes it.
    pub keeps_sent: bool,
    /// Whether the link is down: nothing arrives, and nothing is sent until it is up again.
    pub is_down: bool,
}

/// What a simulated kernel counts, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimStatistics {
    /// Arrived on the wire.
    pub arrived: u64,
    /// Sent on the wire.
    pub sent: u64,
    /// Arrived and found no frame in the fill ring.
    pub rx_no_frame: u64,
    /// Arrived and found the RX ring full.
    pub rx_ring_full: u64,
    /// Arrived and did not fit into a frame.
    pub rx_too_large: u64,
    /// Taken to be sent and dropped.
    pub dropped: u64,
    /// TX descriptors that were no packet.
    pub tx_invalid: u64,
    /// How often the kernel was woken or kicked.
    pub system_calls: u64,
}

impl SimStatistics {
    pub(super) fn count_drops(&self, counters: &QueueCounters) {
        counters.raise_drops(DropReason::RxNoFrame, self.rx_no_frame);
        counters.raise_drops(DropReason::RxRingFull, self.rx_ring_full);
        counters.raise_drops(DropReason::RxTooLarge, self.rx_too_large);
        counters.raise_drops(DropReason::TxInvalid, self.tx_invalid);
    }
}

/// Where the number of a generated packet lies in it: behind Ethernet, IPv4 and UDP headers.
const NUMBER_AT: usize = 14 + 20 + 8;

impl Wire {
    pub(super) fn new(to_generate: u64, len_bytes: u32) -> Self {
        Self { to_generate, len_bytes: len_bytes as usize, ..Self::default() }
    }

    /// Lets a packet arrive, before the generated ones.
    pub fn inject(&mut self, packet: &[u8]) {
        self.inject.push_back(packet.to_vec());
    }

    /// Keeps the packets that are sent from now on, for [`take_sent`](Self::take_sent).
    pub fn keep_sent(&mut self) {
        self.sent.get_or_insert_default();
    }

    /// The packets that were sent since the last call, in order.
    pub fn take_sent(&mut self) -> Vec<Vec<u8>> {
        self.sent.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Packets that have not arrived yet.
    pub fn waiting(&self) -> u64 {
        self.inject.len() as u64 + self.to_generate
    }

    /// The number in a generated packet, from 0 on; `None` if it is too short.
    pub fn number(packet: &[u8]) -> Option<u64> {
        let bytes = packet.get(NUMBER_AT..NUMBER_AT + 8)?;
        Some(u64::from_be_bytes(bytes.try_into().ok()?))
    }

    /// The next packet that arrives.
    pub(super) fn arrive(&mut self) -> Option<Vec<u8>> {
        let packet = match self.inject.pop_front() {
            Some(packet) => packet,
            None if self.to_generate > 0 => {
                self.to_generate -= 1;
                self.next_number += 1;
                self.generate(self.next_number - 1)
            }
            None => return None,
        };
        self.statistics.arrived += 1;
        Some(packet)
    }

    pub(super) fn send(&mut self, packet: &[u8]) {
        self.statistics.sent += 1;
        if let Some(sent) = &mut self.sent {
            sent.push(packet.to_vec());
        }
    }

    /// An Ethernet frame with an IPv4 UDP packet (RFC 791, RFC 768; checksum 0: not computed) that
    /// carries its number.
    fn generate(&self, number: u64) -> Vec<u8> {
        let len = self.len_bytes.max(NUMBER_AT + 8);
        let mut packet = vec![0; len];
        packet[0..6].copy_from_slice(&[0x02, 0, 0, 0, 0, 1]);
        packet[6..12].copy_from_slice(&[0x02, 0, 0, 0, 0, 2]);
        packet[12..14].copy_from_slice(&[0x08, 0x00]);
        let ip_len = (len - 14) as u16;
        packet[14] = 0x45;
        packet[16..18].copy_from_slice(&ip_len.to_be_bytes());
        packet[22] = 64;
        packet[23] = 17;
        packet[26..30].copy_from_slice(&[10, 0, 0, 1]);
        packet[30..34].copy_from_slice(&[10, 0, 0, 2]);
        let sum: u32 =
            packet[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
        packet[24..26].copy_from_slice(&checksum.to_be_bytes());
        packet[34..36].copy_from_slice(&1024_u16.to_be_bytes());
        packet[36..38].copy_from_slice(&9_u16.to_be_bytes());
        packet[38..40].copy_from_slice(&(ip_len - 20).to_be_bytes());
        packet[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_be_bytes());
        packet
    }
}
