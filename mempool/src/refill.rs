//! What a pool cache does when its loaded sheaf can't serve: exchange, sort, flush, join and leave.
//!
//! Owns: nothing. Never does: run more than once in a sheaf of net operations, besides at short
//! allocations and frames of foreign zones. Invariant: as that of `cache`. The order in which frames
//! are looked for: spare sheaf, lanes, the own zone's barn from its home shard on, other zones if the
//! policy allows it; then the other caches are asked, and the count is short.

use std::mem::MaybeUninit;

use crate::{
    Burst, Frame, FrameIndex, PoolCache, ZonePolicy,
    copy::copy_indices,
    lane::{LANE_SHEAVES, LANES_A_CACHE, give_back},
    sheaf,
    sync::{Ordering, add},
};

/// How many short allocations in a row go by between two flush requests of one cache: each request
/// makes every other cache of the zone give sheaves back.
const SHORTS_A_REQUEST: u32 = 16;
/// Frames of the largest sheaf.
const MOST_IN_A_SHEAF: usize = sheaf::CAPACITIES[2] as usize;
/// The most sheaves that lie in lanes to one cache.
const MOST_IN_LANES: usize = LANES_A_CACHE * LANE_SHEAVES as usize;

impl PoolCache {
    /// As [`take_with`](Self::take_with), when the loaded sheaf can't serve alone.
    #[cold]
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn take_slowly(&mut self, want: usize, visit: &mut dyn FnMut(&[u32])) -> usize {
        #[cfg(debug_assertions)]
        let visit = {
            let (place, shadow) = (std::panic::Location::caller(), self.pool.shadow());
            &mut move |indices: &[u32]| {
                shadow.take(indices, place);
                visit(indices);
            }
        };
        self.sync_lanes();
        let barn = &self.own_zone().barn;
        let mut taken = 0;
        while taken < want {
            let now = self.pair.load(barn, &mut self.lanes, want - taken);
            if now == 0 {
                break;
            }
            visit(self.pair.take_loaded(now));
            taken += now;
        }
        add(&self.counters.taken_slowly, taken as u64);
        if taken < want && self.pool.policy() == ZonePolicy::Prefer {
            taken += self.borrow(want - taken, visit);
        }
        if taken < want {
            self.fall_short();
        } else {
            self.shorts_to_request = 0;
        }
        self.publish_traffic();
        add(&self.counters.taken, taken as u64);
        taken
    }

    /// As [`give_with`](Self::give_with), when the loaded sheaf has no room for all, or frames may be of
    /// other zones.
    ///
    /// # Safety
    /// As for `give_with`.
    #[cold]
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) unsafe fn give_slowly(
        &mut self,
        count: usize,
        fill: &mut dyn FnMut(&mut [MaybeUninit<u32>], usize),
    ) {
        if !self.pair.has_room(count) {
            self.sync_lanes();
            add(&self.counters.given_slowly, count as u64);
        }
        let mut given = 0;
        if self.pool.zones().len() == 1 {
            // Straight into the sheaves: there is nothing to sort.
            while given < count {
                let now = self.make_room(count - given);
                fill(self.pair.room_loaded(now), given);
                // SAFETY: the caller's `fill` wrote every slot with frames that it gives away.
                unsafe { self.settle(now) };
                given += now;
            }
        }
        let mut frames = [MaybeUninit::uninit(); MOST_IN_A_SHEAF];
        while given < count {
            let now = (count - given).min(MOST_IN_A_SHEAF);
            fill(&mut frames[..now], given);
            // SAFETY: the caller's `fill` wrote every slot.
            let frames = unsafe { frames[..now].assume_init_mut() };
            #[cfg(debug_assertions)]
            self.pool.shadow().give(frames, std::panic::Location::caller());
            let kept = self.send_foreign(frames);
            self.give_own(&frames[..kept]);
            given += now;
        }
        add(&self.counters.given, count as u64);
        self.publish_traffic();
    }

    /// Puts frames of the own zone into the own sheaves, which are exchanged when they are full.
    fn give_own(&mut self, mut frames: &[u32]) {
        while !frames.is_empty() {
            let now = self.make_room(frames.len());
            let slots = self.pair.room_loaded(now);
            // SAFETY: both have `now` indices; then every slot was written with a frame that was given.
            unsafe {
                copy_indices(frames.as_ptr(), slots.as_mut_ptr().cast(), now);
                self.pair.given(now);
            }
            frames = &frames[now..];
        }
    }

    /// Makes room for up to `count` frames in the loaded sheaf; returns for how many: at least one.
    fn make_room(&mut self, count: usize) -> usize {
        if self.pair.has_room(count) {
            return count;
        }
        self.pair.unload(&self.own_zone().barn, &mut self.lanes, count)
    }

    /// As [`alloc`](Self::alloc).
    #[cold]
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn alloc_slowly(&mut self) -> Option<Frame> {
        let (mut frame, geometry) = (None, *self.pool.geometry());
        self.take_slowly(1, &mut |indices| {
            // SAFETY: indices in sheaves are frames of this pool, and this one is now this call's.
            frame = Some(unsafe { geometry.packet(indices[0], 0) });
        });
        frame
    }

    /// As [`free`](Self::free), for a frame of this pool.
    ///
    /// # Safety
    /// The caller must own the frame, and no handle of it may be left.
    #[cold]
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) unsafe fn free_slowly(&mut self, index: FrameIndex) {
        // SAFETY: as the caller says.
        unsafe { self.give_indices_slowly(&[index]) };
    }

    /// As [`alloc_packets`](Self::alloc_packets), for at most as many as the burst has room for.
    #[cold]
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn alloc_packets_slowly(&mut self, burst: &mut Burst, want: usize, len: u32) -> usize {
        let geometry = *self.pool.geometry();
        let spare = burst.spare();
        let mut written = 0;
        let taken = self.take_slowly(want, &mut |indices| {
            for (entry, &index) in spare[written..].iter_mut().zip(indices) {
                // SAFETY: indices in sheaves are frames of this pool, now this burst's.
                entry.write(unsafe { geometry.packet(index, len as u16) });
            }
            written += indices.len();
        });
        // SAFETY: the first `taken` spare entries were written just above.
        unsafe { burst.commit(taken) };
        taken
    }

    /// As [`take`](Self::take).
    #[cold]
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn take_out_slowly(&mut self, out: &mut [FrameIndex]) -> usize {
        let mut written = 0;
        self.take_slowly(out.len(), &mut |indices| {
            let entries = &mut out[written..][..indices.len()];
            // SAFETY: both have as many indices, and a FrameIndex is one transparently.
            unsafe { copy_indices(indices.as_ptr(), entries.as_mut_ptr().cast(), indices.len()) };
            written += indices.len();
        })
    }

    /// As [`give`](Self::give).
    ///
    /// # Safety
    /// As for `give`.
    #[cold]
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) unsafe fn give_indices_slowly(&mut self, indices: &[FrameIndex]) {
        // SAFETY: every slot is written, with frames that the caller gives.
        unsafe {
            self.give_slowly(indices.len(), &mut |slots, at| {
                let indices = &indices[at..][..slots.len()];
                copy_indices(indices.as_ptr().cast(), slots.as_mut_ptr().cast(), slots.len());
            });
        }
    }

    /// As [`free_burst`](Self::free_burst), for frames of this pool; the burst keeps its handles.
    ///
    /// # Safety
    /// The burst must forget its frames afterwards.
    #[cold]
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) unsafe fn free_burst_slowly(&mut self, burst: &Burst) {
        let geometry = *self.pool.geometry();
        // SAFETY: every slot is written, with frames that the caller gives.
        unsafe {
            self.give_slowly(burst.len(), &mut |slots, at| {
                for (slot, frame) in slots.iter_mut().zip(&burst[at..]) {
                    slot.write(geometry.index_within(geometry.addr(frame)));
                }
            });
        }
    }

    /// Counts `count` slots that were written in the loaded sheaf as its frames, but for those of other
    /// zones.
    ///
    /// # Safety
    /// They must have been written, with frames that are given to the pool.
    #[cold]
    #[inline(never)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) unsafe fn sort_out(&mut self, count: usize) {
        let mut frames = [0; MOST_IN_A_SHEAF];
        let frames = &mut frames[..count];
        // SAFETY: the caller says that they were written.
        frames.copy_from_slice(unsafe { self.pair.room_loaded(count).assume_init_ref() });
        #[cfg(debug_assertions)]
        self.pool.shadow().give(frames, std::panic::Location::caller());
        let kept = self.send_foreign(frames);
        self.give_own(&frames[..kept]);
        add(&self.counters.given, count as u64);
    }

    /// Puts those of other zones into the open sheaves of their zones, and moves the others to the front.
    /// Returns how many these are.
    fn send_foreign(&mut self, frames: &mut [u32]) -> usize {
        if self.range.contains_all(frames) {
            return frames.len();
        }
        let pool = self.pool;
        let (mut kept, mut foreign) = (0, 0);
        for at in 0..frames.len() {
            let frame = frames[at];
            if self.range.contains(frame) {
                frames[kept] = frame;
                kept += 1;
                continue;
            }
            let Some(zone) = pool.zone_of(frame) else {
                panic!("pool: index {frame} was given; allowed: 0 to {}, as taken", pool.frames() - 1);
            };
            // SAFETY: the caller gives the frame, and it is of that zone.
            let traffic =
                unsafe { self.foreign.push(pool.zones(), zone, self.id.slot, frame, &mut self.lanes) };
            self.counters.add_traffic(traffic);
            foreign += 1;
        }
        add(&self.counters.foreign, foreign);
        kept
    }

    /// Takes up to `want` frames of other zones, the next zone first.
    fn borrow(&mut self, want: usize, visit: &mut dyn FnMut(&[u32])) -> usize {
        let zones = self.pool.zones();
        let mut borrowed = 0;
        for step in 1..zones.len() {
            let zone = (self.zone as usize + step) % zones.len();
            while borrowed < want {
                let (now, traffic) = self.foreign.take(zones, zone, self.id.slot, want - borrowed, visit);
                self.counters.add_traffic(traffic);
                if now == 0 {
                    break;
                }
                borrowed += now;
            }
        }
        add(&self.counters.borrowed, borrowed as u64);
        borrowed
    }

    /// There was no frame: counts it, and asks the other caches of the zone now and then.
    fn fall_short(&mut self) {
        add(&self.counters.short, 1);
        if self.shorts_to_request == 0 {
            self.shorts_to_request = SHORTS_A_REQUEST;
            self.flush_seen = self.pool.request_flush(self.zone); // There is nothing here to give.
        }
        self.shorts_to_request -= 1;
    }

    /// The rare part of [`boundary`](Self::boundary).
    #[cold]
    #[inline(never)]
    pub(crate) fn tend(&mut self) {
        self.sync_lanes();
        let traffic = self.foreign.send_home(self.pool, self.id.slot);
        self.counters.add_traffic(traffic);
        let request = self.own_zone().flush_request();
        if request != self.flush_seen {
            self.flush_seen = request;
            self.give_up();
        }
    }

    /// Gives up what other cores of the zone ask for: the spare sheaf, what lies in lanes, and the
    /// loaded sheaf too if nothing was allocated since the last request.
    fn give_up(&mut self) {
        let taken = self.counters.taken.load(Ordering::Relaxed);
        let is_idle = taken == self.taken_at_request;
        self.taken_at_request = taken;
        let barn = &self.own_zone().barn;
        self.pair.flush(barn, is_idle);
        let mut moved = 0;
        // Bounded, for the freeing ends go on.
        for _ in 0..MOST_IN_LANES {
            let Some((id, len)) = self.lanes.take(barn) else { break };
            // SAFETY: `take` made this thread the owner of the sheaf.
            barn.put_loose(unsafe { barn.sheaves.content(id, len) }, self.id.slot % barn.shards());
            give_back(barn, id);
            moved += u64::from(len);
        }
        self.count_moved(moved);
        add(&self.counters.flushes, 1);
        self.publish_traffic();
    }

    fn sync_lanes(&mut self) {
        let lanes = self.pool.lanes();
        if self.lanes.is_stale(lanes) {
            // A lane that ends must have all its sheaves.
            self.pair.own_both(&self.own_zone().barn);
            let moved = self.lanes.sync(lanes, &|zone| self.pool.barn_of(zone, self.id.slot));
            self.count_moved(moved);
        }
    }

    /// Counts frames that went from lanes to barns by this cache's hand.
    fn count_moved(&self, frames: u64) {
        add(&self.counters.lane_in, frames);
        add(&self.counters.barn_out, frames);
    }

    fn publish_traffic(&mut self) {
        self.counters.add_traffic(std::mem::take(&mut self.pair.traffic));
    }
}

impl Drop for PoolCache {
    fn drop(&mut self) {
        let zones = self.pool.zones();
        let slot = self.id.slot;
        // No new lanes from here on.
        self.pool.begin_leave(slot);
        let barn = &self.own_zone().barn;
        self.pair.flush(barn, true);
        let moved = self.lanes.leave(self.pool.lanes(), &|zone| self.pool.barn_of(zone, slot));
        self.count_moved(moved);
        self.counters.add_traffic(self.foreign.flush(zones, slot));
        self.foreign.leave(zones, slot);
        self.pair.leave(barn);
        self.publish_traffic();
        self.pool.leave(slot);
    }
}
