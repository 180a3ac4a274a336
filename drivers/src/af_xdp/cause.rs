//! Why a call of set-up failed and what helps, in words, from facts that were looked up.
//!
//! Owns: the words. Never does: look at anything, so that every cause can be tried in a test. Invariant: a cause
//! is stated only if a fact says so; what is merely possible is called that.

mod calls;
mod others;

use std::{fmt::Write, io};

use super::{
    CopyMode, Frags, Mode,
    driver::{Driver, zero_copy_bytes},
    interface::Interface,
    process::Process,
};

pub(super) use calls::{Call, is_of_the_process, of_call};
use calls::{NAMESPACE, out_of_memory};
use others::of_above;
pub(super) use others::{Above, Attached, beside_attached, of_attached, of_queue, of_taken_off};

/// What setcap(8) has to give: it replaces what a file had before.
const NEEDED: &str = "cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock";

/// What helps if the program can't be loaded.
pub(super) fn of_load(error: Option<i32>, process: &Process) -> String {
    match error {
        // The kernel's answer to a kind of map, helper or program that it does not know.
        Some(libc::EINVAL | libc::EOPNOTSUPP) => format!(
            "Kernel {} lacks what the program needs: it must be 5.10 or newer and built with CONFIG_BPF_SYSCALL=y, \
             CONFIG_BPF_JIT=y and CONFIG_XDP_SOCKETS=y",
            process.kernel
        ),
        // The verifier's answer.
        Some(libc::EACCES) if !process.has_perfmon => format!(
            "On kernel {} the program needs CAP_PERFMON too: setcap {NEEDED},cap_perfmon+ep {}",
            process.kernel, process.program
        ),
        other => of_call(Call::Bpf, other, process),
    }
}

/// What helps if a ring can't be made or mapped.
pub(super) fn of_ring(error: &io::Error, slots: u32, process: &Process) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            // A slot of the RX and TX rings is a struct xdp_desc of 16 bytes.
            let kib = (u64::from(slots) * 16).div_ceil(1024);
            let less = (slots / 4).max(64);
            format!(
                "A ring of {slots} slots takes {kib} KiB. Ask for less: ring={less}. {}",
                out_of_memory(process)
            )
        }
        other => of_call(Call::Xdp, other, process),
    }
}

/// How much memory was to be locked, and how much may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryAsk {
    /// The packet memory of the port, in KiB.
    pub(super) kib: u64,
    /// What other ports of this process have locked, in KiB: each port locks the whole pool.
    pub(super) locked_kib: u64,
    /// RLIMIT_MEMLOCK, in KiB.
    pub(super) limit_kib: u64,
    /// Bytes of a frame, and of the room that it leaves in front of a packet, besides the kernel's own.
    pub(super) frame_bytes: u32,
    pub(super) headroom_bytes: u32,
}

/// What it takes to prove that drivers have let go of closed queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReleaseAsk {
    /// Queues that lack it.
    pub(super) queues: u64,
    pub(super) page_kib: u64,
    /// RLIMIT_MEMLOCK, in KiB.
    pub(super) limit_kib: u64,
}

/// What helps if the socket can't be made that proves it: it locks a page, and is a file.
pub(super) fn of_release(error: &io::Error, ask: ReleaseAsk, process: &Process) -> String {
    let ReleaseAsk { queues, page_kib, limit_kib } = ask;
    match error.raw_os_error() {
        Some(libc::ENOBUFS) => {
            let raise_to = limit_kib + queues * page_kib;
            format!(
                "It takes {page_kib} KiB of locked memory for each zero-copy queue, besides the pool; without CAP_IPC_LOCK \
                 {limit_kib} KiB may be locked (RLIMIT_MEMLOCK). Raise it: ulimit -l {raise_to}, or \
                 LimitMEMLOCK={raise_to}K in its unit; or: setcap {NEEDED}+ep {}",
                process.program
            )
        }
        other => of_call(Call::Xdp, other, process),
    }
}

/// What the kernel wants of a frame besides the headroom that is asked for: its own (`XDP_PACKET_HEADROOM`), the room
/// behind a packet for what holds its fragments (`struct skb_shared_info`, 320 bytes as a rule), and at least 128 bytes
/// of packet (xdp_umem_reg in net/xdp/xdp_umem.c). Measured: Linux 6.18.44 takes a headroom of 1,344 of 2,048 bytes.
/// Older kernels want less.
const WANTED_OF_A_FRAME: u32 = 256 + 320 + 128;

/// What helps if the kernel refuses the packet memory.
pub(super) fn of_memory(error: &io::Error, ask: MemoryAsk, process: &Process) -> String {
    let MemoryAsk { kib, locked_kib, limit_kib, frame_bytes, headroom_bytes } = ask;
    let most_headroom = frame_bytes.saturating_sub(WANTED_OF_A_FRAME);
    match error.raw_os_error() {
        // xdp_umem_account_pages in net/xdp/xdp_umem.c.
        Some(libc::ENOBUFS) => {
            let mut text =
                format!("Without CAP_IPC_LOCK {limit_kib} KiB of memory may be locked (RLIMIT_MEMLOCK)");
            if locked_kib > 0 {
                _ = write!(text, ", of which other ports of this process take {locked_kib} KiB");
            }
            let need = kib + locked_kib;
            let raise_to = if need <= limit_kib {
                text.push_str(
                    "; the rest is taken by other programs of this user, with whom it is shared. End them",
                );
                limit_kib + need
            } else {
                need
            };
            _ = write!(
                text,
                ". Raise it: ulimit -l {raise_to}, or LimitMEMLOCK={raise_to}K in its unit; or: setcap {NEEDED}+ep {}",
                process.program
            );
            // As many ports as have asked by now share the limit.
            let frames = limit_kib * kib / need.max(1) * 1024 / u64::from(frame_bytes);
            if need > limit_kib && frames > 0 {
                _ = write!(text, "; or take fewer frames: {frames} fit");
            }
            text
        }
        Some(libc::ENOMEM) => {
            format!("The memory can't be held in place. Take fewer frames. {}", out_of_memory(process))
        }
        Some(libc::EINVAL) if headroom_bytes > most_headroom => {
            let mut text = format!(
                "A headroom of {headroom_bytes} bytes leaves too little of frames of {frame_bytes} bytes for kernel {}: \
                 newer ones keep 320 bytes behind a packet for themselves, and take a headroom of at most \
                 {most_headroom}. Ask for less headroom",
                process.kernel
            );
            if frame_bytes < 4096 {
                _ = write!(text, ", or for frames of 4096 bytes, which leave {}", 4096 - WANTED_OF_A_FRAME);
            }
            text
        }
        other => of_call(Call::Xdp, other, process),
    }
}

/// How a queue was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct BindAsk {
    pub(super) copy: CopyMode,
    pub(super) frags: Frags,
    pub(super) ring: u32,
    pub(super) frame_bytes: u32,
    /// Bytes of them that a packet can have.
    pub(super) data_bytes: u32,
    /// Frames of a packet that the driver handles in zero-copy mode, at most.
    pub(super) driver_frames: usize,
    /// Copy mode comes next by itself.
    pub(super) falls_back: bool,
}

/// What helps if a queue can't be bound.
pub(super) fn of_bind(
    error: &io::Error,
    ask: BindAsk,
    interface: &Interface,
    driver: &Driver,
    process: &Process,
) -> String {
    let name = &interface.name;
    let other = |words: &'static str| if ask.falls_back { "" } else { words };
    let without = other("use copy=auto or copy=copy");
    let colon_without = other(": use copy=auto or copy=copy");
    match error.raw_os_error() {
        Some(libc::ENETDOWN) => format!("The link is down: ip link set dev {name} up"),
        Some(libc::ENODEV | libc::ENXIO) => "The interface has gone away".to_owned(),
        Some(libc::EINVAL) if ask.frags == Frags::Yes && ask.copy != CopyMode::ZeroCopy => format!(
            "Packets in several frames need Linux 6.6 or newer; this is {}: use frags=auto",
            process.kernel
        ),
        Some(libc::EOPNOTSUPP) if ask.copy == CopyMode::ZeroCopy => {
            let (driver_name, features) = (name_of(driver), driver.features_by_name());
            match driver.has_zero_copy() {
                Some(true) if ask.frags == Frags::Yes => format!(
                    "{driver_name} has no zero-copy with packets in several frames for this queue (XDP features: \
                     {features}): use frags=no{}",
                    other(" or copy=auto")
                ),
                Some(true) => format!(
                    "{driver_name} has zero-copy (XDP features: {features}), but not for this queue as it is set up \
                     now{}{colon_without}",
                    settings(ask, interface, driver)
                ),
                _ => format!("{driver_name} has no zero-copy (XDP features: {features}){colon_without}"),
            }
        }
        Some(libc::EOPNOTSUPP) => {
            format!("Kernel {} does not know what was asked for. See: dmesg", process.kernel)
        }
        Some(libc::EINVAL)
            if ask.copy == CopyMode::ZeroCopy && mtu_needs(interface) > zero_copy_room(ask) =>
        {
            let (mtu, needs, room) = (interface.mtu, mtu_needs(interface), zero_copy_room(ask));
            let less = room.saturating_sub(needs - mtu);
            let is_enough = ask.frame_bytes < 4096 && needs <= room + 4096 - ask.frame_bytes;
            let larger = if is_enough { "--frame-size 4096, or " } else { "" };
            format!(
                "Kernels since April 2026 want {needs} bytes of room for packets of MTU {mtu} in zero-copy mode, \
                 and the frames of one have {room}: {larger}ip link set dev {name} mtu {less}{}",
                other("; or use copy=auto or copy=copy")
            )
        }
        Some(_) if ask.copy == CopyMode::ZeroCopy && !is_of_the_process(error) => {
            let smaller = smaller_rings(ask.ring, name, driver);
            let helps: Vec<_> = [&smaller, without].into_iter().filter(|words| !words.is_empty()).collect();
            format!(
                "{} refuses zero-copy for this queue as it is set up now{}{}{}. See: dmesg",
                name_of(driver),
                settings(ask, interface, driver),
                if helps.is_empty() { "" } else { ": " },
                helps.join("; or ")
            )
        }
        Some(libc::EINVAL) => {
            format!("{name} had {} queues a moment ago; see: ethtool -l {name}", interface.rx_queues)
        }
        other => of_call(Call::Xdp, other, process),
    }
}

/// What the kernel wants room for (`xp_assign_dev` in net/xdp/xsk_buff_pool.c): the MTU, an Ethernet header, two VLAN
/// tags and the FCS.
fn mtu_needs(interface: &Interface) -> u32 {
    interface.mtu.saturating_add(14 + 2 * 4 + 4)
}

/// Room for a packet in zero-copy mode, in one frame or in several.
fn zero_copy_room(ask: BindAsk) -> u32 {
    let one = zero_copy_bytes(ask.data_bytes, false);
    if ask.frags == Frags::No || ask.driver_frames < 2 {
        return one;
    }
    one.max(zero_copy_bytes(ask.data_bytes, true).saturating_mul(ask.driver_frames as u32))
}

/// What of the settings a zero-copy driver may not like.
fn settings(ask: BindAsk, interface: &Interface, driver: &Driver) -> String {
    let mut text =
        format!(" (MTU {}, frames of {} bytes, rings of {} slots", interface.mtu, ask.frame_bytes, ask.ring);
    if let Some(own) = driver.rings {
        _ = write!(text, ", its own {} for rx and {} for tx", own.rx, own.tx);
    }
    text.push(')');
    text
}

/// Some drivers want our rings to be no larger than theirs.
fn smaller_rings(ring: u32, interface: &str, driver: &Driver) -> String {
    let Some(own) = driver.rings.filter(|own| ring > own.rx.min(own.tx)) else {
        return String::new();
    };
    let mut text =
        format!("ours are larger than its own, try ring={}", previous_power_of_two(own.rx.min(own.tx)));
    if own.rx_max.min(own.tx_max) >= ring {
        _ = write!(text, " or ethtool -G {interface} rx {ring} tx {ring}");
    }
    text
}

fn previous_power_of_two(number: u32) -> u32 {
    1 << number.max(1).ilog2()
}

/// How the program was to be attached.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachAsk<'a> {
    pub(super) mode: Mode,
    /// Another mode may be named: this one was asked for, so no other was tried, nor will be.
    pub(super) has_other_mode: bool,
    pub(super) above: &'a [Above],
}

/// What helps if the program can't be attached.
pub(super) fn of_attach(
    error: &io::Error,
    ask: AttachAsk<'_>,
    interface: &Interface,
    driver: &Driver,
    process: &Process,
) -> String {
    let name = &interface.name;
    let or_other = |words: &'static str| if ask.has_other_mode { words } else { "" };
    match (ask.mode, error.raw_os_error()) {
        (_, Some(libc::EEXIST)) => return of_above(ask.above),
        (_, Some(libc::EINVAL)) if process.is_older_than(LINKS_SINCE) => {
            return format!(
                "Kernel {} attaches no XDP program by a BPF link: it must be 5.10 or newer",
                process.kernel
            );
        }
        (Mode::Generic, Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ERANGE)) if ask.has_other_mode => {
            return "Try mode=native".to_owned();
        }
        (Mode::Generic, other) => return of_call(Call::Bpf, other, process),
        _ => {}
    }
    let (driver_name, features) = (name_of(driver), driver.features_by_name());
    let has_native = driver.has_native();
    match error.raw_os_error() {
        Some(_) if !driver.offloads.is_empty() && !is_of_the_process(error) => {
            let (on, off) = (driver.offloads.join(" and "), driver.offloads.join(" off "));
            let or = or_other(", or mode=generic");
            format!("{on} may stand against it: ethtool -K {name} {off} off{or}")
        }
        Some(libc::EOPNOTSUPP) if has_native == Some(true) => format!(
            "{driver_name} has native XDP (features: {features}), but not as {name} is set up now (MTU {}, {} \
             queues). See: dmesg{}",
            interface.mtu,
            interface.rx_queues,
            or_other(". Use mode=generic")
        ),
        Some(libc::EOPNOTSUPP) => {
            let or = or_other(". Use mode=generic");
            format!("{driver_name} has no native XDP (features: {features}){or}")
        }
        Some(libc::ERANGE) => format!(
            "Packets must fit into one page in native mode: ip link set dev {name} mtu 1500 (veth: on both ends){}",
            or_other(", or mode=generic")
        ),
        Some(libc::ENOSPC) => format!(
            "The peer of a veth must not have more TX queues than {name} has RX queues ({}): ethtool -L {name} rx N{}",
            interface.rx_queues,
            or_other(", or mode=generic")
        ),
        _ if is_of_the_process(error) => of_call(Call::Bpf, error.raw_os_error(), process),
        _ => {
            let or = or_other(". Try mode=generic");
            format!("{driver_name} (XDP features: {features}) refused it{or}")
        }
    }
}

/// The first kernel with BPF links of XDP programs.
const LINKS_SINCE: (u32, u32) = (5, 9);

/// Whether the program may go onto the interface in another mode, after this error.
pub(super) fn is_of_mode(error: &io::Error, process: &Process) -> bool {
    match error.raw_os_error() {
        Some(libc::EEXIST) => false,
        Some(libc::EINVAL) => !process.is_older_than(LINKS_SINCE),
        _ => !is_of_the_process(error),
    }
}

fn name_of(driver: &Driver) -> String {
    driver.name.as_ref().map_or_else(|| "The driver".to_owned(), |name| format!("Driver {name}"))
}

/// What helps a process that lacks capabilities.
pub(super) fn of_missing_rights(process: &Process) -> String {
    let mut text = format!("Run as root, or: setcap {NEEDED}+ep {}", process.program);
    if process.no_new_privs {
        text.push_str(
            ". File capabilities do not count now: the process has no_new_privs set (NoNewPrivileges= of a unit, \
             allowPrivilegeEscalation of a container); give it ambient ones instead",
        );
    }
    if process.in_user_namespace {
        _ = write!(text, ". {NAMESPACE}");
    }
    text
}

#[cfg(test)]
mod tests;
