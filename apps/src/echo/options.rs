//! What `sheafio echo` is asked for, for both of its stacks.
//!
//! Owns: the options, and what they mean alike in both: which bytes answer a request. Never does: open anything.
//! Invariant: [`EchoArgs::check`] refuses what only the other stack can do.

use std::{net::IpAddr, str::FromStr, time::Duration};

use clap::{Args, ValueEnum};
use sheafio_core::CpuList;
use sheafio_drivers::PortSpec;
use sheafio_net::Count;

use super::response::Responder;
use crate::{
    Error,
    cli::{HugepagesArg, Idle, duration, frames},
};

/// Bytes of a request that its response repeats, at most. So a server keeps that much of a request, whatever its size.
pub(crate) const REPEATED_BYTES: usize = 64;

/// Answers requests on TCP and UDP ports, each with its own bytes or with --response-size of them.
#[derive(Clone, Debug, Args)]
#[command(after_help = after_help())]
pub(crate) struct EchoArgs {
    /// Whose TCP/IP it is: our own over AF_XDP ports, or the kernel's, by io_uring
    #[arg(long, value_enum, default_value = "user")]
    pub(crate) stack: Stack,

    /// (stack user) A port, as of sheafio fwd: eth0,queues=2
    #[arg(short = 'p', long = "port", value_name = "PORT")]
    pub(crate) ports: Vec<PortSpec>,

    /// TCP ports, such as 7,12867
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = port)]
    pub(crate) tcp: Vec<u16>,

    /// UDP ports
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = port)]
    pub(crate) udp: Vec<u16>,

    /// (stack user) Answer pings too
    #[arg(long)]
    pub(crate) icmp: bool,

    /// Addresses: ADDRESS/BITS of our own (stack user; without BITS no other is in its network; default: the kernel's, shared
    /// with it), or an ADDRESS of the
    /// kernel's to listen on (stack kernel; default: all of them)
    #[arg(long = "ip", value_name = "ADDRESS")]
    pub(crate) addresses: Vec<IpSpec>,

    /// Answer each request with this many bytes instead of its own, 1 to 1073741824 (by UDP, as many as one datagram holds):
    /// its first 64 (or all, if it has fewer), over and over
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) response_size: Option<u32>,

    /// Bytes of a request on TCP, for --response-size, 1 to 1073741824 [default: whatever comes in one reception]
    #[arg(long, value_name = "BYTES", requires = "response_size",
          value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) request_size: Option<u32>,

    /// Most TCP connections at a time, 1 to 1048576; further ones are not answered (stack user) or closed at once (stack
    /// kernel). Stack user: rings hold a request of each, up to 16384 slots, where neither ring= nor --frames is given [default: 16384, or as many as --frames carry; stack kernel: or as the limit of open files allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) max_flows: Option<u32>,

    /// (stack user) Bytes of a TCP connection that may wait in each direction, 1 to 1048576, rounded up to whole frames: what a client may
    /// send ahead, and what it may leave unacknowledged [default: one frame]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) buffer: Option<u32>,

    /// (stack user) Ask a TCP client that has been silent for so long whether it is still there, five times in half as long
    /// again, and give it up if it does not answer; from 100ms on [default: 60s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = duration)]
    pub(crate) keepalive: Option<Duration>,

    /// CPUs of the lcores, such as 1,3-5 [default: one for each queue of a port; stack kernel: one]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) cores: Option<CpuList>,

    /// Frames of the pool, up to 1073741824 (stack kernel: from 64 for each lcore to 16777215) [default: as many as are
    /// enough, 16384 at least]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = frames)]
    pub(crate) frames: Option<u64>,

    /// Bytes of a frame: 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 2048)]
    pub(crate) frame_size: u32,

    /// Whether the pool lies on hugepages
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) hugepages: HugepagesArg,

    /// What an lcore does when nothing comes
    #[arg(long, value_enum, default_value = "spin")]
    pub(crate) idle: Idle,

    /// End after this time, such as 10s or 2min
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = duration)]
    pub(crate) duration: Option<Duration>,

    /// Print one JSON object a line instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// Columns of help that follows the options.
const HELP_COLUMNS: usize = 120;

/// What follows the options: what is done, printed and counted.
fn after_help() -> String {
    let mut text = AFTER_HELP.to_owned();
    text.push_str("\n\nCounts of stack user by their names, in packets unless it is said of what:\n");
    for count in Count::ALL {
        let mut line = format!("  {:<24}", count.name());
        for word in count.meaning().split_whitespace() {
            if line.chars().count() + 1 + word.chars().count() > HELP_COLUMNS {
                text.push_str(&line);
                line = format!("\n  {:<24}", "");
            }
            line.push(' ');
            line.push_str(word);
        }
        text.push_str(&line);
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text
}

/// The shortest time after which a silent client is asked: probes are a tenth of it apart, and timers tick each
/// millisecond.
const LEAST_KEEPALIVE: Duration = Duration::from_millis(100);

const AFTER_HELP: &str = "\
On TCP, bytes are echoed as they come. A client that does not read is not read from either: what waits for it stays
bounded, in frames of the pool. A client that has ended its sending direction gets the rest, then our end.
On Ctrl-C, SIGTERM or after --duration no connection is accepted any more, what was received is answered, and
connections are ended in an orderly way, within 2 seconds; what is left then is reset.

Stack user, without --ip: the addresses of the interface are shared with the kernel, and only packets to the named ports
come to us (IPv4 pings too, with --icmp): ARP, ND and every other port stay with it. With --ip the addresses are ours alone:
ARP, ND, pings (--icmp) and closed UDP ports are answered by us. Answers go to the MAC that asked, with its VLAN tags. A flow
stays on its RX queue, and each queue has an equal share of --max-flows; a flow may hold two frames of the pool, or as many as
--buffer takes in both directions. Packets are as large as the interface's MTU at the start and a frame allow. With several
queues, what comes of no known connection is not reset (tcp_other_queue): it may be another queue's.

Exit code: 0; 1 if frames were lost in the end, the devices of all ports are gone, another program took ours off a port, or
the kernel has no io_uring for us (stack kernel); 2 if it could not start as asked.

With --json (stack user), one object a second and a last one with \"final\": true:
  flows, half_open  TCP connections now, and those that are being opened
  tps               transactions/s in this second (final: over the whole run)
  transactions      total: requests answered as a whole (without --response-size: receptions), and datagrams answered
  cycles_per_transaction   of all lcores, in polls with work; 0 if there were no transactions
  rx_bytes, tx_bytes   totals, of payload
  counts            totals of what became of packets and connections, by name (see below)
  t_s, ports[], lcores[], pool   as of sheafio fwd
  conserved         (final) whether every frame is home or retired

With --json (stack kernel), one object a second and a last one with \"final\": true:
  t_s               seconds since the start
  flows             TCP connections now
  tps               transactions/s in this second (final: over the whole run)
  transactions      total: requests answered as a whole (without --response-size: receptions), and datagrams answered
  rx_bytes, tx_bytes   totals, of payload
  accepted, closed  connections, totals
  drops             totals by reason:
    flows_refused     connections closed at once, for --max-flows
    resets            connections that ended by a reset
    cut               connections that we reset, at the end, before their client had everything or ended them
    accept_errors, receive_errors, send_errors   other failures of the kernel's, such as no file left on the machine
    no_buffer         times that a reception or a response waited for a frame
    udp_too_large     datagrams that do not fit into a frame
    udp_loop          datagrams from a port whose service would answer the answer: one of ours, 7, 13, 17 or 19
    udp_group         datagrams to many: to a broadcast address or a multicast group
    udp_port_zero     datagrams from port 0, which want no answer
    udp_send_errors   answers that the kernel refused
  lcores[]          cpu; busy: part of the cycles in polls with work, 0 to 1; cycles_per_transaction
  pool              as of sheafio fwd; rings: receive buffers and frames that the kernel sends from
  conserved         (final) whether every frame is home or retired";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stack {
    /// Our own TCP/IP, over AF_XDP
    User,
    /// The kernel's, by io_uring
    Kernel,
}

/// An address, with the length of its network's prefix if one was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpSpec {
    pub(crate) address: IpAddr,
    pub(crate) prefix_bits: Option<u8>,
}

impl FromStr for IpSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = || "allowed: an IPv4 or IPv6 address, or ADDRESS/BITS, such as 10.0.0.2/24".to_owned();
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| allowed())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map(|bits| bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(allowed));
        Ok(Self { address, prefix_bits: bits.transpose()? })
    }
}

fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| "allowed: ports from 1 to 65535, one by one, such as 7,12867".to_owned())
}

impl EchoArgs {
    /// What is answered, if it is not the request itself.
    pub(crate) fn responder(&self) -> Option<Responder> {
        let response_bytes = self.response_size?;
        Some(Responder { response_bytes, request_bytes: self.request_size })
    }

    /// What is served, for people.
    pub(crate) fn services(&self) -> String {
        let list = |ports: &[u16]| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut services = Vec::new();
        for (name, ports) in [("tcp", &self.tcp), ("udp", &self.udp)] {
            if !ports.is_empty() {
                services.push(format!("{name} {}", list(ports)));
            }
        }
        if self.icmp {
            services.push("icmp".to_owned());
        }
        services.join(", ")
    }

    /// Refuses what the stack that was chosen can't do.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.tcp.is_empty() && self.udp.is_empty() && !self.icmp {
            let remedy = match self.stack {
                Stack::User if self.ports.is_empty() => {
                    "give -p INTERFACE, and --tcp PORTS, --udp PORTS or --icmp; or --stack kernel with --tcp or --udp"
                }
                Stack::User => "give --tcp PORTS, --udp PORTS or --icmp",
                Stack::Kernel => "give --tcp PORTS or --udp PORTS",
            };
            return Err(format!("echo: nothing to serve; {remedy}").into());
        }
        for (name, ports) in [("--tcp", &self.tcp), ("--udp", &self.udp)] {
            let mut sorted = ports.clone();
            sorted.sort_unstable();
            if let Some([twice, _]) = sorted.array_windows().find(|[one, next]| one == next) {
                return Err(format!("{name}: port {twice} is named twice").into());
            }
        }
        if let Some(keepalive) = self.keepalive.filter(|time| *time < LEAST_KEEPALIVE) {
            return Err(format!("--keepalive {keepalive:?}; allowed: {LEAST_KEEPALIVE:?} or more").into());
        }
        if let Some(port) = self.ports.iter().find(|port| port.has_steer()) {
            return Err(format!(
                "port '{port}': steer= is not possible with echo, which takes what --tcp, --udp, --icmp and --ip name; leave it out"
            )
            .into());
        }
        match self.stack {
            Stack::User if self.ports.is_empty() => {
                Err("echo: --stack user needs a port; give -p INTERFACE, or --stack kernel".into())
            }
            Stack::Kernel if !self.ports.is_empty() => Err(format!(
                "echo: -p {} is for --stack user; the kernel's sockets listen on its own addresses (--ip ADDRESS)",
                self.ports[0]
            )
            .into()),
            Stack::Kernel if self.icmp => {
                Err("echo: --icmp is for --stack user; with --stack kernel the kernel answers pings itself".into())
            }
            Stack::Kernel if self.buffer.is_some() || self.keepalive.is_some() => Err(format!(
                "echo: {} is for --stack user; the kernel's sockets have settings of their own ({})",
                if self.buffer.is_some() { "--buffer" } else { "--keepalive" },
                if self.buffer.is_some() { "net.ipv4.tcp_rmem and tcp_wmem" } else { "net.ipv4.tcp_keepalive_time" },
            )
            .into()),
            Stack::Kernel => match self.addresses.iter().find(|spec| spec.prefix_bits.is_some()) {
                Some(IpSpec { address, .. }) => Err(format!(
                    "echo: --ip {address}/...: with --stack kernel the network is the interface's; give --ip {address}"
                )
                .into()),
                None => Ok(()),
            },
            Stack::User => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_is_explained_in_help() {
        let text = after_help();
        for count in Count::ALL {
            let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{} ", count.name())));
            assert!(line.is_some_and(|line| line.len() > 30), "{count:?}");
        }
        let lines = text.lines().skip_while(|line| !line.starts_with("Counts of stack user")).skip(1);
        assert!(lines.clone().all(|line| line.chars().count() <= HELP_COLUMNS), "{text}");
        assert!(lines.count() >= Count::ALL.len());
    }

    #[test]
    fn addresses_are_read_with_and_without_prefix() {
        let read =
            |text: &str| text.parse::<IpSpec>().map(|spec| (spec.address.to_string(), spec.prefix_bits));
        assert_eq!(read("10.0.0.2/24"), Ok(("10.0.0.2".to_owned(), Some(24))));
        assert_eq!(read("fd00::2"), Ok(("fd00::2".to_owned(), None)));
        assert_eq!(read("fd00::2/128"), Ok(("fd00::2".to_owned(), Some(128))));
        for bad in ["10.0.0.2/33", "10.0.0", "fd00::2/129", "10.0.0.2/", ""] {
            assert!(read(bad).unwrap_err().contains("such as 10.0.0.2/24"), "{bad}");
        }
    }
}
