//! Counters with one writer and any number of readers.
//!
//! Owns: the counter blocks. Never does: an atomic read-modify-write on the data path. Invariant: one thread at a
//! time adds to a block (the lcore that owns the queue), so an addition is a plain load and store;
//! blocks lie on cache lines of their own.

use sheafio_mempool::sync::{AtomicU32, AtomicU64, Ordering, add};

/// Why a packet was dropped. Every drop has a name and a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum DropReason {
    /// The TX ring was full when the packet was to be sent.
    TxFull,
    /// The packet that was to be sent, or one of its frames, had no bytes.
    TxEmpty,
    /// The packet that was to be sent has more frames than the port can send of one packet: 1 where it has no
    /// support for packets in several frames (multi-buffer).
    TxTooLarge,
    /// The burst ended within the packet: its last frame says that it continues.
    TxNoEnd,
    /// The packet that was to be sent has less headroom than the 32 bytes in which the kernel looks for requests
    /// (`metadata=yes`).
    TxNoHeadroom,
    /// The device was gone or its socket dead when the packet was to be sent.
    DeviceGone,
    /// The packet lay in the TX ring when the port closed and was not sent.
    TxUnsent,
    /// The kernel took the packet and dropped it: the device was not ready, as without a carrier, or had no room, as a
    /// veth whose peer's ring or backlog is full (`EBUSY` of a kick in copy mode).
    TxDropped,
    /// The kernel refused the TX descriptor: frames, not packets (`tx_invalid_descs` of `struct xdp_statistics`).
    TxInvalid,
    /// A received descriptor did not lie within one frame, or the packet had more frames than a burst can hold.
    RxInvalid,
    /// The kernel found no frame in the fill ring (`rx_fill_ring_empty_descs`).
    RxNoFrame,
    /// The RX ring was full (`rx_ring_full`).
    RxRingFull,
    /// The packet did not fit into a frame (the rest of `rx_dropped`).
    RxTooLarge,
    /// The packet lay in the RX ring when the port closed and was not read.
    RxUnread,
    /// The application had no use for the packet, such as an IPv6 packet in mode icmpecho.
    NotForUs,
    /// The packet's headers are cut short or contradict each other.
    Malformed,
}

impl DropReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 16] = [
        Self::TxFull,
        Self::TxEmpty,
        Self::TxTooLarge,
        Self::TxNoEnd,
        Self::TxNoHeadroom,
        Self::DeviceGone,
        Self::TxUnsent,
        Self::TxDropped,
        Self::TxInvalid,
        Self::RxInvalid,
        Self::RxNoFrame,
        Self::RxRingFull,
        Self::RxTooLarge,
        Self::RxUnread,
        Self::NotForUs,
        Self::Malformed,
    ];

    /// The name that tables and JSON show.
    pub fn name(self) -> &'static str {
        match self {
            Self::TxFull => "tx_full",
            Self::TxEmpty => "tx_empty",
            Self::TxTooLarge => "tx_too_large",
            Self::TxNoEnd => "tx_no_end",
            Self::TxNoHeadroom => "tx_no_headroom",
            Self::DeviceGone => "device_gone",
            Self::TxUnsent => "tx_unsent",
            Self::TxDropped => "tx_dropped",
            Self::TxInvalid => "tx_invalid",
            Self::RxInvalid => "rx_invalid",
            Self::RxNoFrame => "rx_no_frame",
            Self::RxRingFull => "rx_ring_full",
            Self::RxTooLarge => "rx_too_large",
            Self::RxUnread => "rx_unread",
            Self::NotForUs => "not_for_us",
            Self::Malformed => "malformed",
        }
    }

    /// Whether the packet was lost before it was counted as received.
    pub fn is_before_rx(self) -> bool {
        matches!(self, Self::RxNoFrame | Self::RxRingFull | Self::RxTooLarge | Self::RxInvalid)
    }

    /// What helps against it, in a few words, where that is in the user's hands. Names in it, such as `ring=`, are those
    /// of a port specification and of `sheafio fwd`.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::TxFull => Some(
                "packets came faster than the device takes them. Bursts: a longer ring=; for good: more queues, each \
                 with a core of its own (queues=, --cores)",
            ),
            Self::TxTooLarge => Some(
                "packets have more frames than this port can send of one. Use frags=auto or frags=yes here (Linux 6.6), \
                 larger frames (--frame-size 4096), or a smaller MTU where they come from",
            ),
            Self::RxNoFrame => Some(
                "packets came while no frame was ready: the lcore was not there in time, or the pool was empty. Bursts: \
                 a longer ring= and fill=, more --frames; for good: more queues, each with a core of its own (queues=, \
                 --cores)",
            ),
            Self::RxRingFull => Some(
                "packets came while the RX ring was full: the lcore was not there in time. Bursts: a longer ring=; for \
                 good: more queues, each with a core of its own (queues=, --cores)",
            ),
            Self::RxTooLarge => Some(
                "packets do not fit into a frame. Use frags=auto or frags=yes (Linux 6.6), larger frames \
                 (--frame-size 4096), or a smaller MTU. Of a veth in generic mode the peer's kernel sends TCP segments as \
                 one packet: mode=native, or at the peer: ethtool -K PEER tso off",
            ),
            Self::TxNoHeadroom => Some(
                "metadata=yes takes 32 bytes in front of each packet: use frames that were not prepended to so far, or \
                 metadata=no",
            ),
            Self::TxDropped => Some(
                "the device was not ready to send: is there a carrier? See: ip link. A veth also drops what its peer has no \
                 room for: packets come faster than the peer's program or kernel takes them",
            ),
            Self::TxEmpty
            | Self::TxNoEnd
            | Self::DeviceGone
            | Self::TxUnsent
            | Self::TxInvalid
            | Self::RxInvalid
            | Self::RxUnread
            | Self::NotForUs
            | Self::Malformed => None,
        }
    }

    /// Whether the packet was lost after it was counted as sent: the kernel took the descriptor and
    /// refused it, or never came to it.
    pub fn is_after_tx(self) -> bool {
        matches!(self, Self::TxInvalid | Self::TxUnsent | Self::TxDropped)
    }
}

/// What one queue counts since it was opened.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct QueueCounters {
    rx_packets: AtomicU64,
    rx_bytes: AtomicU64,
    tx_packets: AtomicU64,
    tx_bytes: AtomicU64,
    /// Two's complement: see [`QueueTotals::held`].
    held: AtomicU64,
    drops: [AtomicU64; DropReason::ALL.len()],
    /// 1 once the device is gone for good.
    gone: AtomicU32,
    /// 1 while poll(2) on the queue would send.
    sends_in_poll: AtomicU32,
}

impl QueueCounters {
    /// Counts received packets and their bytes.
    #[inline(always)]
    pub fn add_rx(&self, packets: u64, bytes: u64) {
        add(&self.rx_packets, packets);
        add(&self.rx_bytes, bytes);
    }

    /// Counts a packet and its bytes as not received after all.
    pub fn take_back_rx(&self, bytes: u64) {
        add(&self.rx_packets, 1_u64.wrapping_neg());
        add(&self.rx_bytes, bytes.wrapping_neg());
    }

    /// Counts packets handed to the device and their bytes.
    #[inline(always)]
    pub fn add_tx(&self, packets: u64, bytes: u64) {
        add(&self.tx_packets, packets);
        add(&self.tx_bytes, bytes);
    }

    /// Says how many frames the queue holds now.
    #[inline(always)]
    pub fn set_held(&self, frames: u64) {
        self.held.store(frames, Ordering::Relaxed);
    }

    /// Counts frames that went into the queue's rings, or out of them if negative.
    #[inline(always)]
    pub fn add_held(&self, frames: i64) {
        add(&self.held, frames as u64);
    }

    /// Counts dropped packets.
    #[inline(always)]
    pub fn add_drops(&self, reason: DropReason, packets: u64) {
        add(&self.drops[reason as usize], packets);
    }

    /// Raises a count that the kernel keeps, such as `rx_ring_full`, to the kernel's value. Both the
    /// lcore (at close) and the control plane may do so: unlike the other counters this is a
    /// read-modify-write, and off the data path.
    pub fn raise_drops(&self, reason: DropReason, packets: u64) {
        self.drops[reason as usize].fetch_max(packets, Ordering::Relaxed);
    }

    /// Says that the queue's device is gone for good. Whoever sees it first may say so: the lcore, by a system call
    /// that fails, or the control plane, which looks for it.
    pub fn set_gone(&self) {
        // Relaxed, here and below: the flag only ever rises and carries no data.
        self.gone.store(1, Ordering::Relaxed);
    }

    /// Whether the queue's device is gone for good.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed) != 0
    }

    /// Says whether poll(2) on the queue's descriptor would send packets, which then tells nobody what became of them.
    pub fn set_sends_in_poll(&self, sends: bool) {
        // Relaxed, here and below: the lcore that polls the queue sleeps on it too.
        self.sends_in_poll.store(u32::from(sends), Ordering::Relaxed);
    }

    /// Whether poll(2) on the queue's descriptor would send packets: an lcore sleeps without it then.
    pub fn sends_in_poll(&self) -> bool {
        self.sends_in_poll.load(Ordering::Relaxed) != 0
    }

    /// The counts as they are now.
    pub fn totals(&self) -> QueueTotals {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        QueueTotals {
            rx_packets: load(&self.rx_packets),
            rx_bytes: load(&self.rx_bytes),
            tx_packets: load(&self.tx_packets),
            tx_bytes: load(&self.tx_bytes),
            held: load(&self.held) as i64,
            drops: std::array::from_fn(|reason| load(&self.drops[reason])),
        }
    }
}

/// A copy of a queue's counts, or the sum over several queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received, from the Ethernet header to the end of the packet, without the FCS.
    pub rx_bytes: u64,
    /// Packets handed to the device.
    pub tx_packets: u64,
    /// Bytes handed to the device.
    pub tx_bytes: u64,
    /// Frames in the queue's rings and with the kernel. Each end of a ring port counts what it puts in
    /// and takes out, so only the sum of both tells what lies between them.
    pub held: i64,
    drops: [u64; DropReason::ALL.len()],
}

impl QueueTotals {
    /// Packets dropped for one reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// The reasons that occurred, with their counts.
    pub fn all_drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.into_iter().map(|reason| (reason, self.drops(reason))).filter(|(_, count)| *count > 0)
    }
}

impl std::ops::AddAssign for QueueTotals {
    fn add_assign(&mut self, other: Self) {
        self.rx_packets += other.rx_packets;
        self.rx_bytes += other.rx_bytes;
        self.tx_packets += other.tx_packets;
        self.tx_bytes += other.tx_bytes;
        self.held += other.held;
        for (sum, count) in self.drops.iter_mut().zip(other.drops) {
            *sum += count;
        }
    }
}

/// What one lcore counts since its loop started.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct LcoreCounters {
    pub(crate) busy_cycles: AtomicU64,
    pub(crate) idle_cycles: AtomicU64,
    pub(crate) packets: AtomicU64,
    pub(crate) polls: AtomicU64,
    pub(crate) sleeps: AtomicU64,
}

impl LcoreCounters {
    /// The counts as they are now.
    pub fn totals(&self) -> LcoreTotals {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LcoreTotals {
            busy_cycles: load(&self.busy_cycles),
            idle_cycles: load(&self.idle_cycles),
            packets: load(&self.packets),
            polls: load(&self.polls),
            sleeps: load(&self.sleeps),
        }
    }
}

/// A copy of an lcore's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LcoreTotals {
    /// Cycles of the time-stamp counter in polls that did work.
    pub busy_cycles: u64,
    /// Cycles in polls that found nothing, and asleep.
    pub idle_cycles: u64,
    /// Work that the polls reported, in packets.
    pub packets: u64,
    /// Number of polls.
    pub polls: u64,
    /// How often the lcore slept in poll(2).
    pub sleeps: u64,
}

impl LcoreTotals {
    /// What was counted since an earlier copy.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            busy_cycles: self.busy_cycles - earlier.busy_cycles,
            idle_cycles: self.idle_cycles - earlier.idle_cycles,
            packets: self.packets - earlier.packets,
            polls: self.polls - earlier.polls,
            sleeps: self.sleeps - earlier.sleeps,
        }
    }

    /// The part of the cycles that was spent in polls with work, 0 to 1.
    pub fn busy(&self) -> f64 {
        ratio(self.busy_cycles, self.busy_cycles + self.idle_cycles)
    }

    /// Busy cycles for each packet; 0 if there was none.
    pub fn cycles_per_packet(&self) -> f64 {
        ratio(self.busy_cycles, self.packets)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_in_order_and_named_once() {
        let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        for (number, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
    }

    #[test]
    fn counts_go_beyond_32_bits() {
        let counters = QueueCounters::default();
        counters.add_rx(u64::from(u32::MAX), 1 << 40);
        counters.add_rx(2, 1);
        counters.add_drops(DropReason::TxFull, 3);
        let totals = counters.totals();
        assert_eq!((totals.rx_packets, totals.rx_bytes), ((1 << 32) + 1, (1 << 40) + 1));
        assert_eq!(totals.all_drops().collect::<Vec<_>>(), [(DropReason::TxFull, 3)]);
    }
}
