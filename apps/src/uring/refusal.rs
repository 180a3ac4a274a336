//! Why there is no ring, in words.

use std::{fmt, fs, io};

/// The sysctl that turns io_uring off (Documentation/admin-guide/sysctl/kernel.rst).
const SYSCTL: &str = "/proc/sys/kernel/io_uring_disabled";

/// What the kernel refused when a ring was made.
#[derive(Debug)]
pub(crate) struct Refused {
    /// What was asked.
    pub(super) step: &'static str,
    pub(super) error: io::Error,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, error } = self;
        let sysctl = fs::read_to_string(SYSCTL).ok();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let cause = cause(error.raw_os_error(), sysctl.as_deref().map(str::trim), has_filter(&status));
        write!(f, "io_uring: {step}: {error}. {cause}")
    }
}

impl std::error::Error for Refused {}

/// Whether the kernel makes rings for some alone, by a right that is to be kept until they are made.
pub(crate) fn is_for_few() -> bool {
    // Kernels without the sysctl (before 6.6) make them for all.
    fs::read_to_string(SYSCTL).is_ok_and(|value| value.trim() == "1")
}

/// Whether a process's status (proc_pid_status(5)) says that a seccomp filter is in force.
fn has_filter(status: &str) -> bool {
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

/// Cause and remedy. `disabled`: the sysctl's value, if the kernel has it (6.6).
fn cause(error: Option<i32>, disabled: Option<&str>, has_filter: bool) -> String {
    match (error, disabled) {
        (Some(libc::EPERM), Some("2")) => {
            "kernel.io_uring_disabled is 2: off for everyone. Allow it: sysctl -w kernel.io_uring_disabled=0"
                .to_owned()
        }
        (Some(libc::EPERM), Some("1")) => {
            "kernel.io_uring_disabled is 1: only for CAP_SYS_ADMIN and the group kernel.io_uring_group. Run it as root, \
             join that group, or allow it to all: sysctl -w kernel.io_uring_disabled=0"
                .to_owned()
        }
        (Some(libc::EPERM | libc::ENOSYS | libc::EACCES), disabled) if has_filter => format!(
            "A seccomp filter is in force, and kernel.io_uring_disabled is {}: so the filter refuses it, as those of \
             container runtimes do. Allow io_uring_setup, io_uring_enter and io_uring_register in its profile",
            disabled.unwrap_or("not there")
        ),
        (Some(libc::EPERM | libc::EACCES), disabled) => format!(
            "kernel.io_uring_disabled is {}: a security module may refuse it",
            disabled.unwrap_or("not there")
        ),
        (Some(libc::ENOSYS), _) => "This kernel is without io_uring (CONFIG_IO_URING=y)".to_owned(),
        (Some(libc::EINVAL), _) => "Linux 6.2 or newer is needed".to_owned(),
        (Some(libc::ENOMEM), _) => "There is too little memory, or, before Linux 5.12, too little of it may be \
                                    locked: see free -m, ulimit -l"
            .to_owned(),
        (Some(libc::EMFILE), _) => {
            "Its table of files may be as long as the limit of open files (ulimit -n): raise that, or ask for fewer flows"
                .to_owned()
        }
        _ => "See dmesg".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sysctl_is_named_with_its_value() {
        for (error, disabled, has_filter, parts) in [
            (libc::EPERM, Some("2"), false, &["io_uring_disabled is 2", "sysctl -w"][..]),
            (libc::EPERM, Some("1"), true, &["io_uring_disabled is 1", "io_uring_group", "sysctl -w"]),
            (libc::EPERM, Some("0"), true, &["io_uring_disabled is 0", "seccomp filter"]),
            (libc::ENOSYS, None, true, &["seccomp filter", "is not there"]),
            (libc::EPERM, Some("0"), false, &["io_uring_disabled is 0", "security module"]),
            (libc::ENOSYS, None, false, &["CONFIG_IO_URING"]),
            (libc::EINVAL, Some("0"), false, &["6.2"]),
            (libc::EMFILE, Some("0"), false, &["ulimit -n"]),
        ] {
            let text = cause(Some(error), disabled, has_filter);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
        assert!(has_filter("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!has_filter("Name:\tx\nSeccomp:\t0\n"));
    }
}
