//! How frames travel between cores, and what the allocators under test are driven by.
//!
//! Owns: the frames in flight, as one queue a freeing core. Never does: look into an allocator.
//! Invariant: [`IN_FLIGHT`] frames, and at most a burst a core more, are in flight once the queues
//! have filled; no frame is handed out twice.
//!
//! ```text
//! allocating core --burst--> | queue of the freeing core, first in first out | --burst--> freed
//! ```
//!
//! The queues stand for rings, network cards and applications. What those cost is the same for all
//! allocators and is not counted, nor is the packet data.

use std::collections::VecDeque;

use crate::machine::{Machine, Tally};

/// Frames in flight, all cores together.
pub(crate) const IN_FLIGHT: usize = 80_000;
/// Frames in a burst.
pub(crate) const BURST: usize = 32;
/// Packets before counting starts: enough for each frame of every pool to have been round.
const WARM_UP: usize = 1_000_000;
/// Packets that are counted, at least.
const MEASURED: usize = 400_000;
/// One core in this many is of the few in the mixes.
const FEW: usize = 8;

/// What allocates and frees frames for all cores of a machine.
pub(crate) trait Allocator {
    /// Frames that one operation moves, a divisor of [`BURST`].
    fn batch(&self) -> usize;

    /// A core allocates `count` frames and adds them to `out`.
    fn alloc(&mut self, machine: &mut Machine, core: usize, count: usize, out: &mut Vec<u32>);

    /// A core frees frames.
    fn free(&mut self, machine: &mut Machine, core: usize, frames: &[u32]);

    /// All frames.
    fn frames(&self) -> usize;

    /// Ends the use and counts the frames that are free.
    fn into_free(self: Box<Self>) -> usize;
}

/// Which cores allocate, and who frees what they allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Each core frees what it allocated.
    RunToCompletion,
    /// Core 2i allocates, core 2i + 1 frees.
    Pipeline,
    /// One core in eight allocates and deals its bursts to the others, which free.
    FewAllocate,
    /// Seven cores in eight allocate, and each sends to one of the few others, which free.
    FewFree,
    /// Each core allocates, and each burst is freed by another, random core.
    AllRemote,
}

impl Traffic {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::RunToCompletion, Self::Pipeline, Self::FewAllocate, Self::FewFree, Self::AllRemote];

    /// What the tables and plots call it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::RunToCompletion => "run to completion: each core frees what it allocated",
            Self::Pipeline => "pipeline: core 2i allocates, core 2i+1 frees",
            Self::FewAllocate => "few allocate: one core in eight, the others free",
            Self::FewFree => "few free: one core in eight, the others allocate",
            Self::AllRemote => "all remote: each burst is freed by another, random core",
        }
    }

    /// The one-way paths of frames that are known beforehand, each from the core that frees to the
    /// one that allocates.
    pub(crate) fn lanes(self, cores: usize) -> Vec<(usize, usize)> {
        let few = few(cores);
        match self {
            Self::Pipeline => (0..cores / 2).map(|pair| (2 * pair + 1, 2 * pair)).collect(),
            // Each of the many has to do with one of the few.
            Self::FewAllocate => (few..cores).map(|core| (core, (core - few) % few)).collect(),
            Self::FewFree => (few..cores).map(|core| ((core - few) % few, core)).collect(),
            Self::RunToCompletion | Self::AllRemote => Vec::new(),
        }
    }

    fn allocates(self, core: usize, cores: usize) -> bool {
        match self {
            Self::RunToCompletion | Self::AllRemote => true,
            Self::Pipeline => core.is_multiple_of(2),
            Self::FewAllocate => core < few(cores),
            Self::FewFree => core >= few(cores),
        }
    }

    fn frees(self, core: usize, cores: usize) -> bool {
        matches!(self, Self::RunToCompletion | Self::AllRemote) || !self.allocates(core, cores)
    }

    /// The core that frees what `core` allocates in a round.
    fn destination(self, core: usize, cores: usize, round: usize, random: &mut fastrand::Rng) -> usize {
        let few = few(cores);
        match self {
            Self::RunToCompletion => core,
            Self::Pipeline => core + 1,
            Self::FewAllocate => few + (core + round * few) % (cores - few),
            Self::FewFree => (core - few) % few,
            Self::AllRemote => (core + random.usize(1..cores)) % cores,
        }
    }
}

fn few(cores: usize) -> usize {
    (cores / FEW).max(1)
}

/// What a stretch of traffic cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Packets: frames that were allocated, sent on and freed.
    pub(crate) packets: u64,
    /// What the machine counted meanwhile.
    pub(crate) tally: Tally,
}

impl Sample {
    /// Read-modify-writes a packet.
    pub(crate) fn rmws(&self) -> f64 {
        self.tally.rmws as f64 / self.packets as f64
    }

    /// Line transfers a packet.
    pub(crate) fn transfers(&self) -> f64 {
        self.tally.transfers as f64 / self.packets as f64
    }

    /// The busiest line's share of the transfers, 0 to 1; 0 if there were none.
    pub(crate) fn busiest(&self) -> f64 {
        self.tally.busiest as f64 / self.tally.transfers.max(1) as f64
    }
}

/// Drives an allocator until it is warm, then counts, then frees every frame.
///
/// # Panics
/// If the allocator hands out a frame that is in flight, has none left, or has lost some at the end.
pub(crate) fn run(
    traffic: Traffic,
    cores: usize,
    machine: &mut Machine,
    mut allocator: Box<dyn Allocator>,
) -> Sample {
    let mut load = Load::new(traffic, cores, allocator.frames());
    load.run(machine, allocator.as_mut(), WARM_UP);
    machine.start_tally();
    let packets = load.run(machine, allocator.as_mut(), MEASURED);
    let tally = machine.tally();
    load.drain(machine, allocator.as_mut());
    let frames = allocator.frames();
    assert_eq!(allocator.into_free(), frames, "frames were lost");
    Sample { packets: packets as u64, tally }
}

/// The frames in flight and whose turn it is.
struct Load {
    traffic: Traffic,
    /// The cores in the order of their turns.
    order: Vec<usize>,
    /// Where each core sends the burst of this round.
    destinations: Vec<usize>,
    /// What each core is to free, and how many frames stay in its queue.
    queues: Vec<VecDeque<u32>>,
    depths: Vec<usize>,
    is_in_flight: Vec<bool>,
    batch: Vec<u32>,
    round: usize,
    random: fastrand::Rng,
}

impl Load {
    fn new(traffic: Traffic, cores: usize, frames: usize) -> Self {
        let freeing = (0..cores).filter(|core| traffic.frees(*core, cores)).count();
        Self {
            traffic,
            order: (0..cores).collect(),
            destinations: vec![0; cores],
            queues: vec![VecDeque::new(); cores],
            depths: vec![IN_FLIGHT / freeing; cores],
            is_in_flight: vec![false; frames],
            batch: Vec::with_capacity(BURST),
            round: 0,
            random: fastrand::Rng::with_seed(cores as u64),
        }
    }

    /// Goes on, round by round, until at least `packets` were freed; returns how many.
    fn run(&mut self, machine: &mut Machine, allocator: &mut dyn Allocator, packets: usize) -> usize {
        let mut freed = 0;
        while freed < packets {
            freed += self.round(machine, allocator);
        }
        freed
    }

    /// Each core allocates one burst, and frees what lies in its queue above the depth; returns
    /// how many frames were freed.
    ///
    /// Cores take turns operation by operation, in an order drawn anew for each round: one burst
    /// each where a burst is one operation, else a frame at a time. On a real machine bursts of
    /// operations may be interleaved less.
    fn round(&mut self, machine: &mut Machine, allocator: &mut dyn Allocator) -> usize {
        let cores = self.order.len();
        self.random.shuffle(&mut self.order);
        for core in (0..cores).filter(|core| self.traffic.allocates(*core, cores)) {
            self.destinations[core] = self.traffic.destination(core, cores, self.round, &mut self.random);
        }
        self.round += 1;
        let batch = allocator.batch();
        let mut freed = 0;
        for _ in 0..BURST / batch {
            for turn in 0..cores {
                let core = self.order[turn];
                if self.traffic.allocates(core, cores) {
                    self.alloc(machine, allocator, core, batch);
                }
                while self.traffic.frees(core, cores) && self.queues[core].len() >= self.depths[core] + batch
                {
                    self.free(machine, allocator, core, batch);
                    freed += batch;
                }
            }
        }
        freed
    }

    fn alloc(&mut self, machine: &mut Machine, allocator: &mut dyn Allocator, core: usize, count: usize) {
        self.batch.clear();
        allocator.alloc(machine, core, count, &mut self.batch);
        assert_eq!(self.batch.len(), count, "the pool was made too small");
        for frame in &self.batch {
            let was = std::mem::replace(&mut self.is_in_flight[*frame as usize], true);
            assert!(!was, "frame {frame} was handed out twice");
        }
        self.queues[self.destinations[core]].extend(&self.batch);
    }

    fn free(&mut self, machine: &mut Machine, allocator: &mut dyn Allocator, core: usize, count: usize) {
        self.batch.clear();
        self.batch.extend(self.queues[core].drain(..count));
        self.batch.iter().for_each(|frame| self.is_in_flight[*frame as usize] = false);
        allocator.free(machine, core, &self.batch);
    }

    fn drain(&mut self, machine: &mut Machine, allocator: &mut dyn Allocator) {
        for core in 0..self.queues.len() {
            while !self.queues[core].is_empty() {
                let count = self.queues[core].len().min(allocator.batch());
                self.free(machine, allocator, core, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out each frame in turn, whoever asks, and notes who freed what whose.
    struct Dealer {
        free: VecDeque<u32>,
        by: Vec<usize>,
        pairs: std::rc::Rc<std::cell::RefCell<Vec<(usize, usize)>>>,
    }

    impl Allocator for Dealer {
        fn batch(&self) -> usize {
            BURST
        }

        fn alloc(&mut self, _: &mut Machine, core: usize, count: usize, out: &mut Vec<u32>) {
            for frame in self.free.drain(..count) {
                self.by[frame as usize] = core;
                out.push(frame);
            }
        }

        fn free(&mut self, _: &mut Machine, core: usize, frames: &[u32]) {
            let mut pairs = self.pairs.borrow_mut();
            pairs.extend(frames.iter().map(|frame| (self.by[*frame as usize], core)));
            self.free.extend(frames);
        }

        fn frames(&self) -> usize {
            self.by.len()
        }

        fn into_free(self: Box<Self>) -> usize {
            self.free.len()
        }
    }

    /// Who freed what whose, in the order of the frees.
    fn pairs(traffic: Traffic, cores: usize) -> Vec<(usize, usize)> {
        let frames = IN_FLIGHT + 4 * BURST * cores;
        let pairs = std::rc::Rc::default();
        let allocator = Dealer {
            free: (0..frames as u32).collect(),
            by: vec![0; frames],
            pairs: std::rc::Rc::clone(&pairs),
        };
        run(traffic, cores, &mut Machine::new(cores), Box::new(allocator));
        pairs.take()
    }

    #[test]
    fn frames_go_where_the_traffic_says() {
        for cores in [2, 8, 64] {
            let few = few(cores);
            for (allocating, freeing) in pairs(Traffic::RunToCompletion, cores) {
                assert_eq!(allocating, freeing);
            }
            for (allocating, freeing) in pairs(Traffic::Pipeline, cores) {
                assert_eq!((allocating % 2, freeing), (0, allocating + 1));
            }
            for (allocating, freeing) in pairs(Traffic::FewAllocate, cores) {
                assert!(allocating < few && freeing >= few);
            }
            for (allocating, freeing) in pairs(Traffic::FewFree, cores) {
                assert!(allocating >= few && freeing < few);
            }
            for (allocating, freeing) in pairs(Traffic::AllRemote, cores) {
                assert_ne!(allocating, freeing);
            }
        }
    }

    #[test]
    fn every_core_takes_part() {
        for traffic in Traffic::ALL {
            let mut seen = [false; 64];
            for (allocating, freeing) in pairs(traffic, 64) {
                seen[allocating] = true;
                seen[freeing] = true;
            }
            assert!(seen.iter().all(|seen| *seen), "{traffic:?}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_traffic() {
        assert_eq!(pairs(Traffic::AllRemote, 8), pairs(Traffic::AllRemote, 8));
    }
}
