//! Memory that a peer uses by itself, at any time (contract, clause 8): nobody here has a slice of it.
//!
//! ```text
//!  Exposed  ours ─ Transfer::show ─► Remote, 24 bytes in a message ─► the peer's Transfer::access(OneSided)
//!     └─ Words  the mapping, on whichever side: touched by atomic operations alone
//! ```

use std::{
    fmt,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering, fence},
    },
};

use crate::{
    AccessError, Violation,
    mem::{Loan, Offer, Region, loan::OFFER_BYTES},
};

const WORD_BYTES: usize = size_of::<u64>();
const PAGE: usize = 4096;

/// Memory that others change while it is read: words of 8 bytes, in this machine's byte order. A handler uses the [`Exposed`]
/// memory of its server by it.
///
/// Every access is by atomic words, so no word is torn. A call that spans several words accesses them one by one, in no
/// order that others could rely on. Calls keep their order: a reader that sees what a later call wrote sees on its next
/// read what the earlier ones wrote.
#[derive(Debug)]
pub struct Words {
    region: Region,
    len: u64,
}

impl Words {
    /// What has to be mapped for `len` bytes: behind them lies the word that says that they are withdrawn.
    pub(crate) const fn mapped_bytes(len: usize) -> usize {
        (len + 2 * WORD_BYTES).next_multiple_of(PAGE)
    }

    /// `len` bytes, zeroed, of this process alone.
    ///
    /// # Errors
    /// No memory for them.
    #[doc(hidden)]
    pub fn anonymous(len: usize) -> std::io::Result<Self> {
        Ok(Self::new(Region::anonymous(Self::mapped_bytes(len))?, len))
    }

    /// The first `len` bytes of `region`, of which [`Words::mapped_bytes`] are mapped and writable.
    pub(crate) fn new(region: Region, len: usize) -> Self {
        assert!(region.len() >= Self::mapped_bytes(len), "its caller mapped too little");
        Self { region, len: len as u64 }
    }

    /// All of `region`, for a test.
    #[cfg(feature = "testing")]
    pub(crate) fn of(region: Region) -> Self {
        Self { len: region.len() as u64, region }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn all(&self) -> &[AtomicU64] {
        // SAFETY: a whole mapping, page-aligned, that lives as long as `self`; this process touches it by these atomic
        // words alone, as all access goes through here, and whoever else does is another process or a device.
        unsafe {
            std::slice::from_raw_parts(self.region.base().as_ptr().cast(), self.region.len() / WORD_BYTES)
        }
    }

    /// The word that is not 0 when they are withdrawn.
    fn end(&self) -> &AtomicU64 {
        &self.all()[self.region.len() / WORD_BYTES - 1]
    }

    fn place(&self, at: u64, bytes: usize) -> Result<usize, AccessError> {
        inside(at, bytes as u64, self.len)?;
        usize::try_from(at).map_err(|_| AccessError::Outside { at, bytes: bytes as u64, len: self.len })
    }

    fn word(&self, at: u64) -> Result<&AtomicU64, AccessError> {
        aligned(at)?;
        Ok(&self.all()[self.place(at, WORD_BYTES)? / WORD_BYTES])
    }

    /// Returns the word at the offset `at`, bytes, in this machine's byte order. Never blocks.
    ///
    /// # Errors
    /// [`AccessError::Misaligned`] unless `at` is a multiple of 8, [`AccessError::Outside`] beyond the end.
    pub fn load(&self, at: u64) -> Result<u64, AccessError> {
        Ok(self.word(at)?.load(Ordering::Acquire))
    }

    /// Sets the word at the offset `at`, bytes, in this machine's byte order. Never blocks.
    ///
    /// # Errors
    /// [`AccessError::Misaligned`] unless `at` is a multiple of 8, [`AccessError::Outside`] beyond the end.
    pub fn store(&self, at: u64, value: u64) -> Result<(), AccessError> {
        self.word(at)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Fills `into` with the bytes from the offset `at` on, each word as it was at some moment of the copy. Never blocks.
    ///
    /// # Errors
    /// [`AccessError::Outside`] if they reach beyond the end; nothing is read then.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let first = self.place(at, into.len())?;
        let (skip, mut words) = (first % WORD_BYTES, self.all()[first / WORD_BYTES..].iter());
        let mut next = || words.next().map_or(0, |word| word.load(Ordering::Relaxed)).to_ne_bytes();
        let (head, rest) = into.split_at_mut(head_bytes(skip, into.len()));
        if !head.is_empty() {
            head.copy_from_slice(&next()[skip..skip + head.len()]);
        }
        let (middle, tail) = rest.as_chunks_mut::<WORD_BYTES>();
        middle.iter_mut().for_each(|chunk| *chunk = next());
        if !tail.is_empty() {
            tail.copy_from_slice(&next()[..tail.len()]);
        }
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Writes `from` to the offset `at`, word by word. The other bytes of the first and the last word are left to others. Never
    /// blocks.
    ///
    /// # Errors
    /// [`AccessError::Outside`] if the bytes reach beyond the end; nothing is written then.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), AccessError> {
        let first = self.place(at, from.len())?;
        fence(Ordering::Release);
        let (skip, mut words) = (first % WORD_BYTES, self.all()[first / WORD_BYTES..].iter());
        let (head, rest) = from.split_at(head_bytes(skip, from.len()));
        let part = |word: Option<&AtomicU64>, skip: usize, bytes: &[u8]| {
            let Some(word) = word.filter(|_| !bytes.is_empty()) else { return };
            let change = |old: u64| {
                let mut new = old.to_ne_bytes();
                new[skip..skip + bytes.len()].copy_from_slice(bytes);
                Some(u64::from_ne_bytes(new))
            };
            // Never refused: the closure always has a value.
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        };
        if !head.is_empty() {
            part(words.next(), skip, head);
        }
        let (middle, tail) = rest.as_chunks::<WORD_BYTES>();
        for (chunk, word) in middle.iter().zip(&mut words) {
            word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        part(words.next(), 0, tail);
        Ok(())
    }

    /// Nobody is to use them any more.
    fn withdraw(&self) {
        self.end().store(1, Ordering::Release);
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.end().load(Ordering::Acquire) != 0
    }
}

/// How many of `bytes` lie before the next whole word.
fn head_bytes(skip: usize, bytes: usize) -> usize {
    ((WORD_BYTES - skip) % WORD_BYTES).min(bytes)
}

fn inside(at: u64, bytes: u64, len: u64) -> Result<(), AccessError> {
    let fits = at.checked_add(bytes).is_some_and(|end| end <= len);
    if fits { Ok(()) } else { Err(AccessError::Outside { at, bytes, len }) }
}

fn aligned(at: u64) -> Result<(), AccessError> {
    if at.is_multiple_of(WORD_BYTES as u64) { Ok(()) } else { Err(AccessError::Misaligned { at }) }
}

/// A key that nothing in this process had before.
#[cfg(any(feature = "shm", feature = "tcp", feature = "verbs"))]
pub(crate) fn fresh_key() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Where exposed memory is known under its key.
pub trait ExposedHome: Send + Sync {
    /// No device and no peer gets at it any more, as far as that can be seen to.
    fn withdraw(&self, key: u64);
}

/// Memory of this process that a peer may read, write and change by atomic operations, without a call and without our
/// thread.
///
/// It begins zeroed. This process uses it through [`Words`]. Atomic operations of a device are atomic among themselves,
/// and a store of ours may fall between the two halves of one. Dropping it withdraws it. Over verbs a later access ends
/// the connection that makes it; in shared memory it is refused.
pub struct Exposed {
    words: Arc<Words>,
    key: u64,
    home: Arc<dyn ExposedHome>,
}

impl Exposed {
    /// `words`, which `home` knows under `key` and forgets when this is dropped.
    #[must_use]
    #[doc(hidden)]
    pub fn new(words: Arc<Words>, key: u64, home: Arc<dyn ExposedHome>) -> Self {
        Self { words, key, home }
    }

    /// What its home knows it by.
    #[must_use]
    #[doc(hidden)]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Where our device finds it.
    #[cfg(feature = "verbs")]
    pub(crate) fn address(&self) -> u64 {
        self.words.region.base().as_ptr().addr() as u64
    }
}

impl Deref for Exposed {
    type Target = Words;

    fn deref(&self) -> &Words {
        &self.words
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        self.words.withdraw();
        self.home.withdraw(self.key);
    }
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exposed({} bytes)", self.len())
    }
}

/// Bytes of a [`Remote`] on the wire.
pub const REMOTE_BYTES: usize = OFFER_BYTES;

/// A peer's exposed memory, as this side names it. Good on the connection that it was shown on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote(pub(crate) Offer);

impl Remote {
    /// What a peer's offer of exposed memory names.
    #[must_use]
    pub const fn new(offer: Offer) -> Self {
        Self(offer)
    }

    /// What the peer knows it by.
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.0.key
    }

    /// Bytes of it, as the peer says.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// As it travels, in a message of the application's own.
    #[must_use]
    pub fn encode(&self) -> [u8; REMOTE_BYTES] {
        self.0.encode()
    }

    /// Reads what a peer wrote; whether it is true shows when it is used.
    ///
    /// # Errors
    /// [`Violation::Malformed`] when it is too short.
    pub fn decode(bytes: &[u8]) -> Result<Self, Violation> {
        Offer::decode(bytes).map(Self)
    }
}

/// What is done with a peer's memory. Offsets are bytes from its begin.
#[derive(Debug)]
pub enum OneSided {
    /// Brings as many bytes as `into` has.
    Read {
        /// From here on.
        at: u64,
        /// Where they go; it comes back with them.
        into: Loan,
    },
    /// Writes the bytes of `from`.
    Write {
        /// To here.
        at: u64,
        /// What is written; it comes back unchanged.
        from: Loan,
    },
    /// Sets the word to `new` if it is `expected`.
    CompareSwap {
        /// A multiple of 8.
        at: u64,
        /// What it must be.
        expected: u64,
        /// What it becomes.
        new: u64,
    },
    /// Adds to the word; it wraps.
    FetchAdd {
        /// A multiple of 8.
        at: u64,
        /// How much.
        add: u64,
    },
}

impl OneSided {
    /// Where it begins, bytes.
    #[cfg(feature = "verbs")]
    pub(crate) const fn at(&self) -> u64 {
        match self {
            Self::Read { at, .. } | Self::Write { at, .. } => *at,
            Self::CompareSwap { at, .. } | Self::FetchAdd { at, .. } => *at,
        }
    }

    /// Whether it can be made on `remote` at all.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, remote: &Remote, atomics: bool) -> Result<(), AccessError> {
        let (at, bytes) = match self {
            Self::Read { into, .. } if into.is_read_only() => return Err(AccessError::ReadOnly),
            Self::Read { at, into } => (*at, into.len() as u64),
            Self::Write { at, from } => (*at, from.len() as u64),
            Self::CompareSwap { at, .. } | Self::FetchAdd { at, .. } => {
                if !atomics {
                    return Err(AccessError::NoAtomics);
                }
                aligned(*at)?;
                (*at, WORD_BYTES as u64)
            }
        };
        inside(at, bytes, remote.len())
    }

    /// Makes it, where the peer's memory is mapped; what cannot be made comes back.
    ///
    /// # Errors
    /// Why not, with the operation.
    pub fn perform(self, words: &Words) -> Result<Accessed, (AccessError, Self)> {
        if words.is_withdrawn() {
            return Err((AccessError::NotExposed, self));
        }
        match self {
            Self::Read { at, mut into } => match words.read(at, &mut into) {
                Ok(()) => Ok(Accessed::Loan(into)),
                Err(error) => Err((error, Self::Read { at, into })),
            },
            Self::Write { at, from } => match words.write(at, &from) {
                Ok(()) => Ok(Accessed::Loan(from)),
                Err(error) => Err((error, Self::Write { at, from })),
            },
            Self::CompareSwap { at, expected, new } => match words.word(at) {
                Ok(word) => {
                    let found = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
                    Ok(Accessed::Word(found.unwrap_or_else(|found| found)))
                }
                Err(error) => Err((error, self)),
            },
            Self::FetchAdd { at, add } => match words.word(at) {
                Ok(word) => Ok(Accessed::Word(word.fetch_add(add, Ordering::AcqRel))),
                Err(error) => Err((error, self)),
            },
        }
    }
}

/// What a one-sided operation came to.
#[derive(Debug)]
pub enum Accessed {
    /// Of a read, with the bytes; of a write, as it was given.
    Loan(Loan),
    /// What the word was before an atomic operation. A compare-and-swap took place if that is what it expected.
    Word(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(len: usize) -> Words {
        Words::new(Region::anonymous(Words::mapped_bytes(len)).unwrap(), len)
    }

    #[test]
    fn every_byte_is_written_and_read_and_no_other() {
        let words = words(256);
        let bytes: Vec<u8> = (1..=255).collect();
        for at in 0..18_u64 {
            for len in [0, 1, 6, 7, 8, 9, 15, 16, 17, 64, 200] {
                words.write(0, &[0xEE; 256]).unwrap();
                words.write(at, &bytes[..len]).unwrap();
                let mut all = [0; 256];
                words.read(0, &mut all).unwrap();
                let place = usize::try_from(at).unwrap();
                assert_eq!(all[place..place + len], bytes[..len], "{len} at {at}");
                let beside = all[..place].iter().chain(&all[place + len..]);
                assert!(beside.copied().all(|byte| byte == 0xEE), "{len} at {at}");
                let mut some = vec![0; len];
                words.read(at, &mut some).unwrap();
                assert_eq!(some, bytes[..len], "{len} at {at}");
            }
        }
    }

    #[test]
    fn what_is_outside_is_refused() {
        let words = words(100);
        let outside = |at, bytes| Err(AccessError::Outside { at, bytes, len: 100 });
        assert_eq!(words.read(90, &mut [0; 11]), outside(90, 11));
        assert_eq!(words.write(u64::MAX, &[0; 2]), outside(u64::MAX, 2));
        assert_eq!(words.load(96).map(|_| ()), outside(96, 8));
        assert_eq!(words.store(4, 1), Err(AccessError::Misaligned { at: 4 }));
        words.write(100, &[]).unwrap();
        words.store(88, 7).unwrap();
        assert_eq!(words.load(88), Ok(7));
    }

    #[test]
    fn operations_on_mapped_words() {
        let words = words(64);
        let word = |op: OneSided| match op.perform(&words) {
            Ok(Accessed::Word(word)) => word,
            other => panic!("{other:?}"),
        };
        assert_eq!(word(OneSided::FetchAdd { at: 8, add: 5 }), 0);
        assert_eq!(word(OneSided::CompareSwap { at: 8, expected: 4, new: 9 }), 5, "another value stays");
        assert_eq!(word(OneSided::CompareSwap { at: 8, expected: 5, new: 9 }), 5);
        assert_eq!(words.load(8), Ok(9));
        let mut loan = Loan::anonymous(24, 0).unwrap();
        loan.fill(3);
        let written = OneSided::Write { at: 5, from: loan }.perform(&words);
        let Ok(Accessed::Loan(mut loan)) = written else { panic!("{written:?}") };
        loan.fill(0);
        let read = OneSided::Read { at: 5, into: loan }.perform(&words);
        let Ok(Accessed::Loan(loan)) = read else { panic!("{read:?}") };
        assert_eq!(*loan, [3; 24]);
        words.withdraw();
        let refused = OneSided::FetchAdd { at: 8, add: 5 }.perform(&words);
        assert!(matches!(refused, Err((AccessError::NotExposed, _))), "{refused:?}");
    }

    #[test]
    fn operations_are_checked_before_they_leave() {
        let remote = Remote(Offer { address: 0, key: 1, len: 100 });
        assert_eq!(Remote::decode(&remote.encode()), Ok(remote));
        let loan = |bytes| Loan::anonymous(bytes, 0).unwrap();
        let check = |op: OneSided, atomics| op.check(&remote, atomics);
        assert_eq!(check(OneSided::Read { at: 50, into: loan(50) }, false), Ok(()));
        let outside = |at, bytes| Err(AccessError::Outside { at, bytes, len: 100 });
        assert_eq!(check(OneSided::Write { at: 51, from: loan(50) }, false), outside(51, 50));
        assert_eq!(check(OneSided::FetchAdd { at: 0, add: 1 }, false), Err(AccessError::NoAtomics));
        assert_eq!(check(OneSided::FetchAdd { at: 4, add: 1 }, true), Err(AccessError::Misaligned { at: 4 }));
        assert_eq!(check(OneSided::CompareSwap { at: 96, expected: 0, new: 1 }, true), outside(96, 8));
    }
}
