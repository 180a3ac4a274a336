//! The buffers that the kernel receives into: frames of the pool in a provided buffer ring (`struct io_uring_buf_ring`,
//! linux/io_uring.h).
//!
//! Owns: the ring's memory, and the frames that lie in it. Never does: touch a frame that the kernel may write, give the
//! ring's memory back (the kernel may look at it until its own end of the ring is gone, some time after the file
//! is closed). Invariant: entry `id` of `frames` is there exactly while the kernel may receive into buffer `id`.
//!
//! ```text
//!   entry 0           entry 1           ...   entry slots - 1
//!   | addr | len id | addr | len id |             | addr | len id |
//!             ^ the last two bytes of entry 0 are the tail: how many buffers were ever put in
//! ```

use std::{
    alloc::{Layout, alloc_zeroed, handle_alloc_error},
    io,
    ptr::NonNull,
    sync::atomic::{AtomicU16, Ordering},
};

use io_uring::{Submitter, types::BufRingEntry};
use sheafio_mempool::{Frame, PoolCache};

/// The only group of buffers of a ring.
pub(super) const GROUP: u16 = 0;
/// The kernel wants the ring to begin with a page.
const PAGE_BYTES: usize = 4096;

pub(super) struct Buffers {
    entries: NonNull<BufRingEntry>,
    mask: u16,
    tail: u16,
    /// By buffer id.
    frames: Box<[Option<Frame>]>,
    /// Ids without a frame.
    empty: Vec<u16>,
}

const _: () = assert!(size_of::<BufRingEntry>() == 16, "struct io_uring_buf has 16 bytes");

impl Buffers {
    /// A ring of `slots` buffers, a power of two up to 32,768, without frames.
    pub(super) fn new(slots: u16) -> Self {
        assert!(slots.is_power_of_two(), "the kernel masks the tail");
        let bytes = usize::from(slots) * size_of::<BufRingEntry>();
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("at most 512 KiB");
        #[expect(clippy::cast_ptr_alignment, reason = "the layout asks for more")]
        // SAFETY: the layout has bytes. Zeroed memory is a valid entry: it consists of integers.
        let memory = unsafe { alloc_zeroed(layout) }.cast::<BufRingEntry>();
        let entries = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        Self {
            entries,
            mask: slots - 1,
            tail: 0,
            frames: (0..slots).map(|_| None).collect(),
            empty: (0..slots).rev().collect(),
        }
    }

    /// Tells the kernel of the ring.
    pub(super) fn register(&self, submitter: &Submitter<'_>) -> io::Result<()> {
        let address = self.entries.as_ptr().expose_provenance() as u64;
        // SAFETY: the memory has as many entries as is said, and is never given back.
        unsafe { submitter.register_buf_ring_with_flags(address, self.mask + 1, GROUP, 0) }
    }

    /// Puts a frame into every empty buffer, as far as the pool has some. Returns whether all are full.
    #[inline]
    pub(super) fn refill(&mut self, cache: &mut PoolCache) -> bool {
        if self.empty.is_empty() {
            return true;
        }
        while let Some(id) = self.empty.pop() {
            let Some(mut frame) = cache.alloc() else {
                self.empty.push(id);
                break;
            };
            let room = frame.tailroom();
            let memory = frame.append(room).expect("that is its room").as_mut_ptr();
            // SAFETY: the index is below the number of entries by the mask. The kernel only reads entries, and none
            // at or behind the tail that it was told last; there are as many ids as entries, so this is one.
            let entry = unsafe { self.entries.add(usize::from(self.tail & self.mask)).as_mut() };
            entry.set_addr(memory.expose_provenance() as u64);
            entry.set_len(room as u32);
            entry.set_bid(id);
            self.frames[usize::from(id)] = Some(frame);
            self.tail = self.tail.wrapping_add(1);
        }
        // SAFETY: the first entry is initialised, and the tail is a u16 in it that only this thread writes.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.entries.as_ptr()).cast_mut()) };
        // Release: pairs with the kernel's acquire of the tail, before it reads the entries (io_ring_buffer_select).
        tail.store(self.tail, Ordering::Release);
        self.empty.is_empty()
    }

    /// How many buffers have a frame.
    pub(super) fn filled(&self) -> usize {
        self.frames.len() - self.empty.len()
    }

    /// Takes the frame of a buffer that the kernel has received `len` bytes into, and let go of.
    #[inline]
    pub(super) fn take(&mut self, id: u16, len: usize) -> Frame {
        let mut frame =
            self.frames[usize::from(id)].take().expect("the kernel completes a buffer that it has");
        self.empty.push(id);
        let unused = frame.len().checked_sub(len).expect("the kernel keeps to the length that it was told");
        frame.trim_back(unused);
        frame
    }

    /// Gives all frames back. Returns how many. No operation that receives may be open, and the kernel must have been
    /// told that the buffers are gone: the caller sees to both.
    pub(super) fn empty_into(&mut self, cache: &mut PoolCache) -> usize {
        let mut count = 0;
        for frame in &mut self.frames {
            if let Some(frame) = frame.take() {
                cache.free(frame);
                count += 1;
            }
        }
        count
    }

    /// Leaves all frames to the kernel for good. Returns how many.
    pub(super) fn forget(&mut self) -> usize {
        self.frames.iter_mut().filter_map(Option::take).map(std::mem::forget).count()
    }
}
