//! The state of a TCP flow, and how many there may be.
//!
//! Owns: nothing. Never does: change it; `streams` does. Invariant: a flow that is not open has nothing that waits and no
//! operation.

use std::sync::atomic::AtomicU64;

use super::backlog::Chain;
use crate::uring::Operation;

/// How many flows there are, in all lcores.
pub(super) struct Limit {
    pub(super) max: u64,
    pub(super) open: AtomicU64,
}

/// A flow, as its lcore knows it.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "they change one by one; see `Streams::advance`")]
pub(super) struct Flow {
    /// Echo: frames to be sent. With responses: frames with requests that are not answered yet.
    pub(super) waiting: Chain,
    pub(super) sending: Option<Operation>,
    pub(super) receiving: Option<Operation>,
    pub(super) is_open: bool,
    /// How many flows that had this place before are still to be told closed.
    pub(super) closes_due: u8,
    /// Its reception is being cancelled.
    pub(super) is_pausing: bool,
    /// It is among the hungry.
    pub(super) is_hungry: bool,
    /// The client has ended its sending direction.
    pub(super) has_ended: bool,
    /// We have ended ours; what comes is dropped.
    pub(super) is_shut: bool,
    /// It failed, or there is no time left: nothing is sent or received any more.
    pub(super) is_cut: bool,
    /// It was cut before its client had everything, and is to see that: a reset, and no end in order.
    pub(super) is_unfinished: bool,
    /// It is being closed.
    pub(super) is_closing: bool,
}

impl Flow {
    pub(super) const CLOSED: Self = Self {
        waiting: Chain::EMPTY,
        sending: None,
        receiving: None,
        is_open: false,
        closes_due: 0,
        is_pausing: false,
        is_hungry: false,
        has_ended: false,
        is_shut: false,
        is_cut: false,
        is_unfinished: false,
        is_closing: false,
    };
}
