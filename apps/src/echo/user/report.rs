//! What the server prints: a table or a JSON object a second, and the verdict.
//!
//! Owns: the last look at the counters. Never does: count. The keys are documented in `echo/options.rs`.

use std::{
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::{Map, Value};
use sheafio_core::{Closed, LcoreCounters};
use sheafio_drivers::Port;
use sheafio_mempool::{
    Mempool,
    sync::{AtomicU64, Ordering},
};
use sheafio_net::{
    Count, Counts,
    tcp::{Server, Tcp},
};

use super::{address::Served, plan::Sizes, server::Transactions};
use crate::{
    echo::EchoArgs,
    fwd::{self, Printer as FwdPrinter, View as FwdView, grouped, scaled},
};

/// What an lcore tells of one queue's stack.
pub(super) struct Gauges {
    counts: Arc<Counts>,
    transactions: Arc<Transactions>,
    /// Connections now, and half-open ones.
    flows: AtomicU64,
    half_open: AtomicU64,
}

impl Gauges {
    pub(super) fn new(counts: Arc<Counts>, transactions: Arc<Transactions>) -> Self {
        Self { counts, transactions, flows: AtomicU64::new(0), half_open: AtomicU64::new(0) }
    }

    /// Requests answered, bytes received, and bytes written, by TCP and UDP.
    fn totals(&self) -> [u64; 3] {
        let [done, rx_bytes, tx_bytes] = self.transactions.totals();
        let udp = |count| self.counts.get(count);
        [done + udp(Count::UdpEchoed), rx_bytes + udp(Count::UdpRxBytes), tx_bytes + udp(Count::UdpTxBytes)]
    }

    /// Only the lcore calls this, in each poll; so nothing is stored that stays as it was.
    #[inline]
    pub(super) fn set<S: Server>(&self, tcp: &Tcp<S>) {
        for (gauge, now) in [(&self.flows, tcp.flows()), (&self.half_open, tcp.half_open())] {
            // Relaxed: gauges order nothing.
            if gauge.load(Ordering::Relaxed) != now as u64 {
                gauge.store(now as u64, Ordering::Relaxed);
            }
        }
    }

    /// Half-open connections now.
    #[cfg(test)]
    pub(super) fn half_open(&self) -> u64 {
        self.half_open.load(Ordering::Relaxed)
    }
}

/// The ports and the pool, as of `sheafio fwd`, and the stacks.
pub(super) struct Watch {
    fwd: fwd::Watch,
    stacks: Vec<Arc<Gauges>>,
    lcores: Vec<Arc<LcoreCounters>>,
    last: Last,
}

/// What was seen last.
#[derive(Clone, Copy)]
struct Last {
    at: Instant,
    transactions: [u64; 3],
    busy_cycles: u64,
}

/// What is printed of one moment.
#[derive(Debug, Serialize)]
pub(super) struct View {
    flows: u64,
    half_open: u64,
    tps: f64,
    transactions: u64,
    /// Of all lcores, in polls with work.
    cycles_per_transaction: f64,
    rx_bytes: u64,
    tx_bytes: u64,
    counts: Map<String, Value>,
    #[serde(flatten)]
    pub(super) fwd: FwdView,
    #[serde(skip)]
    rx_bps: f64,
    #[serde(skip)]
    tx_bps: f64,
}

#[derive(Debug, Serialize)]
struct FinalView<'a> {
    #[serde(flatten)]
    view: &'a View,
    r#final: bool,
    conserved: bool,
}

impl Watch {
    pub(super) fn new(fwd: fwd::Watch) -> Self {
        let last = Last { at: Instant::now(), transactions: [0; 3], busy_cycles: 0 };
        Self { fwd, stacks: Vec::new(), lcores: Vec::new(), last }
    }

    /// Watches an lcore and its stacks too.
    pub(super) fn add_lcore(
        &mut self,
        cpu: u32,
        counters: Arc<LcoreCounters>,
        stacks: impl Iterator<Item = Arc<Gauges>>,
    ) {
        self.lcores.push(counters.clone());
        self.fwd.add_lcore(cpu, counters);
        self.stacks.extend(stacks);
    }

    /// Tells what has become of the devices; whether all are gone.
    pub(super) fn tell_changes(&mut self) -> bool {
        self.fwd.changes().iter().for_each(|(port, change)| FwdPrinter::tell(port, change));
        self.fwd.has_lost_all()
    }

    /// Whether a port's XDP program was taken off by someone else.
    pub(super) fn has_deaf(&self) -> bool {
        self.fwd.has_deaf()
    }

    /// The moment, with rates since the last look.
    pub(super) fn look(&mut self) -> View {
        let fwd = self.fwd.look();
        let now = Instant::now();
        let interval = now - self.last.at;
        self.view(fwd, now, interval)
    }

    /// The whole run, with rates over all of it.
    pub(super) fn look_over_all(&mut self, run: Duration) -> View {
        let fwd = self.fwd.look_over_all(run);
        (self.last.transactions, self.last.busy_cycles) = ([0; 3], 0);
        self.view(fwd, Instant::now(), run)
    }

    fn view(&mut self, fwd: FwdView, now: Instant, interval: Duration) -> View {
        let mut totals = [0; 3];
        for stack in &self.stacks {
            for (sum, more) in totals.iter_mut().zip(stack.totals()) {
                *sum += more;
            }
        }
        let busy_cycles = self.lcores.iter().map(|lcore| lcore.totals().busy_cycles).sum();
        let last = std::mem::replace(&mut self.last, Last { at: now, transactions: totals, busy_cycles });
        let since = |at: usize| (totals[at] - last.transactions[at]) as f64;
        let rate = |at: usize| since(at) / interval.as_secs_f64().max(1e-9);
        // Relaxed: gauges order nothing.
        let sum = |gauge: fn(&Gauges) -> &AtomicU64| {
            self.stacks.iter().map(|stack| gauge(stack).load(Ordering::Relaxed)).sum()
        };
        let count = |count: Count| self.stacks.iter().map(|stack| stack.counts.get(count)).sum::<u64>();
        View {
            flows: sum(|stack| &stack.flows),
            half_open: sum(|stack| &stack.half_open),
            tps: (rate(0) * 10.0).round() / 10.0,
            transactions: totals[0],
            cycles_per_transaction: if since(0) > 0.0 {
                ((busy_cycles - last.busy_cycles) as f64 / since(0)).round()
            } else {
                0.0
            },
            rx_bytes: totals[1],
            tx_bytes: totals[2],
            counts: Count::ALL.iter().map(|each| (each.name().to_owned(), count(*each).into())).collect(),
            fwd,
            rx_bps: 8.0 * rate(1),
            tx_bps: 8.0 * rate(2),
        }
    }
}

/// Prints for people or for programs.
pub(super) struct Printer {
    json: bool,
}

impl Printer {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Says what is served, for people.
    pub(super) fn start(
        &self,
        args: &EchoArgs,
        pool: &Mempool,
        ports: &[Port],
        served: &[Served],
        mtus: &[u16],
        sizes: &Sizes,
    ) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        let mut out = io::stdout();
        writeln!(
            out,
            "echo: {}, CPUs {}; pool: {} frames of {} bytes; up to {} flows",
            args.services(),
            sizes.cpus,
            grouped(pool.frames().into()),
            pool.geometry().frame_bytes(),
            grouped(sizes.flows),
        )?;
        for (number, ((port, served), mtu)) in ports.iter().zip(served).zip(mtus).enumerate() {
            let addresses: Vec<_> = served.addresses.iter().map(ToString::to_string).collect();
            let whose = if served.is_own { "of our own" } else { "shared with the kernel" };
            writeln!(
                out,
                "port {number}: {}: {}; IP packets of up to {} bytes; addresses {whose}: {}",
                port.name,
                port.mode,
                mtu,
                addresses.join(" ")
            )?;
        }
        Ok(())
    }

    /// Prints a moment.
    pub(super) fn print(&self, view: &View) -> io::Result<()> {
        let text =
            if self.json { serde_json::to_string(view).map_err(io::Error::other)? } else { table(view) };
        writeln!(io::stdout(), "{text}")
    }

    /// Prints the whole run and how it ended.
    pub(super) fn end(&self, view: &View, closed: Closed, whereabouts: Option<&str>) -> io::Result<()> {
        if let Some(whereabouts) = whereabouts {
            eprintln!("sheafio: frames were lost: {whereabouts}");
        }
        let conserved = whereabouts.is_none();
        if self.json {
            let last = FinalView { view, r#final: true, conserved };
            return writeln!(io::stdout(), "{}", serde_json::to_string(&last).map_err(io::Error::other)?);
        }
        let verdict = if conserved { "every frame is accounted for" } else { "FRAMES WERE LOST" };
        writeln!(
            io::stdout(),
            "\nwhole run:\n{}\nverdict: {verdict}; {} returned at close, {} retired",
            table(view),
            grouped(closed.returned),
            grouped(closed.retired),
        )
    }
}

/// A moment as a table.
fn table(view: &View) -> String {
    let counts = view.counts.iter().filter_map(|(name, count)| {
        let count = count.as_u64().filter(|count| *count > 0)?;
        Some(format!("{name} {}", grouped(count)))
    });
    let counts = counts.collect::<Vec<_>>().join(", ");
    format!(
        "{}\n{:>12} {:>12} {:>16} {:>12} {:>12} {:>16} {:>22}\n{:>12} {:>12} {:>16} {:>12} {:>12} {:>16} {:>22}\n\
         counts: {}",
        fwd::table(&view.fwd),
        "flows",
        "half open",
        "transactions/s",
        "rx bits/s",
        "tx bits/s",
        "transactions",
        "cycles/transaction",
        grouped(view.flows),
        grouped(view.half_open),
        scaled(view.tps),
        scaled(view.rx_bps),
        scaled(view.tx_bps),
        grouped(view.transactions),
        view.cycles_per_transaction,
        if counts.is_empty() { "none" } else { &counts },
    )
}
