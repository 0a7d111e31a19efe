//! Services by the first part of a request's path.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
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
        Box::pin(async move {
            let answered = async {
                poll_fn(|context| service.poll_ready(context)).await?;
                service.call(request).await
            };
            Ok(match answered.await {
                Ok(response) => response.map(Body::new),
                Err(error) => Status::from_error(error.into()).into_http(),
            })
        })
    }
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
                Box::pin(std::future::ready(Ok(unknown.into_http())))
            }
        }
    }
}
