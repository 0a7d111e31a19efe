//! A 64-bit word that two sides share: in a mapping, or in a model.

use super::atomic::Ordering;

/// One word with one writer. The protocols of this module are written over it, so that loom runs the same code.
pub(crate) trait Word {
    /// Reads it once.
    fn load(&self, order: Ordering) -> u64;
    /// Writes it; only its owner does.
    fn store(&self, value: u64, order: Ordering);
}

impl Word for std::sync::atomic::AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }
}

#[cfg(all(test, loom))]
impl Word for loom::sync::atomic::AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }
}
