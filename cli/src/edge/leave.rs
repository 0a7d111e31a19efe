//! gimmal in, HTTP/2 out.

use std::{
    convert::Infallible,
    error::Error,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use gimmal::{Config, tokio::Tokio};
use gimmal_http::{Body, Serve};
use gimmal_transport::Tls;
use http::{
    Request, Response, StatusCode, Uri,
    uri::{Authority, Scheme},
};
use http_body::{Frame, SizeHint};
use http_body_util::Either;
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::{
    failed::{Passed, failed, is_grpc, unanswered},
    options::{Counts, Edge, Http},
    secure,
};
use crate::signals::asked_to_end;

/// Serves until a signal, then lets requests end.
pub(super) async fn run(edge: &Edge, to: Http<'_>, counts: &Arc<Counts>) -> Result<bool, Box<dyn Error>> {
    let authority: Authority = to.at.parse()?;
    let tls = edge.tls(to, &edge.listen)?;
    if let Some(tls) = &tls {
        secure::check_client(tls, authority.host())?;
    }
    let out = Out { to: authority, tls, sender: Arc::default(), counts: Arc::clone(counts) };
    let config = Config { serving_max: edge.requests_max.clamp(1, 4096), ..Config::default() };
    let service = Serve::new(out).requests_max(edge.requests_max);
    let builder =
        edge.credentials.server(&[&edge.listen, &edge.to])?.config(config).runtime(Tokio::current()?);
    let server = builder.service(service).listen(&edge.listen)?;
    println!("{} -> {}", server.address(), edge.to);
    Ok(server.serve_until(asked_to_end(), edge.drain()).await)
}

type Sender = SendRequest<Asked>;

/// A connection of HTTP/2 over `stream`.
async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Sender, hyper::Error> {
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    drop(tokio::spawn(connection));
    Ok(sender)
}

/// A request's body on its way out.
struct Asked {
    body: Body,
    /// gRPC wants the end of a request on a frame of data, never on its head. Servers rely on that: grpc-go waits for ever for the
    /// end of a stream whose head had it.
    ends_apart: bool,
}

impl http_body::Body for Asked {
    type Data = Bytes;
    type Error = gimmal_http::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        !self.ends_apart && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.ends_apart { SizeHint::default() } else { self.body.size_hint() }
    }
}

/// Requests over one connection of HTTP/2, which is made when it is needed.
#[derive(Clone)]
struct Out {
    to: Authority,
    /// `None`: in clear text.
    tls: Option<Tls>,
    sender: Arc<Mutex<Option<Sender>>>,
    counts: Arc<Counts>,
}

impl Out {
    /// Returns a connection that takes requests.
    async fn connected(&self) -> Result<Sender, Box<dyn Error + Send + Sync>> {
        let lock = || self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = lock().clone().filter(|sender| !sender.is_closed()) {
            return Ok(sender);
        }
        let stream = TcpStream::connect(self.to.as_str()).await?;
        stream.set_nodelay(true)?;
        let sender = match &self.tls {
            None => shake_hands(stream).await?,
            Some(tls) => match secure::connect(tls, self.to.host(), stream).await {
                Ok(stream) => shake_hands(stream).await?,
                Err(error) => {
                    Counts::add(&self.counts.untrusted);
                    return Err(error.into());
                }
            },
        };
        Counts::add(&self.counts.connections);
        Ok(lock().insert(sender).clone())
    }

    async fn pass(&self, request: Request<Body>) -> Result<Response<Incoming>, Box<dyn Error + Send + Sync>> {
        let (mut parts, body) = request.into_parts();
        let mut uri = parts.uri.into_parts();
        uri.scheme = Some(if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        uri.authority.get_or_insert_with(|| self.to.clone());
        parts.uri = Uri::from_parts(uri)?;
        let ends_apart = is_grpc(&parts.headers);
        let mut sender = self.connected().await?;
        sender.ready().await?;
        Ok(sender.send_request(Request::from_parts(parts, Asked { body, ends_apart })).await?)
    }
}

impl tower_service::Service<Request<Body>> for Out {
    type Response = Response<Passed<Incoming>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let out = self.clone();
        Box::pin(async move {
            Counts::add(&out.counts.requests);
            let is_grpc = is_grpc(request.headers());
            Ok(match out.pass(request).await {
                Ok(response) => response.map(Either::Left),
                Err(error) => {
                    Counts::add(&out.counts.failed);
                    failed(is_grpc, StatusCode::BAD_GATEWAY, unanswered(&*error), &error.to_string())
                }
            })
        })
    }
}
