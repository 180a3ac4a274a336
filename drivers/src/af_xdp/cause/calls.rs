//! Why a system call was refused, in words, by what the call is of.

use std::io;

use crate::af_xdp::process::Process;

/// What a system call is of: the same error means another thing to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::af_xdp) enum Call {
    /// An AF_XDP socket: it is made, gets rings and a queue, is asked.
    Xdp,
    /// bpf(2).
    Bpf,
    /// An interface that is asked for its properties: ioctl(2), and the socket for that.
    Interface,
    /// A packet socket and its memberships (packet(7)).
    Packet,
    /// Busy polling of a socket (socket(7)).
    BusyPolling,
}

/// What helps where a call failed.
pub(in crate::af_xdp) fn of_call(call: Call, error: Option<i32>, process: &Process) -> String {
    let kernel = &process.kernel;
    match (call, error) {
        (_, Some(libc::EMFILE)) => {
            let files = process.files.unwrap_or_default();
            let more = files.saturating_mul(4).max(1024);
            format!(
                "This process may have {files} files open at once (RLIMIT_NOFILE), and has. Allow more: ulimit -n \
                 {more}, or LimitNOFILE={more} in its unit"
            )
        }
        (_, Some(libc::ENFILE)) => {
            "As many files are open on this machine as may be: see sysctl fs.file-nr, raise fs.file-max"
                .to_owned()
        }
        (_, Some(libc::ENOMEM)) | (Call::Packet, Some(libc::ENOBUFS)) => out_of_memory(process),
        (_, Some(libc::EPERM | libc::EACCES)) => refusal(process),
        (Call::Xdp, Some(libc::EAFNOSUPPORT)) => with_filter(
            format!(
                "Kernel {kernel} has no AF_XDP sockets: it must be 5.10 or newer and built with CONFIG_XDP_SOCKETS=y"
            ),
            process,
        ),
        // What older kernels say to an option that they do not know.
        (Call::Xdp, Some(libc::EINVAL | libc::ENOPROTOOPT | libc::EOPNOTSUPP)) => {
            format!("Needs a kernel with CONFIG_XDP_SOCKETS, 5.10 or newer; this is {kernel}. See: dmesg")
        }
        (Call::Bpf, Some(libc::ENOSYS)) => with_filter(
            format!("Kernel {kernel} has no bpf(2): it must be built with CONFIG_BPF_SYSCALL=y"),
            process,
        ),
        (Call::Packet, Some(libc::EAFNOSUPPORT)) => with_filter(
            format!(
                "Kernel {kernel} has no packet sockets: it must be built with CONFIG_PACKET=y, or its module loaded: \
                 modprobe af_packet"
            ),
            process,
        ),
        (Call::Interface, Some(libc::EAFNOSUPPORT)) => with_filter(
            format!(
                "Kernel {kernel} has no IPv4 sockets, by which interfaces are asked: it must be built with CONFIG_INET=y"
            ),
            process,
        ),
        // packet_mc_add (net/packet/af_packet.c): the group's address is longer than those of the interface.
        (Call::Packet, Some(libc::EINVAL)) => {
            "Its addresses are none of Ethernet's 6 bytes, so there are no such groups: see ip link"
                .to_owned()
        }
        (Call::Packet | Call::Interface | Call::Xdp, Some(libc::ENODEV | libc::ENXIO)) => {
            "The interface has gone away, or has another name by now: see ip link".to_owned()
        }
        (Call::BusyPolling, Some(libc::ENOPROTOOPT)) => format!(
            "Kernel {kernel} does not know it: it must be 5.11 or newer and built with CONFIG_NET_RX_BUSY_POLL=y"
        ),
        _ => format!("Kernel {kernel} refused it. See: dmesg"),
    }
}

/// Whether an error is about what the process may have, whatever the device.
pub(in crate::af_xdp) fn is_of_the_process(error: &io::Error) -> bool {
    use libc::{EACCES, EMFILE, ENFILE, ENOMEM, ENOSYS, EPERM};
    matches!(error.raw_os_error(), Some(EACCES | EMFILE | ENFILE | ENOMEM | ENOSYS | EPERM))
}

pub(super) const NAMESPACE: &str = "It runs in a user namespace, as in rootless containers; capabilities that were gained there \
                         do not count for bpf(2) and locked memory. Start it outside";

pub(super) fn out_of_memory(process: &Process) -> String {
    match process.address_space_bytes {
        // Only a part of what the kernel has no memory for takes address space.
        Some(bytes) => format!(
            "This process may have {} MiB of address space (RLIMIT_AS), which may be why: ulimit -v unlimited; if not, the \
             kernel found no memory for it: see free -m, and memory.max of the control group",
            bytes >> 20
        ),
        None => {
            "The kernel found no memory for it: see free -m, and memory.max of the control group".to_owned()
        }
    }
}

fn with_filter(text: String, process: &Process) -> String {
    if process.has_seccomp_filter { format!("{text}; or it is forbidden: {FILTER}") } else { text }
}

const FILTER: &str = "a seccomp filter is in force, as in containers and units (SystemCallFilter=, \
                      RestrictAddressFamilies=): let it allow the call";

/// Why the kernel may refuse although the capabilities are there.
fn refusal(process: &Process) -> String {
    let mut found = Vec::new();
    if process.in_user_namespace {
        found.push(NAMESPACE.to_owned());
    }
    if process.has_seccomp_filter {
        found.push(format!("It may be forbidden: {FILTER}"));
    }
    if let Some(mode) = &process.lockdown {
        found.push(format!(
            "The kernel is locked down ({mode}), under which some kernels refuse bpf(2): see /sys/kernel/security/lockdown"
        ));
    }
    if !process.security_modules.is_empty() {
        found.push(format!(
            "A security module may forbid it ({}): see dmesg and its audit log",
            process.security_modules.join(", ")
        ));
    }
    if found.is_empty() {
        found.push("The capabilities are there, and nothing was found that forbids it: see dmesg".to_owned());
    }
    found.join(". ")
}
