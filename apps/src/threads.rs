//! The threads that lcores and clients run on.
//!
//! Owns: how one is started, and how a start ends for which there are too few. Never does: run anything itself. Invariant:
//! after an error none of those that were started runs any more, and what they held is closed.

use std::{io, thread};

use sheafio_core::Stop;

use crate::Error;

/// Starts the thread of a command's `what` (such as lcore) on a CPU, and puts it to those that run. If the process may
/// have no more threads, ends those, which heed `stop`.
///
/// # Errors
/// One line that says what allows more threads.
pub(crate) fn start<T: Send + 'static>(
    (command, what): (&str, &str),
    cpu: u32,
    running: &mut Vec<thread::JoinHandle<T>>,
    stop: &Stop,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<(), Error> {
    match thread::Builder::new().name(format!("{what}-{cpu}")).spawn(body) {
        Ok(started) => running.push(started),
        Err(error) => {
            end_all(stop, running.drain(..));
            return Err(none(command, what, cpu, &error));
        }
    }
    Ok(())
}

/// Ends threads that heed `stop`, and waits until they have.
pub(crate) fn end_all<T>(stop: &Stop, running: impl IntoIterator<Item = thread::JoinHandle<T>>) {
    stop.raise();
    for thread in running {
        drop(thread.join());
    }
}

/// Says that there is no thread.
fn none(command: &str, what: &str, cpu: u32, error: &io::Error) -> Error {
    format!(
        "{command}: no thread for the {what} on CPU {cpu}: {error}. Each {what} takes one: allow more (ulimit -u, TasksMax= of \
         its unit, pids.max of its cgroup), or use fewer --cores"
    )
    .into()
}
