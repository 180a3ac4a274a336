//! Peers that have not answered for some time, although they were sent something more than once.
//!
//! Owns: a few numbers of such flows, until somebody asks for them. Never does: find out where a peer is; the host does
//! that. Invariant: a flow is named once for each time that its timer was due, and the list never grows beyond its bound:
//! who is left out is named the next time.

use std::net::IpAddr;

use super::{Server, Tcp, flow::Flow, flow::State};

/// Most flows that are named at a time.
const MOST: usize = 32;
/// Timeouts or probes in a row without an answer, from which on a peer counts as silent.
const PATIENCE: u8 = 2;

/// Numbers of flows whose peers are silent.
#[derive(Debug)]
pub(super) struct Silent(Vec<u32>);

impl Silent {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(MOST))
    }

    /// Notes a flow.
    pub(super) fn push(&mut self, number: u32) {
        if self.0.len() < MOST {
            self.0.push(number);
        }
    }
}

impl<Session> Flow<Session> {
    /// Whether its peer is silent, so that it may be elsewhere.
    pub(super) fn is_silent(&self) -> bool {
        self.state != State::TimeWait && self.sending.rtt.doublings().max(self.probes) >= PATIENCE
    }
}

/// A peer that is silent.
pub(crate) struct SilentPeer<'a> {
    /// Its flow.
    pub(crate) number: u32,
    pub(crate) remote: IpAddr,
    /// Our address.
    pub(crate) local: IpAddr,
    /// The Ethernet header of packets to it, with VLAN tags if there are any.
    pub(crate) ethernet: &'a [u8],
}

impl<S: Server> Tcp<S> {
    /// Takes the next silent peer, if there is one.
    #[inline]
    pub(crate) fn next_silent(&mut self) -> Option<SilentPeer<'_>> {
        let number = self.silent.0.pop()?;
        let flow = self.flows.flow(number);
        // In between it may have ended, and another may have its number.
        let Flow { key, path, .. } = (!flow.is_over && flow.is_silent()).then_some(flow)?;
        let (remote, local) = (key.remote.to_canonical(), key.local.to_canonical());
        Some(SilentPeer { number, remote, local, ethernet: path.ethernet() })
    }

    /// Sends the packets of a flow to another Ethernet address from now on.
    pub(crate) fn lead(&mut self, number: u32, mac: [u8; 6]) {
        self.flows.flow(number).path.lead(mac);
    }
}
