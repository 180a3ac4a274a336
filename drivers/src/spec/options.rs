//! What each kind of port can be asked for, key by key.
//!
//! Owns: the keys and their values. Never does: split the text, which is `spec.rs`'s part. Invariant: a value that is
//! refused changes nothing, and the refusal says what is possible.

use std::ops::RangeInclusive;

use crate::{
    DriverError,
    af_xdp::{self, QueueSet},
    sim::{self, Faults},
};

/// The most queues of a port.
const QUEUES: RangeInclusive<u64> = 1..=1024;

/// What a specification asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AfXdp(af_xdp::Config),
    Ring { size: u32 },
    Null { queues: u32, len_bytes: u32 },
    Sim(sim::Config),
}

/// Why an option was refused.
pub(super) enum Bad {
    Key,
    /// One of several rules.
    Rule {
        problem: String,
        allowed: String,
    },
    Value(String),
}

impl Kind {
    /// The keys that this kind knows.
    pub(super) fn keys(&self) -> &'static str {
        match self {
            Self::AfXdp(_) => {
                "queues=N|LIST|all, start=N, mode=auto|native|generic, copy=auto|copy|zerocopy, frags=auto|yes|no, \
                 metadata=yes|no, busy_poll=no|PACKETS, ring=SLOTS, fill=FRAMES, steer=all|none|RULE+RULE, \
                 promisc=auto|yes|no, force=yes|no"
            }
            Self::Ring { .. } => "size=SLOTS",
            Self::Null { .. } => "queues=N, len=BYTES",
            Self::Sim(_) => {
                "queues=N, seed=N, packets=N, len=BYTES, frags=yes|no, ring=SLOTS, fill=FRAMES, budget=N, \
                 faults=NAME+NAME, remove_at=N"
            }
        }
    }

    /// Takes a value for a key.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), Bad> {
        let number = |range: RangeInclusive<u64>| number(value, range);
        let small = |range: RangeInclusive<u64>| number(range).map(|number| number as u32);
        let slots = |range: RangeInclusive<u32>| slots(value, range);
        match (self, key) {
            (Self::AfXdp(config), "queues") => {
                config.queues =
                    value.parse().map_err(|_| Bad::Value(format!("all, {}", QueueSet::ALLOWED)))?;
            }
            (Self::AfXdp(config), "start") => {
                let start = small(0..=1023)?;
                let count = config.queues.len();
                let is_count = QueueSet::range(0, count).as_ref() == Some(&config.queues);
                let queues = QueueSet::range(start, count).filter(|_| is_count);
                config.queues = queues.ok_or_else(|| {
                    Bad::Value(
                        "0 to 1023, with queues=N that is a number, and the last queue up to 1023".to_owned(),
                    )
                })?;
            }
            (Self::AfXdp(config), "mode") => {
                use af_xdp::Mode::{Auto, Generic, Native};
                config.mode = choice(value, &[("auto", Auto), ("native", Native), ("generic", Generic)])?;
            }
            (Self::AfXdp(config), "copy") => {
                use af_xdp::CopyMode::{Auto, Copy, ZeroCopy};
                config.copy = choice(value, &[("auto", Auto), ("copy", Copy), ("zerocopy", ZeroCopy)])?;
            }
            (Self::AfXdp(config), "frags") => {
                use af_xdp::Frags::{Auto, No, Yes};
                config.frags = choice(value, &[("auto", Auto), ("yes", Yes), ("no", No)])?;
            }
            (Self::AfXdp(config), "metadata") => {
                config.metadata = choice(value, &[("yes", true), ("no", false)])?;
            }
            (Self::AfXdp(config), "busy_poll") => {
                config.busy_poll = match value {
                    "no" => None,
                    _ => Some(small(1..=64).map_err(|_| Bad::Value("no, or 1 to 64".to_owned()))? as u16),
                };
            }
            (Self::AfXdp(config), "ring") => config.ring = slots(af_xdp::Config::RING_SIZES)?,
            (Self::AfXdp(config), "fill") => config.fill = Some(small(1..=32_768)?),
            (Self::AfXdp(config), "steer") => config.steer = steering(value)?,
            (Self::AfXdp(config), "promisc") => {
                config.promisc = choice(value, &[("auto", None), ("yes", Some(true)), ("no", Some(false))])?;
            }
            (Self::AfXdp(config), "force") => config.force = choice(value, &[("yes", true), ("no", false)])?,
            (Self::Ring { size }, "size") => *size = slots(1..=1 << 20)?,
            (Self::Null { queues, .. } | Self::Sim(sim::Config { queues, .. }), "queues") => {
                *queues = small(QUEUES)?;
            }
            (Self::Null { len_bytes, .. }, "len") => *len_bytes = small(14..=1728)?,
            (Self::Sim(config), "seed") => config.seed = number(0..=u64::MAX)?,
            (Self::Sim(config), "packets") => config.packets = number(0..=u64::MAX)?,
            (Self::Sim(config), "len") => config.len_bytes = small(60..=65_535)?,
            (Self::Sim(config), "frags") => config.frags = choice(value, &[("yes", true), ("no", false)])?,
            (Self::Sim(config), "ring") => config.ring = slots(1..=32_768)?,
            (Self::Sim(config), "fill") => config.fill = Some(small(1..=32_768)?),
            (Self::Sim(config), "budget") => config.tx_budget = small(1..=32_768)?,
            (Self::Sim(config), "faults") => config.faults = faults(value)?,
            (Self::Sim(config), "remove_at") => config.remove_at = Some(number(0..=u64::MAX)?),
            _ => return Err(Bad::Key),
        }
        Ok(())
    }
}

fn number(value: &str, range: RangeInclusive<u64>) -> Result<u64, Bad> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| Bad::Value(format!("{} to {}", range.start(), range.end())))
}

fn slots(value: &str, range: RangeInclusive<u32>) -> Result<u32, Bad> {
    let slots = value.parse().ok().filter(|slots: &u32| range.contains(slots) && slots.is_power_of_two());
    slots.ok_or_else(|| Bad::Value(format!("a power of two from {} to {}", range.start(), range.end())))
}

fn steering(value: &str) -> Result<af_xdp::Steering, Bad> {
    value.parse().map_err(|error| match error {
        DriverError::Rule { rule, problem, allowed } => {
            Bad::Rule { problem: format!("'{rule}': {problem}"), allowed }
        }
        other => Bad::Value(other.to_string()),
    })
}

fn choice<T: Copy>(value: &str, choices: &[(&str, T)]) -> Result<T, Bad> {
    let chosen = choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice);
    chosen.ok_or_else(|| Bad::Value(choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("|")))
}

fn faults(value: &str) -> Result<Faults, Bad> {
    let mut faults = Faults::default();
    for name in value.split('+') {
        match name {
            "wakeup" => faults.wakeup = true,
            "late" => faults.late = true,
            "reorder" => faults.reorder = true,
            "full" => faults.full = true,
            "none" if value == "none" => {}
            "all" if value == "all" => {
                faults = Faults { wakeup: true, late: true, reorder: true, full: true }
            }
            _ => return Err(Bad::Value(format!("none, all, or some of {}", Faults::NAMES.join("+")))),
        }
    }
    Ok(faults)
}
