//! Fuzzes a host: whatever bytes it is given, it does not panic, each packet has one name, and what it answers is right.
//!
//! What an input stands for is in `play.rs`, what is right in `oracle.rs`; both are those of the tests, which play the
//! corpus as well.
#![no_main]
#![forbid(unsafe_code)]

use std::cell::RefCell;

#[allow(dead_code, reason = "it does for the tests what fuzzing has no use for, as the next two")]
#[path = "../../tests/host/bench.rs"]
mod bench;
#[path = "../../tests/host/oracle.rs"]
mod oracle;
#[allow(dead_code, reason = "as bench")]
#[path = "../../tests/host/packets.rs"]
mod packets;
#[allow(dead_code, reason = "as bench")]
#[path = "../../tests/host/play.rs"]
mod play;

thread_local! {
    static BENCH: RefCell<bench::Bench> = RefCell::new(bench::Bench::own());
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| BENCH.with_borrow_mut(|bench| play::play(bench, input)));
