//! Sends UDP packets back to where they came from. Usage: udp_echo INTERFACE CPU
//!
//! ```text
//!   INTERFACE --rx--> swap MACs, addresses, ports --tx--> INTERFACE
//! ```
//! It answers nothing else, so tell the peer our address: ip neigh add ADDR lladdr MAC dev IF

use sheafio_core::{Lcore, Queue};
use sheafio_drivers::af_xdp;
use sheafio_mempool::{Burst, Frame, Mempool};
use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, UdpPacket};

fn main() {
    if let Err(error) = run() {
        eprintln!("udp_echo: {error}");
        std::process::exit(2);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [interface, cpu] = args.as_slice() else { return Err("usage: udp_echo INTERFACE CPU".into()) };
    let cpu = cpu.parse::<u32>().map_err(|_| format!("'{cpu}' is no CPU number, such as 1"))?;
    let pool = Mempool::builder().build()?;
    let mut port = af_xdp::open(interface, pool)?;
    port.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
    let mut queue = port.queue(0)?;
    let mut burst = Burst::new();
    println!("udp_echo: answers each UDP packet that comes to {interface}, on CPU {cpu}, until Ctrl-C");
    Lcore::pin(cpu)?.run(pool, |cache| {
        let received = queue.rx_burst(cache, &mut burst);
        burst.retain_packets(cache, |packet| packet.len() == 1 && turn_round(&mut packet[0]).is_some());
        queue.tx_or_drop(cache, &mut burst);
        received
    })?;
    let totals = queue.counters().totals();
    println!("udp_echo: {} packets in, {} out", totals.rx_packets, totals.tx_packets);
    drop(queue); // Closes it; then every frame is in the pool again, or said to be retired.
    println!("udp_echo: {}", pool.census());
    Ok(())
}

/// `None` for what is not a whole UDP packet over IPv4.
fn turn_round(frame: &mut Frame) -> Option<()> {
    let mut ethernet = EthernetFrame::new_checked(&mut frame[..]).ok()?;
    let (from, to) = (ethernet.src_addr(), ethernet.dst_addr());
    ethernet.set_src_addr(to);
    ethernet.set_dst_addr(from);
    let is_ip = ethernet.ethertype() == EthernetProtocol::Ipv4;
    let mut ip = is_ip.then(|| Ipv4Packet::new_checked(ethernet.payload_mut()).ok())??;
    let (from, to) = (ip.src_addr(), ip.dst_addr());
    ip.set_src_addr(to);
    ip.set_dst_addr(from);
    let is_udp = ip.next_header() == IpProtocol::Udp && !ip.more_frags() && ip.frag_offset() == 0;
    let mut udp = is_udp.then(|| UdpPacket::new_checked(ip.payload_mut()).ok())??;
    let (from_port, to_port) = (udp.src_port(), udp.dst_port());
    udp.set_src_port(to_port);
    udp.set_dst_port(from_port);
    udp.fill_checksum(&to.into(), &from.into()); // In full: kernels on veth leave it half done.
    Some(())
}
