//! Why a port could not be opened. Each message names the interface or port, what was asked, what is
//! possible and the command that mends it.

use std::io;

/// An error of port set-up. The data path returns counts, never one of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// A port specification can't be read.
    #[error("port '{spec}': {problem}; allowed: {allowed}")]
    Spec {
        /// The specification as given.
        spec: String,
        /// What is wrong with it.
        problem: String,
        /// What would be right.
        allowed: String,
    },
    /// There is no such interface.
    #[error("{interface}: no such network interface; there are: {present}. See: ip link")]
    NoInterface {
        /// The asked interface.
        interface: String,
        /// The interfaces of this network namespace.
        present: String,
    },
    /// The process lacks rights.
    #[error("{interface}: opening it with AF_XDP needs {missing}, which this process lacks. {remedy}")]
    Rights {
        /// The asked interface.
        interface: String,
        /// All missing capabilities.
        missing: String,
        /// What would help.
        remedy: String,
    },
    /// Rights could not be given up.
    #[error("can't give up capabilities after set-up: {reason}. {remedy}")]
    GiveUp {
        /// What stands against it.
        reason: String,
        /// What would help.
        remedy: String,
    },
    /// The interface has fewer queues than were asked for.
    #[error(
        "{interface}: queues {asked} were asked for, but it has {present} (0 to {max}). Ask for fewer, \
         or give it more: ethtool -L {interface} combined {wanted} (veth: rx {wanted} tx {wanted})"
    )]
    Queues {
        /// The interface.
        interface: String,
        /// The queues that were asked for.
        asked: String,
        /// How many there are.
        present: u32,
        /// The number of the last one.
        max: u32,
        /// How many would be needed.
        wanted: u32,
    },
    /// Another XDP program is attached.
    #[error("{interface}: XDP program {program} is attached already ({mode} mode, {owner}). {remedy}")]
    Attached {
        /// The interface.
        interface: String,
        /// Name and id of the program.
        program: String,
        /// `native` or `generic`.
        mode: &'static str,
        /// How it is attached, and who holds it: processes, pins.
        owner: String,
        /// The command that detaches it, and the key that replaces it; or, of a port of this process, what to do instead.
        remedy: String,
    },
    /// Another XDP program could not be taken off.
    #[error(
        "{interface}: force=yes (--force) could not take off XDP program {program}: {source}. Take it off: {remedy}"
    )]
    TakeOff {
        /// The interface.
        interface: String,
        /// Name and id of the program.
        program: String,
        /// What the kernel said.
        source: io::Error,
        /// The command that detaches it, or the right that it takes.
        remedy: String,
    },
    /// The program could not be attached.
    #[error("{interface}: can't attach the XDP program in {mode} mode: {reason}. {remedy}")]
    Attach {
        /// The interface.
        interface: String,
        /// The asked mode.
        mode: &'static str,
        /// Whether the device or its driver is the cause in this mode, so that another one may work.
        is_of_device: bool,
        /// What the kernel said.
        reason: String,
        /// What would help.
        remedy: String,
    },
    /// Native mode was not possible, and generic mode, which was tried in its place, neither.
    #[error("{native}; and in generic mode: {generic}")]
    BothModes {
        /// Why not in native mode.
        native: Box<DriverError>,
        /// Why not in generic mode.
        generic: Box<DriverError>,
    },
    /// The XDP program could not be loaded.
    #[error("{interface}: can't load the XDP program: {reason}. {remedy}")]
    Load {
        /// The interface.
        interface: String,
        /// What libbpf and the kernel said.
        reason: String,
        /// What would help.
        remedy: String,
    },
    /// A rule that no packet could meet, or that can't be read.
    #[error("steering rule '{rule}': {problem}; allowed: {allowed}")]
    Rule {
        /// The rule as given.
        rule: String,
        /// What is wrong with it.
        problem: String,
        /// What would be right.
        allowed: String,
    },
    /// The maps of the XDP program could not be used.
    #[error(
        "{interface}: the XDP program was asked for '{asked}', but the kernel refused: {reason}. What it takes is as \
         before; run as root or with CAP_BPF, and see that no security module forbids bpf(2)"
    )]
    Steer {
        /// The interface.
        interface: String,
        /// The asked rules, or the counts.
        asked: String,
        /// What the kernel said.
        reason: String,
    },
    /// The kernel refused the packet memory.
    #[error("{interface}: the kernel refused {kib} KiB of packet memory: {source}. {remedy}")]
    Memlock {
        /// The interface.
        interface: String,
        /// What the pool needs, in KiB.
        kib: u64,
        /// What the process may lock, in KiB.
        limit_kib: u64,
        /// What the kernel said.
        source: io::Error,
        /// What would help.
        remedy: String,
    },
    /// The queue is taken.
    #[error(
        "{interface} queue {queue}: another AF_XDP socket is bound to it, and was still after {waited_ms} ms: \
         {owner}. {remedy}"
    )]
    Busy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// How long it was tried.
        waited_ms: u64,
        /// Whose socket it is, as far as that can be seen.
        owner: String,
        /// What would help.
        remedy: String,
    },
    /// The queue can't be bound as asked.
    #[error("{interface} queue {queue}: can't bind with copy={copy}: {source}. {remedy}")]
    Bind {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The asked copy mode.
        copy: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What would help.
        remedy: String,
    },
    /// In zero-copy mode the driver would give large packets out in pieces.
    #[error(
        "{interface}: without copies its driver {driver} receives {possible} bytes into a frame of {frame} and splits \
         larger packets; at MTU {mtu} they have up to {largest}. Use {larger}copy=copy, or: ip link set dev {interface} mtu {mtu_possible}"
    )]
    SplitPackets {
        /// The interface.
        interface: String,
        /// Its driver.
        driver: String,
        /// The largest packet, in bytes, that it receives into one frame.
        possible: u32,
        /// Bytes of a frame.
        frame: u32,
        /// The interface's MTU, in bytes.
        mtu: u32,
        /// The largest packet at this MTU, in bytes, with a VLAN tag.
        largest: u32,
        /// Larger frames, if they are large enough.
        larger: &'static str,
        /// The MTU at which none is split.
        mtu_possible: u32,
    },
    /// Another system call of set-up failed.
    #[error("{interface}{}: {call} failed: {source}. {remedy}", in_words(*queue))]
    Call {
        /// The interface.
        interface: String,
        /// The queue; `None`: the call is for all that the port has.
        queue: Option<u32>,
        /// The call and what it was for.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What would help.
        remedy: String,
    },
    /// A queue was taken from its port that is not there.
    #[error("{port}: queue {queue} is not there to take; opened: {opened}, each can be taken once")]
    NoQueue {
        /// The port.
        port: String,
        /// The asked queue.
        queue: u32,
        /// The queues that were opened.
        opened: String,
    },
    /// Both ends of a ring are taken.
    #[error("ring:{name}: both ends are in use; a ring has two. Use another name for another ring")]
    RingEnds {
        /// The ring's name.
        name: String,
    },
    /// The pool has no cache left to fill the rings with.
    #[error(transparent)]
    Pool(#[from] sheafio_mempool::PoolError),
}

/// The queue behind an interface's name.
fn in_words(queue: Option<u32>) -> String {
    queue.map_or_else(String::new, |queue| format!(" queue {queue}"))
}
