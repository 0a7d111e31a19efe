//! What a call of the table is called.

use std::num::NonZeroU64;

use gimmal_engine::transport::pack::{Field, join};

/// A call of the table, waiting ones included: its index, and its generation above that.
///
/// One word, not two halves. A value that is written in halves and read as a whole waits until every store before it is
/// done, and those go to cache lines that the peer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CallKey(NonZeroU64);

type Index = Field<0, 32>;
/// It goes round: a call's place is used again only when nobody knows its key any more.
type Generation = Field<{ Index::END }, 31>;
/// Always set, so that no key is 0. Pulls of a callee have it set in their tokens, and those of a caller have not.
type Set = Field<{ Generation::END }, 1>;
const _: () = assert!(Set::END == u64::BITS);

impl CallKey {
    const SET: NonZeroU64 = NonZeroU64::new(Set::turn(1)).expect("a bit is set");

    #[inline]
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self::from_bits(join(index, generation))
    }

    #[inline]
    pub(crate) const fn index(self) -> u32 {
        Index::get_u32(self.0.get())
    }

    #[inline]
    pub(super) const fn generation(self) -> u32 {
        Generation::get_u32(self.0.get())
    }

    /// The generation of the use after that of `generation`.
    #[inline]
    pub(super) const fn next_generation(generation: u32) -> u32 {
        Generation::get_u32(join(0, generation.wrapping_add(1)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_calls_go_round_and_are_read_back_whole() {
        let last = u32::MAX >> 1;
        for (index, generation) in [(0, 0), (u32::MAX, 0), (0, last), (u32::MAX, last)] {
            let key = CallKey::new(index, generation);
            assert_eq!((key.index(), key.generation()), (index, generation));
            assert_eq!(CallKey::from_bits(key.bits()), key);
            assert_eq!(key.bits() >> 63, 0, "a callee's pull");
        }
        assert_eq!((CallKey::next_generation(0), CallKey::next_generation(last)), (1, 0));
    }
}
