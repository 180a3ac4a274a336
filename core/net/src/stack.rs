//! A host with a TCP server: what one lcore does for one queue.
//!
//! Owns: both, and nothing else. Never does: receive, send, or read a clock. Invariant: each packet that is handed in is
//! answered in its place, taken in by TCP, or dropped and counted; its frames are freed or handed out.

use sheafio_mempool::{Burst, PoolCache};

use crate::{
    Count, Headers, Host,
    host::Verdict,
    tcp::{Server, Tcp},
};

/// All answers of one lcore for one queue.
///
/// ```text
///   rx burst -> Host -+-> in place: ARP, ND, ping, UDP -+-> tx burst
///                     +-> Tcp: server, flows, timers ---+
/// ```
pub struct Stack<S: Server> {
    host: Host,
    tcp: Tcp<S>,
    /// Packets of this burst that are TCP's: where they lie in it.
    segments: Vec<(usize, Headers)>,
}

/// One bit for each frame of a burst.
#[derive(Default)]
struct Marks([u64; Burst::MAX / 64]);

impl Marks {
    #[inline]
    fn set(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    #[inline]
    fn has(&self, at: usize) -> bool {
        self.0[at / 64] & 1 << (at % 64) != 0
    }
}

impl<S: Server> Stack<S> {
    /// Puts both together. They may count into the same block.
    pub fn new(host: Host, tcp: Tcp<S>) -> Self {
        Self { host, tcp, segments: Vec::with_capacity(Burst::MAX) }
    }

    /// Its TCP.
    pub fn tcp(&mut self) -> &mut Tcp<S> {
        &mut self.tcp
    }

    /// Takes in the packets of `rx`, which is empty afterwards, and adds to `tx` what is to be sent now: answers, and what
    /// timers ask for; as much as it has room for. Call it in each poll, also without packets. `now_ns` is a time in
    /// nanoseconds from any start, which does not go back. Returns how many packets were taken in and added.
    #[inline]
    pub fn poll(&mut self, now_ns: u64, cache: &mut PoolCache, rx: &mut Burst, tx: &mut Burst) -> usize {
        let (received, before) = (rx.packet_count(), tx.len());
        self.tcp.set_now(now_ns / 1000);
        let (mut answered, mut is_any) = (Marks::default(), false);
        let mut at = 0;
        for packet in rx.packets_mut() {
            match self.host.answer(packet, now_ns) {
                Verdict::Send => {
                    answered.set(at);
                    is_any = true;
                }
                Verdict::Tcp(headers) => self.segments.push((at, headers)),
                Verdict::Drop(_) => {}
            }
            at += packet.len();
        }
        let segments = self.segments.iter().map(|(at, headers)| (headers, &rx[*at][..]));
        self.tcp.receive_burst(segments, cache, tx);
        self.segments.clear();
        if is_any {
            let mut at = 0;
            rx.retain(cache, |_| {
                at += 1;
                answered.has(at - 1)
            });
            tx.append(rx);
            self.tcp.counts().add_many(Count::NotSent, rx.len() as u64);
        }
        cache.free_burst(rx);
        self.host.announce(cache, tx, now_ns);
        self.tcp.transmit(cache, tx);
        self.look_for_silent(cache, tx, now_ns);
        received + tx.len() - before
    }

    /// Asks where peers are that do not answer, and sends to where they say.
    #[inline]
    fn look_for_silent(&mut self, cache: &mut PoolCache, tx: &mut Burst, now_ns: u64) {
        while let Some(peer) = self.tcp.next_silent() {
            if let Some(mac) = self.host.neighbour(peer.remote, now_ns) {
                let number = peer.number;
                self.tcp.lead(number, mac);
            } else if tx.room() > 0
                && let Some(mut question) = cache.alloc()
            {
                if self.host.ask(peer.remote, peer.local, peer.ethernet, &mut question, now_ns) {
                    _ = tx.push(question); // There is room.
                } else {
                    cache.free(question);
                }
            }
        }
    }

    /// Gives all frames back, without a word to anybody.
    pub fn release(self, cache: &mut PoolCache) {
        self.tcp.release(cache);
    }
}
