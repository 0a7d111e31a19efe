//! Opening a stream.

use std::sync::Mutex;

use gimmal_rpc::{
    CallOptions, Client, Method, MethodKind, Raw,
    channel::Channel as _,
    stream::{ByteSink, ByteStream, CallerEnds, caller_ends},
};

use crate::{
    duplex::Duplex,
    held::{Called, Held, Side},
    recv::RecvStream,
    send::SendStream,
};

/// The one method: a call of it is a stream. Its arguments are the stream's name.
pub(crate) static METHODS: [Method; 1] =
    [Method::new("gimmal.Io", "open", "(name, up bytes) -> down bytes", "raw", MethodKind::Async)
        .with_streams(true, true)];

/// Opens a stream to the server of `client`. Does not wait: bytes may be written at once, and a server that does not take the stream is
/// told by the first read, or a later write.
///
/// The name says what the stream is for. It must fit in a message.
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
    let (beside, ends) = caller_ends::<Raw, Vec<u8>, Vec<u8>>(true);
    let CallerEnds { up, down, tie } = ends;
    let ticket = client.start(&METHODS[0], &CallOptions::default(), beside, name.as_bytes());
    let held = Held::new(Side::Opened(Mutex::new(Some(Called { ticket, tie, failure: None }))));
    let sink = up.map(ByteSink::from);
    Duplex::new(RecvStream::new(ByteStream::from(down), &held), SendStream::new(sink, &held))
}
