//! Changes rules and reads counts while packets flow.
//!
//! Owns: the two banks of rules, and which of them holds. Never does: write a bank that a program may be reading,
//! or need a right that an open port does not: the maps were made when the program was loaded. Invariant: a packet
//! is judged by the rules before a change or by those after it, never by a mix; once a change has returned, only
//! by those after it.

use std::{
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, Mutex},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use libbpf_sys as sys;

use super::{
    super::verdict::VerdictCounts,
    Steering,
    words::{BANK_BYTES, bank},
};
use crate::DriverError;

/// The one element of each map.
const ELEMENT: [u8; 4] = [0; 4];

/// Steers an open port: what its XDP program takes, and what became of the packets that it saw. Clones steer the
/// same port; rules may change at any time and from any thread, while lcores poll the port's queues.
#[derive(Clone, Debug)]
pub struct Steer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    interface: String,
    /// The map of one bank that holds the rules in force; empty while everything is taken.
    steering: MapHandle,
    verdicts: MapHandle,
    banks: [MapHandle; 2],
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    steering: Steering,
    /// The bank that no program reads.
    idle: usize,
}

impl Steer {
    /// For a program just loaded, which takes everything.
    pub(in super::super) fn new(interface: &str, object: &Object) -> libbpf_rs::Result<Self> {
        let map = |name: &str| {
            let map = object.maps().find(|map| map.name() == name);
            MapHandle::try_from(&map.expect("xdp.bpf.c defines this map"))
        };
        let options = sys::bpf_map_create_opts {
            sz: size_of::<sys::bpf_map_create_opts>() as sys::size_t,
            ..Default::default()
        };
        let bank = || MapHandle::create(MapType::Array, Some("bank"), 4, BANK_BYTES as u32, 1, &options);
        let shared = Shared {
            interface: interface.to_owned(),
            steering: map("steering")?,
            verdicts: map("verdicts")?,
            banks: [bank()?, bank()?],
            now: Mutex::new(Now { steering: Steering::All, idle: 0 }),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Changes what is ours. Waits for the packets that are being judged by the old rules, which takes as long as
    /// an RCU grace period: milliseconds.
    ///
    /// # Errors
    /// [`DriverError::Rule`] for more than [`Steering::MAX_RULES`] rules, [`DriverError::Steer`] if the kernel
    /// refuses the change. What is ours stays as it was then.
    pub fn set(&self, steering: &Steering) -> Result<(), DriverError> {
        steering.check()?;
        let shared = &*self.shared;
        let mut now = shared.now.lock().expect("no panic under this lock");
        let done = match steering {
            Steering::All if now.steering == Steering::All => return Ok(()),
            // Deleting and updating an element of a map of maps waits for every program that may have read it
            // (maybe_wait_bpf_programs in kernel/bpf/syscall.c), so the bank that it held is idle afterwards.
            Steering::All => shared.steering.delete(&ELEMENT),
            Steering::Only(rules) => {
                let idle = &shared.banks[now.idle];
                let written = idle.update(&ELEMENT, &bank(rules), MapFlags::ANY);
                let fd = idle.as_fd().as_raw_fd().to_ne_bytes();
                written.and_then(|()| shared.steering.update(&ELEMENT, &fd, MapFlags::ANY))
            }
        };
        done.map_err(|error| DriverError::Steer {
            interface: shared.interface.clone(),
            asked: steering.to_string(),
            reason: error.to_string(),
        })?;
        if matches!(steering, Steering::Only(_)) {
            now.idle = 1 - now.idle;
        }
        now.steering = steering.clone();
        Ok(())
    }

    /// The id of the bank that holds; `None` while everything is taken.
    #[cfg(all(test, not(loom)))]
    pub(super) fn bank_in_force(&self) -> Option<Vec<u8>> {
        self.shared.steering.lookup(&ELEMENT, MapFlags::ANY).unwrap()
    }

    /// What is ours now.
    pub fn steering(&self) -> Steering {
        self.shared.now.lock().expect("no panic under this lock").steering.clone()
    }

    /// What became of the packets that the program saw since it was loaded, summed over all CPUs. They can still
    /// be read after the port has closed.
    ///
    /// # Errors
    /// [`DriverError::Steer`] if the kernel refuses to tell.
    pub fn counts(&self) -> Result<VerdictCounts, DriverError> {
        let by_cpu = self.shared.verdicts.lookup_percpu(&ELEMENT, MapFlags::ANY);
        let by_cpu = by_cpu.map_err(|error| DriverError::Steer {
            interface: self.shared.interface.clone(),
            asked: "its counts".to_owned(),
            reason: error.to_string(),
        })?;
        let mut counts = VerdictCounts::default();
        by_cpu.iter().flatten().for_each(|of_cpu| counts.add(of_cpu));
        Ok(counts)
    }
}
