//! The server, by the names of tonic's own.

use std::{
    any::Any,
    convert::Infallible,
    fmt,
    future::{Future, pending},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use gimmal::{Config, ServeError, ServerBuilder, error::StartError, tokio::Tokio};
use gimmal_http::Serve;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use tonic::{Status, body::Body, server::NamedService};
use tower_layer::{Identity, Layer, Stack};
use tower_service::Service;

use crate::{
    router::{Answer, Answers, Routes},
    status::status_of,
};

/// Handlers that may be pending on a worker, of all connections together; 16 bytes each.
const TASKS_MAX: usize = 1 << 16;

/// How a server is made of generated services: the names are those of `tonic::transport::Server`.
#[derive(Clone, Debug)]
pub struct Server<L = Identity> {
    layer: L,
    settings: Settings,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    timeout: Option<Duration>,
    calls_max: usize,
    drain: Duration,
}

impl Server {
    /// Returns a server without services, with the default limits.
    #[must_use]
    pub const fn builder() -> Self {
        let settings = Settings { timeout: None, calls_max: 1024, drain: Duration::from_secs(30) };
        Self { layer: Identity::new(), settings }
    }
}

impl<L> Server<L> {
    /// Ends a call whose response has not begun after `timeout`, with `DEADLINE_EXCEEDED`. The caller's own `grpc-timeout` ends it
    /// earlier, and ends streams too.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }

    /// Refuses calls above `calls` in flight on a connection with `RESOURCE_EXHAUSTED`, before they run; 1 to 4096. Default 1024.
    #[must_use]
    pub const fn concurrency_limit_per_connection(mut self, calls: usize) -> Self {
        self.settings.calls_max = calls;
        self
    }

    /// Waits so long for calls in flight when the server shuts down. Default 30 s.
    #[must_use]
    pub const fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.settings.drain = timeout;
        self
    }

    /// Puts a layer of `tower` around all services.
    #[must_use]
    pub fn layer<N>(self, layer: N) -> Server<Stack<N, L>> {
        Server { layer: Stack::new(layer, self.layer), settings: self.settings }
    }

    /// Adds a generated server.
    #[must_use]
    pub fn add_service<S: Answers + NamedService>(self, service: S) -> Router<L> {
        self.add_routes(Routes::default().add_service(service))
    }

    /// Serves `routes`: a [`Routes`], or any other service, such as `tonic::service::Routes` or a router of axum.
    #[must_use]
    pub fn add_routes<S>(self, routes: S) -> Router<L, S> {
        Router { server: self, routes }
    }
}

/// A server with its services.
#[derive(Clone, Debug)]
pub struct Router<L = Identity, S = Routes> {
    server: Server<L>,
    routes: S,
}

impl<L> Router<L> {
    /// Adds another generated server.
    #[must_use]
    pub fn add_service<S: Answers + NamedService>(mut self, service: S) -> Self {
        self.routes = self.routes.add_service(service);
        self
    }

    /// Adds another generated server, if there is one.
    #[must_use]
    pub fn add_optional_service<S: Answers + NamedService>(self, service: Option<S>) -> Self {
        match service {
            Some(service) => self.add_service(service),
            None => self,
        }
    }
}

impl<L: Layer<S, Service: Answers>, S> Router<L, S> {
    /// Makes a service of gimmal, for [`ServerBuilder::service`], beside others of it.
    pub fn into_service(self) -> impl gimmal::Service {
        let Self { server: Server { layer, settings }, routes } = self;
        Serve::new(Answering { service: Answerer::of(layer.layer(routes)), timeout: settings.timeout })
    }

    /// Listens with the configuration of `builder`, on worker threads; handlers use the calling task's runtime. Dropping the server
    /// stops it. Blocks while a name is looked up.
    ///
    /// # Errors
    /// A variant of [`ServeError`] for each cause: a malformed URL, a setting outside its limits, an address that is in use, no
    /// thread.
    pub fn listen_with(self, builder: ServerBuilder, url: &str) -> Result<gimmal::Server, ServeError> {
        let runtime = Tokio::current().map_err(|error| StartError::Thread(error.to_string()))?;
        builder.runtime(runtime).service(self.into_service()).listen(url)
    }

    /// Listens on `shm://name`, `rdma://host:port`, `tcp://host:port`, `tcp+tls://host:port` or `mem://name`, and on
    /// `gimmal://host:port` in every way that this host has. Dropping the server stops it. Blocks while a name is looked up.
    ///
    /// # Errors
    /// A variant of [`ServeError`] for each cause: a malformed URL, an address that is in use, no certificate, no thread, no
    /// runtime of tokio around the call.
    pub fn listen(self, url: &str) -> Result<gimmal::Server, ServeError> {
        let serving_max = self.server.settings.calls_max;
        let config = Config { serving_max, tasks_max: TASKS_MAX, ..Config::default() };
        self.listen_with(gimmal::Server::builder().config(config), url)
    }

    /// Serves on `url` until the runtime ends, or the server does not listen at any address any more.
    ///
    /// Not cancel safe: dropping the future drops the server, whose connections end.
    ///
    /// # Errors
    /// What kept the server from listening, at once: a malformed URL, an address that is in use, no thread.
    pub async fn serve(self, url: &str) -> Result<(), ServeError> {
        self.serve_with_shutdown(url, pending::<()>()).await
    }

    /// Serves until `signal` is ready. Then new calls are refused, not run, and clients go elsewhere; calls in flight end.
    ///
    /// Not cancel safe: dropping the future drops the server, whose connections end.
    ///
    /// # Errors
    /// What kept the server from listening, at once: a malformed URL, an address that is in use, no thread.
    pub async fn serve_with_shutdown(self, url: &str, signal: impl Future) -> Result<(), ServeError> {
        let drain = self.server.settings.drain;
        self.listen(url)?.serve_until(signal, drain).await;
        Ok(())
    }
}

/// What answers.
#[derive(Clone)]
enum Answerer {
    /// Without a layer: a call is boxed once, by the routes.
    Routes(Routes),
    Other(Arc<dyn Answers>),
}

impl Answerer {
    fn of<S: Answers>(service: S) -> Self {
        let routes = (&service as &dyn Any).downcast_ref::<Routes>().cloned();
        routes.map_or_else(|| Self::Other(Arc::new(service)), Self::Routes)
    }

    fn answer(&mut self, request: Request<Body>) -> Answer {
        match self {
            Self::Routes(routes) => routes.call(request),
            Self::Other(service) => service.answer(request),
        }
    }
}

/// The services in their layers, for [`Serve`].
#[derive(Clone)]
struct Answering {
    service: Answerer,
    timeout: Option<Duration>,
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answering")
    }
}

impl Service<Request<gimmal_http::Body>> for Answering {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Each call asks for itself.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<gimmal_http::Body>) -> Answer {
        #[cfg(feature = "connect-info")]
        let request = crate::connect_info::with_address(request);
        let answer = self.service.answer(request.map(|body| Body::new(body.map_err(cut))));
        let Some(timeout) = self.timeout else { return answer };
        Box::pin(async move {
            let late = |_| Ok(Status::deadline_exceeded("the server's time-out").into_http());
            tokio::time::timeout(timeout, answer).await.unwrap_or_else(late)
        })
    }
}

/// What tonic is told of a request's body that was cut.
fn cut(error: gimmal_http::Error) -> Status {
    match error {
        // tonic reads CANCELLED as the good end of a request.
        gimmal_http::Error::Aborted(_) => Status::unknown(error.to_string()),
        error => status_of(error),
    }
}
