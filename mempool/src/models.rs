//! loom models of the sheaf exchange: every interleaving of two threads and the memory orderings
//! between them. Run with `RUSTFLAGS="--cfg loom" cargo test -p sheafio-mempool --release models`.

mod lanes;

use loom::{
    sync::{Arc, Mutex},
    thread,
};

use crate::{
    barn::{Barn, BarnPlan},
    lane::{LANE_SHEAVES, LaneEnds, LaneTicket, Lanes},
    pair::SheafPair,
    sheaf::FrameRange,
    sync::{AtomicU32, Ordering},
    zone::Zone,
};

/// Sheaves of two frames keep the state space small; the protocol does not depend on the capacity.
const CAPACITY: u32 = 2;

/// What two caches share: a barn, and one lane or none.
struct Shared {
    zone: Zone,
    lanes: Lanes,
    /// The lock under which lanes open and close.
    control: Mutex<()>,
    /// How often threads have met.
    met: AtomicU32,
}

impl Shared {
    fn new(frames: u32, shards: u32, lanes: u32) -> Arc<Self> {
        let range = FrameRange { first: 0, count: frames };
        let lane_sheaves = lanes * LANE_SHEAVES;
        let plan = BarnPlan { range, capacity: CAPACITY, caches: 2, shards, lane_sheaves, node: None };
        let (zone, lanes) = (Zone::new(Barn::new(&plan), &[]), Lanes::new(lanes, 2, 1));
        Arc::new(Self { zone, lanes, control: Mutex::new(()), met: AtomicU32::new(0) })
    }

    fn barn(&self) -> &Barn {
        &self.zone.barn
    }

    fn cache(shared: &Arc<Self>, slot: u32) -> Cache {
        let home = slot % shared.barn().shards();
        let pair = SheafPair::join(shared.barn(), 0, home, true).expect("made for two caches");
        Cache { pair, ends: LaneEnds::new(&shared.lanes, slot), slot, home, shared: shared.clone() }
    }

    /// Makes loom look at both orders of what two threads do before and after: a read-modify-write, which
    /// orders nothing for them. loom itself looks only at the last access to a word before a store; a
    /// load of the storing thread's own hides one by the other thread there.
    fn meet(&self) {
        self.met.fetch_add(1, Ordering::Relaxed);
    }

    /// Opens a lane from slot 0 to slot 1, if there is one that is free.
    fn open(&self) -> Option<LaneTicket> {
        let _control = self.control.lock().unwrap();
        self.lanes.open(0, 1, 0).ok()
    }

    fn close(&self, ticket: LaneTicket) {
        let _control = self.control.lock().unwrap();
        self.lanes.close(ticket);
    }

    /// Each frame is in the barn once.
    fn assert_home(&self, frames: u32) {
        let mut home = Vec::new();
        self.barn().walk(&mut |index| home.push(index));
        home.sort_unstable();
        assert_eq!(home, (0..frames).collect::<Vec<_>>());
    }
}

/// The parts of a `PoolCache` that take part in exchanges, put together as it does.
struct Cache {
    pair: SheafPair,
    ends: LaneEnds,
    slot: u32,
    home: u32,
    shared: Arc<Shared>,
}

impl Cache {
    /// Returns whether there was something to do.
    fn sync(&mut self) -> bool {
        let is_stale = self.ends.is_stale(&self.shared.lanes);
        if is_stale {
            self.sync_anyway();
        }
        is_stale
    }

    /// As when another lane has made the ends stale.
    fn sync_anyway(&mut self) {
        self.pair.own_both(self.shared.barn());
        self.ends.sync(&self.shared.lanes, &|_| (self.shared.barn(), self.home));
    }

    fn take(&mut self, want: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        while taken.len() < want {
            let rest = want - taken.len();
            let now = if self.pair.has(rest) {
                rest
            } else {
                self.sync();
                self.pair.load(self.shared.barn(), &mut self.ends, rest)
            };
            if now == 0 {
                break;
            }
            taken.extend_from_slice(self.pair.take_loaded(now));
        }
        taken
    }

    fn give(&mut self, frames: &[u32]) {
        let mut rest = frames;
        while !rest.is_empty() {
            let now = if self.pair.has_room(rest.len()) {
                rest.len()
            } else {
                self.sync();
                self.pair.unload(self.shared.barn(), &mut self.ends, rest.len())
            };
            for (slot, frame) in self.pair.room_loaded(now).iter_mut().zip(rest) {
                slot.write(*frame);
            }
            // SAFETY: the slots were written just above, with frames that this thread took.
            unsafe { self.pair.given(now) };
            rest = &rest[now..];
        }
    }

    /// Comes to an exchange, of an empty pair or of one that is full.
    fn exchange(&mut self) {
        if self.pair.has(1) {
            self.pair.unload(self.shared.barn(), &mut self.ends, 1);
        } else {
            self.pair.load(self.shared.barn(), &mut self.ends, 1);
        }
    }

    fn leave(mut self) {
        let control = self.shared.control.lock().unwrap();
        self.shared.lanes.close_all(self.slot);
        drop(control);
        self.pair.flush(self.shared.barn(), true);
        self.ends.leave(&self.shared.lanes, &|_| (self.shared.barn(), self.home));
        self.pair.leave(self.shared.barn());
    }
}

/// Two caches join, take, give crosswise amounts, leave: each frame is home once.
#[test]
fn caches_exchange_sheaves_and_leave() {
    for shards in [1, 2] {
        loom::model(move || {
            let shared = Shared::new(5, shards, 0);
            let threads = [0, 1].map(|slot| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let mut cache = Shared::cache(&shared, slot);
                    let frames = cache.take(3);
                    cache.give(&frames);
                    cache.leave();
                })
            });
            for thread in threads {
                thread.join().unwrap();
            }
            shared.assert_home(5);
        });
    }
}

/// One core allocates what the other frees: full sheaves must carry their content across.
#[test]
fn frames_cross_from_a_freeing_to_an_allocating_cache() {
    loom::model(|| {
        let shared = Shared::new(4, 1, 0);
        let mut freeing = Shared::cache(&shared, 0);
        let frames = freeing.take(4);
        assert_eq!(frames.len(), 4);
        let allocating = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut cache = Shared::cache(&shared, 1);
                let frames = cache.take(2);
                let count = frames.len();
                assert!(frames.iter().all(|frame| *frame < 4));
                cache.give(&frames);
                cache.leave();
                count
            })
        };
        freeing.give(&frames);
        freeing.leave();
        assert!(allocating.join().unwrap() <= 2);
        shared.assert_home(4);
    });
}

/// The last, partial sheaf has one taker.
#[test]
fn the_partial_sheaf_is_taken_once() {
    loom::model(|| {
        let shared = Shared::new(1, 1, 0);
        let threads = [0, 1].map(|slot| {
            let shared = shared.clone();
            thread::spawn(move || Shared::cache(&shared, slot).take(1).len())
        });
        let taken: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(taken, 1, "one frame was taken {taken} times");
    });
}

/// A cache that is asked gives up its frames; one that asks finds them.
#[test]
fn a_flush_request_moves_frames() {
    loom::model(|| {
        let shared = Shared::new(2, 1, 0);
        let mut hoarder = Shared::cache(&shared, 0);
        let frames = hoarder.take(2);
        hoarder.give(&frames);
        let thread = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut starving = Shared::cache(&shared, 1);
                let mut taken = starving.take(1);
                if taken.is_empty() {
                    shared.zone.request_flush();
                    shared.meet();
                    taken = starving.take(1);
                }
                starving.give(&taken);
                starving.leave();
            })
        };
        shared.meet();
        if shared.zone.flush_request() != 0 {
            hoarder.pair.flush(shared.barn(), true);
        }
        thread.join().unwrap();
        // Whoever was asked while the other still waited has given.
        if shared.zone.flush_request() != 0 {
            hoarder.pair.flush(shared.barn(), true);
            shared.assert_home(2);
        } else {
            hoarder.leave();
            shared.assert_home(2);
        }
    });
}
