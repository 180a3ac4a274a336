//! Which queues a port has, and how ports share the packet memory.

use std::{
    net::UdpSocket,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use sheafio_core::{DropReason, Queue};
use sheafio_drivers::af_xdp::{self, Config, QueueSet};
use sheafio_mempool::{Burst, Hugepages, Mempool};
use sheafio_tests::{Fwd, Netns, Veth, can_make_networks, kernel_has, sheafio};

const PEER: &str = "10.0.0.1";
const OURS: &str = "10.0.0.2";

fn network(queues: u32) -> (Netns, Veth) {
    let under_test = Netns::new("fwd");
    let veth = Veth::new(&under_test, "ve0", PEER, queues);
    (under_test, veth)
}

/// Sends all that the peer sends through one of its queues; it arrives on our queue of that number.
fn send_through(veth: &Veth, queue: u32, queues: u32) {
    for other in 0..queues {
        let mask = if other == queue { "3" } else { "0" };
        let path = format!("/sys/class/net/ve1/queues/tx-{other}/xps_cpus");
        veth.peer.run("sh", &["-c", &format!("echo {mask} > {path}")]);
    }
}

/// Lcores serve the opened queues in their order, whatever their numbers; packets of the others go to the kernel.
#[test]
fn a_list_of_queues_is_served_and_the_rest_goes_to_the_kernel() {
    if !can_make_networks("a_list_of_queues_is_served_and_the_rest_goes_to_the_kernel") {
        return;
    }
    // In generic mode veth takes the number of the peer's TX queue, less one, for that of the RX queue.
    for (mode, received) in [("native", 20 + 80), ("generic", 40)] {
        let (netns, veth) = network(4);
        veth.set_neighbour(OURS, "02:00:00:00:00:aa");
        let port = format!("ve0,queues=1+3,mode={mode}");
        let fwd = Fwd::start(&netns, &["-p", &port, "--mode", "rxonly", "--cores", "0,1"]);
        for (queue, packets) in [(0, 10), (1, 20), (2, 40), (3, 80)] {
            send_through(&veth, queue, 4);
            let socket = veth.peer.enter(|| UdpSocket::bind((PEER, 0)).unwrap());
            for _ in 0..packets {
                socket.send_to(&[0; 60], (OURS, 9)).unwrap();
            }
        }
        thread::sleep(Duration::from_millis(300));
        let ended = fwd.end();
        let last = ended.assert_conserved();
        assert_eq!(ended.port(0, "rx_packets"), received, "{mode}: {last}");
        assert_eq!(last["ports"][0]["held"].as_array().unwrap().len(), 2);
        assert_eq!(last["ports"][0]["program"]["not_bound"], 150 - received, "{mode}: {last}");
        for part in ["ve0: it has 4 RX queues, not opened of these: 0+2.", "queues=4", "ethtool -N ve0"] {
            assert!(ended.stderr.contains(part), "{}", ended.stderr);
        }
    }
}

/// As many as the interface has, without knowing how many; counted one by one.
#[test]
fn all_queues_are_served() {
    if !can_make_networks("all_queues_are_served") {
        return;
    }
    let (netns, veth) = network(4);
    let fwd =
        Fwd::start(&netns, &["-p", "ve0,mode=native,queues=all", "--mode", "icmpecho", "--frames", "32768"]);
    for queue in 0..4 {
        send_through(&veth, queue, 4);
        assert!(veth.peer.succeeds("ping", &["-c", "3", "-i", "0.05", "-W", "2", OURS]), "queue {queue}");
    }
    let ended = fwd.end();
    let last = ended.assert_conserved();
    assert!(!ended.stderr.contains("not opened"), "{}", ended.stderr);
    let queues = last["ports"][0]["by_queue"].as_array().unwrap();
    let sum = |key: &str| queues.iter().map(|queue| queue[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((queues.len(), sum("rx_packets")), (4, ended.port(0, "rx_packets")), "{last}");
    assert_eq!(sum("tx_packets"), ended.port(0, "tx_packets"), "{last}");
    assert!(queues.iter().all(|queue| queue["rx_packets"].as_u64() >= Some(3)), "{last}");
}

/// A queue that closes while others stay leaves its packets to the kernel, also those for which it had no frames.
#[test]
fn packets_of_a_closed_queue_go_to_the_kernel() {
    if !can_make_networks("packets_of_a_closed_queue_go_to_the_kernel") {
        return;
    }
    let (netns, veth) = network(2);
    netns.ip(&["addr", "add", "10.0.0.2/24", "dev", "ve0"]);
    let link: Value = serde_json::from_str(&netns.ip(&["-j", "link", "show", "dev", "ve0"])).unwrap();
    veth.set_neighbour(OURS, link[0]["address"].as_str().unwrap());
    send_through(&veth, 0, 2);
    netns.enter(|| {
        let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap();
        let config = Config { queues: QueueSet::range(0, 2).unwrap(), ring: 64, ..Config::default() };
        let mut port = af_xdp::open_with("ve0", &config, pool).unwrap();
        let [mut first, mut second] = [0, 1].map(|queue| port.queue(queue).unwrap());
        let mut cache = pool.cache().unwrap();
        let socket = veth.peer.enter(|| UdpSocket::bind((PEER, 0)).unwrap());
        for _ in 0..100 {
            socket.send_to(&[0; 60], (OURS, 9)).unwrap();
        }
        first.close(&mut cache);
        let drops: Vec<_> = first.counters().totals().all_drops().collect();
        assert_eq!(drops, [(DropReason::RxNoFrame, 36), (DropReason::RxUnread, 64)]);
        assert!(veth.peer.succeeds("ping", &["-c", "3", "-i", "0.1", "-W", "2", OURS]));
        second.close(&mut cache);
        drop(cache);
        assert_eq!(pool.audit().unwrap().home, 1024);
    });
}

/// In copy mode a kick sends 32 packets, but where the kernel lets us raise that.
#[test]
fn a_long_burst_leaves_with_one_call() {
    let name = "a_long_burst_leaves_with_one_call";
    if !can_make_networks(name) || !kernel_has(name, 6, 17, "XDP_MAX_TX_SKB_BUDGET") {
        return;
    }
    let (netns, veth) = network(1);
    let received = || {
        let links: Value =
            serde_json::from_str(&veth.peer.ip(&["-s", "-j", "link", "show", "dev", "ve1"])).unwrap();
        links[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
    };
    netns.enter(|| {
        let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap();
        let mut port = af_xdp::open("ve0", pool).unwrap();
        let (mut queue, mut cache) = (port.queue(0).unwrap(), pool.cache().unwrap());
        let mut burst = Burst::with_limit(256);
        assert_eq!(cache.alloc_packets(&mut burst, 256, 60), 256);
        let before = received();
        assert_eq!(queue.tx_burst(&mut cache, &mut burst), 256);
        // Nobody calls the queue again.
        let start = Instant::now();
        while received() < before + 256 {
            assert!(start.elapsed() < Duration::from_mins(1), "{} of 256 packets came", received() - before);
            thread::sleep(Duration::from_millis(10));
        }
        queue.close(&mut cache);
        drop(cache);
        assert_eq!(pool.audit().unwrap().home, 1024);
    });
}

/// xdp-tutorial#108: flows that hash to a queue that nobody opened were lost without a word.
#[test]
fn queues_that_are_not_opened_are_warned_of() {
    if !can_make_networks("queues_that_are_not_opened_are_warned_of") {
        return;
    }
    let (netns, _veth) = network(2);
    let warned = |port: &str| {
        let ended = Fwd::start(&netns, &["-p", port]).end();
        ended.assert_conserved();
        ended.stderr
    };
    let stderr = warned("ve0");
    for part in ["it has 2 RX queues, not opened of these: 1.", "queues=2", "ethtool -L ve0 combined 1"] {
        assert!(stderr.contains(part), "{stderr}");
    }
    assert!(!warned("ve0,queues=2").contains("not opened"));
    assert!(!warned("ve0,queues=0-1").contains("not opened"));
}

/// The packet memory of two ports is counted once against the limit on locked memory: it would not fit twice.
#[test]
fn ports_share_one_registration_of_the_packet_memory() {
    let name = "ports_share_one_registration_of_the_packet_memory";
    // Before, nobody tells what a driver can do, and ports that may differ share nothing.
    if !can_make_networks(name) || !kernel_has(name, 6, 3, "XDP features by netlink") {
        return;
    }
    let under_test = Netns::new("fwd");
    let left = Veth::new(&under_test, "ve0", PEER, 2);
    let right = Veth::new(&under_test, "vf0", OURS, 2);
    let program = sheafio().to_str().unwrap().to_owned();
    // 2 MiB of packet memory, on each node, and a limit of 3 MiB, which counts without CAP_IPC_LOCK.
    let nodes = std::fs::read_dir("/sys/devices/system/node").unwrap().flatten();
    let nodes = nodes.filter(|entry| entry.file_name().to_string_lossy().starts_with("node")).count();
    let limit = 3072 * nodes;
    let run = |options: &str| {
        let ports = format!("-p ve0,{options} -p vf0,{options}");
        let line = format!(
            "ulimit -l {limit}; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock {program} fwd --json --frames \
             1024 --hugepages off {ports}"
        );
        Fwd::start_program(&under_test, "sh".into(), &["-c", &line])
    };
    for options in ["queues=2,mode=native", "queues=2,mode=generic", "queues=2,frags=yes"] {
        if options.contains("frags") && !kernel_has(name, 6, 6, "packets in several frames") {
            continue;
        }
        let fwd = run(options);
        fwd.wait_for_xdp(&under_test, "ve0");
        fwd.wait_for_xdp(&under_test, "vf0");
        let start = Instant::now();
        while !left.peer.succeeds("ping", &["-c", "1", "-W", "1", OURS]) {
            assert!(start.elapsed() < Duration::from_mins(1), "{options}: nothing is forwarded");
        }
        let ended = fwd.end();
        ended.assert_conserved();
        assert_eq!(ended.retired(), 0);
    }
    drop(right);
}

/// A port that waits until its queue is free does not keep another port's socket open, whose packet memory it would share.
#[test]
fn a_port_that_waits_for_its_queue_lets_another_one_close() {
    if !can_make_networks("a_port_that_waits_for_its_queue_lets_another_one_close") {
        return;
    }
    let under_test = Netns::new("fwd");
    let _left = Veth::new(&under_test, "ve0", PEER, 1);
    let _right = Veth::new(&under_test, "vf0", OURS, 1);
    let [pool, other] =
        [1024; 2].map(|frames| Mempool::builder().frames(frames).hugepages(Hugepages::Off).build().unwrap());
    under_test.enter(|| {
        let left = af_xdp::open("ve0", pool).unwrap();
        let holder = af_xdp::open("vf0", other).unwrap();
        // In the same network namespace; the program of the one that holds the queue does not keep it from waiting.
        let waiting = thread::spawn(|| {
            let config = Config { force: true, ..Config::default() };
            af_xdp::open_with("vf0", &config, pool).map(drop).map_err(|error| error.to_string())
        });
        thread::sleep(Duration::from_millis(300));
        drop(left);
        let left = af_xdp::open("ve0", pool).unwrap();
        assert!(!waiting.is_finished(), "the closed queue was free only when nobody waited any more");
        drop(holder);
        waiting.join().unwrap().unwrap();
        drop(left);
    });
    assert_eq!([pool, other].map(|pool| pool.audit().unwrap().home), [1024; 2]);
}

/// Queues without a TX queue of their number receive, and the user is told that they can't send.
#[test]
fn queues_that_can_not_send_are_warned_of() {
    if !can_make_networks("queues_that_can_not_send_are_warned_of") {
        return;
    }
    let (netns, veth) = network(2);
    veth.peer.run("ethtool", &["-L", "ve1", "rx", "1", "tx", "2"]);
    netns.run("ethtool", &["-L", "ve0", "rx", "2", "tx", "1"]);
    let ended = Fwd::start(&netns, &["-p", "ve0,queues=2"]).end();
    ended.assert_conserved();
    for part in ["ve0: it has 1 TX queue(s): what is sent on queues from 1 on", "ethtool -L ve0 combined 2"] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
    let ended = Fwd::start(&netns, &["-p", "ve0,queues=1"]).end();
    assert!(!ended.stderr.contains("TX queue"), "{}", ended.stderr);
}
