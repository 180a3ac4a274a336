//! What the user should know of a port that is opened, in words.
//!
//! Owns: the words. Never does: decide. Invariant: each is one line, which starts with the interface and ends with what
//! helps, or why nothing does.

use std::io;

use sheafio_mempool::Geometry;

use crate::af_xdp::{
    Config, Frags, Mode, Netdev, QueueSet, Steering, cause,
    interface::{Interface, LINK_HEADER_BYTES},
    process::{Process, memlock_limit_bytes},
    program::Program,
    sizes,
    sys::page_bytes,
    tags::TagsBeside,
};

/// What is to be known of an interface before its queues are opened.
pub(super) fn warnings_of(interface: &Interface, config: &Config) -> Vec<String> {
    let (queues, steering) = (&config.queues, &config.steer);
    let name = &interface.name;
    let mut warnings = Vec::new();
    if interface.has_default_route {
        warnings.push(match steering {
            Steering::All => format!(
                "{name}: the default route leads through this interface; the kernel (and a remote login) will get no \
                 packet from the opened queues until this ends. Take only what you need: steer=RULES, such as \
                 steer=udp:7"
            ),
            Steering::Only(_) => format!(
                "{name}: the default route leads through this interface; packets of {steering} are taken from the \
                 opened queues, the kernel gets all others"
            ),
        });
    }
    if matches!(steering, Steering::Only(rules) if rules.is_empty()) {
        warnings.push(format!(
            "{name}: steer=none: the kernel gets all packets, and nothing is received here until rules are set"
        ));
    }
    if queues.last() >= interface.tx_queues {
        let (present, wanted) = (interface.tx_queues, queues.last() + 1);
        warnings.push(format!(
            "{name}: it has {present} TX queue(s): what is sent on queues from {present} on stays where it is (tx_full). \
             To send there too: ethtool -L {name} combined {wanted} (veth: tx {wanted})"
        ));
    }
    warnings.extend(not_opened(name, interface.rx_queues, queues).map(|text| format!("{name}: {text}")));
    if !interface.is_up {
        warnings.push(format!("{name}: the link is down; packets come after: ip link set dev {name} up"));
    }
    warnings
}

/// What becomes of the packets of queues that are not opened, if there are any, of an interface that has `all`.
pub(in crate::af_xdp) fn not_opened(name: &str, all: u32, queues: &QueueSet) -> Option<String> {
    let rest = QueueSet::of((0..all).filter(|queue| !queues.numbers().contains(queue)))?;
    let (opened, last) = (queues.len(), queues.last());
    let fewer = if last + 1 == opened {
        format!(
            "ethtool -L {name} combined {opened} (veth: rx {opened} tx {opened}), or ethtool -X {name} equal {opened}"
        )
    } else {
        format!("ethtool -N {name} flow-type tcp4 dst-port PORT action {last}")
    };
    Some(format!(
        "it has {all} RX queues, not opened of these: {rest}. Packets that it puts there go to the kernel. Open \
         all: queues={all}; or let it use the opened ones: {fewer}"
    ))
}

/// What becomes of packets that are larger than what `frames` of one can hold, if the MTU allows for such.
pub(super) fn too_large(
    interface: &Interface,
    frags: Frags,
    geometry: &Geometry,
    frames: usize,
) -> Option<String> {
    let (name, mtu, data_bytes) = (&interface.name, interface.mtu, geometry.data_bytes());
    let (largest, room) = (mtu.saturating_add(LINK_HEADER_BYTES), data_bytes.saturating_mul(frames as u32));
    if largest <= room {
        return None;
    }
    if frames > 1 {
        let more =
            sizes::larger_data_bytes(geometry).filter(|more| more.saturating_mul(frames as u32) >= largest);
        let larger = if more.is_some() { "frames of 4096 bytes (--frame-size 4096), or: " } else { "" };
        return Some(format!(
            "{name}: at MTU {mtu} packets have up to {largest} bytes, but a packet has {frames} frames of {data_bytes} at \
             most: larger ones are not sent (tx_too_large). Use {larger}ip link set dev {name} mtu {}",
            room - LINK_HEADER_BYTES
        ));
    }
    let (why, allowed) = match frags {
        Frags::No => ("frags=no was asked for", "frags=auto (Linux 6.6), "),
        _ => ("this kernel or driver has no packets in several frames", ""),
    };
    Some(format!(
        "{name}: at MTU {mtu} packets have up to {largest} bytes, but a frame holds {data_bytes}: larger ones are dropped \
         (rx_too_large), as {why}. Use {allowed}{}",
        sizes::remedy(name, mtu, geometry)
    ))
}

/// That a queue could be had with copies only, as the driver was busy.
pub(super) fn was_busy(interface: &Interface, queue: u32, waited_ms: u64) -> String {
    let (name, driver) = (&interface.name, &interface.driver);
    format!(
        "{name} queue {queue}: to do without copies its driver {driver} was busy, and still was after {waited_ms} ms; goes \
         on in copy mode, which is slower. Was a run before this one just ending? Then start again"
    )
}

/// That packets are copied, by the kernel's choice, although the driver could do without.
pub(super) fn copied_for_frags(interface: &Interface, has_frags: bool, geometry: &Geometry) -> String {
    let (name, mtu) = (&interface.name, interface.mtu);
    let why = if has_frags {
        format!(
            "as it can't for packets in several frames, which MTU {mtu} takes. Use {}, or frags=no, which drops larger ones",
            sizes::remedy(name, mtu, geometry)
        )
    } else {
        "copy=zerocopy says why".to_owned()
    };
    format!(
        "{name}: its driver could do without copies, and the kernel copies all the same, which is slower: {why}"
    )
}

/// What becomes of VLAN tags, as the device is now, where the XDP program does not ask for them.
pub(super) fn tags_lost(interface: &Interface, config: &Config, mode: Mode) -> Option<String> {
    let beside = TagsBeside::of(interface)?;
    let could_tell = || {
        mode == Mode::Native && Netdev::of_index(interface.index).is_some_and(|netdev| netdev.tells_tags())
    };
    let (why, or) = if config.metadata {
        ("metadata=yes tells none of them here", "")
    } else if could_tell() {
        ("nobody looks for them", "; or have them told: metadata=yes")
    } else {
        ("nobody looks for them", "")
    };
    let (name, who) = (&interface.name, &beside.device);
    let what = if who == name {
        "the device takes VLAN tags out of packets".to_owned()
    } else {
        format!("its peer {who} leaves VLAN tags beside packets instead of in them")
    };
    let remedy = match beside.remedy() {
        Some(remedy) => format!("Leave tags where they are: {remedy}"),
        None => "Its driver can't leave them where they are (ethtool -k says [fixed])".to_owned(),
    };
    Some(format!("{name}: {what}, and {why}: tagged packets pass for untagged ones. {remedy}{or}"))
}

/// What of metadata was asked for and can't be had.
pub(super) fn without_metadata(
    interface: &Interface,
    mode: Mode,
    program: &Program,
    has_tx: bool,
) -> Vec<String> {
    let name = &interface.name;
    let mut warnings = Vec::new();
    if program.metadata_key().is_none() {
        let why = match (mode, program.refused()) {
            (Mode::Generic, _) => "generic mode has none: use mode=native".to_owned(),
            (_, Some(reason)) => format!(
                "the kernel refuses the program that asks the device: {reason}. It takes Linux 6.7 or newer, with BTF"
            ),
            (_, None) => format!("its driver {} tells nothing of them", interface.driver),
        };
        warnings.push(format!("{name}: received packets come without metadata, as {why}"));
    }
    if !has_tx {
        warnings.push(format!(
            "{name}: no times of sending are told: requests to the kernel take Linux 6.8 or newer"
        ));
    }
    warnings
}

/// What becomes of the frames of zero-copy queues whose driver can't be proven to have let go of them
/// ([`Release`](crate::af_xdp::release::Release)), and why; `None`: there is none.
pub(super) fn without_proof(interface: &Interface, queues: &[(u32, io::Error)]) -> Option<String> {
    let (_, error) = queues.first()?;
    let numbers = QueueSet::of(queues.iter().map(|(number, _)| *number))?;
    let ask = cause::ReleaseAsk {
        queues: numbers.len().into(),
        page_kib: page_bytes() as u64 >> 10,
        limit_kib: memlock_limit_bytes() >> 10,
    };
    Some(format!(
        "{}: queues {numbers}: frames that the driver has when they are closed will be retired, as nothing can tell \
         when it lets go of them: {error}. {}",
        interface.name,
        cause::of_release(error, ask, &Process::look())
    ))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use sheafio_mempool::{Hugepages, Mempool};

    use super::*;

    fn interface() -> Interface {
        Interface { name: "eth7".to_owned(), mtu: 9000, ..Interface::lookup("lo").unwrap() }
    }

    /// Of frames of 2,048 bytes, which hold 1,792.
    fn geometry() -> &'static Geometry {
        Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap().geometry()
    }

    #[test]
    fn packets_that_do_not_fit_are_told_with_what_makes_them_fit() {
        let words = |mtu, frags, frames| {
            too_large(&Interface { mtu, ..interface() }, frags, geometry(), frames).unwrap_or_default()
        };
        assert_eq!(words(1774, Frags::No, 1), "");
        let one = words(3000, Frags::No, 1);
        let parts = [
            "3018 bytes",
            "holds 1792",
            "frags=no was asked for. Use frags=auto",
            "--frame-size 4096",
            "mtu 1770",
        ];
        assert!(parts.iter().all(|part| one.contains(part)), "{one}");
        let one = words(9000, Frags::Auto, 1);
        assert!(one.contains("has no packets in several frames. Use ip link set dev eth7 mtu 1770"), "{one}");
        // 17 frames hold 30,464 bytes, and 65,280 if they are larger ones.
        assert_eq!(words(30_446, Frags::Auto, 17), "");
        let several = words(65_000, Frags::Auto, 17);
        let parts = ["65018 bytes", "17 frames of 1792", "tx_too_large", "--frame-size 4096", "mtu 30446"];
        assert!(parts.iter().all(|part| several.contains(part)), "{several}");
        assert!(!words(65_500, Frags::Auto, 17).contains("--frame-size"));
    }

    #[test]
    fn a_busy_driver_is_named() {
        let words = was_busy(&interface(), 3, 3004);
        assert!(
            words.starts_with("eth7 queue 3: ") && words.contains("3004 ms; goes on in copy mode"),
            "{words}"
        );
    }

    #[test]
    fn copies_that_large_packets_take_are_told_with_what_does_without() {
        let words = copied_for_frags(&interface(), true, geometry());
        for part in ["eth7: ", "MTU 9000", "ip link set dev eth7 mtu 1770", "frags=no"] {
            assert!(words.contains(part), "{words}");
        }
        // Where packets have one frame all the same, that is not why.
        let words = copied_for_frags(&interface(), false, geometry());
        assert!(words.contains("copy=zerocopy says why") && !words.contains("several frames"), "{words}");
    }

    #[test]
    fn queues_whose_frames_will_be_retired_are_named() {
        assert_eq!(without_proof(&interface(), &[]), None);
        let files = || io::Error::from_raw_os_error(libc::EMFILE);
        let words = without_proof(&interface(), &[(0, files()), (2, files())]).unwrap();
        for part in ["eth7: queues 0+2: ", "will be retired", "Too many open files", "RLIMIT_NOFILE"] {
            assert!(words.contains(part), "{words}");
        }
    }
}
