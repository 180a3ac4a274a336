//! The loops of the data path: what lies in rings, bursts and sheaves becomes each other.
//!
//! ```text
//!   fill:    index --> address        receive:  descriptor --> frame      both are two words:
//!   reclaim: address --> index        send:     frame --> descriptor      an address, and a length with marks
//! ```
//! Owns: nothing. Never does: decide, or branch on what it moves; each loop tells what it saw of the burst as a whole,
//! and its caller looks at that before anything counts. Invariant: memory that the kernel may write is read raw, and
//! once: what is told of a burst is true of what was moved.

mod pair;
#[cfg(all(test, not(loom)))]
mod tests;

use std::mem::MaybeUninit;

use sheafio_mempool::{Frame, FrameIndex, Geometry};

use self::pair::Pair;
use crate::{af_xdp::rings::Desc, spsc::Slots};

#[cfg(not(target_arch = "x86_64"))]
type Words = pair::Array;
/// The form that the data path uses here.
#[cfg(target_arch = "x86_64")]
type Words = pair::Sse2;

/// What the packets of a burst are like, all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The sum of their lengths, if there is no doubt.
    pub(super) bytes: u64,
    /// 0 if each is a frame of its own, with nothing to be seen to.
    pub(super) doubts: u64,
}

impl Seen {
    /// In the doubts of frames that are to be sent: one is of another pool.
    pub(super) const FOREIGN: u64 = 1;

    fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes.wrapping_add(other.bytes), doubts: self.doubts | other.doubts }
    }
}

/// Writes the addresses of frames to the fill ring.
///
/// # Safety
/// `from` must be as many indices as there are slots, which must be the producer's.
#[inline(always)]
pub(super) unsafe fn fill(geometry: &Geometry, from: *const u32, to: Slots<u64>) {
    // SAFETY: as the caller says.
    to.visit(
        move |to, at, count| unsafe { fill_run::<Words>(geometry, from.add(at), to, count) },
        |(), ()| (),
    );
}

/// Makes handles of received packets. Without doubt each is a packet without options, within one frame of the UMEM: all
/// are looked at as if they had the bits of all addresses and the greatest length, which is so, or less, where they lie
/// alike in their frames. Where there is doubt, [`are_packets`] knows.
///
/// # Safety
/// The slots must be the consumer's, and `to` must be writable for as many frames.
#[inline(always)]
pub(super) unsafe fn receive(geometry: &Geometry, from: Slots<Desc>, to: *mut MaybeUninit<Frame>) -> Seen {
    // SAFETY: as the caller says.
    from.visit(
        move |from, at, count| unsafe { receive_run::<Words>(geometry, from, to.add(at), count) },
        Seen::and,
    )
}

/// Whether what [`receive`] made are handles of packets without options, each within one frame of the UMEM.
///
/// # Safety
/// There must be `count` of them.
#[cold]
#[inline(never)]
pub(super) unsafe fn are_packets(
    geometry: &Geometry,
    handles: *const MaybeUninit<Frame>,
    count: usize,
) -> bool {
    let [base, empty] = geometry.frame_over_desc();
    (0..count).all(|at| {
        // SAFETY: the caller says that these were written, as two words each.
        let [start, meta] = unsafe { handles.add(at).cast::<[u64; 2]>().read() };
        let (addr, word) = (start.wrapping_sub(base), meta.wrapping_sub(empty));
        word >> 32 == 0 && geometry.is_packet(addr, word as u32)
    })
}

/// Writes the descriptors of frames, without options. Doubts are [`Seen::FOREIGN`] and
/// marks of frames ([`Frame::CONTINUES`] and its like).
///
/// # Safety
/// `from` must be as many frames as there are slots, which must be the producer's.
#[inline(always)]
pub(super) unsafe fn send(geometry: &Geometry, from: *const Frame, to: Slots<Desc>) -> Seen {
    // SAFETY: as the caller says.
    to.visit(move |to, at, count| unsafe { send_run::<Words>(geometry, from.add(at), to, count) }, Seen::and)
}

/// Writes the indices of completed frames to a sheaf. Returns the bitwise or of their addresses.
///
/// # Safety
/// The slots must be the consumer's, and `to` must be writable for as many indices.
#[inline(always)]
pub(super) unsafe fn reclaim(geometry: &Geometry, from: Slots<u64>, to: *mut MaybeUninit<u32>) -> u64 {
    from.visit(
        // SAFETY: as the caller says.
        move |from, at, count| unsafe { reclaim_run::<Words>(geometry, from, to.add(at), count) },
        |first, second| first | second,
    )
}

/// # Safety
/// `from` must be readable and `to` writable for `count` values, as in each function here.
#[inline(always)]
unsafe fn fill_run<P: Pair>(geometry: &Geometry, from: *const u32, to: *mut u64, count: usize) {
    let shift = geometry.addr_shift();
    let fours = count / 4;
    // SAFETY: every value is below `count`.
    unsafe {
        for at in (0..fours).map(|four| 4 * four) {
            let [first, second] = P::load(from.add(at)).widen(shift);
            first.store(to.add(at));
            second.store(to.add(at + 2));
        }
        for at in 4 * fours..count {
            to.add(at).write(geometry.addr_of(FrameIndex(*from.add(at))));
        }
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn receive_run<P: Pair>(
    geometry: &Geometry,
    from: *const Desc,
    to: *mut MaybeUninit<Frame>,
    count: usize,
) -> Seen {
    let [base, empty] = geometry.frame_over_desc();
    let over = P::new(base, empty);
    let (mut any, mut bytes, mut longest) = (P::new(0, 0), P::new(0, 0), P::new(0, 0));
    for at in 0..count {
        // SAFETY: every value is below `count`.
        let desc = unsafe { P::load(from.add(at)) };
        // SAFETY: as above.
        unsafe { (desc + over).store(to.add(at)) };
        any = any | desc;
        bytes = bytes + desc;
        longest = longest.most_second(desc);
    }
    // Below 2^15 the greatest length is one.
    let is_packet = geometry.is_packet(any.first(), longest.second() as u32);
    Seen { bytes: bytes.second(), doubts: any.second() >> 15 | u64::from(!is_packet) }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn send_run<P: Pair>(geometry: &Geometry, from: *const Frame, to: *mut Desc, count: usize) -> Seen {
    let [base, _] = geometry.frame_over_desc();
    let (base, desc_bits) = (P::new(base, 0), P::new(u64::MAX, u64::from(u32::MAX)));
    // No packet is longer than a frame, so the least length is below 2^15.
    let (mut words, mut bytes, mut least) = (P::new(0, 0), P::new(0, 0), P::new(0, 1));
    for at in 0..count {
        // SAFETY: every value is below `count`.
        let frame = unsafe { P::load(from.add(at)) } - base;
        let desc = frame & desc_bits;
        // SAFETY: as above.
        unsafe { desc.store(to.add(at)) };
        words = words | frame;
        bytes = bytes + desc;
        least = least.least_second(desc);
    }
    let mut doubts = words.second() & (Frame::CONTINUES | Frame::TX_METADATA);
    doubts |= u64::from(!geometry.contains(words.first())) * Seen::FOREIGN;
    doubts |= if least.second() == 0 { Frame::EMPTY } else { 0 };
    Seen { bytes: bytes.second(), doubts }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn reclaim_run<P: Pair>(
    geometry: &Geometry,
    from: *const u64,
    to: *mut MaybeUninit<u32>,
    count: usize,
) -> u64 {
    let shift = geometry.addr_shift();
    let (mut pairs, mut addrs) = (P::new(0, 0), 0);
    let fours = count / 4;
    // SAFETY: every value is below `count`.
    unsafe {
        for at in (0..fours).map(|four| 4 * four) {
            let [first, second] = [P::load(from.add(at)), P::load(from.add(at + 2))];
            P::narrow([first, second], shift).store(to.add(at));
            pairs = pairs | (first | second);
        }
        for at in 4 * fours..count {
            let addr = from.add(at).read();
            to.add(at).write(MaybeUninit::new(geometry.index_within(addr)));
            addrs |= addr;
        }
    }
    addrs | pairs.either()
}
