//! What applications ask for with a packet: checksums, and the time of sending.
//!
//! Owns: the tokens of packets whose time is still to be told, and the times that nobody has fetched. Never does:
//! allocate once the queue runs. Invariant: both lists have a fixed bound; what does not fit is counted, not told.

use std::mem::ManuallyDrop;

use arrayvec::ArrayVec;
use sheafio_mempool::{Burst, Frame, FrameIndex, Geometry, TxRequest};

use super::{Kernel, XskQueue};
use crate::af_xdp::rings::TX_METADATA;

/// Packets on their way whose time was asked for, and times to be fetched, at most.
const LIMIT: usize = 256;

/// When a packet was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxTimestamp {
    /// What [`Frame::request_tx_timestamp`] was told.
    pub token: u64,
    /// The time, in ns of the device's clock; where packets are copied, of the kernel's TAI clock when it has let go
    /// of the packet.
    pub timestamp_ns: u64,
}

/// Requests that wait for their completion.
pub(super) struct Requests {
    sent: Box<ArrayVec<Sent, LIMIT>>,
    told: Box<ArrayVec<TxTimestamp, LIMIT>>,
    missed: u64,
}

struct Sent {
    addr: u64,
    token: u64,
    /// What lay where the time will be.
    before: u64,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self { sent: Box::default(), told: Box::default(), missed: 0 }
    }

    /// Whether completions must be looked at.
    #[inline(always)]
    pub(super) fn is_waiting(&self) -> bool {
        !self.sent.is_empty()
    }

    fn wait(&mut self, sent: Sent) {
        self.missed += u64::from(self.sent.try_push(sent).is_err());
    }

    /// Looks whether this completed frame's time was asked for, and told.
    pub(super) fn complete(&mut self, geometry: &Geometry, index: FrameIndex) {
        let Some(at) = self.sent.iter().position(|sent| geometry.index_of(sent.addr) == index) else {
            return;
        };
        let sent = self.sent.swap_remove(at);
        // SAFETY: the address is one that this queue has sent, as a packet of one byte or more, and its frame came back:
        // it is ours. It is forgotten, so that its place on the way to the pool stays the only owner.
        let frame = ManuallyDrop::new(unsafe { geometry.frame(sent.addr, 1) });
        let timestamp_ns = frame.tx_timestamp_or_request();
        let is_told = timestamp_ns != sent.before
            && self.told.try_push(TxTimestamp { token: sent.token, timestamp_ns }).is_ok();
        self.missed += u64::from(!is_told);
    }
}

impl<K: Kernel> XskQueue<K> {
    /// The times of sending that were told since the last call, in the order of completion. At most 256 are kept,
    /// and at most 256 packets can wait for theirs; see [`tx_timestamps_missed`](Self::tx_timestamps_missed).
    pub fn tx_timestamps(&mut self) -> impl Iterator<Item = TxTimestamp> {
        self.requests.told.drain(..)
    }

    /// How many times of sending were asked for and will not be told: too many at once, or the kernel or device can't
    /// tell.
    pub fn tx_timestamps_missed(&self) -> u64 {
        self.requests.missed
    }

    /// Sees to what is asked for with the first `count` frames of a burst, which are whole packets and about to be
    /// sent: computes the checksums that the device does not, and leaves in front of each frame what the kernel may find
    /// there.
    ///
    /// In copy mode all are computed here. The kernel's own software does no more: it sums up only what it has of a packet
    /// when it reads the request (Linux 6.18), which is the first frame, and on devices that take packets in pieces
    /// (`IFF_TX_SKB_NO_LINEAR`, such as virtio-net) nothing.
    pub(super) fn see_to_requests(&mut self, burst: &mut Burst, count: usize) {
        let (geometry, requests) = (self.geometry, &mut self.requests);
        let tells_times = self.looks_for_requests != 0;
        let offloads_checksums = tells_times && self.kernel.offloads_checksums();
        for packet in burst[..count].chunk_by_mut(|frame, _| frame.continues()) {
            let TxRequest { checksum, timestamp } = packet[0].tx_request();
            let mut is_offloaded = false;
            if let Some((start, offset)) = checksum {
                let (start, offset) = (start.into(), offset.into());
                is_offloaded =
                    offloads_checksums && packet.len() == 1 && any_device_sums(&packet[0], start, offset);
                if !is_offloaded {
                    fill_checksum(packet, start, offset);
                    packet[0].clear_checksum_request();
                }
            }
            let keeps_head = is_offloaded
                | match timestamp {
                    Some(token) if tells_times => {
                        let (addr, before) = (geometry.addr(&packet[0]), packet[0].tx_timestamp_or_request());
                        requests.wait(Sent { addr, token, before });
                        true
                    }
                    Some(_) => {
                        requests.missed += 1;
                        false
                    }
                    None => false,
                };
            for frame in &mut packet[usize::from(keeps_head)..] {
                // Zero-copy drivers look in front of every frame, whatever its descriptor says.
                frame.wipe_tx_request(tells_times);
            }
        }
    }
}

/// The option of a descriptor that says that the kernel finds a request in front of the packet.
pub(super) fn option(frame: &Frame) -> u32 {
    if frame.has_tx_metadata() { TX_METADATA } else { 0 }
}

/// Whether a packet of one frame, with its checksum at `start + offset`, is one that every device with this offload sums
/// up as we would: TCP or UDP right behind an IP header (RFC 791, RFC 8200) that says where the packet ends, in one piece,
/// without a VLAN tag. Some devices read the headers instead of the request, such as those of mlx5 and libeth
/// (`libeth_xsktmo_req_csum`); so what is less plain than that is summed up in software.
fn any_device_sums(packet: &[u8], start: usize, offset: usize) -> bool {
    const IP: usize = 14;
    const PROTOCOLS: [(usize, u8); 2] = [(16, libc::IPPROTO_TCP as u8), (6, libc::IPPROTO_UDP as u8)];
    let Some((_, protocol)) = PROTOCOLS.into_iter().find(|(at, _)| *at == offset) else { return false };
    // As long as the shortest of such packets, so that what is read here is there.
    if packet.len() < IP + 20 || start + offset + 2 > packet.len() {
        return false;
    }
    let half = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    match (half(12), packet[IP] >> 4) {
        (0x0800, 4) => {
            let header = usize::from(packet[IP] & 0xf) * 4;
            // Flags and offset: all but DF is of fragments, or reserved.
            let is_whole = half(IP + 6) & !0x4000 == 0;
            packet[IP + 9] == protocol
                && is_whole
                && header >= 20
                && start == IP + header
                && IP + usize::from(half(IP + 2)) == packet.len()
        }
        (0x86dd, 6) => {
            packet[IP + 6] == protocol
                && start == IP + 40
                && start + usize::from(half(IP + 4)) == packet.len()
        }
        _ => false,
    }
}

/// Computes the Internet checksum (RFC 1071) of a packet from `start` on, over all of its frames, and writes it to
/// `start + offset` in the first one. A sum of zero is written as 0xffff, which says the same and is not "no
/// checksum" to UDP (RFC 768), as the kernel does it too (`skb_checksum_help`). A packet that was cut short since it
/// was asked for, so that the checksum is not in its first frame any more, stays as it is.
fn fill_checksum(packet: &mut [Frame], start: usize, offset: usize) {
    if start + offset + 2 > packet[0].len() {
        return;
    }
    let (mut sum, mut is_odd) = (0_u64, false);
    for (at, frame) in packet.iter().enumerate() {
        let bytes = &frame[if at == 0 { start } else { 0 }..];
        let part: u64 =
            bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum();
        // A frame that starts at an odd byte of the packet has its bytes in the other halves of the words.
        sum += if is_odd { u64::from((fold(part)).swap_bytes()) } else { part };
        is_odd ^= bytes.len() % 2 == 1;
    }
    let checksum = match !fold(sum) {
        0 => 0xffff,
        checksum => checksum,
    };
    packet[0][start + offset..][..2].copy_from_slice(&checksum.to_be_bytes());
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
