//! Runs a program as on a kernel that does not know `XDP_MAX_TX_SKB_BUDGET` (before Linux 6.17): setting it fails.
//!
//! Usage: no_budget PROGRAM ARGUMENTS...

use std::{
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use sheafio_tests::Refusal;

/// `XDP_MAX_TX_SKB_BUDGET` (linux/if_xdp.h).
const XDP_MAX_TX_SKB_BUDGET: u32 = 9;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(program) = args.next() else {
        eprintln!("usage: no_budget PROGRAM ARGUMENTS...");
        return ExitCode::from(2);
    };
    let refusal = Refusal {
        call: libc::SYS_setsockopt,
        arguments: &[(1, libc::SOL_XDP as u32), (2, XDP_MAX_TX_SKB_BUDGET)],
        error: libc::ENOPROTOOPT,
    };
    let error = refusal.refuse_to(Command::new(&program).args(args)).exec();
    eprintln!("no_budget: {}: {error}", program.display());
    ExitCode::FAILURE
}
