//! loom models of the sheaf exchange: every interleaving of two threads and the memory orderings
//! between them. Run with `RUSTFLAGS="--cfg loom" cargo test -p sheafio-mempool --release models`.

use loom::{sync::Arc, thread};

use crate::{barn::Barn, pair::SheafPair};

/// Sheaves of two frames keep the state space small; the protocol does not depend on the capacity.
const CAPACITY: u32 = 2;

fn take(pair: &mut SheafPair, barn: &Barn, want: usize) -> Vec<u32> {
    let mut taken = Vec::new();
    while taken.len() < want {
        let rest = want - taken.len();
        let now = if pair.has(rest) { rest } else { pair.load(barn, rest) };
        if now == 0 {
            break;
        }
        taken.extend_from_slice(pair.take_loaded(now));
    }
    taken
}

fn give(pair: &mut SheafPair, barn: &Barn, frames: &[u32]) {
    let mut rest = frames;
    while !rest.is_empty() {
        let now = if pair.has_room(rest.len()) { rest.len() } else { pair.unload(barn, rest.len()) };
        for (slot, frame) in pair.room_loaded(now).iter_mut().zip(rest) {
            slot.write(*frame);
        }
        // SAFETY: the slots were written just above, with frames that this thread took.
        unsafe { pair.given(now) };
        rest = &rest[now..];
    }
}

fn all_home(barn: &Barn, frames: u32) {
    let mut home = Vec::new();
    // SAFETY: the threads of the model have ended and left.
    unsafe { barn.walk(|index| home.push(index)) };
    home.sort_unstable();
    assert_eq!(home, (0..frames).collect::<Vec<_>>());
}

/// Two caches join, take, give crosswise amounts, leave: each frame is home once.
#[test]
fn caches_exchange_sheaves_and_leave() {
    loom::model(|| {
        let barn = Arc::new(Barn::new(0, 5, CAPACITY, 2));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let barn = barn.clone();
                thread::spawn(move || {
                    let mut pair = SheafPair::join(&barn).expect("made for two caches");
                    let frames = take(&mut pair, &barn, 3);
                    give(&mut pair, &barn, &frames);
                    pair.leave(&barn);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        all_home(&barn, 5);
    });
}

/// One core allocates what the other frees: full sheaves must carry their content across.
#[test]
fn frames_cross_from_a_freeing_to_an_allocating_cache() {
    loom::model(|| {
        let barn = Arc::new(Barn::new(0, 4, CAPACITY, 2));
        let mut freeing = SheafPair::join(&barn).expect("made for two caches");
        let frames = take(&mut freeing, &barn, 4);
        assert_eq!(frames.len(), 4);
        let allocating = {
            let barn = barn.clone();
            thread::spawn(move || {
                let mut pair = SheafPair::join(&barn).expect("made for two caches");
                let frames = take(&mut pair, &barn, 2);
                let count = frames.len();
                assert!(frames.iter().all(|frame| *frame < 4));
                give(&mut pair, &barn, &frames);
                pair.leave(&barn);
                count
            })
        };
        give(&mut freeing, &barn, &frames);
        freeing.leave(&barn);
        assert!(allocating.join().unwrap() <= 2);
        all_home(&barn, 4);
    });
}

/// The partial sheaf has one taker.
#[test]
fn the_partial_sheaf_is_taken_once() {
    loom::model(|| {
        let barn = Arc::new(Barn::new(0, 1, CAPACITY, 2));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let barn = barn.clone();
                thread::spawn(move || {
                    let mut pair = SheafPair::join(&barn).expect("made for two caches");
                    take(&mut pair, &barn, 1).len()
                })
            })
            .collect();
        let taken: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!(taken <= 1, "one frame was taken {taken} times");
    });
}
