//! What a pull brought.

use std::{
    fmt,
    ops::Deref,
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use crate::{
    mem::{Loan, Region},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        doorbell::Waker,
        flag::{is_raised, raise},
        release::{PLACES, release, take},
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
    /// Where its owner finds it: a map, and the place in there.
    place: OnceLock<(Arc<Places>, u32)>,
    waker: Waker,
}

/// Releases of one connection that were set, at most 64 to a map.
#[derive(Debug)]
struct Places {
    map: AtomicU64,
    /// Whether any map of the connection has something.
    any: Arc<AtomicBool>,
}

/// Finds the in-place bulk of one connection that was dropped. Bulk that is still read costs nothing.
#[derive(Debug, Default)]
pub struct Releases {
    any: Arc<AtomicBool>,
    maps: Vec<Arc<Places>>,
    free: Vec<u32>,
}

impl Releases {
    /// Watches `release`, whose bulk nobody else has yet. Returns the place that [`Releases::take`] gives once the bulk is dropped.
    pub fn watch(&mut self, release: &Release) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| self.grow());
        let map = &self.maps[(place / PLACES) as usize];
        let _ = release.place.set((Arc::clone(map), place % PLACES));
        place
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let first = u32::try_from(self.maps.len()).unwrap_or(u32::MAX) * PLACES;
        self.maps.push(Arc::new(Places { map: AtomicU64::new(0), any: Arc::clone(&self.any) }));
        self.free.extend((first + 1..first + PLACES).rev());
        first
    }

    /// Calls `each` with the place of every bulk that was dropped since the last time.
    #[inline]
    pub fn take(&mut self, each: impl FnMut(u32)) {
        if is_raised(&self.any) {
            self.take_any(each);
        }
    }

    fn take_any(&mut self, mut each: impl FnMut(u32)) {
        // SYNC POINT: place released. Lowered before the maps are read: a place set later raises it again.
        self.any.swap(false, Ordering::AcqRel);
        for (first, places) in (0..).step_by(PLACES as usize).zip(&self.maps) {
            let mut bits = take(&places.map);
            while bits != 0 {
                let place = first + bits.trailing_zeros();
                bits &= bits - 1;
                self.free.push(place);
                each(place);
            }
        }
    }
}

impl Release {
    /// Not yet dropped.
    #[must_use]
    pub fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { done: AtomicBool::new(false), place: OnceLock::new(), waker })
    }

    /// Makes it one that was not dropped yet. `false`: somebody still has it.
    pub(crate) fn reuse(this: &mut Arc<Self>) -> bool {
        let Some(release) = Arc::get_mut(this) else { return false };
        (release.done, release.place) = (AtomicBool::new(false), OnceLock::new());
        true
    }

    fn set(&self) {
        // Our reads are done before the worker tells the peer.
        raise(&self.done);
        if let Some((places, place)) = self.place.get() {
            release(&places.map, *place);
            raise(&places.any);
        }
        self.waker.ring();
    }

    /// Whether it was dropped.
    #[must_use]
    pub fn is_done(&self) -> bool {
        is_raised(&self.done)
    }
}
