//! The sender's end of a stream.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

#[cfg(doc)]
use super::ReadError;
use super::{
    Drive, Lane, State, StreamError, Woken,
    encoder::Encoder,
    items::{Apart, Items},
};
use crate::{
    cell::block,
    codec::{Encode, EncodeError},
    draining::Signal,
    here,
};

/// The sender's end of a lane.
pub(super) struct Entry(pub(super) Arc<Lane>);

impl Entry {
    /// Why nothing can be sent.
    pub(super) fn refusal(&self) -> Option<StreamError> {
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
    pub(super) entry: Entry,
    /// The item that is sent, encoded.
    item: Items,
    /// The last one was, so that the next one is taken to be.
    is_large: bool,
    encoder: Encoder<T>,
    pub(super) drive: V,
}

impl<T, V> fmt::Debug for Sink<T, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sink({} items here)", self.entry.0.len())
    }
}

impl<T, V: Drive> Sink<T, V> {
    pub(crate) fn new<E: Encode<T>>(lane: Arc<Lane>, drive: V) -> Self {
        let encoder = Encoder::new::<E>();
        Self { entry: Entry(lane), item: Items::default(), is_large: false, encoder, drive }
    }

    fn encode(&mut self, item: &T) -> Result<(), StreamError> {
        let encoder = self.encoder;
        let small = self.entry.0.lends_from();
        // It is not asked of each small item how long it is.
        let put = match self.is_large {
            true => Err(EncodeError::Full),
            false => self.item.put(|buffer| encoder.encode_up_to(item, small, buffer)),
        };
        self.is_large = put == Err(EncodeError::Full);
        if self.is_large {
            self.encode_large(item).map_err(StreamError::Encode)
        } else {
            put.map_err(StreamError::Encode)
        }
    }

    /// Writes an item into memory that its reader brings, if there is some for it.
    fn encode_large(&mut self, item: &T) -> Result<(), EncodeError> {
        let encoder = self.encoder;
        if let Some(bytes) = encoder.bytes(item) {
            self.is_large = bytes >= self.entry.0.lends_from();
            if let Some(mut loan) = self.entry.0.loan(bytes) {
                let written = encoder.encode(item, loan.bytes_mut())?;
                self.item.clear();
                self.item.push_apart(Apart::Loan(loan.truncate(written)));
                return Ok(());
            }
        }
        self.item.put(|buffer| encoder.encode_into(item, buffer))?;
        self.is_large &= self.item.front().is_some_and(|item| item.len() >= self.entry.0.lends_from());
        Ok(())
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

    /// Polls for the end of the call: ready when no item is taken any more. A sender that waits for something else learns by it
    /// that nobody wants items. Otherwise the task is woken then; only the task of the last poll is.
    pub fn poll_over(&mut self, context: &Context<'_>) -> Poll<()> {
        let is_over =
            |sink: &Self| if sink.entry.refusal().is_none() { Poll::Pending } else { Poll::Ready(()) };
        is_over(self).is_pending().then(|| self.entry.0.waker.register(context.waker()));
        is_over(self)
    }

    /// Sends an item if there is room for it, without waiting. Returns whether there was; `false`: it was not sent.
    ///
    /// # Errors
    /// Those of [`Sink::send`].
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

    /// Sends an item; waits while the reader is behind. It is sent once it is on its way, which says nothing about its reader.
    ///
    /// Cancel safe: an item whose future is dropped before it is ready was not sent.
    ///
    /// # Errors
    /// [`StreamError::Over`] when the call is over, [`StreamError::Stopped`] when the reader stopped the stream,
    /// [`StreamError::Encode`] when the codec cannot write the item. After the last one the next item may be sent.
    pub async fn send(&mut self, item: &T) -> Result<(), StreamError> {
        self.encode(item)?;
        std::future::poll_fn(|context| self.poll_put(context)).await
    }

    /// Sends an item; blocks the thread while the reader is behind. There is no time-out but the call's.
    ///
    /// # Errors
    /// Those of [`Sink::send`]; [`StreamError::OwnWorker`] where it would block a worker's thread.
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
