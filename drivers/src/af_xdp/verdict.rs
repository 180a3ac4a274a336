//! What the XDP program counts.
//!
//! Owns: the names of its counts. Never does: count. Invariant: every packet that the program sees adds one to
//! exactly one of them, so their sum is what came to the interface's program.

/// What became of a packet in the XDP program, in the order of `enum verdict` in `xdp.bpf.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Verdict {
    /// Ours: handed to the socket of its queue, or dropped for want of a frame. What the socket did not get or could not
    /// take is among its queue's drops.
    Redirected,
    /// Ours, but its queue has no socket; the kernel got it.
    NotBound,
    /// Not ours by the rules; the kernel got it.
    Passed,
    /// Not ours: an Ethernet, VLAN or IP header is cut short or contradicts itself; the kernel got it. Without
    /// rules no header is looked at.
    Malformed,
}

impl Verdict {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Redirected, Self::NotBound, Self::Passed, Self::Malformed];

    /// The name that tables and JSON show.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redirected => "redirected",
            Self::NotBound => "not_bound",
            Self::Passed => "passed",
            Self::Malformed => "malformed",
        }
    }
}

/// Packets by what became of them in the XDP program, since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerdictCounts([u64; Verdict::ALL.len()]);

impl VerdictCounts {
    /// Packets with one verdict.
    pub fn of(&self, verdict: Verdict) -> u64 {
        self.0[verdict as usize]
    }

    /// Packets that the program saw.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each verdict with its count.
    pub fn all(&self) -> impl Iterator<Item = (Verdict, u64)> {
        Verdict::ALL.into_iter().map(|verdict| (verdict, self.of(verdict)))
    }

    /// Adds the counts of one CPU, as the map holds them.
    pub(super) fn add(&mut self, of_cpu: &[u8]) {
        for (sum, count) in self.0.iter_mut().zip(of_cpu.as_chunks().0) {
            *sum += u64::from_ne_bytes(*count);
        }
    }
}
