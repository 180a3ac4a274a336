//! How frame indices, UMEM addresses and pointers of one pool turn into each other.
//!
//! Owns: nothing, it is a copyable view. Never does: look at memory. Invariant: the span that
//! starts at the base belongs to the pool alone, so an offset below it proves that a frame is of
//! this pool.

use std::ptr::NonNull;

use crate::{
    Frame, FrameIndex,
    frame::{self, XDP_HEADROOM_BYTES},
};

/// The address arithmetic of a pool; drivers keep a copy next to their rings.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    base: NonNull<u8>,
    /// The address bits that no frame of the pool has.
    outside: u64,
    /// Where the packet of frame 0 starts when it is allocated.
    packet: NonNull<u8>,
    /// The second word of an empty frame.
    empty: u64,
    umem_bytes: u64,
    shift: u32,
    frames: u32,
    headroom: u16,
    size: u16,
}

// SAFETY: the base is only an address; it is dereferenced by frames alone, which own their chunk.
unsafe impl Send for Geometry {}
// SAFETY: as above.
unsafe impl Sync for Geometry {}

impl Geometry {
    /// `span_bytes` is the power of two of address space that the pool owns from `base` on.
    pub(crate) fn new(base: NonNull<u8>, span_bytes: usize, frames: u32, size: u16, headroom: u16) -> Self {
        debug_assert!(span_bytes.is_power_of_two() && size.is_power_of_two());
        let room = headroom + XDP_HEADROOM_BYTES;
        base.expose_provenance(); // For `Frame::data`.
        Self {
            base,
            outside: !(span_bytes as u64 - 1),
            // SAFETY: the builder has checked that the headroom fits into the first chunk.
            packet: unsafe { base.add(usize::from(room)) },
            empty: frame::meta(size),
            umem_bytes: u64::from(frames) << size.trailing_zeros(),
            shift: size.trailing_zeros(),
            frames,
            headroom,
            size,
        }
    }

    /// Start of the UMEM, to be registered with AF_XDP sockets.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length of the UMEM in bytes.
    #[inline(always)]
    pub fn umem_bytes(&self) -> u64 {
        self.umem_bytes
    }

    /// Number of frames.
    #[inline(always)]
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Size of a frame in bytes, 2048 or 4096: `chunk_size` of `struct xdp_umem_reg` (linux/if_xdp.h).
    pub fn frame_bytes(&self) -> u32 {
        u32::from(self.size)
    }

    /// Headroom in bytes that the builder asked for, besides the kernel's 256.
    pub fn headroom_bytes(&self) -> u32 {
        u32::from(self.headroom)
    }

    /// The most bytes that a received packet can have in one frame.
    pub fn data_bytes(&self) -> u32 {
        u32::from(self.size - XDP_HEADROOM_BYTES - self.headroom)
    }

    /// Frame address: the offset of a frame's first byte in the UMEM, in bytes.
    #[inline(always)]
    pub fn addr_of(&self, index: FrameIndex) -> u64 {
        u64::from(index.0) << self.shift
    }

    /// The frame that a UMEM address lies in. Out of range for a bad address: compare with
    /// [`frames`](Self::frames).
    #[inline(always)]
    pub fn index_of(&self, addr: u64) -> FrameIndex {
        FrameIndex(u32::try_from(addr >> self.shift).unwrap_or(u32::MAX))
    }

    /// As [`index_of`](Self::index_of) for an address that was proven to be in the UMEM; of others the
    /// result means nothing.
    #[inline(always)]
    pub fn index_within(&self, addr: u64) -> u32 {
        (addr >> self.shift) as u32
    }

    /// UMEM address of the packet in a frame. For a frame of another pool, an address that
    /// [`contains`](Self::contains) refuses.
    #[inline(always)]
    pub fn addr(&self, frame: &Frame) -> u64 {
        frame.start().wrapping_sub(self.base.addr().get() as u64)
    }

    /// Whether an address is in the pool's span. The bitwise or of many addresses can be asked at
    /// once: no bit outside of the mask means that all are within.
    #[inline(always)]
    pub fn contains(&self, addrs: u64) -> bool {
        addrs & self.outside == 0
    }

    /// Whether `addr..addr + len` is a packet within one frame of the UMEM.
    #[inline(always)]
    pub fn is_packet(&self, addr: u64, len: u32) -> bool {
        let offset = addr & (u64::from(self.size) - 1);
        offset + u64::from(len) <= u64::from(self.size) && addr < self.umem_bytes()
    }

    /// Makes the handle of a received packet of `len` bytes at UMEM address `addr`.
    ///
    /// # Safety
    /// [`is_packet`](Self::is_packet) must hold, and the caller must own the frame that the address
    /// lies in: taken from this pool and held by no other `Frame`, ring or sheaf.
    #[inline(always)]
    pub unsafe fn frame(&self, addr: u64, len: u32) -> Frame {
        debug_assert!(self.is_packet(addr, len));
        // SAFETY: the caller says that the address is within the UMEM and owned.
        unsafe { Frame::from_raw(self.base.add(addr as usize), self.empty + u64::from(len)) }
    }

    /// By how much the two words of a frame are more than those of the descriptor of its packet: address, and length and
    /// options. So that a driver can make the handles of a burst in one go, without a look at each. What comes of the
    /// addition may be taken for a frame where [`frame`](Self::frame) could have made it.
    #[inline(always)]
    pub fn frame_over_desc(&self) -> [u64; 2] {
        [self.base.addr().get() as u64, self.empty]
    }

    /// By how many bits a frame address is a frame index shifted to the left.
    #[inline(always)]
    pub fn addr_shift(&self) -> u32 {
        self.shift
    }

    /// Makes the handle of an allocated frame: headroom in front, then `len` bytes.
    ///
    /// # Safety
    /// `index` must be a frame of this pool that the caller owns, and `len` at most `data_bytes()`.
    #[inline(always)]
    pub(crate) unsafe fn packet(&self, index: u32, len: u16) -> Frame {
        debug_assert!(index < self.frames && u32::from(len) <= self.data_bytes());
        let offset = (index as usize) << self.shift;
        // SAFETY: the index is of this pool, so the chunk lies in the UMEM; the builder has checked
        // that the headroom fits, and the caller that the packet does.
        unsafe { Frame::from_raw(self.packet.add(offset), self.empty + u64::from(len)) }
    }
}
