//! How a call, a client and a server fail, by blame; every failed call carries its fate.

use std::{convert::Infallible, fmt};

use gimmal_engine::{
    ConfigError, OpenError, StartError,
    transport::{AccessError, AddressError, BulkError, CloseReason, ListenError, LoanError},
};
use thiserror::Error;

use crate::{
    codec::{DecodeError, EncodeError},
    status::{Code, Fate, Status},
};

/// Why a call failed. `E` is the method's own error, or [`Infallible`] if it has none. [`fate`](CallError::fate) says whether the
/// handler ran, so whether the call may be made again.
///
/// `Debug` prints the text of `Display`, so that an error returned from `main` is readable.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallError<E = Infallible> {
    /// The method ran and returned its own error.
    #[error("the method failed: {0}")]
    App(E),
    /// The server, a layer or the deadline ended it: the status has a code, a message and the fate.
    #[error("{0}")]
    Status(Status),
    /// The two sides declare the method differently. It did not run; other methods work.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
    /// The call could not be carried to its end: the connection, the client, or what was to be sent is the cause.
    #[error("{0}")]
    Transport(TransportError),
}

/// How the two sides of a call declare its method.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Mismatch {
    /// `Service.method`.
    pub method: String,
    /// The caller's signature.
    pub ours: String,
    /// The server's signature.
    pub theirs: String,
    /// The first difference of their types: "field 2 of Order: here `cents: u64`, there `id: u64`". Empty where the
    /// signatures show it, or where a side's types are not known.
    pub difference: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, ours, theirs, difference } = self;
        write!(f, "the two sides declare {method} differently: ")?;
        if difference.is_empty() {
            write!(f, "{ours} here, {theirs} at the server; use the same types")
        } else {
            write!(f, "{difference} at the server; use the same types")
        }
    }
}

impl<E: fmt::Debug> fmt::Debug for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::App(error) => write!(f, "the method failed: {error:?}"),
            Self::Status(status) => write!(f, "{status}"),
            Self::Mismatch(mismatch) => write!(f, "{mismatch}"),
            Self::Transport(error) => write!(f, "{error}"),
        }
    }
}

impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl<E> CallError<E> {
    pub(crate) fn undecoded(error: DecodeError) -> Self {
        Self::Transport(TransportError::Decode(error))
    }

    /// Returns whether the handler ran, which decides whether the call may be repeated.
    #[must_use]
    pub fn fate(&self) -> Fate {
        match self {
            Self::App(_) => Fate::Ran,
            Self::Status(status) => status.fate(),
            Self::Mismatch(_) => Fate::NotRun,
            Self::Transport(error) => error.fate(),
        }
    }

    /// Returns whether the call did not run for want of a connection, of room at its client's worker, or of a server that stays.
    /// Another attempt may find all of them. A full window (`TransportError::Full`) is not among these.
    #[must_use]
    pub fn is_unready(&self) -> bool {
        let is_passing = match self {
            Self::Status(status) => status.code() == Code::Unavailable,
            Self::Transport(error) => {
                matches!(error, TransportError::Closed { .. } | TransportError::Worker { .. })
            }
            Self::App(_) | Self::Mismatch(_) => false,
        };
        is_passing && self.fate() == Fate::NotRun
    }

    /// Returns the status, if the call ended with one.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }
}

/// A call could not be carried to the end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The connection ended before the answer came.
    #[error("the connection ended: {reason} ({fate})")]
    Closed {
        /// Why it ended.
        reason: CloseReason,
        /// Whether the request had left.
        fate: Fate,
    },
    /// Too many calls wait in this client already.
    #[error("{waiting} calls already wait in this client, its limit (not run); raise `waiting_max`")]
    Full {
        /// `Config::waiting_max`.
        waiting: usize,
    },
    /// The request can never fit in a message, and is none that travels as bulk by itself: it is one-way, has streams or
    /// bulk of its own, or `message_bytes_max` is 0.
    #[error(
        "the request is above the limit of {limit} bytes (not run); send it as a loan, or raise ring_bytes (slot_bytes on send/recv) at the peer"
    )]
    TooLarge {
        /// Largest arguments on this connection, bytes.
        limit: usize,
    },
    /// The request is above what may travel as bulk by itself.
    #[error(
        "the request is above message_bytes_max, {limit} bytes (not run); raise it at both sides, or send a loan"
    )]
    AboveMax {
        /// `Config::message_bytes_max`.
        limit: usize,
    },
    /// The answer is above what may travel as bulk by itself.
    #[error(
        "the answer of {bytes} bytes is above this side's message_bytes_max, {limit} bytes (ran); raise it"
    )]
    AnswerAboveMax {
        /// Its length, bytes.
        bytes: u64,
        /// `Config::message_bytes_max`.
        limit: usize,
    },
    /// There is no registered memory for a request that a message does not hold.
    #[error("no registered memory for the request (not run): {0}")]
    Memory(LoanError),
    /// An item of a stream can never fit in a message.
    #[error(
        "an item is above the limit of {limit} bytes; send smaller items, or raise message_bytes_max at the client"
    )]
    Item {
        /// Largest item on this connection, bytes.
        limit: usize,
    },
    /// The arguments cannot be written.
    #[error("arguments: {0}")]
    Encode(EncodeError),
    /// The answer is not what its type says.
    #[error("answer: {0}")]
    Decode(DecodeError),
    /// Bulk that goes with the call was not brought.
    #[error("bulk: {error} ({fate})")]
    Bulk {
        /// Why not.
        error: BulkError,
        /// [`Fate::Ran`] for an answer's bulk.
        fate: Fate,
    },
    /// Bulk was expected and did not come, or the connection has none.
    #[error("{why} ({fate})")]
    NoBulk {
        /// Why not.
        why: &'static str,
        /// [`Fate::NotRun`] for a request's bulk, [`Fate::Ran`] for an answer's.
        fate: Fate,
    },
    /// The server is not done with any of the loans that this connection has lent it, and there are as many as there can be.
    #[error(
        "{limit} loans of this connection are in use by the server, the limit (not run); the server must drop one first"
    )]
    TooManyLoans {
        /// How many can be lent at once.
        limit: usize,
    },
    /// The loan of the call was made by another client, or for a connection that is gone.
    #[error(
        "the loan was made by another client, or for a connection that ended (not run); make it with this client's loan()"
    )]
    ForeignLoan,
    /// The client's worker does not take the call.
    #[error("the worker takes no calls: {why} ({fate})")]
    Worker {
        /// Why.
        why: &'static str,
        /// Whether the request may have left.
        fate: Fate,
    },
    /// A one-sided access of remote memory failed.
    #[error("access to remote memory: {error} ({fate})")]
    Access {
        /// Why it failed.
        error: AccessError,
        /// Whether it was made.
        fate: Fate,
    },
    /// A handler blocks for a call that its own thread would have to serve: it would wait for ever.
    #[error(
        "the waiting thread is the worker that would serve the call ({fate}); await the call, or wait on another thread"
    )]
    OwnWorker {
        /// The request may be there already, and run when the handler has returned.
        fate: Fate,
    },
}

/// An access that was not made.
impl From<AccessError> for TransportError {
    fn from(error: AccessError) -> Self {
        Self::Access { error, fate: Fate::NotRun }
    }
}

impl TransportError {
    /// Of an access that was in flight: only the end of its connection leaves open whether it was made.
    pub(crate) fn of_access(error: AccessError) -> Self {
        let fate = if error == AccessError::Closed { Fate::MaybeRan } else { Fate::NotRun };
        Self::Access { error, fate }
    }

    /// Returns whether the handler ran, as far as this side knows.
    #[must_use]
    pub const fn fate(&self) -> Fate {
        match self {
            Self::Closed { fate, .. }
            | Self::Bulk { fate, .. }
            | Self::NoBulk { fate, .. }
            | Self::Worker { fate, .. }
            | Self::Access { fate, .. }
            | Self::OwnWorker { fate } => *fate,
            Self::Full { .. }
            | Self::TooLarge { .. }
            | Self::AboveMax { .. }
            | Self::Memory(_)
            | Self::TooManyLoans { .. }
            | Self::ForeignLoan
            | Self::Encode(_) => Fate::NotRun,
            Self::Item { .. } => Fate::MaybeRan,
            Self::Decode(_) | Self::AnswerAboveMax { .. } => Fate::Ran,
        }
    }
}

/// Why a client could not connect. Nothing of the attempt is left. `Debug` prints the text of `Display`.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is no address, or chooses something that cannot be chosen.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A field of the configuration is outside its limits, or it asks for a processor that is not there.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The client's worker could not start: there is no thread, or no device or memory for it.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The connection could not be made: nobody listens, the server refused, a time-out passed. The variants of [`OpenError`] tell.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A handler connects to its own server, whose only worker it blocks.
    #[error("connect to {address} failed: this thread alone serves it; connect on another thread")]
    OwnWorker {
        /// Where it listens.
        address: String,
    },
    /// A [resolver](crate::balance::Resolver) names no server.
    #[error("no server: {why}")]
    NoServer {
        /// Why.
        why: String,
    },
    /// No way that a `gimmal://` URL allows leads to the server.
    #[error("connect to {url} failed in every way: {why}; start the server, or see `gimmal doctor`")]
    NoWay {
        /// What was given.
        url: String,
        /// Each way, and why not.
        why: String,
    },
}

/// Why a server could not start. `Debug` prints the text of `Display`.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The URL is no address, or chooses something that cannot be chosen.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A field of the configuration is outside its limits, or it asks for a processor that is not there.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A worker could not start: there is no thread, or no device or memory for it.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The address cannot be listened at: another process has it, or its folder or certificates are of no use.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// No way that a `gimmal://` URL allows can be listened at.
    #[error("listen on {url} failed in every way: {why}; see `gimmal doctor`")]
    NoWay {
        /// What was given.
        url: String,
        /// Each way, and why not.
        why: String,
    },
    /// The thread that accepts connections could not start.
    #[error(transparent)]
    Accept(OpenError),
    /// Two methods have the same id.
    #[error("{first} and {second} have the same method id {id:#010x}; rename one of them")]
    DuplicateMethod {
        /// `Service.method`.
        first: String,
        /// `Service.method`.
        second: String,
        /// Their id.
        id: u32,
    },
    /// The codec cannot carry a method's types: it would read them as something else.
    #[error(
        "{method}: {codec} cannot carry {attribute}; write the type in another way, or use another codec"
    )]
    Unfit {
        /// `Service.method`.
        method: String,
        /// The codec's name.
        codec: &'static str,
        /// The attribute of serde, and where it is; or a type.
        attribute: String,
    },
    /// A local service belongs to the thread that made it.
    #[error(
        "{service} is a local service: serve it with listen_local, on the thread that made it, or leave `local` out of its #[service]"
    )]
    Local {
        /// The service.
        service: String,
    },
    /// Nothing to serve.
    #[error("the server has no service; add one with Server::builder().service(..)")]
    NoService,
}
