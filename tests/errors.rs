//! What is refused when ports are opened, and what the one line says about it.

use std::{fs, thread, time::Duration};

use sheafio_tests::{Fwd, Netns, Veth, can_make_networks, refused, sheafio};

/// A namespace under test with `ve0`, and its kernel peer.
fn network(queues: u32) -> (Netns, Veth) {
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", "10.0.0.1", queues);
    (under_test, veth)
}

/// s2n-quic#2045: queues that are not there.
#[test]
fn too_many_queues_are_refused_with_how_many_there_are() {
    if !can_make_networks("too_many_queues_are_refused_with_how_many_there_are") {
        return;
    }
    let (netns, _veth) = network(1);
    let line = refused(&netns, &["-p", "ve0,queues=8"]);
    for part in ["ve0: queues 0 to 7", "it has 1", "ethtool -L ve0 combined 8"] {
        assert!(line.contains(part), "{line}");
    }
    let line = refused(&netns, &["-p", "ve0,start=1"]);
    assert!(line.contains("queues 1 to 1"), "{line}");

    let (netns, _veth) = network(4);
    let fwd = Fwd::start(&netns, &["-p", "ve0,queues=4"]);
    fwd.end().assert_conserved();
}

/// xdp-tools#359: another program is attached, by netlink and by a link, in both modes.
#[test]
fn another_program_is_named_and_replaced_only_by_force() {
    if !can_make_networks("another_program_is_named_and_replaced_only_by_force") {
        return;
    }
    let (netns, _veth) = network(1);
    let object = pass_program();
    for (attach, mode, off) in [("xdpdrv", "native", "xdp off"), ("xdpgeneric", "generic", "xdpgeneric off")]
    {
        netns.ip(&["link", "set", "dev", "ve0", attach, "obj", &object, "sec", "xdp"]);
        for asked in ["ve0", "ve0,mode=generic", "ve0,mode=native"] {
            let line = refused(&netns, &["-p", asked]);
            for part in
                ["ve0: XDP program 'pass_all' (id ", mode, &format!("ip link set dev ve0 {off}"), "force"]
            {
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

    let first = Fwd::start(&netns, &["-p", "ve0"]);
    let line = refused(&netns, &["-p", "ve0"]);
    assert!(line.contains("'sheafio_xdp' (id ") && line.contains("BPF link"), "{line}");
    first.end().assert_conserved();
    fs::remove_file(object).unwrap();
}

/// An object file with a program that passes everything on.
fn pass_program() -> String {
    let folder = std::env::temp_dir();
    let source = folder.join(format!("sheafio-{}-pass.c", std::process::id()));
    let object = source.with_extension("o");
    let text = "__attribute__((section(\"xdp\"), used)) int pass_all(void *ctx) { return 2; }\n\
                char pass_license[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";
    fs::write(&source, text).unwrap();
    let paths = [source.to_str().unwrap(), object.to_str().unwrap()];
    sheafio_tests::run("clang", &["-O2", "-g", "-target", "bpf", "-c", paths[0], "-o", paths[1]]);
    fs::remove_file(&source).unwrap();
    paths[1].to_owned()
}

/// A queue that another process holds, without a program that would tell.
#[test]
fn a_queue_that_is_taken_is_named() {
    if !can_make_networks("a_queue_that_is_taken_is_named") {
        return;
    }
    let (netns, _veth) = network(1);
    let first = Fwd::start(&netns, &["-p", "ve0"]);
    let line = refused(&netns, &["-p", "ve0", "--force"]);
    assert!(line.contains("ve0 queue 0: another AF_XDP socket is bound to it"), "{line}");
    assert!(netns.has_xdp("ve0"), "force took a program off and could not use the queue");
    first.end().assert_conserved();
}

/// Rights that are missing are named all at once.
#[test]
fn missing_capabilities_are_named_in_one_message() {
    if !can_make_networks("missing_capabilities_are_named_in_one_message") {
        return;
    }
    let (netns, _veth) = network(1);
    let run_without = |drop: &str| {
        let program = sheafio().to_str().unwrap().to_owned();
        let args = [
            "--bounding-set",
            drop,
            "--inh-caps",
            drop,
            "--",
            &program,
            "fwd",
            "-p",
            "ve0",
            "--duration",
            "1s",
        ];
        let ended = Fwd::start_program(&netns, "setpriv".into(), &args).wait();
        (ended.code, ended.stderr)
    };
    for (drop, missing) in [
        ("-net_raw", "needs CAP_NET_RAW,"),
        ("-net_admin", "needs CAP_NET_ADMIN,"),
        ("-net_admin,-net_raw,-bpf,-sys_admin", "needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF,"),
    ] {
        let (code, stderr) = run_without(drop);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(missing), "{stderr}");
    }
}
