//! Several numbers in one word: ids with generations, tickets, tokens, tags.
//!
//! Every field has its place and its width, and the compiler proves that it ends within the word. A number that is wider than its
//! field is refused ([`Field::put`]) or goes round on purpose ([`Field::turn`]); it never reaches into its neighbour.
//! `cargo xtask tidy` looks for shifts that pack numbers anywhere else.

/// Lengths and offsets of 64 bits are used as `usize`.
const _: () = assert!(usize::BITS == u64::BITS, "gimmal runs on 64-bit targets only");

/// Bits `AT` to `AT + BITS` of a word. The next field begins at [`Field::END`], so that fields cannot overlap.
#[derive(Clone, Copy, Debug)]
pub struct Field<const AT: u32, const BITS: u32>;

impl<const AT: u32, const BITS: u32> Field<AT, BITS> {
    /// The first bit behind it.
    pub const END: u32 = {
        assert!(BITS > 0 && AT + BITS <= u64::BITS, "the field ends within the word");
        AT + BITS
    };
    /// The largest number that it holds.
    pub const MAX: u64 = u64::MAX >> (u64::BITS - (Self::END - AT));

    /// `number` at its place; `None` when it has more bits.
    #[inline]
    #[must_use]
    pub const fn put(number: u64) -> Option<u64> {
        if number <= Self::MAX { Some(number << AT) } else { None }
    }

    /// The lowest bits of `number` at its place: for generations and other counters that go round.
    #[inline]
    #[must_use]
    pub const fn turn(number: u64) -> u64 {
        (number & Self::MAX) << AT
    }

    /// The number in `word`.
    #[inline]
    #[must_use]
    pub const fn get(word: u64) -> u64 {
        (word >> AT) & Self::MAX
    }

    /// Like [`Field::get`], for a field of at most 32 bits.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "at most 32 bits, which the compiler proves")]
    pub const fn get_u32(word: u64) -> u32 {
        const { assert!(BITS <= u32::BITS, "the field has at most 32 bits") };
        Self::get(word) as u32
    }

    /// Like [`Field::get`], for a field of at most 16 bits.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "at most 16 bits, which the compiler proves")]
    pub const fn get_u16(word: u64) -> u16 {
        const { assert!(BITS <= u16::BITS, "the field has at most 16 bits") };
        Self::get(word) as u16
    }
}

/// Two numbers of 32 bits, `low` in the lower half.
#[inline]
#[must_use]
pub const fn join(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// The lower half of `word`.
#[inline]
#[must_use]
pub const fn low_half(word: u64) -> u32 {
    Field::<0, 32>::get_u32(word)
}

/// The upper half of `word`.
#[inline]
#[must_use]
pub const fn high_half(word: u64) -> u32 {
    Field::<32, 32>::get_u32(word)
}

/// Two numbers of 16 bits, `low` in the lower half.
#[inline]
#[must_use]
pub const fn join_u16(low: u16, high: u16) -> u32 {
    low as u32 | (high as u32) << 16
}

/// Two numbers of 64 bits, `low` in the lower half.
#[inline]
#[must_use]
pub const fn join_u64(low: u64, high: u64) -> u128 {
    low as u128 | (high as u128) << 64
}

#[cfg(test)]
mod tests {
    use super::*;

    type Low = Field<0, 20>;
    type Middle = Field<{ Low::END }, 24>;
    type High = Field<{ Middle::END }, 20>;

    #[test]
    fn a_number_wider_than_its_field_is_refused_or_goes_round() {
        assert_eq!((Low::MAX, Middle::MAX, High::END), (0xf_ffff, 0xff_ffff, 64));
        assert_eq!((Low::put(0xf_ffff), Low::put(0x10_0000)), (Some(0xf_ffff), None));
        assert_eq!((High::put(0xf_ffff), High::put(0x10_0000)), (Some(0xffff_f000_0000_0000), None));
        assert_eq!((Middle::turn(0x100_0003), Middle::turn(3)), (3 << 20, 3 << 20));
        assert_eq!((Field::<0, 64>::MAX, Field::<0, 64>::put(u64::MAX)), (u64::MAX, Some(u64::MAX)));
    }

    #[test]
    fn fields_are_read_back_whole() {
        let word =
            Low::put(0xf_fffe).unwrap() | Middle::put(0xff_fffd).unwrap() | High::put(0xf_fffc).unwrap();
        assert_eq!(
            (Low::get_u32(word), Middle::get_u32(word), High::get(word)),
            (0xf_fffe, 0xff_fffd, 0xf_fffc)
        );
        assert_eq!(Field::<48, 16>::get_u16(word), 0xffff);
        let halves = join(u32::MAX, 7);
        assert_eq!((halves, low_half(halves), high_half(halves)), (0x7_ffff_ffff, u32::MAX, 7));
        assert_eq!((join_u16(1, 0xffff), join_u64(1, u64::MAX)), (0xffff_0001, (u128::MAX << 64) | 1));
    }
}
