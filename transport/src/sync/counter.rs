//! A number that one thread counts and any other reads.

use super::atomic::{AtomicU64, Ordering};

/// One number with one writer: exact there, and never behind what another thread read before.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// What was counted so far.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts; called by the one writer alone, so no read-modify-write is needed.
    #[inline]
    pub fn add(&self, by: u64) {
        self.0.store(self.get().wrapping_add(by), Ordering::Relaxed);
    }

    /// One more.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// One less, of a number that goes both ways.
    #[inline]
    pub fn decrement(&self) {
        self.add(u64::MAX);
    }
}
