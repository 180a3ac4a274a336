//! Servers that do not take all that they are shown: what waits for the rest of a request, and for room.

use sheafio_net::tcp::Config;

use crate::{
    peer::{Script, config},
    segment::{Segment, ack, data, stream},
    service::Service,
};

/// A record of so many bytes behind the one in front, a multiple of eight.
fn record(bytes: usize) -> Vec<u8> {
    let mut record = vec![(bytes / 8) as u8];
    record.extend(stream(0, bytes));
    record
}

fn payload(answers: &[Segment]) -> Vec<u8> {
    answers.iter().flat_map(|answer| answer.payload.clone()).collect()
}

/// Requests that come one after the other find the whole window each time, of whatever size they are.
#[test]
fn what_was_consumed_is_told_with_the_response() {
    let mut s = Script::echo();
    s.open();
    let (mut at, sizes) = (1, [1000, 1100, 100, 100, 100, 100, 1460, 300, 1460, 1]);
    for size in sizes {
        let bytes = stream(0, size as usize);
        s.send(data(at, at, &bytes));
        at += size;
        s.expect(data(at - size, at, &bytes).window(2048));
        s.send(ack(at, at));
    }
}

/// A request that is longer than what is free for the moment, but not than the buffer, becomes whole.
#[test]
fn the_rest_of_a_request_is_let_in() {
    for (buffer, first, second) in [(2048, 1000, 1096), (2048, 8, 2040), (10_240, 2032, 2040)] {
        let config = Config { receive_bytes: buffer, send_bytes: 16_384, ..config() };
        let mut s = Script::new(config, Service::echoes_records());
        s.open();
        let (mut next, mut acked, mut edge) = (1, 1, 1 + buffer);
        for size in [first, second, first, second, second, second, first] {
            let bytes = record(size);
            let (mut sent, mut got) = (0, Vec::new());
            // The peer goes by the window alone, and sends as much as that lets it.
            for _ in 0..20 {
                let len = (bytes.len() - sent).min((edge - next) as usize).min(1400);
                s.send(data(next, acked, &bytes[sent..sent + len]));
                sent += len;
                next += len as u32;
                let answers = s.all();
                if let Some(last) = answers.last() {
                    edge = last.ack + u32::from(last.window.unwrap());
                }
                got.extend(payload(&answers));
                acked += payload(&answers).len() as u32;
                if got.len() == bytes.len() {
                    break;
                }
            }
            assert!(got == bytes, "{} of {} bytes came back, {sent} were sent", got.len(), bytes.len());
            s.send(ack(next, acked));
            s.ignore();
        }
    }
}

/// Also if it is the last thing that the server waits for after room: nobody else would tell the peer of the window.
#[test]
fn the_rest_is_let_in_once_there_was_room_for_the_record_before() {
    let mut s = Script::new(config(), Service::echoes_records());
    s.client().window = 0;
    s.open();
    // Two records fill the send buffer but for a little, and a third has no room: what follows it stays with us, a whole
    // record and the begin of one that needs the whole buffer, until there is room for nothing more.
    let mut bytes = [record(1000), record(1000), record(504), record(904)].concat();
    bytes.extend(&record(2040)[..2048 - 905]);
    let mut next = 1;
    while next <= bytes.len() as u32 {
        let rest = &bytes[next as usize - 1..];
        let rest = &rest[..rest.len().min(700)];
        s.send(data(next, 1, rest));
        next += rest.len() as u32;
    }
    assert_eq!((s.service().got.len(), s.all().last().unwrap().window), (2 * 1001 + 505, Some(0)));
    s.send(ack(next, 1).window(4000));
    let answers = s.all();
    assert_eq!(payload(&answers).len(), 2 * 1001 + 46);
    s.send(ack(next, 1 + 2 * 1001 + 46));
    assert_eq!(s.all().last().unwrap().window, Some(906)); // The byte in front of the last record is consumed as well.
}
