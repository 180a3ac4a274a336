//! Random schedules of 8 to 32 threads over the whole pool, by shuttle: where loom sees every
//! interleaving of two caches, this sees some of many. Every atomic is sequentially consistent here, so
//! it says nothing of orderings; those are loom's part.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test -p sheafio-mempool schedules`. A failure prints its
//! schedule, for `shuttle::replay`. The seed is fixed; `SHUTTLE_RANDOM_SEED` sets another, and
//! `SHEAFIO_SCHEDULES` how many schedules of either kind each test plays.

use std::{
    env,
    ptr::NonNull,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering},
    },
};

use shuttle::{
    Config, Runner,
    rand::{Rng, thread_rng},
    scheduler::{PctScheduler, RandomScheduler},
    sync::Arc,
    thread,
};

use crate::{
    CacheId, FrameIndex, Hugepages, Lane, Mempool, Pages, PoolCache, PoolPlan, ZonePolicy,
    memory::{self, Mapping},
};

/// Small sheaves are exchanged often; the protocol does not depend on the capacity.
const CAPACITY: u32 = 4;
/// Schedules of either kind in each test, unless `SHEAFIO_SCHEDULES` says otherwise.
const SCHEDULES: usize = 500;
/// What they are made from.
const SEED: u64 = 1;
/// At so many places, less one, the second kind of schedule puts the running thread last.
const DEPTH: usize = 20;

/// Plays schedules of two kinds: in one any thread comes next; in the other, by probabilistic
/// concurrency testing, one runs for as long as it can but for a few places.
fn check(play: impl Fn() + Copy + Send + Sync + 'static) {
    let asked = env::var("SHEAFIO_SCHEDULES").ok();
    let schedules = asked.map_or(SCHEDULES, |text| text.parse().expect("SHEAFIO_SCHEDULES is a number"));
    let mut config = Config::new();
    config.silence_warnings = true; // That orderings are taken for stronger ones is said above.
    config.stack_size = 1 << 17;
    Runner::new(RandomScheduler::new_from_seed(SEED, schedules), config.clone()).run(play);
    Runner::new(PctScheduler::new_from_seed(SEED, DEPTH, schedules), config).run(play);
}

/// What a play is about.
#[derive(Clone, Copy)]
struct Scene {
    threads: u32,
    frames: u64,
    zones: u32,
    policy: ZonePolicy,
    shards: u32,
    /// The most lanes at one time.
    lanes: u32,
    /// Whether half of the threads free what the others allocate, with lanes only from those to these.
    is_pipeline: bool,
    /// What each thread does, one thing after the other.
    acts: u32,
}

const SCENE: Scene = Scene {
    threads: 8,
    frames: 64,
    zones: 1,
    policy: ZonePolicy::Strict,
    shards: 1,
    lanes: 0,
    is_pipeline: false,
    acts: 20,
};

/// A pool, and who owns its frames as an oracle sees it.
struct Stage {
    pool: &'static Mempool,
    scene: Scene,
    owner: AtomicPtr<Mempool>,
    taken: Box<[AtomicBool]>,
    /// Frames on their way from one thread to another.
    desk: Mutex<Vec<FrameIndex>>,
    /// The cache of each thread, the last one if it has left.
    caches: Mutex<Vec<Option<CacheId>>>,
    /// All lanes that were ever open.
    lanes: Mutex<Vec<Lane>>,
    /// Threads that still act.
    acting: AtomicU32,
}

thread_local! {
    /// Stands for the packet memory of one pool after the other. The frames are never looked into.
    static MEMORY: NonNull<u8> =
        memory::map(memory::HUGEPAGE_BYTES, Hugepages::Off, &[]).expect("one hugepage in size").base;
}

impl Stage {
    fn new(scene: Scene) -> Arc<Self> {
        let builder = Mempool::builder().frames(scene.frames).zones(scene.zones).policy(scene.policy);
        let builder = builder.caches(scene.threads).lanes(scene.lanes);
        let plan = PoolPlan { capacity: CAPACITY, shards: scene.shards, ..PoolPlan::new(&builder) };
        assert!(plan.umem_bytes() <= memory::HUGEPAGE_BYTES as u64);
        let base = MEMORY.with(|memory| *memory);
        let mapping =
            Mapping { base, span_bytes: memory::HUGEPAGE_BYTES, pages: Pages::Base, warnings: vec![] };
        let pool = Box::into_raw(Box::new(Mempool::new(&builder, &plan, mapping)));
        Arc::new(Self {
            // SAFETY: it is freed in `assert_home`, when nobody uses it any more.
            pool: unsafe { &*pool },
            owner: AtomicPtr::new(pool),
            scene,
            taken: (0..plan.frames).map(|_| AtomicBool::new(false)).collect(),
            desk: Mutex::default(),
            caches: Mutex::new(vec![None; scene.threads as usize]),
            lanes: Mutex::default(),
            acting: AtomicU32::new(scene.threads),
        })
    }

    fn open(&self, from: CacheId, to: CacheId) -> Option<Lane> {
        let lane = self.pool.lane(from, to).ok()?;
        self.lanes.lock().unwrap().push(lane);
        Some(lane)
    }

    /// Each frame is home once, and the counters say so too. Takes the pool apart.
    fn assert_home(&self) {
        let census = self.pool.census();
        assert!(census.adds_up() && census.free() == census.frames, "{census:?}");
        assert_eq!((census.caches, census.lanes), (0, 0));
        let audit = self.pool.audit().expect("all caches have left");
        assert_eq!((audit.missing, audit.twice), (vec![], vec![]));
        assert!(self.lanes.lock().unwrap().drain(..).all(|lane| lane.is_over()));
        // SAFETY: made by `new`; all caches have left, and only a play that is over comes here, once.
        drop(unsafe { Box::from_raw(self.owner.load(Ordering::Relaxed)) });
    }
}

/// A thread with its pool cache and the frames that it holds.
struct Player {
    stage: Arc<Stage>,
    number: u32,
    cache: PoolCache,
    held: Vec<FrameIndex>,
}

impl Player {
    fn join(stage: &Arc<Stage>, number: u32) -> Self {
        let zone = number % stage.pool.zone_count();
        let cache = stage.pool.cache_in(zone).expect("a slot for each thread");
        stage.caches.lock().unwrap()[number as usize] = Some(cache.id());
        Self { stage: stage.clone(), number, cache, held: Vec::new() }
    }

    fn take(&mut self, want: usize) -> usize {
        let mut frames = vec![FrameIndex(0); want];
        let count = self.cache.take(&mut frames);
        for frame in &frames[..count] {
            let was = self.stage.taken[frame.0 as usize].swap(true, Ordering::Relaxed);
            assert!(!was, "frame {frame} was handed out twice");
        }
        self.held.extend(&frames[..count]);
        count
    }

    /// Gives the frames that it has held for longest.
    fn give(&mut self, count: usize) {
        let frames: Vec<_> = self.held.drain(..count.min(self.held.len())).collect();
        for frame in &frames {
            assert!(self.stage.taken[frame.0 as usize].swap(false, Ordering::Relaxed));
        }
        // SAFETY: taken from this pool, by this player or by the one that put them on the desk, and
        // held no more.
        unsafe { self.cache.give(&frames) };
    }

    /// Lets other threads have frames that it holds.
    fn put_down(&mut self, count: usize) {
        let at = self.held.len().saturating_sub(count);
        self.stage.desk.lock().unwrap().extend(self.held.drain(at..));
    }

    fn pick_up(&mut self, count: usize) {
        let mut desk = self.stage.desk.lock().unwrap();
        let at = desk.len().saturating_sub(count);
        self.held.extend(desk.drain(at..));
    }

    fn rejoin(self) -> Self {
        let Self { stage, number, cache, held } = self;
        drop(cache);
        Self { held, ..Self::join(&stage, number) }
    }

    /// Does one thing at random.
    fn act(mut self) -> Self {
        let count = thread_rng().gen_range(1..=3 * CAPACITY as usize);
        let is_freeing = self.stage.scene.is_pipeline && self.number.is_multiple_of(2);
        let is_allocating = self.stage.scene.is_pipeline && !is_freeing;
        match thread_rng().gen_range(0..16) {
            0..10 if is_freeing => {
                self.pick_up(count);
                self.give(usize::MAX);
            }
            5..8 if is_allocating => self.put_down(count),
            8..10 if is_allocating => self.give(usize::MAX),
            0..5 => _ = self.take(count),
            5..10 => self.give(count),
            10..12 => self.put_down(count),
            12..14 => self.pick_up(count),
            14 => self.cache.boundary(),
            _ => return self.rejoin(),
        }
        self
    }

    fn is_done(&self) {
        self.stage.acting.fetch_sub(1, Ordering::Relaxed);
    }

    fn leave(mut self) {
        self.give(usize::MAX);
    }
}

/// All threads act at random, beside what `control` does; then each frame is home.
fn play(scene: Scene, control: impl FnOnce(&Stage)) {
    let stage = Stage::new(scene);
    let mut players = Vec::new();
    if scene.is_pipeline {
        // From the beginning, for they take a while to be used.
        players.extend((0..scene.threads).map(|number| Player::join(&stage, number)));
        for pair in players.chunks(2).take(scene.lanes as usize) {
            stage.open(pair[0].cache.id(), pair[1].cache.id()).unwrap();
        }
    }
    let mut players = players.into_iter();
    let threads: Vec<_> = (0..scene.threads)
        .map(|number| {
            let (stage, player) = (stage.clone(), players.next());
            thread::spawn(move || {
                let mut player = player.unwrap_or_else(|| Player::join(&stage, number));
                for _ in 0..scene.acts {
                    player = player.act();
                }
                player.is_done();
                player.leave();
            })
        })
        .collect();
    control(&stage);
    for thread in threads {
        thread.join().unwrap();
    }
    let mut last = Player::join(&stage, 0);
    last.pick_up(usize::MAX);
    last.leave();
    stage.assert_home();
}

/// Opens lanes between caches that may be about to leave, and closes them, while both ends run.
fn open_and_close_lanes(stage: &Stage) {
    let mut open = stage.lanes.lock().unwrap().clone();
    while stage.acting.load(Ordering::Relaxed) > 0 {
        let any = |odd: usize| {
            let caches = stage.caches.lock().unwrap();
            let at = thread_rng().gen_range(0..caches.len());
            caches[if stage.scene.is_pipeline { at & !1 | odd } else { at }]
        };
        if let (Some(from), Some(to)) = (any(0), any(1)) {
            open.extend(stage.open(from, to));
        }
        for _ in 0..thread_rng().gen_range(1..60) {
            thread::yield_now();
        }
        if !open.is_empty() && thread_rng().gen_bool(0.5) {
            open.swap_remove(thread_rng().gen_range(0..open.len())).close();
        }
        open.retain(|lane| !lane.is_over());
    }
}

#[test]
fn caches_of_one_shard_join_exchange_and_leave() {
    check(|| play(Scene { threads: 16, ..SCENE }, |_| ()));
}

#[test]
fn caches_of_several_shards_join_exchange_and_leave() {
    check(|| play(Scene { threads: 32, frames: 203, shards: 4, acts: 12, ..SCENE }, |_| ()));
}

#[test]
fn one_partial_sheaf_is_all_there_is() {
    check(|| play(Scene { frames: u64::from(CAPACITY) - 1, ..SCENE }, |_| ()));
}

#[test]
fn lanes_open_and_close_under_their_users() {
    check(|| play(Scene { shards: 2, lanes: 3, acts: 40, ..SCENE }, open_and_close_lanes));
}

#[test]
fn lanes_of_a_pipeline_open_and_close() {
    check(|| {
        play(Scene { frames: 120, lanes: 4, is_pipeline: true, acts: 40, ..SCENE }, open_and_close_lanes);
    });
}

#[test]
fn zones_get_their_frames_back() {
    for policy in [ZonePolicy::Strict, ZonePolicy::Prefer] {
        let scene = Scene { threads: 12, zones: 3, policy, shards: 2, lanes: 6, ..SCENE };
        check(move || play(scene, open_and_close_lanes));
    }
}

/// What lies in caches that only come to their burst boundaries, and in lanes between them, is within
/// reach of the one that asks; so is what lay in a lane one end of which has left.
#[test]
fn who_starves_gets_every_frame_in_the_end() {
    const FRAMES: usize = 60;
    check(|| {
        let scene = Scene { threads: 9, frames: FRAMES as u64, shards: 2, lanes: 4, ..SCENE };
        let stage = Stage::new(scene);
        let is_over = Arc::new(AtomicBool::new(false));
        let mut starving = Player::join(&stage, 0);
        starving.is_done();
        let threads: Vec<_> = (1..scene.threads)
            .map(|number| {
                let (stage, is_over) = (stage.clone(), is_over.clone());
                thread::spawn(move || {
                    let mut hoarder = Player::join(&stage, number);
                    for _ in 0..6 {
                        hoarder.cache.boundary();
                        hoarder.take(5 * CAPACITY as usize);
                        hoarder.give(usize::MAX);
                    }
                    hoarder.is_done();
                    let stays = number % 3 != 0;
                    while stays && !is_over.load(Ordering::Relaxed) {
                        hoarder.cache.boundary();
                        thread::yield_now();
                    }
                    hoarder.leave();
                })
            })
            .collect();
        open_and_close_lanes(&stage);
        while starving.held.len() < FRAMES {
            starving.take(FRAMES - starving.held.len());
            starving.cache.boundary();
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
        starving.leave();
        stage.assert_home();
    });
}
