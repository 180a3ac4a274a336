//! What time does to a connection: what is sent again, probed, and given up.

use sheafio_mempool::Burst;

use super::{
    context::Context,
    flow::{Flow, State},
    input::{Fate, Frames},
    server::Server,
    wheel::{TICK_US, Wheel},
};
use crate::Count;

/// Probes of a silent peer before it is given up, each a tenth of the keepalive time behind the one before.
const KEEPALIVE_PROBES: u8 = 5;
/// How long a server that the pool had no frame for waits until it is asked again.
pub(super) const RETRY_US: u64 = 10_000;

impl<Session> Flow<Session> {
    /// When this connection must be looked at next, if nothing happens before.
    #[inline]
    pub(super) fn deadline_us(&self, context: &Context) -> Option<u64> {
        if self.sending.retransmit_us != 0 {
            return Some(self.sending.retransmit_us);
        }
        if self.is_ended_by_silence(context) {
            return Some(self.heard_us + context.config.user_timeout_us);
        }
        let keepalive = context.config.keepalive_us;
        (keepalive > 0).then(|| self.heard_us + keepalive + u64::from(self.probes) * (keepalive / 10))
    }

    /// Sets its timer, if that does not come by then anyway. The wheel's own links are looked at only if so.
    #[inline]
    pub(super) fn set_timer(&mut self, wheel: &mut Wheel, number: u32, deadline_us: u64) {
        if self.timer_us >= deadline_us + TICK_US {
            self.timer_us = wheel.set_by(number, deadline_us);
        }
    }

    /// If it was heard within the last timeout, and nothing is due: when that would be so again if it sends at once. A busy flow
    /// always sends before; were its timer set to when it is to be probed, each of its turns would move it forth again.
    #[inline]
    pub(super) fn is_busy_until(&self, context: &Context) -> Option<u64> {
        let timeout_us = u64::from(context.config.min_rto_us);
        let is_busy = self.heard_us + timeout_us > context.now_us;
        let deadline_us = self.deadline_us(context)?;
        (is_busy && deadline_us > context.now_us).then(|| deadline_us.min(context.now_us + timeout_us))
    }

    /// Whether the peer is given up if it does not end its half: when the server closes, or where nobody probes. Otherwise it
    /// may have more to send, and take its time (RFC 9293 section 3.6), if it answers.
    #[inline]
    fn is_ended_by_silence(&self, context: &Context) -> bool {
        self.state == State::FinWait2 && (self.closes || context.config.keepalive_us == 0)
    }

    /// Does what the time asks for, if its time has come.
    pub(super) fn time_out<S: Server<Session = Session>>(
        &mut self,
        server: &mut S,
        context: &mut Context,
        frames: &mut Frames<'_>,
        out: &mut Burst,
    ) -> Fate {
        if self.deadline_us(context).is_none_or(|deadline| deadline > context.now_us) {
            return Fate::Kept;
        }
        if self.state == State::TimeWait {
            return Fate::Over;
        }
        if self.has_room_again(context) {
            // The pool was empty when the server wrote, and with nothing in flight nobody else asks it again.
            match self.serve(&[], server, context, frames) {
                Fate::Kept => {}
                fate => return fate,
            }
        }
        if self.sending.retransmit_us != 0 {
            return self.send_again(context, frames, out);
        }
        if self.is_ended_by_silence(context) {
            // The peer has nothing to say, and does not say so.
            context.counts.add(Count::GivenUp);
            return Fate::Reset;
        }
        if self.probes >= KEEPALIVE_PROBES {
            context.counts.add(Count::KeepaliveExpired);
            return Fate::Reset;
        }
        if self.probe(context, frames, out) {
            self.probes += 1;
            context.counts.add(Count::KeepaliveProbe);
        }
        Fate::Kept
    }

    /// The retransmission timer is due (RFC 6298 section 5).
    fn send_again(&mut self, context: &mut Context, frames: &mut Frames<'_>, out: &mut Burst) -> Fate {
        let in_flight = self.sending.newest - self.sending.unacked;
        if in_flight == 0 && !self.has_to_send() {
            self.sending.retransmit_us = if self.wants_room { context.now_us + RETRY_US } else { 0 };
            return Fate::Kept;
        }
        let limit_us = context.config.user_timeout_us;
        let is_window_closed = self.sending.window == 0;
        // A peer with a closed window is waited for as long as it answers to probes.
        let (is_stalled, since_us) = if is_window_closed {
            (self.probes > 0, self.heard_us)
        } else {
            (in_flight > 0, self.sending.stalled_us)
        };
        if is_stalled && context.now_us.saturating_sub(since_us) >= limit_us {
            context.counts.add(Count::GivenUp);
            return Fate::Reset;
        }
        let mss = u32::from(self.sending.mss);
        if is_window_closed {
            if self.probe(context, frames, out) {
                self.probes = self.probes.saturating_add(1);
                context.counts.add(Count::WindowProbe);
                self.sending.rtt.back_off();
            }
        } else if in_flight == 0 {
            // Something waits for a larger window (RFC 9293 section 3.8.6.2.1, the override timeout).
            self.sending.takes_little = true;
        } else {
            context.counts.add(Count::Timeout);
            let sending = &mut self.sending;
            // RFC 5681 section 3.1, equation 4: once for each loss, not for each time that it is sent again.
            if sending.unacked.after(sending.recover) >= 0 {
                sending.threshold = (in_flight / 2).max(2 * mss);
            }
            sending.congestion = mss;
            sending.next = sending.unacked;
            sending.timed_us = 0;
            sending.duplicates = 0;
            sending.in_recovery = false;
            sending.resend = false; // It is the first of all that is sent again.
            sending.recover = sending.newest;
            sending.rtt.back_off();
        }
        let sending = &mut self.sending;
        sending.retransmit_us = context.now_us + sending.rtt.timeout_us(context.config.min_rto_us);
        if in_flight > 0 && !is_window_closed {
            // Not beyond the time at which it is given up.
            sending.retransmit_us = sending.retransmit_us.min(sending.stalled_us + limit_us);
        }
        Fate::Kept
    }
}
