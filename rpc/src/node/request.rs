//! A request: where its arguments come from, and how it leaves.

use std::marker::PhantomData;

use gimmal_engine::{
    Head, Io, SendError,
    transport::{ConnId, Loan, Port},
};

use super::header_cache::HeaderCache;
use crate::{
    codec::{Compose, EncodeError, compose_into},
    error::TransportError,
    frame::{BARE_REQUEST, Flags, Kind, REQUEST_BYTES, RequestWords},
    id::CallId,
    method::Method,
    shape::Form,
    status::Fate,
};

/// Arguments of a call: written in place, or into a buffer when the call has to wait.
pub(crate) trait Source {
    /// How they travel.
    fn flags(&self) -> Flags;
    /// The arguments, where they lie written already: they are copied to where they leave from.
    fn written(&self) -> &[u8] {
        &[]
    }
    fn compose(&self, out: &mut [u8]) -> Result<usize, EncodeError>;
    /// See [`Compose::composed_bytes`].
    fn composed_bytes(&self) -> Option<usize>;
    /// Writes them into `body`. What failed can be asked again.
    fn keep(&mut self, body: &mut Vec<u8>, limit: usize) -> Result<(), EncodeError>;
    /// They left: `body` is where the answer will be put.
    fn left(self, body: &mut Vec<u8>);
}

/// Arguments that another thread has written already.
#[derive(Debug)]
pub(crate) struct Composed(pub(crate) Vec<u8>, pub(crate) Flags);

impl Source for Composed {
    fn flags(&self) -> Flags {
        self.1
    }

    fn written(&self) -> &[u8] {
        &self.0
    }

    fn compose(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        self.0[..].compose(out)
    }

    fn composed_bytes(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn keep(&mut self, body: &mut Vec<u8>, limit: usize) -> Result<(), EncodeError> {
        if self.0.len() > limit {
            return Err(EncodeError::Full);
        }
        *body = std::mem::take(&mut self.0);
        Ok(())
    }

    fn left(self, body: &mut Vec<u8>) {
        *body = self.0;
    }
}

/// Arguments of the worker's own thread. `W` is a type of its own for each place that starts many calls, so that the compiler
/// inlines all of the way at each of them.
// ledger: one_piece
#[derive(Debug)]
pub(crate) struct Fresh<'a, T: ?Sized, W = ()>(&'a T, PhantomData<W>);

impl<'a, T: ?Sized> Fresh<'a, T> {
    pub(crate) const fn new(arguments: &'a T) -> Self {
        Self(arguments, PhantomData)
    }
}

impl<'a, T: ?Sized, W> Fresh<'a, T, W> {
    #[inline(always)]
    pub(crate) const fn on(arguments: &'a T) -> Self {
        Self(arguments, PhantomData)
    }
}

impl<T: Compose + ?Sized, W> Source for Fresh<'_, T, W> {
    #[inline]
    fn flags(&self) -> Flags {
        if T::IS_NOTED { Flags::METADATA } else { Flags::NONE }
    }

    #[inline(always)]
    fn compose(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        self.0.compose(out)
    }

    fn composed_bytes(&self) -> Option<usize> {
        self.0.composed_bytes()
    }

    fn keep(&mut self, body: &mut Vec<u8>, limit: usize) -> Result<(), EncodeError> {
        compose_into(body, limit, self.0)
    }

    #[inline]
    fn left(self, _: &mut Vec<u8>) {}
}

/// Arguments that lie in the loan beside the request; their metadata goes with the request.
#[derive(Debug)]
pub(crate) struct Enclosed(pub(crate) Flags, pub(crate) Vec<u8>);

impl Source for Enclosed {
    fn flags(&self) -> Flags {
        self.0
    }

    fn compose(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        self.1[..].compose(out)
    }

    fn composed_bytes(&self) -> Option<usize> {
        Some(self.1.len())
    }

    fn keep(&mut self, body: &mut Vec<u8>, limit: usize) -> Result<(), EncodeError> {
        if self.1.len() > limit {
            return Err(EncodeError::Full);
        }
        *body = std::mem::take(&mut self.1);
        Ok(())
    }

    fn left(self, body: &mut Vec<u8>) {
        *body = self.1;
    }
}

/// Why a request or a response did not leave.
pub(super) enum Unsent<E> {
    /// There is no room now.
    Blocked,
    /// It is larger than the largest arguments or payload of a message, bytes.
    TooLarge(usize),
    /// It can never leave, and the call ends with this.
    Never(E),
}

/// Sends a request whose arguments `source` writes in place; gives the loan back when it did not leave. `headers` has the
/// header of the connection's last plain request.
#[inline(always)]
pub(super) fn send_request<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    (method, flags, head): (&Method, Flags, RequestWords),
    headers: &mut HeaderCache,
    loan: &mut Option<Loan>,
    source: &impl Source,
) -> Result<(), Unsent<TransportError>> {
    let mut failure = None;
    let (is_plain, kind) = (flags == Flags::NONE, Kind::Request.with(flags));
    let is_again = is_plain && headers.sent == Some(head);
    if !is_again && method.form == Form::Named && !headers.schemas.tell(io, conn, method) {
        return Err(Unsent::Blocked);
    }
    // A closure for each way, so that what it does becomes part of that way.
    let sent = match loan.take().filter(|bulk| !bulk.is_empty()) {
        None => {
            let (kind, front) = if is_again { (BARE_REQUEST, None) } else { (kind, Some(head)) };
            let put = |body: &mut [u8]| put_request(body, front, source, &mut failure);
            io.send(conn, Head { kind, aux: id.aux() }, REQUEST_BYTES, put)
        }
        Some(bulk) => {
            let message = Head { kind, aux: id.aux() };
            let fill = |body: &mut [u8]| put_request(body, Some(head), source, &mut failure);
            io.send_with_loan(conn, message, bulk, REQUEST_BYTES, fill).map_err(|refused| {
                *loan = Some(refused.loan);
                refused.error
            })
        }
    };
    if is_plain && sent.is_ok() {
        headers.sent = Some(head);
    }
    match sent {
        Ok(()) => Ok(()),
        Err(error) => Err(unsent(io, conn, error, failure)),
    }
}

/// Writes the head, if there is one, and arguments, whose room is the same without it; `None` when there is too little, or they cannot
/// be written.
#[inline(always)]
pub(super) fn put_request(
    body: &mut [u8],
    head: Option<RequestWords>,
    source: &impl Source,
    failure: &mut Option<EncodeError>,
) -> Option<usize> {
    let room = body.len().checked_sub(REQUEST_BYTES)?;
    let front = if head.is_some() { REQUEST_BYTES } else { 0 };
    match source.compose(&mut body[front..front + room]) {
        Ok(bytes) => {
            if let Some(head) = head {
                head.put(body.first_chunk_mut()?);
            }
            Some(front + bytes)
        }
        Err(EncodeError::Full) => None,
        Err(error) => {
            *failure = Some(error);
            None
        }
    }
}

#[cold]
fn unsent<P: Port>(
    io: &Io<'_, P>,
    conn: ConnId,
    error: SendError,
    failure: Option<EncodeError>,
) -> Unsent<TransportError> {
    match (error, failure) {
        (_, Some(error)) => Unsent::Never(TransportError::Encode(error)),
        (SendError::Blocked, None) => Unsent::Blocked,
        (SendError::TooLarge { limit, .. }, None) => Unsent::TooLarge(limit.saturating_sub(REQUEST_BYTES)),
        (SendError::NoBulk, None) => Unsent::Never(TransportError::NoBulk {
            why: "bulk was negotiated away (initiator_depth 0)",
            fate: Fate::NotRun,
        }),
        (SendError::TooManyLoans { limit }, None) => Unsent::Never(TransportError::TooManyLoans { limit }),
        (SendError::Foreign, None) => Unsent::Never(TransportError::ForeignLoan),
        (_, None) => match io.ending(conn) {
            Some(reason) => Unsent::Never(TransportError::Closed { reason, fate: Fate::NotRun }),
            // It waits until the node hears of the end, and why.
            None => Unsent::Blocked,
        },
    }
}
