//! `sheafio echo`: answers requests on TCP and UDP ports.
//!
//! ```text
//!   --stack user:    port -> queue i -> lcore i: our TCP/IP -> queue i -> port
//!   --stack kernel:  socket -> receive buffers -> lcore i -> the same frame is sent -> socket       (io_uring)
//! ```
//!
//! `options` says what is asked for, `user` and `kernel` are the two servers.

mod kernel;
mod options;
mod response;
mod user;

use self::options::Stack;
pub(crate) use self::{
    kernel::raise_file_limit,
    options::{EchoArgs, REPEATED_BYTES},
};
use crate::{Error, size};

/// Runs until it is told to stop. `Ok(true)` if every frame came home.
pub(crate) fn run(mut args: EchoArgs) -> Result<bool, Error> {
    args.check()?;
    size::look_up(&mut args.ports)?;
    match args.stack {
        Stack::User => user::run(&args),
        Stack::Kernel => kernel::run(&args),
    }
}
