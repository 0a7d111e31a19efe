//! Streams of a call: items in one direction, with back-pressure from end to end.
//!
//! ```text
//!  Sink ─ encode ─► Lane ─ worker: credit? room? ─► Item ─► worker ─► Lane ─ decode ─► Stream
//!                                 ▲                                             │ taken
//!                                 └────────────── Credit, by the half ◄─────────┘
//! ```
//! **Windows.** Credit counts bytes: an item costs its length and 64 more. The last item may cost more than is left. A window begins with
//! `Config::stream_window` and doubles when its sender used it up while its reader kept up. All windows of a connection share
//! `Config::stream_budget`. A reader that does not read stops its sender and nobody else: the ring's own credit is given back as soon as
//! an item lies in its lane. Both ends are `Send`; a lane has one user and one worker.
//!
//! **Ends.** An upload ends in good order by [`Sink::finish`] alone. A sink that is dropped without it gives the upload up, and the handler
//! reads [`ReadError::Aborted`]. A download ends in good order when its handler returns `Ok`, after all that its sink was given. However
//! else the call ends, its reader gets [`ReadError::Over`]. So `None` always means that everything that was sent has been read. A sender
//! may give a stream up with a code ([`Sink::reset`]), and a reader refuse the rest of it with one ([`Stream::stop`]).
//!
//! **Order.** Items keep their order, and come before the end of their stream and before the call's result. Items and other calls have
//! no order between them.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use thiserror::Error;

use crate::{
    cell::block,
    channel::{Beside, Channel, SLEEP},
    codec::{Decode, DecodeError, Encode, EncodeError, compose_into_with},
    draining::Signal,
    here,
};

mod bytes;
#[cfg(feature = "futures")]
mod futures;
mod items;
mod lane;
mod lanes;
mod window;

pub use bytes::{ByteSink, ByteStream};
use items::Items;
pub(crate) use lane::{Lane, Mover, Owner, State};
pub use lanes::{Lanes, Tie};
pub(crate) use lanes::{Owed, lanes, lanes_of_callee};
pub(crate) use window::{Budget, WINDOW_MAX, WINDOW_MIN};

/// What a reader's items may have cost before its lane is told: less than half of any window.
const READ: i64 = WINDOW_MIN as i64 / 4;
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
    /// The reader called [`Stream::stop`] with this code. What it had not read may be lost.
    #[error("the reader stopped the stream with code {0}; send nothing more")]
    Stopped(u32),
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
    /// The sender called [`Sink::reset`] with this code, or a caller dropped its sink without [`Sink::finish`]: code 0. Nothing more comes.
    #[error("the sender gave the stream up with code {0}; discard what it sent, or finish the sink there")]
    Aborted(u32),
    /// The call ended without an answer, or was dropped. Nothing more comes.
    #[error("the call ended before the stream did; its result says why")]
    Over,
    /// An item is above [`Config::message_bytes_max`](crate::Config::message_bytes_max) of this side, which is so many bytes. The sender
    /// was told to stop.
    #[error("an item is above the limit of {0} bytes; send smaller items, or raise message_bytes_max here")]
    TooLarge(u32),
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
            State::Aborted(code) => Poll::Ready(Some(Self::Aborted(code))),
            State::TooLarge(limit) => Poll::Ready(Some(Self::TooLarge(limit))),
            State::Over | State::Stopped(_) => Poll::Ready(Some(Self::Over)),
        }
    }
}

/// The reader's end of a lane.
struct Exit {
    lane: Arc<Lane>,
    /// Taken out of the lane, all at once.
    items: Items,
    /// What those cost that were read, and the lane was not told of.
    read: i64,
}

impl Exit {
    /// Whether an item is here.
    fn has_items(&mut self) -> bool {
        !self.items.is_empty() || self.lane.exchange(&mut self.items)
    }

    /// Items that cost so much were read.
    fn took(&mut self, cost: i64) {
        self.read += cost;
        if self.items.is_empty() || self.read >= READ {
            self.lane.took(std::mem::take(&mut self.read));
        }
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        self.lane.reader_dropped(self.items.cost() + self.read);
    }
}

/// The sender's end of a lane.
struct Entry(Arc<Lane>);

impl Entry {
    /// Why nothing can be sent.
    fn refusal(&self) -> Option<StreamError> {
        match self.0.state() {
            State::Open => None,
            State::Stopped(code) => Some(StreamError::Stopped(code)),
            State::Ended | State::Aborted(_) | State::TooLarge(_) | State::Over => Some(StreamError::Over),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.sender_dropped();
    }
}

/// Where the items of a stream come out: an argument of a handler, or a part of what a client's method returns.
///
/// `None` means that the stream ended in good order and every item was read: the caller finished its [`Sink`], or the handler returned
/// `Ok`. A stream that was given up, or whose connection was lost, gives a [`ReadError`] instead, again and again.
///
/// Dropping a stream discards its items, and lets the call go on. [`Stream::stop`] tells the sender.
///
/// ```
/// # use gimmal_rpc as gimmal;
/// use gimmal::{Cx, Stream};
///
/// #[gimmal::service(crate = gimmal_rpc)] // outside of this crate: #[gimmal::service]
/// trait Sum {
///     async fn sum(&self, cx: &Cx, numbers: Stream<u64>) -> Result<u64, String>;
/// }
///
/// struct Adder;
///
/// impl Sum for Adder {
///     async fn sum(&self, _: &Cx, mut numbers: Stream<u64>) -> Result<u64, String> {
///         let mut sum = 0;
///         while let Some(number) = numbers.next().await {
///             sum += number.map_err(|error| error.to_string())?; // the caller gave up
///         }
///         Ok(sum)
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = gimmal::Server::builder().service(serve_sum(Adder)).listen("mem://doc-stream")?;
/// let client = SumClient::new(gimmal::Client::builder().connect("mem://doc-stream")?);
/// let (mut numbers, call) = client.sum();
/// for number in 1..=4 {
///     numbers.blocking_send(&number)?; // `send(..).await` in async code
/// }
/// numbers.finish();
/// assert_eq!(call.wait()?, 10);
/// # Ok(())
/// # }
/// ```
pub struct Stream<T, V = Woken> {
    exit: Exit,
    decode: fn(&[u8]) -> Result<T, DecodeError>,
    drive: V,
    /// How it ended, once that was said: from then on it says the same.
    end: State,
    /// The last poll was not answered, so that the error could be said again by this one.
    has_rested: bool,
}

impl<T, V> fmt::Debug for Stream<T, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} items here)", self.exit.items.len() + self.exit.lane.len())
    }
}

impl<T, V: Drive> Stream<T, V> {
    pub(crate) fn new<D: for<'a> Decode<'a, T>>(lane: Arc<Lane>, drive: V) -> Self {
        let exit = Exit { lane, items: Items::default(), read: 0 };
        Self { exit, decode: |bytes| D::decode(bytes), drive, end: State::Open, has_rested: false }
    }

    fn take(&mut self) -> Poll<Option<Result<T, ReadError>>> {
        if self.end == State::Open {
            // Read before the lane is found empty: nothing is pushed after it.
            let state = self.exit.lane.state();
            if self.exit.has_items() {
                return Poll::Ready(self.take_item());
            }
            self.end = state;
        }
        ReadError::at(self.end).map(|error| error.map(Err))
    }

    /// Takes the first item of those that are here.
    fn take_item(&mut self) -> Option<Result<T, ReadError>> {
        let item = self.exit.items.pop()?;
        self.exit.took(items::cost(item.len(), 1));
        Some((self.decode)(self.exit.items.bytes(item)).map_err(ReadError::Decode))
    }

    /// Whether a poll is to end without an answer: a handler that asks again and again after an error must not keep its worker from
    /// turning.
    fn rests(&mut self) -> bool {
        let has_failed = matches!(self.end, State::Aborted(_) | State::TooLarge(_) | State::Over);
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
            self.exit.lane.waker.register(context.waker());
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

impl<T, V> Stream<T, V> {
    /// Says that no more items are wanted, and why. The sender's next item ends with [`StreamError::Stopped`] and this code. Those that
    /// are on their way are discarded. Does not wait. Does nothing when the stream has ended.
    pub fn stop(self, code: u32) {
        self.exit.lane.stop(code);
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
///
/// ```
/// # use gimmal_rpc as gimmal;
/// use gimmal::{Cx, Sink};
///
/// #[gimmal::service(crate = gimmal_rpc)] // outside of this crate: #[gimmal::service]
/// trait Count {
///     async fn count(&self, cx: &Cx, to: u64, numbers: Sink<u64>);
/// }
///
/// struct Counter;
///
/// impl Count for Counter {
///     async fn count(&self, _: &Cx, to: u64, mut numbers: Sink<u64>) {
///         for number in 1..=to {
///             if numbers.send(&number).await.is_err() {
///                 return; // the caller is gone
///             }
///         }
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = gimmal::Server::builder().service(serve_count(Counter)).listen("mem://doc-sink")?;
/// let client = CountClient::new(gimmal::Client::builder().connect("mem://doc-sink")?);
/// let (mut numbers, call) = client.count(3);
/// let all: Result<Vec<_>, _> = std::iter::from_fn(|| numbers.blocking_next()).collect();
/// assert_eq!(all?, [1, 2, 3]);
/// call.wait()?;
/// # Ok(())
/// # }
/// ```
pub struct Sink<T, V = Woken> {
    entry: Entry,
    /// The item that is sent, encoded.
    item: Items,
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
        write!(f, "Sink({} items here)", self.entry.0.len())
    }
}

impl<T, V: Drive> Sink<T, V> {
    pub(crate) fn new<E: Encode<T>>(lane: Arc<Lane>, drive: V) -> Self {
        let encoder = Encoder { codec: E::NAME, encode: |value, out| E::encode(value, out) };
        Self { entry: Entry(lane), item: Items::default(), encoder, drive }
    }

    fn encode(&mut self, item: &T) -> Result<(), StreamError> {
        let encoder = self.encoder;
        self.item.put(|buffer| encoder.encode_into(item, buffer)).map_err(StreamError::Encode)
    }

    /// How its items are written.
    pub(crate) fn encoder(&self) -> Encoder<T> {
        self.encoder
    }

    /// What is set when its server begins to shut down.
    pub(crate) fn draining(&self) -> Option<&Arc<Signal>> {
        self.entry.0.draining()
    }

    /// As [`Sink::send`], of an item that its encoder wrote.
    pub(crate) async fn send_encoded(&mut self, item: &[u8]) -> Result<(), StreamError> {
        self.item.clear();
        self.item.push(item);
        std::future::poll_fn(|context| self.poll_put(context)).await
    }

    /// Sends the item that was encoded.
    fn put(&mut self) -> Poll<Result<(), StreamError>> {
        match self.entry.refusal() {
            Some(refusal) => Poll::Ready(Err(refusal)),
            None if self.entry.0.put(&mut self.item) => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }

    fn poll_put(&mut self, context: &Context<'_>) -> Poll<Result<(), StreamError>> {
        if let Poll::Ready(put) = self.put() {
            return Poll::Ready(put);
        }
        if self.drive.turn() {
            // A turn may bring room. Who sends without an end would find some in every turn, and never let go of its thread.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.entry.0.waker.register(context.waker());
        self.put()
    }

    /// Polls for the end of the call: ready when no item is taken any more. For a sender that waits for something else, to learn
    /// that nobody wants it.
    pub fn poll_over(&mut self, context: &Context<'_>) -> Poll<()> {
        let is_over =
            |sink: &Self| if sink.entry.refusal().is_none() { Poll::Pending } else { Poll::Ready(()) };
        is_over(self).is_pending().then(|| self.entry.0.waker.register(context.waker()));
        is_over(self)
    }

    /// Sends an item if there is room for it, without waiting; whether there was.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn try_send(&mut self, item: &T) -> Result<bool, StreamError> {
        if self.entry.refusal().is_none() && self.entry.0.is_full() {
            return Ok(false);
        }
        self.encode(item)?;
        match self.put() {
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
        self.encode(item)?;
        std::future::poll_fn(|context| self.poll_put(context)).await
    }

    /// Sends an item; blocks the thread while the reader is behind.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn blocking_send(&mut self, item: &T) -> Result<(), StreamError> {
        self.encode(item)?;
        loop {
            if let Poll::Ready(put) = self.put() {
                return put;
            }
            if !self.drive.idle() {
                if here::is_worker() {
                    return Err(StreamError::OwnWorker);
                }
                return block(|context| self.poll_put(context));
            }
        }
    }
}

impl<T, V> Sink<T, V> {
    /// Says that every item has been sent. The reader gets them, then the good end. Does not wait: the call's result says whether the
    /// other side took it so. Does nothing when the call is over or was dropped.
    pub fn finish(self) {
        self.entry.0.finished();
    }

    /// Ends the stream in good order now. Unlike [`Sink::finish`], a handler's download ends at once for its reader, whatever the call
    /// comes to: for protocols whose two directions end on their own. Does not wait.
    pub fn half_close(self) {
        self.entry.0.told(State::Ended);
    }

    /// Gives the stream up and says why. The reader gets what was sent, then [`ReadError::Aborted`] with this code. A handler's call may
    /// still return whatever it wants to. Does not wait.
    pub fn reset(self, code: u32) {
        self.entry.0.told(State::Aborted(code));
    }
}

/// The caller's ends of the streams of a call that was started by hand.
#[derive(Debug)]
pub struct CallerEnds<U, D> {
    /// Where the caller's items go in, if it sends any.
    pub up: Option<Sink<U>>,
    /// Where the handler's items come out.
    pub down: Stream<D>,
    /// Cancels the call when it is dropped before the call ended.
    pub tie: Tie,
}

/// Makes streams for a call that is started by hand, without a generated client: what goes with the call, and the caller's ends.
/// Codec `K` writes and reads their items.
///
/// Something else than the ends must move the call: the worker of a [`Client`](crate::Client), or a [`Driver`](crate::Driver).
/// So they are `Send`, whatever the channel is.
#[must_use]
pub fn caller_ends<K, U, D>(is_up: bool) -> (Beside, CallerEnds<U, D>)
where
    K: Encode<U> + for<'a> Decode<'a, D>,
{
    let lanes = lanes(is_up, true);
    let up = lanes.tx.clone().map(|lane| Sink::new::<K>(lane, Woken));
    let down = lanes.rx.clone().unwrap_or_else(Lane::new);
    let ends = CallerEnds { up, down: Stream::new::<K>(down, Woken), tie: lanes.tie() };
    (Beside { loan: None, lanes: Some(lanes.boxed()) }, ends)
}

const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Stream<u8>>();
    is_send::<Sink<u8>>();
};

#[cfg(test)]
mod tests;
