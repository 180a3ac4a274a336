//! The data path of an lcore: turns of its ring, and what completions lead to.
//!
//! Owns: the ring, the lcore's sockets, and its flows. Never does: more than one system call a turn as a rule; ask again at
//! once for what fails for good. Invariant: the lcore's loop ends only by `is_done`, once no flow and no reception is left,
//! or there is no time for them.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use sheafio_core::{Closed, IdlePolicy, QueueCounters, Stop};
use sheafio_mempool::{Frame, PoolCache};
use sheafio_net::host::is_chatterer;

use super::{
    counts::{Count, Counters},
    listen::Listening,
    streams::Streams,
};
use crate::echo::response::{Responder, answer_datagram};
use crate::uring::{Completion, DATAGRAM_START, DatagramHeader, Kind, Operation, Rest, Ring};

/// How long clients have to end their connections, once we have ended ours.
const END_TIME: Duration = Duration::from_millis(1500);
/// How long it may then take to close what is left.
const CUT_TIME: Duration = Duration::from_millis(300);
/// How long after a failure the same is tried again: who has no memory or no files is not served by asking in each turn.
const PAUSE: Duration = Duration::from_millis(10);

/// A listener, or a socket for datagrams.
struct Source {
    fd: OwnedFd,
    operation: Option<Operation>,
    /// It waits for a frame.
    is_hungry: bool,
    /// It has ended, and begins again then.
    again_at: Option<Instant>,
}

impl Source {
    fn new(fd: OwnedFd) -> Self {
        Self { fd, operation: None, is_hungry: false, again_at: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    /// Nothing new is taken; flows end.
    Ending(Instant),
    /// What is left is closed at once.
    Cutting(Instant),
    Done,
}

pub(super) struct Server {
    ring: Ring,
    streams: Streams,
    listeners: Vec<Source>,
    sockets: Vec<Source>,
    /// Some of them wait to begin again.
    has_ended_sources: bool,
    udp_ports: Vec<u16>,
    responder: Option<Responder>,
    counters: Arc<Counters>,
    /// How many frames the lcore holds.
    held: Arc<QueueCounters>,
    rest: Rest,
    stage: Stage,
    /// The whole server is to end.
    stop: Stop,
    /// This lcore has.
    done: Stop,
}

/// What a server is made of.
pub(super) struct Parts {
    pub(super) ring: Ring,
    pub(super) streams: Streams,
    pub(super) listening: Listening,
    pub(super) udp_ports: Vec<u16>,
    pub(super) responder: Option<Responder>,
    pub(super) counters: Arc<Counters>,
    pub(super) held: Arc<QueueCounters>,
    pub(super) idle: IdlePolicy,
    pub(super) stop: Stop,
    pub(super) done: Stop,
}

impl Server {
    /// Starts to accept and to receive.
    pub(super) fn new(parts: Parts) -> Self {
        let mut server = Self {
            ring: parts.ring,
            streams: parts.streams,
            listeners: parts.listening.tcp.into_iter().map(Source::new).collect(),
            sockets: parts.listening.udp.into_iter().map(Source::new).collect(),
            has_ended_sources: false,
            udp_ports: parts.udp_ports,
            responder: parts.responder,
            counters: parts.counters,
            held: parts.held,
            rest: Rest::new(parts.idle),
            stage: Stage::Serving,
            stop: parts.stop,
            done: parts.done,
        };
        (0..server.listeners.len() as u32).for_each(|number| server.accept(number));
        (0..server.sockets.len() as u32).for_each(|number| server.receive_datagrams(number));
        server
    }

    /// One turn. Returns how many completions there were.
    #[inline]
    pub(super) fn poll(&mut self, cache: &mut PoolCache) -> usize {
        self.ring.turn(cache);
        if self.has_ended_sources {
            self.begin_again();
        }
        let mut work = 0;
        while let Some(done) = self.ring.next() {
            work += 1;
            self.complete(done, cache);
        }
        self.feed(cache);
        if self.stage != Stage::Serving || self.stop.is_raised() {
            self.end(cache);
        }
        self.held.set_held((self.ring.held() + self.streams.waiting()) as u64);
        if work > 0 {
            self.rest.worked();
        } else {
            self.rest.found_nothing(&self.ring, None);
        }
        work
    }

    #[inline]
    fn complete(&mut self, done: Completion, cache: &mut PoolCache) {
        match done.kind {
            Kind::Receive => self.streams.received(done, &mut self.ring, cache),
            Kind::Send => self.streams.sent(done, &mut self.ring, cache),
            Kind::ReceiveDatagrams => self.received_datagram(done, cache),
            Kind::SendDatagram => self.sent_datagram(done, cache),
            Kind::Accept => self.accepted(&done),
            Kind::Reset => self.streams.reset(done.number, &mut self.ring),
            Kind::Close => self.streams.closed(done.number),
            // What they fail for shows elsewhere: the client has gone before us, the operation has ended before.
            Kind::Shutdown | Kind::Cancel | Kind::Connect => {}
        }
    }

    fn accept(&mut self, number: u32) {
        let listener = &mut self.listeners[number as usize];
        listener.operation = Some(self.ring.accept(listener.fd.as_fd(), number));
    }

    fn accepted(&mut self, done: &Completion) {
        let mut pause = Duration::ZERO;
        if done.result >= 0 {
            self.streams.accepted(done.result as u32, &mut self.ring);
        } else {
            match -done.result {
                libc::ECANCELED => {}
                // Our table of files is full: the kernel has closed the connection.
                libc::ENFILE if self.streams.is_full() => self.counters.add(Count::FlowsRefused, 1),
                // The machine's is, or there is no memory: the connection is still to be accepted.
                _ => {
                    self.counters.add(Count::AcceptErrors, 1);
                    pause = PAUSE;
                }
            }
        }
        if !done.has_more {
            let listener = &mut self.listeners[done.number as usize];
            (listener.operation, listener.again_at) = (None, Some(Instant::now() + pause));
            self.has_ended_sources = true;
        }
    }

    /// Begins again what has ended and is due. This comes first in a turn, so that nothing lies in front of it in what is
    /// handed over next: an accept behind a close could have that flow's place, and some kernels would tell of it first.
    #[cold]
    fn begin_again(&mut self) {
        let now = Instant::now();
        let is_due = |source: &mut Source| source.again_at.take_if(|at| *at <= now).is_some();
        for number in 0..self.listeners.len() {
            if is_due(&mut self.listeners[number]) && self.stage == Stage::Serving {
                self.accept(number as u32);
            }
        }
        for number in 0..self.sockets.len() {
            if is_due(&mut self.sockets[number]) && self.stage == Stage::Serving {
                self.receive_datagrams(number as u32);
            }
        }
        let mut sources = self.listeners.iter().chain(&self.sockets);
        self.has_ended_sources = sources.any(|source| source.again_at.is_some());
    }

    fn receive_datagrams(&mut self, number: u32) {
        let socket = &mut self.sockets[number as usize];
        socket.operation = Some(self.ring.receive_datagrams(socket.fd.as_fd(), number));
    }

    fn received_datagram(&mut self, done: Completion, cache: &mut PoolCache) {
        if let Some(frame) = done.frame {
            self.answer(frame, done.number, cache);
        }
        if done.has_more {
            return;
        }
        let socket = &mut self.sockets[done.number as usize];
        socket.operation = None;
        match -done.result {
            libc::ENOBUFS => {
                self.counters.add(Count::NoBuffer, 1);
                socket.is_hungry = true;
                return;
            }
            error if error > 0 && error != libc::ECANCELED => {
                self.counters.add(Count::ReceiveErrors, 1);
                socket.again_at = Some(Instant::now() + PAUSE);
                self.has_ended_sources = true;
                return;
            }
            _ => {}
        }
        if self.stage == Stage::Serving {
            self.receive_datagrams(done.number);
        }
    }

    /// Sends a datagram back to where it came from, or its response.
    fn answer(&mut self, mut frame: Frame, number: u32, cache: &mut PoolCache) {
        let Some(header) = DatagramHeader::read(&frame) else { return cache.free(frame) };
        self.counters.add(Count::RxBytes, (frame.len() - DATAGRAM_START) as u64);
        let dropped_for = if header.is_cut {
            Some(Count::UdpTooLarge)
        } else if header.is_to_group {
            Some(Count::UdpGroup)
        } else if header.port == 0 {
            Some(Count::UdpPortZero)
        } else if is_chatterer(header.port) || self.udp_ports.contains(&header.port) {
            Some(Count::UdpLoop)
        } else {
            None
        };
        if let Some(reason) = dropped_for {
            self.counters.add(reason, 1);
            return cache.free(frame);
        }
        if let Some(responder) = self.responder {
            answer_datagram(&mut frame, DATAGRAM_START, responder.response_bytes);
        }
        self.ring.send_back(self.sockets[number as usize].fd.as_fd(), frame, number);
    }

    fn sent_datagram(&mut self, done: Completion, cache: &mut PoolCache) {
        cache.free(done.frame.expect("it was sent from a frame"));
        match u64::try_from(done.result) {
            Ok(sent) => {
                self.counters.add(Count::TxBytes, sent);
                self.counters.add(Count::Transactions, 1);
            }
            Err(_) => self.counters.add(Count::UdpSendErrors, 1),
        }
    }

    /// Lets those go on that waited for frames (liburing#1275: a reception that found no buffer has ended).
    #[inline]
    fn feed(&mut self, cache: &mut PoolCache) {
        let frames = self.ring.filled_buffers();
        if frames == 0 {
            return;
        }
        self.streams.feed(frames, &mut self.ring, cache);
        if self.stage == Stage::Serving {
            for number in 0..self.sockets.len() {
                if std::mem::take(&mut self.sockets[number].is_hungry) {
                    self.receive_datagrams(number as u32);
                }
            }
        }
    }

    #[cold]
    fn end(&mut self, cache: &mut PoolCache) {
        let now = Instant::now();
        match self.stage {
            Stage::Serving => {
                for source in self.listeners.iter_mut().chain(&mut self.sockets) {
                    if let Some(operation) = source.operation {
                        self.ring.cancel(operation);
                    }
                }
                self.streams.begin_end(&mut self.ring, cache);
                self.stage = Stage::Ending(now + END_TIME);
            }
            Stage::Ending(until) if now >= until => {
                self.streams.cut_all(&mut self.ring, cache);
                self.stage = Stage::Cutting(now + CUT_TIME);
            }
            Stage::Ending(_) | Stage::Cutting(_) => {
                let is_late = matches!(self.stage, Stage::Cutting(until) if now >= until);
                let mut sources = self.listeners.iter().chain(&self.sockets);
                let is_quiet = self.streams.is_empty() && sources.all(|source| source.operation.is_none());
                if is_quiet || is_late {
                    self.stage = Stage::Done;
                    self.done.raise();
                }
            }
            Stage::Done => {}
        }
    }

    /// Gives all frames back.
    pub(super) fn close(mut self, cache: &mut PoolCache) -> Closed {
        let closed = self.ring.close(cache);
        self.streams.close(cache);
        self.held.set_held(0);
        closed
    }
}

#[cfg(test)]
mod tests;
