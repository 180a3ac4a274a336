//! The probes of `tests/probes`, built as the command is when it is released.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// Functions that a probe may call but never reaches in its steady state, by the start of their
/// names. They may lock: they exchange sheaves or panic.
/// `tests/disassembly` does not look into them; `tests/instructions.rs` checks that none runs.
pub const COLD: [&str; 5] = [
    // Sheaves are exchanged.
    "sheafio_mempool::refill::",
    // A frame that a zero-copy driver gives back once more.
    "sheafio_drivers::af_xdp::queue::held::",
    // Panics.
    "sheafio_mempool::cache::frame_of_another_pool",
    "core::panicking::",
    "core::slice::index::",
];

/// Builds the probes in the profile `release` and returns where they are.
///
/// # Panics
/// If they can't be built.
pub fn build_probes() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    // target/PROFILE/deps/TEST
    let target = test.ancestors().nth(3).expect("cargo runs tests in target/PROFILE/deps");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--locked", "--package", "sheafio-tests", "--bin", "probes"])
        .args(["--message-format", "json-render-diagnostics", "--target-dir"])
        .arg(target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "the probes can't be built");
    let messages = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    let built = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut paths = built.filter(|message| message["target"]["name"] == "probes");
    paths
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo says where it put the probes")
}
