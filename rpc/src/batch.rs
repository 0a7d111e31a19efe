//! Several calls of one method, or their answers, in one message: what a frame costs is paid once for all of them.
//!
//! ```text
//!   slot u16 │ bytes u16 │ generation u32 │ arguments or payload │ 0 to 7 bytes, ignored │ the next …      (little endian)
//! ```
//! Each begins on a multiple of 8, and there are at most [`CALLS`]. What is larger than 256 bytes gains nothing by company: such
//! a request goes alone, and such an answer is the last of its message.

use gimmal_engine::transport::{Violation, copy, pack::Field};

use crate::{config::WINDOW_MAX, id::CallId};

/// Bytes before what belongs to a call.
pub const ITEM_BYTES: usize = 8;
/// Most calls in one message: few, so that the peer works on them while the next are written, and a turn stays short.
pub const CALLS: usize = 8; // ledger: calls_together
/// Most bytes of a call that leaves with others.
pub(crate) const BYTES_MAX: usize = 256; // ledger: calls_together

/// As large as a message of several can be: small ones, and a last one of any size.
const DRAFT_BYTES: usize = CALLS * item_bytes(BYTES_MAX) + item_bytes(u16::MAX as usize);

const fn padded(bytes: usize) -> usize {
    (bytes + ITEM_BYTES - 1) & !(ITEM_BYTES - 1)
}

/// What one takes that has so many bytes.
pub(crate) const fn item_bytes(bytes: usize) -> usize {
    ITEM_BYTES + padded(bytes)
}

/// The head of one.
type SlotBits = Field<0, 16>;
type LengthBits = Field<{ SlotBits::END }, 16>;
type GenerationBits = Field<{ LengthBits::END }, 32>;
const _: () = assert!(WINDOW_MAX as u64 <= SlotBits::MAX + 1 && GenerationBits::END == u64::BITS);
const _: () = assert!(BYTES_MAX as u64 <= LengthBits::MAX && u16::MAX as u64 == LengthBits::MAX);

/// Writes the head of one: its bytes are fewer than 2^16, and its slot is within a window.
#[inline]
pub(crate) fn put_head(head: &mut [u8; ITEM_BYTES], id: CallId, bytes: usize) {
    // A slot of a window leaves the place of the length free, by the proof above.
    *head = (id.aux() | LengthBits::turn(bytes as u64)).to_le_bytes();
}

/// Writes one in front of `out`. What it took; `None` if there is too little room for it and its padding.
#[inline(always)]
pub(crate) fn put(out: &mut [u8], id: CallId, payload: &[u8]) -> Option<usize> {
    let (head, place) = out.split_first_chunk_mut()?;
    let whole = place.get_mut(..padded(payload.len()))?;
    put_head(head, id, payload.len());
    copy(payload, &mut whole[..payload.len()]);
    Some(item_bytes(payload.len()))
}

/// Where the messages of one connection are put together: old bytes of others must not lie between theirs.
///
/// A call takes dozens of stores, which leave the processor in order. Written right into a ring, its bytes wait for each line until
/// the peer has given it back, and everything else behind them; copied when it is whole, a message takes ten stores. Measured: a
/// third more calls of 64 bytes.
#[derive(Debug, Default)]
pub(crate) struct Draft(Box<[u8]>);

impl Draft {
    /// All of it, which is there from the first time on.
    #[inline]
    pub(crate) fn place(&mut self) -> &mut [u8] {
        if self.0.is_empty() {
            self.make();
        }
        &mut self.0
    }

    #[cold]
    fn make(&mut self) {
        self.0 = vec![0; DRAFT_BYTES].into_boxed_slice();
    }
}

/// What a message holds, one after the other: each call, and what belongs to it. Ends with [`Violation::Malformed`] where the
/// message ends in the middle of one, and where there are more than [`CALLS`].
#[derive(Clone, Debug)]
pub struct Items<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Items<'a> {
    /// Of such a message.
    #[must_use]
    pub const fn new(body: &'a [u8]) -> Self {
        Self { rest: body, left: CALLS }
    }

    #[cold]
    fn cut(&mut self) -> Violation {
        self.rest = &[];
        CUT
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<(CallId, &'a [u8]), Violation>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let Some((head, rest)) = self.rest.split_first_chunk::<ITEM_BYTES>() else {
            return if self.rest.is_empty() { None } else { Some(Err(self.cut())) };
        };
        let Some(left) = self.left.checked_sub(1) else { return Some(Err(self.cut())) };
        let word = u64::from_le_bytes(*head);
        let bytes = usize::from(LengthBits::get_u16(word));
        let Some((whole, behind)) = rest.split_at_checked(padded(bytes)) else {
            return Some(Err(self.cut()));
        };
        (self.rest, self.left) = (behind, left);
        let id = CallId { slot: SlotBits::get_u32(word), generation: GenerationBits::get_u32(word) };
        Some(Ok((id, &whole[..bytes])))
    }
}

const CUT: Violation = Violation::Malformed { what: "batch of calls" };

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(body: &[u8]) -> Result<Vec<(CallId, Vec<u8>)>, Violation> {
        Items::new(body).map(|item| item.map(|(id, payload)| (id, payload.to_vec()))).collect()
    }

    #[test]
    fn golden_batch() {
        let mut body = [0xee; 40];
        let first = CallId { slot: 0x0102, generation: 0x0304_0506 };
        let second = CallId { slot: 7, generation: 8 };
        assert_eq!(put(&mut body, first, b"arguments"), Some(24));
        assert_eq!(put(&mut body[24..], second, b""), Some(8));
        assert_eq!(body[..24], *b"\x02\x01\x09\0\x06\x05\x04\x03arguments\xee\xee\xee\xee\xee\xee\xee");
        assert_eq!(body[24..32], [7, 0, 0, 0, 8, 0, 0, 0]);
        assert_eq!(all(&body[..32]), Ok(vec![(first, b"arguments".to_vec()), (second, Vec::new())]));
        assert_eq!(all(b""), Ok(Vec::new()));
    }

    #[test]
    fn too_little_room_is_none() {
        let id = CallId { slot: 0, generation: 0 };
        assert_eq!(put(&mut [0; 7], id, b""), None);
        assert_eq!(put(&mut [0; 23], id, b"123456789"), None);
        assert_eq!(put(&mut [0; 24], id, b"123456789"), Some(24));
    }

    #[test]
    fn there_are_no_more_than_eight() {
        assert_eq!(all(&[0; CALLS * ITEM_BYTES]).unwrap().len(), CALLS);
        assert_eq!(all(&[0; (CALLS + 1) * ITEM_BYTES]), Err(CUT));
    }

    proptest! {
        #[test]
        fn what_was_put_is_read(
            calls in proptest::collection::vec((any::<u16>(), any::<u32>(), proptest::collection::vec(any::<u8>(), 0..=BYTES_MAX)), 0..9),
        ) {
            let mut body = vec![0; calls.len() * item_bytes(BYTES_MAX)];
            let (mut at, mut expected) = (0, Vec::new());
            for (slot, generation, payload) in calls {
                let id = CallId { slot: slot.into(), generation };
                at += put(&mut body[at..], id, &payload).unwrap();
                expected.push((id, payload));
            }
            prop_assert_eq!(all(&body[..at]), Ok(expected));
        }

        #[test]
        fn r91_any_bytes_are_answered(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let all = all(&body);
            prop_assert!(all.is_ok() || all == Err(CUT));
        }
    }
}
