//! Maps the pool's packet memory, once and for good.
//!
//! Owns: the mmap calls. Never does: unmap, hand out references. Invariant: the address range up to
//! the next power of two above the mapping belongs to this pool alone, so that one mask tells
//! whether an offset can be one of this pool's.
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
const HUGEPAGE_BYTES: usize = 2 << 20;

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
    pub(crate) warning: Option<String>,
}

/// Maps `len_bytes` of zeroed, populated memory.
pub(crate) fn map(len_bytes: usize, hugepages: Hugepages) -> Result<Mapping, PoolError> {
    let len_bytes = len_bytes.next_multiple_of(HUGEPAGE_BYTES);
    let span_bytes = len_bytes.next_power_of_two();
    let failed = |source| PoolError::Map { mib: (len_bytes >> 20) as u64, source };

    let pages = (len_bytes / HUGEPAGE_BYTES) as u64;
    let mut warning = None;
    if hugepages != Hugepages::Off {
        // A failed MAP_FIXED may leave a hole in its range, where another thread's mapping can come to
        // lie; so base pages get a range of their own below.
        let base = reserve(span_bytes).map_err(failed)?;
        match commit(base, len_bytes, libc::MAP_HUGETLB, libc::MADV_NORMAL) {
            Ok(()) => return Ok(Mapping { base, span_bytes, pages: Pages::Huge, warning }),
            Err(_) if hugepages == Hugepages::Require => {
                return Err(PoolError::Hugepages { pages, free: free_hugepages() });
            }
            Err(error) => {
                warning = Some(format!(
                    "pool: too few hugepages of 2 MiB: it takes {pages}, {} are free ({error}); using base pages. \
                     For fewer TLB misses: echo {pages} > /proc/sys/vm/nr_hugepages",
                    free_hugepages()
                ));
            }
        }
    }
    let base = reserve(span_bytes).map_err(failed)?;
    let advice = if hugepages == Hugepages::Off { libc::MADV_NOHUGEPAGE } else { libc::MADV_HUGEPAGE };
    commit(base, len_bytes, 0, advice).map_err(failed)?;
    Ok(Mapping { base, span_bytes, pages: Pages::Base, warning })
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
    let slack = start.align_offset(HUGEPAGE_BYTES);
    // SAFETY: slack is less than HUGEPAGE_BYTES, so the result lies within the reservation.
    Ok(unsafe { NonNull::new_unchecked(start.add(slack)) })
}

/// Puts memory behind the first `len_bytes` of the reservation.
fn commit(base: NonNull<u8>, len_bytes: usize, flags: i32, advice: i32) -> io::Result<()> {
    // SAFETY: MAP_FIXED replaces a part of the reservation, which nobody else uses.
    let at = unsafe {
        libc::mmap(
            base.as_ptr().cast(),
            len_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | flags,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range was mapped just above. A kernel without transparent hugepages refuses: it is
    // advice.
    unsafe { libc::madvise(at, len_bytes, advice) };
    // Now rather than on the data path: there, memory that can't be had is a SIGBUS.
    // SAFETY: the range was mapped just above.
    if unsafe { libc::madvise(at, len_bytes, libc::MADV_POPULATE_WRITE) } < 0 {
        let error = io::Error::last_os_error();
        // EINVAL: a kernel before 5.14 does not know it, and faults the pages in one by one.
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
    }
    Ok(())
}

fn free_hugepages() -> u64 {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
