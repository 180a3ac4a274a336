//! What a TCP server can be told.

use std::fmt;

use sheafio_mempool::XDP_HEADROOM_BYTES;

use super::flow;
use crate::headers::{ETHERNET_BYTES, VLAN_TAG_BYTES};

/// How a [`Tcp`](super::Tcp) works. All times are in microseconds.
#[derive(Clone, Debug)]
pub struct Config {
    /// Ports that are listened on. Default: none.
    pub ports: Vec<u16>,
    /// The most connections at a time, 1 to 1,048,576. Default 16,384.
    pub max_flows: usize,
    /// The most connections that are half open at a time, up to 1,048,576; beyond them the oldest makes room, and its
    /// peer's answer is recognised by its cookie. 0 is a quarter of `max_flows`, but at least 1,024. Default 0.
    pub backlog: usize,
    /// Bytes that a peer may send before the server has consumed them, 1 to 1,048,576, rounded up to whole frames; they
    /// are taken from the pool only while they are needed. Default 2,048.
    pub receive_bytes: u32,
    /// Bytes that may be written before the peer has acknowledged them, likewise. Default 2,048.
    pub send_bytes: u32,
    /// Bytes of the largest IP packet, 576 to what a frame of the pool carries behind the kernel's headroom and the longest
    /// Ethernet header (278 bytes less than its size), 9,216 at most. Default 1,500.
    pub mtu: u16,
    /// Whether other servers have connections of the same addresses and ports, as those of a port's other queues do. Then a
    /// segment of no connection here may be of one there, brought by a packet hash that the peer or a switch has changed,
    /// and a reset would end that: nothing but a SYN is refused, the rest is counted ([`Count::OtherQueue`](crate::Count)).
    /// Default: no.
    pub is_one_of_several: bool,
    /// The shortest retransmission timeout. RFC 6298 has a second, Linux 200 ms; a peer may keep an acknowledgement back
    /// for 40 ms (Linux), and a shorter timeout repeats its last response. Default 50 ms.
    pub min_rto_us: u32,
    /// A connection that has heard nothing for so long is probed, every tenth of that time; 0 never does it. Default
    /// 60 s.
    pub keepalive_us: u64,
    /// After as long without progress a connection is given up (RFC 9293 section 3.8.3). Default 60 s.
    pub user_timeout_us: u64,
    /// How long a closed connection's name is kept from being used by old segments: twice the longest life of one.
    /// Default 60 s.
    pub time_wait_us: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            max_flows: 16_384,
            backlog: 0,
            receive_bytes: 2048,
            send_bytes: 2048,
            mtu: 1500,
            is_one_of_several: false,
            min_rto_us: 50_000,
            keepalive_us: 60_000_000,
            user_timeout_us: 60_000_000,
            time_wait_us: 60_000_000,
        }
    }
}

/// Why a configuration can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// A value is outside of what is allowed.
    Range {
        /// Which.
        what: &'static str,
        /// The value.
        asked: u64,
        /// The smallest allowed.
        min: u64,
        /// The largest allowed.
        max: u64,
    },
    /// The pool can't carry that many connections.
    Pool {
        /// Connections asked for.
        flows: u64,
        /// Frames that each of them may hold.
        frames_a_flow: u64,
        /// Frames that the pool has for them: all but those that were said to be needed elsewhere.
        frames: u64,
        /// Frames that are needed elsewhere, such as for the rings.
        reserved: u64,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { what, asked, min, max } => write!(f, "{what} {asked}; allowed: {min} to {max}"),
            Self::Pool { flows, frames_a_flow, frames, reserved } => write!(
                f,
                "{flows} flows may hold {} frames, {frames_a_flow} each, and the pool has {frames} for them besides \
                 {reserved} for the rings; allowed: up to {} flows. Use a pool of {} frames or more, or fewer flows",
                flows * frames_a_flow,
                frames / frames_a_flow,
                flows * frames_a_flow + reserved,
            ),
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// The least [`Config::mtu`] in bytes, which every IPv4 host takes (RFC 791).
    pub const LEAST_MTU: u16 = 576;

    /// The largest [`Config::mtu`] in bytes, for frames of so many bytes.
    pub fn largest_mtu(frame_bytes: u32) -> u16 {
        let beside_packet = u32::from(XDP_HEADROOM_BYTES) + (ETHERNET_BYTES + 2 * VLAN_TAG_BYTES) as u32;
        frame_bytes.saturating_sub(beside_packet).min(9216) as u16
    }

    /// Checks each value by itself, for frames of so many bytes.
    pub(super) fn check(&self, frame_bytes: u32) -> Result<(), ConfigError> {
        const MOST: u64 = 1 << 20;
        let (mtu_least, mtu_most) = (u64::from(Self::LEAST_MTU), u64::from(Self::largest_mtu(frame_bytes)));
        let ranges = [
            ("max_flows", self.max_flows as u64, 1, MOST),
            ("backlog", self.backlog as u64, 0, MOST),
            ("receive_bytes", u64::from(self.receive_bytes), 1, MOST),
            ("send_bytes", u64::from(self.send_bytes), 1, MOST),
            ("mtu", u64::from(self.mtu), mtu_least, mtu_most),
            ("min_rto_us", u64::from(self.min_rto_us), 1000, 60_000_000),
            ("time_wait_us", self.time_wait_us, 0, 600_000_000),
            ("user_timeout_us", self.user_timeout_us, 1_000_000, u64::MAX >> 8),
            ("keepalive_us", self.keepalive_us, 0, u64::MAX >> 8),
        ];
        for (what, asked, min, max) in ranges {
            if !(min..=max).contains(&asked) {
                return Err(ConfigError::Range { what, asked, min, max });
            }
        }
        Ok(())
    }

    /// Connections that may be half open.
    pub(super) fn half_open(&self) -> usize {
        if self.backlog == 0 { (self.max_flows / 4).max(1024) } else { self.backlog }
    }

    /// Frames of so many bytes that a flow may hold.
    pub fn frames_a_flow(&self, frame_bytes: u32) -> u64 {
        let (receive, send) = self.frames_each(frame_bytes);
        (receive + send) as u64
    }

    /// Frames that the receive and the send buffer of a flow may hold.
    pub(super) fn frames_each(&self, frame_bytes: u32) -> (usize, usize) {
        let frames = |bytes: u32| bytes.div_ceil(frame_bytes) as usize;
        (frames(self.receive_bytes), frames(self.send_bytes))
    }

    /// The most memory that a flow takes, in bytes: its state, its place in the tables, and its frames.
    pub fn bytes_a_flow<Session>(&self, frame_bytes: u32) -> usize {
        let (receive, send) = self.frames_each(frame_bytes);
        flow::bytes_without_frames::<Session>(receive + send) + (receive + send) * frame_bytes as usize
    }
}
