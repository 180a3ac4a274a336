//! A server of its own protocol on TCP: adds two numbers. Usage: tcp_sum INTERFACE PORT CPU
//!
//! ```text
//!   INTERFACE --rx--> TCP --8 bytes: two u32--> Sum --4 bytes: their sum--> TCP --tx--> INTERFACE
//! ```
//! The interface's addresses are the kernel's, and so is every other port of theirs.

use std::time::Instant;

use sheafio_core::{Lcore, Queue};
use sheafio_drivers::af_xdp::{self, Config};
use sheafio_mempool::{Burst, Mempool};
use sheafio_net::{
    Counts, Headers,
    tcp::{self, Input, Output, Server, Tcp},
};

struct Sum;

impl Server for Sum {
    type Session = ();

    fn serve(&mut self, (): &mut (), input: &mut Input<'_>, output: &mut Output<'_>) {
        let mut request = [0; 8];
        while output.room() >= 4 && input.read_exact(&mut request) {
            let [a, b] = [0, 4].map(|at| u32::from_be_bytes(request[at..at + 4].try_into().unwrap()));
            output.write(&a.wrapping_add(b).to_be_bytes());
        }
        if input.is_ended() {
            output.close();
        }
    }
}

fn main() {
    if let Err(error) = run() {
        eprintln!("tcp_sum: {error}");
        std::process::exit(2);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [interface, port, cpu] = args.as_slice() else {
        return Err("usage: tcp_sum INTERFACE PORT CPU".into());
    };
    let pool = Mempool::builder().frames(65_536).build()?;
    let config = Config { steer: format!("tcp:{port}").parse()?, ..Config::default() };
    let mut queue = af_xdp::open_with(interface, &config, pool)?.queue(0)?;
    let config = tcp::Config { ports: vec![port.parse()?], ..tcp::Config::default() };
    let counts = std::sync::Arc::new(Counts::default());
    let mut tcp = Tcp::new(config, Sum, counts.clone(), 2048, (57_000, 8_000), 0)?;
    let (mut rx, mut tx) = (Burst::with_limit(64), Burst::with_limit(256));
    let start = Instant::now();
    let mut cache = pool.cache()?;
    let report = Lcore::pin(cpu.parse()?)?.run_with(&mut cache, |cache| {
        let received = queue.rx_burst(cache, &mut rx);
        tcp.set_now(start.elapsed().as_micros() as u64);
        for frame in rx.iter() {
            if let Ok(headers) = Headers::read(frame) {
                tcp.receive(&headers, frame, cache, &mut tx);
            }
        }
        cache.free_burst(&mut rx);
        tcp.transmit(cache, &mut tx);
        queue.tx_burst(cache, &mut tx);
        received
    })?;
    for count in sheafio_net::Count::ALL {
        if counts.get(*count) > 0 {
            println!("{} {}", count.name(), counts.get(*count));
        }
    }
    println!("{} cycles/packet", report.totals.cycles_per_packet());
    cache.free_burst(&mut tx);
    tcp.release(&mut cache);
    queue.close(&mut cache);
    Ok(())
}
