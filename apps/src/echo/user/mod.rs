//! `sheafio echo --stack user`: our own TCP/IP over AF_XDP ports.
//!
//! ```text
//!            queue 0 -> lcore 0: stack 0 -> queue 0
//!   port     queue 1 -> lcore 1: stack 1 -> queue 1      a stack for each queue: RSS keeps a flow on its queue,
//!            queue 2 -> lcore 0: stack 2 -> queue 2      and nothing is shared but the pool
//! ```
//!
//! This file is the control plane: it opens, starts, watches, and closes. `plan` says how large all is and who serves what,
//! `address` whose addresses are served and which packets are ours, `server` answers requests, `lcore` is the data path
//! and how it ends, `report` what is printed.

mod address;
mod lcore;
mod plan;
mod report;
mod server;

use std::{
    num::NonZeroU32,
    thread,
    time::{Duration, Instant},
};

use sheafio_core::{Closed, Stop};
use sheafio_drivers::{Ports, drop_rights};

use self::{
    address::Served,
    plan::Sizes,
    report::{Printer, Watch},
};
use super::EchoArgs;
use crate::{Error, fwd};

/// How often the control plane looks whether the lcores still run.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
/// How often it looks what has become of the devices.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How often it prints.
const PRINT_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until it is told to stop, or every port has lost its device. `Ok(true)` if that is not why it ended and every
/// frame came home.
pub(super) fn run(args: &EchoArgs) -> Result<bool, Error> {
    let stop = Stop::on_signals()?;
    let mut sizes = Sizes::decide(args)?;
    let pool = sizes.builder.clone().hugepages(args.hugepages.into()).build()?;

    let mut ports = Ports::new(pool);
    let (mut opened, mut served) = (Vec::new(), Vec::new());
    for spec in &mut sizes.ports {
        let addresses = Served::new(spec, args)?;
        if let Some(fill) = spec.fill().and_then(NonZeroU32::new) {
            spec.set_fill(fill);
        }
        spec.set_cpus(&sizes.cpus.0);
        spec.set_steer(addresses.steering(args)?);
        spec.set_groups(&addresses.groups());
        let port = ports.open(spec)?;
        port.warnings.iter().for_each(|warning| eprintln!("warning: {warning}")); // At once; see `fwd`.
        opened.push(port);
        served.push(addresses);
    }
    // Nothing more is opened; see `fwd`.
    let keep: Vec<_> = opened.iter().flat_map(|port| port.control.rights_to_close()).copied().collect();
    drop_rights(&keep)?;
    let missing_links = ports.wait_for_links(|| stop.is_raised());
    drop(ports);

    let mut watch = Watch::new(fwd::Watch::new(pool, &mut opened));
    let plan = plan::deal_out(&mut opened, &served, args, &sizes, pool)?;
    let printer = Printer::new(args.json);
    sizes.warnings.iter().chain(pool.warnings()).for_each(|warning| eprintln!("warning: {warning}"));
    let of_ports = missing_links.iter().chain(served.iter().flat_map(|served| &served.warning));
    of_ports.for_each(|warning| eprintln!("warning: {warning}"));
    if printer.start(args, pool, &opened, &served, &plan.mtus, &sizes).is_err() {
        stop.raise(); // Nobody reads.
    }

    let lcores = lcore::start(plan, args, pool, &stop, &mut watch)?;
    let start = Instant::now();
    let (mut next_look, mut next_print) = (start, start + PRINT_INTERVAL);
    let (mut has_lost_all, mut hints) = (false, fwd::Hints::default());
    let mut tell =
        |view: &report::View| hints.of(&view.fwd).iter().for_each(|hint| eprintln!("warning: {hint}"));
    while lcores.iter().any(|lcore| !lcore.is_finished()) {
        thread::sleep(WATCH_INTERVAL);
        if Instant::now() >= next_look && !stop.is_raised() {
            next_look = Instant::now() + LOOK_INTERVAL;
            has_lost_all = watch.tell_changes();
            if has_lost_all {
                eprintln!("sheafio: the devices of all ports are gone: this ends the run");
                stop.raise();
            }
        }
        if Instant::now() >= next_print && !stop.is_raised() {
            next_print += PRINT_INTERVAL;
            let view = watch.look();
            tell(&view);
            if printer.print(&view).is_err() {
                stop.raise(); // Nobody reads any more.
            }
        }
    }

    let mut closed = Closed::default();
    for lcore in lcores {
        closed += lcore.join().map_err(|_| "an lcore has panicked; see above")??;
    }
    let whereabouts = fwd::whereabouts(pool, closed.retired);
    let view = watch.look_over_all(start.elapsed());
    tell(&view);
    // Whether the verdict could be printed does not change it.
    let _ = printer.end(&view, closed, whereabouts.as_deref());
    Ok(whereabouts.is_none() && !has_lost_all && !watch.has_deaf())
}
