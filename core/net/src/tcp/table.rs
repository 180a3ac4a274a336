//! The flows, by number and by name.
//!
//! Owns: all flows of one lcore, the frames that they hold, and the index over their names. Never does: allocate memory
//! after it was made. Invariant: a flow is in the index as long as it is in use, and a free one holds no frame.

use foldhash::quality::FixedState;
use hashbrown::HashTable;
use sheafio_mempool::{Frame, PoolCache};
use std::hash::BuildHasher;

use super::{
    bytes::{self, Slots},
    flow::Flow,
    peer::Key,
};

/// Names that are fetched for at a time: what misses of the cache a core can have under way.
const FETCHED: usize = 16;

/// The name of a flow, and its place in the index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    pub(super) key: Key,
    hash: u64,
}

/// A place for a frame.
pub(super) type Place = Option<Frame>;

/// All flows of an lcore.
pub(super) struct Flows<Session> {
    all: Vec<Flow<Session>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    hasher: FixedState,
    /// The places of each flow: first those of its receive buffer, then those of its send buffer.
    places: Vec<Place>,
    receive_frames: usize,
    send_frames: usize,
}

impl<Session: Default> Flows<Session> {
    /// Room for `most` flows with so many frames each. `seed` keeps peers from choosing names that collide.
    pub(super) fn new(most: usize, (receive_frames, send_frames): (usize, usize), seed: u64) -> Self {
        Self {
            all: Vec::with_capacity(most),
            free: Vec::with_capacity(most),
            // Twice the room, so that entries that were removed seldom make the table sort itself anew.
            index: HashTable::with_capacity(most * 2),
            hasher: FixedState::with_seed(seed),
            places: (0..most * (receive_frames + send_frames)).map(|_| None).collect(),
            receive_frames,
            send_frames,
        }
    }

    /// Flows in use.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.all.len() == self.all.capacity()
    }

    /// A name as the index wants it.
    #[inline]
    pub(super) fn name(&self, key: Key) -> Name {
        Name { key, hash: self.hasher.hash_one(key) }
    }

    /// The number of the flow of this name.
    #[inline]
    pub(super) fn find(&self, name: &Name) -> Option<u32> {
        self.index.find(name.hash, |number| self.all[*number as usize].key == name.key).copied()
    }

    /// Fetches what packets of these names will need into the cache. One packet after the other would wait for the index,
    /// then for its flow; here all wait at the same time, for nothing that is read decides on what is read next.
    #[inline(never)]
    pub(super) fn fetch(&self, names: &[Name]) {
        let each = self.receive_frames + self.send_frames;
        let mut touched = 0;
        for names in names.chunks(FETCHED) {
            let mut numbers = [0; FETCHED];
            let mut count = 0;
            // The flow that a name most likely has: none is looked at.
            for number in names.iter().filter_map(|name| self.index.find(name.hash, |_| true)) {
                numbers[count] = *number as usize;
                count += 1;
            }
            for &number in &numbers[..count] {
                touched ^= self.all[number].touch() ^ u64::from(self.places[number * each].is_some());
            }
        }
        // The compiler would leave out what nobody uses.
        std::hint::black_box(touched);
    }

    /// A flow, with the places of its receive and of its send buffer.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> (&mut Flow<Session>, &mut Slots, &mut Slots) {
        let each = self.receive_frames + self.send_frames;
        let start = number as usize * each;
        let (receive, send) = self.places[start..start + each].split_at_mut(self.receive_frames);
        (&mut self.all[number as usize], receive, send)
    }

    /// A flow.
    #[inline]
    pub(super) fn flow(&mut self, number: u32) -> &mut Flow<Session> {
        &mut self.all[number as usize]
    }

    /// Adds a flow whose name is new. Returns its number, or the flow where there is no room.
    pub(super) fn insert(&mut self, mut flow: Flow<Session>) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let hash = self.hasher.hash_one(flow.key);
        let number = if let Some(number) = self.free.pop() {
            flow.is_listed = self.all[number as usize].is_listed; // That of its number.
            self.all[number as usize] = flow;
            number
        } else {
            self.all.push(flow);
            self.all.len() as u32 - 1
        };
        let (all, hasher) = (&self.all, &self.hasher);
        self.index.insert_unique(hash, number, |number| hasher.hash_one(all[*number as usize].key));
        Some(number)
    }

    /// Removes a flow, if it was not yet, gives its frames back and drops its session.
    pub(super) fn remove(&mut self, number: u32, cache: &mut PoolCache) {
        if self.all[number as usize].is_over {
            return;
        }
        let hash = self.hasher.hash_one(self.all[number as usize].key);
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == number) {
            entry.remove();
            self.free.push(number);
            let flow = &mut self.all[number as usize];
            flow.is_over = true;
            flow.session = Session::default();
        }
        let (_, receive, send) = self.get_mut(number);
        bytes::free(receive, cache);
        bytes::free(send, cache);
    }

    /// All flows have numbers below this one, those that are over as well.
    pub(super) fn places(&self) -> u32 {
        self.all.len() as u32
    }
}
