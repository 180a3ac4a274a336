//! The other side of the rings, as the data path sees it.
//!
//! Owns: the questions. Never does: answer one; `af_xdp/kernel.rs` does for Linux, `sim` for its kernels. Invariant:
//! what has a default here is what the simplest kernel says, one in copy mode that knows no metadata.

use std::{os::fd::RawFd, time::Instant};

use sheafio_core::QueueCounters;

/// What the kernel says to a wake-up or kick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The kernel did what it could; it may have more to do.
    Done,
    /// The kernel took a packet and dropped it, for the device was not ready for it. It may have more to send.
    Dropped,
    /// The link is down or the kernel is out of buffers: try again, but not at once.
    Later,
    /// The device is gone for good.
    Gone,
}

/// The other side of the rings.
pub trait Kernel: Send {
    /// Whether the device may go away and no call of the data path tells so: where the kernel need not be woken for the
    /// fill ring, a queue that only receives makes none.
    const GOES_SILENTLY: bool = false;

    /// Asks the kernel to take frames from the fill ring: recvfrom(2) with `MSG_DONTWAIT`.
    fn wake_rx(&mut self) -> Wake;
    /// Asks the kernel to send what lies in the TX ring: sendto(2) with `MSG_DONTWAIT`.
    fn kick_tx(&mut self) -> Wake;
    /// Called at the start of each burst; a simulated kernel works here, and lets packets arrive if
    /// the burst is one to receive. Returns whether the device is still there.
    #[inline(always)]
    fn tick(&mut self, _to_receive: bool) -> bool {
        true
    }
    /// Called when so many frames were put into the fill ring.
    #[inline(always)]
    fn filled(&mut self, _frames: usize) {}
    /// Called when a burst to receive has found nothing. `frames`: how many lie in the fill ring.
    #[inline(always)]
    fn found_nothing(&mut self, _frames: impl FnOnce() -> u32) {}
    /// The time since some moment in nanoseconds, for how long the kernel is left alone after [`Wake::Later`].
    fn now_ns(&self) -> u64;
    /// Whether one kick sends all that is queued. Otherwise it sends 32 packets, and there is nothing
    /// to gain by waiting for more.
    fn sends_all_for_one_kick(&self) -> bool;
    /// The most frames that a packet to be sent may have: 1 where large packets are not possible.
    fn frames_a_packet(&self) -> usize;
    /// Whether the kernel looks for requests in front of packets, and tells when it has sent them.
    fn tells_tx_times(&self) -> bool {
        false
    }
    /// Whether the device computes the checksums of TCP and UDP for which there are requests in front of packets.
    fn offloads_checksums(&self) -> bool {
        false
    }
    /// The key that the XDP program writes behind the metadata of each received packet; `None` if it writes none.
    fn rx_metadata_key(&self) -> Option<u64> {
        None
    }
    /// Whether the device is gone for good, of a kernel that is asked: see [`GOES_SILENTLY`](Self::GOES_SILENTLY).
    fn is_gone(&self) -> bool {
        false
    }
    /// A descriptor for poll(2).
    fn wait_fd(&self) -> Option<RawFd>;
    /// Makes the device stop giving packets to this queue, for good. Returns whether it is certain
    /// that none is on its way any more.
    fn detach(&mut self) -> bool;
    /// Whether the fill ring tells exactly which frames the kernel has taken, once it is detached. A
    /// driver in zero-copy mode goes on taking frames until the socket is closed.
    fn fill_ring_is_exact(&self) -> bool;
    /// Whether the TX ring tells exactly which packets the kernel has taken. Before Linux 6.17 copy
    /// mode publishes its index only when it has come to the end of the ring.
    fn tx_ring_is_exact(&self) -> bool;
    /// Reads the kernel's own drop counts into ours.
    fn count_drops(&self, counters: &QueueCounters);
    /// Whether `shut` can prove that the device has let go of every frame; so they are to be known one by one, as
    /// the fill ring does not tell.
    fn can_prove_release(&self) -> bool {
        false
    }
    /// Lets go of the device, after the rings' memory. With `prove_by`, waits until then for the device to let go of
    /// every frame, at least one look, and returns whether that is certain.
    fn shut(&mut self, prove_by: Option<Instant>) -> bool;
}
