//! The ends of a stream as those of the `futures` crates.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use super::{Drive, ReadError, Sink, Stream, StreamError};

impl<T, V: Drive + Unpin> futures_core::Stream for Stream<T, V> {
    type Item = Result<T, ReadError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Self::poll_next(&mut self, context)
    }
}

/// Closing says that every item was sent, like [`Sink::finish`]. A flush is over when the worker has taken every item.
impl<T, V: Drive + Unpin> futures_sink::Sink<T> for Sink<T, V> {
    type Error = StreamError;

    fn poll_ready(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        self.poll_lane(context, |sink| !sink.lane.items.is_full())
    }

    /// An item for which there is no room, because it was not asked for, is not sent, and the error says so.
    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), StreamError> {
        if self.try_send(&item)? { Ok(()) } else { Err(StreamError::NoRoom) }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        self.poll_lane(context, |sink| sink.lane.items.is_empty())
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let flushed = self.poll_lane(context, |sink| sink.lane.items.is_empty());
        flushed.map_ok(|()| self.lane.finished())
    }
}

impl<T, V: Drive> Sink<T, V> {
    /// Waits until the lane is as `is_ready` wants it, or the call is over.
    fn poll_lane(
        &self,
        context: &Context<'_>,
        is_ready: impl Fn(&Self) -> bool,
    ) -> Poll<Result<(), StreamError>> {
        let look = || match (self.is_open(), is_ready(self)) {
            (false, _) => Poll::Ready(Err(StreamError::Over)),
            (true, true) => Poll::Ready(Ok(())),
            (true, false) => Poll::Pending,
        };
        if let Poll::Ready(looked) = look() {
            return Poll::Ready(looked);
        }
        if self.drive.turn() {
            context.waker().wake_by_ref();
        } else {
            self.lane.waker.register(context.waker());
        }
        look()
    }
}
