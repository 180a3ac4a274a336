//! What an lcore does in a poll that found nothing.

use std::os::fd::RawFd;

/// How an lcore passes the time when there is no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Polls on, with a pause instruction in between: lowest latency, a CPU at 100 %.
    Spin,
    /// Sleeps in poll(2) on its queues after this many empty polls in a row, until a packet comes
    /// or 10 ms have passed. An lcore without a queue that can be waited on spins.
    Adaptive {
        /// Empty polls before the lcore sleeps, at least 1.
        empty_polls: u32,
    },
}

impl IdlePolicy {
    /// Empty polls before an adaptive lcore sleeps, unless told otherwise: some 100 us of polling.
    pub const DEFAULT_EMPTY_POLLS: u32 = 1000;
}

/// The longest sleep in milliseconds: how late an lcore may see a raised stop flag.
const SLEEP_MS: i32 = 10;

/// An lcore's idle state.
pub(crate) struct Idler {
    policy: IdlePolicy,
    empty_polls: u32,
    waits: Vec<libc::pollfd>,
}

impl Idler {
    pub(crate) fn new(policy: IdlePolicy, fds: &[RawFd]) -> Self {
        let waits = fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
        Self { policy, empty_polls: 0, waits }
    }

    /// There was work: the count of empty polls starts again.
    #[inline(always)]
    pub(crate) fn worked(&mut self) {
        self.empty_polls = 0;
    }

    /// There was none. Returns whether the lcore slept.
    #[inline(always)]
    pub(crate) fn found_nothing(&mut self) -> bool {
        self.empty_polls = self.empty_polls.saturating_add(1);
        match self.policy {
            IdlePolicy::Adaptive { empty_polls }
                if self.empty_polls >= empty_polls && !self.waits.is_empty() =>
            {
                self.sleep();
                true
            }
            _ => {
                std::hint::spin_loop();
                false
            }
        }
    }

    #[cold]
    fn sleep(&mut self) {
        for wait in &mut self.waits {
            wait.revents = 0;
        }
        // The result does not matter: a packet, the time or a signal all lead to the next poll.
        // SAFETY: the kernel reads and writes the entries of the vector, whose length is given.
        let ready =
            unsafe { libc::poll(self.waits.as_mut_ptr(), self.waits.len() as libc::nfds_t, SLEEP_MS) };
        let dead = |wait: &libc::pollfd| wait.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
        if ready > 0 && self.waits.iter().all(|wait| wait.revents == 0 || dead(wait)) {
            // A socket whose device is gone is ready at once, always; don't burn the CPU on it.
            std::thread::sleep(std::time::Duration::from_millis(SLEEP_MS as u64));
        }
    }
}
