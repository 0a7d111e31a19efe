//! A completion queue that keeps a mapping offset from siw's library, which takes it for none.
//!
//! ```text
//!  offsets   0 ────────── 0x9_0000 ────────── 0x10_0000 ──►
//!            └─ the shield, as long as the device is held ─┘  everything else of the process on this device
//! ```
//! The kernel gives each queue of a context the lowest free offset to be mapped at. libsiw fails to make a queue that is
//! given the offset 0x9_0000 (EINVAL), and the next one is given it again: no more queue pairs can be made. So the first
//! mapping of a context covers that offset and stays. One that could not be made is tried again while nothing uses the
//! device. The kernel rounds its entries up to a power of two: one of half the size would end before the offset, and one
//! that covers it takes 1 MiB of the kernel's memory.

use std::ptr::NonNull;

use crate::sys;

/// SIW_INVAL_UOBJ_KEY (`rdma/siw-abi.h`).
const NO_OFFSET: u64 = 0x9_0000;
/// Bytes of an entry: `struct siw_cqe`.
const ENTRY_BYTES: u64 = 32;
/// siw's vendor id (SIW_VENDOR_ID).
const SIW_VENDOR: u32 = 0x0062_6d74;
/// The fewest that reach beyond the start of the offset's page, whatever else lies in the queue.
const ENTRIES: i32 = 18_433;
const _: () = assert!(ENTRIES as u64 * ENTRY_BYTES == NO_OFFSET + ENTRY_BYTES);

/// A completion queue that covers the offset, and is used for nothing.
#[derive(Debug)]
pub(super) struct Shield(NonNull<sys::ibv_cq>);

impl Shield {
    /// Makes one on a device that needs it, before anything of its context is mapped.
    ///
    /// # Safety
    /// The context is open, and stays open as long as the shield exists.
    pub(super) unsafe fn over(context: NonNull<sys::ibv_context>) -> Option<Self> {
        let mut attributes: sys::ibv_device_attr = sys::zeroed();
        // SAFETY: open by the caller's promise, and the place is as large as the call writes.
        let returned = unsafe { sys::ibv_query_device(context.as_ptr(), &raw mut attributes) };
        let is_known = sys::verbs_result(returned).is_ok();
        if !(is_known && needs_one(attributes.vendor_id, attributes.max_cqe)) {
            return None;
        }
        let (cookie, channel) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: open by the caller's promise. Nothing ever completes there, so there is neither channel nor cookie; vector 0
        // always exists.
        let raw = unsafe { sys::ibv_create_cq(context.as_ptr(), ENTRIES, cookie, channel, 0) };
        sys::pointer_result(raw)
            .inspect_err(|errno| tracing::warn!(errno, "siw may make only some 20 queue pairs: no shield"))
            .ok()
            .map(Self)
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        // SAFETY: the context is still open, by the promise made to `over`. No queue pair was ever made on the queue.
        let returned = unsafe { sys::ibv_destroy_cq(self.0.as_ptr()) };
        if let Err(errno) = sys::verbs_result(returned) {
            tracing::warn!(errno, "ibv_destroy_cq failed: a removed device is not let go of");
        }
    }
}

/// Whether a device of this vendor, whose completion queues hold `entries` at most, needs a shield and can have one.
const fn needs_one(vendor: u32, entries: i32) -> bool {
    vendor == SIW_VENDOR && entries >= ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offset of what the kernel gives a mapping of so many bytes: the first gap among `taken` that has room.
    fn offset(taken: &[(u64, u64)], bytes: u64, page: u64) -> (u64, u64) {
        let pages = bytes.div_ceil(page) * page;
        let ends = taken.iter().map(|&(_, end)| end);
        let mut starts: Vec<u64> = ends.chain([0]).collect();
        starts.sort_unstable();
        let is_free = |&start: &u64| taken.iter().all(|&(from, to)| start + pages <= from || start >= to);
        let start = starts.into_iter().find(is_free).unwrap();
        (start, start + pages)
    }

    #[test]
    fn only_siw_needs_a_shield() {
        assert!(needs_one(SIW_VENDOR, 1_024_000));
        assert!(!needs_one(SIW_VENDOR, 1024), "its queues are too small");
        assert!(!needs_one(0x00ff_ffff, 32_767), "rxe");
        assert!(!needs_one(0x15b3, 4_194_303) && !needs_one(0x1425, 65_536), "adapters");
    }

    /// Queues of any size come and go: none is given the offset that libsiw takes for none. Without a shield one is.
    #[test]
    fn nothing_is_mapped_at_the_offset_that_means_none() {
        for page in [4096, 16_384, 65_536] {
            for has_shield in [false, true] {
                let entries = u64::try_from(ENTRIES).unwrap();
                let shield = offset(&[], entries * ENTRY_BYTES, page);
                let mut taken = if has_shield { vec![shield] } else { Vec::new() };
                let mut hits = 0;
                for count in 0..600_u64 {
                    let next = offset(&taken, 4096 * (1 + count * 7 % 5), page);
                    hits += u64::from(next.0 == NO_OFFSET);
                    taken.push(next);
                    if count % 100 == 99 {
                        let first = usize::from(has_shield);
                        taken.drain(first..taken.len() / 2);
                    }
                }
                assert_eq!(hits > 0, !has_shield, "{hits} with pages of {page}");
            }
        }
    }
}
