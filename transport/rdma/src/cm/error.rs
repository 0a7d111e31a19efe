//! What can go wrong with the raw CM, by step, with what to do.

use std::time::Duration;

use thiserror::Error;

use crate::{
    error::{DeviceError, system},
    id::reject,
    private_data::TooLong,
};

/// An error of the raw CM. Nothing is retried by itself; the object that a failed step consumed is destroyed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CmError {
    /// The name, service or address leads nowhere.
    #[error("rdma_getaddrinfo({what}) failed: {why}")]
    Resolve {
        /// Node and service as given.
        what: String,
        /// In words.
        why: String,
    },
    /// An event says that a step failed.
    #[error("{event} with status {status} ({}) while {step}", reject::meaning(*.status))]
    Event {
        /// Its name.
        event: &'static str,
        /// 0, a negative errno or a reject code.
        status: i32,
        /// Where we were.
        step: &'static str,
    },
    /// The peer, or nobody at its address, refused.
    #[error("refused: {rejection}")]
    Rejected {
        /// Code, words, data.
        rejection: Box<Rejection>,
    },
    /// Our own deadline.
    #[error("no answer within {timeout:?} while {step}")]
    Timeout {
        /// Where we were.
        step: &'static str,
        /// The limit that was set.
        timeout: Duration,
    },
    /// This device, or this state, cannot do it.
    #[error("{what} cannot be had here: {why}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// The connection is over. Work that had not completed may or may not have been done.
    #[error("the connection is closed")]
    Closed,
    /// These bytes are posted: they are the device's until their completion.
    #[error("bytes {start}..{end} of the buffer are posted; wait for their completion")]
    Posted {
        /// First byte.
        start: usize,
        /// Behind the last byte.
        end: usize,
    },
    /// As much work is posted as the queue has room for.
    #[error("the queue is full; wait for a completion")]
    Full,
    /// As many READs are outstanding as were granted.
    #[error("{granted} READs are outstanding, as many as were granted; wait for a completion")]
    ReadsFull {
        /// The granted initiator_depth.
        granted: u32,
    },
    /// READs were negotiated away.
    #[error("no READs on this connection: its initiator_depth was granted as 0 ({why})")]
    NoReads {
        /// Asked, offered, granted.
        why: String,
    },
    /// Work failed on the device.
    #[error("{operation} failed with work completion status {status}, {} (vendor {vendor})", work_meaning(*.status))]
    Work {
        /// Which kind.
        operation: &'static str,
        /// The token it was posted with.
        token: u64,
        /// `ibv_wc_status`.
        status: u32,
        /// `vendor_err`.
        vendor: u32,
    },
    /// A value that there is no room for, of which nothing was sent; a call that failed; devices, memory, and what else
    /// the operating system refuses.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A refusal, as REJECTED or a failing `rdma_connect` (iWARP) says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// An IB reject code (InfiniBand specification 12.6.7.2), or a negative errno (iWARP).
    pub status: i32,
    /// The status in words.
    pub meaning: &'static str,
    /// What to do about it.
    pub advice: &'static str,
    /// What the peer's consumer sent along; padded with zeroes to 148 bytes on InfiniBand and RoCE.
    pub private_data: Vec<u8>,
}

impl Rejection {
    pub(crate) fn new(status: i32, private_data: &[u8]) -> Self {
        Self {
            status,
            meaning: reject::meaning(status),
            advice: reject::advice(status),
            private_data: private_data.to_vec(),
        }
    }

    /// Nobody listens at that address and port.
    #[must_use]
    pub fn is_nobody_listening(&self) -> bool {
        reject::is_nobody_listening(self.status)
    }

    /// The peer's program refused, rather than its CM.
    #[must_use]
    pub fn is_by_consumer(&self) -> bool {
        reject::is_by_consumer(self.status)
    }
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (status {}); {}", self.meaning, self.status, self.advice)
    }
}

pub(crate) fn call(step: &'static str) -> impl FnOnce(i32) -> CmError {
    move |errno| system(step)(errno).into()
}

/// Misuse: a value that there is no room for.
pub(crate) fn above(field: &'static str, value: u64, limit: u64) -> CmError {
    DeviceError::Limit { field, value, limit }.into()
}

/// `ibv_wc_status` in words.
pub(crate) fn work_meaning(status: u32) -> &'static str {
    const WORDS: [&str; 22] = [
        "success",
        "local length error: the receive was too small",
        "local queue pair error",
        "local end-to-end context error",
        "local protection error: the memory is not registered for this",
        "flushed: the queue pair was in error",
        "memory window binding error",
        "bad response",
        "local access error",
        "the peer found the request invalid",
        "the peer refused the access: wrong key, range or rights",
        "the peer could not do it",
        "no answer after all retries: the peer or the path is gone",
        "the peer had no receive after all RNR retries",
        "local RDD violation",
        "the peer found a bad RD request",
        "the peer aborted it",
        "bad end-to-end context number",
        "bad end-to-end context state",
        "fatal error",
        "no response in time",
        "general error",
    ];
    usize::try_from(status)
        .ok()
        .and_then(|status| WORDS.get(status))
        .copied()
        .unwrap_or("a status newer than this program")
}

impl From<TooLong> for CmError {
    fn from(TooLong { bytes, limit }: TooLong) -> Self {
        above("private data bytes", bytes as u64, limit as u64)
    }
}
