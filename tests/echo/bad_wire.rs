//! One connection on a bad wire: one in ten segments lost, one in ten overtaken by others, in both directions.

use std::{
    io::{Read, Write},
    net::Shutdown,
    sync::atomic::Ordering,
    thread,
};

use sheafio_tests::{Damage, bad, can_make_networks};

use crate::{Network, SHARED, SHARED6, count};

#[test]
fn ten_million_bytes_come_back_over_a_bad_wire() {
    if !can_make_networks("ten_million_bytes_come_back_over_a_bad_wire") {
        return;
    }
    // Over IPv6 a tenth of it, for both differ only in their headers, and each loss takes its time.
    for (address, len, seed) in [(SHARED, 10_000_000, 1), (SHARED6, 1_000_000, 3)] {
        let network = Network::with_something_between();
        let (to_server, to_client) = (Damage::default(), Damage::default());
        let _relay = network.relay(bad(seed, &to_server), bad(seed + 1, &to_client));
        // As in a datacentre: the client need not wait for 200 ms until it sends something again.
        let (kind, prefix) = if address == SHARED { ("-4", "10.0.0.0/24") } else { ("-6", "fd00::/64") };
        network
            .client
            .ip(&[kind, "route", "replace", prefix, "dev", "ve1", "proto", "kernel", "rto_min", "10ms"]);
        let server = network.echo(&["--max-flows", "10", "--buffer", "262144"]);
        let mut stream = network.connect(address);
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
        let mut back = Vec::with_capacity(len);
        thread::scope(|scope| {
            let mut writer = stream.try_clone().unwrap();
            let bytes = &bytes;
            scope.spawn(move || {
                writer.write_all(bytes).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            stream.read_to_end(&mut back).unwrap();
        });
        assert!(
            back == bytes,
            "{} bytes came back; the first {} are right",
            back.len(),
            right(&bytes, &back)
        );
        server.wait_until_idle();
        let last = server.end();
        // Both directions did their worst, and neither was served by the other.
        for damage in [&to_server, &to_client] {
            let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            let (passed, lost, overtaken) =
                (count(&damage.passed), count(&damage.lost), count(&damage.overtaken));
            assert!(
                lost * 6 > passed / 2 && overtaken * 6 > passed / 2,
                "{passed} passed, {lost} lost, {overtaken} overtaken"
            );
        }
        for (name, least) in [("tcp_retransmits", 50), ("tcp_out_of_order", 50), ("tcp_fast_retransmits", 1)]
        {
            assert!(count(&last, name) >= least, "{name}: {last}");
        }
    }
}

/// How many bytes are the same in both, from the start.
fn right(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}
