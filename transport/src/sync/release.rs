//! Places that are lent by one owner and given back by any thread, in any order.
//!
//! ```text
//!  dropper:  done reading ; bit of its place (Release)        owner:  all bits (Acquire) ; the places are its own again
//! ```
//! There is room for every place that was lent, so a release never waits and never fails.

use super::atomic::{AtomicU64, Ordering};

/// Places of one map.
pub(crate) const PLACES: u32 = u64::BITS;

/// Gives `place` back.
#[inline]
pub(crate) fn release(map: &AtomicU64, place: u32) {
    // SYNC POINT: place released. Pairs with `take`; an earlier dropper's release is kept by the read-modify-write.
    map.fetch_or(1 << place, Ordering::Release);
}

/// The places that were given back since the last time, as bits. One load while there are none.
#[inline]
pub(crate) fn take(map: &AtomicU64) -> u64 {
    if map.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    // SYNC POINT: place released. Pairs with `release`.
    map.swap(0, Ordering::Acquire)
}
