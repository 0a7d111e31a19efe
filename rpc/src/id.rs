//! Names on the wire: methods and signatures as stable hashes, calls as a slot and its generation.

use std::fmt;

use gimmal_engine::transport::pack::{high_half, join, low_half};

/// FNV-1a, 32 bits: stable over versions, machines and compilers.
#[must_use]
pub const fn fnv1a(mut hash: u32, text: &str) -> u32 {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

const OFFSET_BASIS: u32 = 0x811c_9dc5;

/// The hash of `first`, a separator and `second`.
pub(crate) const fn hash_pair(first: &str, second: &str) -> u32 {
    fnv1a(fnv1a(fnv1a(OFFSET_BASIS, first), "."), second)
}

/// A call in flight, as both sides know it: a slot of the caller's window and the generation of its use.
///
/// A slot is used again only after its answer came or its cancel was sent, so a late answer names an old generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallId {
    /// Slot in the caller's window.
    pub slot: u32,
    /// Which use of the slot this is.
    pub generation: u32,
}

impl CallId {
    /// Of a message that is no call: its slot is in no window.
    pub const NONE: Self = Self { slot: u32::MAX, generation: 0 };

    /// As it travels in a message's `aux`.
    #[must_use]
    pub const fn aux(self) -> u64 {
        join(self.slot, self.generation)
    }

    /// Reads it back.
    #[must_use]
    pub const fn from_aux(aux: u64) -> Self {
        Self { slot: low_half(aux), generation: high_half(aux) }
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}.{}", self.slot, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_hashes() {
        assert_eq!(fnv1a(OFFSET_BASIS, ""), 0x811c_9dc5);
        assert_eq!(fnv1a(OFFSET_BASIS, "a"), 0xe40c_292c);
        assert_eq!(fnv1a(OFFSET_BASIS, "foobar"), 0xbf9c_f968);
        assert_eq!(hash_pair("Echo", "echo"), fnv1a(OFFSET_BASIS, "Echo.echo"));
    }

    #[test]
    fn golden_call_id() {
        let id = CallId { slot: 0x0102_0304, generation: 0x0506_0708 };
        assert_eq!(id.aux(), 0x0506_0708_0102_0304);
        assert_eq!(CallId::from_aux(id.aux()), id);
    }
}
