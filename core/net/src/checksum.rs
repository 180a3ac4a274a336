//! The Internet checksum (RFC 1071).
//!
//! Owns: nothing. Never does: trust a sum that it has not seen. Invariant: a segment of another checksum than the two
//! that are allowed is refused.
//!
//! There are two, for a packet that comes from a kernel's peer on the same machine (veth) has no finished checksum:
//! hardware was to finish it, and there was none. Its field then holds the sum of the pseudo header alone, not
//! inverted (`CHECKSUM_PARTIAL`, linux/skbuff.h). That is recognised and let pass, as the kernel does; the packet has
//! only been in memory. A damaged packet passes for one in one of 65,536 cases, as it does with any 16-bit sum.
//!
//! Written here, for every packet is summed twice: internet-checksum took 330 instructions for a segment with 64 bytes of
//! payload, this takes 80.

use smoltcp::wire::IpProtocol;

/// A sum that is not folded to 16 bits yet, in the byte order of the machine (RFC 1071 section 2 (B)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The sum of bytes; an odd last one counts as if a zero followed.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        let mut sum = 0;
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            // Halves of 32 bits, so that nothing is carried out of 64 below 2^32 of them.
            let word = u64::from_ne_bytes(*word);
            sum += (word & 0xffff_ffff) + (word >> 32);
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            let word = u64::from_ne_bytes(word);
            sum += (word & 0xffff_ffff) + (word >> 32);
        }
        Self(sum)
    }

    /// With the bytes that follow; those before must be of an even number.
    #[inline]
    #[must_use]
    pub fn and(self, bytes: &[u8]) -> Self {
        Self(self.0 + Self::of(bytes).0)
    }

    /// With a 16-bit word.
    #[inline]
    #[must_use]
    pub fn and_word(self, word: u16) -> Self {
        Self(self.0 + u64::from(u16::from_ne_bytes(word.to_be_bytes())))
    }

    /// The pseudo header of what an IP packet carries (RFC 9293 section 3.1, RFC 8200 section 8.1), but for its length:
    /// both addresses, as they lie in the packet, and the protocol.
    #[inline]
    pub fn of_pseudo_header(addresses: &[u8], protocol: IpProtocol) -> Self {
        Self::of(addresses).and_word(u16::from(u8::from(protocol)))
    }

    /// As it lies in a packet before it is inverted.
    #[inline]
    pub fn folded(self) -> [u8; 2] {
        let mut sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        (sum as u16).to_ne_bytes()
    }

    /// As it is written into a packet.
    #[inline]
    pub fn finished(self) -> [u8; 2] {
        self.folded().map(|byte| !byte)
    }
}

/// Whether the checksum of a transport header is right, or is one that a kernel left for hardware to finish. `pseudo` is
/// the sum of the pseudo header with the length, `field` the offset of the checksum in `segment`, the transport header
/// and what it carries.
///
/// # Panics
/// If the segment ends before its checksum.
#[inline]
pub fn is_right(pseudo: Sum, segment: &[u8], field: usize) -> bool {
    segment[field..field + 2] == pseudo.folded() || pseudo.and(segment).folded() == [0xff, 0xff]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_another_implementation_at_every_length() {
        let mut random = fastrand::Rng::with_seed(3);
        for len in 0..300 {
            let mut bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
            if random.bool() {
                bytes.fill(0xff);
            }
            let expected = smoltcp::wire::checksum::data(&bytes);
            assert_eq!(u16::from_be_bytes(Sum::of(&bytes).folded()), expected, "{bytes:?}");
            let at = random.usize(0..=len) & !1;
            assert_eq!(Sum::of(&bytes[..at]).and(&bytes[at..]).folded(), Sum::of(&bytes).folded());
        }
    }

    #[test]
    fn a_finished_and_an_unfinished_checksum_are_right_and_no_other() {
        let pseudo = Sum::of_pseudo_header(&[10, 0, 0, 1, 10, 0, 0, 2], IpProtocol::Tcp).and_word(21);
        let mut segment = [7; 21];
        segment[16..18].fill(0);
        let finished = pseudo.and(&segment).finished();
        segment[16..18].copy_from_slice(&pseudo.folded());
        assert!(is_right(pseudo, &segment, 16));
        segment[16..18].copy_from_slice(&finished);
        assert!(is_right(pseudo, &segment, 16));
        for bit in 0..21 * 8 {
            segment[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_right(pseudo, &segment, 16), "bit {bit}");
            segment[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
