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

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ptr::NonNull,
    sync::Arc,
};

use sheafio_mempool::sync::{AtomicU32, Ordering, Witness};

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

/// The producer's side of a ring.
pub(crate) struct Producer<T> {
    ring: RingMemory<T>,
    /// The next slot to write; ahead of the shared index between `write_each` and `publish`.
    next: u32,
    /// The consumer's index as last seen.
    seen_consumer: u32,
}

/// The consumer's side of a ring.
pub(crate) struct Consumer<T> {
    ring: RingMemory<T>,
    /// The next slot to read.
    next: u32,
    /// The producer's index as last seen.
    seen_producer: u32,
}

// SAFETY: the view may move to another thread with the values that it passes on; the shared words
// are atomics, and a slot is accessed by the side that owns it.
unsafe impl<T: Send> Send for Producer<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Consumer<T> {}

impl<T> Producer<T> {
    /// The producer's view of a ring; there must be no other.
    pub(crate) fn new(ring: RingMemory<T>) -> Self {
        // Relaxed: set-up; the other side has not started.
        let (next, seen_consumer) =
            (producer_index(&ring).load(Ordering::Relaxed), consumer_index(&ring).load(Ordering::Relaxed));
        Self { ring, next, seen_consumer }
    }

    /// Free slots, at most `want`. Looks at the consumer's index only if fewer were seen before.
    #[inline(always)]
    pub(crate) fn free(&mut self, want: usize) -> usize {
        let mut free = self.ring.size.saturating_sub(self.next.wrapping_sub(self.seen_consumer));
        if (free as usize) < want {
            // Acquire: pairs with the consumer's Release store in `Consumer::release`, so its reads
            // of the slots are over before they are written again.
            self.seen_consumer = consumer_index(&self.ring).load(Ordering::Acquire);
            // Saturating, as the other side's word is not to be trusted with our memory.
            free = self.ring.size.saturating_sub(self.next.wrapping_sub(self.seen_consumer));
        }
        want.min(free as usize)
    }

    /// Writes `count` values, which `value` makes from 0, 1, ..., to the next slots; `free` must
    /// have said that there are as many. They are the consumer's after `publish`.
    #[inline(always)]
    pub(crate) fn write_each(&mut self, count: usize, mut value: impl FnMut(usize) -> T) {
        debug_assert!(self.next.wrapping_sub(self.seen_consumer) + count as u32 <= self.ring.size);
        let first = self.next & (self.ring.size - 1);
        let run = count.min((self.ring.size - first) as usize);
        let mut write = |at, slot: usize| {
            self.ring.touch(slot as u32);
            // SAFETY: slot < size, and it is the producer's: between next and consumer + size.
            unsafe { self.ring.slots.add(slot).write(value(at)) };
        };
        // Two straight runs, before and after the end of the ring, that the compiler can unroll.
        (0..run).for_each(|at| write(at, first as usize + at));
        (run..count).for_each(|at| write(at, at - run));
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
        Self { ring, next, seen_producer: next }
    }

    /// Values to read, at most `want`. Looks at the producer's index only if fewer were seen before.
    #[inline(always)]
    pub(crate) fn available(&mut self, want: usize) -> usize {
        let mut available = self.seen_producer.wrapping_sub(self.next);
        if (available as usize) < want {
            // Acquire: pairs with the Release store in `Producer::publish`.
            self.seen_producer = producer_index(&self.ring).load(Ordering::Acquire);
            // Clamped, as the other side's word is not to be trusted with our memory.
            available = self.seen_producer.wrapping_sub(self.next).min(self.ring.size);
        }
        want.min(available as usize)
    }

    /// Reads the next `count` values without consuming them; `available` must have said that there
    /// are as many.
    #[inline(always)]
    pub(crate) fn peek_each(&self, count: usize, mut visit: impl FnMut(usize, T))
    where
        T: Copy,
    {
        self.visit_slots(count, |at, slot| {
            // SAFETY: the caller was told that the slot is the consumer's and written; T is Copy.
            visit(at, unsafe { self.ring.slots.add(slot).read() });
        });
    }

    /// Reads the next `count` values, numbered 0, 1, ...; `available` must have said that there are
    /// as many. Their slots are the producer's after `release`.
    #[inline(always)]
    pub(crate) fn read_each(&mut self, count: usize, mut visit: impl FnMut(usize, T)) {
        self.visit_slots(count, |at, slot| {
            // SAFETY: the caller was told that the slot is the consumer's and written; `next` moves
            // past it, so it is read once.
            visit(at, unsafe { self.ring.slots.add(slot).read() });
        });
        self.next = self.next.wrapping_add(count as u32);
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
        debug_assert!(count as u32 <= self.seen_producer.wrapping_sub(self.next));
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

/// A word on a pair of cache lines of its own.
#[repr(align(128))]
struct Alone(AtomicU32);

/// The memory of a ring on the heap.
struct HeapRing<T> {
    producer: Alone,
    consumer: Alone,
    flags: AtomicU32,
    slots: NonNull<T>,
    layout: Layout,
    witnesses: Box<[Witness]>,
}

// SAFETY: the slots are accessed by the protocol of this module, by the side that owns them.
unsafe impl<T: Send> Send for HeapRing<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for HeapRing<T> {}

impl<T> HeapRing<T> {
    fn new(size: u32, start: u32) -> Self {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn pair(size: u32, start: u32) -> (Producer<u64>, Consumer<u64>) {
        let ring = RingMemory::on_heap(size, start);
        (Producer::new(ring.clone()), Consumer::new(ring))
    }

    #[test]
    fn ten_clean_wraps_at_four_sizes_and_across_the_end_of_u32() {
        for size in [1, 2, 8, 64] {
            let (mut producer, mut consumer) = pair(size, u32::MAX - 8);
            let (mut sent, mut received) = (0_u64, 0_u64);
            while received < 10 * u64::from(size) + 20 {
                let count = producer.free(3);
                producer.write_each(count, |at| sent + at as u64);
                producer.publish();
                sent += count as u64;
                let count = consumer.available(2);
                consumer.read_each(count, |at, value| assert_eq!(value, received + at as u64));
                consumer.release();
                received += count as u64;
                assert_eq!(u64::from(producer.unconsumed()), sent - received);
            }
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_and_an_empty_one_gives_nothing() {
        let (mut producer, mut consumer) = pair(4, 0);
        assert_eq!(consumer.available(1), 0);
        assert_eq!(producer.free(9), 4);
        producer.write_each(4, |at| at as u64);
        assert_eq!(consumer.available(1), 0, "nothing is there before it is published");
        producer.publish();
        assert_eq!((producer.free(1), consumer.available(9)), (0, 4));
        consumer.read_each(1, |_, _| ());
        assert_eq!(producer.free(1), 0, "a slot is free only after it is released");
        consumer.release();
        assert_eq!(producer.free(9), 1);
    }

    #[test]
    fn what_was_not_consumed_can_be_taken_back() {
        let (mut producer, mut consumer) = pair(8, u32::MAX - 2);
        producer.free(6);
        producer.write_each(6, |at| at as u64);
        producer.publish();
        consumer.available(2);
        consumer.read_each(2, |_, _| ());
        consumer.release();
        let mut back = vec![];
        // SAFETY: the consumer is not used any more.
        unsafe { producer.take_back(|value| back.push(value)) };
        assert_eq!((back, producer.unconsumed()), (vec![5, 4, 3, 2], 0));
    }

    #[test]
    fn the_flag_crosses() {
        let (producer, consumer) = pair(2, 0);
        assert!(!producer.needs_wakeup());
        consumer.set_needs_wakeup(true);
        assert!(producer.needs_wakeup());
    }

    proptest! {
        #[test]
        fn a_ring_is_a_bounded_queue(
            log_size in 0_u32..8,
            start in prop_oneof![Just(0), Just(u32::MAX - 3), any::<u32>()],
            ops in prop::collection::vec((any::<bool>(), 0_usize..40), 1..200),
        ) {
            let size = 1 << log_size;
            let (mut producer, mut consumer) = pair(size, start);
            let mut oracle = VecDeque::new();
            let mut sent = 0_u64;
            for (produce, want) in ops {
                if produce {
                    let count = producer.free(want);
                    prop_assert_eq!(count, want.min(size as usize - oracle.len()));
                    producer.write_each(count, |at| sent + at as u64);
                    producer.publish();
                    oracle.extend(sent..sent + count as u64);
                    sent += count as u64;
                } else {
                    let count = consumer.available(want);
                    prop_assert_eq!(count, want.min(oracle.len()));
                    let mut read = vec![];
                    consumer.read_each(count, |_, value| read.push(value));
                    consumer.release();
                    prop_assert!(read.into_iter().eq(oracle.drain(..count)));
                }
            }
        }
    }
}

/// loom models: every interleaving of the two sides, with the orderings as written.
#[cfg(all(test, loom))]
mod models {
    use super::*;

    fn pair(size: u32, start: u32) -> (Producer<u64>, Consumer<u64>) {
        let ring = RingMemory::on_heap(size, start);
        (Producer::new(ring.clone()), Consumer::new(ring))
    }

    /// Values cross in order, once, over more laps than the ring has slots.
    #[test]
    fn values_cross_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer) = pair(2, u32::MAX);
            let sender = loom::thread::spawn(move || {
                let mut sent = 0;
                while sent < 3 {
                    let count = producer.free(2).min(3 - sent);
                    producer.write_each(count, |at| (sent + at) as u64);
                    producer.publish();
                    sent += count;
                    loom::thread::yield_now();
                }
            });
            let mut received = 0;
            while received < 3 {
                let count = consumer.available(2);
                consumer.read_each(count, |at, value| assert_eq!(value, received + at as u64));
                consumer.release();
                received += count as u64;
                loom::thread::yield_now();
            }
            sender.join().unwrap();
        });
    }
}
