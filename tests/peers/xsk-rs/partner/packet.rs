//! The numbered packets: UDP over IPv4, every byte of which follows from number and length.
//!
//! Owns: the format. Never does: send or receive.
//!
//! ```text
//!   | Ethernet 14 | IPv4 20 | UDP 8 | "sheafio!" 8 | number 4 | length 2 | pattern ... |
//! ```

use std::ops::RangeInclusive;

/// Lengths of packets in bytes, without the FCS: from the least that Ethernet carries to what a frame holds.
pub(crate) const LENGTHS: RangeInclusive<usize> = 60..=3840;

const MAC_SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const MAC_RECEIVER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const IP_SENDER: [u8; 4] = [10, 0, 0, 1];
const IP_RECEIVER: [u8; 4] = [10, 0, 0, 2];
const MARK: &[u8; 8] = b"sheafio!";
const MARK_AT: usize = 42;
const NUMBER_AT: usize = MARK_AT + MARK.len();
const LENGTH_AT: usize = NUMBER_AT + 4;
const PATTERN_AT: usize = LENGTH_AT + 2;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A whole packet of ours, with its addresses as sent or swapped.
    Numbered { number: u32, is_swapped: bool },
    /// It carries our mark, but not what should follow from its number.
    Damaged,
    /// Somebody else's.
    Foreign,
}

/// Fills a packet.
pub(crate) fn write(number: u32, packet: &mut [u8]) {
    let length = packet.len();
    packet[..6].copy_from_slice(&MAC_RECEIVER);
    packet[6..12].copy_from_slice(&MAC_SENDER);
    packet[12..14].copy_from_slice(&[0x08, 0x00]); // IPv4, RFC 894
    write_ip(number, &mut packet[14..34], length - 14);
    packet[34..38].copy_from_slice(&[0x03, 0xe8, 0x07, 0xd0]); // UDP 1000 to 2000, RFC 768
    packet[38..40].copy_from_slice(&(length as u16 - 34).to_be_bytes());
    packet[40..42].copy_from_slice(&[0, 0]); // No checksum.
    packet[MARK_AT..NUMBER_AT].copy_from_slice(MARK);
    packet[NUMBER_AT..LENGTH_AT].copy_from_slice(&number.to_be_bytes());
    packet[LENGTH_AT..PATTERN_AT].copy_from_slice(&(length as u16).to_be_bytes());
    // Each place of each packet has a byte of its own making, so a shift or a mix-up shows.
    let mut word = number.wrapping_mul(2_654_435_761) | 1;
    for byte in &mut packet[PATTERN_AT..] {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (word >> 24) as u8;
    }
}

/// The header of RFC 791, section 3.1, with its checksum.
fn write_ip(number: u32, header: &mut [u8], length: usize) {
    header[..2].copy_from_slice(&[0x45, 0]);
    header[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    header[4..6].copy_from_slice(&(number as u16).to_be_bytes());
    header[6..12].copy_from_slice(&[0x40, 0, 64, 17, 0, 0]); // Don't fragment; 64 hops; UDP.
    header[12..16].copy_from_slice(&IP_SENDER);
    header[16..20].copy_from_slice(&IP_RECEIVER);
    let mut sum: u32 = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(sum + (sum >> 16)) as u16).to_be_bytes());
}

/// Looks at every byte.
pub(crate) fn kind_of(packet: &[u8]) -> Kind {
    if !LENGTHS.contains(&packet.len()) || packet[MARK_AT..NUMBER_AT] != *MARK {
        return Kind::Foreign;
    }
    let number = u32::from_be_bytes(packet[NUMBER_AT..LENGTH_AT].try_into().expect("4 bytes"));
    let mut expected = vec![0; packet.len()];
    write(number, &mut expected);
    let is_swapped = packet[..6] == MAC_SENDER;
    if is_swapped {
        swap_addresses(&mut expected);
    }
    if packet == expected { Kind::Numbered { number, is_swapped } } else { Kind::Damaged }
}

/// Swaps the Ethernet addresses.
pub(crate) fn swap_addresses(packet: &mut [u8]) {
    if packet.len() >= 12 {
        let (destination, source) = packet.split_at_mut(6);
        destination.swap_with_slice(&mut source[..6]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_can_change_unseen() {
        for length in [60, 61, 1514] {
            let mut packet = vec![0; length];
            write(7, &mut packet);
            assert_eq!(kind_of(&packet), Kind::Numbered { number: 7, is_swapped: false });
            swap_addresses(&mut packet);
            assert_eq!(kind_of(&packet), Kind::Numbered { number: 7, is_swapped: true });
            for at in 0..length {
                packet[at] ^= 1;
                let kind = if (MARK_AT..NUMBER_AT).contains(&at) { Kind::Foreign } else { Kind::Damaged };
                assert_eq!(kind_of(&packet), kind, "byte {at} of {length}");
                packet[at] ^= 1;
            }
        }
    }

    #[test]
    fn the_checksum_is_that_of_rfc_1071() {
        let mut packet = vec![0; 60];
        write(0xffff, &mut packet);
        let sum: u32 =
            packet[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
