//! Kernel sockets by io_uring, on frames of the pool: what `sheafio rr` and `sheafio echo --stack kernel` stand on.
//!
//! ```text
//!   pool cache --alloc--> provided buffers --kernel receives--> Frame in a Completion --> application
//!        ^                                                                                   |
//!        +-------------free-------------- Frame in a Completion <--kernel sends-- send() <---+
//! ```
//!
//! Owns: nothing itself; `ring` is the ring with what the kernel sends from, `buffers` what it receives into, `operation`
//! what is asked of the kernel, `datagram` how datagrams lie in frames, `refusal` why a machine has no ring, `rest` what a loop does without work. Never does: lend
//! memory to the kernel that someone else can touch: a frame is moved in with an operation and comes back with its last
//! completion. Invariant: all frames are the application's again once [`Ring::close`] has found no operation open.
//!
//! The kernel side is in linux/io_uring.h. All that is asked of it is there since Linux 6.0 (multishot reception); 6.2 is the
//! oldest that this is meant for. Better task work is used where there is (`IORING_SETUP_DEFER_TASKRUN`, 6.1).

#[expect(unsafe_code, reason = "the kernel reads this memory; ARCHITECTURE.md lists it")]
mod buffers;
mod datagram;
mod operation;
mod refusal;
mod rest;
#[expect(unsafe_code, reason = "operations name memory that the kernel reads; ARCHITECTURE.md lists it")]
mod ring;
mod sending;

pub(crate) use self::{
    datagram::{DATAGRAM_START, DatagramHeader},
    operation::{Completion, Kind, Operation, Socket},
    refusal::{Refused, is_for_few},
    rest::Rest,
    ring::Ring,
    sending::MOST_FRAMES,
};
