//! The n-th use of a system call that fails on purpose, where the ones before must not: each is looked at, by
//! seccomp's notifications (seccomp_unotify(2), Linux 5.5).

use std::{
    fs::File,
    io, mem,
    os::fd::{AsRawFd, FromRawFd},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use crate::{Fwd, Netns, Refusal};

/// Whose uses of the call count; those of others go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The threads of this process.
    Ours,
    /// Programs that were started by it.
    Theirs,
}

impl Refusal<'_> {
    /// Does some work on a thread of its own that finds only the n-th use of the call refused, from 0 on; returns what
    /// the work does, and whether it came to that use. Installing that takes root.
    ///
    /// # Panics
    /// If it can't be installed, or the work panics.
    pub fn refuse_nth_in<T: Send>(&self, nth: usize, work: impl FnOnce() -> T + Send) -> (T, bool) {
        let (done, seen) = self.with_nth(nth, Whose::Ours, work);
        (done, seen.load(Ordering::Relaxed) > nth)
    }

    /// Starts `sheafio` in a namespace, without waiting; it finds only the n-th use of the call refused, from 0 on.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start_nth(&self, nth: usize, netns: &Netns, words: &[&str]) -> Fwd {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &netns.name]).arg(crate::sheafio()).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The threads that read what it prints are started by one without a filter.
        let (child, _) = self.with_nth(nth, Whose::Theirs, move || command.spawn());
        Fwd::watch(child.expect("ip can be started"))
    }

    /// Does some work under the filter; returns how many uses were seen by then, and are later.
    ///
    /// # Panics
    /// If handing over to who answers would ask them: nobody listens yet.
    fn with_nth<T: Send>(
        &self,
        nth: usize,
        whose: Whose,
        work: impl FnOnce() -> T + Send,
    ) -> (T, Arc<AtomicUsize>) {
        let handing_over =
            [libc::SYS_futex, libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_brk];
        assert!(!handing_over.contains(&self.call), "call {} of all would wait for an answer", self.call);
        let seen = Arc::<AtomicUsize>::default();
        let (to_judge, listener) = mpsc::channel();
        let (error, counter) = (self.error, seen.clone());
        // Ends when nobody is left whom the filter concerns.
        thread::spawn(move || {
            if let Ok(listener) = listener.recv() {
                judge(&listener, error, nth, whose, &counter);
            }
        });
        let watched = || {
            to_judge.send(listen(self).expect("root may install a filter")).expect("the judge waits");
            work()
        };
        let done = thread::scope(|scope| scope.spawn(watched).join());
        (done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), seen)
    }
}

/// Installs a filter in the calling thread, for good, which asks the returned listener at each use of the call.
fn listen(refusal: &Refusal<'_>) -> io::Result<File> {
    let mut filter = refusal.filter_with(libc::SECCOMP_RET_USER_NOTIF);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    // SAFETY: the program is valid while the kernel copies it.
    let fd = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

/// Answers until the filter concerns nobody any more.
fn judge(listener: &File, error: i32, nth: usize, whose: Whose, seen: &AtomicUsize) {
    loop {
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd is given; all zeroes is a valid seccomp_notif, as which the kernel wants it.
        let mut asked: libc::seccomp_notif = unsafe {
            libc::poll(&raw mut poll, 1, -1);
            mem::zeroed()
        };
        if poll.revents & libc::POLLHUP != 0 {
            return;
        }
        if poll.revents & libc::POLLIN == 0 {
            continue; // A signal: receiving would wait without an end.
        }
        // SAFETY: the kernel writes one seccomp_notif.
        if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) } < 0 {
            continue; // Whoever asked has been killed.
        }
        let is_ours = Path::new(&format!("/proc/self/task/{}", asked.pid)).exists();
        let counts = is_ours == (whose == Whose::Ours);
        // Relaxed: whoever reads it knows by other means that the use is over.
        let is_refused = counts && seen.fetch_add(1, Ordering::Relaxed) == nth;
        let (error, flags) =
            if is_refused { (-error, 0) } else { (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32) };
        let answer = libc::seccomp_notif_resp { id: asked.id, val: 0, error, flags };
        // SAFETY: the kernel reads one seccomp_notif_resp. That whoever asked is gone by now is no error.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "would wait for an answer")]
    fn a_call_that_hands_the_listener_over_is_not_refused() {
        Refusal { call: libc::SYS_futex, arguments: &[], error: libc::EAGAIN }.refuse_nth_in(0, || ());
    }
}
