//! Registered memory that is filled here and read by the peer.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

use crate::{Violation, mem::Region};

/// Where a loan returns to when it is dropped, on whatever thread.
pub trait LoanHome: Send + Sync + 'static {
    /// Takes the memory named by `ticket` back.
    fn give_back(&self, ticket: u64);

    /// Sets memory aside that a peer may still read although its connection is gone: it is never written again.
    fn set_aside(&self, ticket: u64) {
        self.give_back(ticket);
    }
}

/// A buffer of registered memory: it derefs to `[u8]`. Its holder may write it until it is sent, unless it is of [user
/// memory](crate::UserBytes), where writing panics. Dropping it unsent gives the memory back.
///
/// It may hold bytes of an earlier loan, of another peer too: write all of it, or [truncate](Loan::truncate) it. A peer that was
/// offered a loan can read more than it, by cheating: in shared memory everything in the same segment, over verbs the rest of the
/// buffer, and both of them also later, when other loans lie there.
pub struct Loan {
    bytes: NonNull<u8>,
    len: usize,
    ticket: u64,
    may_be_read: bool,
    is_read_only: bool,
    home: Arc<dyn LoanHome>,
}

// SAFETY: a loan is the only owner of its bytes until it is dropped (`Loan::new`'s promise), like a `Box<[u8]>`; of user
// memory it is one of several that only read.
unsafe impl Send for Loan {}
// SAFETY: as above; `&Loan` only reads.
unsafe impl Sync for Loan {}

impl Loan {
    /// A loan of `len` bytes at `bytes`.
    ///
    /// # Safety
    /// The bytes are initialised, stay mapped until `home.give_back(ticket)`, and nobody else in this process
    /// touches them until then. (A device or a peer may read them while the loan is on offer.)
    #[must_use]
    pub(crate) unsafe fn new(bytes: NonNull<u8>, len: usize, ticket: u64, home: Arc<dyn LoanHome>) -> Self {
        Self { bytes, len, ticket, may_be_read: false, is_read_only: false, home }
    }

    /// A loan in memory of its own, for providers that need no registration.
    ///
    /// # Errors
    /// What mmap says.
    #[doc(hidden)]
    pub fn anonymous(len: usize, ticket: u64) -> std::io::Result<Self> {
        struct Nobody;
        impl LoanHome for Nobody {
            fn give_back(&self, _: u64) {}
        }
        Self::anonymous_from(len, ticket, Arc::new(Nobody))
    }

    /// As [`Loan::anonymous`], and `home` hears of its end.
    ///
    /// # Errors
    /// What mmap says.
    #[doc(hidden)]
    pub fn anonymous_from(len: usize, ticket: u64, home: Arc<dyn LoanHome>) -> std::io::Result<Self> {
        struct Owner(#[allow(dead_code)] Region, Arc<dyn LoanHome>); // the region is held for its drop
        impl LoanHome for Owner {
            fn give_back(&self, ticket: u64) {
                self.1.give_back(ticket);
            }

            fn set_aside(&self, ticket: u64) {
                self.1.set_aside(ticket);
            }
        }
        if len == 0 {
            // SAFETY: no bytes are always initialised, mapped and nobody else's.
            return Ok(unsafe { Self::new(NonNull::dangling(), 0, ticket, home) });
        }
        let region = Region::anonymous(len)?;
        let bytes = region.base();
        // SAFETY: anonymous memory is zeroed, owned by `Owner`, and mapped until the loan drops its home.
        Ok(unsafe { Self::new(bytes, len, ticket, Arc::new(Owner(region, home))) })
    }

    /// The provider's name for this memory.
    #[must_use]
    #[doc(hidden)]
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Whether it returns to `home`.
    #[cfg(any(feature = "shm", feature = "tcp", feature = "verbs"))]
    pub(crate) fn is_of<T: LoanHome>(&self, home: &Arc<T>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.home), Arc::as_ptr(home))
    }

    /// Ends it, when it was offered and the peer never said that it is done with it.
    #[doc(hidden)]
    pub fn set_aside(mut self) {
        self.may_be_read = true;
    }

    /// Makes the loan read-only.
    #[must_use]
    pub(crate) fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Returns whether it cannot be written: a loan of user memory, on every provider.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Shortens the loan to its first `len` bytes, for good. A `len` above its length changes nothing.
    #[must_use]
    pub fn truncate(mut self, len: usize) -> Self {
        self.len = self.len.min(len);
        self
    }
}

impl Deref for Loan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new`'s promise: initialised, mapped, and only ours, or read by all who have it.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

/// To fill it.
///
/// # Panics
/// When it [cannot be written](Loan::is_read_only).
impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut [u8] {
        assert!(!self.is_read_only, "a loan of user memory is read only");
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.len) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.may_be_read {
            self.home.set_aside(self.ticket);
        } else {
            self.home.give_back(self.ticket);
        }
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({} bytes, ticket {})", self.len, self.ticket)
    }
}

/// Bytes of an offer on the wire.
pub const OFFER_BYTES: usize = 24;

/// What a peer needs to pull a loan. Opaque to the engine, which carries it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Remote address (verbs), offset in the segment (shm).
    pub address: u64,
    /// Remote key (verbs), segment (shm).
    pub key: u64,
    /// Length, bytes.
    pub len: u64,
}

impl Offer {
    /// As it travels, little endian.
    #[must_use]
    pub fn encode(&self) -> [u8; OFFER_BYTES] {
        let mut out = [0; OFFER_BYTES];
        out[0..8].copy_from_slice(&self.address.to_le_bytes());
        out[8..16].copy_from_slice(&self.key.to_le_bytes());
        out[16..24].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// Reads what a peer wrote; whether it is true is the provider's to check.
    ///
    /// # Errors
    /// [`Violation::Malformed`] when it is too short.
    pub fn decode(bytes: &[u8]) -> Result<Self, Violation> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_le_bytes).ok_or(Violation::Malformed { what: "bulk offer" })
        };
        Ok(Self { address: word(0)?, key: word(8)?, len: word(16)? })
    }
}
