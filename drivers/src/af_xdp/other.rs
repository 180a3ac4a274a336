//! Other XDP programs on an interface: find, name, take off.
//!
//! Owns: nothing but descriptors of links while it looks. Never does: touch a program that it was not asked to.
//! Invariant: a program is taken off in the way it was attached, by its link or by netlink.

use std::{
    ffi::CStr,
    mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use libbpf_sys as sys;

use super::{
    Mode,
    cause::{self, Above},
    driver::query,
    interface::Interface,
    owner::{self, Holding},
    program::{check, flag},
};
use crate::DriverError;

/// Another program on an interface.
pub(super) struct Other {
    id: u32,
    /// Not to be read without CAP_SYS_ADMIN, as links are.
    name: Option<String>,
    generic: bool,
    link: Option<(u32, OwnedFd)>,
}

impl std::fmt::Display for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => write!(f, "'{name}' (id {})", self.id),
            None => write!(f, "with id {}", self.id),
        }
    }
}

impl Other {
    /// The program that is attached to an interface, if there is one.
    pub(super) fn on(interface: &Interface) -> Option<Self> {
        let query = query(interface).ok()?;
        let generic = query.skb_prog_id != 0;
        let id = [query.prog_id, query.skb_prog_id, query.drv_prog_id, query.hw_prog_id]
            .into_iter()
            .find(|id| *id != 0)?;
        Some(Self { id, name: program_name(id), generic, link: link_of(id, interface.index) })
    }

    /// Who keeps it attached.
    fn holding(&self) -> Holding {
        owner::of_program(self.id, self.link.as_ref().map(|(_, fd)| fd.as_fd()))
    }

    /// Who owns it, and the command that takes it off.
    fn owner_and_remedy(&self, interface: &Interface, holding: &Holding) -> (String, String) {
        cause::of_attached(cause::Attached {
            interface: &interface.name,
            is_generic: self.generic,
            link: self.link.as_ref().map(|(id, _)| *id),
            // Names and links take the same right.
            sees_links: self.name.is_some(),
            holding,
        })
    }

    /// The error that tells of it.
    pub(super) fn refuse(&self, interface: &Interface) -> DriverError {
        let holding = self.holding();
        let (owner, off) = self.owner_and_remedy(interface, &holding);
        DriverError::Attached {
            interface: interface.name.clone(),
            program: self.to_string(),
            mode: if self.generic { "generic" } else { "native" },
            owner,
            remedy: cause::beside_attached(&interface.name, &holding, &off),
        }
    }

    /// Takes it off. Returns what the user should know of it.
    pub(super) fn detach(&self, interface: &Interface) -> Result<String, DriverError> {
        let told = cause::of_taken_off(&interface.name, &self.to_string(), &self.holding().processes);
        self.take_off(interface).map(|()| told)
    }

    fn take_off(&self, interface: &Interface) -> Result<(), DriverError> {
        let mode = if self.generic { Mode::Generic } else { Mode::Native };
        // SAFETY: the descriptor is a link's; no options are given.
        let detached = unsafe {
            match &self.link {
                Some((_, link)) => sys::bpf_link_detach(link.as_raw_fd()),
                None => sys::bpf_xdp_detach(interface.index as i32, flag(mode), std::ptr::null()),
            }
        };
        check(detached).map(drop).map_err(|source| DriverError::TakeOff {
            interface: interface.name.clone(),
            program: self.to_string(),
            source,
            remedy: self.owner_and_remedy(interface, &self.holding()).1,
        })
    }
}

/// The devices above an interface, and the programs on them, as far as they are in this network namespace.
pub(super) fn above(interface: &Interface) -> Vec<Above> {
    let program_on = |upper: &str| {
        let upper = Interface::lookup(upper).ok()?;
        let other = Other::on(&upper)?;
        Some((other.to_string(), other.owner_and_remedy(&upper, &other.holding()).1))
    };
    let names = interface.names_above().into_iter();
    names.map(|interface| Above { program: program_on(&interface), interface }).collect()
}

/// The name that a loaded program was given, at most 15 characters.
fn program_name(id: u32) -> Option<String> {
    // SAFETY: the descriptor is new and nobody else's; all zeroes is a valid bpf_prog_info, and the
    // kernel writes at most `len` bytes of it, with a C string as its name.
    unsafe {
        let fd = OwnedFd::from_raw_fd(check(sys::bpf_prog_get_fd_by_id(id)).ok()?);
        let mut info: sys::bpf_prog_info = mem::zeroed();
        let mut len = mem::size_of_val(&info) as u32;
        check(sys::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &raw mut info, &raw mut len)).ok()?;
        Some(CStr::from_ptr(info.name.as_ptr()).to_string_lossy().into_owned())
    }
}

/// What the kernel says of a link.
pub(super) fn link_info(link: BorrowedFd<'_>) -> Option<sys::bpf_link_info> {
    // SAFETY: all zeroes is a valid bpf_link_info, of which the kernel writes at most `len` bytes.
    unsafe {
        let mut info: sys::bpf_link_info = mem::zeroed();
        let mut len = mem::size_of_val(&info) as u32;
        check(sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut len)).ok()?;
        Some(info)
    }
}

/// The link by which a program is attached to an interface, with its id.
fn link_of(program: u32, interface: u32) -> Option<(u32, OwnedFd)> {
    let mut id = 0;
    loop {
        // SAFETY: the kernel writes the next id. The descriptor is new and nobody else's, and the
        // union member is the one that the type says.
        unsafe {
            check(sys::bpf_link_get_next_id(id, &raw mut id)).ok()?;
            let Ok(fd) = check(sys::bpf_link_get_fd_by_id(id)) else { continue }; // Gone meanwhile.
            let fd = OwnedFd::from_raw_fd(fd);
            let Some(info) = link_info(fd.as_fd()) else { continue };
            let is_xdp = info.type_ == sys::BPF_LINK_TYPE_XDP;
            if is_xdp && info.prog_id == program && info.__bindgen_anon_1.xdp.ifindex == interface {
                return Some((id, fd));
            }
        }
    }
}
