//! `sheafio echo --stack user`: our own TCP/IP over AF_XDP ports.

use super::options::EchoArgs;
use crate::Error;

/// Runs until it is told to stop.
pub(crate) fn run(_args: EchoArgs) -> Result<bool, Error> {
    Err("echo: --stack user is not in this build; --stack kernel is".into())
}
