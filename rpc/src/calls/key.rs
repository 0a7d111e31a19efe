//! What a call of the table is called.

use std::num::NonZeroU64;

/// A call of the table, waiting ones included: its index, and its generation above that.
///
/// One word, not two halves: what is written in halves and read as a whole waits until every store before it is done, and
/// those before it go to lines that the peer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CallKey(NonZeroU64);

impl CallKey {
    /// Always set, so that no key is 0; generations have 31 bits.
    const SET: NonZeroU64 = NonZeroU64::new(1 << 63).expect("a bit is set");

    #[inline]
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self::from_bits(u64::from(index) | u64::from(generation) << 32)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    #[inline]
    pub(crate) const fn index(self) -> u32 {
        self.0.get() as u32
    }

    #[inline]
    pub(super) const fn generation(self) -> u32 {
        (self.bits() >> 32) as u32
    }

    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0.get() & !Self::SET.get()
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(Self::SET | bits)
    }
}
