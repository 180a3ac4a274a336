//! A plain echo server by epoll(7), as a baseline for `tests/peers/run rr`: what a good engineer writes first.
//!
//! ```text
//!   socket --read--> one buffer --write--> socket      level-triggered, one thread, one system call for each step
//! ```
//! Usage: epoll ADDRESS:PORT. It ends on a signal. One read a wake-up, for level-triggered epoll tells again of what is
//! left; what a client does not take at once waits in a buffer of that flow's, which is not read from meanwhile.

use std::{
    collections::HashMap,
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    process::ExitCode,
};

use rustix::event::epoll;

/// Bytes of a read.
const BUFFER_BYTES: usize = 16 << 10;
/// Events that are taken at a time.
const EVENTS: usize = 512;
/// Names the listener among the events; flows have their descriptors.
const LISTENER: u64 = u64::MAX;

struct Flow {
    stream: TcpStream,
    /// What the client has not taken yet.
    waiting: Vec<u8>,
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [address] = args.as_slice() else {
        eprintln!("usage: epoll ADDRESS:PORT");
        return ExitCode::from(2);
    };
    match serve(address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("epoll: {address}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    // Again, for as many as the kernel allows to wait (std asks for 128).
    rustix::net::listen(&listener, 65_535)?;
    listener.set_nonblocking(true)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(LISTENER);
    epoll::add(&poll, &listener, data, epoll::EventFlags::IN)?;
    let mut flows = HashMap::new();
    let mut events = Vec::with_capacity(EVENTS);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        events.clear();
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None) {
            Err(rustix::io::Errno::INTR) => continue,
            waited => waited?,
        };
        for event in &events {
            let number = event.data.u64();
            if number == LISTENER {
                accept(&listener, poll.as_fd(), &mut flows)?;
                continue;
            }
            let Some(flow) = flows.get_mut(&number) else { continue };
            let was_waiting = !flow.waiting.is_empty();
            if !echo(flow, &mut buffer) {
                flows.remove(&number); // Closing a descriptor takes it out of the set.
                continue;
            }
            let is_waiting = !flow.waiting.is_empty();
            if is_waiting != was_waiting {
                let wanted = if is_waiting { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
                epoll::modify(&poll, &flow.stream, epoll::EventData::new_u64(number), wanted)?;
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    poll: rustix::fd::BorrowedFd<'_>,
    flows: &mut HashMap<u64, Flow>,
) -> io::Result<()> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                let number = stream.as_raw_fd() as u64;
                epoll::add(poll, &stream, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
                flows.insert(number, Flow { stream, waiting: Vec::new() });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends what waits, or else what comes. Returns whether the flow goes on.
fn echo(flow: &mut Flow, buffer: &mut [u8]) -> bool {
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
