//! When a loop ends: a flag that signals and other threads can raise.

use std::{
    io, mem, ptr,
    sync::{
        Arc, Mutex,
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

/// The signals that end a run.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// A flag that tells lcores to stop. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    raised: Arc<AtomicBool>,
}

/// What the handlers of this process share.
struct Handlers {
    stop: Stop,
    start: Instant,
    /// When the first signal came, in nanoseconds from `start`.
    first_ns: Arc<AtomicU64>,
    /// How many of [`SIGNALS`] are seen to.
    done: usize,
}

impl Stop {
    /// A flag that only [`raise`](Self::raise) raises.
    pub fn new() -> Self {
        Self::default()
    }

    /// The flag of this process that SIGINT, SIGTERM and SIGHUP raise. A second signal, half a second or more after the
    /// first, ends the process at once, for a program that hangs while it closes. A SIGHUP that is ignored, as under
    /// nohup(1), stays so.
    ///
    /// # Errors
    /// If the kernel refuses the signal handlers. Those that it has taken by then stay; another call sees to the rest.
    pub fn on_signals() -> Result<Self, CoreError> {
        // Locked until all is done: no thread gets the flag before the signals raise it.
        static HANDLERS: Mutex<Option<Handlers>> = Mutex::new(None);
        let mut handlers = HANDLERS.lock().expect("no panic under this lock");
        let handlers = handlers.get_or_insert_with(Handlers::new);
        handlers.complete(handle).map_err(CoreError::Signals)
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

impl Handlers {
    fn new() -> Self {
        let first_ns = Arc::new(AtomicU64::new(u64::MAX));
        Self { stop: Stop::new(), start: Instant::now(), first_ns, done: 0 }
    }

    /// Has `handle` see to each signal, once; gives the flag out when that is done.
    fn complete(&mut self, mut handle: impl FnMut(i32, &Self) -> io::Result<()>) -> io::Result<Stop> {
        while let Some(signal) = SIGNALS.get(self.done) {
            handle(*signal, self)?;
            self.done += 1;
        }
        Ok(self.stop.clone())
    }
}

/// Registers the handler of a signal.
fn handle(signal: i32, shared: &Handlers) -> io::Result<()> {
    if signal == SIGHUP && is_ignored(signal)? {
        return Ok(());
    }
    let (raised, start, first_ns) = (shared.stop.raised.clone(), shared.start, shared.first_ns.clone());
    let handler = move || {
        let now_ns = start.elapsed().as_nanos() as u64;
        let first = first_ns.fetch_min(now_ns, Ordering::Relaxed);
        raised.store(true, Ordering::Relaxed);
        if is_another(first, now_ns) {
            low_level::exit(128 + signal);
        }
    };
    // SAFETY: the handler calls what a signal handler may (signal-safety(7)): clock_gettime, _exit, and atomics; it
    // neither allocates nor panics.
    unsafe { low_level::register(signal, handler) }.map(drop)
}

/// Whether a signal is another one than the first, by the times of both; `u64::MAX` where none came before.
fn is_another(first_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(first_ns) >= ONE_SIGNAL.as_nanos() as u64
}

/// Whether this process ignores a signal (sigaction(2)), as it may have been started to.
fn is_ignored(signal: i32) -> io::Result<bool> {
    // SAFETY: all zeroes is a valid sigaction.
    let mut now: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: with no new action the call only writes the present one.
    if unsafe { libc::sigaction(signal, ptr::null(), &raw mut now) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(now.sa_sigaction == libc::SIG_IGN)
}

#[cfg(test)]
mod tests {
    use std::{
        env, fs,
        io::{BufRead, BufReader, Write, stdout},
        os::unix::process::ExitStatusExt,
        process::{Child, Command, Stdio},
        thread,
    };

    use super::*;

    /// No test, but the program that the tests below send signals to: it hangs while it closes.
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

    /// That program, started by a shell that runs a command first; and what it prints.
    fn start(first: &str) -> (Child, impl Iterator<Item = String>) {
        // Whoever runs the tests may ignore SIGHUP, which children inherit.
        let mut child = Command::new("env")
            .args(["--default-signal=HUP", "sh", "-c", &format!("{first}; exec \"$0\" \"$@\"")])
            .arg(env::current_exe().unwrap())
            .args(["--exact", "stop::tests::hangs_while_it_closes", "--nocapture"])
            .env("SHEAFIO_HANGS", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("running")));
        (child, lines)
    }

    fn send(signal: &str, child: &Child) {
        let words = [&format!("-{signal}"), &child.id().to_string()].map(String::clone);
        assert!(Command::new("kill").args(words).status().unwrap().success());
    }

    #[test]
    fn signals_of_half_a_second_are_one() {
        let half = ONE_SIGNAL.as_nanos() as u64;
        for now in [0, 7, u64::MAX] {
            assert!(!is_another(u64::MAX, now), "the first one");
        }
        for (later, another) in
            [(0, false), (1, false), (half - 1, false), (half, true), (u64::MAX - 7, true)]
        {
            assert_eq!(is_another(7, 7 + later), another, "{later} ns later");
        }
        assert!(!is_another(7, 6), "handlers on two CPUs");
    }

    #[test]
    fn a_later_signal_ends_what_hangs() {
        let (mut child, mut lines) = start(":");
        send("TERM", &child);
        assert!(lines.any(|line| line == "closing"));
        // The first one came before that line.
        thread::sleep(ONE_SIGNAL);
        send("INT", &child);
        let status = child.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(130), None));
    }

    /// nohup(1) does so, for programs that outlive their terminal.
    #[test]
    fn a_hangup_that_is_ignored_stays_so() {
        for (first, ignored) in [("trap '' HUP", true), (":", false)] {
            let (mut child, _lines) = start(first);
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let has = |set: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
                u64::from_str_radix(line.trim(), 16).unwrap() & 1 << (SIGHUP - 1) != 0
            };
            let is = (has("SigIgn:"), has("SigCgt:"));
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(is, (ignored, !ignored), "{first}");
        }
    }

    #[test]
    fn a_call_after_a_refused_one_sees_to_the_rest() {
        let mut handlers = Handlers::new();
        let mut seen = Vec::new();
        let refused = handlers.complete(|signal, _| {
            seen.push(signal);
            if signal == SIGTERM { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
        });
        assert!(refused.is_err());
        let again = |handlers: &mut Handlers, seen: &mut Vec<i32>| {
            let all = handlers.complete(|signal, shared| {
                assert!(!shared.stop.is_raised());
                seen.push(signal);
                Ok(())
            });
            all.unwrap()
        };
        again(&mut handlers, &mut seen).raise();
        assert!(again(&mut handlers, &mut seen).is_raised(), "one flag for all");
        assert_eq!(seen, [SIGINT, SIGTERM, SIGTERM, SIGHUP], "each of them once, until it is taken");
    }
}
