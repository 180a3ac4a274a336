//! How a port is asked to be: what users can choose, and what no interface could do.
//!
//! Owns: plain values. Never does: look at an interface. Invariant: what `check` lets through is possible
//! on some interface.

use super::{QueueSet, Steering};
use crate::DriverError;

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// In the driver if that is possible, else generic.
    #[default]
    Auto,
    /// In the driver (`XDP_FLAGS_DRV_MODE`), or opening fails.
    Native,
    /// In the kernel's generic receive path (`XDP_FLAGS_SKB_MODE`): any device, slower.
    Generic,
}

impl Mode {
    /// The name in a port specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// Whether packets are copied between the driver's memory and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CopyMode {
    /// Not if the driver can do without, else copied.
    #[default]
    Auto,
    /// Copied (`XDP_COPY`): any device.
    Copy,
    /// Not copied (`XDP_ZEROCOPY`), or opening fails.
    ZeroCopy,
}

impl CopyMode {
    /// The name in a port specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Copy => "copy",
            Self::ZeroCopy => "zerocopy",
        }
    }
}

/// Whether a packet may lie in several frames (multi-buffer, `XDP_USE_SG`, Linux 6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Frags {
    /// If a packet of the interface's MTU does not fit into one frame, and kernel and driver can do it.
    #[default]
    Auto,
    /// Yes, or opening fails.
    Yes,
    /// No: larger packets are dropped and counted.
    No,
}

impl Frags {
    /// The name in a port specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Yes => "yes",
            Self::No => "no",
        }
    }
}

/// How to open a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which queues.
    pub queues: QueueSet,
    /// Where the XDP program runs.
    pub mode: Mode,
    /// Whether packets are copied.
    pub copy: CopyMode,
    /// Whether a packet may lie in several frames.
    pub frags: Frags,
    /// Whether received packets come with what the device knew of them, as far as kernel and driver tell
    /// ([`Frame::rx_metadata`](sheafio_mempool::Frame::rx_metadata), Linux 6.3), and requests go to the kernel with
    /// packets that are sent (Linux 6.8), so that a zero-copy device with that offload computes checksums. Costs a few ns a
    /// packet. A VLAN tag that the device has taken out of the packet, as most NICs do unless told otherwise
    /// (`ethtool -K DEVICE rxvlan off`), is told so only in native mode, by some drivers, from Linux 6.8 on
    /// ([`AfXdpPort::tells_tags`](super::AfXdpPort::tells_tags)); a warning says so where it is lost.
    pub metadata: bool,
    /// Busy polling: the lcore's system calls run the driver, for up to so many packets each, 1 to 64 (more than the
    /// driver's own weight is refused by most), and interrupts stay off meanwhile. `None`: interrupts.
    pub busy_poll: Option<u16>,
    /// Slots of each of the four rings: a power of two, [`Config::RING_SIZES`].
    pub ring: u32,
    /// Frames that a queue keeps ready for reception, at most the ring's slots. `None`: a quarter of
    /// the pool, shared among this port's queues.
    pub fill: Option<u32>,
    /// Which packets are ours; all others go on to the kernel. [`AfXdpPort::steer`](super::AfXdpPort::steer) changes
    /// that later.
    pub steer: Steering,
    /// Whether the interface is in promiscuous mode while the port is open (packet(7): `PACKET_MR_PROMISC`): it takes
    /// forwarders, for a NIC drops packets to others' addresses. `None`: no, unless the application decides by
    /// [`PortSpec::set_promisc`](crate::PortSpec::set_promisc).
    pub promisc: Option<bool>,
    /// Ethernet group addresses to which the interface takes packets while the port is open (packet(7):
    /// `PACKET_MR_MULTICAST`), beside those that the kernel has joined itself. A NIC drops packets to other groups.
    pub groups: Vec<[u8; 6]>,
    /// Takes another XDP program off the interface, instead of refusing to open.
    pub force: bool,
    /// The CPUs whose lcores will serve the queues, from the first again when there are fewer: the first
    /// frames of each queue come from the memory of its NUMA node. None: from that of the opening thread.
    pub cpus: Vec<u32>,
}

impl Config {
    /// The smallest and the largest ring, in slots.
    pub const RING_SIZES: std::ops::RangeInclusive<u32> = 64..=32_768;
}

impl Default for Config {
    fn default() -> Self {
        Self {
            queues: QueueSet::default(),
            mode: Mode::Auto,
            copy: CopyMode::Auto,
            frags: Frags::Auto,
            metadata: false,
            busy_poll: None,
            ring: 2048,
            fill: None,
            steer: Steering::All,
            promisc: None,
            groups: Vec::new(),
            force: false,
            cpus: Vec::new(),
        }
    }
}

/// Refuses what no interface could do, before the kernel does so without a reason.
pub(super) fn check(interface: &str, config: &Config) -> Result<(), DriverError> {
    let refuse = |problem: String, allowed: String| {
        Err(DriverError::Spec { spec: interface.to_owned(), problem, allowed })
    };
    let sizes = Config::RING_SIZES;
    if !config.ring.is_power_of_two() || !sizes.contains(&config.ring) {
        let allowed = format!("a power of two from {} to {}", sizes.start(), sizes.end());
        return refuse(format!("ring={} is not possible", config.ring), allowed);
    }
    if config.fill == Some(0) {
        return refuse("fill=0 is not possible".to_owned(), "1 or more frames".to_owned());
    }
    Ok(())
}
