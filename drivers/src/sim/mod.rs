//! The sim port: the AF_XDP data path over heap memory, with a simulated kernel behind the rings.
//!
//! Owns: the simulated kernel and its wire. Never does: make a system call; it needs no rights and
//! no interface. Invariant: what it does is a function of the seed, the configuration and the
//! calls, so a failure can be run again.

mod hand;
mod kernel;
mod wire;

use std::sync::{Arc, Mutex};

use sheafio_core::{Queue, QueueCounters};
use sheafio_mempool::Mempool;

#[doc(hidden)] // For the gate of the tests, which needs a data path with nothing behind it.
pub use self::hand::{Hand, HandKernel, HandQueue, by_hand};
use self::kernel::SimKernel;
pub use self::wire::{SimStatistics, Wire};
use crate::{
    DriverError,
    af_xdp::{QueueSet, cache_of, queue::XskQueue, rings::Rings},
    port::{Change, Control, soft_mac, take_queue},
};

/// A queue of a sim port.
pub type SimQueue = XskQueue<SimKernel>;

/// What the simulated kernel does wrong. All of these a real kernel does too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "a set of independent switches, named one by one")]
pub struct Faults {
    /// Sleeps, and must be woken for the fill ring as well as for the TX ring.
    pub wakeup: bool,
    /// Completes sent frames many polls later.
    pub late: bool,
    /// Completes sent frames in another order.
    pub reorder: bool,
    /// Stops now and then, so that rings run full, and then has much to do at once.
    pub full: bool,
}

impl Faults {
    /// All names in a port specification, in the order of the fields.
    pub const NAMES: [&'static str; 4] = ["wakeup", "late", "reorder", "full"];
}

/// How to open a sim port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Seed of everything that is random.
    pub seed: u64,
    /// How many queues.
    pub queues: u32,
    /// Packets that arrive in total, in turn over the queues; then it is quiet.
    pub packets: u64,
    /// Length of the arriving packets in bytes, at least 60.
    pub len_bytes: u32,
    /// Whether packets may have several frames, up to [`Config::FRAMES_A_PACKET`].
    pub frags: bool,
    /// Slots of each of the four rings: a power of two.
    pub ring: u32,
    /// Frames that a queue keeps ready for reception.
    pub fill: Option<u32>,
    /// Packets that are sent for one kick: 32 as in copy mode, or more, as where the kernel knows
    /// `XDP_MAX_TX_SKB_BUDGET`.
    pub tx_budget: u32,
    /// What goes wrong.
    pub faults: Faults,
    /// The device vanishes when this many packets have arrived on a queue.
    pub remove_at: Option<u64>,
    /// As [`af_xdp::Config::cpus`](crate::af_xdp::Config::cpus).
    pub cpus: Vec<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 1,
            queues: 1,
            packets: u64::MAX,
            len_bytes: 64,
            frags: false,
            ring: 2048,
            fill: None,
            tx_budget: kernel::TX_BATCH,
            faults: Faults::default(),
            remove_at: None,
            cpus: Vec::new(),
        }
    }
}

impl Config {
    /// The most frames of a packet where [`frags`](Self::frags) is set, as in copy mode (`MAX_SKB_FRAGS`,
    /// linux/skbuff.h).
    pub const FRAMES_A_PACKET: usize = 17;

    fn frames_a_packet(&self) -> usize {
        if self.frags { Self::FRAMES_A_PACKET } else { 1 }
    }
}

/// An open sim port.
pub struct SimPort {
    name: String,
    queues: Vec<Option<SimQueue>>,
    wires: Vec<Arc<Mutex<Wire>>>,
    counters: Vec<Arc<QueueCounters>>,
}

/// Refuses what can't be played.
fn check(name: &str, config: &Config, pool: &Mempool) -> Result<(), DriverError> {
    let most = pool.geometry().data_bytes() * config.frames_a_packet() as u32;
    let (problem, allowed) = match config {
        Config { queues: 0, .. } => ("queues=0 is not possible".to_owned(), "1 or more".to_owned()),
        Config { ring, .. } if !ring.is_power_of_two() => {
            (format!("ring={ring} is not possible"), "a power of two".to_owned())
        }
        Config { len_bytes, .. } if !(60..=most).contains(len_bytes) => {
            let allowed =
                format!("60 to {most} bytes, what the frames of a packet hold (more with frags=yes)");
            (format!("len={len_bytes} is not possible"), allowed)
        }
        _ => return Ok(()),
    };
    Err(DriverError::Spec { spec: format!("sim:{name}"), problem, allowed })
}

/// Opens a sim port.
///
/// # Errors
/// If the configuration is not possible, or the pool has no cache left to fill the rings with.
pub fn open(name: &str, config: &Config, pool: &'static Mempool) -> Result<SimPort, DriverError> {
    check(name, config, pool)?;
    let fill = config.fill.unwrap_or(pool.frames() / 4 / config.queues).min(config.ring);
    let (mut queues, mut wires, mut counters) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..config.queues {
        let mut cache = cache_of(pool, &config.cpus, number)?;
        let share = config.packets / u64::from(config.queues)
            + u64::from(u64::from(number) < config.packets % u64::from(config.queues));
        let wire = Arc::new(Mutex::new(Wire::new(share, config.len_bytes)));
        let rings = Rings::on_heap([config.ring; 4], 0);
        let kernel = SimKernel::new(config, number, &rings, *pool.geometry(), wire.clone());
        let mut queue = XskQueue::new(pool, rings, kernel, fill);
        queue.fill_up(&mut cache);
        counters.push(queue.counters().clone());
        wires.push(wire);
        queues.push(Some(queue));
    }
    Ok(SimPort { name: format!("sim:{name}"), queues, wires, counters })
}

impl SimPort {
    /// Takes a queue out of the port, for the lcore that will own it.
    ///
    /// # Errors
    /// [`DriverError::NoQueue`] if it was not opened or is taken already.
    pub fn queue(&mut self, queue: u32) -> Result<SimQueue, DriverError> {
        let numbers = QueueSet::range(0, self.queues.len() as u32).unwrap_or_default();
        take_queue(&mut self.queues, &numbers, queue, &self.name)
    }

    /// The wire of a queue: what arrives there, and what was sent.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn wire(&self, queue: u32) -> Arc<Mutex<Wire>> {
        self.wires[queue as usize].clone()
    }

    /// Turns it into a port of any kind.
    pub(crate) fn into_port(self, number: u8) -> crate::Port {
        crate::Port {
            mode: "simulated kernel".to_owned(),
            mac: soft_mac(3, number),
            mtu: None,
            numa_node: None,
            tells_tags: false,
            warnings: vec![],
            queues: self
                .queues
                .into_iter()
                .flatten()
                .map(|queue| Box::new(queue) as Box<dyn Queue>)
                .collect(),
            control: Box::new(SimControl { wires: self.wires, counters: self.counters, told: Vec::new() }),
            name: self.name,
        }
    }
}

struct SimControl {
    wires: Vec<Arc<Mutex<Wire>>>,
    counters: Vec<Arc<QueueCounters>>,
    /// Queues whose end was told.
    told: Vec<u32>,
}

impl Control for SimControl {
    fn refresh(&self) {
        for (wire, counters) in self.wires.iter().zip(&self.counters) {
            wire.lock().expect("no panic under this lock").statistics.count_drops(counters);
        }
    }

    fn changes(&mut self) -> Vec<Change> {
        let is_removed = |wire: &Arc<Mutex<Wire>>| wire.lock().expect("no panic under this lock").is_removed;
        let mut changes = Vec::new();
        for ((number, wire), counters) in (0..).zip(&self.wires).zip(&self.counters) {
            if !self.told.contains(&number) && is_removed(wire) {
                counters.set_gone();
                self.told.push(number);
                changes
                    .push(Change::Trouble(format!("the device of queue {number} is gone: it was removed")));
            }
        }
        changes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use sheafio_mempool::{Burst, Hugepages};

    use super::*;

    /// xdp-rs#5, firedancer#230: each ring has its own size and mask, and indices run over the end of
    /// u32. Ten laps of the largest ring, over rings of four sizes.
    #[test]
    fn rings_of_four_sizes_wrap_cleanly_across_the_end_of_u32() {
        for sizes in [[64, 8, 16, 32], [8, 16, 32, 64], [16, 64, 8, 32], [32, 16, 64, 8]] {
            let pool = Mempool::builder().frames(512).hugepages(Hugepages::Off).cores(1).build().unwrap();
            let wire = Arc::new(Mutex::new(Wire::new(10_000, 64)));
            wire.lock().unwrap().keep_sent();
            let rings = Rings::on_heap(sizes, u32::MAX - 8);
            let kernel = SimKernel::new(&Config::default(), 0, &rings, *pool.geometry(), wire.clone());
            let mut queue = XskQueue::new(pool, rings, kernel, 512);
            let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
            for _ in 0..10_000 {
                queue.rx_burst(&mut cache, &mut burst);
                queue.tx_or_drop(&mut cache, &mut burst);
            }
            queue.close(&mut cache);
            drop(cache);
            let mut wire = wire.lock().unwrap();
            let sent: Vec<u64> =
                wire.take_sent().iter().map(|packet| Wire::number(packet).unwrap()).collect();
            assert!(sent.len() > 10 * 64, "{sizes:?}: only {} packets came through", sent.len());
            assert!(
                sent.is_sorted_by(|one, next| one < next),
                "{sizes:?}: a packet came twice or out of order"
            );
            assert_eq!(pool.audit().unwrap().home, 512, "{sizes:?}");
        }
    }
}
