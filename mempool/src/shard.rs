//! A shard of the barn: full sheaves, first in first out, behind a lock that is only tried.
//!
//! Owns: the sheaves that lie in it. Never does: hold the lock for longer than a few dozen
//! instructions, or across anything that can wait. Invariant: an exchange is one for one, so the
//! number of sheaves in a shard changes only when a pool cache joins or leaves.
//!
//! ```text
//! full:  | ... | full | full | full | ... |   a circle: taken at `first`, put in behind the last
//! empty: | empty | empty | ...            |   a stack: an empty sheaf is best while its lines are warm
//! ```
//! The full sheaf that came first leaves first. The one that came last would be the worst: its frames
//! are still in the caches of the core that freed them, from where each line has to be fetched to be
//! written again. Each operation takes one read-modify-write, the one that gets the lock; all else is
//! plain loads and stores.

use crate::{
    sheaf::{SheafId, Sheaves},
    sync::{AtomicU32, Ordering},
};

/// No sheaf.
const NONE: u32 = u32::MAX;

/// On lines of its own: 128 bytes, the pair that the adjacent-line prefetcher moves together.
#[repr(align(128))]
pub(crate) struct Shard {
    /// 1 while someone is inside. All words below are written under it.
    lock: AtomicU32,
    /// Number of full sheaves.
    full: AtomicU32,
    /// Where in the circle the one lies that came first.
    first: AtomicU32,
    /// Number of empty sheaves.
    empty: AtomicU32,
    /// The one sheaf that is neither, or `NONE`.
    partial: AtomicU32,
    /// Frames in it.
    partial_len: AtomicU32,
    full_ids: Box<[IdLine]>,
    empty_ids: Box<[IdLine]>,
    room: u32,
}

/// Sheaf ids, a cache line of them.
#[repr(align(64))]
struct IdLine([AtomicU32; IDS_A_LINE]);

const IDS_A_LINE: usize = 16;

/// A shard whose lock the caller holds.
pub(crate) struct Locked<'a>(&'a Shard);

impl Shard {
    /// A shard without sheaves, with room for `room` of them.
    pub(crate) fn new(room: u32) -> Self {
        let word = |value| AtomicU32::new(value);
        let ids = || {
            let line = |_| IdLine(std::array::from_fn(|_| word(NONE)));
            (0..room.div_ceil(IDS_A_LINE as u32)).map(line).collect()
        };
        Self {
            lock: word(0),
            full: word(0),
            first: word(0),
            empty: word(0),
            partial: word(NONE),
            partial_len: word(0),
            full_ids: ids(),
            empty_ids: ids(),
            room,
        }
    }

    /// The word for the full sheaf that is the n-th to leave.
    fn full_id(&self, nth: u32) -> &AtomicU32 {
        let at = self.first.load(Ordering::Relaxed) + nth;
        Self::id(&self.full_ids, if at < self.room { at } else { at - self.room })
    }

    fn id(ids: &[IdLine], at: u32) -> &AtomicU32 {
        &ids[at as usize / IDS_A_LINE].0[at as usize % IDS_A_LINE]
    }

    /// Frames in the shard. Exact only while nobody exchanges sheaves.
    pub(crate) fn frames(&self, capacity: u32) -> u64 {
        // Relaxed: a hint for those who look for frames, and the census looks twice.
        u64::from(self.full.load(Ordering::Relaxed)) * u64::from(capacity)
            + u64::from(self.partial_len.load(Ordering::Relaxed))
    }

    /// Gets the lock, if nobody holds it at this moment.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        // Looked at first, for an exchange would take the line away from the holder. Not under loom,
        // where a relaxed load may see the held lock for ever.
        #[cfg(not(loom))]
        if self.lock.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // Acquire pairs with the release in `drop`: what the last holder wrote, here and in sheaves,
        // is seen.
        self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Locked(self))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Release pairs with the acquire in `try_lock`.
        self.0.lock.store(0, Ordering::Release);
    }
}

// Relaxed throughout: the lock orders these words.
impl Locked<'_> {
    /// Puts a sheaf of `capacity` frames in.
    pub(crate) fn push_full(&mut self, id: SheafId, sheaves: &Sheaves) {
        sheaves.hand_over(id);
        let count = self.0.full.load(Ordering::Relaxed);
        debug_assert!(count + self.0.empty.load(Ordering::Relaxed) < self.0.room);
        self.0.full_id(count).store(id.0, Ordering::Relaxed);
        self.0.full.store(count + 1, Ordering::Relaxed);
    }

    /// Puts an empty sheaf in.
    pub(crate) fn push_empty(&mut self, id: SheafId, sheaves: &Sheaves) {
        sheaves.hand_over(id);
        let count = self.0.empty.load(Ordering::Relaxed);
        debug_assert!(count + self.0.full.load(Ordering::Relaxed) < self.0.room);
        Shard::id(&self.0.empty_ids, count).store(id.0, Ordering::Relaxed);
        self.0.empty.store(count + 1, Ordering::Relaxed);
    }

    /// Takes the full sheaf that was put in first, or the partial one when there is no other; with
    /// its number of frames.
    pub(crate) fn pop(&mut self, sheaves: &Sheaves) -> Option<(SheafId, u32)> {
        let count = self.0.full.load(Ordering::Relaxed);
        let (id, len) = if count > 0 {
            let id = self.0.full_id(0).load(Ordering::Relaxed);
            let next = self.0.first.load(Ordering::Relaxed) + 1;
            self.0.first.store(if next < self.0.room { next } else { 0 }, Ordering::Relaxed);
            self.0.full.store(count - 1, Ordering::Relaxed);
            (id, sheaves.capacity())
        } else {
            let id = self.0.partial.load(Ordering::Relaxed);
            if id == NONE {
                return None;
            }
            (id, self.take_partial())
        };
        sheaves.take_over(SheafId(id));
        Some((SheafId(id), len))
    }

    /// Takes the empty sheaf that was put in last.
    pub(crate) fn pop_empty(&mut self, sheaves: &Sheaves) -> Option<SheafId> {
        let count = self.0.empty.load(Ordering::Relaxed).checked_sub(1)?;
        let id = SheafId(Shard::id(&self.0.empty_ids, count).load(Ordering::Relaxed));
        self.0.empty.store(count, Ordering::Relaxed);
        sheaves.take_over(id);
        Some(id)
    }

    /// Copies frames into the partial sheaf, which becomes a full one each time that it runs over.
    /// There must be as many empty sheaves as that takes: see `Barn`.
    pub(crate) fn append(&mut self, mut frames: &[u32], sheaves: &Sheaves) {
        while !frames.is_empty() {
            let (id, len) = match self.0.partial.load(Ordering::Relaxed) {
                NONE => (self.pop_empty(sheaves).expect("a shard has empty sheaves for every frame"), 0),
                id => {
                    sheaves.take_over(SheafId(id));
                    (SheafId(id), self.0.partial_len.load(Ordering::Relaxed))
                }
            };
            let (now, rest) = frames.split_at(frames.len().min((sheaves.capacity() - len) as usize));
            // SAFETY: the lock makes this thread the owner of the shard's sheaves; `now` fits.
            unsafe { sheaves.write(id, len, now) };
            let len = len + now.len() as u32;
            // At no moment does it look as if there were fewer frames: those who look for some do so without
            // the lock.
            if len == sheaves.capacity() {
                self.push_full(id, sheaves);
                self.take_partial();
            } else {
                sheaves.hand_over(id);
                self.0.partial.store(id.0, Ordering::Relaxed);
                self.0.partial_len.store(len, Ordering::Relaxed);
            }
            frames = rest;
        }
    }

    /// Calls `visit` with each frame index in the shard.
    pub(crate) fn walk(&self, sheaves: &Sheaves, visit: &mut dyn FnMut(u32)) {
        let mut visit_sheaf = |id, len| {
            sheaves.take_over(id);
            // SAFETY: the lock makes this thread the owner of the shard's sheaves.
            unsafe { sheaves.content(id, len) }.iter().for_each(|index| visit(*index));
            sheaves.hand_over(id);
        };
        for at in 0..self.0.full.load(Ordering::Relaxed) {
            visit_sheaf(SheafId(self.0.full_id(at).load(Ordering::Relaxed)), sheaves.capacity());
        }
        let partial = self.0.partial.load(Ordering::Relaxed);
        if partial != NONE {
            visit_sheaf(SheafId(partial), self.0.partial_len.load(Ordering::Relaxed));
        }
    }

    fn take_partial(&mut self) -> u32 {
        let len = self.0.partial_len.load(Ordering::Relaxed);
        self.0.partial.store(NONE, Ordering::Relaxed);
        self.0.partial_len.store(0, Ordering::Relaxed);
        len
    }
}
