//! Segments of no open connection: how one is opened, and what is answered to the others.
//!
//! Owns: nothing. Never does: keep anything of a peer before its SYN has passed, or answer a reset. Invariant: a
//! connection is opened by whoever has shown to get our packets, and by nobody else.

use std::net::Ipv6Addr;

use sheafio_mempool::{Burst, PoolCache};
use smoltcp::storage::Assembler;

use super::{
    Tcp,
    backlog::{HalfOpen, offer_of, with_offer},
    bytes::Bytes,
    context::Context,
    flow::{Flow, NEVER, Receiving, Sending, State},
    output::{initial_window, push, room},
    peer::{Key, Path},
    rtt::Rtt,
    segment::{ACK, FIN, Header, RST, SYN, Sacks, Segment, SynOptions, Timestamps},
    sequence::Seq,
    server::Server,
};
use crate::{Count, Headers};

/// What a peer takes that does not say it, in bytes (RFC 9293 section 3.7.1).
const DEFAULT_MSS_IPV4: u16 = 536;
const DEFAULT_MSS_IPV6: u16 = 1220;
/// Bytes of an IP header and a TCP header without options.
pub(super) const HEADERS_IPV4: u16 = 40;
const HEADERS_IPV6: u16 = 60;
/// How far the numbers of a connection begin behind those of an old one of the same name.
const ABOVE_OLD: u32 = 65_535 + 2;
/// Less than this is not believed: it would make a segment of each few bytes (Linux: `TCP_MIN_SND_MSS`).
const LEAST_MSS: u16 = 48;

/// A segment of no open connection.
pub(super) struct Stranger<'a> {
    key: &'a Key,
    segment: &'a Segment<'a>,
    packet: &'a [u8],
    path: Path,
    /// Behind the last number of ours in the connection of the same name that has made room for this one.
    above: Option<Seq>,
}

impl<'a> Stranger<'a> {
    #[cold]
    pub(super) fn new(
        headers: &Headers,
        packet: &'a [u8],
        key: &'a Key,
        segment: &'a Segment<'a>,
        above: Option<Seq>,
    ) -> Self {
        Self { key, segment, packet, path: Path::back(headers, packet), above }
    }
}

impl<S: Server> Tcp<S> {
    /// Whether a connection in TIME-WAIT makes room for a new one of the same name: a SYN that is newer than all that it
    /// had, by timestamp or by number (RFC 6191, RFC 9293 section 3.6.1). Returns the number behind our last one then.
    #[inline]
    pub(super) fn makes_room_for(
        &mut self,
        number: u32,
        segment: &Segment<'_>,
        cache: &mut PoolCache,
    ) -> Option<Seq> {
        let flow = self.flows.flow(number);
        if flow.state != State::TimeWait || segment.flags & (SYN | ACK | RST | FIN) != SYN {
            return None;
        }
        let above = flow.sending.newest;
        let is_newer = match segment.timestamps {
            Some(timestamps) if flow.timestamps => {
                let by = Seq(timestamps.value).after(Seq(flow.receiving.timestamp));
                by > 0 || (by == 0 && flow.receiving.next.is_before(segment.seq))
            }
            _ => flow.receiving.next.is_before(segment.seq),
        };
        if is_newer {
            self.context.counts.add(Count::TimeWaitReused);
            self.end(number, cache);
        }
        is_newer.then_some(above)
    }

    /// A segment of no open connection.
    #[cold]
    pub(super) fn receive_apart(&mut self, stranger: &Stranger<'_>, cache: &mut PoolCache, out: &mut Burst) {
        let Stranger { key, segment, .. } = *stranger;
        if key.remote == key.local || key.remote_port == 0 || is_nobody(key.remote) || is_nobody(key.local) {
            return self.context.counts.add(Count::BadSource);
        }
        let half_open = self.backlog.find(key);
        if segment.has(RST) {
            // Section 3.10.7.4 and RFC 5961: exactly the expected number.
            match half_open {
                Some(number) if segment.seq == self.backlog.get_mut(number).theirs + 1 => {
                    self.backlog.remove(number);
                    self.context.counts.add(Count::ResetReceived);
                }
                _ => self.context.counts.add(Count::ResetIgnored),
            }
        } else if segment.has(SYN) && !segment.has(ACK) {
            self.receive_syn(half_open, stranger, cache, out);
        } else if segment.has(ACK) && !segment.has(SYN) {
            self.receive_ack(half_open, stranger, cache, out);
        } else {
            self.refuse(stranger, cache, out);
        }
    }

    /// A SYN: section 3.10.7.2.
    fn receive_syn(
        &mut self,
        half_open: Option<u32>,
        stranger: &Stranger<'_>,
        cache: &mut PoolCache,
        out: &mut Burst,
    ) {
        let Stranger { key, segment, path, .. } = *stranger;
        let context = &mut self.context;
        if segment.has(FIN) {
            return context.counts.add(Count::BadSyn);
        }
        if !self.is_open || !context.config.ports.contains(&key.local_port) {
            return self.refuse(stranger, cache, out);
        }
        if let Some(number) = half_open {
            // Ours has been lost, or this is another connection of the same name, whose peer resets the old one.
            context.counts.add(Count::SynRepeated);
            let half_open = self.backlog.get_mut(number);
            half_open.path = path;
            half_open.is_repeated = true;
            return answer_syn(half_open, context, cache, out);
        }
        // One in TIME-WAIT makes room for who answers us, and not for a SYN that anybody may have sent.
        if self.flows.is_full() && self.waiting.oldest().is_none() {
            return self.context.counts.add(Count::FlowLimit);
        }
        let context = &mut self.context;
        let options = segment.syn_options();
        let default = if key.is_ipv4() { DEFAULT_MSS_IPV4 } else { DEFAULT_MSS_IPV6 };
        let mss = options.mss.unwrap_or(default).max(LEAST_MSS).min(our_mss(key, context));
        let entry = HalfOpen {
            key: *key,
            path,
            theirs: segment.seq,
            // Where the name was in use, above the numbers of then, so that no old segment fits (RFC 9293 section 3.6.1), and
            // by more than a window that is not shifted, as Linux does. That is no cookie.
            ours: match stranger.above {
                Some(above) => above + ABOVE_OLD,
                None => self.backlog.cookie(key, segment.seq, mss, context.now_us),
            },
            window: segment.window,
            options: SynOptions { mss: Some(mss), ..options },
            timestamp: segment.timestamps.map_or(0, |timestamps| timestamps.value),
            sent_us: context.now_us,
            sent: 1,
            is_repeated: false,
        };
        context.counts.add(Count::SynReceived);
        if self.backlog.insert(entry) {
            context.counts.add(Count::BacklogEvicted);
        }
        // Bytes in a SYN are left out of the acknowledgement, and come again.
        answer_syn(&entry, context, cache, out);
    }

    /// An acknowledgement, perhaps of our SYN.
    fn receive_ack(
        &mut self,
        half_open: Option<u32>,
        stranger: &Stranger<'_>,
        cache: &mut PoolCache,
        out: &mut Burst,
    ) {
        let Stranger { key, segment, path, .. } = *stranger;
        let ours = Seq(segment.ack.0.wrapping_sub(1));
        let entry = if let Some(number) = half_open {
            let entry = *self.backlog.get_mut(number);
            let since = segment.seq.after(entry.theirs + 1);
            let is_old = entry.options.timestamps
                && segment.timestamps.is_none_or(|it| Seq(it.value).is_before(Seq(entry.timestamp)));
            if since < 0 || since as u32 > self.context.receive_bytes || is_old {
                // Not of this connection, or before it: our SYN once more says what is expected.
                self.context.counts.add(Count::OutOfWindow);
                return answer_syn(&entry, &self.context, cache, out);
            }
            if entry.ours != ours {
                return self.refuse(stranger, cache, out);
            }
            entry
        } else {
            // Evicted from the backlog, perhaps.
            let theirs = Seq(segment.seq.0.wrapping_sub(1));
            match self.backlog.recognise(key, theirs, ours, self.context.now_us) {
                Some(mss) if self.is_open && self.context.config.ports.contains(&key.local_port) => {
                    self.context.counts.add(Count::CookieAccepted);
                    let (sack, shift) =
                        segment.timestamps.map_or((false, Some(0)), |timestamps| offer_of(timestamps.echo));
                    HalfOpen {
                        key: *key,
                        path,
                        theirs,
                        ours,
                        window: segment.window,
                        options: SynOptions {
                            mss: Some(mss.max(LEAST_MSS).min(our_mss(key, &self.context))),
                            shift,
                            sack,
                            timestamps: segment.timestamps.is_some(),
                        },
                        timestamp: segment.timestamps.map_or(0, |timestamps| timestamps.value),
                        sent_us: self.context.now_us,
                        sent: u8::MAX,
                        is_repeated: true,
                    }
                }
                _ => return self.refuse(stranger, cache, out),
            }
        };
        if self.flows.is_full() && !self.make_room(cache) {
            // The peer takes it for open; what it sends comes again, and may find room then.
            return self.context.counts.add(Count::FlowLimit);
        }
        if let Some(number) = half_open {
            self.backlog.remove(number);
        }
        let flow = open::<S::Session>(&entry, &self.context);
        let Some(number) = self.flows.insert(flow) else { return };
        self.context.counts.add(Count::FlowsOpened);
        self.receive_in(number, segment, stranger.packet, cache, out);
    }

    /// Removes the connection that has been in TIME-WAIT for longest. Whether there was one.
    fn make_room(&mut self, cache: &mut PoolCache) -> bool {
        let Some(oldest) = self.waiting.oldest() else { return false };
        self.context.counts.add(Count::TimeWaitReused);
        self.end(oldest, cache);
        true
    }

    /// Answers a segment of no connection by a reset: section 3.10.7.1. Where others have connections too, a SYN alone:
    /// what else comes may be of one of theirs.
    fn refuse(&mut self, stranger: &Stranger<'_>, cache: &mut PoolCache, out: &mut Burst) {
        let Stranger { key, segment, ref path, .. } = *stranger;
        if self.context.config.is_one_of_several && !segment.has(SYN) {
            return self.context.counts.add(Count::OtherQueue);
        }
        self.context.counts.add(Count::NoFlow);
        let (seq, ack, flags) = if segment.has(ACK) {
            (segment.ack, Seq(0), RST)
        } else {
            (Seq(0), segment.seq + segment.len(), RST | ACK)
        };
        let Some(mut frame) = room(cache, &self.context, out) else {
            return self.context.counts.add(Count::NotSent);
        };
        let header = Header {
            path,
            key,
            seq,
            ack,
            flags,
            window: 0,
            timestamps: None,
            syn: None,
            sacks: Sacks::default(),
        };
        header.write(&mut frame, [&[], &[]]);
        self.context.counts.add(Count::ResetSent);
        push(frame, cache, &self.context, out);
    }
}

/// Whether an address is that of a group, or of no host: nobody connects from there, or to there, and nothing is answered
/// (RFC 9293 section 3.9.2.3, RFC 1122 section 3.2.1.3).
fn is_nobody(address: Ipv6Addr) -> bool {
    address.is_multicast()
        || address.is_unspecified()
        || (address.to_ipv4_mapped())
            .is_some_and(|ip| ip.is_multicast() || ip.is_unspecified() || ip.is_broadcast())
}

/// The largest segment that we take, in bytes without options: what fits into the MTU.
fn our_mss(key: &Key, context: &Context) -> u16 {
    context.config.mtu - if key.is_ipv4() { HEADERS_IPV4 } else { HEADERS_IPV6 }
}

/// Sends our SYN.
pub(super) fn answer_syn(entry: &HalfOpen, context: &Context, cache: &mut PoolCache, out: &mut Burst) {
    let Some(mut frame) = room(cache, context, out) else { return context.counts.add(Count::NotSent) };
    let timestamps = entry
        .options
        .timestamps
        .then(|| Timestamps { value: with_offer(context.timestamp(), entry.options), echo: entry.timestamp });
    let header = Header {
        path: &entry.path,
        key: &entry.key,
        seq: entry.ours,
        ack: entry.theirs + 1,
        flags: SYN | ACK,
        // The window of a SYN is not shifted (RFC 7323 section 2.2).
        window: context.receive_bytes.min(u32::from(u16::MAX)) as u16,
        timestamps,
        syn: Some(SynOptions {
            mss: Some(our_mss(&entry.key, context)),
            shift: entry.options.shift.map(|_| context.shift),
            sack: entry.options.sack,
            timestamps: entry.options.timestamps,
        }),
        sacks: Sacks::default(),
    };
    header.write(&mut frame, [&[], &[]]);
    push(frame, cache, context, out);
}

/// The connection that a half-open one becomes.
fn open<Session: Default>(entry: &HalfOpen, context: &Context) -> Flow<Session> {
    let mss = entry.options.mss.unwrap_or(DEFAULT_MSS_IPV4);
    let mut rtt = Rtt::default();
    // What was sent twice is not timed (Karn, RFC 6298 section 3). Then the timeout is that of who knows nothing, 1 s. Section
    // 5.7 wants 3 s, for the sake of paths on which a second is too short; a server in a datacentre has none of those, and
    // on the paths that it has, 3 s of silence after each loss are long. A slower one is learned by backing off.
    if entry.sent == 1 && !entry.is_repeated {
        rtt.sample((context.now_us - entry.sent_us).min(u64::from(u32::MAX)) as u32);
    }
    // One segment if our SYN was lost more than once (RFC 5681 section 3.1, and as Linux: once may be chance).
    let is_lossy = (3..u8::MAX).contains(&entry.sent);
    let (ours, theirs) = (entry.ours + 1, entry.theirs + 1);
    // Without the peer's shift ours does not count either (RFC 7323 section 2.2).
    let is_scaled = entry.options.shift.is_some();
    let window = u32::from(entry.window);
    Flow {
        key: entry.key,
        state: State::Established,
        timestamps: entry.options.timestamps,
        sack: entry.options.sack,
        is_scaled,
        is_listed: false,
        is_over: false,
        ack_now: false,
        wants_room: false,
        closes: false,
        timer_us: NEVER,
        probes: 0,
        sending: Sending {
            ring: Bytes::default(),
            unacked: ours,
            next: ours,
            newest: ours,
            window,
            max_window: window,
            window_seq: entry.theirs,
            window_ack: ours,
            congestion: if is_lossy { u32::from(mss) } else { initial_window(mss) },
            threshold: u32::MAX,
            recover: ours,
            timed: ours,
            timed_us: 0,
            retransmit_us: 0,
            stalled_us: context.now_us,
            rtt,
            mss,
            shift: entry.options.shift.unwrap_or(0),
            duplicates: 0,
            in_recovery: false,
            resend: false,
            takes_little: false,
        },
        receiving: Receiving {
            ring: Bytes::default(),
            next: theirs,
            edge: theirs + context.receive_bytes.min(u32::from(u16::MAX)),
            acked: theirs,
            timestamp: entry.timestamp,
            timestamp_s: (context.now_us / 1_000_000) as u32,
            fin: None,
            latest: theirs,
        },
        heard_us: context.now_us,
        challenged_us: 0,
        opened: entry.theirs,
        path: entry.path,
        session: Session::default(),
        beyond: Assembler::new(),
    }
}
