//! What the control plane sees of a run: counters of ports, lcores and pool, and rates between two looks.
//!
//! Owns: the last look. Never does: print. Invariant: it only reads what others count.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::{Map, Value};
use sheafio_core::{DropReason, LcoreCounters, LcoreTotals, QueueCounters, QueueTotals};
use sheafio_drivers::{Change, Control, Port};
use sheafio_mempool::{CacheCensus, Mempool, PoolCounts};

use super::account::{Account, Seen};

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
    /// Its queues are closed.
    is_over: bool,
}

struct WatchedLcore {
    cpu: u32,
    counters: Arc<LcoreCounters>,
    last: LcoreTotals,
}

/// What is printed of one moment. The keys are documented in `cli.rs`.
#[derive(Debug, Serialize)]
pub(crate) struct View {
    pub(super) t_s: f64,
    pub(super) ports: Vec<PortView>,
    pub(super) lcores: Vec<LcoreView>,
    pub(super) pool: PoolView,
}

#[derive(Debug, Serialize)]
pub(super) struct PortView {
    pub(super) name: String,
    pub(super) rx_packets: u64,
    pub(super) rx_bytes: u64,
    pub(super) rx_pps: f64,
    pub(super) tx_packets: u64,
    pub(super) tx_bytes: u64,
    pub(super) tx_pps: f64,
    pub(super) drops: Map<String, Value>,
    pub(super) held: Vec<i64>,
    /// Its queues one by one, in the order of their numbers.
    pub(super) by_queue: Vec<QueueView>,
    /// What became of packets in the XDP program, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) program: Option<Map<String, Value>>,
    /// What its device says, where there is one.
    #[serde(flatten)]
    pub(super) account: Option<Account>,
    #[serde(skip)]
    pub(super) rx_bps: f64,
    #[serde(skip)]
    pub(super) tx_bps: f64,
}

/// Totals of one queue.
#[derive(Debug, Serialize)]
pub(super) struct QueueView {
    pub(super) rx_packets: u64,
    pub(super) tx_packets: u64,
    /// For any reason, but not by the device before a queue was chosen.
    pub(super) dropped: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct LcoreView {
    pub(super) cpu: u32,
    pub(super) busy: f64,
    pub(super) cycles_per_packet: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct PoolView {
    pub(super) frames: u64,
    pub(super) free: u64,
    pub(super) in_flight: u64,
    pub(super) retired: u64,
    pub(super) barn: u64,
    pub(super) caches: u64,
    pub(super) lanes: u64,
    pub(super) rings: u64,
    pub(super) application: u64,
    pub(super) by_cache: Vec<CacheView>,
    pub(super) counts: Map<String, Value>,
}

#[derive(Debug, Serialize)]
pub(super) struct CacheView {
    pub(super) cpu: Option<u32>,
    pub(super) zone: u32,
    pub(super) frames: u64,
    pub(super) counts: Map<String, Value>,
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
            is_over: false,
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

    /// What has happened to the ports since this was asked last, with the names that they had before. It costs some
    /// system calls a port.
    pub(crate) fn changes(&mut self) -> Vec<(String, Change)> {
        let mut all = Vec::new();
        for port in &mut self.ports {
            for change in port.control.changes() {
                let before = port.name.clone();
                if let Change::Renamed(name) = &change {
                    port.name.clone_from(name);
                }
                all.push((before, change));
            }
        }
        all
    }

    /// Whether a port's XDP program was taken off by someone else, so that it received nothing from then on.
    pub(crate) fn has_deaf(&self) -> bool {
        self.ports.iter().any(|port| port.control.is_deaf())
    }

    /// Whether every port has lost its device, so that there is nothing to wait for.
    pub(crate) fn has_lost_all(&self) -> bool {
        self.ports.iter().flat_map(|port| &port.queues).all(|queue| queue.is_gone())
    }

    /// The moment, with rates since the last look.
    pub(crate) fn look(&mut self) -> View {
        let now = Instant::now();
        let interval = now - std::mem::replace(&mut self.last, now);
        self.view(now - self.start, interval)
    }

    /// The whole run, with rates over all of it.
    pub(crate) fn look_over_all(&mut self, run: Duration) -> View {
        for port in &mut self.ports {
            (port.last, port.is_over) = (QueueTotals::default(), true);
        }
        self.lcores.iter_mut().for_each(|lcore| lcore.last = LcoreTotals::default());
        self.view(run, run)
    }

    fn view(&mut self, t: Duration, interval: Duration) -> View {
        let mut ports: Vec<_> = self.ports.iter_mut().map(|port| port.view(interval)).collect();
        join_ring_ends(&mut ports);
        let pool = pool_view(self.pool, ports.iter().flat_map(|port| &port.held).sum());
        let lcores = self.lcores.iter_mut().map(WatchedLcore::view).collect();
        View { t_s: (t.as_secs_f64() * 1000.0).round() / 1000.0, ports, lcores, pool }
    }

    /// Sums over all ports, with the kernel's latest counts.
    pub(super) fn totals(&self) -> QueueTotals {
        self.ports.iter().for_each(|port| port.control.refresh());
        let mut sum = QueueTotals::default();
        self.ports.iter().for_each(|port| sum += port.totals());
        sum
    }
}

/// Each end of a ring counts what it puts in and takes out; what lies between them is shown at the first.
fn join_ring_ends(ports: &mut [PortView]) {
    for at in 1..ports.len() {
        let (before, rest) = ports.split_at_mut(at);
        let end = &mut rest[0];
        if end.name.starts_with("ring:")
            && let Some(first) = before.iter_mut().find(|port| port.name == end.name)
        {
            // Not read at the same moment: while packets flow it can be off by a burst.
            first.held[0] = (first.held[0] + std::mem::take(&mut end.held[0])).max(0);
        }
    }
}

/// Where the pool's frames are, of which `held` are with the ports.
pub(crate) fn pool_view(pool: &Mempool, held: i64) -> PoolView {
    let census = pool.census();
    // Read a little earlier than the census: while packets flow it can be more.
    let rings = u64::try_from(held).unwrap_or(0).min(census.in_flight);
    let counts =
        |counts: PoolCounts| counts.named().map(|(name, count)| (name.to_owned(), count.into())).collect();
    let cache = |cache: CacheCensus| CacheView {
        cpu: cache.cpu,
        zone: cache.zone,
        frames: cache.frames,
        counts: counts(cache.counts),
    };
    PoolView {
        frames: census.frames,
        free: census.free(),
        in_flight: census.in_flight,
        retired: census.retired,
        barn: census.barn,
        caches: census.caches,
        lanes: census.lanes,
        rings,
        application: census.in_flight - rings,
        by_cache: pool.caches().into_iter().map(cache).collect(),
        counts: counts(pool.counts()),
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
        let program = self.control.steer_handle().and_then(|steer| steer.counts().ok());
        let account = program.as_ref().zip(self.control.device_counts());
        let account = account
            .map(|(program, device)| Account::new(&totals, Seen::from(program), &device, self.is_over));
        let program = program.map(|counts| {
            counts.all().map(|(verdict, count)| (verdict.name().to_owned(), count.into())).collect()
        });
        PortView {
            name: self.name.clone(),
            rx_packets: totals.rx_packets,
            rx_bytes: totals.rx_bytes,
            rx_pps: round(rx_pps),
            tx_packets: totals.tx_packets,
            tx_bytes: totals.tx_bytes,
            tx_pps: round(tx_pps),
            drops: drops.collect(),
            held: self.queues.iter().map(|queue| queue.totals().held).collect(),
            by_queue: self.queues.iter().map(|queue| QueueView::from(&queue.totals())).collect(),
            program,
            account,
            rx_bps: wire_bits(rx_pps, rate(totals.rx_bytes, last.rx_bytes)),
            tx_bps: wire_bits(tx_pps, rate(totals.tx_bytes, last.tx_bytes)),
        }
    }
}

impl From<&QueueTotals> for QueueView {
    fn from(totals: &QueueTotals) -> Self {
        let dropped = totals.all_drops().map(|(_, packets)| packets).sum();
        Self { rx_packets: totals.rx_packets, tx_packets: totals.tx_packets, dropped }
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A port that nothing has happened to, with one queue.
    pub(crate) fn port(name: &str) -> PortView {
        PortView {
            name: name.to_owned(),
            rx_packets: 0,
            rx_bytes: 0,
            rx_pps: 0.0,
            tx_packets: 0,
            tx_bytes: 0,
            tx_pps: 0.0,
            drops: Map::new(),
            held: vec![0],
            by_queue: vec![QueueView { rx_packets: 0, tx_packets: 0, dropped: 0 }],
            program: None,
            account: None,
            rx_bps: 0.0,
            tx_bps: 0.0,
        }
    }

    /// A pool without frames.
    pub(crate) fn pool() -> PoolView {
        PoolView {
            frames: 0,
            free: 0,
            in_flight: 0,
            retired: 0,
            barn: 0,
            caches: 0,
            lanes: 0,
            rings: 0,
            application: 0,
            by_cache: vec![],
            counts: Map::new(),
        }
    }
}
