//! The Internet checksum of transport headers (RFC 1071).
//!
//! Owns: nothing. Never does: trust a sum that it has not seen. Invariant: a segment of another checksum than the two
//! that are allowed is refused.
//!
//! There are two, for a packet that comes from a kernel's peer on the same machine (veth) has no finished checksum:
//! hardware was to finish it, and there was none. Its field then holds the sum of the pseudo header alone, not
//! inverted (`CHECKSUM_PARTIAL`, linux/skbuff.h). That is recognised and let pass, as the kernel does; the packet has
//! only been in memory. A damaged packet passes for one in one of 65,536 cases, as it does with any 16-bit sum.

use std::net::Ipv6Addr;

use internet_checksum::Checksum;
use smoltcp::wire::IpProtocol;

/// The sum of the pseudo header, to which a transport header and what it carries are added (RFC 9293 section 3.1,
/// RFC 8200 section 8.1). `len` is their length in bytes. An IPv4-mapped source makes it that of IPv4.
#[inline]
pub fn pseudo_header(source: Ipv6Addr, destination: Ipv6Addr, protocol: IpProtocol, len: usize) -> Checksum {
    let mut sum = Checksum::new();
    if let (Some(source), Some(destination)) = (source.to_ipv4_mapped(), destination.to_ipv4_mapped()) {
        let mut header = [0; 12];
        header[..4].copy_from_slice(&source.octets());
        header[4..8].copy_from_slice(&destination.octets());
        header[9] = protocol.into();
        header[10..].copy_from_slice(&(len as u16).to_be_bytes());
        sum.add_bytes(&header);
    } else {
        let mut header = [0; 40];
        header[..16].copy_from_slice(&source.octets());
        header[16..32].copy_from_slice(&destination.octets());
        header[32..36].copy_from_slice(&(len as u32).to_be_bytes());
        header[39] = protocol.into();
        sum.add_bytes(&header);
    }
    sum
}

/// Whether the checksum of a transport header is right, or is one that a kernel left for hardware to finish. `field` is
/// the offset of the checksum in `segment`, the transport header and what it carries.
///
/// # Panics
/// If the segment ends before its checksum.
#[inline]
pub fn is_right(mut sum: Checksum, segment: &[u8], field: usize) -> bool {
    // `checksum` inverts; the unfinished field is not inverted.
    let pseudo = sum.checksum().map(|byte| !byte);
    if segment[field..field + 2] == pseudo {
        return true;
    }
    sum.add_bytes(segment);
    sum.checksum() == [0, 0]
}
