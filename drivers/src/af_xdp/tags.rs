//! VLAN tags that lie beside packets instead of in them, where an XDP program sees them only if it asks.
//!
//! Owns: which settings put them there. Never does: change a setting. Invariant: a setting is named only if it is known
//! to be on; those of a device in another network namespace are not.

use std::{
    fs::File,
    io::{self, Read, Write},
};

use super::{
    driver::features_that_are_on,
    interface::{Interface, name_of},
    netdev::find,
    sys,
};

/// The device takes tags out of packets that it receives (`NETIF_F_HW_VLAN_CTAG_RX`, `NETIF_F_HW_VLAN_STAG_RX`): the
/// features' names, and those that `ethtool -K` takes.
const TAKEN: [(&str, &str); 2] =
    [("rx-vlan-hw-parse", "rxvlan"), ("rx-vlan-stag-hw-parse", "rx-vlan-stag-hw-parse")];
/// It puts tags into packets that it sends, so the kernel leaves them beside (`NETIF_F_HW_VLAN_CTAG_TX`,
/// `NETIF_F_HW_VLAN_STAG_TX`). A veth puts none in: its peer receives them beside.
const LEFT: [(&str, &str); 2] =
    [("tx-vlan-hw-insert", "txvlan"), ("tx-vlan-stag-hw-insert", "tx-vlan-stag-hw-insert")];

/// `struct nlmsghdr` (linux/netlink.h) and `struct ifinfomsg` (linux/rtnetlink.h), in bytes.
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
/// More than the answer takes: it is the largest that rtnetlink gives without virtual functions.
const ANSWER_BYTES: usize = 16_384;

/// What keeps tags out of the packets of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TagsBeside {
    /// Whose settings do: the interface itself, or a veth's peer.
    pub(super) device: String,
    /// These settings, by the names that `ethtool -K` takes.
    settings: Vec<&'static str>,
}

impl TagsBeside {
    /// Looks. `None`: nothing does, or none that is known.
    pub(super) fn of(interface: &Interface) -> Option<Self> {
        // What a veth itself could take out changes nothing.
        let (device, all) = if interface.driver == "veth" {
            (peer_of(interface)?, LEFT)
        } else {
            (interface.name.clone(), TAKEN)
        };
        let on = features_that_are_on(&device);
        let is_on = |(feature, _): &(&str, &str)| on.iter().any(|on| on == feature);
        let settings: Vec<_> = all.into_iter().filter(is_on).map(|(_, setting)| setting).collect();
        (!settings.is_empty()).then_some(Self { device, settings })
    }

    /// The command that leaves tags in the packets.
    pub(super) fn remedy(&self) -> String {
        format!("ethtool -K {} {} off", self.device, self.settings.join(" off "))
    }
}

/// The name of the other end of a veth, if it lies in this network namespace.
fn peer_of(interface: &Interface) -> Option<String> {
    let mut socket = File::from(sys::route_socket().ok()?);
    name_of(peer_in(&ask(&mut socket, interface.index).ok()?)?)
}

/// Asks for an interface's attributes (rtnetlink(7): `RTM_GETLINK`).
fn ask(socket: &mut (impl Read + Write), index: u32) -> io::Result<Vec<u8>> {
    let mut question = Vec::with_capacity(HEADER_BYTES + LINK_BYTES);
    question.extend(((HEADER_BYTES + LINK_BYTES) as u32).to_ne_bytes());
    question.extend(libc::RTM_GETLINK.to_ne_bytes());
    question.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    question.extend([0; 12]); // Sequence number, port; family, device type.
    question.extend(index.to_ne_bytes());
    question.extend([0; 8]); // Flags, and which of them to change.
    socket.write_all(&question)?;
    let mut answer = vec![0; ANSWER_BYTES];
    let len = socket.read(&mut answer)?;
    answer.truncate(len);
    Ok(answer)
}

/// The index of the device that lies below or at the other end, in a whole answer, if it is in the same network namespace.
fn peer_in(answer: &[u8]) -> Option<u32> {
    let len = u32::from_ne_bytes(*answer.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let attributes = answer.get(HEADER_BYTES + LINK_BYTES..len)?;
    // The kernel names the namespace only if it is another one (`rtnl_fill_link_netnsid` in net/core/rtnetlink.c).
    let is_elsewhere = find(attributes, libc::IFLA_LINK_NETNSID).is_some();
    let peer = find(attributes, libc::IFLA_LINK)? as u32;
    (kind == libc::RTM_NEWLINK && !is_elsewhere).then_some(peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of rtnetlink with these attributes.
    fn answer(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut message = vec![0; HEADER_BYTES + LINK_BYTES];
        message[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        for (kind, value) in attributes {
            message.extend((4 + value.len() as u16).to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(*value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        message
    }

    #[test]
    fn a_peer_is_known_only_in_the_same_namespace_and_from_a_whole_answer() {
        let (name, peer) = ((libc::IFLA_IFNAME, &b"ve0\0"[..]), (libc::IFLA_LINK, &7_u32.to_ne_bytes()[..]));
        let here = answer(&[name, (libc::IFLA_STATS64, &[1; 200]), peer]);
        assert_eq!(peer_in(&here), Some(7));
        assert!((0..here.len()).all(|len| peer_in(&here[..len]).is_none()));
        let elsewhere = answer(&[name, peer, (libc::IFLA_LINK_NETNSID, &0_u32.to_ne_bytes())]);
        assert_eq!(peer_in(&elsewhere), None);
        assert_eq!(peer_in(&answer(&[name])), None);
        let mut error = here;
        error[4..6].copy_from_slice(&2_u16.to_ne_bytes()); // NLMSG_ERROR.
        assert_eq!(peer_in(&error), None);
    }

    #[test]
    fn the_remedy_turns_off_what_is_on() {
        let beside = TagsBeside { device: "ve1".to_owned(), settings: vec!["txvlan", "other"] };
        assert_eq!(beside.remedy(), "ethtool -K ve1 txvlan off other off");
    }

    /// Every network namespace has a loopback device, which knows no tags.
    #[test]
    fn a_device_that_leaves_tags_where_they_are_keeps_none_out() {
        assert_eq!(TagsBeside::of(&Interface::lookup("lo").unwrap()), None);
    }
}
