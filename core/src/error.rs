//! Why an lcore or the topology could not be set up.

use crate::CpuList;

/// An error of lcore set-up. The data path returns counts, never one of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoreError {
    /// The CPU is not one that this process may run on.
    #[error(
        "lcore: CPU {cpu} can't be used by this process; allowed: {allowed}. Name one of those, or change the \
         process's cpuset or taskset."
    )]
    Cpu {
        /// The asked CPU.
        cpu: u32,
        /// The CPUs that may be used.
        allowed: CpuList,
    },
    /// A list of CPUs could not be read.
    #[error("CPU list '{text}': {problem}; allowed: numbers and ranges, such as 1,3-5")]
    CpuList {
        /// The list as given.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The kernel refused to pin the thread.
    #[error("lcore: can't pin to CPU {cpu}: {source}")]
    Pin {
        /// The asked CPU.
        cpu: u32,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The signal handlers could not be installed.
    #[error("lcore: can't handle SIGINT and SIGTERM: {0}")]
    Signals(std::io::Error),
    /// hwloc could not read the machine's topology.
    #[error("topology: hwloc can't read it: {0}. Is /sys mounted?")]
    Topology(String),
    /// The lcore got no pool cache.
    #[error(transparent)]
    Pool(#[from] sheafio_mempool::PoolError),
}
