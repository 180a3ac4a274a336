//! Capabilities, namespaces and resource limits.

use sheafio_tests::{Fwd, Refusal, Veth, can_make_networks, refused_by, sheafio, skip, succeeds};

use crate::{kernel_is_at_least, network};

/// agave#8964: rights that are missing are named all at once, with a command that gives all that are needed.
#[test]
fn missing_capabilities_are_named_in_one_message() {
    if !can_make_networks("missing_capabilities_are_named_in_one_message") {
        return;
    }
    let (netns, _veth) = network(1);
    for (drop, missing) in [
        ("-net_raw", "needs CAP_NET_RAW,"),
        ("-net_admin", "needs CAP_NET_ADMIN,"),
        ("-bpf,-sys_admin", "needs CAP_BPF,"),
        ("-net_admin,-net_raw,-bpf,-sys_admin", "needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF,"),
    ] {
        let by = ["setpriv", "--bounding-set", drop, "--inh-caps", drop, "--"];
        let line = refused_by(&netns, &by, &["-p", "ve0"]);
        let command = "setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep /";
        assert!(line.contains(missing) && line.contains(command), "{line}");
        assert!(!line.contains("no_new_privs") && !line.contains("user namespace"), "{line}");
    }
    let drop = "-net_raw";
    let by = ["setpriv", "--no-new-privs", "--bounding-set", drop, "--inh-caps", drop, "--"];
    let line = refused_by(&netns, &by, &["-p", "ve0"]);
    assert!(line.contains("File capabilities do not count now: the process has no_new_privs set"), "{line}");
}

/// The root of a user namespace has all capabilities, and none that count for bpf(2).
#[test]
fn a_user_namespace_is_told() {
    if !can_make_networks("a_user_namespace_is_told") {
        return;
    }
    let by = ["unshare", "--user", "--map-root-user", "--net", "--"];
    if !succeeds(by[0], &[&by[1..], &["true"]].concat()) {
        skip("a_user_namespace_is_told", "no right to make user namespaces");
        return;
    }
    let (netns, _veth) = network(1);
    let line = refused_by(&netns, &by, &["-p", "lo"]);
    assert!(line.contains("lo: can't load the XDP program: Operation not permitted"), "{line}");
    assert!(line.contains("It runs in a user namespace"), "{line}");
    assert!(!line.contains("seccomp") && !line.contains("MEMLOCK"), "{line}");
}

/// vpp-dataplane#477: too little locked memory is told with how much is needed and how many frames would fit.
#[test]
fn locked_memory_is_told_in_numbers_that_are_right() {
    if !can_make_networks("locked_memory_is_told_in_numbers_that_are_right") {
        return;
    }
    let (netns, _veth) = network(1);
    let _other = Veth::new(&netns, "vf0", "10.0.1.1", 1);
    let without = ["setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "--"];
    let by = |limit| [&["prlimit", limit, "--"][..], &without].concat();
    let limit = by("--memlock=4194304:4194304");
    let line = refused_by(&netns, &limit, &["-p", "ve0"]);
    for part in [
        "ve0: the kernel refused 32768 KiB of packet memory",
        "Without CAP_IPC_LOCK 4096 KiB",
        "ulimit -l 32768,",
        "cap_ipc_lock+ep",
        "take fewer frames: 2048 fit",
    ] {
        assert!(line.contains(part), "{line}");
    }
    // What was promised to fit does, and a soft limit is raised as far as it goes.
    let runs = |limit, args: &[&str]| {
        let program = sheafio();
        let words =
            [&by(limit)[..], &[program.to_str().unwrap(), "fwd", "--json", "--duration", "300ms"], args];
        let words = words.concat();
        Fwd::start_program(&netns, words[0].into(), &words[1..]).wait().assert_conserved();
    };
    runs("--memlock=4194304:4194304", &["--frames", "2048", "-p", "ve0"]);
    runs("--memlock=65536:8388608", &["--frames", "2048", "-p", "ve0"]);
    if !kernel_is_at_least(6, 6) {
        return; // No frags=yes there.
    }
    runs("--memlock=4194304:4194304", &["--frames", "2048", "-p", "ve0", "-p", "vf0"]);
    // Ports that can't share a registration of the pool lock it once more.
    let both = ["--frames", "2048", "-p", "ve0,frags=no", "-p", "vf0,frags=yes"];
    let line = refused_by(&netns, &limit, &both);
    for part in ["vf0: ", "other ports of this process take 4096 KiB", "ulimit -l 8192,", "1024 fit"] {
        assert!(line.contains(part), "{line}");
    }
    runs("--memlock=4194304:4194304", &[&["--frames", "1024"], &both[2..]].concat());
    runs("--memlock=8388608:8388608", &both);
}

/// bpfire#54: that a limit can't be raised matters to nobody who needs no higher one, and is no error of its own.
#[test]
fn a_limit_that_can_not_be_raised_is_fatal_only_where_it_is_too_low() {
    if !can_make_networks("a_limit_that_can_not_be_raised_is_fatal_only_where_it_is_too_low") {
        return;
    }
    let (netns, _veth) = network(1);
    // prlimit(2) with a new limit, and no place for the old one; asking for the limit has one.
    let refusal = Refusal {
        call: libc::SYS_prlimit64,
        arguments: &[(1, libc::RLIMIT_MEMLOCK), (3, 0)],
        error: libc::EPERM,
    };
    let (without, limit) =
        (["setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "--"], 8 << 20);
    let args = ["fwd", "--json", "--duration", "300ms", "-p", "ve0", "--frames", "2048"];
    refusal.start_limited(&netns, [64 << 10, limit], &[], &args).wait().assert_conserved();
    refusal.start_limited(&netns, [limit, limit], &without, &args).wait().assert_conserved();
    let line = refusal.start_limited(&netns, [64 << 10, limit], &without, &args).wait().refusal();
    for part in ["ve0: the kernel refused 4096 KiB", "Without CAP_IPC_LOCK 64 KiB", "ulimit -l 4096,"] {
        assert!(line.contains(part), "'{part}' is missing in: {line}");
    }
}

/// Threads too may be few (TasksMax= of a unit): the first that can't be had, or a later one, ends what has begun.
#[test]
fn too_few_threads_are_told_and_everything_is_closed() {
    if !can_make_networks("too_few_threads_are_told_and_everything_is_closed") {
        return;
    }
    let (netns, _veth) = network(2);
    let refusal = Refusal { call: libc::SYS_clone3, arguments: &[], error: libc::EAGAIN };
    let port = ["--json", "-p", "ve0,queues=2", "--cores", "0,1"];
    let fwd = [&["fwd"][..], &port].concat();
    let echo = [&["echo", "--udp", "7", "--ip", "10.0.0.9/24", "--hugepages", "off"][..], &port].concat();
    let kernel =
        ["echo", "--json", "--stack", "kernel", "--udp", "7", "--hugepages", "off", "--cores", "0,1"];
    let rr = [
        "rr",
        "--json",
        "--to",
        "10.0.0.1:7",
        "--proto",
        "udp",
        "--flows",
        "2",
        "--cores",
        "0,1",
        "--duration",
        "1s",
    ];
    for (words, what) in [(&fwd[..], "lcore"), (&echo, "lcore"), (&kernel, "lcore"), (&rr, "client")] {
        for nth in 0..2 {
            let ended = refusal.start_nth(nth, &netns, words).wait();
            let last = ended.stderr.lines().last().unwrap_or_default();
            let told = format!("{}: no thread for the {what} on CPU {nth}: Resource temporarily", words[0]);
            assert_eq!(ended.code, Some(2), "{words:?}, {nth}: {}", ended.stderr);
            assert!(last.contains(&told) && last.contains("TasksMax="), "{words:?}, {nth}: {}", ended.stderr);
            assert!(!ended.stderr.contains("panicked"), "{words:?}, {nth}: {}", ended.stderr);
            assert!(!netns.has_xdp("ve0"), "{words:?}, {nth}");
        }
    }
    // The queues are free again.
    Fwd::start(&netns, &port[1..3]).end().assert_conserved();
}

/// Every place where the process can run out of files tells the limit.
#[test]
fn too_few_files_are_told_with_the_limit_wherever_it_is_met() {
    if !can_make_networks("too_few_files_are_told_with_the_limit_wherever_it_is_met") {
        return;
    }
    let (netns, _veth) = network(1);
    let mut lines = Vec::new();
    // With three, not even the command's libraries can be loaded.
    for files in 4..64 {
        let (limit, program) = (format!("--nofile={files}:{files}"), sheafio());
        let words = [&limit, "--", program.to_str().unwrap(), "fwd", "--json", "--duration", "100ms"];
        let words = [&words[..], &["--cores", "0", "-p", "ve0"]].concat();
        let ended = Fwd::start_program(&netns, "prlimit".into(), &words).wait();
        if ended.code == Some(0) {
            ended.assert_conserved();
            assert!(!ended.stderr.contains("generic"), "{}", ended.stderr);
            break;
        }
        let line = ended.refusal();
        // Another mode would not help, so none is tried.
        assert!(!line.contains("generic mode"), "{line}");
        let told = format!("This process may have {files} files open at once (RLIMIT_NOFILE)");
        assert!(line.contains("ve0") && line.contains(&told) && line.contains("ulimit -n 1024"), "{line}");
        lines.push(line);
    }
    let met = |what: &str| lines.iter().any(|line| line.contains(what));
    assert!(met("load the XDP program"), "{lines:#?}");
    // Loading takes more files than all that comes after it where the program's types are looked for in vain.
    let goes_on = met("opening an AF_XDP socket") && met("attach");
    assert!(goes_on || !kernel_is_at_least(6, 3), "{lines:#?}");
}
