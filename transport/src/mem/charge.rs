//! What peers' memory takes of this process: mappings and address space, which are limited for all of it together.
//!
//! A mapping of a peer's file costs the peer next to nothing, and this process one of the `vm.max_map_count` mappings that its
//! threads, its rings and its allocator need as well.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::PortError;

/// Half of `vm.max_map_count`, where nobody changed it.
pub(crate) const MAPPINGS_MAX: u64 = 32_768;
/// Half of what a process can address with 47 bits.
const BYTES_MAX: u64 = 1 << 46;

static MAPPINGS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// One mapping of a peer's file, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    bytes: u64,
}

impl Charge {
    /// Counts a mapping of `bytes`.
    ///
    /// # Errors
    /// [`PortError::Limit`] when peers have used up what is theirs.
    pub(crate) fn take(bytes: u64) -> Result<Self, PortError> {
        let add = |counter: &AtomicU64, more, field, limit| {
            let room = |now: u64| now.checked_add(more).filter(|sum| *sum <= limit);
            let full = |now: u64| PortError::Limit { field, value: now.saturating_add(more), limit };
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).map_err(full)
        };
        add(&MAPPINGS, 1, "mappings of peers' memory", MAPPINGS_MAX)?;
        if let Err(error) = add(&BYTES, bytes, "bytes of peers' memory", BYTES_MAX) {
            MAPPINGS.fetch_sub(1, Ordering::Relaxed);
            return Err(error);
        }
        Ok(Self { bytes })
    }
}

#[cfg(test)]
thread_local! {
    /// Bytes of peers' memory that this thread unmapped.
    static UNMAPPED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Bytes of peers' memory that the calling thread unmapped.
#[cfg(test)]
pub(crate) fn unmapped_here() -> u64 {
    UNMAPPED.get()
}

impl Drop for Charge {
    fn drop(&mut self) {
        #[cfg(test)]
        UNMAPPED.set(UNMAPPED.get() + self.bytes);
        MAPPINGS.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
