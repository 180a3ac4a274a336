//! The time-stamp counter: the clock that busy and idle time is accounted with.

/// The CPU's time-stamp counter, in cycles of its own constant rate. It is not ordered against
/// other instructions: good for intervals of a whole poll, not of a few instructions.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC, and Linux leaves it enabled in user space.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The CPU's virtual counter, in ticks of its own constant rate (Arm ARM, CNTVCT_EL0).
#[inline(always)]
#[cfg(target_arch = "aarch64")]
pub fn cycles() -> u64 {
    let ticks: u64;
    // SAFETY: reading CNTVCT_EL0 has no side effect, and Linux leaves it enabled in user space.
    unsafe {
        std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
    };
    ticks
}
