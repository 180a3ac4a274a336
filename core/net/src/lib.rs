//! What packets mean, for programs that answer them: headers, ARP and ND, ICMP, UDP, and the server side of TCP.
//!
//! Owns: the protocols' state, one block for each lcore, so that nothing here is shared or locked. Never does: receive or
//! send; frames are handed in and handed out, and time is handed in as well, so that a test can drive all of it.
//! Invariant: whatever the peer sends, nothing panics, and each packet that is not answered has a name and a count.
//!
//! It lies beside the core and not in it: rings, ports and poll loops know nothing of it.
#![forbid(unsafe_code)]

pub mod checksum;
mod counts;
pub mod headers;
pub mod host;
mod stack;
pub mod tcp;

pub use counts::{Count, Counts};
pub use headers::Headers;
pub use host::{Host, HostConfig, Verdict};
pub use stack::Stack;
