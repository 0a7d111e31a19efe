//! What goes wrong on a connection: posts, what a peer did, how it ended, loans, bulk and memory of the peer.

use thiserror::Error;

use super::PortError;

/// A post that was not made. What was offered is the caller's still; none of these is an error of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    /// A queue is full; come back after a poll. Never a frame's reason where chains use no receives: it has no queue but the
    /// ring, which is credit's to guard.
    #[error("a queue is full; try again after a completion")]
    Full,
    /// The frame can never fit.
    #[error("{bytes} bytes are above the limit of {limit}")]
    TooLarge {
        /// What was asked.
        bytes: usize,
        /// `Negotiated::frame_bytes_max` less the word, or the bulk limit.
        limit: usize,
    },
    /// The connection is closed, or was never open.
    #[error("the connection is closed")]
    Closed,
    /// The loan came from the gate of another port, or for a connection that shares no memory with this one.
    #[error("the loan was made by another port or for another connection; make it for this one")]
    Foreign,
    /// The path was negotiated away.
    #[error("bulk is off: the negotiated initiator_depth is 0; raise it, and the peer's responder_resources")]
    NoReads,
}

/// What a peer did that no honest peer does. Closes its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// A frame's length is outside its limits.
    #[error("a frame of {bytes} bytes, the limit is {limit}")]
    FrameLength {
        /// What it said.
        bytes: usize,
        /// What was agreed.
        limit: usize,
    },
    /// A chain's bytes and its frames do not agree.
    #[error("a chain of {bytes} bytes does not end where its frames do")]
    Chain {
        /// What the completion said.
        bytes: usize,
    },
    /// A credit counter went backwards, or beyond what was sent.
    #[error("credit {value} is outside of {low} to {high}")]
    Credit {
        /// What it said.
        value: u64,
        /// The last one.
        low: u64,
        /// What was sent.
        high: u64,
    },
    /// More arrived than was granted.
    #[error("{bytes} bytes arrived beyond the credit")]
    Overrun {
        /// By how much.
        bytes: u64,
    },
    /// A frame's sum is not that of its bytes: something between the two processes changed them.
    #[error("the checksum of a {what} does not match its bytes (port.checksum)")]
    Checksum {
        /// `frame` or `bulk`.
        what: &'static str,
    },
    /// A frame is not the next one: a completion was told twice, or a chain was lost.
    #[error("frame number {number} arrived where {next} was expected (of 128)")]
    OutOfSequence {
        /// Its number.
        number: u32,
        /// The one that was awaited.
        next: u32,
    },
    /// A grant, segment or bulk offer that cannot be true.
    #[error("impossible {what}")]
    Malformed {
        /// Which.
        what: &'static str,
    },
    /// The peer passed more memory than a connection may.
    #[error("the peer passed {value} {what}; the limit is {limit}")]
    Passed {
        /// `pool segments` or `pieces of exposed memory`, or bytes of them.
        what: &'static str,
        /// What all of it would come to.
        value: u64,
        /// How much it may be.
        limit: u64,
    },
}

impl Violation {
    /// Of a peer that gives up what nobody shares.
    pub const NOT_SHARED: Self = Self::Malformed { what: "unused receives where none are shared" };
}

/// Why a connection ended: the first cause that was seen at this end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side closed it.
    #[error("closed by this side")]
    Local,
    /// The peer closed it in an orderly way.
    #[error("closed by the peer")]
    Peer,
    /// Something on the thread of our worker panicked, which ends all its connections; the log has the panic's words.
    #[error("this side's worker panicked; the log says why")]
    WorkerPanicked,
    /// The peer's process or host is gone.
    #[error("the peer is gone ({how})")]
    PeerGone {
        /// How it was noticed.
        how: &'static str,
    },
    /// Nothing was heard from the peer for the heartbeat's bound: its host lost power, the way to it is cut, or it
    /// was stopped. What reached it is not known.
    #[error("the peer was silent for {bound_ms} ms (heartbeat_ms)")]
    PeerSilent {
        /// The bound that was configured, ms.
        bound_ms: u32,
    },
    /// The peer was silent for too long during the handshake.
    #[error("the peer did not finish the handshake within handshake_timeout")]
    Handshake,
    /// The peer did not prove that it has the shared key; it was told no address.
    #[error("the peer did not prove that it has the shared key")]
    Authentication,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Violation(#[from] Violation),
    /// Work failed on the device.
    #[error("{operation} failed with work completion status {status} (vendor {vendor})")]
    Work {
        /// Which operation.
        operation: &'static str,
        /// `ibv_wc_status`.
        status: u32,
        /// `vendor_err`.
        vendor: u32,
    },
    /// The device went away.
    #[error("the device was removed")]
    DeviceGone,
    /// A CM event that ends a connection.
    #[error("CM event {event} with status {status}")]
    Event {
        /// Its name.
        event: &'static str,
        /// Its status.
        status: i32,
    },
    /// The operating system or the device refused this side a step.
    #[error(transparent)]
    Port(Box<PortError>),
    /// The peer could not take what this side passed.
    #[error("the peer ran out of descriptors, memory or mappings; its log names the limit")]
    PeerLacks,
}

/// Why registered memory could not be had for a loan, or for memory that is exposed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LoanError {
    /// The connection is closed, or was never open.
    #[error("the connection is closed")]
    Closed,
    /// It is above the configured limit of one loan, `port.bulk_bytes_max`.
    #[error("a loan of {bytes} bytes is above bulk_bytes_max, which is {limit}")]
    TooLarge {
        /// What was asked.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The port has no memory for it, cannot register it, or the connection has `port.loan_bytes_max` already.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// Why bulk that a peer offered was not brought.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BulkError {
    /// The connection ended first.
    #[error("the connection closed before the bulk was complete")]
    Closed,
    /// There is no memory for it.
    #[error("no memory to receive the bulk: {0}")]
    Memory(#[from] LoanError),
    /// The offer was not what it said.
    #[error("impossible offer: {0}")]
    Offer(Violation),
}

/// Why a one-sided operation was not made, or did not end well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AccessError {
    /// A queue, or registered memory, is full; come back after a poll. It was not made.
    #[error("a queue is full; try again after a completion")]
    Full,
    /// The connection is closed. Of one that was in flight nobody knows whether it was made.
    #[error("the connection is closed")]
    Closed,
    /// Reads, which all of them need, were negotiated away.
    #[error(
        "one-sided operations are off: the negotiated initiator_depth is 0; raise it, and the peer's responder_resources"
    )]
    Off,
    /// The operation is atomic, and the device has no atomic operations. It was not made.
    #[error("the device has no atomic operations")]
    NoAtomics,
    /// The access reaches beyond what is exposed. It was not made.
    #[error("{bytes} bytes at {at} are outside the {len} that are exposed")]
    Outside {
        /// Offset, bytes.
        at: u64,
        /// How many.
        bytes: u64,
        /// How many there are.
        len: u64,
    },
    /// The offset of an atomic operation, or of a word, is not a multiple of 8. It was not made.
    #[error("offset {at} is not a multiple of 8, as atomic operations require")]
    Misaligned {
        /// Offset, bytes.
        at: u64,
    },
    /// The target of a read is a loan of user memory, which nobody may write. It was not made.
    #[error("a loan of user memory is read-only; use a loan of the pool as the target of a read")]
    ReadOnly,
    /// The memory was withdrawn, or was never shown on this connection. It was not made.
    #[error("no such memory is exposed, or it was withdrawn")]
    NotExposed,
    /// It was not made: the loan came from the gate of another port, or for a connection that shares no memory with this one.
    #[error("the loan was made by another port or for another connection; make it for this one")]
    Foreign,
}
