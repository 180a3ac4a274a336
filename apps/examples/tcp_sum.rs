//! A server of its own protocol on TCP: adds two numbers. Usage: tcp_sum INTERFACE ADDRESS PORT CPU
//!
//! ```text
//!   INTERFACE --rx--> TCP --8 bytes: two u32--> Sum --4 bytes: their sum--> TCP --tx--> INTERFACE
//! ```
//! The address is the kernel's, and so is every other port of it.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use sheafio_core::{Lcore, Queue};
use sheafio_drivers::af_xdp::{self, Config};
use sheafio_mempool::{Burst, Mempool};
use sheafio_net::{
    Counts, Host, HostConfig, Stack,
    host::Address,
    tcp::{self, Input, Output, Server, Tcp},
};

struct Sum;

impl Server for Sum {
    type Session = ();

    fn serve(&mut self, (): &mut (), input: &mut Input<'_>, output: &mut Output<'_>) {
        let mut request = [0; 8];
        while output.room() >= 4 && input.read_exact(&mut request) {
            let number =
                |at| u32::from_be_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]]);
            output.write(&number(0).wrapping_add(number(4)).to_be_bytes());
        }
        // Half a request that nothing follows is none; but what has no room yet is served later.
        if input.is_last() && input.len() < 8 {
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
    let [interface, address, port, cpu] = args.as_slice() else {
        return Err("usage: tcp_sum INTERFACE ADDRESS PORT CPU".into());
    };
    let ip: IpAddr =
        address.parse().map_err(|_| format!("'{address}' is no IP address, such as 10.0.0.2"))?;
    let port: u16 = port.parse().map_err(|_| format!("'{port}' is no port, such as 7000"))?;
    let cpu = cpu.parse::<u32>().map_err(|_| format!("'{cpu}' is no CPU number, such as 1"))?;
    let pool = Mempool::builder().frames(65_536).build()?;
    let steer = format!("tcp@{}", SocketAddr::new(ip, port)).parse()?; // It puts an IPv6 address into brackets.
    let config = Config { steer, ..Config::default() };
    let mut device = af_xdp::open_with(interface, &config, pool)?;
    device.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
    let mut queue = device.queue(0)?;
    let counts = Arc::new(Counts::default());
    let host = HostConfig::shared(device.mac(), vec![Address::new(ip, if ip.is_ipv4() { 32 } else { 128 })?]);
    let config = tcp::Config { ports: vec![port], ..tcp::Config::default() };
    let tcp = Tcp::new(config, Sum, counts.clone(), pool.geometry().frame_bytes(), (57_000, 8_536), 0)?;
    let mut stack = Stack::new(Host::new(&host, counts), tcp);
    let (mut rx, mut tx) = (Burst::with_limit(64), Burst::with_limit(128));
    let start = Instant::now();
    let mut cache = pool.cache()?;
    println!("tcp_sum: adds numbers on {ip}, TCP port {port}, on CPU {cpu}, until Ctrl-C");
    Lcore::pin(cpu)?.run_with(&mut cache, |cache| {
        queue.rx_burst(cache, &mut rx);
        let work = stack.poll(start.elapsed().as_nanos() as u64, cache, &mut rx, &mut tx);
        queue.tx_burst(cache, &mut tx); // What the TX ring has no room for stays, and holds TCP back.
        work
    })?;
    queue.close(&mut cache);
    cache.free_burst(&mut tx);
    stack.release(&mut cache);
    println!("tcp_sum: {}", pool.census());
    Ok(())
}
