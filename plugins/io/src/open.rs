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
#[must_use]
pub fn open(client: &Client, name: &str) -> Duplex {
    let (beside, ends) = caller_ends::<Raw, Vec<u8>, Vec<u8>>(true);
    let CallerEnds { up, down, tie } = ends;
    let ticket = client.start(&METHODS[0], &CallOptions::default(), beside, name.as_bytes());
    let held = Held::new(Side::Opened(Mutex::new(Some(Called { ticket, tie, failure: None }))));
    let sink = up.map(ByteSink::from);
    Duplex::new(RecvStream::new(ByteStream::from(down), &held), SendStream::new(sink, &held))
}
