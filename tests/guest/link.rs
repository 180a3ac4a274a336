//! Links that go down when a port is opened, for its driver resets the NIC: igb, in every native mode.

use std::time::{Duration, Instant};

use sheafio_core::Queue;
use sheafio_drivers::af_xdp::{self, Config, CopyMode, Mode};
use sheafio_mempool::{Burst, Hugepages, Mempool};
use sheafio_tests::{Fwd, datagram, sheafio, socket};

use crate::{
    nics::{DRIVERS, LEFT, Nics, RIGHT, in_guest},
    zero_copy_drivers,
};

/// The longest that packets may take: far above what they take.
const PATIENCE: Duration = Duration::from_mins(1);
const PACKETS: u32 = 100;
/// Bytes of a datagram, and of its headers in front of it.
const DATAGRAM_BYTES: usize = 200;
const HEADERS_BYTES: usize = 14 + 20 + 8;

/// What is sent to a port as soon as it is open is received.
#[test]
fn a_port_that_is_open_receives_at_once() {
    if !in_guest("a_port_that_is_open_receives_at_once") {
        return;
    }
    let pool = Mempool::builder().frames(8192).frame_size(4096).hugepages(Hugepages::Off).build().unwrap();
    for driver in DRIVERS {
        let direct = zero_copy_drivers().contains(&driver).then_some((Mode::Native, CopyMode::ZeroCopy));
        let nics = Nics::new(driver);
        let interface = nics.interface(1);
        nics.send_to_port();
        let copied = [(Mode::Auto, CopyMode::Copy), (Mode::Generic, CopyMode::Copy)];
        for (mode, copy) in copied.into_iter().chain(direct) {
            // The end of the run before has reset the NIC too: a link that is down before is not waited for.
            nics.wait_for_links();
            let left = socket(&nics.left, LEFT);
            let received = nics.under_test.enter(|| {
                let config = Config { mode, copy, ring: 1024, ..Config::default() };
                let mut port = af_xdp::open_with(&interface, &config, pool).unwrap();
                assert!(!port.warnings().iter().any(|warning| warning.contains("not back")), "{driver}");
                let mut queue = port.queue(0).unwrap();
                let (mut cache, mut burst) = (pool.cache().unwrap(), Burst::new());
                let (start, mut received) = (Instant::now(), 0);
                for number in 0..PACKETS {
                    left.send_to(&datagram(number, DATAGRAM_BYTES), (RIGHT, 9)).unwrap();
                }
                while received < PACKETS && start.elapsed() < PATIENCE {
                    queue.rx_burst(&mut cache, &mut burst);
                    let is_ours =
                        |frame: &&sheafio_mempool::Frame| frame.len() == HEADERS_BYTES + DATAGRAM_BYTES;
                    received += burst.iter().filter(is_ours).count() as u32;
                    cache.free_burst(&mut burst);
                }
                queue.close(&mut cache);
                received
            });
            assert_eq!(received, PACKETS, "{driver}, {mode:?}, {copy:?}");
        }
    }
    let audit = pool.audit().unwrap();
    assert_eq!(audit.home + audit.missing.len() as u64, 8192);
    assert_eq!(audit.missing.len() as u64, pool.census().retired);
}

/// What the command sends at once goes out.
#[test]
fn what_is_sent_at_once_goes_out() {
    if !in_guest("what_is_sent_at_once_goes_out") {
        return;
    }
    for driver in ["igb", "virtio"] {
        let direct = zero_copy_drivers().contains(&driver).then_some(",copy=zerocopy");
        let nics = Nics::new(driver);
        nics.left.ip(&["link", "set", &nics.interface(0), "promisc", "on"]);
        for options in [",copy=copy"].into_iter().chain(direct) {
            nics.wait_for_links();
            let before = nics.received(0);
            let port = format!("{}{options}", nics.interface(1));
            let args = ["fwd", "--json", "-p", &port, "--frame-size", "4096"];
            let args = [&args[..], &["--mode", "txonly", "--packets", "100"]].concat();
            let ended = Fwd::start_program(&nics.under_test, sheafio(), &args).wait();
            ended.assert_conserved();
            let sent = (ended.port(0, "tx_packets"), ended.port(0, "tx_unsent"));
            assert_eq!(sent, (100, 0), "{driver}{options}");
            nics.wait_until(|| nics.received(0) >= before + 100);
        }
    }
}
