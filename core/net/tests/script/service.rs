//! The application on top of the connections: it does what a script tells it to.

use std::sync::Arc;

use sheafio_net::tcp::{Input, Output, Server};

use crate::segment::stream;

/// When the application ends its half of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// Once the peer has ended its half and all is written.
    WhenEnded,
    /// As soon as something has come and all is written.
    AtOnce,
    Never,
}

/// A reply that never ends, of the same byte.
pub(crate) const ENDLESS: usize = usize::MAX;

/// The application.
pub(crate) struct Service {
    /// Sends back what comes; otherwise it only takes it.
    pub(crate) echo: bool,
    /// The most bytes that it takes in one call.
    pub(crate) sip: usize,
    /// Takes only whole records, of a length that the byte in front says ([`record_bytes`]); with `echo` it sends them back.
    pub(crate) records: bool,
    /// Bytes of a stream that it writes in each connection once something has come.
    pub(crate) reply: usize,
    pub(crate) close: Close,
    pub(crate) abort: bool,
    /// All that came, of all connections.
    pub(crate) got: Vec<u8>,
    /// Calls that said that the peer has ended its half.
    pub(crate) ended: usize,
    pub(crate) calls: usize,
    /// Each session that was called holds one of it.
    pub(crate) alive: Arc<()>,
}

impl Service {
    pub(crate) fn echo() -> Self {
        Self {
            echo: true,
            sip: usize::MAX,
            records: false,
            reply: 0,
            close: Close::WhenEnded,
            abort: false,
            got: Vec::new(),
            ended: 0,
            calls: 0,
            alive: Arc::new(()),
        }
    }

    /// Sends back whole records.
    pub(crate) fn echoes_records() -> Self {
        Self { records: true, ..Self::echo() }
    }

    /// Takes all, and says nothing.
    pub(crate) fn sink() -> Self {
        Self { echo: false, ..Self::echo() }
    }

    /// Writes a stream of so many bytes when it hears something.
    pub(crate) fn replies(reply: usize) -> Self {
        Self { reply, ..Self::sink() }
    }
}

/// Bytes of a record behind the one in front of it.
pub(crate) fn record_bytes(head: u8) -> usize {
    8 * usize::from(head)
}

/// Bytes of the reply that were written; whether it was asked for.
#[derive(Default)]
pub(crate) struct Session {
    written: usize,
    is_asked: bool,
    /// The byte in front of a record that is waited for.
    head: Option<u8>,
    /// Records that had no room yet.
    unsent: Vec<u8>,
    alive: Option<Arc<()>>,
}

impl Service {
    /// Takes whole records as long as there is room for what is sent back. What is left behind the peer's end is one.
    /// Returns whether it waits for room.
    fn take_records(
        &mut self,
        session: &mut Session,
        input: &mut Input<'_>,
        output: &mut Output<'_>,
    ) -> bool {
        loop {
            let written = output.write(&session.unsent);
            session.unsent.drain(..written);
            if !session.unsent.is_empty() {
                return true;
            }
            let mut head = [0];
            if session.head.is_none() && input.read_exact(&mut head) {
                session.head = Some(head[0]);
            }
            let Some(head) = session.head else { return false };
            let mut bytes = record_bytes(head);
            if input.is_last() {
                bytes = bytes.min(input.len());
            }
            let mut record = vec![0; 1 + bytes];
            record[0] = head;
            if !input.read_exact(&mut record[1..]) {
                return false;
            }
            session.head = None;
            self.got.extend_from_slice(&record);
            if self.echo {
                session.unsent = record;
            }
        }
    }
}

impl Server for Service {
    type Session = Session;

    fn serve(&mut self, session: &mut Session, input: &mut Input<'_>, output: &mut Output<'_>) {
        self.calls += 1;
        session.alive = Some(self.alive.clone());
        if self.abort {
            return output.abort();
        }
        if self.records && self.take_records(session, input, output) {
            return;
        }
        let mut left = if self.records { 0 } else { self.sip.min(input.len()) };
        session.is_asked |= left > 0;
        while left > 0 {
            let piece = input.bytes();
            let piece = &piece[..piece.len().min(left)];
            let count = if self.echo { output.write(piece) } else { piece.len() };
            if count == 0 {
                return;
            }
            self.got.extend_from_slice(&piece[..count]);
            input.consume(count);
            left -= count;
        }
        if session.is_asked && self.reply == ENDLESS {
            while output.write(&[7; 4096]) > 0 {}
            return;
        }
        if session.is_asked && session.written < self.reply {
            // One byte more than there is room for, so that it is called again.
            let len = (self.reply - session.written).min(output.room() + 1);
            session.written += output.write(&stream(session.written, len));
            if session.written < self.reply {
                return;
            }
        }
        self.ended += usize::from(input.is_ended());
        let closes = match self.close {
            Close::WhenEnded => input.is_ended(),
            Close::AtOnce => session.is_asked,
            Close::Never => false,
        };
        if closes {
            output.close();
        }
    }
}
