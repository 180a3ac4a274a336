//! How large the pool is for ports and connections, and which lcore serves which queues.

use std::sync::Arc;

use sheafio_core::CpuList;
use sheafio_drivers::{Port, PortSpec};
use sheafio_mempool::{Mempool, MempoolBuilder};
use sheafio_net::{
    Counts, Host, HostConfig, Stack,
    tcp::{Config, Tcp},
};

use super::{
    address::Served,
    lcore::Service,
    report::Gauges,
    server::{Echo, Transactions},
};
use crate::{Error, cli::SizeArgs, echo::EchoArgs, size};

/// Packets in a burst.
pub(super) const BURST: u64 = 64;
/// Connections at a time, in all queues, where nobody says how many.
const DEFAULT_FLOWS: u64 = 16_384;

/// What was decided.
pub(super) struct Sizes {
    pub(super) ports: Vec<PortSpec>,
    pub(super) cpus: CpuList,
    pub(super) builder: MempoolBuilder,
    /// Connections at a time, in all queues.
    pub(super) flows: u64,
    /// Frames that rings, lcores and bursts may hold; the others are for connections.
    pub(super) reserved: u64,
    pub(super) queues: u64,
    pub(super) warnings: Vec<String>,
}

impl Sizes {
    /// Decides on CPUs, rings, frames and connections.
    pub(super) fn decide(args: &EchoArgs) -> Result<Self, Error> {
        let mut sizes = SizeArgs {
            ports: args.ports.clone(),
            cores: args.cores.clone(),
            burst: BURST,
            frames: args.frames,
            frame_size: args.frame_size,
        };
        let mut size = size::decide(&mut sizes)?;
        let frames_a_flow = config(args).frames_a_flow(args.frame_size);
        let carried =
            |size: &size::Size| size.plan.frames.saturating_sub(size.plan.least_frames()) / frames_a_flow;
        let flows = args.max_flows.map_or_else(
            || if args.frames.is_none() { DEFAULT_FLOWS } else { carried(&size).clamp(1, DEFAULT_FLOWS) },
            u64::from,
        );
        if args.frames.is_none() && carried(&size) < flows {
            let least = size.plan.least_frames() + flows * frames_a_flow;
            sizes.ports.clone_from(&args.ports);
            sizes.frames = Some(least.next_power_of_two());
            size = size::decide(&mut sizes)?;
        }
        let (frames, reserved) = (size.plan.frames, size.plan.least_frames());
        if carried(&size) < flows {
            let (asked, most) = (if args.max_flows.is_some() { "--max-flows " } else { "" }, carried(&size));
            return Err(format!(
                "{asked}{flows}: each flow may hold {frames_a_flow} frames, and of the pool's {frames} rings and lcores may \
                 hold {reserved}; allowed: up to {most}. Use --frames {}, or fewer flows",
                (reserved + flows * frames_a_flow).next_power_of_two()
            )
            .into());
        }
        let queues = sizes.ports.iter().map(|spec| u64::from(spec.queues())).sum();
        Ok(Self {
            ports: sizes.ports,
            cpus: size.cpus,
            builder: size.builder,
            flows,
            reserved,
            queues,
            warnings: size.warnings,
        })
    }

    /// Connections of each queue.
    pub(super) fn flows_a_queue(&self) -> u64 {
        self.flows.div_ceil(self.queues)
    }
}

/// What TCP is asked for, but for the number of connections.
fn config(args: &EchoArgs) -> Config {
    let default = Config::default();
    Config {
        ports: args.tcp.clone(),
        receive_bytes: args.buffer.unwrap_or(default.receive_bytes),
        send_bytes: args.buffer.unwrap_or(default.send_bytes),
        keepalive_us: args.keepalive.map_or(default.keepalive_us, |time| time.as_micros() as u64),
        ..default
    }
}

/// The work of each lcore.
pub(super) struct Plan {
    pub(super) lcores: Vec<(u32, Vec<Service>)>,
}

/// Takes the queues out of the ports, makes a stack for each, and deals them out: queue i of each port to the i-th CPU,
/// from the start again when there are more queues than CPUs.
pub(super) fn deal_out(
    ports: &mut [Port],
    served: &[Served],
    args: &EchoArgs,
    sizes: &Sizes,
    pool: &'static Mempool,
) -> Result<Plan, Error> {
    let mut lcores: Vec<_> = sizes.cpus.0.iter().map(|cpu| (*cpu, Vec::new())).collect();
    for (port, served) in ports.iter_mut().zip(served) {
        for (number, queue) in std::mem::take(&mut port.queues).into_iter().enumerate() {
            let counts = Arc::<Counts>::default();
            let transactions = Arc::<Transactions>::default();
            let host = HostConfig {
                mac: port.mac,
                addresses: served.addresses.clone(),
                is_own: served.is_own,
                udp_ports: args.udp.clone(),
                icmp: args.icmp,
                announces: number == 0,
            };
            let config = Config { max_flows: sizes.flows_a_queue() as usize, ..config(args) };
            let frames = (u64::from(pool.frames()) - sizes.reserved) / sizes.queues;
            let tcp = Tcp::new(
                config,
                Echo::new(args, transactions.clone()),
                counts.clone(),
                pool.geometry().frame_bytes(),
                (frames, sizes.reserved),
                0,
            )?;
            let stack = Stack::new(Host::new(&host, counts.clone()), tcp);
            let gauges = Arc::new(Gauges::new(counts, transactions));
            let at = number % lcores.len();
            lcores[at].1.push(Service::new(queue, stack, gauges));
        }
    }
    lcores.retain(|(_, services)| !services.is_empty());
    Ok(Plan { lcores })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::echo::response::Request;

    #[test]
    fn a_flow_takes_less_than_5_kib() {
        let bytes = Config::default().bytes_a_flow::<Request>(2048);
        println!("{bytes} bytes a flow, of them 4096 in frames");
        assert!((4096..5 * 1024).contains(&bytes), "{bytes}");
    }
}
