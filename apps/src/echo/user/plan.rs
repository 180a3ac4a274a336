//! How large the pool is for ports and connections, and which lcore serves which queues.

use std::sync::Arc;

use sheafio_core::CpuList;
use sheafio_drivers::{Port, PortSpec};
use sheafio_mempool::{Mempool, MempoolBuilder, PoolError};
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

/// Slots of the longest rings that many connections get; a port may be given longer ones.
const MOST_SLOTS: u32 = 16_384;

/// What was decided.
pub(super) struct Sizes {
    pub(super) ports: Vec<PortSpec>,
    pub(super) cpus: CpuList,
    pub(super) builder: MempoolBuilder,
    /// Connections at a time, in all queues.
    pub(super) flows: u64,
    /// Of them, in each queue.
    flows_a_queue: u64,
    /// Frames that rings, lcores and bursts may hold; the others are for connections.
    pub(super) reserved: u64,
    pub(super) queues: u64,
    pub(super) warnings: Vec<String>,
}

impl Sizes {
    /// Decides on CPUs, rings, frames and connections.
    pub(super) fn decide(args: &EchoArgs) -> Result<Self, Error> {
        let queues = args.ports.iter().map(|spec| u64::from(spec.queues())).sum::<u64>().max(1);
        // All flows may begin at once: what a ring has no room for is lost, and sent again much later.
        let expected = match (args.max_flows, args.frames) {
            (Some(flows), _) => u64::from(flows),
            (None, None) => DEFAULT_FLOWS,
            (None, Some(_)) => 0, // As many as there is room for.
        };
        let mut slots =
            (expected.div_ceil(queues) as u32).next_power_of_two().clamp(size::USUAL_SLOTS, MOST_SLOTS);
        loop {
            match Self::with_rings(args, queues, slots) {
                // Shorter rings take fewer frames, on a machine that has no memory for so many.
                Err(error) if is_of_memory(&error) && slots > size::USUAL_SLOTS => slots /= 2,
                decided => return decided,
            }
        }
    }

    /// The same with rings of so many slots, or fewer if frames were given that do not allow for them.
    fn with_rings(args: &EchoArgs, queues: u64, mut slots: u32) -> Result<Self, Error> {
        let mut sizes = SizeArgs {
            ports: args.ports.clone(),
            cores: args.cores.clone(),
            burst: BURST,
            frames: args.frames,
            frame_size: args.frame_size,
        };
        let mut size = size::decide(&mut sizes, slots)?;
        let frames_a_flow = config(args).frames_a_flow(args.frame_size);
        // Each queue has frames and connections of its own: what can't be divided is nobody's.
        let carried = |size: &size::Size| {
            size.plan.frames.saturating_sub(size.plan.least_frames()) / queues / frames_a_flow
        };
        let flows_a_queue = match args.max_flows {
            Some(asked) => u64::from(asked).div_ceil(queues),
            None if args.frames.is_none() => (DEFAULT_FLOWS / queues).max(1),
            None => carried(&size).clamp(1, (DEFAULT_FLOWS / queues).max(1)),
        };
        let enough = |size: &size::Size| {
            (size.plan.least_frames() + flows_a_queue * queues * frames_a_flow).next_power_of_two()
        };
        // Frames that were given are for connections first.
        while args.frames.is_some() && carried(&size) < flows_a_queue && slots > size::USUAL_SLOTS {
            slots /= 2;
            sizes.ports.clone_from(&args.ports);
            size = size::decide(&mut sizes, slots)?;
        }
        if args.frames.is_none() && carried(&size) < flows_a_queue {
            sizes.ports.clone_from(&args.ports);
            sizes.frames = Some(enough(&size));
            size = size::decide(&mut sizes, slots)?;
        }
        let flows = args.max_flows.map_or(flows_a_queue * queues, u64::from);
        let (frames, reserved) = (size.plan.frames, size.plan.least_frames());
        if carried(&size) < flows_a_queue {
            let (asked, most) =
                (if args.max_flows.is_some() { "--max-flows " } else { "" }, carried(&size) * queues);
            return Err(format!(
                "{asked}{flows}: each flow may hold {frames_a_flow} frames, and of the pool's {frames} rings and lcores may \
                 hold {reserved}; allowed: up to {most}. Use --frames {}, or fewer flows",
                enough(&size)
            )
            .into());
        }
        Ok(Self {
            ports: sizes.ports,
            cpus: size.cpus,
            builder: size.builder,
            flows,
            flows_a_queue,
            reserved,
            queues,
            warnings: size.warnings,
        })
    }
}

fn is_of_memory(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(PoolError::Memory { .. }))
}

/// Bytes of the largest IP packet of a port: what its link carries, as far as a frame holds that.
fn mtu(port: &Port, frame_bytes: u32) -> Result<u16, Error> {
    let Some(link) = port.mtu else { return Ok(Config::default().mtu) };
    if link < u32::from(Config::LEAST_MTU) {
        return Err(format!(
            "port '{}': MTU {link}; allowed: {} or more, which every host has to take. Raise it: ip link set dev {} mtu 1500",
            port.name,
            Config::LEAST_MTU,
            port.name
        )
        .into());
    }
    Ok(link.min(u32::from(Config::largest_mtu(frame_bytes))) as u16)
}

/// How large answers to datagrams are, if they are not what came: each has to fit into one packet.
fn udp_response_bytes(args: &EchoArgs, served: &Served, port: &Port, mtu: u16) -> Result<Option<u16>, Error> {
    let Some(asked) = args.response_size.filter(|_| !args.udp.is_empty()) else { return Ok(None) };
    let is_ipv6 = served.addresses.iter().any(|address| address.ip().is_ipv6());
    // The headers of IP (RFC 791, RFC 8200) and of UDP (RFC 768).
    let most = mtu - if is_ipv6 { 40 } else { 20 } - 8;
    let fits = u16::try_from(asked).ok().filter(|asked| *asked <= most);
    let bytes = fits.ok_or_else(|| {
        format!(
            "--response-size {asked}: a datagram of port '{}' has room for {most} bytes over {}, in a packet of {mtu} and frames \
             of {}; allowed with --udp: 1 to {most}",
            port.name,
            if is_ipv6 { "IPv6" } else { "IPv4" },
            args.frame_size
        )
    })?;
    Ok(Some(bytes))
}

/// What TCP is asked for, but for the number of connections and the MTU.
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
    /// Bytes of the largest IP packet of each port.
    pub(super) mtus: Vec<u16>,
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
    let mut mtus = Vec::new();
    for (port, served) in ports.iter_mut().zip(served) {
        let mtu = mtu(port, args.frame_size)?;
        mtus.push(mtu);
        let served_by = port.queues.len();
        let udp_response_bytes = udp_response_bytes(args, served, port, mtu)?;
        for (number, queue) in std::mem::take(&mut port.queues).into_iter().enumerate() {
            let counts = Arc::<Counts>::default();
            let transactions = Arc::<Transactions>::default();
            let host = HostConfig {
                mac: port.mac,
                addresses: served.addresses.clone(),
                is_own: served.is_own,
                udp_ports: args.udp.clone(),
                udp_response_bytes,
                icmp: args.icmp,
                announces: number == 0,
            };
            let config = Config {
                max_flows: sizes.flows_a_queue as usize,
                mtu,
                is_one_of_several: served_by > 1,
                ..config(args)
            };
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
    Ok(Plan { mtus, lcores })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{
        cli::{Cli, Command},
        echo::response::Request,
    };

    /// Each queue gets as many connections as its share of the frames carries, for numbers that can't be divided too.
    #[test]
    fn connections_fit_into_the_frames_of_their_queue() {
        for queues in 1..=6 {
            for frames in [2000, 2001, 2004, 4000, 16_384] {
                let port = format!("null:0,queues={queues}");
                let words = ["sheafio", "echo", "-p", &port, "--tcp", "7", "--frames", &frames.to_string()];
                let Command::Echo(args) = Cli::try_parse_from(words).unwrap().command else { panic!("echo") };
                let sizes = Sizes::decide(&args).unwrap();
                let share = (frames - sizes.reserved) / sizes.queues;
                let held = sizes.flows_a_queue * config(&args).frames_a_flow(2048);
                assert!(held <= share, "{queues} queues, {frames} frames: {held} of {share}");
                assert_eq!(sizes.flows, sizes.flows_a_queue * queues);
                // And not fewer than could be, but for the default.
                assert!(held + 2 > share || sizes.flows_a_queue == DEFAULT_FLOWS / queues);
                // Named, they are refused if they do not fit.
                let more = EchoArgs { max_flows: Some(sizes.flows as u32 + 1), ..args.clone() };
                let fits = (sizes.flows + 1).div_ceil(queues) * 2 <= share;
                assert_eq!(Sizes::decide(&more).is_ok(), fits, "{queues} queues, {frames} frames");
                let all = EchoArgs { max_flows: Some(sizes.flows as u32), ..args };
                assert!(Sizes::decide(&all).is_ok());
            }
        }
    }

    #[test]
    fn rings_hold_a_request_of_each_connection_that_was_asked_for_as_far_as_frames_allow() {
        for (options, slots) in [
            (&[][..], 16_384),
            (&["--frames", "65536"], 2048),
            (&["--max-flows", "100"], 2048),
            (&["--max-flows", "10000"], 16_384),
            (&["--max-flows", "100000"], 16_384),
            (&["--max-flows", "10000", "--frames", "65536"], 16_384),
            (&["--max-flows", "10000", "--frames", "32768"], 4096),
        ] {
            let words = [&["sheafio", "echo", "-p", "sim:0,ring=512", "--tcp", "7", "--cores", "0"], options]
                .concat();
            let slots_of = |words: &[&str]| {
                let Command::Echo(args) = Cli::try_parse_from(words).unwrap().command else { panic!("echo") };
                Sizes::decide(&args).unwrap().ports[0].tx_slots()
            };
            assert_eq!(slots_of(&words), 512, "the user has said how many");
            let words: Vec<_> =
                words.iter().map(|word| word.strip_suffix(",ring=512").unwrap_or(word)).collect();
            assert_eq!(slots_of(&words), slots, "{options:?}");
        }
    }

    #[test]
    fn a_flow_takes_less_than_5_kib() {
        let bytes = Config::default().bytes_a_flow::<Request>(2048);
        println!("{bytes} bytes a flow, of them 4096 in frames");
        assert!((4096..5 * 1024).contains(&bytes), "{bytes}");
    }
}
