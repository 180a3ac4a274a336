//! Ports as users write them: `KIND:NAME,key=value,...`, or a bare interface name.
//!
//! Owns: reading the text. Never does: open anything; that is `ports.rs`'s part. Invariant: what is not known is
//! refused, with what is known. `spec/options.rs` has the keys.

mod options;

use std::{fmt, num::NonZeroU32, str::FromStr};

use self::options::Bad;
pub(crate) use self::options::Kind;
use crate::{DriverError, af_xdp, sim};

/// The kinds of ports, as users write them.
const KINDS: &str = "af_xdp:INTERFACE (or just INTERFACE), ring:NAME, null:NAME, sim:NAME";

/// A port that a user named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    pub(crate) text: String,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Whether the user has said how long the rings are.
    has_ring: bool,
    /// `queues=all`, and nobody has asked the interface yet how many it has.
    all_queues: bool,
}

impl PortSpec {
    /// Number of queues that the port will have.
    pub fn queues(&self) -> u32 {
        match &self.kind {
            Kind::AfXdp(config) => config.queues.len(),
            Kind::Ring { .. } => 1,
            Kind::Null { queues, .. } => *queues,
            Kind::Sim(config) => config.queues,
        }
    }

    /// Asks the interface for what the specification leaves to it: with `queues=all`, how many queues it has now. Until
    /// then the port has one.
    ///
    /// # Errors
    /// [`DriverError::NoInterface`].
    pub fn look_up(&mut self) -> Result<(), DriverError> {
        if let (Kind::AfXdp(config), true) = (&mut self.kind, self.all_queues) {
            config.queues = af_xdp::queues_of(&self.name)?;
            self.all_queues = false;
        }
        Ok(())
    }

    /// The network interface, for ports that are on one.
    pub fn interface(&self) -> Option<&str> {
        matches!(self.kind, Kind::AfXdp(_)).then_some(self.name.as_str())
    }

    /// Slots of each queue's TX ring: so many frames can wait there. 0 for ports without one.
    pub fn tx_slots(&self) -> u32 {
        match &self.kind {
            Kind::AfXdp(config) => config.ring,
            Kind::Ring { size } => *size,
            Kind::Null { .. } => 0,
            Kind::Sim(config) => config.ring,
        }
    }

    /// Frames that each queue keeps ready for reception: as the user has said, else as many as its ring
    /// has slots. `None` for ports without a fill ring.
    pub fn fill(&self) -> Option<u32> {
        match &self.kind {
            Kind::AfXdp(config) => Some(config.fill.unwrap_or(config.ring).min(config.ring)),
            Kind::Sim(config) => Some(config.fill.unwrap_or(config.ring).min(config.ring)),
            Kind::Ring { .. } | Kind::Null { .. } => None,
        }
    }

    /// Frames that each queue should keep ready for reception, if the user has said so.
    pub fn asked_fill(&self) -> Option<u32> {
        match &self.kind {
            Kind::AfXdp(config) => config.fill,
            Kind::Sim(config) => config.fill,
            Kind::Ring { .. } | Kind::Null { .. } => None,
        }
    }

    /// Whether the user has said how long the rings are.
    pub fn has_ring(&self) -> bool {
        self.has_ring
    }

    /// Whether these are the two ends of one ring port.
    pub fn is_other_end_of(&self, other: &Self) -> bool {
        matches!((&self.kind, &other.kind), (Kind::Ring { .. }, Kind::Ring { .. })) && self.name == other.name
    }

    /// Slots of each of the rings, a power of two, unless the user has said how many.
    pub fn set_ring(&mut self, slots: u32) {
        match &mut self.kind {
            Kind::AfXdp(config) if !self.has_ring => config.ring = slots,
            Kind::Sim(config) if !self.has_ring => config.ring = slots,
            _ => {}
        }
    }

    /// Frames that each queue keeps ready for reception, unless the user has said how many.
    pub fn set_fill(&mut self, frames: NonZeroU32) {
        match &mut self.kind {
            Kind::AfXdp(config) => _ = config.fill.get_or_insert(frames.get()),
            Kind::Sim(config) => _ = config.fill.get_or_insert(frames.get()),
            Kind::Ring { .. } | Kind::Null { .. } => {}
        }
    }

    /// The CPUs whose lcores will serve the queues, from the first again when there are fewer.
    pub fn set_cpus(&mut self, cpus: &[u32]) {
        match &mut self.kind {
            Kind::AfXdp(config) => config.cpus = cpus.to_vec(),
            Kind::Sim(config) => config.cpus = cpus.to_vec(),
            Kind::Ring { .. } | Kind::Null { .. } => {}
        }
    }

    /// Whether the interface is promiscuous while the port is open, unless the user has said so.
    pub fn set_promisc(&mut self, promisc: bool) {
        if let Kind::AfXdp(config) = &mut self.kind {
            config.promisc.get_or_insert(promisc);
        }
    }

    /// The Ethernet group addresses to which the interface takes packets too.
    pub fn set_groups(&mut self, groups: &[[u8; 6]]) {
        if let Kind::AfXdp(config) = &mut self.kind {
            config.groups = groups.to_vec();
        }
    }

    /// Whether the user has said which packets are the port's.
    pub fn has_steer(&self) -> bool {
        matches!(&self.kind, Kind::AfXdp(config) if config.steer != af_xdp::Steering::All)
    }

    /// Which packets are the port's, unless the user has said so.
    pub fn set_steer(&mut self, steering: af_xdp::Steering) {
        if let Kind::AfXdp(config) = &mut self.kind
            && config.steer == af_xdp::Steering::All
        {
            config.steer = steering;
        }
    }

    /// Takes other XDP programs off the interface.
    pub fn set_force(&mut self) {
        if let Kind::AfXdp(config) = &mut self.kind {
            config.force = true;
        }
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for PortSpec {
    type Err = DriverError;

    fn from_str(text: &str) -> Result<Self, DriverError> {
        let refuse =
            |problem: String, allowed: String| DriverError::Spec { spec: text.to_owned(), problem, allowed };
        let (port, options) =
            text.split_once(',').map_or((text, None), |(port, options)| (port, Some(options)));
        let (kind, name) = match port.split_once(':') {
            Some(parts) => parts,
            None if matches!(port, "af_xdp" | "ring" | "null" | "sim") => (port, ""), // Its colon was forgotten.
            None => ("af_xdp", port),
        };
        let mut kind = match kind {
            "af_xdp" => Kind::AfXdp(af_xdp::Config::default()),
            "ring" => Kind::Ring { size: 1024 },
            "null" => Kind::Null { queues: 1, len_bytes: 64 },
            "sim" => Kind::Sim(sim::Config::default()),
            unknown => return Err(refuse(format!("unknown kind '{unknown}'"), KINDS.to_owned())),
        };
        if name.is_empty() {
            return Err(refuse("the name is missing".to_owned(), KINDS.to_owned()));
        }
        let (mut seen, mut pairs) = (Vec::new(), Vec::new());
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            let (key, value) = option
                .split_once('=')
                .ok_or_else(|| refuse(format!("'{option}' is not key=value"), kind.keys().to_owned()))?;
            if seen.contains(&key) {
                return Err(refuse(format!("'{key}' is given twice"), "each key once".to_owned()));
            }
            seen.push(key);
            pairs.push((key, value));
        }
        pairs.sort_by_key(|(key, _)| *key == "start"); // It shifts what `queues` has said.
        let all_queues = matches!(kind, Kind::AfXdp(_)) && pairs.contains(&("queues", "all"));
        if all_queues {
            pairs.retain(|pair| *pair != ("queues", "all"));
            if let Some((_, value)) = pairs.iter().find(|(key, _)| *key == "start") {
                let problem = format!("start='{value}' with queues=all is not possible");
                return Err(refuse(problem, "start=N with queues=N, a number".to_owned()));
            }
        }
        for (key, value) in pairs {
            kind.set(key, value).map_err(|bad| match bad {
                Bad::Key => refuse(format!("unknown key '{key}'"), kind.keys().to_owned()),
                Bad::Rule { problem, allowed } => refuse(format!("{key}={problem}"), allowed),
                Bad::Value(allowed) => {
                    refuse(format!("{key}='{value}' is not possible"), format!("{key}={allowed}"))
                }
            })?;
        }
        let has_ring = seen.contains(&"ring");
        Ok(Self { text: text.to_owned(), name: name.to_owned(), kind, has_ring, all_queues })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sim::Faults;

    #[test]
    fn what_is_known_is_read() {
        let config = |text: &str| match text.parse::<PortSpec>().unwrap().kind {
            Kind::AfXdp(config) => config,
            other => panic!("{other:?}"),
        };
        assert_eq!(config("eth0"), af_xdp::Config::default());
        assert_eq!(config("af_xdp:eth0"), config("eth0"));
        let all = config(
            "eth0,queues=2,start=1,mode=generic,copy=copy,ring=512,fill=100,force=yes,promisc=yes,steer=arp+udp@[fd00::2]:7",
        );
        assert_eq!(all.steer.to_string(), "arp+udp@[fd00::2]:7");
        assert_eq!(
            (all.queues.numbers(), all.ring, all.fill, all.force),
            (&[1, 2][..], 512, Some(100), true)
        );
        assert_eq!((all.promisc, config("eth0,promisc=no").promisc), (Some(true), Some(false)));
        let mut left_open: PortSpec = "eth0,promisc=auto".parse().unwrap();
        left_open.set_promisc(true);
        assert!(matches!(left_open.kind, Kind::AfXdp(af_xdp::Config { promisc: Some(true), .. })));
        let mut said: PortSpec = "eth0,promisc=no".parse().unwrap();
        said.set_promisc(true);
        assert!(matches!(said.kind, Kind::AfXdp(af_xdp::Config { promisc: Some(false), .. })));
        let queues = |text: &str| config(text).queues.to_string();
        assert_eq!(queues("eth0,start=2,queues=3"), "2-4");
        assert_eq!(queues("eth0,queues=0-1+5"), "0-1+5");
        assert_eq!(queues("eth0,start=7"), "7");
        let mut all_of_it: PortSpec = "lo,queues=all".parse().unwrap();
        all_of_it.look_up().unwrap();
        assert_eq!((all_of_it.queues(), all_of_it.all_queues), (1, false));
        assert!("no-such-if,queues=all".parse::<PortSpec>().unwrap().look_up().is_err());
        assert_eq!((all.mode, all.copy), (af_xdp::Mode::Generic, af_xdp::CopyMode::Copy));
        let sim: PortSpec = "sim:x,seed=7,faults=late+full,packets=9".parse().unwrap();
        let faults = Faults { late: true, full: true, ..Faults::default() };
        assert_eq!(
            sim.kind,
            Kind::Sim(sim::Config { seed: 7, faults, packets: 9, ..sim::Config::default() })
        );
        assert_eq!(
            (sim.to_string().as_str(), sim.interface(), sim.queues()),
            ("sim:x,seed=7,faults=late+full,packets=9", None, 1)
        );
        assert_eq!("null:0,queues=4,len=128".parse::<PortSpec>().unwrap().queues(), 4);
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_is_known() {
        for (text, problem, allowed) in [
            ("", "the name is missing", "af_xdp:INTERFACE"),
            ("null:", "the name is missing", "null:NAME"),
            ("null", "the name is missing", "null:NAME"),
            ("dpdk:0", "unknown kind 'dpdk'", "ring:NAME, null:NAME, sim:NAME"),
            ("eth0,speed=9", "unknown key 'speed'", "mode=auto|native|generic"),
            ("eth0,queues", "'queues' is not key=value", "queues=N"),
            ("eth0,queues=0", "queues='0' is not possible", "queues=all, a number of queues, 1 to 1024"),
            ("eth0,queues=3-1", "queues='3-1' is not possible", "a list of them, 0 to 1023: 0-3"),
            ("eth0,queues=1-2,start=1", "start='1' is not possible", "with queues=N that is a number"),
            ("eth0,queues=all,start=1", "start='1' with queues=all is not possible", "queues=N, a number"),
            ("null:0,queues=all", "queues='all' is not possible", "queues=1 to 1024"),
            ("eth0,queues=2,start=1023", "start='1023' is not possible", "the last queue up to 1023"),
            ("eth0,queues=2,queues=3", "'queues' is given twice", "each key once"),
            ("eth0,mode=fast", "mode='fast' is not possible", "mode=auto|native|generic"),
            ("eth0,copy=no", "copy='no' is not possible", "copy=auto|copy|zerocopy"),
            ("eth0,promisc=1", "promisc='1' is not possible", "promisc=auto|yes|no"),
            ("eth0,steer=arp+ssh", "steer='ssh': unknown kind 'ssh'", "arp, ip, ip6, tcp"),
            ("eth0,steer=udp:0", "steer='udp:0': port 0 is nobody's", "a port from 1 to 65535"),
            ("eth0,ring=100", "ring='100' is not possible", "a power of two from 64 to 32768"),
            ("ring:a,size=3", "size='3' is not possible", "a power of two"),
            ("null:0,len=9000", "len='9000' is not possible", "len=14 to 1728"),
            ("sim:0,faults=rain", "faults='rain' is not possible", "wakeup+late+reorder+full"),
            ("sim:0,seed=-1", "seed='-1' is not possible", "seed=0 to"),
        ] {
            let message = text.parse::<PortSpec>().unwrap_err().to_string();
            assert!(message.contains(problem) && message.contains(allowed), "{text}: {message}");
            assert!(!message.contains('\n'));
        }
    }
}
