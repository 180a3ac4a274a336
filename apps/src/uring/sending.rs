//! The frames that the kernel sends from, each by its place.
//!
//! Owns: the frames. Never does: allocate once it is made, or touch a place before it is needed: each lcore might send from
//! all frames of the pool, and none does. Invariant: a place is free, or has the frame of one operation.

use sheafio_mempool::Frame;

/// The most frames that there are places for: their numbers have 24 bits, and 0 stands for none.
pub(crate) const MOST_FRAMES: u32 = (1 << 24) - 1;

pub(super) struct Sending {
    /// As many as were ever needed at a time; it has room for all.
    frames: Vec<Option<Frame>>,
    /// Places that are free again, the one that was used last on top.
    free: Vec<u32>,
}

impl Sending {
    /// `frames`: the most at a time, up to [`MOST_FRAMES`].
    pub(super) fn new(frames: u32) -> Self {
        assert!(frames <= MOST_FRAMES, "places have 24 bits");
        Self { frames: Vec::with_capacity(frames as usize), free: Vec::with_capacity(frames as usize) }
    }

    /// Returns the frame's place, from 1 on.
    #[inline]
    pub(super) fn put(&mut self, frame: Frame) -> u32 {
        if let Some(place) = self.free.pop() {
            self.frames[place as usize - 1] = Some(frame);
            return place;
        }
        debug_assert!(self.frames.len() < self.frames.capacity(), "there are as many places as frames");
        self.frames.push(Some(frame));
        self.frames.len() as u32
    }

    /// How many frames there are.
    pub(super) fn len(&self) -> usize {
        self.frames.len() - self.free.len()
    }

    #[inline]
    pub(super) fn take(&mut self, place: u32) -> Frame {
        self.free.push(place);
        self.frames[place as usize - 1].take().expect("an operation completes once")
    }

    /// Leaves all frames to the kernel for good. Returns how many.
    pub(super) fn forget(&mut self) -> usize {
        self.frames.iter_mut().filter_map(Option::take).map(std::mem::forget).count()
    }
}

#[cfg(test)]
mod tests {
    use sheafio_mempool::{Hugepages, Mempool};

    use super::*;

    #[test]
    fn places_are_used_again_before_new_ones_are_touched() {
        let pool = Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap();
        let mut cache = pool.cache().unwrap();
        let mut sending = Sending::new(64);
        let mut put = |sending: &mut Sending| sending.put(cache.alloc().unwrap());
        assert_eq!([put(&mut sending), put(&mut sending), put(&mut sending)], [1, 2, 3]);
        let (second, first) = (sending.take(2), sending.take(1));
        assert_eq!((sending.len(), put(&mut sending), put(&mut sending), put(&mut sending)), (1, 1, 2, 4));
        assert_eq!((sending.len(), sending.frames.len()), (4, 4));
        let all: Vec<_> = (1..=4).map(|place| sending.take(place)).chain([first, second]).collect();
        for frame in all {
            cache.free(frame);
        }
        assert_eq!(sending.len(), 0);
    }
}
