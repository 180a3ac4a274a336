//! The pool under everything at once, on real threads: bursts of every size, single frames and raw
//! indices, frames that go from thread to thread, lanes that open and close, caches that leave and
//! join, a pool that runs dry now and then. Each round ends with every frame home.
//!
//! `SHEAFIO_SOAK_SECONDS` (5) says for how long, `SHEAFIO_SOAK_THREADS` (4) with how many threads
//! besides the one that opens lanes and counts. Each frame carries a number while a thread holds it, which
//! nobody else may change; and every frame and index is noted as out when it is handed out.

use std::{
    env,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use sheafio_mempool::{
    Burst, CacheId, Frame, FrameIndex, Hugepages, Lane, Mempool, MempoolBuilder, PoolCache, ZonePolicy,
};

/// After so long all threads leave, and the frames are looked for.
const ROUND: Duration = Duration::from_millis(250);

/// What the threads of one pool share.
struct Field {
    pool: &'static Mempool,
    out: Box<[AtomicBool]>,
    frames: Mutex<Vec<(Frame, u64)>>,
    indices: Mutex<Vec<FrameIndex>>,
    caches: Mutex<Vec<Option<CacheId>>>,
    is_over: AtomicBool,
}

impl Field {
    fn new(builder: MempoolBuilder, threads: usize) -> Self {
        let builder = builder.hugepages(Hugepages::Off).caches(threads as u32 + 2).lanes(5);
        let pool = builder.build().unwrap();
        Self {
            pool,
            out: (0..pool.frames()).map(|_| AtomicBool::new(false)).collect(),
            frames: Mutex::default(),
            indices: Mutex::default(),
            caches: Mutex::new(vec![None; threads]),
            is_over: AtomicBool::new(false),
        }
    }

    fn index_of(&self, frame: &Frame) -> FrameIndex {
        self.pool.geometry().index_of(self.pool.geometry().addr(frame))
    }

    fn came_out(&self, index: FrameIndex) {
        let was = self.out[index.0 as usize].swap(true, Ordering::Relaxed);
        assert!(!was, "frame {index} was handed out twice");
    }

    fn goes_back(&self, index: FrameIndex) {
        let was = self.out[index.0 as usize].swap(false, Ordering::Relaxed);
        assert!(was, "frame {index} was not out");
    }

    fn assert_home(&self) {
        let census = self.pool.census();
        assert!(census.adds_up() && census.free() == census.frames, "{census:?}");
        assert_eq!((census.caches, census.lanes, census.in_flight), (0, 0, 0));
        let audit = self.pool.audit().expect("all caches have left");
        assert_eq!((audit.missing, audit.twice), (vec![], vec![]));
        assert!(self.out.iter().all(|out| !out.load(Ordering::Relaxed)));
    }
}

/// A thread: its pool cache, and what it holds.
struct Worker<'a> {
    field: &'a Field,
    number: usize,
    random: fastrand::Rng,
    cache: PoolCache,
    burst: Burst,
    frames: Vec<(Frame, u64)>,
    indices: Vec<FrameIndex>,
    /// It keeps up to so many frames, and as many indices.
    keeps: usize,
}

impl<'a> Worker<'a> {
    fn join(field: &'a Field, number: usize, seed: u64) -> Self {
        Self {
            cache: Self::cache(field, number),
            field,
            number,
            random: fastrand::Rng::with_seed(seed),
            burst: Burst::with_limit(Burst::MAX),
            frames: Vec::new(),
            indices: Vec::new(),
            keeps: field.pool.frames() as usize / 8,
        }
    }

    fn cache(field: &Field, number: usize) -> PoolCache {
        let cache = field.pool.cache_in(number as u32 % field.pool.zone_count()).unwrap();
        field.caches.lock().unwrap()[number] = Some(cache.id());
        cache
    }

    fn run(mut self) {
        while !self.field.is_over.load(Ordering::Relaxed) {
            let most = if self.random.bool() { 8 } else { Burst::MAX };
            let count = self.random.usize(1..=most);
            match self.random.u32(..64) {
                0..10 => self.alloc_burst(count),
                10..16 => (0..count).for_each(|_| self.alloc()),
                16..24 => self.take(count),
                24..34 => self.free_burst(count),
                34..40 => (0..count).for_each(|_| self.free()),
                40..48 => self.give(count),
                48..52 => self.hand_over(count),
                52..56 => self.pick_up(count),
                56..60 => self.cache.boundary(),
                60 => self.keeps = self.random.usize(..self.field.pool.frames() as usize),
                61 => self.rejoin(),
                _ => thread::yield_now(),
            }
            while self.frames.len() > self.keeps {
                self.free_burst(Burst::MAX);
            }
            self.give(self.indices.len().saturating_sub(self.keeps));
        }
        while !self.frames.is_empty() {
            self.free_burst(Burst::MAX);
        }
        self.give(usize::MAX);
    }

    fn hold(&mut self, mut frame: Frame) {
        self.field.came_out(self.field.index_of(&frame));
        let number = self.random.u64(..);
        frame.append(8).unwrap().copy_from_slice(&number.to_le_bytes());
        self.frames.push((frame, number));
    }

    /// Lets go of any of its frames.
    fn let_go(&mut self) -> Frame {
        let (frame, number) = self.frames.swap_remove(self.random.usize(..self.frames.len()));
        assert_eq!(frame[..], number.to_le_bytes(), "another thread wrote to {frame:?}");
        self.field.goes_back(self.field.index_of(&frame));
        frame
    }

    fn alloc(&mut self) {
        if let Some(frame) = self.cache.alloc() {
            self.hold(frame);
        }
    }

    fn alloc_burst(&mut self, count: usize) {
        let taken = self.cache.alloc_burst(&mut self.burst, count);
        assert_eq!(taken, self.burst.len());
        while let Some(frame) = self.burst.pop() {
            self.hold(frame);
        }
    }

    fn take(&mut self, count: usize) {
        let mut out = [FrameIndex(0); Burst::MAX];
        let taken = self.cache.take(&mut out[..count]);
        out[..taken].iter().for_each(|index| self.field.came_out(*index));
        self.indices.extend(&out[..taken]);
    }

    fn free(&mut self) {
        if !self.frames.is_empty() {
            let frame = self.let_go();
            self.cache.free(frame);
        }
    }

    fn free_burst(&mut self, count: usize) {
        for _ in 0..count.min(self.frames.len()) {
            let frame = self.let_go();
            self.burst.push(frame).unwrap();
        }
        self.cache.free_burst(&mut self.burst);
    }

    fn give(&mut self, count: usize) {
        let at = self.indices.len().saturating_sub(count);
        let indices = self.indices.split_off(at);
        for index in &indices {
            self.field.goes_back(*index);
        }
        // SAFETY: taken from this pool, by this worker or by the one that handed them over, and held
        // no more.
        unsafe { self.cache.give(&indices) };
    }

    fn hand_over(&mut self, count: usize) {
        let at = self.frames.len().saturating_sub(count);
        self.field.frames.lock().unwrap().extend(self.frames.drain(at..));
        let at = self.indices.len().saturating_sub(count);
        self.field.indices.lock().unwrap().extend(self.indices.drain(at..));
    }

    fn pick_up(&mut self, count: usize) {
        let mut frames = self.field.frames.lock().unwrap();
        let at = frames.len().saturating_sub(count);
        self.frames.extend(frames.drain(at..));
        let mut indices = self.field.indices.lock().unwrap();
        let at = indices.len().saturating_sub(count);
        self.indices.extend(indices.drain(at..));
    }

    fn rejoin(&mut self) {
        // The old one leaves only now that there is a new one, if there is a slot for that.
        if let Ok(other) = self.field.pool.cache_in(self.cache.zone()) {
            self.cache = other;
            self.field.caches.lock().unwrap()[self.number] = Some(self.cache.id());
        }
    }
}

/// Opens lanes between caches that may be about to leave, closes them, and counts, until `end`.
fn control(field: &Field, random: &mut fastrand::Rng, end: Instant) {
    let mut lanes: Vec<Lane> = Vec::new();
    while Instant::now() < end {
        let mut any = || {
            let caches = field.caches.lock().unwrap();
            caches[random.usize(..caches.len())]
        };
        if let (Some(from), Some(to)) = (any(), any()) {
            lanes.extend(field.pool.lane(from, to));
        }
        if random.bool() && !lanes.is_empty() {
            lanes[random.usize(..lanes.len())].close(); // Some of them once more.
        }
        let census = field.pool.census();
        assert_eq!((census.frames, census.retired), (u64::from(field.pool.frames()), 0));
        assert!(field.pool.caches().len() <= field.out.len());
        // The frames that are out are missing, if all caches are about to join again.
        assert!(field.pool.audit().is_none_or(|audit| audit.twice.is_empty()));
        if random.u32(..4) == 0 {
            lanes.retain(|lane| !lane.is_over());
        }
        thread::yield_now();
    }
    field.is_over.store(true, Ordering::Relaxed);
}

fn round(field: &Field, threads: usize, random: &mut fastrand::Rng, end: Instant) {
    field.is_over.store(false, Ordering::Relaxed);
    thread::scope(|scope| {
        for number in 0..threads {
            let seed = random.u64(..);
            scope.spawn(move || Worker::join(field, number, seed).run());
        }
        control(field, random, end.min(Instant::now() + ROUND));
    });
    let mut last = Worker::join(field, 0, 0);
    last.pick_up(usize::MAX);
    last.run();
    field.assert_home();
}

#[test]
fn every_frame_comes_home_from_every_round() {
    let number = |name, default| {
        env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let seconds = number("SHEAFIO_SOAK_SECONDS", 5);
    let threads = number("SHEAFIO_SOAK_THREADS", 4) as usize;
    let builder = Mempool::builder();
    let fields = [
        builder.clone().frames(6000).cores(1),
        builder.clone().frames(1501).cores(8),
        builder.clone().frames(500).cores(2),
        builder.clone().frames(4096).zones(2).cores(2),
        builder.clone().frames(3000).zones(3).policy(ZonePolicy::Prefer).cores(16),
        builder.frames(300).zones(2).policy(ZonePolicy::Prefer),
    ]
    .map(|builder| Field::new(builder, threads));
    let mut random = fastrand::Rng::with_seed(7);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    while rounds < fields.len() || Instant::now() < end {
        round(&fields[rounds % fields.len()], threads, &mut random, end);
        rounds += 1;
    }
    for field in &fields {
        println!("{:?}", field.pool.counts());
    }
    println!("{rounds} rounds");
}
