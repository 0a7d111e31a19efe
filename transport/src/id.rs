//! Newtypes for integers that could be confused.

use std::fmt;

use crate::pack::{Field, high_half, join, low_half};

/// A connection of one [`Port`](crate::Port): a slot and the generation of its use.
///
/// A stale id (the slot was reused) is refused everywhere, never served from the new connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(
    /// The index above the generation: ids are compared with every message.
    u64,
);

/// An index within its pool, and above it the pool.
type Place = Field<0, 30>;
type Pool = Field<{ Place::END }, 2>;
const _: () = assert!(Pool::END == u32::BITS && Pool::MAX + 1 == ConnId::POOLS as u64);

impl ConnId {
    /// Bits of an index that name the pool: the uppermost.
    pub const POOL_BITS: u32 = Pool::END - Place::END;
    /// Ports that can act as one.
    pub const POOLS: usize = 1 << Self::POOL_BITS;
    /// Connections that each of them can have.
    pub const POOL_SLOTS: u32 = 1 << Place::END;

    /// The id of slot `index` in its use number `generation`.
    #[inline]
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Self {
        Self(join(generation, index))
    }

    /// The slot.
    #[inline]
    #[must_use]
    pub const fn index(self) -> u32 {
        high_half(self.0)
    }

    /// Which use of the slot this is.
    #[inline]
    #[must_use]
    pub const fn generation(self) -> u32 {
        low_half(self.0)
    }

    /// Which of several ports that act as one it belongs to, below [`ConnId::POOLS`].
    #[inline]
    #[must_use]
    pub const fn pool(self) -> usize {
        Pool::get_u32(self.index() as u64) as usize
    }

    /// The index within its pool, below [`ConnId::POOL_SLOTS`].
    #[inline]
    #[must_use]
    pub const fn place(self) -> u32 {
        Place::get_u32(self.index() as u64)
    }

    /// The connection that its own port knows as this one, among several: its pool is `pool`.
    ///
    /// # Panics
    /// When `pool` is not below [`ConnId::POOLS`].
    #[inline]
    #[must_use]
    pub const fn in_pool(self, pool: usize) -> Self {
        const BITS: [u32; ConnId::POOLS] = [0, 1 << Place::END, 2 << Place::END, 3 << Place::END];
        Self::new(self.place() | BITS[pool], self.generation())
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
