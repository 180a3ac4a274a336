//! The poll loop of sheafio and what it is made of.
//!
//! A [`Queue`] is one RX/TX ring pair of a port. An [`Lcore`] is a thread pinned to one CPU that
//! polls its queues until it is told to stop. Counters have one writer each and can be read by any
//! thread. [`Topology`] says which CPUs are whose siblings and which NUMA node is near.
//!
//! What lies where: `queue` is the trait that drivers implement, `counters` what they count,
//! `lcore` the loop, `idle` what it does when there is nothing to do, `cycles` the clock it is
//! accounted with, `stop` when it ends, `cpus` affinity, `topology` the machine.

mod counters;
mod cpus;
mod cycles;
mod error;
mod idle;
mod lcore;
mod queue;
mod stop;
mod topology;

pub use counters::{DropReason, LcoreCounters, LcoreTotals, QueueCounters, QueueTotals};
pub use cpus::{CpuList, allowed_cpus};
pub use cycles::cycles;
pub use error::CoreError;
pub use idle::IdlePolicy;
pub use lcore::{Lcore, LcoreReport};
pub use queue::{Closed, Queue, close_ends};
pub use stop::Stop;
pub use topology::{Core, NumaNode, Topology, Zoning};
