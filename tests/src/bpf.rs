//! Small BPF programs of others, compiled for one test.

use std::{
    env, fs,
    path::PathBuf,
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::run;

/// An XDP program that passes everything on; called `pass_all`, in section `xdp`.
pub const PASS_ALL: &str = "__attribute__((section(\"xdp\"), used)) int pass_all(void *ctx) { return 2; }\n";

/// An object file, deleted when dropped.
#[derive(Debug)]
pub struct BpfObject(PathBuf);

impl BpfObject {
    /// Compiles a program in C, without a licence, with clang.
    ///
    /// # Panics
    /// If it can't.
    #[must_use]
    pub fn new(text: &str) -> Self {
        // Tests of one process run side by side.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let source = env::temp_dir().join(format!("sheafio-{}-{number}.c", process::id()));
        let licence = "char its_license[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";
        fs::write(&source, [text, licence].concat())
            .expect("the folder for temporary files can be written to");
        let object = Self(source.with_extension("o"));
        run(
            "clang",
            &["-O2", "-g", "-target", "bpf", "-c", source.to_str().expect("UTF-8"), "-o", object.path()],
        );
        fs::remove_file(&source).expect("it was written");
        object
    }

    /// Where it is.
    ///
    /// # Panics
    /// If that is not UTF-8.
    pub fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for BpfObject {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
