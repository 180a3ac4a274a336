//! What becomes of bytes that arrive (RFC 9293 section 3.10.7.4, seventh and eighth), and of the peer's end: they are shown
//! to the server, which says what is sent.
//!
//! Owns: nothing. Never does: send; it notes what is to be sent. Invariant: a number is taken in only with its byte, and
//! what the server has not consumed is kept.

use super::{
    context::Context,
    flow::{Flow, State},
    input::{Fate, Frames},
    segment::{FIN, Segment},
    sequence::Seq,
    server::{Input, Output, Server, Wish},
    timers::RETRY_US,
};
use crate::Count;

impl<Session> Flow<Session> {
    /// The bytes of a segment, and its FIN. Returns those that are in order and were not put into the ring, and whether
    /// there is something to be shown to the server.
    #[inline]
    pub(super) fn take_in<'a>(
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
            if (written as usize) < payload.len() {
                context.counts.add(Count::NoFrame);
            }
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
    pub(super) fn wait_out(&mut self, context: &mut Context) -> Fate {
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
            Wish::GoOn if self.closes && self.has_answered() => self.close(),
            Wish::GoOn => {}
            Wish::Close => self.close(),
            Wish::Abort => return Fate::Reset,
        }
        let is_over = matches!(self.state, State::Closing | State::LastAck | State::TimeWait);
        if self.closes && is_over && self.receiving.ring.len() > 0 {
            // Something came behind our end that was acknowledged and is not answered any more: the peer is not to take that
            // for an orderly end (RFC 2525 section 2.17).
            return Fate::Reset;
        }
        // A peer that waits for room hears of it once there is enough (RFC 9293 section 3.8.6.2.2).
        let (told, window, least) = (self.told(), self.window(context), context.least_window);
        if self.state.receives() && window > told && (told < least || window - told >= least) {
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
