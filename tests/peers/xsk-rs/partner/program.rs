//! The partner's XDP program: all packets of a bound queue to its socket, those of others to the kernel.
//!
//! Owns: the program, its map, and the link. Never does: leave anything behind: the link is the process's, where the
//! program that libxdp would attach for xsk-rs stays after SIGKILL, and wants bpffs for its dispatcher.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

use libxdp_sys as sys;

use super::{Result, queue::Queue};

/// An attached program; detached when dropped.
pub(crate) struct Program {
    _link: OwnedFd,
    _map: OwnedFd,
}

/// Modes of attaching (linux/if_link.h).
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

impl Program {
    /// Leads the packets of the queues to their sockets.
    pub(crate) fn attach(interface: &str, native: bool, queues: &[Queue]) -> Result<Self> {
        let name = CString::new(interface)?;
        // SAFETY: the name is a C string.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let most = queues.iter().map(|queue| queue.number).max().unwrap_or(0);
        // SAFETY: the name is a C string; no options are given.
        let map = owned("the XSKMAP can't be made", unsafe {
            sys::bpf_map_create(
                sys::bpf_map_type_BPF_MAP_TYPE_XSKMAP,
                c"partner".as_ptr(),
                4,
                4,
                most + 1,
                ptr::null(),
            )
        })?;
        for queue in queues {
            let socket = queue.as_raw_fd();
            // SAFETY: key and value are of 4 bytes, as the map was made.
            let result = unsafe {
                let key = ptr::from_ref(&queue.number).cast();
                sys::bpf_map_update_elem(map.as_raw_fd(), key, ptr::from_ref(&socket).cast(), 0)
            };
            checked("a socket can't be put into the XSKMAP", result)?;
        }
        let program = load(&redirect_to(map.as_raw_fd()))?;
        // SAFETY: every bit pattern of zeros is a value of this C struct.
        let mut options: sys::bpf_link_create_opts = unsafe { std::mem::zeroed() };
        options.sz = size_of_val(&options);
        options.flags = if native { XDP_FLAGS_DRV_MODE } else { XDP_FLAGS_SKB_MODE };
        // SAFETY: the options are a valid struct of the size that they state.
        let link = owned("the XDP program can't be attached", unsafe {
            sys::bpf_link_create(
                program.as_raw_fd(),
                index as i32,
                sys::bpf_attach_type_BPF_XDP,
                &raw const options,
            )
        })?;
        Ok(Self { _link: link, _map: map })
    }
}

/// `return bpf_redirect_map(map, context->rx_queue_index, XDP_PASS)`, in the instruction set of RFC 9669, as words:
/// opcode, registers, offset and immediate value from the lowest byte on.
fn redirect_to(map: i32) -> [u64; 6] {
    const XDP_PASS: u64 = 2;
    /// Where `struct xdp_md` (linux/bpf.h) has the queue.
    const RX_QUEUE_INDEX: u64 = 16;
    [
        RX_QUEUE_INDEX << 16 | 0x1261,        // r2 = *(u32 *)(r1 + 16)
        u64::from(map as u32) << 32 | 0x1118, // r1 = map, by its descriptor
        0,                                    // The upper half of that.
        XDP_PASS << 32 | 0x03b7,              // r3 = XDP_PASS
        u64::from(sys::bpf_func_id_BPF_FUNC_redirect_map) << 32 | 0x85, // call
        0x95,                                 // exit
    ]
}

fn load(instructions: &[u64]) -> Result<OwnedFd> {
    let kind = sys::bpf_prog_type_BPF_PROG_TYPE_XDP;
    let (name, license) = (c"partner".as_ptr(), c"GPL".as_ptr());
    // SAFETY: an instruction is eight bytes of plain memory; they and the C strings live through the call.
    owned("the XDP program can't be loaded", unsafe {
        sys::bpf_prog_load(
            kind,
            name,
            license,
            instructions.as_ptr().cast(),
            instructions.len(),
            ptr::null_mut(),
        )
    })
}

/// A new descriptor, or libbpf's -errno.
fn owned(what: &str, fd: i32) -> Result<OwnedFd> {
    checked(what, fd)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn checked(what: &str, result: i32) -> Result<()> {
    if result < 0 {
        return Err(format!("{what}: {}", io::Error::from_raw_os_error(-result)).into());
    }
    Ok(())
}
