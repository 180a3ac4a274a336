//! System calls that fail on purpose, by a seccomp filter, as they would on another machine.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    thread,
};

use crate::Fwd;

/// A system call that the kernel will refuse to a program under test.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// Its number.
    pub call: i64,
    /// Which of its uses: arguments by their places, 0 to 5, and what they must be (lower 32 bits).
    pub arguments: &'a [(u32, u32)],
    /// The error that it gets.
    pub error: i32,
}

impl Refusal<'_> {
    /// The filter (seccomp(2), linux/filter.h): allow, unless number and arguments are those.
    fn filter(&self) -> Vec<libc::sock_filter> {
        self.filter_with(libc::SECCOMP_RET_ERRNO | self.error as u32)
    }

    /// The same, with another answer to those.
    pub(crate) fn filter_with(&self, answer: u32) -> Vec<libc::sock_filter> {
        let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        // struct seccomp_data: the call's number at 0; the arguments, 8 bytes each, from 16 on.
        let checks = std::iter::once((0, self.call as u32));
        let checks = checks.chain(self.arguments.iter().map(|(place, value)| (16 + 8 * place, *value)));
        let checks: Vec<_> = checks.collect();
        let mut program = Vec::new();
        for (at, (offset, value)) in checks.iter().enumerate() {
            program.push(statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, *offset));
            // On a difference, over the rest of the checks and the refusal.
            let over = 2 * (checks.len() - at - 1) + 1;
            let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
            program.push(libc::sock_filter { code, jt: 0, jf: over as u8, k: *value });
        }
        program.push(statement(libc::BPF_RET | libc::BPF_K, answer));
        program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
        program
    }

    /// Starts `sheafio fwd --json` with more arguments in a namespace, without waiting; it finds the call refused.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start(&self, netns: &crate::Netns, args: &[&str]) -> Fwd {
        self.start_command(netns, &[&["fwd", "--json"], args].concat())
    }

    /// Starts `sheafio` with any subcommand, the same way.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start_command(&self, netns: &crate::Netns, words: &[&str]) -> Fwd {
        let program = crate::sheafio();
        self.start_program(netns, &[&[program.to_str().expect("the path is UTF-8")], words].concat())
    }

    /// Starts any program, by its words, the same way.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start_program(&self, netns: &crate::Netns, words: &[&str]) -> Fwd {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &netns.name]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Fwd::watch(self.refuse_to(&mut command).spawn().expect("ip can be started"))
    }

    /// Starts `sheafio` with any subcommand, the same way, by a program that is given its words; both have a soft and a hard
    /// limit of locked memory, in bytes, that was set before.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start_limited(&self, netns: &crate::Netns, limit: [u64; 2], by: &[&str], words: &[&str]) -> Fwd {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &netns.name]).args(by).arg(crate::sheafio()).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let limit = libc::rlimit { rlim_cur: limit[0], rlim_max: limit[1] };
        // SAFETY: between fork and exec this is one system call, on memory of its own.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        Fwd::watch(self.refuse_to(&mut command).spawn().expect("ip can be started"))
    }

    /// Makes the program that a command starts find the call refused; installing that takes root.
    pub fn refuse_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let mut filter = self.filter();
        // SAFETY: between fork and exec there is only one system call, on memory that was allocated before.
        unsafe { command.pre_exec(move || install(&mut filter)) }
    }

    /// Does some work on a thread of its own that finds the call refused; installing that takes root.
    ///
    /// # Panics
    /// If it can't be installed, or the work panics.
    pub fn refuse_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let refused = || {
            install(&mut self.filter()).expect("root may install a filter");
            work()
        };
        let done = thread::scope(|scope| scope.spawn(refused).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Installs a filter in the calling thread, for good.
fn install(filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid while the kernel copies it; root may install one.
    let done =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
