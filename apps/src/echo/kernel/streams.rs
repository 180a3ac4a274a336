//! TCP flows: what is received is sent back, or answered with a response of a given size.
//!
//! Owns: the flows of an lcore, by their places in the ring's table of files, and the frames that wait for them. Never
//! does: receive for a flow whose client does not read, once a few frames wait for it. Invariant: a place is closed only
//! when no operation of its flow is open, so a completion never finds another flow in its place.
//!
//! ```text
//!   open --> receiving <--> waiting for the client to read
//!              | end of the client's data, or ours (ending), all sent
//!              v
//!            closing --> closed
//! ```

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use sheafio_mempool::{Frame, PoolCache};

use super::{
    backlog::Backlog,
    counts::{Count, Counters},
    flow::{Flow, Limit},
};
use crate::echo::response::{Request, Responder};
use crate::uring::{Completion, Ring, Socket};

/// Frames that may wait for a flow before nothing is received for it any more. What the kernel has received by then
/// still comes.
const MOST_WAITING: u32 = 4;

pub(super) struct Streams {
    flows: Box<[Flow]>,
    backlog: Backlog,
    /// With --response-size: the request that each flow is at.
    requests: Box<[Request]>,
    responder: Option<Responder>,
    /// Flows that wait for a frame, to receive into or to respond with.
    hungry: VecDeque<u32>,
    open: usize,
    is_ending: bool,
    limit: Arc<Limit>,
    counters: Arc<Counters>,
}

impl Streams {
    /// `places`: of the ring's table of files. `frames`: of the pool.
    pub(super) fn new(
        places: u32,
        frames: u32,
        responder: Option<Responder>,
        limit: Arc<Limit>,
        counters: Arc<Counters>,
    ) -> Self {
        let requests = if responder.is_some() { places as usize } else { 0 };
        Self {
            flows: vec![Flow::CLOSED; places as usize].into(),
            backlog: Backlog::new(frames),
            requests: vec![Request::default(); requests].into(),
            responder,
            hungry: VecDeque::with_capacity(places as usize),
            open: 0,
            is_ending: false,
            limit,
            counters,
        }
    }

    /// Whether a place has a flow.
    #[cfg(test)]
    pub(super) fn is_open(&self, slot: u32) -> bool {
        self.flows[slot as usize].is_open
    }

    /// Whether each place of the table of files has a flow.
    pub(super) fn is_full(&self) -> bool {
        self.open >= self.flows.len()
    }

    /// Whether no flow is left.
    pub(super) fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// A connection was accepted into a place.
    pub(super) fn accepted(&mut self, slot: u32, ring: &mut Ring) {
        let flow = &mut self.flows[slot as usize];
        // A kernel may tell of the new connection in a place before it tells that the old one is closed (Linux before 6.15,
        // where both come of one submission: only then are completions of multishot operations in order with others).
        debug_assert!(!flow.is_open || flow.is_closing, "the kernel gives a place again when it is closed");
        let closes_due = flow.closes_due + u8::from(flow.is_open);
        *flow = Flow { is_open: true, closes_due, ..Flow::CLOSED };
        self.open += 1;
        if let Some(request) = self.requests.get_mut(slot as usize) {
            *request = Request::default();
        }
        self.counters.add(Count::Accepted, 1);
        // Relaxed: a count that orders nothing. Once a connection, so not on the path of requests.
        let is_one_too_many = self.limit.open.fetch_add(1, Ordering::Relaxed) >= self.limit.max;
        if is_one_too_many || self.is_ending {
            if is_one_too_many {
                self.counters.add(Count::FlowsRefused, 1);
            }
            flow.is_closing = true;
            ring.close_slot(slot, slot);
            return;
        }
        flow.receiving = Some(ring.receive(Socket::Slot(slot), slot));
    }

    /// A reception has completed, once or for the last time.
    #[inline]
    pub(super) fn received(&mut self, done: Completion, ring: &mut Ring, cache: &mut PoolCache) {
        let (slot, result) = (done.number, done.result);
        let flow = &mut self.flows[slot as usize];
        if !done.has_more {
            (flow.receiving, flow.is_pausing) = (None, false);
        }
        if let Some(frame) = done.frame {
            self.take(slot, frame, ring, cache);
        }
        if done.has_more {
            return;
        }
        match -result {
            0 => self.flows[slot as usize].has_ended = true,
            libc::ENOBUFS => {
                self.counters.add(Count::NoBuffer, 1);
                self.wait_for_frame(slot);
            }
            // It was paused; or the kernel stopped for reasons of its own, as when its completion ring is full.
            libc::ECANCELED => {}
            error if error > 0 => self.fail(slot, error, Count::ReceiveErrors),
            _ => {}
        }
        self.advance(slot, ring, cache);
    }

    /// Bytes came.
    #[inline]
    fn take(&mut self, slot: u32, frame: Frame, ring: &mut Ring, cache: &mut PoolCache) {
        let flow = &mut self.flows[slot as usize];
        if frame.is_empty() || flow.is_shut || flow.is_cut {
            return cache.free(frame);
        }
        self.counters.add(Count::RxBytes, frame.len() as u64);
        if self.responder.is_none() && flow.sending.is_none() {
            flow.sending = Some(ring.send(Socket::Slot(slot), frame, slot, false));
            return;
        }
        self.backlog.push_back(&mut flow.waiting, frame);
        if self.responder.is_some() {
            self.respond(slot, ring, cache);
        }
        let flow = &mut self.flows[slot as usize];
        if flow.waiting.len() >= MOST_WAITING
            && !flow.is_pausing
            && let Some(receiving) = flow.receiving
        {
            flow.is_pausing = true;
            ring.cancel(receiving);
        }
    }

    /// A frame was sent, or could not be.
    #[inline]
    pub(super) fn sent(&mut self, done: Completion, ring: &mut Ring, cache: &mut PoolCache) {
        let (slot, result) = (done.number, done.result);
        let mut frame = done.frame.expect("it was sent from a frame");
        let flow = &mut self.flows[slot as usize];
        flow.sending = None;
        let Ok(sent) = usize::try_from(result) else {
            cache.free(frame);
            self.fail(slot, -result, Count::SendErrors);
            return self.advance(slot, ring, cache);
        };
        self.counters.add(Count::TxBytes, sent as u64);
        if sent < frame.len() {
            if flow.is_cut {
                // What has not gone is no answer.
                cache.free(frame);
                return self.advance(slot, ring, cache);
            }
            frame.trim_front(sent);
            flow.sending = Some(ring.send(Socket::Slot(slot), frame, slot, false));
            return;
        }
        if self.responder.is_some() {
            if self.requests[slot as usize].sent() {
                self.counters.add(Count::Transactions, 1);
            }
            self.respond_with(slot, Some(frame), ring, cache);
        } else {
            self.counters.add(Count::Transactions, 1);
            cache.free(frame);
            if !flow.is_cut
                && let Some(next) = self.backlog.pop_front(&mut flow.waiting)
            {
                let has_more = !flow.waiting.is_empty();
                flow.sending = Some(ring.send(Socket::Slot(slot), next, slot, has_more));
                return;
            }
        }
        // As long as all is well there is nothing else to do.
        let flow = &self.flows[slot as usize];
        if flow.receiving.is_none() || flow.is_cut || self.is_ending {
            self.advance(slot, ring, cache);
        }
    }

    /// A flow was reset, so that it may be closed.
    pub(super) fn reset(&mut self, slot: u32, ring: &mut Ring) {
        debug_assert!(self.flows[slot as usize].is_closing, "it is reset to be closed");
        ring.close_slot(slot, slot);
    }

    /// A place was closed.
    pub(super) fn closed(&mut self, slot: u32) {
        let flow = &mut self.flows[slot as usize];
        if let Some(left) = flow.closes_due.checked_sub(1) {
            flow.closes_due = left; // That of another flow, whose place this one has.
        } else {
            debug_assert!(flow.is_open && flow.waiting.is_empty());
            flow.is_open = false;
        }
        self.open -= 1;
        self.limit.open.fetch_sub(1, Ordering::Relaxed);
        self.counters.add(Count::Closed, 1);
    }

    fn respond(&mut self, slot: u32, ring: &mut Ring, cache: &mut PoolCache) {
        self.respond_with(slot, None, ring, cache);
    }

    /// Goes on with the response that is due, or with the next request that waits. `spare`: a frame to respond with.
    fn respond_with(&mut self, slot: u32, spare: Option<Frame>, ring: &mut Ring, cache: &mut PoolCache) {
        let responder = self.responder.as_ref().expect("it responds");
        let (flow, request) = (&mut self.flows[slot as usize], &mut self.requests[slot as usize]);
        let mut spare = spare;
        while flow.sending.is_none() && !flow.is_cut {
            if !request.is_answering() {
                let Some(mut frame) = self.backlog.pop_front(&mut flow.waiting) else { break };
                let taken = request.take(&frame, responder);
                if taken < frame.len() {
                    frame.trim_front(taken);
                    self.backlog.push_front(&mut flow.waiting, frame);
                } else if spare.is_none() {
                    spare = Some(frame);
                } else {
                    cache.free(frame);
                }
                continue;
            }
            let Some(mut frame) = spare.take().or_else(|| cache.alloc()) else {
                self.counters.add(Count::NoBuffer, 1);
                self.wait_for_frame(slot);
                return;
            };
            let has_more = request.fill(&mut frame);
            flow.sending = Some(ring.send(Socket::Slot(slot), frame, slot, has_more));
        }
        if let Some(frame) = spare {
            cache.free(frame);
        }
    }

    fn wait_for_frame(&mut self, slot: u32) {
        let flow = &mut self.flows[slot as usize];
        if !flow.is_hungry {
            flow.is_hungry = true;
            self.hungry.push_back(slot);
        }
    }

    /// Lets up to `frames` flows that waited for a frame go on.
    pub(super) fn feed(&mut self, frames: usize, ring: &mut Ring, cache: &mut PoolCache) {
        for _ in 0..frames.min(self.hungry.len()) {
            let slot = self.hungry.pop_front().expect("there are as many");
            self.flows[slot as usize].is_hungry = false;
            if self.responder.is_some() && self.flows[slot as usize].is_open {
                self.respond(slot, ring, cache);
            }
            self.advance(slot, ring, cache);
        }
    }

    /// An operation failed: the flow is over.
    fn fail(&mut self, slot: u32, error: i32, otherwise: Count) {
        let flow = &mut self.flows[slot as usize];
        if !flow.is_cut && error != libc::ECANCELED {
            let is_reset = matches!(error, libc::ECONNRESET | libc::EPIPE);
            self.counters.add(if is_reset { Count::Resets } else { otherwise }, 1);
        }
        flow.is_cut = true;
    }

    /// Does what a flow's state asks for: receives again, ends our direction, closes.
    fn advance(&mut self, slot: u32, ring: &mut Ring, cache: &mut PoolCache) {
        let flow = &mut self.flows[slot as usize];
        if !flow.is_open || flow.is_closing {
            return;
        }
        if flow.is_cut {
            while let Some(frame) = self.backlog.pop_front(&mut flow.waiting) {
                cache.free(frame);
            }
            if let Some(receiving) = flow.receiving.filter(|_| !flow.is_pausing) {
                flow.is_pausing = true;
                ring.cancel(receiving);
            }
        }
        let is_answering =
            !flow.is_cut && self.requests.get(slot as usize).is_some_and(Request::is_answering);
        let is_idle = flow.waiting.is_empty() && flow.sending.is_none() && !is_answering;
        if is_idle && (flow.has_ended || flow.is_cut) {
            if flow.receiving.is_none() {
                flow.is_closing = true;
                if flow.is_unfinished {
                    ring.reset(slot, slot);
                } else {
                    ring.close_slot(slot, slot);
                }
            }
            return;
        }
        if is_idle && self.is_ending && !flow.is_shut {
            flow.is_shut = true;
            ring.shut_down(slot, slot);
        }
        let may_receive = flow.receiving.is_none() && !flow.has_ended && !flow.is_cut && !flow.is_hungry;
        if may_receive && flow.waiting.is_empty() {
            flow.receiving = Some(ring.receive(Socket::Slot(slot), slot));
        }
    }

    /// Ends every flow in an orderly way: what was received is answered, then our direction ends.
    pub(super) fn begin_end(&mut self, ring: &mut Ring, cache: &mut PoolCache) {
        self.is_ending = true;
        for slot in 0..self.flows.len() as u32 {
            self.advance(slot, ring, cache);
        }
    }

    /// Ends every flow that is left at once: an end in order would have a cut response look like a whole one.
    pub(super) fn cut_all(&mut self, ring: &mut Ring, cache: &mut PoolCache) {
        for slot in 0..self.flows.len() as u32 {
            let flow = &mut self.flows[slot as usize];
            if !flow.is_open || flow.is_closing {
                continue;
            }
            if !flow.is_cut {
                self.counters.add(Count::Cut, 1);
                flow.is_unfinished = true;
            }
            flow.is_cut = true;
            if let Some(sending) = flow.sending {
                ring.cancel(sending);
            }
            self.advance(slot, ring, cache);
        }
    }

    /// Frames that wait here.
    pub(super) fn waiting(&self) -> usize {
        self.backlog.waiting()
    }

    /// Gives back what still waits, once the ring is closed.
    pub(super) fn close(&mut self, cache: &mut PoolCache) {
        for flow in &mut self.flows {
            while let Some(frame) = self.backlog.pop_front(&mut flow.waiting) {
                cache.free(frame);
            }
        }
    }
}
