//! A stream for threads that may block.

use std::{
    io::{self, BufRead, IoSlice, Read, Write},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use gimmal_rpc::engine::transport::Instant;

use crate::Duplex;

/// A stream as [`Read`], [`BufRead`] and [`Write`], for threads that may block.
///
/// Without a time-out a read waits for bytes, and a write for room, as long as the connection lives.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] after a time-out; the stream can be used further, and nothing of that operation was done. A read
/// ends with [`io::ErrorKind::ConnectionReset`] when the writer gave the stream up or the connection is lost. A write ends with
/// [`io::ErrorKind::BrokenPipe`] when the reader stopped the stream, and with `ConnectionReset` when the connection is lost.
#[derive(Debug)]
pub struct Blocking {
    stream: Duplex,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
}

impl Duplex {
    /// Makes a stream for threads that may block. Not for a worker's thread or a task, whose other work would wait.
    #[must_use]
    pub const fn blocking(self) -> Blocking {
        Blocking { stream: self, read_timeout: None, write_timeout: None }
    }
}

impl Blocking {
    /// Sets how long a read waits at most; `None`, the default: without a limit. Zero does not wait.
    pub const fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read_timeout = timeout;
    }

    /// Sets how long a write waits at most, and [`Blocking::close`]; `None`, the default: without a limit. Zero does not wait.
    pub const fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.write_timeout = timeout;
    }

    /// Returns the stream, to look at it or end it.
    pub const fn get_mut(&mut self) -> &mut Duplex {
        &mut self.stream
    }

    /// Gives the stream back.
    #[must_use]
    pub fn into_inner(self) -> Duplex {
        self.stream
    }

    /// Finishes the stream, and blocks until the end has left behind all bytes, or the reader has stopped the stream; for the write
    /// time-out at most. Call it before the client is dropped, which ends the connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionReset`] when the connection is lost before, [`io::ErrorKind::TimedOut`] after the time-out.
    pub fn close(&mut self) -> io::Result<()> {
        wait(self.write_timeout, |context| self.stream.split().1.poll_close(context))
    }
}

impl Read for Blocking {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let recv = self.stream.split().0;
        wait(self.read_timeout, |context| {
            recv.poll_take(context, out.len(), |bytes| out[..bytes.len()].copy_from_slice(bytes)) // bytes of a stream
        })
    }
}

impl BufRead for Blocking {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let recv = self.stream.split().0;
        wait(self.read_timeout, |context| recv.poll_peek(context).map_ok(drop))?;
        recv.try_peek()
    }

    fn consume(&mut self, bytes: usize) {
        self.stream.split().0.consume(bytes);
    }
}

impl Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        wait(self.write_timeout, |context| self.stream.split().1.poll_write_pieces(context, pieces))
    }

    /// Does nothing: the worker sends what was written.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Wakes a thread that is parked.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static WAKER: Waker = parked();
}

/// Wakes the calling thread.
fn parked() -> Waker {
    Waker::from(Arc::new(Parked(thread::current())))
}

/// Blocks the thread until `poll` is ready, at most for `timeout`.
fn wait<T>(
    timeout: Option<Duration>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>,
) -> io::Result<T> {
    // A destructor of the thread may read, after that of the waker.
    let waker = WAKER.try_with(Waker::clone).unwrap_or_else(|_| parked());
    let mut context = Context::from_waker(&waker);
    let until = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        if let Poll::Ready(result) = poll(&mut context) {
            return result;
        }
        match until.map(|until| until.remaining()) {
            None => thread::park(),
            Some(Duration::ZERO) => return Err(io::ErrorKind::TimedOut.into()),
            Some(left) => thread::park_timeout(left),
        }
    }
}
