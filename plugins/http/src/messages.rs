//! The messages of a call, and the codec that writes them.
//!
//! ```text
//!  request   head (2 + n) │ trailers (2 + n) │ body, or its beginning
//!  item      0 data · 1 the response's head · 2 trailers
//!  answer    0 head (2 + n) │ trailers (2 + n) │ body    the whole response
//!            1 trailers                                  the end of one whose head and data were items
//! ```

use bytes::{Buf as _, Bytes};
use gimmal_rpc::{
    Method, MethodKind,
    codec::{Codec, Compose, Decode, DecodeError, Encode, EncodeError},
    stream,
};
use http::{HeaderMap, request, response};

use crate::{
    block,
    head::{self, Unread, Writer},
    pieces::Pieces,
};

/// Requests whose body is in the message; those whose body goes on as items; and a question whether the server is there.
pub(crate) static METHODS: [Method; 3] = [
    Method::new("gimmal.Http", "call", "(request) -> response, down item", Wire::NAME, MethodKind::Async)
        .with_streams(false, true),
    Method::new(
        "gimmal.Http",
        "exchange",
        "(request, up item) -> response, down item",
        Wire::NAME,
        MethodKind::Async,
    )
    .with_streams(true, true),
    Method::new("gimmal.Http", "ready", "()", Wire::NAME, MethodKind::Raw).idempotent(),
];

/// The place of the first method in [`METHODS`].
pub(crate) const CALL: usize = 0;
/// The place of the method with a stream up.
pub(crate) const EXCHANGE: usize = 1;
/// The place of the question.
pub(crate) const READY: usize = 2;

const DATA: u8 = 0;
const HEAD: u8 = 1;
const TRAILERS: u8 = 2;

const WHOLE: u8 = 0;
const END: u8 = 1;

/// Bytes of a request or an answer beside heads and body.
pub(crate) const BESIDE: usize = 8;

/// The codec of all messages.
pub(crate) struct Wire;

impl Codec for Wire {
    const NAME: &'static str = "http-1";
}

/// An item that is sent.
pub(crate) enum Piece {
    /// Bytes of a body.
    Data(Bytes),
    /// The head of a response whose body follows.
    Head(response::Parts),
    /// Trailers of a request.
    Trailers(HeaderMap),
}

impl Encode<Piece> for Wire {
    fn encode(piece: &Piece, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut out = Writer::new(out);
        match piece {
            Piece::Data(data) => {
                out.put(&[DATA])?;
                out.put(data)?;
            }
            Piece::Head(parts) => {
                out.put(&[HEAD])?;
                head::write_response(&mut out, parts)?;
            }
            Piece::Trailers(trailers) => {
                out.put(&[TRAILERS])?;
                head::write_headers(&mut out, trailers)?;
            }
        }
        Ok(out.len())
    }

    fn encoded_bytes(piece: &Piece) -> Option<usize> {
        match piece {
            Piece::Data(data) => Some(data.len() + 1),
            Piece::Head(_) | Piece::Trailers(_) => None,
        }
    }
}

/// An item that arrived.
#[derive(Debug)]
pub(crate) enum Item {
    Data(Bytes),
    Head(Bytes),
    Trailers(Bytes),
}

impl Decode<'_, Item> for Wire {
    fn decode(bytes: &[u8]) -> Result<Item, DecodeError> {
        let Some((kind, bytes)) = bytes.split_first() else { return Err(DecodeError::new("an empty item")) };
        let bytes = block::copy_of(bytes);
        match *kind {
            DATA => Ok(Item::Data(bytes)),
            HEAD => Ok(Item::Head(bytes)),
            TRAILERS => Ok(Item::Trailers(bytes)),
            _ => Err(DecodeError::new("an item of an unknown kind")),
        }
    }
}

/// Takes an item that arrived. Data of a large one stay in the memory in which they came.
pub(crate) fn item(arrived: stream::Item<'_>) -> Result<Item, DecodeError> {
    let is_data = arrived.first() == Some(&DATA);
    let mut bytes: Bytes = match arrived {
        stream::Item::Kept(kept) if is_data => Bytes::from_owner(kept),
        stream::Item::Copied(bytes) if is_data => bytes.into(),
        small => return Wire::decode(&small),
    };
    bytes.advance(1);
    Ok(Item::Data(bytes))
}

fn put_body(out: &mut Writer<'_>, trailers: Option<&HeaderMap>, data: &Pieces) -> Result<(), EncodeError> {
    out.part(|out| trailers.map_or(Ok(()), |trailers| head::write_headers(out, trailers)))?;
    data.iter().try_for_each(|data| out.put(data))
}

/// A request as it is sent.
pub(crate) struct Asked<'a> {
    pub(crate) parts: &'a request::Parts,
    pub(crate) data: &'a Pieces,
    pub(crate) trailers: Option<&'a HeaderMap>,
}

impl Compose for Asked<'_> {
    fn compose(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut out = Writer::new(out);
        out.part(|out| head::write_request(out, self.parts))?;
        put_body(&mut out, self.trailers, self.data)?;
        Ok(out.len())
    }
}

/// An answer as it is sent.
pub(crate) enum Answered {
    /// The whole response.
    Whole { parts: response::Parts, data: Pieces, trailers: Option<HeaderMap> },
    /// The end of a response that was sent in items.
    End(Option<HeaderMap>),
}

impl Encode<Answered> for Wire {
    fn encode(answer: &Answered, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut out = Writer::new(out);
        match answer {
            Answered::Whole { parts, data, trailers } => {
                out.put(&[WHOLE])?;
                out.part(|out| head::write_response(out, parts))?;
                put_body(&mut out, trailers.as_ref(), data)?;
            }
            Answered::End(trailers) => {
                out.put(&[END])?;
                trailers.as_ref().map_or(Ok(()), |trailers| head::write_headers(&mut out, trailers))?;
            }
        }
        Ok(out.len())
    }
}

/// Why a response has no good end, in words for the caller.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

/// Most bytes of such words.
const WORDS_BYTES_MAX: usize = 512;

impl Encode<Broken> for Wire {
    fn encode(Broken(why): &Broken, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut out = Writer::new(out);
        out.put(&why.as_bytes()[..why.len().min(WORDS_BYTES_MAX)])?;
        Ok(out.len())
    }
}

fn part<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Unread> {
    let early = Unread::Malformed("it ends early");
    let length = rest.try_get_u16_le().map_err(|_| early)?;
    rest.split_off(..usize::from(length)).ok_or(early)
}

/// What of a message is its body: the bytes, and trailers as they arrived.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Takes a head and contents apart, whose first byte is that of the head's length.
fn whole<T>(
    mut bytes: Bytes,
    read: impl FnOnce(&Bytes, &[u8]) -> Result<T, Unread>,
) -> Result<(T, Contents), Unread> {
    let mut rest = &bytes[..];
    let (head, trailers) = (part(&mut rest)?, part(&mut rest)?);
    let head = read(&bytes, head)?;
    let trailers = if trailers.is_empty() { None } else { Some(head::read_trailers(&bytes, trailers)?) };
    let left = rest.len();
    bytes.advance(bytes.len() - left);
    Ok((head, Contents { data: bytes, trailers }))
}

/// Reads a request.
pub(crate) fn request(bytes: Bytes) -> Result<(request::Parts, Contents), Unread> {
    whole(bytes, head::read_request)
}

/// An answer as it arrived.
#[derive(Debug)]
pub(crate) enum Arrived {
    Whole(response::Parts, Contents),
    End(Option<HeaderMap>),
}

/// Reads an answer. The memory of `headers` is used for those of a response.
pub(crate) fn answer(mut bytes: Bytes, headers: HeaderMap) -> Result<Arrived, Unread> {
    match bytes.try_get_u8() {
        Ok(WHOLE) => {
            let read = |message: &Bytes, head: &[u8]| head::read_response(message, head, headers);
            whole(bytes, read).map(|(parts, contents)| Arrived::Whole(parts, contents))
        }
        Ok(END) if bytes.is_empty() => Ok(Arrived::End(None)),
        Ok(END) => Ok(Arrived::End(Some(head::read_trailers(&bytes, &bytes)?))),
        _ => Err(Unread::Malformed("an answer of an unknown kind")),
    }
}
