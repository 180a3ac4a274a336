//! What a port does to its link as a whole: promiscuous mode, group addresses.

use std::{
    thread,
    time::{Duration, Instant},
};

use sheafio_drivers::{PortSpec, Ports, af_xdp};
use sheafio_mempool::{Hugepages, Mempool};
use sheafio_tests::{Fwd, Netns, Veth, can_make_networks, sheafio};

/// The longest that the end of a killed process may take: far above what it takes.
const PATIENCE: Duration = Duration::from_mins(1);

fn network() -> (Netns, Veth) {
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", "10.0.0.1", 1);
    (under_test, veth)
}

/// How many ask for promiscuous mode of `ve0`, as the kernel counts them.
fn promiscuity(netns: &Netns) -> u64 {
    promiscuity_of(netns, "ve0")
}

fn promiscuity_of(netns: &Netns, interface: &str) -> u64 {
    let text = netns.ip(&["-d", "-j", "link", "show", "dev", interface]);
    let links: serde_json::Value = serde_json::from_str(&text).unwrap();
    links[0]["promiscuity"].as_u64().unwrap()
}

/// A NIC hands on others' packets only so; it ends with the run, in whatever way that ends.
#[test]
fn a_forwarder_is_promiscuous_as_long_as_it_runs() {
    if !can_make_networks("a_forwarder_is_promiscuous_as_long_as_it_runs") {
        return;
    }
    let (netns, _veth) = network();
    for (mode, options, expected) in [
        ("io", "", 1),
        ("mac", "", 1),
        ("macswap", "", 1),
        ("rxonly", ",mode=generic", 1),
        ("icmpecho", "", 0),
        ("txonly", "", 0),
        ("io", ",promisc=no", 0),
        ("icmpecho", ",promisc=yes", 1),
    ] {
        let fwd = Fwd::start(&netns, &["-p", &format!("ve0{options}"), "--mode", mode]);
        assert_eq!(promiscuity(&netns), expected, "{mode}{options}");
        fwd.end().assert_conserved();
        assert_eq!(promiscuity(&netns), 0, "{mode}{options}: it is left behind");
    }

    let fwd = Fwd::start(&netns, &["-p", "ve0"]);
    assert_eq!(promiscuity(&netns), 1);
    fwd.signal(libc::SIGKILL);
    assert_eq!(fwd.wait().code, None);
    let start = Instant::now();
    while promiscuity(&netns) > 0 {
        assert!(start.elapsed() < PATIENCE, "it is left behind after SIGKILL");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Questions for an IPv6 address of our own come to its group, which a NIC passes by unless somebody has joined it.
#[test]
fn an_address_of_its_own_has_its_group_as_long_as_it_is_served() {
    if !can_make_networks("an_address_of_its_own_has_its_group_as_long_as_it_is_served") {
        return;
    }
    let (netns, _veth) = network();
    let group = "link  33:33:ff:cd:00:09";
    let joined = || netns.ip(&["maddr", "show", "dev", "ve0"]).contains(group);
    assert!(!joined());
    let args =
        ["echo", "-p", "ve0", "--json", "--tcp", "7", "--ip", "fd00::9:abcd:9/64", "--ip", "10.0.0.9/24"];
    let echo = Fwd::start_program(&netns, sheafio(), &args);
    echo.wait_for_xdp(&netns, "ve0");
    assert!(joined(), "{}", netns.ip(&["maddr", "show", "dev", "ve0"]));
    assert_eq!(promiscuity(&netns), 0);
    let ended = echo.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!joined(), "it is left behind");
}

/// What someone else has asked for stays; the library asks for nothing by itself, and a port that could not be
/// opened leaves nothing behind.
#[test]
fn promiscuous_mode_is_counted_and_asked_for_only_by_those_who_want_it() {
    if !can_make_networks("promiscuous_mode_is_counted_and_asked_for_only_by_those_who_want_it") {
        return;
    }
    let (netns, _veth) = network();
    let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap();
    netns.enter(|| {
        let port = af_xdp::open("ve0", pool).unwrap();
        assert_eq!(promiscuity(&netns), 0);
        drop(port);
        let mut spec: PortSpec = "ve0".parse().unwrap();
        spec.set_promisc(true);
        let port = Ports::new(pool).open(&spec).ok().unwrap();
        assert_eq!(promiscuity(&netns), 1);
        netns.ip(&["link", "set", "ve0", "promisc", "on"]);
        assert_eq!(promiscuity(&netns), 2);
        drop(port);
        assert_eq!(promiscuity(&netns), 1);
        netns.ip(&["link", "set", "ve0", "promisc", "off"]);

        // Native mode is refused where the peer has more TX queues than there are RX queues, when all else has been done.
        let other = Veth::new(&netns, "vf0", "10.0.1.1", 2);
        netns.run("ethtool", &["-L", "vf0", "rx", "1"]);
        let spec: PortSpec = "vf0,mode=native,promisc=yes".parse().unwrap();
        let error = Ports::new(pool).open(&spec).err().expect("it is refused").to_string();
        assert!(error.contains("The peer of a veth must not have more TX queues than vf0 has RX"), "{error}");
        assert_eq!(promiscuity_of(&netns, "vf0"), 0);
        // It would have been asked for.
        other.peer.run("ethtool", &["-L", "ve1", "tx", "1"]);
        let port = Ports::new(pool).open(&spec).ok().unwrap();
        assert_eq!(promiscuity_of(&netns, "vf0"), 1);
        drop(port);
    });
    assert_eq!(pool.audit().unwrap().home, 1024);
}
