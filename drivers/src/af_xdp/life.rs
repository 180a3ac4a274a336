//! What becomes of a device while its port is open: link, name, MTU, queues, and its end.
//!
//! Owns: what was seen last. Never does: change the device, but for taking our XDP program off one that was moved to
//! another network namespace. Invariant: what begins is told once, and so is its end.
//!
//! It looks, by a few ioctls, instead of listening on rtnetlink: a look can't be lost in a full socket buffer, sees
//! what rtnetlink does not tell (the number of queues, a program that was taken off), and needs no parser.

use std::sync::{Arc, Weak};

use sheafio_core::QueueCounters;

use super::{
    QueueSet,
    device::{Device, DeviceCounts},
    driver::zero_copy_bytes,
    interface::{Interface, LINK_HEADER_BYTES, Sight, State},
    kernel,
    open::not_opened,
    program::Attachment,
    rights::Right,
    socket::Socket,
    steer::Steer,
};
use crate::{
    DriverError,
    port::{Change, Control},
};

/// Looks for which a link that was just set up, or opened, may be without carrier before that is told: the two ends of a cable
/// need some seconds to agree.
const CARRIER_LOOKS: u32 = 20;

/// The control plane's access to a port whose queues are with their lcores.
pub(super) struct Life {
    sight: Sight,
    queues: QueueSet,
    largest: Largest,
    sockets: Vec<(Weak<Socket>, Arc<QueueCounters>)>,
    attachment: Weak<Attachment>,
    device: Option<Arc<Device>>,
    steer: Steer,
    seen: Seen,
    is_gone: bool,
}

/// The largest packet that can be received, in as many frames as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Largest {
    /// Its length in bytes.
    bytes: u32,
    /// A zero-copy driver may take a little more; what it does not take, it drops itself.
    is_of_driver: bool,
}

impl Largest {
    /// Of packets in up to `frames` frames, each with room for `data_bytes`.
    fn of(data_bytes: u32, frames: usize, zero_copy: bool) -> Self {
        let a_frame = if zero_copy { zero_copy_bytes(data_bytes, frames > 1) } else { data_bytes };
        Self { bytes: a_frame.saturating_mul(frames as u32), is_of_driver: zero_copy }
    }
}

/// What one look has found.
#[derive(Clone, Debug)]
struct Seen {
    state: State,
    /// The link as it was told.
    link: Link,
    /// Looks for which it may still be without carrier.
    patience: u32,
    /// Another program has taken ours off the device.
    was_taken_off: bool,
}

/// What the link can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    NoCarrier,
    Down,
}

impl Life {
    /// Follows a device that was just opened: what `interface` says is known already.
    pub(super) fn new(
        interface: &Interface,
        queues: QueueSet,
        frame_bytes: u32,
        sockets: Vec<(Weak<Socket>, Arc<QueueCounters>)>,
        attachment: Weak<Attachment>,
        device: Option<Arc<Device>>,
        steer: Steer,
    ) -> Result<Self, DriverError> {
        let sight = Sight::of(interface)?;
        let state = State {
            name: interface.name.clone(),
            mtu: interface.mtu,
            rx_queues: interface.rx_queues,
            is_up: interface.is_up,
            has_carrier: true,
        };
        // What was not told yet is told at the first look.
        let link = if interface.is_up { Link::Up } else { Link::Down };
        let open = || sockets.iter().filter_map(|(socket, _)| socket.upgrade());
        let frames = open().map(|socket| socket.frames_a_packet).min().unwrap_or(1);
        let largest = Largest::of(frame_bytes, frames, open().any(|socket| socket.zero_copy));
        let seen = Seen { state, link, patience: CARRIER_LOOKS, was_taken_off: false };
        Ok(Self { sight, queues, largest, sockets, attachment, device, steer, seen, is_gone: false })
    }

    /// The end of the device, if it has come to that.
    fn end(&mut self) -> Option<Change> {
        let is_unbound =
            |(socket, _): &(Weak<Socket>, _)| socket.upgrade().is_some_and(|one| one.is_unbound());
        if !self.sockets.iter().any(is_unbound) {
            return None;
        }
        self.is_gone = true;
        self.sockets.iter().for_each(|(_, counters)| counters.set_gone());
        let attachment = self.attachment.upgrade();
        let text = match attachment.filter(|attachment| !attachment.was_taken_off()) {
            // A device that is removed loses its program just before its sockets, one that moves takes it along.
            Some(attachment) => {
                attachment.take_off();
                "the device is gone: it was moved to another network namespace. Our XDP program was taken off it, so \
                 the kernel there gets its packets. To use it, start again in that namespace"
            }
            None => "the device is gone: it was removed. To use a new one, start again",
        };
        Some(Change::Trouble(text.to_owned()))
    }
}

impl Control for Life {
    fn refresh(&self) {
        for (socket, counters) in &self.sockets {
            if let Some(socket) = socket.upgrade() {
                kernel::count_drops(&socket, counters);
            }
        }
    }

    fn steer_handle(&self) -> Option<&Steer> {
        Some(&self.steer)
    }

    fn device_counts(&self) -> Option<DeviceCounts> {
        self.device.as_ref().map(|device| device.counts())
    }

    fn rights_to_close(&self) -> &'static [Right] {
        let has_changed = self.attachment.upgrade().is_some_and(|attachment| attachment.has_changed_device());
        if has_changed { &[Right::NetAdmin] } else { &[] }
    }

    fn is_deaf(&self) -> bool {
        self.seen.was_taken_off || self.device.as_ref().is_some_and(|device| device.has_lost_program())
    }

    fn changes(&mut self) -> Vec<Change> {
        if self.is_gone {
            return Vec::new();
        }
        if let Some(end) = self.end() {
            return vec![end];
        }
        // Neither a queue that closes nor a device that goes away at this moment is news.
        let (Some(attachment), Some(state)) = (self.attachment.upgrade(), self.sight.look()) else {
            return Vec::new();
        };
        let (link, patience) = link(&self.seen, &state);
        let now = Seen { state, link, patience, was_taken_off: attachment.was_taken_off() };
        if let (true, false, Some(device)) = (now.was_taken_off, self.seen.was_taken_off, &self.device) {
            device.lost_program();
        }
        let changes = changes(&self.seen, &now, &self.queues, self.largest);
        self.seen = now;
        changes
    }
}

/// What is different now.
fn changes(before: &Seen, now: &Seen, queues: &QueueSet, largest: Largest) -> Vec<Change> {
    let name = &now.state.name;
    let mut changes = Vec::new();
    if before.state.name != *name {
        changes.push(Change::Renamed(name.clone()));
    }
    if before.link != now.link {
        changes.push(match now.link {
            Link::Up => Change::Mended("the link is up again".to_owned()),
            Link::NoCarrier => Change::Trouble(
                "the link has no carrier: nothing comes in, and what is sent is lost. See to the cable or the other \
                 end; the port works again by itself"
                    .to_owned(),
            ),
            Link::Down => Change::Trouble(format!(
                "the link is down: nothing comes in, and what is to be sent waits. The port works again by itself \
                 after: ip link set dev {name} up"
            )),
        });
    }
    if before.state.rx_queues != now.state.rx_queues {
        changes.push(queue_change(before.state.rx_queues, &now.state, queues));
    }
    if before.state.mtu != now.state.mtu {
        changes.extend(mtu_change(before.state.mtu, &now.state, largest));
    }
    if now.was_taken_off && !before.was_taken_off {
        changes.push(Change::Trouble(
            "another program took our XDP program off: no packets come any more. To have them back, start again"
                .to_owned(),
        ));
    }
    changes
}

/// What is to be told of the link now, and for how many looks it may still be without carrier.
fn link(before: &Seen, now: &State) -> (Link, u32) {
    match (now.is_up, now.has_carrier, before.patience) {
        (false, ..) => (Link::Down, CARRIER_LOOKS),
        (true, true, _) => (Link::Up, 0),
        (true, false, 0) => (Link::NoCarrier, 0),
        (true, false, looks) => (before.link, looks - 1),
    }
}

fn queue_change(before: u32, now: &State, queues: &QueueSet) -> Change {
    let (name, all) = (&now.name, now.rx_queues);
    let was = format!("the number of RX queues was changed, {before} before");
    if let Some(missing) = QueueSet::of(queues.numbers().iter().copied().filter(|queue| *queue >= all)) {
        let wanted = queues.last() + 1;
        return Change::Trouble(format!(
            "{was}: it has {all}, so our queues {missing} get no packets. Give them back: ethtool -L {name} combined \
             {wanted} (veth: rx {wanted} tx {wanted})"
        ));
    }
    match not_opened(name, all, queues) {
        Some(rest) => Change::Trouble(format!("{was}: {rest}")),
        None => Change::Mended(format!("{was}: it has {all}, and all of them are ours")),
    }
}

fn mtu_change(before: u32, now: &State, largest: Largest) -> Option<Change> {
    let needed = |mtu: u32| mtu.saturating_add(LINK_HEADER_BYTES);
    let (name, mtu, bytes) = (&now.name, now.mtu, largest.bytes);
    if needed(mtu) > bytes {
        let dropped = if largest.is_of_driver {
            format!("the driver is sure to take {bytes}, and may drop larger ones")
        } else {
            format!("the frames of one hold {bytes}, and larger ones are dropped (rx_too_large)")
        };
        return Some(Change::Trouble(format!(
            "the MTU was changed from {before} to {mtu}: packets may have {} bytes, but {dropped}. Start again, for \
             packets in several frames, or: ip link set dev {name} mtu {}",
            needed(mtu),
            bytes.saturating_sub(LINK_HEADER_BYTES)
        )));
    }
    let fits_again = needed(before) > bytes;
    fits_again
        .then(|| Change::Mended(format!("the MTU is {mtu}: every packet of that size is received again")))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn seen() -> Seen {
        let state = State { name: "ve0".to_owned(), mtu: 1500, rx_queues: 1, is_up: true, has_carrier: true };
        Seen { state, link: Link::Up, patience: 0, was_taken_off: false }
    }

    /// What is told when `change` is made, and how it is seen then.
    fn after(before: &Seen, queues: &str, change: impl FnOnce(&mut Seen)) -> (Vec<Change>, Seen) {
        let mut now = before.clone();
        change(&mut now);
        (now.link, now.patience) = link(before, &now.state);
        let largest = Largest::of(1792, 1, false);
        let changes = changes(before, &now, &queues.parse().unwrap(), largest);
        (changes, now)
    }

    fn text(changes: &[Change]) -> &str {
        match changes {
            [Change::Trouble(text) | Change::Mended(text)] => text,
            other => panic!("one line is to be told: {other:?}"),
        }
    }

    #[test]
    fn what_stays_as_it_is_is_not_told_again() {
        let (changes, down) = after(&seen(), "1", |now| now.state.is_up = false);
        assert!(text(&changes).contains("ip link set dev ve0 up"), "{changes:?}");
        assert_eq!(after(&down, "1", |_| ()).0, []);
        let (changes, _) = after(&down, "1", |now| now.state.is_up = true);
        assert_eq!(changes, [Change::Mended("the link is up again".to_owned())]);
        assert_eq!(after(&seen(), "1", |_| ()).0, []);
    }

    #[test]
    fn a_link_that_was_set_up_has_time_for_its_carrier_one_that_worked_has_none() {
        let (changes, _) = after(&seen(), "1", |now| now.state.has_carrier = false);
        assert!(text(&changes).contains("no carrier"), "{changes:?}");

        let down = |now: &mut Seen| (now.state.is_up, now.state.has_carrier) = (false, false);
        let (_, set_down) = after(&seen(), "1", down);
        let mut opened = Seen { patience: CARRIER_LOOKS, ..seen() };
        opened.state.has_carrier = false;
        for mut last in [set_down, opened] {
            for _ in 0..CARRIER_LOOKS {
                let (changes, now) = after(&last, "1", |now| now.state.is_up = true);
                assert_eq!(changes, []);
                last = now;
            }
            let (changes, now) = after(&last, "1", |_| ());
            assert!(text(&changes).contains("no carrier"), "{changes:?}");
            let (changes, _) = after(&now, "1", |now| now.state.has_carrier = true);
            assert_eq!(text(&changes), "the link is up again");
        }
    }

    #[test]
    fn several_things_at_once_are_all_told_under_the_new_name() {
        let (changes, _) = after(&seen(), "1", |now| {
            (now.state.name, now.state.is_up, now.state.rx_queues) = ("out".to_owned(), false, 4);
            (now.state.mtu, now.was_taken_off) = (9000, true);
        });
        assert_eq!(changes.len(), 5, "{changes:?}");
        assert_eq!(changes[0], Change::Renamed("out".to_owned()));
        for (change, part) in
            changes[1..].iter().zip(["dev out up", "-L out", "dev out mtu 1774", "took our XDP program off"])
        {
            assert!(matches!(change, Change::Trouble(text) if text.contains(part)), "{part}: {change:?}");
        }
    }

    #[test]
    fn queues_that_miss_or_are_not_opened_are_named() {
        let (changes, four) = after(&seen(), "1+3", |now| now.state.rx_queues = 4);
        assert!(text(&changes).contains("1 before: it has 4 RX queues, not opened of these: 0+2."));
        let (changes, two) = after(&four, "1+3", |now| now.state.rx_queues = 2);
        let expected =
            "4 before: it has 2, so our queues 3 get no packets. Give them back: ethtool -L ve0 combined 4";
        assert!(text(&changes).contains(expected), "{changes:?}");
        let (changes, _) = after(&two, "0-3", |now| now.state.rx_queues = 4);
        assert_eq!(
            changes,
            [Change::Mended(
                "the number of RX queues was changed, 2 before: it has 4, and all of them are ours"
                    .to_owned()
            )]
        );
    }

    #[test]
    fn an_mtu_is_told_while_packets_of_its_size_do_not_fit() {
        assert_eq!(after(&seen(), "1", |now| now.state.mtu = 1774).0, []);
        let (changes, large) = after(&seen(), "1", |now| now.state.mtu = 1779);
        assert!(text(&changes).contains("packets may have 1797 bytes, but the frames of one hold 1792"));
        let (changes, _) = after(&large, "1", |now| now.state.mtu = 1000);
        assert!(matches!(&changes[..], [Change::Mended(_)]), "{changes:?}");
    }

    /// Frames of 4 KiB hold 3,840 bytes; five of them, in zero-copy mode, 3,456 each for certain.
    #[test]
    fn an_mtu_is_told_where_a_zero_copy_driver_may_drop_packets_of_its_size() {
        let says = |mtu, largest| {
            let now = State { mtu, ..seen().state };
            mtu_change(1500, &now, largest).map(|change| text(&[change]).to_owned())
        };
        let direct = Largest::of(3840, 5, true);
        assert_eq!(says(5 * 3456 - 18, direct), None);
        let told = says(5 * 3456 - 17, direct).unwrap();
        assert!(told.contains("the driver is sure to take 17280, and may drop larger ones"), "{told}");
        assert!(told.ends_with("dev ve0 mtu 17262"), "{told}");
        assert_eq!(says(5 * 3840 - 18, Largest::of(3840, 5, false)), None);
        assert_eq!(says(3840 - 18, Largest::of(3840, 1, true)), None);
    }
}
