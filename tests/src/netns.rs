//! Network namespaces and veth pairs, by the `ip` command.

use std::{
    fs::File,
    io::Write,
    os::fd::AsRawFd,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

/// Runs a command that must succeed; returns what it printed.
///
/// # Panics
/// With the command's own error output, if it fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = output(program, args);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {}: {}{stdout}{stderr}", args.join(" "), output.status);
    stdout.into_owned()
}

/// Whether a command succeeds; what it prints is dropped.
pub fn succeeds(program: &str, args: &[&str]) -> bool {
    let status = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn output(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{program} can't be run: {error}"))
}

/// A network namespace, deleted when dropped.
#[derive(Debug)]
pub struct Netns {
    /// Its name for `ip netns`.
    pub name: String,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Netns {
    /// Makes a namespace without IPv6, so that only the test's own packets are about.
    #[must_use]
    pub fn new(role: &str) -> Self {
        Self::named(format!("sheafio-{}-{}-{role}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The same, by a name that nobody but this process makes.
    fn named(name: String) -> Self {
        clear_away(&name);
        run("ip", &["netns", "add", &name]);
        let netns = Self { name };
        netns.write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
        netns.write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        netns.ip(&["link", "set", "lo", "up"]);
        netns
    }

    /// Whether namespaces can be made here; tried once a process.
    pub(crate) fn can_be_made() -> bool {
        static MADE: OnceLock<bool> = OnceLock::new();
        *MADE.get_or_init(|| {
            let name = format!("sheafio-{}-probe", std::process::id());
            clear_away(&name);
            let made = succeeds("ip", &["netns", "add", &name]);
            succeeds("ip", &["netns", "del", &name]);
            made
        })
    }

    /// Runs `ip` on this namespace; it must succeed.
    pub fn ip(&self, args: &[&str]) -> String {
        run("ip", &[&["-n", self.name.as_str()], args].concat())
    }

    /// Runs a command in this namespace; it must succeed.
    pub fn run(&self, program: &str, args: &[&str]) -> String {
        run("ip", &[&["netns", "exec", self.name.as_str(), program], args].concat())
    }

    /// Whether a command succeeds in this namespace.
    pub fn succeeds(&self, program: &str, args: &[&str]) -> bool {
        succeeds("ip", &[&["netns", "exec", self.name.as_str(), program], args].concat())
    }

    /// Runs a function on a thread of its own in this namespace: its sockets live there.
    ///
    /// # Panics
    /// If the function does, or the namespace is gone.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = || {
                let file = File::open(format!("/run/netns/{}", self.name)).expect("the namespace has a file");
                // SAFETY: setns takes no pointer, and this thread is only for this function.
                assert_eq!(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
                work()
            };
            scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Whether an XDP program is attached to an interface.
    pub fn has_xdp(&self, interface: &str) -> bool {
        self.ip(&["-d", "link", "show", "dev", interface]).contains("prog/xdp")
    }

    /// A number of /proc/net/snmp or /proc/net/netstat, such as `Udp` `RcvbufErrors`.
    ///
    /// # Panics
    /// If there is no such number.
    pub fn snmp(&self, protocol: &str, name: &str) -> u64 {
        let text =
            self.enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp").expect("procfs is mounted"));
        let prefix = format!("{protocol}: ");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
        let at = names.split(' ').position(|found| found == name).expect("a known name");
        values.split(' ').nth(at).and_then(|value| value.parse().ok()).expect("a value for each name")
    }

    /// Lets an interface have IPv6, and gives it an address, which it has at once.
    pub fn add_ipv6(&self, interface: &str, address: &str) {
        self.write(&format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "0");
        self.ip(&["addr", "add", address, "dev", interface, "nodad"]);
    }

    /// All numbers that nstat(8) knows, by its names, such as `TcpInCsumErrors`.
    ///
    /// # Panics
    /// If it can't be run, or prints no JSON.
    pub fn nstat(&self) -> serde_json::Value {
        let text = self.run("nstat", &["--json", "--zeros", "--ignore", "--noupdate"]);
        let mut all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        all["kernel"].take()
    }

    fn write(&self, path: &str, value: &str) {
        let written = self.enter(|| File::create(path).and_then(|mut file| file.write_all(value.as_bytes())));
        written.unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        succeeds("ip", &["netns", "del", &self.name]);
    }
}

/// Deletes the namespace that a process with this one's number has left behind when it was killed: numbers come again,
/// after 32,768 processes on many machines.
fn clear_away(name: &str) {
    if Path::new("/run/netns").join(name).exists() {
        run("ip", &["netns", "del", name]);
    }
}

/// A kernel peer in a namespace of its own, with a veth to the namespace under test.
///
/// ```text
///   peer namespace              namespace under test
///   | ve1, ADDRESS/24 | ------- | INTERFACE, no address |
/// ```
#[derive(Debug)]
pub struct Veth {
    /// The kernel peer's namespace; its end is `ve1`.
    pub peer: Netns,
    /// The name of the end under test.
    pub interface: String,
}

impl Veth {
    /// Makes the pair, both ends up, with `queues` queues each. The peer computes full checksums.
    #[must_use]
    pub fn new(under_test: &Netns, interface: &str, address: &str, queues: u32) -> Self {
        let peer = Netns::new(&format!("peer-{interface}"));
        let queues = queues.to_string();
        let size = ["numrxqueues", &queues, "numtxqueues", &queues];
        let ours = ["link", "add", interface, "netns", &under_test.name];
        let theirs = ["type", "veth", "peer", "name", "ve1", "netns", &peer.name];
        run("ip", &[&ours[..], &size, &theirs, &size].concat());
        if queues != "1" {
            // A veth starts with one active queue.
            under_test.run("ethtool", &["-L", interface, "rx", &queues, "tx", &queues]);
            peer.run("ethtool", &["-L", "ve1", "rx", &queues, "tx", &queues]);
        }
        peer.ip(&["addr", "add", &format!("{address}/24"), "dev", "ve1"]);
        peer.ip(&["link", "set", "ve1", "up"]);
        under_test.ip(&["link", "set", interface, "up"]);
        peer.run("ethtool", &["-K", "ve1", "tx", "off"]);
        Self { peer, interface: interface.to_owned() }
    }

    /// Tells the peer which Ethernet address an IP address has, so that it need not ask.
    pub fn set_neighbour(&self, address: &str, mac: &str) {
        self.peer.ip(&["neigh", "replace", address, "lladdr", mac, "dev", "ve1", "nud", "permanent"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::can_make_networks;

    /// With all that is in it: nobody else makes such names.
    #[test]
    fn a_namespace_that_a_killed_process_left_behind_is_not_in_the_way() {
        if !can_make_networks("a_namespace_that_a_killed_process_left_behind_is_not_in_the_way") {
            return;
        }
        let name = format!("sheafio-{}-left", std::process::id());
        run("ip", &["netns", "add", &name]);
        run("ip", &["-n", &name, "link", "add", "ve0", "type", "veth", "peer", "name", "ve1"]);
        let netns = Netns::named(name);
        assert!(!netns.ip(&["link"]).contains("ve0"));
        let path = Path::new("/run/netns").join(&netns.name);
        assert!(path.exists());
        drop(netns);
        assert!(!path.exists());
    }
}
