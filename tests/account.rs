//! Every packet that came to a port is received, dropped by a name, or left to the kernel; and a loss that nobody names
//! is shown as one.
//!
//! ```text
//!   peer 10.0.0.1               under test
//!   | ve1 | ---------------- | ve0 | XDP program --- udp:7 ---> socket ---> fwd, rxonly
//!                                          \------- else -----> kernel
//! ```

use std::{
    net::UdpSocket,
    os::fd::RawFd,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use sheafio_core::{DropReason, Queue};
use sheafio_drivers::af_xdp::{self, Config, Mode};
use sheafio_mempool::{Burst, Hugepages, Mempool};
use sheafio_tests::{Ended, Fwd, Netns, Veth, can_make_networks, run};

const PEER: &str = "10.0.0.1";
const OURS: &str = "10.0.0.2";
/// The longest that a packet may take: far above what it takes.
const PATIENCE: Duration = Duration::from_mins(1);
/// Ports of the datagrams: the first is ours.
const PORTS: [u16; 2] = [7, 8];

fn network() -> (Netns, Veth) {
    let under_test = Netns::new("account");
    let veth = Veth::new(&under_test, "ve0", PEER, 1);
    veth.set_neighbour(OURS, "02:00:00:00:00:aa");
    (under_test, veth)
}

/// What the peer's device counts as sent, and as dropped instead.
fn sent_by(peer: &Netns) -> (u64, u64) {
    let links: Value = serde_json::from_str(&peer.ip(&["-s", "-j", "link", "show", "dev", "ve1"])).unwrap();
    let count = |key: &str| links[0]["stats64"]["tx"][key].as_u64().unwrap();
    (count("packets"), count("dropped"))
}

/// Sends datagrams, in turns to each port.
fn send(veth: &Veth, count: u32) {
    let socket = veth.peer.enter(|| UdpSocket::bind((PEER, 0)).unwrap());
    for number in 0..count {
        socket.send_to(&[0; 60], (OURS, PORTS[number as usize % 2])).unwrap();
    }
}

/// What the last object says became of the packets of the first port in the XDP program.
fn program(ended: &Ended, verdict: &str) -> u64 {
    ended.lines.last().unwrap()["ports"][0]["program"][verdict].as_u64().unwrap()
}

fn signed(ended: &Ended, key: &str) -> i64 {
    let port = &ended.lines.last().unwrap()["ports"][0];
    port[key].as_i64().unwrap_or_else(|| panic!("no {key} in {port}"))
}

const BEFORE_RX: [&str; 4] = ["rx_no_frame", "rx_ring_full", "rx_too_large", "rx_invalid"];

/// A receiver that stops for a while, with rings of 64: what it can't take has a name, to the packet, and so has what
/// is not ours. The user is told once what helps.
#[test]
fn what_a_slow_receiver_loses_adds_up_to_the_packet() {
    if !can_make_networks("what_a_slow_receiver_loses_adds_up_to_the_packet") {
        return;
    }
    for mode in ["native", "generic"] {
        let (under_test, veth) = network();
        let before = sent_by(&veth.peer);
        let port = format!("ve0,mode={mode},ring=64,steer=udp:{}", PORTS[0]);
        let fwd = Fwd::start(&under_test, &["-p", &port, "--mode", "rxonly", "--frames", "1024"]);
        for _ in 0..5 {
            fwd.pause();
            send(&veth, 1000);
            fwd.signal(libc::SIGCONT);
            thread::sleep(Duration::from_millis(50));
            // Beside a receiver that runs.
            send(&veth, 1000);
        }
        // Beyond the next look at the counts, and the one behind it.
        thread::sleep(Duration::from_millis(2100));
        let ended = fwd.end();
        let last = ended.assert_conserved();
        let after = sent_by(&veth.peer);
        let (sent, dropped_by_peer) = (after.0 - before.0, after.1 - before.1);
        assert_eq!(sent + dropped_by_peer, 10_000, "{mode}");

        let (received, passed) = (ended.port(0, "rx_packets"), program(&ended, "passed"));
        let drops: u64 = BEFORE_RX.iter().map(|reason| ended.port(0, reason)).sum();
        assert_eq!(ended.port(0, "wire_rx"), sent, "{mode}: {last}");
        assert_eq!(received + drops + passed, sent, "{mode}: {last}");
        assert_eq!(program(&ended, "redirected") + passed, sent, "{mode}: {last}");
        assert_eq!((signed(&ended, "unexplained_rx"), signed(&ended, "unexplained_tx")), (0, 0), "{last}");
        // 500 of each thousand are ours, and the rings hold 64 of them while nobody receives.
        assert!(ended.port(0, "rx_no_frame") >= 5 * (500 - 64) - dropped_by_peer, "{mode}: {last}");
        assert!(passed > 0 && received > 64, "{mode}: {last}");
        let hints = ended.stderr.matches("warning: ve0: rx_no_frame: ").count();
        assert_eq!(hints, 1, "{}", ended.stderr);
        assert!(ended.stderr.contains("a longer ring="), "{}", ended.stderr);
        // veth counts what the socket refuses and what our program drops as its own drops too; in generic mode nobody
        // else counts them.
        let device = last["ports"][0]["device"].as_object().unwrap();
        let named = |key: &str| device.get(key).and_then(Value::as_u64).unwrap_or(0);
        let named = named("rx_queue_drops") + named("rx_queue_xdp_drops");
        assert_eq!(named, if mode == "native" { drops } else { 0 }, "{mode}: {last}");
    }
}

/// With receive packet steering several CPUs run the generic XDP program for one queue at a time, and each may find the
/// counts of its frames as the other one has just left them: no packet is lost without a name, and none counted twice.
#[test]
fn what_several_cpus_receive_for_one_queue_adds_up() {
    if !can_make_networks("what_several_cpus_receive_for_one_queue_adds_up") {
        return;
    }
    let (under_test, veth) = network();
    under_test.run("sh", &["-c", "echo 3 > /sys/class/net/ve0/queues/rx-0/rps_cpus"]);
    let port = format!("ve0,mode=generic,ring=64,steer=udp:{}", PORTS[0]);
    let before = sent_by(&veth.peer);
    let fwd = Fwd::start(&under_test, &["-p", &port, "--mode", "rxonly", "--frames", "1024"]);
    let flood = |datagrams| {
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    // A flow each time, which go to CPUs by their hashes.
                    for _ in 0..20 {
                        send(&veth, datagrams);
                    }
                });
            }
        });
        thread::sleep(Duration::from_millis(100));
    };
    flood(500);
    // Nearly all of these find no frame.
    fwd.pause();
    flood(2000);
    fwd.signal(libc::SIGCONT);
    let ended = fwd.end();
    let last = ended.assert_conserved();
    let after = sent_by(&veth.peer);
    let (received, passed) = (ended.port(0, "rx_packets"), program(&ended, "passed"));
    let drops: u64 = BEFORE_RX.iter().map(|reason| ended.port(0, reason)).sum();
    assert_eq!((after.0 - before.0) + (after.1 - before.1), 100_000);
    assert_eq!((signed(&ended, "unexplained_rx"), signed(&ended, "unexplained_tx")), (0, 0), "{last}");
    assert_eq!(received + drops, program(&ended, "redirected"), "{last}");
    assert!(received > 64 && passed > 0, "{last}");
    // What a CPU's own queue had no room for, the device counts.
    let device = last["ports"][0]["device"].as_object().unwrap();
    let named = device.get("rx_dropped").and_then(Value::as_u64).unwrap_or(0);
    let seen = program(&ended, "redirected") + passed;
    assert!((seen..=seen + named).contains(&(after.0 - before.0)), "{last}");
}

/// What others do on the device, before the port is opened, meanwhile, and after, is not taken for ours or for a loss.
#[test]
fn traffic_of_others_leaves_nothing_unexplained() {
    if !can_make_networks("traffic_of_others_leaves_nothing_unexplained") {
        return;
    }
    for mode in ["native", "generic"] {
        let (under_test, veth) = network();
        under_test.ip(&["addr", "add", "10.0.0.3/24", "dev", "ve0"]);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        thread::scope(|scope| {
            // All the time, also while the program comes and goes.
            scope.spawn(|| {
                while !stop.load(relaxed) {
                    send(&veth, 100);
                }
            });
            assert!(veth.peer.succeeds("ping", &["-c", "3", "-i", "0.05", "-W", "2", "10.0.0.3"]));
            let port = format!("ve0,mode={mode},steer=udp:{}", PORTS[0]);
            let fwd = Fwd::start(&under_test, &["-p", &port, "--mode", "macswap"]);
            let replies = veth.peer.succeeds("ping", &["-c", "20", "-i", "0.01", "-W", "2", "10.0.0.3"]);
            let ended = fwd.end();
            stop.store(true, relaxed);
            let last = ended.assert_conserved();
            assert!(replies, "{mode}: the kernel's ping is not ours");
            let unexplained = (signed(&ended, "unexplained_rx"), signed(&ended, "unexplained_tx"));
            assert_eq!(unexplained, (0, 0), "{mode}: {last}");
            assert!(ended.port(0, "wire_tx") >= 20 && program(&ended, "passed") >= 20, "{mode}: {last}");
        });
    }
}

/// Someone puts a socket of another device into the program's map, so that packets are redirected to where they can't
/// go. In generic mode nobody counts them; veth's own XDP path does, and then they have a name.
#[test]
fn a_loss_that_nobody_names_is_shown_as_unexplained() {
    if !can_make_networks("a_loss_that_nobody_names_is_shown_as_unexplained") {
        return;
    }
    for mode in ["native", "generic"] {
        let (under_test, veth) = network();
        let _other = Veth::new(&under_test, "vx0", "10.0.1.1", 1);
        let port = format!("ve0,mode={mode}");
        let fwd = Fwd::start(&under_test, &["-p", &port, "--mode", "rxonly"]);
        send(&veth, 100);
        thread::sleep(Duration::from_millis(200));
        let links: Value =
            serde_json::from_str(&under_test.ip(&["-d", "-j", "link", "show", "dev", "ve0"])).unwrap();
        let program = links[0]["xdp"]["prog"]["id"].as_u64().expect("a program is there") as u32;
        under_test.enter(|| {
            let pool = Mempool::builder().frames(256).hugepages(Hugepages::Off).build().unwrap();
            let config = Config { mode: Mode::Generic, ..Config::default() };
            let mut port = af_xdp::open_with("vx0", &config, pool).unwrap();
            let (mut queue, mut cache) = (port.queue(0).unwrap(), pool.cache().unwrap());
            put_into_map(program, queue.wait_fd().unwrap());
            send(&veth, 50);
            thread::sleep(Duration::from_millis(200));
            queue.close(&mut cache);
            drop(cache);
            assert_eq!(pool.audit().unwrap().home, 256);
        });
        let ended = fwd.end();
        let last = ended.assert_conserved();
        assert_eq!((ended.port(0, "wire_rx"), ended.port(0, "rx_packets")), (150, 100), "{mode}: {last}");
        let device = last["ports"][0]["device"].as_object().unwrap();
        let named = device.get("rx_queue_drops").and_then(Value::as_i64).unwrap_or(0);
        let expected = if mode == "native" { (50, 0) } else { (0, 50) };
        assert_eq!((named, signed(&ended, "unexplained_rx")), expected, "{mode}: {last}");
    }
}

/// Packets that the program counts for frames, and that never took any, do not leave these frames unused for good.
#[test]
fn frames_of_packets_that_went_elsewhere_are_used_again() {
    if !can_make_networks("frames_of_packets_that_went_elsewhere_are_used_again") {
        return;
    }
    for mode in [Mode::Native, Mode::Generic] {
        let (under_test, veth) = network();
        let _other = Veth::new(&under_test, "vx0", "10.0.1.1", 1);
        under_test.enter(|| {
            let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap();
            let config = Config { mode, ring: 64, ..Config::default() };
            let [mut port, mut other] =
                ["ve0", "vx0"].map(|interface| af_xdp::open_with(interface, &config, pool).unwrap());
            let [mut queue, mut other] = [&mut port, &mut other].map(|port| port.queue(0).unwrap());
            let mut cache = pool.cache().unwrap();
            let links: Value =
                serde_json::from_str(&run("ip", &["-d", "-j", "link", "show", "dev", "ve0"])).unwrap();
            let program = links[0]["xdp"]["prog"]["id"].as_u64().expect("a program is there") as u32;

            put_into_map(program, other.wait_fd().unwrap());
            send(&veth, 40);
            put_into_map(program, queue.wait_fd().unwrap());
            let mut burst = Burst::with_limit(Burst::MAX);
            for _ in 0..100 {
                assert_eq!(queue.rx_burst(&mut cache, &mut burst), 0, "{mode:?}");
            }
            // There is a frame for each of these, and none for the last ones.
            send(&veth, 64 + 10);
            let start = Instant::now();
            while burst.len() < 64 && start.elapsed() < PATIENCE {
                queue.rx_burst(&mut cache, &mut burst);
            }
            assert_eq!(burst.len(), 64, "{mode:?}");
            cache.free_burst(&mut burst);
            queue.close(&mut cache);
            other.close(&mut cache);
            let drops: Vec<_> = queue.counters().totals().all_drops().collect();
            assert_eq!(drops, [(DropReason::RxNoFrame, 10)], "{mode:?}");
            drop(cache);
            assert_eq!(pool.audit().unwrap().home, 1024, "{mode:?}");
        });
    }
}

/// What comes to the device before the port is opened and after it has closed is not the port's.
#[test]
fn a_port_tells_what_came_while_it_was_open() {
    if !can_make_networks("a_port_tells_what_came_while_it_was_open") {
        return;
    }
    for mode in [Mode::Native, Mode::Generic] {
        let (under_test, veth) = network();
        send(&veth, 10);
        under_test.enter(|| {
            let pool = Mempool::builder().frames(256).hugepages(Hugepages::Off).build().unwrap();
            let mut port = af_xdp::open_with("ve0", &Config { mode, ..Config::default() }, pool).unwrap();
            let (mut queue, mut cache) = (port.queue(0).unwrap(), pool.cache().unwrap());
            assert_eq!(port.device_counts().unwrap().rx_packets, 0..=0, "{mode:?}");
            send(&veth, 20);
            let start = Instant::now();
            while *port.device_counts().unwrap().rx_packets.end() < 20 && start.elapsed() < PATIENCE {}
            queue.close(&mut cache);
            send(&veth, 40);
            let counts = port.device_counts().unwrap();
            assert_eq!((counts.rx_packets, counts.is_gone), (20..=20, false), "{mode:?}");
            drop(cache);
            assert_eq!(pool.audit().unwrap().home, 256);
            under_test.ip(&["link", "del", "ve0"]);
            let gone = port.device_counts().unwrap();
            assert_eq!((gone.rx_packets, gone.is_gone), (20..=20, true), "{mode:?}");
        });
    }
}

/// Puts a socket into the first place of the map of sockets of a loaded XDP program.
fn put_into_map(program: u32, socket: RawFd) {
    let mut map_ids = [0_u32; 16];
    // SAFETY: each call gets valid pointers and the sizes of what they point to; the descriptors are this function's,
    // and closed by it.
    unsafe {
        let fd = libbpf_sys::bpf_prog_get_fd_by_id(program);
        assert!(fd >= 0, "program {program}: {}", std::io::Error::last_os_error());
        let mut info: libbpf_sys::bpf_prog_info = std::mem::zeroed();
        (info.nr_map_ids, info.map_ids) = (map_ids.len() as u32, map_ids.as_mut_ptr().addr() as u64);
        let mut len = size_of_val(&info) as u32;
        assert_eq!(libbpf_sys::bpf_obj_get_info_by_fd(fd, (&raw mut info).cast(), &raw mut len), 0);
        libc::close(fd);
        let is_of_sockets = |id: &&u32| {
            let fd = libbpf_sys::bpf_map_get_fd_by_id(**id);
            let mut info: libbpf_sys::bpf_map_info = std::mem::zeroed();
            let mut len = size_of_val(&info) as u32;
            assert_eq!(libbpf_sys::bpf_obj_get_info_by_fd(fd, (&raw mut info).cast(), &raw mut len), 0);
            libc::close(fd);
            info.type_ == libbpf_sys::BPF_MAP_TYPE_XSKMAP
        };
        let id = map_ids[..info.nr_map_ids as usize].iter().find(is_of_sockets).expect("a map of sockets");
        let map = libbpf_sys::bpf_map_get_fd_by_id(*id);
        let queue = 0_u32;
        let put =
            libbpf_sys::bpf_map_update_elem(map, (&raw const queue).cast(), (&raw const socket).cast(), 0);
        assert_eq!(put, 0, "{}", std::io::Error::last_os_error());
        libc::close(map);
    }
}
