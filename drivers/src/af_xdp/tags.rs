//! VLAN tags that lie beside packets instead of in them, where an XDP program sees them only if it asks.
//!
//! Owns: which settings put them there. Never does: change a setting. Invariant: a setting is named only if it is known
//! to be on; those of a device in another network namespace are not.

use super::{
    driver::features_that_are_on,
    interface::{Interface, name_of},
    route::Route,
};

/// The device takes tags out of packets that it receives (`NETIF_F_HW_VLAN_CTAG_RX`, `NETIF_F_HW_VLAN_STAG_RX`): the
/// features' names, and those that `ethtool -K` takes.
const TAKEN: [(&str, &str); 2] =
    [("rx-vlan-hw-parse", "rxvlan"), ("rx-vlan-stag-hw-parse", "rx-vlan-stag-hw-parse")];
/// It puts tags into packets that it sends, so the kernel leaves them beside (`NETIF_F_HW_VLAN_CTAG_TX`,
/// `NETIF_F_HW_VLAN_STAG_TX`). A veth puts none in: its peer receives them beside.
const LEFT: [(&str, &str); 2] =
    [("tx-vlan-hw-insert", "txvlan"), ("tx-vlan-stag-hw-insert", "tx-vlan-stag-hw-insert")];

/// What keeps tags out of the packets of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TagsBeside {
    /// Whose settings do: the interface itself, or a veth's peer.
    pub(super) device: String,
    /// These settings, by the names that `ethtool -K` takes.
    settings: Vec<&'static str>,
    /// Some of them nobody can turn off.
    is_fixed: bool,
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
        let found = |(feature, setting): (&str, &'static str)| {
            on.iter().find(|on| on.name == feature).map(|on| (setting, on.is_fixed))
        };
        let (settings, fixed): (Vec<_>, Vec<_>) = all.into_iter().filter_map(found).unzip();
        (!settings.is_empty()).then_some(Self { device, settings, is_fixed: fixed.contains(&true) })
    }

    /// The command that leaves tags in the packets; `None`: its driver lets nobody do so.
    pub(super) fn remedy(&self) -> Option<String> {
        (!self.is_fixed).then(|| format!("ethtool -K {} {} off", self.device, self.settings.join(" off ")))
    }
}

/// The name of the other end of a veth, if it lies in this network namespace.
fn peer_of(interface: &Interface) -> Option<String> {
    name_of(Route::open().ok()?.peer(interface.index)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_turns_off_what_is_on() {
        let settings = vec!["txvlan", "other"];
        let mut beside = TagsBeside { device: "ve1".to_owned(), settings, is_fixed: false };
        assert_eq!(beside.remedy().unwrap(), "ethtool -K ve1 txvlan off other off");
        beside.is_fixed = true;
        assert_eq!(beside.remedy(), None);
    }

    /// Every network namespace has a loopback device, which knows no tags.
    #[test]
    fn a_device_that_leaves_tags_where_they_are_keeps_none_out() {
        assert_eq!(TagsBeside::of(&Interface::lookup("lo").unwrap()), None);
    }
}
