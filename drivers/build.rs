//! Compiles the XDP program with clang; `program.rs` embeds the object.

use std::{env, path::PathBuf, process::Command};

fn main() {
    let source = "src/af_xdp/xdp.bpf.c";
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-env-changed=CLANG");
    let variable =
        |name| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for this build script"));
    let object = PathBuf::from(variable("OUT_DIR")).join("xdp.bpf.o");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    // -nostdinc: the program needs no header but bpf_helpers.h, which comes with libbpf-sys, so the
    // object is the same whatever kernel headers the machine has.
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", "-nostdinc"])
        .arg(format!("-I{}", variable("DEP_BPF_INCLUDE")))
        .arg(format!("-ffile-prefix-map={}=.", variable("CARGO_MANIFEST_DIR")))
        .args(["-c", source, "-o"])
        .arg(&object)
        .status()
        .unwrap_or_else(|error| {
            panic!("can't run {clang}: {error}. Install clang (Debian: apt-get install clang) or set CLANG.")
        });
    assert!(status.success(), "{clang} could not compile {source}");
}
