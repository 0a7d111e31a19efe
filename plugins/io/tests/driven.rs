//! Byte streams without a worker's thread: client, server and their tasks share the thread of one runtime.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::Future,
    io::{ErrorKind, Read as _, Write as _},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use common::{bytes, roomy};
use gimmal::{
    Server,
    tokio::{LocalClient, Tokio, serve_until},
};
use gimmal_io::{Code, Duplex, Incoming, open_local};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::oneshot,
    task::{JoinHandle, spawn_local},
};

/// A driven server with what it accepts, and a driven client.
struct Fixture {
    client: LocalClient,
    incoming: Incoming,
    /// Ends the server.
    stop: oneshot::Sender<()>,
    served: JoinHandle<bool>,
}

impl Fixture {
    async fn new(url: &str) -> Self {
        let (streams, incoming) = gimmal_io::serve(16);
        let builder = Server::builder().config(roomy(64)).runtime(Tokio::current().unwrap());
        let server = builder.service(streams).listen_local(url).unwrap();
        let at = server.address().to_string();
        let (stop, stopped) = oneshot::channel();
        let served =
            spawn_local(async { serve_until(server, stopped, Duration::from_secs(30)).await.unwrap() });
        let builder = gimmal::Client::builder().config(roomy(64));
        let client = LocalClient::connect_with(builder, &at).await.unwrap();
        Self { client, incoming, stop, served }
    }

    /// Both ends of a new stream, and the task of its call.
    async fn pair(&mut self) -> (Duplex, Duplex, JoinHandle<()>) {
        let (opened, call) = open_local(&self.client, "pair");
        let call = spawn_local(call);
        let (name, accepted) = self.incoming.accept().await.unwrap();
        assert_eq!(name, "pair");
        (opened, accepted, call)
    }
}

/// Runs a case over memory and over TCP, each on one thread and bounded in time.
fn each<F: Future<Output = ()>>(case: impl Fn(Fixture) -> F) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    for url in [format!("mem://driven-{}-{number}", std::process::id()), "tcp://127.0.0.1:0".to_owned()] {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build_local(Default::default()).unwrap();
        runtime.block_on(async {
            let whole = async { case(Fixture::new(&url).await).await };
            tokio::time::timeout(Duration::from_secs(240), whole).await.expect(&url);
        });
    }
}

#[test]
fn bytes_and_ends_arrive_and_the_call_ends_with_the_stream() {
    each(|mut fixture| async move {
        const TOTAL: usize = 1 << 20;
        let (opened, accepted, call) = fixture.pair().await;
        let ends = [opened, accepted].map(|end| {
            let (mut recv, mut send) = end.into_split();
            let writes = spawn_local(async move {
                let (mut at, mut len) = (0, 1);
                while at < TOTAL {
                    let piece = bytes(at, len.min(TOTAL - at));
                    send.write_all(piece).await.unwrap();
                    (at, len) = (at + piece.len(), (len * 3 + 1) % 100_000);
                }
                send.closed().await.unwrap();
            });
            let reads = spawn_local(async move {
                let mut at = 0;
                while let Some(chunk) = recv.read_chunk().await.unwrap() {
                    assert_eq!(chunk, bytes(at, chunk.len()));
                    at += chunk.len();
                }
                assert_eq!(at, TOTAL);
            });
            [writes, reads]
        });
        for task in ends.into_iter().flatten() {
            task.await.unwrap();
        }
        call.await.unwrap();
        fixture.stop.send(()).unwrap();
        assert!(fixture.served.await.unwrap(), "nothing is left");
    });
}

#[test]
fn small_messages_go_to_and_fro() {
    each(|mut fixture| async move {
        let (mut opened, mut accepted, _call) = fixture.pair().await;
        for round in 0..2000u32 {
            let mut heard = [0; 4];
            opened.write_all(&round.to_ne_bytes()).await.unwrap();
            accepted.read_exact(&mut heard).await.unwrap();
            accepted.write_all(&heard).await.unwrap();
            opened.read_exact(&mut heard).await.unwrap();
            assert_eq!(u32::from_ne_bytes(heard), round);
            if round % 100 == 0 {
                // Both ports sleep.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    });
}

/// The thread sleeps, and a half on another one wakes it.
#[test]
fn a_half_on_another_thread_moves_its_stream() {
    each(|mut fixture| async move {
        let (mut opened, accepted, _call) = fixture.pair().await;
        let (echoed, is_echoed) = oneshot::channel();
        let echo = std::thread::spawn(move || {
            let mut accepted = accepted.blocking();
            for _ in 0..100 {
                let mut heard = [0; 4];
                accepted.read_exact(&mut heard).unwrap();
                accepted.write_all(&heard).unwrap();
            }
            accepted.close().unwrap();
            let _ = echoed.send(());
        });
        for _ in 0..100 {
            let mut heard = [0; 4];
            opened.write_all(b"four").await.unwrap();
            opened.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"four");
        }
        assert_eq!(opened.read(&mut [0]).await.unwrap(), 0);
        is_echoed.await.unwrap();
        echo.join().unwrap();
    });
}

#[test]
fn ends_by_force_say_why() {
    each(|mut fixture| async move {
        // Codes of either side.
        let (opened, mut accepted, call) = fixture.pair().await;
        let (mut recv, mut send) = opened.into_split();
        send.reset(77);
        recv.stop(78);
        let error = accepted.read(&mut [0]).await.unwrap_err();
        assert_eq!((error.kind(), Code::of(&error)), (ErrorKind::ConnectionReset, Some(77)));
        assert_eq!(accepted.split().1.stopped().await, Some(78));
        drop(accepted);
        call.await.unwrap();

        // The call is dropped, and so is the stream.
        let (mut opened, mut accepted, call) = fixture.pair().await;
        call.abort();
        let error = opened.read(&mut [0]).await.unwrap_err();
        assert!(error.to_string().contains("call was dropped"), "{error}");
        assert_eq!(accepted.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);

        // Nobody accepts, and then nobody is there.
        drop(fixture.incoming);
        let (mut refused, call) = open_local(&fixture.client, "nobody");
        let refusal = spawn_local(call);
        let error = refused.read(&mut [0]).await.unwrap_err();
        assert!(error.to_string().contains("nobody accepts"), "{error}");
        refusal.await.unwrap();
        fixture.stop.send(()).unwrap();
        fixture.served.await.unwrap();
        let (mut lost, call) = open_local(&fixture.client, "nobody");
        spawn_local(call);
        assert_eq!(lost.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(lost.write(b"x").await.is_err());
    });
}

#[test]
fn a_lost_connection_ends_streams_by_an_error() {
    each(|mut fixture| async move {
        let (mut opened, mut accepted, call) = fixture.pair().await;
        opened.write_all(b"x").await.unwrap();
        accepted.read_exact(&mut [0]).await.unwrap();
        // The server ends with its task, and its connections do.
        fixture.served.abort();
        assert_eq!(opened.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(accepted.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        call.await.unwrap();
    });
}
