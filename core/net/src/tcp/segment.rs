//! Segments, as they are read and written.
//!
//! Owns: nothing. Never does: decide. Invariant: what is read has been checked for its lengths and its checksum; what is
//! written has both checksums in full, whatever the device could do.

use sheafio_mempool::Frame;
use smoltcp::wire::TcpOption;

use super::{
    peer::{Key, Path},
    sequence::Seq,
};
use crate::{Count, Headers, checksum};

/// Flags (RFC 9293 section 3.1).
pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;

/// Bytes of a TCP header without options.
const HEADER_BYTES: usize = 20;
/// Offset of the checksum in it.
const CHECKSUM_AT: usize = 16;
/// Two no-operations and the timestamps option (RFC 7323 appendix A), as everybody sends them.
pub(super) const TIMESTAMP_BYTES: usize = 12;

/// A timestamps option (RFC 7323 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timestamps {
    pub(super) value: u32,
    pub(super) echo: u32,
}

/// A received segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub(super) seq: Seq,
    pub(super) ack: Seq,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) timestamps: Option<Timestamps>,
    pub(super) options: &'a [u8],
    pub(super) payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Reads the segment that a packet carries, and between whom.
    ///
    /// # Errors
    /// [`Count::BadTcpHeader`] or [`Count::BadChecksum`].
    #[inline]
    pub(super) fn read(headers: &Headers, packet: &'a [u8]) -> Result<Self, Count> {
        let bytes = headers.payload(packet);
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Count::BadTcpHeader);
        };
        let header_bytes = usize::from(header[12] >> 4) * 4;
        if header_bytes < HEADER_BYTES || header_bytes > bytes.len() {
            return Err(Count::BadTcpHeader);
        }
        if !checksum::is_right(headers.pseudo_header(packet, bytes.len() as u16), bytes, CHECKSUM_AT) {
            return Err(Count::BadChecksum);
        }
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let long = |at: usize| u32::from(word(at)) << 16 | u32::from(word(at + 2));
        let options = &bytes[HEADER_BYTES..header_bytes];
        let segment = Self {
            seq: Seq(long(4)),
            ack: Seq(long(8)),
            flags: header[13],
            window: word(14),
            timestamps: read_timestamps(options),
            options,
            payload: &bytes[header_bytes..],
        };
        Ok(segment)
    }

    #[inline(always)]
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Sequence numbers that it takes: its bytes, and one each for SYN and FIN.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.has(SYN)) + u32::from(self.has(FIN))
    }

    /// The options of a SYN.
    pub(super) fn syn_options(&self) -> SynOptions {
        let mut syn = SynOptions { timestamps: self.timestamps.is_some(), ..SynOptions::default() };
        for_each_option(self.options, |option| match option {
            TcpOption::MaxSegmentSize(mss) => syn.mss = Some(mss),
            // More than 14 is to be taken for 14 (RFC 7323 section 2.3).
            TcpOption::WindowScale(shift) => syn.shift = Some(shift.min(14)),
            TcpOption::SackPermitted => syn.sack = true,
            _ => {}
        });
        syn
    }
}

/// The timestamps among the options.
#[inline]
fn read_timestamps(options: &[u8]) -> Option<Timestamps> {
    if let [1, 1, 8, 10, v0, v1, v2, v3, e0, e1, e2, e3] = *options {
        return Some(Timestamps {
            value: u32::from_be_bytes([v0, v1, v2, v3]),
            echo: u32::from_be_bytes([e0, e1, e2, e3]),
        });
    }
    let mut found = None;
    for_each_option(options, |option| {
        if let TcpOption::TimeStamp { tsval, tsecr } = option {
            found = Some(Timestamps { value: tsval, echo: tsecr });
        }
    });
    found
}

/// Goes over options up to the end of the list, or to one that is cut short: what follows can't be read.
fn for_each_option(mut options: &[u8], mut visit: impl FnMut(TcpOption<'_>)) {
    while !options.is_empty() {
        let Ok((rest, option)) = TcpOption::parse(options) else { return };
        if option == TcpOption::EndOfList || rest.len() >= options.len() {
            return;
        }
        visit(option);
        options = rest;
    }
}

/// What is agreed on in SYNs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SynOptions {
    /// The largest segment that its sender takes, in bytes without headers and options (RFC 9293 section 3.7.1).
    pub(super) mss: Option<u16>,
    /// The shift of window fields that its sender sends, 0 to 14 (RFC 7323 section 2).
    pub(super) shift: Option<u8>,
    /// Whether its sender takes selective acknowledgements (RFC 2018).
    pub(super) sack: bool,
    /// Whether its sender sends timestamps (RFC 7323 section 3).
    pub(super) timestamps: bool,
}

/// The most ranges that fit beside timestamps.
pub(super) const SACK_MAX: usize = 3;

/// Ranges that have come beyond a gap (RFC 2018), the first `count` of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sacks {
    pub(super) ranges: [(Seq, Seq); SACK_MAX],
    pub(super) count: usize,
}

impl Sacks {
    /// Bytes that they take among the options.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        // Two no-operations, kind and length, and eight for each.
        if self.count == 0 { 0 } else { 4 + 8 * self.count }
    }
}

/// The header of a segment to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header<'a> {
    pub(super) path: &'a Path,
    pub(super) key: &'a Key,
    pub(super) seq: Seq,
    pub(super) ack: Seq,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) timestamps: Option<Timestamps>,
    /// For a SYN.
    pub(super) syn: Option<SynOptions>,
    pub(super) sacks: Sacks,
}

impl Header<'_> {
    /// Writes the segment into an empty frame, with a payload in two pieces. Returns whether it had room.
    #[inline]
    pub(super) fn write(&self, frame: &mut Frame, payload: [&[u8]; 2]) -> bool {
        let mut options = [1; 40];
        let options_bytes = self.write_options(&mut options);
        let transport = self.path.len();
        let total = transport + HEADER_BYTES + options_bytes + payload[0].len() + payload[1].len();
        let Some(packet) = frame.append(total) else { return false };
        let pseudo = self.path.write(packet, total - transport);

        let segment = &mut packet[transport..];
        segment[..2].copy_from_slice(&self.key.local_port.to_be_bytes());
        segment[2..4].copy_from_slice(&self.key.remote_port.to_be_bytes());
        segment[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        segment[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        segment[12] = (((HEADER_BYTES + options_bytes) / 4) << 4) as u8;
        segment[13] = self.flags;
        segment[14..16].copy_from_slice(&self.window.to_be_bytes());
        segment[16..20].fill(0); // The checksum for now, and the urgent pointer.
        segment[HEADER_BYTES..HEADER_BYTES + options_bytes].copy_from_slice(&options[..options_bytes]);
        let (first, second) = segment[HEADER_BYTES + options_bytes..].split_at_mut(payload[0].len());
        first.copy_from_slice(payload[0]);
        second.copy_from_slice(payload[1]);

        let sum = pseudo.and(segment).finished();
        segment[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum);
        true
    }

    /// Writes the options over no-operations and returns how many bytes they take, a multiple of four.
    #[inline]
    fn write_options(&self, options: &mut [u8; 40]) -> usize {
        let mut at = 0;
        if let Some(syn) = self.syn {
            // Each is four bytes long, with no-operations before those that are shorter.
            if let Some(mss) = syn.mss {
                TcpOption::MaxSegmentSize(mss).emit(&mut options[at..at + 4]);
                at += 4;
            }
            if let Some(shift) = syn.shift {
                TcpOption::WindowScale(shift).emit(&mut options[at + 1..at + 4]);
                at += 4;
            }
            if syn.sack {
                TcpOption::SackPermitted.emit(&mut options[at + 2..at + 4]);
                at += 4;
            }
        }
        if let Some(timestamps) = self.timestamps {
            let option = &mut options[at..at + TIMESTAMP_BYTES];
            option[2..4].copy_from_slice(&[8, 10]);
            option[4..8].copy_from_slice(&timestamps.value.to_be_bytes());
            option[8..12].copy_from_slice(&timestamps.echo.to_be_bytes());
            at += TIMESTAMP_BYTES;
        }
        if self.sacks.count > 0 {
            let mut ranges = [None; SACK_MAX];
            for (range, (start, end)) in ranges.iter_mut().zip(self.sacks.ranges).take(self.sacks.count) {
                *range = Some((start.0, end.0));
            }
            let option = TcpOption::SackRange(ranges);
            let len = option.buffer_len();
            option.emit(&mut options[at + 2..at + 2 + len]);
            at += 2 + len;
        }
        at
    }
}
