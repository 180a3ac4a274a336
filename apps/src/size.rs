//! How large the pool and the rings are for given ports, lcores and frames; and `sheafio pool`, which prints it.
//!
//! ```text
//! frames:  | queue 0: fill | tx | queue 1: fill | tx | ... | sheaves of the lcores | bursts | spare |
//! ```
//! Rings that the user has not given are halved until all of this fits.

use std::io::Write as _;

use sheafio_core::{CoreError, CpuList, Topology, allowed_cpus};
use sheafio_drivers::{PortSpec, af_xdp::numa_node_of};
use sheafio_mempool::{Mempool, MempoolBuilder, PoolError, PoolPlan, Rings, ZonePolicy};

use crate::{Error, cli::SizeArgs};

/// Frames of a pool that nobody has given a number for, at least.
const DEFAULT_FRAMES: u64 = 16_384;
/// The shortest ring that is chosen for the user, in slots, and the longest one where nothing asks for longer ones.
const LEAST_SLOTS: u32 = 64;
pub(crate) const USUAL_SLOTS: u32 = 2048;

/// What was decided.
pub(crate) struct Size {
    pub(crate) cpus: CpuList,
    pub(crate) builder: MempoolBuilder,
    pub(crate) plan: PoolPlan,
    /// What the user should know about it, a line each.
    pub(crate) warnings: Vec<String>,
}

/// Asks the interfaces for what the ports leave to them: `queues=all`.
pub(crate) fn look_up(ports: &mut [PortSpec]) -> Result<(), Error> {
    ports.iter_mut().try_for_each(PortSpec::look_up).map_err(Error::from)
}

/// Decides on CPUs, zones, frames and rings; sets the ports' rings, to `most_slots` if the frames allow.
pub(crate) fn decide(args: &mut SizeArgs, most_slots: u32) -> Result<Size, Error> {
    check_rings(&args.ports)?;
    // A machine that hwloc can't read still has CPUs.
    let topology = Topology::detect().unwrap_or_default();
    let count = args.ports.iter().map(PortSpec::queues).max().unwrap_or(1) as usize;
    let near = args.ports.iter().find_map(PortSpec::interface).and_then(numa_node_of);
    let cpus = choose_cpus(args.cores.as_ref(), count, near, &topology)?;
    let mut zoning = topology.zones_for(&cpus.0);
    for spec in &args.ports {
        let node = spec.interface().and_then(|name| Some((name, numa_node_of(name)?)));
        // Queue i is served by the i-th CPU, from the start again.
        let serving = &cpus.0[..cpus.0.len().min(spec.queues() as usize)];
        let warning = node.and_then(|(name, node)| topology.crossing(name, node, serving));
        zoning.warnings.extend(warning);
    }
    let builder = Mempool::builder().frame_size(args.frame_size).cores(cpus.0.len() as u32);
    // With Strict, a node whose queues hold all of its frames would starve while others have some.
    let builder = builder.zone_specs(zoning.specs).policy(ZonePolicy::Prefer);
    let (builder, plan) = choose_rings(args, &builder, most_slots)?;
    Ok(Size { cpus, builder, plan, warnings: zoning.warnings })
}

/// Prints the decision.
pub(crate) fn run(mut args: SizeArgs) -> Result<bool, Error> {
    look_up(&mut args.ports)?;
    let size = decide(&mut args, USUAL_SLOTS)?;
    let mut ports = Vec::new();
    for spec in &args.ports {
        let rings = match (spec.fill(), spec.tx_slots()) {
            (_, 0) => "no rings".to_owned(),
            (None, slots) => format!("{slots} slots"),
            (Some(fill), slots) => format!("rings of {slots} slots, {fill} frames ready for reception"),
        };
        ports.push(format!("port              {spec}: {} queue(s), {rings}\n", spec.queues()));
    }
    for warning in &size.warnings {
        eprintln!("warning: {warning}");
    }
    // Whoever has closed the pipe does not read on.
    let _ =
        write!(std::io::stdout(), "lcores            CPUs {}\n{}{}", size.cpus, ports.concat(), size.plan);
    Ok(true)
}

/// Refuses rings that would silently become others.
fn check_rings(ports: &[PortSpec]) -> Result<(), Error> {
    for (at, spec) in ports.iter().enumerate() {
        if let Some(fill) = spec.asked_fill().filter(|fill| spec.has_ring() && *fill > spec.tx_slots()) {
            let slots = spec.tx_slots();
            return Err(format!(
                "port '{spec}': fill={fill} does not fit into ring={slots}; allowed: fill up to ring"
            )
            .into());
        }
        let other = ports[..at].iter().find(|other| other.is_other_end_of(spec));
        if let Some(other) = other.filter(|other| other.tx_slots() != spec.tx_slots()) {
            return Err(format!(
                "ports '{other}' and '{spec}' are the ends of one ring; give both the same size"
            )
            .into());
        }
    }
    Ok(())
}

/// The CPUs for the lcores: as asked, or `count` that are picked from the machine's topology, of the node `near` first.
pub(crate) fn choose_cpus(
    asked: Option<&CpuList>,
    count: usize,
    near: Option<u32>,
    topology: &Topology,
) -> Result<CpuList, Error> {
    let allowed = allowed_cpus();
    if let Some(cpus) = asked {
        return match cpus.0.iter().find(|cpu| !allowed.0.contains(cpu)) {
            Some(cpu) => Err(CoreError::Cpu { cpu: *cpu, allowed }.into()),
            None => Ok(cpus.clone()),
        };
    }
    Ok(CpuList(topology.pick_cpus(&allowed.0, count, near)))
}

/// The longest rings with which no queue can starve, and as many frames as they take if that is open.
fn choose_rings(
    args: &mut SizeArgs,
    builder: &MempoolBuilder,
    most_slots: u32,
) -> Result<(MempoolBuilder, PoolPlan), Error> {
    let mut slots = most_slots;
    loop {
        let mut builder = builder.clone().frames(args.frames.unwrap_or(DEFAULT_FRAMES));
        for spec in &mut args.ports {
            spec.set_ring(slots);
            builder = builder.rings(rings(spec, args.burst as u32));
        }
        let planned = match args.frames {
            Some(_) => builder.plan().map(|plan| (builder, plan)),
            None => enough_frames(builder),
        };
        match planned {
            Ok(planned) => return Ok(planned),
            Err(PoolError::Starves { .. }) if slots > LEAST_SLOTS => slots /= 2,
            // No memory for so many frames, which nobody has asked for.
            Err(PoolError::Memory { .. }) if args.frames.is_none() && slots > LEAST_SLOTS => {
                slots /= 2;
            }
            Err(error @ PoolError::Starves { .. }) => {
                let frames = args.frames.unwrap_or(DEFAULT_FRAMES);
                return Err(format!("--frames {frames}: {error}").into());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a port's rings can hold.
fn rings(spec: &PortSpec, burst: u32) -> Rings {
    Rings { queues: spec.queues(), fill: spec.fill().unwrap_or(0), tx: spec.tx_slots(), burst }
}

/// The smallest power of two of frames, from the default on, that is enough.
fn enough_frames(mut builder: MempoolBuilder) -> Result<(MempoolBuilder, PoolPlan), PoolError> {
    let mut frames = DEFAULT_FRAMES;
    loop {
        match builder.plan() {
            Err(PoolError::Starves { .. }) => frames *= 2,
            Err(error) => return Err(error),
            Ok(plan) => return Ok((builder, plan)),
        }
        builder = builder.frames(frames);
    }
}
