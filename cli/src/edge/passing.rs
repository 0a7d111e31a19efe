//! Bodies on their way through an edge.

use std::{
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    failed::{Cut, code_of, put_status},
    options::Counts,
};

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// A body that passes an edge, in either direction. It ends well only if all of it passed.
pub(super) struct Passing<B> {
    body: B,
    is_over: bool,
    /// gRPC wants the end of a request on a frame of data, never on its head. Servers rely on that: grpc-go waits for ever for the
    /// end of a stream whose head had it.
    ends_apart: bool,
    response: Option<Responding>,
}

/// What a response's body has.
pub(super) struct Responding {
    pub(super) is_grpc: bool,
    pub(super) counts: Arc<Counts>,
    /// The place of its request, until the body is dropped: a stream is in flight for as long as it lasts.
    pub(super) _place: OwnedSemaphorePermit,
}

impl<B> Passing<B> {
    /// The body of a request.
    pub(super) const fn request(body: B, ends_apart: bool) -> Self {
        Self { body, is_over: false, ends_apart, response: None }
    }

    pub(super) const fn response(body: B, response: Responding) -> Self {
        Self { body, is_over: false, ends_apart: false, response: Some(response) }
    }

    /// The body failed. One of gRPC ends with a status: a stream that is reset could not say which.
    fn fail(&mut self, error: BoxError) -> Result<Frame<Bytes>, BoxError> {
        self.is_over = true;
        let Some(Responding { is_grpc, counts, .. }) = &self.response else { return Err(error) };
        Counts::add(&counts.failed);
        if !is_grpc {
            return Err(error);
        }
        let mut trailers = HeaderMap::new();
        put_status(&mut trailers, code_of(&*error), &error.to_string());
        Ok(Frame::trailers(trailers))
    }
}

impl<B> Body for Passing<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        let polled = ready!(Pin::new(&mut this.body).poll_frame(context));
        // What happens to its connection later does not matter.
        this.is_over = this.body.is_end_stream();
        Poll::Ready(match polled {
            Some(Ok(frame)) => Some(Ok(frame)),
            Some(Err(error)) => Some(this.fail(error.into())),
            None if this.is_over => None,
            // hyper ends a body when its stream is reset, or its connection is lost, with NO_ERROR.
            None => Some(this.fail(Cut.into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        !self.ends_apart && (self.is_over || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        if self.ends_apart { SizeHint::default() } else { self.body.size_hint() }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use http_body_util::Empty;

    use super::*;

    /// A body that ends as one of hyper does whose stream was reset with NO_ERROR.
    struct Reset;

    impl Body for Reset {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(None)
        }
    }

    fn polled<B>(body: &mut Passing<B>) -> Option<Result<Frame<Bytes>, BoxError>>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    {
        match Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(polled) => polled,
            Poll::Pending => panic!("it is there"),
        }
    }

    #[test]
    fn a_body_that_is_cut_fails_once() {
        assert!(polled(&mut Passing::request(Empty::new(), true)).is_none());
        let mut cut = Passing::request(Reset, false);
        assert!(polled(&mut cut).is_some_and(|frame| frame.is_err()));
        assert!(polled(&mut cut).is_none());
    }

    #[test]
    fn a_response_of_grpc_that_is_cut_ends_with_a_status() {
        for is_grpc in [true, false] {
            let counts = Arc::<Counts>::default();
            let places = Arc::new(tokio::sync::Semaphore::new(1));
            let _place = places.try_acquire_owned().unwrap();
            let response = Responding { is_grpc, counts: Arc::clone(&counts), _place };
            let mut cut = Passing::response(Reset, response);
            match polled(&mut cut).unwrap() {
                Ok(frame) => assert_eq!(frame.into_trailers().unwrap()["grpc-status"], "13"),
                Err(error) => assert!(!is_grpc && error.is::<Cut>(), "{error}"),
            }
            assert!(polled(&mut cut).is_none() && cut.is_end_stream());
            assert_eq!(counts.failed.load(std::sync::atomic::Ordering::Relaxed), 1);
        }
    }
}
