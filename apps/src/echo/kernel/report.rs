//! What the server prints: a line or a JSON object a second, and the verdict.
//!
//! Owns: the last look at the counters. Never does: count. The keys are documented in `echo/options.rs`.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::{Map, Value};
use sheafio_core::{Closed, CpuList, LcoreCounters, LcoreTotals, QueueCounters};
use sheafio_mempool::Mempool;

use super::{
    EchoArgs,
    counts::{Count, Counters, Totals},
};
use crate::fwd::{PoolView, grouped, pool_view, scaled};

pub(super) struct Watch {
    pool: &'static Mempool,
    start: Instant,
    last: Instant,
    lcores: Vec<Watched>,
}

struct Watched {
    cpu: u32,
    counters: Arc<Counters>,
    lcore: Arc<LcoreCounters>,
    held: Arc<QueueCounters>,
    last: Totals,
    last_lcore: LcoreTotals,
}

#[derive(Debug, Serialize)]
pub(super) struct View {
    t_s: f64,
    flows: u64,
    tps: f64,
    transactions: u64,
    rx_bytes: u64,
    tx_bytes: u64,
    accepted: u64,
    closed: u64,
    drops: Map<String, Value>,
    lcores: Vec<LcoreView>,
    pool: PoolView,
    #[serde(skip)]
    rx_bps: f64,
    #[serde(skip)]
    tx_bps: f64,
}

#[derive(Debug, Serialize)]
struct LcoreView {
    cpu: u32,
    busy: f64,
    cycles_per_transaction: f64,
}

#[derive(Debug, Serialize)]
struct FinalView<'a> {
    #[serde(flatten)]
    view: &'a View,
    r#final: bool,
    conserved: bool,
}

impl Watch {
    pub(super) fn new(pool: &'static Mempool) -> Self {
        let now = Instant::now();
        Self { pool, start: now, last: now, lcores: Vec::new() }
    }

    /// Watches an lcore too.
    pub(super) fn add_lcore(
        &mut self,
        cpu: u32,
        counters: Arc<Counters>,
        lcore: Arc<LcoreCounters>,
        held: Arc<QueueCounters>,
    ) {
        let (last, last_lcore) = (Totals::default(), LcoreTotals::default());
        self.lcores.push(Watched { cpu, counters, lcore, held, last, last_lcore });
    }

    /// The moment, with rates since the last look.
    pub(super) fn look(&mut self) -> View {
        let now = Instant::now();
        let interval = now - std::mem::replace(&mut self.last, now);
        self.view(now - self.start, interval)
    }

    /// The whole run, with rates over all of it.
    pub(super) fn look_over_all(&mut self, run: Duration) -> View {
        for lcore in &mut self.lcores {
            (lcore.last, lcore.last_lcore) = (Totals::default(), LcoreTotals::default());
        }
        self.view(run, run)
    }

    fn view(&mut self, t: Duration, interval: Duration) -> View {
        let (mut totals, mut last, mut held) = (Totals::default(), Totals::default(), 0);
        let mut lcores = Vec::new();
        for lcore in &mut self.lcores {
            let now = lcore.counters.totals();
            let before = std::mem::replace(&mut lcore.last, now);
            let cycles = lcore.lcore.totals();
            let since = cycles.since(&std::mem::replace(&mut lcore.last_lcore, cycles));
            let transactions = now.of(Count::Transactions) - before.of(Count::Transactions);
            lcores.push(LcoreView {
                cpu: lcore.cpu,
                busy: (since.busy() * 1000.0).round() / 1000.0,
                cycles_per_transaction: rounded(if transactions == 0 {
                    0.0
                } else {
                    since.busy_cycles as f64 / transactions as f64
                }),
            });
            totals += now;
            last += before;
            held += lcore.held.totals().held;
        }
        let rate = |count| (totals.of(count) - last.of(count)) as f64 / interval.as_secs_f64().max(1e-9);
        View {
            t_s: (t.as_secs_f64() * 1000.0).round() / 1000.0,
            flows: totals.of(Count::Accepted).saturating_sub(totals.of(Count::Closed)),
            tps: rounded(rate(Count::Transactions)),
            transactions: totals.of(Count::Transactions),
            rx_bytes: totals.of(Count::RxBytes),
            tx_bytes: totals.of(Count::TxBytes),
            accepted: totals.of(Count::Accepted),
            closed: totals.of(Count::Closed),
            drops: Count::DROPS
                .iter()
                .map(|(count, name)| ((*name).to_owned(), totals.of(*count).into()))
                .collect(),
            lcores,
            pool: pool_view(self.pool, held),
            rx_bps: 8.0 * rate(Count::RxBytes),
            tx_bps: 8.0 * rate(Count::TxBytes),
        }
    }
}

fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
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
        cpus: &CpuList,
        max_flows: u32,
    ) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        writeln!(
            io::stdout(),
            "echo: kernel sockets by io_uring, {}, CPUs {cpus}; pool: {} frames of {} bytes; up to {} flows",
            args.services(),
            grouped(pool.frames().into()),
            pool.geometry().frame_bytes(),
            grouped(max_flows.into()),
        )
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
    let drops = view.drops.iter().filter_map(|(name, count)| {
        let count = count.as_u64().filter(|count| *count > 0)?;
        Some(format!("{name} {}", grouped(count)))
    });
    let drops = drops.collect::<Vec<_>>().join(", ");
    let mut text = format!(
        "\nt = {:.1} s\n{:>12} {:>16} {:>12} {:>12} {:>16} {:>12} {:>12}  drops\n\
         {:>12} {:>16} {:>12} {:>12} {:>16} {:>12} {:>12}  {}\n",
        view.t_s,
        "flows",
        "transactions/s",
        "rx bits/s",
        "tx bits/s",
        "transactions",
        "accepted",
        "closed",
        grouped(view.flows),
        scaled(view.tps),
        scaled(view.rx_bps),
        scaled(view.tx_bps),
        grouped(view.transactions),
        grouped(view.accepted),
        grouped(view.closed),
        if drops.is_empty() { "none" } else { &drops },
    );
    for lcore in &view.lcores {
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "lcore on CPU {:<3} busy {:>5.1} %, {} cycles/transaction",
            lcore.cpu,
            lcore.busy * 100.0,
            lcore.cycles_per_transaction
        );
    }
    text + &view.pool.line()
}
