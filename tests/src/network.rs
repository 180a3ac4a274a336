//! A namespace under test between two kernel peers, and the forwarder in it.

use crate::{Fwd, Netns, Veth};

/// The address of the peer at `ve0`.
pub const LEFT: &str = "10.0.0.1";
/// The address of the peer at `vf0`.
pub const RIGHT: &str = "10.0.0.2";

/// A namespace under test between two kernel peers.
///
/// ```text
///   peer LEFT               under test             peer RIGHT
///   | ve1 | ---------- | ve0 | fwd | vf0 | ---------- | ve1 |
/// ```
#[derive(Debug)]
pub struct Network {
    /// The namespace with `ve0` and `vf0`.
    pub under_test: Netns,
    /// The peer at `ve0`.
    pub left: Veth,
    /// The peer at `vf0`.
    pub right: Veth,
}

impl Network {
    /// Makes the namespaces, with `queues` queues at each interface.
    #[must_use]
    pub fn new(queues: u32) -> Self {
        let under_test = Netns::new("fwd");
        let left = Veth::new(&under_test, "ve0", LEFT, queues);
        let right = Veth::new(&under_test, "vf0", RIGHT, queues);
        Self { under_test, left, right }
    }

    /// `sheafio fwd` between both interfaces; `options` go to both ports.
    #[must_use]
    pub fn forward(&self, options: &str, args: &[&str]) -> Fwd {
        let (left, right) = (format!("ve0{options}"), format!("vf0{options}"));
        Fwd::start(&self.under_test, &[&["-p", &left, "-p", &right], args].concat())
    }

    /// Whether that many pings of the left peer are answered by the right one.
    pub fn pings(&self, count: u32) -> bool {
        let count = count.to_string();
        self.left.peer.succeeds("ping", &["-c", &count, "-i", "0.05", "-W", "2", RIGHT])
    }
}
