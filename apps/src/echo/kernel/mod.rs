//! `sheafio echo --stack kernel`: the server over the kernel's sockets, by io_uring.
//!
//! ```text
//!   listeners (SO_REUSEPORT) -> lcore 0: ring 0, its flows, its receive buffers
//!                            -> lcore 1: ring 1, ...                              nothing is shared but the pool
//! ```
//!
//! This file is the control plane: it listens, starts, watches, and ends. `listen` makes the sockets, `server` is the
//! data path with `streams` and `flow` for TCP and `backlog` for what waits; `counts` and `report` are what is counted and printed.

mod backlog;
mod counts;
mod flow;
mod listen;
mod report;
mod server;
mod streams;

use std::{
    sync::{Arc, atomic::AtomicU64, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sheafio_core::{Closed, CoreError, CpuList, Lcore, LcoreCounters, QueueCounters, Stop, Topology};
use sheafio_drivers::drop_rights;
use sheafio_mempool::{Mempool, ZonePolicy};

use self::{
    counts::Counters,
    flow::Limit,
    listen::Listening,
    report::{Printer, Watch},
    server::{Parts, Server},
    streams::Streams,
};
use super::{EchoArgs, response::Responder};
use crate::{
    Error, RaiseWhenDropped, fwd, size, threads,
    uring::{DATAGRAM_START, MOST_FRAMES, Refused, Ring, is_for_few},
};

/// How often the control plane looks whether the lcores still run.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
/// How often it prints.
const PRINT_INTERVAL: Duration = Duration::from_secs(1);
/// Frames of a pool that nobody has given a number for.
const DEFAULT_FRAMES: u64 = 16_384;
/// Connections at a time, in all lcores, where nobody says how many.
const DEFAULT_FLOWS: u32 = 16_384;
/// The fewest frames for an lcore: the smallest set of buffers, and as many to send from.
const LEAST_FRAMES: u64 = 64;
/// The most receive buffers of an lcore.
const MOST_BUFFERS: u64 = 4096;

/// Sizes that follow from the options.
struct Sizes {
    cpus: CpuList,
    frames: u64,
    /// Receive buffers of each lcore.
    buffers: u16,
    /// TCP connections at a time, in all lcores.
    max_flows: u32,
    /// Places of each lcore's table of accepted sockets.
    places: u32,
}

/// Runs until it is told to stop. `Ok(true)` if every frame came home; `Ok(false)` also if there is no io_uring.
pub(super) fn run(args: &EchoArgs) -> Result<bool, Error> {
    let stop = Stop::on_signals()?;
    let topology = Topology::detect().unwrap_or_default();
    let sizes = decide(args, &topology)?;
    let cpus = &sizes.cpus;
    let zoning = topology.zones_for(&cpus.0);
    let builder = Mempool::builder().frames(sizes.frames).frame_size(args.frame_size);
    let builder = builder.cores(cpus.0.len() as u32).zone_specs(zoning.specs).policy(ZonePolicy::Prefer);
    let pool = builder.hugepages(args.hugepages.into()).build()?;
    let responder = responder(args, pool)?;
    let (listening, warnings) = listen::listen_on(args, cpus.0.len())?;
    // Rings are made by the lcores' threads; where that takes a right, rights are given up afterwards.
    let makes_rings_with_rights = is_for_few();
    if !makes_rings_with_rights {
        drop_rights(&[])?;
    }
    zoning
        .warnings
        .iter()
        .chain(pool.warnings())
        .chain(&warnings)
        .for_each(|line| eprintln!("warning: {line}"));

    let mut watch = Watch::new(pool);
    let limit = Arc::new(Limit { max: sizes.max_flows.into(), open: AtomicU64::new(0) });
    let (ready, is_ready) = mpsc::channel();
    let mut lcores = Vec::new();
    for (&cpu, listening) in cpus.0.iter().zip(listening) {
        let plan = Lcored {
            cpu,
            pool,
            listening,
            responder,
            args: args.clone(),
            places: sizes.places,
            buffers: sizes.buffers,
            limit: limit.clone(),
            counters: Arc::default(),
            lcore_counters: Arc::default(),
            held: Arc::default(),
            makes_ring_with_rights: makes_rings_with_rights,
            stop: stop.clone(),
        };
        watch.add_lcore(cpu, plan.counters.clone(), plan.lcore_counters.clone(), plan.held.clone());
        let ready = ready.clone();
        threads::start(("echo", "lcore"), cpu, &mut lcores, &stop, move || plan.run(&ready))?;
    }
    drop(ready);
    // As many words as lcores, but from those that could not start.
    let is_started = is_ready.iter().take(lcores.len()).count() == lcores.len();
    if is_started
        && makes_rings_with_rights
        && let Err(error) = drop_rights(&[])
    {
        threads::end_all(&stop, lcores);
        return Err(error.into());
    }

    let printer = Printer::new(args.json);
    if is_started && printer.start(args, pool, cpus, sizes.max_flows).is_err() {
        stop.raise(); // Nobody reads.
    }
    let start = Instant::now();
    let end = args.duration.and_then(|duration| start.checked_add(duration));
    let mut next_print = start + PRINT_INTERVAL;
    while lcores.iter().any(|lcore| !lcore.is_finished()) {
        thread::sleep(WATCH_INTERVAL);
        if end.is_some_and(|end| Instant::now() >= end) {
            stop.raise();
        }
        if Instant::now() >= next_print && !stop.is_raised() {
            next_print += PRINT_INTERVAL;
            if printer.print(&watch.look()).is_err() {
                stop.raise(); // Nobody reads any more.
            }
        }
    }

    let mut closed = Closed::default();
    for lcore in lcores {
        match lcore.join().map_err(|_| "an lcore has panicked; see above")? {
            Ok(one) => closed += one,
            Err(Failure::Ring(refused)) => {
                eprintln!("sheafio: {refused}");
                return Ok(false);
            }
            Err(Failure::Lcore(error)) => return Err(error.into()),
        }
    }
    let whereabouts = fwd::whereabouts(pool, closed.retired);
    // Whether the verdict could be printed does not change it.
    let _ = printer.end(&watch.look_over_all(start.elapsed()), closed, whereabouts.as_deref());
    Ok(whereabouts.is_none())
}

/// Decides on CPUs, frames, buffers and flows.
fn decide(args: &EchoArgs, topology: &Topology) -> Result<Sizes, Error> {
    let cpus = size::choose_cpus(args.cores.as_ref(), 1, None, topology)?;
    let lcores = cpus.0.len() as u64;
    let frames = args.frames.unwrap_or(DEFAULT_FRAMES.max(2 * MOST_BUFFERS * lcores).next_power_of_two());
    let (least, most) = (LEAST_FRAMES * lcores, u64::from(MOST_FRAMES));
    if !(least..=most).contains(&frames) {
        return Err(format!(
            "--frames {frames}: {lcores} lcore(s) need {LEAST_FRAMES} each, and one can number up to {most}; allowed: {least} \
             or more, up to {most}"
        )
        .into());
    }
    // Half of the frames are for what is being sent, or waits for it.
    let buffers = (frames / lcores / 2).clamp(1, MOST_BUFFERS);
    let buffers = if buffers.is_power_of_two() { buffers } else { buffers.next_power_of_two() / 2 };
    let places = u32::try_from(raise_file_limit()).unwrap_or(u32::MAX).min(1 << 20);
    let most = places.saturating_mul(lcores as u32);
    let max_flows = match args.max_flows {
        Some(asked) if asked > most => {
            return Err(format!(
                "--max-flows {asked}: {lcores} lcore(s) can have {most}, for the limit of open files is {places}, and holds \
                 for each; allowed: 1 to {most}. Raise it (ulimit -n, LimitNOFILE=), or use more --cores"
            )
            .into());
        }
        asked => asked.unwrap_or(most.min(DEFAULT_FLOWS)),
    };
    // Some more places, for connections that are closed at once because they are too many.
    let places = max_flows.saturating_add(64).min(places);
    Ok(Sizes { cpus, frames, buffers: buffers as u16, max_flows, places })
}

/// Raises the limit of open files as far as this process may, and returns it.
pub(crate) fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // If it can't be raised, it stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn responder(args: &EchoArgs, pool: &Mempool) -> Result<Option<Responder>, Error> {
    let Some(response_bytes) = args.response_size else { return Ok(None) };
    let room = pool.geometry().data_bytes() - DATAGRAM_START as u32;
    if !args.udp.is_empty() && response_bytes > room {
        return Err(format!(
            "--response-size {response_bytes}: a datagram has room for {room} bytes in a frame of {}; use --frame-size 4096, \
             or fewer bytes",
            args.frame_size
        )
        .into());
    }
    Ok(args.responder())
}

/// Why an lcore could not run.
enum Failure {
    Ring(Refused),
    Lcore(CoreError),
}

/// What an lcore's thread is given.
struct Lcored {
    cpu: u32,
    pool: &'static Mempool,
    listening: Listening,
    responder: Option<Responder>,
    args: EchoArgs,
    places: u32,
    buffers: u16,
    limit: Arc<Limit>,
    counters: Arc<Counters>,
    lcore_counters: Arc<LcoreCounters>,
    held: Arc<QueueCounters>,
    makes_ring_with_rights: bool,
    stop: Stop,
}

impl Lcored {
    /// The life of an lcore: make a ring, serve, close.
    fn run(self, ready: &mpsc::Sender<()>) -> Result<Closed, Failure> {
        // However this lcore ends, by an error or a panic, the others end too.
        let _ends_all = RaiseWhenDropped(self.stop.clone());
        let lcore = Lcore::pin(self.cpu).map_err(Failure::Lcore)?;
        let mut cache = self.pool.cache().map_err(|error| Failure::Lcore(error.into()))?;
        let frames = self.pool.frames();
        let ring = Ring::new(self.buffers, self.places, frames).map_err(Failure::Ring)?;
        if self.makes_ring_with_rights {
            // This thread's; that others still have some, whose rings are being made, is looked at when all are.
            let _ = drop_rights(&[]);
        }
        let counters = self.counters.clone();
        let streams = Streams::new(self.places, frames, self.responder, self.limit, counters.clone());
        let done = Stop::new();
        let mut server = Server::new(Parts {
            ring,
            streams,
            listening: self.listening,
            udp_ports: self.args.udp,
            responder: self.responder,
            counters,
            held: self.held,
            idle: self.args.idle.into(),
            stop: self.stop,
            done: done.clone(),
        });
        let _ = ready.send(());
        let lcore = lcore.stop_on(done).count_into(self.lcore_counters);
        lcore.run_with(&mut cache, |cache| server.poll(cache)).map_err(Failure::Lcore)?;
        Ok(server.close(&mut cache))
    }
}
