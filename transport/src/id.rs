//! Newtypes for integers that could be confused.

use std::fmt;

/// A connection of one [`Port`](crate::Port): a slot and the generation of its use.
///
/// A stale id (the slot was reused) is refused everywhere, never served from the new connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(
    /// The index above the generation: ids are compared with every message.
    u64,
);

impl ConnId {
    /// The id of slot `index` in its use number `generation`.
    #[inline]
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Self {
        Self((index as u64) << 32 | generation as u64)
    }

    /// The slot.
    #[inline]
    #[must_use]
    pub const fn index(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Which use of the slot this is.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    pub const fn generation(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}.{}", self.index(), self.generation())
    }
}

/// A position in a byte stream that rides a ring: bytes since the connection opened, never wrapped.
///
/// The place in the ring is `position % ring_bytes`. 2^64 bytes at 100 GB/s last six years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Position(pub u64);

impl Position {
    /// The position `bytes` further on.
    #[inline]
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// Bytes from `earlier` to here; 0 when `earlier` is not earlier.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The offset in a ring of `ring_bytes` (a power of two).
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // 64-bit targets only; masked by the ring's size anyway
    pub const fn offset(self, ring_bytes: usize) -> usize {
        self.0 as usize & (ring_bytes - 1)
    }
}

/// What a receiver has given back since the connection opened: two cumulative counters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Credit {
    /// The sender may write up to `bytes + ring_bytes`. Advances only over a contiguous run.
    pub bytes: Position,
    /// Receives guaranteed to this connection since it opened. A SEND or write-with-immediate uses one.
    pub arrivals: u64,
}
