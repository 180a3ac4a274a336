//! `sheafio rr`: requests to a server over many flows at once, each byte of each response verified.
//!
//! ```text
//!   thread 0: flows 0 ..      request --> |        |
//!   thread 1: flows n/2 ..    <-- response | server |      kernel sockets by io_uring, one ring a thread
//! ```
//!
//! This file is the control plane: it resolves, starts, watches, and sums up. `client` is a thread with its flows,
//! `connect` how these get connected, `exchange` requests and responses, `pattern` their bytes; `unbound` is
//! local addresses without a port; `report` is what is printed.

mod client;
mod connect;
mod exchange;
mod options;
mod pattern;
mod report;
#[expect(unsafe_code, reason = "a socket option that rustix does not know; ARCHITECTURE.md lists it")]
mod unbound;

use std::{
    collections::HashSet,
    io::{self, IsTerminal as _, Write as _},
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::net::addr::SocketAddrArg as _;
use sheafio_core::{Closed, CoreError, CpuList, Lcore, Stop, Topology, allowed_cpus};
use sheafio_mempool::{Hugepages, Mempool, sync::AtomicU64};

pub(crate) use self::options::RrArgs;
use self::{
    client::{Client, Outcome, Plan, Progress},
    options::Proto,
    report::{Printer, Sum},
};
use crate::{
    Error, RaiseWhenDropped,
    fwd::{grouped, whereabouts},
    size, threads,
    uring::{Refused, Ring},
};

/// How often the control plane looks.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
/// How long before requests are to be sent the threads are told when, so that none of them is late.
const START_LEAD: Duration = Duration::from_millis(5);
/// How often it prints.
const PRINT_INTERVAL: Duration = Duration::from_secs(1);
/// The most receive buffers of a thread, and the fewest.
const BUFFERS: std::ops::RangeInclusive<u32> = 64..=4096;
/// What a frame of 4,096 bytes holds behind its headroom.
const MOST_DATAGRAM_BYTES: u32 = 3840;
/// The same for frames of 2,048 bytes, which are used where they do.
const SMALL_FRAME_BYTES: u32 = 1792;

/// Runs to the end of its duration. `Ok(true)` if nothing went wrong.
pub(crate) fn run(args: &RrArgs) -> Result<bool, Error> {
    let stop = Stop::on_signals()?;
    let topology = Topology::detect().unwrap_or_default();
    let cpus = match &args.cores {
        Some(_) => size::choose_cpus(args.cores.as_ref(), 1, None, &topology)?,
        None => CpuList(vec![cpu_beside_servers(&topology, &allowed_cpus().0)]),
    };
    let threads = cpus.0.len();
    args.check(crate::echo::raise_file_limit(), threads)?;
    let targets = args.targets()?;

    let flows_of = |thread: usize| {
        let (share, rest) = (args.flows / threads as u32, args.flows % threads as u32);
        share + u32::from((thread as u32) < rest)
    };
    let buffers = (2 * flows_of(0)).next_power_of_two().clamp(*BUFFERS.start(), *BUFFERS.end());
    // In the buffers, one to send from for each flow, and what lies in sheaves.
    let frames = u64::from(args.flows) + threads as u64 * u64::from(buffers + 512);
    let largest = args.size.max(args.response_bytes());
    let is_large = args.proto == Proto::Udp && largest > SMALL_FRAME_BYTES;
    let pool = Mempool::builder().frames(frames.next_power_of_two()).hugepages(Hugepages::Off);
    let pool = pool.frame_size(if is_large { 4096 } else { 2048 }).cores(threads as u32).build()?;

    let run_stop = Stop::new();
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let plan = Arc::new(Plan {
        args: args.clone(),
        // Never freed: the kernel reads them while it connects.
        targets: targets.iter().map(|target| &*Box::leak(Box::new(target.as_any()))).collect(),
        sources: args.from.iter().map(|from| SocketAddr::new(*from, 0).as_any()).collect(),
        salt: since_epoch ^ u64::from(std::process::id()) << 32,
        base: Instant::now(),
        start_ns: AtomicU64::new(0),
        stop: run_stop.clone(),
    });
    let mut running = Vec::new();
    let mut all_progress = Vec::new();
    let mut first = 0;
    for (at, &cpu) in cpus.0.iter().enumerate() {
        let progress = Arc::<Progress>::default();
        all_progress.push(progress.clone());
        let thread = Thread { cpu, pool, first, flows: flows_of(at), buffers, plan: plan.clone(), progress };
        first += flows_of(at);
        threads::start(("rr", "client"), cpu, &mut running, &run_stop, move || thread.run())?;
    }

    let printer = Printer::new(args);
    let is_running = || running.iter().any(|thread| !thread.is_finished());
    let is_told = connect(&all_progress, args, &stop, &run_stop, &is_running);
    let start = Instant::now() + START_LEAD;
    plan.start_ns.store((start - plan.base).as_nanos() as u64, Ordering::Relaxed);
    if is_told && printer.start(&targets, &cpus).is_err() {
        run_stop.raise(); // Nobody reads.
    }
    let (mut next_print, mut last) = (start + PRINT_INTERVAL, (start, 0));
    while is_running() {
        thread::sleep(WATCH_INTERVAL);
        if stop.is_raised() {
            run_stop.raise();
        }
        let now = Instant::now();
        if now >= next_print && now - start < args.duration && !run_stop.is_raised() {
            next_print += PRINT_INTERVAL;
            let transactions = Progress::sum(&all_progress, |progress| &progress.transactions);
            let tps = (transactions - last.1) as f64 / (now - last.0).as_secs_f64();
            last = (now, transactions);
            let flows = Progress::sum(&all_progress, |progress| &progress.alive);
            if printer.print(start.elapsed(), flows, transactions, tps).is_err() {
                run_stop.raise(); // Nobody reads any more.
            }
        }
    }

    let mut sum = Sum::new(Outcome::new());
    let mut closed = Closed::default();
    for thread in running {
        match thread.join().map_err(|_| "a thread has panicked; see above")? {
            Ok((outcome, one)) => {
                sum.add(outcome);
                closed += one;
            }
            Err(Failure::Ring(refused)) => {
                eprintln!("sheafio: {refused}");
                return Ok(false);
            }
            Err(Failure::Lcore(error)) => return Err(error.into()),
        }
    }
    sum.transactions = Progress::sum(&all_progress, |progress| &progress.transactions);
    sum.flows = Progress::sum(&all_progress, |progress| &progress.alive);
    if let Some(lost) = whereabouts(pool, closed.retired) {
        eprintln!("sheafio: frames were lost: {lost}");
        return Ok(false);
    }
    // Whether the result could be printed does not change it.
    let _ = printer.end(&sum);
    Ok(sum.is_well())
}

/// The CPU of a client that nobody has given one for. Servers and forwarders take the first ones that the topology picks,
/// so this is of the last core of another one; CPU 0, where the kernel's housekeeping runs, only if there is no other.
fn cpu_beside_servers(topology: &Topology, allowed: &[u32]) -> u32 {
    let picked = topology.pick_cpus(allowed, allowed.len(), None);
    let Some(&server) = picked.first() else { return 0 };
    // One that the topology does not know is a core of its own.
    let core_of = |cpu: u32| topology.cores.iter().position(|core| core.cpus.contains(&cpu)).ok_or(cpu);
    let mut seen = HashSet::from([core_of(server)]);
    let others: Vec<_> = picked.iter().filter(|cpu| seen.insert(core_of(**cpu))).collect();
    let found = others.iter().rfind(|cpu| ***cpu != 0).or(others.last());
    // On one core a sibling, and on one CPU that one.
    **found.or(picked.last().as_ref()).expect("there is one at least")
}

/// Waits until all threads have connected their flows, and shows people how far they are. Returns whether they have.
fn connect(
    all: &[Arc<Progress>],
    args: &RrArgs,
    stop: &Stop,
    run_stop: &Stop,
    is_running: &dyn Fn() -> bool,
) -> bool {
    let mut stderr = io::stderr();
    let is_terminal = stderr.is_terminal();
    let mut next_print = Instant::now() + PRINT_INTERVAL;
    let mut has_shown = false;
    let is_ready = loop {
        if all.iter().all(|progress| progress.is_ready.load(Ordering::Relaxed)) {
            break true;
        }
        if stop.is_raised() {
            run_stop.raise();
        }
        if !is_running() {
            break false;
        }
        if Instant::now() >= next_print {
            next_print += PRINT_INTERVAL;
            let connected = Progress::sum(all, |progress| &progress.connected);
            let failed = Progress::sum(all, |progress| &progress.failed);
            let failed = if failed > 0 { format!(", {} failed", grouped(failed)) } else { String::new() };
            let line =
                format!("connecting: {} of {} flows{failed}", grouped(connected), grouped(args.flows.into()));
            has_shown = is_terminal;
            // The terminal is told to go back to the line's start and to clear it (ECMA-48, EL).
            let _ = if is_terminal { write!(stderr, "\r\x1b[K{line}") } else { writeln!(stderr, "{line}") };
        }
        // A client with one flow should not wait for this.
        thread::sleep(WATCH_INTERVAL / 10);
    };
    if has_shown {
        let _ = write!(stderr, "\r\x1b[K");
    }
    is_ready
}

impl Progress {
    fn sum(all: &[Arc<Self>], count: impl Fn(&Self) -> &AtomicU64) -> u64 {
        // Relaxed: counters order nothing.
        all.iter().map(|progress| count(progress).load(Ordering::Relaxed)).sum()
    }
}

/// Why a thread could not run.
enum Failure {
    Ring(Refused),
    Lcore(CoreError),
}

/// What a thread is given.
struct Thread {
    cpu: u32,
    pool: &'static Mempool,
    first: u32,
    flows: u32,
    buffers: u32,
    plan: Arc<Plan>,
    progress: Arc<Progress>,
}

impl Thread {
    /// The life of a thread: make a ring, connect, send and receive, close.
    fn run(self) -> Result<(Outcome, Closed), Failure> {
        let done = Stop::new();
        let ends_all = RaiseWhenDropped(self.plan.stop.clone());
        let lcore = Lcore::pin(self.cpu).map_err(Failure::Lcore)?.stop_on(done.clone());
        let mut cache = self.pool.cache().map_err(|error| Failure::Lcore(error.into()))?;
        let ring = Ring::new(self.buffers as u16, 0, self.pool.frames()).map_err(Failure::Ring)?;
        let mut client = Client::new(ring, self.first, self.flows as usize, self.plan, self.progress, done);
        lcore.run_with(&mut cache, |cache| client.poll(cache)).map_err(Failure::Lcore)?;
        // It has come to its end, as the others will: only errors and panics end them.
        std::mem::forget(ends_all);
        Ok(client.close(&mut cache))
    }
}

#[cfg(test)]
mod tests {
    use sheafio_core::Core;

    use super::*;

    fn cores(cpus: &[&[u32]]) -> Topology {
        let core = |cpus: &&[u32]| Core { package: None, node: None, cpus: cpus.to_vec() };
        Topology { cores: cpus.iter().map(core).collect(), ..Topology::default() }
    }

    #[test]
    fn client_and_server_get_different_cores() {
        for (topology, allowed, server, client) in [
            (cores(&[&[0, 4], &[1, 5], &[2, 6], &[3, 7]]), &[0, 1, 2, 3, 4, 5, 6, 7][..], 1, 3),
            (cores(&[&[0, 2], &[1, 3]]), &[0, 1, 2, 3], 1, 0),
            (cores(&[&[0, 2], &[1, 3]]), &[1, 2, 3], 1, 2),
            (cores(&[&[0], &[1]]), &[0, 1], 1, 0),
            (cores(&[&[0, 1]]), &[0, 1], 0, 1),
            (cores(&[]), &[0, 1, 2], 1, 2),
            (cores(&[&[0], &[1]]), &[1], 1, 1),
        ] {
            assert_eq!(topology.pick_cpus(allowed, 1, None), [server]);
            assert_eq!(cpu_beside_servers(&topology, allowed), client, "{topology:?} {allowed:?}");
        }
    }
}
