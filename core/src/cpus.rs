//! CPU lists, and which CPUs the process may use.

use std::{fmt, mem, str::FromStr};

use crate::CoreError;

/// CPU numbers, in the order that they were named. Reads and prints as `1,3-5`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(pub Vec<u32>);

/// Numbers of CPUs beyond this are refused: the kernel's own limit (NR_CPUS).
const MAX_CPU: u32 = 8191;

impl FromStr for CpuList {
    type Err = CoreError;

    fn from_str(text: &str) -> Result<Self, CoreError> {
        let bad = |problem: String| CoreError::CpuList { text: text.to_owned(), problem };
        let number = |part: &str| match part.trim().parse() {
            Ok(cpu) if cpu <= MAX_CPU => Ok(cpu),
            _ => Err(bad(format!("'{}' is no CPU number (0 to {MAX_CPU})", part.trim()))),
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(bad(format!("the range {part} runs backwards")));
            }
            for cpu in first..=last {
                if cpus.contains(&cpu) {
                    return Err(bad(format!("CPU {cpu} is named twice")));
                }
                cpus.push(cpu);
            }
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        while let [first, ..] = *rest {
            let run = rest.iter().zip(first..).take_while(|(cpu, next)| **cpu == *next).count();
            match run {
                1 => write!(f, "{first}")?,
                _ => write!(f, "{first}-{}", rest[run - 1])?,
            }
            rest = &rest[run..];
            if !rest.is_empty() {
                f.write_str(",")?;
            }
        }
        Ok(())
    }
}

/// The CPUs that the calling thread may run on, ascending (sched_getaffinity(2), which honours
/// cpusets and taskset).
pub fn allowed_cpus() -> CpuList {
    // One word of 64 CPUs after the other, as the kernel writes them.
    let mut mask = [0_u64; (MAX_CPU as usize + 1) / 64];
    // SAFETY: the kernel writes at most the given number of bytes, which is the array's size.
    let written = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&mask), mask.as_mut_ptr().cast()) };
    if written < 0 {
        return CpuList::default();
    }
    CpuList((0..=MAX_CPU).filter(|cpu| mask[*cpu as usize / 64] >> (cpu % 64) & 1 == 1).collect())
}

/// Pins the calling thread to one CPU.
pub(crate) fn pin(cpu: u32) -> Result<(), CoreError> {
    let allowed = allowed_cpus();
    if !allowed.0.contains(&cpu) {
        return Err(CoreError::Cpu { cpu, allowed });
    }
    let mut mask = [0_u64; (MAX_CPU as usize + 1) / 64];
    mask[cpu as usize / 64] = 1 << (cpu % 64);
    // SAFETY: the kernel reads the given number of bytes, which is the array's size.
    if unsafe { libc::sched_setaffinity(0, mem::size_of_val(&mask), mask.as_ptr().cast()) } < 0 {
        return Err(CoreError::Pin { cpu, source: std::io::Error::last_os_error() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_and_print_alike() {
        for (text, cpus, printed) in [
            ("1", vec![1], "1"),
            ("3,1", vec![3, 1], "3,1"),
            ("0-2,5", vec![0, 1, 2, 5], "0-2,5"),
            ("4,5,6", vec![4, 5, 6], "4-6"),
        ] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!((list.0.clone(), list.to_string().as_str()), (cpus, printed));
        }
    }

    #[test]
    fn bad_lists_are_refused_by_name() {
        for (text, problem) in [
            ("", "'' is no CPU number"),
            ("a", "'a' is no CPU number"),
            ("1,", "'' is no CPU number"),
            ("-1", "'' is no CPU number"),
            ("9999", "'9999' is no CPU number (0 to 8191)"),
            ("3-1", "the range 3-1 runs backwards"),
            ("1,1", "CPU 1 is named twice"),
        ] {
            let message = text.parse::<CpuList>().unwrap_err().to_string();
            assert!(message.contains(problem) && message.contains("such as 1,3-5"), "{message}");
        }
    }

    #[test]
    fn a_cpu_outside_of_the_allowed_set_is_refused_with_the_set() {
        let allowed = allowed_cpus();
        assert!(!allowed.0.is_empty());
        let message = pin(MAX_CPU).unwrap_err().to_string();
        assert!(
            message.contains(&format!("CPU {MAX_CPU}")) && message.contains(&allowed.to_string()),
            "{message}"
        );
    }
}
