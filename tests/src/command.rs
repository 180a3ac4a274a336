//! The `sheafio` command and the examples, as built beside the tests.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::Netns;

/// The longest that anything in a test may take: far above what it takes.
const PATIENCE: Duration = Duration::from_mins(2);

/// A file in the folder that cargo builds into.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder =
        test.parent().and_then(|deps| deps.parent()).expect("cargo runs tests in target/PROFILE/deps");
    let path = folder.join(name);
    assert!(path.exists(), "{} is not built; tests/run builds it first", path.display());
    path
}

/// The command under test.
pub fn sheafio() -> PathBuf {
    built("sheafio")
}

/// An example.
pub fn example(name: &str) -> PathBuf {
    built(&format!("examples/{name}"))
}

/// The state of a process or thread, by its folder in /proc: it follows the name, which ends with the last bracket (proc(5)).
fn state(folder: &Path) -> Option<char> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// A running `sheafio fwd --json`, or another program, in a namespace; ended when dropped.
#[derive(Debug)]
pub struct Fwd {
    child: Option<Child>,
    stdout: Reader,
    stderr: Reader,
}

/// What a program has printed so far, read as it comes.
#[derive(Debug)]
struct Reader {
    text: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Reader {
    fn new(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let to = text.clone();
        let thread = thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                match pipe.read(&mut buffer)? {
                    0 => return Ok(()),
                    len => to.lock().expect("no panic under this lock").extend(&buffer[..len]),
                }
            }
        });
        Self { text, thread: Some(thread) }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().expect("no panic under this lock")).into_owned()
    }

    /// All of it, once the program has ended.
    fn finish(&mut self) -> String {
        let thread = self.thread.take().expect("this is asked once");
        thread.join().expect("reads").expect("a pipe can be read");
        let text = std::mem::take(&mut *self.text.lock().expect("no panic under this lock"));
        String::from_utf8(text).expect("UTF-8")
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// What was printed on the standard output.
    pub stdout: String,
    /// What was printed on the standard error output.
    pub stderr: String,
    /// The JSON objects that were printed.
    pub lines: Vec<Value>,
}

impl Fwd {
    /// Starts `sheafio fwd --json` with more arguments and waits until it serves the interfaces that
    /// `-p` names.
    #[must_use]
    pub fn start(netns: &Netns, args: &[&str]) -> Self {
        let fwd = Self::start_program(netns, sheafio(), &[&["fwd", "--json"], args].concat());
        for (_, port) in args.iter().zip(&args[1..]).filter(|(flag, _)| **flag == "-p") {
            let interface = port.trim_start_matches("af_xdp:").split(',').next().unwrap_or_default();
            if !interface.contains(':') {
                fwd.wait_for_xdp(netns, interface);
            }
        }
        fwd
    }

    /// Starts a program without waiting.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start_program(netns: &Netns, program: PathBuf, args: &[&str]) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &netns.name]).arg(program).args(args);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::watch(command.spawn().expect("ip can be started"))
    }

    /// Waits until a text was printed on the standard error output so many times.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for_text(&self, text: &str, times: usize) {
        let start = Instant::now();
        while self.stderr.so_far().matches(text).count() < times {
            assert!(start.elapsed() < PATIENCE, "'{text}' did not come; but: {}", self.stderr.so_far());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until so many lines were printed on the standard output.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for_lines(&self, count: usize) {
        let start = Instant::now();
        while self.stdout.so_far().lines().count() < count {
            assert!(start.elapsed() < PATIENCE, "{count} lines did not come; but: {}", self.stderr.so_far());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until it prints a JSON object that is as asked for, and returns that.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for_object(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        let mut seen = 0;
        loop {
            let text = self.stdout.so_far();
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            let mut lines = text[seen..whole].lines().filter_map(|line| serde_json::from_str(line).ok());
            if let Some(line) = lines.find(&is_it) {
                return line;
            }
            assert!(start.elapsed() < PATIENCE, "{what} did not come; but: {}", &text[..whole]);
            seen = whole;
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Takes care of a program that was started with pipes for its output.
    pub(crate) fn watch(mut child: Child) -> Self {
        let stdout = Reader::new(child.stdout.take().expect("a pipe"));
        let stderr = Reader::new(child.stderr.take().expect("a pipe"));
        Self { child: Some(child), stdout, stderr }
    }

    /// Waits until an XDP program is on an interface, or this one has ended: what it had to do can be over before anybody
    /// has looked.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for_xdp(&self, netns: &Netns, interface: &str) {
        let start = Instant::now();
        while !netns.has_xdp(interface) && !self.has_ended() {
            assert!(start.elapsed() < PATIENCE, "no XDP program came to {interface}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether it has ended, and only waits to be waited for.
    fn has_ended(&self) -> bool {
        state(Path::new(&format!("/proc/{}", self.pid()))) == Some('Z')
    }

    /// The process's number: `ip netns exec` and setpriv(1) become the program that they start.
    ///
    /// # Panics
    /// If it was waited for already.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running program").id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        if let Some(child) = &self.child {
            // SAFETY: kill takes no pointer; the child is ours and not waited for yet.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
    }

    /// Stops it, and waits until each of its threads stands still.
    ///
    /// A signal reaches a thread only when that thread next comes into the kernel: one that polls on another CPU goes on
    /// for a while after kill returned.
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.pid());
        let stands = |task: &Path| matches!(state(task), Some('T' | 'X' | 'Z'));
        let deadline = Instant::now() + PATIENCE;
        while !fs::read_dir(&tasks).unwrap().all(|task| stands(&task.unwrap().path())) {
            assert!(Instant::now() < deadline, "the program does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it by SIGINT and waits for it.
    pub fn end(self) -> Ended {
        self.signal(libc::SIGINT);
        self.wait()
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait(mut self) -> Ended {
        let mut child = self.child.take().expect("a running program");
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("the child is ours") {
                break status;
            }
            if start.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the program under test did not end");
            }
            thread::sleep(Duration::from_millis(5));
        };
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        let lines = stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ended { code: status.code(), stdout, stderr, lines }
    }
}

impl Drop for Fwd {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Ended {
    /// The last object, of a run that ended well with every frame home and every packet explained.
    ///
    /// # Panics
    /// If it did not.
    pub fn assert_conserved(&self) -> &Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.assert_all_home()
    }

    /// The last object, with every frame home and every packet explained, whatever the exit code.
    ///
    /// # Panics
    /// If they are not.
    pub fn assert_all_home(&self) -> &Value {
        let last = self.lines.last().unwrap_or_else(|| panic!("nothing was printed: {self:?}"));
        assert_eq!(
            (&last["final"], &last["conserved"], &last["unexplained"]),
            (&true.into(), &true.into(), &0.into())
        );
        let pool = |key: &str| last["pool"][key].as_u64().expect("a number");
        assert_eq!(pool("free") + pool("in_flight") + pool("retired"), pool("frames"));
        assert_eq!(pool("in_flight"), 0);
        last
    }

    /// The one line of a run that was refused with exit code 2.
    ///
    /// # Panics
    /// If it was not.
    pub fn refusal(&self) -> String {
        assert_eq!(self.code, Some(2), "{self:?}");
        let errors: Vec<_> = self.stderr.lines().filter(|line| !line.starts_with("warning: ")).collect();
        assert_eq!(errors.len(), 1, "{}", self.stderr);
        errors[0].to_owned()
    }

    /// A number of a port in the last object.
    ///
    /// # Panics
    /// If there is none.
    pub fn port(&self, port: usize, key: &str) -> u64 {
        let last = self.lines.last().expect("something was printed");
        let port = &last["ports"][port];
        let value = port.get(key).unwrap_or(&port["drops"][key]);
        value.as_u64().unwrap_or_else(|| panic!("no number {key} in {port}"))
    }

    /// Frames that stayed with the kernel.
    ///
    /// # Panics
    /// If nothing was printed.
    pub fn retired(&self) -> u64 {
        self.lines.last().expect("something was printed")["pool"]["retired"].as_u64().expect("a number")
    }
}

/// Runs the command to its end.
///
/// # Panics
/// If it can't be started.
pub fn run_sheafio(args: &[&str]) -> Output {
    Command::new(sheafio()).args(args).stdin(Stdio::null()).output().expect("the command is built")
}

/// Starts `sheafio fwd` in a namespace, which must refuse with exit code 2 and one line; returns the line.
///
/// # Panics
/// If it does not.
pub fn refused(netns: &Netns, args: &[&str]) -> String {
    refused_by(netns, &[], args)
}

/// The same, by way of a command that starts it, such as setpriv(1).
///
/// # Panics
/// If it does not refuse.
pub fn refused_by(netns: &Netns, by: &[&str], args: &[&str]) -> String {
    let program = sheafio();
    let program = program.to_str().expect("the path is UTF-8");
    let words = [by, &[program, "fwd", "--json", "--duration", "5s"], args].concat();
    Fwd::start_program(netns, words[0].into(), &words[1..]).wait().refusal()
}

/// A copy of the command where every user may run it, deleted when dropped.
pub struct CommandCopy(PathBuf);

impl CommandCopy {
    /// A copy with this in its name.
    ///
    /// # Panics
    /// If it can't be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sheafio-{}-{name}", std::process::id()));
        fs::copy(sheafio(), &path).expect("the command can be copied");
        let all_may_run_it = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, all_may_run_it).expect("the copy is ours");
        Self(path)
    }

    /// Where it lies.
    ///
    /// # Panics
    /// If that is not UTF-8.
    #[must_use]
    pub fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for CommandCopy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
