//! One queue of an interface by xsk-rs: its socket, its rings and its frames.
//!
//! Owns: a UMEM. Never does: look into packets. Invariant: a frame is in the free list, in one ring, or with the
//! kernel, and its descriptor likewise.

use std::{
    io,
    os::fd::{AsRawFd, RawFd},
};

use xsk_rs::{
    CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem,
    config::{BindFlags, LibxdpFlags, QueueSize, SocketConfig, UmemConfig},
};

use super::{BURST, Result};

/// Slots of each ring, and frames that lie ready for reception.
const RING: u32 = 2048;
/// Of 4096 bytes, as xsk-rs has them by default: 256 of XDP headroom, and the packet.
const FRAMES: u32 = 2 * RING;

pub(crate) struct Queue {
    pub(crate) number: u32,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    umem: Umem,
    fill: FillQueue,
    rx: RxQueue,
    tx: TxQueue,
    completion: CompQueue,
    free: Vec<FrameDesc>,
    in_flight: usize,
    /// Frames in the fill ring, with the kernel for reception, and in the RX ring.
    with_rx: usize,
}

impl Queue {
    /// Binds a socket, without an XDP program: `Program` is for that.
    pub(crate) fn open(interface: &str, number: u32) -> Result<Self> {
        let ring = QueueSize::new(RING)?;
        let umem = UmemConfig::builder().fill_queue_size(ring).comp_queue_size(ring).build()?;
        let (umem, free) = Umem::new(umem, FRAMES.try_into()?, false)?;
        let config = SocketConfig::builder()
            .rx_queue_size(ring)
            .tx_queue_size(ring)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(BindFlags::XDP_USE_NEED_WAKEUP)
            .build();
        // SAFETY: this program has no other socket on the queue; the kernel refuses a second one of another program.
        let (tx, rx, rings) = unsafe { Socket::new(config, &umem, &interface.parse()?, number)? };
        let (fill, completion) = rings.ok_or("the socket has no fill and completion ring of its own")?;
        let mut queue = Self {
            number,
            sent: 0,
            received: 0,
            umem,
            fill,
            rx,
            tx,
            completion,
            free,
            in_flight: 0,
            with_rx: 0,
        };
        queue.tend()?;
        Ok(queue)
    }

    /// Packets that the kernel has not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Packets that the kernel dropped on their way to this socket. What it found no frame for is among the first.
    pub(crate) fn dropped(&self) -> io::Result<u64> {
        let statistics = self.rx.fd().xdp_statistics()?;
        Ok(statistics.rx_dropped() + statistics.rx_ring_full())
    }

    /// Takes completed frames back and fills the fill ring.
    pub(crate) fn tend(&mut self) -> io::Result<()> {
        let mut completed = [FrameDesc::default(); BURST];
        loop {
            // SAFETY: the descriptors are overwritten.
            let count = unsafe { self.completion.consume(&mut completed) };
            self.free.extend_from_slice(&completed[..count]);
            self.in_flight -= count;
            if count < BURST {
                break;
            }
        }
        let missing = (RING as usize - self.with_rx).min(self.free.len());
        let first = self.free.len() - missing;
        // SAFETY: the frames are of this UMEM and free; those that go into the ring leave the list below.
        let filled = unsafe { self.fill.produce(&self.free[first..]) };
        self.free.drain(first..first + filled);
        self.with_rx += filled;
        if self.fill.needs_wakeup() {
            self.rx.poll(0)?;
        }
        Ok(())
    }

    /// Queues up to `count` packets; `write` fills each, numbered 0, 1, ... Returns how many.
    pub(crate) fn send(
        &mut self,
        count: usize,
        length: usize,
        mut write: impl FnMut(usize, &mut [u8]),
    ) -> usize {
        let count = count.min(self.free.len()).min(RING as usize - self.in_flight);
        let first = self.free.len() - count;
        for (at, desc) in self.free[first..].iter_mut().enumerate() {
            // SAFETY: the frame is of this UMEM and free, so nobody else has it.
            let mut data = unsafe { self.umem.data_mut(desc) };
            data.cursor().set_pos(length);
            write(at, data.contents_mut());
        }
        // SAFETY: as above; those that go into the ring leave the list.
        let sent = unsafe { self.tx.produce(&self.free[first..]) };
        self.free.drain(first..first + sent);
        self.in_flight += sent;
        self.sent += sent as u64;
        sent
    }

    /// Shows up to a burst of packets. Returns how many.
    pub(crate) fn receive(&mut self, mut visit: impl FnMut(&[u8])) -> usize {
        let (descs, count) = self.take();
        for desc in &descs[..count] {
            // SAFETY: the kernel gave the frame back by the RX ring.
            visit(unsafe { self.umem.data(desc) }.contents());
        }
        self.free.extend_from_slice(&descs[..count]);
        count
    }

    /// Shows up to a burst of packets and queues them to be sent. Returns how many.
    pub(crate) fn echo(&mut self, mut visit: impl FnMut(&mut [u8])) -> usize {
        if RING as usize - self.in_flight < BURST {
            return 0;
        }
        let (mut descs, count) = self.take();
        for desc in &mut descs[..count] {
            // SAFETY: the kernel gave the frame back by the RX ring.
            visit(unsafe { self.umem.data_mut(desc) }.contents_mut());
        }
        // SAFETY: as above; the descriptors go nowhere else.
        let sent = unsafe { self.tx.produce(&descs[..count]) };
        assert_eq!(sent, count, "there was room in the TX ring");
        self.in_flight += sent;
        self.sent += sent as u64;
        count
    }

    /// Makes the kernel send.
    pub(crate) fn kick(&self) -> io::Result<()> {
        if self.in_flight > 0 && self.tx.needs_wakeup() {
            self.tx.wakeup()?;
        }
        Ok(())
    }

    fn take(&mut self) -> ([FrameDesc; BURST], usize) {
        let mut descs = [FrameDesc::default(); BURST];
        // SAFETY: the descriptors are overwritten.
        let count = unsafe { self.rx.consume(&mut descs) };
        self.with_rx -= count;
        self.received += count as u64;
        (descs, count)
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.rx.fd().as_raw_fd()
    }
}
