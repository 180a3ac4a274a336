//! What an application is to TCP: it is shown what has arrived, and writes what is to be sent.
//!
//! Owns: nothing; `Input` and `Output` are views of one flow for the time of a call. Never does: block, or lose what the
//! application has not consumed. Invariant: what is consumed is gone, what is not is shown again.

use sheafio_mempool::PoolCache;

use super::bytes::{Bytes, Slots};

/// A server of connections: requests in, responses out.
pub trait Server {
    /// What the application keeps for each connection. It is dropped as soon as the connection is over, however that ends;
    /// `serve` is told of nothing but the peer's end.
    type Session: Default;

    /// Is called when bytes have arrived, when the peer has ended its half, and when there is room again after a write
    /// that was cut short. Consumes what it can use of the input; the rest is shown again with what follows it, and holds
    /// the peer back once the receive window is full of it. So a server that leaves what it could use, with room to write,
    /// waits for the peer: once the window is full that sends nothing more, and nobody calls the server again.
    fn serve(&mut self, session: &mut Self::Session, input: &mut Input<'_>, output: &mut Output<'_>);
}

/// Bytes that have arrived in order, and are not consumed yet.
#[derive(Debug)]
pub struct Input<'a> {
    pub(super) ring: Bytes,
    pub(super) slots: &'a Slots,
    pub(super) frame_bytes: u32,
    /// What follows the ring's bytes: a payload that was not put into it.
    pub(super) direct: &'a [u8],
    pub(super) consumed: u32,
    pub(super) ended: bool,
}

impl Input<'_> {
    /// How many bytes there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.ring.len() as usize + self.direct.len() - self.consumed as usize
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first bytes: all of them, or as many as lie in one piece. Empty only if there are none. A request can be
    /// split anywhere, by the peer or between two pieces; see [`read_exact`](Self::read_exact).
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let in_ring = self.ring.len();
        if self.consumed < in_ring {
            return self.ring.piece(self.slots, self.frame_bytes, self.consumed, u32::MAX);
        }
        &self.direct[(self.consumed - in_ring) as usize..]
    }

    /// Takes the first `count` bytes away.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "consume({count}) of {} bytes", self.len());
        self.consumed += count as u32;
    }

    /// Fills `bytes` from the front and takes that away, if there is as much; else nothing happens. A request that is
    /// longer than the receive window is never there as a whole.
    #[inline]
    #[must_use]
    pub fn read_exact(&mut self, bytes: &mut [u8]) -> bool {
        if self.len() < bytes.len() {
            return false;
        }
        let mut filled = 0;
        while filled < bytes.len() {
            let piece = self.bytes();
            let count = piece.len().min(bytes.len() - filled);
            bytes[filled..filled + count].copy_from_slice(&piece[..count]);
            self.consume(count);
            filled += count;
        }
        true
    }

    /// Whether nothing will follow what is there, for the peer has ended its half of the connection. What is left of a
    /// request then never becomes whole.
    #[inline]
    pub fn is_last(&self) -> bool {
        self.ended
    }

    /// Whether the peer has ended its half of the connection, and nothing is left of what it sent.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.ended && self.is_empty()
    }
}

/// What becomes of a connection after a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wish {
    #[default]
    GoOn,
    Close,
    Abort,
}

/// Bytes that are to be sent.
#[derive(Debug)]
pub struct Output<'a> {
    pub(super) ring: &'a mut Bytes,
    pub(super) slots: &'a mut Slots,
    pub(super) frame_bytes: u32,
    pub(super) cache: &'a mut PoolCache,
    pub(super) is_closed: bool,
    pub(super) wish: Wish,
    /// Whether a write was cut short, so that the application waits for room.
    pub(super) was_short: bool,
}

impl Output<'_> {
    /// How many bytes can be written now: what the send buffer has room for, if the pool has frames for it.
    #[inline]
    pub fn room(&self) -> usize {
        if self.is_closed || self.wish != Wish::GoOn {
            return 0;
        }
        self.slots.len() * self.frame_bytes as usize - self.ring.len() as usize
    }

    /// Adds bytes to be sent and returns how many: fewer where the send buffer is full, or the pool is empty. Then the
    /// server is called again when there is room.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let fits = &bytes[..bytes.len().min(self.room())];
        let written = self.ring.write(self.slots, self.frame_bytes, self.ring.len(), fits, self.cache);
        self.ring.extend(written);
        self.was_short |= (written as usize) < bytes.len();
        written as usize
    }

    /// Ends our half of the connection, behind what was written. What the peer still sends is shown to the server, for as
    /// long as the peer is there; to be rid of a peer that does not end its half, [`abort`](Self::abort).
    pub fn close(&mut self) {
        if self.wish == Wish::GoOn {
            self.wish = Wish::Close;
        }
    }

    /// Resets the connection at once; what was not sent is lost.
    pub fn abort(&mut self) {
        self.wish = Wish::Abort;
    }
}
