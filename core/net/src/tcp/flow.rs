//! One connection: its state (RFC 9293 section 3.3.1).
//!
//! Owns: the numbers of both directions. Never does: look anything up, or send; `input.rs`, `acks.rs` and `arrivals.rs` change it by what arrives,
//! `output.rs` by what is sent, `timers.rs` by time that passes. Invariant: `unacked <= next <= newest` on the sending
//! side, and `next <= edge` on the receiving one.
//!
//! ```text
//!  sent    | acknowledged | in flight         | not sent yet |          received  | consumed | in the ring |  window  |
//!                         unacked      next                  end of the ring                               next       edge
//! ```

use smoltcp::storage::Assembler;

use super::{
    bytes::Bytes,
    context::Context,
    order::Order,
    peer::{Key, Path},
    rtt::Rtt,
    segment::TIMESTAMP_BYTES,
    sequence::Seq,
    table::Place,
    wheel::Wheel,
};

/// The states of a connection that is open or was (RFC 9293 section 3.3.2). Those before are in `backlog.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Established,
    /// We have ended our half.
    FinWait1,
    /// We have, and the peer knows it.
    FinWait2,
    /// Both have, and the peer does not know it of us yet.
    Closing,
    /// Both have, and know it; old segments may still be on their way.
    TimeWait,
    /// The peer has ended its half.
    CloseWait,
    /// Both have, the peer first.
    LastAck,
}

impl State {
    /// Whether the peer may still send bytes.
    #[inline]
    pub(super) fn receives(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Whether our half has ended, though the peer may not know yet.
    #[inline]
    pub(super) fn is_closed_by_us(self) -> bool {
        !matches!(self, Self::Established | Self::CloseWait)
    }
}

/// What is sent to the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    /// Bytes that were written, from `unacked` on.
    pub(super) ring: Bytes,
    /// The oldest number that the peer has not acknowledged (SND.UNA).
    pub(super) unacked: Seq,
    /// The number that is sent next (SND.NXT). After a timeout it goes back to `unacked`.
    pub(super) next: Seq,
    /// Behind the newest number that was ever sent.
    pub(super) newest: Seq,
    /// Bytes from `unacked` on that the peer takes (SND.WND).
    pub(super) window: u32,
    /// The largest window that the peer has shown.
    pub(super) max_window: u32,
    /// Segment and acknowledgement of the last change of the window (SND.WL1, SND.WL2).
    pub(super) window_seq: Seq,
    pub(super) window_ack: Seq,
    /// The congestion window and its threshold, in bytes (RFC 5681).
    pub(super) congestion: u32,
    pub(super) threshold: u32,
    /// Recovery ends when this is acknowledged (RFC 6582).
    pub(super) recover: Seq,
    /// The segment whose round trip is timed ends here; 0 for `timed_us` if none is.
    pub(super) timed: Seq,
    pub(super) timed_us: u64,
    /// When something must be sent again, or in TIME-WAIT when that ends; 0 if never.
    pub(super) retransmit_us: u64,
    /// Since when nothing was acknowledged of what is in flight.
    pub(super) stalled_us: u64,
    pub(super) rtt: Rtt,
    /// Bytes of the largest segment to the peer, without options.
    pub(super) mss: u16,
    /// Shift of the peer's window fields (RFC 7323).
    pub(super) shift: u8,
    pub(super) duplicates: u8,
    pub(super) in_recovery: bool,
    /// The oldest segment is to be sent again, whatever the windows say.
    pub(super) resend: bool,
    /// A larger window has been waited for; what fits into this one goes out.
    pub(super) takes_little: bool,
}

/// What comes from the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receiving {
    /// Bytes that are not consumed, up to `next`.
    pub(super) ring: Bytes,
    /// The number that is expected (RCV.NXT).
    pub(super) next: Seq,
    /// Behind the last number that the peer was allowed to send. It never goes back.
    pub(super) edge: Seq,
    /// The number that was expected when we acknowledged last.
    pub(super) acked: Seq,
    /// The newest timestamp of the peer, and when it came, in seconds (RFC 7323 section 4.3).
    pub(super) timestamp: u32,
    pub(super) timestamp_s: u32,
    /// The number of a FIN that lies behind a gap.
    pub(super) fin: Option<Seq>,
    /// What came last beyond a gap starts here.
    pub(super) latest: Seq,
}

/// No time.
pub(super) const NEVER: u64 = u64::MAX;

/// One connection.
#[derive(Debug)]
#[repr(C)] // What each packet needs lies in front.
pub(super) struct Flow<Session> {
    pub(super) key: Key,
    pub(super) state: State,
    /// Both sides send timestamps.
    pub(super) timestamps: bool,
    /// The peer takes selective acknowledgements.
    pub(super) sack: bool,
    /// Windows are shifted, in both directions (RFC 7323 section 2.2).
    pub(super) is_scaled: bool,
    /// Its number waits in the list of those that have something to send.
    pub(super) is_listed: bool,
    /// It has ended, and its place is free.
    pub(super) is_over: bool,
    /// The peer is to hear what has arrived, even if there is nothing else to send.
    pub(super) ack_now: bool,
    /// The server was given less room than it asked for.
    pub(super) wants_room: bool,
    /// The whole server closes: our half ends as soon as all that has come is answered.
    pub(super) closes: bool,
    /// When the wheel will ask for it: a later deadline need not be set. [`NEVER`] if it will not.
    pub(super) timer_us: u64,
    /// Probes that were not answered.
    pub(super) probes: u8,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// When the peer was heard last, and when it was last told that a segment can't be used.
    pub(super) heard_us: u64,
    pub(super) challenged_us: u64,
    /// The number of the peer's SYN.
    pub(super) opened: Seq,
    pub(super) path: Path,
    pub(super) session: Session,
    /// Ranges that have come beyond a gap, from `receiving.next` on.
    pub(super) beyond: Assembler,
}

impl<Session> Flow<Session> {
    /// Reads a word of each cache line that a segment needs.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        let (sending, receiving) = (&self.sending, &self.receiving);
        self.timer_us
            ^ u64::from(sending.window)
            ^ sending.retransmit_us
            ^ u64::from(receiving.timestamp)
            ^ self.heard_us
            ^ self.path.len() as u64
            ^ u64::from(self.beyond.is_empty())
    }

    /// Numbers in flight.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.sending.next - self.sending.unacked
    }

    /// Whether our FIN has been acknowledged, so that no number of ours is open any more.
    #[inline]
    pub(super) fn is_fin_acked(&self) -> bool {
        matches!(self.state, State::FinWait2 | State::TimeWait)
    }

    /// The number of our FIN: behind all that was written.
    #[inline]
    pub(super) fn end(&self) -> Seq {
        self.sending.unacked + self.sending.ring.len()
    }

    /// Bytes of the largest segment beside the options that it has now (RFC 6691).
    #[inline]
    pub(super) fn segment_bytes(&self) -> u32 {
        let timestamps = if self.timestamps { TIMESTAMP_BYTES } else { 0 };
        u32::from(self.sending.mss) - (timestamps + self.sacks().bytes()) as u32
    }

    /// Whether the server was given less room than it asked for, though there is more now: the pool had no frame for it, or
    /// something has been acknowledged since.
    #[inline]
    pub(super) fn has_room_again(&self, context: &Context) -> bool {
        self.wants_room && self.sending.ring.len() < context.send_bytes
    }

    /// Whether nothing has come that the server has not answered yet, as far as it wants to.
    #[inline]
    pub(super) fn has_answered(&self) -> bool {
        self.receiving.ring.len() == 0 && self.beyond.is_empty() && !self.wants_room
    }

    /// Whether there is something that the peer should get, whatever the windows say.
    #[inline]
    pub(super) fn has_to_send(&self) -> bool {
        self.ack_now
            || self.sending.resend
            || (!self.is_fin_acked()
                && self.sending.next.is_before(self.end() + u32::from(self.state.is_closed_by_us())))
    }
}

/// Bytes of a flow besides its frames, of which it may hold `frames`: its state, and its places in the table, the lists
/// and the wheel. The table of the index has up to 2.3 places of five bytes for each.
pub(super) fn bytes_without_frames<Session>(frames: usize) -> usize {
    size_of::<Flow<Session>>()
        + frames * size_of::<Place>()
        + Wheel::BYTES_A_TIMER
        + Order::BYTES_A_NUMBER
        + 2 * size_of::<u32>()
        + 12
}
