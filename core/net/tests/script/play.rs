//! Inputs of bytes, as chance and fuzzing make them, and the connection that they stand for.
//!
//! A peer that knows all numbers sends what fits and what does not, time passes, frames run out and come back. The bytes
//! of its stream depend on their number alone, so whatever is taken, and in whatever order, there is only one stream that
//! may arrive and come back. In the end the peer becomes reasonable, and then all must go through.
//!
//! ```text
//! | settings 1 | kind and bases 1, flags 1, number 1, acknowledged 1, length 1, window 1, timestamp 1, pause 1 | ...
//! ```

use sheafio_net::tcp::Config;

use crate::{
    peer::{Client, PORT, Script},
    segment::{ACK, FIN, RST, SYN, Segment, ack, syn},
    service::Service,
    watch::after,
};

/// What bits of the settings stand for.
const TIMESTAMPS: u8 = 1;
const RANGES: u8 = 2;
const SHIFTED: u8 = 4;
const IPV6: u8 = 8;
const LARGE: u8 = 16;
/// The server waits for whole records.
const RECORDS: u8 = 32;

/// The byte of a peer's stream at a relative number.
fn byte(number: u32) -> u8 {
    (number.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

fn bytes(seq: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| byte(seq.wrapping_add(at))).collect()
}

/// One step of an input.
struct Record {
    kind: u8,
    flags: u8,
    number: u8,
    acknowledged: u8,
    len: u8,
    window: u8,
    time: u8,
    pause: u8,
}

impl From<[u8; 8]> for Record {
    fn from([kind, flags, number, acknowledged, len, window, time, pause]: [u8; 8]) -> Self {
        Self { kind, flags, number, acknowledged, len, window, time, pause }
    }
}

/// One connection under an input.
struct Play {
    s: Script,
    /// The newest acknowledgement that made sense.
    acked: u32,
    /// The furthest number within the window that it has sent a segment with.
    furthest: u32,
    /// Bytes that have arrived and were looked at.
    checked: usize,
    frames: u64,
}

/// Plays an input to its end.
pub(crate) fn play(input: &[u8]) {
    let Some((&settings, rest)) = input.split_first() else { return };
    let has = |bit: u8| settings & bit != 0;
    let (receive_bytes, send_bytes) = if has(LARGE) { (100_000, 100_000) } else { (2048, 4096) };
    let config = Config {
        ports: vec![PORT],
        max_flows: 2,
        backlog: 2,
        receive_bytes,
        send_bytes,
        keepalive_us: 20_000_000,
        ..Config::default()
    };
    let client = if has(IPV6) { Client::v6(40_000) } else { Client::v4(40_000) };
    let client = Client { timestamps: has(TIMESTAMPS), ..client };
    let service = if has(RECORDS) { Service::echoes_records() } else { Service::echo() };
    let mut s = Script::new(config, service).with_client(client);
    let mut offer = syn().mss(if has(LARGE) { 9000 } else { 700 });
    offer.shift = has(SHIFTED).then_some(5);
    offer.sack_permitted = has(RANGES);
    s.open_with(offer);
    let frames = u64::from(receive_bytes.div_ceil(2048) + send_bytes.div_ceil(2048));
    let mut play = Play { s, acked: 1, furthest: 1, checked: 0, frames };
    for record in rest.as_chunks::<8>().0 {
        play.record(&Record::from(*record));
        play.check();
        if play.s.tcp().flows() == 0 {
            return;
        }
    }
    play.end();
}

impl Play {
    /// Numbers relative to the peer's: the one that the server expects, and the edge of its window; and the server's
    /// newest, relative to its own.
    fn numbers(&self) -> (u32, u32, u32) {
        let client = &self.s.clients[0];
        let (next, edge, newest) = client.watch.numbers();
        (
            next.wrapping_sub(client.number),
            edge.wrapping_sub(client.number),
            newest.wrapping_sub(client.theirs),
        )
    }

    fn record(&mut self, record: &Record) {
        match record.kind & 7 {
            0..=4 => {
                let segment = self.segment(record);
                self.s.send(segment);
            }
            5 => self.coarse(u64::from(record.number) * u64::from(record.acknowledged)),
            6 => self.s.starve(usize::from(record.number & 3)),
            _ => match record.number & 3 {
                0 => self.s.now_us += u64::from(record.acknowledged) << 18, // Up to a minute at once.
                1 => self.s.out.set_limit(1 + usize::from(record.acknowledged & 15)),
                2 => self.raw(record),
                _ => self.s.feed(),
            },
        }
        self.coarse(u64::from(record.pause & 0x1f));
    }

    fn segment(&mut self, record: &Record) -> Segment {
        let (next, edge, newest) = self.numbers();
        let offset = |byte: u8, scale: i32| (i32::from(byte as i8) * scale) as u32;
        let seq = match record.kind >> 3 & 3 {
            0 => next.wrapping_add(offset(record.number, 1)),
            1 => edge.wrapping_add(offset(record.number, 4)),
            2 => next.wrapping_add(offset(record.number, 16)),
            _ if record.number & 1 == 0 => next,
            _ => next.wrapping_add(u32::from(record.number) << 24),
        };
        let theirs = match record.kind >> 5 {
            0..=3 => newest,
            4 => self.acked,
            5 => self.acked.wrapping_add(u32::from(record.acknowledged)).min(newest),
            6 => newest.wrapping_add(offset(record.acknowledged, 4)),
            _ => newest.wrapping_add(u32::from(record.acknowledged) << 24),
        };
        let flags = match record.flags {
            0..0x20 => record.flags,
            0x20..0x28 => ACK | FIN,
            _ => ACK,
        };
        let len = if flags & SYN == 0 { (usize::from(record.len) * 6).min(1440) } else { 0 };
        if flags & ACK != 0 && flags & (RST | SYN) == 0 {
            let is_newer = after(theirs, self.acked) > 0;
            let was_sent = after(newest, theirs) >= 0;
            self.acked = if is_newer && was_sent { theirs } else { self.acked };
            if after(seq, self.furthest) > 0 && after(edge, seq) >= 0 {
                self.furthest = seq;
            }
        }
        let windows = [0, 0, 1, 10, 100, 1000, 10_000, u16::MAX];
        let mut segment = Segment {
            flags,
            seq,
            ack: theirs,
            window: Some(windows[usize::from(record.window & 7)]),
            payload: bytes(seq, len),
            ..Segment::default()
        };
        if record.time >= 0xf0 && self.s.client().timestamps {
            // Older, a little or much. Not newer, for then all that is honest would be old.
            let by = u32::from(record.time & 7) << if record.window & 8 == 0 { 0 } else { 24 };
            segment.timestamps = Some((self.s.timestamp().wrapping_sub(by), self.s.client().echo));
            segment.is_bare = record.time == 0xff;
        }
        segment
    }

    /// An acknowledgement some bytes of which are wrong, and cut short. Its checksum is not mended, so it is never taken.
    fn raw(&mut self, record: &Record) {
        let good = self.s.absolute(ack(self.numbers().0, self.acked));
        let mut packet = self.s.client().packet(&good);
        // The sender's Ethernet address is in no checksum, and is followed; so it stays.
        let beside_sender = |at: usize| if (6..12).contains(&at) { at + 6 } else { at };
        let at = usize::from(record.acknowledged) % packet.len();
        packet[beside_sender(at)] ^= record.flags | 1;
        packet.truncate(packet.len() - usize::from(record.kind >> 3).min(packet.len()));
        if let Some(byte) = packet.get_mut(beside_sender(usize::from(record.len))) {
            *byte ^= record.window;
        }
        self.s.raw(&packet);
        self.s.settle();
    }

    /// Lets time pass in larger steps the longer it is.
    fn coarse(&mut self, ms: u64) {
        let step = (ms / 16).max(1);
        for _ in 0..ms / step {
            self.s.now_us += step * 1000;
            self.s.settle();
        }
    }

    /// What must hold after each step, besides what is watched anyway.
    fn check(&mut self) {
        for answer in self.s.all() {
            assert!(
                answer.has(RST) || answer.payload == bytes(answer.seq, answer.payload.len()),
                "{answer:?}"
            );
        }
        let held = self.s.held();
        assert!(held <= self.frames, "{held} frames are held; promised: {}", self.frames);
        let checked = self.checked;
        let got = &self.s.service().got;
        let new = &got[checked..];
        assert!(*new == bytes(1 + checked as u32, new.len()), "what has arrived is not what was sent");
        self.checked = got.len();
    }

    /// The peer becomes reasonable: it acknowledges all, opens its window, and ends. The connection must too.
    fn end(&mut self) {
        self.s.feed();
        self.s.out.set_limit(64);
        let end = 500 + self.s.service().got.len().max(self.numbers().1 as usize) as u32;
        for _ in 0..2000 {
            let (next, edge, newest) = self.numbers();
            let len = end.saturating_sub(next).min(edge.wrapping_sub(next)).min(700);
            let mut segment = ack(next, newest).bytes(&bytes(next, len as usize));
            if next.wrapping_add(len) == end {
                segment = segment.with(FIN);
            }
            self.s.send(segment);
            // It has sent all up to the furthest, so it acknowledges from there: what it says of its window is the newest.
            let (next, _, newest) = self.numbers();
            let seq = if after(self.furthest, next) > 0 { self.furthest } else { next };
            self.s.send(ack(seq, newest));
            self.check();
            if self.s.tcp().flows() == 0 {
                return;
            }
            self.s.now_us += 100_000;
            self.s.settle();
        }
        panic!("the connection does not end: {:?}, {} frames", self.numbers(), self.s.held());
    }
}
