//! What the AF_XDP data path costs a packet over rings in memory, beside plain loops over rings of the same layout.
//!
//! ```text
//!   kernel by hand: FILL --> RX, TX --> COMPLETION       half a ring at a time, outside of the clock
//!   a turn, timed:  refill FILL, receive RX, reclaim COMPLETION, send TX: 32 packets each
//! ```
//! Usage: cargo bench -p sheafio-drivers --bench rings -- \[ROUNDS\]
//!
//! The kernel writes packets and completions before the clock runs; within, it publishes a burst of each a turn, which
//! takes two stores. So every turn finds a burst of packets and one of completions, as under steady load. Both are
//! measured in turns (A B A B); printed are nanoseconds a packet, the medians over the rounds of medians over blocks,
//! and the median of the rounds' ratios.
//!
//! Left out: system calls, the kernel, cache lines that another core has written, and the packets' bytes. The plain
//! loops do what the rings ask for and nothing else: no pool (a local array is the free list), no check of what the
//! other side wrote, no counters, no wake-up flag, no handle that owns a frame.

mod turns;

use std::{
    cell::Cell,
    fs,
    sync::atomic::{AtomicU32, Ordering},
};

use sheafio_core::{Queue, cycles};
use sheafio_drivers::sim::{Hand, HandQueue, by_hand};
use sheafio_mempool::{Burst, Hugepages, Mempool, PoolCache};

use turns::{BURST, Driver, PACKET_BYTES, block, measure, median, ns_a_cycle};

/// Where the plain loops' kernel puts a packet within its frame: behind the XDP headroom.
const HEADROOM: u64 = 256;

/// The AF_XDP queue of this crate.
struct Sheafio<const SLOTS: usize> {
    queue: HandQueue,
    hand: Hand,
    cache: PoolCache,
    burst: Burst,
}

impl<const SLOTS: usize> Sheafio<SLOTS> {
    fn new() -> Self {
        let pool = Mempool::builder().frames(8 * SLOTS as u64).hugepages(Hugepages::Off).cores(1).build();
        let pool = pool.expect("memory for a pool");
        let mut cache = pool.cache().expect("a cache");
        let (queue, hand) = by_hand(pool, &mut cache, SLOTS as u32);
        Self { queue, hand, cache, burst: Burst::with_limit(BURST) }
    }

    /// Closes the queue; every frame must be home then.
    fn end(mut self) {
        self.queue.close(&mut self.cache);
        let pool = self.cache.pool();
        drop(self.cache);
        assert_eq!(pool.audit().expect("no cache is joined").home, pool.frames().into());
    }
}

impl<const SLOTS: usize> Driver for Sheafio<SLOTS> {
    const SLOTS: usize = SLOTS;

    fn stage(&mut self) {
        assert_eq!(self.hand.stage(block::<Self>(), PACKET_BYTES), block::<Self>());
    }

    #[inline(always)]
    fn turn(&mut self) {
        self.hand.publish(BURST);
        let received = self.queue.rx_burst(&mut self.cache, &mut self.burst);
        let sent = self.queue.tx_burst(&mut self.cache, &mut self.burst);
        assert!(received == BURST && sent == BURST);
    }
}

/// A descriptor of the RX and TX rings: `struct xdp_desc` (linux/if_xdp.h).
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Desc {
    addr: u64,
    len: u32,
    options: u32,
}

/// A word on a pair of cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Alone(AtomicU32);

/// A ring in the layout of AF_XDP, both sides of it in this thread.
struct Ring<T, const SLOTS: usize> {
    producer: Alone,
    consumer: Alone,
    slots: Box<[Cell<T>; SLOTS]>,
}

impl<T: Copy + Default, const SLOTS: usize> Ring<T, SLOTS> {
    fn new() -> Self {
        let slots: Vec<_> = (0..SLOTS).map(|_| Cell::new(T::default())).collect();
        let slots = slots.into_boxed_slice().try_into().ok().expect("as many slots");
        Self { producer: Alone::default(), consumer: Alone::default(), slots }
    }

    /// Writes up to `want` values, which `value` makes from 0, 1, ... Returns how many there was room for.
    #[inline(always)]
    fn produce(&self, want: usize, value: impl Fn(usize) -> T) -> usize {
        let next = self.producer.0.load(Ordering::Relaxed);
        let used = next.wrapping_sub(self.consumer.0.load(Ordering::Acquire));
        let count = want.min(SLOTS - used as usize);
        for at in 0..count {
            self.slots[(next as usize + at) % SLOTS].set(value(at));
        }
        self.publish(count);
        count
    }

    /// Hands the next `count` slots to the consumer.
    #[inline(always)]
    fn publish(&self, count: usize) {
        let next = self.producer.0.load(Ordering::Relaxed);
        self.producer.0.store(next.wrapping_add(count as u32), Ordering::Release);
    }

    /// Reads up to `want` values, numbered 0, 1, ... Returns how many there were.
    #[inline(always)]
    fn consume(&self, want: usize, mut visit: impl FnMut(usize, T)) -> usize {
        let next = self.consumer.0.load(Ordering::Relaxed);
        let filled = self.producer.0.load(Ordering::Acquire).wrapping_sub(next);
        let count = want.min(filled as usize);
        for at in 0..count {
            visit(at, self.slots[(next as usize + at) % SLOTS].get());
        }
        self.consumer.0.store(next.wrapping_add(count as u32), Ordering::Release);
        count
    }

    /// Writes a value `ahead` slots past those that are published.
    fn stage(&self, ahead: usize, value: T) {
        self.slots[(self.producer.0.load(Ordering::Relaxed) as usize + ahead) % SLOTS].set(value);
    }
}

/// Plain loops.
struct Plain<const SLOTS: usize> {
    fill: Ring<u64, SLOTS>,
    rx: Ring<Desc, SLOTS>,
    tx: Ring<Desc, SLOTS>,
    completion: Ring<u64, SLOTS>,
    /// The free list, a stack.
    free: Vec<u64>,
    free_len: usize,
    burst: [Desc; BURST],
    /// Not in the first block, before which nothing was sent.
    has_completions: bool,
}

impl<const SLOTS: usize> Plain<SLOTS> {
    fn new() -> Self {
        let frames = 8 * SLOTS;
        let plain = Self {
            fill: Ring::new(),
            rx: Ring::new(),
            tx: Ring::new(),
            completion: Ring::new(),
            free: (0..frames as u64).map(|frame| frame << 11).collect(),
            free_len: frames - SLOTS,
            burst: [Desc::default(); BURST],
            has_completions: false,
        };
        assert_eq!(plain.fill.produce(SLOTS, |at| plain.free[plain.free_len + at]), SLOTS);
        plain
    }

    /// Every frame must be somewhere, and once.
    fn end(self) {
        let mut frames = self.free[..self.free_len].to_vec();
        self.fill.consume(SLOTS, |_, addr| frames.push(addr));
        self.tx.consume(SLOTS, |_, desc| frames.push(desc.addr - HEADROOM));
        self.completion.consume(SLOTS, |_, addr| frames.push(addr - HEADROOM));
        frames.sort_unstable();
        frames.dedup();
        assert_eq!(frames.len(), 8 * SLOTS, "frames are lost");
    }
}

impl<const SLOTS: usize> Driver for Plain<SLOTS> {
    const SLOTS: usize = SLOTS;

    fn stage(&mut self) {
        let packets = self.fill.consume(block::<Self>(), |at, addr| {
            self.rx.stage(at, Desc { addr: addr + HEADROOM, len: PACKET_BYTES, options: 0 });
        });
        let completions = self.tx.consume(block::<Self>(), |at, desc| self.completion.stage(at, desc.addr));
        assert_eq!(packets, block::<Self>());
        self.has_completions = completions > 0;
    }

    #[inline(always)]
    fn turn(&mut self) {
        self.rx.publish(BURST);
        if self.has_completions {
            self.completion.publish(BURST);
        }
        let free = &self.free[self.free_len - BURST..self.free_len];
        self.free_len -= self.fill.produce(BURST, |at| free[BURST - 1 - at]);
        let burst = &mut self.burst;
        let received = self.rx.consume(BURST, |at, desc| burst[at] = desc);

        let free = &mut self.free[self.free_len..self.free_len + BURST];
        self.free_len += self.completion.consume(BURST, |at, addr| free[at] = addr & !2047);
        let sent = self.tx.produce(received, |at| burst[at]);
        assert!(received == BURST && sent == BURST);
    }
}

fn main() {
    // Cargo adds --bench.
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(11);
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!(
        "rings: {}, kernel {}, heap rings, no device; burst {BURST}, medians of {rounds} rounds",
        cpu.trim_start_matches(['\t', ':', ' ']),
        kernel.trim()
    );
    let ns_a_cycle = ns_a_cycle();
    compare::<512>(rounds, ns_a_cycle);
    compare::<2048>(rounds, ns_a_cycle);
}

/// Prints slots, nanoseconds a packet of both, and the ratio.
fn compare<const SLOTS: usize>(rounds: usize, ns_a_cycle: f64) {
    let (mut sheafio, mut plain) = (Sheafio::<SLOTS>::new(), Plain::<SLOTS>::new());
    let round = |_| (measure(&mut sheafio, ns_a_cycle), measure(&mut plain, ns_a_cycle));
    let figures: Vec<(f64, f64)> = (0..rounds).map(round).collect();
    sheafio.end();
    plain.end();
    let ratio = median(figures.iter().map(|(sheafio, plain)| sheafio / plain).collect());
    let (sheafio, plain): (Vec<_>, Vec<_>) = figures.into_iter().unzip();
    let (sheafio, plain) = (median(sheafio), median(plain));
    println!(
        "{SLOTS:>4} slots: sheafio {sheafio:.3} ns a packet ({:.0} million/s), plain {plain:.3}, ratio {ratio:.2}",
        1e3 / sheafio
    );
}
