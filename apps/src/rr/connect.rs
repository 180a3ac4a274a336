//! How the client's flows get connected: many at a time, but not all, so that the server's backlog is not overrun.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt},
};
use sheafio_mempool::sync::{Ordering, add};

use super::{
    client::{Client, Flow, Plan, Stage, State},
    options::Proto,
    unbound,
};
use crate::uring::Completion;

/// Connections under way at a time, for each thread.
const MOST_CONNECTING: usize = 256;
/// How long one may take. The kernel's own limit is more than two minutes (tcp_syn_retries).
const CONNECT_TIME_NS: u64 = 10_000_000_000;

impl Client {
    /// Starts to connect as many flows as may be under way. Returns whether all are done with.
    pub(super) fn connect_more(&mut self) -> bool {
        while self.connecting < MOST_CONNECTING && self.next_connect < self.flows.len() {
            let at = self.next_connect;
            self.next_connect += 1;
            // Flows are dealt out by their number among all: over the servers first, then over the local addresses.
            let number = self.first as usize + at;
            let target = self.plan.targets[number % self.plan.targets.len()];
            match open(&self.plan, number) {
                Ok(socket) => {
                    let connecting = self.ring.connect(socket.as_fd(), target, at as u32);
                    self.sockets[at] = Some(socket);
                    let flow = &mut self.flows[at];
                    (flow.state, flow.since_ns) = (State::Connecting, self.now_ns);
                    flow.connecting = Some(connecting);
                    self.connecting += 1;
                }
                Err(error) => self.could_not_connect(at, error.raw_os_error()),
            }
        }
        self.connecting == 0 && self.next_connect == self.flows.len()
    }

    pub(super) fn connected(&mut self, done: &Completion) {
        let at = done.number as usize;
        self.connecting -= 1;
        let flow = &mut self.flows[at];
        flow.connecting = None;
        match -done.result {
            0 => {
                flow.state = State::Idle;
                self.add_alive();
            }
            libc::ECANCELED => self.could_not_connect(at, libc::ETIMEDOUT),
            error => self.could_not_connect(at, error),
        }
    }

    fn could_not_connect(&mut self, at: usize, error: i32) {
        self.flows[at].state = State::Dead;
        self.sockets[at] = None;
        *self.outcome.connect_errors.entry(error).or_default() += 1;
        add(&self.progress.failed, 1);
    }

    pub(super) fn give_up_connecting(&mut self) {
        let is_late = |flow: &&mut Flow| {
            flow.state == State::Connecting && self.now_ns.saturating_sub(flow.since_ns) > CONNECT_TIME_NS
        };
        for flow in self.flows.iter_mut().filter(is_late) {
            if let Some(connecting) = flow.connecting.take() {
                self.ring.cancel(connecting);
            }
        }
    }

    /// Puts the sockets into the ring's table, which saves looking descriptors up, and starts to receive.
    pub(super) fn get_ready(&mut self) {
        let fds: Vec<_> =
            self.sockets.iter().map(|socket| socket.as_ref().map_or(-1, AsRawFd::as_raw_fd)).collect();
        // Without it descriptors do.
        self.has_table = self.ring.set_files(&fds).is_ok();
        for at in 0..self.flows.len() {
            if self.flows[at].state == State::Idle {
                self.receive(at);
            }
        }
        self.stage = Stage::Ready;
        // Relaxed: the counts that go with it are read again at the end.
        self.progress.is_ready.store(true, Ordering::Relaxed);
    }
}

/// The socket of a flow, bound to its local address if one was asked for.
fn open(plan: &Plan, number: usize) -> Result<OwnedFd, Errno> {
    let target = plan.targets[number % plan.targets.len()];
    let is_ipv4 = target.address_family() == AddressFamily::INET;
    let family = if is_ipv4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = match plan.args.proto {
        Proto::Tcp => SocketType::STREAM,
        Proto::Udp => SocketType::DGRAM,
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if plan.args.proto == Proto::Tcp {
        // A request's last segment is not held back until earlier ones are acknowledged.
        sockopt::set_tcp_nodelay(&socket, true)?;
    }
    if !plan.sources.is_empty() {
        if plan.args.proto == Proto::Tcp {
            // For UDP it would change nothing: a socket without a port is found by all datagrams to its address.
            unbound::bind_without_port(socket.as_fd());
        }
        bind(&socket, &plan.sources[number / plan.targets.len() % plan.sources.len()])?;
    }
    Ok(socket)
}
