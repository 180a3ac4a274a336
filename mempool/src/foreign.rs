//! The open sheaves in which a pool cache gathers frames of zones other than its own.
//!
//! Owns: one sheaf of each foreign zone that this cache has freed frames of. Never does: mix zones.
//! Invariant: the sheaf of zone z holds frames of zone z alone, and goes home whole; or half full,
//! when it has waited for long enough.

use crate::{lane::LaneEnds, pair::Traffic, sheaf::SheafId, zone::Zone};

/// After how many bursts an open sheaf goes home although it is not full. Long enough that a sheaf
/// of a steady flow fills; short enough that its own zone does not miss the frames.
pub(crate) const FOREIGN_BURSTS: u32 = 64;

/// The open sheaves of one cache, by zone.
pub(crate) struct OpenSheaves {
    open: Box<[Option<OpenSheaf>]>,
    /// Frames in all of them.
    held: u32,
    /// Burst boundaries that were come to with frames held.
    bursts: u32,
    /// The value of `bursts` before which none of them is due.
    due: u32,
}

#[derive(Clone, Copy)]
struct OpenSheaf {
    id: SheafId,
    len: u32,
    /// The value of `bursts` when its first frame came.
    begun: u32,
}

impl OpenSheaves {
    /// None open, for a pool of `zones` zones.
    pub(crate) fn new(zones: usize) -> Self {
        Self { open: vec![None; zones].into(), held: 0, bursts: 0, due: 0 }
    }

    /// Frames in them.
    #[inline(always)]
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// Adds a frame of a foreign zone; a full sheaf goes home first.
    ///
    /// # Safety
    /// The caller must own the frame, which must be of zone `zone`.
    pub(crate) unsafe fn push(
        &mut self,
        zones: &[Zone],
        zone: usize,
        slot: u32,
        frame: u32,
        lanes: &mut LaneEnds,
    ) -> Traffic {
        let mut traffic = Traffic::default();
        let barn = &zones[zone].barn;
        let capacity = barn.sheaves.capacity();
        let home = slot % barn.shards();
        let open = self.open[zone].get_or_insert_with(|| OpenSheaf {
            id: barn.join(home).expect("the barn has empty sheaves for each cache"),
            len: 0,
            begun: 0,
        });
        if open.len == capacity {
            // SAFETY: the open sheaf is this cache's and full of frames.
            let frames = unsafe { barn.sheaves.content(open.id, capacity) };
            barn.sheaves.check(frames);
            if lanes.put(barn, zone as u32, frames) {
                traffic.lane_out += u64::from(capacity);
                traffic.lane_puts += 1;
            } else {
                open.id = barn.put(open.id, home);
                traffic.barn_out += u64::from(capacity);
                traffic.barn_puts += 1;
            }
            open.len = 0;
            self.held -= capacity;
        }
        if open.len == 0 {
            open.begun = self.bursts;
        }
        if self.held == 0 {
            self.due = self.bursts.wrapping_add(FOREIGN_BURSTS);
        }
        // SAFETY: the sheaf is this cache's and has room.
        unsafe { barn.sheaves.write(open.id, open.len, &[frame]) };
        open.len += 1;
        self.held += 1;
        traffic
    }

    /// Takes up to `want` frames of a foreign zone, those that were gathered or those of a sheaf from
    /// its barn, and hands them to `visit`. Returns how many: 0 if there are none.
    pub(crate) fn take(
        &mut self,
        zones: &[Zone],
        zone: usize,
        slot: u32,
        want: usize,
        visit: &mut dyn FnMut(&[u32]),
    ) -> (usize, Traffic) {
        let mut traffic = Traffic::default();
        let barn = &zones[zone].barn;
        let home = slot % barn.shards();
        if self.open[zone].is_none() {
            self.open[zone] = barn.join(home).map(|id| OpenSheaf { id, len: 0, begun: 0 });
        }
        let Some(open) = &mut self.open[zone] else { return (0, traffic) };
        if open.len == 0
            && let Some((id, len)) = barn.get(open.id, &mut { home })
        {
            // SAFETY: `get` made this thread the owner of the sheaf.
            barn.sheaves.check(unsafe { barn.sheaves.content(id, len) });
            if self.held == 0 {
                self.due = self.bursts.wrapping_add(FOREIGN_BURSTS);
            }
            *open = OpenSheaf { id, len, begun: self.bursts };
            self.held += len;
            traffic.barn_in += u64::from(len);
            traffic.barn_gets += 1;
        }
        let now = (want as u32).min(open.len);
        if now == 0 {
            return (0, traffic);
        }
        // SAFETY: the open sheaf is this cache's.
        let frames = unsafe { barn.sheaves.content(open.id, open.len) };
        open.len -= now;
        self.held -= now;
        visit(&frames[open.len as usize..]);
        (now as usize, traffic)
    }

    /// Counts a burst. Whether a sheaf may have waited for long enough.
    #[inline(always)]
    pub(crate) fn is_due(&mut self) -> bool {
        if self.held == 0 {
            return false;
        }
        self.bursts = self.bursts.wrapping_add(1);
        self.bursts == self.due
    }

    /// Sends the frames of those sheaves home that have waited for long enough.
    pub(crate) fn flush_due(&mut self, zones: &[Zone], slot: u32) -> Traffic {
        self.flush_older(zones, slot, FOREIGN_BURSTS)
    }

    /// Sends all frames home.
    pub(crate) fn flush(&mut self, zones: &[Zone], slot: u32) -> Traffic {
        self.flush_older(zones, slot, 0)
    }

    fn flush_older(&mut self, zones: &[Zone], slot: u32, bursts: u32) -> Traffic {
        let mut traffic = Traffic::default();
        let mut oldest = 0;
        for (zone, open) in zones.iter().zip(&mut self.open) {
            let Some(open) = open.as_mut().filter(|open| open.len > 0) else { continue };
            let age = self.bursts.wrapping_sub(open.begun);
            if age < bursts {
                oldest = oldest.max(age);
                continue;
            }
            // SAFETY: the open sheaf is this cache's.
            let frames = unsafe { zone.barn.sheaves.content(open.id, open.len) };
            zone.barn.put_loose(frames, slot % zone.barn.shards());
            traffic.barn_out += u64::from(open.len);
            self.held -= open.len;
            open.len = 0;
        }
        self.due = self.bursts.wrapping_add(FOREIGN_BURSTS - oldest);
        traffic
    }

    /// Gives the empty sheaves back; the cache leaves. To be called after `flush`.
    pub(crate) fn leave(&mut self, zones: &[Zone], slot: u32) {
        for (zone, open) in zones.iter().zip(&mut self.open) {
            if let Some(open) = open.take() {
                debug_assert_eq!(open.len, 0);
                zone.barn.leave(open.id, slot % zone.barn.shards());
            }
        }
    }
}
