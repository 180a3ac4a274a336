//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use sheafio_core::{CpuList, IdlePolicy};
use sheafio_drivers::PortSpec;
use sheafio_mempool::{Burst, Hugepages};

use crate::{echo::EchoArgs, rr::RrArgs};

/// Poll-mode packet I/O on AF_XDP.
#[derive(Debug, Parser)]
#[command(name = "sheafio", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Forward packets between ports, as testpmd does
    Fwd(FwdArgs),
    /// Answer requests on TCP and UDP ports
    Echo(EchoArgs),
    /// Send requests to a server, over many connections at once, and measure how it answers
    Rr(RrArgs),
    /// Print how large pool and rings are for given ports, cores and frames, and open nothing
    #[command(after_help = PORT_KEYS)]
    Pool(SizeArgs),
}

/// What decides on the size of the pool.
#[derive(Clone, Debug, Args)]
pub(crate) struct SizeArgs {
    /// A port, KIND:NAME,key=value,...: eth0,queues=2  af_xdp:eth0,mode=generic  ring:a  null:0  sim:0,seed=7
    #[arg(short = 'p', long = "port", value_name = "PORT", required = true)]
    pub(crate) ports: Vec<PortSpec>,

    /// CPUs of the lcores, such as 1,3-5: queue i of each port is served by the i-th
    /// [default: physical cores, near the first port's device]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) cores: Option<CpuList>,

    /// Most packets in a burst, 1 to 256
    #[arg(long, value_name = "N", default_value_t = Burst::DEFAULT_LIMIT as u64,
          value_parser = clap::value_parser!(u64).range(1..=Burst::MAX as u64))]
    pub(crate) burst: u64,

    /// Frames of the pool, shared by all ports, up to 1073741824 [default: 16384, or the next power of two that is enough for
    /// the rings]; rings that are not given get as long as the frames allow
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = frames)]
    pub(crate) frames: Option<u64>,

    /// Bytes of a frame: 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 2048)]
    pub(crate) frame_size: u32,
}

/// Ports pair up in the order they are named: 0 with 1, 2 with 3; a last one alone with itself.
#[derive(Debug, Args)]
#[command(after_help = format!("{PORT_KEYS}\n\n{OUTPUT}"))]
pub(crate) struct FwdArgs {
    #[command(flatten)]
    pub(crate) size: SizeArgs,

    /// What to do with the packets
    #[arg(long, value_enum, default_value = "io")]
    pub(crate) mode: Mode,

    /// End after this time, such as 10s or 2min
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = duration)]
    pub(crate) duration: Option<Duration>,

    /// End after this many packets (received; with txonly, sent), shared among the lcores
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = packets)]
    pub(crate) packets: Option<u64>,

    /// Whether the pool lies on hugepages
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) hugepages: HugepagesArg,

    /// What an lcore does without packets
    #[arg(long, value_enum, default_value = "spin")]
    pub(crate) idle: Idle,

    /// Take other XDP programs off the interfaces
    #[arg(long)]
    pub(crate) force: bool,

    /// Print one JSON object a line instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Write the last JSON object to a file too
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

/// What a port may be called, and its options.
const PORT_KEYS: &str = "\
Keys of a PORT, with their defaults:
  eth0, af_xdp:eth0   queues=1 (or a list: 0-3+6, or all that it has: all), start=0 (with a number of queues),
                      mode=auto|native|generic, copy=auto|copy|zerocopy,
                      frags=auto|yes|no (packets in several frames; auto: if one of the MTU does not fit into one),
                      ring=2048 (slots of each ring, a power of two, 64 to 32768; fewer if the pool is small),
                      fill=N (frames kept ready for reception; as many as ring), force=no|yes,
                      busy_poll=no|PACKETS (the lcore's system calls run the driver, for up to 64 packets each),
                      metadata=no|yes (what the device knows of a packet comes with it, as far as its driver tells; a VLAN
                      tag that it took out of the packet is put back before the packet is sent),
                      promisc=auto|yes|no (take packets to others' addresses from the NIC too; auto: in modes io, mac,
                      macswap and rxonly),
                      steer=all|none|RULE+RULE (what is taken; all else goes on to the kernel): a RULE is one of
                      arp, ip, ip6, tcp, udp, sctp, icmp, icmp6, proto47 (an IP protocol), 0x88b5 (an ethertype),
                      with @ADDRESS or @ADDRESS/BITS and :PORT of the destination:
                      steer=arp+udp:7+tcp@[fd00::2]:80+udp@[fd00::/64]
  ring:a              size=1024 (slots, a power of two); name it twice for its two ends
  null:0              queues=1, len=64 (bytes, 14 to 1728)
  sim:0               queues=1, seed=1, packets=N (that arrive; endless), len=64 (bytes, from 60 on), ring=2048,
                      frags=no|yes (packets in several frames), fill=N, budget=32 (packets sent for one kick),
                      remove_at=N (packets, then the device vanishes),
                      faults=none|all|wakeup+late+reorder+full";

/// How `fwd` ends, and what it prints.
const OUTPUT: &str = "\
Exit code: 0; 1 if frames were lost in the end, the devices of all ports are gone, which ends the run, another program
took ours off a port, or the report could not be written at the end; 2 if it could not start.

With --json, one object a second and a last one with \"final\": true:
  t_s               seconds since the start
  ports[]           name; rx_packets, rx_bytes, tx_packets, tx_bytes: totals; rx_pps, tx_pps: packets/s
                    in this second (final: over the whole run); drops: totals by reason:
                      tx_full, tx_empty, device_gone   not sent: TX ring full, no bytes, device gone
                      tx_too_large, tx_no_end, tx_no_headroom   not sent: more frames than the port can, end of packet
                                                       missing, no room for requests (metadata=yes)
                      tx_unsent, tx_dropped, tx_invalid   given to the kernel and not sent: at close, dropped as the
                                                       device was not ready, refused (frames)
                      rx_no_frame, rx_ring_full, rx_too_large   lost by the kernel before they were received
                      rx_invalid, rx_unread            descriptor not in one frame, or twice; in the RX ring at close
                      not_for_us, malformed            icmpecho: no request in one frame, or damaged; malformed:
                                                       too short for the VLAN tag that is put back (metadata=yes)
  lcores[]          cpu; busy: part of the cycles in polls with work, 0 to 1; cycles_per_packet: busy
                    cycles of the time-stamp counter a packet; both in this second (final: whole run)
  ports[]           besides: by_queue: rx_packets, tx_packets and dropped (for any reason) of each queue;
                    held: frames in the port's rings and with the kernel, for each queue; of a
                    ring port, at its first end; program: of an AF_XDP port, what its XDP program did with the
                    packets that came to the interface:
                      redirected                       ours (steer=RULES), to the socket of its queue, or
                                                       dropped before as there was no frame (rx_no_frame)
                      not_bound                        ours, but its queue is not opened: to the kernel
                      passed, malformed                not ours: by the rules, by damaged headers: to the kernel
                    of an AF_XDP port too, in packets: wire_rx, wire_tx: came to its device and were sent by it, also by
                    others; device: what the device and its driver count that speaks of losses and is above 0, by
                    their own names; a packet can be among several of these, and among drops too
                    (of a device that is gone, as read last, and without what follows)
                    (final) unexplained_rx: wire_rx, less redirected, not_bound, passed and malformed ones, and redirected
                    ones, less received (rx_packets) and lost ones (rx_no_frame, rx_ring_full, rx_too_large, rx_invalid),
                    less what the device names of the rest; unexplained_tx: tx_packets that the device neither sent nor
                    names (while others send by it, losses can hide behind theirs)
  pool              frames: all = free + in_flight + retired, in frames;
                    free = barn + caches + lanes: whose sheaves they lie in; by_cache: each lcore's cpu, zone (NUMA),
                    frames, and counts as below, with those of the cache before it in its place;
                    in_flight = rings + application: with the ports, and in the lcores' hands;
                    retired: left with the kernel at close
                    (read one after the other: while packets flow, parts can differ by some bursts)
  pool.counts       totals of all lcores, in frames: taken, given; of these taken_slowly and given_slowly, which the
                    loaded sheaf had not enough frames or room for; barn_in, lane_in: came from barns and lanes into
                    caches; barn_out, lane_out: went there; foreign: freed on another NUMA node than theirs;
                    borrowed: taken from another node; retired. In times: barn_gets, barn_puts, lane_gets, lane_puts
                    (sheaves), barn_failures (nothing to get, or its locks held), flushes (sheaves given up because
                    another lcore had none), short (allocations that got less)
  unexplained       (final) packets received, less sent and dropped ones
  conserved         (final) whether every frame is home or retired";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Forward as it is
    Io,
    /// Forward with the MAC addresses of this hop
    Mac,
    /// Forward with source and destination MAC address swapped
    Macswap,
    /// Receive and count
    Rxonly,
    /// Send UDP packets of 64 bytes
    Txonly,
    /// Answer ARP requests and pings on the port they come from
    Icmpecho,
}

impl Mode {
    /// Whether it is for packets to whatever address. Else they are to the port's own or to everyone, or none comes.
    pub(crate) fn takes_others_packets(self) -> bool {
        match self {
            Self::Io | Self::Mac | Self::Macswap | Self::Rxonly => true,
            Self::Txonly | Self::Icmpecho => false,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum HugepagesArg {
    /// If there are any free
    Auto,
    /// Or don't start
    Require,
    /// No
    Off,
}

impl From<HugepagesArg> for Hugepages {
    fn from(arg: HugepagesArg) -> Self {
        match arg {
            HugepagesArg::Auto => Self::Auto,
            HugepagesArg::Require => Self::Require,
            HugepagesArg::Off => Self::Off,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Idle {
    /// Poll on
    Spin,
    /// Wait after 1000 empty polls until something comes: in poll(2), or for kernel sockets in io_uring_enter(2)
    Adaptive,
}

impl From<Idle> for IdlePolicy {
    fn from(idle: Idle) -> Self {
        match idle {
            Idle::Spin => Self::Spin,
            Idle::Adaptive => Self::Adaptive { empty_polls: Self::DEFAULT_EMPTY_POLLS },
        }
    }
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let allowed = "a time with its unit, such as 500ms, 10s or 2min, above 0";
    match humantime::parse_duration(text) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(format!("allowed: {allowed}")),
    }
}

pub(crate) fn frames(text: &str) -> Result<u64, String> {
    let frames = text.parse().ok().filter(|frames| (1..=1 << 30).contains(frames));
    frames.ok_or_else(|| "allowed: a whole number from 1 to 1073741824".to_owned())
}

fn packets(text: &str) -> Result<u64, String> {
    let packets = text.parse().ok().filter(|packets| *packets > 0);
    packets.ok_or_else(|| format!("allowed: a whole number from 1 to {}", u64::MAX))
}

/// clap's message without its line breaks, and without the usage that follows it.
pub(crate) fn in_one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.split("\n\nUsage:").next().unwrap_or_default();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    let line = line.replace("For more information, try '--help'.", "").trim().to_owned();
    let stop = if line.ends_with(['.', '?', '!']) { "" } else { "." };
    format!("{line}{stop} See: sheafio --help, sheafio COMMAND --help")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it_and_what_is_allowed() {
        for (args, named, allowed) in [
            (vec!["fwd"], "--port <PORT>", ""),
            (vec!["fwd", "-p", "x:y"], "unknown kind 'x'", "null:NAME"),
            (vec!["fwd", "-p", "null:0", "--mode", "fast"], "'fast'", "macswap"),
            (vec!["fwd", "-p", "null:0", "--cores", "z"], "'z'", "numbers and ranges"),
            (vec!["fwd", "-p", "null:0", "--duration", "soon"], "'soon'", "such as 500ms, 10s"),
            (vec!["fwd", "-p", "null:0", "--duration", "-1s"], "'-1s'", "such as 500ms, 10s"),
            (vec!["fwd", "-p", "null:0", "--duration", "0s"], "'0s'", "above 0"),
            (vec!["fwd", "-p", "null:0", "--cores", "-1"], "'-1'", "such as 1,3-5"),
            (vec!["fwd", "-p", "null:0", "--packets", "1k"], "'1k'", "a whole number from 1"),
            (vec!["fwd", "-p", "null:0", "--burst", "0"], "'0'", "1..=256"),
            (vec!["fwd", "-p", "null:0", "--packets", "0"], "'0'", "--packets <N>"),
            (vec!["fwd", "-p", "null:0", "--jsn"], "'--jsn'", "'--json'"),
            (vec!["pool", "-p", "null:0", "--frames", "many"], "'many'", "--frames <N>"),
            (vec!["fwd", "-p", "null:0", "--frames", "0"], "'0'", "from 1 to 1073741824"),
            (vec!["echo", "--frames", "1073741825"], "'1073741825'", "from 1 to 1073741824"),
            (vec!["pool", "-p", "null:0", "--mode", "io"], "'--mode'", ""),
            (vec!["forward"], "'forward'", ""),
        ] {
            let error = Cli::try_parse_from(std::iter::once("sheafio").chain(args)).unwrap_err();
            let line = in_one_line(&error);
            assert!(line.contains(named) && line.contains(allowed) && !line.contains('\n'), "{line}");
        }
    }
}
