//! Lanes: one-way paths of whole sheaves from a cache that frees to a cache that allocates.
//!
//! Owns: for each lane a fixed set of sheaves, and who its two ends are. Never does: a
//! read-modify-write while frames move. Invariant: a lane's sheaf belongs to the freeing end while
//! its turn word is 0 and to the allocating end otherwise; both go through the set in one order.
//!
//! ```text
//!                 +-- turn 60 --+-- turn 60 --+-- turn 0 ---+-- turn 0 ---+
//! allocating end  |    full     |    full     |    empty    |    empty    |  freeing end
//! drains here --->|  (draining) |             |(next to fill)             |<--- fills here
//!                 +-------------+-------------+-------------+-------------+
//! ```
//! The freeing end copies its full sheaf in, as a run of vector moves, and release-stores the count.
//! The allocating end takes frames straight from the lane's sheaf and release-stores 0 when it is
//! drained. So a sheaf of four cache lines costs ten line transfers a round trip: four are read, the
//! turn word is taken and read once each, and four are taken to be written again.
//!
//! (Above 400 lines, for both ends and the control plane read each other's words: one protocol.)
//!
//! # Opening and closing
//! A door is a word through which the control plane tells a cache of a lane: each cache slot has some
//! for either direction. The cache looks at them when it exchanges a sheaf and the slot's `changed`
//! number has moved. An end that finds its lane closing lets go; the freeing end first, so that the
//! other can drain what was put. A cache that leaves closes its lanes and lets go of all its ends at
//! once. Whichever end is last has the lane to itself: it gives what lies in it to the barn and frees
//! the lane's number.

use crate::{
    Mempool, PoolError,
    barn::Barn,
    sheaf::SheafId,
    sync::{AtomicU32, Ordering},
};

/// Sheaves of one lane: one that is drained, one that is filled, and two on the way, so that neither
/// end waits for the other's burst.
pub(crate) const LANE_SHEAVES: u32 = 4;
/// The most lanes that lead to or from one cache, in each direction.
pub(crate) const LANES_A_CACHE: usize = 16;

/// Both ends hold on to the lane.
const BOTH: u32 = 3;
/// One end does.
const ONE: u32 = 2;
/// None does; the last one is about to empty it.
const EMPTYING: u32 = 1;
/// The lane's number can be used again.
const FREE: u32 = 0;

/// A lane's state apart from its sheaves. Read by both ends, written only when it opens or closes.
#[repr(align(128))]
#[derive(Debug, Default)]
struct LaneState {
    /// [`BOTH`], [`ONE`], [`EMPTYING`] or [`FREE`].
    ends: AtomicU32,
    /// 1 when the ends should let go.
    closing: AtomicU32,
    /// The zone whose frames it carries: that of the allocating end.
    zone: AtomicU32,
    /// Counts the openings, so that an old handle can't close a new lane.
    opened: AtomicU32,
    /// The slots of the two caches. Only the holder of the lock writes them, while no end holds on.
    from: AtomicU32,
    to: AtomicU32,
}

/// Where the cache that holds a slot learns of its lanes. On lines of its own; written only when a
/// lane opens or closes.
#[repr(align(128))]
#[derive(Debug)]
struct Doors {
    changed: AtomicU32,
    /// Lane number + 1, or 0: written by the control plane while 0, and by the cache to 0.
    freeing: Box<[AtomicU32]>,
    allocating: Box<[AtomicU32]>,
}

/// All lanes of a pool.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Box<[LaneState]>,
    doors: Box<[Doors]>,
}

/// An open lane, to be closed. Made by [`Mempool::lane`]; dropping the handle leaves the lane open.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub(crate) pool: &'static Mempool,
    pub(crate) ticket: LaneTicket,
}

impl Lane {
    /// Asks both caches to let go of the lane, which each does when it comes to an exchange or a
    /// [`boundary`](crate::PoolCache::boundary). Frames that lie in it go to the barn.
    pub fn close(self) {
        self.pool.close_lane(self.ticket);
    }

    /// Whether both have let go, after [`close`](Self::close) or because a cache has left.
    pub fn is_over(&self) -> bool {
        self.pool.lanes().is_over(self.ticket)
    }
}

/// Names an open lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneTicket {
    number: u32,
    opened: u32,
}

impl Lanes {
    /// Room for `lanes` lanes among `slots` caches, up to `each` a cache in either direction.
    pub(crate) fn new(lanes: u32, slots: u32, each: usize) -> Self {
        let word = || AtomicU32::new(0);
        let words = || (0..each).map(|_| word()).collect();
        let doors = |_| Doors { changed: word(), freeing: words(), allocating: words() };
        Self {
            lanes: (0..lanes).map(|_| LaneState::default()).collect(),
            doors: (0..slots).map(doors).collect(),
        }
    }

    /// The most lanes at one time.
    pub(crate) fn count(&self) -> u32 {
        self.lanes.len() as u32
    }

    /// Opens a lane between the caches of two slots. The caller holds the lock under which slots
    /// and lanes are given out.
    pub(crate) fn open(&self, from: u32, to: u32, zone: u32) -> Result<LaneTicket, PoolError> {
        // Acquire pairs with the release in `let_go`: the last user's accesses are over. Of a door that
        // says nothing.
        let is_free = |word: &AtomicU32| word.load(Ordering::Acquire) == FREE;
        let position = self.lanes.iter().position(|lane| is_free(&lane.ends));
        let number = position.ok_or(PoolError::LanesInUse { max: self.count() })?;
        let freeing = self.doors[from as usize].freeing.iter().find(|door| is_free(door));
        let allocating = self.doors[to as usize].allocating.iter().find(|door| is_free(door));
        let (Some(freeing), Some(allocating)) = (freeing, allocating) else {
            return Err(PoolError::LanesOfCache { max: LANES_A_CACHE });
        };
        let lane = &self.lanes[number];
        lane.ends.store(BOTH, Ordering::Relaxed);
        lane.closing.store(0, Ordering::Relaxed);
        lane.zone.store(zone, Ordering::Relaxed);
        lane.from.store(from, Ordering::Relaxed);
        lane.to.store(to, Ordering::Relaxed);
        let opened = lane.opened.load(Ordering::Relaxed).wrapping_add(1);
        lane.opened.store(opened, Ordering::Relaxed);
        // Release pairs with the acquire in `sync`: who sees the door sees the lane as set up above.
        freeing.store(number as u32 + 1, Ordering::Release);
        allocating.store(number as u32 + 1, Ordering::Release);
        self.announce([from, to]);
        Ok(LaneTicket { number: number as u32, opened })
    }

    /// Asks both ends to let go. The caller holds the lock as for `open`.
    pub(crate) fn close(&self, ticket: LaneTicket) {
        let lane = &self.lanes[ticket.number as usize];
        if lane.opened.load(Ordering::Relaxed) == ticket.opened {
            self.close_any(lane);
        }
    }

    /// Closes every lane of a cache that is about to leave: what lies in a lane that nobody drains would
    /// be out of reach until the other cache leaves too. The caller holds the lock as for `open`.
    pub(crate) fn close_all(&self, slot: u32) {
        for lane in &self.lanes {
            if [&lane.from, &lane.to].iter().any(|end| end.load(Ordering::Relaxed) == slot) {
                self.close_any(lane);
            }
        }
    }

    fn close_any(&self, lane: &LaneState) {
        if lane.ends.load(Ordering::Relaxed) > EMPTYING {
            lane.closing.store(1, Ordering::Relaxed);
            self.announce([&lane.from, &lane.to].map(|end| end.load(Ordering::Relaxed)));
        }
    }

    /// Whether no end holds on to the lane any more.
    pub(crate) fn is_over(&self, ticket: LaneTicket) -> bool {
        let lane = &self.lanes[ticket.number as usize];
        // Acquire pairs with the release in `let_go`: the frames are in the barn.
        lane.ends.load(Ordering::Acquire) == FREE || lane.opened.load(Ordering::Relaxed) != ticket.opened
    }

    fn is_closing(&self, end: End) -> bool {
        // Relaxed: a wish, ordered by its announcement.
        self.lanes[end.number as usize].closing.load(Ordering::Relaxed) != 0
    }

    /// Lets go of one end, and empties the lane if it is the last. Returns how many frames were moved
    /// to the barn.
    fn let_go(&self, end: End, door: &AtomicU32, barn_of: BarnOf<'_>) -> u64 {
        // Relaxed: a door that is free says nothing of the lane that it led to.
        door.store(0, Ordering::Relaxed);
        let lane = &self.lanes[end.number as usize];
        let slots = [&lane.from, &lane.to].map(|end| end.load(Ordering::Relaxed)); // While it is this lane.
        let ends = &lane.ends;
        // A read-modify-write, but not on the way of frames. AcqRel: the last end sees all that the
        // first one did.
        if ends.fetch_sub(1, Ordering::AcqRel) == BOTH {
            self.announce(slots); // The other end may have waited for this.
            return 0;
        }
        let (barn, home) = barn_of(end.zone);
        let mut moved = 0;
        for next in 0..LANE_SHEAVES {
            let id = End { next, ..end }.sheaf();
            // Relaxed: ordered by the read-modify-write above.
            let len = barn.sheaves.turn(id).load(Ordering::Relaxed);
            barn.sheaves.take_over(id);
            // SAFETY: both ends have let go, so this thread alone owns the lane's sheaves.
            barn.put_loose(unsafe { barn.sheaves.content(id, len) }, home);
            barn.sheaves.hand_over(id);
            barn.sheaves.turn(id).store(0, Ordering::Relaxed);
            moved += u64::from(len);
        }
        // Release pairs with the acquire in `open` and `is_over`.
        ends.store(FREE, Ordering::Release);
        moved
    }

    /// Tells the caches that their doors have changed.
    fn announce(&self, slots: [u32; 2]) {
        for slot in slots {
            // Release pairs with the acquire in `sync`. A read-modify-write, for caches announce too; not on
            // the way of frames.
            self.doors[slot as usize].changed.fetch_add(1, Ordering::Release);
        }
    }
}

/// One end of a lane, as the cache that holds it sees it.
#[derive(Clone, Copy, Debug)]
struct End {
    number: u32,
    zone: u32,
    /// Which of the lane's sheaves comes next.
    next: u32,
}

impl End {
    fn sheaf(&self) -> SheafId {
        SheafId(self.number * LANE_SHEAVES + self.next)
    }
}

/// The barn of a zone, and the shard of it that the asking cache calls home.
pub(crate) type BarnOf<'a> = &'a dyn Fn(u32) -> (&'a Barn, u32);

/// All ends that one cache holds.
pub(crate) struct LaneEnds {
    slot: u32,
    changed: u32,
    freeing: Ends,
    allocating: Ends,
}

/// The ends of one direction, by the number of their door.
struct Ends {
    by_door: [Option<End>; LANES_A_CACHE],
    /// Doors up to the last one that an end is held of.
    reach: usize,
    /// Where the next search begins, so that lanes take turns.
    next: usize,
}

impl Ends {
    const NONE: Self = Self { by_door: [None; LANES_A_CACHE], reach: 0, next: 0 };

    /// Calls `visit` with each end in turn until it says that it has used one.
    #[inline(always)]
    fn find<T>(&mut self, mut visit: impl FnMut(&mut End) -> Option<T>) -> Option<T> {
        for _ in 0..self.reach {
            let at = if self.next < self.reach { self.next } else { 0 };
            self.next = at + 1;
            if let Some(end) = &mut self.by_door[at % LANES_A_CACHE]
                && let Some(found) = visit(end)
            {
                end.next = (end.next + 1) % LANE_SHEAVES;
                return Some(found);
            }
        }
        None
    }

    fn set(&mut self, door: usize, end: Option<End>) {
        self.by_door[door] = end;
        self.reach = self.by_door.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    }
}

impl LaneEnds {
    /// The ends of the cache in `slot`: none yet.
    pub(crate) fn new(lanes: &Lanes, slot: u32) -> Self {
        // The doors are closed: the slot's last cache has left. Relaxed: the caller holds the lock under
        // which they open.
        let changed = lanes.doors[slot as usize].changed.load(Ordering::Relaxed);
        Self { slot, changed, freeing: Ends::NONE, allocating: Ends::NONE }
    }

    /// Whether there is something for [`sync`](Self::sync) to do.
    #[inline]
    pub(crate) fn is_stale(&self, lanes: &Lanes) -> bool {
        // Relaxed: `sync` looks with acquire.
        lanes.doors[self.slot as usize].changed.load(Ordering::Relaxed) != self.changed
    }

    /// Takes up lanes that were opened and lets go of those that close. Returns how many frames were
    /// moved from lanes to barns. The cache must not hold a lane's sheaf meanwhile.
    #[cold]
    pub(crate) fn sync(&mut self, lanes: &Lanes, barn_of: BarnOf<'_>) -> u64 {
        let doors = &lanes.doors[self.slot as usize];
        // Acquire pairs with the release in `announce`.
        self.changed = doors.changed.load(Ordering::Acquire);
        self.take_up(lanes);
        let mut moved = 0;
        for (at, door) in doors.freeing.iter().enumerate() {
            if let Some(end) = self.freeing.by_door[at].filter(|end| lanes.is_closing(*end)) {
                self.freeing.set(at, None);
                moved += lanes.let_go(end, door, barn_of);
            }
        }
        for (at, door) in doors.allocating.iter().enumerate() {
            if let Some(end) = self.allocating.by_door[at].filter(|end| lanes.is_closing(*end)) {
                // Relaxed: `let_go` orders. The freeing end goes first.
                if lanes.lanes[end.number as usize].ends.load(Ordering::Relaxed) != ONE {
                    continue; // It will tell.
                }
                self.allocating.set(at, None);
                moved += lanes.let_go(end, door, barn_of);
            }
        }
        moved
    }

    /// Lets go of every end; the cache leaves, as [`close_all`](Lanes::close_all) has said. Otherwise as
    /// [`sync`](Self::sync).
    pub(crate) fn leave(&mut self, lanes: &Lanes, barn_of: BarnOf<'_>) -> u64 {
        self.take_up(lanes);
        let doors = &lanes.doors[self.slot as usize];
        let mut moved = 0;
        for (ends, doors) in [(&mut self.freeing, &doors.freeing), (&mut self.allocating, &doors.allocating)]
        {
            for (at, door) in doors.iter().enumerate() {
                if let Some(end) = ends.by_door[at] {
                    ends.set(at, None);
                    moved += lanes.let_go(end, door, barn_of);
                }
            }
        }
        moved
    }

    /// Puts the frames of a full sheaf into the next lane of that zone that has room. `false`: none has.
    #[inline]
    pub(crate) fn put(&mut self, barn: &Barn, zone: u32, frames: &[u32]) -> bool {
        let put = self.freeing.find(|end| {
            let (id, turn) = (end.sheaf(), barn.sheaves.turn(end.sheaf()));
            // Acquire pairs with the release in `give_back`: the other end has read its last slot.
            if end.zone != zone || turn.load(Ordering::Acquire) != 0 {
                return None;
            }
            barn.sheaves.take_over(id);
            // SAFETY: turn 0 makes this end the sheaf's owner; a full sheaf's frames fit.
            unsafe { barn.sheaves.write(id, 0, frames) };
            barn.sheaves.hand_over(id);
            // Release pairs with the acquire in `take`: the other end sees the slots.
            turn.store(frames.len() as u32, Ordering::Release);
            Some(())
        });
        put.is_some()
    }

    /// Takes over the next sheaf that a freeing end has filled, with its number of frames; to be
    /// drained in place and then given back by [`give_back`].
    #[inline]
    pub(crate) fn take(&mut self, barn: &Barn) -> Option<(SheafId, u32)> {
        self.allocating.find(|end| {
            let id = end.sheaf();
            // Acquire pairs with the release in `put`.
            let len = barn.sheaves.turn(id).load(Ordering::Acquire);
            if len == 0 {
                return None;
            }
            barn.sheaves.take_over(id);
            Some((id, len))
        })
    }

    /// Takes up the lanes that the doors name.
    fn take_up(&mut self, lanes: &Lanes) {
        let doors = &lanes.doors[self.slot as usize];
        for (ends, doors) in [(&mut self.freeing, &doors.freeing), (&mut self.allocating, &doors.allocating)]
        {
            for (at, door) in doors.iter().enumerate() {
                // Acquire pairs with the release in `open`.
                let number = door.load(Ordering::Acquire);
                if number != 0 && ends.by_door[at].is_none() {
                    let zone = lanes.lanes[number as usize - 1].zone.load(Ordering::Relaxed);
                    ends.set(at, Some(End { number: number - 1, zone, next: 0 }));
                }
            }
        }
    }
}

/// Gives a drained sheaf back to the freeing end of its lane.
#[inline]
pub(crate) fn give_back(barn: &Barn, id: SheafId) {
    barn.sheaves.hand_over(id);
    // Release pairs with the acquire in `put`: the last slot was read before.
    barn.sheaves.turn(id).store(0, Ordering::Release);
}
