//! What a device counts by itself: packets that came to it and left it, and packets that it lost.
//!
//! Owns: two sockets by which the kernel is asked, of the network namespace in which the port was opened. Never does:
//! change anything; come near a packet. Invariant: counts begin with the XDP program, those of received packets end
//! with it, and none ever falls.
//!
//! ```text
//!   start.0 | program attached | start.1   ...   end.0 | program taken off | end.1
//! ```
//!
//! The program came and went at some moment between two readings, so of the packets that the device received it saw
//! at least `end.0 - start.1` and at most `end.1 - start.0`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Write},
    ops::RangeInclusive,
    os::fd::OwnedFd,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{
    Mode,
    driver::{ETHTOOL_GSSET_INFO, ETHTOOL_GSTRINGS, STRING_WORDS, text_of},
    fence::Fenced,
    interface::{control_socket, ethtool_on, name_on},
    losses,
    sys::{route_socket, wait_for_programs_to_end},
};

// Commands and string sets of linux/ethtool.h.
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETH_SS_STATS: u32 = 1;
/// Statistics that a driver may get between being asked how many it has and being asked for them. If they are still more,
/// as where the name has become another device's, the answer ends at the fence, and this look tells nothing.
const STATISTICS_TO_SPARE: usize = 4096;

/// Fields of `struct rtnl_link_stats64` (linux/if_link.h), by their place, that every kernel with
/// [`RTM_GETSTATS`](libc::RTM_GETSTATS) has (Linux 4.7).
const LINK_WORDS: usize = 24;
const RX_PACKETS: usize = 0;
const TX_PACKETS: usize = 1;
const RX_DROPPED: usize = 6;
const TX_DROPPED: usize = 7;
const RX_MISSED: usize = 15;
/// Those that count lost packets.
const LINK_LOSSES: [(usize, &str); 15] = [
    (4, "rx_errors"),
    (5, "tx_errors"),
    (RX_DROPPED, "rx_dropped"),
    (TX_DROPPED, "tx_dropped"),
    (10, "rx_length_errors"),
    (11, "rx_over_errors"),
    (12, "rx_crc_errors"),
    (13, "rx_frame_errors"),
    (14, "rx_fifo_errors"),
    (RX_MISSED, "rx_missed_errors"),
    (16, "tx_aborted_errors"),
    (17, "tx_carrier_errors"),
    (18, "tx_fifo_errors"),
    (19, "tx_heartbeat_errors"),
    (20, "tx_window_errors"),
];

/// The device's own counts since its port was opened, in packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Received while the XDP program was on the interface, at least and at most: it came and went between two looks.
    /// Those that the program dropped or took count too, those that the device itself lost mostly do not.
    pub rx_packets: RangeInclusive<u64>,
    /// Of these, dropped by the driver, as far as it says so. What the kernel's AF_XDP socket could not take is among
    /// them with some drivers (veth, virtio-net), and with others not.
    pub rx_dropped_of_these: u64,
    /// Lost for want of room before they could be received (`rx_missed_errors`): not in `rx_packets`.
    pub rx_missed: u64,
    /// Sent, by whomever.
    pub tx_packets: u64,
    /// Given to the device to be sent, by whomever, and dropped.
    pub tx_dropped: u64,
    /// Everything that speaks of lost packets and is above 0, by the kernel's or the driver's own name; those of its
    /// queues summed up. One lost packet may be counted under several names.
    pub losses: BTreeMap<String, u64>,
    /// The device is gone, and these are the counts of the last look at it.
    pub is_gone: bool,
}

/// A device that is looked at.
#[derive(Debug)]
pub(super) struct Device {
    index: u32,
    mode: Mode,
    control: OwnedFd,
    netlink: File,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    start: (Link, Link),
    /// The driver's own statistics that speak of losses, at the start.
    statistics: BTreeMap<String, u64>,
    end: (Option<Link>, Option<Link>),
    /// Someone else took the program off.
    has_lost_program: bool,
    /// At the last look.
    last: Link,
    last_statistics: BTreeMap<String, u64>,
}

type Link = [u64; LINK_WORDS];

impl Device {
    /// Looks at a device to which the XDP program is about to come. `None` if the kernel does not tell what it counts.
    pub(super) fn look(index: u32, mode: Mode) -> Option<Self> {
        let (control, netlink) = (control_socket().ok()?, File::from(route_socket().ok()?));
        let now = link(&netlink, index)?;
        let statistics = name_on(&control, index).and_then(|name| statistics(&control, &name));
        let statistics = statistics.unwrap_or_default();
        let seen = Seen {
            start: (now, now),
            last_statistics: statistics.clone(),
            statistics,
            end: (None, None),
            has_lost_program: false,
            last: now,
        };
        Some(Self { index, mode, control, netlink, seen: Mutex::new(seen) })
    }

    /// The program has come.
    pub(super) fn begin(&self) {
        // Drivers count at the end of a poll (NAPI), which is over after an RCU grace period, as a program is.
        wait_for_programs_to_end();
        let mut seen = self.seen();
        seen.start.1 = link(&self.netlink, self.index).unwrap_or(seen.start.0);
    }

    /// The program is about to be taken off.
    pub(super) fn end(&self) {
        let now = link(&self.netlink, self.index);
        let mut seen = self.seen();
        seen.end.0 = now;
    }

    /// Someone else took the program off, at some moment before this: what came since it was attached may have come to it
    /// or not. Does nothing where the device is gone, which took the program along, and once that is known.
    pub(super) fn lost_program(&self) {
        let now = link(&self.netlink, self.index);
        let mut seen = self.seen();
        if let (Some(now), false) = (now, seen.has_lost_program) {
            seen.has_lost_program = true;
            seen.end = (Some(seen.start.1), Some(now));
        }
    }

    /// Whether that has happened.
    pub(super) fn has_lost_program(&self) -> bool {
        self.seen().has_lost_program
    }

    /// It is off, and an RCU grace period is over since. Does nothing where [`Device::end`] was not called before, or
    /// this was.
    pub(super) fn ended(&self) {
        let mut seen = self.seen();
        if seen.end.0.is_some() && seen.end.1.is_none() {
            seen.end.1 = link(&self.netlink, self.index);
        }
    }

    /// What it has counted.
    pub(super) fn counts(&self) -> DeviceCounts {
        let mut seen = self.seen();
        let now = link(&self.netlink, self.index);
        if let Some(now) = now {
            seen.last = now;
            let name = name_on(&self.control, self.index);
            if let Some(statistics) = name.and_then(|name| statistics(&self.control, &name)) {
                seen.last_statistics = statistics;
            }
        }
        seen.counts(self.mode, now.is_none())
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().expect("no panic under this lock")
    }
}

impl Seen {
    fn counts(&self, mode: Mode, is_gone: bool) -> DeviceCounts {
        let (start, last) = (&self.start, &self.last);
        let (end_least, end_most) =
            (self.end.0.as_ref().unwrap_or(last), self.end.1.as_ref().unwrap_or(last));
        let least = since(end_least, &start.1, RX_PACKETS);
        let most = since(end_most, &start.0, RX_PACKETS).max(least);
        let link_losses =
            LINK_LOSSES.iter().map(|(at, name)| ((*name).to_owned(), since(last, &start.0, *at)));
        let driver_losses = self.last_statistics.iter().map(|(name, now)| {
            let before = self.statistics.get(name).copied().unwrap_or(0);
            (name.clone(), now.saturating_sub(before))
        });
        // The kernel's names come last and win: drivers that use them mean the same.
        let losses = driver_losses.chain(link_losses).filter(|(_, count)| *count > 0).collect();
        DeviceCounts {
            rx_packets: least..=most,
            // In generic mode the kernel drops packets before they are received too, and counts them here
            // (enqueue_to_backlog).
            rx_dropped_of_these: if mode == Mode::Generic {
                0
            } else {
                since(end_most, &start.0, RX_DROPPED)
            },
            rx_missed: since(end_most, &start.0, RX_MISSED),
            tx_packets: since(last, &start.0, TX_PACKETS),
            tx_dropped: since(last, &start.0, TX_DROPPED),
            losses,
            is_gone,
        }
    }
}

/// What was counted between two looks. A driver that was reset may begin again.
fn since(now: &Link, before: &Link, at: usize) -> u64 {
    now[at].saturating_sub(before[at])
}

/// What the kernel counts of an interface (`IFLA_STATS_LINK_64`); `None` if it is gone, or the answer was lost.
fn link(mut netlink: &File, index: u32) -> Option<Link> {
    let number = ask(netlink, index)?;
    let mut answer = [0_u8; 4096];
    loop {
        // The kernel answers before the question's call returns; reading does not wait.
        let len = netlink.read(&mut answer).ok()?;
        let answer = answer.get(..len)?;
        // Answers to questions before are old: a call that was to fetch one has failed.
        if answer.get(8..12) == Some(&number.to_ne_bytes()) {
            return link_in(answer);
        }
    }
}

/// Asks for that, and returns the number of the question, which the answer bears.
fn ask(mut netlink: &File, index: u32) -> Option<u32> {
    const IFLA_STATS_LINK_64: u32 = 1;
    static ASKED: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only that numbers differ counts.
    let number = ASKED.fetch_add(1, Ordering::Relaxed);
    // struct nlmsghdr, then struct if_stats_msg (linux/netlink.h, linux/if_link.h), in words of 4 bytes.
    let kind_and_flags =
        [libc::RTM_GETSTATS.to_ne_bytes(), (libc::NLM_F_REQUEST as u16).to_ne_bytes()].concat();
    let kind_and_flags = u32::from_ne_bytes(kind_and_flags.try_into().ok()?);
    let question = [28, kind_and_flags, number, 0, 0, index, 1 << (IFLA_STATS_LINK_64 - 1)];
    // A netlink socket that is not connected sends to the kernel.
    netlink.write_all(question.map(u32::to_ne_bytes).as_flattened()).ok()?;
    Some(number)
}

/// Finds the counts in an answer of rtnetlink's.
fn link_in(answer: &[u8]) -> Option<Link> {
    const IFLA_STATS_LINK_64: u16 = 1;
    let half = |at: usize| answer.get(at..at + 2).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    if half(4)? != libc::RTM_NEWSTATS {
        return None;
    }
    // Behind both headers: attributes of a length, a kind and a value, each at a multiple of 4 bytes.
    let mut at = 16 + 12;
    while let (Some(len), Some(kind)) = (half(at), half(at + 2)) {
        let value = answer.get(at + 4..at + usize::from(len))?;
        if kind == IFLA_STATS_LINK_64 {
            let words = value.as_chunks().0.get(..LINK_WORDS)?;
            return Some(std::array::from_fn(|at| u64::from_ne_bytes(words[at])));
        }
        at += usize::from(len.max(4)).next_multiple_of(4);
    }
    None
}

/// The driver's own statistics that speak of losses; `None` if it tells none.
fn statistics(control: &OwnedFd, name: &str) -> Option<BTreeMap<String, u64>> {
    // struct ethtool_sset_info: command, reserved, a mask of sets in 8 bytes, the count of the one asked.
    let mut count = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_STATS, 0, 0];
    ethtool_on(control, name, &mut count).ok()?;
    let room = count[4] as usize + STATISTICS_TO_SPARE;
    // struct ethtool_gstrings: command, set, count, then the strings.
    let mut strings = Fenced::new(3 + room * STRING_WORDS).ok()?;
    strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_STATS, count[4]]);
    ethtool_on(control, name, &mut strings).ok()?;
    // struct ethtool_stats: command, count, then the values in two words each.
    let mut values = Fenced::new(2 + room * 2).ok()?;
    values[..2].copy_from_slice(&[ETHTOOL_GSTATS, count[4]]);
    ethtool_on(control, name, &mut values).ok()?;
    losses_in(count[4], &strings, &values)
}

/// Finds the losses in a driver's answers, names and values, of which it had said that it has `said`. `None` if it has
/// others by now, or gives none at all: the next look tells.
fn losses_in(said: u32, strings: &[u32], values: &[u32]) -> Option<BTreeMap<String, u64>> {
    let (count, room) = (strings[2], (values.len() as u32 - 2) / 2);
    if count != values[1] || count < said || count > room {
        return None;
    }
    let names = strings[3..].as_chunks::<STRING_WORDS>().0.iter().map(|words| text_of(words));
    let values = values[2..].as_chunks().0.iter().map(|[one, other]| {
        let (one, other) = (one.to_ne_bytes(), other.to_ne_bytes());
        u64::from_ne_bytes(std::array::from_fn(|at| if at < 4 { one[at] } else { other[at - 4] }))
    });
    Some(losses::sum(names.zip(values).take(count as usize)))
}

#[cfg(all(test, not(loom)))]
mod tests;
