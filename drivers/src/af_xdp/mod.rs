//! Ports on network interfaces, by AF_XDP sockets.
//!
//! Owns: opening and what is read from outside of the data path. Never does: move packets; see
//! `queue.rs`. Invariant: the XDP program is attached only after every socket is in its map, and is
//! taken off before a socket is closed.
//!
//! What lies where: `interface` looks the device up, `program` loads and attaches, `socket` makes
//! and binds, `sys` holds the system calls, `kernel` wakes and kicks, `rings` and `queue` are the data
//! path.

mod interface;
mod kernel;
mod program;
pub(crate) mod queue;
pub(crate) mod rings;
mod socket;
mod sys;

use std::{
    os::fd::AsFd,
    sync::{Arc, Weak},
};

use sheafio_core::{Queue, QueueCounters, interface_numa_node};
use sheafio_mempool::{Mempool, PoolCache, PoolError};

use self::{
    interface::Interface,
    kernel::LinuxKernel,
    program::{Attachment, Other, Program},
    queue::XskQueue,
    socket::{Socket, Umem},
};
use crate::{
    DriverError,
    port::{Control, take_queue},
};

/// A queue of an AF_XDP port.
pub type AfXdpQueue = XskQueue<LinuxKernel>;

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

/// How to open a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The first queue.
    pub start: u32,
    /// How many queues.
    pub queues: u32,
    /// Where the XDP program runs.
    pub mode: Mode,
    /// Whether packets are copied.
    pub copy: CopyMode,
    /// Slots of each of the four rings: a power of two, [`Config::RING_SIZES`].
    pub ring: u32,
    /// Frames that a queue keeps ready for reception, at most the ring's slots. `None`: a quarter of
    /// the pool, shared among this port's queues.
    pub fill: Option<u32>,
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
            start: 0,
            queues: 1,
            mode: Mode::Auto,
            copy: CopyMode::Auto,
            ring: 2048,
            fill: None,
            force: false,
            cpus: Vec::new(),
        }
    }
}

/// An open AF_XDP port.
pub struct AfXdpPort {
    interface: Interface,
    mode: Mode,
    zero_copy: bool,
    warnings: Vec<String>,
    queues: Vec<Option<AfXdpQueue>>,
    statistics: Vec<(Weak<Socket>, Arc<QueueCounters>)>,
    attachment: Weak<Attachment>,
}

/// Bytes before the payload that the MTU does not count (IEEE 802.3), without a VLAN tag.
const ETHERNET_HEADER_BYTES: u32 = 14;

/// Opens queue 0 of an interface with the defaults of [`Config`].
///
/// # Errors
/// As [`open_with`].
pub fn open(interface: &str, pool: &'static Mempool) -> Result<AfXdpPort, DriverError> {
    open_with(interface, &Config::default(), pool)
}

/// Opens queues of an interface. With `Auto` modes the best that works is taken;
/// [`AfXdpPort::mode`], [`AfXdpPort::zero_copy`] and [`AfXdpPort::warnings`] say which and why.
///
/// # Errors
/// Each [`DriverError`] names the interface, what was asked, what is possible and the remedy.
pub fn open_with(interface: &str, config: &Config, pool: &'static Mempool) -> Result<AfXdpPort, DriverError> {
    check(interface, config)?;
    let missing = interface::missing_capabilities();
    if !missing.is_empty() {
        return Err(DriverError::Rights {
            interface: interface.to_owned(),
            missing: missing.join(", "),
            missing_setcap: missing.join(",").to_lowercase(),
        });
    }
    let interface = Interface::lookup(interface)?;
    check_queues(&interface, config)?;
    let mut warnings = warnings_of(&interface, pool.geometry().data_bytes());
    if !config.force
        && let Some(other) = Other::on(&interface)
    {
        return Err(other.refuse(&interface));
    }

    let program = Program::load(&interface, config.start + config.queues)?;
    let first = if config.mode == Mode::Auto { Mode::Native } else { config.mode };
    let (serving, mode) = match serve(&interface, config, pool, &program, first, &mut warnings) {
        Ok(serving) => (serving, first),
        Err(error @ DriverError::Attach { .. }) if config.mode == Mode::Auto => {
            // Everything is made anew: sockets that were bound for native mode may be zero-copy.
            warnings.push(format!("{error}; goes on in generic mode, which is slower"));
            (serve(&interface, config, pool, &program, Mode::Generic, &mut warnings)?, Mode::Generic)
        }
        Err(error) => return Err(error),
    };
    let Serving { queues, statistics, attachment, zero_copy } = serving;
    let queues = queues.into_iter().map(Some).collect();
    Ok(AfXdpPort { interface, mode, zero_copy, warnings, queues, statistics, attachment })
}

/// The kernel's own name of an interface, which may be asked for by an alternative one.
pub(crate) fn name_of(interface: &str) -> Option<String> {
    Interface::lookup(interface).ok().map(|interface| interface.name)
}

/// Queues that get packets.
struct Serving {
    queues: Vec<AfXdpQueue>,
    statistics: Vec<(Weak<Socket>, Arc<QueueCounters>)>,
    attachment: Weak<Attachment>,
    zero_copy: bool,
}

/// Binds a socket to each queue, fills the fill rings, puts the sockets into the program's map, and
/// attaches it: so the first packet finds a frame. With `force`, a program that is in the way is taken
/// off just before: not before the queues are known to be free. If a step fails, all is undone.
fn serve(
    interface: &Interface,
    config: &Config,
    pool: &'static Mempool,
    program: &Program,
    mode: Mode,
    warnings: &mut Vec<String>,
) -> Result<Serving, DriverError> {
    // Generic mode reaches no zero-copy queue: its packets come from the kernel's own buffers.
    let copy = match (mode, config.copy) {
        (Mode::Generic, CopyMode::Auto) => CopyMode::Copy,
        (_, copy) => copy,
    };
    let numbers = config.start..config.start + config.queues;
    let mut sockets: Vec<(Arc<Socket>, rings::Rings)> = Vec::new();
    for queue in numbers.clone() {
        let umem = sockets.first().map_or(Umem::Register, |(first, _)| Umem::Share(first));
        let (socket, rings) = Socket::open(interface, queue, pool.geometry(), &umem, config.ring, copy)?;
        sockets.push((Arc::new(socket), rings));
    }
    let zero_copy = sockets.iter().all(|(socket, _)| socket.zero_copy);
    let in_map = numbers.clone().zip(sockets.iter().map(|(socket, _)| socket.as_fd()));
    let attachment = Arc::new(program.serve(interface, in_map)?);

    let fill = config.fill.unwrap_or(pool.frames() / 4 / config.queues).min(config.ring);
    let (mut queues, mut statistics) = (Vec::new(), Vec::new());
    for (number, (socket, rings)) in numbers.zip(sockets) {
        let mut cache = cache_of(pool, &config.cpus, number - config.start)?;
        let weak = Arc::downgrade(&socket);
        let kernel = LinuxKernel::new(socket, attachment.clone(), number, interface.index);
        let mut queue = XskQueue::new(pool, rings, kernel, fill);
        queue.refill(&mut cache);
        statistics.push((weak, queue.counters().clone()));
        queues.push(queue);
    }

    if config.force
        && let Some(other) = Other::on(interface)
    {
        other.detach(interface).map_err(|_| other.refuse(interface))?;
        warnings.push(format!("{}: took off XDP program {other}", interface.name));
    }
    program.attach(&attachment, interface, mode)?;
    Ok(Serving { queues, statistics, attachment: Arc::downgrade(&attachment), zero_copy })
}

/// A pool cache near the lcore that will serve a queue, the n-th of its port.
pub(crate) fn cache_of(pool: &'static Mempool, cpus: &[u32], nth: u32) -> Result<PoolCache, PoolError> {
    match cpus.get(nth as usize % cpus.len().max(1)) {
        Some(cpu) => pool.cache_on(*cpu),
        None => pool.cache(),
    }
}

/// Refuses what no interface could do, before the kernel does so without a reason.
fn check(interface: &str, config: &Config) -> Result<(), DriverError> {
    let refuse = |problem: String, allowed: String| {
        Err(DriverError::Spec { spec: interface.to_owned(), problem, allowed })
    };
    if !(1..=1024).contains(&config.queues) || config.start > 1023 {
        let problem = format!("queues={}, start={} is not possible", config.queues, config.start);
        return refuse(problem, "queues=1 to 1024, start=0 to 1023".to_owned());
    }
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

fn check_queues(interface: &Interface, config: &Config) -> Result<(), DriverError> {
    let wanted = config.start + config.queues;
    if wanted <= interface.rx_queues {
        return Ok(());
    }
    Err(DriverError::Queues {
        interface: interface.name.clone(),
        first: config.start,
        last: wanted - 1,
        present: interface.rx_queues,
        max: interface.rx_queues - 1,
        wanted,
    })
}

fn warnings_of(interface: &Interface, data_bytes: u32) -> Vec<String> {
    let name = &interface.name;
    let mut warnings = Vec::new();
    if interface.has_default_route {
        warnings.push(format!(
            "{name}: the default route leads through this interface; the kernel (and a remote login) will get no \
             packet from the opened queues until this ends"
        ));
    }
    let largest = interface.mtu + ETHERNET_HEADER_BYTES;
    if largest > data_bytes {
        warnings.push(format!(
            "{name}: at MTU {} packets have up to {largest} bytes, but a frame holds {data_bytes}: larger ones are \
             dropped (rx_too_large). Use frames of 4096 bytes (--frame-size 4096), or: ip link set dev {name} mtu {}",
            interface.mtu,
            data_bytes - ETHERNET_HEADER_BYTES
        ));
    }
    if !interface.is_up {
        warnings.push(format!("{name}: the link is down; packets come after: ip link set dev {name} up"));
    }
    warnings
}

impl AfXdpPort {
    /// Takes a queue out of the port, for the lcore that will own it.
    ///
    /// # Errors
    /// [`DriverError::NoQueue`] if it was not opened or is taken already.
    pub fn queue(&mut self, queue: u32) -> Result<AfXdpQueue, DriverError> {
        take_queue(&mut self.queues, queue, &self.interface.name)
    }

    /// Where the XDP program runs: native or generic.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether packets are not copied.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// What the user should know about how the port was opened, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
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
            numa_node: interface_numa_node(&self.interface.name),
            warnings: self.warnings,
            queues: self
                .queues
                .into_iter()
                .flatten()
                .map(|queue| Box::new(queue) as Box<dyn Queue>)
                .collect(),
            control: Box::new(AfXdpControl {
                index: self.interface.index,
                statistics: self.statistics,
                attachment: self.attachment,
            }),
        }
    }
}

/// The control plane's access to a port whose queues are with their lcores.
struct AfXdpControl {
    index: u32,
    statistics: Vec<(Weak<Socket>, Arc<QueueCounters>)>,
    attachment: Weak<Attachment>,
}

impl Control for AfXdpControl {
    fn refresh(&self) {
        for (socket, counters) in &self.statistics {
            if let Some(socket) = socket.upgrade() {
                kernel::count_drops(&socket, counters);
            }
        }
    }

    fn trouble(&self) -> Option<&'static str> {
        if interface::name_of(self.index).is_none() {
            return Some("the device is gone");
        }
        let taken_off = self.attachment.upgrade().is_some_and(|attachment| !attachment.is_attached());
        taken_off.then_some("another program took our XDP program off: no packets come any more")
    }
}
