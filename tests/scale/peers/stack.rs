//! A lock-free stack: one list of free frames, its head changed by a 16-byte compare-and-swap.
//!
//! Source: R. K. Treiber, "Systems Programming: Coping with Parallelism", IBM RJ 5118 (1986), with a
//! counter beside the head pointer against reuse (`lock cmpxchg16b`), as DPDK's `rte_stack_lf_*` has
//! it (lib/stack/rte_stack_lf_generic.h). The link lies in the free frame.
//!
//! Simplifications: no swap fails; in bulk, a whole burst is unlinked or linked by one swap, without
//! the length counter and the second list of DPDK's, which take three more a burst.

use super::Calls;
use crate::{
    machine::{Line, Machine, Region},
    traffic::{Allocator, BURST, IN_FLIGHT},
};

pub(crate) struct Stack {
    head: Line,
    /// The line of each frame in which the link lies.
    links: Region,
    /// The list, its head last.
    free: Vec<u32>,
    frames: usize,
    calls: Calls,
}

impl Stack {
    pub(crate) fn new(machine: &mut Machine, cores: usize, calls: Calls) -> Self {
        let frames = IN_FLIGHT + 2 * BURST * cores;
        Self {
            head: machine.add_lines(1).line(0),
            links: machine.add_lines(frames),
            free: (0..frames as u32).collect(),
            frames,
            calls,
        }
    }
}

impl Allocator for Stack {
    fn batch(&self) -> usize {
        self.calls.batch()
    }

    fn alloc(&mut self, machine: &mut Machine, core: usize, count: usize, out: &mut Vec<u32>) {
        machine.read(core, self.head);
        for frame in self.free.drain(self.free.len() - count..).rev() {
            machine.read(core, self.links.line(frame as usize));
            out.push(frame);
        }
        machine.rmw(core, self.head);
    }

    fn free(&mut self, machine: &mut Machine, core: usize, frames: &[u32]) {
        machine.read(core, self.head);
        for frame in frames {
            machine.write(core, self.links.line(*frame as usize));
            self.free.push(*frame);
        }
        machine.rmw(core, self.head);
    }

    fn frames(&self) -> usize {
        self.frames
    }

    fn into_free(self: Box<Self>) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_crosses_moves_its_link_and_the_head() {
        let mut machine = Machine::new(2);
        let mut stack = Stack::new(&mut machine, 2, Calls::Single);
        let mut frames = Vec::new();
        for _ in 0..2 {
            frames.clear();
            stack.alloc(&mut machine, 0, 1, &mut frames);
            machine.start_tally();
            stack.free(&mut machine, 1, &frames);
        }
        // The head is read and then swapped; the link is written.
        assert_eq!((machine.tally().rmws, machine.tally().transfers), (1, 3));
    }

    #[test]
    fn a_burst_is_one_swap() {
        let mut machine = Machine::new(2);
        let mut stack = Stack::new(&mut machine, 2, Calls::Bulk);
        let mut frames = Vec::new();
        stack.alloc(&mut machine, 0, BURST, &mut frames);
        stack.free(&mut machine, 0, &frames);
        assert_eq!(machine.tally().rmws, 2);
    }
}
