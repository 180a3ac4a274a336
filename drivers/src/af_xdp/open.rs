//! Opening a port: look, bind, fill, map, attach; and back again if a step fails.
//!
//! Owns: the order of the steps. Never does: move packets. Invariant: the XDP program is attached only after
//! every socket is bound, filled and in its map.

use std::{
    os::fd::AsFd,
    sync::{Arc, Weak},
};

use sheafio_core::{Queue, QueueCounters};
use sheafio_mempool::{Mempool, PoolCache, PoolError};

use super::{
    AfXdpPort, AfXdpQueue, Config, CopyMode, Frags, Mode, QueueSet, Steering,
    busy_poll::BusyPolling,
    cause,
    config::check,
    device::Device,
    driver::{has_zero_copy, zero_copy_frames},
    interface::{Interface, LINK_HEADER_BYTES},
    kernel::LinuxKernel,
    life::Life,
    link::{Carrier, Promiscuous, Returning, wait_for_links},
    other::Other,
    process::Process,
    program::{Attachment, Program, Variant},
    queue::XskQueue,
    release::Release,
    rights::{self, Right},
    rings,
    socket::{Ask, Socket, Umem},
    steer::Steer,
    umem,
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
        Err(error @ DriverError::Attach { is_of_device: true, .. }) if config.mode == Mode::Auto => {
            // Everything is made anew: sockets that were bound for native mode may be zero-copy.
            warnings.push(format!("{error}; goes on in generic mode, which is slower"));
            (serve(&interface, config, pool, Mode::Generic, &mut warnings)?, Mode::Generic)
        }
        Err(error) => return Err(error),
    };
    let Serving { queues, statistics, attachment, zero_copy, device, steer } = serving;
    let queues = queues.into_iter().map(Some).collect();
    let frame_bytes = pool.geometry().data_bytes();
    let queue_set = config.queues.clone();
    let life = Life::new(&interface, queue_set, frame_bytes, statistics, attachment, device, steer.clone())?;
    let numbers = config.queues.clone();
    let returning = carrier.and_then(|carrier| carrier.has_gone(&interface));
    Ok((AfXdpPort { interface, mode, zero_copy, warnings, queues, numbers, life, steer }, returning))
}

/// Queues that get packets.
struct Serving {
    queues: Vec<AfXdpQueue>,
    statistics: Vec<(Weak<Socket>, Arc<QueueCounters>)>,
    attachment: Weak<Attachment>,
    zero_copy: bool,
    device: Option<Arc<Device>>,
    steer: Steer,
}

/// Binds a socket to each queue, fills the fill rings, puts the sockets into the program's map, and
/// attaches it: so the first packet finds a frame. With `force`, a program that is in the way is taken
/// off just before: not before the queues are known to be free. If a step fails, all is undone.
fn serve(
    interface: &Interface,
    config: &Config,
    pool: &'static Mempool,
    mode: Mode,
    warnings: &mut Vec<String>,
) -> Result<Serving, DriverError> {
    // A program that asks the device can be attached in native mode only.
    let variant = if config.metadata && mode == Mode::Native { Variant::Metadata } else { Variant::Frags };
    let program = Program::load(interface, config.queues.last() + 1, variant)?;
    program.steer().set(&config.steer)?;
    // Generic mode reaches no zero-copy queue: its packets come from the kernel's own buffers.
    let copy = match (mode, config.copy) {
        (Mode::Generic, CopyMode::Auto) => CopyMode::Copy,
        (_, copy) => copy,
    };
    let largest = interface.mtu + LINK_HEADER_BYTES;
    let frags = match config.frags {
        Frags::Auto if largest <= pool.geometry().data_bytes() => Frags::No,
        frags => frags,
    };
    let ask = Ask {
        ring: config.ring,
        copy,
        frags,
        metadata: config.metadata,
        busy_poll: config.busy_poll,
        driver_frames: zero_copy_frames(interface),
    };
    let numbers = config.queues.numbers();
    let sockets = match bind(interface, numbers, pool, ask) {
        // The first queue may have got zero-copy, which the kernel then wants of all.
        Err(error) if copy == CopyMode::Auto && numbers.len() > 1 && is_of_mode(&error) => {
            let copied = bind(interface, numbers, pool, Ask { copy: CopyMode::Copy, ..ask })?;
            warnings.push(format!("{error}; goes on in copy mode, which is slower"));
            copied
        }
        sockets => sockets?,
    };
    let zero_copy = sockets.iter().all(|(socket, _)| socket.zero_copy);
    if zero_copy && let Some(error) = interface.splits_packets(pool.geometry()) {
        if config.copy == CopyMode::ZeroCopy {
            return Err(error);
        }
        drop(sockets);
        warnings.push(format!("{error}; goes on in copy mode, which is slower"));
        let copied = Config { copy: CopyMode::Copy, ..config.clone() };
        return serve(interface, &copied, pool, mode, warnings);
    }
    if zero_copy && let Some(warning) = interface.reuses_frames() {
        if config.copy == CopyMode::ZeroCopy {
            warnings.push(warning);
        } else {
            drop(sockets);
            warnings.push(format!("{warning}. Goes on in copy mode"));
            let copied = Config { copy: CopyMode::Copy, ..config.clone() };
            return serve(interface, &copied, pool, mode, warnings);
        }
    }
    if copy == CopyMode::Auto && !zero_copy && has_zero_copy(interface) == Some(true) {
        warnings.push(format!(
            "{}: its driver could do without copies, and the kernel copies all the same, which is slower: \
             copy=zerocopy says why",
            interface.name
        ));
    }
    let frags = sockets.iter().all(|(socket, _)| socket.frames_a_packet > 1);
    if !frags && largest > pool.geometry().data_bytes() {
        let warning = too_large(interface, config.frags, pool.geometry().data_bytes());
        if !warnings.contains(&warning) {
            warnings.push(warning); // Not once more in generic mode.
        }
    }
    let has_tx_metadata = sockets.iter().all(|(socket, _)| socket.tx_metadata);
    let in_map = numbers.iter().copied().zip(sockets.iter().map(|(socket, _)| socket.as_fd()));
    let attachment = Arc::new(program.serve(interface, in_map)?);

    let fill = config.fill.unwrap_or(pool.frames() / 4 / config.queues.len()).min(config.ring);
    let (mut queues, mut statistics) = (Vec::new(), Vec::new());
    for (nth, (&number, (socket, rings))) in (0..).zip(numbers.iter().zip(sockets)) {
        let mut cache = cache_of(pool, &config.cpus, nth)?;
        let weak = Arc::downgrade(&socket);
        // Without one, as where locked memory is short by a page, the frames stay retired at the end.
        let release = socket.zero_copy.then(|| Release::prepare(interface.index, number).ok()).flatten();
        let (attachment, key) = (attachment.clone(), program.metadata_key());
        let kernel = LinuxKernel::new(socket, attachment, number, key, release);
        let mut queue = XskQueue::new(pool, rings, kernel, fill);
        queue.fill_up(&mut cache);
        statistics.push((weak, queue.counters().clone()));
        queues.push(queue);
    }

    if config.force
        && let Some(other) = Other::on(interface)
    {
        other.detach(interface)?;
        warnings.push(format!("{}: took off XDP program {other}", interface.name));
    }
    if config.busy_poll.is_some() {
        let (polling, warning) = BusyPolling::start(interface);
        attachment.keep(polling);
        warnings.extend(warning);
    }
    if config.promisc == Some(true) {
        attachment.keep_promiscuous(Promiscuous::start(interface)?);
    }
    let device = Device::look(interface.index, mode).map(Arc::new);
    program.attach(&attachment, interface, mode)?;
    if let Some(device) = &device {
        device.begin();
        attachment.look_at(device.clone());
    }
    if config.metadata {
        warnings.extend(without_metadata(interface, mode, &program, has_tx_metadata));
    }
    let steer = program.steer().clone();
    Ok(Serving { queues, statistics, attachment: Arc::downgrade(&attachment), zero_copy, device, steer })
}

/// Whether a queue can't be bound because of the mode that was asked for, or that another queue has.
fn is_of_mode(error: &DriverError) -> bool {
    let DriverError::Bind { source, .. } = error else { return false };
    matches!(source.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

/// Binds a socket to each queue. They share one registration of the packet memory, that of another port if there
/// is one that fits.
fn bind(
    interface: &Interface,
    queues: &[u32],
    pool: &'static Mempool,
    ask: Ask,
) -> Result<Vec<(Arc<Socket>, rings::Rings)>, DriverError> {
    let open = |queue, umem: &Umem<'_>| Socket::open(interface, queue, pool.geometry(), umem, ask);
    let of_another_port = umem::shareable(pool, ask, has_zero_copy(interface).unwrap_or(true));
    let mut sockets: Vec<(Arc<Socket>, rings::Rings)> = Vec::new();
    for &queue in queues {
        let (socket, rings) = match (sockets.first(), &of_another_port) {
            (Some((first, _)), _) => open(queue, &Umem::Share(&Arc::downgrade(first)))?,
            (None, Some(other)) => match open(queue, &Umem::Share(other)) {
                // The kernel would force its copy mode upon this device, which can't do that; or the other is closed by now.
                Err(DriverError::Bind { .. }) => open(queue, &Umem::Register)?,
                shared => shared?,
            },
            (None, None) => open(queue, &Umem::Register)?,
        };
        let socket = Arc::new(socket);
        if sockets.is_empty() {
            umem::note(pool, &socket);
        }
        sockets.push((socket, rings));
    }
    Ok(sockets)
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

fn warnings_of(interface: &Interface, config: &Config) -> Vec<String> {
    let (queues, steering) = (&config.queues, &config.steer);
    let name = &interface.name;
    let mut warnings = Vec::new();
    if interface.has_default_route {
        warnings.push(match steering {
            Steering::All => format!(
                "{name}: the default route leads through this interface; the kernel (and a remote login) will get no \
                 packet from the opened queues until this ends. Take only what you need: steer=RULES, such as \
                 steer=udp:7"
            ),
            Steering::Only(_) => format!(
                "{name}: the default route leads through this interface; packets of {steering} are taken from the \
                 opened queues, the kernel gets all others"
            ),
        });
    }
    if queues.last() >= interface.tx_queues {
        let (present, wanted) = (interface.tx_queues, queues.last() + 1);
        warnings.push(format!(
            "{name}: it has {present} TX queue(s): what is sent on queues from {present} on stays where it is (tx_full). \
             To send there too: ethtool -L {name} combined {wanted} (veth: tx {wanted})"
        ));
    }
    warnings.extend(not_opened(name, interface.rx_queues, queues).map(|text| format!("{name}: {text}")));
    if !interface.is_up {
        warnings.push(format!("{name}: the link is down; packets come after: ip link set dev {name} up"));
    }
    warnings
}

/// What becomes of the packets of queues that are not opened, if there are any, of an interface that has `all`.
pub(super) fn not_opened(name: &str, all: u32, queues: &QueueSet) -> Option<String> {
    let rest = QueueSet::of((0..all).filter(|queue| !queues.numbers().contains(queue)))?;
    let (opened, last) = (queues.len(), queues.last());
    let fewer = if last + 1 == opened {
        format!(
            "ethtool -L {name} combined {opened} (veth: rx {opened} tx {opened}), or ethtool -X {name} equal {opened}"
        )
    } else {
        format!("ethtool -N {name} flow-type tcp4 dst-port PORT action {last}")
    };
    Some(format!(
        "it has {all} RX queues, and {rest} of them is not opened: packets that it puts there go to the kernel. Open \
         all: queues={all}; or let it use the opened ones: {fewer}"
    ))
}

/// What becomes of packets that one frame can't hold, where packets in several frames are not possible.
fn too_large(interface: &Interface, frags: Frags, data_bytes: u32) -> String {
    let (name, mtu) = (&interface.name, interface.mtu);
    let why = match frags {
        Frags::No => "frags=no was asked for",
        _ => "this kernel or driver has no packets in several frames",
    };
    format!(
        "{name}: at MTU {mtu} packets have up to {} bytes, but a frame holds {data_bytes}: larger ones are dropped \
         (rx_too_large), as {why}. Use frames of 4096 bytes (--frame-size 4096), or: ip link set dev {name} mtu {}",
        mtu + LINK_HEADER_BYTES,
        data_bytes - LINK_HEADER_BYTES
    )
}

/// What of metadata was asked for and can't be had.
fn without_metadata(interface: &Interface, mode: Mode, program: &Program, has_tx: bool) -> Vec<String> {
    let name = &interface.name;
    let mut warnings = Vec::new();
    if program.metadata_key().is_none() {
        let why = match (mode, program.refused()) {
            (Mode::Generic, _) => "generic mode has none: use mode=native".to_owned(),
            (_, Some(reason)) => format!(
                "the kernel refuses the program that asks the device: {reason}. It takes Linux 6.7 or newer, with BTF"
            ),
            (_, None) => "none was asked for".to_owned(),
        };
        warnings.push(format!("{name}: received packets come without metadata, as {why}"));
    }
    if !has_tx {
        warnings.push(format!(
            "{name}: no times of sending are told: requests to the kernel take Linux 6.8 or newer"
        ));
    }
    warnings
}
