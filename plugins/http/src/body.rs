//! Bodies that arrive.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use gimmal_rpc::{
    ReadError, Stream,
    response::{Response, ResponseStatus},
    stream::Tie,
};
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot;

use crate::{
    block,
    carrier::End,
    error::Error,
    head,
    messages::{self, Arrived, Contents, Item},
    outgoing::BoxError,
};

/// The body of a request or a response that arrived.
///
/// It ends well only if all of it came: else its last frame is an [`Error`]. Dropping the body of a response before its end
/// cancels the request's handler.
#[derive(Default)]
pub struct Body {
    from: From,
    /// What of `content-length` has not come yet, if it is said.
    left: Option<u64>,
    /// Most bytes, and what of them may still come.
    max: Option<(u64, u64)>,
}

#[derive(Default)]
enum From {
    /// All of it is here.
    Whole(Contents),
    Stream(Box<Streamed>),
    /// Nothing more comes.
    #[default]
    Over,
}

/// A body that comes in items.
pub(crate) struct Streamed {
    /// Cancels the call; before its end.
    pub(crate) _tie: Option<Tie>,
    /// What came with the head.
    pub(crate) first: Bytes,
    pub(crate) items: Stream<Item>,
    /// Trailers that came as an item.
    pub(crate) trailers: Option<HeaderMap>,
    /// Of a response: the call's answer, which is its end.
    pub(crate) end: Option<End>,
    /// The items are over, and only the answer is missing.
    pub(crate) is_ending: bool,
    /// They ended before all of them were here.
    pub(crate) is_cut: bool,
    /// Of a response: that the request's body failed.
    pub(crate) failed: Option<oneshot::Receiver<BoxError>>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.from {
            From::Whole(contents) => write!(f, "Body({} bytes)", contents.data.len()),
            From::Stream(_) => f.write_str("Body(a stream)"),
            From::Over => f.write_str("Body(at its end)"),
        }
    }
}

impl Body {
    pub(crate) fn whole(contents: Contents) -> Self {
        Self { from: From::Whole(contents), left: None, max: None }
    }

    pub(crate) fn stream(streamed: Streamed, left: Option<u64>) -> Self {
        Self { from: From::Stream(Box::new(streamed)), left, max: None }
    }

    /// Refuses more than `max` bytes.
    pub(crate) fn at_most(mut self, max: Option<u64>) -> Self {
        self.max = max.map(|max| (max, max));
        self
    }

    /// It is not as long as it should be.
    #[cold]
    fn lies(&self) -> Error {
        match &self.from {
            From::Stream(streamed) if streamed.end.is_some() => Error::ResponseLength,
            _ => Error::ContentLength,
        }
    }

    /// Notes that so many bytes came.
    fn count(&mut self, bytes: usize) -> Result<(), Error> {
        let bytes = bytes as u64;
        if let Some(left) = self.left {
            self.left = Some(left.checked_sub(bytes).ok_or_else(|| self.lies())?);
        }
        if let Some((limit, left)) = &mut self.max {
            *left = left.checked_sub(bytes).ok_or(Error::TooLarge { limit: *limit })?;
        }
        Ok(())
    }

    fn fail(&mut self, error: Error) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.from = From::Over;
        Poll::Ready(Some(Err(error)))
    }

    /// All data came: what is left are trailers.
    fn finish(&mut self, trailers: Option<HeaderMap>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.left.is_some_and(|left| left > 0) {
            return self.fail(self.lies());
        }
        self.from = From::Over;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }
}

/// What a stream brought.
enum Brought {
    Data(Bytes),
    End(Option<HeaderMap>),
}

impl Streamed {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Brought, Error>> {
        if !self.first.is_empty() {
            return Poll::Ready(Ok(Brought::Data(std::mem::take(&mut self.first))));
        }
        if let Poll::Ready(error) = poll_failed(&mut self.failed, context) {
            return Poll::Ready(Err(Error::Body(error)));
        }
        while !self.is_ending {
            let taken = ready!(self.items.poll_item(context, messages::item));
            match taken.map(|taken| taken.and_then(|item| item.map_err(ReadError::Decode))) {
                Some(Ok(Item::Data(data))) if data.is_empty() => {}
                Some(Ok(Item::Data(data))) => return Poll::Ready(Ok(Brought::Data(data))),
                Some(Ok(Item::Trailers(trailers))) if self.end.is_none() && self.trailers.is_none() => {
                    self.trailers = Some(head::read_trailers(&trailers, &trailers)?);
                }
                Some(Ok(_)) => return Poll::Ready(Err(Error::Malformed("an item out of order"))),
                Some(Err(_)) if self.end.is_none() => {
                    return Poll::Ready(Err(Error::Aborted(
                        "its call was cancelled, or its body failed".to_owned(),
                    )));
                }
                ended @ (Some(Err(_)) | None) => (self.is_ending, self.is_cut) = (true, ended.is_some()),
            }
        }
        let Some(end) = &mut self.end else {
            return Poll::Ready(Ok(Brought::End(self.trailers.take())));
        };
        let response = ready!(end.as_mut().poll(context));
        // The call is over: nothing is left to cancel.
        Poll::Ready(match response {
            None => Err(Error::Aborted("its connection's thread has ended".to_owned())),
            Some(response) => match messages::answer(bytes_of(response, drop)?, HeaderMap::new())? {
                // An answer may be faster than large items, which are lost with their connection.
                Arrived::End(_) if self.is_cut => {
                    Err(Error::Aborted("its connection ended before all of it was here".to_owned()))
                }
                Arrived::End(trailers) => Ok(Brought::End(trailers)),
                Arrived::Whole(..) => Err(Error::Malformed("a second response")),
            },
        })
    }
}

/// Whether the request's body failed.
pub(crate) fn poll_failed(
    failed: &mut Option<oneshot::Receiver<BoxError>>,
    context: &mut Context<'_>,
) -> Poll<BoxError> {
    let Some(receiver) = failed else { return Poll::Pending };
    match ready!(Pin::new(receiver).poll(context)) {
        Ok(error) => Poll::Ready(error),
        // All of it left, or nobody wants it any more.
        Err(_) => {
            *failed = None;
            Poll::Pending
        }
    }
}

/// Memory of the server, in which bytes are read where they are.
struct Held(gimmal_rpc::response::Body);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// The bytes of an answer, if there is one. A buffer that was copied from goes to `recycle`.
pub(crate) fn bytes_of(response: Response, recycle: impl FnOnce(Vec<u8>)) -> Result<Bytes, Error> {
    match response.status {
        ResponseStatus::Ok => Ok(match response.body {
            gimmal_rpc::response::Body::Owned(buffer) if buffer.len() <= block::SMALL => {
                let bytes = block::copy_of(&buffer);
                recycle(buffer);
                bytes
            }
            gimmal_rpc::response::Body::Owned(buffer) => buffer.into(),
            bulk @ gimmal_rpc::response::Body::Bulk(_) => Bytes::from_owner(Held(bulk)),
        }),
        ResponseStatus::Error => {
            Err(Error::Aborted(String::from_utf8_lossy(response.body.bytes()).into_owned()))
        }
        ResponseStatus::Failed(failure) => Err(Error::Call(*failure)),
        ResponseStatus::Begun(_) => Err(Error::Malformed("a second response")),
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let brought = match &mut this.from {
            From::Over => return Poll::Ready(None),
            From::Whole(Contents { data, trailers }) if data.is_empty() => {
                let trailers = trailers.take();
                return this.finish(trailers);
            }
            From::Whole(contents) => Ok(Brought::Data(std::mem::take(&mut contents.data))),
            From::Stream(streamed) => ready!(streamed.poll(context)),
        };
        match brought {
            Ok(Brought::Data(data)) => match this.count(data.len()) {
                Ok(()) => Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(error) => this.fail(error),
            },
            Ok(Brought::End(trailers)) => this.finish(trailers),
            Err(error) => this.fail(error),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.from {
            From::Over => true,
            From::Whole(contents) => contents.data.is_empty() && contents.trailers.is_none(),
            From::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.from {
            From::Over => SizeHint::with_exact(0),
            From::Whole(contents) => SizeHint::with_exact(contents.data.len() as u64),
            From::Stream(_) => self.left.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use gimmal_rpc::{response, stream::caller_ends};

    use super::*;
    use crate::messages::{Piece, Wire};

    #[test]
    fn a_body_whose_items_were_lost_has_no_good_end_whatever_the_answer_says() {
        let (beside, ends) = caller_ends::<Wire, Piece, Item>(false);
        // The call has ended, and not by its answer.
        drop(beside);
        let good = Response {
            status: ResponseStatus::Ok,
            body: response::Body::Owned(vec![1]),
            lent: None,
            metadata: None,
        };
        let mut streamed = Streamed {
            _tie: None,
            first: Bytes::new(),
            items: ends.down,
            trailers: None,
            end: Some(Box::pin(std::future::ready(Some(good)))),
            is_ending: false,
            is_cut: false,
            failed: None,
        };
        let polled = streamed.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Err(Error::Aborted(_)))));
    }
}
