//! What `sheafio fwd` prints: a table or a JSON object a second, and the verdict.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::{Map, Value};
use sheafio_core::{Closed, CpuList, DropReason, LcoreCounters, LcoreTotals, QueueCounters, QueueTotals};
use sheafio_drivers::{Control, Port};
use sheafio_mempool::{Mempool, Pages};

use crate::cli::{FwdArgs, Mode};

/// What is watched, and what was seen last.
pub(crate) struct Watch {
    pool: &'static Mempool,
    start: Instant,
    last: Instant,
    ports: Vec<WatchedPort>,
    lcores: Vec<WatchedLcore>,
}

struct WatchedPort {
    name: String,
    control: Box<dyn Control>,
    queues: Vec<Arc<QueueCounters>>,
    last: QueueTotals,
}

struct WatchedLcore {
    cpu: u32,
    counters: Arc<LcoreCounters>,
    last: LcoreTotals,
}

/// What is printed of one moment. The keys are documented in `cli.rs`.
#[derive(Debug, Serialize)]
pub(crate) struct View {
    t_s: f64,
    ports: Vec<PortView>,
    lcores: Vec<LcoreView>,
    pool: PoolView,
}

#[derive(Debug, Serialize)]
struct PortView {
    name: String,
    rx_packets: u64,
    rx_bytes: u64,
    rx_pps: f64,
    tx_packets: u64,
    tx_bytes: u64,
    tx_pps: f64,
    drops: Map<String, Value>,
    #[serde(skip)]
    rx_bps: f64,
    #[serde(skip)]
    tx_bps: f64,
    #[serde(skip)]
    trouble: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct LcoreView {
    cpu: u32,
    busy: f64,
    cycles_per_packet: f64,
}

#[derive(Debug, Serialize)]
struct PoolView {
    frames: u64,
    free: u64,
    in_flight: u64,
    retired: u64,
}

/// What is printed of the whole run.
#[derive(Debug, Serialize)]
struct FinalView<'a> {
    #[serde(flatten)]
    view: &'a View,
    r#final: bool,
    unexplained: i64,
    conserved: bool,
}

/// How it ended.
pub(crate) struct Ending {
    pub(crate) conserved: bool,
    unexplained: i64,
    closed: Closed,
    /// Where the frames are, if some are lost.
    whereabouts: Option<String>,
}

impl Watch {
    /// Watches the ports, which lose their control plane to it.
    pub(crate) fn new(pool: &'static Mempool, ports: &mut [Port]) -> Self {
        let now = Instant::now();
        let watched = |port: &mut Port| WatchedPort {
            name: port.name.clone(),
            control: port.take_control(),
            queues: port.queues.iter().map(|queue| queue.counters().clone()).collect(),
            last: QueueTotals::default(),
        };
        Self {
            pool,
            start: now,
            last: now,
            ports: ports.iter_mut().map(watched).collect(),
            lcores: Vec::new(),
        }
    }

    /// Watches an lcore too.
    pub(crate) fn add_lcore(&mut self, cpu: u32, counters: Arc<LcoreCounters>) {
        self.lcores.push(WatchedLcore { cpu, counters, last: LcoreTotals::default() });
    }

    /// The moment, with rates since the last look.
    pub(crate) fn look(&mut self) -> View {
        let now = Instant::now();
        let interval = now - std::mem::replace(&mut self.last, now);
        self.view(now - self.start, interval)
    }

    /// The whole run, with rates over all of it.
    pub(crate) fn look_over_all(&mut self, run: Duration) -> View {
        self.ports.iter_mut().for_each(|port| port.last = QueueTotals::default());
        self.lcores.iter_mut().for_each(|lcore| lcore.last = LcoreTotals::default());
        self.view(run, run)
    }

    fn view(&mut self, t: Duration, interval: Duration) -> View {
        let census = self.pool.census();
        let pool = PoolView {
            frames: census.frames,
            free: census.free(),
            in_flight: census.in_flight,
            retired: census.retired,
        };
        let ports = self.ports.iter_mut().map(|port| port.view(interval)).collect();
        let lcores = self.lcores.iter_mut().map(WatchedLcore::view).collect();
        View { t_s: (t.as_secs_f64() * 1000.0).round() / 1000.0, ports, lcores, pool }
    }

    fn totals(&self) -> QueueTotals {
        let mut sum = QueueTotals::default();
        self.ports.iter().for_each(|port| sum += port.totals());
        sum
    }
}

impl WatchedPort {
    fn totals(&self) -> QueueTotals {
        let mut sum = QueueTotals::default();
        self.queues.iter().for_each(|queue| sum += queue.totals());
        sum
    }

    fn view(&mut self, interval: Duration) -> PortView {
        self.control.refresh();
        let totals = self.totals();
        let last = std::mem::replace(&mut self.last, totals);
        let rate = |now: u64, last: u64| (now - last) as f64 / interval.as_secs_f64().max(1e-9);
        // What a packet takes on the wire besides its bytes: preamble, FCS and gap (IEEE 802.3).
        let wire_bits = |packets: f64, bytes: f64| 8.0 * (bytes + 24.0 * packets);
        let (rx_pps, tx_pps) =
            (rate(totals.rx_packets, last.rx_packets), rate(totals.tx_packets, last.tx_packets));
        let drops =
            DropReason::ALL.iter().map(|reason| (reason.name().to_owned(), totals.drops(*reason).into()));
        PortView {
            name: self.name.clone(),
            rx_packets: totals.rx_packets,
            rx_bytes: totals.rx_bytes,
            rx_pps: round(rx_pps),
            tx_packets: totals.tx_packets,
            tx_bytes: totals.tx_bytes,
            tx_pps: round(tx_pps),
            drops: drops.collect(),
            rx_bps: wire_bits(rx_pps, rate(totals.rx_bytes, last.rx_bytes)),
            tx_bps: wire_bits(tx_pps, rate(totals.tx_bytes, last.tx_bytes)),
            trouble: self.control.trouble(),
        }
    }
}

impl WatchedLcore {
    fn view(&mut self) -> LcoreView {
        let totals = self.counters.totals();
        let since = totals.since(&std::mem::replace(&mut self.last, totals));
        LcoreView {
            cpu: self.cpu,
            busy: (since.busy() * 1000.0).round() / 1000.0,
            cycles_per_packet: round(since.cycles_per_packet()),
        }
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

impl Ending {
    /// Counts everything, after the lcores have ended.
    pub(crate) fn new(pool: &'static Mempool, watch: &Watch, mode: Mode, closed: Closed) -> Self {
        watch.ports.iter().for_each(|port| port.control.refresh());
        let totals = watch.totals();
        let after_rx = |reason: &DropReason| !reason.is_before_rx() && !reason.is_after_tx();
        let dropped: u64 = DropReason::ALL
            .iter()
            .filter(|reason| after_rx(reason))
            .map(|reason| totals.drops(*reason))
            .sum();
        let unexplained = match mode {
            // Received packets end here, sent ones begin here: there is nothing to compare.
            Mode::Rxonly | Mode::Txonly => 0,
            _ => totals.rx_packets as i64 - totals.tx_packets as i64 - dropped as i64,
        };

        let census = pool.census();
        let audit = pool.audit();
        let conserved = audit.as_ref().is_some_and(|audit| {
            audit.twice.is_empty() && audit.missing.len() as u64 == closed.retired && census.in_flight == 0
        });
        let whereabouts = (!conserved).then(|| match &audit {
            None => "a pool cache is still in use".to_owned(),
            Some(audit) => format!(
                "{} of {} frames are home, {} retired, {} in flight; missing: {}; twice: {}",
                audit.home,
                census.frames,
                census.retired,
                census.in_flight,
                some(&audit.missing),
                some(&audit.twice)
            ),
        });
        Self { conserved, unexplained, closed, whereabouts }
    }
}

/// The first few of many frames.
fn some(frames: &[sheafio_mempool::FrameIndex]) -> String {
    let shown: Vec<_> = frames.iter().take(20).map(ToString::to_string).collect();
    match frames.len() {
        0 => "none".to_owned(),
        more if more > shown.len() => format!("{} and {} more", shown.join(" "), more - shown.len()),
        _ => shown.join(" "),
    }
}

/// Prints for people or for programs.
pub(crate) struct Printer {
    json: bool,
    /// What each port was in trouble with when it was last told.
    told: Vec<Option<&'static str>>,
}

impl Printer {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, told: Vec::new() }
    }

    /// Says what was opened, for people.
    pub(crate) fn start(
        &self,
        args: &FwdArgs,
        pool: &Mempool,
        ports: &[Port],
        cpus: &CpuList,
    ) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        let pages = if pool.pages() == Pages::Huge { "2 MiB hugepages" } else { "base pages" };
        let mut out = io::stdout();
        writeln!(
            out,
            "fwd: mode {}, burst {}, CPUs {cpus}; pool: {} frames of {} bytes on {pages}, sheaves of {}",
            format!("{:?}", args.mode).to_lowercase(),
            args.burst,
            grouped(pool.frames().into()),
            pool.geometry().frame_bytes(),
            pool.sheaf_capacity(),
        )?;
        for (number, port) in ports.iter().enumerate() {
            writeln!(out, "port {number}: {}: {}, {} queue(s)", port.name, port.mode, port.queues.len())?;
        }
        Ok(())
    }

    /// Prints a moment; trouble of a port once, when it begins and when it ends.
    pub(crate) fn print(&mut self, view: &View) -> io::Result<()> {
        self.told.resize(view.ports.len(), None);
        for (port, told) in view.ports.iter().zip(&mut self.told) {
            match (port.trouble, std::mem::replace(told, port.trouble)) {
                (Some(trouble), before) if before != Some(trouble) => {
                    eprintln!("warning: {}: {trouble}", port.name);
                }
                (None, Some(_)) => eprintln!("{}: works again", port.name),
                _ => {}
            }
        }
        let text =
            if self.json { serde_json::to_string(view).map_err(io::Error::other)? } else { table(view) };
        writeln!(io::stdout(), "{text}")
    }

    /// Prints the whole run and how it ended.
    pub(crate) fn end(&mut self, view: &View, ending: &Ending) -> io::Result<()> {
        if let Some(whereabouts) = &ending.whereabouts {
            eprintln!("sheafio: frames were lost: {whereabouts}");
        }
        if self.json {
            return write!(io::stdout(), "{}", final_json(view, ending));
        }
        let verdict = if ending.conserved { "every frame is accounted for" } else { "FRAMES WERE LOST" };
        writeln!(
            io::stdout(),
            "\nwhole run:\n{}\nverdict: {verdict}; {} returned at close, {} retired; unexplained packets: {}",
            table(view),
            grouped(ending.closed.returned),
            grouped(ending.closed.retired),
            ending.unexplained,
        )
    }
}

/// The whole run as one line of JSON.
pub(crate) fn final_json(view: &View, ending: &Ending) -> String {
    let (unexplained, conserved) = (ending.unexplained, ending.conserved);
    let last = FinalView { view, r#final: true, unexplained, conserved };
    serde_json::to_string(&last).expect("plain numbers and strings") + "\n"
}

/// A moment as a table.
fn table(view: &View) -> String {
    let mut text = format!("\nt = {:.1} s\n", view.t_s);
    // Writing to a String can't fail.
    let _ = writeln!(
        text,
        "{:<16} {:>12} {:>12} {:>12} {:>12} {:>16} {:>16}  drops",
        "port", "rx packets/s", "rx bits/s", "tx packets/s", "tx bits/s", "rx packets", "tx packets"
    );
    for port in &view.ports {
        let drops = port.drops.iter().filter(|(_, count)| count.as_u64() != Some(0));
        let mut drops: Vec<_> =
            drops.map(|(name, count)| format!("{name} {}", grouped(count.as_u64().unwrap_or(0)))).collect();
        if drops.is_empty() {
            drops.push("none".to_owned());
        }
        let _ = writeln!(
            text,
            "{:<16} {:>12} {:>12} {:>12} {:>12} {:>16} {:>16}  {}",
            port.name,
            scaled(port.rx_pps),
            scaled(port.rx_bps),
            scaled(port.tx_pps),
            scaled(port.tx_bps),
            grouped(port.rx_packets),
            grouped(port.tx_packets),
            drops.join(", ")
        );
    }
    for lcore in &view.lcores {
        let _ = writeln!(
            text,
            "lcore on CPU {:<3} busy {:>5.1} %, {} cycles/packet",
            lcore.cpu,
            lcore.busy * 100.0,
            lcore.cycles_per_packet
        );
    }
    let pool = &view.pool;
    let _ = write!(
        text,
        "pool             {} frames: {} free, {} in flight, {} retired",
        grouped(pool.frames),
        grouped(pool.free),
        grouped(pool.in_flight),
        grouped(pool.retired)
    );
    text
}

/// A rate with its SI prefix: 1.23 M.
fn scaled(value: f64) -> String {
    let (scale, prefix) = match value {
        value if value >= 1e9 => (1e9, " G"),
        value if value >= 1e6 => (1e6, " M"),
        value if value >= 1e3 => (1e3, " k"),
        _ => (1.0, ""),
    };
    if prefix.is_empty() { format!("{value:.0}") } else { format!("{:.2}{prefix}", value / scale) }
}

/// A count in groups of three digits: 16,384.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(
            [0, 999, 1000, 16_384, 1_234_567].map(grouped),
            ["0", "999", "1,000", "16,384", "1,234,567"]
        );
        assert_eq!(
            [0.0, 999.0, 1500.0, 1.2e6, 3.4e9].map(scaled),
            ["0", "999", "1.50 k", "1.20 M", "3.40 G"]
        );
    }

    #[test]
    fn json_has_the_documented_keys() {
        let view = View {
            t_s: 1.0,
            ports: vec![PortView {
                name: "ve0".to_owned(),
                rx_packets: 1,
                rx_bytes: 60,
                rx_pps: 1.0,
                tx_packets: 0,
                tx_bytes: 0,
                tx_pps: 0.0,
                drops: Map::from_iter([("tx_full".to_owned(), 0.into())]),
                rx_bps: 0.0,
                tx_bps: 0.0,
                trouble: None,
            }],
            lcores: vec![LcoreView { cpu: 1, busy: 0.5, cycles_per_packet: 0.0 }],
            pool: PoolView { frames: 1, free: 1, in_flight: 0, retired: 0 },
        };
        let expected = r#"{"t_s":1.0,"ports":[{"name":"ve0","rx_packets":1,"rx_bytes":60,"rx_pps":1.0,"tx_packets":0,"tx_bytes":0,"tx_pps":0.0,"drops":{"tx_full":0}}],"lcores":[{"cpu":1,"busy":0.5,"cycles_per_packet":0.0}],"pool":{"frames":1,"free":1,"in_flight":0,"retired":0}}"#;
        assert_eq!(serde_json::to_string(&view).unwrap(), expected);
    }
}
