//! What a pull brought.

use std::{fmt, ops::Deref, ptr::NonNull, sync::Arc};

use crate::{
    mem::{Loan, Region},
    sync::{
        atomic::AtomicBool,
        doorbell::Waker,
        flag::{is_raised, raise},
    },
};

/// Pulled bytes, read only. `Send`: a handler may keep them as long as it likes; dropping them is one store.
pub struct Bulk {
    bytes: NonNull<u8>,
    len: usize,
    memory: Memory,
}

#[allow(dead_code)] // held for their drop
enum Memory {
    Own(Loan),
    Heap(Box<[u8]>),
    Peer(Arc<Region>, Arc<Release>),
    Held(Loan, Arc<Release>),
}

impl Memory {
    fn release(&self) -> Option<&Arc<Release>> {
        match self {
            Self::Own(_) | Self::Heap(_) => None,
            Self::Peer(_, release) | Self::Held(_, release) => Some(release),
        }
    }
}

// SAFETY: the bytes are only read, nobody in this process writes them while the bulk exists (`in_place`'s promise, or
// the loan inside), and the memory is kept by `memory`.
unsafe impl Send for Bulk {}
// SAFETY: as above.
unsafe impl Sync for Bulk {}

impl Bulk {
    /// Bytes that a device brought into memory of our own.
    #[must_use]
    #[doc(hidden)]
    pub fn own(loan: Loan) -> Self {
        Self { bytes: NonNull::from(&*loan).cast(), len: loan.len(), memory: Memory::Own(loan) }
    }

    /// Bytes in memory of their own.
    #[must_use]
    #[doc(hidden)]
    pub fn on_heap(bytes: Box<[u8]>) -> Self {
        Self { bytes: NonNull::from(&*bytes).cast(), len: bytes.len(), memory: Memory::Heap(bytes) }
    }

    /// Bytes read where the peer has them. `release` is set when this is dropped.
    ///
    /// # Safety
    /// The peer leaves these bytes alone until it hears of the release: the trust that in-place reading rests on.
    #[must_use]
    pub(crate) unsafe fn in_place(
        region: Arc<Region>,
        offset: usize,
        len: usize,
        release: Arc<Release>,
    ) -> Self {
        Self { bytes: region.at(offset, len), len, memory: Memory::Peer(region, release) }
    }

    /// Bytes of our own that count as the peer's: its loan is free only after `release` is set. For the simulator.
    #[must_use]
    #[doc(hidden)]
    pub fn held(loan: Loan, release: Arc<Release>) -> Self {
        Self { bytes: NonNull::from(&*loan).cast(), len: loan.len(), memory: Memory::Held(loan, release) }
    }

    /// Set when in-place bytes are dropped; `None` when the bytes are our own and the peer's loan is free already.
    #[must_use]
    #[doc(hidden)]
    pub fn release(&self) -> Option<Arc<Release>> {
        self.memory.release().map(Arc::clone)
    }
}

impl Deref for Bulk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped while `memory` lives, and not written while we exist (see `in_place`, `own`).
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

/// So it can be lent on: see [`UserBytes`](crate::UserBytes).
impl AsRef<[u8]> for Bulk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        if let Some(release) = self.memory.release() {
            release.set();
        }
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bulk({} bytes)", self.len)
    }
}

/// Tells the worker that an in-place bulk was dropped, from any thread.
#[derive(Debug)]
pub struct Release {
    done: AtomicBool,
    waker: Waker,
}

impl Release {
    /// Not yet dropped.
    #[must_use]
    pub fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { done: AtomicBool::new(false), waker })
    }

    /// Makes it one that was not dropped yet. `false`: somebody still has it.
    pub(crate) fn reuse(this: &mut Arc<Self>) -> bool {
        Arc::get_mut(this).map(|release| release.done = AtomicBool::new(false)).is_some()
    }

    fn set(&self) {
        // Our reads are done before the worker tells the peer.
        raise(&self.done);
        self.waker.ring();
    }

    /// Whether it was dropped.
    #[must_use]
    pub fn is_done(&self) -> bool {
        is_raised(&self.done)
    }
}
