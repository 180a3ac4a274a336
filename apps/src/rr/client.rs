//! A thread of the client: its ring, its flows, and how far the run is.
//!
//! Owns: ring, sockets and flows. Never does: wait for one flow while another could go on; sleep past the start, or past
//! what is due. Invariant: `alive` flows are those that are connected and well; every other one has been counted as an
//! error by its reason, unless the run was ended while it was to be connected.
//!
//! `connect` makes and connects the sockets, `exchange` is requests and responses.

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use rustix::net::{Shutdown, SocketAddrAny, shutdown};
use sheafio_core::{Closed, Stop};
use sheafio_mempool::{
    PoolCache,
    sync::{AtomicU64, add},
};

use super::options::{Proto, RrArgs};
use crate::uring::{Completion, Kind, Operation, Rest, Ring, Socket};

/// How long answers may come after the end. On TCP long enough for what is lost to be sent again some times
/// (RFC 6298: after 200 ms at the least here, then after twice as long each).
const TCP_DRAIN_TIME: Duration = Duration::from_secs(5);
const UDP_DRAIN_TIME: Duration = Duration::from_secs(1);
/// How often a thread whose flows are connected looks for the start. It must be less than the start is told ahead
/// (`mod.rs`, `START_LEAD`).
const READY_INTERVAL: Duration = Duration::from_millis(1);
/// How often flows are looked through for what has taken too long.
const LOOK_INTERVAL_NS: u64 = 50_000_000;
/// The longest latency that is told exactly; longer ones count as this.
const LONGEST_LATENCY_NS: u64 = 3_600_000_000_000;

/// What all threads know.
pub(super) struct Plan {
    pub(super) args: RrArgs,
    pub(super) targets: Vec<&'static SocketAddrAny>,
    pub(super) sources: Vec<SocketAddrAny>,
    /// Tells this run's bytes from those of others.
    pub(super) salt: u64,
    /// When the threads were started; all times are nanoseconds since then.
    pub(super) base: Instant,
    /// From when on requests are to be sent, as soon as that is known, and ahead of it; 0 before.
    pub(super) start_ns: AtomicU64,
    /// The run is to end.
    pub(super) stop: Stop,
}

/// What a thread shows while it runs. It alone writes here.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Progress {
    pub(super) connected: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) alive: AtomicU64,
    pub(super) transactions: AtomicU64,
    /// All its flows are connected, or could not be.
    pub(super) is_ready: AtomicBool,
}

/// What a thread has found out.
pub(super) struct Outcome {
    pub(super) latency_ns: Histogram<u64>,
    /// How long requests were sent: to the end, or until it was stopped, or no flow was left. 0: never.
    pub(super) ran_ns: u64,
    /// By the error's number.
    pub(super) connect_errors: BTreeMap<i32, u64>,
    pub(super) resets: u64,
    pub(super) closed: u64,
    pub(super) failed: u64,
    pub(super) wrong_bytes: u64,
    pub(super) timeouts: u64,
    pub(super) late: u64,
    pub(super) unfinished: u64,
    pub(super) unsent: u64,
    /// Answered after the end.
    pub(super) after_end: u64,
    /// The first flow with wrong bytes, or another failure, in words.
    pub(super) first: Option<String>,
}

impl Outcome {
    pub(super) fn new() -> Self {
        Self {
            latency_ns: Histogram::new_with_bounds(1, LONGEST_LATENCY_NS, 3).expect("bounds that make sense"),
            ran_ns: 0,
            connect_errors: BTreeMap::new(),
            resets: 0,
            closed: 0,
            failed: 0,
            wrong_bytes: 0,
            timeouts: 0,
            late: 0,
            unfinished: 0,
            unsent: 0,
            after_end: 0,
            first: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not connected yet.
    New,
    Connecting,
    /// Connected, and no request is under way.
    Idle,
    /// A request was begun, and its response has not all come.
    Busy,
    Dead,
}

#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) state: State,
    pub(super) is_sending: bool,
    pub(super) receiving: Option<Operation>,
    /// The number of the transaction that is under way, or of the next one.
    pub(super) transaction: u64,
    /// Bytes of its request that are sent, and of its response that came.
    pub(super) sent_bytes: u32,
    pub(super) came_bytes: u32,
    /// From when its latency counts.
    pub(super) begun_ns: u64,
    /// When it was really begun, for time-outs.
    pub(super) since_ns: u64,
    /// Transactions that are due and wait for this one, or for ever if the flow is dead.
    pub(super) due: u64,
    /// It died while a request was under way.
    pub(super) is_broken: bool,
    /// UDP: the first transaction whose answer may still come late.
    pub(super) lost_from: u64,
    pub(super) connecting: Option<Operation>,
}

impl Flow {
    const NEW: Self = Self {
        state: State::New,
        is_sending: false,
        receiving: None,
        transaction: 0,
        sent_bytes: 0,
        came_bytes: 0,
        begun_ns: 0,
        since_ns: 0,
        due: 0,
        is_broken: false,
        lost_from: u64::MAX,
        connecting: None,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    /// All flows are connected; other threads may not be that far.
    Ready,
    Running {
        start_ns: u64,
        end_ns: u64,
    },
    /// Nothing is sent any more; answers may come.
    Draining {
        until_ns: u64,
        /// It was stopped before, so being stopped means nothing more.
        was_stopped: bool,
    },
    Done,
}

pub(super) struct Client {
    pub(super) ring: Ring,
    pub(super) flows: Vec<Flow>,
    pub(super) sockets: Vec<Option<OwnedFd>>,
    /// The number of the first flow among those of all threads.
    pub(super) first: u32,
    pub(super) plan: Arc<Plan>,
    pub(super) progress: Arc<Progress>,
    pub(super) outcome: Outcome,
    pub(super) stage: Stage,
    pub(super) now_ns: u64,
    /// Sockets are in the ring's table of files.
    pub(super) has_table: bool,
    /// Connecting: the next flow to connect, and how many are being connected.
    pub(super) next_connect: usize,
    pub(super) connecting: usize,
    /// Flows that wait for a frame: to receive into (`true`), or to send from.
    pub(super) hungry: VecDeque<(u32, bool)>,
    /// Open loop: how many transactions were due so far.
    pub(super) due: u64,
    alive: usize,
    next_look_ns: u64,
    rest: Rest,
    done: Stop,
}

impl Client {
    pub(super) fn new(
        ring: Ring,
        first: u32,
        flows: usize,
        plan: Arc<Plan>,
        progress: Arc<Progress>,
        done: Stop,
    ) -> Self {
        let rest = Rest::new(plan.args.idle.into());
        Self {
            ring,
            flows: vec![Flow::NEW; flows],
            sockets: (0..flows).map(|_| None).collect(),
            first,
            plan,
            progress,
            outcome: Outcome::new(),
            stage: Stage::Connecting,
            now_ns: 0,
            has_table: false,
            next_connect: 0,
            connecting: 0,
            hungry: VecDeque::with_capacity(2 * flows),
            due: 0,
            alive: 0,
            next_look_ns: 0,
            rest,
            done,
        }
    }

    /// One turn. Returns how many completions there were.
    #[inline]
    pub(super) fn poll(&mut self, cache: &mut PoolCache) -> usize {
        self.ring.turn(cache);
        self.now_ns = self.plan.base.elapsed().as_nanos() as u64;
        let mut work = 0;
        while let Some(done) = self.ring.next() {
            work += 1;
            self.complete(done, cache);
        }
        if !self.hungry.is_empty() {
            self.feed(cache);
        }
        let until_work = self.go_on(cache);
        if work > 0 {
            self.rest.worked();
        } else {
            self.rest.found_nothing(&self.ring, until_work);
        }
        work
    }

    #[inline]
    fn complete(&mut self, done: Completion, cache: &mut PoolCache) {
        match done.kind {
            Kind::Receive => self.received(done, cache),
            Kind::Send => self.sent(done, cache),
            Kind::Connect => self.connected(&done),
            _ => {}
        }
    }

    /// Does what is due in this stage. Returns how long nothing will be.
    #[inline]
    fn go_on(&mut self, cache: &mut PoolCache) -> Option<Duration> {
        let is_stopped = self.plan.stop.is_raised();
        let mut until_work = None;
        match self.stage {
            Stage::Connecting => {
                if is_stopped {
                    self.finish();
                } else if self.connect_more() {
                    self.get_ready();
                }
            }
            Stage::Ready => match self.plan.start_ns.load(Ordering::Relaxed) {
                _ if is_stopped => self.finish(),
                0 => until_work = Some(READY_INTERVAL),
                start_ns if self.now_ns < start_ns => {
                    until_work = Some(Duration::from_nanos(start_ns - self.now_ns));
                }
                start_ns => {
                    let end_ns = start_ns.saturating_add(self.plan.args.duration.as_nanos() as u64);
                    self.stage = Stage::Running { start_ns, end_ns };
                    match self.rate() {
                        Some(rate) => until_work = Some(self.begin_due(start_ns, rate, cache)),
                        None => (0..self.flows.len()).for_each(|at| self.begin(at, self.now_ns, cache)),
                    }
                }
            },
            Stage::Running { start_ns, end_ns } => {
                if self.now_ns >= end_ns || is_stopped || self.alive == 0 {
                    let end_ns = self.now_ns.min(end_ns);
                    self.outcome.ran_ns = end_ns - start_ns;
                    self.count_due(start_ns, end_ns);
                    let drain = match self.plan.args.proto {
                        Proto::Tcp => TCP_DRAIN_TIME,
                        Proto::Udp => UDP_DRAIN_TIME,
                    };
                    let until_ns = end_ns + drain.as_nanos() as u64;
                    self.stage = Stage::Draining { until_ns, was_stopped: is_stopped };
                } else if let Some(rate) = self.rate() {
                    until_work = Some(self.begin_due(start_ns, rate, cache));
                }
            }
            Stage::Draining { until_ns, was_stopped } => {
                let is_over = self.flows.iter().all(|flow| flow.state != State::Busy);
                if is_over || self.now_ns >= until_ns || is_stopped && !was_stopped {
                    if self.plan.args.proto == Proto::Udp {
                        // All that was sent is old enough by the end, also what was not when it was looked through last.
                        self.give_up_answers(cache);
                    }
                    self.count_unfinished();
                    self.finish();
                }
            }
            Stage::Done => {}
        }
        if self.now_ns >= self.next_look_ns {
            self.next_look_ns = self.now_ns + LOOK_INTERVAL_NS;
            self.look_for_late(cache);
        }
        until_work
    }

    fn finish(&mut self) {
        self.stage = Stage::Done;
        self.done.raise();
    }

    fn look_for_late(&mut self, cache: &mut PoolCache) {
        match self.stage {
            Stage::Connecting => self.give_up_connecting(),
            Stage::Running { .. } | Stage::Draining { .. } if self.plan.args.proto == Proto::Udp => {
                self.give_up_answers(cache);
            }
            _ => {}
        }
    }

    /// A flow's socket, as operations name it.
    #[inline]
    pub(super) fn socket(sockets: &[Option<OwnedFd>], has_table: bool, at: usize) -> Socket<'_> {
        if has_table {
            return Socket::Slot(at as u32);
        }
        Socket::Fd(sockets[at].as_ref().expect("it is connected").as_fd())
    }

    /// The flow is connected.
    pub(super) fn add_alive(&mut self) {
        self.alive += 1;
        add(&self.progress.alive, 1);
        add(&self.progress.connected, 1);
    }

    /// Ends a flow that was connected; its reason is counted by the caller, who says the first one in words.
    pub(super) fn kill(&mut self, at: usize, why: impl FnOnce(u32) -> String) {
        let flow = &mut self.flows[at];
        debug_assert!(matches!(flow.state, State::Idle | State::Busy));
        flow.is_broken = flow.state == State::Busy;
        flow.state = State::Dead;
        if let Some(receiving) = flow.receiving {
            self.ring.cancel(receiving);
        }
        if self.plan.args.proto == Proto::Tcp
            && let Some(socket) = &self.sockets[at]
        {
            // The server is to know too: closing would not tell it while the ring's table has the socket. One that is
            // reset has no other side, which is an error and nothing to mend.
            let _ = shutdown(socket, Shutdown::Both);
        }
        self.alive -= 1;
        self.progress.alive.store(self.alive as u64, Ordering::Relaxed);
        let number = self.first + at as u32;
        self.outcome.first.get_or_insert_with(|| why(number));
    }

    /// Gives all frames back, closes the sockets, and tells what was found out.
    pub(super) fn close(self, cache: &mut PoolCache) -> (Outcome, Closed) {
        let closed = self.ring.close(cache);
        (self.outcome, closed)
    }
}

#[cfg(test)]
mod tests;
