//! The shadow of debug builds: for each frame, whether it is free, and where that was last changed.
//!
//! Owns: two words a frame. Never does: exist in a release build. Invariant: a frame is marked as
//! taken exactly while it is outside of the pool's sheaves.
//!
//! It catches what the types can't: raw indices that are given twice or while a `Frame` of theirs
//! still lives. Each panic names the frame and both places in the source.

use std::{
    panic::Location,
    ptr,
    sync::{
        Mutex,
        atomic::{AtomicPtr, Ordering},
    },
};

use crate::Geometry;

/// A place in the source.
pub(crate) type Place = &'static Location<'static>;

/// What is known of one frame. Two threads that fault on it at once may see halves of two reports;
/// the fault is found all the same.
#[derive(Debug)]
struct Entry {
    /// Where the frame was taken; null while it is free.
    taken: AtomicPtr<Location<'static>>,
    /// Where it was given back last; null if never.
    given: AtomicPtr<Location<'static>>,
}

/// The shadow of one pool.
#[derive(Debug)]
pub(crate) struct Shadow {
    entries: Box<[Entry]>,
}

impl Shadow {
    pub(crate) fn new(frames: u32) -> Self {
        let null = || AtomicPtr::new(ptr::null_mut());
        Self { entries: (0..frames).map(|_| Entry { taken: null(), given: null() }).collect() }
    }

    /// Marks frames as taken by the application.
    pub(crate) fn take(&self, frames: &[u32], place: Place) {
        for &frame in frames {
            let entry = self.entry(frame, place);
            let old = entry.taken.swap(ptr::from_ref(place).cast_mut(), Ordering::Relaxed);
            assert!(
                old.is_null(),
                "frame {frame} of {} was handed out at {place} while it is still in use since {}: it was freed twice",
                self.entries.len(),
                name(old)
            );
        }
    }

    /// Marks frames as given back.
    pub(crate) fn give(&self, frames: &[u32], place: Place) {
        for &frame in frames {
            let entry = self.entry(frame, place);
            let old = entry.taken.swap(ptr::null_mut(), Ordering::Relaxed);
            assert!(
                !old.is_null(),
                "frame {frame} of {} was freed twice: at {} and again at {place}",
                self.entries.len(),
                name(entry.given.load(Ordering::Relaxed))
            );
            entry.given.store(ptr::from_ref(place).cast_mut(), Ordering::Relaxed);
        }
    }

    fn entry(&self, frame: u32, place: Place) -> &Entry {
        self.entries.get(frame as usize).unwrap_or_else(|| {
            panic!(
                "index {frame} at {place} is no frame of the pool; allowed: 0 to {}",
                self.entries.len() - 1
            )
        })
    }
}

/// All pools of the process, so that a frame can be found by its address alone.
static POOLS: Mutex<Vec<(Geometry, &'static Shadow)>> = Mutex::new(Vec::new());

thread_local! {
    /// The pool of the last frame that this thread asked for.
    static LAST: std::cell::Cell<Option<(Geometry, &'static Shadow)>> = const { std::cell::Cell::new(None) };
}

/// Makes a pool known.
pub(crate) fn register(geometry: Geometry, shadow: &'static Shadow) {
    POOLS.lock().expect("no panic under this lock").push((geometry, shadow));
}

/// Panics if the frame that an address lies in is not in use.
pub(crate) fn check_use(data: ptr::NonNull<u8>, place: Place) {
    let Some((shadow, frame)) = find(data) else { return };
    let entry = &shadow.entries[frame as usize];
    assert!(
        !entry.taken.load(Ordering::Relaxed).is_null() || std::thread::panicking(),
        "frame {frame} of {} was used at {place} after it was freed at {}",
        shadow.entries.len(),
        name(entry.given.load(Ordering::Relaxed))
    );
}

/// The name of the frame that an address lies in.
pub(crate) fn name_of(data: ptr::NonNull<u8>) -> String {
    match find(data) {
        Some((shadow, frame)) => format!("frame {frame} of {}", shadow.entries.len()),
        None => "a frame of no known pool".to_owned(),
    }
}

/// As `name_of`, with the place where the frame was taken.
pub(crate) fn name_with_place_of(data: ptr::NonNull<u8>) -> String {
    let taken =
        find(data).map(|(shadow, frame)| shadow.entries[frame as usize].taken.load(Ordering::Relaxed));
    format!("{}, taken at {}", name_of(data), name(taken.unwrap_or_default()))
}

fn find(data: ptr::NonNull<u8>) -> Option<(&'static Shadow, u32)> {
    let frame_in = |geometry: &Geometry| {
        let addr = (data.addr().get() as u64).wrapping_sub(geometry.base().addr().get() as u64);
        (addr < geometry.umem_bytes()).then(|| geometry.index_of(addr).0)
    };
    if let Some((geometry, shadow)) = LAST.get()
        && let Some(frame) = frame_in(&geometry)
    {
        return Some((shadow, frame));
    }
    let pools = POOLS.lock().expect("no panic under this lock");
    pools.iter().find_map(|(geometry, shadow)| {
        let frame = frame_in(geometry)?;
        LAST.set(Some((*geometry, shadow)));
        Some((*shadow, frame))
    })
}

fn name(place: *const Location<'static>) -> String {
    // SAFETY: only addresses of `&'static Location`, or null, are ever stored.
    match unsafe { place.as_ref() } {
        Some(place) => place.to_string(),
        None => "a place unknown".to_owned(),
    }
}
