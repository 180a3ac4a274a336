//! Packets that are larger than a frame: runs of frames, and of descriptors.
//!
//! Owns: nothing of its own; it is the part of `queue.rs` that one-frame packets never come to. Never does: take
//! a packet apart. Invariant: what lies in the burst and what is published to the kernel are whole packets.

use sheafio_core::DropReason;
use sheafio_mempool::{Burst, Frame, METADATA_BYTES, PoolCache};

use super::{Kernel, XskQueue, requests};
use crate::af_xdp::rings::{CONTINUES, Desc};

impl<K: Kernel> XskQueue<K> {
    /// As `receive`, where some packet has several frames, or some descriptor is in no frame: such a frame is not
    /// touched again. A packet that begins within the burst's limit is
    /// received whole, also beyond the limit; one whose end is not in the ring yet stays there.
    #[cold]
    #[inline(never)]
    pub(super) fn receive_runs(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        // What this call has put into the fill ring may be what comes back.
        self.note_filled();
        let limit = burst.room();
        let spare = burst.spare_over_limit();
        let available = self.rx.available(spare.len());
        let (geometry, mut run) = (self.geometry, Run::default());
        run.is_rest = self.rest_to_drop != 0;
        // Descriptors and frames of whole packets so far; `run` is what comes behind them.
        let (mut taken, mut kept, mut packets, mut bytes, mut lost) = (0, 0, 0, 0, 0);
        // Frames that come back and don't go to the burst.
        let (held, mut doubles) = (&mut self.held, 0);
        let mut drop_frame = |cache: &mut PoolCache, frame: Frame| {
            let index = geometry.index_of(geometry.addr(&frame));
            if held.as_mut().is_none_or(|held| held.remove(index)) {
                cache.free(frame);
            } else {
                std::mem::forget(frame); // As in `drop_doubled`.
                doubles += 1;
            }
        };
        let mut invalid = 0;
        self.rx.peek_each(available, |at, desc| {
            if taken >= limit {
                return;
            }
            if geometry.is_packet(desc.addr, desc.len()) {
                // SAFETY: the descriptor was just checked, and is consumed once, below; what is written here and
                // not committed is forgotten, and made again when it is consumed.
                let mut frame = unsafe { geometry.frame(desc.addr, desc.len()) };
                frame.set_continues(desc.continues());
                spare[kept + run.frames].write(frame);
                run.frames += 1;
                run.bytes += u64::from(desc.len());
            } else {
                run.lost += 1;
            }
            if desc.continues() {
                return;
            }
            taken = at + 1;
            lost += run.lost;
            if run.lost == 0 && !run.is_rest {
                kept += run.frames;
                packets += 1;
                bytes += run.bytes;
            } else {
                for entry in &spare[kept..kept + run.frames] {
                    // SAFETY: written just above for this packet; the descriptors are consumed below.
                    drop_frame(cache, unsafe { entry.assume_init_read() });
                }
                invalid += u64::from(!run.is_rest);
            }
            run = Run::default();
            self.rest_to_drop = 0;
        });
        if taken == 0 && (available == Burst::MAX || available as u32 == self.rx.slots()) {
            // No burst, or not even the ring, can hold this packet.
            for entry in &spare[..run.frames] {
                // SAFETY: as above.
                drop_frame(cache, unsafe { entry.assume_init_read() });
            }
            (taken, lost) = (available, run.lost);
            invalid += u64::from(!run.is_rest);
            self.rest_to_drop = u64::from(CONTINUES) << 32;
        }
        self.rx.skip(taken);
        self.rx.release();
        // SAFETY: the first `kept` entries were written above, each for a descriptor that is consumed.
        unsafe { burst.commit(kept) };
        self.with_rx = self.with_rx.wrapping_add(doubles).wrapping_sub(taken as u32);
        self.lost += lost;
        self.counters.add_rx(packets as u64, bytes);
        self.counters.add_drops(DropReason::RxInvalid, invalid);
        packets
    }

    /// As `send`, where some packet has several frames or none with bytes, or something is asked for with it, or the
    /// kernel looks for that in front of each; or some frame is of another pool, which is refused before anything is
    /// changed. For that all of the burst is looked at, for what is beyond the room may be sent once others are dropped.
    #[cold]
    #[inline(never)]
    pub(super) fn send_runs(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        let addrs = burst.iter().fold(0, |addrs, frame| addrs | self.geometry.addr(frame));
        assert!(
            self.geometry.contains(addrs),
            "a frame of another pool was given to tx_burst; open the port with the frame's own pool"
        );
        self.drop_unsendable(cache, burst);
        let room = self.tx.slots().saturating_sub(self.with_tx) as usize;
        let room = self.tx.free(burst.len().min(room));
        let (mut count, mut packets, mut bytes) = (0, 0, 0);
        for packet in burst.packets() {
            if count + packet.len() > room {
                break;
            }
            count += packet.len();
            packets += 1;
            bytes += packet.iter().map(|frame| frame.len() as u64).sum::<u64>();
        }
        self.see_to_requests(burst, count);
        let geometry = self.geometry;
        self.tx.write_each(count, |at| {
            let frame = &burst[at];
            let options = requests::option(frame) | if frame.continues() { CONTINUES } else { 0 };
            Desc::new(geometry.addr(frame), frame.len() as u32, options)
        });
        self.tx.publish();
        burst.forget_front(count);
        self.with_tx += count as u32;
        self.tx_waits |= count > 0;
        self.counters.add_tx(packets as u64, bytes);
        packets
    }

    /// Frees what can't be sent any more.
    #[cold]
    pub(super) fn drop_burst(&mut self, cache: &mut PoolCache, burst: &mut Burst) -> usize {
        let dropped = burst.packet_count();
        cache.free_burst(burst);
        self.counters.add_drops(DropReason::DeviceGone, dropped as u64);
        self.publish_held();
        0
    }

    /// Frees and counts packets that could never be sent from here: the kernel would refuse them, or wait for
    /// their end, or they would stay in the burst for ever.
    fn drop_unsendable(&mut self, cache: &mut PoolCache, burst: &mut Burst) {
        let most = self.kernel.frames_a_packet().min(self.tx.slots() as usize);
        let headroom = if self.looks_for_requests == 0 { 0 } else { METADATA_BYTES };
        let counters = &self.counters;
        burst.retain_packets(cache, |packet| match unsendable(packet, most, headroom) {
            None => true,
            Some(reason) => {
                counters.add_drops(reason, 1);
                false
            }
        });
    }
}

/// A packet whose end has not been seen yet.
#[derive(Default)]
struct Run {
    frames: usize,
    bytes: u64,
    /// Descriptors that are in no frame.
    lost: u32,
    /// Its beginning was dropped and counted; this is the rest.
    is_rest: bool,
}

/// Why a packet could never be sent; `most`: frames of a packet; `headroom`: bytes that the kernel wants in front of
/// each (xp_aligned_validate_desc in net/xdp/xsk_queue.h, Linux 6.8).
fn unsendable(packet: &[Frame], most: usize, headroom: usize) -> Option<DropReason> {
    if packet.iter().any(|frame| frame.is_empty()) {
        // The kernel would refuse the descriptor and never complete it.
        Some(DropReason::TxEmpty)
    } else if packet.last().is_some_and(Frame::continues) {
        Some(DropReason::TxNoEnd)
    } else if packet.len() > most {
        Some(DropReason::TxTooLarge)
    } else if packet.iter().any(|frame| frame.headroom() < headroom) {
        Some(DropReason::TxNoHeadroom)
    } else {
        None
    }
}
