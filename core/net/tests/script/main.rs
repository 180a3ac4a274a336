//! Our TCP against a peer that follows a script: packet by packet, in memory, with a clock that only the script moves.
//!
//! What kernels' suites of this kind look at (packetdrill, packetimpact) is looked at here by meaning. Packets are made
//! and read by etherparse, which has nothing in common with our code, and everything that the server sends is checked
//! against rules that hold in every script (`watch.rs`).
//!
//! ```text
//!  script --send(Segment)--> etherparse --bytes--> Tcp::receive
//!    |                                                  |
//!    +--expect(Segment)--- watch.rs <--- etherparse <--- Tcp::transmit
//! ```

mod client;
mod closing;
mod congestion;
mod cookies;
mod ending;
mod hoard;
mod limits;
mod opening;
mod paths;
mod peer;
mod play;
mod pool;
mod random;
mod receiving;
mod recovery;
mod resets;
mod segment;
mod service;
mod serving;
mod several;
mod timers;
mod timestamps;
mod waiting;
mod watch;
mod windows;
mod wire;
