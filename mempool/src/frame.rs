//! `Frame`, the move-only handle that owns one buffer of packet memory.
//!
//! Owns: the right to read and write one chunk of the UMEM. Never does: free itself (a pool cache
//! must take it back). Invariant: for each frame index at most one `Frame` exists, and none while
//! the index lies in a sheaf, in a ring or with the kernel.
//!
//! ```text
//! chunk start          data            data + len         chunk end
//! |<---- headroom ---->|<---- len ---->|<---- tailroom ---->|
//! |<------------------------- size ------------------------>|
//! ```

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
};

/// Bytes that the kernel keeps free before received data (`XDP_PACKET_HEADROOM`, linux/bpf.h).
pub const XDP_HEADROOM_BYTES: u16 = 256;

/// The number of a frame in its pool, from 0 to frames - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct FrameIndex(pub u32);

impl fmt::Display for FrameIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One frame of packet memory, owned.
///
/// It derefs to the packet's bytes. It can't be copied, and it must be given back: to a pool cache
/// ([`PoolCache::free`](crate::PoolCache::free)) or to a queue by way of a [`Burst`](crate::Burst).
/// A frame that is dropped is lost to its pool; debug builds panic then and name the frame.
#[repr(C)]
pub struct Frame {
    data: NonNull<u8>,
    len: u16,
    headroom: u16,
    size: u16,
    flags: u16,
}

const _: () = assert!(size_of::<Frame>() == 16, "bursts are sized for 16-byte frames");

/// The packet goes on in the next frame of the burst.
const FLAG_CONTINUES: u16 = 1;

// SAFETY: a frame owns its chunk alone; the chunk is plain memory that any thread may access.
unsafe impl Send for Frame {}
// SAFETY: a shared frame gives only shared access to its bytes.
unsafe impl Sync for Frame {}

impl Frame {
    /// Makes the handle of a chunk.
    ///
    /// # Safety
    /// `data - headroom` must be the start of a chunk of `size` bytes of a pool, `headroom + len`
    /// at most `size`, and the caller must own that chunk: no other `Frame`, sheaf or ring may
    /// hold it.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(data: NonNull<u8>, len: u16, headroom: u16, size: u16) -> Self {
        debug_assert!(u32::from(headroom) + u32::from(len) <= u32::from(size));
        Self { data, len, headroom, size, flags: 0 }
    }

    /// Gives up the handle without freeing the frame; the caller now owns the chunk.
    #[inline(always)]
    pub(crate) fn into_data(self) -> NonNull<u8> {
        let data = self.data;
        std::mem::forget(self);
        data
    }

    /// Address of the first byte of the packet.
    #[inline(always)]
    pub(crate) fn data(&self) -> NonNull<u8> {
        self.data
    }

    /// Bytes before the packet that [`prepend`](Self::prepend) can take.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.headroom)
    }

    /// Bytes behind the packet that [`append`](Self::append) can take.
    #[inline]
    pub fn tailroom(&self) -> usize {
        usize::from(self.size - self.headroom - self.len)
    }

    /// Takes `count` bytes of headroom into the packet's front and returns them, to be written.
    /// Their content is what was there before. `None` if there is less headroom.
    #[inline]
    #[must_use]
    pub fn prepend(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.headroom() {
            return None;
        }
        self.headroom -= count as u16;
        self.len += count as u16;
        // SAFETY: the headroom was at least `count` bytes, so the result is in the same chunk.
        self.data = unsafe { self.data.sub(count) };
        Some(&mut self[..count])
    }

    /// Takes `count` bytes of tailroom into the packet's end and returns them, to be written.
    /// Their content is what was there before. `None` if there is less tailroom.
    #[inline]
    #[must_use]
    pub fn append(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.tailroom() {
            return None;
        }
        let old_len = usize::from(self.len);
        self.len += count as u16;
        Some(&mut self[old_len..])
    }

    /// Removes `count` bytes from the packet's front.
    ///
    /// # Panics
    /// If the packet is shorter than `count`.
    #[inline]
    pub fn trim_front(&mut self, count: usize) {
        assert!(count <= self.len(), "trim_front({count}) of a packet of {} bytes", self.len());
        self.headroom += count as u16;
        self.len -= count as u16;
        // SAFETY: the packet was at least `count` bytes long, so the result is in the same chunk.
        self.data = unsafe { self.data.add(count) };
    }

    /// Removes `count` bytes from the packet's end.
    ///
    /// # Panics
    /// If the packet is shorter than `count`.
    #[inline]
    pub fn trim_back(&mut self, count: usize) {
        assert!(count <= self.len(), "trim_back({count}) of a packet of {} bytes", self.len());
        self.len -= count as u16;
    }

    /// Whether the packet goes on in the next frame of the burst (`XDP_PKT_CONTD`, linux/if_xdp.h).
    #[inline]
    pub fn continues(&self) -> bool {
        self.flags & FLAG_CONTINUES != 0
    }

    /// Says whether the packet goes on in the next frame of the burst.
    #[inline]
    pub fn set_continues(&mut self, continues: bool) {
        self.flags = self.flags & !FLAG_CONTINUES | if continues { FLAG_CONTINUES } else { 0 };
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn deref(&self) -> &[u8] {
        #[cfg(debug_assertions)]
        crate::shadow::check_use(self.data, std::panic::Location::caller());
        // SAFETY: the handle owns its chunk, data..data+len lies in it, and packet memory is zeroed
        // when mapped and never unmapped.
        unsafe { slice::from_raw_parts(self.data.as_ptr(), usize::from(self.len)) }
    }
}

impl DerefMut for Frame {
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn deref_mut(&mut self) -> &mut [u8] {
        #[cfg(debug_assertions)]
        crate::shadow::check_use(self.data, std::panic::Location::caller());
        // SAFETY: as for deref; the exclusive borrow of the only handle makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), usize::from(self.len)) }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("len", &self.len)
            .field("headroom", &self.headroom)
            .field("continues", &self.continues())
            .finish_non_exhaustive()
    }
}

/// The drop bomb of debug builds.
#[cfg(debug_assertions)]
impl Drop for Frame {
    fn drop(&mut self) {
        assert!(
            std::thread::panicking(),
            "{} was dropped, which loses it to its pool: give it to PoolCache::free, PoolCache::free_burst or \
             a queue's tx_burst",
            crate::shadow::name_of(self.data)
        );
    }
}
