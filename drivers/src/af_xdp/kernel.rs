//! The real kernel behind the rings: wake-up, kick, and an orderly end.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::Arc,
    time::Instant,
};

use sheafio_core::{DropReason, QueueCounters};

use super::{
    netdev::Netdev,
    program::Attachment,
    queue::{Kernel, Wake},
    release::Release,
    room::{Limit, Room},
    socket::Socket,
    sys,
};

/// Linux, as seen by one bound socket.
pub struct LinuxKernel {
    /// For wake-ups and kicks; held by this alone, but for moments in which the control plane reads statistics.
    socket: Option<Arc<Socket>>,
    attachment: Arc<Attachment>,
    queue: u32,
    metadata_key: Option<u64>,
    offloads_checksums: bool,
    limit: Limit,
    start: Instant,
    release: Option<Release>,
}

impl LinuxKernel {
    /// `metadata_key`: what the XDP program writes behind the metadata of each packet, if it does. `netdev`: what the
    /// driver can do, if that is told. `release`: what proves in the end that the driver has let go, where the rings do
    /// not tell.
    pub(super) fn new(
        socket: Arc<Socket>,
        attachment: Arc<Attachment>,
        queue: u32,
        metadata_key: Option<u64>,
        netdev: Option<&Netdev>,
        release: Option<Release>,
    ) -> Self {
        // Copied packets leave by the kernel, whatever the driver could do.
        let offloads_checksums = socket.zero_copy && netdev.is_some_and(Netdev::offloads_checksums);
        let (socket, limit, start) = (Some(socket), Limit::new(), Instant::now());
        Self { socket, attachment, queue, metadata_key, offloads_checksums, limit, start, release }
    }
}

impl Kernel for LinuxKernel {
    const GOES_SILENTLY: bool = true;

    #[inline]
    fn wake_rx(&mut self) -> Wake {
        self.socket.as_ref().map_or(Wake::Gone, |socket| outcome(sys::wake_rx(socket.as_fd()), socket))
    }

    #[inline]
    fn kick_tx(&mut self) -> Wake {
        let Some(socket) = &self.socket else { return Wake::Gone };
        let result = sys::kick_tx(socket.as_fd());
        match result.as_ref().map_err(io::Error::raw_os_error) {
            // NET_XMIT_DROP in __xsk_generic_xmit: one packet is completed, and was not sent.
            Err(Some(libc::EBUSY)) if !socket.zero_copy => Wake::Dropped,
            _ => outcome(result, socket),
        }
    }

    #[inline]
    fn filled(&mut self, frames: usize) {
        if let Some(room) = self.socket.as_ref().and_then(|socket| socket.room()) {
            self.limit.raise(room, frames);
        }
    }

    #[inline]
    fn found_nothing(&mut self, frames: impl FnOnce() -> u32) {
        if let Some(room) = self.socket.as_ref().and_then(|socket| socket.room()) {
            self.limit.mend(room, frames);
        }
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn sends_all_for_one_kick(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.sends_all)
    }

    fn frames_a_packet(&self) -> usize {
        self.socket.as_ref().map_or(1, |socket| socket.frames_a_packet)
    }

    fn tells_tx_times(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.tx_metadata)
    }

    fn offloads_checksums(&self) -> bool {
        self.offloads_checksums
    }

    fn rx_metadata_key(&self) -> Option<u64> {
        self.metadata_key
    }

    fn is_gone(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.is_unbound())
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.socket.as_ref().map(|socket| socket.as_fd().as_raw_fd())
    }

    fn detach(&mut self) -> bool {
        // Packets of a queue that is in the map no more are the kernel's.
        self.socket.iter().filter_map(|socket| socket.room()).for_each(Room::open);
        self.attachment.detach(self.queue)
    }

    fn fill_ring_is_exact(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| !socket.zero_copy)
    }

    fn tx_ring_is_exact(&self) -> bool {
        // The kernel that knows the budget is the one that publishes its index after each kick.
        self.socket.as_ref().is_some_and(|socket| !socket.zero_copy && socket.sends_all)
    }

    fn count_drops(&self, counters: &QueueCounters) {
        if let Some(socket) = &self.socket {
            count_drops(socket, counters);
        }
    }

    fn can_prove_release(&self) -> bool {
        self.release.is_some()
    }

    fn shut(&mut self, prove_by: Option<Instant>) -> bool {
        self.socket = None;
        let release = self.release.take();
        prove_by.is_some_and(|end| release.is_some_and(|release| release.wait(end)))
    }
}

/// What the result of a wake-up or kick means (net/xdp/xsk.c: xsk_sendmsg, xsk_recvmsg, xsk_generic_xmit).
fn outcome(result: io::Result<()>, socket: &Socket) -> Wake {
    let Err(error) = result else { return Wake::Done };
    match error.raw_os_error() {
        // ENXIO: the socket was unbound because its device is gone; or the driver resets the queue.
        Some(libc::ENXIO | libc::ENODEV) if socket.is_unbound() => Wake::Gone,
        // ENETDOWN: the link is down, and may come back. ENOBUFS, ENOMEM: out of socket buffers.
        Some(libc::ENXIO | libc::ENODEV | libc::ENETDOWN | libc::ENOBUFS | libc::ENOMEM) => Wake::Later,
        // EAGAIN: sent its 32 and has more, or the completion ring is full. EBUSY: a driver in zero-copy mode is at it.
        _ => Wake::Done,
    }
}

/// Copies the kernel's drop counts, and those of the XDP program's room, into ours.
pub(super) fn count_drops(socket: &Socket, counters: &QueueCounters) {
    let Ok(statistics) = sys::statistics(socket.as_fd()) else { return };
    let lost = socket.room().map_or(0, Room::lost);
    for (reason, packets) in drops_of(statistics, lost, socket.zero_copy, socket.frames_a_packet) {
        counters.raise_drops(reason, packets);
    }
}

/// What the fields of `struct xdp_statistics` (linux/if_xdp.h), in their order, and packets that the program found no room
/// for, are by our names. In copy mode a packet that finds the fill ring empty counts there and in `rx_dropped`, so the
/// rest of `rx_dropped` did not fit into a frame; where a packet may have several, it found too few (`__xsk_rcv` in
/// net/xdp/xsk.c).
fn drops_of(
    statistics: [u64; 6],
    lost: u64,
    zero_copy: bool,
    frames_a_packet: usize,
) -> [(DropReason, u64); 4] {
    let [rx_dropped, _rx_invalid_descs, tx_invalid_descs, rx_ring_full, rx_fill_ring_empty_descs, _] =
        statistics;
    let no_frame = match (zero_copy, frames_a_packet) {
        (true, _) => 0,
        (false, 1) => rx_dropped.min(rx_fill_ring_empty_descs),
        (false, _) => rx_dropped,
    };
    [
        (DropReason::RxNoFrame, no_frame + lost),
        (DropReason::RxTooLarge, rx_dropped - no_frame),
        (DropReason::RxRingFull, rx_ring_full),
        (DropReason::TxInvalid, tx_invalid_descs),
    ]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_the_kernel_has_its_name() {
        use DropReason::{RxNoFrame, RxRingFull, RxTooLarge, TxInvalid};
        let statistics = [100, 2, 30, 4, 60, 7];
        for (zero_copy, frames_a_packet, no_frame, too_large) in
            [(false, 1, 1060, 40), (false, 17, 1100, 0), (true, 1, 1000, 100), (true, 8, 1000, 100)]
        {
            let expected = [(RxNoFrame, no_frame), (RxTooLarge, too_large), (RxRingFull, 4), (TxInvalid, 30)];
            assert_eq!(drops_of(statistics, 1000, zero_copy, frames_a_packet), expected);
        }
        // Empty more often than packets were dropped: with nothing to receive into a driver tries again.
        assert_eq!(drops_of([5, 0, 0, 0, 9, 0], 0, false, 1)[..2], [(RxNoFrame, 5), (RxTooLarge, 0)]);
    }
}
