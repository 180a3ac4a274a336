//! A wire that changes what it carries: two threads between two interfaces, one for each direction.
//!
//! ```text
//!   | left | --> to_right --> | right |
//!   | left | <-- to_left <--- | right |
//! ```
//!
//! Owns: a packet socket on each interface. Never does: answer anything by itself. Invariant: the same seed and the same
//! packets in the same order make the same losses.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{Netns, PacketSocket};

/// What one direction does: it is shown a frame, or `None` when none came for a while, and gives what goes on.
pub type Direction = Box<dyn FnMut(Option<Vec<u8>>, &mut Vec<Vec<u8>>) + Send>;

/// After so long without a frame a direction is asked what it still holds.
const QUIET: Duration = Duration::from_millis(3);

/// A running relay; it ends when dropped.
#[derive(Debug)]
pub struct Relay {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Relays between two interfaces of a namespace. A direction whose interface vanishes ends.
    ///
    /// # Panics
    /// If an interface is not there.
    #[must_use]
    pub fn start(netns: &Netns, left: &str, right: &str, to_right: Direction, to_left: Direction) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        // A packet socket is not shown what is sent by it, so one for both directions makes no circle.
        let left = Arc::new(PacketSocket::new(netns, left));
        let right = Arc::new(PacketSocket::new(netns, right));
        let ways = [(left.clone(), right.clone(), to_right), (right, left, to_left)];
        let threads = ways.into_iter().map(|(from, to, mut direction)| {
            let is_over = is_over.clone();
            thread::spawn(move || {
                // An interface that is gone ends this direction, as a cut wire would.
                let _ = relay(&from, &to, &mut direction, &is_over);
            })
        });
        let threads = threads.collect();
        Self { is_over, threads }
    }
}

fn relay(
    from: &PacketSocket,
    to: &PacketSocket,
    direction: &mut Direction,
    is_over: &AtomicBool,
) -> io::Result<()> {
    let mut out = Vec::new();
    // Relaxed: the flag orders nothing.
    while !is_over.load(Ordering::Relaxed) {
        let frame = from.try_receive(QUIET)?;
        direction(frame, &mut out);
        for frame in out.drain(..) {
            match to.try_send(&frame) {
                // The device has no room, as it happens on any wire.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                result => result?,
            }
        }
    }
    Ok(())
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What a direction did to segments of TCP.
#[derive(Clone, Debug, Default)]
pub struct Damage {
    /// Those that it let pass.
    pub passed: Arc<AtomicU64>,
    /// Those that it lost.
    pub lost: Arc<AtomicU64>,
    /// Those that it let others overtake.
    pub overtaken: Arc<AtomicU64>,
}

/// A direction that carries everything as it is.
#[must_use]
pub fn faithful() -> Direction {
    Box::new(|frame, out| out.extend(frame))
}

/// A direction that loses one in ten segments of TCP, and holds one in ten back until up to three others have overtaken
/// it. Everything else passes, so that nobody waits for an Ethernet address.
#[must_use]
pub fn bad(seed: u64, damage: &Damage) -> Direction {
    let mut random = fastrand::Rng::with_seed(seed);
    let damage = damage.clone();
    let mut held: Vec<(u8, Vec<u8>)> = Vec::new();
    let count = |counter: &AtomicU64| _ = counter.fetch_add(1, Ordering::Relaxed);
    Box::new(move |frame, out| {
        let Some(frame) = frame else {
            out.extend(held.drain(..).map(|(_, frame)| frame));
            return;
        };
        if tcp_at(&frame).is_none() {
            return out.push(frame);
        }
        match random.u8(0..10) {
            0 => return count(&damage.lost),
            1 => {
                count(&damage.overtaken);
                return held.push((random.u8(1..=3), frame));
            }
            _ => count(&damage.passed),
        }
        out.push(frame);
        for (left, _) in &mut held {
            *left -= 1;
        }
        out.extend(held.extract_if(.., |(left, _)| *left == 0).map(|(_, frame)| frame));
    })
}

/// Where the TCP header of an untagged frame lies, if it has one.
fn tcp_at(frame: &[u8]) -> Option<usize> {
    transport_at(frame, 6)
}

/// Where the header of a transport protocol lies, in an untagged frame without IPv6 extension headers.
#[must_use]
pub fn transport_at(frame: &[u8], protocol: u8) -> Option<usize> {
    match frame.get(12..14)? {
        [0x08, 0x00] if *frame.get(23)? == protocol => Some(14 + usize::from(frame[14] & 0xf) * 4),
        [0x86, 0xdd] if *frame.get(20)? == protocol => Some(14 + 40),
        _ => None,
    }
}
