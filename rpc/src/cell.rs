//! Where the answer of a handed-off call is put, and the pool such places come from.
//!
//! ```text
//!  caller's thread                                  worker
//!   Pool ─► CallCell, Vec ─ encode ─ Command ─────►  ring … answer copied into the same Vec
//!   poll / wait ◄────────────── response ◄─────────  Responder::complete, wake
//!   └► decode, back to the pool
//! ```
//! A cell gets exactly one response: completing consumes the responder, and dropping one completes it too. Before it comes the stream
//! down of a call whose ends are made when an item comes, if one does.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
    time::Duration,
};

use crossbeam::queue::ArrayQueue;
use gimmal_engine::{
    place::cores_are_few,
    transport::{Instant, sync::answer::Answer},
};

use crate::{error::TransportError, response::Response, status::Fate, wake::wake};

/// The place of one answer.
pub(crate) struct CallCell<T = Response> {
    place: Answer<T>,
    /// The worker's key of the call, for cancelling it; only the worker reads and writes it.
    key: AtomicU64,
}

impl<T> fmt::Debug for CallCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallCell({})", self.key())
    }
}

impl<T> CallCell<T> {
    pub(crate) fn new() -> Self {
        Self { place: Answer::default(), key: AtomicU64::new(0) }
    }

    fn put(&self, response: T) {
        self.place.put(response);
    }

    #[cold]
    fn put_first(&self, first: T) {
        self.place.put_first(first);
    }

    pub(crate) fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    pub(crate) fn set_key(&self, key: u64) {
        self.key.store(key, Ordering::Relaxed);
    }

    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<T> {
        self.place.poll(context)
    }

    /// Blocks the thread until the response is there; at most until `limit`, if there is one.
    pub(crate) fn wait(&self, limit: Instant) -> Option<T> {
        let looks = if cores_are_few() { 0 } else { SPINS + YIELDS };
        for round in 0..looks {
            if let Some(response) = self.place.pop() {
                return Some(response);
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
                if let Poll::Ready(response) = self.poll(&context) {
                    return Some(response);
                }
                match limit.remaining() {
                    Duration::ZERO => return None,
                    left => std::thread::park_timeout(left),
                }
            }
        })
    }
}

/// Looks before a waiting thread yields, where there are cores enough: the answer may be less than a microsecond away.
const SPINS: u32 = 64; // ledger: waiting_spins
/// Yields before it parks.
const YIELDS: u32 = 16; // ledger: waiting_spins

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

/// What a cell can hold: it says so itself when the worker is lost.
pub(crate) trait Outcome {
    fn lost(error: TransportError) -> Self;
}

impl Outcome for Response {
    fn lost(error: TransportError) -> Self {
        error.into()
    }
}

impl<T> Outcome for Result<T, TransportError> {
    fn lost(error: TransportError) -> Self {
        Err(error)
    }
}

/// The worker's end of a cell.
#[derive(Debug)]
pub(crate) struct Responder<T: Outcome = Response>(Option<Arc<CallCell<T>>>);

impl<T: Outcome> Responder<T> {
    pub(crate) fn new(cell: &Arc<CallCell<T>>) -> Self {
        Self(Some(Arc::clone(cell)))
    }

    pub(crate) fn set_key(&self, key: u64) {
        if let Some(cell) = &self.0 {
            cell.set_key(key);
        }
    }

    pub(crate) fn is(&self, cell: &Arc<CallCell<T>>) -> bool {
        self.0.as_ref().is_some_and(|ours| Arc::ptr_eq(ours, cell))
    }

    pub(crate) fn complete(self, response: T) {
        self.tell(response).into_iter().for_each(wake);
    }

    /// As [`Responder::complete`], but the task that waits is left to be woken.
    #[must_use = "somebody may wait for it"]
    pub(crate) fn tell(mut self, response: T) -> Option<Waker> {
        self.put(response)
    }

    /// Something comes before the response; the task that waits is left to be woken. `None`: nobody waits.
    pub(crate) fn begin(&self, before: T) -> Option<Option<Waker>> {
        let cell = self.0.as_ref().filter(|cell| Arc::strong_count(cell) > 1)?;
        cell.put_first(before);
        Some(cell.place.take_waker())
    }

    /// The call never left this thread; the cell can be used again.
    pub(crate) fn defuse(mut self) {
        self.0 = None;
    }

    fn put(&mut self, response: T) -> Option<Waker> {
        let cell = self.0.take()?;
        cell.put(response);
        cell.place.take_waker()
    }
}

impl<T: Outcome> Drop for Responder<T> {
    fn drop(&mut self) {
        let why = "it stopped before the call ended";
        if self.0.is_some() {
            let lost = T::lost(TransportError::Worker { why, fate: Fate::MaybeRan });
            self.put(lost).into_iter().for_each(wake);
        }
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

    /// Takes back a cell whose response was taken, or which was never given to a worker.
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

    #[test]
    fn a_waiting_thread_is_woken_by_the_answer() {
        let pool = Pool::new(2);
        let cell = pool.cell();
        let responder = Responder::new(&cell);
        let worker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            responder.complete(Response::owned(false, vec![1]));
        });
        assert!(cell.wait(Instant::NEVER).unwrap().is_ok());
        worker.join().unwrap();
    }

    #[test]
    fn what_comes_first_is_taken_first_and_not_told_to_nobody() {
        let pool = Pool::new(2);
        let cell = pool.cell();
        let responder = Responder::new(&cell);
        assert!(responder.begin(Response::owned(false, vec![1])).is_some());
        responder.complete(Response::owned(false, vec![2]));
        for first in [1, 2] {
            assert_eq!(cell.wait(Instant::now()).unwrap().body.bytes(), [first]);
        }
        let responder = Responder::new(&cell);
        drop(cell);
        assert!(responder.begin(Response::nothing()).is_none(), "nobody has the cell");
    }

    #[test]
    fn a_dropped_responder_ends_the_call_and_waiting_has_a_bound() {
        let pool = Pool::new(2);
        let cell = pool.cell();
        assert!(cell.wait(Instant::now() + Duration::from_millis(5)).is_none());
        drop(Responder::new(&cell));
        let response = cell.wait(Instant::NEVER).unwrap();
        assert_eq!(response.failure().unwrap().fate(), Fate::MaybeRan);
        Responder::new(&cell).defuse();
        assert!(cell.wait(Instant::now()).is_none());
    }
}
