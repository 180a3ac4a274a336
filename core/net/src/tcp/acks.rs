//! What an acknowledgement does to a connection (RFC 9293 section 3.10.7.4, fifth): the peer's window, what is in flight,
//! and what losses tell.
//!
//! Owns: nothing. Never does: send; it notes what is to be sent. Invariant: what is acknowledged is given back at once.

use super::{
    context::Context,
    flow::{Flow, State},
    input::{Fate, Frames},
    segment::Segment,
    sequence::Seq,
};
use crate::Count;

/// Duplicates that tell of a loss (RFC 5681 section 3.2).
const DUPLICATES: u8 = 3;

impl<Session> Flow<Session> {
    /// Section 3.10.7.4, fifth.
    #[inline]
    pub(super) fn acknowledge(
        &mut self,
        segment: &Segment<'_>,
        context: &mut Context,
        frames: &mut Frames<'_>,
    ) -> Fate {
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
                // As long as the window was closed nobody could make progress.
                sending.stalled_us = context.now_us;
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
            sending.resend = false; // If it was to be sent again, it has come now.
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
}
