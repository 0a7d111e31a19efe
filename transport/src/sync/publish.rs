//! Publishing a run of bytes by its first word, and taking credit for what was read.
//!
//! ```text
//!  writer:  payloads, later words, 0 behind the run ; first word (Release)
//!  reader:  first word (Relaxed, then an Acquire fence when it is not 0) ; payloads, later words
//!  reader:  done reading ; consumed (Release)          writer:  consumed (Relaxed + fence) ; write over
//! ```
//! The reader loads relaxed and fences, because the memory model promises no acquire load from memory that is
//! mapped read-only. On weakly ordered machines this also makes an empty poll cheaper.

use super::{
    atomic::{Ordering, fence},
    word::Word,
};

/// Shows the run that begins at `first`, whose word is `bits`, with everything written before.
#[inline]
pub(crate) fn publish(first: &impl Word, bits: u64) {
    // SYNC POINT: run published. Pairs with `observe`.
    first.store(bits, Ordering::Release);
}

/// The word as the peer left it; when it is not 0, all that was written before it is visible.
#[inline]
pub(crate) fn observe(word: &impl Word) -> u64 {
    let bits = word.load(Ordering::Relaxed);
    if bits != 0 {
        // SYNC POINT: run published. Pairs with `publish`.
        fence(Ordering::Acquire);
    }
    bits
}

/// Says that everything before `position` was read and may be written over.
#[inline]
pub(crate) fn consume(consumed: &impl Word, position: u64) {
    // SYNC POINT: ring consumed. Pairs with `consumed`.
    consumed.store(position, Ordering::Release);
}

/// How far the reader has read; the bytes before are ours to write.
#[inline]
pub(crate) fn consumed(consumed: &impl Word) -> u64 {
    let position = consumed.load(Ordering::Relaxed);
    // SYNC POINT: ring consumed. Pairs with `consume`.
    fence(Ordering::Acquire);
    position
}
