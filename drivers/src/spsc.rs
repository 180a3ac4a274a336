//! One producer, one consumer: a ring in the layout and protocol of AF_XDP.
//!
//! Owns: one side's view of a ring that two sides share: the kernel and this process, or two
//! lcores. Never does: allocate, make system calls, or form a reference to a slot. Invariant:
//! slots consumer..producer hold values that belong to the consumer, the others belong to the
//! producer; each index has one writer. Indices run through all of u32 and are masked only to
//! find a slot (linux/if_xdp.h, net/xdp/xsk_queue.h).
//!
//! ```text
//!   slots      | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |      size: a power of two
//!                      ^ consumer      ^ producer     the producer may write 6, 7, 0, 1
//! ```

mod heap;
#[cfg(all(test, loom))]
mod models;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;

use std::{ptr::NonNull, sync::Arc};

use sheafio_mempool::sync::{AtomicU32, Ordering};

use self::heap::HeapRing;
pub(crate) use self::slots::Slots;

/// The kernel wants to be woken before it goes on (`XDP_RING_NEED_WAKEUP`, linux/if_xdp.h).
pub(crate) const NEED_WAKEUP: u32 = 1;

/// Where the parts of a shared ring lie.
pub(crate) struct RingMemory<T> {
    pub(crate) producer: NonNull<AtomicU32>,
    pub(crate) consumer: NonNull<AtomicU32>,
    pub(crate) flags: NonNull<AtomicU32>,
    pub(crate) slots: NonNull<T>,
    /// Number of slots, a power of two.
    pub(crate) size: u32,
    /// Keeps the memory alive, and one witness for each slot in models.
    owner: Arc<dyn RingOwner>,
}

impl<T> Clone for RingMemory<T> {
    fn clone(&self) -> Self {
        Self { owner: self.owner.clone(), ..*self }
    }
}

/// What keeps a ring's memory alive while either side has a view of it.
pub(crate) trait RingOwner: Send + Sync {
    /// Says in models that the memory of a slot is read or written.
    fn touch(&self, slot: u32);
}

impl<T> RingMemory<T> {
    /// A ring at given places.
    ///
    /// # Safety
    /// The pointers must be valid for as long as `owner` lives, the slots for `size` values of T,
    /// and nobody may access them but by the protocol of this module.
    pub(crate) unsafe fn new(
        producer: NonNull<AtomicU32>,
        consumer: NonNull<AtomicU32>,
        flags: NonNull<AtomicU32>,
        slots: NonNull<T>,
        size: u32,
        owner: Arc<dyn RingOwner>,
    ) -> Self {
        assert!(size.is_power_of_two(), "ring size {size} must be a power of two");
        Self { producer, consumer, flags, slots, size, owner }
    }

    /// A ring on the heap, both indices at `start`. Values that are left in it are not dropped.
    pub(crate) fn on_heap(size: u32, start: u32) -> Self
    where
        T: Send + 'static,
    {
        let heap = Arc::new(HeapRing::<T>::new(size, start));
        let (producer, consumer, flags) =
            (NonNull::from(&heap.producer.0), NonNull::from(&heap.consumer.0), NonNull::from(&heap.flags));
        // SAFETY: the pointers lie in the heap ring, which the Arc keeps in place and alive, and
        // only this module gets them.
        unsafe { Self::new(producer, consumer, flags, heap.slots, size, heap) }
    }
}

/// The two sides of a ring on the heap with `size` slots, a power of two, for two threads that pass small
/// values. Values that are left in it are not dropped.
///
/// # Panics
/// If the size is not a power of two.
pub fn pair<T: Copy + Send + 'static>(size: u32) -> (Producer<T>, Consumer<T>) {
    let ring = RingMemory::on_heap(size, 0);
    (Producer::new(ring.clone()), Consumer::new(ring))
}

/// The producer's side of a ring.
pub struct Producer<T> {
    ring: RingMemory<T>,
    /// The next slot to write; ahead of the shared index between `write_each` and `publish`.
    next: u32,
    /// Slots before this index were free when the consumer's index was last seen: at most all of the ring's.
    limit: u32,
}

/// The consumer's side of a ring.
pub struct Consumer<T> {
    ring: RingMemory<T>,
    /// The next slot to read.
    next: u32,
    /// Values before this index were there when the producer's index was last seen: at most a ring of them.
    limit: u32,
}

// SAFETY: the view may move to another thread with the values that it passes on; the shared words
// are atomics, and a slot is accessed by the side that owns it.
unsafe impl<T: Send> Send for Producer<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Consumer<T> {}

impl<T> Producer<T> {
    /// The producer's view of a ring; there must be no other.
    pub(crate) fn new(ring: RingMemory<T>) -> Self {
        // Relaxed: set-up; the other side has not started. The first `free` looks at the consumer's index.
        let next = producer_index(&ring).load(Ordering::Relaxed);
        Self { ring, next, limit: next }
    }

    /// Hands as many of the values to the consumer as there are free slots, first ones first. Returns how many.
    #[inline]
    pub fn send(&mut self, values: &[T]) -> usize
    where
        T: Copy,
    {
        let count = self.free(values.len());
        if count == 0 {
            return 0; // Without a store to the line that both sides read.
        }
        // In halves of the ring, so that the consumer begins before the producer has ended.
        for values in values[..count].chunks((self.ring.size as usize / 2).max(1)) {
            self.write_each(values.len(), |at| values[at]);
            self.publish();
        }
        count
    }

    /// Number of slots.
    #[inline(always)]
    pub(crate) fn slots(&self) -> u32 {
        self.ring.size
    }

    /// Free slots, at most `want`. Looks at the consumer's index only if fewer were seen before.
    #[inline(always)]
    pub(crate) fn free(&mut self, want: usize) -> usize {
        let mut free = self.limit.wrapping_sub(self.next);
        if (free as usize) < want {
            // Acquire: pairs with the consumer's Release store in `Consumer::release`, so its reads
            // of the slots are over before they are written again.
            let consumer = consumer_index(&self.ring).load(Ordering::Acquire);
            // Saturating, as the other side's word is not to be trusted with our memory.
            free = self.ring.size.saturating_sub(self.next.wrapping_sub(consumer));
            self.limit = self.next.wrapping_add(free);
        }
        want.min(free as usize)
    }

    /// Writes `count` values, which `value` makes from 0, 1, ..., to the next slots; `free` must
    /// have said that there are as many. They are the consumer's after `publish`.
    #[inline(always)]
    pub(crate) fn write_each(&mut self, count: usize, mut value: impl FnMut(usize) -> T) {
        debug_assert!(count as u32 <= self.limit.wrapping_sub(self.next));
        let first = self.next & (self.ring.size - 1);
        let run = count.min((self.ring.size - first) as usize);
        // A copy, for `value` may write to memory that the compiler can't tell from this ring's.
        let slots = self.ring.slots;
        let mut write = |at, slot: usize| {
            self.ring.touch(slot as u32);
            // SAFETY: slot < size, and it is the producer's: between next and consumer + size.
            unsafe { slots.add(slot).write(value(at)) };
        };
        // Two straight runs, before and after the end of the ring, that the compiler can unroll.
        (0..run).for_each(|at| write(at, first as usize + at));
        (run..count).for_each(|at| write(at, at - run));
        self.next = self.next.wrapping_add(count as u32);
    }

    /// The next `count` slots, to be written all, and told by `wrote`; `free` must have said that there are as many.
    #[inline(always)]
    pub(crate) fn next_slots(&mut self, count: usize) -> Slots<T> {
        debug_assert!(count as u32 <= self.limit.wrapping_sub(self.next));
        self.ring.slots_from(self.next, count)
    }

    /// Counts the next `count` slots as written. They are the consumer's after `publish`.
    #[inline(always)]
    pub(crate) fn wrote(&mut self, count: usize) {
        self.next = self.next.wrapping_add(count as u32);
    }

    /// Hands all values written so far to the consumer.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        // Release: pairs with the Acquire load in `Consumer::available`; the slots are written first.
        producer_index(&self.ring).store(self.next, Ordering::Release);
    }

    /// Takes back the values written since the last `publish`, without dropping them.
    #[inline]
    pub(crate) fn unwrite(&mut self, count: usize) {
        self.next = self.next.wrapping_sub(count as u32);
    }

    /// The index of the next slot, as it was written up to; it wraps.
    pub(crate) fn next_index(&self) -> u32 {
        self.next
    }

    /// Visits the values that were written from an index on, at most a ring full of them, oldest first; returns
    /// the index up to which it has visited.
    pub(crate) fn visit_written(&self, from: u32, mut visit: impl FnMut(T)) -> u32
    where
        T: Copy,
    {
        let count = self.next.wrapping_sub(from).min(self.ring.size);
        for index in (0..count).map(|nth| self.next.wrapping_sub(count - nth)) {
            let slot = (index & (self.ring.size - 1)) as usize;
            // SAFETY: slot < size, and it was written by this side: so it is initialized. The consumer only reads it.
            visit(unsafe { self.ring.slots.add(slot).read() });
        }
        self.next
    }

    /// Whether the other side asks to be woken.
    #[inline(always)]
    pub(crate) fn needs_wakeup(&self) -> bool {
        // Relaxed: a flag that is seen late is seen in the next poll; see `XskQueue::doorbell`.
        flags(&self.ring).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Published values that the consumer has not read yet.
    #[inline(always)]
    pub(crate) fn unconsumed(&self) -> u32 {
        // Relaxed: a number to decide on, no slot is accessed for it.
        self.next.wrapping_sub(consumer_index(&self.ring).load(Ordering::Relaxed))
    }

    /// Takes back every published value that the consumer has not read.
    ///
    /// # Safety
    /// The consumer must have stopped for good.
    pub(crate) unsafe fn take_back(&mut self, mut visit: impl FnMut(T)) {
        // Acquire: as in `free`.
        let consumer = consumer_index(&self.ring).load(Ordering::Acquire);
        while self.next != consumer {
            self.next = self.next.wrapping_sub(1);
            let slot = (self.next & (self.ring.size - 1)) as usize;
            self.ring.touch(slot as u32);
            // SAFETY: the slot was written and published by this side, and the consumer, which has
            // stopped, did not read it.
            visit(unsafe { self.ring.slots.add(slot).read() });
        }
        self.publish();
    }
}

impl<T> Consumer<T> {
    /// The consumer's view of a ring; there must be no other.
    pub(crate) fn new(ring: RingMemory<T>) -> Self {
        // Relaxed: set-up; the first `available` acquires what the producer has published.
        let next = consumer_index(&ring).load(Ordering::Relaxed);
        Self { ring, next, limit: next }
    }

    /// Moves as many values as there are to the front of `out`, oldest first. Returns how many.
    #[inline]
    pub fn receive(&mut self, out: &mut [T]) -> usize
    where
        T: Copy,
    {
        let count = self.available(out.len());
        if count == 0 {
            return 0; // Without a store to the line that both sides read.
        }
        for out in out[..count].chunks_mut((self.ring.size as usize / 2).max(1)) {
            self.read_each(out.len(), |at, value| out[at] = value);
            self.release();
        }
        count
    }

    /// Values to read, at most `want`. Looks at the producer's index only if fewer were seen before.
    #[inline(always)]
    pub(crate) fn available(&mut self, want: usize) -> usize {
        let mut available = self.limit.wrapping_sub(self.next);
        if (available as usize) < want {
            // Acquire: pairs with the Release store in `Producer::publish`.
            let producer = producer_index(&self.ring).load(Ordering::Acquire);
            // Clamped, as the other side's word is not to be trusted with our memory.
            available = producer.wrapping_sub(self.next).min(self.ring.size);
            self.limit = self.next.wrapping_add(available);
        }
        want.min(available as usize)
    }

    /// Values to read that were seen when the producer's index was last looked at, for a simulated kernel.
    pub(crate) fn known(&self) -> u32 {
        self.limit.wrapping_sub(self.next)
    }

    /// Reads the next `count` values without consuming them; `available` must have said that there
    /// are as many.
    #[inline(always)]
    pub(crate) fn peek_each(&self, count: usize, mut visit: impl FnMut(usize, T))
    where
        T: Copy,
    {
        let slots = self.ring.slots; // A copy, as in `Producer::write_each`.
        self.visit_slots(count, |at, slot| {
            // SAFETY: the caller was told that the slot is the consumer's and written; T is Copy.
            visit(at, unsafe { slots.add(slot).read() });
        });
    }

    /// The slots of the next `count` values, to be read only; `available` must have said that there are as many.
    #[inline(always)]
    pub(crate) fn next_slots(&self, count: usize) -> Slots<T> {
        debug_assert!(count as u32 <= self.limit.wrapping_sub(self.next));
        self.ring.slots_from(self.next, count)
    }

    /// Reads the next `count` values, numbered 0, 1, ...; `available` must have said that there are
    /// as many. Their slots are the producer's after `release`.
    #[inline(always)]
    pub(crate) fn read_each(&mut self, count: usize, mut visit: impl FnMut(usize, T)) {
        let slots = self.ring.slots; // A copy, as in `Producer::write_each`.
        self.visit_slots(count, |at, slot| {
            // SAFETY: the caller was told that the slot is the consumer's and written; `next` moves
            // past it, so it is read once.
            visit(at, unsafe { slots.add(slot).read() });
        });
        self.next = self.next.wrapping_add(count as u32);
    }

    /// The index of the next value to be read; it wraps.
    pub(crate) fn next_index(&self) -> u32 {
        self.next
    }

    /// Number of slots.
    #[inline(always)]
    pub(crate) fn slots(&self) -> u32 {
        self.ring.size
    }

    /// Consumes the next `count` values, which were peeked at. Their slots are the producer's after `release`.
    #[inline(always)]
    pub(crate) fn skip(&mut self, count: usize) {
        debug_assert!(count as u32 <= self.limit.wrapping_sub(self.next));
        self.next = self.next.wrapping_add(count as u32);
    }

    /// Goes back to before the last `count` values that were read since the last `release`, which must be forgotten.
    #[inline]
    pub(crate) fn unread(&mut self, count: usize) {
        self.next = self.next.wrapping_sub(count as u32);
    }

    /// Gives the slots read so far back to the producer.
    #[inline(always)]
    pub(crate) fn release(&mut self) {
        // Release: pairs with the Acquire load in `Producer::free`; the slots are read first.
        consumer_index(&self.ring).store(self.next, Ordering::Release);
    }

    /// Sets or clears the need-wakeup flag, for a simulated kernel that consumes this ring.
    pub(crate) fn set_needs_wakeup(&self, needs: bool) {
        // Relaxed: see `Producer::needs_wakeup`.
        flags(&self.ring).store(if needs { NEED_WAKEUP } else { 0 }, Ordering::Relaxed);
    }

    #[inline(always)]
    fn visit_slots(&self, count: usize, mut visit: impl FnMut(usize, usize)) {
        debug_assert!(count as u32 <= self.limit.wrapping_sub(self.next));
        let first = self.next & (self.ring.size - 1);
        let run = count.min((self.ring.size - first) as usize);
        let mut visit = |at, slot: usize| {
            self.ring.touch(slot as u32);
            visit(at, slot);
        };
        (0..run).for_each(|at| visit(at, first as usize + at));
        (run..count).for_each(|at| visit(at, at - run));
    }
}

impl<T> RingMemory<T> {
    /// The `count` slots from index `next` on.
    #[inline(always)]
    fn slots_from(&self, next: u32, count: usize) -> Slots<T> {
        if cfg!(loom) {
            (0..count as u32).for_each(|at| self.touch(next.wrapping_add(at) & (self.size - 1)));
        }
        Slots::new(self.slots, self.size, next & (self.size - 1), count)
    }

    #[inline(always)]
    fn touch(&self, slot: u32) {
        if cfg!(loom) {
            self.owner.touch(slot);
        }
    }
}

#[inline(always)]
fn producer_index<T>(ring: &RingMemory<T>) -> &AtomicU32 {
    // SAFETY: valid while the owner lives, which the ring keeps alive; an atomic may be shared.
    unsafe { ring.producer.as_ref() }
}

#[inline(always)]
fn consumer_index<T>(ring: &RingMemory<T>) -> &AtomicU32 {
    // SAFETY: as for the producer's index.
    unsafe { ring.consumer.as_ref() }
}

#[inline(always)]
fn flags<T>(ring: &RingMemory<T>) -> &AtomicU32 {
    // SAFETY: as for the producer's index.
    unsafe { ring.flags.as_ref() }
}
