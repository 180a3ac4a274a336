//! `sheafio fwd`: forwards packets between ports.
//!
//! ```text
//!            queue 0 -> lcore 0 -> queue 0
//!   port 0   queue 1 -> lcore 1 -> queue 1   port 1        and back, on the same lcores
//! ```
//!
//! This file is the control plane: it opens, starts, watches, and closes. `plan` says which lcore
//! serves what, `modes` holds the data path, `budget` its packet limit, `icmpecho` its one mode
//! with protocols, `watch` what is seen of the run, `report` what is printed, `account`
//! where a port's packets went.

mod account;
mod budget;
mod icmpecho;
mod modes;
mod plan;
mod report;
mod watch;

use std::{
    fs::File,
    io::Write,
    num::NonZeroU32,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use sheafio_core::{Closed, CoreError, Lcore, LcoreCounters, Stop, close_ends};
use sheafio_drivers::{Ports, drop_rights};
use sheafio_mempool::Mempool;

pub(crate) use self::{
    account::Hints,
    report::{Printer, grouped, scaled, table, whereabouts},
    watch::{PoolView, View, Watch, pool_view},
};
use self::{budget::Budget, modes::Forwarder, plan::Plan, report::Ending};
use crate::{Error, RaiseWhenDropped, cli::FwdArgs, size, threads};

/// How often the control plane looks whether the lcores still run.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
/// How often it looks what has become of the devices; each look takes a few system calls a port.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How often it prints.
const PRINT_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until it is told to stop, or every port has lost its device. `Ok(true)` if that is not why it ended, every
/// frame came home, and no port lost its XDP program.
pub(crate) fn run(mut args: FwdArgs) -> Result<bool, Error> {
    let stop = Stop::on_signals()?;
    size::look_up(&mut args.size.ports)?;
    plan::check(&args)?;
    let size = size::decide(&mut args.size, size::USUAL_SLOTS)?;
    let cpus = size.cpus;
    let pool = size.builder.hugepages(args.hugepages.into()).build()?;

    // Before anything runs: a report that can't be written should not cost a whole run.
    let report = args.report.as_ref().map(|path| {
        File::create(path).map_err(|error| format!("--report {}: can't be written: {error}", path.display()))
    });
    let report = report.transpose()?;
    let mut ports = Ports::new(pool);
    let mut opened = Vec::new();
    for spec in &mut args.size.ports {
        if let Some(fill) = spec.fill().and_then(NonZeroU32::new) {
            spec.set_fill(fill);
        }
        spec.set_cpus(&cpus.0);
        spec.set_promisc(args.mode.takes_others_packets());
        if args.force {
            spec.set_force();
        }
        let port = ports.open(spec)?;
        // At once: whoever has logged in by this interface may read nothing any more in a moment.
        port.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        opened.push(port);
    }
    // Nothing more is opened. The lcores' threads start with what closing takes, which is nothing unless a port puts
    // settings of its device back.
    let keep: Vec<_> = opened.iter().flat_map(|port| port.control.rights_to_close()).copied().collect();
    drop_rights(&keep)?;

    let missing_links = ports.wait_for_links(|| stop.is_raised());
    drop(ports); // Second ends of rings that were named once are closed.

    let mut watch = Watch::new(pool, &mut opened);
    let printer = Printer::new(args.json);
    let mut hints = Hints::default();
    size.warnings.iter().chain(pool.warnings()).for_each(|warning| eprintln!("warning: {warning}"));
    for warning in missing_links {
        eprintln!("warning: {warning}");
    }
    if printer.start(&args, pool, &opened, &cpus).is_err() {
        stop.raise(); // Nobody reads.
    }

    let plan = Plan::new(&mut opened, args.mode, &cpus);
    if let (Some(idle), true) = (plan.without_work(&cpus), args.size.cores.is_some()) {
        eprintln!(
            "warning: --cores {cpus}: CPUs {idle} get no work, as no port has so many queues: queues=N, or fewer CPUs"
        );
    }
    let lcores = start(plan, &args, pool, &stop, &mut watch)?;
    let start = Instant::now();
    let (mut next_look, mut next_print) = (start, start + PRINT_INTERVAL);
    let mut has_lost_all = false;
    while lcores.iter().any(|lcore| !lcore.is_finished()) {
        thread::sleep(WATCH_INTERVAL);
        if Instant::now() >= next_look && !stop.is_raised() {
            next_look = Instant::now() + LOOK_INTERVAL;
            watch.changes().iter().for_each(|(port, change)| Printer::tell(port, change));
            has_lost_all = watch.has_lost_all();
            if has_lost_all {
                eprintln!("sheafio: the devices of all ports are gone: this ends the run");
                stop.raise();
            }
        }
        if Instant::now() >= next_print && !stop.is_raised() {
            next_print += PRINT_INTERVAL;
            let view = watch.look();
            hints.of(&view).iter().for_each(|hint| eprintln!("warning: {hint}"));
            if printer.print(&view).is_err() {
                stop.raise(); // Nobody reads any more.
            }
        }
    }

    let mut closed = Closed::default();
    for lcore in lcores {
        closed += lcore.join().map_err(|_| "an lcore has panicked; see above")??;
    }
    let ending = Ending::new(pool, &watch, args.mode, closed);
    let view = watch.look_over_all(start.elapsed());
    hints.of(&view).iter().for_each(|hint| eprintln!("warning: {hint}"));
    // Whether the verdict could be printed does not change it.
    let _ = printer.end(&view, &ending);
    let written = report.map(|mut file| file.write_all(report::final_json(&view, &ending).as_bytes()));
    if let Some(Err(error)) = written {
        eprintln!("sheafio: --report: the run is over, but its report could not be written: {error}");
        return Ok(false);
    }
    Ok(ending.conserved && !has_lost_all && !watch.has_deaf())
}

/// A started lcore; it tells what became of the frames that its queues held.
type Running = thread::JoinHandle<Result<Closed, CoreError>>;

/// Starts a thread for each lcore of the plan; ends those that run already if there can't be one more.
fn start(
    plan: Plan,
    args: &FwdArgs,
    pool: &'static Mempool,
    ends_all: &Stop,
    watch: &mut Watch,
) -> Result<Vec<Running>, Error> {
    let budget = args.packets.map(|packets| Arc::new(Budget::new(packets, ends_all.clone())));
    let mut running = Vec::new();
    for (cpu, links) in plan.lcores {
        let counters = Arc::<LcoreCounters>::default();
        watch.add_lcore(cpu, counters.clone());
        let forwarder = Forwarder::new(args.mode, links, args.size.burst as usize, budget.clone());
        let (idle, duration, stop) = (args.idle.into(), args.duration, ends_all.clone());
        let body = move || {
            // However this lcore ends, by its duration, an error or a panic, the others end too.
            let _ends_all = RaiseWhenDropped(stop.clone());
            let mut lcore = Lcore::pin(cpu)?.idle(idle).stop_on(stop).count_into(counters);
            if let Some(duration) = duration {
                lcore = lcore.duration(duration);
            }
            poll(lcore, forwarder, pool)
        };
        threads::start(("fwd", "lcore"), cpu, &mut running, ends_all, body)?;
    }
    Ok(running)
}

/// The life of an lcore: poll, then close its queues.
fn poll(mut lcore: Lcore, mut forwarder: Forwarder, pool: &'static Mempool) -> Result<Closed, CoreError> {
    lcore = lcore.serves(forwarder.queues());
    let mut cache = pool.cache()?;
    lcore.run_with(&mut cache, |cache| forwarder.poll(cache))?;
    let ends = close_ends(forwarder.queues().count());
    Ok(forwarder.queues_mut().zip(ends).map(|(queue, end)| queue.close_by(&mut cache, end)).sum())
}
