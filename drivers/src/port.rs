//! A port of any kind, as applications that take their ports from the command line see it.

use sheafio_core::Queue;

use crate::{
    DriverError,
    af_xdp::{DeviceCounts, QueueSet, Right, Steer},
};

/// An open port: its queues, to be moved to their lcores, and what stays with the control plane.
pub struct Port {
    /// The interface's name, or the port specification's kind and name.
    pub name: String,
    /// How it works, in a few words.
    pub mode: String,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Bytes of the largest IP packet that its link carried when it was opened (the MTU); `None` where there is no link.
    pub mtu: Option<u32>,
    /// The NUMA node of its device, where there is one.
    pub numa_node: Option<u32>,
    /// Whether received packets may come with a VLAN tag beside them, instead of in them
    /// ([`RxMetadata::vlan`](sheafio_mempool::RxMetadata::vlan)): whoever sends them on puts it back
    /// ([`Frame::restore_vlan_tag`](sheafio_mempool::Frame::restore_vlan_tag)).
    pub tells_tags: bool,
    /// What the user should know about how it was opened, a line each.
    pub warnings: Vec<String>,
    /// Its queues.
    pub queues: Vec<Box<dyn Queue>>,
    /// What the control plane can do while lcores own the queues.
    pub control: Box<dyn Control>,
}

impl Port {
    /// Takes the control plane's part out of the port, for whoever watches it.
    pub fn take_control(&mut self) -> Box<dyn Control> {
        std::mem::replace(&mut self.control, Box::new(NoControl))
    }
}

/// The control plane's access to an open port.
pub trait Control: Send {
    /// Reads counts that someone else keeps, such as the kernel, into the queues' counters.
    fn refresh(&self) {}

    /// What changes which packets are the port's, where an XDP program decides on that.
    fn steer_handle(&self) -> Option<&Steer> {
        None
    }

    /// What the port's device itself has counted since it was opened, where there is one that tells. It costs some
    /// system calls.
    fn device_counts(&self) -> Option<DeviceCounts> {
        None
    }

    /// The capabilities that closing the port takes, of whichever thread closes its last queue; to be kept by
    /// [`drop_rights`](crate::drop_rights).
    fn rights_to_close(&self) -> &'static [Right] {
        &[]
    }

    /// Whether the port receives nothing any more although its device is there: someone else took the XDP program off. Known
    /// from the look ([`Control::changes`]) that told of it on, and when the port has closed.
    fn is_deaf(&self) -> bool {
        false
    }

    /// Looks for what has happened to the port since it was asked last; each thing is told once when it begins and
    /// once when it ends. A queue whose device is gone is marked so ([`sheafio_core::Queue::is_gone`]). Meant to be
    /// called a few times a second.
    fn changes(&mut self) -> Vec<Change> {
        Vec::new()
    }
}

/// What happened to a port while it was open. The texts say what is the matter, what follows from it and what mends
/// it; they do not name the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Something keeps the port from working as it should.
    Trouble(String),
    /// What did so is over.
    Mended(String),
    /// The port has this name now.
    Renamed(String),
}

/// Takes a queue out of a port, for the lcore that will own it.
pub(crate) fn take_queue<Q>(
    queues: &mut [Option<Q>],
    numbers: &QueueSet,
    queue: u32,
    port: &str,
) -> Result<Q, DriverError> {
    let at = numbers.numbers().iter().position(|number| *number == queue);
    let taken = at.and_then(|at| queues.get_mut(at)).and_then(Option::take);
    taken.ok_or_else(|| DriverError::NoQueue { port: port.to_owned(), queue, opened: numbers.to_string() })
}

/// For ports without anything outside of their queues.
pub(crate) struct NoControl;

impl Control for NoControl {}

/// An Ethernet address for a port without a device: locally administered (IEEE 802c), numbered.
pub(crate) fn soft_mac(kind: u8, number: u8) -> [u8; 6] {
    [0x02, 0x00, 0x00, 0x00, kind, number]
}
