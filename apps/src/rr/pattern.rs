//! The bytes of requests and responses.
//!
//! Owns: nothing. Never does: repeat itself for two flows or two transactions, but by chance: a byte that is of another
//! flow, transaction or place is found out 255 times of 256, a word nearly always. Invariant: a byte follows from run,
//! flow, transaction and place alone, so nothing has to be kept to verify it.

/// The bytes of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    key: u64,
    /// What repeats, in bytes; 0: nothing does.
    period: u32,
}

/// The finalizer of `SplitMix64` (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

impl Pattern {
    /// The request of a flow's transaction in a run, which `salt` tells from others.
    #[inline]
    pub(super) fn new(salt: u64, flow: u32, transaction: u64) -> Self {
        let key = mix(salt ^ mix(u64::from(flow) << 32 ^ transaction.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        Self { key, period: 0 }
    }

    /// The response that consists of the first `period` bytes, over and over.
    #[inline]
    pub(super) fn repeated(self, period: u32) -> Self {
        Self { period, ..self }
    }

    /// The eight bytes from place `8 * number` on.
    #[inline]
    fn word(self, number: u64) -> [u8; 8] {
        mix(self.key.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
    }

    /// Calls `visit` for pieces of `0..len`, with the bytes that belong there from place `from` on, until it says to
    /// stop.
    #[inline]
    fn pieces(self, from: u32, len: usize, mut visit: impl FnMut(usize, &[u8]) -> bool) {
        let mut at = 0;
        while at < len {
            let place = from as usize + at;
            // To the end of the word, of the period, or of what is asked for.
            let (place, left) = match self.period as usize {
                0 => (place, usize::MAX),
                period => (place % period, period - place % period),
            };
            let in_word = place % 8;
            let count = (8 - in_word).min(left).min(len - at);
            if !visit(at, &self.word(place as u64 / 8)[in_word..in_word + count]) {
                return;
            }
            at += count;
        }
    }

    /// Writes the bytes from place `from` on.
    #[inline]
    pub(super) fn write(self, from: u32, to: &mut [u8]) {
        self.pieces(from, to.len(), |at, bytes| {
            to[at..at + bytes.len()].copy_from_slice(bytes);
            true
        });
    }

    /// How many of some bytes are not those from place `from` on.
    #[inline]
    pub(super) fn wrong(self, from: u32, found: &[u8]) -> usize {
        let mut wrong = 0;
        self.pieces(from, found.len(), |at, bytes| {
            let found = &found[at..at + bytes.len()];
            if found != bytes {
                wrong += found.iter().zip(bytes).filter(|(found, byte)| found != byte).count();
            }
            true
        });
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_from_their_place_however_they_are_cut() {
        let pattern = Pattern::new(1, 2, 3);
        for pattern in [pattern, pattern.repeated(1), pattern.repeated(13), pattern.repeated(64)] {
            let mut whole = [0; 300];
            pattern.write(0, &mut whole);
            for cut in 0..300 {
                let mut parts = [0; 300];
                let (one, other) = parts.split_at_mut(cut);
                pattern.write(0, one);
                pattern.write(cut as u32, other);
                assert_eq!(parts, whole);
                assert_eq!(pattern.wrong(cut as u32, &whole[cut..]), 0);
            }
            if pattern.period > 0 {
                assert!(whole.iter().zip(&whole[pattern.period as usize..]).all(|(one, next)| one == next));
            }
        }
    }

    #[test]
    fn each_changed_byte_is_counted() {
        let pattern = Pattern::new(1, 2, 3);
        let mut bytes = [0; 100];
        pattern.write(5, &mut bytes);
        for at in 0..100 {
            bytes[at] ^= 1;
            assert_eq!(pattern.wrong(5, &bytes), at + 1);
        }
    }

    #[test]
    fn other_runs_flows_transactions_and_places_are_told_apart() {
        let mut bytes = [0; 64];
        Pattern::new(1, 2, 3).write(0, &mut bytes);
        for (salt, flow, transaction, from) in
            [(2, 2, 3, 0), (1, 3, 3, 0), (1, 2, 4, 0), (1, 2, 3, 1), (1, 3, 2, 0)]
        {
            assert!(Pattern::new(salt, flow, transaction).wrong(from, &bytes) > 50);
        }
    }
}
