//! A timer wheel: one timer for each flow, set, moved and cancelled in a few steps however many there are.
//!
//! Owns: the slots, and for each timer its place in a slot. Never does: allocate after it was made, or call anybody: due
//! timers are asked for. Invariant: a timer is in at most one slot, and the links of a slot form a chain to `NONE`.
//!
//! A slot is a tick of [`TICK_US`], and the wheel turns once in [`SLOTS`] of them. A timer beyond one turn is put into
//! the last slot before the hand, and whoever takes it out there finds that it is early, and sets it again: that is once
//! in four seconds, and saves the levels of a hierarchical wheel (Varghese and Lauck, 1987).

/// A tick, in microseconds.
pub(super) const TICK_US: u64 = 1000;
/// Ticks of one turn.
const SLOTS: u64 = 4096;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    previous: u32,
    /// The tick that the timer lies in; 0 if it is not set.
    tick: u64,
}

const UNSET: Link = Link { next: NONE, previous: NONE, tick: 0 };

/// The wheel.
#[derive(Debug)]
pub(super) struct Wheel {
    slots: Box<[u32]>,
    links: Box<[Link]>,
    /// The first tick that was not gone over yet; never 0.
    hand: u64,
}

impl Wheel {
    /// A wheel for timers of the numbers 0 to `timers` - 1.
    pub(super) fn new(timers: usize, now_us: u64) -> Self {
        Self {
            slots: vec![NONE; SLOTS as usize].into(),
            links: vec![UNSET; timers].into(),
            hand: now_us / TICK_US + 1,
        }
    }

    /// Bytes of memory for each timer.
    pub(super) const BYTES_A_TIMER: usize = size_of::<Link>();

    /// Sets a timer, unless it is set to an earlier or the same tick: then it will be asked for too early, and whoever
    /// does so sets it again. So a deadline that moves on with every packet costs nothing. Returns the time at which it will
    /// be asked for.
    #[inline]
    pub(super) fn set_by(&mut self, timer: u32, deadline_us: u64) -> u64 {
        // Up to the next whole tick, so that it is never early by less than a tick over and over.
        let wanted = deadline_us.div_ceil(TICK_US).clamp(self.hand, self.hand + SLOTS - 1);
        let set = self.links[timer as usize].tick;
        if set != 0 && set <= wanted {
            return set * TICK_US;
        }
        self.cancel(timer);
        let head = &mut self.slots[(wanted % SLOTS) as usize];
        self.links[timer as usize] = Link { next: *head, previous: NONE, tick: wanted };
        if *head != NONE {
            self.links[*head as usize].previous = timer;
        }
        *head = timer;
        wanted * TICK_US
    }

    /// Takes a timer out, if it is set.
    pub(super) fn cancel(&mut self, timer: u32) {
        let link = std::mem::replace(&mut self.links[timer as usize], UNSET);
        if link.tick == 0 {
            return;
        }
        if link.previous == NONE {
            self.slots[(link.tick % SLOTS) as usize] = link.next;
        } else {
            self.links[link.previous as usize].next = link.next;
        }
        if link.next != NONE {
            self.links[link.next as usize].previous = link.previous;
        }
    }

    /// Takes out one timer whose tick has come. `None` if there is none, for the time being.
    #[inline]
    pub(super) fn pop(&mut self, now_us: u64) -> Option<u32> {
        let now = now_us / TICK_US;
        // After a pause longer than a turn every slot has been gone over once, which is enough.
        if now >= self.hand + SLOTS {
            self.hand = now - SLOTS + 1;
        }
        while self.hand <= now {
            let head = self.slots[(self.hand % SLOTS) as usize];
            if head != NONE {
                self.cancel(head);
                return Some(head);
            }
            self.hand += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn timers_come_in_their_ticks_and_never_early() {
        let mut wheel = Wheel::new(4, 0);
        wheel.set_by(0, 5_000);
        wheel.set_by(1, 4_001);
        wheel.set_by(2, 5_000);
        wheel.set_by(3, 1_000_000);
        wheel.cancel(2);
        assert_eq!(wheel.pop(4_999), None);
        let mut due = [wheel.pop(5_000).unwrap(), wheel.pop(5_000).unwrap()];
        due.sort_unstable();
        assert_eq!((due, wheel.pop(999_999), wheel.pop(1_000_000)), ([0, 1], None, Some(3)));
    }

    #[test]
    fn a_timer_moves_forward_only_when_it_is_asked_for() {
        let mut wheel = Wheel::new(1, 0);
        wheel.set_by(0, 10_000);
        wheel.set_by(0, 20_000);
        assert_eq!(wheel.pop(10_000), Some(0));
        wheel.set_by(0, 20_000);
        wheel.set_by(0, 15_000);
        assert_eq!((wheel.pop(14_999), wheel.pop(15_000), wheel.pop(40_000)), (None, Some(0), None));
    }

    /// Any order of calls, against a map of deadlines: each timer comes out, not before its time unless that is beyond
    /// a turn, and once.
    #[test]
    fn it_agrees_with_a_sorted_map() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut wheel = Wheel::new(64, 0);
        let mut deadlines = BTreeMap::new();
        let mut now = 0;
        for _ in 0..100_000 {
            let timer = random.u32(0..64);
            match random.u32(0..8) {
                0..3 => {
                    let deadline = now + random.u64(0..6_000_000);
                    if deadlines.get(&timer).is_none_or(|set| deadline < *set) {
                        deadlines.insert(timer, deadline);
                    }
                    wheel.set_by(timer, deadline);
                }
                3 => {
                    wheel.cancel(timer);
                    deadlines.remove(&timer);
                }
                _ => {
                    let most = if random.u32(0..50) == 0 { 9_000_000 } else { 20_000 };
                    now += random.u64(0..most);
                }
            }
            while let Some(due) = wheel.pop(now) {
                let deadline = deadlines.remove(&due).expect("it was set, and did not come out yet");
                if deadline > now {
                    assert!(deadline > now + (SLOTS - 2) * TICK_US - 9_000_000, "early by less than a turn");
                    wheel.set_by(due, deadline);
                    deadlines.insert(due, deadline);
                }
            }
            assert!(deadlines.values().all(|deadline| *deadline + TICK_US > now), "one is late at {now}");
        }
    }
}
