//! Calls on the wire: what stands in a message's head and before its payload.
//!
//! ```text
//!  head.kind   bits 0..8 kind │ 8..16 reserved, ignored                  head.aux   slot u32 │ generation u32
//!  Request     method u32 │ signature u32 │ deadline us u32 (0: none) │ window u32 │ arguments
//!  Again       arguments: of a call whose method, signature, deadline and window are those of the connection's last Request
//!  Answer      payload: the answer of a call that ended well and lends nothing
//!  Batch, Answers   several Again, several Answer, see `batch`; aux is 0
//!  Response    outcome u8 │ code u8 │ fate u8 │ zero u8 │ reserved u32, ignored               │ payload
//!                Ok: the answer   App: the error   Status: a message, and a 0 and details   Mismatch: the server's signature
//!  LargeRequest, LargeResponse   the same, whose arguments or payload are the bulk on offer beside it
//!  NotedRequest, NotedLargeRequest   the same with metadata before the arguments, see `metadata`
//!  Notes                  metadata of the answer that comes behind it
//!  Cancel, GoAway         –
//!  OneWay      as Request; aux is 0, there is no answer
//!  UpItem, DownItem       an item of a stream, to the callee or to the caller
//!  UpEnd                  no more items to the callee; those to the caller end with the Response
//!  UpAbort                no more items to the callee, and those that were sent are not all
//!  UpCredit, DownCredit   items u32: so many more may be sent up (said by the callee) or down      (little endian)
//! ```
//! `window`: items of a stream that the callee may send before it is given credit.
//!
//! With the engine's header the arguments start on a multiple of 16 in ring memory, an answer on a multiple of 8. Most calls
//! are Again and Answer, whose bytes then begin where the engine's do: 64 of them are a frame of 80, and 48 one cache line. In a
//! Batch or Answers both start on a multiple of 8. How
//! many bytes a message holds does not depend on it: the head's place is left free.

use std::time::Duration;

use gimmal_engine::transport::{Time, Violation, pack::join};

use crate::{
    method::Method,
    status::{Code, Fate},
};

/// Bytes before the arguments of a request.
pub const REQUEST_BYTES: usize = 16;
/// Bytes before the payload of a response.
pub const RESPONSE_BYTES: usize = 8;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A call.
    Request,
    /// Its answer: an error, a status, or one that has bulk beside it. Any other is a [`Kind::Answer`].
    Response,
    /// The caller is not interested any more; not answered.
    Cancel,
    /// A request that is not answered.
    OneWay,
    /// An item of a stream to the callee.
    UpItem,
    /// An item of a stream to the caller.
    DownItem,
    /// No more items to the callee.
    UpEnd,
    /// No more items to the callee, which were not all: the caller gave up.
    UpAbort,
    /// More items may go to the callee.
    UpCredit,
    /// More items may go to the caller.
    DownCredit,
    /// This side takes no more calls; those that run are answered. Its aux names no call.
    GoAway,
    /// A call whose arguments are the bulk beside it.
    LargeRequest,
    /// An answer, or the method's error, that is the bulk beside it.
    LargeResponse,
    /// A call with metadata.
    NotedRequest,
    /// A call whose metadata and arguments are the bulk beside it.
    NotedLargeRequest,
    /// Metadata of the answer that comes behind it.
    Notes,
    /// A call with the head of the last [`Kind::Request`].
    Again,
    /// An answer that is nothing but its payload.
    Answer,
    /// Several [`Kind::Again`].
    Batch,
    /// Several [`Kind::Answer`].
    Answers,
}

/// How the arguments of a request travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Form {
    /// In the loan that goes with it.
    pub(crate) is_large: bool,
    /// Behind metadata.
    pub(crate) is_noted: bool,
}

impl Form {
    /// What such a request is. One that is one-way has this form only.
    pub(crate) const fn kind(self, is_oneway: bool) -> Kind {
        match (is_oneway, self.is_large, self.is_noted) {
            (true, ..) => Kind::OneWay,
            (false, false, false) => Kind::Request,
            (false, true, false) => Kind::LargeRequest,
            (false, false, true) => Kind::NotedRequest,
            (false, true, true) => Kind::NotedLargeRequest,
        }
    }
}

impl Kind {
    /// As it stands in the head.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::Request => 1,
            Self::Response => 2,
            Self::Cancel => 3,
            Self::OneWay => 4,
            Self::UpItem => 5,
            Self::DownItem => 6,
            Self::UpEnd => 7,
            Self::UpCredit => 8,
            Self::DownCredit => 9,
            Self::GoAway => 16,
            Self::LargeRequest => 10,
            Self::LargeResponse => 11,
            Self::NotedRequest => 12,
            Self::NotedLargeRequest => 13,
            Self::Notes => 14,
            Self::Again => 15,
            Self::Answer => 17,
            Self::Batch => 18,
            Self::Answers => 19,
            Self::UpAbort => 20,
        }
    }

    /// Reads it; the upper byte is reserved for flags that may be ignored.
    ///
    /// # Errors
    /// [`Violation::Malformed`] for a kind that nobody knows.
    #[inline]
    pub const fn parse(code: u16) -> Result<Self, Violation> {
        match code & 0xff {
            1 => Ok(Self::Request),
            2 => Ok(Self::Response),
            3 => Ok(Self::Cancel),
            4 => Ok(Self::OneWay),
            5 => Ok(Self::UpItem),
            6 => Ok(Self::DownItem),
            7 => Ok(Self::UpEnd),
            8 => Ok(Self::UpCredit),
            9 => Ok(Self::DownCredit),
            16 => Ok(Self::GoAway),
            10 => Ok(Self::LargeRequest),
            11 => Ok(Self::LargeResponse),
            12 => Ok(Self::NotedRequest),
            13 => Ok(Self::NotedLargeRequest),
            14 => Ok(Self::Notes),
            15 => Ok(Self::Again),
            17 => Ok(Self::Answer),
            18 => Ok(Self::Batch),
            19 => Ok(Self::Answers),
            20 => Ok(Self::UpAbort),
            _ => Err(Violation::Malformed { what: "message kind" }),
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
    /// Items of a stream that the callee may send at first.
    pub window: u32,
}

/// Reads the items of a credit.
///
/// # Errors
/// [`Violation::Malformed`] when it is not four bytes.
pub fn parse_credit(body: &[u8]) -> Result<u32, Violation> {
    let bytes = body.try_into().map_err(|_| Violation::Malformed { what: "credit of a stream" })?;
    Ok(u32::from_le_bytes(bytes))
}

/// A [`RequestHead`] in words: what is written in pieces and moved as one waits until every store before it is done, and those
/// before it go to lines that the peer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestWords {
    called: u64,
    limits: u64,
}

impl RequestWords {
    /// Writes what is called; [`RequestWords::put_limits`] writes the rest, later: the compiler would join two writes in a row.
    #[inline] // ledger: head_in_words
    pub(crate) fn put_called(self, out: &mut [u8; REQUEST_BYTES]) {
        out[..REQUEST_BYTES / 2].copy_from_slice(&self.called.to_le_bytes());
    }

    #[inline]
    pub(crate) fn put_limits(self, out: &mut [u8; REQUEST_BYTES]) {
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
        self.words().put_called(&mut out);
        self.words().put_limits(&mut out);
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

/// How a call ended at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
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

impl Outcome {
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

    /// What a message of this outcome is, if nothing is lent beside it.
    #[inline]
    pub(crate) const fn kind(self) -> Kind {
        if matches!(self, Self::Ok) { Kind::Answer } else { Kind::Response }
    }

    /// Begins a message of [`Outcome::kind`]: the bytes that it takes, and the place behind them, which is as long for every
    /// outcome. `None`: there is too little room.
    #[inline]
    pub(crate) fn put(self, body: &mut [u8]) -> Option<(usize, &mut [u8])> {
        let room = body.len().checked_sub(RESPONSE_BYTES)?;
        if self == Self::Ok {
            return Some((0, &mut body[..room]));
        }
        let (front, place) = body.split_first_chunk_mut()?;
        *front = self.encode();
        Some((RESPONSE_BYTES, place))
    }

    /// Takes a response's body apart.
    ///
    /// # Errors
    /// [`Violation::Malformed`] when it is too short or its outcome is unknown.
    #[inline]
    pub fn parse(body: &[u8]) -> Result<(Self, &[u8]), Violation> {
        let (head, payload) =
            body.split_first_chunk::<RESPONSE_BYTES>().ok_or(Violation::Malformed { what: "response" })?;
        let outcome = match head[0] {
            0 => Self::Ok,
            1 => Self::App,
            2 => Self::Status { code: Code::from_number(head[1]), fate: Fate::from_code(head[2]) },
            3 => Self::Mismatch,
            _ => return Err(Violation::Malformed { what: "outcome of a call" }),
        };
        Ok((outcome, payload))
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
        assert_eq!(Outcome::Ok.encode(), [0; 8]);
        assert_eq!(Outcome::App.encode(), [1, 0, 2, 0, 0, 0, 0, 0]);
        let status = Outcome::Status { code: Code::Unavailable, fate: Fate::NotRun };
        assert_eq!(status.encode(), [2, 14, 0, 0, 0, 0, 0, 0]);
        for outcome in [Outcome::Ok, Outcome::App, status, Outcome::Mismatch] {
            assert_eq!(Outcome::parse(&outcome.encode()), Ok((outcome, &[][..])));
        }
    }

    #[test]
    fn a_message_holds_as_much_of_every_outcome() {
        for (outcome, front) in [(Outcome::Ok, 0), (Outcome::App, 8), (Outcome::Mismatch, 8)] {
            let mut body = [0xee; 20];
            let put = outcome.put(&mut body).map(|(front, place)| (front, place.len()));
            assert_eq!(put, Some((front, 12)));
            assert!(front == 0 || body[..8] == outcome.encode());
            assert_eq!(outcome.put(&mut [0; 7]), None);
            assert_eq!(outcome.kind() == Kind::Answer, front == 0);
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

    /// R90: flags that nobody knows are ignored, kinds that nobody knows are named.
    #[test]
    fn r90_reserved_bits_are_ignored() {
        assert_eq!(Kind::parse(0xff01), Ok(Kind::Request));
        assert_eq!(Kind::parse(0), Err(Violation::Malformed { what: "message kind" }));
        let mut body = RequestHead { method: 1, signature: 2, deadline_us: 0, window: 0 }.encode();
        body[12..].fill(0xff);
        assert_eq!(RequestHead::parse(&body).unwrap().0.deadline(), None);
        assert_eq!(Outcome::parse(&[0, 9, 9, 9, 9, 9, 9, 9]).unwrap().0, Outcome::Ok);
    }

    /// R91: every flip of a bit of every header is a value or a named violation.
    #[test]
    fn r91_every_bit_flip_is_answered() {
        let request = RequestHead { method: 1, signature: 2, deadline_us: 3, window: 0 }.encode();
        let response = Outcome::Status { code: Code::Internal, fate: Fate::Ran }.encode();
        for bit in 0..request.len() * 8 {
            let mut body = request;
            body[bit / 8] ^= 1 << (bit % 8);
            assert!(RequestHead::parse(&body).is_ok());
        }
        for bit in 0..response.len() * 8 {
            let mut body = response;
            body[bit / 8] ^= 1 << (bit % 8);
            let named = Err(Violation::Malformed { what: "outcome of a call" });
            let parsed = Outcome::parse(&body).map(|_| ());
            assert!(parsed.is_ok() || parsed == named);
        }
        for kind in 0..=u16::MAX {
            let _ = Kind::parse(kind);
        }
    }

    proptest! {
        #[test]
        fn r91_any_bytes_are_answered(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(RequestHead::parse(&body).is_ok(), body.len() >= REQUEST_BYTES);
            prop_assert_eq!(
                Outcome::parse(&body).is_ok(),
                body.len() >= RESPONSE_BYTES && body[0] <= 3
            );
        }
    }
}
