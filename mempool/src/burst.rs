//! `Burst`, a bounded batch of frames.
//!
//! Owns: up to [`Burst::MAX`] frames, in place. Never does: allocate, free on its own.
//! Invariant: the first `len` entries are frames that the burst owns.
//!
//! A packet that is larger than a frame is a run of frames, all but the last of which say that it
//! [continues](Frame::continues):
//!
//! ```text
//!   frames     | A  | B> | B> | B  | C  |     > continues
//!   packets    | 0  | 1            | 2  |
//! ```

use std::{
    mem::MaybeUninit,
    ops::{Deref, DerefMut},
    slice,
};

use crate::{Frame, PoolCache};

/// A bounded batch of frames: what `rx_burst` fills and `tx_burst` empties.
///
/// It derefs to a slice of frames. A burst that is dropped with frames in it loses them to their
/// pool; debug builds panic then.
pub struct Burst {
    len: u32,
    limit: u32,
    frames: [MaybeUninit<Frame>; Burst::MAX],
}

impl Burst {
    /// The most frames that a burst can hold.
    pub const MAX: usize = 256;
    /// The limit of a new burst, in frames; the burst size of DPDK's sample programs.
    pub const DEFAULT_LIMIT: usize = 32;

    /// An empty burst with a limit of [`Burst::DEFAULT_LIMIT`] frames.
    pub fn new() -> Self {
        Self::with_limit(Self::DEFAULT_LIMIT)
    }

    /// An empty burst that takes up to `limit` frames, 1 to [`Burst::MAX`].
    ///
    /// # Panics
    /// If the limit is outside of that range.
    pub fn with_limit(limit: usize) -> Self {
        assert!((1..=Self::MAX).contains(&limit), "burst limit {limit}; allowed: 1 to {}", Self::MAX);
        Self { len: 0, limit: limit as u32, frames: [const { MaybeUninit::uninit() }; Self::MAX] }
    }

    /// The most frames that this burst takes.
    #[inline]
    pub fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Changes the limit, 0 to [`Burst::MAX`]; frames above a lower limit stay.
    ///
    /// # Panics
    /// If the limit is above [`Burst::MAX`].
    #[inline]
    pub fn set_limit(&mut self, limit: usize) {
        assert!(limit <= Self::MAX, "burst limit {limit}; allowed: 0 to {}", Self::MAX);
        self.limit = limit as u32;
    }

    /// How many more frames the burst takes.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.len) as usize
    }

    /// Adds a frame at the end, or gives it back if the burst is at its limit.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.room() == 0 {
            return Err(frame);
        }
        self.frames[self.len as usize].write(frame);
        self.len += 1;
        Ok(())
    }

    /// Takes the last frame.
    #[inline]
    pub fn pop(&mut self) -> Option<Frame> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the entry at the old length - 1 was one of the burst's frames; the length no
        // longer covers it, so it is moved out once.
        Some(unsafe { self.frames[self.len as usize].assume_init_read() })
    }

    /// Keeps the frames for which `keep` says true, in order, and frees the others. Where packets may be
    /// larger than a frame, use [`retain_packets`](Self::retain_packets), which does not take them apart.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn retain(&mut self, cache: &mut PoolCache, mut keep: impl FnMut(&mut Frame) -> bool) {
        let len = self.len as usize;
        // The burst is empty while frames move, so that a panic in `keep` leaks them instead of
        // leaving two handles of one frame.
        self.len = 0;
        let mut kept = 0;
        for at in 0..len {
            // SAFETY: entries below the old length are the burst's frames; each is moved out once.
            let mut frame = unsafe { self.frames[at].assume_init_read() };
            if keep(&mut frame) {
                self.frames[kept].write(frame);
                kept += 1;
            } else {
                cache.free(frame);
            }
        }
        self.len = kept as u32;
    }

    /// Keeps the packets for which `keep` says true, in order, and frees the others. `keep` gets all
    /// frames of a packet, one or more.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn retain_packets(&mut self, cache: &mut PoolCache, mut keep: impl FnMut(&mut [Frame]) -> bool) {
        let len = self.len as usize;
        // As in `retain`: a panic in `keep` leaks frames, and doubles none.
        self.len = 0;
        let (mut start, mut kept) = (0, 0);
        while start < len {
            // SAFETY: entries below the old length are the burst's frames, and none of them at `start`
            // or behind has been moved yet.
            let rest = unsafe {
                slice::from_raw_parts_mut(self.frames.as_mut_ptr().add(start).cast::<Frame>(), len - start)
            };
            let count = first_packet(rest);
            let is_kept = keep(&mut rest[..count]);
            for at in start..start + count {
                // SAFETY: as above; each is moved out once.
                let frame = unsafe { self.frames[at].assume_init_read() };
                if is_kept {
                    self.frames[kept].write(frame);
                    kept += 1;
                } else {
                    cache.free(frame);
                }
            }
            start += count;
        }
        self.len = kept as u32;
    }

    /// The packets, each as its frames: one, or more of a large packet.
    #[inline]
    pub fn packets(&self) -> impl Iterator<Item = &[Frame]> {
        self.chunk_by(|frame, _| frame.continues())
    }

    /// As [`packets`](Self::packets), to be changed.
    #[inline]
    pub fn packets_mut(&mut self) -> impl Iterator<Item = &mut [Frame]> {
        self.chunk_by_mut(|frame, _| frame.continues())
    }

    /// The first frame of each packet: where its headers are.
    #[inline]
    pub fn heads_mut(&mut self) -> impl Iterator<Item = &mut Frame> {
        let mut is_head = true;
        self.iter_mut().filter(move |frame| std::mem::replace(&mut is_head, !frame.continues()))
    }

    /// How many packets end in this burst; as many as frames, unless some are larger than a frame.
    #[inline]
    pub fn packet_count(&self) -> usize {
        self.iter().filter(|frame| !frame.continues()).count()
    }

    /// The unused entries below the limit, for a driver to write frames to.
    #[inline(always)]
    pub fn spare(&mut self) -> &mut [MaybeUninit<Frame>] {
        let (len, room) = (self.len as usize, self.room());
        debug_assert!(len + room <= Self::MAX);
        // SAFETY: neither the length nor the limit is more than MAX, and the room ends at the limit.
        unsafe { self.frames.get_unchecked_mut(len..len + room) }
    }

    /// All unused entries: a driver may go over the limit so as not to cut a packet that is larger than a
    /// frame.
    #[inline]
    pub fn spare_over_limit(&mut self) -> &mut [MaybeUninit<Frame>] {
        &mut self.frames[self.len as usize..]
    }

    /// Counts `count` frames that were written to [`spare`](Self::spare) as the burst's own.
    ///
    /// # Safety
    /// The first `count` entries of `spare_over_limit()`, which are those of `spare()`, must have been
    /// initialised with owned frames.
    #[inline(always)]
    pub unsafe fn commit(&mut self, count: usize) {
        debug_assert!(count <= Self::MAX - self.len as usize);
        self.len += count as u32;
    }

    /// Moves frames from the front of another burst to the end of this one, as far as there is room: whole packets. Returns
    /// how many frames.
    #[inline]
    pub fn append(&mut self, from: &mut Self) -> usize {
        let mut count = self.room().min(from.len());
        while count > 0 && count < from.len() && from[count - 1].continues() {
            count -= 1;
        }
        let len = self.len as usize;
        // SAFETY: the first `count` entries of `from` are its frames, and there is room for as many behind the length, which
        // covers them from here on; `forget_front` ends their life in `from`.
        unsafe { from.frames.as_ptr().copy_to_nonoverlapping(self.frames.as_mut_ptr().add(len), count) };
        self.len += count as u32;
        from.forget_front(count);
        count
    }

    /// Removes the first `count` frames without freeing them: a driver has taken them over.
    ///
    /// # Panics
    /// If the burst has fewer.
    #[inline(always)]
    pub fn forget_front(&mut self, count: usize) {
        let len = self.len as usize;
        assert!(count <= len, "forget_front({count}) of a burst of {len}");
        if count < len {
            // SAFETY: both ranges lie in the array; the moved entries are the burst's frames and
            // keep being so at their new place, the ones they overwrite were handed over.
            unsafe {
                let frames = self.frames.as_mut_ptr();
                frames.copy_from(frames.add(count), len - count);
            }
        }
        self.len = (len - count) as u32;
    }
}

/// How many of the frames belong to the first packet; all of them, if it has no end.
fn first_packet(frames: &[Frame]) -> usize {
    frames.iter().position(|frame| !frame.continues()).map_or(frames.len(), |last| last + 1)
}

impl Default for Burst {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Burst {
    type Target = [Frame];

    #[inline(always)]
    fn deref(&self) -> &[Frame] {
        // SAFETY: the first `len` entries are initialised.
        unsafe { slice::from_raw_parts(self.frames.as_ptr().cast(), self.len as usize) }
    }
}

impl DerefMut for Burst {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Frame] {
        // SAFETY: the first `len` entries are initialised.
        unsafe { slice::from_raw_parts_mut(self.frames.as_mut_ptr().cast(), self.len as usize) }
    }
}

impl std::fmt::Debug for Burst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The drop bomb of debug builds: each frame that is left goes off.
#[cfg(debug_assertions)]
impl Drop for Burst {
    fn drop(&mut self) {
        while let Some(frame) = self.pop() {
            drop(frame);
        }
    }
}
