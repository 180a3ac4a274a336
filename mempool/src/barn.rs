//! The barn: a zone's store of full and empty sheaves.
//!
//! Owns: every sheaf that no pool cache holds. Never does: block, or look into a sheaf that a cache
//! holds. Invariant: the sheaves in `full` hold exactly `capacity` frames, those in `empty` none,
//! and at most one sheaf, in `partial`, lies in between.
//!
//! There are `frames / capacity + 2 * caches + 1` sheaves: enough that a cache which hands in a full
//! sheaf always finds an empty one to go on with, so handing in can't fail. (Full sheaves number at
//! most frames / capacity; each other cache holds at most two that are not full; one is partial and
//! one is the asking cache's spare.)

use crate::{
    sheaf::{SheafId, Sheaves},
    sync::{ArrayQueue, AtomicU32, Mutex, Ordering},
};

pub(crate) struct Barn {
    pub(crate) sheaves: Sheaves,
    full: ArrayQueue<SheafId>,
    empty: ArrayQueue<SheafId>,
    /// The one sheaf that is neither full nor empty. Locked where caches join and leave, tried
    /// where there is no full sheaf left.
    partial: Mutex<Option<SheafId>>,
    /// Frames in the partial sheaf; a hint for those who do not hold the lock.
    partial_len: AtomicU32,
}

impl Barn {
    /// A barn that holds the frames `first..first + frames`, for up to `caches` pool caches.
    pub(crate) fn new(first: u32, frames: u32, capacity: u32, caches: u32) -> Self {
        let count = frames.div_ceil(capacity) + 2 * caches + 1;
        let sheaves = Sheaves::new(count, capacity);
        let full = ArrayQueue::new(count as usize);
        let empty = ArrayQueue::new(count as usize);
        let mut partial = None;
        let mut next = 0;
        for id in (0..count).map(SheafId) {
            let len = capacity.min(frames - next);
            for slot in 0..len {
                // SAFETY: slot < capacity, and nobody else knows the store yet.
                unsafe { sheaves.slots(id).add(slot as usize).write(first + next + slot) };
            }
            // SAFETY: the store is still this function's own, and the first len slots were written.
            unsafe { sheaves.hand_over(id, len) };
            next += len;
            match len {
                0 => empty.push(id).expect("room for every sheaf"),
                len if len == capacity => full.push(id).expect("room for every sheaf"),
                _ => partial = Some(id),
            }
        }
        let partial_len = AtomicU32::new(frames % capacity);
        Self { sheaves, full, empty, partial: Mutex::new(partial), partial_len }
    }

    /// Takes a full sheaf, or the partial one when there is no other. `None` when the barn has no frame
    /// or the partial sheaf is being changed by another thread at this moment.
    pub(crate) fn get(&self) -> Option<SheafId> {
        self.full.pop().or_else(|| self.get_partial())
    }

    /// Hands in a sheaf of `capacity` frames.
    pub(crate) fn put_full(&self, id: SheafId) {
        self.full.push(id).expect("the barn has room for every sheaf");
    }

    /// Takes an empty sheaf; there always is one for a cache that has just handed in a full one.
    pub(crate) fn get_empty(&self) -> Option<SheafId> {
        self.empty.pop()
    }

    /// Hands in an empty sheaf.
    pub(crate) fn put_empty(&self, id: SheafId) {
        self.empty.push(id).expect("the barn has room for every sheaf");
    }

    /// Takes back the two sheaves of a cache that leaves, each with its number of frames, and
    /// merges what is not a full sheaf into the partial one.
    pub(crate) fn take_back(&self, leaving: [(SheafId, u32); 2]) {
        let capacity = self.sheaves.capacity();
        let mut partial = self.partial.lock().expect("no panic under this lock");
        let old = partial.take().map(|id| {
            // SAFETY: the lock makes this thread the owner of the partial sheaf.
            (id, unsafe { self.sheaves.take_over(id) })
        });
        // `target` is filled up from each further sheaf; whichever of the two is done is handed in.
        let mut target: Option<(SheafId, u32)> = None;
        for (id, mut len) in leaving.into_iter().chain(old) {
            if let Some((target_id, target_len)) = &mut target {
                let moved = len.min(capacity - *target_len);
                // SAFETY: this thread owns both sheaves; they are two, and both ranges lie within
                // their slots.
                unsafe {
                    let from = self.sheaves.slots(id).add((len - moved) as usize);
                    let to = self.sheaves.slots(*target_id).add(*target_len as usize);
                    from.copy_to_nonoverlapping(to, moved as usize);
                }
                *target_len += moved;
                len -= moved;
                if len == 0 {
                    self.hand_in(id, 0);
                    continue;
                }
                self.hand_in(*target_id, *target_len);
            }
            target = Some((id, len));
        }
        let (id, len) = target.expect("two sheaves were given");
        if len == 0 || len == capacity {
            self.hand_in(id, len);
            self.partial_len.store(0, Ordering::Relaxed);
        } else {
            // SAFETY: this thread owns the sheaf; the lock's release hands it over.
            unsafe { self.sheaves.hand_over(id, len) };
            *partial = Some(id);
            self.partial_len.store(len, Ordering::Relaxed);
        }
    }

    /// Frames in the barn. Exact only while no cache exchanges sheaves.
    pub(crate) fn frames(&self) -> u64 {
        self.full.len() as u64 * u64::from(self.sheaves.capacity())
            + u64::from(self.partial_len.load(Ordering::Relaxed))
    }

    /// Calls `visit` with each frame index in the barn.
    ///
    /// # Safety
    /// No pool cache may be joined, and none may join meanwhile: the walk takes every full sheaf
    /// out and puts it back.
    pub(crate) unsafe fn walk(&self, mut visit: impl FnMut(u32)) {
        let mut visit_sheaf = |id| {
            // SAFETY: the sheaf was taken from the queue or is locked, so this thread owns it, and
            // its first len slots were written before it was handed over.
            unsafe {
                let len = self.sheaves.take_over(id);
                (0..len as usize).for_each(|slot| visit(self.sheaves.slots(id).add(slot).read()));
            }
        };
        for _ in 0..self.full.len() {
            if let Some(id) = self.full.pop() {
                visit_sheaf(id);
                self.put_full(id);
            }
        }
        if let Some(id) = *self.partial.lock().expect("no panic under this lock") {
            visit_sheaf(id);
        }
    }

    #[cold]
    fn get_partial(&self) -> Option<SheafId> {
        if self.partial_len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut partial = self.partial.try_lock().ok()?;
        let id = partial.take()?;
        self.partial_len.store(0, Ordering::Relaxed);
        Some(id)
    }

    /// Hands in a sheaf that is full or empty.
    fn hand_in(&self, id: SheafId, len: u32) {
        // SAFETY: the caller owns the sheaf and gives it away with its first len slots written.
        unsafe { self.sheaves.hand_over(id, len) };
        if len == 0 { self.put_empty(id) } else { self.put_full(id) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn indices(barn: &Barn) -> Vec<u32> {
        let mut all = Vec::new();
        // SAFETY: the test has no pool cache.
        unsafe { barn.walk(|index| all.push(index)) };
        all.sort_unstable();
        all
    }

    #[test]
    fn a_new_barn_holds_each_frame_once() {
        for frames in [1, 27, 28, 29, 56, 1000] {
            let barn = Barn::new(100, frames, 28, 2);
            assert_eq!(barn.frames(), u64::from(frames));
            assert_eq!(indices(&barn), (100..100 + frames).collect::<Vec<_>>());
            assert_eq!(barn.sheaves.count(), frames.div_ceil(28) + 5);
        }
    }

    #[test]
    fn leaving_caches_leave_at_most_one_partial_sheaf() {
        let barn = Barn::new(0, 28 * 4 + 5, 28, 2);
        let (a, b) = (barn.get().unwrap(), barn.get().unwrap());
        // Two sheaves of 28 come back as 20 and 28 (8 frames are in flight), then as the 8.
        barn.take_back([(a, 20), (b, 28)]);
        assert_eq!(barn.frames(), 28 * 4 + 5 - 8);
        let (a, b) = (barn.get_empty().unwrap(), barn.get_empty().unwrap());
        for slot in 0..8 {
            // SAFETY: the test took the sheaf and owns it; indices 20..28 went with sheaf a.
            unsafe { barn.sheaves.slots(a).add(slot).write(20 + slot as u32) };
        }
        barn.take_back([(a, 8), (b, 0)]);
        assert_eq!(barn.frames(), 28 * 4 + 5);
        assert_eq!(indices(&barn), (0..28 * 4 + 5).collect::<Vec<_>>());
    }

    #[test]
    fn an_empty_barn_gives_nothing() {
        let barn = Barn::new(0, 30, 28, 1);
        assert!(barn.get().is_some() && barn.get().is_some());
        assert!(barn.get().is_none());
        assert_eq!(barn.frames(), 0);
    }
}
