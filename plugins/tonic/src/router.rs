//! Services by the first part of a request's path.

use std::{
    any::Any,
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    future::{Future, pending, poll_fn, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response};
use tonic::{Status, body::Body, server::NamedService};
use tower_service::Service;

/// A service that answers calls of gRPC: what tonic generates, such a server in layers, tonic's routes, a router of axum.
/// It is implemented for each of them, and its method is not for users.
pub trait Answers: Send + Sync + 'static {
    /// Answers one call. What the service returns as an error is an answer too.
    #[doc(hidden)]
    fn answer(&self, request: Request<Body>) -> Answer;
}

/// An answer that is being made.
pub type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<S, R> Answers for S
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    fn answer(&self, request: Request<Body>) -> Answer {
        let mut service = self.clone();
        // Most services are always ready.
        match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => boxed(service.call(request)),
            Poll::Ready(Err(error)) => Box::pin(ready(whole::<R, _>(Err(error)))),
            Poll::Pending => Box::pin(async move {
                match poll_fn(|context| service.poll_ready(context).map_err(Into::into)).await {
                    Ok(()) => whole(service.call(request).await),
                    Err(error) => whole::<R, BoxError>(Err(error)),
                }
            }),
        }
    }
}

/// What a service made of a call: its error is an answer too.
fn whole<R, E>(answered: Result<Response<R>, E>) -> Result<Response<Body>, Infallible>
where
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Into<BoxError>,
{
    Ok(match answered {
        Ok(response) => response.map(Body::new),
        Err(error) => Status::from_error(error.into()).into_http(),
    })
}

/// Boxes a future, unless it is an [`Answer`] already: that of a generated server is.
fn boxed<F, R, E>(future: F) -> Answer
where
    F: Future<Output = Result<Response<R>, E>> + Send + 'static,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Into<BoxError>,
{
    let mut future = Some(future);
    let answer = (&mut future as &mut dyn Any).downcast_mut::<Option<Answer>>().and_then(Option::take);
    let other = |future: F| -> Answer { Box::pin(async move { whole(future.await) }) };
    answer.or_else(|| future.map(other)).unwrap_or_else(|| Box::pin(pending()))
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Generated servers, found by their names. Calls of other services are answered with `UNIMPLEMENTED`.
#[derive(Clone, Default)]
pub struct Routes {
    services: Arc<BTreeMap<&'static str, Arc<dyn Answers>>>,
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.services.keys()).finish()
    }
}

impl Routes {
    /// Adds a generated server, in place of another one of its name.
    #[must_use]
    pub fn add_service<S: Answers + NamedService>(mut self, service: S) -> Self {
        let mut services = BTreeMap::clone(&self.services);
        services.insert(S::NAME, Arc::new(service));
        self.services = Arc::new(services);
        self
    }
}

impl Service<Request<Body>> for Routes {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let name = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        match name.and_then(|(name, _)| self.services.get(name)) {
            Some(service) => service.answer(request),
            None => {
                let unknown = Status::unimplemented(format!("no service of {}", request.uri().path()));
                Box::pin(ready(Ok(unknown.into_http())))
            }
        }
    }
}
