//! The half of a stream that is read.

use std::{
    fmt, io,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use gimmal_rpc::{
    ReadError,
    stream::{ByteStream, Item},
};

use crate::{error::of_read, held::Held};

/// The half of a stream that is read.
///
/// No bytes mean the end of the stream: the writer finished it, and everything was read. Dropped before that, it stops the writer with
/// code 0.
///
/// ```
/// # #[tokio::main(flavor = "multi_thread", worker_threads = 1)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (streams, mut incoming) = gimmal_io::serve(16);
/// # let _server = gimmal::serve("mem://doc-io-recv", streams)?;
/// # let client = gimmal::connect("mem://doc-io-recv")?;
/// # let (_recv, mut send) = gimmal_io::open(&client, "upload").into_split();
/// # send.write(b"all of it").await?;
/// # send.finish();
/// let (name, stream) = incoming.accept().await.ok_or("the server is gone")?;
/// let (mut recv, _send) = stream.into_split();
/// let mut bytes = Vec::new();
/// while let Some(chunk) = recv.read_chunk().await? { // as it arrived, without a copy
///     bytes.extend_from_slice(&chunk);
/// }
/// assert_eq!((&*name, &*bytes), ("upload", &b"all of it"[..]));
/// # Ok(())
/// # }
/// ```
pub struct RecvStream {
    stream: ByteStream,
    held: Arc<Held>,
    /// The end was read, or this side wants no more.
    is_over: bool,
    /// This side wants no more.
    is_stopped: bool,
}

impl fmt::Debug for RecvStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvStream({:?})", self.stream)
    }
}

impl RecvStream {
    pub(crate) fn new(stream: ByteStream, held: &Arc<Held>) -> Self {
        Self { stream, held: Arc::clone(held), is_over: false, is_stopped: false }
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    fn over(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.held.half_over();
        }
    }

    /// Returns the bytes that are here without taking them out, once there are some; none at the end of the stream. Wakes the task of
    /// the last poll.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionReset`] when the writer gave the stream up, with its [`Code`](crate::Code), or the connection is lost.
    pub fn poll_peek(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.fill(Some(context))
    }

    /// Returns the bytes that are here without taking them out, and without waiting; none at the end of the stream.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is here. [`io::ErrorKind::ConnectionReset`] when the writer gave the stream up,
    /// with its [`Code`](crate::Code), or the connection is lost.
    pub fn try_peek(&mut self) -> io::Result<&[u8]> {
        match self.fill(None) {
            Poll::Ready(filled) => filled,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn fill(&mut self, mut context: Option<&mut Context<'_>>) -> Poll<io::Result<&[u8]>> {
        if self.is_stopped {
            return Poll::Ready(Ok(&[]));
        }
        let filled = match &context {
            Some(context) => self.stream.poll_fill(context),
            None => self.stream.try_fill(),
        };
        match filled.map(|filled| filled.map(<[u8]>::is_empty)) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(is_end)) => {
                if is_end {
                    self.over();
                }
            }
            Poll::Ready(Err(error)) => {
                if let (ReadError::Over, Some(context)) = (&error, &mut context) {
                    ready!(self.held.poll_failure(context));
                }
                self.over();
                return Poll::Ready(Err(of_read(&error, &self.held)));
            }
        }
        self.stream.try_fill().map(|here| Ok(here.unwrap_or_default()))
    }

    /// Shows `take` at most `room` of the bytes that are here and takes them out, once there are some. Returns how many.
    pub(crate) fn poll_take(
        &mut self,
        context: &mut Context<'_>,
        room: usize,
        take: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<usize>> {
        if room == 0 {
            return Poll::Ready(Ok(0));
        }
        let here = ready!(self.poll_peek(context))?;
        let bytes = here.len().min(room);
        take(&here[..bytes]);
        self.consume(bytes);
        Poll::Ready(Ok(bytes))
    }

    /// Takes out the first `bytes` of those that [`RecvStream::poll_peek`] or [`RecvStream::try_peek`] returned; of more, all of them.
    pub fn consume(&mut self, bytes: usize) {
        self.stream.consume(bytes);
    }

    /// Copies bytes into `out` that a later read returns again, once there are some. Returns how many; 0 is the end. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionReset`] when the writer gave the stream up, with its [`Code`](crate::Code), or the connection is
    /// lost.
    pub async fn peek(&mut self, out: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|context| {
            let here = ready!(self.poll_peek(context))?;
            let bytes = here.len().min(out.len());
            out[..bytes].copy_from_slice(&here[..bytes]); // bytes of a stream
            Poll::Ready(Ok(bytes))
        })
        .await
    }

    /// Reads into `out` what is here, without waiting. Returns how many bytes that was; 0 is the end.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is here. [`io::ErrorKind::ConnectionReset`] when the writer gave the stream up,
    /// with its [`Code`](crate::Code), or the connection is lost.
    pub fn try_read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let here = self.try_peek()?;
        let bytes = here.len().min(out.len());
        out[..bytes].copy_from_slice(&here[..bytes]); // bytes of a stream
        self.consume(bytes);
        Ok(bytes)
    }

    /// Waits until bytes are here, or the end. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionReset`] when the writer gave the stream up, with its [`Code`](crate::Code), or the connection is
    /// lost.
    pub async fn readable(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_peek(context).map(|peeked| peeked.map(|_| ()))).await
    }

    /// Polls for everything that is here, without a copy; `None` is the end of the stream. Wakes the task of the last poll.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionReset`] when the writer gave the stream up, with its [`Code`](crate::Code), or the connection is
    /// lost.
    pub fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        match self.poll_peek(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok([])) => Poll::Ready(Ok(None)),
            Poll::Ready(Ok(_)) => {
                let (taken, at) = self.stream.take();
                let bytes = match taken {
                    Item::Kept(kept) => Bytes::from_owner(kept),
                    Item::Copied(bytes) => bytes.into(),
                    Item::Here(bytes) => Bytes::copy_from_slice(bytes),
                };
                Poll::Ready(Ok(Some(bytes.slice(at..))))
            }
        }
    }

    /// Returns everything that is here, without a copy, once there is something; `None` is the end. A chunk has at most as many bytes
    /// as the stream's window, and keeps them as long as a clone of it lives. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionReset`] when the writer gave the stream up, with its [`Code`](crate::Code), or the connection is
    /// lost.
    pub async fn read_chunk(&mut self) -> io::Result<Option<Bytes>> {
        std::future::poll_fn(|context| self.poll_chunk(context)).await
    }

    /// Waits until the stream can end in good order no more: the writer gave it up, or the connection is lost. That may be long before
    /// what is here was read, and is never after the writer's good end. Cancel safe.
    pub async fn broken(&mut self) {
        std::future::poll_fn(|context| self.stream.poll_broken(context)).await;
    }

    /// Says that nothing more is wanted: the writer's next write ends with [`io::ErrorKind::BrokenPipe`] and this code. Later reads
    /// here are the end. Does nothing once the end was read.
    pub fn stop(&mut self, code: u32) {
        if !self.is_over {
            self.stream.stop(code);
            self.is_stopped = true;
            self.over();
        }
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        if !self.is_over && matches!(self.stream.try_fill(), Poll::Ready(Ok(bytes)) if !bytes.is_empty()) {
            self.held.left_unread();
        }
        self.stop(0);
    }
}
