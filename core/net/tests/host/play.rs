//! Inputs of bytes, as fuzzing makes them, and what they stand for: a host's settings, and packets that it gets one after
//! another.
//!
//! ```text
//! | settings 1 | length 2 | packet ... | length 2 | packet ... |
//! ```

use sheafio_net::HostConfig;

use crate::{
    bench::{Bench, config},
    packets::mend,
};

/// The addresses are the host's own.
pub(crate) const OWN: u8 = 1;
/// It answers pings.
pub(crate) const ICMP: u8 = 2;
/// Checksums are set right first, so that changes of other bytes get further.
pub(crate) const MEND: u8 = 4;

/// Gives a host of these settings the packets of an input.
pub(crate) fn play(bench: &mut Bench, input: &[u8]) {
    let Some((&settings, mut rest)) = input.split_first() else { return };
    let has = |bit: u8| settings & bit != 0;
    bench.restart(&HostConfig { icmp: has(ICMP), ..config(has(OWN)) });
    while let [high, low, bytes @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(bytes.len()).min(1500);
        let mut packet = bytes[..len].to_vec();
        rest = &bytes[len..];
        if has(MEND) {
            mend(&mut packet);
        }
        bench.send(&packet);
        bench.now_ns += u64::from(settings) << 24; // Up to four seconds.
    }
}

/// The input that stands for some packets.
pub(crate) fn input(settings: u8, packets: &[Vec<u8>]) -> Vec<u8> {
    let mut input = vec![settings];
    for packet in packets {
        input.extend(u16::try_from(packet.len()).unwrap().to_be_bytes());
        input.extend(packet);
    }
    input
}
