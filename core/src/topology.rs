//! The machine's packages, NUMA nodes, cores and SMT siblings.
//!
//! Owns: a plain copy of what hwloc found. Never does: keep hwloc's topology. Invariant: none;
//! tests fill the struct in themselves.

use std::fs;

use hwlocality::object::{TopologyObject, attributes::ObjectAttributes, types::ObjectType};

use sheafio_mempool::ZoneSpec;

use crate::{CoreError, CpuList};

/// The machine, as far as placement needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Numbers of the processor packages.
    pub packages: Vec<u32>,
    /// The NUMA nodes, by their numbers.
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
    /// The distance to each of the machine's nodes in the order of [`Topology::nodes`], 10 to itself
    /// (ACPI SLIT, as the kernel shows it); empty if not known.
    pub distances: Vec<u32>,
}

/// The zones that a pool should have on a machine, for a set of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zoning {
    /// What [`MempoolBuilder::zone_specs`](sheafio_mempool::MempoolBuilder::zone_specs) takes.
    pub specs: Vec<ZoneSpec>,
    /// What the user should know about it, a line each.
    pub warnings: Vec<String>,
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
        let mut topology = Self::from_hwloc(&found);
        for node in &mut topology.nodes {
            let path = format!("/sys/devices/system/node/node{}/distance", node.id);
            let text = fs::read_to_string(path).unwrap_or_default();
            node.distances = text.split_whitespace().filter_map(|distance| distance.parse().ok()).collect();
        }
        Ok(topology)
    }

    /// A zone for each NUMA node that the CPUs belong to. CPUs of a node without memory, and those of
    /// no node, go to the nearest node that has some; one warning says so.
    pub fn zones_for(&self, cpus: &[u32]) -> Zoning {
        let mut zoning = Zoning::default();
        let mut moved = Vec::new();
        for &cpu in cpus {
            let own = self.nodes.iter().position(|node| node.cpus.contains(&cpu));
            let Some(home) = self.nearest_with_memory(own) else { continue };
            if own != Some(home) && self.nodes.len() > 1 {
                moved.push((cpu, home));
            }
            let node = Some(self.nodes[home].id);
            match zoning.specs.iter_mut().find(|spec| spec.node == node) {
                Some(spec) => spec.cpus.push(cpu),
                None => zoning.specs.push(ZoneSpec { node, cpus: vec![cpu] }),
            }
        }
        if self.nodes.len() < 2 || zoning.specs.is_empty() {
            // There is nothing to choose from.
            zoning.specs = vec![ZoneSpec { node: None, cpus: cpus.to_vec() }];
        }
        if !moved.is_empty() {
            let moved: Vec<_> = moved
                .iter()
                .map(|(cpu, home)| format!("CPU {cpu} uses node {}", self.nodes[*home].id))
                .collect();
            zoning.warnings.push(format!(
                "pool: {}: there is no memory on its own NUMA node. Choose CPUs of a node with memory for full speed",
                moved.join(", ")
            ));
        }
        zoning
    }

    /// What the user should know if an interface's device sits on another NUMA node than some of the CPUs that serve it: the
    /// CPUs, and which ones would be near.
    pub fn crossing(&self, interface: &str, node: u32, cpus: &[u32]) -> Option<String> {
        let home = self.nodes.iter().find(|home| home.id == node)?;
        let far = CpuList(cpus.iter().copied().filter(|cpu| !home.cpus.contains(cpu)).collect());
        if far.0.is_empty() {
            return None;
        }
        let near = if home.cpus.is_empty() {
            "that node has no CPU".to_owned()
        } else {
            format!("CPUs of that node: {} (--cores)", CpuList(home.cpus.clone()))
        };
        Some(format!(
            "{interface}: its device is on NUMA node {node}, and CPUs {far}, which serve it, are not: every packet crosses \
             between nodes; {near}"
        ))
    }

    /// The node itself if it has memory, else the nearest that has; of equally near ones the first.
    fn nearest_with_memory(&self, own: Option<usize>) -> Option<usize> {
        let with_memory = (0..self.nodes.len()).filter(|node| self.nodes[*node].memory_bytes > 0);
        with_memory.min_by_key(|node| {
            let distance = own.and_then(|own| self.nodes[own].distances.get(*node));
            (own != Some(*node), distance.copied().unwrap_or(u32::MAX))
        })
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
            distances: Vec::new(),
        };
        let core = |object: &TopologyObject| Core {
            package: object.first_ancestor_with_type(ObjectType::Package).and_then(number),
            node: object.nodeset().and_then(|set| set.first_set()).map(|node| usize::from(node) as u32),
            cpus: cpus(object),
        };
        let mut nodes: Vec<_> = found.objects_with_type(ObjectType::NUMANode).map(node).collect();
        // The kernel lists distances by number; hwloc lists nodes by where they are.
        nodes.sort_by_key(|node| node.id);
        Self {
            packages: found.objects_with_type(ObjectType::Package).filter_map(number).collect(),
            nodes,
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

    /// Node 0 with CPUs 0 and 1; node 1 without memory, CPUs 2 and 3; node 2 with CPU 4.
    fn with_an_empty_node() -> Topology {
        let node = |id: u32, memory_bytes, cpus: &[u32], distances: [u32; 3]| NumaNode {
            id,
            memory_bytes,
            cpus: cpus.to_vec(),
            distances: distances.to_vec(),
        };
        let nodes = vec![
            node(0, 1 << 30, &[0, 1], [10, 40, 30]),
            node(1, 0, &[2, 3], [40, 10, 20]),
            node(2, 1 << 30, &[4], [30, 20, 10]),
        ];
        Topology { packages: vec![0], nodes, cores: vec![] }
    }

    #[test]
    fn each_node_with_lcores_becomes_a_zone() {
        let zoning = with_an_empty_node().zones_for(&[1, 4]);
        let zone = |node, cpus: &[u32]| ZoneSpec { node: Some(node), cpus: cpus.to_vec() };
        assert_eq!(zoning.specs, [zone(0, &[1]), zone(2, &[4])]);
        assert!(zoning.warnings.is_empty());
        assert_eq!(with_an_empty_node().zones_for(&[0, 1]).specs, [zone(0, &[0, 1])]);
    }

    #[test]
    fn cpus_of_an_empty_node_go_to_the_nearest_with_one_warning() {
        let zoning = with_an_empty_node().zones_for(&[2, 0, 3]);
        let zone = |node, cpus: &[u32]| ZoneSpec { node: Some(node), cpus: cpus.to_vec() };
        assert_eq!(zoning.specs, [zone(2, &[2, 3]), zone(0, &[0])]);
        assert_eq!(zoning.warnings.len(), 1);
        assert!(zoning.warnings[0].contains("CPU 2 uses node 2, CPU 3 uses node 2"), "{:?}", zoning.warnings);
    }

    #[test]
    fn cpus_that_are_far_from_the_device_they_serve_are_told() {
        let topology = with_an_empty_node();
        assert_eq!(topology.crossing("eth0", 0, &[0, 1]), None);
        let told = topology.crossing("eth0", 2, &[4, 1, 0]).unwrap();
        let parts =
            ["eth0: its device is on NUMA node 2", "CPUs 1,0, which serve it", "CPUs of that node: 4 ("];
        assert!(parts.iter().all(|part| told.contains(part)), "{told}");
        // A node that nobody knows, as on machines whose firmware says nothing.
        assert_eq!(topology.crossing("eth0", 7, &[0]), None);
    }

    #[test]
    fn a_cpu_of_no_node_gets_memory_all_the_same() {
        let zoning = with_an_empty_node().zones_for(&[77]);
        assert_eq!(zoning.specs, [ZoneSpec { node: Some(0), cpus: vec![77] }]);
        assert_eq!(zoning.warnings.len(), 1);
        let nowhere = Topology::default().zones_for(&[0, 1]);
        assert_eq!(nowhere.specs, [ZoneSpec { node: None, cpus: vec![0, 1] }]);
        assert!(nowhere.warnings.is_empty());
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
    }
}
