//! How requests and bodies end at `gimmal edge` that something cuts, stops or refuses.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use common::{Running, complaint, frames::Frames};
use gimmal_http::{Body, Client};
use h2::{Ping, Reason, server::SendResponse};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Either, Empty, Full};
use hyper::{client::conn::http2 as client, server::conn::http2 as server, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc},
};
use tower_service::Service;

type Native = Client<gimmal::Client>;

fn edge(listen: &str, to: &str, more: &[&str]) -> Running {
    Running::start(&[&["edge", "--listen", listen, "--to", to, "--json", "--drain-s", "5"], more].concat())
}

fn url(name: &str) -> String {
    format!("shm://edge-ends-{name}-{}", std::process::id())
}

/// An edge before a server of HTTP/2, and a native client of it.
async fn leave(name: &str, to: SocketAddr, more: &[&str]) -> (Running, Native) {
    let edge = edge(&url(name), &format!("http://{to}"), more);
    let client = native(&edge).await;
    (edge, client)
}

async fn native(edge: &Running) -> Native {
    let builder =
        gimmal::Client::builder().config(gimmal::Config { window: 256, ..gimmal::Config::default() });
    Client::new(builder.connect_async(&edge.at).await.unwrap())
}

/// Awaits a future that ends in time on any machine.
async fn on_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(120), future).await.expect("it ends in time")
}

fn request(path: &str, content: &str) -> Request<Empty<Bytes>> {
    Request::post(format!("http://example.org{path}"))
        .header("content-type", content)
        .body(Empty::new())
        .unwrap()
}

const GRPC: &str = "application/grpc";

/// Serves every connection that is made to an address.
async fn listen<F, S>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> S + Send + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// A server that gives up its responses, after their beginning, for the reason in the path, when it is told to.
async fn giving_up(gate: Arc<Notify>) -> SocketAddr {
    listen(move |stream| {
        let gate = Arc::clone(&gate);
        async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let gate = Arc::clone(&gate);
                tokio::spawn(async move {
                    let reason: u32 = request.uri().path()[1..].parse().unwrap();
                    let head = Response::builder().header("content-type", &request.headers()["content-type"]);
                    let mut body = respond.send_response(head.body(()).unwrap(), false).unwrap();
                    body.send_data(Bytes::from_static(b"part"), false).unwrap();
                    gate.notified().await;
                    body.send_reset(reason.into());
                });
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_a_server_gives_up_has_no_good_end() {
    let gate = Arc::new(Notify::new());
    let (leave, mut client) = leave("given-up", giving_up(Arc::clone(&gate)).await, &[]).await;
    let reasons = [
        (Reason::NO_ERROR, "13"),
        (Reason::INTERNAL_ERROR, "13"),
        (Reason::REFUSED_STREAM, "14"),
        (Reason::CANCEL, "1"),
        (Reason::ENHANCE_YOUR_CALM, "8"),
    ];
    for (reason, status) in reasons {
        for content in [GRPC, "text/plain"] {
            let path = format!("/{}", u32::from(reason));
            let mut body = on_time(client.call(request(&path, content))).await.unwrap().into_body();
            assert_eq!(on_time(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "part");
            gate.notify_one();
            match on_time(body.frame()).await.unwrap() {
                Ok(frame) => {
                    assert_eq!(
                        (content, &frame.into_trailers().unwrap()["grpc-status"]),
                        (GRPC, &status.parse().unwrap())
                    );
                }
                Err(error) => assert!(
                    content != GRPC && matches!(error, gimmal_http::Error::Aborted(_)),
                    "{reason:?} {content}: {error}"
                ),
            }
        }
    }
    drop(client);
    assert_eq!(leave.stop()["failed"], 10);
}

/// A native service by a closure.
#[derive(Clone)]
struct Answers<F>(F);

impl<F, A, B> Service<Request<Body>> for Answers<F>
where
    F: Fn(Request<Body>) -> A,
    A: Future<Output = Response<B>> + Send + 'static,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = (self.0)(request);
        Box::pin(async move { Ok(answer.await) })
    }
}

/// A native server and an edge before it.
fn enter<F, A, B>(name: &str, answer: F) -> (Running, gimmal::Server)
where
    F: Fn(Request<Body>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let builder = gimmal::Server::builder().runtime(gimmal::tokio::Tokio::current().unwrap());
    let server = builder.service(gimmal_http::Serve::new(Answers(answer))).listen(&url(name)).unwrap();
    (edge("http://127.0.0.1:0", &url(name), &[]), server)
}

/// A connection of HTTP/2 to an edge, frame by frame.
async fn raw(edge: &Running) -> h2::client::SendRequest<Bytes> {
    let stream = TcpStream::connect(edge.at.trim_start_matches("http://")).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_a_client_gives_up_has_no_good_end() {
    let (seen, mut saw) = mpsc::unbounded_channel();
    let (enter, _server) = enter("upload", move |request| {
        let seen = seen.clone();
        async move {
            // In a task of its own: the handler is dropped.
            tokio::spawn(async move {
                let mut body = request.into_body();
                while let Some(frame) = body.frame().await {
                    let is_good = frame.is_ok();
                    seen.send(frame.map(drop).map_err(|error| error.to_string())).unwrap();
                    if !is_good {
                        return;
                    }
                }
                seen.send(Err("a good end".to_owned())).unwrap();
            });
            std::future::pending::<Response<Empty<Bytes>>>().await
        }
    });
    for reason in [Reason::NO_ERROR, Reason::CANCEL] {
        let sender = raw(&enter).await;
        let mut sender = sender.ready().await.unwrap();
        let (_response, mut body) = sender.send_request(request("/", "text/plain").map(drop), false).unwrap();
        body.send_data(Bytes::from_static(b"part"), false).unwrap();
        on_time(saw.recv()).await.unwrap().unwrap();
        body.send_reset(reason);
        let end = on_time(saw.recv()).await.unwrap().unwrap_err();
        assert_ne!(end, "a good end", "{reason:?}");
    }
    enter.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_server_is_gone_is_unavailable() {
    let (enter, server) = enter("gone", |_| async {
        let body = Frames { frames: 1, bytes: 1, is_endless: true, ..Frames::default() };
        Response::builder().header("content-type", GRPC).body(body).unwrap()
    });
    let mut sender = raw(&enter).await.ready().await.unwrap();
    let (response, _) = sender.send_request(request("/", GRPC).map(drop), true).unwrap();
    let mut body = on_time(response).await.unwrap().into_body();
    assert_eq!(on_time(body.data()).await.unwrap().unwrap().len(), 1);
    drop(server);
    assert!(on_time(body.data()).await.is_none());
    assert_eq!(on_time(body.trailers()).await.unwrap().unwrap()["grpc-status"], "14");
    drop((body, sender));
    assert_eq!(enter.stop()["failed"], 1);
}

type Echo = Either<Frames, Full<Bytes>>;

/// Many small frames, a few large ones, or the authority and what the request names as its host.
fn answered<B>(request: &Request<B>, taken: &Arc<AtomicUsize>) -> Response<Echo> {
    let many =
        |frames, bytes| Either::Left(Frames { frames, bytes, taken: Arc::clone(taken), ..Frames::default() });
    let body = match request.uri().path() {
        "/small" => many(100_000, 10),
        "/large" => many(8 << 6, 1 << 14),
        _ => {
            let authority = request.uri().authority().unwrap();
            let host = request.headers().get("host").map_or("none", |host| host.to_str().unwrap());
            Either::Right(Full::new(format!("{authority} {host}").into()))
        }
    };
    Response::new(body)
}

async fn serve(taken: Arc<AtomicUsize>) -> SocketAddr {
    listen(move |stream| {
        let taken = Arc::clone(&taken);
        let service = service_fn(move |request| {
            let response = answered(&request, &taken);
            async move { Ok::<_, Infallible>(response) }
        });
        let served =
            server::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
        async move { drop(served.await) }
    })
    .await
}

/// Asks `ask` until no more frames are taken: those that are on their way fill all there is for them.
async fn until_still<A: Future<Output = ()>>(taken: &AtomicUsize, mut ask: impl FnMut() -> A) {
    on_time(async {
        loop {
            let before = taken.load(Ordering::SeqCst);
            for _ in 0..50 {
                ask().await;
            }
            if before > 0 && taken.load(Ordering::SeqCst) == before {
                return;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_nobody_reads_stop_no_others() {
    let taken = Arc::<AtomicUsize>::default();
    let (leave, mut client) = leave("unread", serve(Arc::clone(&taken)).await, &[]).await;
    let other = native(&leave).await;
    let ask = || {
        let mut other = other.clone();
        async move {
            let response = other.call(request("/", "text/plain")).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            response.into_body().collect().await.unwrap();
        }
    };
    for (path, bytes) in [("/small", 1_000_000), ("/large", 8 << 20)] {
        taken.store(0, Ordering::SeqCst);
        let mut unread = Vec::new();
        for _ in 0..4 {
            unread.push(on_time(client.call(request(path, "text/plain"))).await.unwrap());
        }
        until_still(&taken, ask).await;
        for response in unread {
            let all = on_time(response.into_body().collect()).await.unwrap().to_bytes();
            assert_eq!(all.len(), bytes, "{path}");
        }
    }
    drop((client, other));
    let counts = leave.stop();
    assert_eq!((&counts["failed"], &counts["connections"]), (&0.into(), &1.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_that_nobody_reads_stop_no_others() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let open = Arc::clone(&gate);
    let (enter, _server) = enter("unread-up", move |request: Request<Body>| {
        let gate = Arc::clone(&gate);
        async move {
            if request.uri().path() != "/" {
                let _open = gate.acquire().await;
                let bytes = request.into_body().collect().await.unwrap().to_bytes().len();
                return Response::new(Full::new(Bytes::from(bytes.to_string())));
            }
            Response::new(Full::new(request.into_body().collect().await.unwrap().to_bytes()))
        }
    });
    let stream = TcpStream::connect(enter.at.trim_start_matches("http://")).await.unwrap();
    let (sender, connection) = client::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let taken = Arc::<AtomicUsize>::default();
    let send = |path: &str, body: Echo| {
        let request = Request::post(format!("http://example.org{path}")).body(body).unwrap();
        let mut sender = sender.clone();
        async move {
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            response.into_body().collect().await.unwrap().to_bytes()
        }
    };
    let uploads: Vec<_> = [(100_000, 10), (8 << 6, 1 << 14), (8 << 6, 1 << 14)]
        .map(|(frames, bytes)| {
            let upload = Frames { frames, bytes, taken: Arc::clone(&taken), ..Frames::default() };
            (frames * bytes, tokio::spawn(send("/hold", Either::Left(upload))))
        })
        .into();
    let data = Bytes::from(vec![1; 10_000]);
    until_still(&taken, || async {
        assert_eq!(send("/", Either::Right(Full::new(data.clone()))).await, data);
    })
    .await;
    open.add_permits(3);
    for (bytes, upload) in uploads {
        assert_eq!(on_time(upload).await.unwrap(), bytes.to_string());
    }
    drop(sender);
    assert_eq!(enter.stop()["failed"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_share_a_connection_from_the_first_on() {
    let (leave, client) = leave("first", serve(Arc::default()).await, &[]).await;
    let all: Vec<_> = (0..100)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.call(request("/", "text/plain")).await.unwrap().status() })
        })
        .collect();
    for one in all {
        assert_eq!(on_time(one).await.unwrap(), StatusCode::OK);
    }
    drop(client);
    assert_eq!(leave.stop()["connections"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_called_what_its_caller_calls_it() {
    let address = serve(Arc::default()).await;
    let (leave, mut client) = leave("named", address, &[]).await;
    let at = address.to_string();
    let cases = [
        ("http://example.org/", Some("example.net"), "example.org"),
        ("/", Some("example.net:81"), "example.net:81"),
        ("/", Some("no host"), &at),
        ("/", None, &at),
    ];
    for (target, host, authority) in cases {
        let mut request = Request::get(target);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let response = on_time(client.call(request.body(Empty::<Bytes>::new()).unwrap())).await.unwrap();
        let said = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(said, format!("{authority} none"), "{target} {host:?}");
    }
    drop(client);
    leave.stop();
}

/// A server that answers `/held` never. It says when it has that request, and goes away when it is told to: then it says that its
/// client knows.
async fn going_away(events: mpsc::UnboundedSender<()>, away: Arc<Notify>) -> SocketAddr {
    listen(move |stream| {
        let (events, away) = (events.clone(), Arc::clone(&away));
        async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let mut held: Vec<SendResponse<Bytes>> = Vec::new();
            let mut pings = connection.ping_pong();
            loop {
                tokio::select! {
                    accepted = connection.accept() => match accepted {
                        Some(Ok((request, respond))) if request.uri().path() == "/held" => {
                            held.push(respond);
                            events.send(()).unwrap();
                        }
                        Some(Ok((_, mut respond))) => drop(respond.send_response(Response::new(()), true)),
                        _ => return,
                    },
                    () = away.notified(), if !held.is_empty() && pings.is_some() => {
                        connection.graceful_shutdown();
                        let (mut pings, events) = (pings.take().unwrap(), events.clone());
                        tokio::spawn(async move {
                            // Its answer is behind the news.
                            pings.ping(Ping::opaque()).await.unwrap();
                            events.send(()).unwrap();
                        });
                    }
                }
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_on_while_a_server_goes_away() {
    let (events, mut happened) = mpsc::unbounded_channel();
    let away = Arc::new(Notify::new());
    let address = going_away(events, Arc::clone(&away)).await;
    let (leave, mut client) = leave("away", address, &[]).await;
    let mut other = client.clone();
    let held = tokio::spawn(async move { other.call(request("/held", "text/plain")).await.map(drop) });
    on_time(happened.recv()).await.unwrap();
    away.notify_one();
    on_time(happened.recv()).await.unwrap();
    for _ in 0..10 {
        let response = on_time(client.call(request("/", "text/plain"))).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
    held.abort();
    drop(held.await);
    drop(client);
    let counts = leave.stop();
    assert_eq!((&counts["failed"], &counts["connections"]), (&0.into(), &2.into()));
}

/// A socket with an address, of which nobody listens.
fn nobody() -> (std::os::fd::OwnedFd, SocketAddr) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_sent_may_be_repeated() {
    let (_socket, address) = nobody();
    let (leave, mut client) = leave("nobody", address, &[]).await;
    let response = on_time(client.call(request("/", "text/plain"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let response = on_time(client.call(request("/", GRPC))).await.unwrap();
    assert_eq!(
        (response.status(), &response.headers()["grpc-status"]),
        (StatusCode::OK, &"14".parse().unwrap())
    );
    drop(client);
    assert_eq!(leave.stop()["failed"], 2);
}

/// A host that drops what asks for a connection, as one does that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_nobody_is_given_up() {
    let (socket, address) = nobody();
    rustix::net::listen(&socket, 0).unwrap();
    let mut queue = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
        queue.push(stream);
        assert!(queue.len() < 64, "a queue of connections is short");
    }
    let (leave, client) = leave("full", address, &[]).await;
    // They wait for one attempt, not for one each.
    let all: Vec<_> = (0..30)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.call(request("/", "text/plain")).await.unwrap().status() })
        })
        .collect();
    for one in all {
        assert_eq!(on_time(one).await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
    }
    drop(client);
    leave.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_refuses_requests_above_its_limit_in_their_protocol() {
    let (events, mut happened) = mpsc::unbounded_channel();
    let address = going_away(events, Arc::default()).await;
    let (leave, mut client) = leave("limit", address, &["--requests-max", "1"]).await;
    let mut other = client.clone();
    let held = tokio::spawn(async move { other.call(request("/held", GRPC)).await.map(drop) });
    on_time(happened.recv()).await.unwrap();
    let response = on_time(client.call(request("/", GRPC))).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "8");
    let response = on_time(client.call(request("/", "text/plain"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    held.abort();
    drop(held.await);
    drop(client);
    let counts = leave.stop();
    assert_eq!((&counts["refused"], &counts["requests"]), (&2.into(), &1.into()));
    let above = ["edge", "--listen", "shm://a", "--to", "http://127.0.0.1:1", "--requests-max", "16385"];
    assert!(complaint(&above).contains("16384"));
}
