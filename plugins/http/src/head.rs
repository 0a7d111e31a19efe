//! Heads: methods, targets, statuses and headers as bytes.
//!
//! ```text
//!  request   method (1: a common one; 0, length, text) │ scheme │ authority (2 + n) │ path (2 + n) │ headers
//!  response  status (2) │ headers
//!  header    name (1: a common one; 0, length, text) │ value (2 + n)
//! ```
//! Numbers are little-endian. Headers keep their order within a name, their repeats, and the bytes of their values. The reader
//! counts each header as its name, its value and 32 bytes, as HTTP/2 does, against [`HEAD_BYTES_MAX`], before it makes anything of
//! it. Values are read in place: they are parts of the message's own buffer.

use bytes::{Buf as _, Bytes};
use gimmal_rpc::codec::EncodeError;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, request, response,
    uri::{Authority, PathAndQuery, Scheme},
};

use crate::{names, rules};

/// Most bytes of a head on the wire that is read: the limit of common servers of HTTP/2.
pub const HEAD_BYTES_MAX: usize = 16 << 10;

const METHODS: [Method; 8] = [
    Method::POST,
    Method::GET,
    Method::HEAD,
    Method::PUT,
    Method::DELETE,
    Method::OPTIONS,
    Method::PATCH,
    Method::TRACE,
];

/// What HTTP/2 counts for a header beside its name and value.
const HEADER_BYTES: usize = 32;

/// Why a head was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unread {
    /// It is above [`HEAD_BYTES_MAX`].
    TooLarge,
    /// It is none.
    Malformed(&'static str),
}

type Read<T> = Result<T, Unread>;

/// Where a head is written.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) const fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.at
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let place = self.out.get_mut(self.at..).and_then(|rest| rest.get_mut(..bytes.len()));
        place.ok_or(EncodeError::Full)?.copy_from_slice(bytes);
        self.at += bytes.len();
        Ok(())
    }

    fn byte(&mut self, byte: u8) -> Result<(), EncodeError> {
        self.put(&[byte])
    }

    fn short(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let length = u8::try_from(bytes.len()).map_err(|_| too_long())?;
        self.byte(length)?;
        self.put(bytes)
    }

    fn long(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let length = u16::try_from(bytes.len()).map_err(|_| too_long())?;
        self.put(&length.to_le_bytes())?;
        self.put(bytes)
    }

    /// Writes a part behind its length.
    pub(crate) fn part(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let start = self.at;
        self.put(&[0; 2])?;
        write(self)?;
        let length = u16::try_from(self.at - start - 2).map_err(|_| too_long())?;
        self.out[start..start + 2].copy_from_slice(&length.to_le_bytes());
        Ok(())
    }
}

#[cold]
fn too_long() -> EncodeError {
    EncodeError::Value(format!("a head above the limit of {HEAD_BYTES_MAX} bytes"))
}

/// What a reader counts for headers. A name that is longer than its length can say is a head that is too large.
fn counted(headers: &HeaderMap) -> usize {
    let name_bytes = |name: &HeaderName| match name.as_str().len() {
        bytes if bytes > usize::from(u8::MAX) => HEAD_BYTES_MAX + 1,
        bytes => bytes,
    };
    rules::travelling(headers).map(|(name, value)| name_bytes(name) + value.len() + HEADER_BYTES).sum()
}

/// What a reader counts for a request's head; never less than it takes on the wire.
pub(crate) fn request_bytes(parts: &request::Parts) -> usize {
    let target = parts.uri.authority().map_or(0, |it| it.as_str().len())
        + parts.uri.path_and_query().map_or(0, |it| it.as_str().len());
    target + parts.method.as_str().len() + 16 + counted(&parts.headers)
}

/// What a reader counts for a response's head.
pub(crate) fn response_bytes(parts: &response::Parts) -> usize {
    16 + counted(&parts.headers)
}

/// What a reader counts for trailers.
pub(crate) fn trailers_bytes(trailers: Option<&HeaderMap>) -> usize {
    trailers.map_or(0, counted)
}

pub(crate) fn write_request(out: &mut Writer<'_>, parts: &request::Parts) -> Result<(), EncodeError> {
    match (1u8..).zip(&METHODS).find(|(_, method)| **method == parts.method) {
        Some((byte, _)) => out.byte(byte)?,
        None => {
            out.byte(0)?;
            out.short(parts.method.as_str().as_bytes())?;
        }
    }
    let uri = &parts.uri;
    out.byte(u8::from(uri.scheme() == Some(&Scheme::HTTPS)))?;
    out.long(uri.authority().map_or(&[][..], |authority| authority.as_str().as_bytes()))?;
    out.long(uri.path_and_query().map_or(&b"/"[..], |path| path.as_str().as_bytes()))?;
    write_headers(out, &parts.headers)
}

pub(crate) fn write_response(out: &mut Writer<'_>, parts: &response::Parts) -> Result<(), EncodeError> {
    out.put(&parts.status.as_u16().to_le_bytes())?;
    write_headers(out, &parts.headers)
}

pub(crate) fn write_headers(out: &mut Writer<'_>, headers: &HeaderMap) -> Result<(), EncodeError> {
    for (name, value) in rules::travelling(headers) {
        match names::byte_of(name) {
            Some(byte) => out.byte(byte)?,
            None => {
                out.byte(0)?;
                out.short(name.as_str().as_bytes())?;
            }
        }
        out.long(value.as_bytes())?;
    }
    Ok(())
}

/// Bytes of a head that is read.
struct Reader<'a> {
    /// What the head is a part of, and what its values share.
    message: &'a Bytes,
    rest: &'a [u8],
    /// What the rest of it may be counted as.
    left: usize,
}

const EARLY: Unread = Unread::Malformed("it ends early");

impl<'a> Reader<'a> {
    fn new(message: &'a Bytes, head: &'a [u8]) -> Read<Self> {
        if head.len() > HEAD_BYTES_MAX {
            return Err(Unread::TooLarge);
        }
        Ok(Self { message, rest: head, left: HEAD_BYTES_MAX })
    }

    fn count(&mut self, bytes: usize) -> Read<()> {
        self.left = self.left.checked_sub(bytes).ok_or(Unread::TooLarge)?;
        Ok(())
    }

    fn byte(&mut self) -> Read<u8> {
        self.rest.try_get_u8().map_err(|_| EARLY)
    }

    fn number(&mut self) -> Read<u16> {
        self.rest.try_get_u16_le().map_err(|_| EARLY)
    }

    fn long(&mut self) -> Read<&'a [u8]> {
        let length = self.number()?;
        self.rest.split_off(..usize::from(length)).ok_or(EARLY)
    }

    fn short(&mut self) -> Read<&'a [u8]> {
        let length = self.byte()?;
        self.rest.split_off(..usize::from(length)).ok_or(EARLY)
    }

    /// Shares `bytes`, a part of the message.
    fn shared(&self, bytes: &[u8]) -> Bytes {
        self.message.slice_ref(bytes)
    }

    fn name(&mut self) -> Read<HeaderName> {
        match self.byte()? {
            0 => {
                let text = self.short()?;
                // Upper case is none on the wire, as in HTTP/2: two spellings would be one name.
                if text.iter().any(u8::is_ascii_uppercase) {
                    return Err(Unread::Malformed("the name of a header is in upper case"));
                }
                HeaderName::from_bytes(text).map_err(|_| Unread::Malformed("the name of a header"))
            }
            byte => names::name_of(byte).ok_or(Unread::Malformed("an unknown name of a header")),
        }
    }

    /// Values that every call has are shared with nothing, so that a message which has no others need not be counted.
    fn value(&self, value: &[u8]) -> Read<HeaderValue> {
        let common = match value {
            b"application/grpc" => "application/grpc",
            b"trailers" => "trailers",
            b"0" => "0",
            _ => {
                let shared = HeaderValue::from_maybe_shared(self.shared(value));
                return shared.map_err(|_| Unread::Malformed("the value of a header"));
            }
        };
        Ok(HeaderValue::from_static(common))
    }

    fn headers(mut self, mut headers: HeaderMap) -> Read<HeaderMap> {
        headers.clear();
        while !self.rest.is_empty() {
            let (name, value) = (self.name()?, self.long()?);
            self.count(name.as_str().len() + value.len() + HEADER_BYTES)?;
            let value = self.value(value)?;
            if rules::travels(&name, &value) {
                headers.try_append(name, value).map_err(|_| Unread::TooLarge)?;
            }
        }
        Ok(headers)
    }
}

fn read_method(reader: &mut Reader<'_>) -> Read<Method> {
    let byte = reader.byte()?;
    if let Some(at) = usize::from(byte).checked_sub(1) {
        return METHODS.get(at).cloned().ok_or(Unread::Malformed("an unknown method"));
    }
    let text = reader.short()?;
    reader.count(text.len())?;
    Method::from_bytes(text).map_err(|_| Unread::Malformed("the method"))
}

fn read_uri(reader: &mut Reader<'_>) -> Read<Uri> {
    let is_secure = reader.byte()? == 1;
    let (authority, path) = (reader.long()?, reader.long()?);
    reader.count(authority.len() + path.len())?;
    let path = PathAndQuery::from_maybe_shared(reader.shared(path));
    let path = path.map_err(|_| Unread::Malformed("the path"))?;
    if authority.is_empty() {
        return Ok(Uri::from(path));
    }
    let mut parts = http::uri::Parts::default();
    let authority = Authority::from_maybe_shared(reader.shared(authority));
    parts.authority = Some(authority.map_err(|_| Unread::Malformed("the authority"))?);
    parts.scheme = Some(if is_secure { Scheme::HTTPS } else { Scheme::HTTP });
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).map_err(|_| Unread::Malformed("the target"))
}

/// Reads the head of a request, which is a part of `message`.
pub(crate) fn read_request(message: &Bytes, head: &[u8]) -> Read<request::Parts> {
    let mut reader = Reader::new(message, head)?;
    reader.count(16)?;
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.method = read_method(&mut reader)?;
    parts.uri = read_uri(&mut reader)?;
    parts.version = Version::HTTP_2;
    parts.headers = reader.headers(HeaderMap::new())?;
    Ok(parts)
}

/// Reads the head of a response, which is a part of `message`, into the memory of `headers`.
pub(crate) fn read_response(message: &Bytes, head: &[u8], headers: HeaderMap) -> Read<response::Parts> {
    let mut reader = Reader::new(message, head)?;
    reader.count(16)?;
    let (mut parts, ()) = http::Response::new(()).into_parts();
    let status = StatusCode::from_u16(reader.number()?).ok().filter(|status| !status.is_informational());
    parts.status = status.ok_or(Unread::Malformed("the status"))?;
    parts.version = Version::HTTP_2;
    parts.headers = reader.headers(headers)?;
    Ok(parts)
}

/// Reads trailers, which are a part of `message`.
pub(crate) fn read_trailers(message: &Bytes, trailers: &[u8]) -> Read<HeaderMap> {
    Reader::new(message, trailers)?.headers(HeaderMap::new())
}

#[cfg(test)]
mod tests;
