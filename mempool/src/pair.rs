//! The two sheaves that a pool cache holds, and when they are exchanged.
//!
//! Owns: the loaded and the spare sheaf. Never does: touch frames or shared counters.
//! Invariant: the first `loaded_len` slots of the loaded sheaf and the first `spare_len` of the
//! spare are frames that this pair owns. At most one of the two is a lane's; then the sheaf that it
//! replaced is set aside, empty.
//!
//! Frames are taken from and given to the tail of the loaded sheaf. If it can't serve a request
//! alone but the spare can, the two swap; only when both together can't is a sheaf exchanged, one
//! for one. So at least one capacity of net operations lies between two exchanges, and balanced
//! work, alternating takes and gives of one size, never leaves the loaded sheaf.

use std::{mem::MaybeUninit, ptr::NonNull, slice};

use crate::{
    barn::Barn,
    lane::{self, LaneEnds},
    sheaf::SheafId,
    sync,
};

pub(crate) struct SheafPair {
    // Hot: every operation.
    loaded: NonNull<u32>,
    loaded_len: u32,
    /// The capacity; or 0 if each frame that is given must be looked at, because there are other zones.
    quick_room: u32,
    // Warm: every exchange.
    loaded_id: SheafId,
    spare_id: SheafId,
    spare_len: u32,
    capacity: u32,
    /// The own sheaf, empty, that a lane's sheaf stands in for.
    set_aside: Option<SheafId>,
    zone: u32,
    /// The shard of the barn that full sheaves go to.
    home: u32,
    /// The shard that the last sheaf with frames came from.
    found: u32,
    /// What was exchanged since it was last read.
    pub(crate) traffic: Traffic,
}

/// What a pair exchanged, in frames and in sheaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) barn_in: u64,
    pub(crate) barn_out: u64,
    pub(crate) barn_gets: u64,
    pub(crate) barn_puts: u64,
    /// The barn had nothing to give, or its locks were held.
    pub(crate) barn_failures: u64,
    pub(crate) lane_in: u64,
    pub(crate) lane_out: u64,
    pub(crate) lane_gets: u64,
    pub(crate) lane_puts: u64,
}

// SAFETY: a pair owns its two sheaves; their memory is not tied to a thread.
unsafe impl Send for SheafPair {}

impl SheafPair {
    /// Takes two empty sheaves from the barn of a zone; `is_alone` says that there is no other zone.
    /// `None` if all caches that it was made for are joined.
    pub(crate) fn join(barn: &Barn, zone: u32, home: u32, is_alone: bool) -> Option<Self> {
        let loaded_id = barn.join(home)?;
        let Some(spare_id) = barn.join(home) else {
            barn.leave(loaded_id, home);
            return None;
        };
        Some(Self {
            loaded: barn.sheaves.slots(loaded_id),
            loaded_len: 0,
            quick_room: if is_alone { barn.sheaves.capacity() } else { 0 },
            capacity: barn.sheaves.capacity(),
            loaded_id,
            spare_id,
            spare_len: 0,
            set_aside: None,
            zone,
            home,
            found: home,
            traffic: Traffic::default(),
        })
    }

    /// Gives all frames and both sheaves back; the pair must not be used afterwards.
    pub(crate) fn leave(&mut self, barn: &Barn) {
        self.flush(barn, true);
        barn.leave(self.loaded_id, self.home);
        barn.leave(self.spare_id, self.home);
    }

    /// Frames in both sheaves.
    pub(crate) fn frames(&self) -> u32 {
        self.loaded_len + self.spare_len
    }

    /// Whether a request for `want` frames is served without leaving the loaded sheaf.
    #[inline(always)]
    pub(crate) fn has(&self, want: usize) -> bool {
        want <= self.loaded_len as usize
    }

    /// Whether `count` frames can be given without leaving the loaded sheaf, and without looking at
    /// their zones.
    #[inline(always)]
    pub(crate) fn has_quick_room(&self, count: usize) -> bool {
        self.loaded_len as usize + count <= self.quick_room as usize
    }

    /// Whether `count` frames can be given without leaving the loaded sheaf.
    #[inline(always)]
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.loaded_len as usize + count <= self.capacity as usize
    }

    /// Takes the last `count` frames of the loaded sheaf; [`has`](Self::has) must say yes.
    #[inline(always)]
    pub(crate) fn take_loaded(&mut self, count: usize) -> &[u32] {
        debug_assert!(self.has(count));
        self.loaded_len -= count as u32;
        // SAFETY: the slots up to the old length are this pair's and initialised.
        let first = unsafe { self.loaded.add(self.loaded_len as usize).as_ptr() };
        sync::reads(first, count);
        // SAFETY: as above.
        unsafe { slice::from_raw_parts(first, count) }
    }

    /// The next `count` free slots of the loaded sheaf, to be written and then counted by
    /// [`given`](Self::given); [`has_room`](Self::has_room) must say yes.
    #[inline(always)]
    pub(crate) fn room_loaded(&mut self, count: usize) -> &mut [MaybeUninit<u32>] {
        debug_assert!(self.has_room(count));
        // SAFETY: the slots from the length to the capacity are this pair's; they may be uninitialised.
        let first = unsafe { self.loaded.add(self.loaded_len as usize).as_ptr() };
        sync::writes(first, count);
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(first.cast(), count) }
    }

    /// Counts `count` slots of the loaded sheaf as frames.
    ///
    /// # Safety
    /// The first `count` slots of the last `room_loaded` must have been written with frames that are
    /// given to the pool.
    #[inline(always)]
    pub(crate) unsafe fn given(&mut self, count: usize) {
        debug_assert!(self.has_room(count));
        self.loaded_len += count as u32;
    }

    /// Makes the loaded sheaf serve up to `want` more frames, by a swap, from a lane or from the barn,
    /// and returns how many it can serve now: 0 means that there are none for this cache.
    /// To be called with `has(want)` false; call it again after taking what there was.
    pub(crate) fn load(&mut self, barn: &Barn, lanes: &mut LaneEnds, want: usize) -> usize {
        if self.loaded_len == 0 {
            self.own_both(barn); // A lane's sheaf that is drained goes back before anything else.
        }
        if self.spare_len as usize >= want || self.loaded_len == 0 && self.spare_len > 0 {
            self.swap(barn);
        } else if self.loaded_len == 0 {
            if let Some((id, len)) = lanes.take(barn) {
                // SAFETY: `take` made this thread the owner of the sheaf.
                barn.sheaves.check(unsafe { barn.sheaves.content(id, len) });
                self.set_aside = Some(self.loaded_id);
                self.set_loaded(barn, id, len);
                self.traffic.lane_in += u64::from(len);
                self.traffic.lane_gets += 1;
            } else if let Some((id, len)) = barn.get(self.loaded_id, &mut self.found) {
                // SAFETY: `get` made this thread the owner of the sheaf.
                barn.sheaves.check(unsafe { barn.sheaves.content(id, len) });
                self.set_loaded(barn, id, len);
                self.traffic.barn_in += u64::from(len);
                self.traffic.barn_gets += 1;
            } else {
                self.traffic.barn_failures += 1;
            }
        }
        want.min(self.loaded_len as usize)
    }

    /// Makes room in the loaded sheaf for up to `count` frames, by a swap or by handing a full
    /// sheaf to a lane or the barn, and returns how many fit now: at least one.
    /// To be called with `has_room(count)` false; call it again after giving what fitted.
    pub(crate) fn unload(&mut self, barn: &Barn, lanes: &mut LaneEnds, count: usize) -> usize {
        let spare_room = (self.capacity - self.spare_len) as usize;
        let is_full = self.loaded_len == self.capacity;
        if spare_room >= count || is_full && spare_room > 0 {
            self.swap(barn);
        } else if is_full {
            self.own_both(barn);
            // SAFETY: the loaded sheaf is this pair's and full of frames.
            let frames = unsafe { barn.sheaves.content(self.loaded_id, self.capacity) };
            barn.sheaves.check(frames);
            if lanes.put(barn, self.zone, frames) {
                self.loaded_len = 0;
                self.traffic.lane_out += u64::from(self.capacity);
                self.traffic.lane_puts += 1;
            } else {
                let empty = barn.put(self.loaded_id, self.home);
                self.set_loaded(barn, empty, 0);
                self.traffic.barn_out += u64::from(self.capacity);
                self.traffic.barn_puts += 1;
            }
        }
        count.min((self.capacity - self.loaded_len) as usize)
    }

    /// Gives the spare sheaf's frames to the barn, and the loaded one's too if `all`.
    /// Returns how many.
    pub(crate) fn flush(&mut self, barn: &Barn, all: bool) -> u64 {
        self.own_both(barn);
        let mut flushed = 0;
        for (id, len) in [(self.spare_id, &mut self.spare_len), (self.loaded_id, &mut self.loaded_len)] {
            // SAFETY: both sheaves are this pair's.
            let frames = unsafe { barn.sheaves.content(id, *len) };
            barn.put_loose(frames, self.home);
            flushed += u64::from(std::mem::take(len));
            if !all {
                break;
            }
        }
        self.traffic.barn_out += flushed;
        flushed
    }

    /// Copies what is left in a lane's sheaf into the own one and gives the lane its sheaf back.
    pub(crate) fn own_both(&mut self, barn: &Barn) {
        let Some(own) = self.set_aside.take() else { return };
        let is_loaded = barn.is_lanes(self.loaded_id);
        let (id, len) = if is_loaded {
            (&mut self.loaded_id, self.loaded_len)
        } else {
            (&mut self.spare_id, self.spare_len)
        };
        debug_assert!(barn.is_lanes(*id));
        // SAFETY: this pair holds both sheaves, and they are two; the content fits.
        unsafe { barn.sheaves.write(own, 0, barn.sheaves.content(*id, len)) };
        lane::give_back(barn, std::mem::replace(id, own));
        self.loaded = barn.sheaves.slots(self.loaded_id);
    }

    fn set_loaded(&mut self, barn: &Barn, id: SheafId, len: u32) {
        self.loaded_id = id;
        self.loaded_len = len;
        self.loaded = barn.sheaves.slots(id);
    }

    fn swap(&mut self, barn: &Barn) {
        std::mem::swap(&mut self.loaded_id, &mut self.spare_id);
        std::mem::swap(&mut self.loaded_len, &mut self.spare_len);
        self.loaded = barn.sheaves.slots(self.loaded_id);
    }
}
