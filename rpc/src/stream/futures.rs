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
        self.poll_lane(context, |sink| !sink.entry.0.is_full())
    }

    /// An item for which there is no room, because it was not asked for, is not sent, and the error says so.
    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), StreamError> {
        if self.try_send(&item)? { Ok(()) } else { Err(StreamError::NoRoom) }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        self.poll_lane(context, |sink| sink.entry.0.is_empty())
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let flushed = self.poll_lane(context, |sink| sink.entry.0.is_empty());
        flushed.map_ok(|()| self.entry.0.finished())
    }
}

impl<T, V: Drive> Sink<T, V> {
    /// Waits until the lane is as `is_ready` wants it, or the call is over.
    fn poll_lane(
        &self,
        context: &Context<'_>,
        is_ready: impl Fn(&Self) -> bool,
    ) -> Poll<Result<(), StreamError>> {
        let look = || match (self.entry.refusal(), is_ready(self)) {
            (Some(refusal), _) => Poll::Ready(Err(refusal)),
            (None, true) => Poll::Ready(Ok(())),
            (None, false) => Poll::Pending,
        };
        if let Poll::Ready(looked) = look() {
            return Poll::Ready(looked);
        }
        if self.drive.turn() {
            // As in `poll_put`.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.entry.0.waker.register(context.waker());
        look()
    }
}
