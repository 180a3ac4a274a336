//! The one switch between the standard library's atomics and loom's.
//!
//! Every shared word of the framework is of a type from this module, so that a build with
//! `--cfg loom` runs the same code under the model checker. The module owns no state.

#[cfg(loom)]
pub use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

#[cfg(not(loom))]
pub use crossbeam_queue::ArrayQueue;

/// Adds to a counter that only this thread writes.
#[inline(always)]
pub fn add(counter: &AtomicU64, count: u64) {
    // Relaxed: a counter orders nothing; readers only want a value that was true at some time.
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// Stands for memory that changes owner, so that loom sees who touches it.
///
/// The memory itself is reached by raw pointers, which loom can't watch. Whoever takes ownership
/// touches the witness after the acquiring operation, and whoever hands over touches it before the
/// releasing one; a missing ordering then shows as a data race in the model. Outside of loom it is
/// a zero-sized type and `touch` is empty.
#[derive(Debug, Default)]
pub struct Witness {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<()>,
}

// SAFETY: without loom there is no content. Under loom, `touch` is how unsynchronised access gets
// reported: loom checks each access against the happens-before order and panics on a race.
unsafe impl Sync for Witness {}
// SAFETY: as above.
unsafe impl Send for Witness {}

impl Witness {
    /// Says that the calling thread reads or writes the memory this witness stands for.
    #[inline(always)]
    pub fn touch(&self) {
        #[cfg(loom)]
        self.cell.with_mut(|_| ());
    }
}

/// Stands in for crossbeam's `ArrayQueue`, which has no loom build.
///
/// A mutex orders at least as much as the queue's own acquire and release stamps do, so the model
/// covers the exchange protocol built on the queue, not the queue itself.
#[cfg(loom)]
#[derive(Debug)]
pub struct ArrayQueue<T> {
    items: Mutex<std::collections::VecDeque<T>>,
    capacity: usize,
}

#[cfg(loom)]
impl<T> ArrayQueue<T> {
    /// A queue with room for `capacity` items.
    pub fn new(capacity: usize) -> Self {
        Self { items: Mutex::new(std::collections::VecDeque::new()), capacity }
    }

    /// Appends an item, or gives it back when the queue is full.
    pub fn push(&self, item: T) -> Result<(), T> {
        let mut items = self.items.lock().unwrap();
        if items.len() == self.capacity {
            return Err(item);
        }
        items.push_back(item);
        Ok(())
    }

    /// Takes the oldest item.
    pub fn pop(&self) -> Option<T> {
        self.items.lock().unwrap().pop_front()
    }

    /// Items in the queue.
    pub fn len(&self) -> usize {
        self.items.lock().unwrap().len()
    }

    /// Whether the queue holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
