//! Fuzzes a connection: whatever its peer sends, the rules of `watch.rs` hold, only one stream can arrive, and in the end
//! all goes through.
//!
//! What an input stands for is in `play.rs`; all of this is that of the scripts, which play the corpus as well.
#![no_main]
#![forbid(unsafe_code)]
#![allow(dead_code, reason = "the scripts use all of it; here only what an input can say is used")]

#[path = "../../tests/script/client.rs"]
mod client;
#[path = "../../tests/script/hoard.rs"]
mod hoard;
#[path = "../../tests/script/peer.rs"]
mod peer;
#[path = "../../tests/script/play.rs"]
mod play;
#[path = "../../tests/script/segment.rs"]
mod segment;
#[path = "../../tests/script/service.rs"]
mod service;
#[path = "../../tests/script/watch.rs"]
mod watch;

libfuzzer_sys::fuzz_target!(|input: &[u8]| play::play(input));
