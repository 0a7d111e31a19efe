//! The half of a stream that is written.

use std::{
    fmt,
    io::{self, IoSlice},
    sync::Arc,
    task::{Context, Poll, ready},
};

use gimmal_rpc::{StreamError, stream::ByteSink};

use crate::{error::of_write, held::Held};

/// The half of a stream that is written.
///
/// A write returns when the bytes are in the stream's buffer here, and waits while the reader is behind. Dropped without
/// [`SendStream::finish`], it finishes. It resets with code 0 while the thread panics, and if the reader was dropped before it and had
/// not read everything that was there.
///
/// ```
/// # #[tokio::main(flavor = "multi_thread", worker_threads = 1)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (streams, mut incoming) = gimmal_io::serve(16);
/// # let _server = gimmal::serve("mem://doc-io-send", streams)?;
/// # let client = gimmal::connect("mem://doc-io-send")?;
/// let (_recv, mut send) = gimmal_io::open(&client, "upload").into_split();
/// send.write(b"all of it").await?;
/// send.finish(); // the reader gets everything, then the end
/// # let (_, accepted) = incoming.accept().await.ok_or("the server is gone")?;
/// # let (mut recv, _send) = accepted.into_split();
/// # assert_eq!(recv.read_chunk().await?.as_deref(), Some(&b"all of it"[..]));
/// # assert_eq!(recv.read_chunk().await?, None);
/// # Ok(())
/// # }
/// ```
pub struct SendStream {
    /// Without one, opening failed.
    sink: Option<ByteSink>,
    held: Arc<Held>,
    /// How it ends was said.
    is_over: bool,
}

impl fmt::Debug for SendStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendStream").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl SendStream {
    pub(crate) fn new(sink: Option<ByteSink>, held: &Arc<Held>) -> Self {
        Self { sink, held: Arc::clone(held), is_over: false }
    }

    /// Whether both are halves of one stream.
    pub(crate) fn is_of(&self, held: &Arc<Held>) -> bool {
        Arc::ptr_eq(&self.held, held)
    }

    fn sink(&mut self) -> io::Result<&mut ByteSink> {
        match &mut self.sink {
            Some(sink) if !self.is_over => Ok(sink),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Writes as much of `pieces`, one behind the other, as there is room for, once there is some. Returns how many bytes that was. Wakes
    /// the task of the last poll.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] when the reader stopped the stream, with its [`Code`](crate::Code), and after
    /// [`SendStream::finish`]. [`io::ErrorKind::ConnectionReset`] when the connection is lost, or the server did not take the stream: with
    /// the reason, once that is known.
    pub fn poll_write_pieces(
        &mut self,
        context: &Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.sink()?.poll_write(context, pieces));
        Poll::Ready(written.map_err(|error| of_write(&error, &self.held)))
    }

    /// Writes as much as there is room for, once there is some. Returns how many bytes that was. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] when the reader stopped the stream, with its [`Code`](crate::Code), and after
    /// [`SendStream::finish`]. [`io::ErrorKind::ConnectionReset`] when the connection is lost, or the server did not take the
    /// stream.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_write_pieces(context, &[IoSlice::new(bytes)])).await
    }

    /// Writes as much as there is room for, without waiting. Returns how many bytes that was.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is no room. [`io::ErrorKind::BrokenPipe`] when the reader stopped the stream, with
    /// its [`Code`](crate::Code), and after [`SendStream::finish`]. [`io::ErrorKind::ConnectionReset`] when the connection is lost,
    /// or the server did not take the stream.
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write_pieces(&[IoSlice::new(bytes)])
    }

    /// Writes as much of `pieces`, one behind the other, as there is room for, without waiting. Returns how many bytes that was.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is no room. [`io::ErrorKind::BrokenPipe`] when the reader stopped the stream, with
    /// its [`Code`](crate::Code), and after [`SendStream::finish`]. [`io::ErrorKind::ConnectionReset`] when the connection is lost,
    /// or the server did not take the stream.
    pub fn try_write_pieces(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.sink()?.try_write(pieces) {
            Poll::Ready(written) => written.map_err(|error| of_write(&error, &self.held)),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Waits until there is room for bytes. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] when the reader stopped the stream, with its [`Code`](crate::Code), and after
    /// [`SendStream::finish`]. [`io::ErrorKind::ConnectionReset`] when the connection is lost, or the server did not take the
    /// stream.
    pub async fn writable(&mut self) -> io::Result<()> {
        let ready = std::future::poll_fn(|context| match self.sink() {
            Ok(sink) => sink.poll_ready(context).map(|ready| ready.map_err(Some)),
            Err(_) => Poll::Ready(Err(None)),
        });
        match ready.await {
            Ok(()) => Ok(()),
            Err(Some(error)) => Err(of_write(&error, &self.held)),
            Err(None) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Says that everything was written: the reader gets it, then the end. Does not wait. Does nothing once an end was said.
    pub fn finish(&mut self) {
        self.end(ByteSink::finish);
    }

    /// Gives the stream up: the reader gets what was written, then [`io::ErrorKind::ConnectionReset`] with this code. Does not wait.
    /// Does nothing once an end was said.
    pub fn reset(&mut self, code: u32) {
        self.end(|sink| sink.reset(code));
    }

    /// Gives the stream up at once: bytes that were written and have not left are discarded, so the reader's side hears of it however much
    /// is unread there. The reader gets what has arrived, then [`io::ErrorKind::ConnectionReset`] with this code. Does not wait. Does
    /// nothing once an end was said.
    pub fn abandon(&mut self, code: u32) {
        self.end(|sink| sink.abandon(code));
    }

    fn end(&mut self, say: impl FnOnce(&mut ByteSink)) {
        if !std::mem::replace(&mut self.is_over, true) {
            if let Some(sink) = &mut self.sink {
                say(sink);
            }
            self.held.half_over();
        }
    }

    /// Finishes the stream, and polls until the end has left behind all bytes, or the reader has stopped the stream. Wakes the task
    /// of the last poll.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionReset`] when the connection is lost before.
    pub fn poll_close(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        let Some(sink) = &mut self.sink else { return Poll::Ready(Ok(())) };
        match ready!(sink.poll_left(context)) {
            Ok(()) | Err(StreamError::Stopped(_)) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(of_write(&error, &self.held))),
        }
    }

    /// Finishes, and waits until the end has left behind all bytes, or the reader has stopped the stream. Wait for it before the
    /// client is dropped, which ends the connection. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionReset`] when the connection is lost before.
    pub async fn closed(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_close(context)).await
    }

    /// Waits until nothing more can be written. Returns the code with which the reader stopped the stream, if it did. Cancel safe.
    pub async fn stopped(&mut self) -> Option<u32> {
        let sink = self.sink.as_mut()?;
        std::future::poll_fn(|context| sink.poll_stopped(context)).await
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if std::thread::panicking() || self.held.has_unread() {
            self.reset(0);
        } else {
            self.finish();
        }
    }
}
