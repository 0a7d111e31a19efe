//! Small pairs beside a call: trace context, a tenant's name, a token. A call without them carries nothing for them.
//!
//! ```text
//!  block, before arguments or payload   bytes of pairs u32 │ pairs │ zeros up to a multiple of 16 from its start
//!  pair                                 key bytes u8 │ value bytes u16 │ key │ value                  (little endian)
//! ```

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use gimmal_engine::transport::Violation;
use thiserror::Error;

use crate::codec::{Compose, EncodeError};

/// Most bytes of all pairs of a call, with 3 bytes of each pair's own.
pub const METADATA_BYTES_MAX: usize = 4096;
/// The key of the W3C trace context; nested calls inherit it.
pub const TRACEPARENT: &str = "traceparent";
/// The key of the vendor's part of the W3C trace context; nested calls inherit it.
pub const TRACESTATE: &str = "tracestate";
/// The key of the token that says who calls, see [`WithToken`](crate::layer::WithToken).
pub const AUTHORIZATION: &str = "authorization";

const COUNT_BYTES: usize = 4;
const PAIR_BYTES: usize = 3;
/// The arguments start on a multiple of it.
const ALIGN: usize = 16;

/// Pairs of a key and a value beside a call or its answer, each key once: 4096 bytes in all. Keys are 1 to 255 bytes of ASCII
/// without blanks and capitals; values are any bytes. One-way requests carry none.
///
/// ```
/// use gimmal_rpc::{CallOptions, Metadata};
///
/// let mut metadata = Metadata::new();
/// metadata.insert("tenant", "table 4")?;
/// assert_eq!(metadata.text("tenant"), Some("table 4"));
/// let options = CallOptions::default().metadata(metadata); // for `with_options` of a client
/// # Ok::<(), gimmal_rpc::MetadataError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    pairs: Vec<u8>,
}

/// Why a pair was not added to [`Metadata`], which stays as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The key is not 1 to 255 bytes of ASCII without blanks and capitals.
    #[error("a key of metadata has 1 to 255 bytes of ASCII without blanks and capitals")]
    Key,
    /// All pairs together would be above [`METADATA_BYTES_MAX`].
    #[error("the metadata of a call is above {METADATA_BYTES_MAX} bytes; send it as an argument")]
    TooLarge,
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secret.
        f.debug_set().entries(self.iter().map(|(key, _)| key)).finish()
    }
}

fn is_key(key: &[u8]) -> bool {
    (1..=255).contains(&key.len())
        && key.iter().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase())
}

type Pair<'a> = (&'a str, &'a [u8]);

/// The first pair and the rest.
fn split_pair(pairs: &[u8]) -> Option<(Pair<'_>, &[u8])> {
    let ([key, low, high], rest) = pairs.split_first_chunk::<PAIR_BYTES>()?;
    let (key, rest) = rest.split_at_checked(usize::from(*key))?;
    let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
    let key = std::str::from_utf8(key).ok().filter(|key| is_key(key.as_bytes()))?;
    Some(((key, value), rest))
}

impl Metadata {
    /// Returns metadata without a pair.
    #[must_use]
    pub const fn new() -> Self {
        Self { pairs: Vec::new() }
    }

    /// Sets the value of `key`, in place of the one it had.
    ///
    /// # Errors
    /// [`MetadataError::Key`] for a key with other characters, [`MetadataError::TooLarge`] above the limit. Nothing is changed
    /// then.
    pub fn insert(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), MetadataError> {
        let value = value.as_ref();
        if !is_key(key.as_bytes()) {
            return Err(MetadataError::Key);
        }
        let mut pairs = Vec::new();
        for (other, value) in self.iter().filter(|(other, _)| *other != key) {
            push(&mut pairs, other, value)?;
        }
        push(&mut pairs, key, value)?;
        self.pairs = pairs;
        Ok(())
    }

    /// Returns the value of `key`, if it has one.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.iter().find(|(other, _)| *other == key).map(|(_, value)| value)
    }

    /// Returns the value of `key`, if it has one that is UTF-8.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Returns all pairs, in the order in which they were last set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = &self.pairs[..];
        std::iter::from_fn(move || {
            let (pair, after) = split_pair(rest)?;
            rest = after;
            Some(pair)
        })
    }

    /// Bytes of the block that they travel in.
    fn block_bytes(&self) -> usize {
        (COUNT_BYTES + self.pairs.len()).next_multiple_of(ALIGN)
    }

    /// Writes the block that they travel in, which is as long as `block`.
    fn put_block(&self, block: &mut [u8]) -> Option<()> {
        block.fill(0);
        let (count, pairs) = block.split_first_chunk_mut::<COUNT_BYTES>()?;
        *count = u32::try_from(self.pairs.len()).ok()?.to_le_bytes();
        pairs.get_mut(..self.pairs.len())?.copy_from_slice(&self.pairs);
        Some(())
    }

    /// Returns the block that they travel in.
    pub(crate) fn block(&self) -> Vec<u8> {
        let mut block = vec![0; self.block_bytes()];
        self.put_block(&mut block).map_or_else(Vec::new, |()| block)
    }

    /// Returns whether there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

fn push(pairs: &mut Vec<u8>, key: &str, value: &[u8]) -> Result<(), MetadataError> {
    if pairs.len() + PAIR_BYTES + key.len() + value.len() > METADATA_BYTES_MAX {
        return Err(MetadataError::TooLarge);
    }
    let key_bytes = u8::try_from(key.len()).map_err(|_| MetadataError::Key)?;
    let value_bytes = u16::try_from(value.len()).map_err(|_| MetadataError::TooLarge)?;
    pairs.push(key_bytes);
    pairs.extend_from_slice(&value_bytes.to_le_bytes());
    pairs.extend_from_slice(key.as_bytes());
    pairs.extend_from_slice(value);
    Ok(())
}

/// Takes metadata off the front of what a peer sent; and what is behind it.
///
/// # Errors
/// [`Violation::Malformed`] for anything that is none.
pub fn split(body: &[u8]) -> Result<(Metadata, &[u8]), Violation> {
    let malformed = Violation::Malformed { what: "metadata" };
    let (bytes, _) = body.split_first_chunk::<COUNT_BYTES>().ok_or(malformed)?;
    let bytes = u32::from_le_bytes(*bytes) as usize;
    if bytes > METADATA_BYTES_MAX {
        return Err(malformed);
    }
    let (block, behind) =
        body.split_at_checked((COUNT_BYTES + bytes).next_multiple_of(ALIGN)).ok_or(malformed)?;
    Ok((parse(&block[COUNT_BYTES..COUNT_BYTES + bytes])?, behind))
}

/// Reads pairs that a peer sent.
///
/// # Errors
/// [`Violation::Malformed`] for anything that is none.
fn parse(pairs: &[u8]) -> Result<Metadata, Violation> {
    let malformed = Violation::Malformed { what: "metadata" };
    if pairs.len() > METADATA_BYTES_MAX {
        return Err(malformed);
    }
    let mut rest = pairs;
    while !rest.is_empty() {
        rest = split_pair(rest).ok_or(malformed)?.1;
    }
    Ok(Metadata { pairs: pairs.to_vec() })
}

/// Arguments with metadata before them.
#[derive(Debug)]
pub(crate) struct Noted<'a, A: ?Sized> {
    pub(crate) metadata: &'a Metadata,
    pub(crate) arguments: &'a A,
}

impl<A: Compose + ?Sized> Compose for Noted<'_, A> {
    const IS_NOTED: bool = true;

    fn compose(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let (block, behind) =
            out.split_at_mut_checked(self.metadata.block_bytes()).ok_or(EncodeError::Full)?;
        self.metadata.put_block(block).ok_or(EncodeError::Full)?;
        Ok(block.len() + self.arguments.compose(behind)?)
    }

    fn composed_bytes(&self) -> Option<usize> {
        self.arguments.composed_bytes().map(|bytes| bytes + self.metadata.block_bytes())
    }
}

/// What came beside the calls of one connection, by their slots; asked by handlers on any thread. A call that came
/// without leaves it alone.
#[derive(Debug, Default)]
pub(crate) struct Notes(Mutex<Vec<(u64, Option<Arc<Metadata>>)>>);

impl Notes {
    /// Of the call in `slot` whose mark is `mark`.
    pub(crate) fn get(&self, slot: u32, mark: u64) -> Option<Arc<Metadata>> {
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes.get(slot as usize).filter(|(of, _)| *of == mark).and_then(|(_, metadata)| metadata.clone())
    }

    pub(crate) fn put(&self, slot: u32, mark: u64, metadata: Option<Arc<Metadata>>) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() <= slot as usize {
            notes.resize(slot as usize + 1, (0, None));
        }
        notes[slot as usize] = (mark, metadata);
    }
}

/// What handlers of one connection left to go before their answers, by their slots.
#[derive(Debug, Default)]
pub(crate) struct AnswerNotes {
    /// Their number, for a cheap check whether there are any.
    count: AtomicUsize,
    notes: Mutex<Vec<(u32, Metadata)>>,
}

impl AnswerNotes {
    /// Whether anybody left any. Asked by the thread that runs the handlers, so it needs no more than the number.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// In place of what was left in `slot` before, if `is_wanted`. That is asked under the lock, see [`AnswerNotes::settle`].
    pub(crate) fn put(&self, slot: u32, metadata: Metadata, is_wanted: impl FnOnce() -> bool) {
        let mut notes = self.notes();
        if is_wanted() {
            notes.retain(|(of, _)| *of != slot);
            notes.push((slot, metadata));
            self.count.store(notes.len(), Ordering::Relaxed);
        }
    }

    /// Waits for a handler on another thread that leaves some at this moment: what it found wanted is seen behind this, and what it
    /// leaves from now on sees that its call is over.
    #[cold]
    pub(crate) fn settle(&self) {
        drop(self.notes());
    }

    fn notes(&self) -> MutexGuard<'_, Vec<(u32, Metadata)>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self, slot: u32) -> Option<Metadata> {
        let mut notes = self.notes();
        let at = notes.iter().position(|(of, _)| *of == slot)?;
        let (_, metadata) = notes.swap_remove(at);
        self.count.store(notes.len(), Ordering::Relaxed);
        Some(metadata)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::{Encoded, Raw};

    #[test]
    fn a_key_has_one_value_and_bounds_are_named() {
        let mut metadata = Metadata::new();
        metadata.insert("tenant", "one").unwrap();
        metadata.insert(TRACEPARENT, "00-ab-cd-01").unwrap();
        metadata.insert("tenant", "two").unwrap();
        assert_eq!((metadata.text("tenant"), metadata.iter().count()), (Some("two"), 2));
        assert_eq!(metadata.get("nothing"), None);
        for key in ["", "Large", "a blank", &"x".repeat(256)] {
            assert_eq!(metadata.insert(key, ""), Err(MetadataError::Key));
        }
        assert_eq!(metadata.insert("large", [0; METADATA_BYTES_MAX]), Err(MetadataError::TooLarge));
        assert!(!format!("{metadata:?}").contains("two"), "values are not printed");
    }

    #[test]
    fn golden_block() {
        let mut metadata = Metadata::new();
        metadata.insert("k", [7, 8]).unwrap();
        let mut out = [0xff; 64];
        let arguments = Encoded::<Raw, [u8]>::new(b"args");
        let noted = Noted { metadata: &metadata, arguments: &arguments };
        assert_eq!((noted.compose(&mut out), noted.composed_bytes()), (Ok(20), Some(20)));
        assert_eq!(out[..20], *b"\x06\0\0\0\x01\x02\0k\x07\x08\0\0\0\0\0\0args");
        assert_eq!(split(&out[..20]), Ok((metadata.clone(), &b"args"[..])));
        assert_eq!(noted.compose(&mut [0; 19]), Err(EncodeError::Full));
    }

    proptest! {
        #[test]
        fn r91_any_bytes_are_metadata_or_a_violation(body in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok((metadata, behind)) = split(&body) {
                prop_assert!(behind.len() <= body.len());
                metadata.iter().for_each(|(key, _)| assert!(is_key(key.as_bytes())));
                prop_assert_eq!(parse(&metadata.pairs), Ok(metadata));
            }
            let _ = parse(&body);
        }
    }
}
