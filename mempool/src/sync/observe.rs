//! Counting atomics: std's, with a report of each access to an observer.
//!
//! Owns: the calling thread's observer. Never does: change what an operation does or returns.
//! Invariant: each atomic operation is reported once, before it is done; `report` covers the plain
//! memory that sheaves lie in.

use std::{
    cell::Cell,
    sync::atomic::{self, Ordering},
};

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// A read-modify-write: on x86 a locked instruction, whatever its ordering.
    Rmw,
}

/// Called with the address and size in bytes of each access.
pub type Observer = fn(usize, usize, Access);

thread_local! {
    static OBSERVER: Cell<Option<Observer>> = const { Cell::new(None) };
}

/// Sets the calling thread's observer; `None` ends the reports.
pub fn set(observer: Option<Observer>) {
    OBSERVER.set(observer);
}

pub(super) fn report(addr: usize, bytes: usize, access: Access) {
    if let Some(observer) = OBSERVER.get() {
        observer(addr, bytes, access);
    }
}

macro_rules! counting {
    ($name:ident, $std:ty, $value:ty) => {
        /// As the standard library's, reported.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name($std);

        impl $name {
            /// A word with a value.
            pub const fn new(value: $value) -> Self {
                Self(<$std>::new(value))
            }

            fn report(&self, access: Access) {
                report((&raw const self.0).addr(), size_of::<$value>(), access);
            }

            /// Loads.
            pub fn load(&self, order: Ordering) -> $value {
                self.report(Access::Read);
                self.0.load(order)
            }

            /// Stores.
            pub fn store(&self, value: $value, order: Ordering) {
                self.report(Access::Write);
                self.0.store(value, order);
            }

            /// Stores `new` if `current` is there; returns what was there, as an error if it was not.
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.report(Access::Rmw);
                self.0.compare_exchange(current, new, success, failure)
            }

            /// Adds and returns what was there.
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.report(Access::Rmw);
                self.0.fetch_add(value, order)
            }

            /// Subtracts and returns what was there.
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.report(Access::Rmw);
                self.0.fetch_sub(value, order)
            }

            /// Stores the larger value and returns what was there.
            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.report(Access::Rmw);
                self.0.fetch_max(value, order)
            }
        }
    };
}

counting!(AtomicU32, atomic::AtomicU32, u32);
counting!(AtomicU64, atomic::AtomicU64, u64);
