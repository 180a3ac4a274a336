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
    num::NonZero,
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
/// meta, bits:  63      48 47          32 31             0
///             |  size    |    flags     |      len      |
/// ```
/// The lower 48 bits are the second word of `struct xdp_desc` (linux/if_xdp.h), length and options, so that a frame and a
/// descriptor become each other by an addition to each word; a driver may do so with both words at once, see
/// [`Geometry::frame_over_desc`](crate::Geometry::frame_over_desc). The headroom is in the address, for chunks lie at
/// multiples of their size.
#[repr(C)]
pub struct Frame {
    /// Where the packet starts. A number, for drivers write the sum of two here; what makes it a pointer again is that the
    /// pool has exposed its memory.
    start: NonZero<usize>,
    meta: u64,
}

const _: () = assert!(size_of::<Frame>() == 16, "bursts are sized for 16-byte frames");
const _: () = assert!(size_of::<usize>() == 8, "a frame is two words of 64 bits");

const SIZE_SHIFT: u32 = 48;
/// The packet goes on in the next frame of the burst: `XDP_PKT_CONTD`.
const CONTINUES: u64 = 1 << 32;
/// A request to the device lies in front of the packet; see `metadata.rs`: `XDP_TX_METADATA`.
const TX_METADATA: u64 = 1 << 33;
/// What the device knew of the packet lies in front of it; see `metadata.rs`. No option of a descriptor.
const RX_METADATA: u64 = 1 << 47;
/// Both are only true as long as the packet starts where it did.
const METADATA: u64 = TX_METADATA | RX_METADATA;
/// No flag of a frame: what a driver notes of one without bytes, beside these.
const EMPTY: u64 = 1 << 63;

/// The word of an empty frame in a chunk of `size` bytes, 2048 or 4096; add a length and flags.
#[inline(always)]
pub(crate) const fn meta(size: u16) -> u64 {
    (size as u64) << SIZE_SHIFT
}

impl Frame {
    /// The bit of a frame's second word that says that its packet goes on in the next one.
    pub const CONTINUES: u64 = CONTINUES;
    /// The bit of a frame's second word that says that a request to the device lies in front of it.
    pub const TX_METADATA: u64 = TX_METADATA;
    /// A bit that no frame's second word has, for a driver to note beside the others that one has no bytes.
    pub const EMPTY: u64 = EMPTY;

    /// Makes the handle of a chunk.
    ///
    /// # Safety
    /// `data` must lie in a chunk of `size` bytes of a pool, with `len` bytes of it from there on, and the caller must
    /// own that chunk: no other `Frame`, sheaf or ring may hold it.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(data: NonNull<u8>, meta: u64) -> Self {
        let frame = Self { start: data.addr(), meta };
        debug_assert!(frame.headroom() + frame.len_bytes() <= frame.size());
        frame
    }

    #[inline(always)]
    fn len_bytes(&self) -> usize {
        self.meta as u32 as usize
    }

    #[inline(always)]
    fn size(&self) -> usize {
        usize::from((self.meta >> SIZE_SHIFT) as u16)
    }

    /// The second word of a descriptor of this frame without options: its length.
    #[inline(always)]
    pub fn len_word(&self) -> u64 {
        u64::from(self.meta as u32)
    }

    /// Gives up the handle without freeing the frame; the caller now owns the chunk.
    #[inline(always)]
    pub(crate) fn into_data(self) -> NonNull<u8> {
        let data = self.data();
        std::mem::forget(self);
        data
    }

    /// Address of the first byte of the packet.
    #[inline(always)]
    pub(crate) fn start(&self) -> u64 {
        self.start.get() as u64
    }

    /// The first byte of the packet.
    #[inline(always)]
    pub(crate) fn data(&self) -> NonNull<u8> {
        // The pool has exposed its memory (`Geometry::new`).
        NonNull::with_exposed_provenance(self.start)
    }

    /// Bytes before the packet that [`prepend`](Self::prepend) can take.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.start.get() & (self.size() - 1)
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
        self.meta = (self.meta & !METADATA) + count as u64;
        // SAFETY: the headroom was at least `count` bytes, so the result is in the same chunk.
        self.start = unsafe { self.data().sub(count) }.addr();
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
        if count == self.headroom_to_end() {
            return self.empty_at_end();
        }
        self.meta = (self.meta & !METADATA) - count as u64;
        // SAFETY: the packet was at least `count` bytes long and does not end there with its chunk, so the result is in
        // the same chunk.
        self.start = unsafe { self.data().add(count) }.addr();
    }

    /// Bytes from the packet's start to the chunk's end.
    #[inline]
    fn headroom_to_end(&self) -> usize {
        self.size() - self.headroom()
    }

    /// Removes all bytes of a packet that ends with its chunk. The address behind them would be the next chunk's, which
    /// would be taken for this one's; so the empty packet lies at the last byte.
    #[cold]
    fn empty_at_end(&mut self) {
        let count = self.len_bytes();
        self.meta = (self.meta & !METADATA) - count as u64;
        // SAFETY: the packet has `count` bytes, and a chunk is never empty, so the last one lies in it.
        self.start = unsafe { self.data().add(count - 1) }.addr();
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
        Some(unsafe { self.data().sub(COUNT).cast::<[u8; COUNT]>().as_ref() })
    }

    /// As [`front`](Self::front), to be written.
    #[inline]
    pub(crate) fn front_mut<const COUNT: usize>(&mut self) -> Option<&mut [u8; COUNT]> {
        if COUNT > self.headroom() {
            return None;
        }
        // SAFETY: as for front; the exclusive borrow of the only handle makes the access exclusive.
        Some(unsafe { self.data().sub(COUNT).cast::<[u8; COUNT]>().as_mut() })
    }

    /// Whether there is a request to the device in front of the packet.
    #[inline]
    pub fn has_tx_metadata(&self) -> bool {
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
        self.meta = self.meta & !CONTINUES | if continues { CONTINUES } else { 0 };
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn deref(&self) -> &[u8] {
        #[cfg(debug_assertions)]
        crate::shadow::check_use(self.data(), std::panic::Location::caller());
        // SAFETY: the handle owns its chunk, data..data+len lies in it, and packet memory is zeroed
        // when mapped and never unmapped.
        unsafe { slice::from_raw_parts(self.data().as_ptr(), self.len_bytes()) }
    }
}

impl DerefMut for Frame {
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn deref_mut(&mut self) -> &mut [u8] {
        #[cfg(debug_assertions)]
        crate::shadow::check_use(self.data(), std::panic::Location::caller());
        // SAFETY: as for deref; the exclusive borrow of the only handle makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.data().as_ptr(), self.len_bytes()) }
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
            crate::shadow::name_of(self.data())
        );
    }
}
