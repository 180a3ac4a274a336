//! The allocators that the pool is compared with, as models over the machine.
//!
//! Each touches the cache lines that its source would touch, in the same order, and leaves out what
//! only one core ever sees. Where a source leaves a choice, the model takes the cheaper one; each
//! file lists its simplifications.

mod ring;
mod slub;
mod stack;

pub(crate) use ring::RingWithCaches;
pub(crate) use slub::Slub;
pub(crate) use stack::Stack;

/// Whether frames are handed to the allocator one by one or a burst at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// A call a frame.
    Single,
    /// A call a burst.
    Bulk,
}

impl Calls {
    /// Frames a call.
    fn batch(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Bulk => crate::traffic::BURST,
        }
    }
}
