//! What is answered to the bytes of a connection.

use std::sync::Arc;

use sheafio_mempool::sync::{AtomicU64, Ordering, add};
use sheafio_net::tcp::{Input, Output, Server};

use crate::echo::{
    EchoArgs,
    response::{Request, Responder},
};

/// What is counted of requests: one writer, any number of readers.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Transactions {
    /// Requests that were answered as a whole; without `--response-size` what came in a segment, or waited, and was
    /// written back.
    done: AtomicU64,
    rx_bytes: AtomicU64,
    tx_bytes: AtomicU64,
}

impl Transactions {
    /// Requests answered, bytes received, and bytes written.
    pub(super) fn totals(&self) -> [u64; 3] {
        // Relaxed: counters order nothing.
        [&self.done, &self.rx_bytes, &self.tx_bytes].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// Sends back what it gets, or a response of a given size for each request.
#[derive(Debug)]
pub(super) struct Echo {
    responder: Option<Responder>,
    transactions: Arc<Transactions>,
}

impl Echo {
    pub(super) fn new(args: &EchoArgs, transactions: Arc<Transactions>) -> Self {
        Self { responder: args.responder(), transactions }
    }

    #[inline]
    fn echo(&self, input: &mut Input<'_>, output: &mut Output<'_>) {
        let mut echoed = 0;
        while !input.is_empty() {
            let written = output.write(input.bytes());
            if written == 0 {
                break;
            }
            input.consume(written);
            echoed += written as u64;
        }
        if echoed > 0 {
            add(&self.transactions.done, 1);
            add(&self.transactions.rx_bytes, echoed);
            add(&self.transactions.tx_bytes, echoed);
        }
    }

    fn respond(
        &self,
        responder: &Responder,
        request: &mut Request,
        input: &mut Input<'_>,
        output: &mut Output<'_>,
    ) {
        loop {
            while request.is_answering() {
                let mut piece = [0; 256];
                let len = request.peek(&mut piece).min(output.room());
                let written = output.write(&piece[..len.max(1)]);
                add(&self.transactions.tx_bytes, written as u64);
                if request.advance(written as u32) {
                    add(&self.transactions.done, 1);
                } else if written == 0 {
                    return; // The server is called again when there is room.
                }
            }
            if input.is_empty() {
                return;
            }
            let taken = request.take(input.bytes(), responder);
            input.consume(taken);
            add(&self.transactions.rx_bytes, taken as u64);
        }
    }
}

impl Server for Echo {
    type Session = Request;

    #[inline]
    fn serve(&mut self, request: &mut Request, input: &mut Input<'_>, output: &mut Output<'_>) {
        match &self.responder {
            None => self.echo(input, output),
            Some(responder) => self.respond(responder, request, input, output),
        }
        if input.is_ended() && !request.is_answering() {
            output.close();
        }
    }
}
