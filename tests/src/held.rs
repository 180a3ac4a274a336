//! A client that writes and does not read, until it is held back; and what it reads then.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

/// Numbers from 0 on, over and over.
const PIECE: u8 = 251;

/// Writes the pattern until nothing is taken for half a second; returns how many bytes were.
///
/// # Panics
/// If it is not held back before a gigabyte, or the connection fails.
#[must_use]
pub fn write_until_held(stream: &mut TcpStream) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout above zero");
    let piece: Vec<u8> = (0..PIECE).collect();
    let mut written = 0_usize;
    loop {
        // Ever on in the same pattern, however much of it is taken.
        let at = written % piece.len();
        match stream.write(&piece[at..]) {
            Ok(count) => written += count,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                return written;
            }
        }
        assert!(written < 1 << 30, "nothing holds it back");
    }
}

/// Ends the writing, and reads to the end: so many bytes of the pattern, and no others.
///
/// # Panics
/// If others come.
pub fn read_what_was_held(stream: &mut TcpStream, written: usize) {
    stream.shutdown(Shutdown::Write).expect("it is connected");
    let mut came = Vec::new();
    stream.read_to_end(&mut came).expect("an orderly end");
    assert_eq!(came.len(), written);
    assert!(came.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % usize::from(PIECE)));
}
