//! The data path takes no more instructions than `instructions.txt` says, and that only goes down.
//!
//! Runs the probes (`tests/probes`) under callgrind, which counts every instruction of every call, so
//! the numbers are exact and the same on every run: no clock is read. They are those of one compiler
//! and one architecture, which the file names.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fmt, fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use sheafio_tests::{COLD, build_probes, skip};

/// What is run, with every case made this many times for each call that a line counts: a prime, so
/// that a call which differs from the others leaves a remainder.
const REPEATS: u64 = 1009;
/// Calls after which every case is where it began: two bursts make a lap of the rings.
const PERIOD: u64 = 2;
/// Writes counts that went down to the file.
const BLESS: &str = "SHEAFIO_BLESS";
/// Writes those that went up as well.
const BLESS_RISE: &str = "SHEAFIO_BLESS_RISE";

/// A line's first two columns: `take_32` in case `32`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    probe: String,
    case: String,
}

/// Instructions for two calls, one after the other.
type Counts = BTreeMap<Place, u64>;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<16}{:<6}", self.probe, self.case)
    }
}

/// What callgrind counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Profile {
    /// Calls, and instructions in them and in what they called, by caller and callee.
    edges: BTreeMap<(String, String), (u64, u64)>,
    /// All functions that ran.
    ran: BTreeSet<String>,
}

/// Reads a file of callgrind: valgrind's manual, "Callgrind Format Specification". Of the lines with
/// costs only those behind `calls=` matter, which hold the inclusive cost of the calls.
fn parse_profile(text: &str) -> Profile {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    // "(12) name" defines a number, "(12)" refers to it.
    let mut name_of = |entry: &str| {
        let (number, name) = entry.split_once(' ').unwrap_or((entry, ""));
        if !name.is_empty() {
            names.insert(number.to_owned(), name.to_owned());
        }
        names.get(number).cloned().unwrap_or_else(|| entry.to_owned())
    };
    let (mut caller, mut callee, mut calls) = (String::new(), String::new(), None);
    let mut profile = Profile::default();
    for line in text.lines() {
        if let Some(entry) = line.strip_prefix("fn=") {
            caller = name_of(entry);
            profile.ran.insert(caller.clone());
        } else if let Some(entry) = line.strip_prefix("cfn=") {
            callee = name_of(entry);
        } else if let Some(entry) = line.strip_prefix("calls=") {
            calls = entry.split(' ').next().and_then(|calls| calls.parse::<u64>().ok());
        } else if let Some(count) = calls
            && let Some((_, cost)) = line.split_once(' ')
            && let Ok(cost) = cost.trim().parse::<u64>()
        {
            let edge = profile.edges.entry((caller.clone(), callee.clone())).or_default();
            *edge = (edge.0 + count, edge.1 + cost);
            calls = None;
        }
    }
    profile
}

/// The counts of the probes in a profile. An error if they are not the same for all calls.
fn counts_of(profile: &Profile) -> Result<Counts, String> {
    let mut counts = Counts::new();
    for ((caller, callee), (calls, cost)) in &profile.edges {
        let (Some(case), Some(probe)) = (caller.strip_prefix("case_"), callee.strip_prefix("probe_")) else {
            continue;
        };
        let place = Place { probe: probe.to_owned(), case: case.to_owned() };
        if *calls != REPEATS * PERIOD || cost % REPEATS != 0 {
            return Err(format!("{place}: {cost} instructions in {calls} calls: they are not all the same"));
        }
        counts.insert(place, cost / REPEATS);
    }
    Ok(counts)
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.txt")
}

/// Reads lines of probe, case and count; `#` starts a comment.
fn parse_counts(text: &str) -> Counts {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let [probe, case, count] = words.as_slice() else { panic!("not probe, case and count: {line}") };
            let count: f64 = count.parse().unwrap_or_else(|_| panic!("not a count: {line}"));
            // Halves are exact.
            (Place { probe: (*probe).to_owned(), case: (*case).to_owned() }, (count * PERIOD as f64) as u64)
        })
        .collect()
}

/// A count for one call.
fn each(count: u64) -> f64 {
    count as f64 / PERIOD as f64
}

/// What a comparison says: what is wrong, what has become better, and what to write if asked.
#[derive(Debug, Default, PartialEq)]
struct Verdict {
    above: Vec<String>,
    below: Vec<String>,
    lower: Counts,
}

fn compare(kept: &Counts, counted: &Counts) -> Verdict {
    let mut verdict = Verdict { lower: kept.clone(), ..Verdict::default() };
    for (place, &now) in counted {
        match kept.get(place) {
            None => verdict.above.push(format!("{place} {} and is not in the file", each(now))),
            Some(&then) if now > then => {
                verdict.above.push(format!("{place} {}, above the {} of the file", each(now), each(then)));
            }
            Some(&then) if now < then => {
                verdict.below.push(format!("{place} {}, below the {} of the file", each(now), each(then)));
                verdict.lower.insert(place.clone(), now);
            }
            Some(_) => {}
        }
    }
    let missing = kept.keys().filter(|place| !counted.contains_key(place));
    verdict.above.extend(missing.map(|place| format!("{place} is in the file but was not run")));
    verdict
}

/// Writes counts under the comments that the file begins with.
fn write_counts(counts: &Counts) {
    let text = fs::read_to_string(file()).unwrap_or_default();
    let head = text.lines().take_while(|line| line.starts_with('#')).map(|line| format!("{line}\n"));
    let mut sorted: Vec<_> = counts.iter().collect();
    // take_8 before take_16.
    sorted.sort_by_key(|(place, _)| {
        (
            place.probe.trim_end_matches(|c: char| c.is_ascii_digit()),
            place.case.parse::<u32>().ok(),
            &place.case,
        )
    });
    let lines = sorted.into_iter().map(|(place, count)| format!("{place} {:>7}\n", each(*count)));
    fs::write(file(), head.chain(lines).collect::<String>()).expect("the file can be written");
}

/// Counts the instructions of all probes. `None` if there is no valgrind.
fn count() -> Option<Profile> {
    let output = env::temp_dir().join(format!("sheafio-callgrind-{}", std::process::id()));
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=case_*", "--quiet"])
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(build_probes())
        .arg((REPEATS * PERIOD).to_string())
        // The C library's memcpy as any x86-64 has it, not as this CPU would choose.
        .env(
            "GLIBC_TUNABLES",
            "glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM",
        )
        .output()
        .ok()?;
    assert!(run.status.success(), "valgrind: {}", String::from_utf8_lossy(&run.stderr));
    let text = fs::read_to_string(&output).expect("callgrind has written its file");
    let _ = fs::remove_file(&output);
    Some(parse_profile(&text))
}

/// What is not as where the counts were taken: another compiler makes other code, and another C library
/// has another memcpy.
fn other_tools(text: &str) -> Option<String> {
    let answer = |program: &str| {
        let output = Command::new(program).arg("--version").output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
    };
    let (rustc, ldd) = (answer("rustc").unwrap_or_default(), answer("ldd").unwrap_or_default());
    let counted_with = |name: &str| {
        let rest = text.split_once(name).map(|(_, rest)| rest).unwrap_or_default();
        rest.split_whitespace().next().unwrap_or_default().to_owned()
    };
    let (compiler, library) = (counted_with("Counted with rustc "), counted_with("memcpy of glibc "));
    let is_same = rustc.split(' ').any(|word| word == compiler) && ldd.split(' ').any(|word| word == library);
    (!is_same).then(|| format!("counted with rustc {compiler} and glibc {library}; here are {rustc}, {ldd}"))
}

#[test]
fn no_probe_takes_more_instructions_than_before() {
    if !cfg!(target_arch = "x86_64") {
        return skip("no_probe_takes_more_instructions_than_before", "the counts are those of x86-64");
    }
    let text = fs::read_to_string(file()).expect("instructions.txt can be read");
    if let Some(difference) = other_tools(&text) {
        return skip("no_probe_takes_more_instructions_than_before", &difference);
    }
    let Some(profile) = count() else {
        return skip("no_probe_takes_more_instructions_than_before", "no valgrind (deploy/packages tests)");
    };
    let cold: Vec<_> =
        profile.ran.iter().filter(|name| COLD.iter().any(|cold| name.starts_with(cold))).collect();
    assert!(cold.is_empty(), "not a steady state: {cold:?} ran");
    let counted = counts_of(&profile).unwrap_or_else(|error| panic!("{error}"));
    assert!(counted.len() > 20, "only {} counts", counted.len());

    let asked = |name| env::var_os(name).is_some_and(|value| value == "1");
    if asked(BLESS) && asked(BLESS_RISE) {
        return write_counts(&counted);
    }
    let kept = parse_counts(&text);
    let verdict = compare(&kept, &counted);
    if asked(BLESS) {
        write_counts(&verdict.lower);
    } else if !verdict.below.is_empty() {
        let remedy = format!("{BLESS}=1 tests/run instructions writes that to tests/instructions.txt");
        for line in verdict.below.iter().chain([&remedy]) {
            // Not by println, which is silent in tests that pass.
            let _ = writeln!(std::io::stderr(), "lower: {line}");
        }
    }
    assert!(
        verdict.above.is_empty(),
        "instructions for a call of each probe in each case:\n{}\nMake it shorter; or, if the rise buys something, \
         say what, and write it with {BLESS}=1 {BLESS_RISE}=1. The file names the compiler that it was counted with.",
        verdict.above.join("\n")
    );
}

#[test]
fn a_profile_is_read_by_caller_and_callee() {
    let text = "events: Ir\nfn=(1) case_8\n5 10\ncfi=(3) cache.rs\ncfn=(2) probe_take_8\ncalls=2018 7\n8 40360\n+1 5\n\
                fn=(3) main\n1 1\ncfn=(1)\ncalls=1 5\n9 99\n\nfn=(2)\n7 30270\ncob=(4) libc.so\ncfn=(9) memcpy\n\
                calls=2018 0\n* 10090\n";
    let profile = parse_profile(text);
    assert_eq!(profile.edges[&("case_8".to_owned(), "probe_take_8".to_owned())], (2018, 40360));
    assert_eq!(profile.edges[&("probe_take_8".to_owned(), "memcpy".to_owned())], (2018, 10090));
    assert!(profile.ran.contains("probe_take_8"));
    let place = Place { probe: "take_8".to_owned(), case: "8".to_owned() };
    assert_eq!(counts_of(&profile), Ok(Counts::from([(place, 40)])));
    assert!(counts_of(&parse_profile(&text.replace("40360", "40361"))).is_err(), "one call took one more");
}

#[test]
fn counts_go_down_only() {
    let kept = parse_counts("# comment\ntake_8  8  20\nrx_burst full 600.5\ngive_8 8 9\n");
    let counted = parse_counts("take_8 8 21\nrx_burst full 600\nalloc 1 3\n");
    let verdict = compare(&kept, &counted);
    assert_eq!(verdict.above.len(), 3, "{verdict:?}"); // Above, new, and not run.
    assert_eq!(verdict.below.len(), 1, "{verdict:?}");
    assert_eq!(verdict.lower, parse_counts("take_8 8 20\nrx_burst full 600\ngive_8 8 9\n"));
    assert_eq!(compare(&kept, &kept), Verdict { lower: kept.clone(), ..Verdict::default() });
}
