//! The data path: each lcore polls its queues, each with a stack of its own; and how that ends.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use sheafio_core::{Closed, CoreError, Lcore, LcoreCounters, Queue, Stop};
use sheafio_mempool::{Burst, Mempool, PoolCache};
use sheafio_net::Stack;

use super::{plan::Plan, report::Watch, server::Echo};
use crate::{
    Error, RaiseWhenDropped,
    echo::{EchoArgs, no_thread},
};

/// How long connections are given to end in an orderly way.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most packets of a burst in each direction.
const BURST: usize = super::plan::BURST as usize;

/// A queue with its stack.
pub(super) struct Service {
    queue: Box<dyn Queue>,
    stack: Stack<Echo>,
    rx: Burst,
    /// What the TX ring had no room for stays here, and holds TCP back.
    tx: Burst,
    flows: Arc<super::report::Gauges>,
}

impl Service {
    pub(super) fn new(queue: Box<dyn Queue>, stack: Stack<Echo>, flows: Arc<super::report::Gauges>) -> Self {
        Self { queue, stack, rx: Burst::with_limit(BURST), tx: Burst::with_limit(2 * BURST), flows }
    }

    #[inline]
    fn poll(&mut self, now_ns: u64, cache: &mut PoolCache) -> usize {
        self.queue.rx_burst(cache, &mut self.rx);
        let work = self.stack.poll(now_ns, cache, &mut self.rx, &mut self.tx);
        self.queue.tx_burst(cache, &mut self.tx);
        if work > 0 {
            self.flows.set(self.stack.tcp());
        }
        work
    }

    /// Whether nothing is left to be sent, and no connection is open.
    fn is_done(&mut self) -> bool {
        self.tx.is_empty() && self.stack.tcp().flows() == 0
    }

    /// Gives all frames back.
    fn close(mut self, cache: &mut PoolCache) -> Closed {
        self.flows.set(self.stack.tcp());
        let closed = self.queue.close(cache);
        cache.free_burst(&mut self.tx);
        self.stack.release(cache);
        closed
    }
}

/// A started lcore; it tells what became of the frames that its queues held.
pub(super) type Running = thread::JoinHandle<Result<Closed, CoreError>>;

/// Starts a thread for each lcore of the plan; ends those that run already if there can't be one more.
pub(super) fn start(
    plan: Plan,
    args: &EchoArgs,
    pool: &'static Mempool,
    ends_all: &Stop,
    watch: &mut Watch,
) -> Result<Vec<Running>, Error> {
    let mut running = Vec::new();
    for (cpu, services) in plan.lcores {
        let counters = Arc::<LcoreCounters>::default();
        watch.add_lcore(cpu, counters.clone(), services.iter().map(|service| service.flows.clone()));
        let (idle, duration, stop) = (args.idle.into(), args.duration, ends_all.clone());
        let body = move || {
            // However this lcore ends, by its duration, an error or a panic, the others end too.
            let _ends_all = RaiseWhenDropped(stop.clone());
            let mut lcore = Lcore::pin(cpu)?.idle(idle).stop_on(stop).count_into(counters);
            if let Some(duration) = duration {
                lcore = lcore.duration(duration);
            }
            serve(lcore, services, pool)
        };
        let thread = thread::Builder::new().name(format!("lcore-{cpu}"));
        match thread.spawn(body) {
            Ok(started) => running.push(started),
            Err(error) => {
                ends_all.raise();
                for lcore in running {
                    drop(lcore.join());
                }
                return Err(no_thread(cpu, &error));
            }
        }
    }
    Ok(running)
}

/// The life of an lcore: serve, end the connections, close the queues.
fn serve(mut lcore: Lcore, mut services: Vec<Service>, pool: &'static Mempool) -> Result<Closed, CoreError> {
    lcore = lcore.serves(services.iter().map(|service| &*service.queue));
    let mut cache = pool.cache()?;
    let start = Instant::now();
    let now_ns = || start.elapsed().as_nanos() as u64;
    lcore.run_with(&mut cache, |cache| {
        let now_ns = now_ns();
        services.iter_mut().map(|service| service.poll(now_ns, cache)).sum()
    })?;
    end_flows(&mut services, now_ns, &mut cache);
    let mut closed = Closed::default();
    for service in services {
        let one = service.close(&mut cache);
        closed.returned += one.returned;
        closed.retired += one.retired;
    }
    Ok(closed)
}

/// Ends our half of each connection and waits for the peers' for a while; then resets what is left.
fn end_flows(services: &mut [Service], now_ns: impl Fn() -> u64, cache: &mut PoolCache) {
    for service in &mut *services {
        service.stack.tcp().close(cache);
    }
    let end = Instant::now() + PATIENCE;
    while !services.iter_mut().all(Service::is_done) && Instant::now() < end {
        for service in &mut *services {
            service.poll(now_ns(), cache);
        }
    }
    let end = Instant::now() + PATIENCE / 4;
    for service in services {
        while !service.queue.is_gone() && Instant::now() < end {
            let is_over = service.stack.tcp().abort(cache, &mut service.tx);
            service.queue.tx_burst(cache, &mut service.tx);
            if is_over && service.tx.is_empty() {
                break;
            }
        }
    }
}
