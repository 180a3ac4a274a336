//! Which packets fit into a frame, and what mends it where they don't.
//!
//! Owns: the arithmetic. Never does: look at a device or a pool. Invariant: a remedy that is named helps.

use sheafio_mempool::Geometry;

use super::interface::LINK_HEADER_BYTES;

/// Bytes of a VLAN tag beside the one that [`LINK_HEADER_BYTES`] has (802.1ad).
const TAG_BYTES: u32 = 4;
/// Bytes of the largest frames that there are.
const LARGEST_FRAME: u32 = 4096;

/// Whether every packet of an MTU fits into one frame, with two VLAN tags too.
pub(super) fn fits_one_frame(mtu: u32, data_bytes: u32) -> bool {
    mtu.saturating_add(LINK_HEADER_BYTES + TAG_BYTES) <= data_bytes
}

/// The largest MTU for which that is so.
pub(super) fn largest_mtu(data_bytes: u32) -> u32 {
    data_bytes.saturating_sub(LINK_HEADER_BYTES + TAG_BYTES)
}

/// What a frame of the largest size would hold; `None` if frames have it already.
pub(super) fn larger_data_bytes(geometry: &Geometry) -> Option<u32> {
    let more = LARGEST_FRAME.checked_sub(geometry.frame_bytes()).filter(|more| *more > 0)?;
    Some(geometry.data_bytes() + more)
}

/// What makes every packet of an MTU fit into one frame, of frames as the pool's are: larger ones if they are enough,
/// and a smaller MTU. In words for the middle of a sentence.
pub(super) fn remedy(interface: &str, mtu: u32, geometry: &Geometry) -> String {
    let larger = larger_data_bytes(geometry).is_some_and(|larger| fits_one_frame(mtu, larger));
    let larger = if larger { "frames of 4096 bytes (--frame-size 4096), or: " } else { "" };
    format!("{larger}ip link set dev {interface} mtu {}", largest_mtu(geometry.data_bytes()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use sheafio_mempool::{Hugepages, Mempool};

    use super::*;

    fn geometry(frame_bytes: u32) -> Geometry {
        let pool = Mempool::builder().frames(64).frame_size(frame_bytes).hugepages(Hugepages::Off);
        *pool.build().unwrap().geometry()
    }

    #[test]
    fn a_packet_with_two_tags_is_one_of_its_mtu() {
        assert!(fits_one_frame(1500, 1792) && fits_one_frame(1770, 1792));
        assert!(!fits_one_frame(1771, 1792) && !fits_one_frame(1774, 1792) && !fits_one_frame(9000, 3840));
        assert!(!fits_one_frame(u32::MAX, 3840));
    }

    #[test]
    fn what_is_named_helps() {
        for frame_bytes in [2048, 4096] {
            let geometry = geometry(frame_bytes);
            for mtu in [1500, 1771, 3000, 3818, 3819, 9000, 65_535] {
                let words = remedy("eth7", mtu, &geometry);
                let named = words.split("mtu ").nth(1).unwrap().parse().unwrap();
                assert!(fits_one_frame(named, geometry.data_bytes()), "{words}");
                assert!(!fits_one_frame(named + 1, geometry.data_bytes()), "{words}");
                let is_enough = frame_bytes < 4096 && mtu <= 3818;
                assert_eq!(words.contains("--frame-size 4096"), is_enough, "MTU {mtu}: {words}");
            }
        }
    }
}
