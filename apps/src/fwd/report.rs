//! What `sheafio fwd` prints: a table or a JSON object a second, and the verdict.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use serde::Serialize;
use sheafio_core::{Closed, CpuList, DropReason};
use sheafio_drivers::{Change, Port, af_xdp::Verdict};
use sheafio_mempool::{Mempool, Pages};

use super::{
    account::Account,
    watch::{PoolView, QueueView, View, Watch},
};
use crate::cli::{FwdArgs, Mode};

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

impl Ending {
    /// Counts everything, after the lcores have ended.
    pub(crate) fn new(pool: &'static Mempool, watch: &Watch, mode: Mode, closed: Closed) -> Self {
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

        let whereabouts = whereabouts(pool, closed.retired);
        Self { conserved: whereabouts.is_none(), unexplained, closed, whereabouts }
    }
}

/// Where the frames are, if some are lost, once all pool caches have left: each has to be home, or among the retired.
pub(crate) fn whereabouts(pool: &'static Mempool, retired: u64) -> Option<String> {
    let census = pool.census();
    let audit = pool.audit();
    let conserved = audit.as_ref().is_some_and(|audit| {
        audit.twice.is_empty() && audit.missing.len() as u64 == retired && census.in_flight == 0
    });
    (!conserved).then(|| match &audit {
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
    })
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
}

impl Printer {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
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
            args.size.burst,
            grouped(pool.frames().into()),
            pool.geometry().frame_bytes(),
            pool.sheaf_capacity(),
        )?;
        for (number, port) in ports.iter().enumerate() {
            writeln!(out, "port {number}: {}: {}, {} queue(s)", port.name, port.mode, port.queues.len())?;
        }
        Ok(())
    }

    /// Tells of a change, a line each.
    pub(crate) fn tell(port: &str, change: &Change) {
        match change {
            Change::Trouble(what) => eprintln!("warning: {port}: {what}"),
            Change::Mended(what) => eprintln!("{port}: {what}"),
            Change::Renamed(name) => eprintln!("{port}: the interface has a new name: {name}"),
        }
    }

    /// Prints a moment.
    pub(crate) fn print(&self, view: &View) -> io::Result<()> {
        let text =
            if self.json { serde_json::to_string(view).map_err(io::Error::other)? } else { table(view) };
        writeln!(io::stdout(), "{text}")
    }

    /// Prints the whole run and how it ended.
    pub(crate) fn end(&self, view: &View, ending: &Ending) -> io::Result<()> {
        if let Some(whereabouts) = &ending.whereabouts {
            eprintln!("sheafio: frames were lost: {whereabouts}");
        }
        if self.json {
            return write!(io::stdout(), "{}", final_json(view, ending));
        }
        let verdict = if ending.conserved { "every frame is accounted for" } else { "FRAMES WERE LOST" };
        writeln!(
            io::stdout(),
            "\nwhole run:\n{}\nverdict: {verdict}; {} returned at close, {} retired; packets received and neither sent nor dropped: {}",
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
pub(crate) fn table(view: &View) -> String {
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
        if let [_, _, ..] = port.by_queue[..] {
            let list = |count: fn(&QueueView) -> u64| {
                port.by_queue.iter().map(|queue| grouped(count(queue))).collect::<Vec<_>>().join(" | ")
            };
            let (rx, tx) = (list(|queue| queue.rx_packets), list(|queue| queue.tx_packets));
            let dropped = list(|queue| queue.dropped);
            let _ = writeln!(text, "{:<16} by queue: rx {rx}; tx {tx}; dropped {dropped} packets", "");
        }
        // That all were redirected tells nothing new.
        let left =
            port.program.iter().flatten().filter(|(name, _)| name.as_str() != Verdict::Redirected.name());
        let left: Vec<_> = left
            .filter_map(|(name, count)| count.as_u64().filter(|count| *count > 0).map(|count| (name, count)))
            .map(|(name, count)| format!("{name} {}", grouped(count)))
            .collect();
        if !left.is_empty() {
            let _ = writeln!(text, "{:<16} left to the kernel by the XDP program: {}", "", left.join(", "));
        }
        if let Some(line) = port.account.as_ref().and_then(Account::line) {
            let _ = writeln!(text, "{:<16} {line}", "");
        }
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
    text + &view.pool.line()
}

impl PoolView {
    /// Where the frames are, in a line without its end.
    pub(crate) fn line(&self) -> String {
        format!(
            "pool             {} frames: {} free ({} barn, {} caches, {} lanes), {} in rings, {} in hand, {} retired",
            grouped(self.frames),
            grouped(self.free),
            grouped(self.barn),
            grouped(self.caches),
            grouped(self.lanes),
            grouped(self.rings),
            grouped(self.application),
            grouped(self.retired)
        )
    }
}

/// A rate with its SI prefix: 1.23 M.
pub(crate) fn scaled(value: f64) -> String {
    let (scale, prefix) = match value {
        value if value >= 1e9 => (1e9, " G"),
        value if value >= 1e6 => (1e6, " M"),
        value if value >= 1e3 => (1e3, " k"),
        _ => (1.0, ""),
    };
    if prefix.is_empty() { format!("{value:.0}") } else { format!("{:.2}{prefix}", value / scale) }
}

/// A count in groups of three digits: 16,384.
pub(crate) fn grouped(count: u64) -> String {
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
    use serde_json::Map;

    use super::*;
    use crate::fwd::{
        account::Unexplained,
        watch::{CacheView, LcoreView, PoolView, PortView, tests::port},
    };

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
        let mut view = View {
            t_s: 1.0,
            ports: vec![PortView {
                rx_packets: 1,
                rx_bytes: 60,
                rx_pps: 1.0,
                drops: Map::from_iter([("tx_full".to_owned(), 0.into())]),
                held: vec![64],
                by_queue: vec![QueueView { rx_packets: 1, tx_packets: 0, dropped: 0 }],
                program: Some(Map::from_iter([("redirected".to_owned(), 1.into())])),
                account: Some(Account {
                    wire_rx: 2,
                    wire_tx: 3,
                    device: Map::from_iter([("rx_dropped".to_owned(), 1.into())]),
                    unexplained: Some(Unexplained { rx: 1, tx: 0 }),
                }),
                ..port("ve0")
            }],
            lcores: vec![LcoreView { cpu: 1, busy: 0.5, cycles_per_packet: 0.0 }],
            pool: PoolView {
                frames: 100,
                free: 30,
                in_flight: 70,
                retired: 0,
                barn: 10,
                caches: 20,
                lanes: 0,
                rings: 64,
                application: 6,
                by_cache: vec![CacheView { cpu: Some(1), zone: 0, frames: 20, counts: Map::new() }],
                counts: Map::from_iter([("taken".to_owned(), 70.into())]),
            },
        };
        let expected = r#"{"t_s":1.0,"ports":[{"name":"ve0","rx_packets":1,"rx_bytes":60,"rx_pps":1.0,"tx_packets":0,"tx_bytes":0,"tx_pps":0.0,"drops":{"tx_full":0},"held":[64],"by_queue":[{"rx_packets":1,"tx_packets":0,"dropped":0}],"program":{"redirected":1},"wire_rx":2,"wire_tx":3,"device":{"rx_dropped":1},"unexplained_rx":1,"unexplained_tx":0}],"lcores":[{"cpu":1,"busy":0.5,"cycles_per_packet":0.0}],"pool":{"frames":100,"free":30,"in_flight":70,"retired":0,"barn":10,"caches":20,"lanes":0,"rings":64,"application":6,"by_cache":[{"cpu":1,"zone":0,"frames":20,"counts":{}}],"counts":{"taken":70}}}"#;
        assert_eq!(serde_json::to_string(&view).unwrap(), expected);

        // For people, queues have a line where there are several.
        assert!(!table(&view).contains("by queue"), "{}", table(&view));
        view.ports[0].by_queue.push(QueueView { rx_packets: 1234, tx_packets: 5, dropped: 6 });
        let text = table(&view);
        assert!(text.contains("by queue: rx 1 | 1,234; tx 0 | 5; dropped 0 | 6 packets\n"), "{text}");

        // What the program left to the kernel has a line; that it redirected has none.
        assert!(!table(&view).contains("left to the kernel"), "{}", table(&view));
        let left = Map::from_iter([("not_bound".to_owned(), 1500.into()), ("passed".to_owned(), 0.into())]);
        view.ports[0].program = Some(left);
        let text = table(&view);
        assert!(text.contains("left to the kernel by the XDP program: not_bound 1,500\n"), "{text}");
    }
}
