//! What a listener turned away by itself: how many, and why the last.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use crate::RejectReason;

/// See the module. One side notes, another reads.
#[derive(Debug, Default)]
pub(crate) struct Rejected {
    count: AtomicU64,
    last: Mutex<Option<RejectReason>>,
}

impl Rejected {
    pub(crate) fn note(&self, reason: RejectReason) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn last(&self) -> Option<RejectReason> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
