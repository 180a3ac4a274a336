//! Numbered datagrams between kernel peers: what arrives is checked to be whole, and to come once.

use std::{
    io,
    net::UdpSocket,
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use crate::Netns;

/// The longest that a packet may take: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(15);

/// A socket in a namespace, with room for every packet that a test sends before it reads.
///
/// # Panics
/// If the namespace has no such address.
#[must_use]
pub fn socket(netns: &Netns, address: &str) -> UdpSocket {
    netns.enter(|| {
        let socket = UdpSocket::bind((address, 0)).expect("the address is the peer's");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout above zero");
        set_receive_buffer(&socket, 8 << 20);
        socket
    })
}

pub(crate) fn set_receive_buffer(socket: &impl AsRawFd, bytes: i32) {
    let (fd, len) = (socket.as_raw_fd(), size_of::<i32>() as u32);
    // SAFETY: the kernel reads one i32.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (&raw const bytes).cast(), len) };
}

/// Receives a datagram; a socket with a time-out is interrupted when the process is stopped and goes on (signal(7)), as with
/// its whole machine, and is asked again.
///
/// # Errors
/// Those of recv(2), but for that.
pub fn recv(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.recv(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

/// A datagram that carries its number and a body that follows from it, of at least 4 bytes.
#[must_use]
pub fn datagram(number: u32, len: usize) -> Vec<u8> {
    let body = (number..).map(|word| (word.wrapping_mul(2_654_435_761) >> 24) as u8);
    number.to_be_bytes().into_iter().chain(body).take(len.max(4)).collect()
}

/// Receives until nothing comes for a while; each datagram must be whole. Returns the numbers in order.
///
/// # Panics
/// If a datagram is damaged.
#[must_use]
pub fn receive_numbers(socket: &UdpSocket, expected: usize) -> Vec<u32> {
    let (mut numbers, mut buffer) = (Vec::new(), vec![0; 65_536]);
    let start = Instant::now();
    while numbers.len() < expected && start.elapsed() < PATIENCE * 4 {
        let Ok(len) = recv(socket, &mut buffer) else { break };
        let number = u32::from_be_bytes(buffer[..4].try_into().expect("4 bytes"));
        assert_eq!(buffer[..len], datagram(number, len), "the content of datagram {number} changed");
        numbers.push(number);
    }
    numbers.sort_unstable();
    numbers
}
