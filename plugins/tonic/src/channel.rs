//! The channel of generated clients.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use gimmal::{ClientBuilder, Config, ConnectError};
use gimmal_http::{Carrier, Client, Spawn, Timeout, Upload};
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use tonic::{Status, body::Body};
use tower_service::Service;

use crate::status::status_of;

/// Calls in flight at once on a channel's connection; a stream is one for as long as it lasts. More wait.
const WINDOW: usize = 256;

/// Calls that may wait for a place of the window. Each costs a copy of its message.
const WAITING_MAX: usize = 1 << 16;

/// Calls that all channels may begin before their worker looks: 3.5 MiB.
const INBOX: usize = 1 << 14;

/// How channels are connected.
fn builder() -> ClientBuilder {
    let mut config = Config { window: WINDOW, waiting_max: WAITING_MAX, ..Config::default() };
    config.engine.inbox = INBOX;
    gimmal::Client::builder().config(config).share_workers()
}

/// A connection for generated clients, for any number of tasks. Cheap to clone.
///
/// A worker thread connects again when the connection ended or its server goes away; the channels of a process that [`connect`] made
/// share it. A call waits up to a second for a connection when there is none. Calls are made in a runtime of tokio. 256 are in
/// flight at once, and up to 65,536 more wait, where [`Channel::new`] was not given other limits.
#[derive(Clone, Debug)]
pub struct Channel<C = gimmal::Client> {
    client: Client<C>,
    timeout: Option<Duration>,
}

/// A channel that is moved by a task of the calling thread's runtime: the lowest latency. It is not `Send`.
pub type LocalChannel = Channel<gimmal::tokio::LocalClient>;

/// Connects to a server: `shm://name`, `rdma://host:port`, `tcp://host:port`, `tcp+tls://host:port`, `mem://name`, or
/// `gimmal://host:port` by the best way there is. Does not block: a thread looks the name up and connects.
///
/// Cancel safe: when the future is dropped, the attempt ends within its time-outs, and the connection that it may make is closed.
///
/// # Errors
/// A variant of [`ConnectError`] for each cause: a malformed URL, no server, a refusal, no thread.
pub async fn connect(url: &str) -> Result<Channel, ConnectError> {
    let client = builder().connect_async(url).await?;
    Ok(Channel::new(Client::new(client)))
}

/// Makes a channel that is connected later: returns at once, and a server is dialled again and again until one answers. Calls wait
/// up to a second for the connection.
///
/// # Errors
/// A malformed URL, and no thread for the worker. A missing server is no error.
pub fn connect_lazy(url: &str) -> Result<Channel, ConnectError> {
    let client = builder().connect_lazy(url)?;
    Ok(Channel::new(Client::new(client)))
}

impl<C: Carrier> Channel<C> {
    /// Makes a channel of a client of HTTP, for other settings and other kinds of clients.
    #[must_use]
    pub const fn new(client: Client<C>) -> Self {
        Self { client, timeout: None }
    }

    /// Ends every call after `timeout` that does not end earlier by its own `grpc-timeout`, streams included. Default: no limit.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<C: Carrier + Spawn<Upload<Body>>> Service<Request<Body>> for Channel<C> {
    type Response = Response<ResponseBody>;
    type Error = Status;
    type Future = Responding<C>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Service::<Request<Body>>::poll_ready(&mut self.client, context).map_err(status_of)
    }

    fn call(&mut self, mut request: Request<Body>) -> Responding<C> {
        let said = Timeout::of_grpc(request.headers()).map(|Timeout(said)| said);
        let timeout = match (said, self.timeout) {
            (Some(said), Some(most)) => Some(said.min(most)),
            (said, most) => said.or(most),
        };
        if let Some(timeout) = timeout {
            request.extensions_mut().insert(Timeout(timeout));
        }
        Responding(self.client.call(request))
    }
}

/// A call whose response has not begun: a future that ends with its head. Dropping it cancels the call.
#[derive(Debug)]
#[must_use = "a call is made when this is polled"]
pub struct Responding<C: Carrier>(gimmal_http::Responding<C, Body>);

impl<C: Carrier + Spawn<Upload<Body>>> Future for Responding<C> {
    type Output = Result<Response<ResponseBody>, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.0).poll(context);
        polled.map(|response| response.map(|response| response.map(ResponseBody)).map_err(status_of))
    }
}

/// The body of a response. Dropping it before its end cancels the call.
#[derive(Debug, Default)]
pub struct ResponseBody(gimmal_http::Body);

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.0).poll_frame(context).map_err(status_of)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
