//! Memory for answers of the kernel that may be longer than was asked for.
//!
//! Owns: a mapping, whose last page nobody may touch. Never does: call anything that writes to it. Invariant: the words
//! end where that page begins, so a call that writes on fails with EFAULT, and no other memory is damaged.
//!
//! ```text
//!   | not used | the words | a page without access |
//! ```
//!
//! The ethtool commands that copy names and statistics take no size: they write as many as the device has at that
//! moment (net/ethtool/ioctl.c, `ethtool_get_strings` and `ethtool_get_stats`), which may be another device by then, as they
//! find it by its name. Room to spare would only make it rare. Newer kernels write nothing, and say so in the count, where
//! another number was asked for.

use std::{
    io,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
    slice,
};

use super::sys::page_bytes;

/// Words that end at the fence; all zero at first.
pub(super) struct Fenced {
    map: NonNull<u8>,
    map_bytes: usize,
    /// The first word.
    start: NonNull<u32>,
    words: usize,
}

impl Fenced {
    pub(super) fn new(words: usize) -> io::Result<Self> {
        let page = page_bytes();
        let open_bytes = (words * size_of::<u32>()).next_multiple_of(page);
        let map_bytes = open_bytes + page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let map = unsafe { libc::mmap(ptr::null_mut(), map_bytes, libc::PROT_NONE, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(map.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        // SAFETY: the open part lies inside of the mapping, and the words at its end; whole words before a page are
        // aligned as words.
        let start = unsafe { map.add(open_bytes - words * size_of::<u32>()).cast() };
        let fenced = Self { map, map_bytes, start, words };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the open part is this mapping's, and nobody knows it yet.
        if open_bytes > 0 && unsafe { libc::mprotect(map.as_ptr().cast(), open_bytes, access) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(fenced)
    }
}

impl Deref for Fenced {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        // SAFETY: the words are mapped, were zeroed by the kernel, and are borrowed with this.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl DerefMut for Fenced {
    fn deref_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above; borrowed for one.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; the words are borrowed no more.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::af_xdp::{
        driver::{ETHTOOL_GSTRINGS, STRING_WORDS},
        interface::ethtool,
    };

    /// The loopback device has some sixty features, whose names are asked for with room for fewer.
    #[test]
    fn what_the_kernel_writes_beyond_the_words_fails_at_the_fence() {
        const ETH_SS_FEATURES: u32 = 4;
        for names in [0, 1, 8, 1000] {
            let mut strings = Fenced::new(3 + names * STRING_WORDS).unwrap();
            assert!(strings.iter().all(|word| *word == 0));
            strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, 0]);
            let asked = ethtool("lo", &mut strings);
            if names < 1000 {
                assert_eq!(asked.unwrap_err().raw_os_error(), Some(libc::EFAULT), "{names}");
            } else {
                asked.unwrap();
                assert!(strings[2] > 8 && strings[3] != 0);
            }
        }
    }

    #[test]
    fn words_of_any_number_can_be_written() {
        for words in [1, 1023, 1024, 1025, 70_000] {
            let mut fenced = Fenced::new(words).unwrap();
            fenced.fill(7);
            assert_eq!((fenced.len(), fenced[words - 1]), (words, 7));
        }
    }
}
