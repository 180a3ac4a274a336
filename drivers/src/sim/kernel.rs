//! The simulated kernel: the other side of the four rings.
//!
//! Owns: the kernel's views of the rings and the frames it has taken. Never does: run by itself; it
//! works when the queue polls (`tick`) or wakes or kicks it. Invariant: as in the real one, a frame
//! from the fill ring ends in the RX ring, one from the TX ring in the completion ring.

use std::{
    collections::VecDeque,
    os::fd::RawFd,
    slice,
    sync::{Arc, Mutex},
    time::Instant,
};

use fastrand::Rng;
use sheafio_core::QueueCounters;
use sheafio_mempool::{Geometry, XDP_HEADROOM_BYTES};

use super::{Config, Faults, SimStatistics, wire::Wire};
use crate::{
    af_xdp::{
        queue::{Kernel, Wake},
        rings::{CONTINUES, Desc, Rings},
    },
    spsc::{Consumer, Producer},
};

/// Packets that arrive in one poll, at most; 1 to 4 times as many after a stop.
const ARRIVALS: usize = 32;
/// What the real kernel sends for one kick in copy mode, unless told otherwise (`TX_BATCH_SIZE`, net/xdp/xsk.c).
pub(super) const TX_BATCH: u32 = 32;
/// What a call of `rx_burst` or `tx_burst` takes, as far as the clock that it is told goes.
const CALL_NS: u64 = 10_000;
/// Polls that a late completion takes, at most.
const LATE_POLLS: u64 = 50;

/// A kernel that is played.
pub struct SimKernel {
    fill: Consumer<u64>,
    rx: Producer<Desc>,
    tx: Consumer<Desc>,
    completion: Producer<u64>,
    geometry: Geometry,
    wire: Arc<Mutex<Wire>>,
    random: Rng,
    faults: Faults,
    remove_at: Option<u64>,
    tx_budget: u32,
    frames_a_packet: usize,
    now: u64,
    /// Frames from the fill ring that no packet was put into yet.
    stash: Vec<u64>,
    /// The beginning of a packet whose other frames were not in the batch.
    unsent: Vec<u8>,
    /// Sent frames and the poll in which they are complete.
    sent: VecDeque<(u64, u64)>,
    /// The kernel does nothing until this poll.
    stopped_until: u64,
    fill_woken: bool,
    attached: bool,
    removed: bool,
}

impl SimKernel {
    pub(super) fn new(
        config: &Config,
        number: u32,
        rings: &Rings,
        geometry: Geometry,
        wire: Arc<Mutex<Wire>>,
    ) -> Self {
        let kernel = Self {
            fill: Consumer::new(rings.fill.clone()),
            rx: Producer::new(rings.rx.clone()),
            tx: Consumer::new(rings.tx.clone()),
            completion: Producer::new(rings.completion.clone()),
            geometry,
            wire,
            random: Rng::with_seed(config.seed.wrapping_mul(1009).wrapping_add(u64::from(number))),
            faults: config.faults,
            remove_at: config.remove_at,
            tx_budget: config.tx_budget,
            frames_a_packet: config.frames_a_packet(),
            now: 0,
            stash: Vec::new(),
            unsent: Vec::new(),
            sent: VecDeque::new(),
            stopped_until: 0,
            fill_woken: false,
            attached: true,
            removed: false,
        };
        // As in copy mode: TX always wants its kick.
        kernel.tx.set_needs_wakeup(true);
        kernel.fill.set_needs_wakeup(config.faults.wakeup);
        kernel
    }

    /// Takes a frame for a packet: one at a time, as copy mode does. With fault `wakeup`, a ring full
    /// at each wake-up, as drivers in zero-copy mode do; those keep what they have at the end.
    fn take_frame(&mut self) -> Option<u64> {
        if self.stash.is_empty() && (!self.faults.wakeup || std::mem::take(&mut self.fill_woken)) {
            let count = self.fill.available(if self.faults.wakeup { usize::MAX } else { 1 });
            self.fill.read_each(count, |_, addr| self.stash.push(addr));
            self.fill.release();
        }
        self.stash.pop()
    }

    /// Whether there may be frames for a packet: copy mode looks before it takes the first one.
    fn has_frames(&mut self, count: usize) -> bool {
        self.faults.wakeup || self.stash.len() + self.fill.available(count) >= count
    }

    /// Lets packets arrive.
    fn receive(&mut self, wire: &mut Wire, most: usize) {
        for _ in 0..self.random.usize(1..=most) {
            if self.remove_at == Some(wire.statistics.arrived) {
                self.removed = true;
                wire.is_removed = true;
                return;
            }
            let Some(packet) = wire.arrive() else { return };
            self.deliver(&packet, &mut wire.statistics);
        }
    }

    /// Copies a packet into as many frames as it needs, and their descriptors to the RX ring; or counts why not.
    fn deliver(&mut self, packet: &[u8], statistics: &mut SimStatistics) {
        let start = u64::from(XDP_HEADROOM_BYTES) + u64::from(self.geometry.headroom_bytes());
        let parts: Vec<&[u8]> = packet.chunks(self.geometry.data_bytes() as usize).collect();
        if parts.len() > self.frames_a_packet {
            statistics.rx_too_large += 1;
            return;
        }
        let frames: Vec<u64> = if self.has_frames(parts.len()) {
            (0..parts.len()).map_while(|_| self.take_frame()).collect()
        } else {
            Vec::new()
        };
        if frames.len() < parts.len() {
            statistics.rx_no_frame += 1;
            self.stash.extend(frames);
            return;
        }
        if self.rx.free(parts.len()) < parts.len() {
            statistics.rx_ring_full += 1;
            self.stash.extend(frames);
            return;
        }
        for (at, (part, frame)) in parts.iter().zip(frames).enumerate() {
            let addr = self.chunk(frame) + start;
            // SAFETY: the frame came from the fill ring: it is the kernel's until it lies in the RX
            // ring; the part is no longer than what a frame holds.
            unsafe { self.memory(addr).copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            let options = if at + 1 < parts.len() { CONTINUES } else { 0 };
            self.rx.write_each(1, |_| Desc::new(addr, part.len() as u32, options));
        }
        self.rx.publish();
    }

    /// The next descriptor to be sent. As copy mode does, it looks for new ones only when it has come to the end of those
    /// that it knew of, and then publishes how many it has taken (`xskq_cons_peek_desc`, net/xdp/xsk_queue.h).
    fn take_desc(&mut self) -> Option<Desc> {
        if self.tx.known() == 0 {
            self.tx.release();
        }
        let mut taken = None;
        let count = self.tx.available(1);
        self.tx.read_each(count, |_, desc| taken = Some(desc));
        taken
    }

    /// Sends up to a batch of what lies in the TX ring, and publishes how many it has taken if it has sent one. A device
    /// that is not ready drops the first packet, which ends the batch: it is completed at once (`__xsk_generic_xmit`,
    /// net/xdp/xsk.c, Linux 6.17).
    fn transmit(&mut self, wire: &mut Wire) -> Wake {
        let (mut outcome, mut has_sent) = (Wake::Done, false);
        for _ in 0..self.tx_budget {
            // The kernel reserves the place of the completion first.
            if wire.is_unready && self.completion.free(1) == 0 {
                break;
            }
            let Some(desc) = self.take_desc() else { break };
            if desc.len() == 0 || !self.geometry.is_packet(desc.addr, desc.len()) {
                wire.statistics.tx_invalid += 1;
                continue;
            }
            if wire.is_unready {
                self.completion.write_each(1, |_| desc.addr);
                self.completion.publish();
                wire.statistics.dropped += 1;
                outcome = Wake::Dropped;
                break;
            }
            // SAFETY: the frame came from the TX ring: it is the kernel's until it is completed; the
            // address and length were just checked.
            let part = unsafe { slice::from_raw_parts(self.memory(desc.addr), desc.len() as usize) };
            self.unsent.extend_from_slice(part);
            if !desc.continues() {
                wire.send(&std::mem::take(&mut self.unsent));
            }
            let wait = if self.faults.late { self.random.u64(0..=LATE_POLLS) } else { 0 };
            let due = if wire.keeps_sent { u64::MAX } else { self.now + wait };
            self.sent.push_back((due, desc.addr));
            has_sent = true;
        }
        if has_sent {
            self.tx.release();
        }
        if self.faults.reorder {
            self.random.shuffle(self.sent.make_contiguous());
        }
        outcome
    }

    /// Completes sent frames whose time has come. Without `reorder`, in the order of sending.
    fn complete(&mut self) {
        let now = self.now;
        let mut kept = VecDeque::new();
        while let Some((due, addr)) = self.sent.pop_front() {
            let is_due = due <= now && (self.faults.reorder || kept.is_empty());
            if is_due && self.completion.free(1) == 1 {
                self.completion.write_each(1, |_| addr);
                self.completion.publish();
            } else {
                kept.push_back((due, addr));
            }
        }
        self.sent = kept;
    }

    fn chunk(&self, addr: u64) -> u64 {
        addr & !(u64::from(self.geometry.frame_bytes()) - 1)
    }

    /// Where packet memory lies.
    fn memory(&self, addr: u64) -> *mut u8 {
        self.geometry.base().as_ptr().wrapping_add(addr as usize)
    }
}

impl Kernel for SimKernel {
    fn wake_rx(&mut self) -> Wake {
        let mut wire = self.wire.lock().expect("no panic under this lock");
        wire.statistics.system_calls += 1;
        if self.removed {
            return Wake::Gone;
        }
        if wire.is_down {
            return Wake::Later; // As ENETDOWN.
        }
        self.fill_woken = true;
        Wake::Done
    }

    fn kick_tx(&mut self) -> Wake {
        let wire = self.wire.clone();
        let mut wire = wire.lock().expect("no panic under this lock");
        wire.statistics.system_calls += 1;
        if self.removed {
            return Wake::Gone;
        }
        if wire.is_down {
            return Wake::Later; // As ENETDOWN.
        }
        if self.now < self.stopped_until {
            return Wake::Done;
        }
        let outcome = self.transmit(&mut wire);
        self.complete();
        outcome
    }

    fn tick(&mut self, to_receive: bool) -> bool {
        self.now += 1;
        if self.removed {
            return false;
        }
        let mut most = ARRIVALS;
        if self.faults.full {
            if self.now < self.stopped_until {
                return true;
            }
            if self.random.u32(0..100) == 0 {
                self.stopped_until = self.now + self.random.u64(1..200);
            }
            most *= self.random.usize(1..=4);
        }
        let wire = self.wire.clone();
        let mut wire = wire.lock().expect("no panic under this lock");
        if to_receive && self.attached && !wire.is_down {
            self.receive(&mut wire, most);
        }
        self.complete();
        !self.removed
    }

    fn now_ns(&self) -> u64 {
        self.now * CALL_NS
    }

    fn sends_all_for_one_kick(&self) -> bool {
        self.tx_budget > TX_BATCH
    }

    fn frames_a_packet(&self) -> usize {
        self.frames_a_packet
    }

    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    fn detach(&mut self) -> bool {
        self.attached = false;
        true
    }

    fn fill_ring_is_exact(&self) -> bool {
        true
    }

    fn tx_ring_is_exact(&self) -> bool {
        true
    }

    fn count_drops(&self, counters: &QueueCounters) {
        self.wire.lock().expect("no panic under this lock").statistics.count_drops(counters);
    }

    fn can_prove_release(&self) -> bool {
        self.faults.wakeup // As a zero-copy queue, which keeps what it has at the end.
    }

    fn shut(&mut self, prove_by: Option<Instant>) -> bool {
        let was_removed = std::mem::replace(&mut self.removed, true);
        prove_by.is_some() && !was_removed
    }
}
