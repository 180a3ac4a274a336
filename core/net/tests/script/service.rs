//! The application on top of the connections: it does what a script tells it to.

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
    /// Bytes of a stream that it writes in each connection once something has come.
    pub(crate) reply: usize,
    pub(crate) close: Close,
    pub(crate) abort: bool,
    /// All that came, of all connections.
    pub(crate) got: Vec<u8>,
    /// Calls that said that the peer has ended its half.
    pub(crate) ended: usize,
    pub(crate) calls: usize,
}

impl Service {
    pub(crate) fn echo() -> Self {
        Self {
            echo: true,
            sip: usize::MAX,
            reply: 0,
            close: Close::WhenEnded,
            abort: false,
            got: Vec::new(),
            ended: 0,
            calls: 0,
        }
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

/// Bytes of the reply that were written; whether it was asked for.
#[derive(Default)]
pub(crate) struct Session {
    written: usize,
    is_asked: bool,
}

impl Server for Service {
    type Session = Session;

    fn serve(&mut self, session: &mut Session, input: &mut Input<'_>, output: &mut Output<'_>) {
        self.calls += 1;
        if self.abort {
            return output.abort();
        }
        let mut left = self.sip.min(input.len());
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
