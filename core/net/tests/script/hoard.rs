//! Frames that a script takes away from the server, so that its pool runs empty.

use crate::peer::Script;

impl Script {
    /// Takes all frames that there are, but for so many.
    pub(crate) fn starve(&mut self, left: usize) {
        let cache = self.cache.as_mut().unwrap();
        while let Some(frame) = cache.alloc() {
            self.hoard.push(frame);
        }
        for _ in 0..left {
            cache.free(self.hoard.pop().unwrap());
        }
    }

    /// Gives them back.
    pub(crate) fn feed(&mut self) {
        let cache = self.cache.as_mut().unwrap();
        self.hoard.drain(..).for_each(|frame| cache.free(frame));
    }

    /// Frames that connections hold.
    pub(crate) fn held(&self) -> u64 {
        self.pool.census().in_flight - self.hoard.len() as u64
    }
}
