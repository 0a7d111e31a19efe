//! gimmal in, HTTP/2 out.

use std::{
    convert::Infallible,
    error::Error,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use gimmal::{Code, Config, tokio::Tokio};
use gimmal_http::{Body, Serve};
use gimmal_transport::{Instant, Tls};
use http::{
    Request, Response, StatusCode, Uri, header,
    uri::{Authority, Scheme},
};
use http_body_util::Either;
use hyper::{
    body::Incoming,
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{Mutex, Semaphore},
    time::timeout,
};

use super::{
    failed::{Passed, did_not_run, failed, full, is_grpc, unanswered},
    options::{Counts, Edge, Http, REQUESTS_MAX},
    passing::{BoxError, Passing, Responding},
    secure,
};
use crate::{say::say, signals::asked_to_end};

/// How long a server may take to accept.
const DIAL: Duration = Duration::from_secs(10);

/// A server that says nothing for so long is asked by its kernel, then so often.
const KEEP_IDLE: Duration = Duration::from_secs(10);
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
const KEEP_COUNT: u32 = 8;
/// A connection is given up after so long without an acknowledgement of what was sent.
const USER_TIMEOUT_MS: u32 = 20_000;

/// What a server may send ahead of the reader of one response.
const DOWNLOAD_WINDOW: u32 = 256 << 10;

/// All that HTTP/2 has: no response that is not read stops the others, or ends their connection, as h2 does by half of this when
/// unread frames are many and small.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Serves until a signal, then lets requests end.
pub(super) async fn run(edge: &Edge, to: Http<'_>, counts: &Arc<Counts>) -> Result<bool, Box<dyn Error>> {
    let authority: Authority = to.at.parse()?;
    let tls = edge.tls(to, &edge.listen)?;
    if let Some(tls) = &tls {
        secure::check_client(tls, authority.host())?;
    }
    let requests = Arc::new(Semaphore::new(edge.requests_max));
    let out = Out { to: authority, tls, line: Arc::default(), requests, counts: Arc::clone(counts) };
    // Above the limit of requests, which answers in the words of their protocol.
    let config = Config { serving_max: REQUESTS_MAX, tasks_max: 4 * REQUESTS_MAX, ..Config::default() };
    let service = Serve::new(out);
    let builder =
        edge.credentials.server(&[&edge.listen, &edge.to])?.config(config).runtime(Tokio::current()?);
    let server = builder.service(service).listen(&edge.listen)?;
    say(&format!("{} -> {}", server.address(), edge.to));
    let is_asked = AtomicBool::new(false);
    let asked = async {
        asked_to_end().await;
        is_asked.store(true, Ordering::Relaxed);
    };
    let drained = server.serve_until(asked, edge.drain()).await;
    if !is_asked.into_inner() {
        return Err(format!("no longer listening at {}; the log says why", edge.listen).into());
    }
    Ok(drained)
}

type Sender = SendRequest<Passing<Body>>;

/// A connection of HTTP/2 over `stream`.
async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Sender, hyper::Error> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(DOWNLOAD_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    drop(tokio::spawn(connection));
    Ok(sender)
}

/// Sets a connected socket up, as gimmal's own are: the kernel finds a host that is gone. Pings of HTTP/2 would too, but servers of
/// gRPC end connections that ask often.
fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_COUNT)?;
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
    Ok(())
}

/// The connection of HTTP/2.
#[derive(Default)]
struct Line {
    sender: Option<Sender>,
    /// When it was dialled last without success, and why that failed.
    failed: Option<(Instant, String)>,
}

/// Why a request has no response.
struct Failed {
    status: StatusCode,
    code: Code,
    why: String,
}

impl Failed {
    /// It was not sent.
    const fn unsent(why: String) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, code: Code::Unavailable, why }
    }

    /// It was sent.
    fn of(error: &hyper::Error) -> Self {
        let why = error.to_string();
        if did_not_run(error) {
            return Self::unsent(why);
        }
        Self { status: StatusCode::BAD_GATEWAY, code: unanswered(error), why }
    }
}

/// Requests over one connection of HTTP/2, which is made when it is needed.
#[derive(Clone)]
struct Out {
    to: Authority,
    /// `None`: in clear text.
    tls: Option<Tls>,
    line: Arc<Mutex<Line>>,
    requests: Arc<Semaphore>,
    counts: Arc<Counts>,
}

impl Out {
    async fn dial(&self) -> Result<Sender, BoxError> {
        let late = |_| format!("{} did not accept a connection within {DIAL:?}", self.to);
        let stream = timeout(DIAL, TcpStream::connect(self.to.as_str())).await.map_err(late)??;
        tune(&stream)?;
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
        Ok(sender)
    }

    /// Returns a connection that takes requests. One request dials, and the others wait for its result.
    async fn connected(&self) -> Result<Sender, Failed> {
        let began = Instant::now();
        let mut line = self.line.lock().await;
        if let Some(sender) = line.sender.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        if let Some((_, why)) = line.failed.as_ref().filter(|(at, _)| *at > began) {
            return Err(Failed::unsent(why.clone()));
        }
        match self.dial().await {
            Ok(sender) => Ok(line.sender.insert(sender).clone()),
            Err(error) => {
                let why = error.to_string();
                line.failed = Some((Instant::now(), why.clone()));
                Err(Failed::unsent(why))
            }
        }
    }

    /// Names the server in the request's target alone: what the caller called it, or where it is.
    fn address(&self, request: Request<Body>) -> Result<Request<Passing<Body>>, Failed> {
        let (mut parts, body) = request.into_parts();
        let host = parts.headers.remove(header::HOST);
        let mut uri = parts.uri.into_parts();
        uri.scheme = Some(if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        if uri.authority.is_none() {
            let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
            uri.authority = Some(host.unwrap_or_else(|| self.to.clone()));
        }
        parts.uri = Uri::from_parts(uri).map_err(|error| Failed {
            status: StatusCode::BAD_REQUEST,
            code: Code::Internal,
            why: error.to_string(),
        })?;
        let ends_apart = is_grpc(&parts.headers);
        Ok(Request::from_parts(parts, Passing::request(body, ends_apart)))
    }

    async fn pass(&self, request: Request<Body>) -> Result<Response<Incoming>, Failed> {
        let mut request = self.address(request)?;
        let mut is_again = false;
        loop {
            let mut error = match self.connected().await?.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            // It did not leave: its connection goes away, which hyper sees no earlier.
            match error.take_message() {
                Some(unsent) if !is_again => request = unsent,
                Some(_) => return Err(Failed::unsent(error.into_error().to_string())),
                None => return Err(Failed::of(&error.into_error())),
            }
            is_again = true;
        }
    }

    async fn respond(self, request: Request<Body>) -> Response<Passed<Passing<Incoming>>> {
        let is_grpc = is_grpc(request.headers());
        let Ok(_place) = Arc::clone(&self.requests).try_acquire_owned() else {
            Counts::add(&self.counts.refused);
            return full(is_grpc);
        };
        Counts::add(&self.counts.requests);
        match self.pass(request).await {
            Ok(response) => {
                let is_grpc = self::is_grpc(response.headers());
                let responding = Responding { is_grpc, counts: self.counts, _place };
                response.map(|body| Either::Left(Passing::response(body, responding)))
            }
            Err(Failed { status, code, why }) => {
                Counts::add(&self.counts.failed);
                failed(is_grpc, status, code, &why)
            }
        }
    }
}

impl tower_service::Service<Request<Body>> for Out {
    type Response = Response<Passed<Passing<Incoming>>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let out = self.clone();
        Box::pin(async move { Ok(out.respond(request).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_watches_the_server() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        tune(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap() && stream.nodelay().unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEP_IDLE);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), KEEP_INTERVAL);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), KEEP_COUNT);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), USER_TIMEOUT_MS);
    }
}
