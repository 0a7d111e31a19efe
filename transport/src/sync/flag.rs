//! A flag that is raised once: everything done before is visible to a thread that sees it.

use super::atomic::{AtomicBool, Ordering};

/// Raises it.
#[inline]
pub(crate) fn raise(flag: &AtomicBool) {
    // SYNC POINT: flag raised. Pairs with `is_raised`.
    flag.store(true, Ordering::Release);
}

/// Whether it was raised.
#[inline]
pub(crate) fn is_raised(flag: &AtomicBool) -> bool {
    // SYNC POINT: flag raised. Pairs with `raise`.
    flag.load(Ordering::Acquire)
}
