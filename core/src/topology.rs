//! The machine's packages, NUMA nodes, cores and SMT siblings, and where a NIC sits.
//!
//! Owns: a plain copy of what hwloc found. Never does: keep hwloc's topology. Invariant: none;
//! tests fill the struct in themselves.

use std::{fs, path::Path};

use hwlocality::object::{TopologyObject, attributes::ObjectAttributes, types::ObjectType};

use crate::CoreError;

/// The machine, as far as placement needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Numbers of the processor packages.
    pub packages: Vec<u32>,
    /// The NUMA nodes.
    pub nodes: Vec<NumaNode>,
    /// The physical cores.
    pub cores: Vec<Core>,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number in the kernel.
    pub id: u32,
    /// Its memory in bytes; may be 0.
    pub memory_bytes: u64,
    /// Its CPUs; may be none.
    pub cpus: Vec<u32>,
}

/// A physical core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Core {
    /// Its package, where the machine tells.
    pub package: Option<u32>,
    /// Its NUMA node.
    pub node: Option<u32>,
    /// Its CPUs: one, or several SMT siblings.
    pub cpus: Vec<u32>,
}

impl Topology {
    /// Reads the machine's topology with hwloc.
    ///
    /// # Errors
    /// [`CoreError::Topology`] if hwloc can't.
    pub fn detect() -> Result<Self, CoreError> {
        let found = hwlocality::Topology::new().map_err(|error| CoreError::Topology(error.to_string()))?;
        Ok(Self::from_hwloc(&found))
    }

    fn from_hwloc(found: &hwlocality::Topology) -> Self {
        let number = |object: &TopologyObject| object.os_index().map(|index| index as u32);
        let cpus = |object: &TopologyObject| {
            object
                .cpuset()
                .map_or_else(Vec::new, |set| set.iter_set().map(|cpu| usize::from(cpu) as u32).collect())
        };
        let memory_bytes = |object: &TopologyObject| match object.attributes() {
            Some(ObjectAttributes::NUMANode(node)) => node.local_memory().map_or(0, std::num::NonZero::get),
            _ => 0,
        };
        let node = |object: &TopologyObject| NumaNode {
            id: number(object).unwrap_or(0),
            memory_bytes: memory_bytes(object),
            cpus: cpus(object),
        };
        let core = |object: &TopologyObject| Core {
            package: object.first_ancestor_with_type(ObjectType::Package).and_then(number),
            node: object.nodeset().and_then(|set| set.first_set()).map(|node| usize::from(node) as u32),
            cpus: cpus(object),
        };
        Self {
            packages: found.objects_with_type(ObjectType::Package).filter_map(number).collect(),
            nodes: found.objects_with_type(ObjectType::NUMANode).map(node).collect(),
            cores: found.objects_with_type(ObjectType::Core).map(core).collect(),
        }
    }

    /// Picks up to `count` of the allowed CPUs for lcores: those of the node `near` first, one CPU of
    /// each physical core before any SMT sibling, CPU 0 after its peers (the kernel's housekeeping
    /// runs there). Fewer if fewer are allowed; CPUs that the topology does not know come last.
    pub fn pick_cpus(&self, allowed: &[u32], count: usize, near: Option<u32>) -> Vec<u32> {
        let place = |cpu: u32| {
            let core = self.cores.iter().find(|core| core.cpus.contains(&cpu));
            let sibling = core.map_or(usize::MAX, |core| {
                core.cpus
                    .iter()
                    .filter(|other| allowed.contains(other))
                    .position(|other| *other == cpu)
                    .unwrap_or(0)
            });
            let far = near.is_some() && core.and_then(|core| core.node) != near;
            (sibling, far, cpu == 0, cpu)
        };
        let mut cpus = allowed.to_vec();
        cpus.sort_by_key(|cpu| place(*cpu));
        cpus.truncate(count);
        cpus
    }
}

/// The NUMA node of a network interface's device. `None` for virtual ones and where the firmware does
/// not tell.
pub fn interface_numa_node(interface: &str) -> Option<u32> {
    let path = Path::new("/sys/class/net").join(interface).join("device/numa_node");
    fs::read_to_string(path).ok()?.trim().parse().ok() // "-1" is no u32, hence None.
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes with two cores of two siblings each, numbered as Linux does: siblings far apart.
    fn two_nodes() -> Topology {
        let core = |node, cpus: [u32; 2]| Core { package: Some(node), node: Some(node), cpus: cpus.to_vec() };
        Topology {
            packages: vec![0, 1],
            nodes: vec![],
            cores: vec![core(0, [0, 4]), core(0, [1, 5]), core(1, [2, 6]), core(1, [3, 7])],
        }
    }

    #[test]
    fn physical_cores_come_before_siblings() {
        let all: Vec<u32> = (0..8).collect();
        assert_eq!(two_nodes().pick_cpus(&all, 8, None), [1, 2, 3, 0, 4, 5, 6, 7]);
        assert_eq!(two_nodes().pick_cpus(&all, 2, Some(1)), [2, 3]);
        assert_eq!(two_nodes().pick_cpus(&all, 3, Some(0)), [1, 0, 2]);
    }

    #[test]
    fn a_lone_sibling_counts_as_its_core() {
        assert_eq!(two_nodes().pick_cpus(&[4, 5, 6], 3, None), [4, 5, 6]);
        assert_eq!(two_nodes().pick_cpus(&[0], 2, None), [0], "one CPU is enough");
    }

    #[test]
    fn an_unknown_machine_still_gets_cpus() {
        assert_eq!(Topology::default().pick_cpus(&[0, 1, 2], 2, Some(3)), [1, 2]);
    }

    #[test]
    fn hwloc_reads_a_synthetic_machine() {
        let builder = hwlocality::Topology::builder();
        let found =
            builder.from_synthetic("pack:2 [numa(memory=64GB)] core:3 pu:2").unwrap().build().unwrap();
        let topology = Topology::from_hwloc(&found);
        assert_eq!((topology.packages.len(), topology.nodes.len(), topology.cores.len()), (2, 2, 6));
        assert!(topology.cores.iter().all(|core| core.cpus.len() == 2));
        assert_eq!((topology.cores[5].package, topology.cores[5].node), (Some(1), Some(1)));
        assert!(topology.nodes.iter().all(|node| node.memory_bytes > 50 << 30 && node.cpus.len() == 6));
    }

    #[test]
    fn this_machine_is_read() {
        let topology = Topology::detect().unwrap();
        let cpus: Vec<u32> = topology.cores.iter().flat_map(|core| core.cpus.clone()).collect();
        assert!(crate::allowed_cpus().0.iter().all(|cpu| cpus.contains(cpu)));
        assert_eq!(interface_numa_node("lo"), None);
    }
}
