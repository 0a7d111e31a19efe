//! Ten thousand streams on one connection, and storms of a thousand.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::poll_fn,
    io::{Error, ErrorKind, IoSlice},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use common::{Fixture, Rng, bytes, roomy, until};
use gimmal_io::{Code, Duplex, RecvStream, SendStream, open};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinSet,
};

/// One test at a time: the memory of the process is looked at.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of memory that this process has.
fn memory() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Opens so many streams, a hundred at a time, and takes them all.
async fn open_all(fixture: &mut Fixture, streams: usize) -> Vec<(Duplex, Duplex)> {
    let mut pairs = Vec::with_capacity(streams);
    while pairs.len() < streams {
        let opened: Vec<_> = (0..100).map(|_| open(&fixture.client, "one of many")).collect();
        for opened in opened {
            pairs.push((opened, fixture.incoming.accept().await.unwrap().1));
        }
    }
    pairs
}

/// Each stream sends and gets a few bytes, all at once.
async fn ping_all(pairs: Vec<(Duplex, Duplex)>) -> Vec<(Duplex, Duplex)> {
    let mut tasks = JoinSet::new();
    for (number, (mut opened, mut accepted)) in pairs.into_iter().enumerate() {
        tasks.spawn(async move {
            let (sent, mut read) = (bytes(number, 100), [0; 100]);
            opened.write_all(sent).await.unwrap();
            accepted.read_exact(&mut read).await.unwrap();
            accepted.write_all(&read).await.unwrap();
            read.fill(0);
            opened.read_exact(&mut read).await.unwrap();
            assert_eq!(read, *sent);
            (opened, accepted)
        });
    }
    tasks.join_all().await
}

/// What an idle stream takes at most at both its ends together, bytes.
fn idle_most() -> usize {
    // The first of a process pay for what the allocator takes ahead, and the lab's are the first.
    if std::env::var_os("GIMMAL_LAB").is_some() { 8 << 10 } else { 4 << 10 }
}

#[test]
fn ten_thousand_streams_of_a_connection_lose_nothing_to_a_slow_reader() {
    const STREAMS: usize = 10_000;
    let _alone = alone();
    common::each(&roomy(STREAMS + 1), |mut fixture| async move {
        static WRITTEN: AtomicUsize = AtomicUsize::new(0);
        WRITTEN.store(0, Ordering::Relaxed);
        let (slow, unread) = fixture.pair().await;
        let writing = tokio::spawn(async move {
            let (_recv, mut send) = slow.into_split();
            loop {
                match send.write(&[1; 4096]).await {
                    Ok(bytes) => drop(WRITTEN.fetch_add(bytes, Ordering::Relaxed)),
                    Err(error) => return error,
                }
            }
        });
        let before = memory();
        let pairs = open_all(&mut fixture, STREAMS).await;
        let each = memory().saturating_sub(before) / STREAMS;
        println!("{each} bytes for each idle stream, both ends");
        assert!(each <= idle_most(), "an idle stream takes {each} bytes");
        let pairs = ping_all(pairs).await;
        let written = WRITTEN.load(Ordering::Relaxed);
        let window = gimmal::Config::default().stream_window as usize;
        assert!((window..=window + (192 << 10)).contains(&written), "{written} bytes are not read");
        let pairs = ping_all(pairs).await;
        assert_eq!(WRITTEN.load(Ordering::Relaxed), written, "nobody reads them");
        drop(pairs);
        until("one is served", || fixture.server.stats().serving == 1).await;
        drop(unread);
        assert_eq!(writing.await.unwrap().kind(), ErrorKind::BrokenPipe);
        fixture.settled().await;
    });
}

/// How a writer ends its half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Last {
    Finish,
    Reset(u32),
    Drop,
}

/// How a reader leaves its half: at the end, or once it has read so much, by a code or by dropping it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leave {
    AtEnd,
    Stop { after: usize, code: u32 },
    Drop { after: usize },
}

/// What happens in one direction of a stream. Both its ends know it.
#[derive(Clone, Copy, Debug)]
struct Way {
    bytes: usize,
    last: Last,
    leave: Leave,
}

impl Way {
    fn draw(rng: &mut Rng) -> Self {
        let most = [1, 100, 5000, 50_000, 600_000][[0, 1, 1, 2, 2, 2, 3, 3, 3, 4][rng.below(10)]];
        let bytes = rng.below(most);
        let code = u32::try_from(rng.below(1 << 20)).unwrap();
        let last = [Last::Finish, Last::Finish, Last::Reset(code), Last::Drop][rng.below(4)];
        let after = rng.below(bytes + 1);
        let leave = match rng.below(6) {
            0 => Leave::Stop { after, code },
            1 => Leave::Drop { after },
            _ => Leave::AtEnd,
        };
        Self { bytes, last, leave }
    }
}

/// Polls a future once or a few times, and then drops it, unless it is ready.
async fn cancelled<F: Future>(rng: &mut Rng, future: F) -> Option<F::Output> {
    let (mut future, mut polls) = (std::pin::pin!(future), rng.below(3));
    poll_fn(|context| match (future.as_mut().poll(context), polls) {
        (Poll::Ready(output), _) => Poll::Ready(Some(output)),
        (Poll::Pending, 0) => Poll::Ready(None),
        (Poll::Pending, _) => {
            polls -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// Writes as its way says.
async fn write(mut send: SendStream, way: Way, mut rng: Rng) {
    let mut at = 0;
    while at < way.bytes {
        // The large ones go as bulk.
        let most = if rng.below(4) == 0 { 150_000 } else { 20_000 };
        let piece = bytes(at, (1 + rng.below(most)).min(way.bytes - at));
        let wrote = match rng.below(5) {
            0 => match send.try_write(piece) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => send.writable().await.map(|()| 0),
                wrote => wrote,
            },
            1 => {
                let (one, two) = piece.split_at(rng.below(piece.len() + 1));
                let pieces = [IoSlice::new(one), IoSlice::new(two)];
                poll_fn(|context| send.poll_write_pieces(context, &pieces)).await
            }
            2 => cancelled(&mut rng, send.write(piece)).await.unwrap_or(Ok(0)),
            _ => send.write(piece).await,
        };
        match wrote {
            Ok(bytes) => at += bytes,
            Err(error) => return stopped(&error, way),
        }
    }
    match way.last {
        Last::Finish if rng.below(2) == 0 => send.finish(),
        Last::Finish => send.closed().await.unwrap(),
        Last::Reset(code) => send.reset(code),
        Last::Drop => drop(send),
    }
}

/// A write has failed: the reader stopped it, and with this code.
fn stopped(error: &Error, way: Way) {
    let code = match way.leave {
        Leave::AtEnd => panic!("nobody stopped it: {error}"),
        Leave::Stop { code, .. } => code,
        Leave::Drop { .. } => 0,
    };
    assert_eq!((error.kind(), Code::of(error)), (ErrorKind::BrokenPipe, Some(code)));
}

/// Takes some of the bytes that are here, in one of the ways to do that. Returns how many; 0 is the end, `None` a wait without bytes.
async fn take(recv: &mut RecvStream, rng: &mut Rng, at: usize) -> Result<Option<usize>, Error> {
    let check = |read: &[u8]| {
        assert!(read == bytes(at, read.len()), "other bytes behind {at}");
        Some(read.len())
    };
    let mut buffer = [0; 4096];
    let len = 1 + rng.below(buffer.len());
    match rng.below(5) {
        0 => Ok(recv.read_chunk().await?.map_or(Some(0), |chunk| check(&chunk))),
        1 => {
            recv.readable().await?;
            let here = recv.try_peek()?;
            let taken = here.len().min(len);
            check(&here[..taken]);
            recv.consume(taken);
            Ok(Some(taken))
        }
        2 => match cancelled(rng, recv.read_chunk()).await {
            Some(chunk) => Ok(chunk?.map_or(Some(0), |chunk| check(&chunk))),
            None => Ok(None),
        },
        3 => match recv.try_read(&mut buffer[..len]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => recv.readable().await.map(|()| None),
            read => {
                let len = read?;
                Ok(check(&buffer[..len]))
            }
        },
        _ => {
            let len = recv.read(&mut buffer[..len]).await?;
            Ok(check(&buffer[..len]))
        }
    }
}

/// Reads as its way says. `may_lose`: its writer is dropped behind a reader that leaves bytes unread.
async fn read(mut recv: RecvStream, way: Way, may_lose: bool, mut rng: Rng) {
    let mut at = 0;
    let end = loop {
        match way.leave {
            Leave::Stop { after, code } if at >= after => {
                recv.stop(code);
                assert_eq!(recv.read(&mut [0]).await.unwrap(), 0);
                return;
            }
            Leave::Drop { after } if at >= after => return,
            _ => {}
        }
        match take(&mut recv, &mut rng, at).await {
            Ok(Some(0)) => break Ok(()),
            Ok(taken) => at += taken.unwrap_or(0),
            Err(error) => break Err(error),
        }
    };
    assert_eq!(at, way.bytes, "all bytes come before the end: {end:?}");
    let code = end.as_ref().err().map(|error| {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        Code::of(error).expect("the connection was not lost")
    });
    match way.last {
        Last::Reset(wanted) => assert_eq!(code, Some(wanted)),
        Last::Drop if may_lose => assert!(matches!(code, None | Some(0)), "{code:?}"),
        Last::Finish | Last::Drop => assert_eq!(code, None),
    }
    let again = recv.read(&mut [0]).await;
    assert_eq!(again.err().and_then(|error| Code::of(&error)), code, "the end is said again");
}

/// Both halves of one end of a stream, each in a task of its own.
fn run(tasks: &mut JoinSet<()>, stream: Duplex, [sent, got]: [Way; 2], seed: u64) {
    let (recv, send) = stream.into_split();
    let may_lose = got.last == Last::Drop && matches!(sent.leave, Leave::Drop { .. });
    tasks.spawn(write(send, sent, Rng::new(seed + 1)));
    tasks.spawn(read(recv, got, may_lose, Rng::new(seed + 2)));
}

/// A thousand streams at once, each with writers, readers and ends of its own.
async fn storm(fixture: &mut Fixture, seed: u64) {
    const STREAMS: u64 = 1000;
    let mut tasks = JoinSet::new();
    let ways = |seed: u64| {
        let mut rng = Rng::new(seed);
        [Way::draw(&mut rng), Way::draw(&mut rng)]
    };
    for number in 0..STREAMS {
        let seed = (seed * STREAMS + number) * 5;
        run(&mut tasks, open(&fixture.client, &seed.to_string()), ways(seed), seed);
    }
    for _ in 0..STREAMS {
        let (seed, stream) = fixture.incoming.accept().await.unwrap();
        let seed = seed.parse().unwrap();
        let [up, down] = ways(seed);
        run(&mut tasks, stream, [down, up], seed + 2);
    }
    tasks.join_all().await;
}

#[test]
fn storms_of_streams_tell_every_byte_and_every_end_once() {
    let _alone = alone();
    let storms = std::env::var("GIMMAL_STORMS").map_or(1, |storms| storms.parse().unwrap());
    common::each(&roomy(1024), |mut fixture| async move {
        for seed in 0..storms {
            storm(&mut fixture, seed).await;
            fixture.settled().await;
        }
        // The windows are back in the connection's budget: a new stream has a whole one.
        let (mut opened, _accepted) = fixture.pair().await;
        let mut written = 0;
        while let Ok(wrote) =
            tokio::time::timeout(Duration::from_secs(2), opened.split().1.write(&[1; 4096])).await
        {
            written += wrote.unwrap();
        }
        assert!(written >= 256 << 10, "{written}");
    });
}
