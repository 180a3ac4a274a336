//! What an lcore of the server counts.
//!
//! Owns: the counters. Never does: an atomic read-modify-write for a request. Invariant: one thread writes a block, any
//! may read it.

use sheafio_mempool::sync::{AtomicU64, Ordering, add};

/// What is counted, in the order in which it is printed; `drops` begin at `FlowsRefused`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Count {
    Transactions,
    RxBytes,
    TxBytes,
    Accepted,
    Closed,
    FlowsRefused,
    Resets,
    Cut,
    AcceptErrors,
    ReceiveErrors,
    SendErrors,
    NoBuffer,
    UdpTooLarge,
    UdpLoop,
    UdpGroup,
    UdpPortZero,
    UdpSendErrors,
}

impl Count {
    const COUNT: usize = 17;
    /// Those that are shown as drops, with their names.
    pub(super) const DROPS: [(Self, &'static str); 12] = [
        (Self::FlowsRefused, "flows_refused"),
        (Self::Resets, "resets"),
        (Self::Cut, "cut"),
        (Self::AcceptErrors, "accept_errors"),
        (Self::ReceiveErrors, "receive_errors"),
        (Self::SendErrors, "send_errors"),
        (Self::NoBuffer, "no_buffer"),
        (Self::UdpTooLarge, "udp_too_large"),
        (Self::UdpLoop, "udp_loop"),
        (Self::UdpGroup, "udp_group"),
        (Self::UdpPortZero, "udp_port_zero"),
        (Self::UdpSendErrors, "udp_send_errors"),
    ];
}

const _: () = assert!(Count::UdpSendErrors as usize + 1 == Count::COUNT);

/// One lcore's counters, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters([AtomicU64; Count::COUNT]);

impl Counters {
    #[inline]
    pub(super) fn add(&self, count: Count, number: u64) {
        add(&self.0[count as usize], number);
    }

    /// The counts as they are now.
    pub(super) fn totals(&self) -> Totals {
        // Relaxed: counters order nothing.
        Totals(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

/// A copy of the counts, or their sum over several lcores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals([u64; Count::COUNT]);

impl Totals {
    pub(super) fn of(self, count: Count) -> u64 {
        self.0[count as usize]
    }
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }
}
