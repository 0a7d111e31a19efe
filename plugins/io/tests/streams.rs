//! Byte streams over every provider of this host: bytes, ends, drops, windows.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::Future,
    io::{ErrorKind, IoSlice},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use common::{Fixture, bytes, roomy, until};
use gimmal_io::{Code, SendStream, open};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Runs a case over each provider.
fn each<F: Future<Output = ()>>(case: impl Fn(Fixture) -> F) {
    common::each(&roomy(1024), case);
}

#[test]
fn bytes_arrive_once_and_in_order_both_ways() {
    each(|mut fixture| async move {
        const TOTAL: usize = 4 << 20;
        let (opened, accepted) = fixture.pair().await;
        let mut tasks = Vec::new();
        for end in [opened, accepted] {
            let (mut recv, mut send) = end.into_split();
            tasks.push(tokio::spawn(async move {
                let (mut at, mut len) = (0, 1);
                while at < TOTAL {
                    let piece = bytes(at, len.min(TOTAL - at));
                    send.write_all(piece).await.unwrap();
                    (at, len) = (at + piece.len(), (len * 3 + 1) % 100_000);
                }
                send.closed().await.unwrap();
            }));
            tasks.push(tokio::spawn(async move {
                let mut at = 0;
                while let Some(chunk) = recv.read_chunk().await.unwrap() {
                    assert_eq!(chunk, bytes(at, chunk.len()));
                    at += chunk.len();
                }
                assert_eq!((at, recv.read_chunk().await.unwrap()), (TOTAL, None), "the end is said again");
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let server = &fixture.server;
        until("nothing is served", || server.stats().serving == 0).await;
    });
}

#[test]
fn a_direction_ends_alone_and_codes_arrive() {
    each(|mut fixture| async move {
        // Half closed, the other half goes on.
        let (mut opened, mut accepted) = fixture.pair().await;
        accepted.write_all(b"bye").await.unwrap();
        accepted.shutdown().await.unwrap();
        let mut text = String::new();
        opened.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "bye");
        opened.write_all(b"still here").await.unwrap();
        opened.shutdown().await.unwrap();
        let mut text = String::new();
        accepted.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "still here");
        assert_eq!(opened.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);

        // Resets and stops, from either side.
        for is_opened in [true, false] {
            let (mut one, mut other) = fixture.pair().await;
            if !is_opened {
                std::mem::swap(&mut one, &mut other);
            }
            let (mut recv, mut send) = one.into_split();
            send.write_all(b"some").await.unwrap();
            send.reset(77);
            let mut read = [0; 4];
            other.read_exact(&mut read).await.unwrap();
            let error = other.read(&mut read).await.unwrap_err();
            assert_eq!((error.kind(), Code::of(&error)), (ErrorKind::ConnectionReset, Some(77)));
            recv.stop(u32::MAX);
            let stopped = other.split().1.stopped().await;
            assert_eq!(stopped, Some(u32::MAX));
            let error = other.write(b"x").await.unwrap_err();
            assert_eq!((error.kind(), Code::of(&error)), (ErrorKind::BrokenPipe, Some(u32::MAX)));
            assert_eq!(recv.read(&mut read).await.unwrap(), 0);
        }
        let server = &fixture.server;
        until("nothing is served", || server.stats().serving == 0).await;
    });
}

#[test]
fn drops_finish_what_was_read_and_reset_what_was_not() {
    each(|mut fixture| async move {
        for is_opened in [true, false] {
            for is_read in [true, false] {
                let (mut one, mut other) = fixture.pair().await;
                if !is_opened {
                    std::mem::swap(&mut one, &mut other);
                }
                other.write_all(b"ping").await.unwrap();
                one.write_all(b"pong").await.unwrap();
                one.split().0.readable().await.unwrap();
                if is_read {
                    one.read_exact(&mut [0; 4]).await.unwrap();
                }
                drop(one);
                let mut text = Vec::new();
                let read = other.read_to_end(&mut text).await;
                assert_eq!((read.is_ok(), &*text), (is_read, &b"pong"[..]));
                let error = loop {
                    match other.write(b"x").await {
                        Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                        Err(error) => break error,
                    }
                };
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            }
        }
        // A panic says that it is not all.
        let (opened, mut accepted) = fixture.pair().await;
        let panicked = tokio::spawn(async move {
            let mut opened = opened;
            opened.write_all(b"half").await.unwrap();
            std::panic::resume_unwind(Box::new("as it was asked to"));
        });
        assert!(panicked.await.is_err());
        assert_eq!(
            accepted.read_to_end(&mut Vec::new()).await.unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
        drop(accepted);
        let server = &fixture.server;
        until("nothing is served", || server.stats().serving == 0).await;
    });
}

/// Both sides write a hundred windows before anybody reads. Calls and another stream go on meanwhile.
#[test]
fn both_sides_may_write_without_reading_and_block_nobody_else() {
    const WINDOW: usize = 64 << 10;
    const TOTAL: usize = 100 * WINDOW;
    /// What a writer has in its own process: one buffer that it writes to, and one that its worker sends from. The last message may
    /// be larger than what is left of the window.
    const AHEAD: usize = 2 * (64 << 10) + (32 << 10);
    let config = gimmal::Config { stream_window: 64 << 10, ..roomy(1024) };
    common::each(&config, |mut fixture| async move {
        static WRITTEN: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let written = || WRITTEN.each_ref().map(|written| written.load(Ordering::Relaxed));
        WRITTEN.iter().for_each(|written| written.store(0, Ordering::Relaxed));
        let (opened, accepted) = fixture.pair().await;
        let (mut writers, mut readers) = (Vec::new(), Vec::new());
        for (end, written) in [opened, accepted].into_iter().zip(&WRITTEN) {
            let (recv, mut send) = end.into_split();
            readers.push(recv);
            writers.push(tokio::spawn(async move {
                let mut at = 0;
                while at < TOTAL {
                    at += send.write(bytes(at, 10_000.min(TOTAL - at))).await.unwrap();
                    written.store(at, Ordering::Relaxed);
                }
                send.closed().await.unwrap();
            }));
        }
        until("both have filled their windows", || written().into_iter().all(|written| written >= WINDOW))
            .await;
        let (one, other) = fixture.pair().await;
        let echo = tokio::spawn(async move {
            let (mut recv, mut send) = other.into_split();
            tokio::io::copy(&mut recv, &mut send).await.unwrap();
        });
        let (mut recv, mut send) = one.into_split();
        let beside = common::BesideClient::new(fixture.client.clone());
        for round in 0..100 {
            let calls: Vec<_> = (0..100).map(|call| (call, beside.echo(round * 100 + call))).collect();
            for (number, call) in calls {
                assert_eq!(call.await.unwrap(), round * 100 + number);
            }
            let (piece, mut read) = (bytes(usize::try_from(round).unwrap(), 1000), [0; 1000]);
            send.write_all(piece).await.unwrap();
            recv.read_exact(&mut read).await.unwrap();
            assert_eq!(read, *piece);
        }
        send.finish();
        echo.await.unwrap();
        let most = WINDOW + AHEAD;
        assert!(written().into_iter().all(|written| written <= most), "{:?} of {most}", written());
        for mut recv in readers {
            tokio::spawn(async move {
                let mut at = 0;
                while let Some(chunk) = recv.read_chunk().await.unwrap() {
                    assert!(chunk == bytes(at, chunk.len()), "other bytes behind {at}");
                    at += chunk.len();
                }
                assert_eq!(at, TOTAL);
            })
            .await
            .unwrap();
        }
        for writer in writers {
            writer.await.unwrap();
        }
        fixture.settled().await;
    });
}

#[test]
fn small_parts_of_the_interface() {
    each(|mut fixture| async move {
        let (mut opened, mut accepted) = fixture.pair().await;
        assert_eq!(opened.split().0.try_read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        opened.split().1.writable().await.unwrap();
        let pieces = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cd")];
        assert_eq!(opened.write_vectored(&pieces).await.unwrap(), 4);
        assert_eq!(opened.split().1.try_write(b"e").unwrap(), 1);
        assert_eq!(opened.write(b"").await.unwrap(), 0);
        let mut all = Vec::<u8>::new();
        while all.len() < 5 {
            accepted.split().0.readable().await.unwrap();
            let peeked = accepted.split().0.try_peek().unwrap().len();
            let mut read = [0; 2];
            let bytes = accepted.split().0.try_read(&mut read).unwrap();
            assert!(bytes <= peeked);
            all.extend(&read[..bytes]);
        }
        assert_eq!(all, b"abcde");
        let full = loop {
            if let Err(full) = opened.split().1.try_write(&[1; 4096]) {
                break full;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let ((recv, send), (_, foreign)) = (opened.into_split(), accepted.into_split());
        let (recv, send) = match recv.reunite(foreign) {
            Ok(_) => panic!("of two streams"),
            Err(foreign) => (foreign.0, send),
        };
        assert!(recv.reunite(send).is_ok());
    });
}

#[test]
fn a_server_that_takes_no_stream_or_is_gone_is_told() {
    each(|fixture| async move {
        let Fixture { server, client, incoming } = fixture;
        drop(incoming);
        let mut refused = open(&client, "nobody");
        let error = refused.read(&mut [0]).await.unwrap_err();
        assert!(error.to_string().contains("nobody accepts"), "{error}");
        drop((server, refused));
        let mut lost = open(&client, "nobody");
        assert_eq!(lost.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(lost.write(b"x").await.is_err());
    });
}

#[test]
fn a_lost_connection_ends_streams_by_an_error_and_never_well() {
    each(|mut fixture| async move {
        let (mut opened, mut accepted) = fixture.pair().await;
        opened.write_all(b"x").await.unwrap();
        accepted.read_exact(&mut [0]).await.unwrap();
        let Fixture { server, client, incoming } = fixture;
        let _ = tokio::task::spawn_blocking(move || server.shutdown(Duration::ZERO)).await;
        assert_eq!(opened.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(accepted.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        drop((client, incoming));
    });
}

/// The kind of the error says so at once, and its text why, as soon as that is known.
#[test]
fn a_writer_alone_is_told_that_its_stream_is_lost() {
    /// Writes until that fails, then until the reason is known.
    async fn told(send: &mut SendStream) -> String {
        loop {
            match send.write(b"x").await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(error) => {
                    assert_eq!((error.kind(), Code::of(&error)), (ErrorKind::ConnectionReset, None));
                    if error.get_ref().is_some() {
                        return error.to_string();
                    }
                }
            }
        }
    }
    each(|mut fixture| async move {
        let (opened, accepted) = fixture.pair().await;
        let (kept, mut accepted_send) = accepted.into_split();
        let (recv, mut send) = opened.into_split();
        let (other, _other_accepted) = fixture.pair().await;
        let (other_recv, mut other_send) = other.into_split();
        drop(other_recv);
        let Fixture { server, client, incoming } = fixture;
        let _ = tokio::task::spawn_blocking(move || server.shutdown(Duration::ZERO)).await;
        assert!(told(&mut accepted_send).await.contains("the connection ended"));
        for send in [&mut send, &mut other_send] {
            told(send).await;
            assert_eq!(send.closed().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert_eq!(send.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe, "it has finished");
        }
        drop((client, incoming, kept, recv));
    });
    each(|fixture| async move {
        let Fixture { server, client, incoming } = fixture;
        drop(incoming);
        let (recv, mut send) = open(&client, "nobody").into_split();
        drop(recv);
        let why = told(&mut send).await;
        assert!(why.contains("nobody accepts"), "{why}");
        drop(server);
    });
}

/// What is opened while it is dropped ends, whichever comes first.
#[test]
fn streams_that_come_while_nobody_accepts_any_more_end() {
    for _ in 0..20 {
        each(|fixture| async move {
            let Fixture { server, client, incoming } = fixture;
            let first = open(&client, "first");
            let dropping = std::thread::spawn(move || drop(incoming));
            let streams: Vec<_> =
                std::iter::once(first).chain((0..100).map(|_| open(&client, "it"))).collect();
            for mut stream in streams {
                // In order or not, but at last.
                let _ = stream.read(&mut [0]).await;
            }
            dropping.join().unwrap();
            drop(server);
        });
    }
}

/// Streams end in each way, with readers and writers of all kinds; a slow one costs only itself.
#[test]
fn many_streams_end_in_every_way_and_leave_nothing() {
    each(|mut fixture| async move {
        let client = fixture.client.clone();
        let (slow, slow_accepted) = fixture.pair().await;
        let writer = tokio::spawn(async move {
            let mut slow = slow;
            let wrote = slow.write_all(&[1; 4 << 20]).await;
            (slow, wrote)
        });
        const STREAMS: usize = 1000;
        let mut echoes = tokio::task::JoinSet::new();
        let accepting = async {
            for _ in 0..STREAMS {
                let (name, mut stream) = fixture.incoming.accept().await.unwrap();
                echoes.spawn(async move {
                    match &*name {
                        "echo" => {
                            let (recv, send) = stream.split();
                            tokio::io::copy(recv, send).await.unwrap();
                            stream.shutdown().await.unwrap();
                        }
                        "stop" => stream.split().0.stop(5),
                        _ => stream.split().1.reset(6),
                    }
                });
            }
        };
        let opening = async {
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..STREAMS {
                let name = ["echo", "echo", "stop", "reset"][number % 4];
                let mut stream = open(&client, name);
                tasks.spawn(async move {
                    let wanted = bytes(number, number * 7 % 3000);
                    match name {
                        "echo" => {
                            stream.write_all(wanted).await.unwrap();
                            stream.shutdown().await.unwrap();
                            let mut read = Vec::new();
                            stream.read_to_end(&mut read).await.unwrap();
                            assert_eq!(read, wanted);
                        }
                        "stop" => assert_eq!(stream.split().1.stopped().await, Some(5)),
                        _ => assert_eq!(Code::of(&stream.read(&mut [0]).await.unwrap_err()), Some(6)),
                    }
                });
            }
            while let Some(task) = tasks.join_next().await {
                task.unwrap();
            }
        };
        tokio::join!(accepting, opening);
        while let Some(task) = echoes.join_next().await {
            task.unwrap();
        }
        assert!(!writer.is_finished(), "its reader has read nothing");
        drop(slow_accepted);
        let (_slow, wrote) = writer.await.unwrap();
        assert_eq!(wrote.unwrap_err().kind(), ErrorKind::BrokenPipe);
        let server = &fixture.server;
        until("nothing is served", || server.stats().serving == 0).await;
    });
}
