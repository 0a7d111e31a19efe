//! The ends of a stream of bytes: its items have no bounds, so that they are joined and cut as messages have room.

use std::{
    fmt,
    io::IoSlice,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    Exit, Item, Kept, Lane, Look, ReadError, Sink, State, Stream, StreamError, items::Taken, sink::Entry,
};

/// Where the bytes of a stream go in: made of the [`Sink`] of a call that a worker moves. Dropped, it ends as its sink does.
pub struct ByteSink(Entry);

/// Where the bytes of a stream come out: made of the [`Stream`] of a call that a worker moves. Dropped, it ends as its stream does.
pub struct ByteStream {
    exit: Exit,
    /// How it ended, once that was said.
    end: State,
}

impl fmt::Debug for ByteSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByteSink({:?})", self.0.0.state())
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByteStream({} bytes here)", self.exit.items.rest().len())
    }
}

impl<T, V> From<Sink<T, V>> for ByteSink {
    fn from(sink: Sink<T, V>) -> Self {
        sink.entry.0.be_bytes();
        Self(sink.entry)
    }
}

impl<T, V> From<Stream<T, V>> for ByteStream {
    fn from(stream: Stream<T, V>) -> Self {
        Self { exit: stream.exit, end: stream.end }
    }
}

impl ByteSink {
    fn lane(&self) -> &Arc<Lane> {
        &self.0.0
    }

    /// Writes as much of `pieces` as there is room for, without waiting; `Pending` when there is none. Returns how many bytes that was.
    ///
    /// # Errors
    /// [`StreamError::Stopped`] and [`StreamError::Over`].
    pub fn try_write(&mut self, pieces: &[IoSlice<'_>]) -> Poll<Result<usize, StreamError>> {
        if let Some(refusal) = self.0.refusal() {
            return Poll::Ready(Err(refusal));
        }
        let written = self.lane().put_bytes(pieces.iter().map(|piece| &**piece));
        let is_empty = || pieces.iter().all(|piece| piece.is_empty());
        if written == 0 && !is_empty() { Poll::Pending } else { Poll::Ready(Ok(written)) }
    }

    /// Writes as much of `pieces` as there is room for, once there is some. Returns how many bytes that was.
    ///
    /// # Errors
    /// [`StreamError::Stopped`] and [`StreamError::Over`].
    pub fn poll_write(
        &mut self,
        context: &Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize, StreamError>> {
        self.poll(context, |sink| sink.try_write(pieces))
    }

    /// Waits until there is room for bytes.
    ///
    /// # Errors
    /// [`StreamError::Stopped`] and [`StreamError::Over`].
    pub fn poll_ready(&mut self, context: &Context<'_>) -> Poll<Result<(), StreamError>> {
        self.poll(context, |sink| match sink.0.refusal() {
            Some(refusal) => Poll::Ready(Err(refusal)),
            None if sink.lane().is_full() => Poll::Pending,
            None => Poll::Ready(Ok(())),
        })
    }

    /// Waits until the end that [`ByteSink::finish`] or [`ByteSink::reset`] said has left, behind all bytes.
    ///
    /// # Errors
    /// [`StreamError::Stopped`] and [`StreamError::Over`] when it never leaves.
    pub fn poll_left(&mut self, context: &Context<'_>) -> Poll<Result<(), StreamError>> {
        self.poll(context, |sink| match (sink.lane().has_ended(), sink.lane().state()) {
            (true, _) => Poll::Ready(Ok(())),
            (false, State::Stopped(code)) => Poll::Ready(Err(StreamError::Stopped(code))),
            (false, State::Over) => Poll::Ready(Err(StreamError::Over)),
            (false, _) => Poll::Pending,
        })
    }

    /// Waits until nothing more can be written: the code with which the reader stopped the stream, if it did.
    pub fn poll_stopped(&mut self, context: &Context<'_>) -> Poll<Option<u32>> {
        self.poll(context, |sink| match (sink.lane().has_ended(), sink.lane().state()) {
            (_, State::Stopped(code)) => Poll::Ready(Some(code)),
            (true, _) | (false, State::Over) => Poll::Ready(None),
            (false, _) => Poll::Pending,
        })
    }

    fn poll<R>(&mut self, context: &Context<'_>, mut look: impl FnMut(&mut Self) -> Poll<R>) -> Poll<R> {
        let first = look(self);
        if first.is_ready() {
            return first;
        }
        self.lane().waker.register(context.waker());
        look(self)
    }

    /// Ends the stream in good order. Does not wait.
    pub fn finish(&mut self) {
        self.lane().told(State::Ended);
    }

    /// Gives the stream up and says why: the reader gets what was written, then [`ReadError::Aborted`] with this code. Does not wait.
    pub fn reset(&mut self, code: u32) {
        self.lane().told(State::Aborted(code));
    }

    /// Gives the stream up at once and says why: what was written and has not left is discarded, so the end waits for no credit. Does
    /// not wait.
    pub fn abandon(&mut self, code: u32) {
        self.lane().abandoned(code);
    }
}

impl ByteStream {
    /// Returns bytes that are here, without waiting. None: the stream ended in good order.
    ///
    /// # Errors
    /// [`ReadError::Aborted`] and [`ReadError::Over`], again and again.
    pub fn try_fill(&mut self) -> Poll<Result<&[u8], ReadError>> {
        while self.end == State::Open {
            // Read before the lane is found empty: nothing is pushed after it.
            let state = self.exit.lane.state();
            match self.exit.look() {
                Look::Items if self.exit.items.rest().is_empty() => self.consume(0),
                Look::Items => break,
                Look::Coming => return Poll::Pending,
                Look::Nothing if state == State::Open => return Poll::Pending,
                Look::Nothing => self.end = state,
                Look::Lost => self.end = State::Over,
            }
        }
        match ReadError::at(self.end) {
            Poll::Ready(Some(error)) => Poll::Ready(Err(error)),
            Poll::Ready(None) | Poll::Pending => Poll::Ready(Ok(self.exit.items.rest())),
        }
    }

    /// Returns bytes, once there are some. None: the stream ended in good order.
    ///
    /// # Errors
    /// [`ReadError::Aborted`] and [`ReadError::Over`], again and again.
    pub fn poll_fill(&mut self, context: &Context<'_>) -> Poll<Result<&[u8], ReadError>> {
        if self.try_fill().is_pending() {
            self.exit.lane.waker.register(context.waker());
        }
        self.try_fill()
    }

    /// Waits until the stream can end in good order no more: the writer gave it up, or its call is over. That may be long before what is
    /// here was read. Never ready after the writer's good end.
    pub fn poll_broken(&mut self, context: &Context<'_>) -> Poll<()> {
        let look = |lane: &Lane| match lane.state() {
            State::Open | State::Ended => Poll::Pending,
            State::Aborted(_) | State::Stopped(_) | State::TooLarge(_) | State::Over => Poll::Ready(()),
        };
        if look(&self.exit.lane).is_pending() {
            self.exit.lane.waker.register(context.waker());
        }
        look(&self.exit.lane)
    }

    /// Takes `bytes` of those that are here out.
    pub fn consume(&mut self, bytes: usize) {
        let cost = self.exit.items.skip(bytes);
        self.exit.took(cost);
    }

    /// Takes the bytes out that [`ByteStream::try_fill`] returns: a buffer of them, and where in it they begin. Bytes that were
    /// brought in memory of their own stay there.
    pub fn take(&mut self) -> (Item<'static>, usize) {
        let (taken, cost) = self.exit.items.take();
        self.exit.took(cost);
        match taken {
            Taken::Copied(bytes, at) => (Item::Copied(bytes), at),
            Taken::Held(bulk, at) => match Kept::new(bulk, self.exit.lane.budget()) {
                Ok(kept) => (Item::Kept(kept), at),
                Err(bulk) => (Item::Copied(bulk[at..].to_vec()), 0), // beyond what users may keep
            },
        }
    }

    /// Says that nothing more is wanted, and why: the writer's next write ends with [`StreamError::Stopped`] and this code.
    pub fn stop(&mut self, code: u32) {
        self.exit.lane.stop(code);
    }

    /// Whether the end was read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.end != State::Open
    }
}
