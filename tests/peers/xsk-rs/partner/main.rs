//! A link partner on xsk-rs: an AF_XDP socket that shares no code with the port under test.
//!
//! ```text
//!   partner: numbered packets --TX--> veth END === veth END under test
//!            checks them      <--RX--               e.g. sheafio fwd --mode macswap
//! ```
//! Usage: partner INTERFACE QUEUES MODE COUNT LENGTH SECONDS \[native|generic\]
//!
//! QUEUES is a number or several, `0,1`. Modes: `send` sends packets 0 to COUNT - 1 in turn over the queues; `receive`
//! waits for as many; `both` sends and waits for them to come back, with at most 128 on their way; `echo` sends back
//! what comes, with the Ethernet addresses swapped. It ends when all of COUNT is done (and a little later, so that a
//! packet that comes twice is seen), when nothing moves for 2 s after something has, or after SECONDS, and prints one
//! JSON object. Every byte of a received packet is checked (`packet.rs`). The exit code is 0 whatever came; 1 if it
//! could not start, 2 for wrong arguments.

mod packet;
mod program;
mod queue;

use std::{
    collections::BTreeSet,
    error::Error,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use packet::Kind;
use program::Program;
use queue::Queue;

const USAGE: &str = "usage: partner INTERFACE QUEUE[,QUEUE] send|receive|both|echo COUNT LENGTH SECONDS [native|generic]; \
                     LENGTH from 60 to 3840 bytes";
/// Packets on their way at one time: fewer than any ring between here and there holds, veth's own of 256 included.
const WINDOW: u64 = 128;
/// Packets for one system call.
const BURST: usize = 32;
/// Packets that did not come back within this time are taken for lost, and others may take their place.
const PATIENCE: Duration = Duration::from_millis(500);
/// Without a packet for so long, no more are waited for.
const QUIET: Duration = Duration::from_secs(2);
/// How long to wait for packets that should not come.
const AFTERMATH: Duration = Duration::from_millis(100);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let Some(mut partner) = Partner::asked_for(&args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match partner.run() {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let (mut text, mut cause) = (error.to_string(), error.source());
            while let Some(error) = cause {
                text = format!("{text}: {error}");
                cause = error.source();
            }
            eprintln!("partner: {}: {text}", partner.interface);
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Send,
    Receive,
    Both,
    Echo,
}

/// What was asked for, and what has happened so far.
struct Partner {
    interface: String,
    queues: BTreeSet<u32>,
    mode: Mode,
    count: u64,
    length: usize,
    duration: Duration,
    native: bool,
    sent: u64,
    received: u64,
    /// Of those that were received, the ones whose addresses came swapped.
    swapped: u64,
    echoed: u64,
    /// Came although they had come before.
    repeated: u64,
    /// Were numbered, but not as they should be.
    damaged: u64,
    /// Were somebody else's.
    foreign: u64,
    /// Taken for lost.
    given_up: u64,
    seen: Vec<bool>,
}

impl Partner {
    fn asked_for(args: &[String]) -> Option<Self> {
        let (args, native) = match args {
            [args @ .., mode] if mode == "native" => (args, true),
            [args @ .., mode] if mode == "generic" => (args, false),
            _ => (args, true),
        };
        let [interface, queues, mode, count, length, seconds] = args else { return None };
        let mode = match mode.as_str() {
            "send" => Mode::Send,
            "receive" => Mode::Receive,
            "both" => Mode::Both,
            "echo" => Mode::Echo,
            _ => return None,
        };
        let count: u32 = count.parse().ok()?;
        Some(Self {
            interface: interface.clone(),
            queues: queues.split(',').map(|queue| queue.parse().ok()).collect::<Option<_>>()?,
            mode,
            count: count.into(),
            length: length.parse().ok().filter(|length| packet::LENGTHS.contains(length))?,
            duration: Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?,
            native,
            sent: 0,
            received: 0,
            swapped: 0,
            echoed: 0,
            repeated: 0,
            damaged: 0,
            foreign: 0,
            given_up: 0,
            seen: vec![false; count as usize],
        })
    }

    fn run(&mut self) -> Result<String> {
        let queues = self.queues.iter().map(|queue| Queue::open(&self.interface, *queue));
        let mut queues = queues.collect::<Result<Vec<_>>>()?;
        // The program comes last: packets reach the sockets from then on.
        let _program = Program::attach(&self.interface, self.native, &queues)?;
        let (start, duration) = (Instant::now(), self.duration);
        // When the last packet moved; when all was done.
        let (mut last, mut done) = (None, None);
        let is_over = |last: Option<Instant>, done: Option<Instant>| {
            start.elapsed() >= duration
                || last.is_some_and(|last| last.elapsed() > QUIET)
                || done.is_some_and(|done| done.elapsed() > AFTERMATH)
        };
        while !is_over(last, done) {
            let mut moved = 0;
            for queue in &mut queues {
                queue.tend()?;
                moved += if self.mode == Mode::Echo { self.echo(queue) } else { self.receive(queue) };
            }
            // Each burst goes to the next queue, whichever packets come back on.
            let turn = self.sent as usize / BURST % queues.len();
            moved += self.send(&mut queues[turn]);
            for queue in &queues {
                queue.kick()?;
            }
            if moved > 0 {
                last = Some(Instant::now());
            } else {
                if last.is_some_and(|last| last.elapsed() > PATIENCE) {
                    self.given_up = self.sent.saturating_sub(self.received);
                }
                // The port under test may share this CPU.
                thread::yield_now();
            }
            if self.is_done() && queues.iter().all(|queue| queue.in_flight() == 0) {
                done.get_or_insert_with(Instant::now);
            }
        }
        self.report(&queues)
    }

    fn is_done(&self) -> bool {
        match self.mode {
            Mode::Send => self.sent == self.count,
            Mode::Receive | Mode::Both => self.received == self.count,
            Mode::Echo => self.echoed >= self.count,
        }
    }

    /// Sends as many packets as the window has room for, at most the rest of a burst. Returns how many.
    fn send(&mut self, queue: &mut Queue) -> usize {
        let on_their_way = match self.mode {
            // The kernel completes a packet when the other end has taken it.
            Mode::Send => queue.in_flight() as u64,
            Mode::Both => self.sent.saturating_sub(self.received + self.given_up),
            Mode::Receive | Mode::Echo => return 0,
        };
        let first = self.sent;
        let room = WINDOW
            .saturating_sub(on_their_way)
            .min(self.count - first)
            .min(BURST as u64 - first % BURST as u64);
        let sent = queue
            .send(room as usize, self.length, |at, packet| packet::write(first as u32 + at as u32, packet));
        self.sent += sent as u64;
        sent
    }

    /// Checks what has come. Returns how many packets that was.
    fn receive(&mut self, queue: &mut Queue) -> usize {
        queue.receive(|packet| {
            let (number, is_swapped) = match packet::kind_of(packet) {
                Kind::Numbered { number, is_swapped } => (number, is_swapped),
                Kind::Damaged => return self.damaged += 1,
                Kind::Foreign => return self.foreign += 1,
            };
            match self.seen.get_mut(number as usize) {
                _ if packet.len() != self.length => self.damaged += 1,
                None => self.damaged += 1,
                Some(true) => self.repeated += 1,
                Some(seen) => {
                    *seen = true;
                    self.received += 1;
                    self.swapped += u64::from(is_swapped);
                }
            }
        })
    }

    /// Sends back what has come. Returns how many packets that was.
    fn echo(&mut self, queue: &mut Queue) -> usize {
        let echoed = queue.echo(|packet| {
            match packet::kind_of(packet) {
                Kind::Numbered { .. } => self.received += 1,
                Kind::Damaged => self.damaged += 1,
                Kind::Foreign => self.foreign += 1,
            }
            packet::swap_addresses(packet);
        });
        self.echoed += echoed as u64;
        echoed
    }

    fn report(&self, queues: &[Queue]) -> Result<String> {
        let each = queues.iter().map(|queue| {
            Ok(format!(
                r#"{{"queue":{},"sent":{},"received":{},"dropped":{},"in_flight":{}}}"#,
                queue.number,
                queue.sent,
                queue.received,
                queue.dropped()?,
                queue.in_flight()
            ))
        });
        Ok(format!(
            r#"{{"sent":{},"received":{},"swapped":{},"echoed":{},"repeated":{},"damaged":{},"foreign":{},"queues":[{}]}}"#,
            self.sent,
            self.received,
            self.swapped,
            self.echoed,
            self.repeated,
            self.damaged,
            self.foreign,
            each.collect::<Result<Vec<_>>>()?.join(",")
        ))
    }
}
