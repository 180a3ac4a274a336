//! The words of scripts: segments, as a peer sends them, and as it expects them.
//!
//! Owns: nothing. Never does: compute what could be written down. Invariant: numbers are relative; the SYN of each side
//! has number 0, and its first byte number 1.

use std::fmt;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const URG: u8 = 0x20;

/// A segment. In what is expected, a window or timestamp that is not named can be any; all else must be as written.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: Option<u16>,
    pub(crate) mss: Option<u16>,
    pub(crate) shift: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) sacks: Vec<(u32, u32)>,
    /// Value and echo.
    pub(crate) timestamps: Option<(u32, u32)>,
    /// Not even the timestamps that each segment of this peer has.
    pub(crate) is_bare: bool,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn syn() -> Segment {
    Segment { flags: SYN, ..Segment::default() }
}

pub(crate) fn syn_ack() -> Segment {
    Segment { flags: SYN | ACK, ack: 1, ..Segment::default() }
}

pub(crate) fn ack(seq: u32, ack: u32) -> Segment {
    Segment { flags: ACK, seq, ack, ..Segment::default() }
}

pub(crate) fn data(seq: u32, ack: u32, payload: &[u8]) -> Segment {
    Segment { flags: ACK, seq, ack, payload: payload.to_vec(), ..Segment::default() }
}

pub(crate) fn fin(seq: u32, ack: u32) -> Segment {
    Segment { flags: FIN | ACK, seq, ack, ..Segment::default() }
}

pub(crate) fn rst(seq: u32) -> Segment {
    Segment { flags: RST, seq, ..Segment::default() }
}

pub(crate) fn rst_ack(seq: u32, ack: u32) -> Segment {
    Segment { flags: RST | ACK, seq, ack, ..Segment::default() }
}

impl Segment {
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Numbers that it takes.
    pub(crate) fn len(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.has(SYN)) + u32::from(self.has(FIN))
    }

    pub(crate) fn with(mut self, flags: u8) -> Self {
        self.flags |= flags;
        self
    }

    pub(crate) fn without(mut self, flags: u8) -> Self {
        self.flags &= !flags;
        self
    }

    pub(crate) fn at(mut self, seq: u32) -> Self {
        self.seq = seq;
        self
    }

    pub(crate) fn bytes(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    pub(crate) fn window(mut self, window: u16) -> Self {
        self.window = Some(window);
        self
    }

    pub(crate) fn mss(mut self, mss: u16) -> Self {
        self.mss = Some(mss);
        self
    }

    pub(crate) fn shift(mut self, shift: u8) -> Self {
        self.shift = Some(shift);
        self
    }

    pub(crate) fn sack_permitted(mut self) -> Self {
        self.sack_permitted = true;
        self
    }

    pub(crate) fn sacks(mut self, sacks: &[(u32, u32)]) -> Self {
        self.sacks = sacks.to_vec();
        self
    }

    pub(crate) fn timestamps(mut self, value: u32, echo: u32) -> Self {
        self.timestamps = Some((value, echo));
        self
    }

    /// Expects this echo of a timestamp, with any value.
    pub(crate) fn echo(self, echo: u32) -> Self {
        self.timestamps(0, echo)
    }

    pub(crate) fn bare(mut self) -> Self {
        self.is_bare = true;
        self
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(SYN, 'S'), (FIN, 'F'), (RST, 'R'), (PSH, 'P'), (ACK, '.'), (URG, 'U')];
        let flags: String = names.iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| *name).collect();
        write!(f, "[{flags}] {}+{} ack {}", self.seq, self.payload.len(), self.ack)?;
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        if let Some(mss) = self.mss {
            write!(f, " mss {mss}")?;
        }
        if let Some(shift) = self.shift {
            write!(f, " shift {shift}")?;
        }
        if self.sack_permitted {
            write!(f, " sackOK")?;
        }
        if !self.sacks.is_empty() {
            write!(f, " sacks {:?}", self.sacks)?;
        }
        if let Some((value, echo)) = self.timestamps {
            write!(f, " timestamps {value} {echo}")?;
        }
        if !self.payload.is_empty() {
            write!(f, " {:?}", String::from_utf8_lossy(&self.payload[..self.payload.len().min(16)]))?;
        }
        Ok(())
    }
}

/// So many bytes of a stream whose bytes all differ from their neighbours, from an offset on.
pub(crate) fn stream(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at % 251) as u8 ^ (at / 251) as u8).collect()
}
