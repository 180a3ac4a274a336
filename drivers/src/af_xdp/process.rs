//! What this process and its kernel allow, as far as it explains why a call was refused.
//!
//! Owns: plain facts. Never does: judge; the words are `cause.rs`'s. Invariant: a fact that can't be read is
//! absent or false, never guessed.

use std::{env, fs};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::rights::has_perfmon;

/// Facts that were looked up once.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each of which is told or not")]
pub(super) struct Process {
    /// The file that it runs, for setcap(8).
    pub(super) program: String,
    /// The kernel's release, such as `6.18.4`.
    pub(super) kernel: String,
    /// Files that it may have open at once (RLIMIT_NOFILE); `None`: no limit.
    pub(super) files: Option<u64>,
    /// Bytes of address space that it may have (RLIMIT_AS); `None`: no limit.
    pub(super) address_space_bytes: Option<u64>,
    /// The verifier trusts its programs (CAP_PERFMON).
    pub(super) has_perfmon: bool,
    /// It runs in a user namespace: its capabilities count for what belongs to that alone.
    pub(super) in_user_namespace: bool,
    /// File capabilities are not granted to it (PR_SET_NO_NEW_PRIVS).
    pub(super) no_new_privs: bool,
    /// A filter of system calls is in force (seccomp(2)).
    pub(super) has_seccomp_filter: bool,
    /// The kernel's lockdown mode, unless it is `none` (kernel_lockdown(7)).
    pub(super) lockdown: Option<String>,
    /// Security modules that can refuse bpf(2) or sockets, by name.
    pub(super) security_modules: Vec<String>,
}

impl Process {
    /// Looks.
    pub(super) fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let status = read("/proc/self/status");
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let program = env::current_exe().map(|path| path.to_string_lossy().into_owned());
        let modules = read("/sys/kernel/security/lsm");
        let refusing = |module: &&str| ["selinux", "apparmor", "smack", "tomoyo", "bpf"].contains(module);
        Self {
            program: program.unwrap_or_else(|_| "PROGRAM".to_owned()),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            files: getrlimit(Resource::Nofile).current,
            address_space_bytes: getrlimit(Resource::As).current,
            has_perfmon: has_perfmon(),
            in_user_namespace: is_mapped(&read("/proc/self/uid_map")),
            no_new_privs: field("NoNewPrivs:") == Some("1"),
            has_seccomp_filter: field("Seccomp:") == Some("2"),
            lockdown: lockdown_mode(&read("/sys/kernel/security/lockdown")),
            security_modules: modules.trim().split(',').filter(refusing).map(str::to_owned).collect(),
        }
    }
}

impl Process {
    /// Whether its kernel is older than a release, of which the first two numbers count. A release that can't be read
    /// is not.
    pub(super) fn is_older_than(&self, release: (u32, u32)) -> bool {
        let mut numbers = self.kernel.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < release,
            _ => false,
        }
    }
}

/// Whether a uid_map is not that of the initial user namespace, which maps all ids to themselves
/// (user_namespaces(7)).
fn is_mapped(uid_map: &str) -> bool {
    let fields: Vec<_> = uid_map.split_whitespace().collect();
    !fields.is_empty() && fields != ["0", "0", "4294967295"]
}

/// The mode in brackets, such as `none integrity [confidentiality]`.
fn lockdown_mode(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (mode, _) = rest.split_once(']')?;
    (mode != "none").then(|| mode.to_owned())
}

/// Bytes that the process may lock in memory without CAP_IPC_LOCK (RLIMIT_MEMLOCK).
pub(super) fn memlock_limit_bytes() -> u64 {
    getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX)
}

/// Raises that limit as far as every process may raise its own. Returns whether that was further.
pub(super) fn raise_memlock_limit() -> bool {
    let limit = getrlimit(Resource::Memlock);
    limit.current != limit.maximum
        && setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, maximum: limit.maximum }).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_initial_user_namespace_maps_all_ids_to_themselves() {
        assert!(!is_mapped("         0          0 4294967295\n"));
        assert!(is_mapped("         0       1000          1\n"));
        assert!(is_mapped("0 100000 65536\n"));
        assert!(!is_mapped(""), "a kernel without user namespaces");
    }

    #[test]
    fn the_lockdown_mode_is_that_in_brackets() {
        assert_eq!(lockdown_mode("[none] integrity confidentiality\n"), None);
        assert_eq!(lockdown_mode("none integrity [confidentiality]\n").as_deref(), Some("confidentiality"));
        assert_eq!(lockdown_mode(""), None);
    }

    #[test]
    fn releases_are_compared_by_number() {
        let is_older =
            |kernel: &str| Process { kernel: kernel.to_owned(), ..Process::default() }.is_older_than((5, 9));
        for older in ["5.8.0-1-amd64", "5.4", "4.19.300", "5.8-rc1"] {
            assert!(is_older(older), "{older}");
        }
        for not_older in ["5.9.0", "5.10-rc1", "6.1", "10.0.1", "", "unknown"] {
            assert!(!is_older(not_older), "{not_older}");
        }
    }

    #[test]
    fn a_process_knows_its_program_its_kernel_and_its_limits() {
        let process = Process::look();
        assert!(std::path::Path::new(&process.program).is_file(), "{process:?}");
        assert!(process.kernel.contains('.'), "{process:?}");
        assert_eq!(process.files, getrlimit(Resource::Nofile).current);
    }
}
