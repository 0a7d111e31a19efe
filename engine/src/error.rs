//! One error per operation, by blame.

use std::time::Duration;

use gimmal_transport::{CloseReason, ConnectError, ListenError, Loan, PortError};
use thiserror::Error;

/// A message was not sent. Nothing of it left this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// No credit, ring space or queue entry now; [`App::writable`](crate::App::writable) tells when.
    #[error("no room: the peer has not returned enough credit; wait for `writable`")]
    Blocked,
    /// It can never fit in a frame.
    #[error("a body of {bytes} bytes is above the limit of {limit}; send it as bulk")]
    TooLarge {
        /// The body, or what of it was tried.
        bytes: usize,
        /// `frame_bytes_max` less headers.
        limit: usize,
    },
    /// Bulk was turned off by an initiator_depth of 0 at the peer.
    #[error("bulk is off: the negotiated depth of READs is 0")]
    NoBulk,
    /// The peer is not done with any of the loans on offer, and there are as many as there can be.
    /// [`App::writable`](crate::App::writable) tells when it is done with one.
    #[error(
        "{limit} loans of this connection are in use by the peer, the limit; the peer must drop one first"
    )]
    TooManyLoans {
        /// How many can be on offer at once.
        limit: usize,
    },
    /// The loan came from the gate of another port, or for a connection that shares no memory with this one.
    #[error("the loan was made by another worker or for another connection; make it for this one")]
    Foreign,
    /// The connection is closed or closing.
    #[error("the connection is closed")]
    Closed,
}

impl SendError {
    /// Returns the error as the sender of a body sees it: its sizes without the `front` bytes before that body.
    pub(crate) const fn of_body_behind(self, front: usize) -> Self {
        match self {
            Self::TooLarge { bytes, limit } => {
                Self::TooLarge { bytes: bytes.saturating_sub(front), limit: limit.saturating_sub(front) }
            }
            other => other,
        }
    }
}

/// A message with a loan was not sent; the loan is back.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct LoanRefused {
    /// Why.
    pub error: SendError,
    /// The caller's still.
    pub loan: Loan,
}

/// Why a configuration cannot work: the field, its value, and the rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field is outside its limits.
    #[error("{field} is {value}; it must be {rule}")]
    Field {
        /// The field of [`Config`](crate::Config).
        field: &'static str,
        /// Its value.
        value: u64,
        /// What holds for it.
        rule: &'static str,
    },
    /// A time is outside its limits.
    #[error("{field} is {value:?}; it must be {rule}")]
    Time {
        /// The field of [`Config`](crate::Config).
        field: &'static str,
        /// Its value.
        value: Duration,
        /// What holds for it.
        rule: &'static str,
    },
    /// A core of [`Placement::Cores`](crate::Placement::Cores) is not there for this process.
    #[error("core {core} cannot be used: {why}")]
    Core {
        /// Which.
        core: usize,
        /// Why not.
        why: &'static str,
    },
    /// Cores could not be chosen.
    #[error("placement is Auto: {0}")]
    Place(#[from] PlaceError),
}

/// Why cores could not be chosen for workers, by [`Cpus`](crate::Cpus) or [`Placement::Auto`](crate::Placement::Auto).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The machine does not show its processors.
    #[error("the processors cannot be read: {what}: {why}")]
    Unreadable {
        /// What was asked.
        what: &'static str,
        /// What it said.
        why: String,
    },
    /// Each worker needs a processor of its own.
    #[error(
        "{workers} workers need a processor each, and this process may run on {cpus}: lower `workers`, or widen its cpu set (taskset, cgroup cpuset)"
    )]
    TooFew {
        /// Workers wanted.
        workers: usize,
        /// Processors there are.
        cpus: usize,
    },
}

/// Why a worker could not start.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StartError {
    /// A field of the configuration is outside its limits, or it asks for a processor that is not there.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The worker's port could not be opened: no device, no memory, a limit of the system.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The system gave no thread, in its words.
    #[error("starting a thread failed: {0}")]
    Thread(String),
}

/// Why a connection could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The connection could not be made: nobody listens, the server refused, or a time-out passed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The address cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The port could not take the connection: a limit of the device or the system.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A field of the options is outside its limits.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A thread of this process did not keep a time-out that it should have kept.
    #[error("no result within {field} ({timeout:?}) and 10 s more: a thread of this process is stuck")]
    Overdue {
        /// Which.
        field: &'static str,
        /// Its value.
        timeout: Duration,
    },
    /// The connection ended during its handshake.
    #[error("the connection ended during the handshake: {0}")]
    Closed(CloseReason),
    /// The worker is gone or its inbox is full.
    #[error("the worker takes no commands: {0}")]
    Worker(&'static str),
}
