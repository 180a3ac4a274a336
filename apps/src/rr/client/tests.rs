//! A client whose time is set by hand: what it does at which moment, and what counts as latency.

use std::net::{SocketAddr, UdpSocket};

use clap::Parser as _;
use rustix::net::addr::SocketAddrArg as _;
use sheafio_mempool::{Hugepages, Mempool};

use super::*;
use crate::cli::{Cli, Command};

const START_NS: u64 = 1_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// A client that is ready, with flows to a server on loopback that never answers. `None` where there is no io_uring.
struct Bench {
    client: Client,
    cache: PoolCache,
    _server: UdpSocket,
}

impl Bench {
    fn new(test: &str, args: &[&str]) -> Option<Self> {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to: SocketAddr = server.local_addr().unwrap();
        let target = to.to_string();
        let words = [&["sheafio", "rr", "--to", &target, "--proto", "udp"], args].concat();
        let Command::Rr(args) = Cli::try_parse_from(words).unwrap().command else { unreachable!() };
        let flows = args.flows as usize;
        let pool = Mempool::builder().frames(1024).hugepages(Hugepages::Off).build().unwrap();
        let ring = match Ring::new(64, 0, pool.frames()) {
            Ok(ring) => ring,
            Err(refused) => {
                eprintln!("{test}: skipped: {refused}");
                return None;
            }
        };
        let plan = Arc::new(Plan {
            args,
            targets: vec![Box::leak(Box::new(to.as_any()))],
            sources: Vec::new(),
            salt: 1,
            base: Instant::now(),
            start_ns: AtomicU64::new(0),
            stop: Stop::new(),
        });
        let mut client = Client::new(ring, 0, flows, plan, Arc::default(), Stop::new());
        for at in 0..flows {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(to).unwrap();
            client.sockets[at] = Some(socket.into());
            client.flows[at].state = State::Idle;
            client.add_alive();
        }
        client.get_ready();
        Some(Self { client, cache: pool.cache().unwrap(), _server: server })
    }

    /// What is due at a moment is done.
    fn at(&mut self, now_ns: u64) -> Option<Duration> {
        self.client.now_ns = now_ns;
        self.client.go_on(&mut self.cache)
    }

    /// The kernel takes over what is to be sent, and says so.
    fn send_all(&mut self) {
        while self.client.flows.iter().any(|flow| flow.is_sending) {
            self.client.ring.turn(&mut self.cache);
            while let Some(done) = self.client.ring.next() {
                self.client.complete(done, &mut self.cache);
            }
        }
    }

    fn start(&self) {
        self.client.plan.start_ns.store(START_NS, Ordering::Relaxed);
    }

    fn busy(&self) -> usize {
        self.client.flows.iter().filter(|flow| flow.state == State::Busy).count()
    }

    /// All frames come home.
    fn close(mut self) -> Outcome {
        let (outcome, closed) = self.client.close(&mut self.cache);
        assert_eq!(closed.retired, 0);
        outcome
    }
}

/// A client that slept over its start would send late, and count that as the server's latency.
#[test]
fn the_open_loop_begins_at_its_start_and_knows_when_the_next_is_due() {
    let Some(mut bench) = Bench::new("the_open_loop_begins", &["--flows", "2", "--rate", "1000"]) else {
        return;
    };
    let wait = bench.at(1).expect("it looks for the start");
    assert!(wait < super::super::START_LEAD / 2, "{wait:?}");
    bench.start();
    assert_eq!(bench.at(START_NS - 300), Some(Duration::from_nanos(300)));
    assert_eq!((bench.busy(), bench.client.due), (0, 0));
    // The first one is due at the start, and the next one a thousandth of a second after it.
    assert_eq!(bench.at(START_NS), Some(Duration::from_millis(1)));
    assert_eq!((bench.busy(), bench.client.due), (1, 1));
    assert_eq!(bench.at(START_NS + 400_000), Some(Duration::from_micros(600)));
    assert_eq!(bench.at(START_NS + 1_000_000), Some(Duration::from_millis(1)));
    assert_eq!((bench.busy(), bench.client.due), (2, 2));
    bench.close();
}

#[test]
fn the_closed_loop_begins_at_its_start() {
    let Some(mut bench) = Bench::new("the_closed_loop_begins", &["--flows", "3"]) else { return };
    bench.start();
    assert_eq!(bench.at(START_NS - 300), Some(Duration::from_nanos(300)));
    assert_eq!(bench.busy(), 0);
    bench.at(START_NS + 5);
    assert_eq!(bench.busy(), 3);
    assert!(bench.client.flows.iter().all(|flow| flow.begun_ns == START_NS + 5));
    bench.close();
}

/// A lost datagram is the longest of all latencies, not none.
#[test]
fn a_request_that_times_out_counts_with_what_it_has_waited() {
    let Some(mut bench) = Bench::new("a_request_that_times_out", &["--flows", "2", "--duration", "10s"])
    else {
        return;
    };
    bench.start();
    bench.at(START_NS);
    bench.send_all();
    bench.at(START_NS + SECOND_NS);
    assert_eq!(bench.client.outcome.timeouts, 2);
    assert_eq!(bench.client.outcome.latency_ns.len(), 2);
    assert!(bench.client.outcome.latency_ns.min() >= SECOND_NS - SECOND_NS / 1000);
    bench.close();
}

/// In the open loop too, while it runs: the flow goes on with what has waited.
#[test]
fn a_lost_datagram_does_not_hold_up_a_flow_of_the_open_loop() {
    let args = ["--flows", "1", "--rate", "10", "--duration", "10s"];
    let Some(mut bench) = Bench::new("a_lost_datagram_does_not_hold_up", &args) else { return };
    bench.start();
    for (seconds, timeouts) in [(0, 0), (1, 1), (2, 2)] {
        bench.at(START_NS + seconds * SECOND_NS);
        bench.send_all();
        assert_eq!((bench.client.outcome.timeouts, bench.busy()), (timeouts, 1));
    }
    // The first one has waited for a second, the next one for one and most of that before.
    let latency_ns = &bench.client.outcome.latency_ns;
    assert_eq!((latency_ns.len(), latency_ns.max() / (SECOND_NS / 10)), (2, 19));
    bench.close();
}

/// What was asked just before the end is a timeout too, whenever flows were looked through last.
#[test]
fn at_the_end_of_a_run_over_udp_all_that_was_sent_has_timed_out() {
    let Some(mut bench) = Bench::new("at_the_end", &["--flows", "2", "--duration", "1s"]) else { return };
    bench.start();
    bench.at(START_NS + SECOND_NS - 1);
    bench.send_all();
    bench.at(START_NS + SECOND_NS);
    bench.at(START_NS + 2 * SECOND_NS - 2);
    assert_eq!((bench.client.outcome.timeouts, bench.busy()), (0, 2));
    bench.at(START_NS + 2 * SECOND_NS);
    assert_eq!(bench.client.stage, Stage::Done);
    let outcome = bench.close();
    assert_eq!((outcome.timeouts, outcome.unfinished, outcome.latency_ns.len()), (2, 0, 2));
    assert_eq!(outcome.ran_ns, SECOND_NS);
}

#[test]
fn a_run_that_is_stopped_has_lasted_until_then_and_a_stop_ends_the_wait_for_answers() {
    let args = ["--flows", "2", "--duration", "10s"];
    let Some(mut bench) = Bench::new("a_run_that_is_stopped", &args) else { return };
    bench.start();
    bench.at(START_NS);
    bench.send_all();
    bench.client.plan.stop.raise();
    bench.at(START_NS + 70);
    // Stopped, it still waits for answers.
    bench.at(START_NS + 80);
    assert!(matches!(bench.client.stage, Stage::Draining { .. }));
    assert_eq!(bench.close().ran_ns, 70);

    let Some(mut bench) = Bench::new("a_run_that_is_stopped", &args) else { return };
    bench.start();
    bench.at(START_NS);
    bench.send_all();
    bench.at(START_NS + 10 * SECOND_NS);
    assert!(matches!(bench.client.stage, Stage::Draining { .. }));
    bench.client.plan.stop.raise();
    bench.at(START_NS + 10 * SECOND_NS + 1);
    assert_eq!(bench.client.stage, Stage::Done);
    bench.close();
}

#[test]
fn a_run_that_is_stopped_before_it_began_has_lasted_no_time() {
    let Some(mut bench) = Bench::new("a_run_that_is_stopped_before", &[]) else { return };
    bench.client.plan.stop.raise();
    bench.at(1);
    assert_eq!(bench.client.stage, Stage::Done);
    assert_eq!(bench.close().ran_ns, 0);
}
