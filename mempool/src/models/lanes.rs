//! loom models of lanes: sheaves that cross and come back, and lanes that open and close.

use loom::{sync::Arc, thread};

use super::{CAPACITY, Cache, Shared};
use crate::lane::LaneTicket;

/// Frames go over a lane, in place, and come back over the barn.
#[test]
fn a_lane_carries_sheaves() {
    loom::model(|| {
        let shared = Shared::new(8, 1, 1);
        let (mut freeing, mut allocating) = (Shared::cache(&shared, 0), Shared::cache(&shared, 1));
        shared.open().unwrap();
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
        let ticket = shared.open().unwrap();
        let frames = freeing.take(6);
        let thread = thread::spawn(move || {
            let taken = allocating.take(1);
            allocating.sync();
            allocating.give(&taken);
            allocating
        });
        freeing.give(&frames[..4]);
        shared.close(ticket);
        freeing.sync();
        freeing.give(&frames[4..]);
        if shared.lanes.is_over(ticket) {
            shared.open().unwrap();
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

/// The freeing end fills a sheaf again that the allocating end has drained.
#[test]
fn a_sheaf_goes_round_in_a_lane() {
    loom::model(|| {
        let shared = Shared::new(14, 1, 1);
        let (mut freeing, mut allocating) = (Shared::cache(&shared, 0), Shared::cache(&shared, 1));
        shared.open().unwrap();
        let frames = freeing.take(14);
        freeing.give(&frames[..12]); // Two sheaves stay in the pair, four fill the lane.
        let thread = thread::spawn(move || {
            let taken = allocating.take(3);
            allocating.shared.meet();
            (allocating, taken)
        });
        shared.meet();
        freeing.give(&frames[12..]); // Into the first sheaf, if it has come back by now.
        let (mut allocating, taken) = thread.join().unwrap();
        assert_eq!(taken.len(), 3);
        assert_eq!(allocating.pair.traffic.lane_gets, 2);
        allocating.give(&taken);
        allocating.leave();
        freeing.leave();
        shared.assert_home(14);
    });
}

/// Both caches take up a lane and one puts a sheaf into it; then the cache in the slot `leaves` leaves,
/// another joins there, and the one that stays is the last end. The joined cache is full if it is to
/// free, and empty if it is to allocate.
fn lane_with_one_end(leaves: u32) -> (Arc<Shared>, LaneTicket, Cache, Cache) {
    let shared = Shared::new(8, 1, 1);
    let [mut freeing, mut allocating] = [0, 1].map(|slot| Shared::cache(&shared, slot));
    let ticket = shared.open().unwrap();
    allocating.sync();
    let frames = freeing.take(6);
    freeing.give(&frames);
    assert_eq!(freeing.pair.traffic.lane_puts, 1);
    let (stays, left) = if leaves == 0 { (allocating, freeing) } else { (freeing, allocating) };
    left.leave();
    let mut joined = Shared::cache(&shared, leaves);
    if leaves == 0 {
        let frames = joined.take(4);
        joined.give(&frames);
    }
    (shared, ticket, stays, joined)
}

/// A lane opens again as if it were new, for either end: also where a cache sees its door before the
/// announcement.
#[test]
fn a_lane_opens_again_for_a_cache_that_did_not_see_it_end() {
    for leaves in [0, 1] {
        loom::model(move || {
            let (shared, _, mut stays, mut joined) = lane_with_one_end(leaves);
            let thread = thread::spawn(move || {
                joined.shared.meet();
                joined.sync_anyway();
                joined.exchange();
                joined
            });
            stays.sync();
            shared.open().expect("its last end has let go");
            shared.meet();
            thread.join().unwrap().leave();
            stays.leave();
            shared.assert_home(8);
        });
    }
}

/// The control plane opens a lane again as soon as its last end has emptied it.
#[test]
fn a_lane_opens_again_for_a_cache_that_did_not_empty_it() {
    loom::model(|| {
        let (shared, ticket, mut stays, mut joined) = lane_with_one_end(0);
        let thread = thread::spawn(move || {
            stays.sync();
            stays.shared.meet();
            stays
        });
        shared.meet();
        if shared.open().is_some() {
            joined.sync();
            joined.exchange();
        }
        thread.join().unwrap().leave();
        joined.leave();
        assert!(shared.lanes.is_over(ticket));
        shared.assert_home(8);
    });
}

/// Who sees that a lane is over finds its frames in the barn.
#[test]
fn a_lane_that_is_over_has_given_its_frames() {
    for leaves in [0, 1] {
        loom::model(move || {
            let (shared, ticket, mut stays, joined) = lane_with_one_end(leaves);
            let before = shared.barn().frames();
            let thread = thread::spawn(move || {
                stays.sync();
                stays.shared.meet();
                stays
            });
            shared.meet();
            if shared.lanes.is_over(ticket) {
                assert_eq!(shared.barn().frames(), before + u64::from(CAPACITY));
            }
            thread.join().unwrap().leave();
            joined.leave();
            shared.assert_home(8);
        });
    }
}

/// A cache that sees that something was announced sees what it was.
#[test]
fn an_announcement_comes_with_what_it_announces() {
    for opens in [true, false] {
        loom::model(move || {
            let shared = Shared::new(6, 1, 1);
            let mut freeing = Shared::cache(&shared, 0);
            let ticket = (!opens).then(|| shared.open().unwrap());
            let frames = freeing.take(6);
            freeing.give(&frames[..4]);
            let thread = thread::spawn(move || {
                freeing.shared.meet();
                let is_announced = freeing.sync();
                freeing.exchange();
                assert_eq!(freeing.pair.traffic.lane_puts == 1, is_announced == opens);
                freeing.give(&frames[4..]);
                freeing
            });
            match ticket {
                Some(ticket) => shared.close(ticket),
                None => _ = shared.open().unwrap(),
            }
            shared.meet();
            let freeing = thread.join().unwrap();
            Shared::cache(&shared, 1).leave(); // The other end.
            freeing.leave();
            shared.assert_home(6);
        });
    }
}
