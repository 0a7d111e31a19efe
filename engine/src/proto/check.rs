//! Whether a frame is the one that comes next, and whole.
//!
//! - **Numbers**: on the send/recv path frames have no position, so each carries 7 bits of its number. A completion that
//!   a provider tells twice, or a chain that it loses, is seen. On a ring the position says it.
//! - **Sums**: where both sides ask for them, each frame has the CRC-32C of tag, length and payload in 4 bytes behind the
//!   payload. An offer carries that of its bulk. The code of a sealed frame differs in four bits from any other.

use gimmal_transport::{Negotiated, Tag, Violation, pack::low_half};

use super::wire::{Number, SEALED};

/// Bytes of a sum, behind the payload.
pub const SUM_BYTES: usize = 4;

/// What there is to look at in a frame that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    /// Nothing, as for most connections.
    Nothing,
    /// Its number, and nothing else.
    Number,
    /// More than that.
    Closely,
}

/// Both directions of a connection.
#[derive(Debug, Clone)]
pub struct Check {
    numbered: bool,
    sealed: bool,
    look: Look,
    sent: u32,
    received: u32,
}

impl Check {
    /// What was agreed on.
    #[must_use]
    pub fn new(negotiated: &Negotiated) -> Self {
        Self::of(negotiated.numbered, negotiated.checksum)
    }

    const fn of(numbered: bool, sealed: bool) -> Self {
        let look = match (numbered, sealed) {
            (false, false) => Look::Nothing,
            (true, false) => Look::Number,
            (_, true) => Look::Closely,
        };
        Self { numbered, sealed, look, sent: 0, received: 0 }
    }

    /// Whether frames and bulk carry sums.
    #[inline]
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Bytes that each frame has behind its payload.
    #[inline]
    #[must_use]
    pub const fn trailer(&self) -> usize {
        if self.sealed { SUM_BYTES } else { 0 }
    }

    /// Makes a frame of `bytes` of payload, whose last [`Check::trailer`] are free, ready to go: its tag.
    #[inline]
    pub fn stamp(&self, tag: Tag, payload: &mut [u8], bytes: usize) -> Tag {
        if self.look == Look::Nothing {
            return tag;
        }
        let tag = if self.numbered { Tag(tag.0 | low_half(Number::turn(self.sent.into()))) } else { tag };
        if self.sealed { seal(tag, payload, bytes) } else { tag }
    }

    /// A stamped frame was committed.
    #[inline]
    pub const fn committed(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// A frame with this tag arrived: its number must be the next.
    ///
    /// # Errors
    /// [`Violation::OutOfSequence`], [`Violation::Checksum`] for a frame that should be sealed and is not.
    #[inline]
    pub fn arrived(&mut self, tag: Tag) -> Result<(), Violation> {
        if self.look == Look::Nothing { Ok(()) } else { self.arrived_closely(tag) }
    }

    /// Whether a frame with this tag is the next one of a connection whose frames have numbers and nothing else; it has arrived
    /// then. `false` in doubt: for [`Check::arrived`] to say.
    #[inline]
    pub fn is_next(&mut self, tag: Tag) -> bool {
        let is_it = (self.look == Look::Number) & (Number::get_u32(tag.0.into()) == number(self.received));
        self.received = self.received.wrapping_add(u32::from(is_it));
        is_it
    }

    fn arrived_closely(&mut self, tag: Tag) -> Result<(), Violation> {
        if self.sealed && !is_sealed(tag) {
            return Err(Violation::Checksum { what: "frame" });
        }
        if self.numbered {
            let (number, next) = (Number::get_u32(tag.0.into()), number(self.received));
            if number != next {
                return Err(Violation::OutOfSequence { number, next });
            }
            self.received = self.received.wrapping_add(1);
        }
        Ok(())
    }
}

/// What frame number `count` says of it: numbers go round.
#[inline]
const fn number(count: u32) -> u32 {
    Number::get_u32(Number::turn(count as u64))
}

/// Whether a frame of this tag has a sum behind it.
#[inline]
#[must_use]
pub const fn is_sealed(tag: Tag) -> bool {
    tag.0 & SEALED == SEALED
}

/// The sum of bulk.
#[must_use]
pub fn bulk_sum(bulk: &[u8]) -> u32 {
    crc32c::crc32c(bulk)
}

fn sum(tag: Tag, payload: &[u8]) -> u32 {
    let mut front = [0; 12];
    front[..4].copy_from_slice(&tag.0.to_le_bytes());
    front[4..].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&front), payload)
}

fn seal(tag: Tag, payload: &mut [u8], bytes: usize) -> Tag {
    let tag = Tag(tag.0 | SEALED);
    let body = bytes - SUM_BYTES;
    let sum = sum(tag, &payload[..body]);
    payload[body..bytes].copy_from_slice(&sum.to_le_bytes());
    tag
}

/// The tag and payload of a sealed frame, without the seal.
///
/// # Errors
/// [`Violation::Checksum`].
pub fn unseal(tag: Tag, payload: &[u8]) -> Result<(Tag, &[u8]), Violation> {
    let wrong = Violation::Checksum { what: "frame" };
    let (body, said) = payload.split_last_chunk().ok_or(wrong)?;
    if u32::from_le_bytes(*said) != sum(tag, body) {
        return Err(wrong);
    }
    Ok((Tag(tag.0 & !SEALED), body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::wire::Kind;

    /// R91: no single bit of a sealed frame's tag or payload can change unnoticed, and none makes it an unsealed one.
    #[test]
    fn r91_every_flipped_bit_of_a_sealed_frame_is_seen() {
        let mut payload = *b"eight bytes and a body____";
        let bytes = payload.len();
        let tag = seal(Kind::Message.tag(), &mut payload, bytes);
        assert_eq!(unseal(tag, &payload), Ok((Kind::Message.tag(), &b"eight bytes and a body"[..])));
        for bit in 0..32 {
            let flipped = Tag(tag.0 ^ 1 << bit);
            assert!(!is_sealed(flipped) || unseal(flipped, &payload).is_err(), "bit {bit} of the tag");
            assert!(is_sealed(flipped) || flipped.0 & 0xff > 7, "bit {bit} makes it unsealed");
        }
        for bit in 0..bytes * 8 {
            payload[bit / 8] ^= 1 << (bit % 8);
            assert!(unseal(tag, &payload).is_err(), "bit {bit}");
            payload[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..bytes {
            assert!(unseal(tag, &payload[..len]).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn numbers_go_round_and_a_doubled_frame_is_named() {
        let mut check = Check::of(true, false);
        let mut last = Tag(0);
        for _ in 0..1000 {
            last = check.stamp(Kind::Message.tag(), &mut [], 0);
            check.committed();
            let mut quick = check.clone();
            assert!(quick.is_next(last) && !quick.is_next(last));
            check.arrived(last).unwrap();
            assert_eq!(quick.received, check.received);
        }
        assert!(!check.is_next(last));
        assert_eq!(
            check.arrived(last),
            Err(Violation::OutOfSequence { number: 999 % 128, next: 1000 % 128 })
        );
    }
}
