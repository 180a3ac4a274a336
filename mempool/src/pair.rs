//! The two sheaves that a pool cache holds, and when they are exchanged with the barn.
//!
//! Owns: the loaded and the spare sheaf. Never does: touch frames or shared counters.
//! Invariant: the first `loaded_len` slots of the loaded sheaf and the first `spare_len` of the
//! spare are frames that this pair owns.
//!
//! Frames are taken from and given to the tail of the loaded sheaf. If it can't serve a request
//! alone but the spare can, the two swap; only when both together can't is a sheaf exchanged, one
//! for one. So at least one capacity of net operations lies between two exchanges, and balanced
//! work, alternating takes and gives of one size, never leaves the loaded sheaf.

use std::{mem::MaybeUninit, ptr::NonNull, slice};

use crate::{barn::Barn, sheaf::SheafId};

pub(crate) struct SheafPair {
    // Hot: every operation.
    loaded: NonNull<u32>,
    loaded_len: u32,
    capacity: u32,
    // Warm: every exchange.
    loaded_id: SheafId,
    spare_id: SheafId,
    spare_len: u32,
    /// What went through the barn since the pair was made.
    pub(crate) traffic: BarnTraffic,
}

/// What a pair exchanged with its barn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BarnTraffic {
    /// Frames that came in sheaves from the barn.
    pub(crate) frames_in: u64,
    /// Frames that went in full sheaves to the barn.
    pub(crate) frames_out: u64,
}

// SAFETY: a pair owns its two sheaves; their memory is not tied to a thread.
unsafe impl Send for SheafPair {}

impl SheafPair {
    /// Takes two empty sheaves from the barn. `None` if all caches that it was made for are joined.
    pub(crate) fn join(barn: &Barn) -> Option<Self> {
        let loaded_id = barn.get_empty()?;
        let Some(spare_id) = barn.get_empty() else {
            barn.put_empty(loaded_id);
            return None;
        };
        Some(Self {
            loaded: barn.sheaves.slots(loaded_id),
            loaded_len: 0,
            capacity: barn.sheaves.capacity(),
            loaded_id,
            spare_id,
            spare_len: 0,
            traffic: BarnTraffic::default(),
        })
    }

    /// Gives both sheaves back; the pair must not be used afterwards. Returns how many frames went
    /// with them.
    pub(crate) fn leave(&mut self, barn: &Barn) -> u32 {
        let frames = self.loaded_len + self.spare_len;
        barn.take_back([(self.loaded_id, self.loaded_len), (self.spare_id, self.spare_len)]);
        frames
    }

    /// Whether a request for `want` frames is served without leaving the loaded sheaf.
    #[inline(always)]
    pub(crate) fn has(&self, want: usize) -> bool {
        want <= self.loaded_len as usize
    }

    /// Whether `count` frames can be given without leaving the loaded sheaf.
    #[inline(always)]
    pub(crate) fn has_room(&self, count: usize) -> bool {
        count <= (self.capacity - self.loaded_len) as usize
    }

    /// Takes the last `count` frames of the loaded sheaf; [`has`](Self::has) must say yes.
    #[inline(always)]
    pub(crate) fn take_loaded(&mut self, count: usize) -> &[u32] {
        debug_assert!(self.has(count));
        self.loaded_len -= count as u32;
        // SAFETY: the slots up to the old length are this pair's and initialised.
        unsafe { slice::from_raw_parts(self.loaded.add(self.loaded_len as usize).as_ptr(), count) }
    }

    /// The next `count` free slots of the loaded sheaf, to be written and then counted by
    /// [`given`](Self::given); [`has_room`](Self::has_room) must say yes.
    #[inline(always)]
    pub(crate) fn room_loaded(&mut self, count: usize) -> &mut [MaybeUninit<u32>] {
        debug_assert!(self.has_room(count));
        // SAFETY: the slots from the length to the capacity are this pair's; they may be uninitialised.
        unsafe { slice::from_raw_parts_mut(self.loaded.add(self.loaded_len as usize).as_ptr().cast(), count) }
    }

    /// Counts `count` slots of the loaded sheaf as frames.
    ///
    /// # Safety
    /// The last `room_loaded(count)` must have been written in full with frames that are given to
    /// the pool.
    #[inline(always)]
    pub(crate) unsafe fn given(&mut self, count: usize) {
        debug_assert!(self.has_room(count));
        self.loaded_len += count as u32;
    }

    /// Makes the loaded sheaf serve up to `want` more frames, by a swap or from the barn, and
    /// returns how many it can serve now: 0 means that the pool has none for this cache.
    /// To be called with `has(want)` false; call it again after taking what there was.
    #[cold]
    pub(crate) fn load(&mut self, barn: &Barn, want: usize) -> usize {
        if self.spare_len as usize >= want || self.loaded_len == 0 && self.spare_len > 0 {
            self.swap(barn);
        } else if self.loaded_len == 0
            && let Some(id) = barn.get()
        {
            // SAFETY: `get` made this thread the owner of the sheaf.
            let len = unsafe { barn.sheaves.take_over(id) };
            let empty = std::mem::replace(&mut self.loaded_id, id);
            self.loaded = barn.sheaves.slots(id);
            self.loaded_len = len;
            self.traffic.frames_in += u64::from(len);
            // SAFETY: the empty sheaf was this pair's.
            unsafe { barn.sheaves.hand_over(empty, 0) };
            barn.put_empty(empty);
        }
        want.min(self.loaded_len as usize)
    }

    /// Makes room in the loaded sheaf for up to `count` frames, by a swap or by handing a full
    /// sheaf to the barn, and returns how many fit now: at least one.
    /// To be called with `has_room(count)` false; call it again after giving what fitted.
    #[cold]
    pub(crate) fn unload(&mut self, barn: &Barn, count: usize) -> usize {
        let spare_room = (self.capacity - self.spare_len) as usize;
        let full = self.loaded_len == self.capacity;
        if spare_room >= count || full && spare_room > 0 {
            self.swap(barn);
        } else if full {
            // SAFETY: the loaded sheaf is this pair's and full of frames it owns.
            unsafe { barn.sheaves.hand_over(self.loaded_id, self.capacity) };
            barn.put_full(self.loaded_id);
            self.traffic.frames_out += u64::from(self.capacity);
            self.loaded_id = barn.get_empty().expect("there is an empty sheaf for each full one handed in");
            // SAFETY: `get_empty` made this thread the owner of the sheaf.
            let len = unsafe { barn.sheaves.take_over(self.loaded_id) };
            debug_assert_eq!(len, 0);
            self.loaded = barn.sheaves.slots(self.loaded_id);
            self.loaded_len = 0;
        }
        count.min((self.capacity - self.loaded_len) as usize)
    }

    fn swap(&mut self, barn: &Barn) {
        std::mem::swap(&mut self.loaded_id, &mut self.spare_id);
        std::mem::swap(&mut self.loaded_len, &mut self.spare_len);
        self.loaded = barn.sheaves.slots(self.loaded_id);
    }
}
