//! A plain echo server by epoll(7), as a baseline for `tests/peers/run rr`: what a good engineer writes first.
//!
//! ```text
//!   socket --read--> one buffer --write--> socket      level-triggered, one thread, one system call for each step
//! ```
//! Usage: epoll ADDRESS:PORT \[spin\]. With `spin` it asks for events without ever sleeping. One read a wake-up, for
//! level-triggered epoll tells again of what is left; what a client does not take at once waits in a buffer of that
//! flow's, which is not read from meanwhile.
//!
//! It ends on a signal, and prints a JSON object: `transactions`, the reads that brought something; `busy_cycles` of the
//! time-stamp counter; and `cycles_per_transaction`. With `spin` cycles are those of whole turns that found events, as
//! sheafio's lcores count them. Without, the time in epoll_wait(2) is left out, for no one can tell there what is work
//! and what is sleep: a lower bound.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    process::ExitCode,
};

use rustix::{
    event::{Timespec, epoll},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use sheafio_core::{Stop, cycles};

/// Bytes of a read.
const BUFFER_BYTES: usize = 16 << 10;
/// Events that are taken at a time.
const EVENTS: usize = 512;
/// Names the listener among the events; flows have their descriptors.
const LISTENER: u64 = u64::MAX;
/// The longest sleep: a signal that comes just before it is seen after it.
const LONGEST_SLEEP: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const NO_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

struct Flow {
    stream: TcpStream,
    /// What the client has not taken yet.
    waiting: Vec<u8>,
}

struct Server {
    poll: OwnedFd,
    listener: TcpListener,
    /// There are files left for more flows.
    is_accepting: bool,
    /// By their descriptors, which the kernel keeps low.
    flows: Vec<Option<Flow>>,
    buffer: Vec<u8>,
    transactions: u64,
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = args.iter().map(String::as_str).collect();
    let (address, spins) = match words.as_slice() {
        [address] => (*address, false),
        [address, "spin"] => (*address, true),
        _ => {
            eprintln!("usage: epoll ADDRESS:PORT [spin]");
            return ExitCode::from(2);
        }
    };
    match serve(address, spins) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("epoll: {address}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: &str, spins: bool) -> io::Result<()> {
    let stop = Stop::on_signals().map_err(io::Error::other)?;
    let limit = getrlimit(Resource::Nofile);
    // If it can't be raised, it stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let mut server = Server::new(address)?;
    let timeout = if spins { NO_SLEEP } else { LONGEST_SLEEP };
    let mut events = Vec::with_capacity(EVENTS);
    let (mut busy_cycles, mut turn_end) = (0, cycles());
    while !stop.is_raised() {
        events.clear();
        match epoll::wait(&server.poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => continue,
            waited => waited?,
        };
        let begin = if spins { turn_end } else { cycles() };
        for event in &events {
            server.handle(event.data.u64())?;
        }
        turn_end = cycles();
        if !events.is_empty() {
            busy_cycles += turn_end - begin;
        }
    }
    let transactions = server.transactions;
    println!(
        "{}",
        serde_json::json!({
            "transactions": transactions,
            "busy_cycles": busy_cycles,
            "cycles_per_transaction": busy_cycles.checked_div(transactions).unwrap_or(0),
        })
    );
    Ok(())
}

impl Server {
    fn new(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        // Again, for as many as the kernel allows to wait (std asks for 128).
        rustix::net::listen(&listener, 65_535)?;
        listener.set_nonblocking(true)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        Ok(Self {
            poll,
            listener,
            is_accepting: true,
            flows: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
            transactions: 0,
        })
    }

    fn handle(&mut self, number: u64) -> io::Result<()> {
        if number == LISTENER {
            return self.accept();
        }
        let place = &mut self.flows[number as usize];
        let Some(flow) = place else { return Ok(()) };
        let was_waiting = !flow.waiting.is_empty();
        if !echo(flow, &mut self.buffer, &mut self.transactions) {
            *place = None; // Closing a descriptor takes it out of the set.
            return self.listen(true);
        }
        let is_waiting = !flow.waiting.is_empty();
        if is_waiting != was_waiting {
            let wanted = if is_waiting { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            epoll::modify(&self.poll, &flow.stream, epoll::EventData::new_u64(number), wanted)?;
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.add(stream)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                // It waits in the backlog until a flow has ended; told of it meanwhile, this would spin.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    return self.listen(false);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn add(&mut self, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let number = stream.as_raw_fd() as usize;
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(&self.poll, &stream, data, epoll::EventFlags::IN)?;
        if self.flows.len() <= number {
            self.flows.resize_with(number + 1, || None);
        }
        self.flows[number] = Some(Flow { stream, waiting: Vec::new() });
        Ok(())
    }

    /// Has connections told or not, if that is another thing than before.
    fn listen(&mut self, is_accepting: bool) -> io::Result<()> {
        if std::mem::replace(&mut self.is_accepting, is_accepting) == is_accepting {
            return Ok(());
        }
        let wanted = if is_accepting { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(LISTENER);
        Ok(epoll::modify(&self.poll, &self.listener, data, wanted)?)
    }
}

/// Sends what waits, or else what comes. Returns whether the flow goes on.
fn echo(flow: &mut Flow, buffer: &mut [u8], transactions: &mut u64) -> bool {
    if !flow.waiting.is_empty() {
        return match flow.stream.write(&flow.waiting) {
            Ok(sent) => {
                flow.waiting.drain(..sent);
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
    }
    let len = match flow.stream.read(buffer) {
        Ok(0) => return false,
        Ok(len) => len,
        Err(error) => return error.kind() == ErrorKind::WouldBlock,
    };
    *transactions += 1;
    match flow.stream.write(&buffer[..len]) {
        Ok(sent) => {
            flow.waiting.extend_from_slice(&buffer[sent..len]);
            true
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            flow.waiting.extend_from_slice(&buffer[..len]);
            true
        }
        Err(_) => false,
    }
}
