//! Who is in the way, and the commands that get them out of it, in words.

use std::{fmt::Write, path::PathBuf, process};

use crate::af_xdp::owner::{Holder, Holding, QueueHolder};

/// Another program on an interface, and what is known of its owner.
#[derive(Clone, Copy, Debug)]
pub(in crate::af_xdp) struct Attached<'a> {
    pub(in crate::af_xdp) interface: &'a str,
    pub(in crate::af_xdp) is_generic: bool,
    /// The id of the link that attaches it.
    pub(in crate::af_xdp) link: Option<u32>,
    /// Whether links can be listed: with CAP_SYS_ADMIN.
    pub(in crate::af_xdp) sees_links: bool,
    pub(in crate::af_xdp) holding: &'a Holding,
}

/// Who owns a program that is in the way, and the commands that take it off.
pub(in crate::af_xdp) fn of_attached(at: Attached<'_>) -> (String, String) {
    let Attached { interface, holding, .. } = at;
    let Holding { processes, pins, .. } = holding;
    let link = at.link.or(holding.link);
    let mut owner = match link {
        Some(link) => format!("by BPF link {link}"),
        None if at.sees_links => "by netlink, as ip link does".to_owned(),
        None => "whether by a BPF link can't be seen without CAP_SYS_ADMIN".to_owned(),
    };
    if !processes.is_empty() {
        _ = write!(owner, ", held by {}", listed(processes));
    }
    if !pins.is_empty() {
        _ = write!(owner, ", pinned as {}", paths(pins));
    }
    if processes.is_empty() && pins.is_empty() && link.is_some() {
        owner.push_str(", held by no process that can be seen from here");
    }

    let by_netlink =
        format!("ip link set dev {interface} {} off", if at.is_generic { "xdpgeneric" } else { "xdp" });
    if is_own(holding) {
        return (owner, format!("close the port that this process has on {interface}"));
    }
    let remedy = match link {
        None if at.sees_links => by_netlink,
        None => format!("as root: bpftool net, then bpftool link detach, or {by_netlink}"),
        Some(link) => {
            let end = if processes.is_empty() { String::new() } else { format!("{}, or: ", kill(processes)) };
            let unpin = if pins.is_empty() { String::new() } else { format!("rm {}, or: ", paths(pins)) };
            format!("{end}{unpin}bpftool link detach id {link}")
        }
    };
    (owner, remedy)
}

/// What helps who can't open an interface because of a program that is attached, by what takes that one off.
pub(in crate::af_xdp) fn beside_attached(interface: &str, holding: &Holding, off: &str) -> String {
    if is_own(holding) {
        // Neither to end itself nor to take off its own program would help a process that opens an interface twice.
        return "This process has the interface open itself: once is enough, that port gives all its queues \
                (AfXdpPort::queue)"
            .to_owned();
    }
    format!("Take it off: {off}; or replace it: -p {interface},force=yes (or fwd --force)")
}

/// Whether it is this process that holds a program.
fn is_own(holding: &Holding) -> bool {
    holding.processes.iter().any(|holder| holder.pid == process::id())
}

/// What has become of a program that was taken off by force, and of those who held it.
pub(in crate::af_xdp) fn of_taken_off(interface: &str, program: &str, holders: &[Holder]) -> String {
    let held = if holders.is_empty() {
        String::new()
    } else {
        format!(", held by {}, which receives nothing there any more", listed(holders))
    };
    format!("{interface}: took off XDP program {program}{held}. It is not put back when this ends")
}

/// A device above an interface, such as the bond, bridge, VLAN or macvlan that it is part of.
#[derive(Clone, Debug)]
pub(in crate::af_xdp) struct Above {
    pub(in crate::af_xdp) interface: String,
    /// The XDP program that is attached to it, and the command that takes it off.
    pub(in crate::af_xdp) program: Option<(String, String)>,
}

/// What helps if the kernel wants no program below another one: `dev_xdp_attach` in net/core/dev.c, Linux 5.15 and newer, in
/// every mode.
pub(super) fn of_above(above: &[Above]) -> String {
    let with_program = above.iter().find_map(|at| Some((&at.interface, at.program.as_ref()?)));
    if let Some((upper, (program, remedy))) = with_program {
        return format!(
            "{upper}, a device above it, has XDP program {program}, and the kernel wants none below. Take that off: \
             {remedy}"
        );
    }
    let remedy = "ip link set dev UPPER xdp off";
    if above.is_empty() {
        return format!(
            "A device above it (bond, bridge, VLAN, macvlan) may have an XDP program, and the kernel wants none below; \
             none can be seen from here, but it may be in another network namespace. Take it off there: {remedy}"
        );
    }
    let names: Vec<_> = above.iter().map(|at| at.interface.as_str()).collect();
    format!(
        "A device above it may have an XDP program, and the kernel wants none below: {}. Take it off: {}",
        names.join(", "),
        remedy.replace("UPPER", names[0])
    )
}

/// Whose socket keeps a queue busy, and what helps.
pub(in crate::af_xdp) fn of_queue(holder: &QueueHolder) -> (String, String) {
    let look = "Look for it as root, on the host: ss -a --xdp -p".to_owned();
    match holder {
        QueueHolder::Known(holders) if holders.is_empty() => {
            ("it is held by a process that can't be seen from here".to_owned(), look)
        }
        QueueHolder::Known(holders) => {
            (format!("it is held by {}", listed(holders)), format!("End it: {}", kill(holders)))
        }
        QueueHolder::Among(holders) if holders.is_empty() => {
            ("no process that can be seen from here has one".to_owned(), look)
        }
        QueueHolder::Among(holders) => (
            format!(
                "likely that of {}, which has such sockets here; this kernel does not tell for which queues \
                 (CONFIG_XDP_SOCKETS_DIAG)",
                listed(holders)
            ),
            format!("End it: {}", kill(holders)),
        ),
    }
}

fn listed(holders: &[Holder]) -> String {
    holders.iter().map(Holder::to_string).collect::<Vec<_>>().join(" or ")
}

fn kill(holders: &[Holder]) -> String {
    let pids: Vec<_> = holders.iter().map(|holder| holder.pid.to_string()).collect();
    format!("kill {}", pids.join(" or "))
}

fn paths(pins: &[PathBuf]) -> String {
    pins.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
