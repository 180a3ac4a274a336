//! Ports of several queues: each has a stack of its own.

use std::io::{Read, Write};

use sheafio_tests::can_make_networks;

use crate::{Network, OWN, assert_well, count, exchange};

/// Two queues, each with an lcore and a stack of its own that knows nothing of the other's connections.
#[test]
fn two_queues_share_the_flows() {
    if !can_make_networks("two_queues_share_the_flows") {
        return;
    }
    let cpus = sheafio_core::allowed_cpus();
    let [first, .., second] = cpus.0[..] else {
        return sheafio_tests::skip("two_queues_share_the_flows", "there is one CPU");
    };
    let network = Network::with_queues(2);
    // A veth has no hash of its own: its queue is the one that the sender chose, and Linux chooses anew after a timeout. What
    // then comes to the other queue's stack is not answered, and comes again.
    network.client.run("sysctl", &["-q", "-w", "net.core.txrehash=1"]);
    let server = network.echo_at(
        "ve0,queues=2",
        &["--udp", "7", "--cores", &format!("{first},{second}"), "--ip", "10.0.0.9/24"],
    );
    let ended = network.rr(OWN, &["--flows", "200", "--size", "1000", "--duration", "1s"]);
    assert!(assert_well(&ended) >= 200);
    assert_well(&network.rr(OWN, &["--proto", "udp", "--flows", "200", "--duration", "500ms"]));
    let last = server.end();
    assert_eq!(count(&last, "tcp_flows_opened"), 200, "{last}");
    let lcores = last["lcores"].as_array().unwrap();
    assert!(lcores.len() == 2 && lcores.iter().all(|lcore| lcore["busy"].as_f64() > Some(0.0)), "{last}");
}

/// Connections whose segments come by the other queue for a while, and then by theirs again, are as they were.
#[test]
fn what_comes_by_another_queue_ends_nothing() {
    if !can_make_networks("what_comes_by_another_queue_ends_nothing") {
        return;
    }
    let network = Network::with_queues(2);
    // The client's hash of a connection stays: with two queues to send by, it takes the same one as ever.
    network.client.run("sysctl", &["-q", "-w", "net.core.txrehash=0"]);
    let cpu = sheafio_core::allowed_cpus().0.last().expect("there is a CPU").to_string();
    let server = network.echo_at("ve0,queues=2", &["--cores", &cpu, "--ip", "10.0.0.9/24"]);
    let sends_by = |queues| network.client.run("ethtool", &["-L", "ve1", "rx", "2", "tx", queues]);
    let mut streams: Vec<_> = (0..20).map(|_| network.connect(OWN)).collect();
    for stream in &mut streams {
        exchange(stream, b"hello");
    }
    sends_by("1");
    for stream in &mut streams {
        stream.write_all(b"again").unwrap();
    }
    server.fwd.wait_for_object("segments of the other queue's", |line| count(line, "tcp_other_queue") > 0);
    sends_by("2");
    for stream in &mut streams {
        let mut back = [0; 5];
        stream.read_exact(&mut back).expect("no reset");
        assert_eq!(&back, b"again");
        exchange(stream, b"and again");
    }
    drop(streams);
    server.wait_until_idle();
    let last = server.end();
    assert_eq!((count(&last, "tcp_flows_opened"), count(&last, "tcp_reset_received")), (20, 0), "{last}");
}
