//! What the kernel says of a driver's XDP abilities: the generic netlink family `netdev` (linux/netdev.h), Linux 6.3
//! and newer. Older ones have no such word, so there is nothing to read.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// linux/genetlink.h, linux/netlink.h.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Bytes of `struct nlmsghdr` and `struct genlmsghdr`, and of `struct nlattr`.
const HEADERS_BYTES: usize = 20;
const ATTRIBUTE_BYTES: usize = 4;

/// linux/netdev.h.
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_ACT_XSK_ZEROCOPY: u64 = 8;

/// A driver's abilities.
#[derive(Clone, Debug)]
pub(crate) struct Netdev {
    /// XDP programs run in the driver.
    pub(crate) native: bool,
    pub(crate) zero_copy: bool,
    /// Frames that a packet may take in zero-copy mode; 1 where the driver says nothing.
    pub(crate) zero_copy_segments: u64,
    /// What programs may read of a received packet; none where the kernel does not know of it.
    pub(crate) rx_metadata: Vec<&'static str>,
    /// What the NIC does for a packet that is sent.
    pub(crate) tx_metadata: Vec<&'static str>,
}

impl Netdev {
    /// Asks for an interface of this thread's namespace; `None` if the kernel has no answer.
    pub(crate) fn of(interface: &str) -> Option<Self> {
        let name = CString::new(interface).expect("a name");
        // SAFETY: the name is a C string.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        assert!(index > 0, "no interface {interface}");
        let socket = netlink().expect("netlink is there");
        let families =
            ask(&socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, b"netdev\0").ok()?;
        let family = find(&families, CTRL_ATTR_FAMILY_ID)? as u16;
        let device =
            ask(&socket, family, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes()).ok()?;
        let features = find(&device, NETDEV_A_DEV_XDP_FEATURES).unwrap_or(0);
        let names = |attribute, names: [&'static str; 3]| {
            let bits = find(&device, attribute).unwrap_or(0);
            (0..3).filter(|bit| bits >> bit & 1 == 1).map(|bit| names[bit]).collect()
        };
        Some(Self {
            native: features & NETDEV_XDP_ACT_BASIC != 0,
            zero_copy: features & NETDEV_XDP_ACT_XSK_ZEROCOPY != 0,
            zero_copy_segments: find(&device, NETDEV_A_DEV_XDP_ZC_MAX_SEGS).unwrap_or(1),
            rx_metadata: names(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES, ["timestamp", "hash", "VLAN tag"]),
            tx_metadata: names(NETDEV_A_DEV_XSK_FEATURES, ["timestamp", "checksum", "launch time"]),
        })
    }
}

fn netlink() -> io::Result<OwnedFd> {
    // SAFETY: socket takes no pointer.
    let fd =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_GENERIC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a command with one attribute, and returns the attributes of the answer.
fn ask(socket: &OwnedFd, family: u16, command: u8, attribute: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    let attribute_bytes = ATTRIBUTE_BYTES + value.len();
    let len = HEADERS_BYTES + attribute_bytes.next_multiple_of(4);
    let mut message = Vec::with_capacity(len);
    message.extend((len as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 8]); // Sequence number and port.
    message.extend([command, 1, 0, 0]);
    message.extend((attribute_bytes as u16).to_ne_bytes());
    message.extend(attribute.to_ne_bytes());
    message.extend(value);
    message.resize(len, 0);
    let mut answer = vec![0; 16_384];
    // SAFETY: the kernel reads and writes within the two buffers.
    let received = unsafe {
        if libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0)
    };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    answer.truncate(received as usize);
    let word = |at: usize| u32::from_ne_bytes(answer[at..at + 4].try_into().expect("4 bytes"));
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    if i32::from(kind) == libc::NLMSG_ERROR {
        return Err(io::Error::from_raw_os_error(-(word(16) as i32)));
    }
    Ok(answer[HEADERS_BYTES..word(0) as usize].to_vec())
}

/// The number in an attribute, of 2, 4 or 8 bytes.
fn find(attributes: &[u8], asked: u16) -> Option<u64> {
    let mut rest = attributes;
    while rest.len() >= ATTRIBUTE_BYTES {
        let len = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        let (kind, value) = (u16::from_ne_bytes([rest[2], rest[3]]), rest.get(ATTRIBUTE_BYTES..len)?);
        if kind == asked {
            let mut number = [0; 8];
            number.get_mut(..value.len())?.copy_from_slice(value);
            return Some(u64::from_ne_bytes(number));
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
    None
}
