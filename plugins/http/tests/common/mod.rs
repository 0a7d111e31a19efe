//! A server with one function as its service, and a client of it.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use gimmal_http::{Body, Carrier, Client, Error, Serve, Spawn, Upload};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::mpsc;
use tower_service::Service;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// No case waits longer.
pub(crate) async fn on_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it ends in time")
}

pub(crate) fn as_box(error: Error) -> BoxError {
    error.into()
}

/// A function as a service of requests.
#[derive(Clone)]
pub(crate) struct Function<F>(F);

impl<F, T> Service<Request<Body>> for Function<F>
where
    F: FnMut(Request<Body>) -> T,
    T: Future + Send + 'static,
{
    type Response = T::Output;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<T::Output, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = (self.0)(request);
        Box::pin(async move { Ok(answer.await) })
    }
}

/// One request of a client.
pub(crate) trait Requests<B> {
    fn send(&self, request: Request<B>) -> impl Future<Output = Result<Response<Body>, Error>>;
}

impl<C, B> Requests<B> for Client<C>
where
    C: Carrier + Spawn<Upload<B>>,
    B: http_body::Body<Error: Into<BoxError>> + Unpin,
{
    fn send(&self, request: Request<B>) -> impl Future<Output = Result<Response<Body>, Error>> {
        self.clone().call(request)
    }
}

pub(crate) struct Fixture {
    pub(crate) url: String,
    pub(crate) client: Client<gimmal::Client>,
    server: Option<gimmal::Server>,
}

impl Fixture {
    pub(crate) fn serve<F, T, R>(function: F) -> Self
    where
        F: FnMut(Request<Body>) -> T + Clone + Send + Sync + 'static,
        T: Future<Output = Response<R>> + Send + 'static,
        R: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        Self::with(|service| service, function)
    }

    pub(crate) fn with<F, T, R>(
        limits: impl FnOnce(Serve<Function<F>>) -> Serve<Function<F>>,
        function: F,
    ) -> Self
    where
        F: FnMut(Request<Body>) -> T + Clone + Send + Sync + 'static,
        T: Future<Output = Response<R>> + Send + 'static,
        R: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let url = format!("shm://http-exchange-{}-{number}", std::process::id());
        let server = Some(listen(&url, limits(Serve::new(Function(function)))));
        let client =
            Client::new(gimmal::Client::builder().config(config()).share_workers().connect(&url).unwrap());
        Self { url, client, server }
    }

    pub(crate) async fn send<B>(&self, request: Request<B>) -> Result<Response<Body>, Error>
    where
        B: http_body::Body<Error: Into<BoxError>> + Unpin + Send + 'static,
        B::Data: Send,
    {
        Requests::send(&self.client, request).await
    }

    pub(crate) fn stop(&mut self) {
        let server = self.server.take().unwrap();
        assert!(server.shutdown(Duration::from_secs(30)));
    }

    pub(crate) fn start<F, T, R>(&mut self, function: F)
    where
        F: FnMut(Request<Body>) -> T + Clone + Send + Sync + 'static,
        T: Future<Output = Response<R>> + Send + 'static,
        R: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        self.server = Some(listen(&self.url, Serve::new(Function(function))));
    }
}

fn listen(url: &str, service: impl gimmal::Service) -> gimmal::Server {
    let runtime = gimmal::tokio::Tokio::current().unwrap();
    gimmal::Server::builder().config(config()).runtime(runtime).service(service).listen(url).unwrap()
}

/// The default, but for connecting, of which a machine with other things to do makes a long one.
pub(crate) fn config() -> gimmal::Config {
    let mut config = gimmal::Config::default();
    let engine = &mut config.engine;
    (engine.connect, engine.listen) = (gimmal_testkit::patient_connect(), gimmal_testkit::patient_listen());
    config
}

/// All of `body` as one piece, when it is there.
pub(crate) fn full(body: Body) -> impl http_body::Body<Data = Bytes, Error = BoxError> + Send {
    let whole = Box::pin(async move {
        let data = body.collect().await.map_err(as_box)?.to_bytes();
        Ok::<_, BoxError>(Frame::data(data))
    });
    StreamBody::new(Once(Some(whole)))
}

type Whole = Pin<Box<dyn Future<Output = Result<Frame<Bytes>, BoxError>> + Send>>;

struct Once(Option<Whole>);

impl futures_core::Stream for Once {
    type Item = Result<Frame<Bytes>, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(future) = &mut self.0 else { return Poll::Ready(None) };
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            self.0 = None;
        }
        polled.map(Some)
    }
}

pub(crate) type Frames = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

/// A body that is what its sender sends.
pub(crate) fn channel_body() -> (Frames, StreamBody<Receiving>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, StreamBody::new(Receiving(receiver)))
}

pub(crate) struct Receiving(mpsc::UnboundedReceiver<Result<Frame<Bytes>, BoxError>>);

impl futures_core::Stream for Receiving {
    type Item = Result<Frame<Bytes>, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// A body that always has more, and holds a handler's guard.
pub(crate) struct Endless(pub(crate) Guard);

impl futures_core::Stream for Endless {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.0.given.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[7; 40_000])))))
    }
}

/// How many handlers began, and were dropped.
#[derive(Clone, Default)]
pub(crate) struct Log {
    began: Arc<AtomicU32>,
    left: Arc<AtomicU32>,
    /// Pieces that its endless bodies gave.
    pub(crate) given: Arc<AtomicU32>,
    pub(crate) aborted: Arc<AtomicU32>,
}

pub(crate) struct Guard(Log);

impl Log {
    pub(crate) fn enter(&self) -> Guard {
        self.began.fetch_add(1, Ordering::SeqCst);
        Guard(self.clone())
    }

    /// Waits until so many have begun.
    pub(crate) async fn begun(&self, handlers: u32) {
        reaches(&self.began, handlers).await;
    }

    /// Waits until so many are gone.
    pub(crate) async fn left(&self, handlers: u32) {
        reaches(&self.left, handlers).await;
    }
}

async fn reaches(count: &AtomicU32, handlers: u32) {
    on_time(async {
        while count.load(Ordering::SeqCst) < handlers {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.left.fetch_add(1, Ordering::SeqCst);
    }
}
