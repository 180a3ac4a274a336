//! Frames that wait, in a queue for each flow.
//!
//! Owns: the frames in the queues. Never does: allocate once it is made, touch a place before it is needed, look for a frame.
//! Invariant: every place is in one queue or free; there can be as many places as frames in the pool, so there is always
//! one.
//!
//! ```text
//!   Chain { first, last, len }  of a flow
//!             |      |
//!   places   [A]--->[B]     each holds a frame and the place of the next one
//! ```

use sheafio_mempool::Frame;

const NONE: u32 = u32::MAX;

/// A flow's queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    first: u32,
    last: u32,
    len: u32,
}

impl Chain {
    pub(super) const EMPTY: Self = Self { first: NONE, last: NONE, len: 0 };

    pub(super) fn len(self) -> u32 {
        self.len
    }

    pub(super) fn is_empty(self) -> bool {
        self.len == 0
    }
}

struct Place {
    frame: Option<Frame>,
    next: u32,
}

/// The places of all queues of an lcore.
pub(super) struct Backlog {
    /// As many as were ever needed at a time; it has room for all.
    places: Vec<Place>,
    /// The first place that is free again; each leads to the next one.
    free: u32,
    waiting: usize,
}

impl Backlog {
    pub(super) fn new(frames: u32) -> Self {
        Self { places: Vec::with_capacity(frames as usize), free: NONE, waiting: 0 }
    }

    /// All frames that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn push_back(&mut self, chain: &mut Chain, frame: Frame) {
        let at = self.put(frame, NONE);
        match chain.last {
            NONE => chain.first = at,
            last => self.places[last as usize].next = at,
        }
        (chain.last, chain.len) = (at, chain.len + 1);
    }

    pub(super) fn push_front(&mut self, chain: &mut Chain, frame: Frame) {
        let at = self.put(frame, chain.first);
        if chain.is_empty() {
            chain.last = at;
        }
        (chain.first, chain.len) = (at, chain.len + 1);
    }

    pub(super) fn pop_front(&mut self, chain: &mut Chain) -> Option<Frame> {
        if chain.is_empty() {
            return None;
        }
        let at = chain.first;
        let place = &mut self.places[at as usize];
        let frame = place.frame.take();
        (chain.first, chain.len) = (place.next, chain.len - 1);
        place.next = std::mem::replace(&mut self.free, at);
        if chain.is_empty() {
            chain.last = NONE;
        }
        self.waiting -= 1;
        frame
    }

    fn put(&mut self, frame: Frame, next: u32) -> u32 {
        self.waiting += 1;
        if self.free == NONE {
            debug_assert!(self.places.len() < self.places.capacity(), "there are as many places as frames");
            self.places.push(Place { frame: Some(frame), next });
            return self.places.len() as u32 - 1;
        }
        let at = self.free;
        let place = &mut self.places[at as usize];
        self.free = std::mem::replace(&mut place.next, next);
        place.frame = Some(frame);
        at
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use sheafio_mempool::{Hugepages, Mempool};

    use super::*;

    /// Against a deque for each flow, in an order that a small generator picks.
    #[test]
    fn queues_are_queues() {
        let pool = Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap();
        let mut cache = pool.cache().unwrap();
        let mut backlog = Backlog::new(pool.frames());
        let mut chains = [Chain::EMPTY; 5];
        let mut models: [VecDeque<u8>; 5] = Default::default();
        let mut state = 1_u32;
        let mut next = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        let mut full = 0;
        for round in 0..20_000_u32 {
            let at = next(5) as usize;
            let (chain, model) = (&mut chains[at], &mut models[at]);
            match next(3) {
                0 => {
                    let frame = backlog.pop_front(chain);
                    assert_eq!(frame.as_ref().map(|frame| frame[0]), model.pop_front());
                    if let Some(frame) = frame {
                        cache.free(frame);
                    }
                }
                one => {
                    let Some(mut frame) = cache.alloc() else {
                        full += 1;
                        continue;
                    };
                    frame.append(1).unwrap()[0] = round as u8;
                    if one == 1 {
                        backlog.push_back(chain, frame);
                        model.push_back(round as u8);
                    } else {
                        backlog.push_front(chain, frame);
                        model.push_front(round as u8);
                    }
                }
            }
            assert_eq!((chain.len() as usize, chain.is_empty()), (model.len(), model.is_empty()));
            assert_eq!(backlog.waiting(), models.iter().map(VecDeque::len).sum::<usize>());
        }
        assert!(full > 0, "it was never full");
        for chain in &mut chains {
            while let Some(frame) = backlog.pop_front(chain) {
                cache.free(frame);
            }
        }
        drop(cache);
        assert_eq!(pool.census().free(), 64);
    }
}
