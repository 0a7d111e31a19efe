//! Bodies that this side sends: what is there at once, and the rest.

use std::{
    error::Error as StdError,
    fmt,
    future::Future,
    ops::DerefMut,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use futures_sink::Sink as _;
use gimmal_rpc::{Sink, StreamError};
use http::HeaderMap;
use http_body::Body;
use tokio::sync::oneshot;

use crate::{messages::Piece, pieces::Pieces};

/// What errors of bodies become.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// Most bytes of an item's data. With the byte before them they fill memory of a size that is used again as it is.
pub(crate) const PIECE_BYTES_MAX: usize = (64 << 10) - 1;

/// What of a body was there at once.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) data: Pieces,
    pub(crate) bytes: usize,
    pub(crate) trailers: Option<HeaderMap>,
    /// That is all of it.
    pub(crate) is_whole: bool,
}

/// Takes what `body` gives without waiting, until that is more than `limit` bytes.
pub(crate) fn gather<B>(
    mut body: Pin<&mut B>,
    context: &mut Context<'_>,
    limit: usize,
) -> Result<Gathered, BoxError>
where
    B: Body<Error: Into<BoxError>>,
{
    let mut gathered = Gathered::default();
    while gathered.bytes <= limit {
        if body.is_end_stream() {
            gathered.is_whole = true;
            break;
        }
        match body.as_mut().poll_frame(context) {
            Poll::Pending => break,
            Poll::Ready(None) => {
                gathered.is_whole = true;
                break;
            }
            Poll::Ready(Some(Err(error))) => return Err(error.into()),
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(mut data) => {
                    let data = data.copy_to_bytes(data.remaining());
                    gathered.bytes += data.len();
                    gathered.data.push(data);
                }
                Err(frame) => gathered.trailers = frame.into_trailers().ok(),
            },
        }
    }
    Ok(gathered)
}

/// How sending a body's items ended.
pub(crate) enum Sent {
    /// All of it left, but its trailers.
    Whole(Option<HeaderMap>),
    /// The other end wants no more.
    Over,
    /// The body ended with an error.
    Failed(BoxError),
}

/// Sends a body item by item, at the pace of the other end.
pub(crate) struct Pumped<P> {
    body: Pin<P>,
    /// Data that waits for room, the next piece last.
    data: Vec<Bytes>,
    trailers: Option<HeaderMap>,
    /// Most bytes of an item's data.
    limit: usize,
    is_whole: bool,
}

impl<P> Pumped<P>
where
    P: DerefMut<Target: Body<Error: Into<BoxError>>>,
{
    pub(crate) fn new(body: Pin<P>, gathered: Gathered, limit: usize) -> Self {
        let Gathered { data: Pieces { first, more }, trailers, is_whole, .. } = gathered;
        let mut data: Vec<Bytes> = more.into_iter().rev().collect();
        data.push(first);
        Self { body, data, trailers, limit: limit.clamp(1, PIECE_BYTES_MAX), is_whole }
    }

    /// The next piece that is not longer than an item.
    fn next_data(&mut self) -> Option<Bytes> {
        let mut data = self.data.pop()?;
        if data.len() > self.limit {
            let first = data.split_to(self.limit);
            self.data.push(data);
            return Some(first);
        }
        Some(data)
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>, sink: &mut Sink<Piece>) -> Poll<Sent> {
        loop {
            if !self.data.is_empty() {
                if ready!(Pin::new(&mut *sink).poll_ready(context)).is_err() {
                    return Poll::Ready(Sent::Over);
                }
                let Some(data) = self.next_data().filter(|data| !data.is_empty()) else { continue };
                match sink.try_send(&Piece::Data(data.clone())) {
                    Ok(true) => {}
                    Ok(false) => self.data.push(data),
                    Err(error) => return Poll::Ready(of(error)),
                }
                continue;
            }
            if self.is_whole {
                return Poll::Ready(Sent::Whole(self.trailers.take()));
            }
            if sink.poll_over(context).is_ready() {
                return Poll::Ready(Sent::Over);
            }
            match ready!(self.body.as_mut().poll_frame(context)) {
                None => self.is_whole = true,
                Some(Err(error)) => return Poll::Ready(Sent::Failed(error.into())),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(mut data) => self.data.push(data.copy_to_bytes(data.remaining())),
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
            }
        }
    }
}

fn of(error: StreamError) -> Sent {
    match error {
        StreamError::Over => Sent::Over,
        error => Sent::Failed(error.into()),
    }
}

/// A request's body on its way: a task of the runtime, which ends with the call.
#[must_use = "nothing is sent until it is polled"]
pub struct Upload<B> {
    pumped: Pumped<Box<B>>,
    sink: Option<Sink<Piece>>,
    /// Trailers that wait for room.
    last: Option<Piece>,
    failed: Option<oneshot::Sender<BoxError>>,
}

impl<B> fmt::Debug for Upload<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upload")
    }
}

impl<B> Upload<B> {
    pub(crate) const fn new(
        pumped: Pumped<Box<B>>,
        sink: Sink<Piece>,
        failed: oneshot::Sender<BoxError>,
    ) -> Self {
        Self { pumped, sink: Some(sink), last: None, failed: Some(failed) }
    }
}

// The body that must not move lies in a box of its own.
impl<B> Unpin for Upload<B> {}

impl<B> Upload<B>
where
    B: Body<Error: Into<BoxError>>,
{
    /// Sends until the body has ended; whether it ended well.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let Some(sink) = &mut self.sink else { return Poll::Ready(false) };
        if self.last.is_none() {
            match ready!(self.pumped.poll(context, sink)) {
                Sent::Whole(None) => return Poll::Ready(true),
                Sent::Whole(Some(trailers)) => self.last = Some(Piece::Trailers(trailers)),
                Sent::Over => return Poll::Ready(false),
                Sent::Failed(error) => {
                    // First the error, then the loss: the response ends with the error.
                    let _ = self.failed.take().map(|failed| failed.send(error));
                    return Poll::Ready(false);
                }
            }
        }
        loop {
            if ready!(Pin::new(&mut *sink).poll_ready(context)).is_err() {
                return Poll::Ready(false);
            }
            match self.last.as_ref().map_or(Ok(true), |last| sink.try_send(last)) {
                Ok(true) => return Poll::Ready(true),
                Ok(false) => {}
                Err(_) => return Poll::Ready(false),
            }
        }
    }
}

impl<B> Future for Upload<B>
where
    B: Body<Error: Into<BoxError>>,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let is_good = ready!(self.poll_sent(context));
        // A sink that is dropped without its end gives the upload up.
        let sink = self.sink.take();
        if is_good {
            sink.into_iter().for_each(Sink::finish);
        }
        Poll::Ready(())
    }
}
