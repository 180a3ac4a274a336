//! What the tests share: network namespaces, the command under test, kernel peers, their datagrams, a wire that loses, a
//! link partner, probes, queues over the simulated kernel.
//!
//! Owns: namespaces with the prefix `sheafio-`, which it deletes again. Never does: touch an
//! interface that it did not make. Invariant: whatever a test starts ends with it.

mod bpf;
mod command;
mod datagrams;
mod forget;
mod held;
mod netns;
mod network;
mod nth;
mod packet;
mod partner;
mod probes;
mod refusal;
mod relay;
mod simulated;

pub use bpf::{BpfObject, PASS_ALL};
pub use command::{CommandCopy, Ended, Fwd, example, refused, refused_by, run_sheafio, sheafio};
pub use datagrams::{datagram, receive_numbers, recv, socket};
pub use forget::forget;
pub use held::{read_what_was_held, write_until_held};
pub use netns::{Netns, Veth, run, succeeds};
pub use network::{LEFT, Network, RIGHT};
pub use packet::PacketSocket;
pub use partner::partner;
pub use probes::{COLD, build_probes};
pub use refusal::Refusal;
pub use relay::{Damage, Direction, Relay, bad, faithful, transport_at};
pub use simulated::{assert_home, open_simulated, small_pool};

/// Whether tests with network namespaces can run; if not, says why where `tests/run` shows it.
///
/// Returns `false` for the test to end at once. It is a failure where `SHEAFIO_NO_SKIP` is set.
pub fn can_make_networks(test: &str) -> bool {
    // SAFETY: geteuid takes nothing and can't fail.
    let missing = if unsafe { libc::geteuid() } != 0 {
        "not root"
    } else if !succeeds("ip", &["netns", "list"]) {
        "no 'ip netns' (install iproute2)"
    } else if !Netns::can_be_made() {
        "no right to make network namespaces"
    } else {
        return true;
    };
    skip(test, missing);
    false
}

/// Whether the running kernel is of this version or a newer one; if not, notes what the test misses in it: no failure
/// where `SHEAFIO_NO_SKIP` is set, for a newer kernel of the guest's runs the test.
#[must_use]
pub fn kernel_has(test: &str, major: u32, minor: u32, what: &str) -> bool {
    let has = kernel_is_at_least(major, minor);
    if !has {
        note(test, &format!("kernels before {major}.{minor} lack it: {what}"));
    }
    has
}

/// Whether the running kernel is of this version or a newer one.
///
/// # Panics
/// If it does not say so.
#[must_use]
pub fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs is mounted");
    let mut numbers =
        text.split(|one: char| !one.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// Notes that a test was skipped, and why.
///
/// # Panics
/// Where `SHEAFIO_NO_SKIP` is set.
pub fn skip(test: &str, why: &str) {
    assert!(std::env::var_os("SHEAFIO_NO_SKIP").is_none(), "{test} can't run: {why}");
    note(test, why);
}

/// Notes that a part of a test was skipped for a reason that is no fault, such as one of the emulated machine's.
pub fn note(test: &str, why: &str) {
    println!("skipped: {test}: {why}");
    if let Some(path) = std::env::var_os("SHEAFIO_SKIPPED") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        // The line above says it too.
        let _ = file.and_then(|mut file| {
            std::io::Write::write_all(&mut file, format!("skipped: {test}: {why}\n").as_bytes())
        });
    }
}
