//! How a request fails, and whether it ran.

use std::{error::Error as StdError, fmt};

use gimmal_rpc::{CallError, Code, Fate, TransportError, response::Failure};

use crate::head::{HEAD_BYTES_MAX, Unread};

/// Why a request has no response, or why a body ended early.
///
/// `Debug` prints the text of `Display`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// gimmal did not carry the call to its end.
    #[error("{0}")]
    Call(Failure),
    /// No connection was there in time. The request was not sent.
    #[error("there is no connection to the server (not run): {0}")]
    NotConnected(Failure),
    /// The body that this side sends ended with an error at once. The request was not sent.
    #[error("the request's body, before the request was sent: {0}")]
    Unsent(#[source] Box<dyn StdError + Send + Sync>),
    /// The body that this side sends ended with an error, so the call was cancelled.
    #[error("the request's body: {0}")]
    Body(#[source] Box<dyn StdError + Send + Sync>),
    /// The peer gave up the body that it was sending. What came of it is not all.
    #[error("the peer gave up before the end of the body: {0}")]
    Aborted(String),
    /// The body of a request is longer or shorter than its `content-length`. A client does not send such a request.
    #[error("the body is not as long as its content-length says")]
    ContentLength,
    /// The body of a response is longer or shorter than its `content-length`, or that is no number.
    #[error("the response is not as long as its content-length says")]
    ResponseLength,
    /// A body is above the limit of the server.
    #[error("the body is above the limit of {limit} bytes; send less, or raise it at the server")]
    TooLarge {
        /// Most bytes of a body.
        limit: u64,
    },
    /// The head of a request is above the limit. The request was not sent.
    #[error("the head is above the limit of {} bytes; send fewer or shorter headers", HEAD_BYTES_MAX)]
    HeadTooLarge,
    /// What arrived is no message of this protocol.
    #[error("the peer does not speak gimmal-http: {0}")]
    Malformed(&'static str),
    /// gimmal carries no such request. It was not sent.
    #[error("{0} is not carried; connect to an HTTP server for it")]
    NotCarried(&'static str),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Error {
    /// Returns whether the server's service was called: it decides whether the request may be repeated.
    #[must_use]
    pub fn fate(&self) -> Fate {
        match self {
            Self::Call(failure) => failure.fate(),
            Self::NotConnected(_)
            | Self::Unsent(_)
            | Self::ContentLength
            | Self::HeadTooLarge
            | Self::NotCarried(_) => Fate::NotRun,
            Self::Aborted(_) | Self::ResponseLength | Self::Malformed(_) => Fate::Ran,
            Self::Body(_) | Self::TooLarge { .. } => Fate::MaybeRan,
        }
    }

    /// Returns the failure as a code of gRPC.
    ///
    /// Clients of gRPC repeat a call on `UNAVAILABLE`. So where gimmal fails a call, that code says that the connection was lost, or
    /// that the service was certainly not called: [`fate`](Self::fate) tells which.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NotConnected(_) => Code::Unavailable,
            Self::Call(CallError::Status(status)) => status.code(),
            Self::Call(CallError::Transport(
                TransportError::Closed { .. } | TransportError::Worker { .. },
            )) => Code::Unavailable,
            Self::Call(CallError::Transport(TransportError::Full { .. })) => Code::ResourceExhausted,
            Self::Call(CallError::Mismatch(_)) | Self::NotCarried(_) => Code::Unimplemented,
            Self::HeadTooLarge | Self::TooLarge { .. } => Code::ResourceExhausted,
            Self::Aborted(_) | Self::Body(_) | Self::Unsent(_) => Code::Cancelled,
            _ => Code::Internal,
        }
    }

    /// Returns how gimmal's call failed, if that is why.
    #[must_use]
    pub const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Call(failure) | Self::NotConnected(failure) => Some(failure),
            _ => None,
        }
    }
}

impl From<Unread> for Error {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::TooLarge => Self::Malformed("a head above the limit"),
            Unread::Malformed(what) => Self::Malformed(what),
        }
    }
}
