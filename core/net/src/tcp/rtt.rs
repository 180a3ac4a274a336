//! The round-trip time and the retransmission timeout (RFC 6298), in microseconds.

/// What is known of a path's round-trip time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rtt {
    /// Eight times the smoothed round-trip time; 0 before the first sample.
    smoothed_x8: u32,
    /// Four times its mean deviation.
    deviation_x4: u32,
    /// How often the timeout was doubled since the last sample.
    backoff: u8,
}

/// Before there is a sample (RFC 6298 section 2.1).
const INITIAL_US: u32 = 1_000_000;
/// The longest timeout (section 2.5 allows any of 60 s or more).
const LONGEST_US: u32 = 60_000_000;

impl Rtt {
    /// Takes a measured time into account: sections 2.2 and 2.3, alpha 1/8 and beta 1/4.
    #[inline]
    pub(super) fn sample(&mut self, us: u32) {
        let us = us.clamp(1, LONGEST_US);
        self.backoff = 0;
        if self.smoothed_x8 == 0 {
            self.smoothed_x8 = us * 8;
            self.deviation_x4 = us * 2;
            return;
        }
        let error = us.abs_diff(self.smoothed_x8 / 8);
        self.deviation_x4 = self.deviation_x4 - self.deviation_x4 / 4 + error;
        self.smoothed_x8 = self.smoothed_x8 - self.smoothed_x8 / 8 + us;
    }

    /// Doubles the timeout (section 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1).min(16);
    }

    /// Whether the timeout was doubled since the last sample.
    #[inline]
    pub(super) fn is_backed_off(&self) -> bool {
        self.backoff > 0
    }

    /// How often it was, up to 16.
    #[inline]
    pub(super) fn doublings(&self) -> u8 {
        self.backoff
    }

    /// Nothing was lost, but waited: the timeout is that of the path again. After a loss the doubled one stands until there
    /// is a sample, or a path that has become slower would never be learned (Karn's algorithm, sections 3 and 5).
    pub(super) fn clear_backoff(&mut self) {
        self.backoff = 0;
    }

    /// The retransmission timeout, not shorter than `least_us`.
    #[inline]
    pub(super) fn timeout_us(&self, least_us: u32) -> u64 {
        let base = if self.smoothed_x8 == 0 {
            INITIAL_US
        } else {
            (self.smoothed_x8 / 8).saturating_add(self.deviation_x4.max(TICK)).max(least_us)
        };
        (u64::from(base) << self.backoff).min(u64::from(LONGEST_US))
    }
}

/// The clock's granularity, G of section 2: the wheel's tick.
const TICK: u32 = super::wheel::TICK_US as u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_sets_and_further_ones_smooth() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout_us(1), 1_000_000);
        rtt.sample(10_000);
        assert_eq!(rtt.timeout_us(1), 30_000); // R + 4 * R / 2
        for _ in 0..100 {
            rtt.sample(10_000);
        }
        assert_eq!(rtt.timeout_us(1) / 1_000, 11); // The deviation has gone down to the tick.
        assert_eq!(rtt.timeout_us(50_000), 50_000);
    }

    #[test]
    fn it_backs_off_to_a_minute_and_a_sample_ends_that() {
        let mut rtt = Rtt::default();
        rtt.sample(1_000);
        let base = rtt.timeout_us(50_000);
        rtt.back_off();
        assert_eq!(rtt.timeout_us(50_000), 2 * base);
        (0..40).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout_us(50_000), 60_000_000);
        rtt.sample(u32::MAX);
        rtt.sample(0);
        assert!(rtt.timeout_us(50_000) <= 60_000_000 && !rtt.is_backed_off());
    }
}
