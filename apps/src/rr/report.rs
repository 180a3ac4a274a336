//! What the client prints: a line or a JSON object a second, and the result with what went wrong.
//!
//! Owns: the sum over the threads. Never does: measure. The keys are documented in `rr/options.rs`.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    net::SocketAddr,
    time::Duration,
};

use hdrhistogram::Histogram;
use serde_json::json;
use sheafio_core::CpuList;

use super::{
    client::Outcome,
    options::{Proto, RrArgs},
};
use crate::fwd::{grouped, scaled};

/// What all threads have found out.
pub(super) struct Sum {
    all: Outcome,
    pub(super) transactions: u64,
    pub(super) flows: u64,
}

impl Sum {
    pub(super) fn new(none: Outcome) -> Self {
        Self { all: none, transactions: 0, flows: 0 }
    }

    /// Adds what a thread has found out.
    pub(super) fn add(&mut self, one: Outcome) {
        let all = &mut self.all;
        all.latency_ns.add(one.latency_ns).expect("all histograms have the same bounds");
        all.ran_ns = all.ran_ns.max(one.ran_ns);
        for (error, count) in one.connect_errors {
            *all.connect_errors.entry(error).or_default() += count;
        }
        all.resets += one.resets;
        all.closed += one.closed;
        all.failed += one.failed;
        all.wrong_bytes += one.wrong_bytes;
        all.timeouts += one.timeouts;
        all.late += one.late;
        all.unfinished += one.unfinished;
        all.unsent += one.unsent;
        all.after_end += one.after_end;
        if all.first.is_none() {
            all.first = one.first;
        }
    }

    /// Whether nothing went wrong.
    pub(super) fn is_well(&self) -> bool {
        self.answered() > 0
            && self.all.connect_errors.is_empty()
            && self.errors().iter().all(|(_, count)| *count == 0)
    }

    /// All but those of connecting.
    fn errors(&self) -> [(&'static str, u64); 6] {
        let all = &self.all;
        [
            ("resets", all.resets),
            ("closed", all.closed),
            ("failed", all.failed),
            ("wrong_bytes", all.wrong_bytes),
            ("timeouts", all.timeouts),
            ("unfinished", all.unfinished),
        ]
    }

    fn connect_errors(&self) -> BTreeMap<String, u64> {
        self.all.connect_errors.iter().map(|(error, count)| (name_of(*error), *count)).collect()
    }

    /// Transactions that were answered, whenever.
    fn answered(&self) -> u64 {
        self.transactions + self.all.after_end
    }

    /// How long requests were sent, by the thread that did longest.
    fn seconds(&self) -> f64 {
        self.all.ran_ns as f64 / 1e9
    }

    fn tps(&self) -> f64 {
        if self.all.ran_ns > 0 { self.transactions as f64 / self.seconds() } else { 0.0 }
    }
}

/// An error in words, without its number.
fn name_of(error: i32) -> String {
    let text = io::Error::from_raw_os_error(error).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// What helps against an error of connecting.
fn remedy(error: i32, args: &RrArgs) -> Option<String> {
    let to = args.to.join(", ");
    Some(match error {
        libc::EADDRNOTAVAIL | libc::EADDRINUSE | libc::EAGAIN => match args.proto {
            Proto::Tcp => "local ports have run out, or --from is no address of this machine. One source address has \
                           some 28,000 ports to one HOST:PORT (net.ipv4.ip_local_port_range), those of the last minute's \
                           connections included: give --from several times, or several --to",
            Proto::Udp => "local ports have run out, or --from is no address of this machine. One source address has \
                           some 28,000 ports in all (net.ipv4.ip_local_port_range): give --from several times",
        }
        .to_owned(),
        libc::ECONNREFUSED => format!("nothing listens at {to}; see there: ss -ltn"),
        libc::ETIMEDOUT => format!(
            "no answer from {to} in 10 s; is it the right address? The server's backlog may be full: nstat -az TcpExtListenOverflows"
        ),
        libc::EHOSTUNREACH | libc::ENETUNREACH => format!("no way to {to}; see: ip route get, ip neigh"),
        libc::EMFILE | libc::ENFILE => "the limit of open files; see: ulimit -n, fs.file-max".to_owned(),
        _ => return None,
    })
}

/// Prints for people or for programs.
pub(super) struct Printer<'a> {
    args: &'a RrArgs,
}

impl<'a> Printer<'a> {
    pub(super) fn new(args: &'a RrArgs) -> Self {
        Self { args }
    }

    /// Says what begins, for people.
    pub(super) fn start(&self, targets: &[SocketAddr], cpus: &CpuList) -> io::Result<()> {
        if self.args.json {
            return Ok(());
        }
        let targets: Vec<_> = targets.iter().map(ToString::to_string).collect();
        let sizes = match self.args.response_size {
            None => format!("{} bytes there and back", grouped(self.args.size.into())),
            Some(response) => {
                format!("{} bytes there, {} back", grouped(self.args.size.into()), grouped(response.into()))
            }
        };
        let pace = match self.args.rate {
            None => "each flow as fast as it is answered".to_owned(),
            Some(rate) => format!("{}/s in all", scaled(rate)),
        };
        writeln!(
            io::stdout(),
            "rr: {} to {}, {} flow(s), {sizes}, {pace}, CPUs {cpus}",
            self.args.proto.name(),
            targets.join(", "),
            grouped(self.args.flows.into())
        )
    }

    /// Prints a moment.
    pub(super) fn print(&self, t: Duration, flows: u64, transactions: u64, tps: f64) -> io::Result<()> {
        let t_s = (t.as_secs_f64() * 1000.0).round() / 1000.0;
        if self.args.json {
            let line =
                json!({ "t_s": t_s, "flows": flows, "transactions": transactions, "tps": tps.round() });
            return writeln!(io::stdout(), "{line}");
        }
        writeln!(io::stdout(), "t = {t_s:.1} s: {} flows, {} transactions/s", grouped(flows), scaled(tps))
    }

    /// Prints the result, and what went wrong with what helps.
    pub(super) fn end(&self, sum: &Sum) -> io::Result<()> {
        for error in sum.all.connect_errors.keys() {
            if let Some(remedy) = remedy(*error, self.args) {
                eprintln!("sheafio: connecting: {}: {remedy}", name_of(*error));
            }
        }
        if let Some(first) = &sum.all.first {
            eprintln!("sheafio: the first of what went wrong: {first}");
        }
        if sum.answered() == 0 {
            eprintln!("sheafio: no transaction was answered");
        }
        let latency = &sum.all.latency_ns;
        let from = if self.args.rate.is_some() { "due" } else { "sent" };
        if self.args.json {
            let mut errors = serde_json::Map::new();
            errors.insert("connect".to_owned(), json!(sum.connect_errors()));
            errors.extend(sum.errors().map(|(name, count)| (name.to_owned(), count.into())));
            let [p50, p99, p99_9, max] = quantiles(latency);
            let line = json!({
                "t_s": (sum.seconds() * 1e6).round() / 1e6,
                "final": true,
                "flows": sum.flows,
                "transactions": sum.transactions,
                "tps": sum.tps().round(),
                "latency_us": {
                    "p50": p50, "p99": p99, "p99_9": p99_9, "max": max, "from": from, "count": latency.len(),
                },
                "after_end": sum.all.after_end,
                "unsent": sum.all.unsent,
                "late": sum.all.late,
                "errors": errors,
            });
            return writeln!(io::stdout(), "{line}");
        }
        let mut out = io::stdout();
        writeln!(
            out,
            "transactions  {} in {:.1} s: {}/s",
            grouped(sum.transactions),
            sum.seconds(),
            grouped(sum.tps().round() as u64)
        )?;
        let from = if self.args.rate.is_some() { "when it was due" } else { "sending" };
        match quantiles(latency) {
            [Some(p50), Some(p99), Some(p99_9), Some(max)] => writeln!(
                out,
                "latency       p50 {p50} us, p99 {p99} us, p99.9 {p99_9} us, max {max} us, counted from {from}"
            )?,
            _ => writeln!(out, "latency       -")?,
        }
        let connect = sum.connect_errors();
        let mut wrong: Vec<_> =
            connect.iter().map(|(name, count)| format!("connect: {name} {}", grouped(*count))).collect();
        let others = sum.errors().into_iter().filter(|(_, count)| *count > 0);
        wrong.extend(others.map(|(name, count)| format!("{name} {}", grouped(count))));
        if wrong.is_empty() {
            wrong.push("none".to_owned());
        }
        writeln!(out, "errors        {}", wrong.join(", "))?;
        for (name, count, meaning) in [
            (
                "after the end",
                sum.all.after_end,
                "answered once the time was over; not among the transactions above",
            ),
            (
                "unsent",
                sum.all.unsent,
                "were due, and waited to the end for an earlier one of their flow, or it was dead",
            ),
            ("late", sum.all.late, "datagrams that came after their request had timed out"),
        ] {
            if count > 0 {
                writeln!(out, "{name:<13} {} ({meaning})", grouped(count))?;
            }
        }
        Ok(())
    }
}

/// p50, p99, p99.9 and the largest, in microseconds; `None` if there is nothing that they could be of.
fn quantiles(latency_ns: &Histogram<u64>) -> [Option<f64>; 4] {
    let us = |ns: u64| (!latency_ns.is_empty()).then(|| (ns as f64 / 100.0).round() / 10.0);
    let at = |quantile| us(latency_ns.value_at_quantile(quantile));
    [at(0.5), at(0.99), at(0.999), us(latency_ns.max())]
}
