//! The rights of this process: those that AF_XDP needs, which of them are missing, and giving them up.
//!
//! Owns: nothing; capabilities belong to threads. Never does: gain a right. Invariant: what
//! [`drop_rights`] has given up, neither the thread nor one that it starts, nor a program that these execute,
//! gets back.

use std::{fs, io};

use libbpf_sys as sys;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_ambient_set, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use crate::DriverError;

/// A capability that AF_XDP ports use (linux/capability.h, capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Right {
    /// `CAP_NET_ADMIN`: attach an XDP program, make a map of sockets, change settings of a device.
    NetAdmin,
    /// `CAP_NET_RAW`: open an AF_XDP socket.
    NetRaw,
    /// `CAP_BPF` (Linux 5.8; `CAP_SYS_ADMIN` stands for it): load a program.
    Bpf,
    /// `CAP_IPC_LOCK`: lock packet memory beyond RLIMIT_MEMLOCK.
    IpcLock,
}

impl Right {
    /// Its name, such as `CAP_NET_ADMIN`.
    pub fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::Bpf => "CAP_BPF",
            Self::IpcLock => "CAP_IPC_LOCK",
        }
    }

    fn set(self) -> CapabilitySet {
        match self {
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
            Self::NetRaw => CapabilitySet::NET_RAW,
            Self::Bpf => CapabilitySet::BPF,
            Self::IpcLock => CapabilitySet::IPC_LOCK,
        }
    }
}

/// The capabilities without which no port opens and which the calling thread lacks.
pub(super) fn missing() -> Vec<Right> {
    // What can't be asked for is not missing: the call that needs it will tell.
    let held = capabilities(None).map_or(CapabilitySet::all(), |sets| sets.effective);
    let is_missing = |right: &Right| match right {
        Right::Bpf => !held.intersects(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN),
        _ => !held.contains(right.set()),
    };
    [Right::NetAdmin, Right::NetRaw, Right::Bpf].into_iter().filter(is_missing).collect()
}

/// Whether a program that this thread starts has `CAP_NET_ADMIN`: root's have, and those of a thread with ambient capabilities;
/// those of a file are its alone (execve(2) and capabilities(7)).
pub(super) fn others_may_administer() -> bool {
    let admin = CapabilitySet::NET_ADMIN;
    let is_root = rustix::process::geteuid().is_root();
    let bounded = capability_is_in_bounding_set(admin).unwrap_or(true);
    is_root && bounded || capability_is_in_ambient_set(admin).unwrap_or(false)
}

/// Whether the kernel's verifier trusts this thread's programs with pointers that it can't bound against
/// speculation: `CAP_PERFMON` (Linux 5.8), which is not needed, but saves copying the headers of each packet.
pub(super) fn has_perfmon() -> bool {
    let trusted = CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN;
    capabilities(None).is_ok_and(|sets| sets.effective.intersects(trusted))
}

/// Gives up the capabilities of the calling thread but `keep`, also for programs that it executes, and sets
/// no_new_privs. To be called once every port is open, by the thread that opened them, before it starts any
/// other: capabilities are a thread's, and a new one gets those of its starter.
///
/// Receiving, sending, statistics and closing ports need none, but for what
/// [`AfXdpPort::rights_to_close`](crate::af_xdp::AfXdpPort::rights_to_close) tells, or
/// [`Control::rights_to_close`](crate::Control::rights_to_close) of a port of any kind, and for `CAP_BPF` on kernels that
/// refuse every bpf(2) command without it (before 5.19, where the sysctl kernel.unprivileged_bpf_disabled is not 0): there
/// it is kept. Opening another port needs them again.
///
/// # Errors
/// [`DriverError::GiveUp`] if the kernel refuses, or if another thread of the process still holds
/// capabilities; the calling thread may have given up some by then.
pub fn drop_rights(keep: &[Right]) -> Result<(), DriverError> {
    let refused = |error: io::Error| DriverError::GiveUp {
        reason: format!("the kernel refuses capset(2) or prctl(2): {error}"),
        remedy: "Allow these calls in the seccomp filter of the container or unit".to_owned(),
    };
    let mut kept = keep.iter().fold(CapabilitySet::empty(), |sum, right| sum | right.set());
    if closing_needs_bpf().map_err(refused)? {
        kept |= CapabilitySet::BPF;
    }
    give_up(kept).map_err(refused)?;
    match other_holders(kept).as_slice() {
        [] => Ok(()),
        threads => Err(DriverError::GiveUp {
            reason: format!("threads that run already hold some: {}", threads.join(", ")),
            remedy: "Call drop_rights before other threads are started".to_owned(),
        }),
    }
}

/// Leaves the calling thread `kept`, as far as it holds that.
fn give_up(kept: CapabilitySet) -> io::Result<()> {
    let held = capabilities(None)?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        // Every bit that the kernel may know, not only those that have a name here.
        let bits = (0..64).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
        for bit in bits.take_while(|bit| capability_is_in_bounding_set(*bit).is_ok()) {
            remove_capability_from_bounding_set(bit)?;
        }
    }
    // With nothing inheritable, the ambient set is empty too.
    set_capabilities(
        None,
        CapabilitySets {
            effective: held.effective & kept,
            permitted: held.permitted & kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(set_no_new_privs(true)?)
}

/// Threads of this process that hold more than `kept`, by name and id (proc_pid_task(5)).
fn other_holders(kept: CapabilitySet) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let holder = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let permitted = u64::from_str_radix(field("CapPrm:")?, 16).ok()?;
        let holds_more = permitted & !kept.bits() != 0;
        holds_more
            .then(|| format!("{} ({})", field("Name:").unwrap_or_default(), field("Pid:").unwrap_or("?")))
    };
    tasks.filter_map(holder).collect()
}

/// Whether bpf(2) is closed altogether to those without CAP_BPF: then a queue can't leave the map of sockets
/// and a link can't be detached. Found by trying a command that changes nothing, without rights.
fn closing_needs_bpf() -> io::Result<bool> {
    let held = capabilities(None)?;
    // Only effective ones count for calls, and what is permitted can be made effective again; so it takes no thread of its
    // own, which a process may not be allowed.
    set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..held })?;
    let (mut info, mut len) = (sys::bpf_map_info::default(), size_of::<sys::bpf_map_info>() as u32);
    // SAFETY: the kernel would write at most `len` bytes of the struct; descriptor -1 is none, so it
    // writes nothing.
    let asked = unsafe { sys::bpf_map_get_info_by_fd(-1, &raw mut info, &raw mut len) };
    set_capabilities(None, held)?;
    // EBADF says that it was let in.
    Ok(asked == -libc::EPERM)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A thread of its own gives up its rights, the process's first thread does not.
    #[test]
    fn a_thread_gives_up_its_rights_and_tells_of_those_that_do_not() {
        thread::spawn(give_up_beside_others).join().unwrap();
    }

    fn give_up_beside_others() {
        let held = capabilities(None).unwrap().permitted;
        if held.is_empty() {
            // As an ordinary user there is nothing to give up, and nobody who holds anything.
            drop_rights(&[]).unwrap();
            return;
        }
        let error = drop_rights(&[Right::NetAdmin]).unwrap_err().to_string();
        assert!(error.contains("threads that run already hold some: "), "{error}");
        assert!(error.contains("Call drop_rights before other threads"), "{error}");
        let now = capabilities(None).unwrap();
        assert_eq!(now.permitted, held & CapabilitySet::NET_ADMIN);
        assert_eq!(now.effective, now.permitted);
        assert!(missing().contains(&Right::NetRaw) && missing().contains(&Right::Bpf));
        assert_eq!(missing().contains(&Right::NetAdmin), !held.contains(CapabilitySet::NET_ADMIN));
        assert!(rustix::thread::no_new_privs().unwrap());
        assert!(!capability_is_in_bounding_set(CapabilitySet::NET_RAW).unwrap());
    }
}
