//! A shell beside this process that puts a setting of a device back when this process can't.
//!
//! Owns: the shell. Never does: touch a setting that has another value than ours. Invariant: it acts once, when this process
//! has ended or has called it.
//!
//! Nobody drops anything after SIGKILL, and a thread that has given up CAP_NET_ADMIN can't write to the setting. The shell
//! has the capabilities that exec(2) leaves it: all of root's, ambient ones, but not those of a file. It can't act when it
//! is killed along, with all of a control group or PID namespace.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::Instant,
};

use super::{GUARD_LIMIT, RETRY};
use crate::af_xdp::rights::others_may_administer;

/// Waits for a line, which says that all is well, or for the end of the process that would write it; then puts the value
/// before ($1) in the place of ours ($2), if that is still there. The setting is its standard output.
const SCRIPT: &str = r#"trap '' HUP INT TERM
read -r line && exit
read -r now < /proc/self/fd/1 && [ "$now" = "$2" ] && echo "$1""#;

/// The shell that waits.
#[derive(Debug)]
pub(super) struct Guard {
    shell: Child,
    /// It has nothing more to do.
    is_dismissed: bool,
}

impl Guard {
    /// Starts it for a setting, unless it could do nothing.
    pub(super) fn start(file: &File, before: &str, value: &str) -> io::Result<Self> {
        if !others_may_administer() {
            let why = "it would have no CAP_NET_ADMIN: capabilities of a file are not its children's, ambient ones are";
            return Err(io::Error::other(why));
        }
        Self::spawn(file, before, value)
    }

    /// Starts it whatever it may do, in a process group of its own: it is not meant by signals of a terminal to ours.
    pub(super) fn spawn(file: &File, before: &str, value: &str) -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", SCRIPT, "sheafio-busy-poll", before, value]);
        let shell = shell.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(Stdio::null());
        Ok(Self { shell: shell.process_group(0).spawn()?, is_dismissed: false })
    }

    /// Tells it that there is nothing to put back.
    pub(super) fn dismiss(mut self) -> Self {
        let told = self.shell.stdin.take().map(|mut stdin| stdin.write_all(b"\n"));
        self.is_dismissed = told.is_some_and(|told| told.is_ok());
        self
    }

    /// Makes it put the setting back now.
    pub(super) fn call(mut self) -> Self {
        self.shell.stdin = None;
        self
    }

    #[cfg(test)]
    pub(super) fn pid(&self) -> u32 {
        self.shell.id()
    }

    /// Waits until it has ended. When it was dismissed and takes longer, it is killed; else left to its work.
    pub(super) fn finish(mut self, end: Instant) {
        if !self.has_ended_by(end) && self.is_dismissed && self.shell.kill().is_ok() {
            self.has_ended_by(Instant::now() + GUARD_LIMIT);
        }
    }

    /// Also if someone else has waited for it, as a program may for all of its children.
    fn has_ended_by(&mut self, end: Instant) -> bool {
        while matches!(self.shell.try_wait(), Ok(None)) {
            if Instant::now() >= end {
                return false;
            }
            thread::sleep(RETRY);
        }
        true
    }
}
