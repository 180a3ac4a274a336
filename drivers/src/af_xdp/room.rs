//! How many packets the XDP program may hand to a queue's socket: as many as frames wait for them.
//!
//! Owns: a mapping of the program's map of rooms. Never does: drop a packet; the program does, where a queue has no
//! frame for it (`xdp.bpf.c`). Invariant: a limit that is too high costs time only, for the socket drops what finds no
//! frame. One that is too low is mended after [`POLLS`] polls that find nothing, and a queue whose packets are all
//! dropped has no others.
//!
//! ```text
//!   user space:  limit += frames put into the fill ring    program:  taken += 1, or lost += 1 if taken has reached limit
//! ```

use std::{
    io,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::sys;

/// Polls that find nothing, after which the limit is made what frames there are.
const POLLS: u32 = 64;

/// `struct room` in `xdp.bpf.c`.
#[repr(C)]
struct Counts {
    limit: AtomicU64,
    frame_bytes: AtomicU64,
    _apart: [u64; 14],
    taken: AtomicU64,
    lost: AtomicU64,
    _end: [u64; 14],
}

const _: () = assert!(size_of::<Counts>() == 256);

/// The rooms of a program's queues.
pub(super) struct Rooms {
    map: Arc<sys::RingMap>,
    queues: u32,
}

impl Rooms {
    /// Maps the rooms of the queues 0 to `queues - 1`, by the descriptor of the BPF map.
    pub(super) fn new(map: BorrowedFd<'_>, queues: u32) -> io::Result<Self> {
        let map = sys::RingMap::new(map, queues as usize * size_of::<Counts>(), 0)?;
        Ok(Self { map: Arc::new(map), queues })
    }

    /// The room of a queue whose frames hold packets of up to so many bytes.
    ///
    /// # Panics
    /// If there is no such queue.
    pub(super) fn of(&self, queue: u32, frame_bytes: u32) -> Room {
        assert!(queue < self.queues);
        let offset = u64::from(queue) * size_of::<Counts>() as u64;
        let room = Room { counts: self.map.at(offset, size_of::<Counts>()), _map: self.map.clone() };
        room.counts().frame_bytes.store(frame_bytes.into(), Ordering::Relaxed);
        room
    }
}

/// The room of one queue.
pub(super) struct Room {
    counts: NonNull<Counts>,
    _map: Arc<sys::RingMap>,
}

// SAFETY: the counts are atomics in memory that the map keeps; nothing of it belongs to a thread.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

impl Room {
    fn counts(&self) -> &Counts {
        // SAFETY: `Rooms::of` has them inside of the mapping, which lives as long as this; the program on the other side
        // writes whole words only.
        unsafe { self.counts.as_ref() }
    }

    /// Packets that found no room.
    pub(super) fn lost(&self) -> u64 {
        self.counts().lost.load(Ordering::Relaxed)
    }

    /// From now on the program hands on everything.
    pub(super) fn open(&self) {
        self.counts().limit.store(0, Ordering::Relaxed);
    }
}

/// The user space's side of a room, of the one thread that fills.
pub(super) struct Limit {
    limit: u64,
    idle_polls: u32,
}

impl Limit {
    pub(super) fn new() -> Self {
        Self { limit: 0, idle_polls: 0 }
    }

    /// So many frames were put into the fill ring.
    #[inline]
    pub(super) fn raise(&mut self, room: &Room, frames: usize) {
        // None: the pool is empty, which is asked again in every poll.
        if frames > 0 {
            self.idle_polls = 0;
            self.set(room, self.limit + frames as u64);
        }
    }

    /// A poll has found nothing. `frames`: how many lie in the fill ring.
    #[inline]
    pub(super) fn mend(&mut self, room: &Room, frames: impl FnOnce() -> u32) {
        self.idle_polls += 1;
        if self.idle_polls == POLLS {
            self.idle_polls = 0;
            // Frames first: a packet that takes one in between makes the limit too high, not too low.
            let frames = u64::from(frames());
            self.set(room, room.counts().taken.load(Ordering::Relaxed) + frames);
        }
    }

    fn set(&mut self, room: &Room, limit: u64) {
        if limit != self.limit {
            self.limit = limit;
            // Relaxed: it is no promise. A program that sees it before the frames drops nothing that it would not have.
            room.counts().limit.store(limit, Ordering::Relaxed);
        }
    }
}
