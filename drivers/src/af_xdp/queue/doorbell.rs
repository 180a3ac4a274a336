//! When the kernel is woken for the fill ring, and kicked for the TX ring.
//!
//! Owns: nothing of its own; it is the part of `queue.rs` that makes system calls. Never does: move packets. Invariant:
//! while the TX ring holds packets that the kernel has not taken, `tx_waits` is true, so that the next call looks again.

use sheafio_core::DropReason;

use super::{Kernel, Wake, XskQueue};

/// How long the kernel is left alone after it said [`Wake::Later`], in nanoseconds. Not a number of polls: an lcore
/// that sleeps between them would leave a link that is up again unused for as long.
const BACKOFF_NS: u64 = 1_000_000;

/// Receptions of nothing between two looks at the clock. Few, as an lcore may sleep for 10 ms in each; a look at the clock
/// costs as much as one or two of them.
pub(super) const QUIET_POLLS: u32 = 64;
/// The time between two questions whether the device is still there, in nanoseconds; each is a system call.
const LOOK_NS: u64 = 1_000_000_000;

impl<K: Kernel> XskQueue<K> {
    /// Nothing was received: now and then, looks whether the device is still there.
    #[inline(always)]
    pub(super) fn found_nothing(&mut self) {
        let fill = &self.fill;
        self.kernel.found_nothing(|| fill.unconsumed());
        if K::GOES_SILENTLY {
            self.quiet_polls -= 1;
            if self.quiet_polls == 0 {
                self.look_for_device();
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn look_for_device(&mut self) {
        self.quiet_polls = QUIET_POLLS;
        let now = self.kernel.now_ns();
        if self.gone || now < self.look_again_ns {
            return;
        }
        self.look_again_ns = now + LOOK_NS;
        if self.kernel.is_gone() {
            self.lose_device();
        }
    }

    /// Wakes the kernel if it waits for frames in the fill ring.
    #[inline(always)]
    pub(super) fn wake(&mut self) {
        if self.fill.needs_wakeup() && !self.gone {
            self.wake_kernel();
        }
    }

    /// Out of line, as what follows costs a system call.
    #[inline(never)]
    fn wake_kernel(&mut self) {
        if self.wake_again_ns > 0 && self.kernel.now_ns() < self.wake_again_ns {
            return;
        }
        self.wake_again_ns = 0;
        match self.kernel.wake_rx() {
            Wake::Done | Wake::Dropped => {}
            Wake::Later => self.wake_again_ns = self.kernel.now_ns() + BACKOFF_NS,
            Wake::Gone => self.lose_device(),
        }
    }

    /// Kicks the kernel if it wants to be. A flag that was raised just after we looked is seen by
    /// the next call, which comes because `tx_waits` stays true until the ring is empty; so a kick
    /// that was left out is never lost.
    #[inline(always)]
    pub(super) fn kick(&mut self) {
        if self.gone {
            return;
        }
        if self.tx.needs_wakeup() {
            self.kick_kernel();
        }
        self.tx_waits = self.tx.unconsumed() > 0;
    }

    /// Out of line, as what follows costs a system call. Cold says no more here than that the straight path is laid out
    /// without it: counted in instructions, that is best for this one and not for `wake_kernel`.
    #[cold]
    #[inline(never)]
    fn kick_kernel(&mut self) {
        if self.kick_again_ns > 0 && self.kernel.now_ns() < self.kick_again_ns {
            return;
        }
        self.kick_again_ns = 0;
        let waited = self.tx.unconsumed();
        let outcome = self.kernel.kick_tx();
        // A packet that it dropped is the last one that the kernel took. Kernels from 6.17 on publish that at once, or
        // only when they send another one or come to the end of what they have seen of the ring (__xsk_generic_xmit and
        // xskq_cons_peek_desc, net/xdp): so that the index moves in this kick may be for packets before it. When it moves
        // and none was dropped behind, it speaks of all that were taken. Where the kernel tells at once, this costs
        // frames only if the link then goes down for good: what is unsent at close is retired.
        self.tx_index_lags = outcome == Wake::Dropped || self.tx_index_lags && self.tx.unconsumed() == waited;
        self.counters.add_drops(DropReason::TxDropped, u64::from(outcome == Wake::Dropped));
        // What it has left poll(2) would send as well, in copy mode; before 6.17 what is left is not told.
        self.counters.set_sends_in_poll(self.kernel.tx_ring_is_exact() && self.tx.unconsumed() > 0);
        match outcome {
            Wake::Done | Wake::Dropped => {}
            Wake::Later => self.kick_again_ns = self.kernel.now_ns() + BACKOFF_NS,
            Wake::Gone => self.lose_device(),
        }
    }

    /// From now on the queue makes no system calls, and tells whoever asks that its device is gone.
    #[cold]
    pub(super) fn lose_device(&mut self) {
        self.gone = true;
        self.counters.set_gone();
        self.counters.set_sends_in_poll(false);
    }

    /// Whether a kick should wait for more packets to share it.
    #[inline(always)]
    pub(super) fn postpones(&mut self) -> bool {
        let postpones = self.postpone > 0 && self.tx.unconsumed() < self.kick_batch;
        self.postpone = if postpones { self.postpone - 1 } else { 0 };
        postpones
    }
}
