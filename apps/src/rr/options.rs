//! What `sheafio rr` is asked for.
//!
//! Owns: the options. Never does: open anything. Invariant: [`RrArgs::check`] refuses what could only fail later.

use std::{
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    time::Duration,
};

use clap::{Args, ValueEnum};
use sheafio_core::CpuList;

use crate::{
    Error,
    cli::{Idle, duration},
};

/// Each flow sends a request, waits for the whole response, verifies every byte of it, and begins again.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct RrArgs {
    /// The server; name several to share the flows out among them
    #[arg(long, value_name = "HOST:PORT", required = true)]
    pub(crate) to: Vec<String>,

    /// Connections (UDP: sockets), 1 to 1048576
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) flows: u32,

    /// Bytes of a request, 1 to 1073741824 (UDP: to 3840)
    #[arg(long, value_name = "BYTES", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) size: u32,

    /// Bytes of a response, 1 to 1073741824 (UDP: to 3840) [default: as many as the request, which it repeats]. As
    /// sheafio echo --response-size sends it: the first 64 bytes of the request (or all, if it has fewer), over and over
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) response_size: Option<u32>,

    /// The protocol
    #[arg(long, value_enum, default_value = "tcp")]
    pub(crate) proto: Proto,

    /// How long requests are sent, once all flows are connected, such as 10s or 2min
    #[arg(long, value_name = "TIME", default_value = "10s", allow_hyphen_values = true, value_parser = duration)]
    pub(crate) duration: Duration,

    /// Transactions/s of all flows together, begun when they are due whether or not earlier ones are answered (open
    /// loop), 0.001 to 1e9 [default: each flow as fast as it is answered]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = rate)]
    pub(crate) rate: Option<f64>,

    /// A local address to send from; name several for more flows than one has ports
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) from: Vec<IpAddr>,

    /// CPUs of the client's threads, such as 1,3-5 [default: one, of another physical core than the one that sheafio echo
    /// picks, if there is]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) cores: Option<CpuList>,

    /// What a thread does while no response comes; it is awake before the next request is due
    #[arg(long, value_enum, default_value = "adaptive")]
    pub(crate) idle: Idle,

    /// Print one JSON object a line instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

const AFTER_HELP: &str = "\
Latency is counted from the time of sending, or with --rate from the time at which the transaction was due, so that
requests that wait behind a slow response count too (no coordinated omission). What has no answer 5 s after the end is
unfinished, and counts with what it has waited; over UDP a request is given up after 1 s, and counts with that. With
--rate all that was due counts, also what a dead flow did not answer or send; without, the request that a flow died of
does not.

Exit code: 0; 1 if anything went wrong: any of the errors below, or no transaction at all; 2 for bad input.

With --json, one object a second and a last one with \"final\": true:
  t_s               seconds since requests are sent (final: how long they were: less than --duration if it was stopped, or
                    no flow was left; 0 if it was stopped before)
  flows             those that are connected and well
  transactions      answered as a whole, and verified; total
  tps               transactions/s in this second (final: in t_s)
  latency_us        (final) p50, p99, p99_9, max, in microseconds, or null without a transaction; from: sent or due;
                    count: of how many transactions
  after_end         (final) transactions that were answered after the end; not among those above
  unsent            (final) with --rate: transactions that were due, and waited to the end for an earlier one of their
                    flow, or their flow was dead or never connected
  errors            (final) totals:
    connect           flows that could not be connected, by reason: {\"Connection refused\": 3}
    resets            flows that were reset
    closed            flows that the server ended
    failed            flows that ended by another error
    wrong_bytes       bytes that are not those of the response, or that nobody asked for; such a flow is ended
    timeouts          UDP: requests without an answer in 1 s, which is then not waited for
    unfinished        requests without an answer 5 s after the end, or when it was stopped meanwhile
  late              (final) UDP: answers that came after their time";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Proto {
    Tcp,
    Udp,
}

impl Proto {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| (0.001..=1e9).contains(rate));
    rate.ok_or_else(|| "allowed: transactions/s, a number from 0.001 to 1e9".to_owned())
}

impl RrArgs {
    /// Bytes of a response.
    pub(crate) fn response_bytes(&self) -> u32 {
        self.response_size.unwrap_or(self.size)
    }

    /// The servers' addresses. Of a name with several, the first one of the kind that --from has.
    pub(crate) fn targets(&self) -> Result<Vec<SocketAddr>, Error> {
        let kind = self.from.first().map(IpAddr::is_ipv4);
        if self.from.iter().any(|from| Some(from.is_ipv4()) != kind) {
            return Err("--from: some addresses are IPv4, some IPv6; allowed: one kind".into());
        }
        let mut targets = Vec::new();
        for to in &self.to {
            if !to.starts_with('[') && to.matches(':').count() > 1 {
                return Err(format!("--to {to}: an IPv6 address stands in brackets, for its last part could be a port; allowed: [fd00::2]:7").into());
            }
            let found = to.to_socket_addrs().map_err(|error| {
                format!("--to {to}: {error}; allowed: HOST:PORT, such as 10.0.0.2:7, [fd00::2]:7 or server:7")
            })?;
            let all: Vec<_> = found.filter(|address| address.port() != 0).collect();
            let target = all.iter().find(|address| kind.is_none_or(|is_ipv4| address.is_ipv4() == is_ipv4));
            match target {
                Some(target) => targets.push(*target),
                None if all.is_empty() => {
                    return Err(format!("--to {to}: port 0; allowed: 1 to 65535").into());
                }
                None => {
                    return Err(format!("--to {to}: {} is of another kind than --from", all[0].ip()).into());
                }
            }
        }
        Ok(targets)
    }

    /// Refuses what can't be had. `files`: the limit of open files.
    pub(crate) fn check(&self, files: u64, threads: usize) -> Result<(), Error> {
        /// Besides the flows: standard streams, rings, topology files.
        const OTHER_FILES: u64 = 64;
        let needed = u64::from(self.flows) + OTHER_FILES + threads as u64;
        if needed > files {
            return Err(format!(
                "--flows {}: that takes {needed} open files, and the limit is {files} (ulimit -n); allowed: {} or fewer. Raise \
                 the limit (ulimit -Hn {needed}, LimitNOFILE={needed}), or run several processes that share the flows",
                self.flows,
                files.saturating_sub(OTHER_FILES + threads as u64)
            )
            .into());
        }
        if threads > self.flows as usize {
            return Err(format!(
                "--cores: {threads} for {} flow(s); allowed: as many as flows, or fewer",
                self.flows
            )
            .into());
        }
        let largest = self.size.max(self.response_bytes());
        if self.proto == Proto::Udp && largest > super::MOST_DATAGRAM_BYTES {
            return Err(format!(
                "--proto udp: {largest} bytes; allowed: 1 to {} in a datagram",
                super::MOST_DATAGRAM_BYTES
            )
            .into());
        }
        Ok(())
    }
}
