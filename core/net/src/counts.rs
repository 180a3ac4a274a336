//! What becomes of packets, by name.
//!
//! Owns: one block of counters for each lcore. Never does: an atomic read-modify-write. Invariant: one thread adds to a
//! block; any thread may read it.

use sheafio_mempool::sync::{AtomicU64, Ordering, add};

/// Defines the counters with the names that tables and JSON show.
macro_rules! counts {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// What a counter counts: packets, unless its text says otherwise.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count {
            $($(#[$doc])* $variant,)*
        }

        impl Count {
            /// All counters, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name that tables and JSON show.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

counts! {
    /// The frame is shorter than the headers that it announces.
    Truncated "truncated",
    /// Neither IPv4 nor IPv6, nor ARP where that is ours.
    OtherEthertype "other_ethertype",
    /// An IP header that contradicts itself: its version, its length, or that of the packet (RFC 791, RFC 8200).
    BadIpHeader "bad_ip_header",
    /// The IPv4 header's checksum is wrong.
    BadIpChecksum "bad_ip_checksum",
    /// A fragment, first or later: they are not put together here.
    Fragment "fragment",
    /// IPv6 extension headers that we have no use for: unknown, or more than eight.
    UnknownExtension "unknown_extension",
    /// The packet goes on in a further frame: what is answered here fits into one.
    SeveralFrames "several_frames",
}

/// A block of counters: one writer, any number of readers.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counts([AtomicU64; Count::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Count::ALL.len()])
    }
}

impl Counts {
    /// Adds one. Only the block's one writer may call this.
    #[inline]
    pub fn add(&self, count: Count) {
        self.add_many(count, 1);
    }

    /// Adds some. Only the block's one writer may call this.
    #[inline]
    pub fn add_many(&self, count: Count, many: u64) {
        add(&self.0[count as usize], many);
    }

    /// What was counted so far.
    pub fn get(&self, count: Count) -> u64 {
        // Relaxed: a counter orders nothing.
        self.0[count as usize].load(Ordering::Relaxed)
    }
}
