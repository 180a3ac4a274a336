//! What holds for all that a server sends on a connection, whatever the peer does.
//!
//! Owns: what each side has allowed the other. Never does: look into the server. Invariant: none of these is ever
//! broken, else the script fails at that packet:
//! an acknowledgement never goes back; the right edge of the window never goes back, but for what the scale rounds off;
//! nothing is sent that the peer has never allowed; no segment is larger than the peer takes; once agreed on, timestamps
//! are in each segment, and otherwise in none.

use crate::segment::{ACK, FIN, RST, SYN, Segment};

/// Between two sequence numbers, over the wrap.
pub(crate) fn after(later: u32, earlier: u32) -> i32 {
    later.wrapping_sub(earlier) as i32
}

/// What was seen of one connection; absolute numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// The SYN of the peer that came last, and the one that opened the connection.
    syn: Segment,
    offer: Segment,
    /// The server's SYN.
    agreed: Option<Segment>,
    acked: u32,
    edge: u32,
    /// Up to where the peer has let the server send.
    allowed: u32,
    /// Behind the newest number of the server.
    newest: u32,
}

impl Watch {
    /// What the server expects next, the edge of its window, and behind its newest number.
    pub(crate) fn numbers(&self) -> (u32, u32, u32) {
        (self.acked, self.edge, self.newest)
    }

    /// The peer sends this.
    pub(crate) fn sent(&mut self, segment: &Segment) {
        if segment.has(SYN) && !segment.has(ACK) {
            self.syn = segment.clone();
        }
        let Some(agreed) = &self.agreed else { return };
        // Neither is to be believed what acknowledges what was never sent, nor what lies outside of the window.
        let end = segment.seq.wrapping_add(segment.len());
        let is_within = after(segment.seq, self.edge) <= 0 && after(end, self.acked) >= 0;
        let was_sent = (-(1 << 30)..=0).contains(&after(segment.ack, self.newest));
        if is_within && segment.has(ACK) && !segment.has(RST) && was_sent {
            let is_scaled = agreed.shift.is_some() && !segment.has(SYN);
            let shift = if is_scaled { self.offer.shift.unwrap_or(0).min(14) } else { 0 };
            let edge = segment.ack.wrapping_add(u32::from(segment.window.unwrap_or(0)) << shift);
            if after(edge, self.allowed) > 0 {
                self.allowed = edge;
            }
        }
    }

    /// The server sends this. `options` is how many bytes its options take, `mss` what the peer takes if it did not say.
    pub(crate) fn answered(&mut self, segment: &Segment, options: usize, mss: u16) {
        let end = segment.seq.wrapping_add(segment.len());
        if segment.has(SYN) {
            if self.agreed.as_ref().is_none_or(|agreed| agreed.seq != segment.seq) {
                self.acked = segment.ack;
                self.edge = segment.ack.wrapping_add(u32::from(segment.window.unwrap()));
                self.newest = end;
                self.offer = self.syn.clone();
                self.allowed = end.wrapping_add(u32::from(self.offer.window.unwrap_or(0)));
                self.agreed = Some(segment.clone());
            }
            assert_eq!(segment.flags, SYN | ACK, "a server's SYN acknowledges");
            assert!(segment.payload.is_empty());
            return;
        }
        if segment.has(RST) {
            assert!(segment.payload.is_empty() && segment.flags & (FIN | SYN) == 0);
            return;
        }
        assert!(segment.has(ACK), "{segment:?} acknowledges nothing");
        let Some(agreed) = &self.agreed else { panic!("{segment:?} belongs to no connection") };
        assert_eq!(segment.timestamps.is_some(), agreed.timestamps.is_some(), "{segment:?}");
        assert!(segment.sacks.is_empty() || agreed.sack_permitted, "{segment:?}");

        assert!(after(segment.ack, self.acked) >= 0, "{segment:?} takes an acknowledgement back");
        self.acked = segment.ack;
        let shift = agreed.shift.unwrap_or(0);
        let edge = segment.ack.wrapping_add(u32::from(segment.window.unwrap()) << shift);
        let back = after(self.edge, edge);
        assert!(back < 1 << shift, "{segment:?} takes {back} bytes of the window back");
        self.edge = if back > 0 { self.edge } else { edge };

        if segment.len() > 0 {
            assert!(after(end, self.allowed) <= 0, "{segment:?} is beyond the window of the peer");
            assert!(after(segment.seq, self.newest) <= 0, "{segment:?} leaves a hole");
        }
        if after(end, self.newest) > 0 {
            self.newest = end;
        }
        let mss = usize::from(self.offer.mss.unwrap_or(mss).max(48));
        let size = segment.payload.len() + options;
        assert!(size <= mss, "{segment:?} with {options} bytes of options is larger than {mss}");
        for (start, end) in &segment.sacks {
            assert!(after(*start, segment.ack) > 0 && after(*end, *start) > 0, "{segment:?}");
        }
    }
}
