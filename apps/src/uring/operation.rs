//! What is asked of the kernel, and what has become of it.
//!
//! Owns: nothing. Never does: ask. Invariant: what the kernel carries through an operation, its user data, tells all that its
//! completion leads to:
//!
//! ```text
//! bits: 63   56 55               32 31          0
//!      |  kind | place of the frame |   number   |     place 0: no frame, else 1 + index in `sending`
//! ```

use std::os::fd::BorrowedFd;

use sheafio_mempool::Frame;

/// What an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Accept,
    Connect,
    Receive,
    ReceiveDatagrams,
    Send,
    SendDatagram,
    Shutdown,
    Reset,
    Close,
    Cancel,
}

impl Kind {
    pub(super) const ALL: [Self; 10] = [
        Self::Accept,
        Self::Connect,
        Self::Receive,
        Self::ReceiveDatagrams,
        Self::Send,
        Self::SendDatagram,
        Self::Shutdown,
        Self::Reset,
        Self::Close,
        Self::Cancel,
    ];
}

/// An operation that the kernel has, to be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation(pub(super) u64);

impl Operation {
    pub(super) fn new(kind: Kind, place: u32, number: u32) -> Self {
        Self((kind as u64) << 56 | u64::from(place) << 32 | u64::from(number))
    }
}

/// A socket: by its descriptor, or by its place in the ring's table of files.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Socket<'a> {
    Fd(BorrowedFd<'a>),
    Slot(u32),
}

/// What has become of an operation.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) kind: Kind,
    /// The number that the operation was given.
    pub(crate) number: u32,
    /// A count, a place in the table of files, or -errno.
    pub(crate) result: i32,
    /// More completions of the same operation follow.
    pub(crate) has_more: bool,
    /// What was received, as long as it is; or what was sent from, as it was.
    pub(crate) frame: Option<Frame>,
}
