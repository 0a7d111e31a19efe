//! The frame: what a ring carries, and the only thing all providers agree on byte by byte.
//!
//! ```text
//!  position ► ┌────────────────────┬─────────────────────────────┬─ padding to 16 ─┐
//!             │ FrameWord (8, LE)  │ payload, `len - 8` bytes    │                 │
//!             └────────────────────┴─────────────────────────────┴─────────────────┘
//!   FrameWord:  bits 0..32  len: bytes of word and payload, 8 ..= frame_bytes_max, never 0
//!               bits 32..64 tag: opaque to this crate, the engine's
//! ```
//!
//! In shared memory the word is also the publish word: it is 0 until the frame is whole. A *chain* is a run of
//! frames that travels as one write-with-immediate, one SEND or one publish.

use crate::{
    error::Violation,
    pack::{high_half, join, low_half},
};

/// Frames start at multiples of this, so that the engine's 8-byte header puts the payload on 16.
pub const FRAME_ALIGN: usize = 16;
/// Size of the word every frame begins with.
pub const FRAME_WORD_BYTES: usize = 8;

/// The 32 bits of a frame word that belong to the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tag(pub u32);

/// The first eight bytes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameWord(u64);

impl FrameWord {
    /// The word of a frame with `payload_bytes` behind it.
    ///
    /// # Panics
    /// When `payload_bytes` does not fit in 32 bits with the word: a caller's bug, excluded by `frame_bytes_max`.
    #[inline]
    #[must_use]
    pub fn new(payload_bytes: usize, tag: Tag) -> Self {
        let len = u32::try_from(payload_bytes + FRAME_WORD_BYTES).expect("frame_bytes_max is below 4 GiB");
        Self(join(len, tag.0))
    }

    /// The word as it lies in memory.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Reads a word that a peer wrote: `Ok(None)` when nothing is published (0), an error when the length is
    /// below 8 or above `frame_bytes_max`.
    ///
    /// # Errors
    /// [`Violation::FrameLength`].
    #[inline]
    pub fn parse(bits: u64, frame_bytes_max: usize) -> Result<Option<Self>, Violation> {
        if bits == 0 {
            return Ok(None);
        }
        let word = Self(bits);
        if word.frame_bytes() < FRAME_WORD_BYTES || word.frame_bytes() > frame_bytes_max {
            return Err(Violation::FrameLength { bytes: word.frame_bytes(), limit: frame_bytes_max });
        }
        Ok(Some(word))
    }

    /// As it was read; see [`FrameWord::is_within`].
    #[inline]
    pub(crate) const fn unchecked(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether this is a frame of at most `frame_bytes_max`, which is 8 at least. Not published (0) is none.
    #[inline]
    pub(crate) const fn is_within(self, frame_bytes_max: usize) -> bool {
        // One comparison for both ends: what is too short wraps around.
        self.frame_bytes().wrapping_sub(FRAME_WORD_BYTES) <= frame_bytes_max - FRAME_WORD_BYTES
    }

    /// Word and payload, without padding.
    #[inline]
    #[must_use]
    pub const fn frame_bytes(self) -> usize {
        low_half(self.0) as usize
    }

    /// Payload only.
    #[inline]
    #[must_use]
    pub const fn payload_bytes(self) -> usize {
        self.frame_bytes().wrapping_sub(FRAME_WORD_BYTES)
    }

    /// What the engine put there.
    #[inline]
    #[must_use]
    pub const fn tag(self) -> Tag {
        Tag(high_half(self.0))
    }
}

/// Bytes of ring that a frame with `payload_bytes` takes, padding included.
#[inline]
#[must_use]
pub const fn span(payload_bytes: usize) -> usize {
    // What `next_multiple_of` is for a power of two, in two instructions; it stands on every path of every frame.
    payload_bytes.wrapping_add(FRAME_WORD_BYTES + FRAME_ALIGN - 1) & !(FRAME_ALIGN - 1)
}

/// The last [`FRAME_ALIGN`] bytes of a frame with `payload_bytes`, padding included, with 0 in the padding.
#[cfg(feature = "verbs")]
#[inline]
pub(crate) const fn without_padding(last: u128, payload_bytes: usize) -> u128 {
    let padding = span(payload_bytes) - (FRAME_WORD_BYTES + payload_bytes);
    last & (u128::MAX >> (8 * padding)).to_le()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_word() {
        let word = FrameWord::new(56, Tag(0x0102_0304));
        assert_eq!(word.bits(), 0x0102_0304_0000_0040);
        assert_eq!((word.frame_bytes(), word.payload_bytes(), word.tag()), (64, 56, Tag(0x0102_0304)));
    }

    #[test]
    fn zero_is_unpublished_and_bad_lengths_are_named() {
        assert_eq!(FrameWord::parse(0, 64), Ok(None));
        assert_eq!(FrameWord::parse(7, 64), Err(Violation::FrameLength { bytes: 7, limit: 64 }));
        assert_eq!(FrameWord::parse(65, 64), Err(Violation::FrameLength { bytes: 65, limit: 64 }));
        assert!(FrameWord::parse(64, 64).unwrap().is_some());
    }

    #[test]
    fn spans_are_padded() {
        assert_eq!((span(0), span(8), span(9), span(24)), (16, 16, 32, 32));
    }
}
