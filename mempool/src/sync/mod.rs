//! The one switch between the standard library's atomics, loom's, shuttle's, and counting ones.
//!
//! Every shared word of the framework is of a type from this module, so that a build with
//! `--cfg loom` runs the same code under the model checker, one with `--cfg shuttle` under random
//! schedules of many threads, and one with `--cfg sheafio_scale` feeds the cache-coherence simulation
//! in `tests/scale`. The module owns no state.

#[cfg(sheafio_scale)]
pub mod observe;

#[cfg(sheafio_scale)]
pub use std::sync::atomic::Ordering;

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(sheafio_scale)]
pub use observe::{AtomicU32, AtomicU64};
#[cfg(shuttle)]
pub use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(any(loom, shuttle, sheafio_scale)))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Adds to a counter that only this thread writes.
#[inline(always)]
pub fn add(counter: &AtomicU64, count: u64) {
    // Relaxed: a counter orders nothing; readers only want a value that was true at some time.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

/// Tells the simulation that plain shared memory is read. Empty in every other build.
#[inline(always)]
pub fn reads<T>(at: *const T, count: usize) {
    #[cfg(sheafio_scale)]
    observe::report(at.addr(), count * size_of::<T>(), observe::Access::Read);
    #[cfg(not(sheafio_scale))]
    let _ = (at, count);
}

/// Tells the simulation that plain shared memory is written. Empty in every other build.
#[inline(always)]
pub fn writes<T>(at: *const T, count: usize) {
    #[cfg(sheafio_scale)]
    observe::report(at.addr(), count * size_of::<T>(), observe::Access::Write);
    #[cfg(not(sheafio_scale))]
    let _ = (at, count);
}

/// Says, in a loop that waits for another thread, that there is nothing to do meanwhile. `tries`
/// counts the calls: the holder of what is waited for may have lost its CPU to this very thread.
pub(crate) fn relax(tries: u32) {
    /// So many tries take about as long as the holder needs when it runs.
    const TRIES_A_YIELD: u32 = 128;
    #[cfg(any(loom, shuttle))]
    {
        let _ = (tries, TRIES_A_YIELD);
        #[cfg(loom)]
        loom::thread::yield_now();
        #[cfg(shuttle)]
        shuttle::thread::yield_now();
    }
    #[cfg(not(any(loom, shuttle)))]
    if tries % TRIES_A_YIELD == TRIES_A_YIELD - 1 {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// Stands for memory that changes owner, so that loom and shuttle see who touches it.
///
/// The memory itself is reached by raw pointers, which they can't watch. Whoever takes it over says so
/// after the acquiring operation, and whoever hands it over before the releasing one; under loom a
/// missing ordering then shows as a data race, and under both a second owner as a panic. In other
/// builds it is a zero-sized type and its functions are empty.
#[derive(Debug, Default)]
pub struct Witness {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<()>,
    /// Whether a thread owns the memory, rather than what the next owner takes it from. Always one of
    /// std's words: it takes part in no ordering and is no place to switch threads.
    #[cfg(any(loom, shuttle))]
    is_owned: std::sync::atomic::AtomicBool,
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

    /// Says that the calling thread has just become the owner.
    #[inline(always)]
    pub(crate) fn take_over(&self) {
        self.touch();
        #[cfg(any(loom, shuttle))]
        assert!(!self.is_owned.swap(true, Ordering::Relaxed), "it has an owner");
    }

    /// Says that the calling thread is about to let the next owner in.
    #[inline(always)]
    pub(crate) fn hand_over(&self) {
        self.touch();
        #[cfg(any(loom, shuttle))]
        assert!(self.is_owned.swap(false, Ordering::Relaxed), "it has no owner");
    }

    /// Panics if nobody owns the memory.
    #[cfg(any(loom, shuttle))]
    pub(crate) fn assert_owned(&self) {
        assert!(self.is_owned.load(Ordering::Relaxed), "it has no owner");
    }
}
