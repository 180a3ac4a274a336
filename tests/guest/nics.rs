//! The guest's NICs, four of each driver, and the namespaces that they are put into for a test.
//!
//! ```text
//!   peer 10.0.0.1               under test                  peer 10.0.0.2
//!   | igb0 | ------------- | igb1 | fwd | igb2 | ------------- | igb3 |
//! ```

use std::{
    thread,
    time::{Duration, Instant},
};

use sheafio_tests::{Fwd, Netns, datagram, receive_numbers, socket, succeeds};

/// Addresses of the peers.
pub(crate) const LEFT: &str = "10.0.0.1";
pub(crate) const RIGHT: &str = "10.0.0.2";
/// The longest that a link may take to come up: far above what it takes.
const PATIENCE: Duration = Duration::from_mins(1);
/// Datagrams that are on their way at one time. Emulated NICs have short rings and slow ends.
const AT_ONCE: u32 = 16;
/// Bytes of them, unless one alone has more.
const BYTES_AT_ONCE: usize = 32_768;

/// Of 2048 bytes igb could use 1024 only, in zero-copy mode.
pub(crate) const FRAME_BYTES: &str = "4096";

/// Drivers of the guest's NICs, by the names of their interfaces.
pub(crate) const DRIVERS: [&str; 4] = ["igb", "virtio", "e1000e", "vmxnet"];

/// Whether this runs in the guest. If not, says so, and the test ends at once: there is no such NIC.
pub(crate) fn in_guest(test: &str) -> bool {
    let inside = std::env::var_os("SHEAFIO_GUEST").is_some();
    if !inside {
        // No failure where SHEAFIO_NO_SKIP is set: tests/guest/run is what must not be skipped.
        println!("skipped: {test}: not in the guest that tests/guest/run boots");
    }
    inside
}

/// The four NICs of a driver, in namespaces.
pub(crate) struct Nics {
    pub(crate) under_test: Netns,
    pub(crate) left: Netns,
    pub(crate) right: Netns,
    driver: &'static str,
    /// Another MTU than Ethernet's was set, and goes back with the NICs.
    has_other_mtu: bool,
}

impl Nics {
    /// Takes the NICs of a driver out of the initial namespace; they go back when this is dropped.
    pub(crate) fn new(driver: &'static str) -> Self {
        let nics = Self {
            under_test: Netns::new("fwd"),
            left: Netns::new("left"),
            right: Netns::new("right"),
            driver,
            has_other_mtu: false,
        };
        for number in 0..4 {
            let (netns, interface) = (nics.netns(number), nics.interface(number));
            sheafio_tests::run("ip", &["link", "set", &interface, "netns", &netns.name]);
        }
        for (number, address) in [(0, LEFT), (3, RIGHT)] {
            let (netns, interface) = (nics.netns(number), nics.interface(number));
            netns.ip(&["addr", "add", &format!("{address}/24"), "dev", &interface]);
        }
        // Some NICs have a queue for each CPU, and hash packets to them. Others have nothing to set.
        nics.queues(1);
        for number in 0..4 {
            nics.netns(number).ip(&["link", "set", &nics.interface(number), "up"]);
        }
        nics.wait_for_links();
        nics
    }

    /// The name of a NIC: 0 and 3 are the peers', 1 and 2 are under test.
    pub(crate) fn interface(&self, number: u32) -> String {
        format!("{}{number}", self.driver)
    }

    /// Sets the MTU of all four, which many drivers reset their NIC for.
    pub(crate) fn set_mtu(&mut self, mtu: &str) {
        self.has_other_mtu = true;
        for number in 0..4 {
            self.netns(number).ip(&["link", "set", &self.interface(number), "mtu", mtu]);
        }
        self.wait_for_links();
    }

    /// Tells the left peer that the right one's IP address is that of a NIC under test, so that it asks nobody.
    pub(crate) fn send_to_port(&self) {
        let neighbour = ["neigh", "replace", RIGHT, "lladdr", &self.mac(1), "dev", &self.interface(0)];
        self.left.ip(&[&neighbour[..], &["nud", "permanent"]].concat());
    }

    /// Sets how many queues the NICs under test have; returns whether they can have so many.
    pub(crate) fn queues(&self, queues: u32) -> bool {
        let queues = queues.to_string();
        let set = |number| {
            let interface = self.interface(number);
            let set = ["-L", interface.as_str(), "combined", &queues];
            // That it has so many already is an error to ethtool.
            self.under_test.succeeds("ethtool", &set) || {
                let text = self.under_test.run("ethtool", &["-l", &interface]);
                text.lines()
                    .rfind(|line| line.starts_with("Combined:"))
                    .is_some_and(|line| line.split_whitespace().last() == Some(queues.as_str()))
            }
        };
        // A driver without channels has one queue.
        let has_channels = self.under_test.succeeds("ethtool", &["-l", &self.interface(1)]);
        if has_channels { set(1) && set(2) } else { queues == "1" }
    }

    /// `sheafio fwd` over both NICs under test; `options` go to both ports. Waits until the links are
    /// up again: many drivers reset their NIC when it gets an XDP program or a zero-copy socket.
    pub(crate) fn forward(&self, options: &str, args: &[&str]) -> Fwd {
        self.forward_with(options, FRAME_BYTES, args)
    }

    /// The same with frames of so many bytes.
    pub(crate) fn forward_with(&self, options: &str, frame_bytes: &str, args: &[&str]) -> Fwd {
        let ports = [1, 2].map(|number| format!("{}{options}", self.interface(number)));
        let ports = ["-p", ports[0].as_str(), "-p", &ports[1], "--frame-size", frame_bytes];
        let fwd = Fwd::start(&self.under_test, &[&ports, args].concat());
        self.wait_for_links();
        fwd
    }

    /// `sheafio fwd` over the first NIC under test alone.
    pub(crate) fn serve(&self, options: &str, args: &[&str]) -> Fwd {
        let port = format!("{}{options}", self.interface(1));
        let ports = ["-p", port.as_str(), "--frame-size", FRAME_BYTES];
        let fwd = Fwd::start(&self.under_test, &[&ports, args].concat());
        self.wait_for_links();
        fwd
    }

    /// Waits until the links of all NICs are up.
    pub(crate) fn wait_for_links(&self) {
        let start = Instant::now();
        for number in 0..4 {
            let interface = self.interface(number);
            while !self.netns(number).ip(&["link", "show", "dev", &interface]).contains("LOWER_UP") {
                assert!(start.elapsed() < PATIENCE, "the link of {interface} did not come up");
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// The Ethernet address of a NIC.
    pub(crate) fn mac(&self, number: u32) -> String {
        let text = self.netns(number).ip(&["-j", "link", "show", "dev", &self.interface(number)]);
        let links: serde_json::Value = serde_json::from_str(&text).unwrap();
        links[0]["address"].as_str().unwrap().to_owned()
    }

    /// Packets that a NIC has received, as its driver counts them.
    pub(crate) fn received(&self, number: u32) -> u64 {
        self.count(number, "rx")
    }

    /// Packets that it has sent.
    pub(crate) fn sent(&self, number: u32) -> u64 {
        self.count(number, "tx")
    }

    fn count(&self, number: u32, direction: &str) -> u64 {
        let interface = self.interface(number);
        let text = self.netns(number).ip(&["-s", "-j", "link", "show", "dev", &interface]);
        let links: serde_json::Value = serde_json::from_str(&text).unwrap();
        links[0]["stats64"][direction]["packets"].as_u64().unwrap()
    }

    /// Waits for what must come; the guest's drivers count some time later.
    #[track_caller]
    pub(crate) fn wait_until(&self, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < PATIENCE, "{}: it did not come to that", self.driver);
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether the left peer's pings are answered; the first may be lost while a NIC comes up.
    pub(crate) fn pings(&self, count: u32) -> bool {
        let count = count.to_string();
        let start = Instant::now();
        while !self.left.succeeds("ping", &["-c", "1", "-W", "1", RIGHT]) {
            if start.elapsed() > PATIENCE {
                return false;
            }
        }
        self.left.succeeds("ping", &["-c", &count, "-i", "0.05", "-W", "5", RIGHT])
    }

    /// Sends `count` datagrams both ways, of every length up to an Ethernet packet's. All of them must arrive,
    /// whole.
    pub(crate) fn exchange(&self, count: u32) {
        let lens: Vec<_> = (0..count as usize).map(|number| 4 + number * 37 % 1469).collect();
        self.exchange_lens(&lens);
    }

    /// The same with datagrams of these lengths.
    pub(crate) fn exchange_lens(&self, lens: &[usize]) {
        self.try_exchange(lens).unwrap_or_else(|lost| panic!("{lost}"));
    }

    /// Whether packets that the peers have sent have not come to the NICs under test, and will not.
    pub(crate) fn has_lost_on_the_wire(&self) -> bool {
        let on_the_wire = || (self.sent(0) + self.sent(3), self.received(1) + self.received(2));
        let (sent, received) = on_the_wire();
        thread::sleep(Duration::from_secs(1));
        received < sent && on_the_wire() == (sent, received)
    }

    /// The same; tells if some did not arrive.
    pub(crate) fn try_exchange(&self, lens: &[usize]) -> Result<(), String> {
        let (left, right) = (socket(&self.left, LEFT), socket(&self.right, RIGHT));
        let (to_left, to_right) = (left.local_addr().unwrap(), right.local_addr().unwrap());
        let count = lens.len() as u32;
        let mut first = 0;
        while first < count {
            let mut bytes = 0;
            let fits = |number: &u32| {
                bytes += lens[*number as usize];
                *number == first || bytes <= BYTES_AT_ONCE
            };
            let numbers: Vec<u32> = (first..count.min(first + AT_ONCE)).take_while(fits).collect();
            for number in &numbers {
                let packet = datagram(*number, lens[*number as usize]);
                left.send_to(&packet, to_right).unwrap();
                right.send_to(&packet, to_left).unwrap();
            }
            for (socket, way) in [(&right, "to the right"), (&left, "to the left")] {
                let arrived = receive_numbers(socket, numbers.len());
                if arrived != numbers {
                    let lens = &lens[first as usize..][..numbers.len()];
                    return Err(format!(
                        "{} {way}: {arrived:?} arrived of {numbers:?}, datagrams of {lens:?} bytes",
                        self.driver
                    ));
                }
            }
            first += numbers.len() as u32;
        }
        Ok(())
    }

    /// The first line that `sheafio fwd` prints of a port: what it was opened as.
    pub(crate) fn opened(&self, options: &str) -> String {
        self.opened_with(options, FRAME_BYTES)
    }

    /// The same with frames of so many bytes.
    pub(crate) fn opened_with(&self, options: &str, frame_bytes: &str) -> String {
        let port = format!("{}{options}", self.interface(1));
        let program = sheafio_tests::sheafio();
        let args =
            ["fwd", "-p", &port, "--mode", "rxonly", "--duration", "100ms", "--frame-size", frame_bytes];
        let printed = self.under_test.run(program.to_str().expect("UTF-8"), &args);
        let line = printed.lines().find(|line| line.starts_with("port 0: "));
        line.unwrap_or_else(|| panic!("no port was told of: {printed}")).to_owned()
    }

    fn netns(&self, number: u32) -> &Netns {
        match number {
            0 => &self.left,
            3 => &self.right,
            _ => &self.under_test,
        }
    }
}

impl Drop for Nics {
    fn drop(&mut self) {
        for number in 0..4 {
            let (netns, interface) = (self.netns(number), self.interface(number));
            if self.has_other_mtu {
                netns.succeeds("ip", &["link", "set", &interface, "mtu", "1500"]);
            }
            // With the namespace it would come back too, but some time later. Process 1 is in the initial one.
            succeeds("ip", &["-n", &netns.name, "link", "set", &interface, "netns", "1"]);
        }
    }
}
