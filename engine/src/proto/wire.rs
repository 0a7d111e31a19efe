//! The engine's frames. A frame's tag says what it is; its payload begins with an 8-byte word.
//!
//! ```text
//!  tag      bits 0..8 kind (its upper four set: sealed) │ 8 bulk │ 9..16 number │ 16..32 the user's
//!  Message     aux u64 │ [ loan id u32 │ sum u32 │ offer 24 ] │ body
//!  Credit      bytes u64 │ arrivals u64
//!  BulkDone    loan id u32 │ zero u32
//!  Goodbye, GoodbyeAck, Ping, Pong, Unused     token u64                (little endian)
//! ```

use gimmal_transport::{
    Credit, Offer, Position, Tag, Violation,
    mem::loan::OFFER_BYTES,
    pack::{Field, low_half},
};

use super::bulk::LoanId;

/// Bytes before the body of every frame.
pub const HEAD_BYTES: usize = 8;
/// Bytes a bulk offer adds.
pub const BULK_BYTES: usize = 8 + OFFER_BYTES;
/// Payload of the largest control frame.
pub const CONTROL_BYTES: usize = 16;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The user's.
    Message,
    /// Space and receives given back.
    Credit,
    /// A loan is free again.
    BulkDone,
    /// The sender will send no more messages.
    Goodbye,
    /// The answer to it; nothing follows.
    GoodbyeAck,
    /// To be echoed.
    Ping,
    /// The echo.
    Pong,
    /// Receives that the peer shares among many, and that this side will not use.
    Unused,
}

/// The fields of a tag: the engine's kind, whether bulk goes with it, the frame's number, the user's kind.
type KindCode = Field<0, 8>;
type BulkFlag = Field<{ KindCode::END }, 1>;
pub(super) type Number = Field<{ BulkFlag::END }, 7>;
type UserKind = Field<{ Number::END }, 16>;
const _: () = assert!(UserKind::END == u32::BITS && (Kind::Unused.code() | SEALED) as u64 <= KindCode::MAX);

/// The bits of a kind that say that the frame has a sum.
pub(super) const SEALED: u32 = 0xf0;
const BULK_FLAG: u32 = low_half(BulkFlag::turn(1));

impl Kind {
    #[inline]
    const fn code(self) -> u32 {
        match self {
            Self::Message => 1,
            Self::Credit => 2,
            Self::BulkDone => 3,
            Self::Goodbye => 4,
            Self::GoodbyeAck => 5,
            Self::Ping => 6,
            Self::Pong => 7,
            Self::Unused => 8,
        }
    }

    /// The tag of a control frame of this kind.
    #[inline]
    #[must_use]
    pub const fn tag(self) -> Tag {
        Tag(self.code())
    }
}

/// The tag of a message with the user's `kind`.
#[inline]
#[must_use]
pub const fn message_tag(kind: u16, bulk: bool) -> Tag {
    Tag(Kind::Message.code() | if bulk { BULK_FLAG } else { 0 } | low_half(UserKind::turn(kind as u64)))
}

/// Writes loan id, the sum of the bytes (0 where none is agreed on), and the offer.
pub fn put_bulk(out: &mut [u8], id: LoanId, sum: u32, offer: &Offer) {
    out[..4].copy_from_slice(&id.bits().to_le_bytes());
    out[4..8].copy_from_slice(&sum.to_le_bytes());
    out[8..BULK_BYTES].copy_from_slice(&offer.encode());
}

/// A control frame's payload.
#[must_use]
pub fn control(first: u64, second: u64) -> [u8; CONTROL_BYTES] {
    let mut out = [0; CONTROL_BYTES];
    out[..8].copy_from_slice(&first.to_le_bytes());
    out[8..].copy_from_slice(&second.to_le_bytes());
    out
}

/// A frame, taken apart; every field was copied once and checked.
#[derive(PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// The user's.
    Message {
        /// The user's 16 bits.
        kind: u16,
        /// The user's 64 bits.
        aux: u64,
        /// The peer's loan id, the sum of its bytes, and its offer.
        bulk: Option<(LoanId, u32, Offer)>,
        /// The rest.
        body: &'a [u8],
    },
    /// The peer's cumulative credit.
    Credit(Credit),
    /// The loan with this id.
    BulkDone(LoanId),
    /// See [`Kind`].
    Goodbye,
    /// See [`Kind`].
    GoodbyeAck,
    /// See [`Kind`].
    Ping(u64),
    /// See [`Kind`].
    Pong(u64),
    /// So many since the start.
    Unused(u64),
}

/// Kind, aux and body of a message without bulk, which nearly all frames are.
#[inline]
#[must_use]
pub fn plain(tag: Tag, payload: &[u8]) -> Option<(u16, u64, &[u8])> {
    if tag.0 & (0xff | BULK_FLAG) != Kind::Message.code() {
        return None;
    }
    let (aux, body) = payload.split_first_chunk()?;
    Some((UserKind::get_u16(tag.0.into()), u64::from_le_bytes(*aux), body))
}

impl<'a> Frame<'a> {
    /// Takes `payload` apart.
    ///
    /// # Errors
    /// [`Violation::Malformed`], naming the kind.
    #[inline]
    pub fn parse(tag: Tag, payload: &'a [u8]) -> Result<Self, Violation> {
        if let Some((kind, aux, body)) = plain(tag, payload) {
            return Ok(Self::Message { kind, aux, bulk: None, body });
        }
        Self::parse_other(tag, payload)
    }

    fn parse_other(tag: Tag, payload: &'a [u8]) -> Result<Self, Violation> {
        let malformed = |what| Violation::Malformed { what };
        let word = |at: usize, what| {
            let bytes = payload.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_le_bytes).ok_or_else(|| malformed(what))
        };
        match tag.0 & 0xff {
            1 => Self::parse_message(tag, payload, word(0, "message")?),
            2 => {
                Ok(Self::Credit(Credit { bytes: Position(word(0, "credit")?), arrivals: word(8, "credit")? }))
            }
            3 => {
                let id = u32::try_from(word(0, "bulk answer")?).map_err(|_| malformed("bulk answer"))?;
                Ok(Self::BulkDone(LoanId::from_bits(id)))
            }
            4 => Ok(Self::Goodbye),
            5 => Ok(Self::GoodbyeAck),
            6 => Ok(Self::Ping(word(0, "ping")?)),
            7 => Ok(Self::Pong(word(0, "pong")?)),
            8 => Ok(Self::Unused(word(0, "unused receives")?)),
            _ => Err(malformed("frame kind")),
        }
    }

    fn parse_message(tag: Tag, payload: &'a [u8], aux: u64) -> Result<Self, Violation> {
        let kind = UserKind::get_u16(tag.0.into());
        let rest = &payload[HEAD_BYTES..];
        if tag.0 & BULK_FLAG == 0 {
            return Ok(Self::Message { kind, aux, bulk: None, body: rest });
        }
        let Some((bulk, body)) = rest.split_at_checked(BULK_BYTES) else {
            return Err(Violation::Malformed { what: "bulk offer" });
        };
        let word = |at: usize| u32::from_le_bytes([bulk[at], bulk[at + 1], bulk[at + 2], bulk[at + 3]]);
        Ok(Self::Message {
            kind,
            aux,
            bulk: Some((LoanId::from_bits(word(0)), word(4), Offer::decode(&bulk[8..])?)),
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_message_with_bulk() {
        let offer = Offer { address: 1, key: 2, len: 3 };
        let mut payload = vec![0; HEAD_BYTES + BULK_BYTES];
        payload[..8].copy_from_slice(&0x55u64.to_le_bytes());
        put_bulk(&mut payload[8..], LoanId::from_bits(9), 4, &offer);
        payload.extend_from_slice(b"body");
        let tag = message_tag(0xabcd, true);
        assert_eq!(tag, Tag(0xabcd_0101));
        let frame = Frame::parse(tag, &payload).unwrap();
        assert_eq!(
            frame,
            Frame::Message {
                kind: 0xabcd,
                aux: 0x55,
                bulk: Some((LoanId::from_bits(9), 4, offer)),
                body: b"body"
            }
        );
    }

    #[test]
    fn control_frames_round_trip() {
        let payload = control(7, 8);
        let credit = Credit { bytes: Position(7), arrivals: 8 };
        assert_eq!(Frame::parse(Kind::Credit.tag(), &payload), Ok(Frame::Credit(credit)));
        assert_eq!(
            Frame::parse(Kind::BulkDone.tag(), &payload[..8]),
            Ok(Frame::BulkDone(LoanId::from_bits(7)))
        );
        assert_eq!(Frame::parse(Kind::Ping.tag(), &payload[..8]), Ok(Frame::Ping(7)));
        assert_eq!(Frame::parse(Kind::Unused.tag(), &payload[..8]), Ok(Frame::Unused(7)));
    }

    /// R91: every tag kind with every short payload is a frame or a named violation, never a panic.
    #[test]
    fn r91_any_tag_and_length_is_answered() {
        let payload = [0xff; 64];
        for tag in (0..=0x1ff).chain([0xffff_ffff]) {
            for len in 0..=payload.len() {
                let _ = Frame::parse(Tag(tag), &payload[..len]);
            }
        }
        assert!(Frame::parse(Tag(0), &payload).is_err());
        assert!(Frame::parse(Kind::Message.tag(), &payload[..7]).is_err());
    }
}
