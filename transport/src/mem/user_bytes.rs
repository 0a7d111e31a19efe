//! Memory of the user's, lent as it lies.
//!
//! ```text
//!  an owner ─ UserBytes ─ Gate::lend ─► Loan ─ offer ─► the peer may read ─ done ─► the loan ends
//!               │ each clone, each loan and each registration keeps the owner alive
//!               └ forget ─► the registrations go: those in use with their last loan
//! ```
//! A registration that outlives its memory shows a peer whatever comes to lie there next. Here it cannot: it holds the
//! owner, and the owner's bytes do not move.

use std::{
    fmt,
    ops::Deref,
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::mem::Loan;
#[cfg(feature = "verbs")]
use crate::mem::LoanHome;

/// Bytes of the user's that are lent to peers without a codec: kept alive and as they are by each clone of this. Read only; it
/// derefs to `[u8]`.
///
/// Make one `UserBytes` of one piece of memory, and clone it: [`UserBytes::forget`] reaches what was lent of it and its clones.
///
/// ```
/// use gimmal_transport::UserBytes;
///
/// let kept = UserBytes::new(vec![7; 100_000]); // or an `Arc<[u8]>`, `bytes::Bytes`, a mapped file
/// assert_eq!((kept.len(), kept[0]), (100_000, 7));
/// let lent = kept.clone(); // the same memory, for `Channel::lend` or `Cx::lend`
/// ```
#[derive(Clone)]
pub struct UserBytes {
    bytes: NonNull<u8>,
    len: usize,
    inner: Arc<Inner<dyn Send + Sync>>,
}

struct Inner<O: ?Sized> {
    keepers: Mutex<Vec<Weak<dyn Keeper>>>,
    owner: O,
}

/// Address and length: what a registration is known by.
pub(crate) type Place = (usize, usize);

/// A keeper of registrations of user memory.
pub(crate) trait Keeper: Send + Sync {
    /// Lets go of the one at `place`, if there is one.
    fn forget(&self, place: Place);
}

// SAFETY: the bytes are only read, and `inner` keeps their owner, which may be sent and shared itself.
unsafe impl Send for UserBytes {}
// SAFETY: as above.
unsafe impl Sync for UserBytes {}

impl UserBytes {
    /// Makes a loan of the bytes where they are, which cannot be written.
    ///
    /// # Safety
    /// `home` keeps a clone of this until `give_back(ticket)`.
    #[cfg(feature = "verbs")]
    pub(crate) unsafe fn loan(&self, ticket: u64, home: Arc<dyn LoanHome>) -> Loan {
        // SAFETY: initialised and mapped while somebody keeps them, which is the caller's promise. Others may read them, and
        // so do we: nothing is written through a loan that is read only.
        unsafe { Loan::new(self.bytes, self.len, ticket, home) }.read_only()
    }

    /// Makes bytes of the user's of `owner`: an `Arc<[u8]>`, a `Vec<u8>`, `bytes::Bytes`, a mapped file, a [`Bulk`](crate::Bulk).
    /// It is asked for them once, and dropped with the last clone, loan and registration, on whichever thread has that.
    ///
    /// A file that is mapped must keep its length and, while it is lent, its contents.
    #[must_use]
    pub fn new<O: AsRef<[u8]> + Send + Sync + 'static>(owner: O) -> Self {
        let inner = Arc::new(Inner { keepers: Mutex::default(), owner });
        let bytes = inner.owner.as_ref();
        let (bytes, len) = (NonNull::from(bytes).cast(), bytes.len());
        Self { bytes, len, inner }
    }

    /// Ends what is kept registered of these bytes in this process, so that their owner can go: at once where no loan uses it, else
    /// with the last such loan. Lending them again registers them again. Takes locks, and may block while a device deregisters
    /// memory (`ibv_dereg_mr(3)`).
    pub fn forget(&self) {
        let keepers = self.keepers(|keepers| keepers.clone());
        for keeper in keepers.iter().filter_map(Weak::upgrade) {
            keeper.forget(self.place());
        }
    }

    pub(crate) fn place(&self) -> Place {
        (self.bytes.addr().get(), self.len)
    }

    /// From here on `keeper` hears when they are to be forgotten.
    #[cfg(any(feature = "verbs", test))]
    pub(crate) fn kept_by<K: Keeper + 'static>(&self, keeper: &Arc<K>) {
        self.keepers(|keepers| {
            keepers.retain(|known| known.strong_count() > 0);
            let keeper = Arc::downgrade(keeper) as Weak<dyn Keeper>;
            if !keepers.iter().any(|known| Weak::ptr_eq(known, &keeper)) {
                keepers.push(keeper);
            }
        });
    }

    fn keepers<T>(&self, look: impl FnOnce(&mut Vec<Weak<dyn Keeper>>) -> T) -> T {
        // A list of pointers is whole after any panic.
        look(&mut self.inner.keepers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Deref for UserBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: what `owner.as_ref()` gave. It borrowed the owner, which `inner` keeps where it is and which nobody can
        // have by `&mut`: so the borrow may be as long as we live.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for UserBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for UserBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserBytes({} bytes)", self.len)
    }
}

/// What became of the user memory that a port lent, so far and now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UserMemory {
    /// Loans for which the memory was registered already.
    pub hits: u64,
    /// Loans for which it had to be registered.
    pub misses: u64,
    /// Registrations that ended to make room for others.
    pub evictions: u64,
    /// Pieces that are registered now, in use or not.
    pub pieces: u64,
    /// Bytes of those.
    pub registered_bytes: u64,
    /// Loans that are copies, where memory cannot be lent as it lies.
    pub copies: u64,
    /// Bytes of those.
    pub copied_bytes: u64,
}

impl UserMemory {
    /// Both together.
    #[must_use]
    #[doc(hidden)]
    pub const fn and(self, other: Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            evictions: self.evictions + other.evictions,
            pieces: self.pieces + other.pieces,
            registered_bytes: self.registered_bytes + other.registered_bytes,
            copies: self.copies + other.copies,
            copied_bytes: self.copied_bytes + other.copied_bytes,
        }
    }
}

/// Loans of user memory that are copies, counted from many threads.
#[derive(Default, Debug)]
pub struct Copies {
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Copies {
    /// Fills `loan`, which is as long, and counts it.
    pub fn lend(&self, mut loan: Loan, bytes: &UserBytes) -> Loan {
        loan.copy_from_slice(bytes);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        loan.read_only()
    }

    /// What was counted.
    pub fn counters(&self) -> UserMemory {
        let [copies, copied_bytes] = [&self.count, &self.bytes].map(|count| count.load(Ordering::Relaxed));
        UserMemory { copies, copied_bytes, ..UserMemory::default() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Counted(Vec<u8>, Arc<AtomicUsize>);

    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_owner_goes_once_with_the_last_clone() {
        let drops = Arc::new(AtomicUsize::new(0));
        let bytes = UserBytes::new(Counted(vec![7; 100], Arc::clone(&drops)));
        let other = bytes.clone();
        drop(bytes);
        assert_eq!((drops.load(Ordering::Relaxed), &*other), (0, &[7; 100][..]));
        std::thread::spawn(move || drop(other)).join().unwrap();
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn any_owner_of_bytes_will_do() {
        let shared: Arc<[u8]> = Arc::from(&b"shared"[..]);
        assert_eq!(UserBytes::new(Arc::clone(&shared)).place(), (shared.as_ptr().addr(), 6), "as they lie");
        assert_eq!(&*UserBytes::new(*b"inline"), b"inline");
        assert_eq!(&*UserBytes::new(&b"static"[..]), b"static");
        assert_eq!(&*UserBytes::new(Vec::new()), b"");
    }

    #[test]
    fn every_keeper_hears_of_the_end_once() {
        #[derive(Default)]
        struct Told(Mutex<Vec<Place>>);
        impl Keeper for Told {
            fn forget(&self, place: Place) {
                self.0.lock().unwrap().push(place);
            }
        }
        let (bytes, keeper, gone) = (UserBytes::new(vec![1, 2]), Arc::default(), Arc::<Told>::default());
        bytes.kept_by::<Told>(&keeper);
        bytes.clone().kept_by(&keeper);
        bytes.kept_by(&gone);
        drop(gone);
        bytes.forget();
        assert_eq!(*keeper.0.lock().unwrap(), [bytes.place()]);
    }
}
