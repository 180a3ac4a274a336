//! Opening a port: look, bind, fill, map, attach; and back again if a step fails.
//!
//! Owns: the order of the steps; `open/bind.rs` chooses the copy mode, `open/warnings.rs` has the words. Never does:
//! move packets. Invariant: the XDP program is attached only after every socket is bound, filled and in its map.

mod bind;
mod warnings;

use std::sync::{Arc, Weak};

use sheafio_core::{Queue, QueueCounters};
use sheafio_mempool::{Mempool, PoolCache, PoolError};

pub(super) use self::warnings::not_opened;
use self::{
    bind::Bound,
    warnings::{tags_lost, warnings_of, without_metadata, without_proof},
};
use super::{
    AfXdpPort, AfXdpQueue, Config, Mode,
    busy_poll::BusyPolling,
    cause,
    config::check,
    device::Device,
    interface::Interface,
    kernel::LinuxKernel,
    life::Life,
    link::{Carrier, Memberships, Returning, wait_for_links},
    netdev::Netdev,
    other::Other,
    process::Process,
    program::{Asks, Attachment, Program, Variant},
    queue::XskQueue,
    release::Release,
    rights::{self, Right},
    rings::Rings,
    socket::Socket,
    steer::Steer,
};
use crate::DriverError;

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
/// Where the driver resets its NIC for this, waits up to 5 s until the link is back.
///
/// # Errors
/// Each [`DriverError`] names the interface, what was asked, what is possible and the remedy.
pub fn open_with(interface: &str, config: &Config, pool: &'static Mempool) -> Result<AfXdpPort, DriverError> {
    let (mut port, returning) = open_at_once(interface, config, pool)?;
    let warnings = wait_for_links(&mut Vec::from_iter(returning), || false);
    port.warnings.extend(warnings);
    Ok(port)
}

/// The same, with the link that is still to come back.
pub(crate) fn open_at_once(
    interface: &str,
    config: &Config,
    pool: &'static Mempool,
) -> Result<(AfXdpPort, Option<Returning>), DriverError> {
    check(interface, config)?;
    let missing: Vec<_> = rights::missing().into_iter().map(Right::name).collect();
    if !missing.is_empty() {
        return Err(DriverError::Rights {
            interface: interface.to_owned(),
            missing: missing.join(", "),
            remedy: cause::of_missing_rights(&Process::look()),
        });
    }
    let interface = Interface::lookup(interface)?;
    check_queues(&interface, config)?;
    let mut warnings = warnings_of(&interface, config);
    if !config.force
        && let Some(other) = Other::on(&interface)
    {
        return Err(other.refuse(&interface));
    }

    let carrier = Carrier::of(&interface);
    let first = if config.mode == Mode::Auto { Mode::Native } else { config.mode };
    let (serving, mode) = match serve(&interface, config, pool, first, &mut warnings) {
        Ok(serving) => (serving, first),
        Err(native @ DriverError::Attach { is_of_device: true, .. }) if config.mode == Mode::Auto => {
            // Everything is made anew: sockets that were bound for native mode may be zero-copy.
            warnings.push(format!("{native}; goes on in generic mode, which is slower"));
            let serving =
                serve(&interface, config, pool, Mode::Generic, &mut warnings).map_err(|generic| {
                    DriverError::BothModes { native: Box::new(native), generic: Box::new(generic) }
                })?;
            (serving, Mode::Generic)
        }
        Err(error) => return Err(error),
    };
    let Serving { queues, sockets, attachment, zero_copy, tells_tags, device, steer } = serving;
    let queues = queues.into_iter().map(Some).collect();
    let frame_bytes = pool.geometry().data_bytes();
    let queue_set = config.queues.clone();
    let life = Life::new(&interface, queue_set, frame_bytes, sockets, attachment, device, steer.clone())?;
    let numbers = config.queues.clone();
    let returning = carrier.and_then(|carrier| carrier.has_gone(&interface));
    let port = AfXdpPort { interface, mode, zero_copy, tells_tags, warnings, queues, numbers, life, steer };
    Ok((port, returning))
}

/// Queues that get packets.
struct Serving {
    queues: Vec<AfXdpQueue>,
    sockets: Vec<Counted>,
    attachment: Weak<Attachment>,
    zero_copy: bool,
    tells_tags: bool,
    device: Option<Arc<Device>>,
    steer: Steer,
}

/// A queue's socket, while the queue is open, and what counts its packets.
pub(super) type Counted = (Weak<Socket>, Arc<QueueCounters>);

/// Makes queues that get packets, in an order in which the first packet finds a frame. If a step fails, all is undone.
fn serve(
    interface: &Interface,
    config: &Config,
    pool: &'static Mempool,
    mode: Mode,
    warnings: &mut Vec<String>,
) -> Result<Serving, DriverError> {
    // 1. Load the program; it sees no packet yet.
    let netdev = config.metadata.then(|| Netdev::of_index(interface.index)).flatten();
    let program = load(interface, config, mode, netdev.as_ref())?;
    // 2. Bind a socket to each queue.
    let bound = Bound::bind(interface, config, pool, mode, warnings)?;
    let (zero_copy, tx_metadata) = (bound.zero_copy, bound.tx_metadata);
    // 3. Put the sockets into the program's map.
    let attachment = Arc::new(program.serve(interface, bound.by_queue(&config.queues))?);
    set_rooms(interface, config, pool, &program, &bound)?;
    // 4. Fill the fill rings.
    let key = program.metadata_key();
    let kernels = kernels_of(interface, config, bound, &attachment, key, netdev.as_ref(), warnings);
    let (queues, sockets) = fill(config, pool, kernels)?;
    // 5. Make the device ready: not before the queues are known to be free.
    make_way(interface, config, &attachment, warnings)?;
    // 6. Attach the program: packets come.
    let device = attach(interface, config, mode, &program, &attachment)?;
    if config.metadata {
        warnings.extend(without_metadata(interface, mode, &program, tx_metadata));
    }
    let tells_tags = program.asks_for_tags();
    if !tells_tags {
        warnings.extend(tags_lost(interface, config, mode));
    }
    let (attachment, steer) = (Arc::downgrade(&attachment), program.steer().clone());
    Ok(Serving { queues, sockets, attachment, zero_copy, tells_tags, device, steer })
}

/// Loads the program that can do most of what is asked for, with its rules.
fn load(
    interface: &Interface,
    config: &Config,
    mode: Mode,
    netdev: Option<&Netdev>,
) -> Result<Program, DriverError> {
    // A program that asks the device can be attached in native mode only.
    let asks_device = config.metadata && mode == Mode::Native;
    let asks = asks_device.then(|| Asks::worth(netdev.and_then(Netdev::rx_metadata_bits))).flatten();
    let variant = asks.map_or(Variant::Frags, Variant::Metadata);
    let program = Program::load(interface, config.queues.last() + 1, variant)?;
    program.steer().set(&config.steer)?;
    Ok(program)
}

/// Tells the program how many packets each copied queue has frames for.
fn set_rooms(
    interface: &Interface,
    config: &Config,
    pool: &'static Mempool,
    program: &Program,
    bound: &Bound,
) -> Result<(), DriverError> {
    let rooms = program.rooms(interface, config.queues.last() + 1)?;
    for (number, (socket, _)) in config.queues.numbers().iter().zip(&bound.sockets) {
        if !socket.zero_copy {
            socket.set_room(rooms.of(*number, pool.geometry().data_bytes()));
        }
    }
    Ok(())
}

/// What drives the rings of each queue, with the rings.
fn kernels_of(
    interface: &Interface,
    config: &Config,
    bound: Bound,
    attachment: &Arc<Attachment>,
    metadata_key: Option<u64>,
    netdev: Option<&Netdev>,
    warnings: &mut Vec<String>,
) -> Vec<(Weak<Socket>, LinuxKernel, Rings)> {
    let mut unproven = Vec::new();
    let mut kernels = Vec::new();
    for (&number, (socket, rings)) in config.queues.numbers().iter().zip(bound.sockets) {
        let release = socket.zero_copy.then(|| Release::prepare(interface.index, number)).transpose();
        let release = release.unwrap_or_else(|error| {
            unproven.push((number, error));
            None
        });
        let weak = Arc::downgrade(&socket);
        let kernel = LinuxKernel::new(socket, attachment.clone(), number, metadata_key, netdev, release);
        kernels.push((weak, kernel, rings));
    }
    warnings.extend(without_proof(interface, &unproven));
    kernels
}

/// Makes a queue of each, with frames in its fill ring.
fn fill(
    config: &Config,
    pool: &'static Mempool,
    kernels: Vec<(Weak<Socket>, LinuxKernel, Rings)>,
) -> Result<(Vec<AfXdpQueue>, Vec<Counted>), DriverError> {
    let frames = config.fill.unwrap_or(pool.frames() / 4 / config.queues.len()).min(config.ring);
    let (mut queues, mut counted) = (Vec::new(), Vec::new());
    for (nth, (socket, kernel, rings)) in (0..).zip(kernels) {
        let mut cache = cache_of(pool, &config.cpus, nth)?;
        let mut queue = XskQueue::new(pool, rings, kernel, frames);
        queue.fill_up(&mut cache);
        counted.push((socket, queue.counters().clone()));
        queues.push(queue);
    }
    Ok((queues, counted))
}

/// Takes off what stands in the program's way, if that was asked for, and sets the device as it should be while the
/// program is there.
fn make_way(
    interface: &Interface,
    config: &Config,
    attachment: &Attachment,
    warnings: &mut Vec<String>,
) -> Result<(), DriverError> {
    if config.force
        && let Some(other) = Other::on(interface)
    {
        warnings.push(other.detach(interface)?);
    }
    if config.busy_poll.is_some() {
        let (polling, told) = BusyPolling::start(interface);
        attachment.keep(polling);
        warnings.extend(told);
    }
    let promisc = config.promisc == Some(true);
    if promisc || !config.groups.is_empty() {
        attachment.keep_memberships(Memberships::start(interface, promisc, &config.groups)?);
    }
    Ok(())
}

/// Attaches the program. Returns what the device counts from then on, if it tells.
fn attach(
    interface: &Interface,
    config: &Config,
    mode: Mode,
    program: &Program,
    attachment: &Attachment,
) -> Result<Option<Arc<Device>>, DriverError> {
    let device = Device::look(interface.index, mode).map(Arc::new);
    program.attach(attachment, interface, mode, config.mode)?;
    if let Some(device) = &device {
        device.begin();
        attachment.look_at(device.clone());
    }
    Ok(device)
}

/// A pool cache near the lcore that will serve a queue, the n-th of its port.
pub(crate) fn cache_of(pool: &'static Mempool, cpus: &[u32], nth: u32) -> Result<PoolCache, PoolError> {
    match cpus.get(nth as usize % cpus.len().max(1)) {
        Some(cpu) => pool.cache_on(*cpu),
        None => pool.cache(),
    }
}

fn check_queues(interface: &Interface, config: &Config) -> Result<(), DriverError> {
    let wanted = config.queues.last() + 1;
    if wanted <= interface.rx_queues {
        return Ok(());
    }
    Err(DriverError::Queues {
        interface: interface.name.clone(),
        asked: config.queues.to_string(),
        present: interface.rx_queues,
        max: interface.rx_queues - 1,
        wanted,
    })
}
