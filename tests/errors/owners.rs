//! Programs and sockets of others: whose they are, and how they are got out of the way.

use std::{
    ffi::CString,
    fs,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    thread,
    time::Duration,
};

use sheafio_tests::{BpfObject, Fwd, PASS_ALL, Refusal, can_make_networks, refused, run, skip, succeeds};

use crate::network;

/// xdp-tools#359: another program is attached, by netlink and by a link, in both modes.
#[test]
fn another_program_is_named_and_replaced_only_by_force() {
    if !can_make_networks("another_program_is_named_and_replaced_only_by_force") {
        return;
    }
    let (netns, _veth) = network(1);
    let object = BpfObject::new(PASS_ALL);
    for (attach, mode, off) in [("xdpdrv", "native", "xdp off"), ("xdpgeneric", "generic", "xdpgeneric off")]
    {
        netns.ip(&["link", "set", "dev", "ve0", attach, "obj", object.path(), "sec", "xdp"]);
        for asked in ["ve0", "ve0,mode=generic", "ve0,mode=native"] {
            let line = refused(&netns, &["-p", asked]);
            for part in [
                "ve0: XDP program 'pass_all' (id ",
                &format!("({mode} mode, by netlink"),
                &format!("ip link set dev ve0 {off}"),
                "force",
            ] {
                assert!(line.contains(part), "{line}");
            }
        }
        let fwd = Fwd::start(&netns, &["-p", "ve0", "--force"]);
        thread::sleep(Duration::from_millis(200));
        let ended = fwd.end();
        ended.assert_conserved();
        assert!(ended.stderr.contains("took off XDP program 'pass_all'"), "{}", ended.stderr);
        assert!(!netns.has_xdp("ve0"));
    }
}

/// Whose program it is, is seen by what processes hold; the commands that take it off do so.
#[test]
fn the_process_behind_another_program_is_named() {
    if !can_make_networks("the_process_behind_another_program_is_named") {
        return;
    }
    let (netns, _veth) = network(1);
    let first = Fwd::start(&netns, &["-p", "ve0"]);
    let line = refused(&netns, &["-p", "ve0"]);
    let pid = first.pid();
    for part in [
        "XDP program 'sheafio_",
        "by BPF link ",
        &format!("held by sheafio (pid {pid}))"),
        "bpftool link detach id ",
    ] {
        assert!(line.contains(part), "{line}");
    }
    let end = line.split("Take it off: ").nth(1).unwrap().split(',').next().unwrap();
    assert_eq!(end, format!("kill {pid}"));
    run("sh", &["-c", end]);
    first.wait().assert_conserved();
    let second = Fwd::start(&netns, &["-p", "ve0"]);
    second.end().assert_conserved();
}

/// The one who forced it is told whose program it is and how it goes; that one runs on.
#[test]
fn another_program_that_does_not_come_off_is_told_with_its_remedy() {
    if !can_make_networks("another_program_that_does_not_come_off_is_told_with_its_remedy") {
        return;
    }
    let (netns, _veth) = network(2);
    let first = Fwd::start(&netns, &["-p", "ve0,start=1"]);
    let refusal = Refusal { call: libc::SYS_bpf, arguments: &[(0, BPF_LINK_DETACH)], error: libc::EPERM };
    let line = refusal.start(&netns, &["-p", "ve0,force=yes"]).wait().refusal();
    let pid = first.pid();
    for part in [
        "ve0: force=yes (--force) could not take off XDP program 'sheafio_",
        "Operation not permitted",
        &format!("Take it off: kill {pid}"),
    ] {
        assert!(line.contains(part), "'{part}' is missing in: {line}");
    }
    assert!(netns.has_xdp("ve0"));
    first.end().assert_conserved();
}

/// The kernel wants no program below another one, of a device that stands above: found and named, in every mode.
#[test]
fn a_program_of_a_device_above_is_named() {
    if !can_make_networks("a_program_of_a_device_above_is_named") {
        return;
    }
    let object = BpfObject::new(PASS_ALL);
    for (kind, add, below) in [
        (
            "bridge",
            &["link", "add", "up0", "type", "bridge"][..],
            Some(["link", "set", "ve0", "master", "up0"]),
        ),
        ("macvlan", &["link", "add", "link", "ve0", "up0", "type", "macvlan"], None),
    ] {
        let (netns, _veth) = network(1);
        if !netns.succeeds("ip", add) {
            skip("a_program_of_a_device_above_is_named", &format!("this kernel has no {kind}"));
            continue;
        }
        if let Some(below) = below {
            netns.ip(&below);
        }
        // Nothing is in the way as long as that has no program.
        Fwd::start(&netns, &["-p", "ve0"]).end().assert_conserved();
        netns.ip(&["link", "set", "dev", "up0", "xdpgeneric", "obj", object.path(), "sec", "xdp"]);
        for asked in ["ve0", "ve0,mode=generic", "ve0,mode=native"] {
            let line = refused(&netns, &["-p", asked]);
            let mode = if asked.ends_with("generic") { "generic" } else { "native" };
            for part in [
                &format!("ve0: can't attach the XDP program in {mode} mode: "),
                "up0, a device above it, has XDP program 'pass_all' (id ",
                "Take that off: ip link set dev up0 xdpgeneric off",
            ] {
                assert!(line.contains(part), "{kind}: '{part}' is missing in: {line}");
            }
            let others = ["CONFIG_", "mode=", "and in generic mode"];
            assert!(others.iter().all(|other| !line.contains(other)), "{kind}: {line}");
        }
        netns.ip(&["link", "set", "dev", "up0", "xdpgeneric", "off"]);
        Fwd::start(&netns, &["-p", "ve0"]).end().assert_conserved();
    }
}

// A command of linux/bpf.h.
const BPF_LINK_DETACH: u32 = 34;

/// A file in bpffs that keeps a program is named.
#[test]
fn a_pin_of_another_program_is_named() {
    if !can_make_networks("a_pin_of_another_program_is_named") {
        return;
    }
    let (netns, _veth) = network(1);
    let Some(bpffs) = Bpffs::mount() else {
        skip("a_pin_of_another_program_is_named", "bpffs can't be mounted");
        return;
    };
    let object = BpfObject::new(PASS_ALL);
    netns.ip(&["link", "set", "dev", "ve0", "xdpdrv", "obj", object.path(), "sec", "xdp"]);
    let line = refused(&netns, &["-p", "ve0"]);
    assert!(!line.contains("pinned"), "{line}");
    let id = line.split("(id ").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
    let pin = bpffs.pin(id.parse().unwrap());
    let line = refused(&netns, &["-p", "ve0"]);
    assert!(line.contains(&format!("by netlink, as ip link does, pinned as {pin})")), "{line}");
    let off = line.split("Take it off: ").nth(1).unwrap().split(';').next().unwrap();
    netns.run("sh", &["-c", off]);
    assert!(!netns.has_xdp("ve0"));
}

/// A bpffs of the test's own, gone when dropped.
struct Bpffs(String);

impl Bpffs {
    fn mount() -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("sheafio-{}-pins", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let folder = folder.to_str().unwrap().to_owned();
        succeeds("mount", &["-t", "bpf", "bpf", &folder]).then_some(Self(folder))
    }

    /// Pins a loaded program; returns where.
    fn pin(&self, program: u32) -> String {
        let path = format!("{}/pass", self.0);
        let c_path = CString::new(path.as_str()).unwrap();
        // SAFETY: the descriptor is new and nobody else's; the path is a C string.
        unsafe {
            let fd = OwnedFd::from_raw_fd(libbpf_sys::bpf_prog_get_fd_by_id(program));
            assert_eq!(libbpf_sys::bpf_obj_pin(fd.as_raw_fd(), c_path.as_ptr()), 0);
        }
        path
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        run("umount", &[&self.0]);
        fs::remove_dir(&self.0).unwrap();
    }
}

/// A queue that another process holds: whose it is.
#[test]
fn a_queue_that_is_taken_is_named_with_its_process() {
    if !can_make_networks("a_queue_that_is_taken_is_named_with_its_process") {
        return;
    }
    let (netns, _veth) = network(1);
    let first = Fwd::start(&netns, &["-p", "ve0"]);
    let line = refused(&netns, &["-p", "ve0", "--force"]);
    for part in
        ["ve0 queue 0: another AF_XDP socket is bound to it", &format!("End it: kill {}", first.pid())]
    {
        assert!(line.contains(part), "{line}");
    }
    // Another queue would need another program on the same interface.
    assert!(!line.contains("start="), "{line}");
    // Which kernels of the two kinds tell (CONFIG_XDP_SOCKETS_DIAG).
    let is_told = ["held by", "likely that of"].iter();
    let is_told = is_told.map(|words| format!("{words} sheafio (pid {})", first.pid()));
    assert!(is_told.filter(|words| line.contains(words.as_str())).count() == 1, "{line}");
    assert!(netns.has_xdp("ve0"), "force took a program off and could not use the queue");
    first.end().assert_conserved();
}
