//! Streams in the hands of others: threads that block, a relay, hyper, axum, tonic's own transport, the futures crates.

#![cfg(all(feature = "axum", feature = "futures", feature = "tonic"))]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::{Future, poll_fn},
    io::{BufRead as _, ErrorKind, Read as _, Write as _},
    pin::Pin,
    time::Duration,
};

use common::{Fixture, roomy};
use gimmal_io::{copy_bidirectional, open};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinSet,
};
use tokio_stream::StreamExt as _;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

/// Runs a case over each provider.
fn each<F: Future<Output = ()>>(case: impl Fn(Fixture) -> F) {
    common::each(&roomy(1024), case);
}

/// Sizes of a request, bytes, and how many are in flight.
fn grid() -> impl Iterator<Item = (usize, usize)> {
    [64, 8 << 10].into_iter().flat_map(|bytes| [1, 64, 512].map(|in_flight| (bytes, in_flight)))
}

#[test]
fn threads_that_block_read_and_write_with_time_outs() {
    each(|mut fixture| async move {
        let (opened, accepted) = fixture.pair().await;
        let echo = std::thread::spawn(move || {
            let mut stream = accepted.blocking();
            let mut line = String::new();
            while stream.read_line(&mut line).unwrap() > 0 {
                stream.write_all(line.as_bytes()).unwrap();
                line.clear();
            }
            stream.close().unwrap();
        });
        std::thread::spawn(move || {
            let mut stream = opened.blocking();
            stream.set_read_timeout(Some(Duration::from_millis(50)));
            let mut answer = [0; 6];
            assert_eq!(stream.read(&mut answer).unwrap_err().kind(), ErrorKind::TimedOut);
            stream.set_read_timeout(Some(Duration::from_secs(60)));
            for _ in 0..100 {
                stream.write_all(b"hello\n").unwrap();
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"hello\n");
            }
            stream.close().unwrap();
            assert_eq!(stream.read(&mut answer).unwrap(), 0);
        })
        .join()
        .unwrap();
        echo.join().unwrap();
    });
}

#[test]
fn a_write_that_finds_no_room_times_out() {
    each(|mut fixture| async move {
        let (opened, accepted) = fixture.pair().await;
        std::thread::spawn(move || {
            let mut stream = opened.blocking();
            stream.set_write_timeout(Some(Duration::from_millis(100)));
            let error = (0..10_000).find_map(|_| stream.write_all(&[1; 4096]).err()).unwrap();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        })
        .join()
        .unwrap();
        drop(accepted);
    });
}

#[test]
fn a_relay_joins_two_streams_and_passes_each_end_on() {
    each(|mut fixture| async move {
        const BYTES: usize = 4 << 20;
        let (mut near, mut relay_near) = fixture.pair().await;
        let (mut relay_far, mut far) = fixture.pair().await;
        let relay = tokio::spawn(async move { copy_bidirectional(&mut relay_near, &mut relay_far).await });
        let sent: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            near.write_all(&sent).await.unwrap();
            near.shutdown().await.unwrap();
            let mut answer = Vec::new();
            near.read_to_end(&mut answer).await.unwrap();
            answer
        });
        let mut arrived = Vec::new();
        far.read_to_end(&mut arrived).await.unwrap();
        assert!(arrived == expected, "{} bytes of {BYTES}, or others", arrived.len());
        // The end of one direction has ended only that.
        far.write_all(b"all of it").await.unwrap();
        far.shutdown().await.unwrap();
        assert_eq!(writer.await.unwrap(), b"all of it");
        assert_eq!(relay.await.unwrap().unwrap(), (BYTES as u64, 9));
    });
}

#[test]
fn streams_are_those_of_the_futures_crates_too() {
    each(|fixture| async move {
        let Fixture { server: _server, client, mut incoming } = fixture;
        let mut opened = open(&client, "futures");
        let (name, mut accepted) = incoming.next().await.unwrap();
        assert_eq!(name, "futures");
        let written =
            poll_fn(|context| futures_io::AsyncWrite::poll_write(Pin::new(&mut opened), context, b"abc"));
        assert_eq!(written.await.unwrap(), 3);
        poll_fn(|context| futures_io::AsyncWrite::poll_close(Pin::new(&mut opened), context)).await.unwrap();
        let (mut out, mut heard) = ([0; 2], Vec::new());
        loop {
            let read = poll_fn(|context| {
                futures_io::AsyncRead::poll_read(Pin::new(&mut accepted), context, &mut out)
            });
            match read.await.unwrap() {
                0 => break,
                bytes => heard.extend_from_slice(&out[..bytes]),
            }
        }
        assert_eq!(heard, b"abc");
    });
}

#[test]
fn axum_serves_hyper_on_many_streams_of_one_connection() {
    each(|fixture| async move {
        let Fixture { server: _server, client, incoming } = fixture;
        let router = axum::Router::new().fallback(async |body: Bytes| body);
        let serving = tokio::spawn(async move { axum::serve(incoming, router).await });
        for (bytes, in_flight) in grid() {
            let mut askers = JoinSet::new();
            for number in 0..in_flight {
                let stream = open(&client, "http");
                askers.spawn(async move {
                    let (mut sender, connection) =
                        hyper::client::conn::http1::handshake(stream).await.unwrap();
                    let connection = tokio::spawn(connection);
                    for round in 0..2 {
                        let body = Bytes::from_static(common::bytes(number + round, bytes));
                        let request = http::Request::post("/echo")
                            .header("host", "gimmal")
                            .body(Full::new(body.clone()))
                            .unwrap();
                        let response = sender.send_request(request).await.unwrap();
                        assert_eq!(response.status(), 200);
                        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), body);
                    }
                    drop(sender);
                    connection.await.unwrap().unwrap();
                });
            }
            askers.join_all().await;
        }
        serving.abort();
    });
}

#[test]
fn tonics_own_transport_runs_on_streams() {
    each(|fixture| async move {
        let Fixture { server: _server, client, incoming } = fixture;
        let (reporter, health) = tonic_health::server::health_reporter();
        // What is asked for is as large as the cell says.
        for (bytes, _) in grid() {
            reporter.set_service_status("x".repeat(bytes), tonic_health::ServingStatus::Serving).await;
        }
        let connections = incoming.map(|(_, stream)| Ok::<_, std::io::Error>(stream));
        let serving = tokio::spawn(
            tonic::transport::Server::builder().add_service(health).serve_with_incoming(connections),
        );
        let channel = tonic::transport::Endpoint::from_static("http://store")
            .connect_with_connector(gimmal_io::Connector::new(client))
            .await
            .unwrap();
        for (bytes, in_flight) in grid() {
            let mut checks = JoinSet::new();
            for _ in 0..in_flight {
                let mut health = HealthClient::new(channel.clone());
                checks.spawn(async move {
                    let request = HealthCheckRequest { service: "x".repeat(bytes) };
                    let response = health.check(request.clone()).await.unwrap().into_inner();
                    assert_eq!(response.status(), ServingStatus::Serving);
                    let mut watched = health.watch(request).await.unwrap().into_inner();
                    let first = watched.message().await.unwrap().unwrap();
                    assert_eq!(first.status(), ServingStatus::Serving);
                });
            }
            checks.join_all().await;
        }
        serving.abort();
    });
}
