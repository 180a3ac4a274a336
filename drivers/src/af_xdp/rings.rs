//! The four rings of an AF_XDP queue and what lies in them.

use crate::spsc::RingMemory;

/// `XDP_PKT_CONTD` (linux/if_xdp.h): the packet goes on in the next descriptor.
pub(crate) const CONTINUES: u32 = libc::XDP_PKT_CONTD;

/// `XDP_TX_METADATA` (linux/if_xdp.h): a request lies in front of the packet.
pub(crate) const TX_METADATA: u32 = libc::XDP_TX_METADATA;

/// A descriptor of the RX and TX rings: `struct xdp_desc` (linux/if_xdp.h), with its length and options as one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Desc {
    /// Byte offset of the packet in the UMEM.
    pub(crate) addr: u64,
    /// Length of the packet in bytes, and in the upper half [`CONTINUES`] and [`TX_METADATA`], or 0.
    pub(crate) word: u64,
}

const _: () = assert!(size_of::<Desc>() == size_of::<libc::xdp_desc>() && size_of::<Desc>() == 16);
const _: () = assert!(cfg!(target_endian = "little"), "the two halves of a word would change places");

impl Desc {
    pub(crate) fn new(addr: u64, len: u32, options: u32) -> Self {
        Self { addr, word: u64::from(len) | u64::from(options) << 32 }
    }

    pub(crate) fn len(self) -> u32 {
        self.word as u32
    }

    pub(crate) fn options(self) -> u32 {
        (self.word >> 32) as u32
    }

    pub(crate) fn continues(self) -> bool {
        self.options() & CONTINUES != 0
    }
}

/// The four rings of a queue.
pub(crate) struct Rings {
    pub(crate) fill: RingMemory<u64>,
    pub(crate) rx: RingMemory<Desc>,
    pub(crate) tx: RingMemory<Desc>,
    pub(crate) completion: RingMemory<u64>,
}

impl Rings {
    /// Rings on the heap: sizes of fill, RX, TX and completion ring, and where their indices start.
    pub(crate) fn on_heap([fill, rx, tx, completion]: [u32; 4], start: u32) -> Self {
        Self {
            fill: RingMemory::on_heap(fill, start),
            rx: RingMemory::on_heap(rx, start),
            tx: RingMemory::on_heap(tx, start),
            completion: RingMemory::on_heap(completion, start),
        }
    }
}
