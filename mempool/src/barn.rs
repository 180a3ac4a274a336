//! The barn: a zone's store of full and empty sheaves.
//!
//! Owns: every sheaf that no pool cache and no lane holds. Never does: make anyone wait for frames.
//! Invariant: the counts below always suffice, so handing in a sheaf can't fail.
//!
//! The barn consists of shards, each with a lock of its own; a cache has one of them as its home.
//! Handing in takes an empty sheaf from the same shard in exchange. So each shard has, besides two
//! sheaves for each cache that calls it home, `frames / capacity` (rounded up) + 1: enough to hold
//! every frame of the zone in full sheaves and a partial one, and still to find an empty one there.

use crate::{
    shard::{Locked, Shard},
    sheaf::{FrameRange, SheafId, Sheaves},
    sync,
};

/// How often an allocation looks again at shards whose lock was held, before it gives up. The holder
/// needs a few dozen instructions.
const TRIES: u32 = 64;
/// How many sheaves each cache takes when it joins.
const SHEAVES_A_CACHE: u32 = 2;

/// What a barn is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BarnPlan {
    /// The zone's frames.
    pub(crate) range: FrameRange,
    /// Frames a sheaf.
    pub(crate) capacity: u32,
    /// The most caches at one time.
    pub(crate) caches: u32,
    /// Number of shards.
    pub(crate) shards: u32,
    /// Sheaves that lie in lanes and never in the barn: the first ones of the store.
    pub(crate) lane_sheaves: u32,
    /// The NUMA node whose memory the sheaves lie on.
    pub(crate) node: Option<u32>,
}

impl BarnPlan {
    /// Sheaves in each shard while no cache is joined.
    fn sheaves_a_shard(&self) -> u32 {
        self.range.count.div_ceil(self.capacity) + 1 + SHEAVES_A_CACHE * self.caches.div_ceil(self.shards)
    }

    /// Sheaves in all.
    pub(crate) fn sheaves(&self) -> u32 {
        self.lane_sheaves + self.shards * self.sheaves_a_shard()
    }
}

pub(crate) struct Barn {
    pub(crate) sheaves: Sheaves,
    shards: Box<[Shard]>,
    lane_sheaves: u32,
}

impl Barn {
    /// A barn that holds all frames of its zone.
    pub(crate) fn new(plan: &BarnPlan) -> Self {
        let BarnPlan { range, capacity, shards: shard_count, .. } = *plan;
        let sheaves = Sheaves::new(plan.sheaves(), capacity, range, plan.node);
        let each = plan.sheaves_a_shard();
        let shards: Box<[Shard]> = (0..shard_count).map(|_| Shard::new(each)).collect();
        for (shard, first) in shards.iter().zip((plan.lane_sheaves..).step_by(each as usize)) {
            let mut shard = shard.try_lock().expect("nobody else knows it yet");
            for id in (first..first + each).rev().map(SheafId) {
                sheaves.take_over(id);
                shard.push_empty(id, &sheaves);
            }
        }
        // Dealt out sheaf by sheaf.
        let mut frames = Vec::with_capacity(capacity as usize);
        for start in (0..range.count).step_by(capacity as usize) {
            frames.clear();
            frames.extend((start..range.count.min(start + capacity)).map(|frame| range.first + frame));
            let shard = &shards[(start / capacity % shard_count) as usize];
            shard.try_lock().expect("nobody else knows it yet").append(&frames, &sheaves);
        }
        Self { sheaves, shards, lane_sheaves: plan.lane_sheaves }
    }

    /// Whether a sheaf is one of a lane's, which is never handed in.
    pub(crate) fn is_lanes(&self, id: SheafId) -> bool {
        id.0 < self.lane_sheaves
    }

    /// Number of shards.
    pub(crate) fn shards(&self) -> u32 {
        self.shards.len() as u32
    }

    /// Exchanges an empty sheaf for one with frames, from the shard `at` or the next one that has
    /// some; `at` becomes that shard. `None` if none has, or the locks of those that have are held.
    pub(crate) fn get(&self, empty: SheafId, at: &mut u32) -> Option<(SheafId, u32)> {
        let capacity = self.sheaves.capacity();
        for tries in 0..TRIES {
            let mut is_held = false;
            for shard in Self::around(*at, self.shards()) {
                if self.shards[shard as usize].frames(capacity) == 0 {
                    continue;
                }
                let Some(mut locked) = self.shards[shard as usize].try_lock() else {
                    is_held = true;
                    continue;
                };
                if let Some(found) = locked.pop(&self.sheaves) {
                    locked.push_empty(empty, &self.sheaves);
                    *at = shard;
                    return Some(found);
                }
            }
            if !is_held {
                return None;
            }
            sync::relax(tries);
        }
        None
    }

    /// Exchanges a full sheaf for an empty one, at home or, while that lock is held, elsewhere; if all are
    /// held, as soon as one is free. Holders need a few dozen instructions, unless they lose their CPU.
    pub(crate) fn put(&self, full: SheafId, home: u32) -> SheafId {
        debug_assert!(!self.is_lanes(full));
        let mut locked = self.lock_any(home);
        // The empty one first: a shard that none of the joined caches calls home has all its sheaves.
        let empty = locked.pop_empty(&self.sheaves);
        locked.push_full(full, &self.sheaves);
        empty.expect("there is an empty sheaf for each full one handed in")
    }

    /// Takes frames that do not fill a sheaf.
    pub(crate) fn put_loose(&self, frames: &[u32], home: u32) {
        if !frames.is_empty() {
            self.lock_any(home).append(frames, &self.sheaves);
        }
    }

    /// Takes an empty sheaf for a cache that joins. `None` if all caches that it was made for have.
    pub(crate) fn join(&self, home: u32) -> Option<SheafId> {
        self.lock(home).pop_empty(&self.sheaves)
    }

    /// As `join`, without waiting: `None` also if the shard's lock is held.
    pub(crate) fn try_join(&self, home: u32) -> Option<SheafId> {
        self.shards[home as usize].try_lock()?.pop_empty(&self.sheaves)
    }

    /// Takes back an empty sheaf from a cache that leaves; at home, where it came from.
    pub(crate) fn leave(&self, empty: SheafId, home: u32) {
        self.lock(home).push_empty(empty, &self.sheaves);
    }

    /// Frames in the barn. Exact only while no cache exchanges sheaves.
    pub(crate) fn frames(&self) -> u64 {
        self.shards.iter().map(|shard| shard.frames(self.sheaves.capacity())).sum()
    }

    /// Calls `visit` with each frame index in the barn.
    pub(crate) fn walk(&self, visit: &mut dyn FnMut(u32)) {
        (0..self.shards()).for_each(|shard| self.lock(shard).walk(&self.sheaves, visit));
    }

    fn lock(&self, shard: u32) -> Locked<'_> {
        let mut tries = 0;
        loop {
            if let Some(locked) = self.shards[shard as usize].try_lock() {
                return locked;
            }
            sync::relax(tries);
            tries = tries.wrapping_add(1);
        }
    }

    /// Locks the shard `at`, or the next one that is free. Any shard has room for every sheaf.
    fn lock_any(&self, at: u32) -> Locked<'_> {
        let mut tries = 0;
        loop {
            for shard in Self::around(at, self.shards()) {
                if let Some(locked) = self.shards[shard as usize].try_lock() {
                    return locked;
                }
            }
            sync::relax(tries);
            tries = tries.wrapping_add(1);
        }
    }

    /// All shards once, from `at` on.
    fn around(at: u32, count: u32) -> impl Iterator<Item = u32> {
        (at..count).chain(0..at)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn plan(first: u32, count: u32) -> BarnPlan {
        let range = FrameRange { first, count };
        BarnPlan { range, capacity: 28, caches: 2, shards: 1, lane_sheaves: 0, node: None }
    }

    fn indices(barn: &Barn) -> Vec<u32> {
        let mut all = Vec::new();
        barn.walk(&mut |index| all.push(index));
        all.sort_unstable();
        all
    }

    #[test]
    fn a_new_barn_holds_each_frame_once() {
        for frames in [1, 27, 28, 29, 56, 1000] {
            for shards in [1, 2, 7] {
                let barn = Barn::new(&BarnPlan { shards, lane_sheaves: 3, ..plan(100, frames) });
                assert_eq!(barn.frames(), u64::from(frames));
                assert_eq!(indices(&barn), (100..100 + frames).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn each_shard_has_room_for_every_frame() {
        let barn = Barn::new(&BarnPlan { shards: 4, caches: 4, ..plan(0, 28 * 20 + 5) });
        let mut at = 0;
        let mut mine = barn.join(3).unwrap();
        let mut loose = Vec::new();
        // Everything from all shards goes to the last one.
        for _ in 0..1000 {
            let Some((id, len)) = barn.get(mine, &mut at) else { break };
            // SAFETY: `get` made this thread the owner of the sheaf.
            loose.extend_from_slice(unsafe { barn.sheaves.content(id, len) });
            barn.put_loose(&loose, 3);
            loose.clear();
            mine = id;
            at = at.min(2);
            if barn.shards[3].frames(28) == 28 * 20 + 5 {
                break;
            }
        }
        assert_eq!(barn.shards[3].frames(28), 28 * 20 + 5);
        assert!(barn.join(3).is_some(), "and there are empty sheaves left");
    }

    #[test]
    fn a_shard_that_no_cache_calls_home_takes_full_sheaves() {
        let barn = Barn::new(&BarnPlan { shards: 2, ..plan(0, 28 * 4) });
        let mine = barn.join(0).unwrap();
        let (full, _) = barn.get(mine, &mut 0).unwrap();
        barn.put(full, 1);
        assert_eq!(indices(&barn), (0..28 * 4).collect::<Vec<_>>());
    }

    #[test]
    fn the_sheaf_that_came_first_leaves_first() {
        let barn = Barn::new(&plan(0, 28 * 4));
        let mut mine = barn.join(0).unwrap();
        let mut order = Vec::new();
        for _ in 0..3 * 4 {
            let (full, len) = barn.get(mine, &mut 0).unwrap();
            assert_eq!(len, 28);
            order.push(full);
            mine = barn.put(full, 0);
        }
        assert_eq!(order[..4], order[4..8]);
        assert_eq!(order[..4], order[8..]);
    }

    #[test]
    fn loose_frames_make_at_most_one_partial_sheaf() {
        let barn = Barn::new(&plan(0, 28 * 4 + 5));
        let mut frames = Vec::new();
        let mut mine = barn.join(0).unwrap();
        while let Some((id, len)) = barn.get(mine, &mut 0) {
            // SAFETY: `get` made this thread the owner of the sheaf.
            frames.extend_from_slice(unsafe { barn.sheaves.content(id, len) });
            mine = id;
        }
        assert_eq!((frames.len(), barn.frames()), (28 * 4 + 5, 0));
        for part in frames.chunks(19) {
            barn.put_loose(part, 0);
        }
        assert_eq!(indices(&barn), (0..28 * 4 + 5).collect::<Vec<_>>());
        assert_eq!(barn.get(mine, &mut 0).unwrap().1, 28, "full sheaves go first");
    }

    #[test]
    fn an_empty_barn_gives_nothing() {
        let barn = Barn::new(&plan(0, 30));
        let mine = [barn.join(0).unwrap(), barn.join(0).unwrap()];
        assert!(barn.get(mine[0], &mut 0).is_some() && barn.get(mine[1], &mut 0).is_some());
        assert_eq!(barn.frames(), 0);
        assert!(barn.get(SheafId(0), &mut 0).is_none());
    }
}
