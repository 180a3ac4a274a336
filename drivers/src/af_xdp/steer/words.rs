//! Rules as the XDP program compares them.
//!
//! Owns: the layout of `struct rules` in `xdp.bpf.c`. Never does: check a rule; see `Rule::checked`. Invariant:
//! what a rule does not ask for has no bit in its mask.
//!
//! ```text
//!   struct rules: count (u64), then room for 64 rules of 48 bytes, each a value and a mask of three words:
//!   what, bits: 0-15 ethertype | 16-23 protocol | 24 HAS_ADDRESS | 25 HAS_PROTOCOL | 26 HAS_PORT | 32-47 port
//!   to[0], to[1]: the destination's 16 bytes in the order of the wire; one of IPv4 is the first four
//! ```

use std::net::IpAddr;

use super::{ICMP, ICMP6, IPV4, IPV6, Prefix, Rule, Steering, Traffic};

const HAS_ADDRESS: u64 = 1 << 24;
const HAS_PROTOCOL: u64 = 1 << 25;
const HAS_PORT: u64 = 1 << 26;

/// Bytes of `struct rules`.
pub(super) const BANK_BYTES: usize = 8 + Steering::MAX_RULES * 48;

/// A key or a mask.
type Words = [u64; 3];

/// `struct rules` with these rules. There are at most [`Steering::MAX_RULES`].
pub(super) fn bank(rules: &[Rule]) -> Vec<u8> {
    let words = rules.iter().map(words).flat_map(|(value, mask)| [value, mask]).flatten();
    let mut bank: Vec<u8> =
        std::iter::once(rules.len() as u64).chain(words).flat_map(u64::to_ne_bytes).collect();
    assert!(bank.len() <= BANK_BYTES, "{} rules", rules.len());
    bank.resize(BANK_BYTES, 0);
    bank
}

/// Value and mask of a rule.
fn words(rule: &Rule) -> (Words, Words) {
    let (mut value, mut mask) = ([0; 3], [0; 3]);
    let mut ask = |of_value: u64, of_mask: u64| {
        value[0] |= of_value;
        mask[0] |= of_mask;
    };
    let version = match (rule.traffic, rule.to) {
        (Traffic::Ethertype(ethertype), _) => Some(ethertype),
        (Traffic::Protocol(ICMP), _) => Some(IPV4),
        (Traffic::Protocol(ICMP6), _) => Some(IPV6),
        (Traffic::Protocol(_), to) => to.map(|to| if to.address.is_ipv4() { IPV4 } else { IPV6 }),
    };
    if let Some(ethertype) = version {
        ask(ethertype.into(), 0xffff);
    }
    match rule.traffic {
        // Without a whole IP header it is none.
        Traffic::Ethertype(IPV4 | IPV6) => ask(HAS_ADDRESS, HAS_ADDRESS),
        Traffic::Ethertype(_) => {}
        Traffic::Protocol(protocol) => {
            ask(HAS_PROTOCOL | u64::from(protocol) << 16, HAS_PROTOCOL | 0xff << 16);
        }
    }
    if let Some(port) = rule.port {
        ask(HAS_PORT | u64::from(port) << 32, HAS_PORT | 0xffff << 32);
    }
    if let Some(Prefix { address, bits }) = rule.to {
        ask(HAS_ADDRESS, HAS_ADDRESS);
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes = address.octets(),
        }
        let host = u128::MAX.checked_shr(bits.into()).unwrap_or(0);
        [value[1], value[2]] = two_words(bytes);
        [mask[1], mask[2]] = two_words((!host).to_be_bytes());
    }
    (value, mask)
}

/// Two words that lie in memory as these bytes do.
fn two_words(bytes: [u8; 16]) -> [u64; 2] {
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    [word(0), word(8)]
}
