//! A machine of many cores with coherent caches, which counts what moves between them.
//!
//! Owns: for each cache line, which cores hold it, and the tallies. Never does: hold data, or time.
//! Invariant: a line is held by nobody, by one core alone, or by at least two that only read it.
//!
//! The model is MESI with caches that never evict. What counts as one transfer:
//!
//! - a read by a core that does not hold the line, served by the cache of one that does;
//! - a write or read-modify-write by a core that does not hold the line alone, however many other
//!   cores must give it up.
//!
//! The first touch comes from memory and is no transfer. Accesses happen one after the other, so a
//! compare-and-swap never fails and nobody waits for a lock: each figure is the least that the code
//! costs, and contention comes on top.

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// The number of a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line(u32);

/// Lines side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region(u32);

impl Region {
    /// The line at a place in the region.
    pub(crate) fn line(self, place: usize) -> Line {
        Line(self.0 + place as u32)
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Read-modify-writes.
    pub(crate) rmws: u64,
    /// Transfers of lines between cores.
    pub(crate) transfers: u64,
    /// Transfers of the line that moved most.
    pub(crate) busiest: u64,
}

/// No core has touched the line.
const UNTOUCHED: u16 = u16::MAX;
/// At least two cores hold the line; its bits among the sharers say which.
const SHARED: u16 = u16::MAX - 1;

#[derive(Clone, Copy)]
struct LineState {
    /// The core that holds the line alone, `UNTOUCHED` or `SHARED`.
    owner: u16,
    transfers: u32,
}

/// The caches of all cores.
pub(crate) struct Machine {
    lines: Vec<LineState>,
    /// A bit a core, `words` words a line; all zero unless the line is shared.
    sharers: Vec<u64>,
    words: usize,
    rmws: u64,
    transfers: u64,
}

impl Machine {
    /// A machine of `cores` cores, at most 65,534, that has no lines yet.
    pub(crate) fn new(cores: usize) -> Self {
        assert!(cores < usize::from(SHARED));
        let words = cores.div_ceil(64);
        Self { lines: Vec::new(), sharers: Vec::new(), words, rmws: 0, transfers: 0 }
    }

    /// Adds lines that no core has touched.
    pub(crate) fn add_lines(&mut self, count: usize) -> Region {
        let first = self.lines.len();
        let all = first + count;
        u32::try_from(all).expect("fewer than 2^32 lines");
        self.lines.resize(all, LineState { owner: UNTOUCHED, transfers: 0 });
        self.sharers.resize(all * self.words, 0);
        Region(first as u32)
    }

    /// A core loads from a line.
    #[inline]
    pub(crate) fn read(&mut self, core: usize, line: Line) {
        let state = &mut self.lines[line.0 as usize];
        let owner = state.owner;
        if owner == core as u16 {
            return;
        }
        if owner == UNTOUCHED {
            state.owner = core as u16;
            return;
        }
        let first = line.0 as usize * self.words;
        let sharers = &mut self.sharers[first..first + self.words];
        if owner == SHARED {
            if sharers[core / 64] >> (core % 64) & 1 == 1 {
                return;
            }
        } else {
            state.owner = SHARED;
            sharers[usize::from(owner) / 64] |= 1 << (owner % 64);
        }
        sharers[core / 64] |= 1 << (core % 64);
        state.transfers += 1;
        self.transfers += 1;
    }

    /// A core stores to a line.
    #[inline]
    pub(crate) fn write(&mut self, core: usize, line: Line) {
        let state = &mut self.lines[line.0 as usize];
        let owner = std::mem::replace(&mut state.owner, core as u16);
        if owner == core as u16 || owner == UNTOUCHED {
            return;
        }
        if owner == SHARED {
            let first = line.0 as usize * self.words;
            self.sharers[first..first + self.words].fill(0);
        }
        state.transfers += 1;
        self.transfers += 1;
    }

    /// A core makes an atomic read-modify-write on a line.
    #[inline]
    pub(crate) fn rmw(&mut self, core: usize, line: Line) {
        self.rmws += 1;
        self.write(core, line);
    }

    /// Forgets what was counted, not who holds what.
    pub(crate) fn start_tally(&mut self) {
        self.rmws = 0;
        self.transfers = 0;
        self.lines.iter_mut().for_each(|line| line.transfers = 0);
    }

    /// What was counted since [`start_tally`](Self::start_tally).
    pub(crate) fn tally(&self) -> Tally {
        let busiest = self.lines.iter().map(|line| line.transfers).max().unwrap_or(0);
        Tally { rmws: self.rmws, transfers: self.transfers, busiest: busiest.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cores: usize) -> (Machine, Line) {
        let mut machine = Machine::new(cores);
        let line = machine.add_lines(1).line(0);
        (machine, line)
    }

    #[test]
    fn the_first_touch_comes_from_memory() {
        for touch in [Machine::read, Machine::write, Machine::rmw] {
            let (mut machine, line) = machine(2);
            touch(&mut machine, 1, line);
            touch(&mut machine, 1, line);
            assert_eq!(machine.tally().transfers, 0);
        }
    }

    #[test]
    fn what_one_core_has_read_alone_it_may_write() {
        let (mut machine, line) = machine(2);
        machine.read(0, line);
        machine.write(0, line);
        assert_eq!(machine.tally(), Tally::default());
    }

    #[test]
    fn a_read_of_what_another_core_holds_is_one_transfer() {
        let (mut machine, line) = machine(3);
        machine.write(0, line);
        machine.read(1, line);
        machine.read(1, line);
        machine.read(0, line);
        assert_eq!(machine.tally().transfers, 1);
        machine.read(2, line);
        assert_eq!(machine.tally().transfers, 2);
    }

    #[test]
    fn a_write_takes_the_line_from_all_others_at_once() {
        let (mut machine, line) = machine(512);
        (0..512).for_each(|core| machine.read(core, line));
        assert_eq!(machine.tally().transfers, 511);
        machine.start_tally();
        machine.write(511, line); // An upgrade: it held the line with the others.
        machine.write(0, line); // A fetch for ownership.
        machine.read(0, line);
        assert_eq!(machine.tally().transfers, 2);
        machine.read(300, line);
        assert_eq!(machine.tally().transfers, 3);
    }

    #[test]
    fn a_read_modify_write_counts_always_and_moves_the_line_as_a_write_does() {
        let (mut machine, line) = machine(2);
        machine.rmw(0, line);
        machine.rmw(0, line);
        machine.rmw(1, line);
        assert_eq!(machine.tally(), Tally { rmws: 3, transfers: 1, busiest: 1 });
    }

    #[test]
    fn the_busiest_line_is_the_one_that_moved_most() {
        let mut machine = Machine::new(2);
        let lines = machine.add_lines(2);
        for core in [0, 1, 0, 1] {
            machine.write(core, lines.line(0));
        }
        machine.write(0, lines.line(1));
        machine.write(1, lines.line(1));
        assert_eq!(machine.tally(), Tally { rmws: 0, transfers: 4, busiest: 3 });
        machine.start_tally();
        assert_eq!(machine.tally(), Tally::default());
    }

    /// Against the rules written out, each line a set of holders.
    #[test]
    fn any_sequence_of_accesses_counts_as_the_rules_say() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut machine = Machine::new(70);
        let lines = machine.add_lines(3);
        let mut holders = vec![std::collections::BTreeSet::new(); 3];
        let mut transfers = 0;
        for _ in 0..20_000 {
            let (place, core) = (random.usize(0..3), random.usize(0..70));
            let held: &mut std::collections::BTreeSet<usize> = &mut holders[place];
            if random.u8(0..4) == 0 {
                transfers += u64::from(held.iter().any(|holder| *holder != core));
                *held = [core].into();
                machine.write(core, lines.line(place));
            } else {
                transfers += u64::from(!held.is_empty() && !held.contains(&core));
                held.insert(core);
                machine.read(core, lines.line(place));
            }
        }
        assert_eq!(machine.tally().transfers, transfers);
    }
}
