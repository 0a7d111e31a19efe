//! `gimmal edge` both ways round: a client of HTTP/2, an edge, gimmal, another edge, a server of HTTP/2.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    process::Command,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use common::{Running, frames::Frames};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::Incoming, client::conn::http2 as client, server::conn::http2 as server, service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

fn edge(listen: &str, to: &str) -> Running {
    edge_with(listen, to, &["--drain-s", "5"])
}

fn edge_with(listen: &str, to: &str, more: &[&str]) -> Running {
    Running::start(&[&["edge", "--listen", listen, "--to", to, "--json"], more].concat())
}

/// Awaits a future that ends in time on any machine.
async fn on_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it ends in time")
}

/// Sends the body back, with a trailer that has its length, or fails.
async fn echo(
    request: Request<Incoming>,
) -> Result<Response<impl http_body::Body<Data = Bytes, Error = Infallible>>, &'static str> {
    let (parts, body) = request.into_parts();
    if parts.uri.path() == "/a/fail" {
        return Err("it failed");
    }
    let data = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers.insert("x-bytes", data.len().into());
    let response = Response::builder()
        .header("x-path", parts.uri.path())
        .header("x-host", parts.uri.host().unwrap_or_default())
        .header("x-has-length", parts.headers.contains_key("content-length").to_string())
        .body(Full::new(data).with_trailers(ready(Some(Ok(trailers)))));
    Ok(response.unwrap())
}

async fn listen() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let served = server::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service_fn(echo));
            tokio::spawn(served);
        }
    });
    format!("http://{address}")
}

async fn connect<B>(url: &str) -> client::SendRequest<B>
where
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let stream = TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
    let (sender, connection) = client::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn post(path: &str, bytes: usize) -> Request<Full<Bytes>> {
    let body = Full::new(Bytes::from(vec![7; bytes]));
    let request = Request::post(format!("http://example.org{path}"));
    request.header("content-type", "application/grpc").header("te", "trailers").body(body).unwrap()
}

/// A service of gimmal that fails, streams without an end, or answers, as the path says.
#[derive(Clone)]
struct Native;

/// A server of it.
fn serve(name: &str) -> (String, gimmal::Server) {
    let native = format!("shm://edge-{name}-{}", std::process::id());
    let runtime = gimmal::tokio::Tokio::current().unwrap();
    let builder = gimmal::Server::builder().runtime(runtime);
    let server = builder.service(gimmal_http::Serve::new(Native)).listen(&native).unwrap();
    (native, server)
}

impl tower_service::Service<Request<gimmal_http::Body>> for Native {
    type Response = Response<Frames>;
    type Error = &'static str;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<gimmal_http::Body>) -> Self::Future {
        let is_endless = match request.uri().path() {
            "/a/fail" => return ready(Err("it failed")),
            path => path == "/a/stream",
        };
        ready(Ok(Response::new(Frames { frames: 1, bytes: 5, is_endless, ..Frames::default() })))
    }
}

/// Clients of gRPC repeat a call on UNAVAILABLE, which would run this one twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_ran_and_failed_is_not_unavailable() {
    let (native, _server) = serve("fails");
    let enter = edge("http://127.0.0.1:0", &native);
    let mut sender = connect(&enter.at).await;
    let response = on_time(sender.send_request(post("/a/fail", 1))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["grpc-status"], "1");
    let request = Request::get("http://example.org/a/fail").body(Full::default()).unwrap();
    on_time(sender.ready()).await.unwrap();
    assert_eq!(on_time(sender.send_request(request)).await.unwrap().status(), StatusCode::BAD_GATEWAY);
    drop(sender);
    assert_eq!(enter.stop()["failed"], 2);
}

/// Nor is one that a server of HTTP/2 reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_was_reset_is_not_unavailable() {
    let native = format!("shm://edge-reset-{}", std::process::id());
    let leave = edge(&native, &listen().await);
    let enter = edge("http://127.0.0.1:0", &native);
    let mut sender = connect(&enter.at).await;
    let response = on_time(sender.send_request(post("/a/fail", 1))).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "13");
    drop(sender);
    enter.stop();
    assert_eq!(leave.stop()["failed"], 1);
}

/// Clients that are silent, whether they have begun or not, do not keep an edge that is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_do_not_keep_an_edge() {
    let native = format!("shm://edge-silent-{}", std::process::id());
    let enter = edge_with("http://127.0.0.1:0", &native, &["--drain-s", "20"]);
    let silent = || TcpStream::connect(enter.at.trim_start_matches("http://"));
    let _nothing = silent().await.unwrap();
    let mut begun = silent().await.unwrap();
    begun.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    // The settings of the server: it has accepted both.
    on_time(begun.read_exact(&mut [0; 9])).await.unwrap();
    let counts = enter.stop();
    assert_eq!((&counts["connections"], &counts["drained"]), (&2.into(), &true.into()));
}

/// Streams have the places of requests for as long as they last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_count_among_the_requests() {
    let (native, _server) = serve("streams");
    let enter = edge_with("http://127.0.0.1:0", &native, &["--requests-max", "2", "--drain-s", "5"]);
    let mut sender = connect(&enter.at).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        on_time(sender.ready()).await.unwrap();
        let mut stream = on_time(sender.send_request(post("/a/stream", 1))).await.unwrap().into_body();
        assert_eq!(on_time(stream.frame()).await.unwrap().unwrap().into_data().unwrap(), &[7; 5][..]);
        streams.push(stream);
    }
    on_time(sender.ready()).await.unwrap();
    let refused = on_time(sender.send_request(post("/a/b", 1))).await.unwrap();
    assert_eq!(refused.headers()["grpc-status"], "8");
    // There is room again when one of them is gone, for each of many requests.
    drop(streams.pop());
    for _ in 0..8 {
        on_time(async {
            loop {
                sender.ready().await.unwrap();
                let response = sender.send_request(post("/a/b", 1)).await.unwrap();
                if !response.headers().contains_key("grpc-status") {
                    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), &[7; 5][..]);
                    return;
                }
            }
        })
        .await;
    }
    drop((streams, sender));
    assert_eq!(enter.stop()["failed"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_edges_carry_http2_over_gimmal() {
    let native = format!("shm://edge-{}", std::process::id());
    let leave = edge(&native, &listen().await);
    let enter = edge("http://127.0.0.1:0", &native);
    // `systemctl reload` sends it: there is nothing to read again.
    for edge in [&enter, &leave] {
        edge.signal(rustix::process::Signal::HUP);
    }
    let sender = connect(&enter.at).await;
    let all: Vec<_> = (0..64)
        .map(|at| {
            let mut sender = sender.clone();
            tokio::spawn(async move {
                for bytes in [0, 64, 8 << 10, 300_000] {
                    sender.ready().await.unwrap();
                    let response = sender.send_request(post(&format!("/a/{at}"), bytes)).await.unwrap();
                    assert_eq!(response.headers()["x-path"], format!("/a/{at}"));
                    assert_eq!(response.headers()["x-host"], "example.org");
                    let collected = response.into_body().collect().await.unwrap();
                    assert_eq!(collected.trailers().unwrap()["x-bytes"], bytes.to_string());
                    assert_eq!(collected.to_bytes().len(), bytes);
                }
            })
        })
        .collect();
    for task in all {
        tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
    }
    drop(sender);
    let counts = enter.stop();
    assert_eq!(
        (&counts["requests"], &counts["failed"], &counts["drained"]),
        (&256.into(), &0.into(), &true.into())
    );
    assert_eq!(leave.stop()["requests"], 256);
}

/// The end of a request of gRPC is on a frame of data: a length would let the head have it, for which grpc-go waits for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_grpc_without_data_gets_no_length() {
    let native = format!("shm://edge-late-{}", std::process::id());
    let leave = edge(&native, &listen().await);
    let enter = edge("http://127.0.0.1:0", &native);
    let mut sender = connect(&enter.at).await;
    for (content, has_length) in [("application/grpc+proto", "false"), ("text/plain", "true")] {
        let request = Request::post("http://example.org/a/b")
            .header("content-type", content)
            .body(Frames::default())
            .unwrap();
        sender.ready().await.unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.headers()["x-has-length"], has_length, "{content}");
        assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
    }
    drop(sender);
    enter.stop();
    leave.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_edge_says_that_nobody_is_there() {
    let native = format!("shm://edge-nobody-{}", std::process::id());
    let enter = edge("http://127.0.0.1:0", &native);
    let mut sender = connect::<Full<Bytes>>(&enter.at).await;
    let response = sender.send_request(post("/a/b", 1)).await.unwrap();
    assert_eq!(
        (response.status(), response.headers()["grpc-status"].to_str().unwrap()),
        (StatusCode::OK, "14")
    );
    let request = Request::get("http://example.org/").body(Full::default()).unwrap();
    sender.ready().await.unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    drop(sender);
    assert_eq!(enter.stop()["failed"], 2);
    let both = Command::new(env!("CARGO_BIN_EXE_gimmal"))
        .args(["edge", "--listen", "shm://a", "--to", "shm://b"])
        .output()
        .unwrap();
    assert!(
        !both.status.success() && String::from_utf8_lossy(&both.stderr).contains("one of --listen and --to")
    );
}
