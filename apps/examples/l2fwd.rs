//! Forwards packets between two interfaces and swaps their MAC addresses. Usage: l2fwd LEFT RIGHT CPU
//!
//! ```text
//!   LEFT  --rx--> swap MACs --tx-->  RIGHT
//!   LEFT  <--tx-- swap MACs <--rx--  RIGHT
//! ```

use sheafio_core::{Lcore, Queue};
use sheafio_drivers::af_xdp;
use sheafio_mempool::{Burst, Mempool, PoolCache};

fn main() {
    if let Err(error) = run() {
        eprintln!("l2fwd: {error}");
        std::process::exit(2);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [left, right, cpu] = args.as_slice() else { return Err("usage: l2fwd LEFT RIGHT CPU".into()) };
    let cpu = cpu.parse::<u32>().map_err(|_| format!("'{cpu}' is no CPU number, such as 1"))?;
    let pool = Mempool::builder().frames(16_384).build()?;
    let (mut left, mut right) = (af_xdp::open(left, pool)?, af_xdp::open(right, pool)?);
    left.warnings().iter().chain(right.warnings()).for_each(|warning| eprintln!("warning: {warning}"));
    let (mut left, mut right) = (left.queue(0)?, right.queue(0)?);
    let mut burst = Burst::new();
    println!("l2fwd: forwards on CPU {cpu} until Ctrl-C");
    Lcore::pin(cpu)?.run(pool, |cache| {
        forward(&mut left, &mut right, cache, &mut burst) + forward(&mut right, &mut left, cache, &mut burst)
    })?;
    for totals in [&left, &right].map(|queue| queue.counters().totals()) {
        println!("l2fwd: {} packets in, {} out", totals.rx_packets, totals.tx_packets);
    }
    drop((left, right)); // Closes them; then every frame is in the pool again, or said to be retired.
    println!("l2fwd: {}", pool.census());
    Ok(())
}

fn forward(from: &mut impl Queue, to: &mut impl Queue, cache: &mut PoolCache, burst: &mut Burst) -> usize {
    let received = from.rx_burst(cache, burst);
    for frame in burst.heads_mut() {
        frame[..12].rotate_left(6); // Received frames have at least an Ethernet header.
    }
    to.tx_or_drop(cache, burst); // TX ring full: the rest is dropped and counted.
    received
}
