//! When a loop ends: a flag that signals and other threads can raise.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    low_level,
};

use crate::CoreError;

/// Signals that come within this time are one: timeout(1) sends its signal to the program and to its group, a terminal
/// that closes a SIGHUP after a SIGINT.
const ONE_SIGNAL: Duration = Duration::from_millis(500);

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

    /// The flag of this process that SIGINT, SIGTERM and SIGHUP raise. A second signal, half a second or more after the
    /// first, ends the process at once, for a program that hangs while it closes.
    ///
    /// # Errors
    /// If the kernel refuses the signal handlers.
    pub fn on_signals() -> Result<Self, CoreError> {
        static STOP: OnceLock<Stop> = OnceLock::new();
        if let Some(stop) = STOP.get() {
            return Ok(stop.clone());
        }
        let stop = STOP.get_or_init(Self::new).clone();
        let (start, first_ns) = (Instant::now(), Arc::new(AtomicU64::new(u64::MAX)));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let (raised, first_ns) = (stop.raised.clone(), first_ns.clone());
            let handler = move || {
                let now_ns = start.elapsed().as_nanos() as u64;
                let first = first_ns.fetch_min(now_ns, Ordering::Relaxed);
                raised.store(true, Ordering::Relaxed);
                if now_ns.saturating_sub(first) >= ONE_SIGNAL.as_nanos() as u64 {
                    low_level::exit(128 + signal);
                }
            };
            // SAFETY: the handler calls what a signal handler may (signal-safety(7)): clock_gettime, _exit, and atomics; it
            // neither allocates nor panics.
            unsafe { low_level::register(signal, handler) }.map_err(CoreError::Signals)?;
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

#[cfg(test)]
mod tests {
    use std::{
        env,
        io::{BufRead, BufReader, Write, stdout},
        os::unix::process::ExitStatusExt,
        process::{Command, Stdio},
        thread,
    };

    use super::*;

    /// No test, but the program that the test below sends signals to: it hangs while it closes.
    #[test]
    fn hangs_while_it_closes() {
        if env::var_os("SHEAFIO_HANGS").is_none() {
            return;
        }
        let stop = Stop::on_signals().unwrap();
        println!("running");
        while !stop.is_raised() {
            thread::sleep(Duration::from_millis(1));
        }
        println!("closing");
        stdout().flush().unwrap();
        thread::sleep(Duration::from_mins(1));
    }

    #[test]
    fn signals_at_once_are_one_and_a_later_one_ends_what_hangs() {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "stop::tests::hangs_while_it_closes", "--nocapture"])
            .env("SHEAFIO_HANGS", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let id = child.id();
        let send = |signals: &str| {
            let script = format!("for signal in {signals}; do kill -$signal {id}; done");
            assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        };
        assert!(lines.any(|line| line.ends_with("running")));
        send("TERM INT TERM HUP");
        assert!(lines.any(|line| line == "closing"));
        assert_eq!(child.try_wait().unwrap(), None);
        thread::sleep(ONE_SIGNAL);
        send("INT");
        let status = child.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(130), None));
    }
}
