//! What a request and its response cost in TCP, without the rings: 64 bytes each way, connections in an order that says
//! nothing of where they lie in memory, on a clock that goes on, so that timers are due and move as they do on a wire.
//!
//! Left out: the driver, the kernel, and the peer, whose segments are written by a few stores into prepared packets. Their
//! cost is measured in the same loop without our TCP, and taken off.
//!
//! Usage: cargo bench --package sheafio-net [-- FLOWS ...]

use std::{sync::Arc, time::Instant};

use sheafio_mempool::{Burst, Hugepages, Mempool, PoolCache};
use sheafio_net::{
    Count, Counts, Headers,
    tcp::{Config, Input, Output, Server, Tcp},
};
use smoltcp::wire::{IpAddress, Ipv4Address, Ipv4Packet, TcpPacket};

const BURST: usize = 32;
const PORT: u16 = 7;
const PAYLOAD: usize = 64;
const TCP_AT: usize = 34;
const PAYLOAD_AT: usize = TCP_AT + 32;
/// Of our clock, a burst: some 6 million transactions a second.
const BURST_US: u64 = 5;

struct Echo;

impl Server for Echo {
    type Session = ();

    #[inline]
    fn serve(&mut self, (): &mut (), input: &mut Input<'_>, output: &mut Output<'_>) {
        let written = output.write(input.bytes());
        input.consume(written);
    }
}

/// A client's side of a connection.
#[derive(Clone)]
struct Client {
    packet: [u8; PAYLOAD_AT + PAYLOAD],
    seq: u32,
    ack: u32,
}

impl Client {
    fn new(number: u32) -> Self {
        let mut packet = [0; PAYLOAD_AT + PAYLOAD];
        packet[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        let mut ip = Ipv4Packet::new_unchecked(&mut packet[14..]);
        ip.set_version(4);
        ip.set_header_len(20);
        ip.set_total_len((20 + 32 + PAYLOAD) as u16);
        ip.set_hop_limit(64);
        ip.set_next_header(smoltcp::wire::IpProtocol::Tcp);
        ip.set_src_addr(Ipv4Address::from(0x0a00_0100 + number / 50_000));
        ip.set_dst_addr(Ipv4Address::new(10, 0, 0, 2));
        ip.fill_checksum();
        packet[TCP_AT..TCP_AT + 2].copy_from_slice(&((number % 50_000) as u16 + 1024).to_be_bytes());
        packet[TCP_AT + 2..TCP_AT + 4].copy_from_slice(&PORT.to_be_bytes());
        packet[TCP_AT + 12] = 0x80;
        packet[TCP_AT + 14..TCP_AT + 16].copy_from_slice(&[0xff, 0xff]);
        packet[TCP_AT + 20..TCP_AT + 24].copy_from_slice(&[1, 1, 8, 10]);
        Self { packet, seq: number.wrapping_mul(77_777), ack: 0 }
    }

    /// Its next segment, with the checksum that a kernel leaves to the device.
    #[inline]
    fn segment(&mut self, flags: u8, payload: usize) -> &[u8] {
        let packet = &mut self.packet;
        packet[16..18].copy_from_slice(&((20 + 32 + payload) as u16).to_be_bytes());
        packet[TCP_AT + 4..TCP_AT + 8].copy_from_slice(&self.seq.to_be_bytes());
        packet[TCP_AT + 8..TCP_AT + 12].copy_from_slice(&self.ack.to_be_bytes());
        packet[TCP_AT + 13] = flags;
        &packet[..PAYLOAD_AT + payload]
    }

    fn finish(&mut self, payload: usize) {
        let mut ip = Ipv4Packet::new_unchecked(&mut self.packet[14..PAYLOAD_AT + payload]);
        ip.fill_checksum();
        let (source, destination) = (IpAddress::Ipv4(ip.src_addr()), IpAddress::Ipv4(ip.dst_addr()));
        let mut tcp = TcpPacket::new_unchecked(ip.payload_mut());
        tcp.fill_checksum(&source, &destination);
    }
}

fn main() {
    let asked: Vec<u32> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let flows = if asked.is_empty() { vec![10, 100, 1_000, 10_000, 30_000] } else { asked };
    println!("{:>8} {:>14} {:>16} {:>14}", "flows", "ns a turn", "of it the peer", "bytes a flow");
    for flows in flows {
        measure(flows);
    }
}

fn measure(flows: u32) {
    let frames = (2 * flows + 8192).next_power_of_two();
    let pool = Mempool::builder().frames(u64::from(frames)).hugepages(Hugepages::Auto).build().unwrap();
    let mut cache = pool.cache().unwrap();
    let config = Config { ports: vec![PORT], max_flows: flows as usize, ..Config::default() };
    let bytes = config.bytes_a_flow::<()>(2048);
    let counts = Arc::new(Counts::default());
    let mut tcp = Tcp::new(config, Echo, counts.clone(), 2048, (u64::from(2 * flows), 0), 0).unwrap();
    let mut out = Burst::with_limit(BURST);
    let mut clients: Vec<Client> = (0..flows).map(Client::new).collect();
    for client in &mut clients {
        open(client, &mut tcp, &mut cache, &mut out);
    }
    assert_eq!(tcp.flows(), flows as usize);
    fastrand::Rng::with_seed(7).shuffle(&mut clients);
    let turns = 2_000_000 / flows.max(1) + 1;
    let mut now_us = 0;
    let ours = run(&mut clients, turns, |bursts, out| {
        now_us += BURST_US;
        tcp.set_now(now_us);
        let mut headers = [None; BURST];
        for (headers, packet) in headers.iter_mut().zip(bursts) {
            *headers = Headers::read(packet).ok();
        }
        let packets = headers.iter().flatten().zip(bursts.iter().map(Vec::as_slice));
        tcp.receive_burst(packets, &mut cache, out);
        tcp.transmit(&mut cache, out);
        let sent = out.len();
        assert_eq!(sent, bursts.len());
        cache.free_burst(out);
    });
    let peer = run(&mut clients, turns, |_, _| {});
    assert_eq!(
        counts.get(Count::BadChecksum) + counts.get(Count::OutOfWindow) + counts.get(Count::BadAck),
        0
    );
    println!("{flows:>8} {:>14.1} {peer:>16.1} {bytes:>14}", ours - peer);
    tcp.release(&mut cache);
}

fn open(client: &mut Client, tcp: &mut Tcp<Echo>, cache: &mut PoolCache, out: &mut Burst) {
    client.segment(0x02, 0);
    client.finish(0);
    let packet = &client.packet[..PAYLOAD_AT];
    tcp.receive(&Headers::read(packet).unwrap(), packet, cache, out);
    let answer = out.pop().expect("a SYN is answered");
    client.ack = u32::from_be_bytes(answer[TCP_AT + 4..TCP_AT + 8].try_into().unwrap()).wrapping_add(1);
    cache.free(answer);
    client.seq = client.seq.wrapping_add(1);
    client.segment(0x10, 0);
    client.finish(0);
    let packet = &client.packet[..PAYLOAD_AT];
    tcp.receive(&Headers::read(packet).unwrap(), packet, cache, out);
    // From here on the checksums are those that a kernel leaves to the device: the pseudo header's alone.
    client.segment(0x18, PAYLOAD);
    client.finish(PAYLOAD);
    let len = (32 + PAYLOAD) as u32;
    let words = client.packet[26..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let mut sum = words.sum::<u32>() + 6 + len;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    client.packet[TCP_AT + 16..TCP_AT + 18].copy_from_slice(&(sum as u16).to_be_bytes());
}

/// Nanoseconds for each packet.
fn run(clients: &mut [Client], turns: u32, mut each: impl FnMut(&[Vec<u8>], &mut Burst)) -> f64 {
    let mut out = Burst::with_limit(BURST);
    // Where the NIC would have put them: warm, as received packets are.
    let mut packets = vec![vec![0; PAYLOAD_AT + PAYLOAD]; BURST];
    let start = Instant::now();
    let mut count = 0_u64;
    for _ in 0..turns {
        for group in clients.chunks_mut(BURST) {
            for (client, packet) in group.iter_mut().zip(&mut packets) {
                packet.copy_from_slice(client.segment(0x18, PAYLOAD));
                client.seq = client.seq.wrapping_add(PAYLOAD as u32);
                client.ack = client.ack.wrapping_add(PAYLOAD as u32);
            }
            each(&packets[..group.len()], &mut out);
            count += group.len() as u64;
        }
    }
    start.elapsed().as_nanos() as f64 / count as f64
}
