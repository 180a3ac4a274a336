//! The `sheafio` command. One file (or folder) for each subcommand: `fwd`, `echo`, `rr`, and `size` for `pool`; `uring` is
//! what `echo` and `rr` do their input and output with.

#![deny(unsafe_code)]

mod cli;
mod echo;
mod fwd;
mod rr;
mod size;
mod threads;
mod uring;

use std::process::ExitCode;

use clap::{Parser, error::ErrorKind};
use sheafio_core::Stop;

use crate::cli::{Cli, Command};

/// What could not be done as asked: bad input, or a machine that does not allow it.
type Error = Box<dyn std::error::Error>;

/// The exit code for what was asked wrongly or can't be had here.
const REFUSED: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(REFUSED);
        }
        Err(error) if error.use_stderr() => return refuse(&cli::in_one_line(&error)),
        Err(help) => {
            // Printed to a pipe that is closed, help has no reader to miss it.
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    let done = match cli.command {
        Command::Fwd(args) => fwd::run(args),
        Command::Echo(args) => echo::run(args),
        Command::Rr(args) => rr::run(&args),
        Command::Pool(args) => size::run(args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => refuse(&error.to_string()),
    }
}

fn refuse(problem: &str) -> ExitCode {
    eprintln!("sheafio: {problem}");
    ExitCode::from(REFUSED)
}

/// Raises the flag when it goes out of scope, also while unwinding: however a thread ends, the others end too.
struct RaiseWhenDropped(Stop);

impl Drop for RaiseWhenDropped {
    fn drop(&mut self) {
        self.0.raise();
    }
}
