//! Requests and responses: what a flow sends, when, and what has to come back.

use std::time::Duration;

use sheafio_mempool::{PoolCache, sync::add};

use super::{
    client::{Client, Stage, State},
    options::Proto,
    pattern::Pattern,
};
use crate::{echo::REPEATED_BYTES, uring::Completion};

/// How long the answer to a datagram is waited for.
const ANSWER_TIME_NS: u64 = 1_000_000_000;
/// How many transactions back a late datagram is looked for.
const MOST_LATE: u64 = 16;

impl Client {
    /// Starts to receive on a flow.
    pub(super) fn receive(&mut self, at: usize) {
        let socket = Self::socket(&self.sockets, self.has_table, at);
        self.flows[at].receiving = Some(self.ring.receive(socket, at as u32));
    }

    /// Begins the next transaction of a flow, if it is idle; its latency counts from `begun_ns` on.
    #[inline]
    pub(super) fn begin(&mut self, at: usize, begun_ns: u64, cache: &mut PoolCache) {
        let flow = &mut self.flows[at];
        if flow.state != State::Idle {
            return;
        }
        flow.state = State::Busy;
        (flow.sent_bytes, flow.came_bytes) = (0, 0);
        (flow.begun_ns, flow.since_ns) = (begun_ns, self.now_ns);
        self.send_more(at, cache);
    }

    /// Sends what is left of the request, as much as a frame holds.
    #[inline]
    fn send_more(&mut self, at: usize, cache: &mut PoolCache) {
        let flow = &mut self.flows[at];
        if flow.is_sending {
            return;
        }
        let Some(mut frame) = cache.alloc() else {
            self.hungry.push_back((at as u32, false));
            return;
        };
        let len = frame.tailroom().min((self.plan.args.size - flow.sent_bytes) as usize);
        let pattern = Pattern::new(self.plan.salt, self.first + at as u32, flow.transaction);
        pattern.write(flow.sent_bytes, frame.append(len).expect("there is room for it"));
        flow.is_sending = true;
        let socket = Self::socket(&self.sockets, self.has_table, at);
        let has_more = flow.sent_bytes as usize + len < self.plan.args.size as usize;
        self.ring.send(socket, frame, at as u32, has_more);
    }

    #[inline]
    pub(super) fn sent(&mut self, done: Completion, cache: &mut PoolCache) {
        let at = done.number as usize;
        cache.free(done.frame.expect("it was sent from a frame"));
        let flow = &mut self.flows[at];
        flow.is_sending = false;
        if flow.state != State::Busy {
            return; // Given up meanwhile.
        }
        let Ok(count) = u32::try_from(done.result) else { return self.fail(at, -done.result) };
        flow.sent_bytes += count;
        if flow.sent_bytes < self.plan.args.size {
            self.send_more(at, cache);
        } else {
            self.end_if_complete(at, cache);
        }
    }

    #[inline]
    pub(super) fn received(&mut self, done: Completion, cache: &mut PoolCache) {
        let at = done.number as usize;
        let is_udp = self.plan.args.proto == Proto::Udp;
        if !done.has_more {
            self.flows[at].receiving = None;
        }
        if let Some(frame) = done.frame {
            if done.result > 0 || is_udp && done.result == 0 {
                self.verify(at, &frame, is_udp);
            }
            cache.free(frame);
            self.end_if_complete(at, cache);
        }
        if done.has_more || !matches!(self.flows[at].state, State::Idle | State::Busy) {
            return;
        }
        match -done.result {
            0 if !is_udp => {
                self.outcome.closed += 1;
                self.kill(at, |flow| format!("flow {flow}: the server has closed the connection"));
            }
            libc::ENOBUFS => self.hungry.push_back((at as u32, true)),
            error if error > 0 && error != libc::ECANCELED => self.fail(at, error),
            _ => self.receive(at),
        }
    }

    /// Compares what came with what has to come.
    #[inline]
    fn verify(&mut self, at: usize, bytes: &[u8], is_udp: bool) {
        let flow = &self.flows[at];
        if !matches!(flow.state, State::Idle | State::Busy) {
            return;
        }
        let (from, transaction) = (flow.came_bytes, flow.transaction);
        let whole = self.plan.args.response_bytes();
        let is_asked = flow.state == State::Busy && bytes.len() <= (whole - from) as usize;
        let wrong = if is_asked { self.response(at, transaction).wrong(from, bytes) } else { bytes.len() };
        if wrong == 0 && (!is_udp || bytes.len() == whole as usize) {
            self.flows[at].came_bytes += bytes.len() as u32;
            return;
        }
        if is_udp && self.is_late_answer(at, bytes) {
            self.outcome.late += 1;
            return;
        }
        // A datagram may have the right bytes and lack some.
        self.outcome.wrong_bytes += wrong.max(1) as u64;
        let len = bytes.len();
        self.kill(at, |flow| {
            if is_asked {
                format!(
                    "flow {flow}: {wrong} wrong bytes among {len} that came from byte {from} on of the response to request \
                     {transaction}"
                )
            } else {
                format!("flow {flow}: {len} bytes came that nobody asked for, after request {transaction}")
            }
        });
    }

    /// The bytes of a response.
    fn response(&self, at: usize, transaction: u64) -> Pattern {
        let pattern = Pattern::new(self.plan.salt, self.first + at as u32, transaction);
        match self.plan.args.response_size {
            Some(_) => pattern.repeated(self.plan.args.size.min(REPEATED_BYTES as u32)),
            None => pattern,
        }
    }

    /// Whether a datagram answers a request that is not waited for any more.
    fn is_late_answer(&self, at: usize, bytes: &[u8]) -> bool {
        let (lost_from, now) = (self.flows[at].lost_from, self.flows[at].transaction);
        let oldest = lost_from.max(now.saturating_sub(MOST_LATE));
        bytes.len() == self.plan.args.response_bytes() as usize
            && (oldest..now).any(|lost| self.response(at, lost).wrong(0, bytes) == 0)
    }

    /// Ends the transaction of a flow if all of its request is sent and all of its response came.
    #[inline]
    fn end_if_complete(&mut self, at: usize, cache: &mut PoolCache) {
        let flow = &mut self.flows[at];
        let is_complete = flow.state == State::Busy
            && !flow.is_sending
            && flow.sent_bytes == self.plan.args.size
            && flow.came_bytes == self.plan.args.response_bytes();
        if !is_complete {
            return;
        }
        self.outcome.latency_ns.saturating_record(self.now_ns.saturating_sub(flow.begun_ns).max(1));
        if matches!(self.stage, Stage::Running { .. }) {
            add(&self.progress.transactions, 1);
        } else {
            self.outcome.after_end += 1;
        }
        self.begin_next(at, cache);
    }

    /// The transaction of a flow is over: begins the next one, if there is to be one now.
    fn begin_next(&mut self, at: usize, cache: &mut PoolCache) {
        let flow = &mut self.flows[at];
        (flow.state, flow.transaction) = (State::Idle, flow.transaction + 1);
        let due = flow.due;
        let Stage::Running { start_ns, .. } = self.stage else { return };
        match self.rate() {
            None => self.begin(at, self.now_ns, cache),
            Some(rate) if due > 0 => {
                let flow = &mut self.flows[at];
                flow.due -= 1;
                let number = flow.transaction * self.flows.len() as u64 + at as u64;
                self.begin(at, due_ns(start_ns, rate, number), cache);
            }
            Some(_) => {}
        }
    }

    /// Transactions/s of this thread, in the open loop.
    pub(super) fn rate(&self) -> Option<f64> {
        let share = self.flows.len() as f64 / f64::from(self.plan.args.flows);
        self.plan.args.rate.map(|rate| rate * share)
    }

    /// Begins every transaction that is due, flow by flow in turn. Returns how long none will be.
    pub(super) fn begin_due(&mut self, start_ns: u64, rate: f64, cache: &mut PoolCache) -> Duration {
        loop {
            let due_ns = due_ns(start_ns, rate, self.due);
            if due_ns > self.now_ns {
                return Duration::from_nanos(due_ns - self.now_ns);
            }
            let at = (self.due % self.flows.len() as u64) as usize;
            self.due += 1;
            match self.flows[at].state {
                State::Idle => self.begin(at, due_ns, cache),
                // A dead flow's are due all the same, and count as what they are: not sent.
                _ => self.flows[at].due += 1,
            }
        }
    }

    /// At the end of the run: what is due by then, and will not be begun.
    pub(super) fn count_due(&mut self, start_ns: u64, end_ns: u64) {
        let Some(rate) = self.rate() else { return };
        while due_ns(start_ns, rate, self.due) < end_ns {
            let at = (self.due % self.flows.len() as u64) as usize;
            self.due += 1;
            self.flows[at].due += 1;
        }
    }

    /// Does not wait any longer for answers to datagrams; they count with what they have waited.
    pub(super) fn give_up_answers(&mut self, cache: &mut PoolCache) {
        for at in 0..self.flows.len() {
            let flow = &mut self.flows[at];
            let is_late = flow.state == State::Busy
                && !flow.is_sending
                && flow.sent_bytes == self.plan.args.size
                && self.now_ns.saturating_sub(flow.since_ns) >= ANSWER_TIME_NS;
            if is_late {
                self.outcome.timeouts += 1;
                self.outcome.latency_ns.saturating_record(self.now_ns.saturating_sub(flow.begun_ns).max(1));
                flow.lost_from = flow.lost_from.min(flow.transaction);
                self.begin_next(at, cache);
            }
        }
    }

    /// Counts what is not answered, with the time that it has waited. In the open loop that is all that was due, on dead
    /// flows too; in the closed loop a dead flow has nothing due, and the request that it died of is its error.
    pub(super) fn count_unfinished(&mut self) {
        let is_open_loop = self.plan.args.rate.is_some();
        for flow in &self.flows {
            let is_unfinished = flow.state == State::Busy;
            self.outcome.unfinished += u64::from(is_unfinished);
            if is_unfinished || flow.is_broken && is_open_loop {
                self.outcome.latency_ns.saturating_record(self.now_ns.saturating_sub(flow.begun_ns).max(1));
            }
        }
        let Some(rate) = self.rate() else { return };
        let flows = self.flows.len() as u64;
        let start_ns = self.plan.start_ns.load(std::sync::atomic::Ordering::Relaxed);
        for (at, flow) in self.flows.iter().enumerate() {
            self.outcome.unsent += flow.due;
            let next = flow.transaction + u64::from(flow.state == State::Busy || flow.is_broken);
            for number in next..next + flow.due {
                let waited = self.now_ns.saturating_sub(due_ns(start_ns, rate, number * flows + at as u64));
                self.outcome.latency_ns.saturating_record(waited.max(1));
            }
        }
    }

    fn fail(&mut self, at: usize, error: i32) {
        match error {
            libc::ECONNRESET | libc::EPIPE => self.outcome.resets += 1,
            _ => self.outcome.failed += 1,
        }
        self.kill(at, |flow| format!("flow {flow}: {}", std::io::Error::from_raw_os_error(error)));
    }

    /// Lets flows go on that waited for a frame.
    pub(super) fn feed(&mut self, cache: &mut PoolCache) {
        for _ in 0..self.hungry.len().min(self.ring.filled_buffers()) {
            let (at, is_reception) = self.hungry.pop_front().expect("there are as many");
            let at = at as usize;
            match self.flows[at].state {
                State::Idle | State::Busy if is_reception && self.flows[at].receiving.is_none() => {
                    self.receive(at);
                }
                State::Busy if !is_reception => self.send_more(at, cache),
                _ => {}
            }
        }
    }
}

/// When a transaction of the open loop is due.
fn due_ns(start_ns: u64, rate: f64, number: u64) -> u64 {
    start_ns + (number as f64 * 1e9 / rate) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_due_evenly_and_for_ages() {
        assert_eq!((due_ns(5, 1000.0, 0), due_ns(5, 1000.0, 3)), (5, 3_000_005));
        // A million a second for a day: to the microsecond.
        let number = 86_400_000_000;
        assert!(due_ns(0, 1e6, number).abs_diff(number * 1000) < 1000);
    }
}
