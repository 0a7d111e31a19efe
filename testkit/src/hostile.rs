//! What tests of hostile peers share: where their choices come from, and how they spoil what was valid.
//!
//! Runs from a seed, which replays a run by its number, or from the bytes of a coverage-guided fuzzer, where each
//! byte is a choice.

/// Numbers that make a longer way through a parser than random ones do.
const EDGES: [u64; 12] =
    [0, 1, 7, 8, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 32, 1 << 63, u64::MAX];

/// A stream of choices.
#[derive(Clone, Debug)]
pub enum Choices {
    /// Without end: splitmix64.
    Seed(u64),
    /// Until the bytes are used up; 0 from then on.
    Bytes {
        /// The fuzzer's.
        bytes: Vec<u8>,
        /// How many are used.
        at: usize,
    },
}

impl Choices {
    /// From a fuzzer's input.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::Bytes { bytes: bytes.to_vec(), at: 0 }
    }

    /// Whether every choice from here on is 0.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Bytes { bytes, at } if *at >= bytes.len())
    }

    /// Any number. `wanted` bytes of a fuzzer's input are used for it.
    fn word(&mut self, wanted: usize) -> u64 {
        match self {
            Self::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut word = *state;
                word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                word ^ (word >> 31)
            }
            Self::Bytes { bytes, at } => {
                let mut word = [0; 8];
                for byte in &mut word[..wanted] {
                    *byte = bytes.get(*at).copied().unwrap_or(0);
                    *at += 1;
                }
                u64::from_le_bytes(word)
            }
        }
    }

    /// Below `bound`; 0 when that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wanted = match bound {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            0x1_0001..=0x1_0000_0000 => 4,
            _ => 8,
        };
        if bound == 0 { 0 } else { self.word(wanted) % bound }
    }

    /// An index below `len`; 0 when that is 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 1 % times
    }

    /// Any number, with those at the edges of types and limits as likely as all others together.
    pub fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.pick(&EDGES),
            1 => self.pick(&EDGES).wrapping_add(self.below(33)).wrapping_sub(16),
            2 => self.below(256),
            _ => self.word(8),
        }
    }

    /// Bytes, at most `most`.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.index(most + 1);
        (0..len).map(|_| self.word(1).to_le_bytes()[0]).collect()
    }

    /// Spoils a valid message in one place: a bit, a byte, a number, its length.
    pub fn spoil(&mut self, message: &mut Vec<u8>) {
        let at = self.index(message.len());
        match self.below(6) {
            _ if message.is_empty() => message.extend(self.bytes(16)),
            0 => message[at] ^= 1 << self.below(8),
            1 => message[at] = self.number().to_le_bytes()[0],
            2 => message.truncate(at),
            3 => message.extend(self.bytes(16)),
            4 => {
                message.drain(at..(at + 1 + self.index(8)).min(message.len()));
            }
            _ => {
                let bytes = self.number().to_le_bytes();
                let room = message.len() - at;
                let width = self.pick(&[1, 2, 4, 8]).min(room);
                message[at..at + width].copy_from_slice(&bytes[..width]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fuzzers_bytes_are_choices_until_they_end() {
        let mut choices = Choices::from_bytes(&[7, 3, 0xff, 0xff]);
        assert_eq!((choices.below(5), choices.below(4)), (2, 3));
        assert_eq!(choices.below(0x1_0000), 0xffff);
        assert!(choices.is_over());
        assert_eq!((choices.below(9), choices.once_in(9)), (0, false));
    }

    #[test]
    fn spoiling_changes_every_message_sooner_or_later() {
        let mut choices = Choices::Seed(1);
        let good = vec![1, 2, 3, 4];
        let spoiled = (0..1000).filter(|_| {
            let mut message = good.clone();
            choices.spoil(&mut message);
            message != good
        });
        assert!(spoiled.count() > 800);
        let mut empty = Vec::new();
        choices.spoil(&mut empty);
        assert!(empty.len() <= 16);
    }
}
