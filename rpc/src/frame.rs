//! Messages of calls: kinds, flags, and what precedes their payload.
//!
//! ```text
//!  head.kind   bits 0..8 kind │ 8..16 flags                     head.aux   slot u32 │ generation u32: the call
//!
//!  kind       flags               body                                                                (little endian)
//!  Request    –                   method u32 │ signature u32 │ deadline us u32 (0: none) │ window u32 │ arguments
//!             METADATA            … │ window u32 │ metadata, see `metadata` │ arguments
//!             LARGE [METADATA]    … │ window u32; the bulk on offer has [metadata and] the arguments
//!             ONE_WAY             as without flags; aux is 0, and there is no response
//!             NO_HEAD             arguments; the head is that of the connection's last Request without flags
//!             NO_HEAD BATCH       several of these, see `batch`; aux is 0
//!  Response   –                   status u8 │ code u8 │ fate u8 │ 0 u8 │ reserved u32, ignored │ payload
//!             METADATA            … │ metadata │ payload
//!             LARGE [METADATA]    … │ [metadata]; the bulk on offer is the payload
//!             NO_HEAD             payload; the status is Ok
//!             NO_HEAD BATCH       several of these; aux is 0
//!  Item       [DOWN] [SHORT]      an item of the call's upload, or of its download; SHORT: it uses up the credit, and more wait
//!             [DOWN] [SHORT] LARGE   a part of an item, not empty; the rest comes behind it
//!             [DOWN] [SHORT] BULK    empty; the bulk on offer is the item, which is not empty
//!  End        [DOWN]              no more items
//!             [DOWN] ABORT        code u32; no more items, and those that were sent are not all of them
//!  Credit     [DOWN]              bytes u32: items that cost so much more may be sent
//!             [DOWN] ABORT        code u32: the reader wants no more
//!  Cancel     –                   empty; the caller does not wait any more, and there is no response
//!  GoAway     –                   empty; the sender takes no more calls. aux names no call
//!  Schema     –                   method u32 │ signature u32 │ the caller's types, ahead of its first request. aux names no call
//! ```
//! A `Response` ends a download too. Its payload is the value (Ok), the method's error (App), a message with details behind a
//! zero byte (Status), or the server's signature and behind a zero its schema (Mismatch). A bulk may be on offer beside a `Request` or `Response` with a head: one
//! argument, or a part of the value, that passes no codec. `window`: what the download's items may cost
//! before its first credit. An item costs its bytes and 64, and is sent while credit is above zero. A part costs its bytes.
//!
//! A receiver refuses a kind, a flag or a combination of flags that this table does not have, and so tells versions apart.
//! Two things that may come have their place. The last flag bit is kept for interned heads before the metadata of a
//! `Request` or `Response`. `Credit` with LARGE is for a callee that lets a large request come before it pulls. Today the
//! pull itself says so, and a `Response` with a status refuses it.
//!
//! With the engine's header the arguments start on a multiple of 16 in ring memory, a payload on a multiple of 8. Most messages
//! have no head: 64 bytes are a frame of 80 then, and 48 one cache line. In a batch each starts on a multiple of 8. How many
//! bytes a message holds does not depend on its flags: the head's place is left free.

use std::time::Duration;

use gimmal_engine::transport::{Time, Violation, pack::join};

use crate::{
    method::Method,
    status::{Code, Fate, Status},
};

/// Bytes of a request's head.
pub const REQUEST_BYTES: usize = 16;
/// Bytes of a response's head.
pub const RESPONSE_BYTES: usize = 8;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A call.
    Request = 1,
    /// The end of a call, at the server.
    Response = 2,
    /// An item of a stream.
    Item = 3,
    /// The end of a stream.
    End = 4,
    /// More of a stream may be sent, or nothing.
    Credit = 5,
    /// The caller does not wait any more.
    Cancel = 6,
    /// The sender takes no more calls; those that run are answered.
    GoAway = 7,
    /// What the types of a method are at the caller, which names them on the wire.
    Schema = 8,
}

/// What a message's kind does not say.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(u16);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The arguments, or the payload, are the bulk on offer.
    pub const LARGE: Self = Self(1 << 8);
    /// There is metadata.
    pub const METADATA: Self = Self(1 << 9);
    /// The head is left out: it is that of the last request, or says Ok.
    pub const NO_HEAD: Self = Self(1 << 10);
    /// The item is the bulk on offer.
    pub const BULK: Self = Self(1 << 9);
    /// Several calls in one message.
    pub const BATCH: Self = Self(1 << 11);
    /// There is no response.
    pub const ONE_WAY: Self = Self(1 << 12);
    /// Of the call's download, not of its upload.
    pub const DOWN: Self = Self(1 << 13);
    /// The sender gives the stream up, or its reader does; the body says why.
    pub const ABORT: Self = Self(1 << 14);
    /// The item uses up the credit, and more wait behind it.
    pub const SHORT: Self = Self(1 << 14);

    /// Returns these flags and those of `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all flags of `other` are set.
    #[inline]
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }
}

/// A request like the last one, on its own.
pub const BARE_REQUEST: u16 = Kind::Request.with(Flags::NO_HEAD);
/// A value on its own.
pub const BARE_RESPONSE: u16 = Kind::Response.with(Flags::NO_HEAD);
/// Several requests like the last one.
pub const REQUESTS: u16 = Kind::Request.with(Flags::NO_HEAD.and(Flags::BATCH));
/// Several values.
pub const RESPONSES: u16 = Kind::Response.with(Flags::NO_HEAD.and(Flags::BATCH));

impl Kind {
    /// Returns what a message of this kind has as `head.kind`.
    #[must_use]
    pub const fn with(self, flags: Flags) -> u16 {
        self as u16 | flags.0
    }

    /// Reads a message's `head.kind`.
    ///
    /// # Errors
    /// [`Violation::Malformed`] for a kind that nobody knows, and for flags that such a message does not have.
    pub const fn parse(code: u16) -> Result<(Self, Flags), Violation> {
        let kind = match code & 0xff {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Item,
            4 => Self::End,
            5 => Self::Credit,
            6 => Self::Cancel,
            7 => Self::GoAway,
            8 => Self::Schema,
            _ => return Err(Violation::Malformed { what: "message kind" }),
        };
        let flags = Flags(code & 0xff00);
        if kind.may_have(flags) {
            Ok((kind, flags))
        } else {
            Err(Violation::Malformed { what: "message flags" })
        }
    }

    const fn may_have(self, flags: Flags) -> bool {
        let (code, one_way) = (self.with(flags), Self::Request.with(Flags::ONE_WAY));
        match self {
            Self::Request | Self::Response => {
                flags.is_within(Flags::LARGE.and(Flags::METADATA))
                    || matches!(code, BARE_REQUEST | BARE_RESPONSE | REQUESTS | RESPONSES)
                    || code == one_way
            }
            Self::Item => {
                let any = Flags::DOWN.and(Flags::SHORT);
                flags.is_within(any.and(Flags::LARGE)) || flags.is_within(any.and(Flags::BULK))
            }
            Self::End | Self::Credit => flags.is_within(Flags::DOWN.and(Flags::ABORT)),
            Self::Cancel | Self::GoAway | Self::Schema => flags.is_within(Flags::NONE),
        }
    }
}

/// What precedes the arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHead {
    /// Which method.
    pub method: u32,
    /// What the caller takes its types to be.
    pub signature: u32,
    /// Time that is left, microseconds; 0: no limit.
    pub deadline_us: u32,
    /// What the items of a stream may cost that the callee sends at first.
    pub window: u32,
}

/// Reads the bytes of a credit, or the code of an end.
///
/// # Errors
/// [`Violation::Malformed`] when it is not four bytes.
pub fn parse_number(body: &[u8]) -> Result<u32, Violation> {
    let bytes = body.try_into().map_err(|_| Violation::Malformed { what: "a number of a stream" })?;
    Ok(u32::from_le_bytes(bytes))
}

/// A [`RequestHead`] in words. A value that is written in pieces and moved as one waits until every store before it is
/// done, and those go to cache lines that the peer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestWords {
    called: u64,
    limits: u64,
}

impl RequestWords {
    /// As it travels.
    #[inline]
    pub(crate) fn put(self, out: &mut [u8; REQUEST_BYTES]) {
        out[..REQUEST_BYTES / 2].copy_from_slice(&self.called.to_le_bytes());
        out[REQUEST_BYTES / 2..].copy_from_slice(&self.limits.to_le_bytes());
    }
}

impl RequestHead {
    /// Of a call of `method`.
    #[inline]
    pub(crate) const fn new(method: &Method, deadline_us: u32, window: u32) -> Self {
        Self { method: method.id, signature: method.signature_hash, deadline_us, window }
    }

    /// As it travels, in words.
    #[inline]
    pub(crate) fn words(&self) -> RequestWords {
        RequestWords {
            called: join(self.method, self.signature),
            limits: join(self.deadline_us, self.window),
        }
    }

    /// As it travels.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        self.words().put(&mut out);
        out
    }

    /// Takes a request's body apart.
    ///
    /// # Errors
    /// [`Violation::Malformed`] when it is too short.
    #[inline]
    pub fn parse(body: &[u8]) -> Result<(Self, &[u8]), Violation> {
        let (head, arguments) =
            body.split_first_chunk::<REQUEST_BYTES>().ok_or(Violation::Malformed { what: "request" })?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        Ok((Self { method: word(0), signature: word(4), deadline_us: word(8), window: word(12) }, arguments))
    }

    /// When the caller stops waiting, as seen at `now`.
    #[inline]
    #[must_use]
    pub fn deadline_at(&self, now: Time) -> Time {
        let left_ns = u64::from(self.deadline_us) * 1000;
        if left_ns == 0 { Time::NEVER } else { Time(now.0.saturating_add(left_ns)) }
    }

    /// The time that is left, if it is limited.
    #[must_use]
    #[inline]
    pub fn deadline(&self) -> Option<Duration> {
        (self.deadline_us != 0).then(|| Duration::from_micros(self.deadline_us.into()))
    }
}

/// The time from `now` until `deadline` as it travels: rounded up, 0 where there is none or it is too long to say (71
/// minutes).
#[inline]
#[must_use]
pub fn deadline_us(deadline: Time, now: Time) -> u32 {
    if deadline == Time::NEVER {
        return 0;
    }
    let us = deadline.0.saturating_sub(now.0).saturating_add(999) / 1000;
    u32::try_from(us.max(1)).unwrap_or(0)
}

/// What precedes the payload of a response: how the call ended at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponseHead {
    /// With its answer.
    Ok,
    /// With the method's own error.
    App,
    /// With a status.
    Status {
        /// Which.
        code: Code,
        /// Whether the handler ran.
        fate: Fate,
    },
    /// The method is spelled differently here; not run.
    Mismatch,
}

impl ResponseHead {
    /// As it travels.
    #[must_use]
    #[inline]
    pub const fn encode(self) -> [u8; RESPONSE_BYTES] {
        match self {
            Self::Ok => [0; RESPONSE_BYTES],
            Self::App => [1, 0, 2, 0, 0, 0, 0, 0],
            Self::Status { code, fate } => [2, code.number(), fate.code(), 0, 0, 0, 0, 0],
            Self::Mismatch => [3, 0, 0, 0, 0, 0, 0, 0],
        }
    }

    /// Returns the head of the status of a call.
    pub(crate) const fn of(status: &Status) -> Self {
        Self::Status { code: status.code(), fate: status.fate() }
    }

    /// Returns the `head.kind` of a message that [`ResponseHead::put`] began.
    #[inline]
    pub(crate) const fn kind(self, metadata: &[u8]) -> u16 {
        match (self, metadata) {
            (Self::Ok, []) => BARE_RESPONSE,
            (_, []) => Kind::Response.with(Flags::NONE),
            _ => Kind::Response.with(Flags::METADATA),
        }
    }

    /// Begins a message with a block of metadata, or an empty one. Returns how many bytes that took, and the place behind them, which
    /// is as long with and without a head. `None`: there is too little room.
    #[inline]
    pub(crate) fn put<'a>(self, metadata: &[u8], body: &'a mut [u8]) -> Option<(usize, &'a mut [u8])> {
        let room = body.len().checked_sub(RESPONSE_BYTES)?;
        if self == Self::Ok && metadata.is_empty() {
            return Some((0, &mut body[..room]));
        }
        self.put_head(metadata, body)
    }

    /// Writes the head, and the block of metadata behind it.
    #[inline]
    pub(crate) fn put_head<'a>(self, metadata: &[u8], body: &'a mut [u8]) -> Option<(usize, &'a mut [u8])> {
        let (head, behind) = body.split_first_chunk_mut()?;
        *head = self.encode();
        let (block, place) = behind.split_at_mut_checked(metadata.len())?;
        block.copy_from_slice(metadata); // metadata
        Some((RESPONSE_BYTES + metadata.len(), place))
    }

    /// Takes a response's body apart.
    ///
    /// # Errors
    /// [`Violation::Malformed`] when it is too short or its status is unknown.
    #[inline]
    pub fn parse(body: &[u8]) -> Result<(Self, &[u8]), Violation> {
        let (head, payload) =
            body.split_first_chunk::<RESPONSE_BYTES>().ok_or(Violation::Malformed { what: "response" })?;
        let response = match head[0] {
            0 => Self::Ok,
            1 => Self::App,
            2 => Self::Status { code: Code::from_number(head[1]), fate: Fate::from_code(head[2]) },
            3 => Self::Mismatch,
            _ => return Err(Violation::Malformed { what: "status of a call" }),
        };
        Ok((response, payload))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_request() {
        let head = RequestHead {
            method: 0x0403_0201,
            signature: 0x0807_0605,
            deadline_us: 0x0c0b_0a09,
            window: 0x0d,
        };
        let bytes = head.encode();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0, 0, 0]);
        let mut body = bytes.to_vec();
        body.extend_from_slice(b"args");
        assert_eq!(RequestHead::parse(&body), Ok((head, &b"args"[..])));
    }

    #[test]
    fn golden_responses() {
        assert_eq!(ResponseHead::Ok.encode(), [0; 8]);
        assert_eq!(ResponseHead::App.encode(), [1, 0, 2, 0, 0, 0, 0, 0]);
        let status = ResponseHead::Status { code: Code::Unavailable, fate: Fate::NotRun };
        assert_eq!(status.encode(), [2, 14, 0, 0, 0, 0, 0, 0]);
        for head in [ResponseHead::Ok, ResponseHead::App, status, ResponseHead::Mismatch] {
            assert_eq!(ResponseHead::parse(&head.encode()), Ok((head, &[][..])));
        }
    }

    #[test]
    fn a_message_holds_as_much_of_every_status() {
        for (head, front) in [(ResponseHead::Ok, 0), (ResponseHead::App, 8), (ResponseHead::Mismatch, 8)] {
            let mut body = [0xee; 20];
            let put = head.put(&[], &mut body).map(|(front, place)| (front, place.len()));
            assert_eq!(put, Some((front, 12)));
            assert!(front == 0 || body[..8] == head.encode());
            assert_eq!(head.put(&[], &mut [0; 7]), None);
            assert_eq!(head.kind(&[]) == BARE_RESPONSE, front == 0);
            assert_eq!(
                head.put(b"pair", &mut body).map(|(front, place)| (front, place.len())),
                Some((12, 8))
            );
            assert_eq!(body[..12], [&head.encode()[..], b"pair"].concat());
            assert_eq!(head.kind(b"pair"), 0x0202);
        }
    }

    #[test]
    fn deadlines_are_rounded_up_and_never_shortened() {
        let left_us = |left| deadline_us(Time(7).plus(left), Time(7));
        assert_eq!(deadline_us(Time::NEVER, Time(7)), 0);
        assert_eq!(deadline_us(Time(6), Time(7)), 1);
        assert_eq!(left_us(Duration::ZERO), 1);
        assert_eq!(left_us(Duration::from_nanos(1001)), 2);
        assert_eq!(left_us(Duration::from_secs(4294)), 4_294_000_000);
        assert_eq!(left_us(Duration::from_secs(4295)), 0);
    }

    #[test]
    fn golden_kinds() {
        use Kind::{Cancel, Credit, End, GoAway, Item, Request, Response, Schema};
        let flags = |flags: &[Flags]| flags.iter().fold(Flags::NONE, |all, flag| all.and(*flag));
        let (large, noted, bare) = (Flags::LARGE, Flags::METADATA, Flags::NO_HEAD);
        let golden: &[(u16, Kind, Flags)] = &[
            (0x0001, Request, flags(&[])),
            (0x0101, Request, flags(&[large])),
            (0x0201, Request, flags(&[noted])),
            (0x0301, Request, flags(&[large, noted])),
            (0x0401, Request, flags(&[bare])),
            (0x0c01, Request, flags(&[bare, Flags::BATCH])),
            (0x1001, Request, flags(&[Flags::ONE_WAY])),
            (0x0002, Response, flags(&[])),
            (0x0102, Response, flags(&[large])),
            (0x0202, Response, flags(&[noted])),
            (0x0302, Response, flags(&[large, noted])),
            (0x0402, Response, flags(&[bare])),
            (0x0c02, Response, flags(&[bare, Flags::BATCH])),
            (0x0003, Item, flags(&[])),
            (0x2003, Item, flags(&[Flags::DOWN])),
            (0x4003, Item, flags(&[Flags::SHORT])),
            (0x6003, Item, flags(&[Flags::DOWN, Flags::SHORT])),
            (0x0103, Item, flags(&[large])),
            (0x2103, Item, flags(&[large, Flags::DOWN])),
            (0x4103, Item, flags(&[large, Flags::SHORT])),
            (0x6103, Item, flags(&[large, Flags::DOWN, Flags::SHORT])),
            (0x0203, Item, flags(&[Flags::BULK])),
            (0x2203, Item, flags(&[Flags::BULK, Flags::DOWN])),
            (0x4203, Item, flags(&[Flags::BULK, Flags::SHORT])),
            (0x6203, Item, flags(&[Flags::BULK, Flags::DOWN, Flags::SHORT])),
            (0x0004, End, flags(&[])),
            (0x2004, End, flags(&[Flags::DOWN])),
            (0x4004, End, flags(&[Flags::ABORT])),
            (0x6004, End, flags(&[Flags::DOWN, Flags::ABORT])),
            (0x0005, Credit, flags(&[])),
            (0x2005, Credit, flags(&[Flags::DOWN])),
            (0x4005, Credit, flags(&[Flags::ABORT])),
            (0x6005, Credit, flags(&[Flags::DOWN, Flags::ABORT])),
            (0x0006, Cancel, flags(&[])),
            (0x0007, GoAway, flags(&[])),
            (0x0008, Schema, flags(&[])),
        ];
        for (code, kind, flags) in golden {
            assert_eq!(kind.with(*flags), *code);
        }
        // R90: every other one is refused by name, so a later version may give it a meaning.
        for code in 0..=u16::MAX {
            let known = golden.iter().find(|(known, ..)| *known == code);
            let what = if (1..=8).contains(&(code & 0xff)) { "message flags" } else { "message kind" };
            let expected =
                known.map_or(Err(Violation::Malformed { what }), |(_, kind, flags)| Ok((*kind, *flags)));
            assert_eq!(Kind::parse(code), expected, "{code:#06x}");
        }
    }

    /// R90: reserved bits of heads are ignored.
    #[test]
    fn r90_reserved_bits_are_ignored() {
        let mut body = RequestHead { method: 1, signature: 2, deadline_us: 0, window: 0 }.encode();
        body[12..].fill(0xff);
        assert_eq!(RequestHead::parse(&body).unwrap().0.deadline(), None);
        assert_eq!(ResponseHead::parse(&[0, 9, 9, 9, 9, 9, 9, 9]).unwrap().0, ResponseHead::Ok);
    }

    /// R91: every flip of a bit of every header is a value or a named violation.
    #[test]
    fn r91_every_bit_flip_is_answered() {
        let request = RequestHead { method: 1, signature: 2, deadline_us: 3, window: 0 }.encode();
        let response = ResponseHead::Status { code: Code::Internal, fate: Fate::Ran }.encode();
        for bit in 0..request.len() * 8 {
            let mut body = request;
            body[bit / 8] ^= 1 << (bit % 8);
            assert!(RequestHead::parse(&body).is_ok());
        }
        for bit in 0..response.len() * 8 {
            let mut body = response;
            body[bit / 8] ^= 1 << (bit % 8);
            let named = Err(Violation::Malformed { what: "status of a call" });
            let parsed = ResponseHead::parse(&body).map(|_| ());
            assert!(parsed.is_ok() || parsed == named);
        }
    }

    proptest! {
        #[test]
        fn r91_any_bytes_are_answered(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(RequestHead::parse(&body).is_ok(), body.len() >= REQUEST_BYTES);
            prop_assert_eq!(
                ResponseHead::parse(&body).is_ok(),
                body.len() >= RESPONSE_BYTES && body[0] <= 3
            );
        }
    }
}
