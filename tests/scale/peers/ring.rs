//! One ring of free frames behind a cache a core: DPDK's `rte_mempool` with its default ring.
//!
//! Source: `rte_mempool_do_generic_get` and `rte_mempool_do_generic_put` (lib/mempool/rte_mempool.h)
//! over `ring_mp_mc` (lib/ring/rte_ring_elem_pvt.h, rte_ring_c11_pvt.h), DPDK 22.11. Caches hold 512
//! at most and are flushed above 1.5 times their size; a core with an empty cache fetches its size and
//! what it wants besides.
//!
//! ```text
//! | prod: head, tail |  guard  | cons: head, tail |  guard  | 8 frames | 8 frames | ...
//!    one line                     one line                    a line each
//! ```
//!
//! Simplifications: no compare-and-swap fails, and nobody waits for another's tail; the caches are
//! their cores' own and cost nothing; neither does the descriptor of the pool, which is only read.
//!
//! Full caches of 512 hold back 768 frames a core. So there are two ways to make the pool: with so
//! many more frames, or with as many as given and the largest caches that can't starve it.

use std::collections::VecDeque;

use crate::{
    machine::{LINE_BYTES, Line, Machine, Region},
    traffic::{Allocator, BURST, IN_FLIGHT},
};

/// The largest `cache_size`, in frames: `RTE_MEMPOOL_CACHE_MAX_SIZE`.
const MAX_CACHE: usize = 512;
/// Slots of the ring in a cache line; each is a pointer.
const SLOTS_A_LINE: usize = LINE_BYTES / 8;

pub(crate) struct RingWithCaches {
    /// The lines of the two heads and tails.
    producer: Line,
    consumer: Line,
    slots: Region,
    size: usize,
    ring: VecDeque<u32>,
    /// Frames that ever left the ring.
    dequeued: usize,
    caches: Vec<Vec<u32>>,
    cache_size: usize,
    frames: usize,
}

impl RingWithCaches {
    /// A pool with caches of 512 frames, and enough frames for that.
    pub(crate) fn with_full_caches(machine: &mut Machine, cores: usize) -> Self {
        let frames = in_use(cores) + flush_above(MAX_CACHE) * cores + MAX_CACHE;
        Self::new(machine, cores, frames, MAX_CACHE)
    }

    /// A pool of `frames` frames, and caches as large as that allows.
    pub(crate) fn with_frames(machine: &mut Machine, cores: usize, frames: usize) -> Self {
        let fits = |size: &usize| in_use(cores) + flush_above(*size) * cores + size <= frames;
        let cache_size = (1..=MAX_CACHE).rev().find(fits).expect("a frame a core");
        Self::new(machine, cores, frames, cache_size)
    }

    fn new(machine: &mut Machine, cores: usize, frames: usize, cache_size: usize) -> Self {
        let size = (frames + 1).next_power_of_two();
        let ends = machine.add_lines(2);
        Self {
            producer: ends.line(0),
            consumer: ends.line(1),
            slots: machine.add_lines(size / SLOTS_A_LINE),
            size,
            ring: (0..frames as u32).collect(),
            dequeued: 0,
            caches: vec![Vec::new(); cores],
            cache_size,
            frames,
        }
    }

    /// `rte_ring_mp_enqueue_bulk`: move the head, write the slots, move the tail.
    fn enqueue(&mut self, machine: &mut Machine, core: usize) {
        machine.read(core, self.producer);
        machine.read(core, self.consumer);
        machine.rmw(core, self.producer);
        let first = self.dequeued + self.ring.len();
        for line in self.lines(first, self.caches[core].len()) {
            machine.write(core, line);
        }
        machine.read(core, self.producer);
        machine.write(core, self.producer);
        self.ring.extend(self.caches[core].drain(..));
    }

    /// `rte_ring_mc_dequeue_bulk`: all `count` frames into the cache, or none.
    fn dequeue(&mut self, machine: &mut Machine, core: usize, count: usize) -> bool {
        machine.read(core, self.consumer);
        machine.read(core, self.producer);
        if self.ring.len() < count {
            return false;
        }
        machine.rmw(core, self.consumer);
        for line in self.lines(self.dequeued, count) {
            machine.read(core, line);
        }
        machine.read(core, self.consumer);
        machine.write(core, self.consumer);
        self.caches[core].extend(self.ring.drain(..count));
        self.dequeued += count;
        true
    }

    /// The lines of `count` slots from a position on.
    fn lines(&self, first: usize, count: usize) -> impl Iterator<Item = Line> + use<> {
        let (slots, lines) = (self.slots, self.size / SLOTS_A_LINE);
        (first / SLOTS_A_LINE..(first + count).div_ceil(SLOTS_A_LINE))
            .map(move |line| slots.line(line % lines))
    }
}

/// `flushthresh` of a cache (`CACHE_FLUSHTHRESH_MULTIPLIER` is 1.5).
fn flush_above(cache_size: usize) -> usize {
    cache_size + cache_size / 2
}

/// The most frames outside of ring and caches.
fn in_use(cores: usize) -> usize {
    IN_FLIGHT + BURST * cores
}

impl Allocator for RingWithCaches {
    fn batch(&self) -> usize {
        BURST
    }

    fn alloc(&mut self, machine: &mut Machine, core: usize, count: usize, out: &mut Vec<u32>) {
        let cached = count.min(self.caches[core].len());
        let rest = self.caches[core].len() - cached;
        out.extend(self.caches[core].drain(rest..).rev());
        let remaining = count - cached;
        if remaining > 0
            && (self.dequeue(machine, core, self.cache_size + remaining)
                || self.dequeue(machine, core, remaining))
        {
            let rest = self.caches[core].len() - remaining;
            out.extend(self.caches[core].drain(rest..).rev());
        }
    }

    fn free(&mut self, machine: &mut Machine, core: usize, frames: &[u32]) {
        if self.caches[core].len() + frames.len() > flush_above(self.cache_size) {
            self.enqueue(machine, core);
        }
        self.caches[core].extend(frames);
    }

    fn frames(&self) -> usize {
        self.frames
    }

    fn into_free(self: Box<Self>) -> usize {
        self.ring.len() + self.caches.iter().map(Vec::len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_filled_and_flushed_in_bulk() {
        let mut machine = Machine::new(2);
        let mut pool = RingWithCaches::with_full_caches(&mut machine, 2);
        let mut frames = Vec::new();
        for _ in 0..(MAX_CACHE + BURST) / BURST {
            pool.alloc(&mut machine, 0, BURST, &mut frames);
        }
        assert_eq!(machine.tally().rmws, 1);
        assert_eq!((frames.len(), pool.caches[0].len()), (MAX_CACHE + BURST, 0));
        for _ in 0..3 {
            pool.alloc(&mut machine, 0, BURST, &mut frames);
        }
        machine.start_tally();
        frames.chunks(BURST).for_each(|burst| pool.free(&mut machine, 1, burst));
        assert_eq!((pool.caches[1].len(), machine.tally().rmws), (frames.len(), 0));
        for _ in 0..5 {
            pool.free(&mut machine, 1, &frames[..BURST]);
        }
        assert_eq!((pool.caches[1].len(), machine.tally().rmws), (BURST, 1));
    }

    #[test]
    fn caches_are_as_large_as_the_frames_allow() {
        for (cores, size) in [(2, 512), (64, 505), (256, 111), (512, 45)] {
            let pool = RingWithCaches::with_frames(&mut Machine::new(cores), cores, 131_072);
            assert_eq!(pool.cache_size, size);
        }
    }

    #[test]
    fn lines_of_slots_wrap() {
        let mut machine = Machine::new(2);
        let pool = RingWithCaches::with_full_caches(&mut machine, 2);
        let lines: Vec<_> = pool.lines(pool.size - 1, 2).collect();
        assert_eq!(lines, [pool.slots.line(pool.size / 8 - 1), pool.slots.line(0)]);
    }
}
