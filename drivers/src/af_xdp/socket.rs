//! One AF_XDP socket: UMEM, rings, bind.
//!
//! Owns: the socket's descriptor; the rings' mappings belong to the rings. Never does: move packets.
//! Invariant: a socket is used only after every step has succeeded; a failed one is closed, with
//! all that it registered.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use sheafio_mempool::{Geometry, METADATA_BYTES, sync::AtomicU32};

use super::{
    CopyMode, Frags, busy_poll,
    cause::{self, BindAsk, Call, MemoryAsk},
    driver::Driver,
    interface::Interface,
    owner,
    process::{Process, memlock_limit_bytes, raise_memlock_limit},
    rings::Rings,
    room::Room,
    sys,
};
use crate::{
    DriverError,
    spsc::{NEED_WAKEUP, RingMemory, RingOwner},
};

/// How long a queue may stay busy, and memory locked: unbinding the socket that used it before is asynchronous.
const BUSY_LIMIT: Duration = Duration::from_secs(3);
const BUSY_RETRY: Duration = Duration::from_millis(10);

impl RingOwner for sys::RingMap {
    fn touch(&self, _: u32) {} // The kernel's rings are not modelled.
}

/// Frames of a packet that is sent in copy mode, at most: the fragments of an sk_buff (`MAX_SKB_FRAGS`, linux/skbuff.h,
/// in the kernel's usual configuration). Most devices can take one more, in its linear part.
const FRAMES_A_COPIED_PACKET: usize = 17;

/// Packet memory that the sockets of this process have registered, in KiB; only told, so nothing depends on its
/// order with anything else.
static REGISTERED_KIB: AtomicU64 = AtomicU64::new(0);

/// A bound socket.
pub(super) struct Socket {
    fd: OwnedFd,
    /// How many packets the XDP program lets through to it; only in copy mode, once the program is known.
    room: OnceLock<Room>,
    /// The packet memory's part of [`REGISTERED_KIB`], until the last socket that shares it is closed.
    registered: Arc<Registered>,
    /// What was asked for, of which the registration gave what the kernel has.
    pub(super) ask: Ask,
    pub(super) zero_copy: bool,
    /// One kick sends all that is queued: the kernel let us raise its budget of 32.
    pub(super) sends_all: bool,
    /// Frames that a packet may have, at most.
    pub(super) frames_a_packet: usize,
    /// The kernel knows requests in front of packets that are sent.
    pub(super) tx_metadata: bool,
    /// The kernel has told, once, that it unbound the socket.
    unbound: AtomicBool,
}

/// How a socket should be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// Slots of each ring.
    pub(super) ring: u32,
    pub(super) copy: CopyMode,
    /// `Auto` only where packets of several frames are to be expected; else `No`.
    pub(super) frags: Frags,
    /// Whether requests should go to the kernel with packets that are sent.
    pub(super) metadata: bool,
    /// Packets that the driver handles for each system call of ours.
    pub(super) busy_poll: Option<u16>,
    /// Frames of a packet that the driver can send in zero-copy mode, at most.
    pub(super) driver_frames: usize,
    /// Copy mode is taken by itself if this is refused, so an error names no other mode.
    pub(super) falls_back: bool,
}

/// A socket's UMEM is its own, or that of a socket which is bound already. That one may be another port's, which may close
/// it at any time: so it is held in the moments of system calls only, not while a queue is waited for.
pub(super) enum Umem<'a> {
    Register,
    Share(&'a Weak<Socket>),
}

impl Socket {
    /// Opens a socket with its rings and binds it to a queue.
    pub(super) fn open(
        interface: &Interface,
        queue: u32,
        geometry: &Geometry,
        umem: &Umem<'_>,
        ask: Ask,
    ) -> Result<(Self, Rings), DriverError> {
        let call = |call| {
            move |source: io::Error| {
                let remedy = cause::of_call(Call::Xdp, source.raw_os_error(), &Process::look());
                refused_call(interface, queue, call, source, remedy)
            }
        };
        let ring_call = |call| {
            move |source: io::Error| {
                let remedy = cause::of_ring(&source, ask.ring, &Process::look());
                refused_call(interface, queue, call, source, remedy)
            }
        };
        let fd = sys::socket().map_err(call("opening an AF_XDP socket"))?;
        let refused = |source| refused_bind(interface, queue, geometry, ask, source);
        let (registered, tx_metadata) = match umem {
            Umem::Register => register(fd.as_fd(), geometry, ask.metadata)
                .map_err(|source| refused_memory(interface, queue, geometry, source))?,
            Umem::Share(first) => {
                let first = still_open(first).map_err(refused)?;
                (first.registered.clone(), first.tx_metadata)
            }
        };
        for (option, ring) in [
            (libc::XDP_UMEM_FILL_RING, "making the fill ring"),
            (libc::XDP_UMEM_COMPLETION_RING, "making the completion ring"),
            (libc::XDP_RX_RING, "making the RX ring"),
            (libc::XDP_TX_RING, "making the TX ring"),
        ] {
            sys::set_option(fd.as_fd(), option, &ask.ring).map_err(ring_call(ring))?;
        }
        let mut rings = map_rings(fd.as_fd(), ask.ring).map_err(ring_call("mapping the rings"))?;
        if let Some(budget) = ask.busy_poll {
            rings.fill.flags = always_wake();
            busy_poll::prefer(fd.as_fd(), budget)
                .map_err(|source| refused_busy_polling(interface, queue, source))?;
        }
        let has_frags = bind(fd.as_fd(), interface, queue, umem, ask)?.map_err(refused)?;

        let options: u32 =
            sys::option(fd.as_fd(), libc::XDP_OPTIONS).map_err(call("asking for the copy mode"))?;
        let zero_copy = options & libc::XDP_OPTIONS_ZEROCOPY != 0;
        // One kick in copy mode sends 32 packets; more where the kernel lets us (no error where not).
        let sends_all = sys::set_option(fd.as_fd(), sys::XDP_MAX_TX_SKB_BUDGET, &ask.ring).is_ok();
        let frames_a_packet = match (has_frags, zero_copy) {
            (false, _) => 1,
            (true, true) => ask.driver_frames.max(1),
            (true, false) => FRAMES_A_COPIED_PACKET,
        };
        let unbound = AtomicBool::new(false);
        let room = OnceLock::new();
        let socket =
            Self { fd, room, registered, ask, zero_copy, sends_all, frames_a_packet, tx_metadata, unbound };
        Ok((socket, rings))
    }

    /// Sets the room that the XDP program has for it, once.
    pub(super) fn set_room(&self, room: Room) {
        assert!(self.room.set(room).is_ok(), "a queue has one room");
    }

    /// The room that the XDP program has for it, if it heeds one.
    #[inline]
    pub(super) fn room(&self) -> Option<&Room> {
        self.room.get()
    }

    /// Whether the kernel has unbound the socket, for good, as the device was removed or moved to another network
    /// namespace: that alone leaves an error at an AF_XDP socket (net/xdp/xsk.c: xsk_notifier). The interface's name
    /// and index would not do: a device that moves away and comes back has them again, its sockets are dead.
    pub(super) fn is_unbound(&self) -> bool {
        if !self.unbound.load(Ordering::Relaxed) && sys::socket_error(self.as_fd()) != 0 {
            // Relaxed: it only rises. Whoever asks between the call and this is told the next time.
            self.unbound.store(true, Ordering::Relaxed);
        }
        self.unbound.load(Ordering::Relaxed)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The flags of a fill ring whose kernel is to be woken in every burst: a driver that runs only in our system calls asks
/// for none.
fn always_wake() -> NonNull<AtomicU32> {
    static FLAGS: OnceLock<AtomicU32> = OnceLock::new();
    NonNull::from(FLAGS.get_or_init(|| AtomicU32::new(NEED_WAKEUP)))
}

/// KiB that count as registered until this is dropped.
struct Registered(u64);

impl Drop for Registered {
    fn drop(&mut self) {
        REGISTERED_KIB.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Registers the packet memory; returns whether the kernel knows requests in front of packets that are sent.
fn register(fd: BorrowedFd<'_>, geometry: &Geometry, metadata: bool) -> io::Result<(Arc<Registered>, bool)> {
    let mut umem = libc::xdp_umem_reg {
        addr: geometry.base().as_ptr() as u64,
        len: geometry.umem_bytes(),
        chunk_size: geometry.frame_bytes(),
        headroom: geometry.headroom_bytes(),
        flags: 0,
        tx_metadata_len: 0,
    };
    if metadata {
        umem.flags = libc::XDP_UMEM_TX_METADATA_LEN;
        umem.tx_metadata_len = METADATA_BYTES as u32;
        match lock(fd, &umem) {
            // Before Linux 6.8 the flags are unknown.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            registered => return registered.map(|registered| (registered, true)),
        }
        (umem.flags, umem.tx_metadata_len) = (0, 0);
    }
    lock(fd, &umem).map(|registered| (registered, false))
}

/// Registers it as stated, which locks it in memory. The soft limit of that is raised where it is in the way.
fn lock(fd: BorrowedFd<'_>, umem: &libc::xdp_umem_reg) -> io::Result<Arc<Registered>> {
    let kib = umem.len >> 10;
    let start = Instant::now();
    while let Err(error) = sys::set_option(fd, libc::XDP_UMEM_REG, umem) {
        if error.raw_os_error() != Some(libc::ENOBUFS) {
            return Err(error);
        }
        if raise_memlock_limit() {
            continue;
        }
        // What a socket had locked that was closed just before, also another program's, is given back late.
        let is_enough = REGISTERED_KIB.load(Ordering::Relaxed) + kib <= memlock_limit_bytes() >> 10;
        if !is_enough || start.elapsed() >= BUSY_LIMIT {
            return Err(error);
        }
        thread::sleep(BUSY_RETRY);
    }
    REGISTERED_KIB.fetch_add(kib, Ordering::Relaxed);
    Ok(Arc::new(Registered(kib)))
}

fn refused_memory(interface: &Interface, queue: u32, geometry: &Geometry, source: io::Error) -> DriverError {
    let (kib, limit_kib) = (geometry.umem_bytes() >> 10, memlock_limit_bytes() >> 10);
    let locked_kib = REGISTERED_KIB.load(Ordering::Relaxed);
    let (frame_bytes, headroom_bytes) = (geometry.frame_bytes(), geometry.headroom_bytes());
    let ask = MemoryAsk { kib, locked_kib, limit_kib, frame_bytes, headroom_bytes };
    let remedy = cause::of_memory(&source, ask, &Process::look());
    match source.raw_os_error() {
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            DriverError::Memlock { interface: interface.name.clone(), kib, limit_kib, source, remedy }
        }
        _ => refused_call(interface, queue, "registering the packet memory", source, remedy),
    }
}

fn refused_call(
    interface: &Interface,
    queue: u32,
    call: &'static str,
    source: io::Error,
    remedy: String,
) -> DriverError {
    DriverError::Call { interface: interface.name.clone(), queue: Some(queue), call, source, remedy }
}

fn refused_busy_polling(interface: &Interface, queue: u32, source: io::Error) -> DriverError {
    let cause = cause::of_call(Call::BusyPolling, source.raw_os_error(), &Process::look());
    let call = "asking for busy polling (SO_PREFER_BUSY_POLL, SO_BUSY_POLL, SO_BUSY_POLL_BUDGET)";
    refused_call(interface, queue, call, source, format!("{cause}. Or do without: busy_poll=no"))
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

/// Binds; returns whether a packet may have several frames, or what the kernel says.
fn bind(
    fd: BorrowedFd<'_>,
    interface: &Interface,
    queue: u32,
    umem: &Umem<'_>,
    ask: Ask,
) -> Result<io::Result<bool>, DriverError> {
    let copy = match ask.copy {
        CopyMode::Auto => 0,
        CopyMode::Copy => libc::XDP_COPY,
        CopyMode::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    let frags = if ask.frags == Frags::No { 0 } else { libc::XDP_USE_SG };
    // A second socket takes the mode of the first; the kernel refuses to be told it again.
    let (flags, shared) = match umem {
        Umem::Register => (libc::XDP_USE_NEED_WAKEUP | copy | frags, None),
        Umem::Share(first) => (libc::XDP_SHARED_UMEM, Some(*first)),
    };
    let mut address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: interface.index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let mut bound = bind_when_free(fd, interface, address, shared)?;
    // EINVAL: the kernel does not know the flag. EOPNOTSUPP: the driver has no such zero-copy.
    if let Err(libc::EINVAL | libc::EOPNOTSUPP) =
        bound.as_ref().map_err(|error| error.raw_os_error().unwrap_or(0))
        && ask.frags == Frags::Auto
        && address.sxdp_flags & frags != 0
    {
        address.sxdp_flags &= !frags;
        bound = bind_when_free(fd, interface, address, shared)?;
    }
    Ok(bound.map(|shares_frags| shares_frags.unwrap_or(address.sxdp_flags & frags != 0)))
}

/// A socket whose packet memory is to be shared, if it is not closed by now.
fn still_open(socket: &Weak<Socket>) -> io::Result<Arc<Socket>> {
    socket.upgrade().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
}

/// Binds, after waiting within a bound while the queue is busy. With a socket whose packet memory is `shared`, tells
/// whether that allows packets in several frames.
fn bind_when_free(
    fd: BorrowedFd<'_>,
    interface: &Interface,
    mut address: libc::sockaddr_xdp,
    shared: Option<&Weak<Socket>>,
) -> Result<io::Result<Option<bool>>, DriverError> {
    let (start, queue) = (Instant::now(), address.sxdp_queue_id);
    let mut try_once = || {
        let shared = shared.map(still_open).transpose()?;
        if let Some(first) = &shared {
            address.sxdp_shared_umem_fd = first.as_fd().as_raw_fd() as u32;
        }
        sys::bind(fd, &address)?;
        Ok(shared.map(|first| first.frames_a_packet > 1))
    };
    loop {
        let bound: io::Result<_> = try_once();
        if !bound.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            return Ok(bound);
        }
        if start.elapsed() >= BUSY_LIMIT {
            let waited_ms = start.elapsed().as_millis() as u64;
            let (owner, remedy) = cause::of_queue(&owner::of_queue(interface.index, queue));
            let interface = interface.name.clone();
            return Err(DriverError::Busy { interface, queue, waited_ms, owner, remedy });
        }
        thread::sleep(BUSY_RETRY);
    }
}

fn refused_bind(
    interface: &Interface,
    queue: u32,
    geometry: &Geometry,
    ask: Ask,
    source: io::Error,
) -> DriverError {
    let Ask { ring, copy, frags, driver_frames, falls_back, .. } = ask;
    let (frame_bytes, data_bytes) = (geometry.frame_bytes(), geometry.data_bytes());
    let bind = BindAsk { copy, frags, ring, frame_bytes, data_bytes, driver_frames, falls_back };
    let remedy = cause::of_bind(&source, bind, interface, &Driver::of(interface), &Process::look());
    DriverError::Bind { interface: interface.name.clone(), queue, copy: copy.name(), source, remedy }
}
