//! What is told where zero-copy, or something that belongs to it, was not to be had.

use sheafio_tests::Refusal;

use crate::{
    nics::{FRAME_BYTES, Nics, in_guest},
    zero_copy_drivers,
};

/// A run of the command on a NIC under test, which finds the n-th use of a call refused; returns its warnings.
fn warnings(nics: &Nics, refusal: &Refusal<'_>, nth: usize, options: &str) -> String {
    let port = nics.interface(1) + options;
    let words = ["fwd", "--json", "-p", &port, "--frame-size", FRAME_BYTES, "--duration", "300ms"];
    let ended = refusal.start_nth(nth, &nics.under_test, &words).wait();
    ended.assert_conserved();
    ended.stderr
}

/// The kernel goes on with copies in silence where a driver refuses to do without.
#[test]
fn why_packets_are_copied_is_told_where_the_driver_claims_to_do_without() {
    if !in_guest("why_packets_are_copied_is_told_where_the_driver_claims_to_do_without") {
        return;
    }
    // bind(2) of an AF_XDP socket: the bytes of a struct sockaddr_xdp. The first one asks what the kernel knows.
    let refusal = Refusal { call: libc::SYS_bind, arguments: &[(2, 16)], error: libc::EINVAL };
    for driver in zero_copy_drivers() {
        let nics = Nics::new(driver);
        let told = warnings(&nics, &refusal, 1, "");
        let line = told.lines().find(|line| line.contains("can't bind with copy=zerocopy"));
        let line = line.unwrap_or_else(|| panic!("{driver}: {told}"));
        for part in ["refuses zero-copy for this queue as it is set up now (MTU 1500", "goes on in copy mode"]
        {
            assert!(line.contains(part), "'{part}' is missing in: {line}");
        }
        // What comes next by itself is no remedy.
        assert!(!line.contains("copy=auto") && !line.contains("copy=copy"), "{line}");
    }
}

/// Without a socket that tells when the driver has let go of its frames they are retired at every end, and it is said.
#[test]
fn frames_that_will_be_retired_are_told_at_the_start() {
    if !in_guest("frames_that_will_be_retired_are_told_at_the_start") {
        return;
    }
    // The first one asks what the kernel knows, the second one is the queue's.
    let refusal =
        Refusal { call: libc::SYS_socket, arguments: &[(0, libc::AF_XDP as u32)], error: libc::EMFILE };
    for driver in zero_copy_drivers() {
        let nics = Nics::new(driver);
        let told = warnings(&nics, &refusal, 2, ",copy=zerocopy");
        for part in
            ["queues 0: frames that the driver has when they are closed will be retired", "RLIMIT_NOFILE"]
        {
            assert!(told.contains(part), "{driver}: '{part}' is missing in: {told}");
        }
        // Another run has it.
        let told = warnings(&nics, &refusal, usize::MAX, ",copy=zerocopy");
        assert!(!told.contains("will be retired"), "{driver}: {told}");
    }
}
