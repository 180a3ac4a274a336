//! Busy polling: the lcore's own system calls run the driver, not interrupts on some CPU.
//!
//! Owns: two settings of the device, which it puts back. Never does: poll; `queue.rs` does so by waking the kernel in
//! every burst. Invariant: a setting that was changed has its old value again when this is dropped, unless someone else
//! has changed it meanwhile. Nobody drops anything after SIGKILL, so a shell waits beside us for our end; it can do
//! so as root only, for capabilities of a file or of a parent that is not root do not come with it.
//!
//! Documentation/networking/napi.rst and af_xdp.rst of the kernel say how these belong together.

use std::{
    fs::File,
    io::{self, Write},
    os::{
        fd::BorrowedFd,
        unix::{fs::FileExt, process::CommandExt},
    },
    process::{Child, Command, Stdio},
};

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
    guard: Option<Child>,
}

/// Waits for a line, which says that all is well, or for the end of the process that would write it; then puts the value
/// before ($1) in the place of ours ($2), if that is still there. The setting is its standard output.
const GUARD: &str = r#"trap '' HUP INT TERM
read -r line && exit
exec 3>&1
[ "$(cat /proc/self/fd/3)" = "$2" ] && echo "$1" >&3"#;

impl BusyPolling {
    /// Sets the device up. What could not be set is told: packets arrive all the same, now and then by interrupt.
    pub(super) fn start(interface: &Interface) -> (Self, Option<String>) {
        let mut polling = Self { changed: Vec::new() };
        let mut failed = Vec::new();
        let folder = interface.folder();
        for (name, value) in SETTINGS {
            let file = match &folder {
                Ok(folder) => folder.open(name).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match file.and_then(|file| polling.set(file, value).map_err(|error| error.to_string())) {
                Ok(()) => {}
                Err(error) => failed.push(format!("{name} ({error})")),
            }
        }
        let name = &interface.name;
        let warning = (!failed.is_empty()).then(|| {
            format!(
                "{name}: busy polling goes on with interrupts between, as these could not be set: {}. As root, where /sys \
                 is of its network namespace: echo 2 > /sys/class/net/{name}/napi_defer_hard_irqs; echo 200000 > \
                 /sys/class/net/{name}/gro_flush_timeout",
                failed.join(", ")
            )
        });
        (polling, warning)
    }

    /// Whether a setting was changed, and will be put back.
    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    fn set(&mut self, file: File, value: &str) -> io::Result<()> {
        let before = read(&file)?;
        if before != value {
            file.write_all_at(value.as_bytes(), 0)?;
            let guard = guard(&file, &before, value).ok(); // Without it all is well but for SIGKILL.
            self.changed.push(Changed { file, before, guard });
        }
        Ok(())
    }
}

/// Starts the guard of a setting, in a process group of its own: it is not meant by signals of a terminal to ours.
fn guard(file: &File, before: &str, value: &str) -> io::Result<Child> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", GUARD, "sheafio-busy-poll", before, value]);
    shell.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(Stdio::null()).process_group(0).spawn()
}

/// The value of a setting.
fn read(file: &File) -> io::Result<String> {
    let mut buffer = [0; 64]; // A number.
    let len = file.read_at(&mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..len]).trim().to_owned())
}

impl Drop for BusyPolling {
    fn drop(&mut self) {
        for Changed { file, before, guard } in self.changed.drain(..) {
            let is_ours = |now: &String| SETTINGS.iter().any(|(_, value)| now == value);
            if read(&file).is_ok_and(|now| is_ours(&now)) {
                let _ = file.write_all_at(before.as_bytes(), 0); // The device may be gone.
            }
            if let Some(mut guard) = guard {
                let _ = guard.stdin.take().map(|mut stdin| stdin.write_all(b"\n"));
                let _ = guard.wait();
            }
        }
    }
}

/// Makes a socket's system calls run the driver, for up to `budget` packets each.
pub(super) fn prefer(fd: BorrowedFd<'_>, budget: u16) -> io::Result<()> {
    sys::set_socket_option(fd, SO_PREFER_BUSY_POLL, 1)?;
    sys::set_socket_option(fd, SO_BUSY_POLL, POLL_US)?;
    sys::set_socket_option(fd, SO_BUSY_POLL_BUDGET, i32::from(budget))
}
