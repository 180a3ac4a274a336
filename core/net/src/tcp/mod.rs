//! The server side of TCP (RFC 9293), for many thousand connections on one lcore.
//!
//! Owns: the connections of one lcore, and the frames in which what they have sent and received waits. Never does: open
//! a connection, read a clock, or receive and send by itself. Invariant: whatever the peers do, memory stays within what
//! [`Tcp::new`] was given, and each packet costs the same however many connections there are.
//!
//! ```text
//!  rx burst -> Headers -> Tcp::receive -> input.rs -> Server::serve -> send buffer
//!                             |                                             |
//!                        backlog.rs (half open)        list of flows with something to send
//!                                                                           |
//!  tx burst <------------------------------- Tcp::transmit <- output.rs <---+<- timers.rs <- wheel.rs
//! ```
//!
//! A burst of packets is taken in first, and answered then: so several segments of a connection get one acknowledgement,
//! which goes along with the response. What is written is kept in frames of the pool until the peer acknowledges it, and
//! copied from there into the frame that is sent.
//!
//! Not here, for a server does without: active and simultaneous opening, urgent data (its bytes are taken for others),
//! ECN, and selective acknowledgement of what we send (what we receive is acknowledged so, RFC 2018).

mod acks;
mod arrivals;
mod backlog;
mod bytes;
mod config;
mod context;
mod flow;
mod input;
mod opening;
mod order;
mod output;
mod peer;
mod rtt;
mod segment;
mod sequence;
mod server;
mod silent;
mod table;
mod timers;
mod wheel;

use std::{collections::VecDeque, sync::Arc};

use sheafio_mempool::{Burst, PoolCache};

use self::{
    backlog::Backlog,
    context::Context,
    flow::NEVER,
    input::{Fate, Frames},
    opening::{HEADERS_IPV4, Stranger},
    order::Order,
    peer::Key,
    segment::Segment,
    silent::Silent,
    table::{Flows, Name},
    wheel::Wheel,
};
pub use self::{
    config::{Config, ConfigError},
    server::{Input, Output, Server},
};
use crate::{Counts, Headers};

/// With fewer flows all of them are in the cache anyway.
const FEW: usize = 512;

/// The TCP server of one lcore.
pub struct Tcp<S: Server> {
    server: S,
    flows: Flows<S::Session>,
    backlog: Backlog,
    wheel: Wheel,
    /// Flows that have something to send.
    listed: VecDeque<u32>,
    /// Flows in TIME-WAIT.
    waiting: Order,
    /// Flows whose peers do not answer.
    silent: Silent,
    /// Names of the packets of a burst; empty in between.
    names: Vec<Name>,
    context: Context,
    is_open: bool,
    /// How far `abort` has come among the numbers of flows; none is opened any more by then.
    aborted: u32,
}

impl<S: Server> Tcp<S> {
    /// A server with room for as many connections as are asked for.
    ///
    /// All memory but frames is taken here. `frame_bytes` is the size of the pool's frames, `frames` how many of them may be
    /// held by connections, `reserved` how many are needed elsewhere (for the message only), `now_us` any time in
    /// microseconds that does not go backwards.
    ///
    /// # Errors
    /// [`ConfigError`] if a value is out of range, or the pool can't carry that many connections.
    pub fn new(
        config: Config,
        server: S,
        counts: Arc<Counts>,
        frame_bytes: u32,
        (frames, reserved): (u64, u64),
        now_us: u64,
    ) -> Result<Self, ConfigError> {
        config.check(frame_bytes)?;
        let each = config.frames_each(frame_bytes);
        let (flows, frames_a_flow) = (config.max_flows as u64, (each.0 + each.1) as u64);
        if flows * frames_a_flow > frames {
            return Err(ConfigError::Pool { flows, frames_a_flow, frames, reserved });
        }
        let receive_bytes = each.0 as u32 * frame_bytes;
        let shift = (0..14).find(|shift| u16::try_from(receive_bytes >> shift).is_ok()).unwrap_or(14);
        Ok(Self {
            server,
            flows: Flows::new(config.max_flows, each, fastrand::u64(..)),
            backlog: Backlog::new(config.half_open(), now_us),
            wheel: Wheel::new(config.max_flows, now_us),
            listed: VecDeque::with_capacity(config.max_flows),
            waiting: Order::new(config.max_flows),
            silent: Silent::new(),
            names: Vec::with_capacity(Burst::MAX),
            context: Context {
                counts,
                now_us,
                timestamp_offset: fastrand::u32(..),
                frame_bytes,
                receive_bytes,
                send_bytes: each.1 as u32 * frame_bytes,
                least_window: u32::from(config.mtu - HEADERS_IPV4).min(receive_bytes / 2),
                shift,
                config,
            },
            is_open: true,
            aborted: 0,
        })
    }

    /// The server that this was made with.
    pub fn server(&mut self) -> &mut S {
        &mut self.server
    }

    /// Connections that are open, or are in TIME-WAIT.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Connections that are half open.
    pub fn half_open(&self) -> usize {
        self.backlog.len()
    }

    /// What happened so far.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.context.counts
    }

    /// Sets the clock, in microseconds: once in a burst. It never goes back.
    #[inline]
    pub fn set_now(&mut self, now_us: u64) {
        self.context.now_us = self.context.now_us.max(now_us);
    }

    /// Takes in packets that carry TCP. What they are answered with comes with the next [`transmit`](Self::transmit), but for
    /// answers to segments of no connection, which are added to `out`. Packets that can't be used are counted.
    #[inline]
    pub fn receive_burst<'a>(
        &mut self,
        packets: impl Iterator<Item = (&'a Headers, &'a [u8])> + Clone,
        cache: &mut PoolCache,
        out: &mut Burst,
    ) {
        let mut names = std::mem::take(&mut self.names);
        names.extend(packets.clone().map(|(headers, packet)| self.flows.name(Key::of(headers, packet))));
        if self.flows.len() >= FEW {
            self.flows.fetch(&names);
        }
        for ((headers, packet), name) in packets.zip(&names) {
            self.receive_named(headers, packet, name, cache, out);
        }
        names.clear();
        self.names = names;
    }

    /// Takes in one; see [`receive_burst`](Self::receive_burst).
    #[inline]
    pub fn receive(&mut self, headers: &Headers, packet: &[u8], cache: &mut PoolCache, out: &mut Burst) {
        let name = self.flows.name(Key::of(headers, packet));
        self.receive_named(headers, packet, &name, cache, out);
    }

    #[inline]
    fn receive_named(
        &mut self,
        headers: &Headers,
        packet: &[u8],
        name: &Name,
        cache: &mut PoolCache,
        out: &mut Burst,
    ) {
        let (key, segment) = match Segment::read(headers, packet) {
            Ok(segment) => (&name.key, segment),
            Err(count) => return self.context.counts.add(count),
        };
        let Some(number) = self.flows.find(name) else {
            return self.receive_apart(&Stranger::new(headers, packet, key, &segment, None), cache, out);
        };
        if let Some(above) = self.makes_room_for(number, &segment, cache) {
            let stranger = Stranger::new(headers, packet, key, &segment, Some(above));
            return self.receive_apart(&stranger, cache, out);
        }
        self.receive_in(number, &segment, packet, cache, out);
    }

    /// Takes a segment of a connection in.
    #[inline]
    fn receive_in(
        &mut self,
        number: u32,
        segment: &Segment<'_>,
        packet: &[u8],
        cache: &mut PoolCache,
        out: &mut Burst,
    ) {
        let (flow, receive, send) = self.flows.get_mut(number);
        let mut frames = Frames { receive, send, cache };
        let fate = flow.segment((segment, packet), &mut self.server, &mut self.context, &mut frames);
        self.settle(number, fate, cache, out);
    }

    /// Sees to what has become of a connection.
    #[inline]
    fn settle(&mut self, number: u32, fate: Fate, cache: &mut PoolCache, out: &mut Burst) {
        let flow = self.flows.flow(number);
        match fate {
            Fate::Kept => {}
            Fate::Waits => self.waiting.push(number),
            Fate::Over => return self.end(number, cache),
            Fate::Reset => {
                // If there is no room for it, the peer's next segment is answered by one.
                if !flow.reset(&mut self.context, cache, out) {
                    self.context.counts.add(crate::Count::NotSent);
                }
                return self.end(number, cache);
            }
        }
        if flow.has_to_send() && !flow.is_listed {
            flow.is_listed = true;
            debug_assert!(self.listed.len() < self.context.config.max_flows, "a flow is listed once");
            self.listed.push_back(number);
        }
        if let Some(deadline_us) = flow.deadline_us(&self.context) {
            // What could not be done for want of a frame is tried again in the next tick, and not in this one for ever.
            flow.set_timer(&mut self.wheel, number, deadline_us.max(self.context.now_us + 1));
        }
    }

    /// Forgets a connection.
    fn end(&mut self, number: u32, cache: &mut PoolCache) {
        self.context.counts.add(crate::Count::FlowsEnded);
        self.wheel.cancel(number);
        self.waiting.remove(number);
        let flow = self.flows.flow(number);
        self.backlog.note_end(&flow.key, flow.opened);
        // Its number stays in the list of those that have something to send, once, whoever gets it next; so the list never
        // grows beyond the number of flows.
        self.flows.remove(number, cache);
    }

    /// Adds what is due to `out`: answers to what was taken in, and what timers ask for. Call it in each poll. What `out`
    /// has no room for comes with the next call. Returns how many packets were added.
    #[inline]
    pub fn transmit(&mut self, cache: &mut PoolCache, out: &mut Burst) -> usize {
        let before = out.len();
        while let Some(number) = self.listed.pop_front() {
            let (flow, receive, send) = self.flows.get_mut(number);
            if flow.is_over {
                flow.is_listed = false;
                continue;
            }
            let mut frames = Frames { receive, send, cache };
            if !flow.transmit(&mut self.context, &mut frames, out) {
                self.listed.push_front(number);
                break;
            }
            flow.is_listed = false;
            if let Some(deadline_us) = flow.deadline_us(&self.context) {
                flow.set_timer(&mut self.wheel, number, deadline_us);
            }
        }
        self.see_to_timers(cache, out);
        out.len() - before
    }

    /// Sees to flows whose time has come, as long as there is room for what they send.
    #[inline]
    fn see_to_timers(&mut self, cache: &mut PoolCache, out: &mut Burst) {
        while out.room() > 0 {
            let Some(number) = self.wheel.pop(self.context.now_us) else { break };
            let (flow, receive, send) = self.flows.get_mut(number);
            flow.timer_us = NEVER;
            if let Some(soon_us) = flow.is_busy_until(&self.context) {
                flow.set_timer(&mut self.wheel, number, soon_us);
                continue;
            }
            let mut frames = Frames { receive, send, cache };
            let fate = flow.time_out(&mut self.server, &mut self.context, &mut frames, out);
            if flow.is_silent() {
                self.silent.push(number);
            }
            self.settle(number, fate, cache, out);
        }
        while out.room() > 0 {
            let Some(half_open) = self.backlog.due(self.context.now_us) else { break };
            opening::answer_syn(half_open, &self.context, cache, out);
        }
    }

    /// Listens no more, forgets half-open connections, and ends our half of all others: each as soon as the server has
    /// answered what has come, behind what it writes. Go on with [`receive`](Self::receive) and
    /// [`transmit`](Self::transmit) until [`flows`](Self::flows) is 0, or for as long as you can wait, and
    /// [`abort`](Self::abort) what is left then; TIME-WAIT is left out. A connection whose peer sends more behind our end,
    /// so that it is not answered, is reset once the peer ends it.
    pub fn close(&mut self, cache: &mut PoolCache) {
        self.listen_no_more();
        self.context.config.time_wait_us = 0;
        for number in 0..self.flows.places() {
            let flow = self.flows.flow(number);
            if flow.is_over {
                continue;
            }
            flow.closes = true;
            if flow.state == flow::State::TimeWait {
                self.end(number, cache);
                continue;
            }
            if flow.has_answered() {
                flow.close();
            }
            if !flow.is_listed {
                flow.is_listed = true;
                self.listed.push_back(number);
            }
        }
    }

    fn listen_no_more(&mut self) {
        self.is_open = false;
        self.backlog.clear();
    }

    /// Listens no more, and resets connections as long as `out` has room. Returns whether there are none left; if not, call
    /// it again. It goes over all connections once, however many calls that takes.
    pub fn abort(&mut self, cache: &mut PoolCache, out: &mut Burst) -> bool {
        self.listen_no_more();
        while self.aborted < self.flows.places() {
            let flow = self.flows.flow(self.aborted);
            if !flow.is_over {
                if !flow.reset(&mut self.context, cache, out) {
                    break;
                }
                self.end(self.aborted, cache);
            }
            self.aborted += 1;
        }
        self.flows.len() == 0
    }

    /// Gives all frames back, without a word to anybody.
    pub fn release(mut self, cache: &mut PoolCache) {
        for number in 0..self.flows.places() {
            self.flows.remove(number, cache);
        }
    }
}
