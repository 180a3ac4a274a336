//! `Bytes`, a ring of bytes that lies in frames.
//!
//! Owns: where the ring starts, and how much is in it; its frames lie in slots that the flow table keeps, so that a ring
//! takes twelve bytes in a flow. Never does: hold a frame while it is empty, or, as long as it is written in order, one that
//! no byte lies in. Invariant: each slot that bytes of the ring lie in has a frame.
//!
//! ```text
//!  slots   |  frame 0  |  frame 1  |  (none)   |  frame 3  |      capacity = slots x bytes of a frame
//!  bytes   |bbbbbbb    |           |           |      bbbbb|
//!                  end                          start
//! ```

use sheafio_mempool::{Frame, PoolCache};

/// The slots of one ring, as many as its capacity has frames.
pub(super) type Slots = [Option<Frame>];

/// A ring of bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bytes {
    /// Offset of the first byte in the ring.
    start: u32,
    /// Bytes from the start on that are in order.
    len: u32,
    /// Something was written behind a hole, so that more slots may have frames than those of the bytes in order.
    is_scattered: bool,
}

/// All of a frame's chunk, for a frame that carries no packet.
fn whole(mut frame: Frame) -> Frame {
    let headroom = frame.headroom();
    let _ = frame.prepend(headroom);
    let tailroom = frame.tailroom();
    let _ = frame.append(tailroom);
    frame
}

impl Bytes {
    /// Bytes in the ring, in order.
    #[inline(always)]
    pub(super) fn len(self) -> u32 {
        self.len
    }

    /// The contiguous bytes from `offset` behind the first one on, up to `max`. Empty only if there are none.
    #[inline]
    pub(super) fn piece(self, slots: &Slots, frame_bytes: u32, offset: u32, max: u32) -> &[u8] {
        let left = self.len.saturating_sub(offset).min(max);
        if left == 0 {
            return &[];
        }
        let (slot, at) = self.place(slots, frame_bytes, offset);
        let frame = slots[slot].as_ref().expect("a slot with bytes has a frame");
        &frame[at..at + (left.min(frame_bytes - at as u32)) as usize]
    }

    /// Slot and offset within it of a byte.
    #[inline]
    fn place(self, slots: &Slots, frame_bytes: u32, offset: u32) -> (usize, usize) {
        let mut at = self.start + offset;
        let capacity = slots.len() as u32 * frame_bytes;
        if at >= capacity {
            at -= capacity;
        }
        // Frames are 2048 or 4096 bytes, but the compiler does not know; a division costs more than a look.
        if at < frame_bytes {
            (0, at as usize)
        } else {
            ((at / frame_bytes) as usize, (at % frame_bytes) as usize)
        }
    }

    /// Writes bytes at `offset` behind the first one, with holes where nothing was written; `len` stays as it is.
    /// Returns how many were written: fewer if the capacity or the pool ends there.
    pub(super) fn write(
        &mut self,
        slots: &mut Slots,
        frame_bytes: u32,
        offset: u32,
        mut bytes: &[u8],
        cache: &mut PoolCache,
    ) -> u32 {
        let room = (slots.len() as u32 * frame_bytes).saturating_sub(offset) as usize;
        bytes = &bytes[..bytes.len().min(room)];
        self.is_scattered |= offset > self.len;
        let mut written = 0;
        while !bytes.is_empty() {
            let (slot, at) = self.place(slots, frame_bytes, offset + written);
            if slots[slot].is_none() {
                slots[slot] = cache.alloc().map(whole);
            }
            let Some(frame) = slots[slot].as_mut() else { break };
            let count = bytes.len().min(frame_bytes as usize - at);
            frame[at..at + count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            written += count as u32;
        }
        written
    }

    /// Takes `count` bytes that lie behind the last one into the ring: they were written before.
    #[inline]
    pub(super) fn extend(&mut self, count: u32) {
        self.len += count;
    }

    /// Removes the first `count` bytes, and gives the frames back that none is left in. Once the ring is empty the next byte
    /// lies at the start of a frame again, so that a ring which holds little at a time always uses the same cache lines; if
    /// `has_more`, bytes that were written behind the last one are there, and nothing goes back.
    #[inline]
    pub(super) fn discard(
        &mut self,
        slots: &mut Slots,
        frame_bytes: u32,
        count: u32,
        has_more: bool,
        cache: &mut PoolCache,
    ) {
        debug_assert!(count <= self.len);
        // The straight path: all of it, and it lies in the first frame.
        if count == self.len && !self.is_scattered && !has_more && self.start + self.len <= frame_bytes {
            *self = Self::default();
            return free(&mut slots[..1], cache);
        }
        self.discard_some(slots, frame_bytes, count, has_more, cache);
    }

    #[inline(never)]
    fn discard_some(
        &mut self,
        slots: &mut Slots,
        frame_bytes: u32,
        count: u32,
        has_more: bool,
        cache: &mut PoolCache,
    ) {
        let before = *self;
        self.len -= count;
        self.start += count;
        let capacity = slots.len() as u32 * frame_bytes;
        if self.start >= capacity {
            self.start -= capacity;
        }
        if has_more {
            self.is_scattered = true;
            return;
        }
        // Slots that had bytes, counted from the first one on; or all of them, if they may lie anywhere.
        let first = (before.start / frame_bytes) as usize;
        let touched = if self.is_scattered {
            slots.len()
        } else {
            ((before.start % frame_bytes + before.len).div_ceil(frame_bytes) as usize).min(slots.len())
        };
        // And those that still have. When the last bytes lie before the start, in its own slot, that is all.
        let kept_first = (self.start / frame_bytes) as usize;
        let kept = (self.start % frame_bytes + self.len).div_ceil(frame_bytes) as usize;
        let kept = if self.len == 0 { 0 } else { kept };
        let count = slots.len();
        for slot in (0..touched).map(|at| (first + at) % count) {
            let behind = (slot + count - kept_first) % count;
            if behind >= kept {
                free(&mut slots[slot..=slot], cache);
            }
        }
        self.is_scattered = false;
        if self.len == 0 {
            self.start = 0;
        }
    }
}

/// Gives all frames of a ring back.
#[inline]
pub(super) fn free(slots: &mut Slots, cache: &mut PoolCache) {
    for slot in slots {
        if let Some(frame) = slot.take() {
            cache.free(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use sheafio_mempool::{Hugepages, Mempool};

    use super::*;

    /// Any order of writes, holes that are filled later, and removals, against a queue of bytes.
    #[test]
    fn it_agrees_with_a_queue_and_gives_its_frames_back() {
        let pool = Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap();
        let mut cache = pool.cache().unwrap();
        for slot_count in [1, 2, 5] {
            let mut slots: Vec<Option<Frame>> = (0..slot_count).map(|_| None).collect();
            let capacity = slot_count as u32 * 2048;
            let (mut ring, mut model) = (Bytes::default(), VecDeque::new());
            let mut random = fastrand::Rng::with_seed(slot_count as u64);
            for _ in 0..20_000 {
                let room = capacity - ring.len();
                if random.bool() {
                    let bytes: Vec<u8> = (0..random.u32(0..=room.min(3000))).map(|_| random.u8(..)).collect();
                    let hole = random.u32(0..=room);
                    // Behind a hole first, then what is in order; the latter may write over the former.
                    let fits = bytes.len().min((room - hole) as usize) as u32;
                    assert_eq!(ring.write(&mut slots, 2048, ring.len() + hole, &bytes, &mut cache), fits);
                    assert_eq!(
                        ring.write(&mut slots, 2048, ring.len(), &bytes, &mut cache),
                        bytes.len() as u32
                    );
                    ring.extend(bytes.len() as u32);
                    model.extend(bytes);
                } else {
                    let count = random.u32(0..=ring.len());
                    let has_more = random.bool();
                    ring.discard(&mut slots, 2048, count, has_more, &mut cache);
                    model.drain(..count as usize);
                    if !has_more {
                        // No frame but those that bytes lie in.
                        let start = ring.start as usize;
                        let bytes = start..start + ring.len() as usize;
                        let has_bytes = |slot: usize| bytes.clone().any(|at| at / 2048 % slot_count == slot);
                        assert!((0..slot_count).all(|slot| slots[slot].is_some() == has_bytes(slot)));
                    }
                }
                let offset = random.u32(0..=ring.len());
                let mut read = Vec::new();
                while offset + (read.len() as u32) < ring.len() {
                    let piece = ring.piece(&slots, 2048, offset + read.len() as u32, 1000);
                    assert!((1..=1000).contains(&piece.len()));
                    read.extend_from_slice(piece);
                }
                assert!(read.iter().eq(model.iter().skip(offset as usize)));
            }
            let left = ring.len();
            ring.discard(&mut slots, 2048, left, false, &mut cache);
            assert!(slots.iter().all(Option::is_none));
        }
        drop(cache);
        assert_eq!(pool.census().free(), 64);
    }

    /// A stream that never runs dry holds what lies in it, and not all that it has been in.
    #[test]
    fn frames_go_back_as_the_start_leaves_them() {
        let pool = Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap();
        let mut cache = pool.cache().unwrap();
        let mut slots: Vec<Option<Frame>> = (0..16).map(|_| None).collect();
        let mut ring = Bytes::default();
        for round in 0..100 {
            let written = ring.write(&mut slots, 2048, ring.len(), &[7; 1000], &mut cache);
            ring.extend(written);
            if round > 0 {
                ring.discard(&mut slots, 2048, 1000, false, &mut cache);
            }
            assert!(slots.iter().flatten().count() <= 2);
        }
        ring.discard(&mut slots, 2048, 1000, false, &mut cache);
        assert!(slots.iter().all(Option::is_none));
    }

    #[test]
    fn an_empty_pool_makes_short_writes() {
        let pool = Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap();
        let mut cache = pool.cache().unwrap();
        let mut slots: Vec<Option<Frame>> = (0..100).map(|_| None).collect();
        let mut ring = Bytes::default();
        let written = ring.write(&mut slots, 2048, 0, &vec![7; 100 * 2048], &mut cache);
        assert!(written.is_multiple_of(2048) && written <= 64 * 2048 && written > 0);
        ring.extend(written);
        ring.discard(&mut slots, 2048, written, false, &mut cache);
        drop(cache);
        assert_eq!(pool.census().free(), 64);
    }
}
