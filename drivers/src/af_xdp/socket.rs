//! One AF_XDP socket: UMEM, rings, bind.
//!
//! Owns: the socket's descriptor; the rings' mappings belong to the rings. Never does: move packets.
//! Invariant: a socket is used only after every step has succeeded; a failed one is closed, with
//! all that it registered.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use sheafio_mempool::Geometry;

use super::{CopyMode, interface::Interface, rings::Rings, sys};
use crate::{
    DriverError,
    spsc::{RingMemory, RingOwner},
};

/// How long a queue may stay busy: unbinding the socket that used it before is asynchronous.
const BUSY_LIMIT: Duration = Duration::from_secs(3);
const BUSY_RETRY: Duration = Duration::from_millis(10);

impl RingOwner for sys::RingMap {
    fn touch(&self, _: u32) {} // The kernel's rings are not modelled.
}

/// A bound socket.
pub(super) struct Socket {
    fd: OwnedFd,
    pub(super) zero_copy: bool,
    /// One kick sends all that is queued: the kernel let us raise its budget of 32.
    pub(super) sends_all: bool,
}

/// A socket's UMEM is its own, or that of a socket which is bound already.
pub(super) enum Umem<'a> {
    Register,
    Share(&'a Socket),
}

impl Socket {
    /// Opens a socket with its rings and binds it to a queue.
    pub(super) fn open(
        interface: &Interface,
        queue: u32,
        geometry: &Geometry,
        umem: &Umem<'_>,
        ring_size: u32,
        copy: CopyMode,
    ) -> Result<(Self, Rings), DriverError> {
        let call = |call| {
            let interface = interface.name.clone();
            move |source| DriverError::Call { interface, queue, call, source }
        };
        let fd = sys::socket().map_err(call("opening an AF_XDP socket"))?;
        if let Umem::Register = umem {
            register(fd.as_fd(), geometry)
                .map_err(|source| refused_memory(interface, queue, geometry, source))?;
        }
        for (option, ring) in [
            (libc::XDP_UMEM_FILL_RING, "making the fill ring"),
            (libc::XDP_UMEM_COMPLETION_RING, "making the completion ring"),
            (libc::XDP_RX_RING, "making the RX ring"),
            (libc::XDP_TX_RING, "making the TX ring"),
        ] {
            sys::set_option(fd.as_fd(), option, &ring_size).map_err(call(ring))?;
        }
        let rings = map_rings(fd.as_fd(), ring_size).map_err(call("mapping the rings"))?;
        bind(fd.as_fd(), interface, queue, umem, copy)?;

        let options: u32 =
            sys::option(fd.as_fd(), libc::XDP_OPTIONS).map_err(call("asking for the copy mode"))?;
        let zero_copy = options & libc::XDP_OPTIONS_ZEROCOPY != 0;
        // One kick in copy mode sends 32 packets; more where the kernel lets us (no error where not).
        let sends_all = sys::set_option(fd.as_fd(), sys::XDP_MAX_TX_SKB_BUDGET, &ring_size).is_ok();
        Ok((Self { fd, zero_copy, sends_all }, rings))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn register(fd: BorrowedFd<'_>, geometry: &Geometry) -> io::Result<()> {
    let umem = libc::xdp_umem_reg {
        addr: geometry.base().as_ptr() as u64,
        len: geometry.umem_bytes(),
        chunk_size: geometry.frame_bytes(),
        headroom: geometry.headroom_bytes(),
        flags: 0,
        tx_metadata_len: 0,
    };
    sys::set_option(fd, libc::XDP_UMEM_REG, &umem)
}

fn refused_memory(interface: &Interface, queue: u32, geometry: &Geometry, source: io::Error) -> DriverError {
    let interface = interface.name.clone();
    match source.raw_os_error() {
        Some(libc::ENOBUFS | libc::EPERM | libc::ENOMEM) => DriverError::Memlock {
            interface,
            kib: geometry.umem_bytes() >> 10,
            limit_kib: sys::memlock_limit() >> 10,
            source,
        },
        _ => DriverError::Call { interface, queue, call: "registering the packet memory", source },
    }
}

/// Maps the four rings at the offsets that the kernel tells.
fn map_rings(fd: BorrowedFd<'_>, size: u32) -> io::Result<Rings> {
    let offsets = sys::mmap_offsets(fd)?;
    Ok(Rings {
        rx: map_ring(fd, &offsets.rx, size, libc::XDP_PGOFF_RX_RING)?,
        tx: map_ring(fd, &offsets.tx, size, libc::XDP_PGOFF_TX_RING)?,
        fill: map_ring(fd, &offsets.fr, size, libc::XDP_UMEM_PGOFF_FILL_RING as i64)?,
        completion: map_ring(fd, &offsets.cr, size, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64)?,
    })
}

fn map_ring<T>(
    fd: BorrowedFd<'_>,
    offsets: &libc::xdp_ring_offset,
    size: u32,
    page_offset: i64,
) -> io::Result<RingMemory<T>> {
    let slots_bytes = size as usize * size_of::<T>();
    let map = Arc::new(sys::RingMap::new(fd, offsets.desc as usize + slots_bytes, page_offset)?);
    let word = |offset| map.at(offset, size_of::<u32>());
    let (producer, consumer, flags) = (word(offsets.producer), word(offsets.consumer), word(offsets.flags));
    let slots = map.at(offsets.desc, slots_bytes);
    // SAFETY: the kernel has laid the words and `size` slots out at these offsets of the mapping,
    // which the owner keeps; it follows the same protocol from its side.
    Ok(unsafe { RingMemory::new(producer, consumer, flags, slots, size, map) })
}

fn bind(
    fd: BorrowedFd<'_>,
    interface: &Interface,
    queue: u32,
    umem: &Umem<'_>,
    copy: CopyMode,
) -> Result<(), DriverError> {
    let copy_flag = match copy {
        CopyMode::Auto => 0,
        CopyMode::Copy => libc::XDP_COPY,
        CopyMode::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    // A second socket takes the mode of the first; the kernel refuses to be told it again.
    let (flags, shared) = match umem {
        Umem::Register => (libc::XDP_USE_NEED_WAKEUP | copy_flag, 0),
        Umem::Share(first) => (libc::XDP_SHARED_UMEM, first.as_fd().as_raw_fd() as u32),
    };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: interface.index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared,
    };
    let start = Instant::now();
    loop {
        let source = match sys::bind(fd, &address) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if source.raw_os_error() == Some(libc::EBUSY) {
            if start.elapsed() < BUSY_LIMIT {
                thread::sleep(BUSY_RETRY);
                continue;
            }
            let waited_ms = start.elapsed().as_millis() as u64;
            return Err(DriverError::Busy { interface: interface.name.clone(), queue, waited_ms });
        }
        let name = &interface.name;
        let remedy = match source.raw_os_error() {
            Some(libc::EOPNOTSUPP) if copy == CopyMode::ZeroCopy => {
                "Its driver has no zero-copy for this queue: use copy=auto or copy=copy".to_owned()
            }
            Some(libc::ENETDOWN) => format!("The link is down: ip link set dev {name} up"),
            Some(libc::ENODEV | libc::ENXIO) => "The interface has gone away".to_owned(),
            Some(libc::EINVAL) => format!("Is queue {queue} there? See: ethtool -l {name}"),
            _ => format!("See: ethtool -l {name}, dmesg"),
        };
        return Err(DriverError::Bind { interface: name.clone(), queue, copy: copy.name(), source, remedy });
    }
}
