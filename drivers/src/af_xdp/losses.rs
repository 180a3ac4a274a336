//! Which of a driver's own statistics speak of lost packets.
//!
//! Owns: the words for that. Never does: ask a driver. Invariant: what a driver counts for the whole device and for
//! each queue too is summed up once.
//!
//! Drivers name their statistics as they like (`ETHTOOL_GSTATS`): `rx_queue_0_drops` (veth), `rx0_xdp_drops`
//! (virtio-net), `rx_no_buffer_count` (e1000e), `pkts rx out of buf` (vmxnet3). So names are judged by their words.

use std::collections::BTreeMap;

/// How words begin that speak of losses.
const BEGINNINGS: [&str; 9] =
    ["drop", "miss", "error", "fail", "discard", "overrun", "overflow", "lost", "nobuf"];
/// Short ones that are the whole word.
const WORDS: [&str; 3] = ["err", "errs", "lack"];

/// The statistics that speak of losses; those of queues summed up, under their name without the queue's number.
pub(super) fn sum(statistics: impl Iterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    let (mut of_device, mut of_queues) = (BTreeMap::new(), BTreeMap::new());
    for (name, count) in statistics.filter(|(name, _)| is_loss(name)) {
        let is_numbered = name.bytes().any(|byte| byte.is_ascii_digit());
        let sums = if is_numbered { &mut of_queues } else { &mut of_device };
        *sums.entry(without_numbers(&name)).or_insert(0) += count;
    }
    of_queues.append(&mut of_device); // Which has the sums that the driver made itself.
    of_queues
}

fn is_loss(name: &str) -> bool {
    let words: Vec<_> = words_of(name).map(str::to_lowercase).collect();
    let speaks = |word: &String| {
        WORDS.contains(&word.as_str()) || BEGINNINGS.iter().any(|beginning| word.starts_with(beginning))
    };
    // no_buffer, no_dma_resources, out of buf.
    let wants =
        words.windows(2).any(|pair| pair[0] == "no" || (pair[0] == "of" && pair[1].starts_with("buf")));
    wants || words.iter().any(speaks)
}

fn words_of(name: &str) -> impl Iterator<Item = &str> {
    name.split(|letter: char| !letter.is_ascii_alphabetic()).filter(|word| !word.is_empty())
}

/// A name without numbers, and without the second of two separators that stood around one.
fn without_numbers(name: &str) -> String {
    let mut text = String::new();
    for letter in name.trim().chars().filter(|letter| !letter.is_ascii_digit()) {
        let is_separator = |letter: char| !letter.is_ascii_alphanumeric();
        if !(is_separator(letter) && text.chars().last().is_none_or(is_separator)) {
            text.push(letter);
        }
    }
    text.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric()).to_owned()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_that_speak_of_losses_are_found() {
        for name in [
            "rx_queue_0_drops", // veth
            "tx_queue_1_xdp_xmit_errors",
            "rx0_xdp_drops",      // virtio-net
            "rx_no_buffer_count", // e1000e, igb
            "rx_long_length_errors",
            "rx_queue_0_alloc_failed",
            "rx_queue_0_csum_err",
            "rx_missed_errors",
            "dropped_smbus",
            "pkts rx out of buf", // vmxnet3
            "  drv dropped rx total",
            "rx_out_of_buffer", // mlx5
            "rx_discards_phy",
            "tx_no_space", // hv_netvsc
            "rx-3.dropped",
            "rx_drop_cnt[7]", // gve
            "port.rx_crc_errors",
            "queue_0_rx_xdp_drop", // ena
            "rx_lack_of_buf",
        ] {
            assert!(is_loss(name), "{name}");
        }
        for name in [
            "rx_queue_0_xdp_packets",
            "rx_queue_0_xdp_redirect",
            "peer_ifindex",
            "interrupts",
            "rx_smbus",
            "tx_restart_queue",
            "rx0_kicks",
            "permissions",
            "notify",
            "rx_size_1024",
        ] {
            assert!(!is_loss(name), "{name}");
        }
    }

    #[test]
    fn queues_are_summed_up_and_what_the_driver_sums_up_itself_is_not_added() {
        let statistics = [
            ("rx_queue_0_drops", 1),
            ("rx_queue_1_drops", 2),
            ("rx_queue_10_xdp_packets", 9),
            ("rx0_xdp_drop", 10),
            ("rx1_xdp_drop", 20),
            ("rx_xdp_drop", 30),
            ("  drv dropped rx total", 4),
            ("  drv dropped rx total", 5),
            ("rx_drop_cnt[0]", 6),
            ("rx-3.dropped", 7),
            ("rx_errors", 0),
        ];
        let sums = sum(statistics.into_iter().map(|(name, count)| (name.to_owned(), count)));
        let sums: Vec<_> = sums.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        let expected = [
            ("drv dropped rx total", 9),
            ("rx-dropped", 7),
            ("rx_drop_cnt", 6),
            ("rx_errors", 0),
            ("rx_queue_drops", 3),
            ("rx_xdp_drop", 30),
        ];
        assert_eq!(sums, expected);
    }
}
