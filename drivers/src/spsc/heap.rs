//! The memory of a ring on the heap: for ring ports, simulated kernels and models.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ptr::NonNull,
};

use sheafio_mempool::sync::{AtomicU32, Witness};

use super::RingOwner;

/// A word on a pair of cache lines of its own.
#[repr(align(128))]
pub(super) struct Alone(pub(super) AtomicU32);

/// The memory of a ring on the heap.
pub(super) struct HeapRing<T> {
    pub(super) producer: Alone,
    pub(super) consumer: Alone,
    pub(super) flags: AtomicU32,
    pub(super) slots: NonNull<T>,
    layout: Layout,
    witnesses: Box<[Witness]>,
}

// SAFETY: the slots are accessed by the protocol of this module, by the side that owns them.
unsafe impl<T: Send> Send for HeapRing<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for HeapRing<T> {}

impl<T> HeapRing<T> {
    pub(super) fn new(size: u32, start: u32) -> Self {
        const { assert!(size_of::<T>() > 0) };
        let layout = Layout::array::<T>(size as usize).expect("rings are far smaller than memory");
        // SAFETY: the layout has a size above zero; a size of 0 slots is refused by RingMemory::new.
        let slots = unsafe { alloc_zeroed(layout) };
        let Some(slots) = NonNull::new(slots.cast()) else { handle_alloc_error(layout) };
        Self {
            producer: Alone(AtomicU32::new(start)),
            consumer: Alone(AtomicU32::new(start)),
            flags: AtomicU32::new(0),
            slots,
            layout,
            witnesses: (0..size).map(|_| Witness::default()).collect(),
        }
    }
}

impl<T: Send> RingOwner for HeapRing<T> {
    fn touch(&self, slot: u32) {
        self.witnesses[slot as usize].touch();
    }
}

impl<T> Drop for HeapRing<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.slots.as_ptr().cast(), self.layout) }
    }
}
