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
//!
//! **Large items** lie in registered memory from the moment they are written, and are offered there: a peer in shared memory reads them
//! in place, another one brings them. The answer of a call does not wait for what is brought: its reader does, and its end.

use std::{
    fmt,
    ops::Deref,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use thiserror::Error;

use crate::{
    cell::block,
    channel::{Channel, SLEEP},
    codec::{Decode, DecodeError, EncodeError},
    here,
};

mod begun;
mod bytes;
mod encoder;
mod ends;
#[cfg(feature = "futures")]
mod futures;
mod items;
mod lane;
mod lanes;
mod sink;
mod window;

pub use begun::Begun;
pub(crate) use begun::Streams;
pub use bytes::{ByteSink, ByteStream};
pub(crate) use encoder::Encoder;
pub use ends::{CallerEnds, caller_ends};
use items::{Apart, Items, Look, Popped};
pub(crate) use lane::{Home, Lane, Lending, Mover, Owner, State};
pub use lanes::{Lanes, Tie};
pub(crate) use lanes::{Offered, Owed, lanes, lanes_begun, lanes_of_callee};
pub use sink::Sink;
pub use window::Kept;
pub(crate) use window::{Budget, WINDOW_MAX, WINDOW_MIN};

/// What a reader's items may have cost before its lane is told: less than half of any window.
const READ: i64 = WINDOW_MIN as i64 / 4;

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

/// Why a [`Sink`] did not take an item. The item was not sent.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The call is over, or was dropped: its result says why. Nothing more can be sent.
    #[error("the call is over; its result says why")]
    Over,
    /// The reader called [`Stream::stop`] with this code. What it had not read may be lost.
    #[error("the reader stopped the stream with code {0}; send nothing more")]
    Stopped(u32),
    /// The codec cannot write the item, or it is above 1 GiB. The next item may be sent.
    #[error("the item: {0}")]
    Encode(EncodeError),
    /// There is no room for an item that was given to the sink of the futures crates without asking whether it is ready.
    #[error("there is no room for the item; wait until the sink is ready")]
    NoRoom,
    /// There is no room, and the thread is a worker, which must not wait for it: another call of it may have to make the room.
    #[error("`blocking_send` would block a worker's thread; use `send`")]
    OwnWorker,
}

/// Why a [`Stream`] did not give an item. All but [`Decode`](ReadError::Decode) and [`OwnWorker`](ReadError::OwnWorker) are final:
/// every later read returns them again.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// An item arrived that cannot be decoded. The next one may be read.
    #[error("an item: {0}")]
    Decode(DecodeError),
    /// The sender called [`Sink::reset`] with this code, or a caller dropped its sink without [`Sink::finish`]: code 0. Nothing more comes.
    #[error("the sender gave the stream up with code {0}; discard what it sent, or finish the sink there")]
    Aborted(u32),
    /// The call ended without an answer, or was dropped, or the connection was lost while large items were on their way, which may be
    /// after the answer. Nothing more comes.
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

/// The bytes of an item, as they arrived.
#[derive(Debug)]
pub enum Item<'a> {
    /// Lent until the next item is read: a small one.
    Here(&'a [u8]),
    /// In the memory that they were written to, or brought to. Keep it as long as you like, on any thread.
    Kept(Kept),
    /// Of an item that would have been kept, had the connection's items that are kept not been too many.
    Copied(Vec<u8>),
}

impl Deref for Item<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Kept(kept) => kept.as_ref(),
            Self::Copied(bytes) => bytes,
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
    fn look(&mut self) -> Look {
        if self.items.is_empty() { self.lane.exchange(&mut self.items) } else { Look::Items }
    }

    /// Takes the first item out.
    fn take(&mut self) -> Option<Item<'_>> {
        let item = self.items.pop()?;
        let len = match &item {
            Popped::Here(range) => range.len(),
            Popped::Apart(item) => item.len(),
        };
        self.took(items::cost(len, 1));
        Some(match item {
            Popped::Here(range) => Item::Here(self.items.bytes(range)),
            Popped::Apart(Apart::Bulk(bulk)) => match Kept::new(bulk, self.lane.budget()) {
                Ok(kept) => Item::Kept(kept),
                Err(bulk) => Item::Copied(bulk.to_vec()), // beyond what users may keep
            },
            Popped::Apart(_) => Item::Here(&[]),
        })
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
        let decode = self.decode;
        self.take_item()
            .map(|taken| taken.map(|item| item.and_then(|item| decode(&item).map_err(ReadError::Decode))))
    }

    /// Takes the first item of those that are here.
    fn take_item(&mut self) -> Poll<Option<Result<Item<'_>, ReadError>>> {
        if self.end == State::Open {
            // Read before the lane is found empty: nothing is pushed after it.
            let state = self.exit.lane.state();
            match self.exit.look() {
                Look::Items => return Poll::Ready(self.exit.take().map(Ok)),
                Look::Coming => return Poll::Pending,
                Look::Nothing => self.end = state,
                Look::Lost => self.end = State::Over,
            }
        }
        ReadError::at(self.end).map(|error| error.map(Err))
    }

    /// Whether a poll is to end without an answer: a handler that asks again and again after an error must not keep its worker from
    /// turning.
    fn rests(&mut self) -> bool {
        let has_failed = matches!(self.end, State::Aborted(_) | State::TooLarge(_) | State::Over);
        self.has_rested = has_failed && !self.has_rested;
        self.has_rested
    }

    /// Polls for the next item; `None` when the stream has ended in good order and everything was read. When nothing is here, the
    /// task is woken once something is. Only the task of the last poll is woken. On a local client without a driver each poll is a
    /// turn.
    ///
    /// # Errors
    /// Those of [`Stream::next`].
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

    /// Polls for the next item, and gives its bytes to `take` instead of decoding them. `take` may keep those of a large item
    /// without a copy. When nothing is here, the task is woken once something is. `None` when the stream has ended in good order
    /// and everything was read.
    ///
    /// # Errors
    /// Those of [`Stream::next`], except [`ReadError::Decode`].
    pub fn poll_item<R>(
        &mut self,
        context: &Context<'_>,
        take: impl FnOnce(Item<'_>) -> R,
    ) -> Poll<Option<Result<R, ReadError>>> {
        if self.rests() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.exit.look() != Look::Items {
            if self.drive.turn() {
                context.waker().wake_by_ref();
            } else {
                self.exit.lane.waker.register(context.waker());
            }
        }
        self.take_item().map(|taken| taken.map(|item| item.map(take)))
    }

    /// Returns the next item, or the end of the stream, if it is here; otherwise `Pending`. Does not wait, and wakes nobody.
    ///
    /// # Errors
    /// Those of [`Stream::next`].
    pub fn try_next(&mut self) -> Poll<Option<Result<T, ReadError>>> {
        self.take()
    }

    /// Returns the next item, or `None` when the stream has ended in good order and everything was read.
    ///
    /// Cancel safe: no item is lost when the future is dropped before it is ready.
    ///
    /// # Errors
    /// [`ReadError::Aborted`] when the sender gave the stream up, [`ReadError::Over`] when the call failed or the connection was
    /// lost, [`ReadError::TooLarge`] for an item above `message_bytes_max`: these are final, and every later call returns them
    /// again. After [`ReadError::Decode`], for bytes that are no item, the next one may be read.
    pub async fn next(&mut self) -> Option<Result<T, ReadError>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Blocks the thread until the next item is here and returns it; `None` when the stream has ended in good order and everything
    /// was read. There is no time-out but the call's.
    ///
    /// # Errors
    /// Those of [`Stream::next`]; [`ReadError::OwnWorker`] where it would block a worker's thread.
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
    /// Says that no more items are wanted, and why. The sender's next item ends with [`StreamError::Stopped`] and this code, which
    /// both sides agree on. Items that are on their way are discarded. Does not wait. Does nothing when the stream has ended.
    pub fn stop(self, code: u32) {
        self.exit.lane.stop(code);
    }
}

#[cfg(test)]
mod apart_tests;
#[cfg(test)]
mod tests;
