//! What the kernel's own tests of AF_XDP check, checked of a port by its public interface, on a veth, in native and in
//! generic mode.
//!
//! ```text
//!   peer                       under test
//!   | ve1, packet socket | --- | ve0, our port |
//! ```
//!
//! Ported by meaning from the list of the kernel's tools/testing/selftests/bpf: `traffic` has send and receive, single
//! packets, both directions, packets of several frames, headroom, poll(2), rings of all sizes, budgeted sends, `refused`
//! invalid packets and too many frames, `losses` the exact counts, `life` programs that come and go, teardown,
//! packets that the program passes, shared packet memory. Metadata is in `tests/metadata/`.
//!
//! Not ported, for there is nothing to port them to: adjusting a packet's tail (our program changes no packet),
//! unaligned frames (ours have a power of two of bytes, at multiples of it), and the exact count of descriptors that
//! the kernel finds invalid (`tx_invalid`): our interface can't write one, and `refused` checks that none is counted.

mod bench;
mod life;
mod losses;
mod refused;
mod traffic;

use sheafio_core::{DropReason, Queue};
use sheafio_drivers::af_xdp::{Config, Mode};
use sheafio_mempool::{Hugepages, Mempool, MempoolBuilder};
use sheafio_tests::{Netns, PacketSocket, Veth};

use bench::{Bench, PATIENCE, all, joined, numbers, packet, packets};

const MODES: [Mode; 2] = [Mode::Native, Mode::Generic];

/// Our end and the peer's.
struct Link {
    under_test: Netns,
    veth: Veth,
    peer: PacketSocket,
}

impl Link {
    fn new(mtu: u32) -> Self {
        Self::with_queues(mtu, 1)
    }

    fn with_queues(mtu: u32, queues: u32) -> Self {
        let under_test = Netns::new("self");
        let veth = Veth::new(&under_test, "ve0", "10.0.0.1", queues);
        let mtu = mtu.to_string();
        under_test.ip(&["link", "set", "ve0", "mtu", &mtu]);
        veth.peer.ip(&["link", "set", "ve1", "mtu", &mtu]);
        let peer = PacketSocket::new(&veth.peer, "ve1");
        Self { under_test, veth, peer }
    }

    /// All that the peer sends from now on goes through one of its two TX queues, and comes to our RX queue of that number.
    fn send_through(&self, queue: u32) {
        for other in 0..2 {
            let path = format!("/sys/class/net/ve1/queues/tx-{other}/xps_cpus");
            let mask = if other == queue { "3" } else { "0" };
            self.veth.peer.run("sh", &["-c", &format!("echo {mask} > {path}")]);
        }
    }

    /// Opens a port on `ve0`, works with it, closes it: every frame must be home then, or retired and counted.
    fn run(&self, config: &Config, pool: MempoolBuilder, work: impl FnOnce(&mut Bench<'_>) + Send) {
        self.under_test.enter(|| {
            let pool = pool.hugepages(Hugepages::Off).build().unwrap();
            let mut bench = Bench::open("ve0", config, pool, &self.peer);
            assert!(!bench.port.zero_copy());
            work(&mut bench);
            bench.close();
        });
    }
}

/// A pool of 1,024 frames.
fn pool() -> MempoolBuilder {
    Mempool::builder().frames(1024)
}

impl Bench<'_> {
    /// Packets dropped for one reason, with the kernel's latest counts. Closes the queue, for only then is all counted.
    fn drops(&mut self, reason: DropReason) -> u64 {
        self.queue.close(&mut self.cache);
        self.queue.counters().totals().drops(reason)
    }
}
