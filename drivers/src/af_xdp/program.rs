//! The XDP program: load it, attach it as a BPF link. `program/attachment.rs` is what it is from then on.
//!
//! Owns: the program and its maps. Never does: touch a socket or a ring. Invariant: the
//! program is attached only as a link, which the kernel takes off when this process ends, however
//! it ends; nothing is pinned, so no bpffs is needed.

mod attachment;

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::Mutex,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel, set_print};
use libbpf_sys as sys;

pub(super) use self::attachment::Attachment;
use super::{
    Mode,
    cause::{self, AttachAsk},
    driver::Driver,
    interface::Interface,
    netdev::RX_METADATA_VLAN_TAG,
    other::{Other, above},
    process::Process,
    rights,
    room::Rooms,
    steer::Steer,
};
use crate::DriverError;

/// The compiled `xdp.bpf.c`, aligned as libbpf wants ELF files.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/xdp.bpf.o")));

/// What libbpf last said; its print callback is one for the process, so calls that may fail hold
/// [`QUIET`] while they run and read.
static SAID: Mutex<String> = Mutex::new(String::new());
static QUIET: Mutex<()> = Mutex::new(());

/// `BPF_F_XDP_HAS_FRAGS` (linux/bpf.h, Linux 5.18): it takes packets of several buffers.
const HAS_FRAGS: u32 = 1 << 5;
/// `BPF_F_XDP_DEV_BOUND_ONLY` (linux/bpf.h, Linux 6.3): for one device, whose metadata it may ask for.
const DEVICE_BOUND: u32 = 1 << 6;

/// The programs of `xdp.bpf.c`, of which one is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// For packets of one buffer.
    Plain,
    /// For packets of several buffers too.
    Frags,
    /// The same, and tells what the device knows of each packet. In native mode only.
    Metadata(Asks),
}

/// What a program asks the device for with each packet, as a set of bits: 1 timestamp, 2 hash, 4 VLAN tag, in
/// `xdp.bpf.c` as in `enum netdev_xdp_rx_metadata` (linux/netdev.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asks(u64);

impl Asks {
    const ALL: u64 = 7;

    /// What is worth asking for: what the driver says that it tells; where the kernel does not say (before Linux 6.7),
    /// everything but VLAN tags, which nobody tells there (before 6.8). `None`: nothing.
    pub(super) fn worth(told: Option<u64>) -> Option<Self> {
        let bits = told.unwrap_or(Self::ALL & !RX_METADATA_VLAN_TAG) & Self::ALL;
        Some(bits).filter(|bits| *bits != 0).map(Self)
    }
}

impl Variant {
    /// `copies`: the one that reads a packet's headers by copying them, which needs no CAP_PERFMON. It takes a helper
    /// that came with packets of several buffers, so there is no such plain one.
    fn name(self, copies: bool) -> &'static str {
        match (self, copies) {
            (Self::Plain, _) => "sheafio_xdp",
            (Self::Frags, false) => "sheafio_frags",
            (Self::Frags, true) => "sheafio_frags_c",
            (Self::Metadata(_), false) => "sheafio_metadata",
            (Self::Metadata(_), true) => "sheafio_meta_c",
        }
    }

    /// As what it is loaded. Before Linux 6.6 a program could take packets of several buffers, but no socket: the kernel
    /// lost them without a count behind the program (`xdp_do_redirect` in net/core/filter.c), where a driver without them
    /// refuses the program, and generic mode makes one buffer of a packet.
    fn flags(self) -> u32 {
        let frags = if self != Self::Plain && super::sys::hands_on_runs() { HAS_FRAGS } else { 0 };
        frags | if self.asks().is_some() { DEVICE_BOUND } else { 0 }
    }

    /// What does without something that the kernel may not know.
    fn simpler(self) -> Option<Self> {
        match self {
            Self::Plain => None,
            Self::Frags => Some(Self::Plain),
            Self::Metadata(_) => Some(Self::Frags),
        }
    }

    /// What it asks the device for.
    fn asks(self) -> Option<Asks> {
        if let Self::Metadata(asks) = self { Some(asks) } else { None }
    }
}

/// The loaded program and its maps.
pub(super) struct Program {
    object: Object,
    steer: Steer,
    variant: Variant,
    /// By which name it is in the object.
    name: &'static str,
    /// What the program writes behind the metadata of each packet.
    key: u64,
    /// Why a variant that can do more was not loaded.
    refused: Option<String>,
}

impl Program {
    /// Loads the program, with a map for the queues 0 to `queues - 1`; it takes everything. Where the kernel can't
    /// load this variant of it, a simpler one is taken.
    pub(super) fn load(interface: &Interface, queues: u32, variant: Variant) -> Result<Self, DriverError> {
        Self::load_reading(interface, queues, variant, !rights::has_perfmon())
    }

    /// The same; `copies`: with headers read as loaders without CAP_PERFMON must.
    pub(super) fn load_reading(
        interface: &Interface,
        queues: u32,
        mut variant: Variant,
        copies: bool,
    ) -> Result<Self, DriverError> {
        let mut refused = None;
        loop {
            match (Self::load_one(interface, queues, variant, copies), variant.simpler()) {
                (Err(error), Some(simpler)) => {
                    variant = simpler;
                    refused = refused.or(Some(error));
                }
                (Ok(program), _) => {
                    let refused = refused.map(|error| match error {
                        DriverError::Load { reason, .. } => reason,
                        error => error.to_string(),
                    });
                    return Ok(Self { refused, ..program });
                }
                // The first reason is that of what was asked for.
                (Err(error), None) => return Err(refused.unwrap_or(error)),
            }
        }
    }

    fn load_one(
        interface: &Interface,
        queues: u32,
        variant: Variant,
        copies: bool,
    ) -> Result<Self, DriverError> {
        let name = variant.name(copies);
        let (key, asks) = (fastrand::u64(1..), variant.asks());
        with_libbpf_quiet(|| {
            let mut open = ObjectBuilder::default().name("sheafio")?.open_memory(&OBJECT.0)?;
            for mut map in open.maps_mut() {
                match map.name().to_string_lossy().as_ref() {
                    "xsks" | "rooms" => map.set_max_entries(queues)?,
                    // `told` of xdp.bpf.c.
                    name if name.ends_with(".rodata") => {
                        let told = [key, asks.map_or(0, |asks| asks.0)];
                        map.set_initial_value(told.map(u64::to_ne_bytes).as_flattened())?;
                    }
                    _ => {}
                }
            }
            for mut program in open.progs_mut() {
                let wanted = program.name() == name;
                program.set_autoload(wanted);
                if wanted && asks.is_some() {
                    program.set_ifindex(interface.index);
                }
                if wanted {
                    program.set_flags(variant.flags());
                }
            }
            let object = open.load()?;
            let steer = Steer::new(&interface.name, &object)?;
            Ok(Self { object, steer, variant, name, key, refused: None })
        })
        .map_err(|(error, said): (libbpf_rs::Error, String)| load_error(interface, &error, &said))
    }

    /// The key behind the metadata of each packet; `None` if the program writes none.
    pub(super) fn metadata_key(&self) -> Option<u64> {
        self.variant.asks().map(|_| self.key)
    }

    /// Whether it asks the device for the VLAN tags that it takes out of packets.
    pub(super) fn asks_for_tags(&self) -> bool {
        self.variant.asks().is_some_and(|asks| asks.0 & RX_METADATA_VLAN_TAG != 0)
    }

    /// Why the variant that was asked for was not loaded, if it was not.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// What steers it.
    pub(super) fn steer(&self) -> &Steer {
        &self.steer
    }

    /// Which one was loaded.
    #[cfg(all(test, not(loom)))]
    pub(super) fn variant(&self) -> Variant {
        self.variant
    }

    /// The program that was loaded.
    pub(super) fn loaded(&self) -> libbpf_rs::Program<'_> {
        self.object
            .progs()
            .find(|program| program.name() == self.name)
            .expect("xdp.bpf.c defines this program")
    }

    /// The same, to be run on packets of a test's choice.
    #[cfg(all(test, not(loom)))]
    pub(super) fn loaded_mut(&mut self) -> libbpf_rs::ProgramMut<'_> {
        let name = self.name;
        self.object
            .progs_mut()
            .find(|program| program.name() == name)
            .expect("xdp.bpf.c defines this program")
    }

    /// Puts sockets into the map, by their queues: packets of a queue will go to its socket.
    pub(super) fn serve<'a>(
        &self,
        interface: &Interface,
        mut sockets: impl Iterator<Item = (u32, BorrowedFd<'a>)>,
    ) -> Result<Attachment, DriverError> {
        let map = self.object.maps().find(|map| map.name() == "xsks").expect("xdp.bpf.c defines xsks");
        let mut queues = Vec::new();
        let put = |(queue, socket): (u32, BorrowedFd<'_>)| {
            queues.push(queue);
            map.update(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes(), MapFlags::ANY)
        };
        let map = sockets.try_for_each(put).and_then(|()| MapHandle::try_from(&map));
        let sockets =
            map.map_err(|error| load_error(interface, &error, "putting the sockets into its map"))?;
        Ok(Attachment::new(sockets, queues))
    }

    /// How many packets it may hand to the sockets of the queues 0 to `queues - 1`.
    pub(super) fn rooms(&self, interface: &Interface, queues: u32) -> Result<Rooms, DriverError> {
        let map = self.object.maps().find(|map| map.name() == "rooms").expect("xdp.bpf.c defines rooms");
        Rooms::new(map.as_fd(), queues)
            .map_err(|error| load_error(interface, &error.into(), "mapping its map of rooms"))
    }

    /// Attaches the program. Mode `Auto` is for the caller to resolve, who tells whether that was `asked` for.
    pub(super) fn attach(
        &self,
        to: &Attachment,
        interface: &Interface,
        mode: Mode,
        asked: Mode,
    ) -> Result<(), DriverError> {
        let program = self.loaded();
        let program = program.as_fd();
        let mut options = sys::bpf_link_create_opts {
            sz: mem::size_of::<sys::bpf_link_create_opts>() as sys::size_t,
            ..Default::default()
        };
        // Never 0: without a mode the kernel silently takes generic where there is no native one.
        options.flags = flag(mode);
        let at = interface.index as i32;
        // SAFETY: the options are a valid struct of the size that they state.
        let created =
            check(unsafe { sys::bpf_link_create(program.as_raw_fd(), at, sys::BPF_XDP, &raw const options) });
        match created {
            Ok(fd) => {
                // SAFETY: the descriptor is new and nobody else's.
                to.keep_link(unsafe { OwnedFd::from_raw_fd(fd) });
                Ok(())
            }
            Err(error) => Err(why_not(interface, program, mode, asked, &error)),
        }
    }
}

/// The error of a program that can't be loaded, with libbpf's words.
fn load_error(interface: &Interface, error: &libbpf_rs::Error, said: &str) -> DriverError {
    // With all its causes; the last one ends with the number, which libbpf-rs does not give otherwise.
    let text = format!("{error:#}");
    // libbpf suspects the limit of locked memory whatever the cause; ours is looked up.
    let said: Vec<_> = said.split("; ").filter(|line| !line.contains("RLIMIT_MEMLOCK")).collect();
    let said = said.join("; ");
    // Where libbpf lacks a file for something that it can do without at first, its error is of what it lacks then.
    let lacks_files = said.contains("-EMFILE").then_some(libc::EMFILE);
    DriverError::Load {
        interface: interface.name.clone(),
        remedy: cause::of_load(lacks_files.or_else(|| number_in(&text)), &Process::look()),
        reason: if said.is_empty() { text } else { format!("{text} ({said})") },
    }
}

/// The number in an error text of the standard library's, such as `Invalid argument (os error 22)`.
fn number_in(text: &str) -> Option<i32> {
    text.rsplit_once("(os error ")?.1.split_once(')')?.0.parse().ok()
}

/// `XDP_FLAGS_DRV_MODE` or `XDP_FLAGS_SKB_MODE` (linux/if_link.h).
pub(super) fn flag(mode: Mode) -> u32 {
    if mode == Mode::Generic { sys::XDP_FLAGS_SKB_MODE } else { sys::XDP_FLAGS_DRV_MODE }
}

/// libbpf's -errno as an error.
pub(super) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

/// Runs a libbpf call with its output kept instead of printed; in case of an error, gives that too.
fn with_libbpf_quiet<T, E>(call: impl FnOnce() -> Result<T, E>) -> Result<T, (E, String)> {
    let _quiet = QUIET.lock().expect("no panic under this lock");
    let keep = |_: PrintLevel, text: String| SAID.lock().expect("no panic under this lock").push_str(&text);
    let before = set_print(Some((PrintLevel::Warn, keep)));
    let result = call();
    set_print(before);
    let said = mem::take(&mut *SAID.lock().expect("no panic under this lock"));
    result.map_err(|error| (error, said.lines().map(str::trim).collect::<Vec<_>>().join("; ")))
}

/// A link that can't be created tells only a number; attaching by netlink tells the kernel's reason
/// in words, so that is tried once, and undone should it succeed.
fn why_not(
    interface: &Interface,
    program: BorrowedFd<'_>,
    mode: Mode,
    asked: Mode,
    error: &io::Error,
) -> DriverError {
    if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
        && let Some(other) = Other::on(interface)
    {
        return other.refuse(interface);
    }
    let (at, flags) = (interface.index as i32, flag(mode));
    let said = with_libbpf_quiet(|| {
        // SAFETY: the options are a valid struct of the size that they state.
        unsafe {
            let once = flags | sys::XDP_FLAGS_UPDATE_IF_NOEXIST;
            if sys::bpf_xdp_attach(at, program.as_raw_fd(), once, std::ptr::null()) == 0 {
                // Only if it is still ours.
                let ours = sys::bpf_xdp_attach_opts {
                    sz: mem::size_of::<sys::bpf_xdp_attach_opts>() as sys::size_t,
                    old_prog_fd: program.as_raw_fd(),
                    ..Default::default()
                };
                sys::bpf_xdp_detach(at, flags, &raw const ours);
            }
        }
        Err::<(), ()>(())
    });
    let said = said.err().map(|((), said)| said).unwrap_or_default();
    let words = said.rsplit_once("Kernel error message: ").map(|(_, words)| words.trim().to_owned());
    let above = if error.raw_os_error() == Some(libc::EEXIST) { above(interface) } else { Vec::new() };
    let ask = AttachAsk { mode, has_other_mode: asked != Mode::Auto, above: &above };
    let process = Process::look();
    let remedy = cause::of_attach(error, ask, interface, &Driver::of(interface), &process);
    DriverError::Attach {
        is_of_device: cause::is_of_mode(error, &process),
        interface: interface.name.clone(),
        mode: mode.name(),
        reason: words.map_or_else(|| error.to_string(), |words| format!("{words} ({error})")),
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_asked_for_what_its_driver_tells_or_may_tell_where_that_is_not_known() {
        assert_eq!(Asks::worth(Some(5)), Some(Asks(5)));
        assert_eq!(Asks::worth(Some(7)), Some(Asks(7)));
        assert_eq!(Asks::worth(None), Some(Asks(3)));
        // What later kernels have besides is nothing to this program.
        assert_eq!((Asks::worth(Some(0)), Asks::worth(Some(8))), (None, None));
    }
}
