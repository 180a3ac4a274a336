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
///
/// ```text
/// meta, bits:  63      48 47       32 31         16 15       0
///             |  flags   |   size    |  headroom   |   len   |
/// ```
/// The four are one word, so that a frame is two registers and making one costs two stores.
pub struct Frame {
    data: NonNull<u8>,
    meta: u64,
}

const _: () = assert!(size_of::<Frame>() == 16, "bursts are sized for 16-byte frames");

const HEADROOM_SHIFT: u32 = 16;
const SIZE_SHIFT: u32 = 32;
const FLAGS_SHIFT: u32 = 48;
/// The packet goes on in the next frame of the burst.
const CONTINUES: u64 = 1 << FLAGS_SHIFT;
/// A request to the device lies in front of the packet; see `metadata.rs`.
const TX_METADATA: u64 = 1 << (FLAGS_SHIFT + 1);
/// What the device knew of the packet lies in front of it; see `metadata.rs`.
const RX_METADATA: u64 = 1 << (FLAGS_SHIFT + 2);
/// Both are only true as long as the packet starts where it did.
const METADATA: u64 = TX_METADATA | RX_METADATA;
/// No flag: what [`Frame::marks`] says of a frame without bytes.
const EMPTY: u64 = 1 << 63;

// SAFETY: a frame owns its chunk alone; the chunk is plain memory that any thread may access.
unsafe impl Send for Frame {}
// SAFETY: a shared frame gives only shared access to its bytes.
unsafe impl Sync for Frame {}

/// The word of a frame's lengths, in bytes, without flags.
#[inline(always)]
pub(crate) const fn meta(len: u16, headroom: u16, size: u16) -> u64 {
    len as u64 | (headroom as u64) << HEADROOM_SHIFT | (size as u64) << SIZE_SHIFT
}

impl Frame {
    /// The bit of [`marks`](Self::marks) that a frame has whose packet goes on in the next one.
    pub const CONTINUES: u64 = CONTINUES;
    /// The bit of [`marks`](Self::marks) that a frame has with a request to the device.
    pub const TX_METADATA: u64 = TX_METADATA;
    /// The bit of [`marks`](Self::marks) that a frame without bytes has.
    pub const EMPTY: u64 = EMPTY;

    /// Makes the handle of a chunk.
    ///
    /// # Safety
    /// With the lengths of [`meta`], `data - headroom` must be the start of a chunk of `size` bytes of
    /// a pool, `headroom + len` at most `size`, and the caller must own that chunk: no other `Frame`,
    /// sheaf or ring may hold it.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(data: NonNull<u8>, meta: u64) -> Self {
        let frame = Self { data, meta };
        debug_assert!(frame.headroom() + frame.len_bytes() <= frame.size());
        frame
    }

    /// What a driver must look at before it sends: [`Frame::EMPTY`], [`Frame::CONTINUES`] and
    /// [`Frame::TX_METADATA`]; the other bits mean nothing. The bitwise or of many frames tells of all at once.
    #[inline(always)]
    pub fn marks(&self) -> u64 {
        (self.len_bytes() as u64).wrapping_sub(1) | self.meta
    }

    #[inline(always)]
    fn len_bytes(&self) -> usize {
        usize::from(self.meta as u16)
    }

    #[inline(always)]
    fn size(&self) -> usize {
        usize::from((self.meta >> SIZE_SHIFT) as u16)
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
        usize::from((self.meta >> HEADROOM_SHIFT) as u16)
    }

    /// Bytes behind the packet that [`append`](Self::append) can take.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.size() - self.headroom() - self.len_bytes()
    }

    /// Takes `count` bytes of headroom into the packet's front and returns them, to be written.
    /// Their content is what was there before. `None` if there is less headroom. Metadata is gone afterwards.
    #[inline]
    #[must_use]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn prepend(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.headroom() {
            return None;
        }
        self.meta = (self.meta & !METADATA) - ((count as u64) << HEADROOM_SHIFT) + count as u64;
        // SAFETY: the headroom was at least `count` bytes, so the result is in the same chunk.
        self.data = unsafe { self.data.sub(count) };
        Some(&mut self[..count])
    }

    /// Takes `count` bytes of tailroom into the packet's end and returns them, to be written.
    /// Their content is what was there before. `None` if there is less tailroom.
    #[inline]
    #[must_use]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn append(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.tailroom() {
            return None;
        }
        let old_len = self.len_bytes();
        self.meta += count as u64; // Stays below the size, so nothing is carried.
        Some(&mut self[old_len..])
    }

    /// Removes `count` bytes from the packet's front. Metadata is gone afterwards.
    ///
    /// # Panics
    /// If the packet is shorter than `count`.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn trim_front(&mut self, count: usize) {
        assert!(count <= self.len(), "trim_front({count}) of a packet of {} bytes", self.len());
        self.meta = (self.meta & !METADATA) + ((count as u64) << HEADROOM_SHIFT) - count as u64;
        // SAFETY: the packet was at least `count` bytes long, so the result is in the same chunk.
        self.data = unsafe { self.data.add(count) };
    }

    /// Removes `count` bytes from the packet's end.
    ///
    /// # Panics
    /// If the packet is shorter than `count`.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn trim_back(&mut self, count: usize) {
        assert!(count <= self.len(), "trim_back({count}) of a packet of {} bytes", self.len());
        self.meta -= count as u64;
    }

    /// The last bytes of the headroom, just in front of the packet. `None` if there are fewer.
    #[inline]
    pub(crate) fn front<const COUNT: usize>(&self) -> Option<&[u8; COUNT]> {
        if COUNT > self.headroom() {
            return None;
        }
        // SAFETY: the frame owns its chunk, whose memory is initialised, and these bytes of it.
        Some(unsafe { self.data.sub(COUNT).cast::<[u8; COUNT]>().as_ref() })
    }

    /// As [`front`](Self::front), to be written.
    #[inline]
    pub(crate) fn front_mut<const COUNT: usize>(&mut self) -> Option<&mut [u8; COUNT]> {
        if COUNT > self.headroom() {
            return None;
        }
        // SAFETY: as for front; the exclusive borrow of the only handle makes the access exclusive.
        Some(unsafe { self.data.sub(COUNT).cast::<[u8; COUNT]>().as_mut() })
    }

    /// Whether there is a request to the device in front of the packet.
    #[inline]
    pub(crate) fn has_tx_metadata(&self) -> bool {
        self.meta & TX_METADATA != 0
    }

    #[inline]
    pub(crate) fn set_tx_metadata(&mut self, has: bool) {
        self.meta = self.meta & !TX_METADATA | if has { TX_METADATA } else { 0 };
    }

    /// Whether there is what the device knew in front of the packet.
    #[inline]
    pub(crate) fn has_rx_metadata(&self) -> bool {
        self.meta & RX_METADATA != 0
    }

    #[inline]
    pub(crate) fn set_rx_metadata(&mut self, has: bool) {
        self.meta = self.meta & !RX_METADATA | if has { RX_METADATA } else { 0 };
    }

    /// Whether the packet goes on in the next frame of the burst (`XDP_PKT_CONTD`, linux/if_xdp.h).
    #[inline]
    pub fn continues(&self) -> bool {
        self.meta & CONTINUES != 0
    }

    /// Says whether the packet goes on in the next frame of the burst.
    #[inline]
    pub fn set_continues(&mut self, continues: bool) {
        self.meta = self.meta & !CONTINUES | u64::from(continues) << FLAGS_SHIFT;
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
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.len_bytes()) }
    }
}

impl DerefMut for Frame {
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn deref_mut(&mut self) -> &mut [u8] {
        #[cfg(debug_assertions)]
        crate::shadow::check_use(self.data, std::panic::Location::caller());
        // SAFETY: as for deref; the exclusive borrow of the only handle makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), self.len_bytes()) }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("len", &self.len_bytes())
            .field("headroom", &self.headroom())
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
