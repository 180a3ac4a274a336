//! The open sheaves in which a pool cache gathers frames of zones other than its own.
//!
//! Owns: one sheaf of each foreign zone that this cache has freed frames of. Never does: mix zones.
//! Invariant: the sheaf of zone z holds frames of zone z alone, and goes home whole; or half full,
//! when it has waited for long enough or zone z asks for frames.

use crate::{Mempool, lane::LaneEnds, pair::Traffic, sheaf::SheafId, zone::Zone};

/// After how many bursts an open sheaf goes home although it is not full. Long enough that a sheaf
/// of a steady flow fills; short enough that its own zone does not miss the frames.
const FOREIGN_BURSTS: u64 = 64;

/// The open sheaves of one cache, by zone.
pub(crate) struct OpenSheaves {
    open: Box<[Option<OpenSheaf>]>,
    /// Frames in all of them.
    held: u32,
    /// The pool's latest request for frames that these sheaves answered.
    seen: u32,
    /// Bursts at which frames were held.
    now: u64,
    /// The burst at which the first of them may have waited for long enough.
    due: u64,
}

#[derive(Clone, Copy)]
struct OpenSheaf {
    id: SheafId,
    len: u32,
    /// The zone's latest request when the first frame came.
    request: u32,
    /// The burst at which it came.
    since: u64,
}

impl OpenSheaf {
    /// Takes note that the first frame comes at burst `now`.
    fn begin(&mut self, zone: &Zone, now: u64) {
        (self.request, self.since) = (zone.flush_request(), now);
    }
}

impl OpenSheaves {
    /// None open, for a pool of `zones` zones.
    pub(crate) fn new(zones: usize) -> Self {
        Self { open: vec![None; zones].into(), held: 0, seen: 0, now: 0, due: 0 }
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
            request: 0,
            since: 0,
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
            open.begin(&zones[zone], self.now);
        }
        if self.held == 0 {
            self.due = self.now + FOREIGN_BURSTS;
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
            self.open[zone] = barn.try_join(home).map(|id| OpenSheaf { id, len: 0, request: 0, since: 0 });
        }
        let Some(open) = &mut self.open[zone] else { return (0, traffic) };
        if open.len == 0
            && let Some((id, len)) = barn.get(open.id, &mut { home })
        {
            // SAFETY: `get` made this thread the owner of the sheaf.
            barn.sheaves.check(unsafe { barn.sheaves.content(id, len) });
            (open.id, open.len) = (id, len);
            open.begin(&zones[zone], self.now);
            if self.held == 0 {
                self.due = self.now + FOREIGN_BURSTS;
            }
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

    /// Counts a burst. Whether there may be something for [`send_home`](Self::send_home).
    #[inline(always)]
    pub(crate) fn is_due(&mut self, pool: &Mempool) -> bool {
        if self.held == 0 {
            return false;
        }
        self.now += 1;
        self.now >= self.due || pool.foreign_request() != self.seen
    }

    /// Sends the sheaves home that have waited for long enough, and those whose zone asks for frames.
    pub(crate) fn send_home(&mut self, pool: &Mempool, slot: u32) -> Traffic {
        self.seen = pool.foreign_request();
        let (now, mut due) = (self.now, u64::MAX);
        let traffic = self.send(pool.zones(), slot, |open, zone| {
            let ripe = open.since + FOREIGN_BURSTS;
            let goes = now >= ripe || zone.flush_request() != open.request;
            due = due.min(if goes { u64::MAX } else { ripe });
            goes
        });
        self.due = due;
        traffic
    }

    /// Sends all frames home.
    pub(crate) fn flush(&mut self, zones: &[Zone], slot: u32) -> Traffic {
        self.send(zones, slot, |_, _| true)
    }

    /// Sends the frames of those sheaves home for which `goes` says so.
    fn send(
        &mut self,
        zones: &[Zone],
        slot: u32,
        mut goes: impl FnMut(&OpenSheaf, &Zone) -> bool,
    ) -> Traffic {
        let mut traffic = Traffic::default();
        for (zone, open) in zones.iter().zip(&mut self.open) {
            let Some(open) = open.as_mut().filter(|open| open.len > 0 && goes(open, zone)) else { continue };
            // SAFETY: the open sheaf is this cache's.
            let frames = unsafe { zone.barn.sheaves.content(open.id, open.len) };
            zone.barn.put_loose(frames, slot % zone.barn.shards());
            traffic.barn_out += u64::from(open.len);
            self.held -= std::mem::take(&mut open.len);
        }
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
