//! The kernel's slab allocator before it had sheaves.
//!
//! Source: mm/slub.c of Linux 6.12 on x86-64 with `CONFIG_SLUB_CPU_PARTIAL`: `___slab_alloc`,
//! `get_freelist`, `get_partial_node`, `freeze_slab`, `__slab_free`, `put_cpu_partial`,
//! `__put_partials`, `kmem_cache_free_bulk`. Objects of 2048 bytes: 16 a slab, of order 3.
//!
//! ```text
//! cpu 0: freelist, slab, partial -> slab -> slab         one line each: a slab's struct page,
//! cpu 1: ...                                             a node's lock and list head,
//! node:  lock, partial <-> slab <-> slab <-> ...         the word in each free object that links it
//! ```
//!
//! A core allocates from its own freelist by `cmpxchg16b` without a lock prefix, which is not counted;
//! but it reads the link in the object. An object of the core's own slab is freed the same way. Any
//! other takes a locked `cmpxchg16b` on its slab's struct page, whoever allocated it.
//!
//! Simplifications: one node; no swap fails, and nobody waits for the lock; the page allocator costs
//! nothing, nor do the node's counters of slabs (`CONFIG_SLUB_DEBUG`) and the freelist's randomisation.

use super::Calls;
use crate::{
    machine::{Line, Machine, Region},
    traffic::{Allocator, BURST, IN_FLIGHT},
};

/// `oo_objects`: objects in a slab.
const OBJECTS: usize = 16;
/// `cpu_partial_slabs` (`set_cpu_partial`: 24 objects, counted twice as slabs are taken as half full).
const CPU_PARTIAL_SLABS: usize = 3;
/// `min_partial` (`ilog2(size) / 2`, at least 5): empty slabs are kept while the node has fewer.
const MIN_PARTIAL: usize = 5;
/// Objects that `build_detached_freelist` looks past for more of the same slab.
const LOOK_AHEAD: usize = 3;

pub(crate) struct Slub {
    /// The lock, the count and the ends of the list of `struct kmem_cache_node`.
    node: Line,
    partial: PartialList,
    slabs: Vec<Slab>,
    /// The struct page of each slab, and the link of each object.
    pages: Region,
    links: Region,
    cpus: Vec<Cpu>,
    /// Slabs that are with the page allocator.
    unused: Vec<usize>,
    calls: Calls,
}

/// `struct slab`.
#[derive(Clone, Default)]
struct Slab {
    /// The list of its free objects, the head last.
    free: Vec<u32>,
    in_use: usize,
    /// Some core allocates from it.
    is_frozen: bool,
    is_on_node: bool,
}

/// `struct kmem_cache_cpu`.
#[derive(Clone, Default)]
struct Cpu {
    free: Vec<u32>,
    slab: Option<usize>,
    /// The newest last.
    partial: Vec<usize>,
}

impl Slub {
    pub(crate) fn new(machine: &mut Machine, cores: usize, calls: Calls) -> Self {
        // Partly used slabs lie idle: enough for each object in flight to hold half a slab down.
        let count = (8 * IN_FLIGHT + 8 * BURST * cores) / OBJECTS;
        Self {
            node: machine.add_lines(1).line(0),
            partial: PartialList::new(count),
            slabs: vec![Slab::default(); count],
            pages: machine.add_lines(count),
            links: machine.add_lines(count * OBJECTS),
            cpus: vec![Cpu::default(); cores],
            unused: (0..count).rev().collect(),
            calls,
        }
    }

    /// `___slab_alloc`: gets the core a freelist.
    fn refill(&mut self, machine: &mut Machine, core: usize) {
        if let Some(slab) = self.cpus[core].slab.take() {
            machine.read(core, self.page(slab));
            if self.take_freelist(machine, core, slab) {
                return;
            }
        }
        if let Some(slab) = self.cpus[core].partial.pop() {
            machine.read(core, self.page(slab));
            assert!(self.take_freelist(machine, core, slab), "a partial slab has free objects");
            return;
        }
        if let Some(slab) = self.take_partial(machine, core) {
            assert!(self.take_freelist(machine, core, slab), "a partial slab has free objects");
            return;
        }
        let slab = self.unused.pop().expect("the model has enough slabs");
        machine.write(core, self.page(slab));
        let objects = slab * OBJECTS..(slab + 1) * OBJECTS;
        objects.clone().for_each(|object| machine.write(core, self.links.line(object)));
        self.slabs[slab] = Slab { free: Vec::new(), in_use: OBJECTS, is_frozen: true, is_on_node: false };
        self.cpus[core].free.extend(objects.rev().map(|object| object as u32));
        self.cpus[core].slab = Some(slab);
    }

    /// `get_freelist` and `freeze_slab`: takes all free objects of a slab and freezes it, or lets go
    /// of it if there are none. Returns whether there were.
    fn take_freelist(&mut self, machine: &mut Machine, core: usize, slab: usize) -> bool {
        machine.rmw(core, self.page(slab));
        let state = &mut self.slabs[slab];
        state.in_use = OBJECTS;
        state.is_frozen = !state.free.is_empty();
        if state.is_frozen {
            let cpu = &mut self.cpus[core];
            std::mem::swap(&mut cpu.free, &mut state.free);
            cpu.slab = Some(slab);
        }
        state.is_frozen
    }

    /// `get_partial_node`: takes slabs off the node's list, one to allocate from and some to keep.
    fn take_partial(&mut self, machine: &mut Machine, core: usize) -> Option<usize> {
        machine.read(core, self.node);
        self.partial.first()?;
        machine.rmw(core, self.node);
        let mut taken = None;
        let mut kept = 0;
        while let Some(slab) = self.partial.first() {
            self.remove_partial(machine, core, slab);
            if taken.is_none() {
                taken = Some(slab);
            } else {
                self.keep_partial(machine, core, slab);
                kept += 1;
                if kept > CPU_PARTIAL_SLABS / 2 {
                    break;
                }
            }
        }
        machine.write(core, self.node);
        taken
    }

    /// `slab_free` of objects of one slab.
    fn free_slab(&mut self, machine: &mut Machine, core: usize, slab: usize, objects: &[u32]) {
        for object in objects {
            machine.write(core, self.links.line(*object as usize));
        }
        if self.cpus[core].slab == Some(slab) {
            self.cpus[core].free.extend(objects);
            return;
        }
        machine.read(core, self.page(slab));
        let state = &mut self.slabs[slab];
        let (was_full, was_frozen) = (state.free.is_empty(), state.is_frozen);
        state.free.extend(objects);
        state.in_use -= objects.len();
        let is_empty = state.in_use == 0;
        // Taken before the swap, for what may have to be done behind it.
        let is_locked = is_empty && !was_full && !was_frozen;
        if is_locked {
            machine.rmw(core, self.node);
        }
        machine.rmw(core, self.page(slab));
        if is_locked {
            if self.slabs[slab].is_on_node && self.partial.len >= MIN_PARTIAL {
                self.remove_partial(machine, core, slab);
                self.discard(slab);
            }
            machine.write(core, self.node);
        } else if was_full && !was_frozen {
            self.spill_partial(machine, core);
            self.keep_partial(machine, core, slab);
        }
    }

    /// `put_cpu_partial`: keeps a slab for its core.
    fn keep_partial(&mut self, machine: &mut Machine, core: usize, slab: usize) {
        if let Some(newest) = self.cpus[core].partial.last() {
            machine.read(core, self.page(*newest));
        }
        machine.write(core, self.page(slab));
        self.cpus[core].partial.push(slab);
    }

    /// `__put_partials`: puts what a core keeps on the node's list, if it is enough.
    fn spill_partial(&mut self, machine: &mut Machine, core: usize) {
        if self.cpus[core].partial.len() < CPU_PARTIAL_SLABS {
            return;
        }
        machine.rmw(core, self.node);
        while let Some(slab) = self.cpus[core].partial.pop() {
            machine.read(core, self.page(slab));
            if self.slabs[slab].in_use == 0 && self.partial.len >= MIN_PARTIAL {
                self.discard(slab);
                continue;
            }
            let last = self.partial.last().map_or(self.node, |last| self.page(last));
            machine.write(core, last);
            machine.write(core, self.page(slab));
            self.slabs[slab].is_on_node = true;
            self.partial.push(slab);
        }
        machine.write(core, self.node);
    }

    fn remove_partial(&mut self, machine: &mut Machine, core: usize, slab: usize) {
        machine.read(core, self.page(slab));
        for neighbour in self.partial.neighbours(slab) {
            machine.write(core, neighbour.map_or(self.node, |neighbour| self.page(neighbour)));
        }
        machine.write(core, self.page(slab));
        self.slabs[slab].is_on_node = false;
        self.partial.remove(slab);
    }

    fn discard(&mut self, slab: usize) {
        self.slabs[slab].free.clear();
        self.unused.push(slab);
    }

    fn page(&self, slab: usize) -> Line {
        self.pages.line(slab)
    }
}

impl Allocator for Slub {
    fn batch(&self) -> usize {
        self.calls.batch()
    }

    fn alloc(&mut self, machine: &mut Machine, core: usize, count: usize, out: &mut Vec<u32>) {
        for _ in 0..count {
            if self.cpus[core].free.is_empty() {
                self.refill(machine, core);
            }
            let object = self.cpus[core].free.pop().expect("refilled just above");
            machine.read(core, self.links.line(object as usize));
            out.push(object);
        }
    }

    fn free(&mut self, machine: &mut Machine, core: usize, frames: &[u32]) {
        // As `build_detached_freelist` does it: from the end, those of one slab as far as they are found.
        let mut left = frames.to_vec();
        let mut detached = Vec::with_capacity(OBJECTS);
        while let Some(last) = left.last() {
            let slab = *last as usize / OBJECTS;
            detached.clear();
            let mut skipped = 0;
            for at in (0..left.len()).rev() {
                if left[at] as usize / OBJECTS == slab {
                    detached.push(left.remove(at));
                } else {
                    skipped += 1;
                    if skipped == LOOK_AHEAD {
                        break;
                    }
                }
            }
            self.free_slab(machine, core, slab, &detached);
        }
    }

    fn frames(&self) -> usize {
        self.slabs.len() * OBJECTS
    }

    fn into_free(self: Box<Self>) -> usize {
        let in_slabs: usize = self.slabs.iter().map(|slab| slab.free.len()).sum();
        let with_cpus: usize = self.cpus.iter().map(|cpu| cpu.free.len()).sum();
        in_slabs + with_cpus + self.unused.len() * OBJECTS
    }
}

/// The doubly linked list of the node's partly used slabs.
struct PartialList {
    /// The slabs before and behind each slab, and before the first and behind the last the end.
    links: Vec<[usize; 2]>,
    /// The place in `links` that stands for the list head.
    end: usize,
    len: usize,
}

impl PartialList {
    fn new(slabs: usize) -> Self {
        Self { links: vec![[slabs; 2]; slabs + 1], end: slabs, len: 0 }
    }

    fn first(&self) -> Option<usize> {
        self.slab(self.links[self.end][1])
    }

    fn last(&self) -> Option<usize> {
        self.slab(self.links[self.end][0])
    }

    fn neighbours(&self, slab: usize) -> [Option<usize>; 2] {
        self.links[slab].map(|neighbour| self.slab(neighbour))
    }

    fn push(&mut self, slab: usize) {
        let last = self.links[self.end][0];
        self.links[slab] = [last, self.end];
        self.links[last][1] = slab;
        self.links[self.end][0] = slab;
        self.len += 1;
    }

    fn remove(&mut self, slab: usize) {
        let [before, behind] = self.links[slab];
        self.links[before][1] = behind;
        self.links[behind][0] = before;
        self.len -= 1;
    }

    fn slab(&self, place: usize) -> Option<usize> {
        (place != self.end).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slub(calls: Calls) -> (Machine, Slub) {
        let mut machine = Machine::new(2);
        let slub = Slub::new(&mut machine, 2, calls);
        (machine, slub)
    }

    #[test]
    fn what_is_freed_to_the_own_slab_takes_no_read_modify_write() {
        let (mut machine, mut slub) = slub(Calls::Single);
        let mut frames = Vec::new();
        slub.alloc(&mut machine, 0, 1, &mut frames);
        slub.free(&mut machine, 0, &frames);
        assert_eq!(machine.tally(), crate::machine::Tally::default());
    }

    #[test]
    fn what_another_core_frees_takes_one_each() {
        let (mut machine, mut slub) = slub(Calls::Single);
        let mut frames = Vec::new();
        slub.alloc(&mut machine, 0, OBJECTS, &mut frames);
        for frame in &frames[..4] {
            slub.free(&mut machine, 1, &[*frame]);
        }
        // The four links; the page of the slab, first for the read and then for the swap.
        assert_eq!((machine.tally().rmws, machine.tally().transfers), (4, 4 + 1 + 1));
    }

    #[test]
    fn in_bulk_the_objects_of_one_slab_share_one() {
        let (mut machine, mut slub) = slub(Calls::Bulk);
        let mut frames = Vec::new();
        slub.alloc(&mut machine, 0, 2 * OBJECTS, &mut frames);
        machine.start_tally();
        slub.free(&mut machine, 1, &frames);
        assert_eq!(machine.tally().rmws, 2);
    }

    #[test]
    fn kept_slabs_spill_to_the_node_and_come_back_from_there() {
        let (mut machine, mut slub) = slub(Calls::Bulk);
        let mut frames = Vec::new();
        slub.alloc(&mut machine, 0, 5 * OBJECTS, &mut frames);
        // One object of each of four full slabs: the fourth finds three kept ones.
        for slab in 0..4 {
            slub.free(&mut machine, 1, &frames[slab * OBJECTS..][..1]);
        }
        assert_eq!((slub.partial.len, slub.cpus[1].partial.len()), (3, 1));
        let mut more = Vec::new();
        slub.alloc(&mut machine, 0, 3, &mut more);
        assert_eq!((slub.partial.len, slub.cpus[0].partial.len()), (0, 0));
        assert_eq!(more.len(), 3);
    }
}
