//! Accepting streams.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering, fence},
    },
    task::{Context, Poll},
};

use atomic_waker::AtomicWaker;
use crossbeam::queue::ArrayQueue;
use gimmal_rpc::{
    Code, Cx, Method, Raw, ResponseWriter, Service, Status,
    service::{Plain, Seat},
    stream::{ByteSink, ByteStream},
};

use crate::{
    duplex::Duplex,
    held::{Accepted, Held, Side},
    open::METHODS,
    recv::RecvStream,
    send::SendStream,
};

/// What waits to be accepted.
struct Queue {
    streams: ArrayQueue<(String, Duplex)>,
    waker: AtomicWaker,
    /// The server is gone, or the queue is not read any more.
    is_closed: AtomicBool,
}

impl Queue {
    fn clear(&self) {
        while self.streams.pop().is_some() {}
    }
}

/// The service whose calls are streams: give it to a server. Made by [`serve`].
pub struct Streams(Arc<Queue>);

/// Where the streams that clients open come out. Made by [`serve`].
///
/// Dropped, it drops the streams that wait in it, and later ones are refused as unavailable.
///
/// ```
/// use tokio::io::AsyncReadExt as _;
///
/// # #[tokio::main(flavor = "multi_thread", worker_threads = 1)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (streams, mut incoming) = gimmal_io::serve(16); // at most 16 wait to be accepted
/// let server = gimmal::serve("mem://doc-io-incoming", streams)?;
/// # let client = gimmal::connect("mem://doc-io-incoming")?;
/// # drop(gimmal_io::open(&client, "log"));
/// # let server = Some(server);
/// while let Some((name, mut stream)) = incoming.accept().await {
///     let mut text = String::new();
///     // Its client may have given it up.
///     let read = stream.read_to_string(&mut text).await;
///     println!("{name}: {read:?}");
/// #     break;
/// }
/// # drop(server);
/// # Ok(())
/// # }
/// ```
pub struct Incoming(Arc<Queue>);

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Streams({} wait)", self.0.streams.len())
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incoming({} wait)", self.0.streams.len())
    }
}

/// Makes a service whose calls are streams, and where they come out.
///
/// At most `backlog` streams wait to be accepted, 1 or more. A further one is refused as exhausted, which its client reads as
/// [`ErrorKind::ConnectionReset`](std::io::ErrorKind).
#[must_use]
pub fn serve(backlog: usize) -> (Streams, Incoming) {
    let queue = Arc::new(Queue {
        streams: ArrayQueue::new(backlog.max(1)),
        waker: AtomicWaker::new(),
        is_closed: AtomicBool::new(false),
    });
    (Streams(Arc::clone(&queue)), Incoming(queue))
}

impl Incoming {
    /// Polls for the next stream that a client opened, and its name; `None` when the server is gone. Wakes the task of the last
    /// poll.
    pub fn poll_accept(&mut self, context: &Context<'_>) -> Poll<Option<(String, Duplex)>> {
        self.0.waker.register(context.waker());
        let is_closed = self.0.is_closed.load(Ordering::Acquire);
        match self.0.streams.pop() {
            Some(stream) => Poll::Ready(Some(stream)),
            None if is_closed => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// Returns the next stream that a client opened, and its name; `None` when the server is gone. Cancel safe.
    pub async fn accept(&mut self) -> Option<(String, Duplex)> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        // SYNC POINT: incoming closed. A stream that comes after the queue is empty is dropped by the worker that brings it.
        fence(Ordering::SeqCst);
        self.0.clear();
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.waker.wake();
    }
}

impl Service for Streams {
    fn methods(&self) -> &'static [Method] {
        &METHODS
    }

    fn call_raw(&self, _: usize, _: &Cx, _: &[u8], _: &mut ResponseWriter<'_>) -> Result<(), Status> {
        Err(Status::refused(Code::Internal, "a stream is not opened by a raw call"))
    }

    fn start(
        &self,
        _: usize,
        _: Cx,
        arguments: &[u8],
        _: Option<gimmal_rpc::Bulk>,
        seat: &mut Seat,
    ) -> Result<(), Status> {
        let name = str::from_utf8(arguments)
            .map_err(|error| Status::refused(Code::InvalidArgument, format!("the stream's name: {error}")))?;
        let up = ByteStream::from(seat.stream::<Raw, Vec<u8>>()?);
        let down = ByteSink::from(seat.sink::<Raw, Vec<u8>>()?);
        let held = Held::new(Side::Accepted(Accepted::default()));
        let stream = Duplex::new(RecvStream::new(up, &held), SendStream::new(Some(down), &held));
        let queue = &self.0;
        if queue.is_closed.load(Ordering::Acquire) {
            return Err(Status::refused(Code::Unavailable, "nobody accepts streams any more"));
        }
        if queue.streams.push((name.to_owned(), stream)).is_err() {
            return Err(Status::refused(
                Code::ResourceExhausted,
                "too many streams wait to be accepted; accept them faster, or raise the backlog",
            ));
        }
        // SYNC POINT: incoming closed. Who closed it before the stream was there has not found it.
        fence(Ordering::SeqCst);
        if queue.is_closed.load(Ordering::Acquire) {
            queue.clear();
        }
        queue.waker.wake();
        seat.put::<Raw, _>(async move {
            std::future::poll_fn(|context| held.poll_over(context)).await;
            Plain(Vec::<u8>::new())
        });
        Ok(())
    }
}
