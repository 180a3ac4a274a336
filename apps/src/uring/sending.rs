//! The frames that the kernel sends from, each by its place.
//!
//! Owns: the frames. Never does: allocate once it is made. Invariant: a place is free, or has the frame of one operation.

use sheafio_mempool::Frame;

pub(super) struct Sending {
    frames: Box<[Option<Frame>]>,
    free: Vec<u32>,
}

impl Sending {
    pub(super) fn new(frames: u32) -> Self {
        assert!(frames < 1 << 24, "places have 24 bits");
        Self { frames: (0..frames).map(|_| None).collect(), free: (1..=frames).rev().collect() }
    }

    /// Returns the frame's place, from 1 on.
    #[inline]
    pub(super) fn put(&mut self, frame: Frame) -> u32 {
        let place = self.free.pop().expect("there are as many places as frames");
        self.frames[place as usize - 1] = Some(frame);
        place
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
