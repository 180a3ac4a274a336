//! Who holds what stands in our way: the process behind a BPF program or link, or behind a queue's socket.
//!
//! Owns: nothing; it reads procfs, pins in bpffs and the kernel's list of AF_XDP sockets. Never does: end or
//! detach anything. Invariant: a process is named only because of what it holds; where the kernel can't tell
//! which of several it is, the answer says so.
//!
//! The list of sockets comes by sock_diag(7). Its request is written here, for the crate
//! netlink-packet-sock-diag knows inet, unix and netlink sockets only.

use std::{
    collections::BTreeMap,
    fmt, fs,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use libbpf_sys as sys;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};

/// Folders below a bpffs mount are searched for pins no deeper than this, and no more files than that.
const PIN_DEPTH: u32 = 4;
const PINS: usize = 4096;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    pub(super) pid: u32,
    pub(super) name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// Who holds a BPF program, or the link that attaches it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holding {
    pub(super) processes: Vec<Holder>,
    /// Files in bpffs that keep it.
    pub(super) pins: Vec<PathBuf>,
    /// The XDP link of the program, as the holders' descriptors tell it.
    pub(super) link: Option<u32>,
}

/// Who holds a queue's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QueueHolder {
    /// The kernel has told which socket it is; whose that is may not be visible from here.
    Known(Vec<Holder>),
    /// This kernel does not tell; these processes have AF_XDP sockets.
    Among(Vec<Holder>),
}

impl QueueHolder {
    /// Whether it may be a process that is seen.
    pub(super) fn is_seen(&self) -> bool {
        let (Self::Known(holders) | Self::Among(holders)) = self;
        !holders.is_empty()
    }
}

/// Who holds a program, and its link if it has one. `looking` is the descriptor by which this process itself
/// looks at the link; it does not count.
pub(super) fn of_program(program: u32, looking: Option<BorrowedFd<'_>>) -> Holding {
    let mut holding = Holding::default();
    let own =
        looking.map(|fd| PathBuf::from(format!("/proc/{}/fdinfo/{}", std::process::id(), fd.as_raw_fd())));
    for process in processes() {
        let mut holds = false;
        for descriptor in descriptors(process, |target| target.starts_with("anon_inode:bpf")) {
            if own.as_ref() == Some(&descriptor) {
                continue;
            }
            let ids = Ids::read(&fs::read_to_string(descriptor).unwrap_or_default());
            if ids.program == Some(program) {
                holds = true;
                holding.link = holding.link.or(ids.link);
            }
        }
        if holds {
            holding.processes.extend(holder(process));
        }
    }
    for mount in bpffs_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()) {
        let mut files = Vec::new();
        files_below(&mount, PIN_DEPTH, &mut files);
        for file in files {
            let ids = pinned_ids(&file);
            if ids.program == Some(program) {
                holding.link = holding.link.or(ids.link);
                holding.pins.push(file);
            }
        }
    }
    holding
}

/// Who holds the socket that is bound to a queue of an interface of this network namespace.
pub(super) fn of_queue(interface: u32, queue: u32) -> QueueHolder {
    if let Some(sockets) = xdp_sockets() {
        let inodes: Vec<_> =
            sockets.iter().filter(|at| (at.interface, at.queue) == (interface, queue)).collect();
        let links: Vec<_> = inodes.iter().map(|at| format!("socket:[{}]", at.inode)).collect();
        let holds = |process: &u32| {
            !descriptors(*process, |target| links.iter().any(|link| link == target)).is_empty()
        };
        return QueueHolder::Known(processes().filter(holds).filter_map(holder).collect());
    }
    let namespace = fs::read_link("/proc/thread-self/ns/net").ok();
    let is_here = |process: &u32| fs::read_link(format!("/proc/{process}/ns/net")).ok() == namespace;
    let with_sockets = processes().filter(is_here).filter(|process| {
        maps_rings(&fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default())
    });
    let mut holders: Vec<_> = with_sockets.filter_map(holder).collect();
    // This process has sockets of its own for the queues before; it is told only if there is nobody else.
    if holders.len() > 1 {
        holders.retain(|holder| holder.pid != std::process::id());
    }
    QueueHolder::Among(holders)
}

/// The numbers of all processes that are visible.
fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn holder(process: u32) -> Option<Holder> {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(Holder { pid: process, name: name.trim().to_owned() })
}

/// The fdinfo files of a process's descriptors whose link in /proc/PID/fd is wanted. Empty for a process that
/// this one may not look into (ptrace(2), PTRACE_MODE_READ).
fn descriptors(process: u32, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let wanted = entries.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|target| target.to_str().is_some_and(&is_wanted))
    });
    wanted.map(|entry| Path::new(&format!("/proc/{process}/fdinfo")).join(entry.file_name())).collect()
}

/// The ids in the fdinfo of a BPF program or link (proc_pid_fdinfo(5); bpf_prog_show_fdinfo and
/// bpf_link_show_fdinfo in kernel/bpf/syscall.c).
#[derive(Debug, Default, PartialEq, Eq)]
struct Ids {
    program: Option<u32>,
    link: Option<u32>,
}

impl Ids {
    fn read(fdinfo: &str) -> Self {
        let field = |name: &str| {
            let value = fdinfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| value.trim().parse().ok())
        };
        Self { program: field("prog_id"), link: field("link_id") }
    }
}

/// The ids of what a file in bpffs keeps.
fn pinned_ids(file: &Path) -> Ids {
    let mut path = file.as_os_str().as_bytes().to_vec();
    path.push(0);
    // SAFETY: the path ends with a zero byte, and the descriptor is new and nobody else's.
    let descriptor = unsafe {
        let fd = sys::bpf_obj_get(path.as_ptr().cast());
        if fd < 0 {
            return Ids::default();
        }
        OwnedFd::from_raw_fd(fd)
    };
    let number = descriptor.as_raw_fd();
    Ids::read(&fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default())
}

/// The mount points of type bpf in a mountinfo (proc_pid_mountinfo(5)).
fn bpffs_mounts(mountinfo: &str) -> Vec<PathBuf> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?;
        after.starts_with("bpf ").then(|| PathBuf::from(point.replace("\\040", " ")))
    };
    mountinfo.lines().filter_map(mount).collect()
}

fn files_below(folder: &Path, depth: u32, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if found.len() >= PINS {
            return;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => files_below(&entry.path(), depth - 1, found),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => (),
        }
    }
}

/// Whether a process has mapped an AF_XDP socket's fill or completion ring: only those lie at these offsets of a
/// socket (XDP_UMEM_PGOFF_FILL_RING and _COMPLETION_RING of linux/if_xdp.h; proc_pid_maps(5)).
fn maps_rings(maps: &str) -> bool {
    maps.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(2);
        let is_ring = matches!(fields.next(), Some("100000000" | "180000000"));
        is_ring && fields.nth(2).is_some_and(|path| path.starts_with("socket:["))
    })
}

/// A bound AF_XDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct XdpSocket {
    inode: u32,
    interface: u32,
    queue: u32,
}

// linux/netlink.h, linux/sock_diag.h, linux/xdp_diag.h.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const XDP_SHOW_INFO: u32 = 1;
const XDP_DIAG_INFO: u16 = 1;

/// All AF_XDP sockets of this network namespace; `None` if the kernel does not tell: without
/// CONFIG_XDP_SOCKETS_DIAG.
fn xdp_sockets() -> Option<Vec<XdpSocket>> {
    let family = Some(netlink::SOCK_DIAG);
    let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, family).ok()?;
    // The kernel answers at once; the bound is for one that does not.
    set_socket_timeout(&fd, Timeout::Recv, Some(Duration::from_secs(2))).ok()?;
    // struct nlmsghdr, then struct xdp_diag_req: family, protocol, padding, inode, what to show, cookie.
    let mut request = [0; 36];
    request[0..4].copy_from_slice(&36_u32.to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    request[16] = libc::AF_XDP as u8;
    request[24..28].copy_from_slice(&XDP_SHOW_INFO.to_ne_bytes());
    sendto(&fd, &request, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0)).ok()?;
    let (mut sockets, mut buffer) = (Vec::new(), vec![0; 32 << 10]);
    loop {
        let (len, _) = recv(&fd, buffer.as_mut_slice(), RecvFlags::empty()).ok()?;
        match read_answer(&buffer[..len], &mut sockets) {
            Answer::More => (),
            Answer::Done => return Some(sockets),
            Answer::Refused => return None,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    More,
    Done,
    Refused,
}

/// Reads the netlink messages of one datagram: `struct nlmsghdr`, `struct xdp_diag_msg`, attributes.
fn read_answer(mut bytes: &[u8], sockets: &mut Vec<XdpSocket>) -> Answer {
    while let Some(len) =
        word(bytes, 0).map(|len| len as usize).filter(|len| (16..=bytes.len()).contains(len))
    {
        let message = &bytes[..len];
        match half_word(message, 4) {
            Some(NLMSG_DONE) => return Answer::Done,
            Some(NLMSG_ERROR) => return Answer::Refused,
            Some(SOCK_DIAG_BY_FAMILY) => sockets.extend(read_socket(message)),
            _ => (),
        }
        bytes = &bytes[len.next_multiple_of(4).min(bytes.len())..];
    }
    // What is cut short would never end otherwise.
    if bytes.is_empty() { Answer::More } else { Answer::Refused }
}

fn read_socket(message: &[u8]) -> Option<XdpSocket> {
    let inode = word(message, 20)?;
    let attributes = attributes(message.get(32..)?);
    let info = attributes.get(&XDP_DIAG_INFO)?;
    Some(XdpSocket { inode, interface: word(info, 0)?, queue: word(info, 4)? })
}

/// Attributes by their types (`struct nlattr`: length, type, then the value, aligned to 4 bytes).
fn attributes(mut bytes: &[u8]) -> BTreeMap<u16, &[u8]> {
    let mut found = BTreeMap::new();
    while let (Some(len), Some(kind)) = (half_word(bytes, 0).map(usize::from), half_word(bytes, 2)) {
        if !(4..=bytes.len()).contains(&len) {
            break;
        }
        found.insert(kind, &bytes[4..len]);
        bytes = &bytes[len.next_multiple_of(4).min(bytes.len())..];
    }
    found
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half_word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_of_programs_and_links() {
        let link = "pos:\t0\nflags:\t02000000\nmnt_id:\t16\nino:\t1057\nlink_type:\txdp\nlink_id:\t7\n\
                    prog_tag:\t45a\nprog_id:\t27\nifindex:\t2\n";
        assert_eq!(Ids::read(link), Ids { program: Some(27), link: Some(7) });
        let program = "prog_type:\t6\nprog_jited:\t1\nprog_tag:\t3b\nmemlock:\t4096\nprog_id:\t31\n";
        assert_eq!(Ids::read(program), Ids { program: Some(31), link: None });
        assert_eq!(Ids::read("map_type:\t17\nmap_id:\t31\n"), Ids::default());
    }

    #[test]
    fn rings_are_known_by_their_place_in_a_socket() {
        let line = |offset, path| format!("7f1c00000000-7f1c00021000 rw-s {offset} 00:08 4711    {path}\n");
        assert!(maps_rings(&(line("00000000", "[heap]") + &line("100000000", "socket:[4711]"))));
        assert!(maps_rings(&line("180000000", "socket:[4711]")));
        // The ring of an AF_PACKET socket lies at 0; a large file has no socket's name.
        assert!(!maps_rings(&(line("00000000", "socket:[4711]") + &line("100000000", "/var/large"))));
    }

    #[test]
    fn bpffs_is_found_among_the_mounts() {
        let mounts = "24 1 0:22 / /proc rw - proc proc rw\n\
                      31 23 0:27 / /sys/fs/bpf rw,nosuid shared:9 - bpf bpf rw,mode=700\n\
                      40 1 0:30 / /run/my\\040pins rw - bpf none rw\n";
        assert_eq!(bpffs_mounts(mounts), [Path::new("/sys/fs/bpf"), Path::new("/run/my pins")]);
    }

    /// A message of the kernel's, as xsk_diag_fill (net/xdp/xsk_diag.c) writes it.
    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(16, 0);
        bytes.extend(payload);
        bytes
    }

    fn socket(inode: u32, interface: u32, queue: u32) -> Vec<u8> {
        let mut payload = vec![libc::AF_XDP as u8, 3, 0, 0];
        payload.extend(inode.to_ne_bytes());
        payload.extend([0; 8]); // The cookie.
        payload.extend([8, 0, 2, 0, 9, 9, 9, 9]); // XDP_DIAG_UID before it.
        payload.extend([12, 0, 1, 0]);
        payload.extend(interface.to_ne_bytes());
        payload.extend(queue.to_ne_bytes());
        message(SOCK_DIAG_BY_FAMILY, &payload)
    }

    #[test]
    fn sockets_are_read_with_their_interfaces_and_queues() {
        let mut sockets = Vec::new();
        let first = [socket(100, 2, 0), socket(101, 2, 1)].concat();
        assert_eq!(read_answer(&first, &mut sockets), Answer::More);
        let last = [socket(102, 3, 0), message(NLMSG_DONE, &[0; 4])].concat();
        assert_eq!(read_answer(&last, &mut sockets), Answer::Done);
        let at = |inode, interface, queue| XdpSocket { inode, interface, queue };
        assert_eq!(sockets, [at(100, 2, 0), at(101, 2, 1), at(102, 3, 0)]);
    }

    #[test]
    fn a_refusal_or_a_cut_message_is_no_answer() {
        let mut sockets = Vec::new();
        assert_eq!(read_answer(&message(NLMSG_ERROR, &[0; 20]), &mut sockets), Answer::Refused);
        let whole = socket(100, 2, 0);
        for cut in 1..whole.len() {
            assert_eq!(read_answer(&whole[..cut], &mut sockets), Answer::Refused, "cut at {cut}");
        }
        assert!(sockets.is_empty());
    }
}
