//! What a kernel and its drivers offer to AF_XDP: a row of the table that README.md shows, for each driver.
//!
//! Modes are what `sheafio fwd` opens or refuses; the rest is asked of the kernel by a socket of its own, for it is more
//! than the command uses.

use std::{
    ffi::CString,
    fs::OpenOptions,
    io::{self, Write},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr, thread,
    time::{Duration, Instant},
};

use sheafio_drivers::af_xdp::Netdev;
use sheafio_tests::{Fwd, sheafio};

use crate::nics::{DRIVERS, FRAME_BYTES as FRAME_SIZE, Nics, in_guest};

/// linux/if_xdp.h, newer than the C library's.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;
/// Bytes of `struct xsk_tx_metadata`.
const TX_METADATA_BYTES: u32 = 24;
const FRAME_BYTES: u32 = 4096;
const MEMORY_BYTES: usize = 4 * FRAME_BYTES as usize;
const SLOTS: u32 = 64;
/// How long a queue may stay busy.
const PATIENCE: Duration = Duration::from_mins(1);

#[test]
fn features_of_each_driver_are_found_or_named() {
    if !in_guest("features_of_each_driver_are_found_or_named") {
        return;
    }
    let kernel = std::env::var("SHEAFIO_GUEST").expect("tests/guest/run sets it");
    let kernel = kernel.split('.').take(2).collect::<Vec<_>>().join(".");
    let mut rows = Vec::new();
    for driver in DRIVERS {
        let nics = Nics::new(driver);
        let interface = nics.interface(1);
        let netdev = nics.under_test.enter(|| Netdev::of(&interface));
        let opens = |options, name| opens(&nics, options, name);
        let native = opens(",mode=native,copy=copy", "native copy");
        let generic = opens(",mode=generic", "generic copy");
        let copy = opens(",copy=copy", " copy");
        let zero_copy = opens(",copy=zerocopy", "native zero-copy");
        assert!(generic && copy, "{kernel} {driver}: any device can do that");
        if let Some(netdev) = &netdev {
            assert_eq!(
                (native, zero_copy),
                (netdev.has_native(), netdev.has_zero_copy()),
                "{kernel} {driver}: {netdev:?}"
            );
        }
        let bind =
            |flags: u16, tx_metadata| nics.under_test.enter(|| Probe::bind(&interface, flags, tx_metadata));
        // Each socket is closed before the next one is bound.
        let binds = |flags, tx_metadata| bind(flags, tx_metadata).is_ok();
        let (copied, direct) = (libc::XDP_COPY, libc::XDP_ZEROCOPY);
        let takes_tx_budget =
            bind(copied, 0).expect("any device can be bound in copy mode").takes_tx_budget();
        let list = |names: Option<Vec<&str>>| match names {
            Some(names) if !names.is_empty() => names.join(", "),
            _ => "no".to_owned(),
        };
        let tx_metadata = if binds(copied, TX_METADATA_BYTES) {
            let offloads = netdev.as_ref().and_then(Netdev::tx_offloads).unwrap_or_default();
            [vec!["in software"], offloads].concat().join(", ")
        } else {
            "no".to_owned()
        };
        let segments = match (&netdev, binds(direct | libc::XDP_USE_SG, 0)) {
            (Some(netdev), true) => format!("{} frames", netdev.zero_copy_frames()),
            _ => "no".to_owned(),
        };
        // As the head of the table in tests/guest/run has them.
        let row = [
            kernel.clone(),
            if driver == "virtio" { "virtio-net".to_owned() } else { driver.replace("vmxnet", "vmxnet3") },
            yes(native),
            yes(generic),
            yes(copy),
            yes(zero_copy),
            yes(binds(copied | libc::XDP_USE_NEED_WAKEUP, 0)),
            yes(binds(copied | libc::XDP_USE_SG, 0)),
            segments,
            yes(takes_tx_budget),
            tx_metadata,
            list(netdev.and_then(|netdev| netdev.rx_metadata())),
        ];
        rows.push(row.join(" | "));
    }
    let rows = format!("| {} |\n", rows.join(" |\n| "));
    print!("{rows}");
    if let Some(path) = std::env::var_os("SHEAFIO_FEATURES") {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(rows.as_bytes()).unwrap();
    }
}

fn yes(found: bool) -> String {
    if found { "yes" } else { "no" }.to_owned()
}

/// Whether the command opens a port so. If not, it must have ended with a line that names the interface and
/// what can be done, and nothing else.
fn opens(nics: &Nics, options: &str, mode: &str) -> bool {
    let interface = nics.interface(1);
    let port = format!("{interface}{options}");
    let args = ["fwd", "--json", "-p", &port, "--mode", "rxonly", "--duration", "100ms"];
    let args = [&args[..], &["--frame-size", FRAME_SIZE]].concat();
    let ended = Fwd::start_program(&nics.under_test, sheafio(), &args).wait();
    if ended.code == Some(0) {
        ended.assert_conserved();
        let line = nics.opened(options);
        assert!(line.contains(mode), "{line} is not {mode}");
        return true;
    }
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let errors: Vec<_> = ended.stderr.lines().filter(|line| !line.starts_with("warning: ")).collect();
    assert!(errors.len() == 1 && errors[0].contains(&interface), "{}", ended.stderr);
    assert!(
        errors[0].contains("copy=auto") || errors[0].contains("mode=generic"),
        "no remedy: {}",
        errors[0]
    );
    false
}

/// A bound AF_XDP socket without packets.
struct Probe {
    socket: OwnedFd,
    memory: Box<Memory>,
}

/// Memory that the kernel may take as a UMEM.
#[repr(align(4096))]
struct Memory([u8; MEMORY_BYTES]);

impl Probe {
    /// Binds queue 0 with flags of `struct sockaddr_xdp`; `tx_metadata` bytes lie before each packet that is sent.
    fn bind(interface: &str, flags: u16, tx_metadata: u32) -> io::Result<Self> {
        let name = CString::new(interface).expect("a name");
        // SAFETY: neither call takes a pointer but to the name, a C string.
        let (index, fd) = unsafe {
            (
                libc::if_nametoindex(name.as_ptr()),
                libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0),
            )
        };
        assert!(index > 0 && fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the descriptor is new and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let probe = Self { socket, memory: Box::new(Memory([0; MEMORY_BYTES])) };
        let umem = libc::xdp_umem_reg {
            addr: probe.memory.0.as_ptr() as u64,
            len: MEMORY_BYTES as u64,
            chunk_size: FRAME_BYTES,
            headroom: 0,
            flags: if tx_metadata > 0 { XDP_UMEM_TX_METADATA_LEN } else { 0 },
            tx_metadata_len: tx_metadata,
        };
        probe.set(libc::XDP_UMEM_REG, &umem)?;
        let rings =
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING];
        rings.into_iter().try_for_each(|ring| probe.set(ring, &SLOTS))?;
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: index,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        let start = Instant::now();
        loop {
            // SAFETY: the kernel reads one address.
            let bound = check(unsafe {
                libc::bind(fd, (&raw const address).cast(), size_of::<libc::sockaddr_xdp>() as u32)
            });
            match bound {
                Ok(()) => return Ok(probe),
                // The socket before was closed, but its queue is let go of later.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    assert!(
                        start.elapsed() < PATIENCE,
                        "{interface} stays busy with flags {flags:#x}, {tx_metadata} bytes of metadata"
                    );
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether one system call may send as many packets as the TX ring has.
    fn takes_tx_budget(&self) -> bool {
        self.set(XDP_MAX_TX_SKB_BUDGET, &SLOTS).is_ok()
    }

    fn set<T>(&self, option: i32, value: &T) -> io::Result<()> {
        let (fd, len) = (self.socket.as_raw_fd(), size_of::<T>() as u32);
        // SAFETY: the kernel reads the value; the memory that a UMEM names lives as long as the socket.
        check(unsafe { libc::setsockopt(fd, libc::SOL_XDP, option, ptr::from_ref(value).cast(), len) })
    }
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
