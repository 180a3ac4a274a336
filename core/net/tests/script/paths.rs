//! The way back to a peer: it is that of the peer's own packets, in its own VLAN.

use sheafio_net::Count;

use crate::{
    peer::{Client, Script, plain_syn_ack},
    segment::{ack, data, fin, rst, syn},
};

const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

#[test]
fn answers_follow_a_peer_that_comes_another_way() {
    for client in [Client::v4(40_000), Client::v6(40_000), Client { tags: vec![5, 7], ..Client::v4(40_000) }]
    {
        let mut s = Script::echo().with_client(client);
        s.open();
        s.send(data(1, 1, b"hello"));
        s.expect(data(1, 6, b"hello"));
        // A gateway has failed, and another has taken its place. It is the server's turn: it learns of it by the next
        // segment, if that has nothing but an acknowledgement.
        s.client().mac = OTHER_MAC;
        s.send(ack(6, 3));
        s.silence(49);
        s.wait(1);
        s.expect(data(3, 6, b"llo"));
        s.send(data(6, 6, b"more"));
        s.expect(data(6, 10, b"more"));
        s.send(fin(10, 10));
        s.expect(fin(10, 11));
    }
}

/// Half open: the peer's SYN came once more, by another way, and so goes ours.
#[test]
fn a_syn_that_comes_another_way_is_answered_there() {
    let mut s = Script::echo();
    s.send(syn());
    s.expect(plain_syn_ack());
    s.client().mac = OTHER_MAC;
    s.send(syn());
    s.expect(plain_syn_ack());
    s.silence(999);
    s.wait(1);
    s.expect(plain_syn_ack());
    // And it is the last segment of the opening that counts.
    s.client().mac = [2, 0, 0, 0, 0, 10];
    s.send(ack(1, 1));
    s.wait(60_000);
    s.expect(ack(0, 1));
}

/// What is not of the connection does not lead its packets away.
#[test]
fn a_segment_that_is_not_acceptable_leads_nowhere() {
    let mut s = Script::echo();
    s.open();
    s.send(data(1, 1, b"hello"));
    s.expect(data(1, 6, b"hello"));
    let honest = s.client().mac;
    for forged in [data(100_000, 1, b"x"), ack(6, 5000), rst(7), syn().at(6), data(6, 0, b"x").without(0x10)]
    {
        s.client().mac = OTHER_MAC;
        let packet = s.clients[0].packet(&s.absolute(forged));
        s.client().mac = honest;
        s.raw(&packet);
        s.settle();
        s.ignore();
        s.wait(500);
        s.ignore();
    }
    s.send(ack(6, 6));
    s.send(data(6, 6, b"y"));
    s.expect(data(6, 7, b"y"));
}

/// The same addresses and ports in two VLANs, or behind two tags, are two peers.
#[test]
fn each_vlan_has_its_own_names() {
    let in_vlan = |tags: &[u16]| Client { tags: tags.to_vec(), ..Client::v4(40_000) };
    let mut s = Script::echo().with_client(in_vlan(&[5]));
    s.open();
    for tags in [&[6][..], &[], &[5, 6], &[6, 5]] {
        let at = s.join(in_vlan(tags));
        s.clients[at].number = 77_777 * at as u32;
        s.open();
        s.send(data(1, 1, b"hello"));
        s.expect(data(1, 6, b"hello"));
        s.send(ack(6, 6));
    }
    assert_eq!(s.tcp().flows(), 5);
    // From another VLAN nobody gets at a connection, whatever it knows of it.
    let (number, theirs) = (s.clients[0].number, s.clients[0].theirs);
    let stranger = s.join(Client { number, theirs, ..in_vlan(&[7]) });
    s.send(rst(1));
    s.nothing();
    s.send(data(1, 1, b"forged"));
    s.expect(rst(1));
    assert_eq!((s.tcp().flows(), s.count(Count::ResetIgnored), stranger), (5, 1, 5));
    s.at = 0;
    s.send(data(1, 1, b"mine"));
    s.expect(data(1, 5, b"mine"));
    s.send(ack(5, 5));
}
