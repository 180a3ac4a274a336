//! Which registration of the packet memory a port uses: a new one, or that of a port that is open already.
//!
//! Owns: a list of the sockets that have registered a pool's memory in this process. Never does: keep one open.
//! Invariant: a shared registration gives a port what it would have had alone: the kernel gives all sockets of a
//! registration one copy mode, and packets in several frames and requests with packets to all of them or to none.
//!
//! Sharing counts the memory once against the limit on locked memory, and pins it once.

use std::sync::{Arc, Mutex, Weak};

use sheafio_mempool::Mempool;

use super::{
    CopyMode, Frags,
    socket::{Ask, Socket},
};

/// Sockets that have registered memory, and the address of their pool.
static REGISTERED: Mutex<Vec<(usize, Weak<Socket>)>> = Mutex::new(Vec::new());

/// Notes a socket that has registered the memory of a pool.
pub(super) fn note(pool: &'static Mempool, socket: &Arc<Socket>) {
    let mut registered = REGISTERED.lock().expect("no panic under this lock");
    registered.retain(|(_, socket)| socket.strong_count() > 0);
    registered.push((address(pool), Arc::downgrade(socket)));
}

/// Sockets whose registration of the pool's memory a port can share; the kernel may still refuse it.
/// `has_zero_copy`: whether the port's driver can do without copies, as far as is known.
pub(super) fn shareable(pool: &'static Mempool, ask: Ask, has_zero_copy: bool) -> Option<Weak<Socket>> {
    let registered = REGISTERED.lock().expect("no panic under this lock");
    let is_fit = |socket: &Socket| {
        let is_same_copy = match (ask.copy, socket.zero_copy) {
            (CopyMode::Copy, is_zero_copy) => !is_zero_copy,
            (CopyMode::ZeroCopy, is_zero_copy) => is_zero_copy,
            (CopyMode::Auto, is_zero_copy) => is_zero_copy == has_zero_copy,
        };
        // What the kernel made of the same wishes then, it would make of them now.
        let has_same_frags = (ask.frags != Frags::No) == (socket.ask.frags != Frags::No);
        let can_not = ask.frags == Frags::Yes && socket.frames_a_packet == 1;
        is_same_copy && has_same_frags && !can_not && ask.metadata == socket.ask.metadata
    };
    let mut of_pool = registered.iter().filter(|(of, _)| *of == address(pool));
    let fit = of_pool.find(|(_, socket)| socket.upgrade().is_some_and(|socket| is_fit(&socket)));
    fit.map(|(_, socket)| socket.clone())
}

fn address(pool: &'static Mempool) -> usize {
    std::ptr::from_ref(pool).addr()
}
