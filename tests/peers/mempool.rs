//! The pool of sheafio in the cases that mempool.c runs on DPDK's `rte_mempool`.
//!
//! ```text
//!   pair, thread   pool --take--> array --give--> pool                         one thread on CPU 0
//!   pipe           pool --take--> array --> ring --> array --give--> pool      CPU 0 to CPU 1
//! ```
//! Usage: mempool pair BULK const|var | thread BULK | pipe untouched|touched|spread \[SLOTS\] \[barn\], and for other pools,
//! for scale: mempool array_queue|mutex_vec BULK|pipe
//!
//! One case a run, of about half a second; prints one line, the median over blocks of elements. `const`: the compiler
//! knows BULK (1, 8, 16, 32 or 64), `var`: it does not. `thread` is `pair BULK const` in a thread that is no lcore.
//! `pipe` moves bursts of 32 through a ring with SLOTS places (32); `touched`: CPU 0 writes a word of each frame's
//! first cache line, CPU 1 reads it. Frames of 2,048 bytes have their first lines in 2 of the 64 sets of an L1 cache
//! (and in 1 of 32 of any other), where DPDK spreads its objects; `spread` touches another line in each frame instead.
//! Frames come back over a lane, or with `barn` through the barn.

use std::{
    error::Error,
    hint::black_box,
    process::ExitCode,
    ptr::NonNull,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_queue::ArrayQueue;
use sheafio_core::{Lcore, cycles};
use sheafio_drivers::spsc::{self, Consumer, Producer};
use sheafio_mempool::{FrameIndex, Geometry, Hugepages, Mempool, PoolCache};

const USAGE: &str = "usage: mempool pair BULK const|var | thread BULK | pipe untouched|touched|spread [SLOTS] [barn] | \
                     array_queue BULK|pipe | mutex_vec BULK|pipe, BULK 1, 8, 16, 32 or 64, SLOTS a power of two, \
                     at least 32";
/// As many as in mempool.c.
const FRAMES: u32 = 16_383;
const MAX_BULK: usize = 64;
const BURST: usize = 32;
/// Elements between two looks at the clock.
const BLOCK: usize = 1 << 16;
const DURATION: Duration = Duration::from_millis(400);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(figure) => {
            println!("{figure}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mempool: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[&str]) -> Result<String> {
    let is_bulk = |bulk: &str| matches!(bulk, "1" | "8" | "16" | "32" | "64");
    let array_queue = || {
        let queue = ArrayQueue::new(FRAMES as usize);
        (0..FRAMES).for_each(|index| queue.push(FrameIndex(index)).expect("as many places as frames"));
        queue
    };
    let mutex_vec = || Mutex::new((0..FRAMES).map(FrameIndex).collect::<Vec<_>>());
    match *args {
        ["pair", bulk, how @ ("const" | "var")] if is_bulk(bulk) => {
            on_cpu(0)?;
            Ok(pair(frames()?.cache()?, bulk.parse()?, how == "const"))
        }
        ["thread", bulk] if is_bulk(bulk) => {
            on_cpu(0)?; // The thread inherits it.
            let (cache, bulk) = (frames()?.cache()?, bulk.parse()?);
            Ok(thread::spawn(move || pair(cache, bulk, true)).join().expect("a pair does not panic"))
        }
        ["pipe", how @ ("untouched" | "touched" | "spread"), ref rest @ ..] => {
            let (slots, has_lane) = match *rest {
                [] => (BURST as u32, true),
                ["barn"] => (BURST as u32, false),
                [slots] => (slots.parse()?, true),
                [slots, "barn"] => (slots.parse()?, false),
                _ => return Err(USAGE.into()),
            };
            if !slots.is_power_of_two() || slots < BURST as u32 {
                return Err(USAGE.into());
            }
            let pool = frames()?;
            let lines = if how == "spread" { LINES } else { 1 };
            let touched = (how != "untouched").then(|| Touch { geometry: *pool.geometry(), lines });
            let [sending, receiving] = [pool.cache()?, pool.cache()?];
            if has_lane {
                pool.lane(receiving.id(), sending.id())?;
            }
            let figure = pipe([sending, receiving], slots, touched)?;
            let home = pool.audit().map(|audit| audit.home);
            assert_eq!(home, Some(u64::from(FRAMES)), "frames are lost");
            Ok(figure)
        }
        ["array_queue", "pipe"] => {
            let queue = array_queue();
            pipe([&queue, &queue], BURST as u32, None)
        }
        ["array_queue", bulk] if is_bulk(bulk) => {
            on_cpu(0)?;
            Ok(pair(&array_queue(), bulk.parse()?, true))
        }
        ["mutex_vec", "pipe"] => {
            let stack = mutex_vec();
            pipe([&stack, &stack], BURST as u32, None)
        }
        ["mutex_vec", bulk] if is_bulk(bulk) => {
            on_cpu(0)?;
            Ok(pair(&mutex_vec(), bulk.parse()?, true))
        }
        _ => Err(USAGE.into()),
    }
}

fn frames() -> Result<&'static Mempool> {
    let pool = Mempool::builder().frames(FRAMES.into()).cores(2).hugepages(Hugepages::Require);
    Ok(pool.build()?)
}

fn on_cpu(cpu: u32) -> Result<()> {
    Ok(Lcore::pin(cpu).map(drop)?)
}

/// What is measured.
trait Pool: Send {
    /// Fills the front of `out`; returns how many there were.
    fn get(&mut self, out: &mut [FrameIndex]) -> usize;
    /// Gives back what `get` gave.
    fn put(&mut self, indices: &[FrameIndex]);
}

impl Pool for PoolCache {
    #[inline(always)]
    fn get(&mut self, out: &mut [FrameIndex]) -> usize {
        self.take(out)
    }

    #[inline(always)]
    fn put(&mut self, indices: &[FrameIndex]) {
        // SAFETY: every case takes the indices from this pool's caches and puts each once.
        unsafe { self.give(indices) }
    }
}

impl Pool for &ArrayQueue<FrameIndex> {
    #[inline(always)]
    fn get(&mut self, out: &mut [FrameIndex]) -> usize {
        out.iter_mut().map_while(|entry| self.pop().map(|index| *entry = index)).count()
    }

    #[inline(always)]
    fn put(&mut self, indices: &[FrameIndex]) {
        for &index in indices {
            self.push(index).expect("as many places as frames");
        }
    }
}

impl Pool for &Mutex<Vec<FrameIndex>> {
    #[inline(always)]
    fn get(&mut self, out: &mut [FrameIndex]) -> usize {
        let mut stack = self.lock().expect("no panic under this lock");
        let count = out.len().min(stack.len());
        let rest = stack.len() - count;
        out[..count].copy_from_slice(&stack[rest..]);
        stack.truncate(rest);
        count
    }

    #[inline(always)]
    fn put(&mut self, indices: &[FrameIndex]) {
        self.lock().expect("no panic under this lock").extend_from_slice(indices);
    }
}

/// The caller's array, placed alike in every case.
#[repr(align(64))]
struct Array<const LEN: usize>([FrameIndex; LEN]);

impl<const LEN: usize> Array<LEN> {
    fn new() -> Self {
        Self([FrameIndex(0); LEN])
    }

    /// The indices are really in memory, and could be others afterwards. As in mempool.c; `black_box` would
    /// also store the array's address.
    #[inline(always)]
    fn settle(&mut self) {
        // SAFETY: no instruction; the compiler has to assume that memory is read and written.
        unsafe { std::arch::asm!("/* {} */", in(reg) &raw mut self.0, options(nostack, preserves_flags)) };
    }
}

fn pair(pool: impl Pool, bulk: usize, known: bool) -> String {
    let figure = match bulk {
        _ if !known => pair_of(pool, black_box(bulk)),
        1 => pair_of(pool, 1),
        8 => pair_of(pool, 8),
        16 => pair_of(pool, 16),
        32 => pair_of(pool, 32),
        _ => pair_of(pool, 64),
    };
    format!("{figure:.3} cycles an element")
}

/// Inlined into each caller, so that a bulk that is constant there is constant here.
#[inline(always)]
fn pair_of(mut pool: impl Pool, bulk: usize) -> f64 {
    let mut array = Array::<MAX_BULK>::new();
    let mut samples = Vec::with_capacity(BLOCK);
    let start = Instant::now();
    while start.elapsed() < DURATION && samples.len() < BLOCK {
        let before = cycles();
        for _ in (0..BLOCK).step_by(bulk) {
            // Not assert_eq, which would put the count into memory to refer to it.
            assert!(pool.get(&mut array.0[..bulk]) == bulk, "the pool is empty");
            array.settle();
            pool.put(&array.0[..bulk]);
        }
        samples.push((cycles() - before) as f64 / BLOCK as f64);
    }
    median(samples)
}

/// Two lcores with a pool, or a pool cache, each; touches the frames if their place is given.
fn pipe(pools: [impl Pool; 2], slots: u32, touched: Option<Touch>) -> Result<String> {
    let (sender, receiver) = spsc::pair(slots);
    let (stop, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let [sending, receiving] = pools;
    let figure = thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            let pinned = on_cpu(1).map_err(|error| error.to_string());
            let samples = pinned.map(|()| consume(receiving, receiver, touched, &stop, &ended));
            stop.store(true, Ordering::Relaxed);
            samples
        });
        let pinned = on_cpu(0);
        if pinned.is_ok() {
            produce(sending, sender, touched, &stop);
        }
        // Release: pairs with the consumer's Acquire load; what was sent is sent.
        ended.store(true, Ordering::Release);
        pinned?;
        Ok::<_, Box<dyn Error>>(median(consumer.join().expect("the consumer does not panic")?))
    })?;
    Ok(format!("{figure:.1} million objects/s"))
}

fn produce(mut pool: impl Pool, mut ring: Producer<FrameIndex>, touched: Option<Touch>, stop: &AtomicBool) {
    let mut array = Array::<BURST>::new();
    let mut number = 0;
    // Relaxed: the flag orders nothing.
    while !stop.load(Ordering::Relaxed) {
        // A short count is nothing to wait for: the consumer may have lost its CPU inside of the pool.
        let got = pool.get(&mut array.0);
        if let Some(touch) = touched {
            for &index in &array.0[..got] {
                // SAFETY: the frame is this thread's, and its first bytes are a word of the UMEM.
                unsafe { touch.word(index).write_volatile(number) };
                number += 1;
            }
        }
        let mut sent = 0;
        while sent < got && !stop.load(Ordering::Relaxed) {
            sent += ring.send(&array.0[sent..got]);
        }
        pool.put(&array.0[sent..got]);
    }
}

/// Returns the rates, in million objects/s, over blocks.
fn consume(
    mut pool: impl Pool,
    mut ring: Consumer<FrameIndex>,
    touched: Option<Touch>,
    stop: &AtomicBool,
    ended: &AtomicBool,
) -> Vec<f64> {
    let mut array = Array::<BURST>::new();
    let mut samples = Vec::with_capacity(BLOCK);
    let mut received = 0;
    let start = Instant::now();
    let mut last = start;
    loop {
        // Acquire: pairs with the producer's Release store; nothing is sent after it.
        let is_last = stop.load(Ordering::Relaxed) && ended.load(Ordering::Acquire);
        let count = ring.receive(&mut array.0);
        if count == 0 {
            if is_last {
                return samples;
            }
            continue;
        }
        if let Some(touch) = touched {
            for &index in &array.0[..count] {
                // SAFETY: the ring has made the frame this thread's; its first word was written.
                unsafe { touch.word(index).read_volatile() };
            }
        }
        pool.put(&array.0[..count]);
        received += count;
        if received >= BLOCK && !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            samples.push(received as f64 / (now - last).as_secs_f64() / 1e6);
            (last, received) = (now, 0);
            stop.store(now - start >= DURATION, Ordering::Relaxed);
        }
    }
}

/// Which word of each frame is touched.
#[derive(Clone, Copy)]
struct Touch {
    geometry: Geometry,
    /// Over how many cache lines the touched words are spread.
    lines: u32,
}

/// A number of lines that leaves the words in all sets of a cache.
const LINES: u32 = 29;

impl Touch {
    #[inline(always)]
    fn word(&self, index: FrameIndex) -> NonNull<u64> {
        let line = (index.0 % self.lines) as usize;
        // SAFETY: the index is of this pool, so its address and its first 29 lines lie in the UMEM.
        unsafe { self.geometry.base().add(self.geometry.addr_of(index) as usize + 64 * line).cast() }
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
