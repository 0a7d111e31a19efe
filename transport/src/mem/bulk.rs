//! What a pull brought.

use std::{
    fmt,
    ops::Deref,
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use crate::{
    mem::{Debit, Loan, Region},
    sync::{
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        doorbell::Waker,
        flag::{is_raised, raise},
        release::{PLACES, release, take},
    },
};

/// Bytes that a peer lent, read only: it derefs to `[u8]`. Over shared memory they are read where the peer wrote them, from another
/// host they were brought into memory of this process.
///
/// Any thread may keep it as long as it likes, and dropping it is one store. The peer's memory is not free before that, and what
/// was brought counts against `port.loan_bytes_max` of its connection. The bytes stay readable when the connection is gone.
pub struct Bulk {
    bytes: NonNull<u8>,
    len: usize,
    memory: Memory,
}

#[allow(dead_code)] // held for their drop
enum Memory {
    Own(Loan),
    Heap(Box<[u8]>, Debit),
    Peer(Arc<Region>, Arc<Release>),
    Held(Loan, Arc<Release>),
}

impl Memory {
    fn release(&self) -> Option<&Arc<Release>> {
        match self {
            Self::Own(_) | Self::Heap(..) => None,
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

    /// Bytes in memory of their own, which are counted.
    #[must_use]
    #[doc(hidden)]
    pub fn on_heap(bytes: Box<[u8]>, debit: Debit) -> Self {
        Self { bytes: NonNull::from(&*bytes).cast(), len: bytes.len(), memory: Memory::Heap(bytes, debit) }
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
    /// Where its owner looks, and which place there is its own: [`NOWHERE`] until it is watched.
    places: OnceLock<Arc<Places>>,
    place: AtomicU32,
    waker: Waker,
}

/// The place of a release that nobody watches.
const NOWHERE: u32 = u32::MAX;

/// Releases of one connection that were set, 64 to a map: row `n` has 2^n maps once there are so many places.
#[derive(Debug, Default)]
struct Places {
    /// Whether any map has something.
    any: AtomicBool,
    rows: [OnceLock<Box<[AtomicU64]>>; ROWS],
}

/// As many rows have a place for every number.
const ROWS: usize = (u32::MAX / PLACES + 1).ilog2() as usize + 1;

impl Places {
    /// The row of the map that `place` is in, and where it is there.
    const fn find(place: u32) -> (usize, usize) {
        let number = place / PLACES + 1;
        let row = number.ilog2();
        (row as usize, (number - (1 << row)) as usize)
    }

    fn maps(&self) -> impl Iterator<Item = &AtomicU64> {
        self.rows.iter().map_while(OnceLock::get).flatten()
    }

    fn release(&self, place: u32) {
        let (row, at) = Self::find(place);
        if let Some(map) = self.rows[row].get().and_then(|maps| maps.get(at)) {
            release(map, place % PLACES);
            raise(&self.any);
        }
    }
}

/// Finds the in-place bulk of one connection that was dropped. Bulk that is still read costs nothing.
#[derive(Debug, Default)]
pub struct Releases {
    /// Made with the first place: most connections have none, and it is large.
    places: OnceLock<Arc<Places>>,
    made: u32,
    free: Vec<u32>,
}

impl Releases {
    /// Watches `release`, whose bulk nobody else has yet. Returns the place that [`Releases::take`] gives once the bulk is dropped.
    /// No other `Releases` may ever have watched it.
    pub fn watch(&mut self, release: &Release) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| self.grow());
        let own = self.places.get_or_init(Arc::default);
        let places = release.places.get_or_init(|| Arc::clone(own));
        assert!(Arc::ptr_eq(places, own), "a release is used again by its own connection");
        // The handover of the bulk to another thread publishes this store.
        release.place.store(place, Ordering::Relaxed);
        place
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let first = self.made;
        self.made = first.saturating_add(PLACES);
        let (row, _) = Places::find(first);
        self.places.get_or_init(Arc::default).rows[row]
            .get_or_init(|| (0..1 << row).map(|_| AtomicU64::new(0)).collect());
        self.free.extend((first + 1..self.made).rev());
        first
    }

    /// Calls `each` with the place of every bulk that was dropped since the last time.
    #[inline]
    pub fn take(&mut self, each: impl FnMut(u32)) {
        if let Some(places) = self.places.get().filter(|places| is_raised(&places.any)) {
            Self::take_any(places, &mut self.free, each);
        }
    }

    fn take_any(places: &Places, free: &mut Vec<u32>, mut each: impl FnMut(u32)) {
        // SYNC POINT: place released. Lowered before the maps are read: a place set later raises it again.
        places.any.swap(false, Ordering::AcqRel);
        for (first, map) in (0..).step_by(PLACES as usize).zip(places.maps()) {
            let mut bits = take(map);
            while bits != 0 {
                let place = first + bits.trailing_zeros();
                bits &= bits - 1;
                free.push(place);
                each(place);
            }
        }
    }
}

impl Release {
    /// Not yet dropped.
    #[must_use]
    pub fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            done: AtomicBool::new(false),
            places: OnceLock::new(),
            place: AtomicU32::new(NOWHERE),
            waker,
        })
    }

    /// Makes it one that was not dropped yet, for another bulk of the same connection. `false`: somebody still has it.
    pub(crate) fn reuse(this: &mut Arc<Self>) -> bool {
        let Some(release) = Arc::get_mut(this) else { return false };
        (release.done, release.place) = (AtomicBool::new(false), AtomicU32::new(NOWHERE));
        true
    }

    fn set(&self) {
        // Our reads are done before the worker tells the peer.
        raise(&self.done);
        let place = self.place.load(Ordering::Relaxed);
        if let Some(places) = self.places.get().filter(|_| place != NOWHERE) {
            places.release(place);
        }
        self.waker.ring();
    }

    /// Whether it was dropped.
    #[must_use]
    pub fn is_done(&self) -> bool {
        is_raised(&self.done)
    }
}
