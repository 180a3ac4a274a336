//! The XDP program while it is attached, and what goes with it.
//!
//! Owns: the link, the map of sockets, and settings of the device that last as long. Never does: load or attach; that
//! is `program.rs`'s part. Invariant: the program is taken off with the last queue, or when this is dropped; what goes
//! back with it goes back then, once.

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, Mutex},
};

use libbpf_rs::{ErrorKind, MapCore, MapHandle};
use libbpf_sys as sys;

use crate::af_xdp::{
    busy_poll::BusyPolling, device::Device, link::Memberships, other::link_info,
    sys::wait_for_programs_to_end,
};

/// What a port's queues share: the map of sockets, and the link by which the program is attached. The
/// program is taken off with the last queue, or when this is dropped.
pub(in crate::af_xdp) struct Attachment {
    sockets: MapHandle,
    state: Mutex<Attached>,
}

struct Attached {
    link: Option<OwnedFd>,
    /// Settings of the device that go back with the program.
    polling: Option<BusyPolling>,
    /// Looked at when the program is taken off.
    device: Option<Arc<Device>>,
    /// Ends with the program too.
    memberships: Option<Memberships>,
    /// Queues that are in the map.
    queues: Vec<u32>,
}

impl Attachment {
    /// Queues that are in a map of sockets, and nothing that keeps packets coming yet.
    pub(super) fn new(sockets: MapHandle, queues: Vec<u32>) -> Self {
        let state = Attached { link: None, polling: None, device: None, memberships: None, queues };
        Self { sockets, state: Mutex::new(state) }
    }

    /// The link by which the program was attached.
    pub(super) fn keep_link(&self, link: OwnedFd) {
        self.state.lock().expect("no panic under this lock").link = Some(link);
    }

    /// Puts settings of the device back when the program is taken off.
    pub(in crate::af_xdp) fn keep(&self, polling: BusyPolling) {
        self.state.lock().expect("no panic under this lock").polling = Some(polling);
    }

    /// Looks at the device when the program is taken off.
    pub(in crate::af_xdp) fn look_at(&self, device: Arc<Device>) {
        self.state.lock().expect("no panic under this lock").device = Some(device);
    }

    /// Ends promiscuous mode, and leaves group addresses, when the program is taken off.
    pub(in crate::af_xdp) fn keep_memberships(&self, memberships: Memberships) {
        self.state.lock().expect("no panic under this lock").memberships = Some(memberships);
    }

    /// Whether the device has settings that will be put back, which takes CAP_NET_ADMIN.
    pub(in crate::af_xdp) fn has_changed_device(&self) -> bool {
        let state = self.state.lock().expect("no panic under this lock");
        state.polling.as_ref().is_some_and(BusyPolling::has_changed)
    }

    /// Takes a queue out of the map, and the program off with the last one; then waits until no CPU
    /// runs the program as it was before. Returns whether that is certain.
    pub(in crate::af_xdp) fn detach(&self, queue: u32) -> bool {
        let mut state = self.state.lock().expect("no panic under this lock");
        state.queues.retain(|served| *served != queue);
        // That the entry is gone already, as after the device, is no error.
        let deleted = self.sockets.delete(&queue.to_ne_bytes());
        let is_out = deleted.err().is_none_or(|error| error.kind() == ErrorKind::NotFound);
        if state.queues.is_empty() {
            state.take_off();
        }
        // Outside of the lock would do, but another queue's wait is this one's too.
        let is_quiet = wait_for_programs_to_end() && is_out;
        state.device.iter().for_each(|device| device.ended());
        is_quiet
    }

    /// Whether someone else took the program off the interface. A link that was taken off, or whose interface is
    /// gone, tells interface 0; what this process took off itself has no link any more.
    pub(in crate::af_xdp) fn was_taken_off(&self) -> bool {
        self.state.lock().expect("no panic under this lock").link.as_ref().is_some_and(is_off)
    }

    /// Takes the program off, for a device that is ours no more.
    pub(in crate::af_xdp) fn take_off(&self) {
        self.state.lock().expect("no panic under this lock").take_off();
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let state = self.state.get_mut().expect("no panic under this lock");
        if state.link.is_some() {
            // No queue has detached; see there.
            state.take_off();
            wait_for_programs_to_end();
            state.device.iter().for_each(|device| device.ended());
        }
    }
}

impl Attached {
    fn take_off(&mut self) {
        if let Some(link) = self.link.take() {
            // Also at the very end, for nobody may have looked since.
            let is_off = is_off(&link);
            self.device.iter().for_each(|device| if is_off { device.lost_program() } else { device.end() });
            // SAFETY: the descriptor is a link's. That it is detached already is no error.
            unsafe { sys::bpf_link_detach(link.as_raw_fd()) };
        }
        self.polling = None;
        self.memberships = None;
    }
}

/// Whether a program is off the interface to which this link had attached it.
fn is_off(link: &OwnedFd) -> bool {
    link_info(link.as_fd()).is_none_or(|info| {
        // SAFETY: the link was made as one of type XDP, so this is the union's member.
        unsafe { info.__bindgen_anon_1.xdp.ifindex == 0 }
    })
}
