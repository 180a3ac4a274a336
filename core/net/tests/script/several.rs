//! One of several servers that share a name, as queues do: what is not its own may be another's.

use sheafio_net::{Count, tcp::Config};

use crate::{
    peer::{Client, Script, config},
    segment::{FIN, Segment, ack, data, fin, rst, rst_ack, syn, syn_ack},
    service::Service,
};

fn one_of_several() -> Script {
    Script::new(Config { is_one_of_several: true, ..config() }, Service::echo())
}

/// A reset would end a connection of the other's, whose segments have come another way for once.
#[test]
fn what_is_not_known_is_not_reset() {
    let mut s = one_of_several();
    s.burst([
        ack(1, 1),
        data(1, 1, b"hello"),
        fin(1, 1),
        Segment { flags: FIN, ..data(1, 0, b"bare") },
        rst(1),
    ]);
    s.nothing();
    assert_eq!((s.count(Count::OtherQueue), s.count(Count::NoFlow), s.count(Count::ResetSent)), (4, 0, 0));
}

/// The SYN came to both, and the peer has taken the other's answer.
#[test]
fn what_does_not_acknowledge_our_syn_is_not_reset() {
    let mut s = one_of_several();
    s.send(syn().mss(1460));
    s.expect(syn_ack().mss(1460));
    s.burst([ack(1, 4711), data(1, 4711, b"hello")]);
    s.nothing();
    assert_eq!((s.count(Count::OtherQueue), s.count(Count::ResetSent)), (2, 0));
    // If it was ours that it has taken, it is ours still.
    s.send(ack(1, 1));
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    s.send(ack(6, 6));
}

/// No other one serves a port that is closed here.
#[test]
fn a_syn_to_a_closed_port_is_reset() {
    let mut s = one_of_several();
    s.join(Client { local_port: 8, ..Client::v4(40_001) });
    s.send(syn());
    s.expect(rst_ack(0, 1));
    assert_eq!((s.count(Count::NoFlow), s.count(Count::ResetSent)), (1, 1));
}
