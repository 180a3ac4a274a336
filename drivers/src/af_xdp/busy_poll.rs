//! Busy polling: the lcore's own system calls run the driver, not interrupts on some CPU.
//!
//! Owns: two settings of the device, which it puts back. Never does: poll; `queue.rs` does so by waking the kernel in
//! every burst. Invariant: a setting that was changed has its old value again when this is dropped, unless someone else
//! has changed it meanwhile. After SIGKILL nobody puts it back.
//!
//! Documentation/networking/napi.rst and af_xdp.rst of the kernel say how these belong together.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{fd::BorrowedFd, unix::fs::FileExt},
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
    /// Open files, not paths: they stay those of the device when it gets another name.
    changed: Vec<(File, String)>,
}

impl BusyPolling {
    /// Sets the device up. What could not be set is told: packets arrive all the same, now and then by interrupt.
    pub(super) fn start(interface: &Interface) -> (Self, Option<String>) {
        let mut polling = Self { changed: Vec::new() };
        let mut failed = Vec::new();
        for (name, value) in SETTINGS {
            let path = format!("/sys/class/net/{}/{name}", interface.name);
            match polling.set(&path, value) {
                Ok(()) => {}
                Err(error) => failed.push(format!("{name} ({error})")),
            }
        }
        let name = &interface.name;
        let warning = (!failed.is_empty()).then(|| {
            format!(
                "{name}: busy polling goes on with interrupts between, as these could not be set: {}. As root: echo 2 \
                 > /sys/class/net/{name}/napi_defer_hard_irqs; echo 200000 > /sys/class/net/{name}/gro_flush_timeout",
                failed.join(", ")
            )
        });
        (polling, warning)
    }

    /// Whether a setting was changed, and will be put back.
    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    fn set(&mut self, path: &str, value: &str) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let before = read(&file)?;
        if before != value {
            file.write_all_at(value.as_bytes(), 0)?;
            self.changed.push((file, before));
        }
        Ok(())
    }
}

/// The value of a setting.
fn read(file: &File) -> io::Result<String> {
    let mut buffer = [0; 64]; // A number.
    let len = file.read_at(&mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..len]).trim().to_owned())
}

impl Drop for BusyPolling {
    fn drop(&mut self) {
        for (file, before) in self.changed.drain(..) {
            let is_ours = |now: &String| SETTINGS.iter().any(|(_, value)| now == value);
            if read(&file).is_ok_and(|now| is_ours(&now)) {
                let _ = file.write_all_at(before.as_bytes(), 0); // The device may be gone.
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
