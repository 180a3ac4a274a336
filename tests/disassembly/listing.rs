//! What objdump lists: functions, their instructions, and where those may go on.
//!
//! Owns: the reading of one listing. Never does: judge more than one instruction at a time.
//! Invariant: what it can't tell is [`Branch::Unknown`], never nothing.

use std::collections::BTreeMap;

/// One function as objdump lists it.
#[derive(Debug, Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) instructions: Vec<Instruction>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) addr: u64,
    /// Mnemonic and operands, without objdump's comment.
    pub(crate) text: String,
    /// What objdump says of an address that the operands refer to: `memcpy@GLIBC_2.14`.
    comment: String,
}

/// Where an instruction may go on besides the next one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Branch {
    None,
    To(u64),
    /// To a function of a shared library.
    Library(String),
    Unknown,
}

/// Functions by the address of their first instruction.
pub(crate) type Listing = BTreeMap<u64, Function>;

/// Reads the output of `objdump --disassemble --demangle --no-show-raw-insn`.
pub(crate) fn parse(text: &str) -> Listing {
    let mut listing = Listing::new();
    let mut current = None;
    for line in text.lines() {
        // 000000000001b300 <probe_bad_locked>:
        if let Some((addr, name)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <"))
            && let Ok(addr) = u64::from_str_radix(addr, 16)
        {
            listing.insert(addr, Function { name: name.to_owned(), ..Function::default() });
            current = Some(addr);
        // "   1b305:\tlock xadd %rax,(%rdi)", "   1b311:\tcall   *0x45fcc(%rip)        # 61e38 <memcpy@GLIBC_2.14>"
        } else if let Some((addr, rest)) = line.trim_start().split_once(":\t")
            && let Ok(addr) = u64::from_str_radix(addr, 16)
            && let Some(function) = current.and_then(|current| listing.get_mut(&current))
        {
            let comment_at = [" # ", "\t// ", " // "].iter().filter_map(|mark| rest.find(mark)).min();
            let (code, comment) = rest.split_at(comment_at.unwrap_or(rest.len()));
            let text = code.split_whitespace().collect::<Vec<_>>().join(" ");
            let comment = comment.split_once('<').map_or("", |(_, name)| name.trim_end_matches('>'));
            function.instructions.push(Instruction { addr, text, comment: comment.to_owned() });
        }
    }
    listing
}

/// Prefixes that stand before an x86 mnemonic.
const PREFIXES: [&str; 16] = [
    "lock", "rep", "repz", "repnz", "repe", "repne", "bnd", "notrack", "data16", "addr32", "cs", "ds", "es",
    "ss", "xacquire", "xrelease",
];

impl Instruction {
    /// The mnemonic behind its prefixes, and the operands.
    fn parts(&self) -> (&str, &str) {
        let mut rest = self.text.as_str();
        loop {
            let (word, operands) = rest.split_once(' ').unwrap_or((rest, ""));
            if !PREFIXES.contains(&word) || operands.is_empty() {
                return (word, operands);
            }
            rest = operands;
        }
    }

    /// Whether it waits for other cores or for the store buffer.
    pub(crate) fn is_locked(&self) -> bool {
        if cfg!(target_arch = "aarch64") { self.is_locked_aarch64() } else { self.is_locked_x86() }
    }

    /// `lfence` and `sfence` are none of this: the one holds back later instructions of this core, the
    /// other orders non-temporal stores; neither waits for other cores, and no memory ordering of the
    /// language becomes one. `xchg` of two registers is a padding or a swap; with memory it locks
    /// without a prefix (Intel SDM vol. 3A, 9.1.2.1).
    fn is_locked_x86(&self) -> bool {
        let (mnemonic, operands) = self.parts();
        let has_lock = self.text.split(' ').take_while(|word| *word != mnemonic).any(|word| word == "lock");
        has_lock
            || self.text == "lock"
            || mnemonic == "mfence"
            || mnemonic.starts_with("cmpxchg16b")
            || mnemonic.starts_with("xchg") && !operands.split(',').all(is_register)
    }

    /// Exclusive loads and stores, the read-modify-writes of LSE, and full barriers. `ldar`, `stlr` and
    /// `ldapr` are acquire and release; `dmb ishld` and `dmb ishst` are half a fence.
    fn is_locked_aarch64(&self) -> bool {
        const READ_MODIFY_WRITES: [&str; 24] = [
            "ldxr", "ldxp", "ldaxr", "ldaxp", "stxr", "stxp", "stlxr", "stlxp", "cas", "swp", "ldadd",
            "ldclr", "ldeor", "ldset", "ldsmax", "ldsmin", "ldumax", "ldumin", "stadd", "stclr", "steor",
            "stset", "stumax", "stumin",
        ];
        let (mnemonic, operands) = self.parts();
        READ_MODIFY_WRITES.iter().any(|name| mnemonic.starts_with(name))
            || mnemonic == "dmb" && !operands.ends_with("ld") && !operands.ends_with("st")
            || mnemonic == "dsb"
    }

    /// Where it may go on.
    pub(crate) fn branch(&self) -> Branch {
        if cfg!(target_arch = "aarch64") { self.branch_aarch64() } else { self.branch_x86() }
    }

    fn branch_x86(&self) -> Branch {
        let (mnemonic, operands) = self.parts();
        if !mnemonic.starts_with("call") && !mnemonic.starts_with('j') && !mnemonic.starts_with("loop") {
            return Branch::None;
        }
        match target(operands) {
            Some(addr) => Branch::To(addr),
            // Through the global offset table: call *0x45fcc(%rip)  # 61e38 <memcpy@GLIBC_2.14>
            None if operands.ends_with("(%rip)") && self.comment.contains('@') => {
                Branch::Library(self.comment.split('@').next().unwrap_or_default().to_owned())
            }
            None => Branch::Unknown,
        }
    }

    fn branch_aarch64(&self) -> Branch {
        let (mnemonic, operands) = self.parts();
        match mnemonic {
            "br" | "blr" | "braa" | "blraa" => Branch::Unknown,
            "b" | "bl" | "cbz" | "cbnz" | "tbz" | "tbnz" => {
                // tbnz  w0, #3, 2000 <f<a, b>+0x8>
                let name_at = operands.find(" <").unwrap_or(operands.len());
                let place_at = operands[..name_at].rfind(", ").map_or(0, |at| at + 2);
                let place = &operands[place_at..];
                // bl  1234 <memcpy@plt>
                let name = place.split_once('<').and_then(|(_, name)| name.strip_suffix("@plt>"));
                match (name, target(place)) {
                    (Some(name), _) => Branch::Library(name.to_owned()),
                    (None, Some(addr)) => Branch::To(addr),
                    (None, None) => Branch::Unknown,
                }
            }
            _ if mnemonic.starts_with("b.") || mnemonic.starts_with("bc.") => {
                target(operands).map_or(Branch::Unknown, Branch::To)
            }
            _ => Branch::None,
        }
    }
}

/// Whether an x86 operand is a register and no memory.
fn is_register(operand: &str) -> bool {
    operand.strip_prefix('%').is_some_and(|name| name.chars().all(char::is_alphanumeric))
}

/// The address in `1b2b0 <probe_bad_compare+0x10>`.
fn target(operands: &str) -> Option<u64> {
    let (addr, _) = operands.split_once(" <")?;
    u64::from_str_radix(addr.trim_start_matches("0x"), 16).ok()
}

/// The function that an address lies in.
pub(crate) fn function_at(listing: &Listing, addr: u64) -> Option<(u64, &Function)> {
    listing.range(..=addr).next_back().map(|(start, function)| (*start, function))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(text: &str) -> Instruction {
        let listing = parse(&format!("0000000000001000 <f>:\n    1000:\t{text}\n"));
        listing[&0x1000].instructions[0].clone()
    }

    #[test]
    fn the_parser_reads_functions_calls_and_comments() {
        let listing = parse(
            "\nprobes:     file format elf64-x86-64\n\n\nDisassembly of section .text:\n\n\
             0000000000001000 <<a::B as c::D>::e>:\n    1000:\tmov    0x60(%rsi),%rax\n    \
             1004:\tcall   2000 <<a::B as c::D>::f>\n    1009:\tcall   *0x45fcc(%rip)        # 61e38 <memcpy@GLIBC_2.14>\n    \
             100f:\tret\n\n0000000000002000 <<a::B as c::D>::f>:\n    2000:\tret\n",
        );
        let names: Vec<_> = listing.values().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["<a::B as c::D>::e", "<a::B as c::D>::f"]);
        let [load, call, library, end] = listing[&0x1000].instructions.as_slice() else {
            panic!("{listing:?}")
        };
        assert_eq!(load.text, "mov 0x60(%rsi),%rax");
        assert_eq!(load.branch_x86(), Branch::None);
        assert_eq!(call.branch_x86(), Branch::To(0x2000));
        assert_eq!(library.branch_x86(), Branch::Library("memcpy".to_owned()));
        assert_eq!(end.branch_x86(), Branch::None);
    }

    #[test]
    fn locked_instructions_of_x86_are_told_from_the_others() {
        for locked in [
            "lock xadd %rax,(%rdi)",
            "lock cmpxchg %rcx,(%rdi)",
            "lock orl $0x0,-0x40(%rsp)",
            "xacquire lock incl (%rdi)",
            "lock cmpxchg16b (%rdi)",
            "cmpxchg16b (%rdi)",
            "xchg   %rax,(%rdi)",
            "xchg   %al,0x10(%rdi,%rcx,8)",
            "xchg   %eax,%fs:0x28",
            "xchg   %eax,0x601040",
            "lock",
            "mfence",
        ] {
            assert!(instruction(locked).is_locked_x86(), "{locked}");
        }
        for other in [
            "xchg   %ax,%ax",
            "xchg   %rax,%rcx",
            "data16 cs nopw 0x0(%rax,%rax,1)",
            "rep stos %rax,%es:(%rdi)",
            "lfence",
            "sfence",
            "incq   0x8(%rax)",
            "add    %rax,(%rcx)",
            "mov    %eax,0x18(%rdi)",
            "call   2000 <block::lock>",
            "lea    0x10(%rip),%rax        # 2000 <lock xadd>",
        ] {
            assert!(!instruction(other).is_locked_x86(), "{other}");
        }
    }

    #[test]
    fn branches_of_x86_are_followed() {
        assert_eq!(instruction("jne    1b2b0 <f+0x10>").branch_x86(), Branch::To(0x1b2b0));
        assert_eq!(instruction("bnd jmp 1b2b0 <f>").branch_x86(), Branch::To(0x1b2b0));
        for unknown in ["call   *%rsi", "notrack jmp *%rax", "call   *0x18(%rax)", "jmp    *(%rcx,%rax,8)"] {
            assert_eq!(instruction(unknown).branch_x86(), Branch::Unknown, "{unknown}");
        }
    }

    #[test]
    fn locked_instructions_and_branches_of_aarch64_are_told_from_the_others() {
        for locked in [
            "ldxr\tx8, [x0]",
            "ldaxrb\tw8, [x0]",
            "stlxr\tw10, x9, [x0]",
            "stxp\tw4, x2, x3, [x0]",
            "casal\tx1, x2, [x0]",
            "caspal\tx0, x1, x2, x3, [x4]",
            "ldadd\tx1, x0, [x0]",
            "ldaddalh\tw1, w0, [x0]",
            "stadd\tx1, [x0]",
            "swpal\tx1, x0, [x0]",
            "ldumaxl\tx1, x0, [x0]",
            "dmb\tish",
            "dmb\tsy",
            "dsb\tish",
        ] {
            assert!(instruction(locked).is_locked_aarch64(), "{locked}");
        }
        for other in [
            "ldar\tx0, [x0]",
            "stlr\tx1, [x0]",
            "ldapr\tx0, [x0]",
            "dmb\tishld",
            "dmb\tishst",
            "ldr\tx8, [x0]",
            "ldp\tx0, x1, [sp]",
            "stp\tx0, x1, [sp, #-16]!",
            "add\tx0, x0, #0x1",
        ] {
            assert!(!instruction(other).is_locked_aarch64(), "{other}");
        }
        assert_eq!(instruction("bl\t2000 <f::g>").branch_aarch64(), Branch::To(0x2000));
        assert_eq!(instruction("b.ne\t2000 <f+0x8>  // b.any").branch_aarch64(), Branch::To(0x2000));
        assert_eq!(instruction("cbz\tx0, 2000 <f+0x8>").branch_aarch64(), Branch::To(0x2000));
        assert_eq!(instruction("tbnz\tw0, #3, 2000 <f<a, b>+0x8>").branch_aarch64(), Branch::To(0x2000));
        assert_eq!(
            instruction("bl\t900 <memcpy@plt>").branch_aarch64(),
            Branch::Library("memcpy".to_owned())
        );
        assert_eq!(instruction("blr\tx8").branch_aarch64(), Branch::Unknown);
        assert_eq!(instruction("ret").branch_aarch64(), Branch::None);
    }
}
