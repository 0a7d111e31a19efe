//! What a port says to its peer between frames.
//!
//! ```text
//!  0 zero u32 │ 4 kind u32 │ 8 argument u64 │ 16 body                         (little endian)
//! ```
//! A frame's length is never 0, so the first word tells a record from a frame.

use crate::{
    Violation,
    pack::{high_half, join, low_half},
};

/// Bytes of a record without its body.
pub(super) const RECORD_BYTES: usize = 16;
/// Bytes of the body of an `Ask`: four words.
pub(super) const ASK_BYTES: usize = 32;
/// Largest piece of a write in one record; its receiver keeps it until it is whole.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// Piece of a loan in one record beside which frames come or go: one waits for some microseconds of it.
pub(super) const SHORT_PIECE_BYTES: u32 = 16 << 10;

/// A record's first 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Record {
    /// The active side takes the connection: first of all, and once.
    Grant,
    /// The sender closes in good order, and why.
    Goodbye { how: u64 },
    /// The receiver may be sent frames up to here, and a ring further.
    Credit { position: u64 },
    /// A request, with [`ASK_BYTES`] behind it.
    Ask { id: u32, what: u32 },
    /// A piece of what request `id` asked for, with so many bytes behind it.
    Data { id: u32, bytes: u32 },
    /// A piece of what request `id` of the sender writes.
    Put { id: u32, bytes: u32 },
    /// Request `id` ended; 0: well.
    End { id: u32, status: u32 },
    /// Nothing: something for the peer's host to acknowledge while its process is busy.
    Pulse,
}

impl Record {
    /// As it travels.
    pub(super) fn encode(self) -> [u8; RECORD_BYTES] {
        let (kind, argument) = match self {
            Self::Grant => (1, 0),
            Self::Goodbye { how } => (2, how),
            Self::Credit { position } => (3, position),
            Self::Ask { id, what } => (4, join(id, what)),
            Self::Data { id, bytes } => (5, join(id, bytes)),
            Self::Put { id, bytes } => (6, join(id, bytes)),
            Self::End { id, status } => (7, join(id, status)),
            Self::Pulse => (8, 0),
        };
        let mut out = [0; RECORD_BYTES];
        out[..8].copy_from_slice(&join(0, kind).to_le_bytes());
        out[8..].copy_from_slice(&argument.to_le_bytes());
        out
    }

    /// Reads the two words of a record.
    ///
    /// # Errors
    /// [`Violation::Malformed`]: there is no such record.
    pub(super) fn decode(word: u64, argument: u64) -> Result<Self, Violation> {
        let (low, high) = (low_half(argument), high_half(argument));
        Ok(match (low_half(word), high_half(word)) {
            (0, 1) => Self::Grant,
            (0, 2) => Self::Goodbye { how: argument },
            (0, 3) => Self::Credit { position: argument },
            (0, 4) => Self::Ask { id: low, what: high },
            (0, 5) => Self::Data { id: low, bytes: high },
            (0, 6) => Self::Put { id: low, bytes: high },
            (0, 7) => Self::End { id: low, status: high },
            (0, 8) => Self::Pulse,
            _ => return Err(Violation::Malformed { what: "record" }),
        })
    }
}

/// A request: what is done with memory of the peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    /// Bytes of a loan.
    Pull { key: u64, at: u64, len: u64 },
    /// Bytes of exposed memory.
    Read { key: u64, at: u64, len: u64 },
    /// Bytes that come in `Put` records.
    Write { key: u64, at: u64, len: u64 },
    /// Compare and swap.
    Swap { key: u64, at: u64, expected: u64, new: u64 },
    /// Add.
    Add { key: u64, at: u64, add: u64 },
}

impl Ask {
    /// The record's `what`, and its body.
    pub(super) fn encode(self) -> (u32, [u8; ASK_BYTES]) {
        let (what, words) = match self {
            Self::Pull { key, at, len } => (1, [key, at, len, 0]),
            Self::Read { key, at, len } => (2, [key, at, len, 0]),
            Self::Write { key, at, len } => (3, [key, at, len, 0]),
            Self::Swap { key, at, expected, new } => (4, [key, at, expected, new]),
            Self::Add { key, at, add } => (5, [key, at, add, 0]),
        };
        let mut body = [0; ASK_BYTES];
        for (place, word) in body.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        (what, body)
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`Violation::Malformed`]: there is no such request.
    pub(super) fn decode(what: u32, body: &[u8; ASK_BYTES]) -> Result<Self, Violation> {
        let mut words = [0; ASK_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(body.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [key, at, third, new] = words;
        Ok(match what {
            1 => Self::Pull { key, at, len: third },
            2 => Self::Read { key, at, len: third },
            3 => Self::Write { key, at, len: third },
            4 => Self::Swap { key, at, expected: third, new },
            5 => Self::Add { key, at, add: third },
            _ => return Err(Violation::Malformed { what: "request" }),
        })
    }
}
