//! When a loop ends: a flag that signals and other threads can raise.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use crate::CoreError;

/// A flag that tells lcores to stop. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    raised: Arc<AtomicBool>,
}

impl Stop {
    /// A flag that only [`raise`](Self::raise) raises.
    pub fn new() -> Self {
        Self::default()
    }

    /// The flag of this process that SIGINT, SIGTERM and SIGHUP raise. A second signal ends the process at
    /// once, for a program that hangs while it closes.
    ///
    /// # Errors
    /// If the kernel refuses the signal handlers.
    pub fn on_signals() -> Result<Self, CoreError> {
        static STOP: OnceLock<Stop> = OnceLock::new();
        if let Some(stop) = STOP.get() {
            return Ok(stop.clone());
        }
        let stop = STOP.get_or_init(Self::new).clone();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Registered first, so that the first signal finds the flag still down.
            flag::register_conditional_shutdown(signal, 128 + signal, stop.raised.clone())
                .map_err(CoreError::Signals)?;
            flag::register(signal, stop.raised.clone()).map_err(CoreError::Signals)?;
        }
        Ok(stop)
    }

    /// Tells all lcores with this flag to stop after their current poll.
    pub fn raise(&self) {
        // Relaxed: the flag carries no data; what an lcore leaves behind is read after joining it.
        self.raised.store(true, Ordering::Relaxed);
    }

    /// Whether the flag was raised.
    #[inline(always)]
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }
}
