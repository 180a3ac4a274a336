//! `Lcore`: a thread pinned to one CPU that polls until it is told to stop.
//!
//! Owns: the loop and its cycle accounting. Never does: allocate or lock once the loop runs.
//! Invariant: every cycle between start and end is counted as busy or idle.

use std::{
    os::fd::RawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use sheafio_mempool::{Mempool, PoolCache, sync::add};

use crate::{
    CoreError, IdlePolicy, LcoreCounters, LcoreTotals, Queue, QueueCounters, Stop, cpus, cycles,
    idle::{Idler, Wait},
};

/// How many polls go by between two looks at the clock; a look costs as much as a small burst.
const POLLS_A_CLOCK: u32 = 256;

/// A poll loop, pinned to a CPU and about to run.
#[derive(Debug)]
pub struct Lcore {
    cpu: u32,
    idle: IdlePolicy,
    waits: Vec<Wait>,
    served: Vec<Arc<QueueCounters>>,
    has_unwaited: bool,
    duration: Option<Duration>,
    packets: Option<u64>,
    stop: Option<Stop>,
    counters: Arc<LcoreCounters>,
}

/// What a loop did, told when it has ended.
#[derive(Clone, Copy, Debug)]
pub struct LcoreReport {
    /// The CPU that it ran on.
    pub cpu: u32,
    /// Its counts.
    pub totals: LcoreTotals,
}

impl Lcore {
    /// Pins the calling thread to a CPU.
    ///
    /// # Errors
    /// [`CoreError::Cpu`] if the process may not use that CPU; it names those it may use.
    pub fn pin(cpu: u32) -> Result<Self, CoreError> {
        cpus::pin(cpu)?;
        Ok(Self {
            cpu,
            idle: IdlePolicy::Spin,
            waits: Vec::new(),
            served: Vec::new(),
            has_unwaited: false,
            duration: None,
            packets: None,
            stop: None,
            counters: Arc::default(),
        })
    }

    /// What to do in polls that find nothing. Default: [`IdlePolicy::Spin`].
    #[must_use]
    pub fn idle(mut self, policy: IdlePolicy) -> Self {
        self.idle = policy;
        self
    }

    /// Tells of the queues that the loop will poll, all of them. An adaptive lcore waits on those that can be waited
    /// on, and sleeps shorter if there are others. Once the devices of all are gone ([`Queue::is_gone`]), it sleeps
    /// after every poll that finds nothing, whatever its policy.
    #[must_use]
    pub fn serves<'a>(mut self, queues: impl IntoIterator<Item = &'a dyn Queue>) -> Self {
        for queue in queues {
            match queue.wait_fd() {
                Some(fd) => self.waits.push((fd, Some(queue.counters().clone()))),
                None => self.has_unwaited = true,
            }
            self.served.push(queue.counters().clone());
        }
        self
    }

    /// Adds a descriptor of another kind that an adaptive lcore waits on.
    #[must_use]
    pub fn wait_on(mut self, fds: impl IntoIterator<Item = RawFd>) -> Self {
        self.waits.extend(fds.into_iter().map(|fd| (fd, None)));
        self
    }

    /// Ends the loop after this time.
    #[must_use]
    pub fn duration(mut self, duration: Duration) -> Self {
        self.duration = Some(duration);
        self
    }

    /// Ends the loop once its polls have reported this many packets.
    #[must_use]
    pub fn packets(mut self, packets: u64) -> Self {
        self.packets = Some(packets);
        self
    }

    /// Ends the loop when this flag is raised. Default: [`Stop::on_signals`].
    #[must_use]
    pub fn stop_on(mut self, stop: Stop) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Counts into a block that another thread reads.
    #[must_use]
    pub fn count_into(mut self, counters: Arc<LcoreCounters>) -> Self {
        self.counters = counters;
        self
    }

    /// Polls until a signal, the duration or the packet limit ends it. `poll` gets this thread's
    /// pool cache and returns how many packets it handled; 0 means that there was nothing to do.
    ///
    /// # Errors
    /// If there is no pool cache left, or the signal handlers can't be installed.
    pub fn run(
        self,
        pool: &'static Mempool,
        poll: impl FnMut(&mut PoolCache) -> usize,
    ) -> Result<LcoreReport, CoreError> {
        let mut cache = pool.cache()?;
        self.run_with(&mut cache, poll)
    }

    /// As [`run`](Self::run), with a pool cache of the caller's, which can then close its queues
    /// with it.
    ///
    /// # Errors
    /// If the signal handlers can't be installed.
    pub fn run_with(
        self,
        cache: &mut PoolCache,
        mut poll: impl FnMut(&mut PoolCache) -> usize,
    ) -> Result<LcoreReport, CoreError> {
        let stop = self.stop.map_or_else(Stop::on_signals, Ok)?;
        // A time beyond what the clock can tell never comes.
        let end = self.duration.and_then(|duration| Instant::now().checked_add(duration));
        let limit = self.packets.unwrap_or(u64::MAX);
        let mut idler = Idler::new(self.idle, &self.waits, self.has_unwaited);
        let mut rests = false;
        let counters = &*self.counters;
        let mut packets = 0;
        let mut polls_to_clock = 1; // The first poll is followed by a look: a duration of 0 is one poll.
        let mut last = cycles();

        while packets < limit && !stop.is_raised() {
            let work = poll(cache);
            cache.boundary();
            let slept = if work > 0 {
                idler.worked();
                false
            } else {
                idler.found_nothing()
            };

            let now = cycles();
            let spent = now.wrapping_sub(last);
            last = now;
            packets += work as u64;
            add(if work > 0 { &counters.busy_cycles } else { &counters.idle_cycles }, spent);
            add(&counters.packets, work as u64);
            add(&counters.polls, 1);
            add(&counters.sleeps, u64::from(slept));

            polls_to_clock -= 1;
            // Out of the straight path: the clock costs as much as a small burst.
            if polls_to_clock == 0 || slept {
                polls_to_clock = POLLS_A_CLOCK;
                if end.is_some_and(|end| Instant::now() >= end) {
                    break;
                }
                if !rests && are_gone(&self.served) {
                    rests = true;
                    idler.rest();
                }
            }
        }
        Ok(LcoreReport { cpu: self.cpu, totals: counters.totals() })
    }
}

/// Whether there are queues, and all of them have lost their devices.
fn are_gone(served: &[Arc<QueueCounters>]) -> bool {
    !served.is_empty() && served.iter().all(|queue| queue.is_gone())
}

#[cfg(test)]
mod tests {
    use sheafio_mempool::{Burst, Hugepages};

    use super::*;
    use crate::{Closed, allowed_cpus};

    fn lcore() -> Lcore {
        Lcore::pin(allowed_cpus().0[0]).unwrap().stop_on(Stop::new())
    }

    fn pool() -> &'static Mempool {
        Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap()
    }

    #[test]
    fn the_packet_limit_ends_the_loop_and_all_is_counted() {
        let report = lcore().packets(100).run(pool(), |_| 10).unwrap();
        assert_eq!((report.totals.packets, report.totals.polls, report.totals.sleeps), (100, 10, 0));
        assert!(report.totals.busy_cycles > 0 && report.totals.idle_cycles == 0);
        assert!((report.totals.busy() - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn the_duration_ends_an_idle_loop() {
        let report = lcore().duration(Duration::from_millis(5)).run(pool(), |_| 0).unwrap();
        assert!(report.totals.polls >= u64::from(POLLS_A_CLOCK) && report.totals.idle_cycles > 0);
        assert!(report.totals.busy() < f64::EPSILON);
    }

    #[test]
    fn durations_of_nothing_and_of_for_ever_are_no_trouble() {
        let report = lcore().duration(Duration::ZERO).run(pool(), |_| 1).unwrap();
        assert_eq!(report.totals.polls, 1);
        let report = lcore().duration(Duration::MAX).packets(1).run(pool(), |_| 1).unwrap();
        assert_eq!(report.totals.packets, 1);
    }

    #[test]
    fn a_raised_flag_ends_the_loop_after_the_poll() {
        let stop = Stop::new();
        let raised = stop.clone();
        let mut polls = 0;
        let poll = |_: &mut PoolCache| {
            polls += 1;
            if polls == 3 {
                raised.raise();
            }
            1
        };
        assert_eq!(lcore().stop_on(stop).run(pool(), poll).unwrap().totals.polls, 3);
    }

    #[test]
    fn an_adaptive_lcore_sleeps_after_the_stated_number_of_empty_polls_and_wakes_for_data() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let mut polls = 0;
        let poll = |_: &mut PoolCache| {
            polls += 1;
            if polls == 20 {
                std::io::Write::write_all(&mut writer, b"x").unwrap();
            }
            usize::from(polls == 40)
        };
        let idle = IdlePolicy::Adaptive { empty_polls: 10 };
        let report = lcore().idle(idle).wait_on([fd]).packets(1).run(pool(), poll).unwrap();
        // Polls 10 to 39 are empty and at least the tenth in a row.
        assert_eq!((report.totals.polls, report.totals.sleeps), (40, 30));
    }

    #[test]
    fn a_lcore_that_can_not_wait_spins() {
        let mut polls = 0;
        let poll = |_: &mut PoolCache| {
            polls += 1;
            usize::from(polls == 100)
        };
        let report =
            lcore().idle(IdlePolicy::Adaptive { empty_polls: 1 }).packets(1).run(pool(), poll).unwrap();
        assert_eq!((report.totals.polls, report.totals.sleeps), (100, 0));
    }

    /// A queue of which only the device's end matters.
    #[derive(Default)]
    struct Device(Arc<QueueCounters>);

    impl Queue for Device {
        fn rx_burst(&mut self, _: &mut PoolCache, _: &mut Burst) -> usize {
            0
        }

        fn tx_burst(&mut self, _: &mut PoolCache, _: &mut Burst) -> usize {
            0
        }

        fn counters(&self) -> &Arc<QueueCounters> {
            &self.0
        }

        fn close_by(&mut self, _: &mut PoolCache, _: Instant) -> Closed {
            Closed::default()
        }
    }

    /// Polls on until both devices are gone, then sleeps, also with the policy that never does.
    #[test]
    fn a_lcore_whose_devices_are_all_gone_rests() {
        let devices = [Device::default(), Device::default()];
        let [one, other] = [devices[0].0.clone(), devices[1].0.clone()];
        // The loop looks at poll 1 and after every so many: here at 1025.
        let end = 4 * u64::from(POLLS_A_CLOCK) + 6;
        let mut polls = 0;
        let poll = |_: &mut PoolCache| {
            polls += 1;
            match polls {
                1 => one.set_gone(),
                1000 => other.set_gone(),
                _ => {}
            }
            usize::from(polls == end)
        };
        let lcore = lcore().serves(devices.iter().map(|device| device as &dyn Queue)).packets(1);
        let totals = lcore.run(pool(), poll).unwrap().totals;
        assert_eq!((totals.polls, totals.sleeps), (end, 4));
    }
}
