//! Locks whose tables stay tables when a thread panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`. A poisoned lock means that another thread panicked while it changed plain tables: they are still tables.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
