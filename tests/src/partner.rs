//! The link partner on xsk-rs, which is a package of its own with its own lock file.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Builds the partner of `tests/peers/xsk-rs/`, once a process, and returns where it is: that of `SHEAFIO_PARTNER`, where
/// that is set.
///
/// # Panics
/// If it can't be built.
pub fn partner() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> PathBuf {
    if let Some(partner) = std::env::var_os("SHEAFIO_PARTNER") {
        return partner.into();
    }
    let test = std::env::current_exe().expect("a test has a path");
    // target/PROFILE/deps/TEST
    let target = test.ancestors().nth(3).expect("cargo runs tests in target/PROFILE/deps").join("xsk-rs");
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/xsk-rs");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--locked", "--bin", "partner", "--target-dir"])
        .arg(&target)
        .current_dir(package)
        .output()
        .expect("cargo can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "the partner on xsk-rs can't be built (deploy/packages build tests): {errors}"
    );
    target.join("debug/partner")
}
