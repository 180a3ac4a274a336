//! What a server makes of completions that no test can have the kernel give: failures, and an order that few kernels have.

use std::{
    env,
    net::TcpListener,
    sync::atomic::{AtomicU64, Ordering},
};

use sheafio_mempool::{Hugepages, Mempool};

use super::*;
use crate::echo::kernel::flow::Limit;

const PLACES: u32 = 4;

/// A server with one listener, that nobody connects to, and what it counts; `None` if this machine has no io_uring.
fn server(cache: &mut PoolCache) -> Option<(Server, Arc<Counters>, Arc<Limit>)> {
    let ring = match Ring::new(16, PLACES, 64) {
        Ok(ring) => ring,
        Err(refused) => {
            assert!(env::var_os("SHEAFIO_NO_SKIP").is_none(), "{refused}");
            println!("skipped: {refused}");
            return None;
        }
    };
    let counters = Arc::<Counters>::default();
    let limit = Arc::new(Limit { max: u64::from(PLACES), open: AtomicU64::new(0) });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut server = Server::new(Parts {
        ring,
        streams: Streams::new(PLACES, 64, None, limit.clone(), counters.clone()),
        listening: Listening { tcp: vec![listener.into()], udp: Vec::new() },
        udp_ports: Vec::new(),
        responder: None,
        counters: counters.clone(),
        held: Arc::default(),
        idle: IdlePolicy::Spin,
        stop: Stop::new(),
        done: Stop::new(),
    });
    server.poll(cache);
    Some((server, counters, limit))
}

fn pool() -> &'static Mempool {
    Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap()
}

/// The listener's accept has ended with this result.
fn accept_ends(server: &mut Server, result: i32) {
    server.accepted(&Completion { kind: Kind::Accept, number: 0, result, has_more: false, frame: None });
}

/// A place is told to have a new connection.
fn is_accepted(server: &mut Server, slot: u32) {
    let (kind, result) = (Kind::Accept, slot as i32);
    server.accepted(&Completion { kind, number: 0, result, has_more: true, frame: None });
}

#[test]
fn an_accept_that_fails_is_tried_again_later_and_counts_as_what_it_is() {
    let pool = pool();
    let mut cache = pool.cache().unwrap();
    let Some((mut server, counters, _)) = server(&mut cache) else { return };
    let count = |count| counters.totals().of(count);
    // The machine has no file left, though there are places: not in the next turn, but some ms later.
    accept_ends(&mut server, -libc::ENFILE);
    assert_eq!((count(Count::FlowsRefused), count(Count::AcceptErrors)), (0, 1));
    let at = server.listeners[0].again_at.unwrap();
    assert!(at > Instant::now() && server.listeners[0].operation.is_none());
    while Instant::now() < at {
        assert!(server.listeners[0].operation.is_none(), "it is tried in each turn");
        server.poll(&mut cache);
    }
    server.poll(&mut cache);
    assert!(server.listeners[0].operation.is_some() && !server.has_ended_sources);
    // All places are taken: that connection is closed, and the next one may find room at once.
    (0..PLACES).for_each(|slot| is_accepted(&mut server, slot));
    accept_ends(&mut server, -libc::ENFILE);
    assert_eq!((count(Count::FlowsRefused), count(Count::AcceptErrors)), (1, 1));
    assert!(server.listeners[0].operation.is_none(), "not behind what is handed over in this turn");
    server.begin_again();
    assert!(server.listeners[0].operation.is_some());
    server.close(&mut cache);
    assert_eq!(pool.census().in_flight, 0);
}

/// Some kernels tell of a place's next connection before they tell that the last one is closed.
#[test]
fn a_place_may_be_told_taken_before_it_is_told_free() {
    let pool = pool();
    let mut cache = pool.cache().unwrap();
    let Some((mut server, counters, limit)) = server(&mut cache) else { return };
    let open = || limit.open.load(Ordering::Relaxed);
    // As many as are allowed, and one too many, which is being closed.
    limit.open.store(u64::from(PLACES), Ordering::Relaxed);
    is_accepted(&mut server, 2);
    assert_eq!((counters.totals().of(Count::FlowsRefused), open()), (1, u64::from(PLACES) + 1));
    limit.open.store(1, Ordering::Relaxed);
    is_accepted(&mut server, 2);
    assert_eq!(open(), 2);
    // The word of the first one's end is not taken for the second one's.
    server.streams.closed(2);
    assert_eq!((open(), counters.totals().of(Count::Closed)), (1, 1));
    assert!(!server.streams.is_empty() && server.streams.is_open(2));
    // Which is served, and ends when its time has come.
    server.streams.closed(2);
    assert_eq!((open(), counters.totals().of(Count::Closed)), (0, 2));
    assert!(server.streams.is_empty() && !server.streams.is_open(2));
    server.close(&mut cache);
    assert_eq!(pool.census().in_flight, 0);
}
