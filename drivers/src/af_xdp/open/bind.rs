//! A socket for each queue of a port, in the copy mode that is best for it.
//!
//! Owns: the choice of the copy mode, and of packets in several frames. Never does: make a socket; that is `socket.rs`'s
//! part. Invariant: all queues of a port have the same copy mode, and share one registration of the packet memory.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use sheafio_mempool::Mempool;

use super::warnings::{copied_for_frags, too_large, was_busy};
use crate::{
    DriverError,
    af_xdp::{
        Config, CopyMode, Frags, Mode, QueueSet,
        driver::{has_zero_copy, zero_copy_frames},
        interface::Interface,
        owner,
        rings::Rings,
        sizes::fits_one_frame,
        socket::{Ask, Socket, Umem},
        umem,
    },
};

/// Sockets that are bound, in the order of the queues.
pub(super) struct Bound {
    pub(super) sockets: Vec<(Arc<Socket>, Rings)>,
    pub(super) zero_copy: bool,
    /// The kernel knows requests in front of packets that are sent.
    pub(super) tx_metadata: bool,
}

impl Bound {
    /// Binds a socket to each queue that is asked for.
    pub(super) fn bind(
        interface: &Interface,
        config: &Config,
        pool: &'static Mempool,
        mode: Mode,
        warnings: &mut Vec<String>,
    ) -> Result<Self, DriverError> {
        let ask = ask(interface, config, pool, mode);
        let bound = Self::in_best_mode(interface, config, pool, ask, warnings)?;
        let frames = bound.sockets.iter().map(|(socket, _)| socket.frames_a_packet).min().unwrap_or(1);
        let warning = too_large(interface, config.frags, pool.geometry(), frames);
        let warning = warning.filter(|warning| !warnings.contains(warning)); // As before, in generic mode.
        warnings.extend(warning);
        Ok(bound)
    }

    /// Binds without copies where that is possible and does no harm.
    fn in_best_mode(
        interface: &Interface,
        config: &Config,
        pool: &'static Mempool,
        ask: Ask,
        warnings: &mut Vec<String>,
    ) -> Result<Self, DriverError> {
        let queues = config.queues.numbers();
        let copied = Ask { copy: CopyMode::Copy, ..ask };
        let claims = ask.copy == CopyMode::Auto && has_zero_copy(interface) == Some(true);
        let direct = if claims { without_copies(ask) } else { None };
        let bound = match Self::as_asked(interface, queues, pool, direct.unwrap_or(ask)) {
            // In its own choice the kernel would go on like this whatever the driver said, and not tell what.
            Err(error @ DriverError::Bind { .. }) if direct.is_some() => {
                let bound = Self::as_asked(interface, queues, pool, copied)?;
                warnings.push(format!("{error}; goes on in copy mode, which is slower"));
                bound
            }
            // It is not another socket's that can be seen: then the driver may be what is busy.
            Err(DriverError::Busy { queue, waited_ms, .. })
                if direct.is_some() && !owner::of_queue(interface.index, queue).is_seen() =>
            {
                let bound = Self::as_asked(interface, queues, pool, copied)?;
                warnings.push(was_busy(interface, queue, waited_ms));
                bound
            }
            // The first queue may have got zero-copy, which the kernel then wants of all.
            Err(error) if ask.copy == CopyMode::Auto && queues.len() > 1 && is_of_mode(&error) => {
                let bound = Self::as_asked(interface, queues, pool, copied)?;
                warnings.push(format!("{error}; goes on in copy mode, which is slower"));
                bound
            }
            bound => bound?,
        };
        if !bound.zero_copy {
            let has_frags = bound.sockets.iter().any(|(socket, _)| socket.frames_a_packet > 1);
            if claims && direct.is_none() {
                warnings.push(copied_for_frags(interface, has_frags, pool.geometry()));
            }
            return Ok(bound);
        }
        let is_asked_for = config.copy == CopyMode::ZeroCopy;
        let harm = match (interface.splits_packets(pool.geometry()), interface.reuses_frames()) {
            (Some(error), _) if is_asked_for => return Err(error),
            (Some(error), _) => format!("{error}; goes on in copy mode, which is slower"),
            (None, Some(warning)) if is_asked_for => {
                warnings.push(warning);
                return Ok(bound);
            }
            (None, Some(warning)) => format!("{warning}. Goes on in copy mode"),
            (None, None) => return Ok(bound),
        };
        drop(bound); // The queues must be free for the next sockets.
        warnings.push(harm);
        Self::as_asked(interface, queues, pool, copied)
    }

    /// Binds in one copy mode, or in the kernel's choice of it. The sockets share one registration of the packet memory,
    /// that of another port if there is one that fits.
    fn as_asked(
        interface: &Interface,
        queues: &[u32],
        pool: &'static Mempool,
        ask: Ask,
    ) -> Result<Self, DriverError> {
        let open = |queue, umem: &Umem<'_>| Socket::open(interface, queue, pool.geometry(), umem, ask);
        let of_another_port = umem::shareable(pool, ask, has_zero_copy(interface).unwrap_or(true));
        let mut sockets: Vec<(Arc<Socket>, Rings)> = Vec::new();
        for &queue in queues {
            let (socket, rings) = match (sockets.first(), &of_another_port) {
                (Some((first, _)), _) => open(queue, &Umem::Share(&Arc::downgrade(first)))?,
                (None, Some(other)) => match open(queue, &Umem::Share(other)) {
                    // The kernel would force its copy mode upon this device, which can't do that; or the other is closed by
                    // now.
                    Err(DriverError::Bind { .. }) => open(queue, &Umem::Register)?,
                    shared => shared?,
                },
                (None, None) => open(queue, &Umem::Register)?,
            };
            let socket = Arc::new(socket);
            if sockets.is_empty() {
                umem::note(pool, &socket);
            }
            sockets.push((socket, rings));
        }
        let zero_copy = sockets.iter().all(|(socket, _)| socket.zero_copy);
        let tx_metadata = sockets.iter().all(|(socket, _)| socket.tx_metadata);
        Ok(Self { sockets, zero_copy, tx_metadata })
    }

    /// The sockets with the numbers of their queues.
    pub(super) fn by_queue<'a>(
        &'a self,
        queues: &'a QueueSet,
    ) -> impl Iterator<Item = (u32, BorrowedFd<'a>)> {
        queues.numbers().iter().copied().zip(self.sockets.iter().map(|(socket, _)| socket.as_fd()))
    }
}

/// How each of the sockets should be.
fn ask(interface: &Interface, config: &Config, pool: &'static Mempool, mode: Mode) -> Ask {
    // Generic mode reaches no zero-copy queue: its packets come from the kernel's own buffers.
    let copy = match (mode, config.copy) {
        (Mode::Generic, CopyMode::Auto) => CopyMode::Copy,
        (_, copy) => copy,
    };
    let frags = match config.frags {
        Frags::Auto if fits_one_frame(interface.mtu, pool.geometry().data_bytes()) => Frags::No,
        frags => frags,
    };
    Ask {
        ring: config.ring,
        copy,
        frags,
        metadata: config.metadata,
        busy_poll: config.busy_poll,
        driver_frames: zero_copy_frames(interface),
        falls_back: false,
    }
}

/// The same without copies, and nothing else: where that is refused, the kernel says why. `None`: packets may need several
/// frames, and the driver has that in copy mode only, as far as it says; which of the two it is is the kernel's choice.
fn without_copies(ask: Ask) -> Option<Ask> {
    let frags = match ask.frags {
        Frags::Auto if ask.driver_frames < 2 => return None,
        // The kernel would rather copy than drop the large ones.
        Frags::Auto => Frags::Yes,
        asked => asked,
    };
    Some(Ask { copy: CopyMode::ZeroCopy, frags, falls_back: true, ..ask })
}

/// Whether a queue can't be bound because of the mode that was asked for, or that another queue has.
fn is_of_mode(error: &DriverError) -> bool {
    let DriverError::Bind { source, .. } = error else { return false };
    matches!(source.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_without_copies_loses_no_large_packet() {
        let direct = |frags, driver_frames| {
            let ask = Ask {
                ring: 64,
                copy: CopyMode::Auto,
                frags,
                metadata: false,
                busy_poll: None,
                driver_frames,
                falls_back: false,
            };
            without_copies(ask).map(|ask| {
                assert!(ask.copy == CopyMode::ZeroCopy && ask.falls_back);
                ask.frags
            })
        };
        assert_eq!((direct(Frags::No, 1), direct(Frags::No, 8)), (Some(Frags::No), Some(Frags::No)));
        assert_eq!((direct(Frags::Yes, 1), direct(Frags::Yes, 8)), (Some(Frags::Yes), Some(Frags::Yes)));
        assert_eq!((direct(Frags::Auto, 1), direct(Frags::Auto, 8)), (None, Some(Frags::Yes)));
    }
}
