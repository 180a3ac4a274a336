//! Where a port's packets went, by everyone's counts: the device's, its XDP program's, the sockets' and ours.
//!
//! Owns: what was told of drops already. Never does: count. Invariant: a packet that nobody names is shown as
//! unexplained.
//!
//! ```text
//!   wire_rx  =  rx_missed_errors  +  redirected + not_bound + passed + malformed  +  unexplained_rx
//!               lost by the device   |            to the kernel                      (either here
//!                                    = rx_packets + drops before reception       +    or here)
//!   tx_packets - tx_unsent - tx_invalid  =  wire_tx + dropped by the device - packets of others  +  unexplained_tx
//! ```
//!
//! The numbers are read one after the other, so while packets flow they need not add up; at the end they do.

use serde::Serialize;
use serde_json::{Map, Value};
use sheafio_core::{DropReason, QueueTotals};
use sheafio_drivers::af_xdp::{DeviceCounts, Verdict, VerdictCounts};

use super::{report::grouped, watch::View};

/// What the device says, and at the end what nobody says. The keys are documented in `cli.rs`.
#[derive(Debug, Serialize)]
pub(super) struct Account {
    pub(super) wire_rx: u64,
    pub(super) wire_tx: u64,
    pub(super) device: Map<String, Value>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) unexplained: Option<Unexplained>,
}

/// Packets that nobody names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Unexplained {
    #[serde(rename = "unexplained_rx")]
    pub(super) rx: i64,
    #[serde(rename = "unexplained_tx")]
    pub(super) tx: i64,
}

/// Packets that the XDP program saw.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Redirected to a socket.
    redirected: u64,
    /// Left to the kernel.
    left: u64,
}

impl From<&VerdictCounts> for Seen {
    fn from(counts: &VerdictCounts) -> Self {
        let redirected = counts.of(Verdict::Redirected);
        Self { redirected, left: counts.total() - redirected }
    }
}

impl Account {
    /// Of a port, from its totals, what its XDP program and what its device counted. `is_final`: nothing is on its way
    /// any more.
    pub(super) fn new(totals: &QueueTotals, seen: Seen, device: &DeviceCounts, is_final: bool) -> Self {
        let received =
            (seen.redirected + seen.left).clamp(*device.rx_packets.start(), *device.rx_packets.end());
        let unexplained = (is_final && !device.is_gone).then(|| Unexplained {
            rx: unexplained_rx(totals, seen, device, received),
            tx: unexplained_tx(totals, device),
        });
        Self {
            wire_rx: received + device.rx_missed,
            wire_tx: device.tx_packets,
            device: device.losses.iter().map(|(name, count)| (name.clone(), (*count).into())).collect(),
            unexplained,
        }
    }

    /// What a table shows of it: at the end all, before that what the device lost. `None` if that is nothing.
    pub(super) fn line(&self) -> Option<String> {
        let losses = self.device.iter();
        let losses = losses.map(|(name, count)| format!("{name} {}", grouped(count.as_u64().unwrap_or(0))));
        let losses = losses.collect::<Vec<_>>().join(", ");
        let Some(Unexplained { rx, tx }) = self.unexplained else {
            return (!losses.is_empty()).then(|| format!("lost by the device: {losses}"));
        };
        let losses = if losses.is_empty() { "nothing" } else { &losses };
        let (wire_rx, wire_tx) = (grouped(self.wire_rx), grouped(self.wire_tx));
        Some(format!(
            "device: {wire_rx} received, {wire_tx} sent; lost: {losses}; unexplained: {rx} received, {tx} sent"
        ))
    }
}

/// `received`: packets that the device received, as near to what the program saw as it says.
fn unexplained_rx(totals: &QueueTotals, seen: Seen, device: &DeviceCounts, received: u64) -> i64 {
    let lost: u64 = DropReason::ALL
        .iter()
        .filter(|reason| reason.is_before_rx())
        .map(|reason| totals.drops(*reason))
        .sum();
    let before_program = received as i64 - (seen.redirected + seen.left) as i64;
    let behind_program = seen.redirected as i64 - (totals.rx_packets + lost) as i64;
    // Zero-copy drivers try a packet again while the RX ring is full: the program sees it again, and the ring counts it
    // each time.
    let tried_again = (-before_program).clamp(0, totals.drops(DropReason::RxRingFull) as i64);
    let missing = before_program + tried_again + behind_program;
    // The driver may name more drops than the sockets do: packets that it could not redirect or show to the program.
    // Those of packets that were left to the kernel might be among them.
    let named = device.rx_dropped_of_these.saturating_sub(lost + seen.left) as i64;
    missing - named.clamp(0, missing.max(0))
}

/// Others send by the same device, so only too few packets tell of a loss.
fn unexplained_tx(totals: &QueueTotals, device: &DeviceCounts) -> i64 {
    // What the kernel told us to have dropped, the device counts as dropped too.
    let dropped = device.tx_dropped.max(totals.drops(DropReason::TxDropped));
    let given = totals.tx_packets.saturating_sub(totals.drops(DropReason::TxUnsent));
    let given = given.saturating_sub(totals.drops(DropReason::TxInvalid));
    given.saturating_sub(device.tx_packets + dropped) as i64
}

/// Tells of drops that the user can do something about, when the first one occurs.
#[derive(Default)]
pub(crate) struct Hints {
    /// Bits of the reasons that were told of each port, and one more for the device's losses.
    told: Vec<u32>,
}

/// The bit for the device's losses.
const DEVICE: u32 = 1 << (u32::BITS - 1);

/// What is to be told of the losses that an interface's device names.
fn of_device(interface: &str, losses: &Map<String, Value>) -> Option<String> {
    let loss = losses.keys().find(|name| is_of_room(name))?;
    Some(format!(
        "{interface}: {loss}: the device lost packets before any program saw them, as it had no room: the lcore was not there \
         in time. Bursts: a longer ring= and fill=, more descriptors (ethtool -G {interface} rx N); for good: more queues, \
         each with a core of its own (queues=, --cores)"
    ))
}

/// Whether a loss that a device names is for want of room: packets came and nobody had taken the ones before.
fn is_of_room(name: &str) -> bool {
    let name = name.to_lowercase();
    ["rx_missed", "rx_fifo", "rx_over", "no_buf", "no buf", "out_of_buf", "out of buf", "no_dma"]
        .iter()
        .any(|part| name.contains(part))
}

impl Hints {
    /// What is to be told of a moment, a line each.
    pub(crate) fn of(&mut self, view: &View) -> Vec<String> {
        self.told.resize(view.ports.len(), 0);
        let mut lines = Vec::new();
        for (port, told) in view.ports.iter().zip(&mut self.told) {
            for reason in DropReason::ALL {
                let has_occurred = port.drops.get(reason.name()).and_then(Value::as_u64) > Some(0);
                if let (Some(remedy), true) =
                    (reason.remedy(), has_occurred && *told >> reason as u32 & 1 == 0)
                {
                    *told |= 1 << reason as u32;
                    lines.push(format!("{}: {}: {remedy}", port.name, reason.name()));
                }
            }
            let device = port.account.as_ref().map(|account| &account.device);
            if let Some(hint) =
                device.filter(|_| *told & DEVICE == 0).and_then(|device| of_device(&port.name, device))
            {
                *told |= DEVICE;
                lines.push(hint);
            }
        }
        lines
    }
}

const _: () = assert!(DropReason::ALL.len() < u32::BITS as usize);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sheafio_core::QueueCounters;

    use super::*;

    fn totals(rx: u64, tx: u64, drops: &[(DropReason, u64)]) -> QueueTotals {
        let counters = QueueCounters::default();
        counters.add_rx(rx, 0);
        counters.add_tx(tx, 0);
        for (reason, count) in drops {
            counters.add_drops(*reason, *count);
        }
        counters.totals()
    }

    fn device(received: u64) -> DeviceCounts {
        DeviceCounts {
            rx_packets: received..=received,
            rx_dropped_of_these: 0,
            rx_missed: 0,
            tx_packets: 0,
            tx_dropped: 0,
            losses: BTreeMap::new(),
            is_gone: false,
        }
    }

    fn rx(totals: &QueueTotals, redirected: u64, left: u64, device: &DeviceCounts) -> i64 {
        let account = Account::new(totals, Seen { redirected, left }, device, true);
        account.unexplained.expect("it is final").rx
    }

    #[test]
    fn losses_for_want_of_room_are_told_from_others() {
        // e1000e, igb, virtio-net, vmxnet3, mlx5, and what the kernel itself counts.
        for name in [
            "rx_missed_errors",
            "rx_fifo_errors",
            "rx_over_errors",
            "rx_no_buffer_count",
            "rx_no_dma_resources",
            "pkts rx out of buf",
            "rx_out_of_buffer",
        ] {
            assert!(is_of_room(name), "{name}");
        }
        for name in ["rx_crc_errors", "tx_dropped", "rx_queue_xdp_drops", "rx_frame_errors", "tx_fifo_errors"]
        {
            assert!(!is_of_room(name), "{name}");
        }
    }

    #[test]
    fn what_a_device_loses_for_want_of_room_is_told_once() {
        let losses = |name: &str| Map::from_iter([(name.to_owned(), 1.into())]);
        assert_eq!(of_device("eth0", &losses("rx_crc_errors")), None);
        let hint = of_device("eth0", &losses("rx_missed_errors")).unwrap();
        assert!(
            hint.starts_with("eth0: rx_missed_errors: ") && hint.contains("ethtool -G eth0 rx N"),
            "{hint}"
        );

        let mut view =
            View { t_s: 0.0, ports: vec![], lcores: vec![], pool: crate::fwd::watch::tests::pool() };
        let mut port = crate::fwd::watch::tests::port("eth0");
        let account = |name| Account { wire_rx: 0, wire_tx: 0, device: losses(name), unexplained: None };
        port.account = Some(account("rx_missed_errors"));
        view.ports.push(port);
        let mut hints = Hints::default();
        assert_eq!((hints.of(&view), hints.of(&view)), (vec![hint], vec![]));
        view.ports[0].account = Some(account("rx_fifo_errors"));
        assert_eq!(hints.of(&view), Vec::<String>::new(), "once is enough");
        // Reasons of ours are told besides.
        view.ports[0].drops.insert("tx_full".to_owned(), 3.into());
        assert!(hints.of(&view)[0].starts_with("eth0: tx_full: "));
    }

    #[test]
    fn packets_with_a_name_are_explained() {
        let before_rx =
            [(DropReason::RxNoFrame, 20), (DropReason::RxTooLarge, 3), (DropReason::RxInvalid, 7)];
        // Drops behind reception are of received packets.
        let ours = totals(
            60,
            0,
            &[&before_rx[..], &[(DropReason::RxUnread, 5), (DropReason::NotForUs, 6)]].concat(),
        );
        assert_eq!(rx(&ours, 90, 10, &device(100)), 0);
        // The device missed some on top, which is its word for them.
        let missed = DeviceCounts { rx_missed: 8, ..device(100) };
        assert_eq!(rx(&ours, 90, 10, &missed), 0);
        assert_eq!(Account::new(&ours, Seen { redirected: 90, left: 10 }, &missed, true).wire_rx, 108);
        // veth counts what the socket refuses as dropped, and packets that it could not show to the program.
        let dropped = |count| DeviceCounts { rx_dropped_of_these: count, ..device(104) };
        assert_eq!(rx(&ours, 90, 10, &dropped(30)), 4, "the sockets' drops explain nothing else");
        assert_eq!(rx(&ours, 90, 10, &dropped(40)), 4, "these may be of those that were left");
        assert_eq!(rx(&ours, 90, 10, &dropped(43)), 1);
        assert_eq!(rx(&ours, 90, 10, &dropped(44)), 0);
        assert_eq!(rx(&ours, 90, 10, &dropped(100)), 0);
    }

    #[test]
    fn packets_without_a_name_are_unexplained() {
        let ours = totals(60, 0, &[(DropReason::RxNoFrame, 20)]);
        assert_eq!(rx(&ours, 80, 0, &device(85)), 5, "the program did not see them");
        assert_eq!(rx(&ours, 83, 0, &device(83)), 3, "the sockets did not");
        assert_eq!(rx(&ours, 83, 0, &device(85)), 5, "both");
        assert_eq!(rx(&ours, 80, 0, &device(70)), -10, "the device counts too few");
        assert_eq!(rx(&ours, 70, 0, &device(70)), -10, "the program does");
    }

    /// The program came and went between two looks at the device: what came in between is explained by that.
    #[test]
    fn packets_around_the_programs_coming_and_going_are_explained() {
        let (ours, around) = (totals(60, 0, &[]), DeviceCounts { rx_packets: 57..=64, ..device(0) });
        assert_eq!(rx(&ours, 60, 0, &around), 0);
        assert_eq!(Account::new(&ours, Seen { redirected: 60, left: 0 }, &around, true).wire_rx, 60);
        let of = |rx_packets| DeviceCounts { rx_packets, ..device(0) };
        assert_eq!((rx(&ours, 60, 0, &of(62..=70)), rx(&ours, 60, 0, &of(50..=58))), (2, -2));
    }

    #[test]
    fn packets_that_a_zero_copy_driver_tries_again_are_explained() {
        let ours = totals(60, 0, &[(DropReason::RxRingFull, 7)]);
        // 62 packets: two were lost for good, and five tries more were made.
        assert_eq!(rx(&ours, 67, 0, &device(62)), 0);
        assert_eq!(rx(&ours, 67, 0, &device(59)), -1, "no more than that");
    }

    #[test]
    fn packets_that_the_device_did_not_send_are_unexplained() {
        let tx = |ours: &QueueTotals, sent, dropped| {
            let device = DeviceCounts { tx_packets: sent, tx_dropped: dropped, ..device(0) };
            Account::new(ours, Seen::default(), &device, true).unexplained.unwrap().tx
        };
        let ours = totals(
            0,
            100,
            &[(DropReason::TxUnsent, 10), (DropReason::TxInvalid, 5), (DropReason::TxFull, 9)],
        );
        assert_eq!((tx(&ours, 85, 0), tx(&ours, 80, 5), tx(&ours, 80, 4)), (0, 0, 1));
        assert_eq!(tx(&ours, 200, 0), 0, "others send too");
        // Dropped by the device, as it counts itself and as the kernel told us.
        let ours = totals(0, 100, &[(DropReason::TxDropped, 10)]);
        assert_eq!((tx(&ours, 90, 10), tx(&ours, 90, 0), tx(&ours, 85, 10), tx(&ours, 85, 15)), (0, 0, 5, 0));
    }

    #[test]
    fn nothing_is_unexplained_before_the_end_or_without_the_device() {
        let (ours, seen) = (totals(60, 0, &[]), Seen { redirected: 90, left: 0 });
        assert_eq!(Account::new(&ours, seen, &device(100), false).unexplained, None);
        let gone = DeviceCounts { is_gone: true, ..device(100) };
        assert_eq!(Account::new(&ours, seen, &gone, true).unexplained, None);
    }

    #[test]
    fn tables_show_what_the_device_lost_and_at_the_end_what_nobody_names() {
        let (ours, seen) = (totals(1000, 2000, &[]), Seen { redirected: 1003, left: 0 });
        let lossless = DeviceCounts { tx_packets: 2000, ..device(1003) };
        let losses = BTreeMap::from([("rx_errors".to_owned(), 1), ("rx_queue_drops".to_owned(), 1234)]);
        let lossy = DeviceCounts { losses, ..lossless.clone() };
        assert_eq!(Account::new(&ours, seen, &lossless, false).line(), None);
        let line =
            |device: &DeviceCounts, is_final| Account::new(&ours, seen, device, is_final).line().unwrap();
        assert_eq!(line(&lossy, false), "lost by the device: rx_errors 1, rx_queue_drops 1,234");
        assert_eq!(
            line(&lossless, true),
            "device: 1,003 received, 2,000 sent; lost: nothing; unexplained: 3 received, 0 sent"
        );
    }
}
