//! Connections that are half open: a SYN has come, and our answer is not acknowledged yet.
//!
//! Owns: a bounded number of them. Never does: refuse one. Invariant: when there are as many as are allowed, the oldest
//! makes room, so that peers which never answer can't keep others out.
//!
//! Whoever lost its place and does answer is recognised by its cookie: the number that our SYN had says, to who knows the
//! secret, that we sent it within the last two minutes, and a little of what was agreed on (as SYN cookies do,
//! Bernstein 1996). What it has no room for, selective acknowledgements and the scale of the peer's windows, our timestamp
//! says, which comes back with the peer's answer. From a peer without timestamps it is given up: its windows are then
//! taken for smaller than they are.
//!
//! A cookie is as good as a place in the backlog, so it is looked at only while somebody may have lost its place; and not for
//! a connection that was open and is over: its first segment, that comes late or once more, is not to open it again.
//!
//! ```text
//! cookie, bits:  31                            5 4       3 2        0
//!               |  keyed hash of name and SYN   |  epoch  | mss class |
//!
//! timestamp, bits:                            31       5  4    3       0
//!                                            |  clock   |sack|  shift   |    shift 15: none
//! ```

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::{
    order::Order,
    peer::{Key, Path},
    segment::SynOptions,
    sequence::Seq,
    wheel::Wheel,
};

/// How long a cookie's epoch lasts. The one before is recognised too.
const EPOCH_US: u64 = 64_000_000;
/// Segment sizes that a cookie can name, in bytes; the largest that is not above the peer's is taken.
const MSS_CLASSES: [u16; 8] = [0, 536, 1220, 1360, 1400, 1440, 1460, 8960];

/// A connection that is half open.
#[derive(Clone, Copy, Debug)]
pub(super) struct HalfOpen {
    pub(super) key: Key,
    pub(super) path: Path,
    /// The number of the peer's SYN (IRS), and of ours (ISS).
    pub(super) theirs: Seq,
    pub(super) ours: Seq,
    pub(super) window: u16,
    pub(super) options: SynOptions,
    pub(super) timestamp: u32,
    pub(super) sent_us: u64,
    /// How often our SYN was sent by time.
    pub(super) sent: u8,
    /// It was sent once more besides, for the peer's came again: so it is not known which of them is answered.
    pub(super) is_repeated: bool,
}

/// The half-open connections of an lcore.
pub(super) struct Backlog {
    entries: Vec<HalfOpen>,
    free: Vec<u32>,
    order: Order,
    index: HashTable<u32>,
    hasher: RandomState,
    wheel: Wheel,
    most: usize,
    /// When somebody lost its place last.
    lost_us: Option<u64>,
    /// Connections that are over, of late: a word of each in the place that its name and number fall on. Of two that fall
    /// on the same it is the later one; 0 is none.
    over: Box<[u32]>,
}

/// How long our SYN waits for its answer before it is sent again; doubled each time (RFC 6298 section 2.1).
const RETRY_US: u64 = 1_000_000;
/// The fewest places for connections that are over.
const OVER_LEAST: usize = 4096;
/// How often it is sent.
const TRIES: u8 = 5;

/// Bits of a timestamp that say what the peer has offered.
const OFFER: u32 = 0x1f;
const NO_SHIFT: u8 = 15;

/// The timestamp of a SYN of ours, which says what the peer has offered: the newest that does so and is not ahead of the
/// clock, for what follows may not be older (RFC 7323 section 5).
pub(super) fn with_offer(clock: u32, offer: SynOptions) -> u32 {
    let bits = u32::from(offer.sack) << 4 | u32::from(offer.shift.unwrap_or(NO_SHIFT));
    clock.wrapping_sub(clock.wrapping_sub(bits) & OFFER)
}

/// What such a timestamp says: whether the peer takes selective acknowledgements, and its shift.
pub(super) fn offer_of(echo: u32) -> (bool, Option<u8>) {
    let shift = echo as u8 & 0xf;
    (echo & 0x10 != 0, (shift != NO_SHIFT).then_some(shift))
}

impl Backlog {
    pub(super) fn new(most: usize, now_us: u64) -> Self {
        Self {
            entries: Vec::with_capacity(most),
            free: Vec::with_capacity(most),
            order: Order::new(most),
            index: HashTable::with_capacity(2 * most),
            hasher: RandomState::new(),
            wheel: Wheel::new(most, now_us),
            most,
            lost_us: None,
            over: vec![0; most.next_power_of_two().max(OVER_LEAST)].into(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The number that our SYN gets (ISS).
    pub(super) fn cookie(&self, key: &Key, theirs: Seq, mss: u16, now_us: u64) -> Seq {
        let class = MSS_CLASSES.iter().rposition(|class| *class <= mss).unwrap_or(0);
        self.cookie_of(key, theirs, class, now_us / EPOCH_US)
    }

    fn cookie_of(&self, key: &Key, theirs: Seq, class: usize, epoch: u64) -> Seq {
        // SipHash with keys drawn by lot: whoever sees cookies can't make one.
        let hash = self.hasher.hash_one((key, theirs.0, class, epoch)) as u32;
        Seq(hash & !0x1f | (epoch as u32 & 3) << 3 | class as u32)
    }

    /// Notes that a connection is over, which the peer's SYN of this number has opened.
    pub(super) fn note_end(&mut self, key: &Key, theirs: Seq) {
        let (place, word) = self.place_of(key, theirs);
        self.over[place] = word;
    }

    fn place_of(&self, key: &Key, theirs: Seq) -> (usize, u32) {
        let hash = self.hasher.hash_one((key, theirs.0));
        (hash as usize & (self.over.len() - 1), (hash >> 32) as u32 | 1)
    }

    /// The segment size that a cookie of ours names, in bytes. `None` if it is none, or an old one, if nobody has lost its
    /// place as long as it is good, or if its connection is over.
    pub(super) fn recognise(&self, key: &Key, theirs: Seq, ours: Seq, now_us: u64) -> Option<u16> {
        if self.lost_us.is_none_or(|lost_us| now_us - lost_us >= 2 * EPOCH_US) {
            return None;
        }
        let (place, word) = self.place_of(key, theirs);
        if self.over[place] == word {
            return None;
        }
        let class = (ours.0 & 7) as usize;
        let now = now_us / EPOCH_US;
        let is_ours = |epoch| self.cookie_of(key, theirs, class, epoch) == ours;
        (is_ours(now) || (now > 0 && is_ours(now - 1))).then(|| MSS_CLASSES[class])
    }

    /// The half-open connection of this name.
    #[inline]
    pub(super) fn find(&self, key: &Key) -> Option<u32> {
        if self.index.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        self.index.find(hash, |number| self.entries[*number as usize].key == *key).copied()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut HalfOpen {
        &mut self.entries[number as usize]
    }

    /// Adds one whose name is new. Returns whether the oldest had to make room.
    pub(super) fn insert(&mut self, entry: HalfOpen) -> bool {
        let mut evicted = false;
        while self.len() >= self.most {
            let Some(oldest) = self.order.oldest() else { break };
            self.remove(oldest);
            self.lost_us = Some(entry.sent_us);
            evicted = true;
        }
        let hash = self.hasher.hash_one(entry.key);
        let number = if let Some(number) = self.free.pop() {
            self.entries[number as usize] = entry;
            number
        } else {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        };
        self.order.push(number);
        self.wheel.set_by(number, entry.sent_us + RETRY_US);
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.index.insert_unique(hash, number, |number| hasher.hash_one(entries[*number as usize].key));
        evicted
    }

    /// Removes one.
    pub(super) fn remove(&mut self, number: u32) -> HalfOpen {
        let entry = self.entries[number as usize];
        let hash = self.hasher.hash_one(entry.key);
        if let Ok(place) = self.index.find_entry(hash, |other| *other == number) {
            place.remove();
            self.free.push(number);
            self.wheel.cancel(number);
            self.order.remove(number);
        }
        entry
    }

    /// One whose SYN must be sent again now; those that were sent often enough are removed.
    pub(super) fn due(&mut self, now_us: u64) -> Option<&HalfOpen> {
        loop {
            let number = self.wheel.pop(now_us)?;
            let entry = &mut self.entries[number as usize];
            let due_us = entry.sent_us + (RETRY_US << entry.sent) - RETRY_US;
            if due_us > now_us {
                self.wheel.set_by(number, due_us);
                continue;
            }
            if entry.sent >= TRIES {
                self.remove(number);
                self.lost_us = Some(now_us);
                continue;
            }
            entry.sent += 1;
            let next_us = entry.sent_us + (RETRY_US << entry.sent) - RETRY_US;
            self.wheel.set_by(number, next_us);
            return Some(&self.entries[number as usize]);
        }
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        while let Some(oldest) = self.order.oldest() {
            self.remove(oldest);
        }
    }
}
