//! Which frames the kernel has of a queue's receive side, frame by frame, where the rings do not tell it at the end.
//!
//! Owns: a bit for each frame of the pool. Never does: touch a frame, or a ring's shared words. Invariant: as long as
//! it is certain, the set bits are those of the frames that were put into the fill ring and did not come back.
//!
//! A driver in zero-copy mode takes frames out of the fill ring and uses them again and again for packets that are not
//! ours, so the ring's slots do not tell what it has. Kept by zero-copy queues only, and behind each burst: copy mode
//! neither has nor asks for it.

use sheafio_mempool::FrameIndex;

/// A set of frames.
pub(super) struct Held {
    words: Box<[u64]>,
    len: u32,
    /// Fill-ring index up to which frames were noted.
    pub(super) noted: u32,
    /// No frame went out that was out.
    is_certain: bool,
}

impl Held {
    /// None of `frames` frames is out yet, and the fill ring's next slot is `noted`.
    pub(super) fn new(frames: u32, noted: u32) -> Self {
        Self { words: vec![0; frames.div_ceil(64) as usize].into(), len: 0, noted, is_certain: true }
    }

    /// Notes a frame that goes to the kernel.
    #[inline]
    pub(super) fn insert(&mut self, frame: FrameIndex) {
        let (word, bit) = self.at(frame);
        let is_new = *word & bit == 0;
        *word |= bit;
        self.len += 1;
        self.is_certain &= is_new;
    }

    /// Notes a frame that came back. `false` if it was not out: the kernel gives it back once more, but it may be
    /// anybody's by now.
    #[inline]
    #[must_use]
    pub(super) fn remove(&mut self, frame: FrameIndex) -> bool {
        let (word, bit) = self.at(frame);
        let was_out = *word & bit != 0;
        *word &= !bit;
        self.len -= u32::from(was_out);
        was_out
    }

    /// Takes all frames out, and gives each to `visit`; if these are not `expected` ones for certain, takes none.
    pub(super) fn take_all(&mut self, expected: u32, mut visit: impl FnMut(FrameIndex)) -> u32 {
        if !self.is_certain || self.len != expected {
            return 0;
        }
        for (at, word) in (0..).zip(&mut self.words) {
            while *word != 0 {
                visit(FrameIndex(at * 64 + word.trailing_zeros()));
                *word &= *word - 1;
            }
        }
        std::mem::take(&mut self.len)
    }

    fn at(&mut self, frame: FrameIndex) -> (&mut u64, u64) {
        (&mut self.words[frame.0 as usize / 64], 1 << (frame.0 % 64))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn out(held: &mut Held, frames: &[u32]) {
        for frame in frames {
            held.insert(FrameIndex(*frame));
        }
    }

    fn taken(held: &mut Held, expected: u32) -> Vec<u32> {
        let mut frames = Vec::new();
        let count = held.take_all(expected, |frame| frames.push(frame.0));
        assert_eq!(count as usize, frames.len());
        frames
    }

    #[test]
    fn what_went_out_and_did_not_come_back_is_held() {
        let mut held = Held::new(200, 0);
        out(&mut held, &[0, 63, 64, 130, 199]);
        assert!(held.remove(FrameIndex(63)) && !held.remove(FrameIndex(63)) && !held.remove(FrameIndex(1)));
        assert_eq!(taken(&mut held, 4), [0, 64, 130, 199]);
        assert_eq!(taken(&mut held, 0), []);
    }

    #[test]
    fn what_is_not_certain_is_not_taken() {
        // Another count than that of the queue.
        let mut held = Held::new(64, 0);
        held.insert(FrameIndex(1));
        assert_eq!(taken(&mut held, 2), []);
        assert_eq!(taken(&mut held, 1), [1]);
        // A frame that goes out twice.
        let mut held = Held::new(64, 0);
        out(&mut held, &[1, 1]);
        assert_eq!(taken(&mut held, 2), []);
    }
}
