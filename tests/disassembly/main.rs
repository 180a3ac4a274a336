//! The machine code of the data path holds no locked instruction.
//!
//! Reads what objdump makes of the probes (`tests/probes`): the code of each, and of every function
//! that it calls or jumps to, as far as that is not cold ([`COLD`]). What must not be there is an
//! atomic read-modify-write or a full fence: both wait for the store buffer, and the first takes a
//! cache line from the other cores. Loads, stores, acquire and release cost nothing of that kind.
//! The bad probes, which have such instructions, must be found guilty.

mod listing;

use std::{collections::BTreeSet, process::Command};

use sheafio_tests::{COLD, build_probes};

use self::listing::{Branch, Listing, function_at, parse};

/// The probes that must be clean.
const CLEAN: [&str; 22] = [
    "probe_boundary",
    "probe_lane_put",
    "probe_lane_get",
    "probe_take_1",
    "probe_take_8",
    "probe_take_16",
    "probe_take_32",
    "probe_take_64",
    "probe_give_1",
    "probe_give_8",
    "probe_give_16",
    "probe_give_32",
    "probe_give_64",
    "probe_alloc",
    "probe_alloc_burst_8",
    "probe_alloc_burst_16",
    "probe_alloc_burst_32",
    "probe_alloc_burst_64",
    "probe_free",
    "probe_free_burst",
    "probe_rx_burst",
    "probe_tx_burst",
];

/// The probes that must be caught, and at what.
#[cfg(target_arch = "x86_64")]
const BAD: [(&str, &str); 6] = [
    ("probe_bad_locked", "lock xadd"),
    ("probe_bad_exchange", "xchg"),
    ("probe_bad_fence", "locked instruction"), // mfence, or a locked instruction on the stack, which is faster.
    ("probe_bad_compare", "lock cmpxchg"),
    ("probe_bad_called", "lock xadd"),
    ("probe_bad_pointer", "unknown target"),
];
#[cfg(target_arch = "aarch64")]
const BAD: [(&str, &str); 6] = [
    ("probe_bad_locked", "locked instruction"), // An exclusive pair or LSE, by the target's features.
    ("probe_bad_exchange", "locked instruction"),
    ("probe_bad_fence", "dmb ish"),
    ("probe_bad_compare", "locked instruction"),
    ("probe_bad_called", "locked instruction"),
    ("probe_bad_pointer", "unknown target"),
];

/// Functions of the C library that may be called: they copy memory, with plain loads and stores.
const LIBRARY: [&str; 4] = ["memcpy", "memmove", "memset", "memcmp"];

/// The entry of [`COLD`] that excuses a function.
fn cold(name: &str) -> Option<&'static str> {
    COLD.into_iter().find(|cold| name.starts_with(cold))
}

/// What was found in the code that a function reaches.
#[derive(Debug, Default)]
struct Found {
    /// What is wrong, one line each.
    faults: Vec<String>,
    /// The functions that were looked through.
    names: BTreeSet<String>,
    /// The entries of [`COLD`] that excused others.
    cold: BTreeSet<&'static str>,
}

/// Looks through the code of a function and all that it calls. An error if there is no such function.
fn examine(listing: &Listing, name: &str) -> Result<Found, String> {
    let mut starts = listing.iter().filter(|(_, function)| function.name == name).map(|(start, _)| *start);
    let start = starts.next().ok_or_else(|| format!("{name} is not in the symbol table"))?;
    let (mut pending, mut seen) = (vec![start], BTreeSet::from([start]));
    let mut found = Found::default();
    while let Some(start) = pending.pop() {
        let function = &listing[&start];
        found.names.insert(function.name.clone());
        if function.instructions.is_empty() {
            found.faults.push(format!("{name}: {} has no code", function.name));
        }
        for instruction in &function.instructions {
            let fault = |what: &str| {
                format!("{name}: {what}: {:x}: {} in {}", instruction.addr, instruction.text, function.name)
            };
            if instruction.is_locked() {
                found.faults.push(fault("locked instruction"));
            }
            match instruction.branch() {
                Branch::None => {}
                Branch::Unknown => found.faults.push(fault("unknown target")),
                Branch::Library(library) if LIBRARY.contains(&library.as_str()) => {}
                Branch::Library(_) => found.faults.push(fault("call of the C library")),
                Branch::To(addr) => match function_at(listing, addr) {
                    None => found.faults.push(fault("unknown target")),
                    Some((start, callee)) => {
                        if let Some(cold) = cold(&callee.name) {
                            found.cold.insert(cold);
                        } else if seen.insert(start) {
                            pending.push(start);
                        }
                    }
                },
            }
        }
    }
    Ok(found)
}

fn disassemble() -> Listing {
    let probes = build_probes();
    let output = Command::new("objdump")
        .args(["--disassemble", "--demangle", "--no-show-raw-insn", "--wide"])
        .arg(&probes)
        .output()
        .expect("objdump is there (binutils; deploy/packages tests installs it)");
    assert!(
        output.status.success(),
        "objdump {}: {}",
        probes.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    parse(&String::from_utf8_lossy(&output.stdout))
}

#[test]
fn the_data_path_holds_no_locked_instruction_and_the_bad_probes_are_caught() {
    let listing = disassemble();
    let (mut faults, mut used) = (Vec::new(), BTreeSet::new());
    for name in CLEAN {
        match examine(&listing, name) {
            Ok(found) => {
                println!("{name}: looked through {:?}, not into {:?}", found.names, found.cold);
                faults.extend(found.faults);
                used.extend(found.cold);
            }
            Err(missing) => faults.push(missing),
        }
    }
    let unused = COLD.iter().filter(|cold| !used.contains(*cold));
    faults.extend(unused.map(|cold| format!("{cold} need not be in the list of cold functions")));
    for (name, what) in BAD {
        match examine(&listing, name) {
            Ok(found) if found.faults.iter().any(|fault| fault.contains(what)) => {}
            Ok(found) => faults.push(format!("{name} was not caught at '{what}': {found:?}")),
            Err(missing) => faults.push(missing),
        }
    }
    let known: BTreeSet<&str> = CLEAN.into_iter().chain(BAD.map(|(name, _)| name)).collect();
    let probes = listing.values().map(|function| function.name.as_str());
    for name in probes.filter(|name| name.starts_with("probe_") && !known.contains(name)) {
        faults.push(format!("{name} is not in the lists of this test"));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
