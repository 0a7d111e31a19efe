//! Streams of a call: items in one direction, with back-pressure from end to end.
//!
//! ```text
//!  Sink ─ encode ─► Lane (16) ─ worker: credit? room? ─► Item ─► worker ─► Lane (32) ─ decode ─► Stream
//!                                     ▲                                                  │ taken
//!                                     └──────────────── Credit, by the half ◄────────────┘
//! ```
//! A reader that does not read stops its sender at [`WINDOW`] items and nobody else: the ring's own credit is given back
//! as soon as an item lies in its lane. Both ends are `Send`; a lane has one user and one worker.
//!
//! **Ends.** An upload ends in good order by [`Sink::finish`] alone. A sink that is dropped without it gives the upload up, and the handler
//! reads [`ReadError::Aborted`]. A download ends in good order when its handler returns `Ok`, after all that its sink was given. However
//! else the call ends, its reader gets [`ReadError::Over`]. So `None` always means that everything that was sent has been read.
//!
//! **Order.** Items keep their order, and come before the end of their stream and before the call's result. Items and other calls have
//! no order between them.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use thiserror::Error;

use crate::{
    cell::block,
    channel::{Channel, SLEEP},
    codec::{Decode, DecodeError, Encode, EncodeError, compose_into_with},
    draining::Signal,
    here,
};

#[cfg(feature = "futures")]
mod futures;
mod lane;

pub(crate) use lane::{Lane, Mover, Owed, Owner, State, lanes, lanes_of_callee};
pub use lane::{Lanes, Tie, WINDOW};

/// Most bytes of an item before it is tried: whether it fits in a message, the worker knows.
const ITEM_BYTES_MAX: usize = 1 << 30;

/// Whose turns move a stream's end.
pub trait Drive {
    /// One turn, if it is this thread's.
    fn turn(&self) -> bool {
        false
    }

    /// One turn, if it is this thread's, which sleeps for a while when there is nothing to do.
    fn idle(&self) -> bool {
        false
    }
}

/// The ends in a handler: its worker wakes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Woken;

impl Drive for Woken {}

impl<C: Channel> Drive for C {
    fn turn(&self) -> bool {
        self.drive(Duration::ZERO)
    }

    fn idle(&self) -> bool {
        self.drive(SLEEP)
    }
}

/// Why a sink did not take an item.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The call is over.
    #[error("the call is over; its result says why")]
    Over,
    /// The item cannot be written.
    #[error("the item: {0}")]
    Encode(EncodeError),
    /// There is no room for an item that was given without asking.
    #[error("there is no room for the item; wait until the sink is ready")]
    NoRoom,
    /// There is no room, and the thread is a worker, which must not wait for it: another call of it may have to make the room.
    #[error("`blocking_send` would block a worker's thread; use `send`")]
    OwnWorker,
}

/// Why a stream did not give an item.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// An item arrived that cannot be decoded. The next one may be read.
    #[error("an item: {0}")]
    Decode(DecodeError),
    /// The caller dropped its sink without [`Sink::finish`]. Nothing more comes.
    #[error("the sender gave the stream up before its end; discard what it sent, or finish the sink there")]
    Aborted,
    /// The call ended without an answer, or was dropped. Nothing more comes.
    #[error("the call ended before the stream did; its result says why")]
    Over,
    /// No item is here, and the thread is a worker, which must not wait for one: another call of it may have to bring it.
    #[error("`blocking_next` would block a worker's thread; use `next`")]
    OwnWorker,
}

// `main` prints an error that it returns by `Debug`: the text of `Display` says what to do.
impl fmt::Debug for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl ReadError {
    /// What a reader is told at the end of its lane.
    const fn at(state: State) -> Poll<Option<Self>> {
        match state {
            State::Open => Poll::Pending,
            State::Ended => Poll::Ready(None),
            State::Aborted => Poll::Ready(Some(Self::Aborted)),
            State::Over => Poll::Ready(Some(Self::Over)),
        }
    }
}

/// Where the items of a stream come out: an argument of a handler, or a part of what a client's method returns.
///
/// `None` means that the stream ended in good order and every item was read: the caller finished its [`Sink`], or the handler returned
/// `Ok`. A stream that was given up, or whose connection was lost, gives a [`ReadError`] instead, again and again.
///
/// Dropping a stream discards its items, and lets the call go on.
pub struct Stream<T, V = Woken> {
    lane: Arc<Lane>,
    decode: fn(&[u8]) -> Result<T, DecodeError>,
    drive: V,
    /// How it ended, once that was said: from then on it says the same.
    end: State,
    /// The last poll was not answered, so that the error could be said again by this one.
    has_rested: bool,
}

impl<T, V> fmt::Debug for Stream<T, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} items here)", self.lane.items.len())
    }
}

impl<T, V: Drive> Stream<T, V> {
    pub(crate) fn new<D: for<'a> Decode<'a, T>>(lane: Arc<Lane>, drive: V) -> Self {
        Self { lane, decode: |bytes| D::decode(bytes), drive, end: State::Open, has_rested: false }
    }

    fn take(&mut self) -> Poll<Option<Result<T, ReadError>>> {
        if self.end == State::Open {
            // Read before the lane is found empty: nothing is pushed after it.
            let state = self.lane.state();
            if let Some(item) = self.lane.items.pop() {
                let value = (self.decode)(&item).map_err(ReadError::Decode);
                let _ = self.lane.spare.push(item);
                if self.lane.taken.fetch_add(1, Ordering::Relaxed) + 1 >= WINDOW / 2 {
                    self.lane.notify();
                }
                return Poll::Ready(Some(value));
            }
            self.end = state;
        }
        ReadError::at(self.end).map(|error| error.map(Err))
    }

    /// Whether a poll is to end without an answer: a handler that asks again and again after an error must not keep its worker from
    /// turning.
    fn rests(&mut self) -> bool {
        let has_failed = matches!(self.end, State::Aborted | State::Over);
        self.has_rested = has_failed && !self.has_rested;
        self.has_rested
    }

    /// Polls for what [`Stream::next`] returns. On an inline channel each poll is a turn.
    pub fn poll_next(&mut self, context: &Context<'_>) -> Poll<Option<Result<T, ReadError>>> {
        if self.rests() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Poll::Ready(item) = self.take() {
            return Poll::Ready(item);
        }
        if self.drive.turn() {
            context.waker().wake_by_ref();
        } else {
            self.lane.waker.register(context.waker());
        }
        self.take()
    }

    /// Returns what [`Stream::next`] would, if it is here, without waiting.
    pub fn try_next(&mut self) -> Poll<Option<Result<T, ReadError>>> {
        self.take()
    }

    /// Returns the next item, or `None` when the stream has ended in good order and everything was read.
    ///
    /// Cancel safe: no item is lost when the future is dropped before it is ready.
    ///
    /// # Errors
    /// See [`ReadError`]. After [`ReadError::Decode`] the next item may be read; the others are final, and are returned again by
    /// every later call.
    pub async fn next(&mut self) -> Option<Result<T, ReadError>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Blocks the thread for what [`Stream::next`] returns.
    ///
    /// # Errors
    /// As [`Stream::next`].
    pub fn blocking_next(&mut self) -> Option<Result<T, ReadError>> {
        loop {
            if let Poll::Ready(item) = self.take() {
                return item;
            }
            if !self.drive.idle() {
                if here::is_worker() {
                    return Some(Err(ReadError::OwnWorker));
                }
                return block(|context| self.poll_next(context));
            }
        }
    }
}

impl<T, V> Drop for Stream<T, V> {
    fn drop(&mut self) {
        self.lane.reader_dropped();
    }
}

/// Where the items of a stream go in: an argument of a handler, or a part of what a client's method returns.
///
/// A caller's sink ends its stream in good order by [`Sink::finish`] alone: dropped without it, by a panic, a time-out or an early
/// return, it gives the upload up, and the handler reads [`ReadError::Aborted`] after what was sent. Once the call is dropped, nothing
/// that is done to its sink ends the upload well.
///
/// A handler's sink need not be finished: the stream ends in good order when the handler returns `Ok`, else not. The answer leaves after
/// all items, so a handler may return while another task still sends: the call then ends when that task drops the sink. If a panic
/// drops it, the call ends with [`Code::Internal`](crate::Code::Internal), whatever the handler returned.
pub struct Sink<T, V = Woken> {
    lane: Arc<Lane>,
    encoder: Encoder<T>,
    drive: V,
}

/// How the items of a stream are written.
pub(crate) struct Encoder<T> {
    /// The codec's name.
    pub(crate) codec: &'static str,
    encode: fn(&T, &mut [u8]) -> Result<usize, EncodeError>,
}

impl<T> Clone for Encoder<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Encoder<T> {}

impl<T> Encoder<T> {
    /// Writes `item` over what is in `buffer`.
    pub(crate) fn encode_into(&self, item: &T, buffer: &mut Vec<u8>) -> Result<(), EncodeError> {
        compose_into_with(buffer, ITEM_BYTES_MAX, |out| (self.encode)(item, out))
    }
}

impl<T, V> fmt::Debug for Sink<T, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sink({} items here)", self.lane.items.len())
    }
}

impl<T, V: Drive> Sink<T, V> {
    pub(crate) fn new<E: Encode<T>>(lane: Arc<Lane>, drive: V) -> Self {
        let encoder = Encoder { codec: E::NAME, encode: |value, out| E::encode(value, out) };
        Self { lane, encoder, drive }
    }

    fn encode(&self, item: &T) -> Result<Vec<u8>, StreamError> {
        let mut buffer = self.lane.spare.pop().unwrap_or_default();
        self.encoder.encode_into(item, &mut buffer).map_err(StreamError::Encode)?;
        Ok(buffer)
    }

    /// How its items are written.
    pub(crate) fn encoder(&self) -> Encoder<T> {
        self.encoder
    }

    /// What is set when its server begins to shut down.
    pub(crate) fn draining(&self) -> Option<&Arc<Signal>> {
        self.lane.draining()
    }

    /// As [`Sink::send`], of an item that its encoder wrote.
    pub(crate) async fn send_encoded(&self, item: &[u8]) -> Result<(), StreamError> {
        let mut buffer = self.lane.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(item);
        let mut buffer = Some(buffer);
        std::future::poll_fn(|context| self.poll_put(context, &mut buffer)).await
    }

    fn is_open(&self) -> bool {
        self.lane.state() == State::Open
    }

    fn put(&self, item: &mut Option<Vec<u8>>) -> Poll<Result<(), StreamError>> {
        if !self.is_open() {
            return Poll::Ready(Err(StreamError::Over));
        }
        let Some(bytes) = item.take() else { return Poll::Ready(Ok(())) };
        match self.lane.items.push(bytes) {
            Ok(()) => {
                self.lane.notify();
                Poll::Ready(Ok(()))
            }
            Err(bytes) => {
                *item = Some(bytes);
                Poll::Pending
            }
        }
    }

    fn poll_put(&self, context: &Context<'_>, item: &mut Option<Vec<u8>>) -> Poll<Result<(), StreamError>> {
        if let Poll::Ready(put) = self.put(item) {
            return Poll::Ready(put);
        }
        if self.drive.turn() {
            context.waker().wake_by_ref();
        } else {
            self.lane.waker.register(context.waker());
        }
        self.put(item)
    }

    /// Sends an item if there is room for it, without waiting; whether there was.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn try_send(&mut self, item: &T) -> Result<bool, StreamError> {
        if self.is_open() && self.lane.items.is_full() {
            return Ok(false);
        }
        let mut bytes = Some(self.encode(item)?);
        match self.put(&mut bytes) {
            Poll::Ready(put) => put.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Sends an item; waits while the reader is behind.
    ///
    /// Cancel safe: an item whose future is dropped before it is ready was not sent.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub async fn send(&mut self, item: &T) -> Result<(), StreamError> {
        let mut bytes = Some(self.encode(item)?);
        std::future::poll_fn(|context| self.poll_put(context, &mut bytes)).await
    }

    /// Sends an item; blocks the thread while the reader is behind.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn blocking_send(&mut self, item: &T) -> Result<(), StreamError> {
        let mut bytes = Some(self.encode(item)?);
        loop {
            if let Poll::Ready(put) = self.put(&mut bytes) {
                return put;
            }
            if !self.drive.idle() {
                if here::is_worker() {
                    return Err(StreamError::OwnWorker);
                }
                return block(|context| self.poll_put(context, &mut bytes));
            }
        }
    }
}

impl<T, V> Sink<T, V> {
    /// Says that every item has been sent. The reader gets them, then the good end. Does not wait: the call's result says whether the
    /// other side took it so. Does nothing when the call is over or was dropped.
    pub fn finish(self) {
        self.lane.finished();
    }
}

impl<T, V> Drop for Sink<T, V> {
    fn drop(&mut self) {
        self.lane.sender_dropped();
    }
}

const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Stream<u8>>();
    is_send::<Sink<u8>>();
};

#[cfg(test)]
mod tests;
