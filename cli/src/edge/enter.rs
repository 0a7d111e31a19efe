//! HTTP/2 in, gimmal out.

use std::{
    convert::Infallible,
    error::Error,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use gimmal_http::{Body, Client, Timeout};
use gimmal_transport::{Instant, Tls, parts::LogPace};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::Either;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, join, split},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::timeout,
};
use tower_service::Service as _;

use super::{
    failed::{Passed, failed, full, is_grpc, judged},
    options::{Counts, Edge, Http},
    passing::{Passing, Responding},
    secure,
};
use crate::{accept::accepted, credentials::in_options, say::say, signals::asked_to_end};

type Channel = Client<gimmal::Client>;

/// What a connection of HTTP/2 begins with (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a client may send ahead of the reader of one upload.
const UPLOAD_WINDOW: u32 = 256 << 10;

/// More than all uploads of a connection may be ahead, of which hyper takes 200: none that is not read stops the others. h2 ends a
/// connection whose unread frames are many and small, by half of this: few hundred thousand of them, which bounds their memory.
const CONNECTION_WINDOW: u32 = 256 << 20;

/// How long clients may be silent.
#[derive(Clone, Copy)]
struct Patience {
    /// Until the preface is there.
    preface: Duration,
    /// Until a silent client is asked whether it lives.
    ping: Duration,
    /// Until it has said so.
    pong: Duration,
    /// After the stop, until a connection is dropped that has had no request: one may be on its way.
    last: Duration,
}

/// A place among `--connections-max` is back after half a minute at most. gRPC gives a client as long to answer a ping.
const PATIENCE: Patience = Patience {
    preface: Duration::from_secs(10),
    ping: Duration::from_secs(10),
    pong: Duration::from_secs(20),
    last: Duration::from_millis(500),
};

/// Accepts connections until a signal, then lets their requests end.
pub(super) async fn run(edge: &Edge, listen: Http<'_>, counts: &Arc<Counts>) -> Result<bool, Box<dyn Error>> {
    let tls = edge.tls(listen, &edge.to)?;
    if let Some(tls) = &tls {
        secure::check_server(tls)?;
    }
    let builder = edge.credentials.client(&[&edge.listen, &edge.to])?.window(edge.requests_max);
    let client = builder.connect_lazy(&edge.to)?;
    let client = Client::new(client);
    let listener = TcpListener::bind(listen.at).await?;
    say(&format!("{}://{} -> {}", listen.scheme(), listener.local_addr()?, edge.to));
    let (connections, requests) =
        (Arc::new(Semaphore::new(edge.connections_max)), Arc::new(Semaphore::new(edge.requests_max)));
    let (stop, stopped) = watch::channel(());
    let mut serving = JoinSet::new();
    let log = Arc::new(LogPace::default());
    let mut end = std::pin::pin!(asked_to_end());
    loop {
        let accept = async {
            let place = Arc::clone(&connections).acquire_owned().await;
            (place, accepted(|| listener.accept(), &log).await)
        };
        let (place, (stream, peer)) = tokio::select! {
            () = &mut end => break,
            accepted = accept => accepted,
        };
        while serving.try_join_next().is_some() {}
        Counts::add(&counts.connections);
        let one = Serving {
            client: client.clone(),
            requests: Arc::clone(&requests),
            counts: Arc::clone(counts),
            stopped: stopped.clone(),
            patience: PATIENCE,
        };
        let (tls, log) = (tls.clone(), Arc::clone(&log));
        serving.spawn(async move {
            let _place = place;
            let _ = stream.set_nodelay(true);
            match tls {
                None => one.serve(stream).await,
                Some(tls) => one.serve_secure(&tls, stream, peer, &log).await,
            }
        });
    }
    drop((listener, stop));
    let all = async { while serving.join_next().await.is_some() {} };
    Ok(timeout(edge.drain(), all).await.is_ok())
}

/// What a connection and its requests need.
struct Serving {
    client: Channel,
    requests: Arc<Semaphore>,
    counts: Arc<Counts>,
    stopped: watch::Receiver<()>,
    patience: Patience,
}

impl Serving {
    /// Serves one connection under TLS.
    async fn serve_secure(mut self, tls: &Tls, stream: TcpStream, peer: SocketAddr, log: &LogPace) {
        let accepted = tokio::select! {
            accepted = secure::accept(tls, stream) => accepted,
            _ = self.stopped.changed() => return,
        };
        match accepted {
            Ok(stream) => self.serve(stream).await,
            Err(error) => {
                Counts::add(&self.counts.untrusted);
                if let Some(left_out) = log.line(Instant::now()) {
                    let error = in_options(&error.to_string());
                    tracing::warn!(%peer, error, left_out, "not accepted");
                }
            }
        }
    }

    /// Serves one connection until it ends, or until its requests have ended after a stop.
    async fn serve(self, mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { client, requests, counts, mut stopped, patience } = self;
        let mut preface = [0; PREFACE.len()];
        tokio::select! {
            read = timeout(patience.preface, stream.read_exact(&mut preface)) => {
                if !matches!(read, Ok(Ok(_))) || preface != *PREFACE {
                    return;
                }
            }
            // The sender is dropped.
            _ = stopped.changed() => return,
        }
        let (rest, out) = split(stream);
        let stream = TokioIo::new(join(PREFACE.chain(rest), out));
        let was_asked = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&was_asked);
        let service = service_fn(move |request| {
            asked.store(true, Ordering::Relaxed);
            let (client, requests, counts) = (client.clone(), Arc::clone(&requests), Arc::clone(&counts));
            async move { Ok::<_, Infallible>(pass(client, requests, counts, request).await) }
        });
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new());
        builder.initial_stream_window_size(UPLOAD_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        builder.keep_alive_interval(patience.ping).keep_alive_timeout(patience.pong);
        let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
        }
        if timeout(patience.last, connection.as_mut()).await.is_err() && was_asked.load(Ordering::Relaxed) {
            let _ = connection.await;
        }
    }
}

async fn pass(
    mut client: Channel,
    requests: Arc<Semaphore>,
    counts: Arc<Counts>,
    request: Request<Incoming>,
) -> Response<Passed<Passing<Body>>> {
    let is_grpc = is_grpc(request.headers());
    let Ok(_place) = requests.try_acquire_owned() else {
        Counts::add(&counts.refused);
        return full(is_grpc);
    };
    Counts::add(&counts.requests);
    let mut request = request.map(|body| Passing::request(body, false));
    if let Some(timeout) = Timeout::of_grpc(request.headers()) {
        request.extensions_mut().insert(timeout);
    }
    join_cookies(request.headers_mut());
    match client.call(request).await {
        Ok(response) => {
            let is_grpc = self::is_grpc(response.headers());
            let responding = Responding { is_grpc, counts, _place };
            response.map(|body| Either::Left(Passing::response(body, responding)))
        }
        Err(error) => {
            Counts::add(&counts.failed);
            let (status, code) = judged(&error);
            failed(is_grpc, status, code, &error.to_string())
        }
    }
}

/// Makes one field of cookies, which HTTP/2 may split (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(cookies) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, cookies);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const NEVER: Duration = Duration::from_secs(3600);
    const NOBODY: Patience = Patience { preface: NEVER, ping: NEVER, pong: NEVER, last: NEVER };

    /// A connection that ends when it is given up, and what stops it.
    fn serve(patience: Patience) -> (DuplexStream, watch::Sender<()>, impl Future<Output = ()>) {
        let (client, stream) = duplex(1 << 16);
        let (stop, stopped) = watch::channel(());
        let nobody = gimmal::Client::connect_lazy(&format!("shm://nobody-{}", std::process::id())).unwrap();
        let serving = Serving {
            client: Client::new(nobody),
            requests: Arc::new(Semaphore::new(1)),
            counts: Arc::default(),
            stopped,
            patience,
        };
        let ends = async { timeout(Duration::from_secs(60), serving.serve(stream)).await.unwrap() };
        (client, stop, ends)
    }

    #[test]
    fn cookies_are_one_field() {
        let mut headers = HeaderMap::new();
        join_cookies(&mut headers);
        assert!(headers.is_empty());
        for crumb in ["a=1", "b=2; c=3", "d=4"] {
            headers.append(header::COOKIE, HeaderValue::from_static(crumb));
        }
        join_cookies(&mut headers);
        let cookies: Vec<_> = headers.get_all(header::COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3; d=4"]);
    }

    /// The preface of a client, and its settings, which are none.
    async fn greet(client: &mut DuplexStream) {
        client.write_all(PREFACE).await.unwrap();
        client.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    }

    #[tokio::test]
    async fn a_client_without_a_preface_is_given_up() {
        let (_client, _stop, ends) = serve(Patience { preface: SHORT, ..NOBODY });
        ends.await;
        let (mut client, _stop, ends) = serve(NOBODY);
        client.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n").await.unwrap();
        ends.await;
    }

    #[tokio::test]
    async fn a_client_that_answers_no_ping_is_given_up() {
        let (mut client, _stop, ends) = serve(Patience { ping: SHORT, pong: SHORT, ..NOBODY });
        greet(&mut client).await;
        ends.await;
    }

    #[tokio::test]
    async fn a_stop_does_not_wait_for_clients_without_a_request() {
        let (_client, stop, ends) = serve(NOBODY);
        drop(stop);
        ends.await;
        let (mut client, stop, ends) = serve(Patience { last: SHORT, ..NOBODY });
        greet(&mut client).await;
        drop(stop);
        ends.await;
    }
}
