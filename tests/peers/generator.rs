//! A packet generator for the side-by-side runs: puts frames on a veth as fast as its core can.
//!
//! ```text
//!   generator --redirect--> veth PEER end ... END under test (its XDP program must be attached)
//! ```
//! Usage: generator INTERFACE SECONDS, in the namespace of the interface. The frames never become socket buffers:
//! a program of four instructions is run on them in the kernel (BPF_PROG_RUN with live frames, Linux 5.18) and
//! redirects them to the interface, whose peer receives them on the CPU that this runs on. It ends by itself.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process::ExitCode,
    time::{Duration, Instant},
};

use libbpf_sys as sys;

/// Frames that the kernel takes from its page pool at a time.
const BATCH: u32 = 64;
/// Frames for one system call; each call costs an RCU grace period.
const REPEAT: u32 = 4_000_000;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [interface, seconds] = args.as_slice() else {
        eprintln!("usage: generator INTERFACE SECONDS");
        return ExitCode::from(2);
    };
    match seconds.parse().map_err(io::Error::other).and_then(|seconds| generate(interface, seconds)) {
        Ok((frames, elapsed)) => {
            println!("offered {:.3} million frames/s", frames as f64 / elapsed.as_secs_f64() / 1e6);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("generator: {interface}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn generate(interface: &str, seconds: f64) -> io::Result<(u64, Duration)> {
    let name = CString::new(interface).map_err(io::Error::other)?;
    // SAFETY: the name is a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let program = redirect_to(index)?;
    let _dropping = drop_what_comes_back(index)?;
    let frame = udp_frame();
    let mut options = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as sys::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        flags: sys::BPF_F_TEST_XDP_LIVE_FRAMES,
        repeat: REPEAT as i32,
        batch_size: BATCH,
        ..Default::default()
    };
    let (start, mut frames) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < seconds {
        // SAFETY: the options are a valid struct of the size that they state; the frame lives on.
        let result = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        frames += u64::from(REPEAT);
    }
    Ok((frames, start.elapsed()))
}

/// The program `return bpf_redirect(index, 0)`.
fn redirect_to(index: u32) -> io::Result<OwnedFd> {
    const BPF_FUNC_REDIRECT: i32 = 23;
    load(
        sys::BPF_PROG_TYPE_XDP,
        &[(MOV, 1, index as i32), (MOV, 2, 0), (CALL, 0, BPF_FUNC_REDIRECT), (EXIT, 0, 0)],
    )
}

/// Attaches the program `return TCX_DROP` to the interface's ingress: packets end there, before they
/// cost the kernel more. It goes with the returned link.
fn drop_what_comes_back(index: u32) -> io::Result<OwnedFd> {
    const TCX_DROP: i32 = 2;
    let program = load(sys::BPF_PROG_TYPE_SCHED_CLS, &[(MOV, 0, TCX_DROP), (EXIT, 0, 0)])?;
    // SAFETY: no options are given.
    owned(unsafe {
        sys::bpf_link_create(program.as_raw_fd(), index as i32, sys::BPF_TCX_INGRESS, std::ptr::null())
    })
}

/// Opcodes of the BPF instruction set (RFC 9669).
const MOV: u8 = 0xb7;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Loads a program, given as opcode, destination register and immediate value.
fn load(kind: sys::bpf_prog_type, program: &[(u8, u8, i32)]) -> io::Result<OwnedFd> {
    let instruction = |&(code, register, imm): &(u8, u8, i32)| {
        let mut instruction = sys::bpf_insn { code, off: 0, imm, ..Default::default() };
        instruction.set_dst_reg(register);
        instruction
    };
    let program: Vec<_> = program.iter().map(instruction).collect();
    let (name, license, count) = (c"generator".as_ptr(), c"GPL".as_ptr(), program.len() as sys::size_t);
    // SAFETY: the instructions and the C strings live through the call; no options are given.
    owned(unsafe { sys::bpf_prog_load(kind, name, license, program.as_ptr(), count, std::ptr::null_mut()) })
}

/// A new descriptor, or libbpf's -errno.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A UDP packet of 60 bytes, the smallest that Ethernet carries, from 10.0.0.1 to 10.0.0.2.
fn udp_frame() -> [u8; 60] {
    let mut frame = [0; 60];
    let header = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, // Ethernet
        0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0x66, 0xbd, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
        0x03, 0xe8, 0x07, 0xd0, 0, 26, 0, 0, // UDP 1000 to 2000, no checksum
    ];
    frame[..header.len()].copy_from_slice(&header);
    frame
}
