//! The host's answers, by its public interface. Each answer is read by a parser that neither side was written with, and
//! each packet must be counted once (`oracle.rs`).

mod bench;
mod oracle;
mod packets;
mod play;

mod addressing;
mod arp;
mod hostile;
mod icmp;
mod ndisc;
mod speaking;
mod udp;
