//! What a connection sends: data, acknowledgements, its FIN.
//!
//! Owns: nothing. Never does: send more than the peer's window and the congestion window let it, but for a probe.
//! Invariant: whatever is in flight has a time at which it is sent again.

use sheafio_mempool::{Burst, Frame, PoolCache};

use super::{
    context::Context,
    flow::Flow,
    input::Frames,
    segment::{ACK, FIN, Header, PSH, RST},
    sequence::Seq,
};
use crate::Count;

/// A congestion window that is larger than most initial ones, in bytes.
const LARGE_BYTES: u32 = 14_600;

/// The congestion window that a connection begins with, in bytes (RFC 6928).
pub(super) fn initial_window(mss: u16) -> u32 {
    let mss = u32::from(mss);
    (10 * mss).min(LARGE_BYTES.max(2 * mss))
}

impl<Session> Flow<Session> {
    /// Adds what is to be sent now to `out`. Returns whether that was all; if not, `out` is full or the pool is empty.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        context: &mut Context,
        frames: &mut Frames<'_>,
        out: &mut Burst,
    ) -> bool {
        if self.sending.resend {
            let (seq, in_flight) = (self.sending.unacked, self.sending.newest - self.sending.unacked);
            let len = self.sending.ring.len().min(in_flight).min(self.segment_bytes());
            let fin = seq + len == self.end() && self.end().is_before(self.sending.newest);
            if !self.put(seq, len, fin, context, frames, out) {
                return false;
            }
            self.sending.resend = false;
            self.sending.timed_us = 0; // It may be the one that is timed (Karn, RFC 6298 section 3).
            context.counts.add(Count::Retransmit);
        }
        if self.sending.congestion > LARGE_BYTES && self.sending.newest == self.sending.unacked {
            self.after_idle(context);
        }
        loop {
            let (len, fin) = self.next_segment();
            if len == 0 && !fin {
                break;
            }
            let seq = self.sending.next;
            if !self.put(seq, len, fin, context, frames, out) {
                return false;
            }
            self.has_sent(seq + len + u32::from(fin), context);
            if seq + len == self.end() {
                break; // That was all that there is, or an end that did not fit behind it.
            }
        }
        if self.ack_now {
            // Behind all that was sent, even if it has been gone back from that, but not beyond a window that has shrunk.
            let edge = self.sending.unacked + self.sending.window;
            let seq = if edge.is_before(self.sending.newest) { edge } else { self.sending.newest };
            if !self.put(seq, 0, false, context, frames, out) {
                return false;
            }
        }
        // In flight, or not fitting into the window, which is probed then.
        let is_open = self.sending.newest != self.sending.unacked || self.has_to_send();
        if self.sending.retransmit_us == 0 && is_open {
            self.sending.retransmit_us =
                context.now_us + self.sending.rtt.timeout_us(context.config.min_rto_us);
        }
        true
    }

    /// With nothing in flight: what the path carried once says little of what it carries after a pause of a timeout or more, so
    /// it is learned anew (RFC 5681 section 4.1). A threshold keeps most of what was known, as Linux does it.
    #[cold]
    fn after_idle(&mut self, context: &Context) {
        let sending = &mut self.sending;
        let idle_us = context.now_us - sending.stalled_us;
        if idle_us > sending.rtt.timeout_us(context.config.min_rto_us) {
            sending.threshold = sending.threshold.max(sending.congestion / 4 * 3);
            sending.congestion = sending.congestion.min(initial_window(sending.mss));
        }
    }

    /// Bytes of the next segment, and whether our FIN follows them.
    #[inline]
    fn next_segment(&self) -> (u32, bool) {
        let sending = &self.sending;
        let in_flight = self.in_flight();
        if self.is_fin_acked() {
            return (0, false);
        }
        let sent = in_flight.min(sending.ring.len());
        let unsent = sending.ring.len() - sent;
        let has_fin = self.state.is_closed_by_us() && in_flight <= sending.ring.len();
        if unsent == 0 && !has_fin {
            return (0, false);
        }
        // A new segment for each of the first two duplicates keeps them coming (limited transmit, RFC 3042).
        let is_new = sending.next == sending.newest;
        let extra = if sending.in_recovery || !is_new { 0 } else { u32::from(sending.duplicates.min(2)) };
        let congestion = sending.congestion + extra * u32::from(sending.mss);
        let room = sending.window.min(congestion).saturating_sub(in_flight);
        let segment = self.segment_bytes();
        let len = unsent.min(segment).min(room);
        // No small segments while more is to come: they would only shift the window's edge a little (the sender's side
        // of the silly window syndrome, RFC 9293 section 3.8.6.2.1). With nothing in flight the timer ends the waiting, and
        // what is sent again does not wait. Requests and responses don't wait for others (no Nagle).
        let waits = in_flight > 0 || (is_new && !sending.takes_little);
        let is_silly = len < segment && len < unsent && len < sending.max_window / 2;
        if is_silly && waits {
            return (0, false);
        }
        (len, has_fin && len == unsent && room > len)
    }

    /// Notes that all before `end` has been sent.
    #[inline]
    fn has_sent(&mut self, end: Seq, context: &mut Context) {
        let sending = &mut self.sending;
        let is_first = sending.newest == sending.unacked;
        if is_first {
            sending.stalled_us = context.now_us;
        }
        if sending.next.is_before(sending.newest) {
            context.counts.add(Count::Retransmit);
        } else if sending.timed_us == 0 {
            // One segment is timed in a round trip, and none that was sent twice (Karn, RFC 6298 section 3).
            sending.timed = end;
            sending.timed_us = context.now_us;
        }
        sending.takes_little = false;
        sending.next = end;
        sending.newest = sending.newest.later(end);
        if sending.retransmit_us == 0 || is_first {
            sending.retransmit_us = context.now_us + sending.rtt.timeout_us(context.config.min_rto_us);
        }
    }

    /// Puts one segment into `out`: `len` bytes from `seq` on, and our FIN if `fin`.
    #[inline]
    fn put(
        &mut self,
        seq: Seq,
        len: u32,
        fin: bool,
        context: &mut Context,
        frames: &mut Frames<'_>,
        out: &mut Burst,
    ) -> bool {
        let Some(mut frame) = room(frames.cache, context, out) else { return false };
        let offset = seq - self.sending.unacked;
        let ring = self.sending.ring;
        let first = ring.piece(frames.send, context.frame_bytes, offset, len);
        let left = len - first.len() as u32;
        let second = ring.piece(frames.send, context.frame_bytes, offset + first.len() as u32, left);
        let mut flags = ACK;
        if len > 0 && offset + len == ring.len() {
            flags |= PSH;
        }
        if fin {
            flags |= FIN;
        }
        let window = self.advertise(context);
        let header = Header {
            path: &self.path,
            key: &self.key,
            seq,
            ack: self.receiving.next,
            flags,
            window,
            timestamps: context.timestamps(self),
            syn: None,
            sacks: self.sacks(),
        };
        if !header.write(&mut frame, [first, second]) {
            // Segments are made to fit (`Config::check`), unless the pool keeps more headroom than it need. It is as if this
            // one had been lost, for to wait for a larger frame would hold up all other flows.
            context.counts.add(Count::NoFrame);
            frames.cache.free(frame);
            return true;
        }
        self.receiving.acked = self.receiving.next;
        self.ack_now = false;
        push(frame, frames.cache, context, out);
        true
    }

    /// Bytes that the peer may send beyond what has come, as far as it was told.
    #[inline]
    pub(super) fn told(&self) -> u32 {
        self.receiving.edge.after(self.receiving.next).max(0) as u32
    }

    /// Bytes that the peer may be told to send. What it was told once it keeps (RFC 9293 section 3.8.6: a window that
    /// shrinks). All that is free is told, unless that is little (section 3.8.6.2.2); little is told only for the sake of a
    /// server which has left a part of a request, and waits for the rest of it: else both would wait for ever.
    #[inline]
    pub(super) fn window(&self, context: &Context) -> u32 {
        let (told, left) = (self.told(), self.receiving.ring.len());
        let free = context.receive_bytes - left;
        if free >= context.least_window || (left > 0 && !self.wants_room) { free.max(told) } else { told }
    }

    /// The window field of a segment, and with it the edge that the peer may send up to.
    #[inline]
    fn advertise(&mut self, context: &Context) -> u16 {
        let shift = if self.is_scaled { context.shift } else { 0 };
        let field = (self.window(context) >> shift).min(u32::from(u16::MAX));
        let receiving = &mut self.receiving;
        receiving.edge = receiving.edge.later(receiving.next + (field << shift));
        field as u16
    }

    /// Asks the peer for an acknowledgement, by a segment that it knows already: a number before its window. That is
    /// how a closed window (RFC 9293 section 3.8.6.1) and a silent peer (section 3.8.4) are probed.
    pub(super) fn probe(&mut self, context: &mut Context, frames: &mut Frames<'_>, out: &mut Burst) -> bool {
        let Some(mut frame) = room(frames.cache, context, out) else { return false };
        let window = self.advertise(context);
        let header = Header {
            path: &self.path,
            key: &self.key,
            seq: Seq(self.sending.unacked.0.wrapping_sub(1)),
            ack: self.receiving.next,
            flags: ACK,
            window,
            timestamps: context.timestamps(self),
            syn: None,
            sacks: self.sacks(),
        };
        header.write(&mut frame, [&[], &[]]);
        push(frame, frames.cache, context, out);
        true
    }

    /// Tells the peer that the connection is over.
    pub(super) fn reset(&mut self, context: &mut Context, cache: &mut PoolCache, out: &mut Burst) -> bool {
        let Some(mut frame) = room(cache, context, out) else { return false };
        let header = Header {
            path: &self.path,
            key: &self.key,
            seq: self.sending.newest,
            ack: self.receiving.next,
            flags: RST | ACK,
            window: 0,
            timestamps: context.timestamps(self),
            syn: None,
            sacks: super::segment::Sacks::default(),
        };
        header.write(&mut frame, [&[], &[]]);
        context.counts.add(Count::ResetSent);
        push(frame, cache, context, out);
        true
    }
}

/// An empty frame for a segment, if it can be added to `out`.
#[inline]
pub(super) fn room(cache: &mut PoolCache, context: &Context, out: &Burst) -> Option<Frame> {
    if out.room() == 0 {
        return None;
    }
    let frame = cache.alloc();
    if frame.is_none() {
        context.counts.add(Count::NoFrame);
    }
    frame
}

/// Adds a segment to `out`, which has room.
#[inline]
pub(super) fn push(frame: Frame, cache: &mut PoolCache, context: &Context, out: &mut Burst) {
    context.counts.add(Count::SegmentsSent);
    if let Err(frame) = out.push(frame) {
        debug_assert!(false, "there was room");
        cache.free(frame);
    }
}
