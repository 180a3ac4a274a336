//! loom models of the sheaf exchange: every interleaving of two threads and the memory orderings
//! between them. Run with `RUSTFLAGS="--cfg loom" cargo test -p sheafio-mempool --release models`.

use loom::{sync::Arc, thread};

use crate::{
    barn::{Barn, BarnPlan},
    lane::{LANE_SHEAVES, LaneEnds, Lanes},
    pair::SheafPair,
    sheaf::FrameRange,
    zone::Zone,
};

/// Sheaves of two frames keep the state space small; the protocol does not depend on the capacity.
const CAPACITY: u32 = 2;

/// What two caches share: a barn, and one lane or none.
struct Shared {
    zone: Zone,
    lanes: Lanes,
}

impl Shared {
    fn new(frames: u32, shards: u32, lanes: u32) -> Arc<Self> {
        let range = FrameRange { first: 0, count: frames };
        let lane_sheaves = lanes * LANE_SHEAVES;
        let plan = BarnPlan { range, capacity: CAPACITY, caches: 2, shards, lane_sheaves, node: None };
        Arc::new(Self { zone: Zone::new(Barn::new(&plan), &[]), lanes: Lanes::new(lanes, 2, 1) })
    }

    fn barn(&self) -> &Barn {
        &self.zone.barn
    }

    fn cache(shared: &Arc<Self>, slot: u32) -> Cache {
        let home = slot % shared.barn().shards();
        let pair = SheafPair::join(shared.barn(), 0, home, true).expect("made for two caches");
        Cache { pair, ends: LaneEnds::new(&shared.lanes, slot), home, shared: shared.clone() }
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
    home: u32,
    shared: Arc<Shared>,
}

impl Cache {
    fn sync(&mut self) {
        if self.ends.is_stale(&self.shared.lanes) {
            self.pair.own_both(self.shared.barn());
            self.ends.sync(&self.shared.lanes, &|_| (self.shared.barn(), self.home));
        }
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

    fn leave(mut self) {
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

/// Frames go over a lane, in place, and come back over the barn.
#[test]
fn a_lane_carries_sheaves() {
    loom::model(|| {
        let shared = Shared::new(8, 1, 1);
        let (mut freeing, mut allocating) = (Shared::cache(&shared, 0), Shared::cache(&shared, 1));
        shared.lanes.open(0, 1, 0).unwrap();
        let frames = freeing.take(8);
        let thread = thread::spawn(move || {
            let taken = allocating.take(3);
            allocating.give(&taken);
            allocating.leave();
            taken.len()
        });
        freeing.give(&frames);
        freeing.leave();
        assert!(thread.join().unwrap() <= 3);
        shared.assert_home(8);
    });
}

/// A lane is closed while both ends use it, and opened again.
#[test]
fn a_lane_closes_and_opens_again_under_its_users() {
    loom::model(|| {
        let shared = Shared::new(8, 1, 1);
        let (mut freeing, mut allocating) = (Shared::cache(&shared, 0), Shared::cache(&shared, 1));
        let ticket = shared.lanes.open(0, 1, 0).unwrap();
        let frames = freeing.take(6);
        let thread = thread::spawn(move || {
            let taken = allocating.take(1);
            allocating.sync();
            allocating.give(&taken);
            allocating
        });
        freeing.give(&frames[..4]);
        shared.lanes.close(ticket);
        freeing.sync();
        freeing.give(&frames[4..]);
        if shared.lanes.is_over(ticket) {
            shared.lanes.open(0, 1, 0).unwrap();
            freeing.sync();
            freeing.flush_one();
        }
        let mut allocating = thread.join().unwrap();
        allocating.sync();
        allocating.leave();
        freeing.leave();
        assert!(shared.lanes.is_over(ticket));
        shared.assert_home(8);
    });
}

impl Cache {
    /// Sends one full sheaf away, if it has one.
    fn flush_one(&mut self) {
        let frames = self.take(2);
        self.give(&frames);
    }
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
                    taken = starving.take(1);
                }
                starving.give(&taken);
                starving.leave();
            })
        };
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
