//! What xsk-rs costs a packet over its rings: the case that `drivers/benches/rings/` runs of ours and of plain loops.
//!
//! Usage: rings INTERFACE \[ROUNDS\]. The interface must be up and without traffic: `lo` of an empty namespace does.
//! The socket is a real one, as xsk-rs makes no other, but no XDP program leads to it and nobody kicks it. The kernel
//! leaves its rings alone then, and the other side is moved by hand, over the very mapping that xsk-rs works on.

#[allow(unreachable_pub, reason = "it is public where it comes from")]
#[path = "../../../core/src/cycles.rs"]
mod cycles;
#[path = "../../../drivers/benches/rings/turns.rs"]
mod turns;

use std::{
    error::Error,
    fs,
    os::fd::AsRawFd,
    process::ExitCode,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use xsk_rs::{
    CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem,
    config::{LibxdpFlags, QueueSize, SocketConfig, UmemConfig},
};

use cycles::cycles;
use turns::{BURST, Driver, PACKET_BYTES, block, measure, median, ns_a_cycle};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Bytes of a frame, as xsk-rs has them by default.
const FRAME: u64 = 4096;
/// Where the kernel puts a packet within its frame: behind the XDP headroom.
const HEADROOM: u64 = 256;

/// The kernel's side of a ring.
struct Ring<T, const SLOTS: usize> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    slots: NonNull<T>,
}

impl<T: Copy, const SLOTS: usize> Ring<T, SLOTS> {
    /// The ring of a socket that lies at a page offset (linux/if_xdp.h, `XDP_PGOFF_RX_RING` and its peers).
    fn of(
        fd: i32,
        offset: libc::off_t,
        of_ring: impl Fn(&libc::xdp_mmap_offsets) -> libc::xdp_ring_offset,
    ) -> Result<Self> {
        let mut offsets = std::mem::MaybeUninit::<libc::xdp_mmap_offsets>::zeroed();
        let mut len = size_of::<libc::xdp_mmap_offsets>() as u32;
        // SAFETY: the kernel writes at most `len` bytes to the struct, of which every bit pattern is one.
        let offsets = unsafe {
            libc::getsockopt(
                fd,
                libc::SOL_XDP,
                libc::XDP_MMAP_OFFSETS,
                offsets.as_mut_ptr().cast(),
                &raw mut len,
            );
            offsets.assume_init()
        };
        let offsets = of_ring(&offsets);
        let inode = fs::read_link(format!("/proc/self/fd/{fd}"))?;
        let maps = fs::read_to_string("/proc/self/maps")?;
        // START-END PERMISSIONS OFFSET DEVICE INODE PATH
        let start = maps.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find_map(|words| {
            let is_it = words.get(5).is_some_and(|path| inode.to_str() == Some(path))
                && libc::off_t::from_str_radix(words[2], 16) == Ok(offset);
            is_it.then(|| usize::from_str_radix(words[0].split('-').next()?, 16).ok()).flatten()
        });
        let start = start.ok_or("no mapping of the socket's ring in /proc/self/maps")?;
        let at =
            |offset: u64| NonNull::new((start + offset as usize) as *mut u8).ok_or("a ring at address 0");
        Ok(Self {
            producer: at(offsets.producer)?.cast(),
            consumer: at(offsets.consumer)?.cast(),
            slots: at(offsets.desc)?.cast(),
        })
    }

    /// Takes up to `want` values, numbered 0, 1, ... Returns how many there were.
    fn take(&self, want: usize, mut visit: impl FnMut(usize, T)) -> usize {
        // SAFETY: the mapping lives as long as the socket, which the driver keeps, and the kernel has zeroed it.
        unsafe {
            let next = self.consumer.as_ref().load(Ordering::Relaxed);
            let filled = self.producer.as_ref().load(Ordering::Acquire).wrapping_sub(next);
            let count = want.min(filled as usize);
            for at in 0..count {
                visit(at, self.slots.add((next as usize + at) % SLOTS).read_volatile());
            }
            self.consumer.as_ref().store(next.wrapping_add(count as u32), Ordering::Release);
            count
        }
    }

    /// Writes a value `ahead` slots past those that are published.
    fn stage(&self, ahead: usize, value: T) {
        // SAFETY: as in `take`.
        unsafe {
            let next = self.producer.as_ref().load(Ordering::Relaxed);
            self.slots.add((next as usize + ahead) % SLOTS).write_volatile(value);
        }
    }

    /// Hands the next `count` slots to the consumer.
    #[inline(always)]
    fn publish(&self, count: usize) {
        // SAFETY: as in `take`.
        let producer = unsafe { self.producer.as_ref() };
        producer.store(producer.load(Ordering::Relaxed).wrapping_add(count as u32), Ordering::Release);
    }
}

/// A socket of xsk-rs, and the other side of its rings.
struct XskRs<const SLOTS: usize> {
    fill: FillQueue,
    rx: RxQueue,
    tx: TxQueue,
    completion: CompQueue,
    /// The free list, a stack; the first `free_len` are frames.
    free: Vec<FrameDesc>,
    free_len: usize,
    burst: [FrameDesc; BURST],
    /// Not in the first block, before which nothing was sent.
    has_completions: bool,
    kernel_fill: Ring<u64, SLOTS>,
    kernel_rx: Ring<libc::xdp_desc, SLOTS>,
    kernel_tx: Ring<libc::xdp_desc, SLOTS>,
    kernel_completion: Ring<u64, SLOTS>,
}

impl<const SLOTS: usize> XskRs<SLOTS> {
    fn new(interface: &str) -> Result<Self> {
        let slots = QueueSize::new(SLOTS as u32)?;
        let umem = UmemConfig::builder().fill_queue_size(slots).comp_queue_size(slots).build()?;
        let (umem, free) = Umem::new(umem, (8 * SLOTS as u32).try_into()?, false)?;
        let config = SocketConfig::builder()
            .rx_queue_size(slots)
            .tx_queue_size(slots)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .build();
        // SAFETY: nobody else has a socket on this queue, which is a namespace's of its own.
        let (tx, rx, rings) = unsafe { Socket::new(config, &umem, &interface.parse()?, 0)? };
        let (mut fill, completion) = rings.ok_or("no fill ring")?;
        let fd = rx.fd().as_raw_fd();
        let free_len = free.len() - SLOTS;
        // SAFETY: the frames are of this UMEM, and below `free_len` they are not in the free list.
        assert_eq!(unsafe { fill.produce(&free[free_len..]) }, SLOTS);
        Ok(Self {
            kernel_fill: Ring::of(fd, libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t, |offsets| offsets.fr)?,
            kernel_rx: Ring::of(fd, libc::XDP_PGOFF_RX_RING, |offsets| offsets.rx)?,
            kernel_tx: Ring::of(fd, libc::XDP_PGOFF_TX_RING, |offsets| offsets.tx)?,
            kernel_completion: Ring::of(
                fd,
                libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t,
                |offsets| offsets.cr,
            )?,
            fill,
            rx,
            tx,
            completion,
            free,
            free_len,
            burst: [FrameDesc::default(); BURST],
            has_completions: false,
        })
    }
}

impl<const SLOTS: usize> Driver for XskRs<SLOTS> {
    const SLOTS: usize = SLOTS;

    fn stage(&mut self) {
        let packets = self.kernel_fill.take(block::<Self>(), |at, addr| {
            let addr = (addr & !(FRAME - 1)) + HEADROOM;
            self.kernel_rx.stage(at, libc::xdp_desc { addr, len: PACKET_BYTES, options: 0 });
        });
        let completion = &self.kernel_completion;
        let completions = self.kernel_tx.take(block::<Self>(), |at, desc| completion.stage(at, desc.addr));
        assert_eq!(packets, block::<Self>());
        self.has_completions = completions > 0;
    }

    #[inline(always)]
    fn turn(&mut self) {
        self.kernel_rx.publish(BURST);
        if self.has_completions {
            self.kernel_completion.publish(BURST);
        }
        let free = &self.free[self.free_len - BURST..self.free_len];
        // SAFETY: the frames are of this UMEM and free; what goes into the ring leaves the list.
        self.free_len -= unsafe { self.fill.produce(free) };
        // SAFETY: the descriptors are overwritten.
        let received = unsafe { self.rx.consume(&mut self.burst) };

        let free = &mut self.free[self.free_len..self.free_len + BURST];
        // SAFETY: the descriptors are overwritten.
        self.free_len += unsafe { self.completion.consume(free) };
        // SAFETY: the frames are of this UMEM and were just received.
        let sent = unsafe { self.tx.produce(&self.burst[..received]) };
        assert!(received == BURST && sent == BURST);
    }
}

/// Prints slots and nanoseconds a packet.
fn run<const SLOTS: usize>(interface: &str, rounds: usize) -> Result<()> {
    let (mut driver, ns_a_cycle) = (XskRs::<SLOTS>::new(interface)?, ns_a_cycle());
    let figures = (0..rounds).map(|_| measure(&mut driver, ns_a_cycle));
    println!("{SLOTS:>4} slots: xsk-rs {:.3} ns a packet", median(figures.collect()));
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let (interface, rounds) = match args.as_slice() {
        [interface] => (interface, Ok(11)),
        [interface, rounds] => (interface, rounds.parse()),
        _ => {
            eprintln!("usage: rings INTERFACE [ROUNDS]");
            return ExitCode::from(2);
        }
    };
    let ran = rounds
        .map_err(Into::into)
        .and_then(|rounds| run::<512>(interface, rounds).and_then(|()| run::<2048>(interface, rounds)));
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "rings: {interface}: {error}{}",
                error.source().map(|why| format!(": {why}")).unwrap_or_default()
            );
            ExitCode::FAILURE
        }
    }
}
