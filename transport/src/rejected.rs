//! What a listener turned away by itself: how many, and why the last.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use crate::RejectReason;

/// What a listener turned away by itself: how many, and why the last. One side notes, another reads.
#[derive(Debug, Default)]
pub struct Rejected {
    count: AtomicU64,
    last: Mutex<Option<RejectReason>>,
}

impl Rejected {
    /// Counts one more.
    pub fn note(&self, reason: RejectReason) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Why the last was turned away.
    pub fn last(&self) -> Option<RejectReason> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
