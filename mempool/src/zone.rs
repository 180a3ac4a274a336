//! Zones: the parts of a pool whose memory lies on one NUMA node each.
//!
//! Owns: a zone's barn and its flush request. Never does: hand frames from zone to zone; a cache
//! does that, and only where the policy allows it. Invariant: zone z owns the z-th of equal ranges
//! of frame indices; with more than one zone, a power of two of them.

use crate::{
    barn::Barn,
    sheaf::FrameRange,
    sync::{AtomicU32, Ordering},
};

/// A zone to be: where its memory should lie and who uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneSpec {
    /// The NUMA node to bind the zone's memory to (mbind(2)); `None` for memory from anywhere.
    pub node: Option<u32>,
    /// The CPUs whose threads allocate from this zone.
    pub cpus: Vec<u32>,
}

/// Where a pool cache finds frames when its own zone has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZonePolicy {
    /// Nowhere: it returns a short count.
    #[default]
    Strict,
    /// In the other zones, from the next one on. Borrowed frames are counted, and go home when freed.
    Prefer,
}

/// The number of the latest request for frames, on lines of its own: written rarely, so that reading it
/// costs nothing.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Request(AtomicU32);

impl Request {
    #[inline(always)]
    pub(crate) fn latest(&self) -> u32 {
        // Acquire pairs with the release in `make`: who sees the pool's request sees the zone's.
        self.0.load(Ordering::Acquire)
    }

    /// Makes one more and returns its number. Two at the same time may become one, which is no loss:
    /// hence no read-modify-write.
    pub(crate) fn make(&self) -> u32 {
        let request = self.latest().wrapping_add(1);
        self.0.store(request, Ordering::Release);
        request
    }
}

/// A zone in use.
pub(crate) struct Zone {
    pub(crate) barn: Barn,
    pub(crate) cpus: Box<[u32]>,
    /// Made by a cache that found no frame anywhere; others compare it with what they saw last.
    flush: Request,
}

impl Zone {
    pub(crate) fn new(barn: Barn, cpus: &[u32]) -> Self {
        Self { barn, cpus: cpus.into(), flush: Request::default() }
    }

    pub(crate) fn range(&self) -> FrameRange {
        self.barn.sheaves.range()
    }

    /// The number of the latest request to give frames back.
    #[inline(always)]
    pub(crate) fn flush_request(&self) -> u32 {
        self.flush.latest()
    }

    /// Asks every cache of the zone to give back what it does not need. Returns the request's number.
    pub(crate) fn request_flush(&self) -> u32 {
        self.flush.make()
    }
}
