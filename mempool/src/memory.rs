//! Maps the pool's packet memory, once and for good, and blocks for its bookkeeping.
//!
//! Owns: the mmap and mbind calls. Never does: unmap a pool's packet memory, hand out references.
//! Invariant: the address range up to the next power of two above the mapping belongs to this pool
//! alone, so that one mask tells whether an offset can be one of this pool's.
//!
//! ```text
//! base (2 MiB aligned)
//! | frame 0 | frame 1 | ... | frame n-1 |   reserved, no access    |
//! |<------------ len ------------------>|                          |
//! |<---------------- span: a power of two ------------------------>|
//! ```

use std::{io, ptr, ptr::NonNull};

use crate::{Hugepages, PoolError};

/// Size of a hugepage in bytes; the only size that is asked for.
pub(crate) const HUGEPAGE_BYTES: usize = 2 << 20;

/// What kind of pages a pool lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Reserved hugepages of 2 MiB (hugetlbfs).
    Huge,
    /// The base pages of the machine; the kernel may merge them (transparent hugepages).
    Base,
}

/// A mapping that lives as long as the process.
pub(crate) struct Mapping {
    pub(crate) base: NonNull<u8>,
    pub(crate) span_bytes: usize,
    pub(crate) pages: Pages,
    pub(crate) warnings: Vec<String>,
}

/// Which part of a mapping lies on which NUMA node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    /// Offset and length in bytes: multiples of a hugepage, or the kernel refuses where there are some.
    pub(crate) at: usize,
    pub(crate) len_bytes: usize,
    pub(crate) node: u32,
}

/// Maps `len_bytes` of zeroed, populated memory.
pub(crate) fn map(
    len_bytes: usize,
    hugepages: Hugepages,
    bindings: &[Binding],
) -> Result<Mapping, PoolError> {
    let len_bytes = len_bytes.next_multiple_of(HUGEPAGE_BYTES);
    let span_bytes = len_bytes.next_power_of_two();
    let failed = |source| PoolError::Map { mib: (len_bytes >> 20) as u64, source };

    let pages = (len_bytes / HUGEPAGE_BYTES) as u64;
    let mut warnings = Vec::new();
    if hugepages != Hugepages::Off {
        // A failed MAP_FIXED may leave a hole in its range, where another thread's mapping can come to
        // lie; so base pages get a range of their own below.
        let base = reserve(span_bytes).map_err(failed)?;
        let kind = PageKind { flags: libc::MAP_HUGETLB, advice: libc::MADV_NORMAL };
        match commit(base, span_bytes, len_bytes, &kind, bindings, &mut warnings) {
            Ok(()) => return Ok(Mapping { base, span_bytes, pages: Pages::Huge, warnings }),
            // Base pages could not be bound either.
            Err(failure @ CommitError { step: Step::Bind(_), .. }) => return Err(failure.refusal(len_bytes)),
            Err(_) if hugepages == Hugepages::Require => {
                return Err(PoolError::Hugepages {
                    pages,
                    free: free_hugepages(),
                    remedy: remedy(pages, bindings),
                });
            }
            Err(failure) => {
                warnings.clear();
                warnings.push(format!(
                    "pool: too few hugepages of 2 MiB: it takes {pages}, {} are free ({}); using base pages. \
                     For fewer TLB misses: {}",
                    free_hugepages(),
                    failure.source,
                    remedy(pages, bindings)
                ));
            }
        }
    }
    let base = reserve(span_bytes).map_err(failed)?;
    let advice = if hugepages == Hugepages::Off { libc::MADV_NOHUGEPAGE } else { libc::MADV_HUGEPAGE };
    commit(base, span_bytes, len_bytes, &PageKind { flags: 0, advice }, bindings, &mut warnings)
        .map_err(|failure| failure.refusal(len_bytes))?;
    Ok(Mapping { base, span_bytes, pages: Pages::Base, warnings })
}

/// How to reserve hugepages, on the nodes where they are needed.
fn remedy(pages: u64, bindings: &[Binding]) -> String {
    if bindings.is_empty() {
        return format!("echo {pages} > /proc/sys/vm/nr_hugepages");
    }
    let mut on_node = std::collections::BTreeMap::new();
    for binding in bindings {
        *on_node.entry(binding.node).or_insert(0) += binding.len_bytes.div_ceil(HUGEPAGE_BYTES);
    }
    let one = |(node, pages)| {
        format!("echo {pages} > /sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages")
    };
    on_node.into_iter().map(one).collect::<Vec<_>>().join("; ")
}

/// A block of zeroed memory for the pool's own bookkeeping.
pub(crate) struct Block {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a block only gives out its address; who may access which part of it is up to its user.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Maps at least `len_bytes`, aligned to a page, on the memory of a NUMA node if one is given and
    /// has some left. Pages that are never touched take no memory.
    ///
    /// # Panics
    /// If the machine has no memory or address space left, as any allocation.
    pub(crate) fn new(len_bytes: usize, node: Option<u32>) -> Self {
        let len_bytes = len_bytes.max(1);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert!(start != libc::MAP_FAILED, "no memory: {}", io::Error::last_os_error());
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        if let Some(node) = node {
            // Where the bookkeeping lies is only a matter of speed.
            let _ = bind(start, len_bytes, MPOL_PREFERRED, node);
        }
        Self { start, len_bytes }
    }

    /// Its first byte.
    #[inline(always)]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped once; the user's accesses are over.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

/// The CPU that the calling thread runs on.
pub(crate) fn current_cpu() -> Option<u32> {
    // SAFETY: takes no pointer.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Memory of the machine in bytes.
pub(crate) fn physical_bytes() -> u64 {
    // SAFETY: sysconf takes no pointer.
    let (pages, page_bytes) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(page_bytes).unwrap_or(0)
}

/// Reserves address space of `span_bytes`, aligned to a hugepage, without memory behind it.
fn reserve(span_bytes: usize) -> io::Result<NonNull<u8>> {
    let with_slack = span_bytes + HUGEPAGE_BYTES;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no other memory.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            with_slack,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = start.cast::<u8>();
    let before = start.align_offset(HUGEPAGE_BYTES);
    // SAFETY: `before` is less than HUGEPAGE_BYTES, so all three lie within the reservation, which nobody
    // else knows yet. The kernel refuses to unmap nothing.
    unsafe {
        let base = start.add(before);
        libc::munmap(start.cast(), before);
        libc::munmap(base.add(span_bytes).cast(), HUGEPAGE_BYTES - before);
        Ok(NonNull::new_unchecked(base))
    }
}

/// What pages to map.
struct PageKind {
    flags: i32,
    advice: i32,
}

/// Why memory could not be had.
struct CommitError {
    step: Step,
    source: io::Error,
}

/// What was tried, and for which binding.
enum Step {
    Map,
    Bind(Binding),
    Populate(Option<Binding>),
}

impl CommitError {
    fn refusal(self, len_bytes: usize) -> PoolError {
        match self.step {
            Step::Bind(binding) | Step::Populate(Some(binding)) => PoolError::Node {
                node: binding.node,
                mib: (binding.len_bytes >> 20) as u64,
                source: self.source,
            },
            Step::Map | Step::Populate(None) => {
                PoolError::Map { mib: (len_bytes >> 20) as u64, source: self.source }
            }
        }
    }
}

/// Puts memory behind the first `len_bytes` of the reservation: maps, binds, and then touches it. If
/// that fails after mapping, the reservation is gone.
fn commit(
    base: NonNull<u8>,
    span_bytes: usize,
    len_bytes: usize,
    kind: &PageKind,
    bindings: &[Binding],
    warnings: &mut Vec<String>,
) -> Result<(), CommitError> {
    // SAFETY: MAP_FIXED replaces a part of the reservation, which nobody else uses.
    let at = unsafe {
        libc::mmap(
            base.as_ptr().cast(),
            len_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | kind.flags,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(CommitError { step: Step::Map, source: io::Error::last_os_error() });
    }
    // SAFETY: the range was mapped just above. A kernel without transparent hugepages refuses: it is
    // advice.
    unsafe { libc::madvise(at, len_bytes, kind.advice) };
    let done = bind_all(base, bindings, warnings).and_then(|()| populate(base, len_bytes, bindings));
    if done.is_err() {
        // Hugepages above all are missed by others.
        // SAFETY: the whole span is mapped, by this pool to be, and nobody has seen it.
        unsafe { libc::munmap(base.as_ptr().cast(), span_bytes) };
    }
    done
}

/// Binds the parts of a mapping to their nodes; where that is not allowed it is a warning.
fn bind_all(base: NonNull<u8>, bindings: &[Binding], warnings: &mut Vec<String>) -> Result<(), CommitError> {
    let mut unbound = None;
    for binding in bindings {
        // SAFETY: the bindings lie within the mapping.
        let start = unsafe { base.add(binding.at) };
        if let Err(error) = bind(start, binding.len_bytes, MPOL_BIND, binding.node) {
            match error.raw_os_error() {
                // Forbidden, by a container's seccomp filter say, or a kernel without NUMA: slower, not wrong.
                Some(libc::EPERM | libc::ENOSYS) => unbound = Some(error),
                _ => return Err(CommitError { step: Step::Bind(*binding), source: error }),
            }
        }
    }
    if let Some(error) = unbound {
        warnings.push(format!(
            "pool: memory can't be bound to NUMA nodes ({error}); frames may lie on any node. Allow mbind(2), in a \
             container by --cap-add SYS_NICE"
        ));
    }
    Ok(())
}

/// Touches all pages: now rather than on the data path, where memory that can't be had is a SIGBUS.
fn populate(base: NonNull<u8>, len_bytes: usize, bindings: &[Binding]) -> Result<(), CommitError> {
    if cfg!(sheafio_scale) {
        return Ok(()); // The simulation never touches packets.
    }
    // Node by node, to name the one that has too little, and then what is bound to none.
    let whole = Binding { at: 0, len_bytes, node: 0 };
    for (part, is_bound) in bindings.iter().map(|part| (part, true)).chain([(&whole, false)]) {
        // SAFETY: the part lies within the mapping.
        let populated = unsafe {
            libc::madvise(base.add(part.at).as_ptr().cast(), part.len_bytes, libc::MADV_POPULATE_WRITE)
        };
        if populated < 0 {
            let source = io::Error::last_os_error();
            // EINVAL: a kernel before 5.14 does not know it, and faults the pages in one by one.
            if source.raw_os_error() != Some(libc::EINVAL) {
                return Err(CommitError { step: Step::Populate(is_bound.then_some(*part)), source });
            }
        }
    }
    Ok(())
}

/// Policies of mbind(2) (linux/mempolicy.h).
const MPOL_PREFERRED: i32 = 1;
const MPOL_BIND: i32 = 2;
/// The most NUMA nodes of a kernel (MAX_NUMNODES with the largest NODES_SHIFT, 10).
const MAX_NODES: u32 = 1024;

/// Sets the NUMA node that a range's memory comes from, before it is touched: mbind(2).
fn bind(start: NonNull<u8>, len_bytes: usize, policy: i32, node: u32) -> io::Result<()> {
    let mut nodes = [0_u64; MAX_NODES as usize / 64];
    let Some(word) = nodes.get_mut(node as usize / 64) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    *word = 1 << (node % 64);
    // SAFETY: the kernel reads MAX_NODES bits of `nodes`; of the range it only changes the policy.
    // (It takes the number of bits plus one.)
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start.as_ptr(),
            len_bytes,
            policy,
            nodes.as_ptr(),
            u64::from(MAX_NODES) + 1,
            0,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn free_hugepages() -> u64 {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
