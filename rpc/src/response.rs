//! How a call ended, on the caller's side, before it is decoded.
//!
//! ```text
//!  node ─ Response ─► calls table or CallCell ─► Ticket ─► layers ─► Call: the method's value, its error, or a CallError
//! ```
//! What is rare lies in a box: a `Response` is handed from one to the next, and most are a buffer of bytes.

mod typed;

use std::convert::Infallible;

use gimmal_engine::transport::Bulk;

pub use self::typed::{ResponseCall, TypedResponse};
use crate::{
    error::{CallError, TransportError},
    metadata::Metadata,
    status::{Fate, Status},
    stream::Begun,
};

/// Why a call ended without its method's value and without its method's error.
pub type Failure = CallError<Infallible>;

/// How a call ended, and so what the body of its [`Response`] is.
#[derive(Debug)]
pub enum ResponseStatus {
    /// The method's value.
    Ok,
    /// The method's own error.
    Error,
    /// Nothing: the call ended without either.
    Failed(Box<Failure>),
    /// Nothing yet: items come before the answer, for which the ticket is asked again. Only
    /// [`poll_first`](crate::channel::Ticket::poll_first) returns this.
    Begun(Box<Begun>),
}

/// The bytes of a [`Response`], as the codec wrote them.
#[derive(Debug)]
pub enum Body {
    /// A buffer, which its [ticket](crate::channel::Ticket::recycle) takes back.
    Owned(Vec<u8>),
    /// Memory of the server in which they are read, or into which RDMA READ brought them.
    Bulk(Box<Bulk>),
}

impl Body {
    /// Returns the bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Bulk(bulk) => bulk,
        }
    }
}

/// How a call ended, for layers and for channels of one's own: a status, a body, and what the server sent beside them.
#[derive(Debug)]
pub struct Response {
    /// What the body is.
    pub status: ResponseStatus,
    /// The bytes.
    pub body: Body,
    /// Bulk that the server lent with the value.
    pub lent: Option<Box<Bulk>>,
    /// Metadata that the server sent, whatever the status is.
    pub metadata: Option<Box<Metadata>>,
}

impl Response {
    const fn new(status: ResponseStatus, body: Body) -> Self {
        Self { status, body, lent: None, metadata: None }
    }

    /// Whether the call has not ended: see [`ResponseStatus::Begun`].
    pub(crate) const fn has_begun(&self) -> bool {
        matches!(self.status, ResponseStatus::Begun(_))
    }

    /// A value, or the method's error, in a buffer.
    #[inline(always)]
    pub(crate) const fn owned(is_error: bool, bytes: Vec<u8>) -> Self {
        let status = if is_error { ResponseStatus::Error } else { ResponseStatus::Ok };
        Self::new(status, Body::Owned(bytes))
    }

    /// A value, or the method's error, in bulk.
    pub(crate) fn bulk(is_error: bool, bulk: Bulk) -> Self {
        Self { body: Body::Bulk(Box::new(bulk)), ..Self::owned(is_error, Vec::new()) }
    }

    /// The end of a one-way call that left.
    pub(crate) const fn nothing() -> Self {
        Self::owned(false, Vec::new())
    }

    /// Whether there is a value.
    pub(crate) const fn is_ok(&self) -> bool {
        matches!(self.status, ResponseStatus::Ok)
    }

    /// Returns why there is neither a value nor an error of the method.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match &self.status {
            ResponseStatus::Failed(failure) => Some(failure),
            ResponseStatus::Ok | ResponseStatus::Error | ResponseStatus::Begun(_) => None,
        }
    }

    /// What a ticket returns that is asked again.
    #[cold]
    pub(crate) fn taken() -> Self {
        let why = "the outcome was taken already";
        TransportError::Worker { why, fate: Fate::MaybeRan }.into()
    }
}

impl From<Begun> for Response {
    fn from(begun: Begun) -> Self {
        Self::new(ResponseStatus::Begun(Box::new(begun)), Body::Owned(Vec::new()))
    }
}

impl From<Failure> for Response {
    fn from(failure: Failure) -> Self {
        Self::new(ResponseStatus::Failed(Box::new(failure)), Body::Owned(Vec::new()))
    }
}

impl From<Status> for Response {
    fn from(status: Status) -> Self {
        Failure::Status(status).into()
    }
}

impl From<TransportError> for Response {
    fn from(error: TransportError) -> Self {
        Failure::Transport(error).into()
    }
}

impl<E> CallError<E> {
    /// A failure of a call whose method may have an error of its own.
    pub(crate) fn of(failure: Failure) -> Self {
        match failure {
            CallError::App(never) => match never {},
            CallError::Status(status) => Self::Status(status),
            CallError::Mismatch(mismatch) => Self::Mismatch(mismatch),
            CallError::Transport(error) => Self::Transport(error),
        }
    }
}
