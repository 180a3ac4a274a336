//! Ports on network interfaces, by AF_XDP sockets.
//!
//! Owns: an open port, and what is read of it from outside of the data path. Never does: move packets; see
//! `queue.rs`. Invariant: the XDP program is attached only after every socket is in its map, and is
//! taken off before a socket is closed.
//!
//! What lies where: `config` says what can be asked, `open` makes a port of it: `interface` looks the device up,
//! `netdev` asks what its driver can do, `tags` what keeps VLAN tags out of packets, `program` loads and attaches, `other`
//! tells what else is attached, `steer` says which packets are ours, `verdict` what became of them, `socket` makes and
//! binds, `sys` holds the system calls, `sysfs` finds a device's folder. `kernel` wakes and kicks, `life` looks
//! for what becomes of the device, `device` and `losses` for what it counts, `rings` and `queue` are the data path.
//! `rights` tells which capabilities are missing, and gives them up. When a step fails, `process`, `driver` and
//! `owner` look for the cause, and `cause` has the words.

mod busy_poll;
mod cause;
mod config;
mod device;
mod driver;
mod fence;
mod interface;
mod kernel;
mod life;
mod link;
mod losses;
mod netdev;
mod open;
mod other;
mod owner;
mod process;
mod program;
pub(crate) mod queue;
mod queues;
mod release;
mod rights;
pub(crate) mod rings;
mod room;
mod route;
mod sizes;
mod socket;
mod steer;
mod sys;
mod sysfs;
mod tags;
mod umem;
mod verdict;

use sheafio_core::Queue;

pub use self::{
    config::{Config, CopyMode, Frags, Mode},
    device::DeviceCounts,
    netdev::Netdev,
    open::{open, open_with},
    queue::TxTimestamp,
    queues::{NoQueueSet, QueueSet},
    rights::{Right, drop_rights},
    steer::{Rule, Steer, Steering},
    verdict::{Verdict, VerdictCounts},
};
use self::{interface::Interface, kernel::LinuxKernel, life::Life, queue::XskQueue};
pub(crate) use self::{
    link::{Returning, wait_for_links},
    open::{cache_of, open_at_once},
};
use crate::{
    DriverError,
    port::{Control, take_queue},
};

/// A queue of an AF_XDP port.
pub type AfXdpQueue = XskQueue<LinuxKernel>;

/// An open AF_XDP port.
pub struct AfXdpPort {
    interface: Interface,
    mode: Mode,
    zero_copy: bool,
    tells_tags: bool,
    warnings: Vec<String>,
    queues: Vec<Option<AfXdpQueue>>,
    /// The numbers of these queues.
    numbers: QueueSet,
    life: Life,
    steer: Steer,
}

/// The kernel's own name of an interface, which may be asked for by an alternative one.
pub fn name_of(interface: &str) -> Option<String> {
    Interface::lookup(interface).ok().map(|interface| interface.name)
}

/// All RX queues that an interface has now.
///
/// # Errors
/// [`DriverError::NoInterface`].
pub fn queues_of(interface: &str) -> Result<QueueSet, DriverError> {
    let interface = Interface::lookup(interface)?;
    Ok(QueueSet::range(0, interface.rx_queues.clamp(1, QueueSet::LIMIT)).expect("it has one, and no more"))
}

/// The NUMA node of an interface's device, by any of its names. `None` for virtual ones, where the firmware does not tell,
/// and where no interface of the calling thread's network namespace has that name.
pub fn numa_node_of(interface: &str) -> Option<u32> {
    Interface::lookup(interface).ok()?.folder().ok()?.numa_node()
}

impl AfXdpPort {
    /// The interface's Ethernet address when it was opened.
    pub fn mac(&self) -> [u8; 6] {
        self.interface.mac
    }

    /// Takes the queue with this number out of the port, for the lcore that will own it.
    ///
    /// # Errors
    /// [`DriverError::NoQueue`] if it was not opened or is taken already.
    pub fn queue(&mut self, queue: u32) -> Result<AfXdpQueue, DriverError> {
        take_queue(&mut self.queues, &self.numbers, queue, &self.interface.name)
    }

    /// Where the XDP program runs: native or generic.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether packets are not copied.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Whether the XDP program asks the device for the VLAN tags that it takes out of packets, so that frames come with
    /// them ([`RxMetadata::vlan`](sheafio_mempool::RxMetadata::vlan)): with `metadata`, in native mode, where kernel and
    /// driver tell them (`xdp-rx-metadata-features` of the netdev family, linux/netdev.h, Linux 6.8).
    pub fn tells_tags(&self) -> bool {
        self.tells_tags
    }

    /// What the user should know about how the port was opened, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The capabilities that closing the port takes, of whichever thread closes its last queue, as long as none is closed
    /// yet; to be kept by [`drop_rights`].
    pub fn rights_to_close(&self) -> &'static [Right] {
        self.life.rights_to_close()
    }

    /// Changes which packets are ours, at once and without a gap: see [`Steer::set`].
    ///
    /// # Errors
    /// As [`Steer::set`].
    pub fn steer(&self, steering: &Steering) -> Result<(), DriverError> {
        self.steer.set(steering)
    }

    /// What changes that from elsewhere, and counts what the XDP program saw.
    pub fn steer_handle(&self) -> Steer {
        self.steer.clone()
    }

    /// What the device itself has counted since the port was opened; `None` if the kernel does not tell: before 4.7.
    /// It costs some system calls.
    pub fn device_counts(&self) -> Option<DeviceCounts> {
        self.life.device_counts()
    }

    /// Turns it into a port of any kind.
    pub(crate) fn into_port(self) -> crate::Port {
        let mode = format!(
            "AF_XDP {} {}, MTU {}",
            self.mode.name(),
            if self.zero_copy { "zero-copy" } else { "copy" },
            self.interface.mtu
        );
        crate::Port {
            name: self.interface.name.clone(),
            mode,
            mac: self.interface.mac,
            mtu: Some(self.interface.mtu),
            numa_node: self.interface.folder().ok().and_then(|folder| folder.numa_node()),
            tells_tags: self.tells_tags,
            warnings: self.warnings,
            queues: self
                .queues
                .into_iter()
                .flatten()
                .map(|queue| Box::new(queue) as Box<dyn Queue>)
                .collect(),
            control: Box::new(self.life),
        }
    }
}
