//! The data path: each lcore polls its queues, each with a stack of its own; and how that ends.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use sheafio_core::{Closed, CoreError, Lcore, LcoreCounters, Queue, Stop, close_ends};
use sheafio_mempool::{Burst, Mempool, PoolCache};
use sheafio_net::Stack;

use super::{plan::Plan, report::Watch, server::Echo};
use crate::{Error, RaiseWhenDropped, echo::EchoArgs, threads};

/// How long connections are given to end in an orderly way.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most packets of a burst in each direction.
const BURST: usize = super::plan::BURST as usize;

/// A queue with its stack.
pub(super) struct Service {
    queue: Box<dyn Queue>,
    stack: Stack<Echo>,
    rx: Burst,
    /// What the TX ring had no room for stays here, and holds TCP back.
    tx: Burst,
    flows: Arc<super::report::Gauges>,
}

impl Service {
    pub(super) fn new(queue: Box<dyn Queue>, stack: Stack<Echo>, flows: Arc<super::report::Gauges>) -> Self {
        Self { queue, stack, rx: Burst::with_limit(BURST), tx: Burst::with_limit(2 * BURST), flows }
    }

    #[inline]
    fn poll(&mut self, now_ns: u64, cache: &mut PoolCache) -> usize {
        self.queue.rx_burst(cache, &mut self.rx);
        let work = self.stack.poll(now_ns, cache, &mut self.rx, &mut self.tx);
        self.queue.tx_burst(cache, &mut self.tx);
        // Also without packets: time ends connections too.
        self.flows.set(self.stack.tcp());
        work
    }

    /// Whether nothing is left to be sent, and no connection is open.
    fn is_done(&mut self) -> bool {
        self.tx.is_empty() && self.stack.tcp().flows() == 0
    }

    /// Gives all frames back.
    fn close(mut self, cache: &mut PoolCache, end: Instant) -> Closed {
        self.flows.set(self.stack.tcp());
        let closed = self.queue.close_by(cache, end);
        cache.free_burst(&mut self.tx);
        self.stack.release(cache);
        closed
    }
}

/// A started lcore; it tells what became of the frames that its queues held.
pub(super) type Running = thread::JoinHandle<Result<Closed, CoreError>>;

/// Starts a thread for each lcore of the plan; ends those that run already if there can't be one more.
pub(super) fn start(
    plan: Plan,
    args: &EchoArgs,
    pool: &'static Mempool,
    ends_all: &Stop,
    watch: &mut Watch,
) -> Result<Vec<Running>, Error> {
    let mut running = Vec::new();
    for (cpu, services) in plan.lcores {
        let counters = Arc::<LcoreCounters>::default();
        watch.add_lcore(cpu, counters.clone(), services.iter().map(|service| service.flows.clone()));
        let (idle, duration, stop) = (args.idle.into(), args.duration, ends_all.clone());
        let body = move || {
            // However this lcore ends, by its duration, an error or a panic, the others end too.
            let _ends_all = RaiseWhenDropped(stop.clone());
            let mut lcore = Lcore::pin(cpu)?.idle(idle).stop_on(stop).count_into(counters);
            if let Some(duration) = duration {
                lcore = lcore.duration(duration);
            }
            serve(lcore, services, pool)
        };
        threads::start(("echo", "lcore"), cpu, &mut running, ends_all, body)?;
    }
    Ok(running)
}

/// The life of an lcore: serve, end the connections, close the queues.
fn serve(mut lcore: Lcore, mut services: Vec<Service>, pool: &'static Mempool) -> Result<Closed, CoreError> {
    lcore = lcore.serves(services.iter().map(|service| &*service.queue));
    let mut cache = pool.cache()?;
    let start = Instant::now();
    let now_ns = || start.elapsed().as_nanos() as u64;
    lcore.run_with(&mut cache, |cache| {
        let now_ns = now_ns();
        services.iter_mut().map(|service| service.poll(now_ns, cache)).sum()
    })?;
    end_flows(&mut services, now_ns, &mut cache);
    let ends = close_ends(services.len());
    Ok(services.into_iter().zip(ends).map(|(service, end)| service.close(&mut cache, end)).sum())
}

/// Ends our half of each connection and waits for the peers' for a while; then resets what is left.
fn end_flows(services: &mut [Service], now_ns: impl Fn() -> u64, cache: &mut PoolCache) {
    for service in &mut *services {
        service.stack.tcp().close(cache);
    }
    let end = Instant::now() + PATIENCE;
    while !services.iter_mut().all(Service::is_done) && Instant::now() < end {
        for service in &mut *services {
            service.poll(now_ns(), cache);
        }
    }
    let end = Instant::now() + PATIENCE / 4;
    for service in services {
        while !service.queue.is_gone() && Instant::now() < end {
            let is_over = service.stack.tcp().abort(cache, &mut service.tx);
            service.queue.tx_burst(cache, &mut service.tx);
            if is_over && service.tx.is_empty() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};
    use sheafio_drivers::ring;
    use sheafio_mempool::Hugepages;
    use sheafio_net::{
        Counts, Host, HostConfig,
        host::Address,
        tcp::{Config, Tcp},
    };
    use smoltcp::{
        phy::ChecksumCapabilities,
        wire::{
            EthernetAddress, EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr,
            TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
        },
    };

    use super::{
        super::{report::Gauges, server::Transactions},
        *,
    };

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn syn() -> Vec<u8> {
        let (remote, local) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let tcp = TcpRepr {
            src_port: 40_000,
            dst_port: 7,
            control: TcpControl::Syn,
            seq_number: TcpSeqNumber(1),
            ack_number: None,
            window_len: 1000,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let ip = Ipv4Repr {
            src_addr: remote,
            dst_addr: local,
            next_header: IpProtocol::Tcp,
            payload_len: tcp.buffer_len(),
            hop_limit: 64,
        };
        let mut packet = vec![0; 14 + ip.buffer_len() + tcp.buffer_len()];
        let mut ethernet = EthernetFrame::new_unchecked(&mut packet[..]);
        ethernet.set_dst_addr(EthernetAddress(MAC));
        ethernet.set_src_addr(EthernetAddress([2, 0, 0, 0, 0, 1]));
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let checksums = ChecksumCapabilities::default();
        ip.emit(&mut Ipv4Packet::new_unchecked(ethernet.payload_mut()), &checksums);
        let at = 14 + ip.buffer_len();
        let (remote, local) = (IpAddress::Ipv4(remote), IpAddress::Ipv4(local));
        tcp.emit(&mut TcpPacket::new_unchecked(&mut packet[at..]), &remote, &local, &checksums);
        packet
    }

    /// What is half open ends by time, in a poll without a packet; whoever reads the gauges sees it.
    #[test]
    fn the_gauges_follow_what_time_ends() {
        let pool = Mempool::builder().frames(256).hugepages(Hugepages::Off).build().unwrap();
        let mut cache = pool.cache().unwrap();
        let (mut peer, ours) = ring::pair(pool, 64);
        let args = EchoArgs::augment_args(Command::new("echo"));
        let args = args.try_get_matches_from(["echo", "-p", "lo", "--tcp", "7"]).unwrap();
        let args = EchoArgs::from_arg_matches(&args).unwrap();
        let counts = Arc::<Counts>::default();
        let transactions = Arc::<Transactions>::default();
        let config = Config { ports: vec![7], max_flows: 8, ..Config::default() };
        let echo = Echo::new(&args, transactions.clone());
        let tcp = Tcp::new(config, echo, counts.clone(), 2048, (64, 0), 0).unwrap();
        let host = HostConfig::shared(MAC, vec![Address::new([10, 0, 0, 2].into(), 24).unwrap()]);
        let stack = Stack::new(Host::new(&host, counts.clone()), tcp);
        let gauges = Arc::new(Gauges::new(counts, transactions));
        let mut service = Service::new(Box::new(ours), stack, gauges.clone());

        let mut burst = Burst::new();
        let mut frame = cache.alloc().unwrap();
        let packet = syn();
        frame.append(packet.len()).unwrap().copy_from_slice(&packet);
        burst.push(frame).unwrap();
        peer.tx_burst(&mut cache, &mut burst);
        service.poll(0, &mut cache);
        assert_eq!(gauges.half_open(), 1);
        // Our SYN is sent at these times, and given up behind the last one.
        for second in [1, 3, 7, 15] {
            assert_eq!(service.poll(second * 1_000_000_000 + 2_000_000, &mut cache), 1);
        }
        assert_eq!((gauges.half_open(), service.poll(31_002_000_000, &mut cache)), (1, 0));
        assert_eq!(gauges.half_open(), 0);

        service.close(&mut cache, Instant::now());
        Box::new(peer).close(&mut cache);
        drop(cache);
        assert_eq!(pool.census().free(), 256);
    }
}
