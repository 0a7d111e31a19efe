//! Opening a stream.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use gimmal_rpc::{
    CallOptions, Channel, Client, Method, MethodKind, Raw, Sink, Stream,
    channel::Ticket,
    stream::{ByteSink, ByteStream, CallerEnds, Tie, caller_ends},
};

use crate::{
    duplex::Duplex,
    held::{Called, Carried, Held, Side, reason},
    recv::RecvStream,
    send::SendStream,
};

/// The one method: a call of it is a stream. Its arguments are the stream's name.
pub(crate) static METHODS: [Method; 1] =
    [Method::new("gimmal.Io", "open", "(name, up bytes) -> down bytes", "raw", MethodKind::Async)
        .with_streams(true, true)];

/// Opens a stream to the server of `client`. Does not wait, and does not fail here: bytes may be written at once. The first read,
/// or a later write, ends with an error when there is no connection, or the server does not take the stream.
///
/// The name says what the stream is for: the server gets it from [`Incoming::accept`](crate::Incoming::accept). It must fit in a
/// message. A stream is a call in flight as long as it lasts: `Config::window` bounds how many are open on a connection, 64 by
/// default.
///
/// ```
/// use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
///
/// # #[tokio::main(flavor = "multi_thread", worker_threads = 1)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (streams, mut incoming) = gimmal_io::serve(16);
/// # let _server = gimmal::serve("mem://doc-io-open", streams)?;
/// let client = gimmal::connect("mem://doc-io-open")?;
/// let mut stream = gimmal_io::open(&client, "echo");
/// stream.write_all(b"hello").await?;
/// stream.shutdown().await?;
/// # let (_, mut accepted) = incoming.accept().await.ok_or("the server is gone")?;
/// # tokio::spawn(async move {
/// #     let mut heard = Vec::new();
/// #     accepted.read_to_end(&mut heard).await?;
/// #     accepted.write_all(&heard).await?;
/// #     accepted.shutdown().await
/// # });
/// let mut heard = String::new();
/// stream.read_to_string(&mut heard).await?;
/// assert_eq!(heard, "hello");
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn open(client: &Client, name: &str) -> Duplex {
    let (ends, ticket) = start(client, name);
    let CallerEnds { up, down, tie } = ends;
    duplex(up, down, Side::Opened(Mutex::new(Some(Called { ticket, tie, failure: None, reader: None }))))
}

/// Opens a stream on a client whose calls have no worker's thread, such as `gimmal::tokio::LocalClient`, and returns the stream's
/// call beside it. Does not wait, and does not fail here: the first read, or a later write, ends with an error. `name` says what
/// the stream is for, and must fit in a message.
///
/// The stream moves while the call is polled: give it to `spawn_local`, or to whatever else runs tasks of the client's thread. The
/// stream itself may go to any thread.
///
/// ```
/// use gimmal::tokio::LocalClient;
/// use tokio::{io::{AsyncReadExt as _, AsyncWriteExt as _}, task::spawn_local};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (streams, mut incoming) = gimmal_io::serve(16);
/// # let _server = gimmal::serve("mem://doc-io-local", streams)?;
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build_local(Default::default())?;
/// runtime.block_on(async {
///     let client = LocalClient::connect("mem://doc-io-local").await?;
///     let (mut stream, call) = gimmal_io::open_local(&client, "echo");
///     spawn_local(call);
///     stream.write_all(b"hello").await?;
///     stream.shutdown().await?;
/// #     let (_, mut accepted) = incoming.accept().await.ok_or("the server is gone")?;
/// #     spawn_local(async move {
/// #         let mut heard = Vec::new();
/// #         accepted.read_to_end(&mut heard).await?;
/// #         accepted.write_all(&heard).await?;
/// #         accepted.shutdown().await
/// #     });
///     let mut heard = String::new();
///     stream.read_to_string(&mut heard).await?;
///     assert_eq!(heard, "hello");
///     Ok(())
/// })
/// # }
/// ```
pub fn open_local<C: Channel>(client: &C, name: &str) -> (Duplex, Carrying<C::Ticket>) {
    let (ends, ticket) = start(client, name);
    let CallerEnds { up, down, tie } = ends;
    let told = Arc::<Carried>::default();
    let stream = duplex(up, down, Side::Carried(Arc::clone(&told)));
    (stream, Carrying { tie, ticket, told })
}

fn start<C: Channel>(client: &C, name: &str) -> (CallerEnds<Vec<u8>, Vec<u8>>, C::Ticket) {
    let (beside, ends) = caller_ends::<Raw, _, _>(true);
    (ends, client.start(&METHODS[0], &CallOptions::default(), beside, name.as_bytes()))
}

fn duplex(up: Option<Sink<Vec<u8>>>, down: Stream<Vec<u8>>, side: Side) -> Duplex {
    let held = Held::new(side);
    let sink = up.map(ByteSink::from);
    Duplex::new(RecvStream::new(ByteStream::from(down), &held), SendStream::new(sink, &held))
}

/// The call of a stream that [`open_local`] opened: a future that ends with the stream, when both directions are over at both sides.
///
/// Not cancel safe: dropped before it is ready, it ends the stream. Reads and writes then fail, unless the end was read before.
#[must_use = "the stream moves while this is polled, and ends when it is dropped"]
pub struct Carrying<T: Ticket> {
    // Before the ticket, so that the stream is given up before the call is cancelled.
    tie: Tie,
    ticket: T,
    told: Arc<Carried>,
}

impl<T: Ticket> fmt::Debug for Carrying<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Carrying")
    }
}

impl<T: Ticket> Future for Carrying<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let response = ready!(this.ticket.poll(context));
        this.tie.loosen();
        this.told.ended(reason(&response));
        Poll::Ready(())
    }
}

impl<T: Ticket> Drop for Carrying<T> {
    fn drop(&mut self) {
        self.told.ended("the stream's call was dropped".to_owned());
    }
}
