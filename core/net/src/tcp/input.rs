//! What an arriving segment does to a connection (RFC 9293 section 3.10.7.4, in its order).
//!
//! Owns: nothing. Never does: send; it notes what is to be sent. Invariant: a segment that is not acceptable changes
//! nothing but the time of the next answer to such a one.

use sheafio_mempool::PoolCache;

use super::{
    bytes::Slots,
    context::Context,
    flow::{Flow, State},
    segment::{ACK, FIN, RST, SYN, Segment},
    sequence::Seq,
    server::Server,
};
use crate::Count;

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It goes on; what it has to send is noted in it.
    Kept,
    /// It is in TIME-WAIT now.
    Waits,
    /// It is over, and the peer knows.
    Over,
    /// It is over, and the peer is to be told by a reset.
    Reset,
}

/// What a flow works with: the frames that it holds, and where they come from.
pub(super) struct Frames<'a> {
    pub(super) receive: &'a mut Slots,
    pub(super) send: &'a mut Slots,
    pub(super) cache: &'a mut PoolCache,
}

/// After so long without a segment the peer's clock may have gone round (RFC 7323 section 5.5): 24 days, in seconds.
const TIMESTAMP_LIFE_S: u32 = 24 * 24 * 3600;
/// The least time between two answers to segments that can't be used (as Linux: `tcp_invalid_ratelimit`).
const CHALLENGE_US: u64 = 500_000;

impl<Session> Flow<Session> {
    /// Takes a segment of this connection in, and the packet that it came in.
    pub(super) fn segment<S: Server<Session = Session>>(
        &mut self,
        (segment, packet): (&Segment<'_>, &[u8]),
        server: &mut S,
        context: &mut Context,
        frames: &mut Frames<'_>,
    ) -> Fate {
        // Fore: old duplicates from before the numbers went round (PAWS, RFC 7323 section 5.3).
        if !self.passes_timestamps(segment, context) {
            return Fate::Kept;
        }
        // First: the numbers.
        let seq = segment.seq;
        let Some(segment) = self.within_window(segment, context) else { return Fate::Kept };
        // Second: a reset, which must hit the exact number (RFC 5961 section 3.2). In TIME-WAIT it would only let old
        // segments in (RFC 1337).
        if segment.has(RST) {
            if self.state == State::TimeWait {
                return Fate::Kept;
            }
            if seq == self.receiving.next {
                context.counts.add(Count::ResetReceived);
                return Fate::Over;
            }
            self.challenge(context, Count::ChallengedReset);
            return Fate::Kept;
        }
        // Fourth: a SYN within a connection (RFC 5961 section 4.2).
        if segment.has(SYN) {
            self.challenge(context, Count::ChallengedSyn);
            return Fate::Kept;
        }
        // Fifth: what it acknowledges. What was never sent, or lies before any window, was not sent by the peer, and nor
        // was what comes along with it (RFC 5961 section 5.2).
        if !segment.has(ACK) {
            context.counts.add(Count::NoAck);
            return Fate::Kept;
        }
        if !self.is_acknowledgeable(segment.ack) {
            self.challenge(context, Count::BadAck);
            return Fate::Kept;
        }
        self.path.follow(packet);
        self.note_timestamp(seq, &segment, context);
        self.heard_us = context.now_us;
        self.probes = 0;
        match self.acknowledge(&segment, context, frames) {
            Fate::Kept => {}
            ended => return ended,
        }
        // Seventh and eighth: its bytes, and its FIN.
        let mut direct: &[u8] = &[];
        let mut has_news = false;
        if segment.len() > 0 {
            if !self.state.receives() {
                // The peer had ended its half, and there can be no more.
                self.ack_now = true;
                return Fate::Kept;
            }
            (direct, has_news) = self.take_in(&segment, context, frames);
        }
        if has_news || self.has_room_again(context) {
            return self.serve(direct, server, context, frames);
        }
        Fate::Kept
    }

    /// RFC 7323 section 5.3. A connection that has agreed on timestamps has them in each segment but resets (section 3.2).
    #[inline]
    fn passes_timestamps(&mut self, segment: &Segment<'_>, context: &mut Context) -> bool {
        if !self.timestamps || segment.has(RST) {
            return true;
        }
        let Some(timestamps) = segment.timestamps else {
            if segment.has(SYN) {
                // Its sender may be another one, who has got the same name: it resets what we tell (RFC 5961 section 4.2).
                self.challenge(context, Count::ChallengedSyn);
            } else {
                context.counts.add(Count::NoTimestamp);
            }
            return false;
        };
        let now_s = (context.now_us / 1_000_000) as u32;
        let newest = Seq(self.receiving.timestamp);
        let is_valid = now_s.wrapping_sub(self.receiving.timestamp_s) < TIMESTAMP_LIFE_S;
        if is_valid && Seq(timestamps.value).is_before(newest) {
            self.challenge(context, Count::OldTimestamp);
            return false;
        }
        true
    }

    /// Keeps the newest timestamp of the segments that are acknowledged next (section 4.3). Only those that are acceptable
    /// count: a forged one would make all that the peer sends afterwards old.
    #[inline]
    fn note_timestamp(&mut self, seq: Seq, segment: &Segment<'_>, context: &Context) {
        if let (true, Some(timestamps)) = (self.timestamps, segment.timestamps)
            && seq.after(self.receiving.acked) <= 0
        {
            self.receiving.timestamp = timestamps.value;
            self.receiving.timestamp_s = (context.now_us / 1_000_000) as u32;
        }
    }

    /// The part of a segment that lies in the receive window, from the number that is expected on. `None` if it has none;
    /// the peer is told then, unless it sent a reset.
    #[inline]
    fn within_window<'a>(&mut self, segment: &Segment<'a>, context: &mut Context) -> Option<Segment<'a>> {
        let (next, edge) = (self.receiving.next, self.receiving.edge);
        let (window, len) = (edge.after(next).max(0), segment.len());
        let (start, end) = (segment.seq.after(next), (segment.seq + len).after(next));
        // The four cases of section 3.10.7.4. An empty segment at the edge is one that was sent behind bytes which have
        // come meanwhile; so it counts as within.
        let acceptable = if len == 0 {
            (0..=window).contains(&start)
        } else {
            // With a closed window a segment at its place brings an acknowledgement, and nothing else.
            start <= window && end > 0 && (start < window || start == 0)
        };
        if !acceptable {
            if segment.has(FIN) && end == 0 && self.state == State::TimeWait {
                // The peer has not got our last acknowledgement, and the time begins anew.
                self.sending.retransmit_us = context.now_us + context.config.time_wait_us;
            }
            if segment.has(RST) {
                context.counts.add(Count::ResetIgnored);
            } else if len == 0 {
                self.challenge(context, Count::OutOfWindow);
            } else {
                // Most often the peer has not got our acknowledgement; it waits for that.
                context.counts.add(Count::OutOfWindow);
                self.ack_now = true;
            }
            return None;
        }
        if start >= 0 && end <= window {
            return Some(*segment);
        }
        let mut segment = *segment;
        if start < 0 {
            // A SYN before the window is that of the handshake once more, and takes a number as a byte does.
            let mut before = (-start) as usize;
            if segment.has(SYN) {
                segment.flags &= !SYN;
                before -= 1;
            }
            segment.payload = &segment.payload[before.min(segment.payload.len())..];
            segment.seq = next;
        }
        let room = edge.after(segment.seq).max(0) as usize;
        if segment.payload.len() > room || (segment.has(FIN) && segment.payload.len() == room && end > window)
        {
            // What lies beyond will come again, and with it the FIN.
            segment.payload = &segment.payload[..room.min(segment.payload.len())];
            segment.flags &= !FIN;
            self.ack_now = true;
        }
        Some(segment)
    }

    /// Counts a segment that can't be used, and notes that the peer is to be told what is expected, unless it was told
    /// just now: so two ends that are at odds don't answer each other for ever.
    fn challenge(&mut self, context: &mut Context, count: Count) {
        context.counts.add(count);
        if context.now_us >= self.challenged_us + CHALLENGE_US || self.challenged_us == 0 {
            self.challenged_us = context.now_us.max(1);
            self.ack_now = true;
        }
    }

    /// Whether a number was sent, and within the largest window that the peer has shown.
    #[inline]
    fn is_acknowledgeable(&self, ack: Seq) -> bool {
        let sending = &self.sending;
        ack.after(sending.newest) <= 0
            && i64::from(ack.after(sending.unacked)) >= -i64::from(sending.max_window)
    }
}
