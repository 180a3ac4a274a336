//! Numbers in the order in which they came.
//!
//! Owns: for each number its neighbours. Never does: allocate after it was made. Invariant: a number is in the order at
//! most once, and each step costs the same however many there are.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    older: u32,
    newer: u32,
}

/// A number that is not in the order. One that is alone in it has no neighbours either, but is the oldest.
const APART: Link = Link { older: NONE, newer: NONE };

/// The order.
#[derive(Debug)]
pub(super) struct Order {
    links: Box<[Link]>,
    oldest: u32,
    newest: u32,
}

impl Order {
    /// An order of the numbers 0 to `numbers` - 1, none of which is in it.
    pub(super) fn new(numbers: usize) -> Self {
        Self { links: vec![APART; numbers].into(), oldest: NONE, newest: NONE }
    }

    /// Bytes of memory for each number.
    pub(super) const BYTES_A_NUMBER: usize = size_of::<Link>();

    /// The oldest one.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Adds one as the newest; one that is there already stays where it is.
    pub(super) fn push(&mut self, number: u32) {
        if self.has(number) {
            return;
        }
        self.links[number as usize] = Link { older: self.newest, newer: NONE };
        match self.links.get_mut(self.newest as usize) {
            Some(link) => link.newer = number,
            None => self.oldest = number,
        }
        self.newest = number;
    }

    /// Takes one out, if it is there.
    pub(super) fn remove(&mut self, number: u32) {
        if !self.has(number) {
            return;
        }
        let Link { older, newer } = std::mem::replace(&mut self.links[number as usize], APART);
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
        match self.links.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
    }

    fn has(&self, number: u32) -> bool {
        self.links[number as usize] != APART || self.oldest == number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Any order of calls, against a queue.
    #[test]
    fn it_agrees_with_a_queue() {
        for numbers in [1, 2, 16] {
            let mut random = fastrand::Rng::with_seed(3);
            let (mut order, mut model) = (Order::new(numbers as usize), VecDeque::new());
            for _ in 0..20_000 {
                let number = random.u32(0..numbers);
                match random.u32(0..3) {
                    0 => {
                        order.push(number);
                        if !model.contains(&number) {
                            model.push_back(number);
                        }
                    }
                    1 => {
                        order.remove(number);
                        model.retain(|other| *other != number);
                    }
                    _ => {
                        let oldest = order.oldest();
                        assert_eq!(oldest, model.pop_front());
                        if let Some(oldest) = oldest {
                            order.remove(oldest);
                        }
                    }
                }
                assert_eq!(order.oldest(), model.front().copied());
            }
        }
    }
}
