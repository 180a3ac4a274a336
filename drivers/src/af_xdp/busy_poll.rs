//! Busy polling: the lcore's own system calls run the driver, not interrupts on some CPU.
//!
//! Owns: two settings of the device, which it puts back. Never does: poll; `queue.rs` does so by waking the kernel in
//! every burst. Invariant: a setting that was changed has its old value again when this is dropped, unless someone else
//! has changed it meanwhile; where this process can't see to that, killed or without its rights, `guard.rs` does.
//!
//! The settings are files of root's, mode 0644: anyone else needs CAP_DAC_OVERRIDE to open them, beside CAP_NET_ADMIN, and
//! goes on without. Documentation/networking/napi.rst and af_xdp.rst of the kernel say how all of this belongs together.

mod guard;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io,
    os::{fd::BorrowedFd, unix::fs::FileExt},
    thread,
    time::{Duration, Instant},
};

use self::guard::Guard;
use super::{interface::Interface, sys};

/// `SO_PREFER_BUSY_POLL`, `SO_BUSY_POLL` and `SO_BUSY_POLL_BUDGET` (asm-generic/socket.h, Linux 5.11).
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL: i32 = 46;
const SO_BUSY_POLL_BUDGET: i32 = 70;

/// How long the kernel may poll for one system call, in microseconds. Calls that don't wait poll once; it must only
/// not be 0.
const POLL_US: i32 = 20;

/// The device's settings in sysfs: for how many polls without packets, and for how many nanoseconds, interrupts stay
/// off. The values are those that the kernel's documentation names.
const SETTINGS: [(&str, &str); 2] = [("napi_defer_hard_irqs", "2"), ("gro_flush_timeout", "200000")];

/// How long a run before this one may take to put its settings back, which only they wait for who come while it does; and
/// the guards, when they are not needed any more or have our part to do.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
const GUARD_LIMIT: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_millis(1);

/// The settings of a device while it is polled.
#[derive(Debug)]
pub(super) struct BusyPolling {
    changed: Vec<Changed>,
}

/// A setting that is not what it was.
#[derive(Debug)]
struct Changed {
    /// Open, not a path: it stays the device's when that gets another name.
    file: File,
    before: String,
    value: &'static str,
    guard: Option<Guard>,
}

/// What became of the settings, by their names, as far as users should know.
#[derive(Debug, Default)]
struct Told {
    /// With the reason.
    failed: Vec<(&'static str, String)>,
    /// With the value before, and the reason.
    unguarded: Vec<(&'static str, String, String)>,
    same: Vec<&'static str>,
}

impl BusyPolling {
    /// Sets the device up. What could not be set is told, in lines for the user: packets arrive all the same, now and then
    /// by interrupt.
    pub(super) fn start(interface: &Interface) -> (Self, Vec<String>) {
        let (mut polling, mut told) = (Self { changed: Vec::new() }, Told::default());
        let folder = interface.folder();
        let patience = Instant::now() + RELEASE_LIMIT;
        for (name, value) in SETTINGS {
            let file = match &folder {
                Ok(folder) => folder.open(name).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            let set = file.and_then(|file| {
                wait_for_guard(&file, patience);
                Changed::set(file, value, Guard::start).map_err(|error| error.to_string())
            });
            match set {
                Ok(Some((changed, no_guard))) => {
                    let unguarded = no_guard.map(|error| (name, changed.before.clone(), error.to_string()));
                    told.unguarded.extend(unguarded);
                    polling.changed.push(changed);
                }
                Ok(None) => told.same.push(name),
                Err(error) => told.failed.push((name, error)),
            }
        }
        (polling, told.lines(&interface.name))
    }

    /// Whether a setting was changed, and will be put back.
    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }
}

impl Drop for BusyPolling {
    fn drop(&mut self) {
        let guards: Vec<_> = self.changed.drain(..).filter_map(Changed::put_back).collect();
        // A bound, for lcores wait for this while they close.
        let end = Instant::now() + GUARD_LIMIT;
        for guard in guards {
            guard.finish(end);
        }
    }
}

impl Changed {
    /// Sets a setting, after what `guard` starts for it; `None` if it has the value already. Without a guard, which is no
    /// failure, tells why there is none.
    fn set(
        file: File,
        value: &'static str,
        guard: impl FnOnce(&File, &str, &str) -> io::Result<Guard>,
    ) -> io::Result<Option<(Self, Option<io::Error>)>> {
        let before = read(&file)?;
        if before == value {
            return Ok(None);
        }
        let (guard, no_guard) = match guard(&file, &before, value) {
            Ok(guard) => (Some(guard), None),
            Err(error) => (None, Some(error)),
        };
        let changed = Self { file, before, value, guard };
        match changed.file.write_all_at(value.as_bytes(), 0) {
            Ok(()) => Ok(Some((changed, no_guard))),
            Err(error) => {
                changed.put_back().into_iter().for_each(|guard| guard.finish(Instant::now() + GUARD_LIMIT));
                Err(error)
            }
        }
    }

    /// Puts it back, if it is still ours, and lets the guard go, or leaves it to that. The guard has not ended yet.
    fn put_back(self) -> Option<Guard> {
        let is_done = match read(&self.file) {
            // Refused where the thread that closes has no CAP_NET_ADMIN any more.
            Ok(now) if now == self.value => self.file.write_all_at(self.before.as_bytes(), 0).is_ok(),
            Ok(_) => true,
            Err(_) => false, // The device is gone.
        };
        self.guard.map(|guard| if is_done { guard.dismiss() } else { guard.call() })
    }
}

impl Told {
    fn lines(&self, interface: &str) -> Vec<String> {
        let set = |name: &str, value: &str| format!("echo {value} > /sys/class/net/{interface}/{name}");
        let mut lines = Vec::new();
        if !self.failed.is_empty() {
            let failed: Vec<_> =
                self.failed.iter().map(|(name, error)| format!("{name} ({error})")).collect();
            lines.push(format!(
                "{interface}: busy polling goes on with interrupts between, as these could not be set: {}. As root, where \
                 /sys is of its network namespace: {}",
                failed.join(", "),
                SETTINGS.map(|(name, value)| set(name, value)).join("; ")
            ));
        }
        for (name, before, error) in &self.unguarded {
            lines.push(format!(
                "{interface}: nobody puts {name} back if this process is killed, or has given up CAP_NET_ADMIN when it \
                 closes the port: the shell that does could not be started ({error}). As root, then: {}",
                set(name, before)
            ));
        }
        for name in &self.same {
            lines.push(format!(
                "{interface}: {name} had the value for busy polling already, and will keep it. If nobody wants it so, it is \
                 of a run that was killed together with the shell that puts it back. As root, after this run: {}",
                set(name, "0")
            ));
        }
        lines
    }
}

/// Waits while the guard of a run before this one still has to put the setting back: what is read before would be that
/// run's value, and stay for good. The lock (flock(2)) belongs to the open file, which a guard shares with its run, so it
/// ends with the last of them. It is no must: anyone who may read the file can hold it.
fn wait_for_guard(file: &File, end: Instant) {
    while file.try_lock().is_err() && Instant::now() < end {
        thread::sleep(RETRY);
    }
}

/// The value of a setting.
fn read(file: &File) -> io::Result<String> {
    let mut buffer = [0; 64]; // A number.
    let len = file.read_at(&mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..len]).trim().to_owned())
}

/// Makes a socket's system calls run the driver, for up to `budget` packets each.
pub(super) fn prefer(fd: BorrowedFd<'_>, budget: u16) -> io::Result<()> {
    sys::set_socket_option(fd, SO_PREFER_BUSY_POLL, 1)?;
    sys::set_socket_option(fd, SO_BUSY_POLL, POLL_US)?;
    sys::set_socket_option(fd, SO_BUSY_POLL_BUDGET, i32::from(budget))
}
