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
    server::{Input, Output, Server, Wish},
    timers::RETRY_US,
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
/// Duplicates that tell of a loss (RFC 5681 section 3.2).
const DUPLICATES: u8 = 3;

impl<Session> Flow<Session> {
    /// Takes a segment of this connection in.
    pub(super) fn segment<S: Server<Session = Session>>(
        &mut self,
        segment: &Segment<'_>,
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
            context.counts.add(Count::NoTimestamp);
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

    /// Section 3.10.7.4, fifth.
    #[inline]
    fn acknowledge(&mut self, segment: &Segment<'_>, context: &mut Context, frames: &mut Frames<'_>) -> Fate {
        let (ack, sending) = (segment.ack, &mut self.sending);
        let window = u32::from(segment.window) << sending.shift;
        let progress = ack.after(sending.unacked);
        if progress == 0
            && segment.len() == 0
            && window == sending.window
            && sending.newest != sending.unacked
            && window > 0
        {
            self.duplicate(context);
        }
        // The newest word on the window: by a new acknowledgement, which a segment that is sent again may bring, else by
        // number, then by acknowledgement.
        let sending = &mut self.sending;
        let since = segment.seq.after(sending.window_seq);
        if progress > 0
            || (progress == 0 && (since > 0 || (since == 0 && ack.after(sending.window_ack) >= 0)))
        {
            if sending.window == 0 && window > 0 && self.state != State::TimeWait {
                // What waited for it goes out at once; and what was in flight once more, for it lies where the window was
                // closed, and the peer will have had no room for it.
                sending.next = sending.unacked;
                sending.timed_us = 0;
                sending.retransmit_us = 0;
                sending.rtt.clear_backoff();
            }
            sending.window = window;
            sending.max_window = sending.max_window.max(window);
            sending.window_seq = segment.seq;
            sending.window_ack = ack;
        }
        if progress > 0 { self.advance(segment, context, frames) } else { Fate::Kept }
    }

    /// Something new is acknowledged.
    #[inline]
    fn advance(&mut self, segment: &Segment<'_>, context: &mut Context, frames: &mut Frames<'_>) -> Fate {
        let ack = segment.ack;
        if self.sending.rtt.is_backed_off()
            && let (true, Some(timestamps)) = (self.timestamps, segment.timestamps)
        {
            // What was sent twice is not timed, but its echo says which of the two has come (RFC 7323 section 4.1).
            let ms = Seq(context.timestamp()).after(Seq(timestamps.echo));
            if let Ok(ms @ 0..=60_000) = u32::try_from(ms) {
                self.sending.rtt.sample(ms * 1000);
            }
        }
        let segment_bytes = self.segment_bytes();
        let sending = &mut self.sending;
        let count = ack - sending.unacked;
        let bytes = count.min(sending.ring.len());
        let is_fin_acked = count > bytes;
        if sending.timed_us != 0 && ack.after(sending.timed) >= 0 {
            sending
                .rtt
                .sample(context.now_us.saturating_sub(sending.timed_us).min(u64::from(u32::MAX)) as u32);
            sending.timed_us = 0;
        }
        // Full if not one segment more would have gone out; the rest of a window that is no multiple of them never does.
        let was_full = sending.newest - sending.unacked + segment_bytes > sending.congestion;
        sending.ring.discard(frames.send, context.frame_bytes, bytes, false, frames.cache);
        sending.unacked = ack;
        sending.next = sending.next.later(ack);
        sending.stalled_us = context.now_us;
        let mss = u32::from(sending.mss);
        if sending.in_recovery && ack.is_before(sending.recover) {
            // A part: the next one is lost too (RFC 6582 section 3.2, step 3).
            sending.congestion = sending.congestion.saturating_sub(bytes).saturating_add(mss).max(mss);
            sending.resend = true;
        } else {
            // It stays at most half a circle behind, so that it can be told from what lies ahead.
            sending.recover = sending.recover.later(ack);
            if sending.in_recovery {
                sending.in_recovery = false;
                sending.congestion = sending.threshold.max(mss);
            } else if was_full {
                // RFC 5681 section 3.1: doubled in a round trip up to the threshold, then by a segment.
                let more = if sending.congestion < sending.threshold {
                    bytes.min(mss)
                } else {
                    (mss * mss / sending.congestion.max(1)).max(1)
                };
                sending.congestion = sending.congestion.saturating_add(more).min(1 << 30);
            }
        }
        sending.duplicates = 0;
        sending.retransmit_us = if ack == sending.newest {
            0
        } else {
            context.now_us + sending.rtt.timeout_us(context.config.min_rto_us)
        };
        if is_fin_acked {
            match self.state {
                State::FinWait1 => self.state = State::FinWait2,
                State::Closing => return self.wait_out(context),
                State::LastAck => return Fate::Over,
                _ => {}
            }
        }
        Fate::Kept
    }

    /// The peer says once more what it expects: something behind that has come, and something before has not
    /// (RFC 5681 section 3.2).
    fn duplicate(&mut self, context: &mut Context) {
        let sending = &mut self.sending;
        let mss = u32::from(sending.mss);
        sending.duplicates = sending.duplicates.saturating_add(1);
        if sending.in_recovery {
            // Another one has left the network.
            sending.congestion = sending.congestion.saturating_add(mss).min(1 << 30);
        } else if sending.duplicates == DUPLICATES && sending.unacked.after(sending.recover) >= 0 {
            context.counts.add(Count::FastRetransmit);
            let in_flight = sending.newest - sending.unacked;
            sending.threshold = (in_flight / 2).max(2 * mss);
            sending.congestion = sending.threshold + u32::from(DUPLICATES) * mss;
            sending.recover = sending.newest;
            sending.in_recovery = true;
            sending.resend = true;
        }
    }

    /// The bytes of a segment, and its FIN. Returns those that are in order and were not put into the ring, and whether
    /// there is something to be shown to the server.
    #[inline]
    fn take_in<'a>(
        &mut self,
        segment: &Segment<'a>,
        context: &mut Context,
        frames: &mut Frames<'_>,
    ) -> (&'a [u8], bool) {
        let receiving = &mut self.receiving;
        self.ack_now = true;
        if segment.has(FIN) {
            receiving.fin = Some(segment.seq + segment.payload.len() as u32);
        }
        let payload = segment.payload;
        // The straight path: in order, and nothing waits. The server sees the bytes where they lie.
        if segment.seq == receiving.next && self.beyond.is_empty() {
            if receiving.ring.len() == 0 {
                receiving.next += payload.len() as u32;
                let ended = self.take_fin(context);
                return (payload, !payload.is_empty() || ended);
            }
            let offset = receiving.ring.len();
            let written =
                receiving.ring.write(frames.receive, context.frame_bytes, offset, payload, frames.cache);
            receiving.ring.extend(written);
            receiving.next += written;
            let ended = self.take_fin(context);
            return (&[], written > 0 || ended);
        }
        // Beyond a gap, or into one.
        context.counts.add(Count::OutOfOrder);
        receiving.latest = segment.seq;
        let gap = segment.seq - receiving.next;
        let offset = receiving.ring.len() + gap;
        let written =
            receiving.ring.write(frames.receive, context.frame_bytes, offset, payload, frames.cache);
        if (written as usize) < payload.len() {
            context.counts.add(Count::NoFrame);
        }
        // The next one in order always finds a place; further gaps than are kept track of come again.
        let Ok(ready) = self.beyond.add_then_remove_front(gap as usize, written as usize) else {
            context.counts.add(Count::TooManyGaps);
            return (&[], false);
        };
        let ready = ready as u32;
        receiving.ring.extend(ready);
        receiving.next += ready;
        let ended = self.take_fin(context);
        (&[], ready > 0 || ended)
    }

    /// Takes the peer's FIN if all before it has come: eighth of section 3.10.7.4. Whether that is now.
    #[inline]
    fn take_fin(&mut self, context: &mut Context) -> bool {
        if self.receiving.fin != Some(self.receiving.next) {
            return false;
        }
        self.receiving.fin = None;
        self.receiving.next += 1;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => {
                self.wait_out(context);
            }
            _ => {}
        }
        true
    }

    /// Enters TIME-WAIT.
    fn wait_out(&mut self, context: &mut Context) -> Fate {
        self.state = State::TimeWait;
        self.sending.retransmit_us = context.now_us + context.config.time_wait_us;
        Fate::Waits
    }

    /// Shows the server what has come, and notes what it wants.
    #[inline]
    pub(super) fn serve<S: Server<Session = Session>>(
        &mut self,
        direct: &[u8],
        server: &mut S,
        context: &mut Context,
        frames: &mut Frames<'_>,
    ) -> Fate {
        let receiving = &mut self.receiving;
        let ended = !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        let mut input = Input {
            ring: receiving.ring,
            slots: frames.receive,
            frame_bytes: context.frame_bytes,
            direct,
            consumed: 0,
            ended,
        };
        let mut output = Output {
            ring: &mut self.sending.ring,
            slots: frames.send,
            frame_bytes: context.frame_bytes,
            cache: frames.cache,
            is_closed: self.state.is_closed_by_us(),
            wish: Wish::GoOn,
            was_short: false,
        };
        server.serve(&mut self.session, &mut input, &mut output);
        let (consumed, wish) = (input.consumed, output.wish);
        // What is written behind its end never finds room.
        self.wants_room = output.was_short && wish == Wish::GoOn && !self.state.is_closed_by_us();
        if self.has_room_again(context) && self.sending.retransmit_us == 0 {
            // Nothing is in flight whose acknowledgement would bring the next call.
            self.sending.retransmit_us = context.now_us + RETRY_US;
        }

        let receiving = &mut self.receiving;
        let from_ring = consumed.min(receiving.ring.len());
        if from_ring > 0 {
            let has_more = !self.beyond.is_empty();
            receiving.ring.discard(frames.receive, context.frame_bytes, from_ring, has_more, frames.cache);
        }
        let left = &direct[(consumed - from_ring) as usize..];
        if !left.is_empty() {
            let offset = receiving.ring.len();
            let written =
                receiving.ring.write(frames.receive, context.frame_bytes, offset, left, frames.cache);
            receiving.ring.extend(written);
            if (written as usize) < left.len() {
                // The pool is empty: as if it had not come. A FIN behind it has not come either.
                context.counts.add(Count::NoFrame);
                let lost = left.len() as u32 - written;
                self.take_back(lost);
            }
        }
        match wish {
            Wish::GoOn => {}
            Wish::Close => self.close(),
            Wish::Abort => return Fate::Reset,
        }
        // A peer that waits for room hears of it once there is enough (RFC 9293 section 3.8.6.2.2).
        let edge = self.receiving.next + (context.receive_bytes - self.receiving.ring.len());
        let (_, least) = self.advertised(context);
        if self.state.receives() && edge.after(self.receiving.edge) >= least as i32 {
            self.ack_now = true;
        }
        if self.state == State::TimeWait { Fate::Waits } else { Fate::Kept }
    }

    /// Takes numbers back that were taken in already, and could not be kept.
    fn take_back(&mut self, bytes: u32) {
        let had_fin = match self.state {
            State::CloseWait => {
                self.state = State::Established;
                true
            }
            State::Closing => {
                self.state = State::FinWait1;
                true
            }
            State::TimeWait => {
                self.state = State::FinWait2;
                self.sending.retransmit_us = 0;
                true
            }
            _ => false,
        };
        self.receiving.next = Seq(self.receiving.next.0.wrapping_sub(bytes + u32::from(had_fin)));
    }

    /// Ends our half, behind what was written.
    pub(super) fn close(&mut self) {
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            _ => {}
        }
    }
}
