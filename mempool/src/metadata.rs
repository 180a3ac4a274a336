//! What a device tells of a received packet, and what it is asked for with a packet to be sent.
//!
//! Owns: the layout of both, in the headroom just in front of the packet. Never does: guess; what the device did not
//! say is absent, not zero. Invariant: a frame says that it has metadata only while its packet starts where it started
//! when that was written; `prepend` and `trim_front` end it.
//!
//! ```text
//!  received   | timestamp 8 | hash 4 | kind 4 | VLAN protocol 2 | VLAN tag 2 | present 4 | key 8 | packet
//!  to be sent | flags 8 | checksum start 2 | offset 2 | - 4 | launch time 8 | token 8            | packet
//!                       | or, when completed: timestamp 8    |
//! ```
//! The first is written by `xdp.bpf.c` of the drivers, the second is `struct xsk_tx_metadata` (linux/if_xdp.h, Linux
//! 6.8) with a word behind it that is ours.

use crate::Frame;

/// Bytes of metadata in front of a packet, both ways: `tx_metadata_len` of `struct xdp_umem_reg`.
pub const METADATA_BYTES: usize = 32;

/// What the device knew of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RxMetadata {
    /// When the packet arrived, in ns of the device's clock.
    pub timestamp_ns: Option<u64>,
    /// The hash by which the device chose the queue.
    pub hash: Option<RxHash>,
    /// The VLAN tag that the device took out of the packet.
    pub vlan: Option<VlanTag>,
}

/// A receive hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxHash {
    /// Its value.
    pub value: u32,
    /// Of what: `enum xdp_rss_hash_type` (net/xdp.h); bits 0 and 1: IPv4, IPv6; from bit 3 on: TCP, UDP and others.
    pub kind: u32,
}

/// A VLAN tag (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// 0x8100 or 0x88a8.
    pub protocol: u16,
    /// Priority (3 bits), drop eligibility (1), VLAN number (12).
    pub tag: u16,
}

impl VlanTag {
    /// The VLAN number, 0 to 4095.
    pub fn id(self) -> u16 {
        self.tag & 0xfff
    }
}

/// Bytes of the two Ethernet addresses (IEEE 802.3), and of the tag behind them (IEEE 802.1Q).
const MACS_BYTES: usize = 12;
const VLAN_TAG_BYTES: usize = 4;

/// Bits of `present`.
const HAS_TIMESTAMP: u32 = 1;
const HAS_HASH: u32 = 2;
const HAS_VLAN: u32 = 4;

/// `XDP_TXMD_FLAGS_TIMESTAMP` and `XDP_TXMD_FLAGS_CHECKSUM` (linux/if_xdp.h).
const TIMESTAMP: u64 = 1;
const CHECKSUM: u64 = 2;

/// What a driver is asked for with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TxRequest {
    /// Where the bytes start that the checksum covers, to the packet's end, and where in them it lies.
    pub checksum: Option<(u16, u16)>,
    /// The token that the timestamp of sending will be told with.
    pub timestamp: Option<u64>,
}

impl Frame {
    /// What the device knew of this packet; `None` if it told nothing, or once the packet's start was moved.
    pub fn rx_metadata(&self) -> Option<RxMetadata> {
        let bytes = self.has_rx_metadata().then(|| self.front::<METADATA_BYTES>())??;
        let word = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().expect("within the metadata"));
        let half = |at: usize| u16::from_ne_bytes(*bytes[at..].first_chunk().expect("within the metadata"));
        let present = word(20);
        let timestamp = u64::from_ne_bytes(*bytes.first_chunk().expect("within the metadata"));
        Some(RxMetadata {
            timestamp_ns: (present & HAS_TIMESTAMP != 0).then_some(timestamp),
            hash: (present & HAS_HASH != 0).then(|| RxHash { value: word(8), kind: word(12) }),
            vlan: (present & HAS_VLAN != 0).then(|| VlanTag { protocol: half(16), tag: half(18) }),
        })
    }

    /// Puts the VLAN tag that the device took out of this packet, and told of ([`RxMetadata::vlan`]), back behind the two
    /// Ethernet addresses, with the protocol and the priority that it had. The packet is longer by 4 bytes then, and its
    /// metadata is gone. Where no tag is told, nothing changes.
    ///
    /// Returns whether the packet has all its tags now. If not, it is too short for one (12 bytes), and is as it was.
    #[inline]
    #[must_use]
    pub fn restore_vlan_tag(&mut self) -> bool {
        let Some(told) = self.rx_metadata().and_then(|metadata| metadata.vlan) else { return true };
        // There is room in front: what was told lies there.
        if self.len() < MACS_BYTES || self.prepend(VLAN_TAG_BYTES).is_none() {
            return false;
        }
        self.copy_within(VLAN_TAG_BYTES..VLAN_TAG_BYTES + MACS_BYTES, 0);
        let [protocol, tag] = [told.protocol, told.tag].map(u16::to_be_bytes);
        self[MACS_BYTES..][..VLAN_TAG_BYTES].copy_from_slice([protocol, tag].as_flattened());
        true
    }

    /// Asks the device to put the Internet checksum (RFC 1071) of the bytes from `start` to the end of the packet
    /// at `start + offset`, where the sum of the pseudo header must lie already, not inverted: 6 behind the start of a
    /// UDP header, 16 behind that of TCP. AF_XDP ports do so when they send, in software where the device can't. Ask
    /// last: the request is gone when the packet's start moves.
    ///
    /// Returns whether it was possible: not if the checksum is not in this frame, or there is no headroom of 32 bytes.
    #[must_use]
    pub fn request_checksum(&mut self, start: u16, offset: u16) -> bool {
        if usize::from(start) + usize::from(offset) + 2 > self.len() {
            return false;
        }
        let Some(bytes) = self.tx_metadata() else { return false };
        bytes[0] |= CHECKSUM as u8;
        bytes[8..10].copy_from_slice(&start.to_ne_bytes());
        bytes[10..12].copy_from_slice(&offset.to_ne_bytes());
        true
    }

    /// Asks for the time at which the packet was sent; the queue tells it later with this token. Ask last: the
    /// request is gone when the packet's start moves.
    ///
    /// Returns whether it was possible: not without a headroom of 32 bytes.
    #[must_use]
    pub fn request_tx_timestamp(&mut self, token: u64) -> bool {
        let Some(bytes) = self.tx_metadata() else { return false };
        bytes[0] |= TIMESTAMP as u8;
        bytes[24..].copy_from_slice(&token.to_ne_bytes());
        true
    }

    /// What is asked for with this packet, for the driver that sends it.
    pub fn tx_request(&self) -> TxRequest {
        let Some(bytes) = self.has_tx_metadata().then(|| self.front::<METADATA_BYTES>()).flatten() else {
            return TxRequest::default();
        };
        let half = |at: usize| u16::from_ne_bytes(*bytes[at..].first_chunk().expect("within the metadata"));
        let has = |flag: u64| u64::from(bytes[0]) & flag != 0;
        let token = u64::from_ne_bytes(*bytes[24..].first_chunk().expect("within the metadata"));
        TxRequest {
            checksum: has(CHECKSUM).then(|| (half(8), half(10))),
            timestamp: has(TIMESTAMP).then_some(token),
        }
    }

    /// When the packet was sent, in ns of the device's clock, or of the kernel's TAI clock where packets are copied; for
    /// a driver that has got the frame back. Until then, and if nobody has said, what was asked for in its place.
    pub fn tx_timestamp_or_request(&self) -> u64 {
        let bytes = self.front::<METADATA_BYTES>().map(|bytes| &bytes[8..16]);
        bytes.and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    /// Takes the request for a checksum back.
    pub fn clear_checksum_request(&mut self) {
        if self.has_tx_metadata()
            && let Some(bytes) = self.front_mut::<METADATA_BYTES>()
        {
            bytes[0] &= !(CHECKSUM as u8);
            bytes[8..12].fill(0);
        }
    }

    /// Takes back all that was asked for; with `bytes` also what lies in front of the packet, request or not, so that
    /// a device that looks there finds none.
    pub fn wipe_tx_request(&mut self, bytes: bool) {
        self.set_tx_metadata(false);
        if bytes && let Some(metadata) = self.front_mut::<METADATA_BYTES>() {
            metadata[..8].fill(0);
            self.set_rx_metadata(false); // It may have lain there.
        }
    }

    /// For a driver whose XDP program writes metadata: looks whether it did so for this packet, which it says by the
    /// key in the last 8 bytes. The key is wiped out, so that a later packet in the same frame has none by accident.
    pub fn find_rx_metadata(&mut self, key: u64) {
        let found = self.front_mut::<8>().is_some_and(|bytes| {
            let found = u64::from_ne_bytes(*bytes) == key;
            if found {
                *bytes = [0; 8];
            }
            found
        });
        self.set_rx_metadata(found);
    }

    /// The request in front of the packet; an empty one where there was none.
    fn tx_metadata(&mut self) -> Option<&mut [u8; METADATA_BYTES]> {
        if self.headroom() < METADATA_BYTES {
            return None;
        }
        let is_new = !self.has_tx_metadata();
        self.set_tx_metadata(true);
        self.set_rx_metadata(false); // It lay there.
        let bytes = self.front_mut()?;
        if is_new {
            *bytes = [0; METADATA_BYTES];
        }
        Some(bytes)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::{Hugepages, Mempool};

    /// Runs a test on a frame of its own.
    fn with_frame(test: impl FnOnce(&mut Frame)) {
        let pool = Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap();
        let mut cache = pool.cache().unwrap();
        let mut frame = cache.alloc().unwrap();
        frame.append(100).unwrap().fill(7);
        test(&mut frame);
        cache.free(frame);
    }

    /// As the XDP program writes it.
    fn write_rx(frame: &mut Frame, present: u32, key: u64) {
        let bytes = frame.front_mut::<METADATA_BYTES>().unwrap();
        bytes[0..8].copy_from_slice(&123_456_789_u64.to_ne_bytes());
        bytes[8..12].copy_from_slice(&0xdead_beef_u32.to_ne_bytes());
        bytes[12..16].copy_from_slice(&9_u32.to_ne_bytes());
        bytes[16..18].copy_from_slice(&0x8100_u16.to_ne_bytes());
        bytes[18..20].copy_from_slice(&0x2064_u16.to_ne_bytes());
        bytes[20..24].copy_from_slice(&present.to_ne_bytes());
        bytes[24..32].copy_from_slice(&key.to_ne_bytes());
    }

    #[test]
    fn what_the_device_did_not_say_is_absent() {
        with_frame(|frame| {
            assert_eq!(frame.rx_metadata(), None);
            write_rx(frame, HAS_TIMESTAMP | HAS_HASH | HAS_VLAN, 42);
            assert_eq!(frame.rx_metadata(), None, "before the driver has looked");
            frame.find_rx_metadata(42);
            let all = frame.rx_metadata().unwrap();
            assert_eq!(all.timestamp_ns, Some(123_456_789));
            assert_eq!(all.hash, Some(RxHash { value: 0xdead_beef, kind: 9 }));
            assert_eq!(all.vlan.map(|vlan| (vlan.protocol, vlan.id())), Some((0x8100, 100)));

            // The same bytes are found once: the next packet in this frame has none.
            frame.find_rx_metadata(42);
            assert_eq!(frame.rx_metadata(), None);
            write_rx(frame, 0, 42);
            frame.find_rx_metadata(43);
            assert_eq!(frame.rx_metadata(), None, "of another program");
            frame.find_rx_metadata(42);
            assert_eq!(frame.rx_metadata(), Some(RxMetadata::default()));
        });
    }

    /// With its priority and its protocol, in whatever length of packet has room for one, and once.
    #[test]
    fn a_tag_that_was_told_is_put_back_behind_the_addresses() {
        for (protocol, tag, len) in [(0x8100_u16, 0x2064_u16, 100), (0x88a8, 0xffff, 60), (0x8100, 0, 12)] {
            with_frame(|frame| {
                frame.trim_back(100 - len);
                frame.iter_mut().zip(0..).for_each(|(byte, number)| *byte = number);
                write_rx(frame, HAS_HASH | HAS_VLAN, 42);
                let bytes = frame.front_mut::<METADATA_BYTES>().unwrap();
                bytes[16..18].copy_from_slice(&protocol.to_ne_bytes());
                bytes[18..20].copy_from_slice(&tag.to_ne_bytes());
                frame.find_rx_metadata(42);
                let (before, headroom) = (frame.to_vec(), frame.headroom());

                assert!(frame.restore_vlan_tag());
                let tagged =
                    [&before[..12], &protocol.to_be_bytes(), &tag.to_be_bytes(), &before[12..]].concat();
                assert_eq!((frame.to_vec(), frame.headroom()), (tagged.clone(), headroom - 4));
                assert_eq!(frame.rx_metadata(), None);
                assert!(frame.restore_vlan_tag() && frame.to_vec() == tagged, "it was told once");
            });
        }
    }

    #[test]
    fn a_packet_without_a_told_tag_or_too_short_for_one_stays_as_it_is() {
        for (present, len, is_whole) in [(HAS_TIMESTAMP | HAS_HASH, 100, true), (HAS_VLAN, 11, false)] {
            with_frame(|frame| {
                frame.trim_back(100 - len);
                assert!(frame.restore_vlan_tag(), "no metadata at all");
                write_rx(frame, present, 42);
                frame.find_rx_metadata(42);
                let (before, told) = (frame.to_vec(), frame.rx_metadata());
                assert_eq!(frame.restore_vlan_tag(), is_whole);
                assert_eq!((frame.to_vec(), frame.rx_metadata()), (before, told));
                assert!(told.is_some());
            });
        }
    }

    #[test]
    fn metadata_ends_when_the_packet_starts_elsewhere() {
        for change in [
            |frame: &mut Frame| frame.trim_front(1),
            |frame: &mut Frame| {
                frame.prepend(4).unwrap().fill(0);
            },
        ] {
            with_frame(|frame| {
                write_rx(frame, HAS_HASH, 42);
                frame.find_rx_metadata(42);
                change(frame);
                assert_eq!(frame.rx_metadata(), None);
                assert!(frame.request_tx_timestamp(5) && frame.tx_request().timestamp == Some(5));
                change(frame);
                assert_eq!(frame.tx_request(), TxRequest::default());
                assert!(!frame.has_tx_metadata());
            });
        }
        with_frame(|frame| {
            write_rx(frame, HAS_HASH, 42);
            frame.find_rx_metadata(42);
            frame.trim_back(50);
            assert!(frame.append(10).is_some() && frame.rx_metadata().is_some());
        });
    }

    #[test]
    fn requests_add_up_and_impossible_ones_are_refused() {
        with_frame(|frame| {
            assert!(!frame.request_checksum(90, 9) && !frame.request_checksum(u16::MAX, u16::MAX));
            assert_eq!(frame.tx_request(), TxRequest::default());
            assert!(frame.request_checksum(90, 8) && frame.request_tx_timestamp(77));
            assert_eq!(frame.tx_request(), TxRequest { checksum: Some((90, 8)), timestamp: Some(77) });
            assert!(frame.has_tx_metadata());
            // A request takes the place of what was received.
            frame.wipe_tx_request(true);
            assert_eq!(frame.front::<METADATA_BYTES>().unwrap()[..8], [0; 8]);
            write_rx(frame, HAS_HASH, 42);
            frame.find_rx_metadata(42);
            assert!(frame.request_tx_timestamp(1) && frame.rx_metadata().is_none());
            assert_eq!(frame.tx_request(), TxRequest { checksum: None, timestamp: Some(1) });
            // Without headroom there is no room for one.
            let headroom = frame.headroom();
            frame.prepend(headroom - METADATA_BYTES + 1).unwrap().fill(0);
            assert!(!frame.request_tx_timestamp(1) && !frame.request_checksum(0, 0));
        });
    }
}
