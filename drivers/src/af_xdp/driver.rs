//! What a network driver can do with XDP.
//!
//! Owns: plain facts. Never does: change a setting; judge, for the words are `cause.rs`'s. Invariant: what the
//! driver or the kernel does not tell is `None`.

use std::{io, mem};

use libbpf_sys as sys;

use super::{
    fence::Fenced,
    interface::{Interface, ethtool},
    program::check,
};

// Commands and string sets of linux/ethtool.h.
const ETHTOOL_GRINGPARAM: u32 = 0x10;
pub(super) const ETHTOOL_GSTRINGS: u32 = 0x1b;
pub(super) const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETH_SS_FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`, in words of 4 bytes.
pub(super) const STRING_WORDS: usize = 8;

/// Offloads that glue packets together before XDP could see them; drivers refuse native XDP while they are on.
const AGAINST_XDP: [&str; 2] = ["rx-lro", "rx-gro-hw"];

/// The names of `enum netdev_xdp_act` (linux/netdev.h), bit by bit, as the kernel's own specification has them.
const FEATURES: [&str; 7] =
    ["basic", "redirect", "ndo-xmit", "xsk-zerocopy", "hw-offload", "rx-sg", "ndo-xmit-sg"];
/// `NETDEV_XDP_ACT_BASIC` and `NETDEV_XDP_ACT_XSK_ZEROCOPY`.
const BASIC: u64 = 1 << 0;
const XSK_ZEROCOPY: u64 = 1 << 3;

/// The driver behind an interface.
#[derive(Clone, Debug, Default)]
pub(super) struct Driver {
    /// Its name, such as `igb`.
    pub(super) name: Option<String>,
    /// What it can do with XDP, as a set of [`FEATURES`]. The kernel tells since 6.3.
    pub(super) features: Option<u64>,
    /// Its own rings.
    pub(super) rings: Option<HardwareRings>,
    /// Offloads that are on and stand against native XDP, by the names that `ethtool -K` takes.
    pub(super) offloads: Vec<String>,
}

/// Slots of a driver's rings (`struct ethtool_ringparam`, linux/ethtool.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HardwareRings {
    pub(super) rx: u32,
    pub(super) rx_max: u32,
    pub(super) tx: u32,
    pub(super) tx_max: u32,
}

impl Driver {
    /// Looks.
    pub(super) fn of(interface: &Interface) -> Self {
        let name = &interface.name;
        Self {
            name: Some(interface.driver.clone()).filter(|name| !name.is_empty()),
            features: features(interface),
            rings: hardware_rings(name),
            offloads: features_that_are_on(name)
                .into_iter()
                .map(|on| on.name)
                .filter(|name| AGAINST_XDP.contains(&name.as_str()))
                .collect(),
        }
    }

    /// Whether XDP programs can run in it; `None`: not told.
    pub(super) fn has_native(&self) -> Option<bool> {
        self.features.map(|features| features & BASIC != 0)
    }

    /// Whether it can do AF_XDP without copying; `None`: not told.
    pub(super) fn has_zero_copy(&self) -> Option<bool> {
        self.features.map(|features| features & XSK_ZEROCOPY != 0)
    }

    /// Its features by name.
    pub(super) fn features_by_name(&self) -> String {
        let Some(features) = self.features else {
            return "not told by this kernel".to_owned();
        };
        let names = FEATURES.iter().enumerate().filter(|(bit, _)| features >> bit & 1 == 1);
        let names: Vec<_> = names.map(|(_, name)| *name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

/// Frames of one packet that the driver handles in zero-copy mode, at most (`xdp-zc-max-segs` of the kernel's
/// netdev family, Linux 6.6); 1 if it does not say.
pub(super) fn zero_copy_frames(interface: &Interface) -> usize {
    query(interface).map_or(1, |query| query.xdp_zc_max_segs.max(1) as usize)
}

/// Whether the driver can do without copies (`NETDEV_XDP_ACT_XSK_ZEROCOPY`, linux/netdev.h, Linux 6.3), as far as
/// it says so; `None`: not told, as by a kernel that knows no features, but may well have such drivers.
pub(super) fn has_zero_copy(interface: &Interface) -> Option<bool> {
    let features = query(interface).ok()?.feature_flags;
    (features != 0).then_some(features & XSK_ZEROCOPY != 0)
}

/// Bytes of a packet that each of its frames holds for certain in zero-copy mode, of `data_bytes` that it has for them.
///
/// Drivers tell their NICs what `xsk_pool_get_rx_frame_size` says (include/net/xdp_sock_drv.h). Since April 2026, in stable
/// releases too, that is a multiple of 128; and where packets may have several frames, there is room for a struct
/// skb_shared_info behind it, which the kernel had written over the end of full frames until then.
pub(super) fn zero_copy_bytes(data_bytes: u32, has_frags: bool) -> u32 {
    /// `SKB_DATA_ALIGN(sizeof(struct skb_shared_info))` in the kernel's usual configuration: 17 fragments, and cache lines
    /// of 64 bytes.
    const SHARED_INFO_BYTES: u32 = 320;
    let behind = if has_frags { SHARED_INFO_BYTES } else { 0 };
    data_bytes.saturating_sub(behind) / 128 * 128
}

/// What the kernel says of XDP on an interface.
pub(super) fn query(interface: &Interface) -> io::Result<sys::bpf_xdp_query_opts> {
    query_with(interface, 0)
}

/// The driver's XDP features (`NETDEV_XDP_ACT_*`, linux/netdev.h); `None` where the kernel does not tell: before 6.3.
fn features(interface: &Interface) -> Option<u64> {
    // libbpf says 0 where nothing is told, and leaves the segments alone.
    let query = query_with(interface, u32::MAX).ok()?;
    (query.xdp_zc_max_segs != u32::MAX).then_some(query.feature_flags)
}

fn query_with(interface: &Interface, zc_max_segs: u32) -> io::Result<sys::bpf_xdp_query_opts> {
    let mut query = sys::bpf_xdp_query_opts {
        sz: mem::size_of::<sys::bpf_xdp_query_opts>() as sys::size_t,
        xdp_zc_max_segs: zc_max_segs,
        ..Default::default()
    };
    // SAFETY: the options are a valid struct of the size that they state.
    check(unsafe { sys::bpf_xdp_query(interface.index as i32, 0, &raw mut query) })?;
    Ok(query)
}

fn hardware_rings(interface: &str) -> Option<HardwareRings> {
    // struct ethtool_ringparam: command, the four largest sizes, the four sizes as they are.
    let mut rings = [ETHTOOL_GRINGPARAM, 0, 0, 0, 0, 0, 0, 0, 0];
    ethtool(interface, &mut rings).ok()?;
    let [_, rx_max, _, _, tx_max, rx, _, _, tx] = rings;
    (rx > 0 && tx > 0).then_some(HardwareRings { rx, rx_max, tx, tx_max })
}

/// A feature of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Feature {
    /// The kernel's name of it.
    pub(super) name: String,
    /// Nobody can turn it off (`[fixed]` in ethtool -k).
    pub(super) is_fixed: bool,
}

/// The device's features that are active.
pub(super) fn features_that_are_on(interface: &str) -> Vec<Feature> {
    let look = || {
        // struct ethtool_sset_info: command, reserved, a mask of sets in 8 bytes, the count of the one asked.
        let mut count = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
        ethtool(interface, &mut count).ok()?;
        let count = count[4] as usize;
        // struct ethtool_gstrings: command, set, count, then the strings.
        let mut strings = Fenced::new(3 + count * STRING_WORDS).ok()?;
        strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32]);
        ethtool(interface, &mut strings).ok()?;
        // Another device's by now: newer kernels then write none (see fence.rs).
        (strings[2] as usize == count).then_some(())?;
        // struct ethtool_gfeatures: command, number of blocks; each has a bit a feature in four words: what can be changed,
        // what was asked for, what is active, what never changes.
        let blocks = count.div_ceil(32);
        let mut bits = vec![0; 2 + blocks * 4];
        bits[..2].copy_from_slice(&[ETHTOOL_GFEATURES, blocks as u32]);
        ethtool(interface, &mut bits).ok()?;
        let is = |word: usize, at: usize| bits[2 + at / 32 * 4 + word] >> (at % 32) & 1 == 1;
        let names = strings[3..].chunks(STRING_WORDS).enumerate();
        let on = names.filter(|(at, _)| is(2, *at));
        let feature =
            |(at, name): (usize, &[u32])| Feature { name: text_of(name), is_fixed: !is(0, at) || is(3, at) };
        Some(on.map(feature).collect())
    };
    look().unwrap_or_default()
}

/// A C string in words of 4 bytes.
pub(super) fn text_of(words: &[u32]) -> String {
    let bytes: Vec<_> =
        words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every network namespace has a loopback device; what it can do is the same on all kernels.
    #[test]
    fn the_loopback_device_tells_its_features_and_has_no_xdp_of_its_own() {
        let on = features_that_are_on("lo");
        let fixed = |name: &str| on.iter().find(|on| on.name == name).map(|on| on.is_fixed);
        assert_eq!(
            (fixed("tx-scatter-gather"), fixed("tx-checksum-ip-generic")),
            (Some(true), Some(true)),
            "{on:?}"
        );
        assert_eq!(fixed("rx-gro"), Some(false), "{on:?}");
        assert_eq!((fixed("rx-lro"), fixed("rx-vlan-hw-parse")), (None, None), "{on:?}");
        let driver = Driver::of(&Interface::lookup("lo").unwrap());
        assert!(driver.offloads.is_empty() && driver.rings.is_none(), "{driver:?}");
        assert!(driver.has_zero_copy() != Some(true) && driver.has_native() != Some(true), "{driver:?}");
    }

    /// Of frames of 2 and 4 KiB, and of ones with a headroom that is no multiple of 128.
    #[test]
    fn what_a_zero_copy_driver_takes_for_certain_is_rounded_down() {
        let bytes = |data| [zero_copy_bytes(data, false), zero_copy_bytes(data, true)];
        assert_eq!(bytes(2048 - 256), [1792, 1408]);
        assert_eq!(bytes(4096 - 256), [3840, 3456]);
        assert_eq!(bytes(2048 - 256 - 64), [1664, 1408]);
        assert_eq!(bytes(200), [128, 0]);
    }

    #[test]
    fn features_have_names() {
        let driver = |features| Driver { features, ..Driver::default() };
        assert_eq!(driver(None).features_by_name(), "not told by this kernel");
        assert_eq!(driver(Some(0)).features_by_name(), "none");
        assert_eq!(driver(Some(0b1001)).features_by_name(), "basic, xsk-zerocopy");
        assert_eq!(driver(Some(0b1001)).has_zero_copy(), Some(true));
        assert_eq!(driver(Some(0b11)).has_zero_copy(), Some(false));
        assert_eq!(
            (driver(Some(0b1)).has_native(), driver(Some(0b1000)).has_native()),
            (Some(true), Some(false))
        );
    }
}
