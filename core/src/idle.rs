//! What an lcore does in a poll that found nothing.

use std::{os::fd::RawFd, sync::Arc, time::Duration};

use crate::QueueCounters;

/// How an lcore passes the time when there is no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Polls on, with a pause instruction in between: lowest latency, a CPU at 100 %.
    Spin,
    /// Sleeps in poll(2) on its queues after this many empty polls in a row, until a packet comes
    /// or 10 ms have passed; 100 us if one of its queues can't be waited on, such as a ring's end. An lcore
    /// without a queue that can be waited on spins.
    Adaptive {
        /// Empty polls before the lcore sleeps, at least 1.
        empty_polls: u32,
    },
}

impl IdlePolicy {
    /// Empty polls before an adaptive lcore sleeps, unless told otherwise: some 100 us of polling.
    pub const DEFAULT_EMPTY_POLLS: u32 = 1000;
}

/// The longest sleep: how late an lcore may see a raised stop flag.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);
/// What an lcore waits on: a descriptor, and the counters of the queue that it is of.
pub(crate) type Wait = (RawFd, Option<Arc<QueueCounters>>);

/// The longest sleep where packets can come that end no sleep. A ring of 1,024 slots takes as long to fill at
/// 10 million packets/s.
const UNWAITED_SLEEP: Duration = Duration::from_micros(100);
/// The number of empty polls that never comes: at one a nanosecond it would take 500 years.
const NEVER: u64 = u64::MAX;

/// An lcore's idle state.
pub(crate) struct Idler {
    empty_polls: u64,
    /// Empty polls before the lcore sleeps.
    sleep_after: u64,
    longest: Duration,
    waits: Vec<libc::pollfd>,
    /// Of each of these.
    queues: Vec<Option<Arc<QueueCounters>>>,
}

impl Idler {
    /// `has_unwaited`: some queue is not among what is waited on.
    pub(crate) fn new(policy: IdlePolicy, waits: &[Wait], has_unwaited: bool) -> Self {
        let (waits, queues): (Vec<_>, _) = waits
            .iter()
            .map(|(fd, queue)| (libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }, queue.clone()))
            .unzip();
        let sleep_after = match policy {
            IdlePolicy::Adaptive { empty_polls } if !waits.is_empty() => empty_polls.into(),
            _ => NEVER,
        };
        let longest = if has_unwaited { UNWAITED_SLEEP } else { LONGEST_SLEEP };
        Self { empty_polls: 0, sleep_after, longest, waits, queues }
    }

    /// There was work: the count of empty polls starts again.
    #[inline(always)]
    pub(crate) fn worked(&mut self) {
        self.empty_polls = 0;
    }

    /// There was none. Returns whether the lcore slept.
    #[inline(always)]
    pub(crate) fn found_nothing(&mut self) -> bool {
        self.empty_polls += 1;
        if self.empty_polls < self.sleep_after {
            std::hint::spin_loop();
            return false;
        }
        self.sleep();
        true
    }

    /// Nothing will ever come any more: every poll that finds nothing sleeps, whatever the policy.
    #[cold]
    pub(crate) fn rest(&mut self) {
        self.waits.clear();
        (self.sleep_after, self.longest) = (0, LONGEST_SLEEP);
    }

    #[cold]
    fn sleep(&mut self) {
        // Where poll(2) would send, and not tell what became of it, the queue's own calls are to do so, soon.
        let mut longest = self.longest;
        for (wait, queue) in self.waits.iter_mut().zip(&self.queues) {
            if queue.as_ref().is_some_and(|queue| queue.sends_in_poll()) {
                wait.fd = !wait.fd;
                longest = longest.min(UNWAITED_SLEEP);
            }
        }
        self.sleep_within(longest);
        // poll(2) leaves out what is negative; the next sleep asks all again.
        self.waits.iter_mut().filter(|wait| wait.fd < 0).for_each(|wait| wait.fd = !wait.fd);
    }

    fn sleep_within(&mut self, longest: Duration) {
        if wait(&mut self.waits, longest) == 0 {
            return;
        }
        let is_dead = |wait: &libc::pollfd| {
            wait.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0
                && wait.revents & libc::POLLIN == 0
        };
        if self.waits.iter().any(|wait| wait.revents != 0 && !is_dead(wait)) {
            return;
        }
        // What is dead is ready at once, always, and would burn the CPU: sleep on the others alone. It may come back
        // to life, as a packet socket does when its link is up again, so the next sleep asks it once more.
        self.waits.iter_mut().filter(|wait| is_dead(wait)).for_each(|wait| wait.fd = !wait.fd);
        wait(&mut self.waits, longest);
    }
}

/// Waits until a descriptor is ready, the time is over or a signal comes; all three lead to the next poll. Returns
/// how many are ready.
fn wait(waits: &mut [libc::pollfd], longest: Duration) -> usize {
    for wait in &mut *waits {
        wait.revents = 0;
    }
    let timeout =
        libc::timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
    // SAFETY: the kernel reads and writes the entries of the slice, whose length is given, and reads the time.
    let ready = unsafe {
        libc::ppoll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, &raw const timeout, std::ptr::null())
    };
    usize::try_from(ready).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::fd::AsRawFd};

    use super::*;

    const ADAPTIVE: IdlePolicy = IdlePolicy::Adaptive { empty_polls: 1 };

    #[test]
    fn a_dead_descriptor_does_not_hide_a_living_one() {
        let (dead, writer) = std::io::pipe().unwrap();
        drop(writer); // Always ready, with POLLHUP.
        let (alive, mut writer) = std::io::pipe().unwrap();
        let mut idler = Idler::new(ADAPTIVE, &[(dead.as_raw_fd(), None), (alive.as_raw_fd(), None)], false);
        idler.longest = Duration::from_secs(10);
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            writer.write_all(b"x").unwrap();
            writer
        });
        idler.sleep();
        assert!(idler.waits[1].revents & libc::POLLIN != 0, "the sleep did not end for what came");
        assert_eq!(idler.waits[0].fd, dead.as_raw_fd(), "the next sleep asks again");
        late.join().unwrap();
    }

    #[test]
    fn a_queue_that_can_not_be_waited_on_shortens_the_sleep() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let longest =
            |has_unwaited| Idler::new(ADAPTIVE, &[(reader.as_raw_fd(), None)], has_unwaited).longest;
        assert_eq!([longest(true), longest(false)], [UNWAITED_SLEEP, LONGEST_SLEEP]);
    }

    #[test]
    fn a_queue_that_would_send_in_poll_is_not_asked() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"x").unwrap(); // Always ready.
        let queue = Arc::new(QueueCounters::default());
        let mut idler = Idler::new(ADAPTIVE, &[(reader.as_raw_fd(), Some(queue.clone()))], false);
        for sends in [true, false, true] {
            queue.set_sends_in_poll(sends);
            idler.sleep();
            assert_eq!(idler.waits[0].revents == 0, sends);
            assert_eq!(idler.waits[0].fd, reader.as_raw_fd());
        }
    }
}
