//! Which lcore serves which queues, and what they are linked with.

use sheafio_core::{CpuList, Queue};
use sheafio_drivers::Port;

use crate::{
    Error,
    cli::{FwdArgs, Mode},
};

/// Queues between which packets go, on one lcore.
pub(crate) enum Link {
    /// From each to the other.
    Pair([End; 2]),
    /// Back to where they came from.
    Alone(End),
}

/// A queue with what the modes need to know of its port.
pub(crate) struct End {
    pub(crate) queue: Box<dyn Queue>,
    /// Number of the port, in the order of the command line.
    pub(crate) port: u8,
    pub(crate) mac: [u8; 6],
    /// Whether its packets may come with VLAN tags beside them.
    pub(crate) tells_tags: bool,
}

/// The work of each lcore.
pub(crate) struct Plan {
    pub(crate) lcores: Vec<(u32, Vec<Link>)>,
}

impl Plan {
    /// Takes the queues out of the ports and deals them out: queue i of each port to the i-th CPU,
    /// from the start again when there are more queues than CPUs.
    pub(crate) fn new(ports: &mut [Port], mode: Mode, cpus: &CpuList) -> Self {
        let mut links: Vec<Vec<Link>> = Vec::new();
        let mut add = |number: usize, link| {
            if links.len() <= number {
                links.resize_with(number + 1, Vec::new);
            }
            links[number].push(link);
        };
        let ends = |port: &mut Port, number: usize| {
            let (mac, tells_tags) = (port.mac, port.tells_tags);
            let end = move |queue| End { queue, port: number as u8, mac, tells_tags };
            std::mem::take(&mut port.queues).into_iter().map(end).collect::<Vec<_>>()
        };
        let group = if goes_back(mode) { 1 } else { 2 };
        for (at, group) in ports.chunks_mut(group).enumerate().map(|(at, ports)| (at * group, ports)) {
            match group {
                [one, other] => {
                    let pairs = ends(one, at).into_iter().zip(ends(other, at + 1));
                    pairs
                        .enumerate()
                        .for_each(|(number, (one, other))| add(number, Link::Pair([one, other])));
                }
                ports => {
                    let ends = ports.iter_mut().flat_map(|port| ends(port, at));
                    ends.enumerate().for_each(|(number, end)| add(number, Link::Alone(end)));
                }
            }
        }
        let mut lcores: Vec<(u32, Vec<Link>)> = cpus.0.iter().map(|cpu| (*cpu, Vec::new())).collect();
        for (number, links) in links.into_iter().enumerate() {
            let at = number % lcores.len();
            lcores[at].1.extend(links);
        }
        lcores.retain(|(_, links)| !links.is_empty());
        Self { lcores }
    }
}

impl Plan {
    /// Those of the CPUs that have no queue to serve, if there are some.
    pub(crate) fn without_work(&self, cpus: &CpuList) -> Option<CpuList> {
        let works = |cpu: &u32| self.lcores.iter().any(|(lcore, _)| lcore == cpu);
        let idle: Vec<u32> = cpus.0.iter().copied().filter(|cpu| !works(cpu)).collect();
        (!idle.is_empty()).then_some(CpuList(idle))
    }
}

/// Modes whose packets never change the port.
fn goes_back(mode: Mode) -> bool {
    matches!(mode, Mode::Icmpecho | Mode::Rxonly | Mode::Txonly)
}

/// Refuses ports that can't be paired, before anything is opened.
pub(crate) fn check(args: &FwdArgs) -> Result<(), Error> {
    if goes_back(args.mode) {
        return Ok(());
    }
    for pair in args.size.ports.chunks_exact(2) {
        let [one, other] = [&pair[0], &pair[1]];
        let (queues, other_queues) = (one.queues(), other.queues());
        if queues != other_queues {
            return Err(format!(
                "ports '{one}' and '{other}' forward to each other but have {queues} and {other_queues} queues; \
                 allowed: the same number. Give both queues={}",
                queues.min(other_queues)
            )
            .into());
        }
    }
    Ok(())
}
