//! Where the answer of a handed-off call is put, and the pool such places come from.
//!
//! ```text
//!  caller's thread                                  worker
//!   Pool ─► CallCell, Vec ─ encode ─ Command ─────►  ring … answer copied into the same Vec
//!   poll / wait ◄────────────── outcome ◄──────────  Responder::complete, wake
//!   └► decode, back to the pool
//! ```
//! A cell gets exactly one outcome: completing consumes the responder, and dropping one completes it too.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
    time::Duration,
};

use atomic_waker::AtomicWaker;
use crossbeam::queue::ArrayQueue;
use gimmal_engine::transport::{Bulk, Instant, sync::once::take_or_register};

use crate::{
    error::TransportError,
    metadata::Metadata,
    method::Method,
    status::{Fate, Status},
    wake::rouse,
};

/// How a call ended, not yet decoded.
#[derive(Debug)]
pub enum Outcome {
    /// With bytes: the answer, or the method's error.
    Answered {
        /// Whether they are the method's error.
        is_error: bool,
        /// The bytes.
        body: Vec<u8>,
        /// What came beside them.
        bulk: Option<Bulk>,
    },
    /// With bytes that a message does not hold: read where they are.
    Large {
        /// Whether they are the method's error.
        is_error: bool,
        /// The bytes.
        bulk: Bulk,
    },
    /// With a status.
    Status(Status),
    /// The server spells the method otherwise.
    Mismatch {
        /// As it is here.
        method: &'static Method,
        /// As it is there.
        theirs: String,
    },
    /// Not at all.
    Failed(TransportError),
    /// With one of these, and metadata that the server sent with it.
    Noted(Box<(Self, Metadata)>),
}

impl Outcome {
    /// Of a one-way call that left.
    pub(crate) const fn nothing() -> Self {
        Self::Answered { is_error: false, body: Vec::new(), bulk: None }
    }

    /// What [`Outcome::into_bytes`] was made of.
    pub(crate) fn of(bytes: AnswerBytes) -> Self {
        bytes.map_or_else(|other| *other, |(is_error, body)| Self::Answered { is_error, body, bulk: None })
    }

    /// Whether it is an answer, with or without metadata, and not the method's error.
    pub(crate) fn is_good(&self) -> bool {
        matches!(self.plain(), Self::Answered { is_error: false, .. } | Self::Large { is_error: false, .. })
    }

    /// Without the metadata that came with it.
    #[must_use]
    pub fn plain(&self) -> &Self {
        match self {
            Self::Noted(noted) => &noted.0,
            other => other,
        }
    }

    /// Apart from the metadata that came with it.
    #[must_use]
    pub fn into_parts(self) -> (Self, Metadata) {
        match self {
            Self::Noted(noted) => *noted,
            other => (other, Metadata::new()),
        }
    }

    /// An answer that is only bytes, and whether they are the method's error; or the outcome itself.
    ///
    /// # Errors
    /// Every other outcome.
    pub fn into_bytes(self) -> AnswerBytes {
        match self {
            Self::Answered { is_error, body, bulk: None } => Ok((is_error, body)),
            other => Err(Box::new(other)),
        }
    }
}

/// An answer that is only bytes, and whether they are the method's error; or another outcome, in a box: most calls come to
/// bytes, and what they come to is handed from one to the next.
pub type AnswerBytes = Result<(bool, Vec<u8>), Box<Outcome>>;

/// The place of one answer.
#[derive(Debug)]
pub(crate) struct CallCell {
    outcome: ArrayQueue<Outcome>,
    waker: AtomicWaker,
    /// The worker's key of the call, for cancelling it; only the worker reads and writes it.
    key: AtomicU64,
}

impl CallCell {
    fn new() -> Self {
        Self { outcome: ArrayQueue::new(1), waker: AtomicWaker::new(), key: AtomicU64::new(0) }
    }

    pub(crate) fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    pub(crate) fn set_key(&self, key: u64) {
        self.key.store(key, Ordering::Relaxed);
    }

    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Outcome> {
        take_or_register(|| self.outcome.pop(), || self.waker.register(context.waker()))
            .map_or(Poll::Pending, Poll::Ready)
    }

    /// Blocks the thread until the outcome is there; at most until `limit`, if there is one.
    pub(crate) fn wait(&self, limit: Instant) -> Option<Outcome> {
        for round in 0..SPINS + YIELDS {
            if let Some(outcome) = self.outcome.pop() {
                return Some(outcome);
            }
            if round < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        with_parker(|waker| {
            let context = Context::from_waker(waker);
            loop {
                if let Poll::Ready(outcome) = self.poll(&context) {
                    return Some(outcome);
                }
                match limit.remaining() {
                    Duration::ZERO => return None,
                    left => std::thread::park_timeout(left),
                }
            }
        })
    }
}

/// Looks before a waiting thread yields: the answer may be less than a microsecond away.
const SPINS: u32 = 64;
/// Yields before it parks: with few cores the worker may need this one.
const YIELDS: u32 = 16;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// Made once for each thread that waits.
    static PARKER: Waker = unparker();
}

/// Wakes this thread when it is parked.
fn unparker() -> Waker {
    Waker::from(Arc::new(Unpark(std::thread::current())))
}

/// Calls `wait` with a waker for this thread. A wait in the destructor of another thread-local may find the kept one gone, and
/// gets one of its own.
fn with_parker<R>(mut wait: impl FnMut(&Waker) -> R) -> R {
    PARKER.try_with(&mut wait).unwrap_or_else(|_| wait(&unparker()))
}

/// Blocks the thread until `poll` is ready.
pub(crate) fn block<R>(mut poll: impl FnMut(&Context<'_>) -> Poll<R>) -> R {
    with_parker(|waker| {
        let context = Context::from_waker(waker);
        loop {
            if let Poll::Ready(result) = poll(&context) {
                return result;
            }
            std::thread::park();
        }
    })
}

/// The worker's end of a cell.
#[derive(Debug)]
pub(crate) struct Responder(Option<Arc<CallCell>>);

impl Responder {
    pub(crate) fn new(cell: &Arc<CallCell>) -> Self {
        Self(Some(Arc::clone(cell)))
    }

    pub(crate) fn set_key(&self, key: u64) {
        if let Some(cell) = &self.0 {
            cell.set_key(key);
        }
    }

    pub(crate) fn is(&self, cell: &Arc<CallCell>) -> bool {
        self.0.as_ref().is_some_and(|ours| Arc::ptr_eq(ours, cell))
    }

    pub(crate) fn complete(mut self, outcome: Outcome) {
        self.put(outcome);
    }

    /// The call never left this thread; the cell can be used again.
    pub(crate) fn defuse(mut self) {
        self.0 = None;
    }

    fn put(&mut self, outcome: Outcome) {
        if let Some(cell) = self.0.take() {
            // There is room: one outcome for each use of a cell.
            let _ = cell.outcome.push(outcome);
            rouse(&cell.waker);
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let why = "it stopped before the call ended";
        self.put(Outcome::Failed(TransportError::Worker { why, fate: Fate::MaybeRan }));
    }
}

/// Cells and buffers that are used again. What does not fit is dropped, what is missing is made.
#[derive(Debug)]
pub(crate) struct Pool {
    cells: ArrayQueue<Arc<CallCell>>,
    buffers: ArrayQueue<Vec<u8>>,
}

/// A buffer above this is not kept.
const KEEP_BYTES: usize = 64 << 10;

impl Pool {
    pub(crate) fn new(size: usize) -> Self {
        Self { cells: ArrayQueue::new(size.max(1)), buffers: ArrayQueue::new(size.max(1)) }
    }

    pub(crate) fn cell(&self) -> Arc<CallCell> {
        self.cells.pop().unwrap_or_else(|| Arc::new(CallCell::new()))
    }

    /// Takes back a cell whose outcome was taken, or which was never given to a worker.
    pub(crate) fn put_cell(&self, cell: Arc<CallCell>) {
        let _ = self.cells.push(cell);
    }

    pub(crate) fn buffer(&self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    pub(crate) fn put_buffer(&self, buffer: Vec<u8>) {
        if buffer.capacity() <= KEEP_BYTES {
            let _ = self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered() -> Outcome {
        Outcome::Answered { is_error: false, body: vec![1], bulk: None }
    }

    #[test]
    fn a_waiting_thread_is_woken_by_the_answer() {
        let pool = Pool::new(2);
        let cell = pool.cell();
        let responder = Responder::new(&cell);
        let worker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            responder.complete(answered());
        });
        assert!(matches!(cell.wait(Instant::NEVER), Some(Outcome::Answered { .. })));
        worker.join().unwrap();
    }

    #[test]
    fn a_dropped_responder_ends_the_call_and_waiting_has_a_bound() {
        let pool = Pool::new(2);
        let cell = pool.cell();
        assert!(cell.wait(Instant::now() + Duration::from_millis(5)).is_none());
        drop(Responder::new(&cell));
        let Some(Outcome::Failed(error)) = cell.wait(Instant::NEVER) else { panic!("no failure") };
        assert_eq!(error.fate(), Fate::MaybeRan);
        Responder::new(&cell).defuse();
        assert!(cell.wait(Instant::now()).is_none());
    }
}
