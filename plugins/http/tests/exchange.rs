//! Requests and responses over shared memory: what travels, what ends a call, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use common::{Fixture, Log, Requests as _, channel_body, full, on_time};
use gimmal_http::{Body, Error, Peer, Timeout};
use gimmal_rpc::{Fate, Status, TransportError, engine::transport::CloseReason, response::Failure};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).body(Full::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_whole_request_and_its_response_keep_every_part() {
    let fixture = Fixture::serve(|request: Request<Body>| async move {
        let (parts, body) = request.into_parts();
        let peer = parts.extensions.get::<Peer>().unwrap();
        assert!(peer.credentials().is_some() && peer.address().is_none() && !peer.name().is_empty());
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        *response.headers_mut() = parts.headers;
        response.headers_mut().insert("x-method", parts.method.as_str().parse().unwrap());
        response.headers_mut().insert("x-uri", parts.uri.to_string().parse().unwrap());
        response.map(|()| full(body))
    });
    for uri in ["/a/b?c=d%20e", "https://example.org:8443/a?b", "*", "/"] {
        let method = Method::from_bytes(b"PROPFIND").unwrap();
        let mut request =
            Request::builder().method(method).uri(uri).body(Full::<Bytes>::from("body")).unwrap();
        for (name, value) in [("x-repeat", "1"), ("x-other", "2"), ("x-repeat", "3"), ("te", "trailers")] {
            request.headers_mut().append(name, HeaderValue::from_static(value));
        }
        let binary = HeaderValue::from_bytes(b"\x80\xff\t").unwrap();
        request.headers_mut().append("x-bin", binary.clone());
        request.headers_mut().append("connection", HeaderValue::from_static("x-hop"));
        request.headers_mut().append("x-hop", HeaderValue::from_static("1"));
        let response = fixture.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
        let headers = response.headers();
        let repeats: Vec<_> = headers.get_all("x-repeat").iter().collect();
        assert_eq!(repeats, ["1", "3"]);
        assert_eq!((headers["x-other"].as_bytes(), &headers["x-bin"]), (&b"2"[..], &binary));
        assert_eq!(
            (&headers["x-method"], headers["x-uri"].to_str().unwrap()),
            (&"PROPFIND".parse().unwrap(), uri)
        );
        assert!(headers.get("x-hop").is_none() && headers.get("connection").is_none());
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "body");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn streams_go_both_ways_with_trailers() {
    let fixture = Fixture::serve(|request: Request<Body>| async move { Response::new(request.into_body()) });
    let (sender, body) = channel_body();
    let response = on_time(fixture.send(Request::post("/").body(body).unwrap())).await;
    // The echo's head comes before any data does.
    let mut body = response.unwrap().into_body();
    for round in 0..200u32 {
        let data = Bytes::from(vec![u8::try_from(round).unwrap(); 1 + round as usize * 300]);
        sender.send(Ok(Frame::data(data.clone()))).unwrap();
        let mut came = Vec::new();
        while came.len() < data.len() {
            let frame = on_time(body.frame()).await.unwrap().unwrap();
            came.extend_from_slice(&frame.into_data().unwrap());
        }
        assert_eq!(came, data);
    }
    let mut trailers = HeaderMap::new();
    trailers.append("x-sum", HeaderValue::from_static("1"));
    trailers.append("x-sum", HeaderValue::from_static("2"));
    sender.send(Ok(Frame::trailers(trailers.clone()))).unwrap();
    drop(sender);
    let frame = on_time(body.frame()).await.unwrap().unwrap();
    assert_eq!(frame.into_trailers().unwrap(), trailers);
    assert!(body.frame().await.is_none());
}

/// A body that is not known to be empty when the request is sent, and is.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_body_that_ends_without_data_ends() {
    let echo = Fixture::serve(|request: Request<Body>| async move { Response::new(request.into_body()) });
    let waits = Fixture::serve(|request: Request<Body>| async move {
        Response::new(Full::<Bytes>::from(request.into_body().collect().await.unwrap().to_bytes()))
    });
    for fixture in [echo, waits] {
        for late_ms in [0, 0, 0, 20] {
            let (sender, body) = channel_body();
            let sent = fixture.send(Request::post("/").body(body).unwrap());
            let end = async {
                tokio::time::sleep(Duration::from_millis(late_ms)).await;
                drop(sender);
            };
            let (response, ()) = on_time(async { tokio::join!(sent, end) }).await;
            let body = on_time(response.unwrap().into_body().collect()).await.unwrap();
            assert!(body.to_bytes().is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn whole_bodies_may_have_trailers() {
    let fixture = Fixture::serve(|request: Request<Body>| async move {
        let collected = request.into_body().collect().await.unwrap();
        let trailers = collected.trailers().cloned().unwrap();
        Response::new(Full::new(collected.to_bytes()).with_trailers(std::future::ready(Some(Ok(trailers)))))
    });
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from("x")).with_trailers(std::future::ready(Some(Ok(trailers.clone()))));
    let response = fixture.send(Request::post("/").body(body).unwrap()).await.unwrap();
    assert!(!response.body().is_end_stream());
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!((collected.trailers().cloned().unwrap(), collected.to_bytes()), (trailers, "x".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn large_bodies_go_both_ways() {
    let fixture =
        Fixture::serve(|request: Request<Body>| async move { Response::new(full(request.into_body())) });
    let large = || fixture.client.channel().stats().large_items;
    let before = large();
    for bytes in [0, 1, 16_383, 32 << 10, 60_000, 65_534, 65_535, 65_536, 65_537, 1 << 20, 5 << 20] {
        let data: Bytes = (0..bytes).map(|at: u32| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect();
        let response = fixture.send(Request::post("/").body(Full::new(data.clone())).unwrap()).await.unwrap();
        let came = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((came.len(), came == data), (data.len(), true));
    }
    assert!(large() > before, "large pieces lie in memory that their reader has as it is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_dropped_is_cancelled() {
    let log = Log::default();
    let seen = log.clone();
    let fixture = Fixture::serve(move |request: Request<Body>| {
        let guard = seen.enter();
        async move {
            if request.uri().path() == "/never" {
                std::future::pending::<()>().await;
            }
            Response::new(StreamBody::new(common::Endless(guard)))
        }
    });
    // Before the head.
    tokio::select! {
        response = fixture.send(get("/never")) => panic!("{response:?}"),
        () = log.begun(1) => {}
    }
    log.left(1).await;
    // After the head, in the middle of the body.
    let mut response = on_time(fixture.send(get("/stream"))).await.unwrap();
    assert!(response.frame().await.unwrap().unwrap().is_data());
    drop(response);
    log.left(2).await;
    // While the request's body is still being written.
    let (sender, body) = channel_body();
    tokio::select! {
        response = fixture.send(Request::post("/never").body(body).unwrap()) => panic!("{response:?}"),
        () = log.begun(3) => {}
    }
    log.left(3).await;
    on_time(sender.closed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_body_that_fails_aborts_the_call_on_both_sides() {
    let log = Log::default();
    let seen = log.clone();
    let fixture = Fixture::serve(move |request: Request<Body>| {
        let seen = seen.clone();
        async move {
            let outcome = request.into_body().collect().await;
            seen.aborted.fetch_add(u32::from(matches!(outcome, Err(Error::Aborted(_)))), Ordering::SeqCst);
            std::future::pending::<()>().await;
            Response::new(Empty::<Bytes>::new())
        }
    });
    let (sender, body) = channel_body();
    sender.send(Ok(Frame::data("some".into()))).unwrap();
    let responding = fixture.send(Request::post("/").body(body).unwrap());
    let fail = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        sender.send(Err("spoiled".into())).unwrap();
    };
    let (response, ()) = on_time(async { tokio::join!(responding, fail) }).await;
    let error = response.unwrap_err();
    assert!(matches!(&error, Error::Body(why) if why.to_string() == "spoiled"), "{error}");

    let fixture = Fixture::serve(|_: Request<Body>| async move {
        let (sender, body) = channel_body();
        sender.send(Ok(Frame::data("some".into()))).unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            sender.send(Err("spoiled".into())).unwrap();
        });
        Response::new(body)
    });
    let mut response = fixture.send(get("/")).await.unwrap();
    assert_eq!(response.frame().await.unwrap().unwrap().into_data().unwrap(), "some");
    let error = on_time(response.frame()).await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::Aborted(why) if why == "spoiled"), "{error}");
    assert!(response.frame().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_answer_may_come_before_the_body_ends() {
    let fixture = Fixture::serve(|_: Request<Body>| async { Response::new(Full::<Bytes>::from("enough")) });
    let (sender, body) = channel_body();
    let response = on_time(fixture.send(Request::post("/").body(body).unwrap())).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "enough");
    on_time(sender.closed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn lengths_that_lie_are_found() {
    let fixture = Fixture::serve(|request: Request<Body>| async move {
        let said = request.headers().get("x-answer").cloned();
        let outcome = request.into_body().collect().await;
        if outcome.is_err() {
            return Response::builder()
                .status(StatusCode::UNPROCESSABLE_ENTITY)
                .body(Full::default())
                .unwrap();
        }
        let mut response = Response::new(Full::<Bytes>::from("12345"));
        said.map(|said| response.headers_mut().insert("content-length", said));
        response
    });
    let whole =
        |said: &str| Request::post("/").header("content-length", said).body(Full::<Bytes>::from("1234"));
    for said in ["3", "5", "x"] {
        let error = fixture.send(whole(said).unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::ContentLength) && error.fate() == Fate::NotRun, "{said}: {error}");
    }
    assert!(fixture.send(whole("4").unwrap()).await.is_ok());
    for said in ["3", "5"] {
        let (sender, body) = channel_body();
        let request = Request::post("/").header("content-length", said).body(body).unwrap();
        let send = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let _ = sender.send(Ok(Frame::data("1234".into())));
            drop(sender);
        };
        let (response, ()) = on_time(async { tokio::join!(fixture.send(request), send) }).await;
        assert_eq!(response.unwrap().status(), StatusCode::UNPROCESSABLE_ENTITY, "{said}");
    }
    let mut request = get("/");
    request.headers_mut().insert("x-answer", HeaderValue::from_static("6"));
    assert!(matches!(fixture.send(request).await, Err(Error::Aborted(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn lengths_of_responses_that_lie_are_not_those_of_requests() {
    let open = Arc::<Mutex<Vec<_>>>::default();
    let senders = Arc::clone(&open);
    let fixture = Fixture::serve(move |request: Request<Body>| {
        let (sender, body) = channel_body();
        sender.send(Ok(Frame::data("1234".into()))).unwrap();
        // The end is not there yet: the response goes as a stream.
        senders.lock().unwrap().push(sender);
        let said = request.headers()["x-answer"].clone();
        async move { Response::builder().header("content-length", said).body(body).unwrap() }
    });
    let ask = |method, said: &str| {
        let request = Request::builder().method::<Method>(method).uri("/").header("x-answer", said);
        fixture.send(request.body(Full::<Bytes>::default()).unwrap())
    };
    for said in ["3", "5"] {
        let response = on_time(ask(Method::GET, said)).await.unwrap();
        open.lock().unwrap().clear();
        let error = on_time(response.into_body().collect()).await.unwrap_err();
        assert!(matches!(error, Error::ResponseLength) && error.fate() == Fate::Ran, "{said}: {error}");
    }
    let head = on_time(ask(Method::HEAD, "5")).await.unwrap();
    assert_eq!(head.headers()["content-length"], "5");
    for method in [Method::HEAD, Method::GET] {
        let error = on_time(ask(method, "x")).await.unwrap_err();
        assert!(matches!(error, Error::Aborted(_)), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_request_that_cannot_be_written_does_not_run() {
    let fixture = Fixture::serve(|_: Request<Body>| async { Response::new(Full::<Bytes>::default()) });
    let (sender, body) = channel_body();
    sender.send(Err("spoiled".into())).unwrap();
    let error = fixture.send(Request::post("/").body(body).unwrap()).await.unwrap_err();
    assert!(matches!(&error, Error::Unsent(_)) && error.fate() == Fate::NotRun, "{error}");
    for (name, is_short) in [("x".repeat(255), true), ("x".repeat(256), false)] {
        let request = Request::get("/").header(&name, "1").body(Full::<Bytes>::default()).unwrap();
        match fixture.send(request).await {
            Ok(_) => assert!(is_short),
            Err(error) => assert!(!is_short && matches!(error, Error::HeadTooLarge), "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn some_responses_have_no_body() {
    let fixture = Fixture::serve(|request: Request<Body>| async move {
        let status = request.uri().path().trim_start_matches('/').parse().unwrap();
        let body = Full::<Bytes>::from("never seen");
        Response::builder().status::<StatusCode>(status).header("content-length", "10").body(body).unwrap()
    });
    for (method, path) in [(Method::HEAD, "/200"), (Method::GET, "/204"), (Method::GET, "/304")] {
        let request = Request::builder().method(&method).uri(path).body(Full::<Bytes>::default()).unwrap();
        let response = fixture.send(request).await.unwrap();
        assert_eq!(response.headers().contains_key("content-length"), path != "/204");
        assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty(), "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_above_a_limit_is_refused_by_its_status() {
    let log = Log::default();
    let seen = log.clone();
    let fixture = Fixture::with(
        |service| service.body_bytes_max(1000).requests_max(1),
        move |request: Request<Body>| {
            let waits = (request.uri().path() == "/wait").then(|| seen.enter());
            async move {
                if waits.is_some() {
                    std::future::pending::<()>().await;
                }
                let is_too_large =
                    matches!(request.into_body().collect().await, Err(Error::TooLarge { limit: 1000 }));
                let status = if is_too_large { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::OK };
                Response::builder().status(status).body(Empty::<Bytes>::new()).unwrap()
            }
        },
    );
    let post = |bytes: usize| Request::post("/").body(Full::<Bytes>::from(vec![0; bytes])).unwrap();
    let sizes = [
        (1000, StatusCode::OK),
        (1001, StatusCode::PAYLOAD_TOO_LARGE),
        (200_000, StatusCode::PAYLOAD_TOO_LARGE),
    ];
    for (bytes, status) in sizes {
        assert_eq!(on_time(fixture.send(post(bytes))).await.unwrap().status(), status, "{bytes}");
    }
    let mut large = get("/");
    for at in 0..600 {
        large.headers_mut().append("x-many", at.into());
    }
    assert!(matches!(fixture.send(large).await, Err(Error::HeadTooLarge)));
    for (name, value) in [("upgrade", "websocket"), ("upgrade", "h2c")] {
        let request = Request::get("/").header(name, value).body(Full::<Bytes>::default()).unwrap();
        assert!(matches!(fixture.send(request).await, Err(Error::NotCarried(_))));
    }
    let waiting = fixture.send(get("/wait"));
    let busy = async {
        log.begun(1).await;
        fixture.send(get("/")).await.unwrap().status()
    };
    tokio::select! {
        _ = waiting => unreachable!(),
        status = busy => assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_deadline_ends_both_sides() {
    /// Within it a request begins, on a machine with other things to do.
    const LIMIT: Duration = Duration::from_secs(4);
    let log = Log::default();
    let seen = log.clone();
    let fixture = Fixture::serve(move |request: Request<Body>| {
        let guard = seen.enter();
        async move {
            assert!(request.extensions().get::<Timeout>().unwrap().0 <= LIMIT);
            if request.uri().path() == "/never" {
                std::future::pending::<()>().await;
            }
            Response::new(StreamBody::new(common::Endless(guard)))
        }
    });
    let timed = |path| {
        let mut request = get(path);
        request.extensions_mut().insert(Timeout(LIMIT));
        request
    };
    let error = on_time(fixture.send(timed("/never"))).await.unwrap_err();
    let code = |error: &Error| error.failure().and_then(|it| it.status()).map(Status::code);
    assert_eq!(code(&error), Some(gimmal::Code::DeadlineExceeded), "{error}");
    log.left(1).await;
    let mut response = on_time(fixture.send(timed("/stream"))).await.unwrap();
    let error = on_time(async {
        loop {
            match response.frame().await.unwrap() {
                Ok(_) => {}
                Err(error) => break error,
            }
        }
    })
    .await;
    assert_eq!(code(&error), Some(gimmal::Code::DeadlineExceeded), "{error}");
    log.left(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_slow_reader_stops_its_sender_and_nobody_else() {
    let log = Log::default();
    let seen = log.clone();
    let fixture = Fixture::serve(move |request: Request<Body>| {
        let guard = seen.enter();
        async move {
            match request.uri().path() {
                "/endless" => Response::new(StreamBody::new(common::Endless(guard)).boxed_unsync()),
                _ => Response::new(Full::<Bytes>::from("quick").boxed_unsync()),
            }
        }
    });
    let slow = on_time(fixture.send(get("/endless"))).await.unwrap();
    let mut before = 0;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let given = log.given.load(Ordering::SeqCst);
        if given == before && given > 0 {
            break;
        }
        before = given;
    }
    assert!((1..200).contains(&before), "{before} pieces ahead of a reader that does not read");
    let quick = on_time(fixture.send(get("/"))).await.unwrap();
    assert_eq!(quick.into_body().collect().await.unwrap().to_bytes(), "quick");
    drop(slow);
    log.left(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn requests_find_the_next_server() {
    let hello = |_: Request<Body>| async { Response::new(Full::<Bytes>::from("hello")) };
    let mut fixture = Fixture::serve(hello);
    assert!(fixture.send(get("/")).await.is_ok());
    fixture.stop();
    let error =
        on_time(fixture.client.clone().wait_for_ready(Duration::from_millis(50)).send(get("/"))).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::NotConnected(_)) && error.fate() == Fate::NotRun, "{error}");
    let client = fixture.client.clone().wait_for_ready(Duration::from_secs(10));
    let waiting = tokio::spawn(async move { client.send(get("/")).await.map(|response| response.status()) });
    tokio::time::sleep(Duration::from_millis(50)).await;
    fixture.start(hello);
    assert_eq!(on_time(waiting).await.unwrap().unwrap(), StatusCode::OK);
    let later = gimmal::Client::connect_lazy(&fixture.url).unwrap();
    let response = on_time(gimmal_http::Client::new(later).send(get("/"))).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
}

#[test]
fn a_driven_client_carries_whole_bodies_and_streams() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let fixture = {
        let _entered = runtime.enter();
        Fixture::serve(|request: Request<Body>| async move {
            let is_whole = request.uri().path() == "/whole";
            let body = request.into_body();
            Response::new(if is_whole {
                full(body).boxed_unsync()
            } else {
                body.map_err(common::as_box).boxed_unsync()
            })
        })
    };
    let local = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&local, async {
        let builder = gimmal::Client::builder().config(common::config());
        let channel = gimmal::tokio::LocalClient::connect_with(builder, &fixture.url).await.unwrap();
        let client = gimmal_http::Client::new(channel);
        for path in ["/whole", "/stream"] {
            let body = Full::<Bytes>::from("over here");
            let response =
                on_time(common::Requests::send(&client, Request::post(path).body(body).unwrap())).await;
            assert_eq!(response.unwrap().into_body().collect().await.unwrap().to_bytes(), "over here");
        }
        let (sender, body) = channel_body();
        let response =
            on_time(common::Requests::send(&client, Request::post("/").body(body).unwrap())).await.unwrap();
        let mut body = response.into_body();
        for _ in 0..100 {
            sender.send(Ok(Frame::data(vec![7; 5000].into()))).unwrap();
            assert_eq!(on_time(body.frame()).await.unwrap().unwrap().into_data().unwrap().len(), 5000);
        }
        drop(body);
        on_time(sender.closed()).await;
    });
}

#[test]
fn only_what_did_not_run_and_lost_connections_are_unavailable() {
    let closed = |fate| TransportError::Closed { reason: CloseReason::Peer, fate };
    let worker = |fate| TransportError::Worker { why: "it is gone", fate };
    let cases = [
        (closed(Fate::NotRun), gimmal::Code::Unavailable),
        (closed(Fate::MaybeRan), gimmal::Code::Unavailable),
        (worker(Fate::NotRun), gimmal::Code::Unavailable),
        (worker(Fate::MaybeRan), gimmal::Code::Unavailable),
        (TransportError::Full { waiting: 1 }, gimmal::Code::ResourceExhausted),
        (TransportError::TooLarge { limit: 1 }, gimmal::Code::Internal),
        (TransportError::AnswerAboveMax { bytes: 2, limit: 1 }, gimmal::Code::Internal),
        (TransportError::OwnWorker { fate: Fate::MaybeRan }, gimmal::Code::Internal),
    ];
    for (error, code) in cases {
        assert_eq!(Error::Call(Failure::Transport(error.clone())).code(), code, "{error}");
    }
    let status = Status::refused(gimmal::Code::DeadlineExceeded, "late");
    assert_eq!(Error::Call(Failure::Status(status.clone())).code(), gimmal::Code::DeadlineExceeded);
    assert_eq!(Error::NotConnected(Failure::Status(status)).code(), gimmal::Code::Unavailable);
    let aborted = Error::Aborted("it failed".to_owned());
    assert_eq!((aborted.code(), aborted.fate()), (gimmal::Code::Cancelled, Fate::Ran));
    assert_eq!(Error::Malformed("no head").code(), gimmal::Code::Internal);
    assert_eq!(Error::NotCarried("CONNECT").code(), gimmal::Code::Unimplemented);
}
