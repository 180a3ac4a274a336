//! What the kernel says of a network interface.
//!
//! Owns: the ioctl calls. Never does: change an interface. Invariant: `name` is the kernel's own
//! name, also when the interface was asked for by an alternative name.

use std::{
    ffi::{CStr, CString},
    fs, io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use sheafio_mempool::Geometry;

use super::{
    cause::{self, Call},
    process::Process,
    route, sizes,
    sysfs::DeviceFolder,
};
use crate::DriverError;

/// `ETHTOOL_GCHANNELS` and `struct ethtool_channels` (linux/ethtool.h).
const ETHTOOL_GCHANNELS: u32 = 0x3c;

#[derive(Default)]
#[repr(C)]
struct EthtoolChannels {
    cmd: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx_count: u32,
    tx_count: u32,
    other_count: u32,
    combined_count: u32,
}

const _: () = assert!(size_of::<EthtoolChannels>() == 36);

/// `ETHTOOL_GDRVINFO` and `struct ethtool_drvinfo` (linux/ethtool.h).
const ETHTOOL_GDRVINFO: u32 = 3;

#[repr(C)]
struct EthtoolDriver {
    cmd: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

const _: () = assert!(size_of::<EthtoolDriver>() == 196);

/// Bytes before the payload that the MTU does not count (IEEE 802.3), with a VLAN tag.
pub(super) const LINK_HEADER_BYTES: u32 = 18;

/// An interface that is looked at again and again, by its index, in the network namespace in which it was opened.
pub(super) struct Sight {
    control: OwnedFd,
    index: u32,
    /// Opened when all rights are there.
    folder: Option<DeviceFolder>,
}

/// What one look finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Its name now.
    pub(super) name: String,
    pub(super) mtu: u32,
    /// Active RX queues.
    pub(super) rx_queues: u32,
    pub(super) is_up: bool,
    /// The driver says that the link works; it can say so only while it is up.
    pub(super) has_carrier: bool,
}

impl Sight {
    pub(super) fn of(interface: &Interface) -> Result<Self, DriverError> {
        let control = control_socket().map_err(|source| DriverError::Call {
            interface: interface.name.clone(),
            queue: None,
            call: "opening a socket to ask for the interface's state",
            remedy: cause::of_call(Call::Interface, source.raw_os_error(), &Process::look()),
            source,
        })?;
        Ok(Self { control, index: interface.index, folder: interface.folder().ok() })
    }

    /// How it is now. `None` if there is no interface of that index, or it gets another name at this moment.
    pub(super) fn look(&self) -> Option<State> {
        let name = name_on(&self.control, self.index)?;
        let ask = |request| interface_ioctl(&self.control, &name, request, |_| ());
        // SAFETY: each ioctl fills in the union member that is read here.
        let (mtu, flags) = unsafe {
            let mtu = ask(libc::SIOCGIFMTU).ok()?.ifr_ifru.ifru_mtu;
            (mtu as u32, i32::from(ask(libc::SIOCGIFFLAGS).ok()?.ifr_ifru.ifru_flags))
        };
        let in_sysfs = |kind: &str| self.folder.as_ref().map_or(1, |folder| folder.queues(kind));
        let rx_queues = queues(&self.control, &name, in_sysfs).0;
        let (is_up, has_carrier) = (flags & libc::IFF_UP != 0, flags & libc::IFF_RUNNING != 0);
        // Where the name has changed meanwhile, some answers may be missing or another interface's.
        (name_on(&self.control, self.index)? == name).then_some(State {
            name,
            mtu,
            rx_queues,
            is_up,
            has_carrier,
        })
    }
}

/// A network interface, as looked up once.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    /// Active RX queues.
    pub(crate) rx_queues: u32,
    /// Active TX queues.
    pub(crate) tx_queues: u32,
    pub(crate) is_up: bool,
    pub(crate) has_default_route: bool,
    /// The name of its driver; empty if it does not tell.
    pub(crate) driver: String,
}

impl Interface {
    /// Looks an interface up by its name or an alternative name.
    pub(crate) fn lookup(asked: &str) -> Result<Self, DriverError> {
        let missing = || DriverError::NoInterface { interface: asked.to_owned(), present: present() };
        let index = index_of(asked).ok_or_else(missing)?;
        let name = name_of(index).ok_or_else(missing)?;
        let call = |source: io::Error| DriverError::Call {
            interface: name.clone(),
            queue: None,
            call: "asking the interface for its properties (ioctl)",
            remedy: cause::of_call(Call::Interface, source.raw_os_error(), &Process::look()),
            source,
        };
        let control = control_socket().map_err(call)?;
        let ioctl = |request, set: fn(&mut libc::ifreq)| interface_ioctl(&control, &name, request, set);
        let none: fn(&mut libc::ifreq) = |_| ();
        // SAFETY: each ioctl fills in the union member that is read here.
        let (mac, mtu, flags) = unsafe {
            let address = ioctl(libc::SIOCGIFHWADDR, none).map_err(call)?.ifr_ifru.ifru_hwaddr.sa_data;
            let mtu = ioctl(libc::SIOCGIFMTU, none).map_err(call)?.ifr_ifru.ifru_mtu;
            let flags = ioctl(libc::SIOCGIFFLAGS, none).map_err(call)?.ifr_ifru.ifru_flags;
            (std::array::from_fn(|at| address[at] as u8), mtu as u32, i32::from(flags))
        };
        let in_sysfs =
            |kind: &str| DeviceFolder::of(&name, index, mac).map_or(1, |folder| folder.queues(kind));
        let (rx_queues, tx_queues) = queues(&control, &name, in_sysfs);
        let has_default_route = default_route_interfaces().contains(&name);
        let (driver, is_up) = (driver(&control, &name).unwrap_or_default(), flags & libc::IFF_UP != 0);
        Ok(Self { name, index, mac, mtu, rx_queues, tx_queues, is_up, has_default_route, driver })
    }

    /// The names of the devices above it.
    pub(super) fn names_above(&self) -> Vec<String> {
        self.folder().map_or_else(|_| Vec::new(), |folder| folder.names_above())
    }

    /// Its folder in sysfs.
    pub(super) fn folder(&self) -> io::Result<DeviceFolder> {
        DeviceFolder::of(&self.name, self.index, self.mac)
    }

    /// What must be known of zero-copy mode, where the driver damages packets when it has run out of frames. igb then
    /// does not clear the length of the next descriptor that the NIC has not got (igb_alloc_rx_buffers_zc, where its
    /// ring wraps), takes it for a packet, and goes on with frames that it gave out before: they come twice, or are
    /// given to the NIC again while they are someone else's.
    pub(crate) fn reuses_frames(&self) -> Option<String> {
        let name = &self.name;
        (self.driver == "igb").then(|| {
            format!(
                "{name}: in zero-copy mode its driver igb may write to a packet again that it has given out, and give it \
                 out twice, when it finds no free frame. Copy mode (copy=copy) does not; or keep many more frames \
                 ready (ring=, fill=) than its own ring has slots (ethtool -g {name}), and poll without long breaks"
            )
        })
    }

    /// Why packets would be damaged in zero-copy mode, if they would. igb tells its NIC how long the frames are in
    /// units of 1024 bytes, rounded down (SRRCTL.BSIZEPKT). The NIC goes on in the next frame when a packet is longer, and
    /// the driver gives each part out as a packet of its own (igb_clean_rx_irq_zc looks at no end-of-packet bit).
    pub(crate) fn splits_packets(&self, geometry: &Geometry) -> Option<DriverError> {
        const UNIT_BYTES: u32 = 1024;
        let largest = self.mtu + LINK_HEADER_BYTES;
        let units = |bytes: u32| bytes / UNIT_BYTES * UNIT_BYTES;
        let possible = units(geometry.data_bytes());
        let is_enough = sizes::larger_data_bytes(geometry).is_some_and(|bytes| largest <= units(bytes));
        (self.driver == "igb" && largest > possible).then(|| DriverError::SplitPackets {
            interface: self.name.clone(),
            driver: self.driver.clone(),
            possible,
            frame: geometry.frame_bytes(),
            mtu: self.mtu,
            largest,
            larger: if is_enough { "frames of 4096 bytes (--frame-size 4096), " } else { "" },
            mtu_possible: possible.saturating_sub(LINK_HEADER_BYTES),
        })
    }
}

/// The index of an interface, by its name or an alternative name.
pub(super) fn index_of(name: &str) -> Option<u32> {
    if name.len() >= libc::IFNAMSIZ {
        return route::index_of(name);
    }
    let c_name = CString::new(name).ok()?;
    // SAFETY: the name is a C string.
    match unsafe { libc::if_nametoindex(c_name.as_ptr()) } {
        0 => None,
        index => Some(index),
    }
}

/// The current name of an interface; `None` when there is none of that index.
pub(super) fn name_of(index: u32) -> Option<String> {
    let mut buffer = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the call asks for.
    let found = unsafe { libc::if_indextoname(index, buffer.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the call has written a C string to the buffer.
    Some(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned())
}

/// The interfaces of this network namespace.
fn present() -> String {
    // SAFETY: the call takes nothing; its result is freed below.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return "none that could be listed".to_owned();
    }
    let mut names = Vec::new();
    // SAFETY: the list ends with an entry of index 0 and is freed once, after its last use.
    unsafe {
        let mut entry = list;
        while (*entry).if_index != 0 {
            names.push(CStr::from_ptr((*entry).if_name).to_string_lossy().into_owned());
            entry = entry.add(1);
        }
        libc::if_freenameindex(list);
    }
    names.join(", ")
}

/// A socket for ioctls on the interfaces of this thread's network namespace.
pub(super) fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: socket takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An ioctl on an interface (netdevice(7)).
fn interface_ioctl(
    control: &OwnedFd,
    name: &str,
    request: libc::Ioctl,
    set: impl FnOnce(&mut libc::ifreq),
) -> io::Result<libc::ifreq> {
    // SAFETY: all zeroes is a valid ifreq.
    let mut ask: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in ask.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    set(&mut ask);
    // SAFETY: the requests of this module read and write one ifreq, and SIOCETHTOOL besides what `ethtool_on` or
    // `channels` point to.
    if unsafe { libc::ioctl(control.as_raw_fd(), request, &raw mut ask) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(ask)
}

/// An ethtool command (SIOCETHTOOL) on words that hold its struct of linux/ethtool.h: the command's number first,
/// then what it asks, and room for all that the kernel answers to that; where that depends on the device,
/// [`Fenced`](super::fence::Fenced) words, for the kernel heeds no bound.
pub(super) fn ethtool(name: &str, words: &mut [u32]) -> io::Result<()> {
    ethtool_on(&control_socket()?, name, words)
}

/// The same, in the network namespace of a control socket.
pub(super) fn ethtool_on(control: &OwnedFd, name: &str, words: &mut [u32]) -> io::Result<()> {
    let at = words.as_mut_ptr().cast();
    interface_ioctl(control, name, libc::SIOCETHTOOL, |ask| ask.ifr_ifru.ifru_data = at).map(drop)
}

/// The current name of an interface, in the network namespace of a control socket; `None` when it is gone.
pub(super) fn name_on(control: &OwnedFd, index: u32) -> Option<String> {
    let set = |ask: &mut libc::ifreq| ask.ifr_ifru.ifru_ifindex = index as i32;
    let answer = interface_ioctl(control, "", libc::SIOCGIFNAME, set).ok()?;
    let name = answer.ifr_name.map(|letter| letter as u8);
    Some(CStr::from_bytes_until_nul(&name).ok()?.to_string_lossy().into_owned())
}

/// Active RX and TX queues by ethtool, those of their own and the combined ones; by sysfs where the driver does not tell.
fn queues(control: &OwnedFd, name: &str, in_sysfs: impl Fn(&str) -> u32) -> (u32, u32) {
    let mut channels = EthtoolChannels { cmd: ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
    let at = (&raw mut channels).cast();
    // What the driver does not tell stays 0.
    let _ = interface_ioctl(control, name, libc::SIOCETHTOOL, |ask| ask.ifr_ifru.ifru_data = at);
    let or_in_sysfs = |told: u32, kind: &str| if told > 0 { told } else { in_sysfs(kind) };
    (
        or_in_sysfs(channels.rx_count + channels.combined_count, "rx-"),
        or_in_sysfs(channels.tx_count + channels.combined_count, "tx-"),
    )
}

fn driver(control: &OwnedFd, name: &str) -> Option<String> {
    let mut info = EthtoolDriver { cmd: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    let at = (&raw mut info).cast();
    interface_ioctl(control, name, libc::SIOCETHTOOL, |ask| ask.ifr_ifru.ifru_data = at).ok()?;
    let driver = CStr::from_bytes_until_nul(&info.driver).ok()?;
    Some(driver.to_string_lossy().into_owned())
}

/// Interfaces that a default route of this namespace leads through (proc_net_route).
fn default_route_interfaces() -> Vec<String> {
    let v4 = fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
    let v6 = fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap_or_default();
    // Fields: interface, destination, ..., mask (7); and destination, prefix length, ..., interface (9).
    let v4 = v4.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        (fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000"))
            .then(|| fields[0].to_owned())
    });
    let v6 = v6.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_default = fields.first()?.bytes().all(|digit| digit == b'0') && fields.get(1) == Some(&"00");
        is_default.then(|| fields.last().map(|name| (*name).to_owned())).flatten()
    });
    v4.chain(v6).filter(|name| name != "lo").collect()
}
