//! Ports of all kinds, opened by their specifications.
//!
//! Owns: the ring ends that wait for their second use, and which interfaces are open. Never does: read texts; that is
//! `spec.rs`'s part. Invariant: an interface is opened once, a ring has two ends.

use std::collections::HashMap;

use sheafio_core::Queue;
use sheafio_mempool::Mempool;

use crate::{
    DriverError, Port, PortSpec,
    af_xdp::{self, Returning, wait_for_links},
    null::NullQueue,
    port::{NoControl, soft_mac},
    ring::{self, RingQueue},
    sim,
    spec::Kind,
};

/// Opens ports by their specification; knows the rings whose second end is still to be taken.
pub struct Ports {
    pool: &'static Mempool,
    rings: HashMap<String, Option<RingQueue>>,
    interfaces: Vec<String>,
    /// Links that went down when their ports were opened.
    returning: Vec<Returning>,
    opened: u8,
}

impl Ports {
    /// Ports whose packets lie in this pool.
    pub fn new(pool: &'static Mempool) -> Self {
        Self { pool, rings: HashMap::new(), interfaces: Vec::new(), returning: Vec::new(), opened: 0 }
    }

    /// Waits until the links are back that went down because their ports were opened: many drivers reset their NIC
    /// when it gets an XDP program. All come up at the same time, so this is to be called once, with all ports open. Ends
    /// early when `is_over` says so, and with a link 5 s after its port was opened; returns what the user should know
    /// of those that are not back, a line each.
    pub fn wait_for_links(&mut self, is_over: impl Fn() -> bool) -> Vec<String> {
        wait_for_links(&mut self.returning, is_over)
    }

    /// Opens a port. The first use of a ring's name gives its one end, the second the other. Before packets are sent,
    /// call [`Ports::wait_for_links`].
    ///
    /// # Errors
    /// Each [`DriverError`] names the port, what was asked, what is possible and the remedy.
    pub fn open(&mut self, spec: &PortSpec) -> Result<Port, DriverError> {
        let number = self.opened;
        self.opened = self.opened.wrapping_add(1);
        let soft = |kind: &str, queues: Vec<Box<dyn Queue>>| Port {
            name: format!("{kind}:{}", spec.name),
            mode: "in memory".to_owned(),
            mac: soft_mac(1, number),
            mtu: None,
            numa_node: None,
            tells_tags: false,
            warnings: vec![],
            queues,
            control: Box::new(NoControl),
        };
        let mut spec = spec.clone();
        spec.look_up()?;
        Ok(match &spec.kind {
            Kind::AfXdp(config) => {
                // The kernel's own name: an interface may be asked for by an alternative one.
                let interface = af_xdp::name_of(&spec.name).unwrap_or_else(|| spec.name.clone());
                if self.interfaces.contains(&interface) {
                    return Err(DriverError::Spec {
                        spec: spec.text.clone(),
                        problem: format!("interface {interface} is opened by another port already"),
                        allowed: "each interface once; several queues of it with queues=N, start=N"
                            .to_owned(),
                    });
                }
                let (port, returning) = af_xdp::open_at_once(&spec.name, config, self.pool)?;
                self.returning.extend(returning);
                self.interfaces.push(interface);
                port.into_port()
            }
            Kind::Sim(config) => sim::open(&spec.name, config, self.pool)?.into_port(number),
            Kind::Null { queues, len_bytes } => {
                let queue = |_| Box::new(NullQueue::new(*len_bytes)) as Box<dyn Queue>;
                soft("null", (0..*queues).map(queue).collect())
            }
            Kind::Ring { size } => {
                let end = if let Some(second) = self.rings.get_mut(&spec.name) {
                    second.take().ok_or_else(|| DriverError::RingEnds { name: spec.name.clone() })?
                } else {
                    let (first, second) = ring::pair(self.pool, *size);
                    self.rings.insert(spec.name.clone(), Some(second));
                    first
                };
                soft("ring", vec![Box::new(end)])
            }
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_two_ends() {
        let pool = Mempool::builder().frames(64).hugepages(sheafio_mempool::Hugepages::Off).build().unwrap();
        let mut ports = Ports::new(pool);
        let spec: PortSpec = "ring:a".parse().unwrap();
        assert!(ports.open(&spec).is_ok() && ports.open(&spec).is_ok());
        assert!(ports.open(&spec).err().unwrap().to_string().contains("both ends are in use"));
    }
}
