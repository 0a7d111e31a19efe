//! Asking for a cache line before it is written, or read.

use std::ptr::NonNull;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Fetches the line of `place` to be written soon. A line that another core has read last takes as long to return
/// as a message takes to arrive; a prefetch overlaps that with other work. A hint: no byte changes, and a writer of
/// the line only takes it back.
#[inline(always)]
pub(crate) fn prefetch_to_write(place: NonNull<u8>) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint that neither reads nor writes memory as the program sees it and faults on no address; processors
    // without it do nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place.as_ptr(), options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a hint, as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) place.as_ptr(), options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = place;
}

/// Fetches the line of `place` to be read soon; as [`prefetch_to_write`] otherwise.
#[inline(always)]
pub(crate) fn prefetch_to_read(place: NonNull<u8>) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) place.as_ptr(), options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) place.as_ptr(), options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = place;
}
