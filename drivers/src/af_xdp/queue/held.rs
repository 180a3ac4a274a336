//! Which frames the kernel has of a queue's receive side, frame by frame, where the rings do not tell it at the end.
//!
//! Owns: a bit for each frame of the pool. Never does: look at a frame's bytes, or write a ring's shared words.
//! Invariant: as long as it is certain, the set bits are those of the frames that were put into the fill ring and did not
//! come back.
//!
//! A driver in zero-copy mode takes frames out of the fill ring and uses them again and again for packets that are not
//! ours, so the ring's slots do not tell what it has. Kept by zero-copy queues only, and behind each burst: copy mode
//! neither has nor asks for it.

use sheafio_core::DropReason;
use sheafio_mempool::{Burst, Frame, FrameIndex, PoolCache};

use super::{Kernel, XskQueue};

/// A set of frames.
pub(super) struct Held {
    words: Box<[u64]>,
    len: u32,
    /// Fill-ring index up to which frames were noted.
    noted: u32,
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

impl<K: Kernel> XskQueue<K> {
    /// Notes what was put into the fill ring since the last call: before anything that came back is looked up.
    pub(super) fn note_filled(&mut self) {
        if let Some(held) = &mut self.held {
            let geometry = &self.geometry;
            held.noted = self.fill.visit_written(held.noted, |addr| held.insert(geometry.index_of(addr)));
        }
    }

    /// Drops the packets behind the first `before` frames of a burst of which a frame was received before. It may be
    /// anybody's by now, so this handle of it must go, and no byte of it be looked at; and what is left of a large packet
    /// is none. igb gives frames twice when it has run out of them. Returns how many packets go.
    pub(super) fn drop_doubled(&mut self, cache: &mut PoolCache, burst: &mut Burst, before: usize) -> usize {
        self.note_filled();
        let geometry = self.geometry;
        let (mut at, mut packets) = (before, 0);
        while at < burst.len() {
            let Some(held) = &mut self.held else { return 0 };
            let is_end = burst[at..].iter().position(|frame| !frame.continues());
            let len = is_end.map_or(burst.len() - at, |end| end + 1);
            let mut came_back = |frame: &Frame| held.remove(geometry.index_of(geometry.addr(frame)));
            let known = burst[at..at + len].iter().take_while(|frame| came_back(frame)).count();
            if known == len {
                at += len;
                continue;
            }
            packets += 1;
            self.drop_packet(cache, burst, at, len, known);
        }
        if packets > 0 {
            self.counters.add_drops(DropReason::RxInvalid, packets as u64);
        }
        packets
    }

    /// Takes the `len` frames from `at` on out of a burst. The first `known` of them were with the kernel, the next one was
    /// not.
    #[cold]
    #[inline(never)]
    fn drop_packet(&mut self, cache: &mut PoolCache, burst: &mut Burst, at: usize, len: usize, known: usize) {
        let geometry = self.geometry;
        self.counters.take_back_rx(burst[at..at + len].iter().map(Frame::len_word).sum());
        burst[at..].rotate_left(len);
        for nth in (0..len).rev() {
            let Some(frame) = burst.pop() else { break };
            let index = geometry.index_of(geometry.addr(&frame));
            if nth < known || self.held.as_mut().is_some_and(|held| held.remove(index)) {
                cache.free(frame);
            } else {
                std::mem::forget(frame);
                // It was not one of those with the kernel.
                self.with_rx = self.with_rx.wrapping_add(1);
            }
        }
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
