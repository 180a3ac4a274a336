//! Forwards packets one way over two cores. Usage: pipeline LEFT RIGHT RX_CPU TX_CPU
//!
//! ```text
//!   LEFT --rx--> lcore on RX_CPU --ring--> lcore on TX_CPU --tx--> RIGHT
//!                       ^                         |
//!                       +---- lane: free frames --+
//! ```

use std::{error::Error, thread};

use sheafio_core::{CoreError, Lcore, Queue, QueueTotals, Stop};
use sheafio_drivers::{af_xdp, ring};
use sheafio_mempool::{Burst, Mempool, PoolCache};

fn main() {
    if let Err(error) = run() {
        eprintln!("pipeline: {error}");
        std::process::exit(2);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [left, right, rx_cpu, tx_cpu] = args.as_slice() else {
        return Err("usage: pipeline LEFT RIGHT RX_CPU TX_CPU".into());
    };
    let cpu = |text: &str| text.parse::<u32>().map_err(|_| format!("'{text}' is no CPU number, such as 1"));
    let (rx_cpu, tx_cpu) = (cpu(rx_cpu)?, cpu(tx_cpu)?);
    let pool = Mempool::builder().frames(16_384).build()?;
    let (mut left, mut right) = (af_xdp::open(left, pool)?, af_xdp::open(right, pool)?);
    left.warnings().iter().chain(right.warnings()).for_each(|warning| eprintln!("warning: {warning}"));
    let (left, right) = (left.queue(0)?, right.queue(0)?);
    let (sender, receiver) = ring::pair(pool, 4096);
    let (rx_cache, tx_cache) = (pool.cache_on(rx_cpu)?, pool.cache_on(tx_cpu)?);
    // What the one core receives, the other one frees: without a lane by way of the barn.
    pool.lane(tx_cache.id(), rx_cache.id())?;
    let stop = Stop::on_signals()?;
    thread::scope(|scope| {
        let sending = scope.spawn(|| forward(tx_cpu, &stop, tx_cache, receiver, right));
        let received = forward(rx_cpu, &stop, rx_cache, left, sender);
        let sent = sending.join().expect("no panic in the other lcore");
        println!("from LEFT to the ring: {}\nfrom the ring to RIGHT: {}", received?, sent?);
        println!("pipeline: {}", pool.census());
        Ok(())
    })
}

/// An lcore that moves packets from one queue to another until it is told to stop. Returns what it did.
fn forward(
    cpu: u32,
    stop: &Stop,
    mut cache: PoolCache,
    mut from: impl Queue,
    mut to: impl Queue,
) -> Result<String, CoreError> {
    let mut burst = Burst::new();
    let report = Lcore::pin(cpu).map(|lcore| lcore.stop_on(stop.clone())).and_then(|lcore| {
        lcore.run_with(&mut cache, |cache| {
            let received = from.rx_burst(cache, &mut burst);
            to.tx_or_drop(cache, &mut burst);
            received
        })
    });
    stop.raise(); // However this one ends, the other one ends too.
    from.close(&mut cache);
    to.close(&mut cache);
    let (totals, drops) = (report?.totals, [from.counters().totals(), to.counters().totals()]);
    let drops = drops.iter().flat_map(QueueTotals::all_drops);
    let drops: Vec<_> = drops.map(|(reason, count)| format!("{} {count}", reason.name())).collect();
    Ok(format!("{} packets; drops: {}", totals.packets, drops.join(", ")))
}
