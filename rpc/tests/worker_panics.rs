//! Workers that panic: their connections end, with cause and fate, and everybody is back soon.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::Future as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use common::{ProbeClient, Prober, address, block_on, config, connections, serve_probe, until};
use gimmal_rpc::{
    CallError, CallOptions, Client, Cx, Fate, Instant, Retry, RetryPolicy, Server, TransportError,
    engine::transport::CloseReason,
};

/// A panic whose payload panics when it is dropped: it escapes code that catches a panic.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the payload of a panic");
    }
}

fn explode() {
    std::panic::panic_any(Bomb);
}

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Fuse {
    /// Ends the worker that runs it.
    async fn burn(&self, cx: &Cx);
}

struct Burning;

impl Fuse for Burning {
    async fn burn(&self, _: &Cx) {
        // Later: the payload of a panic in the first poll is dropped behind the answer.
        common::sleep(5).await;
        explode();
    }
}

/// Wakers of callers that panic, so or so.
struct Bad(fn());

impl Wake for Bad {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn serve(scheme: &str, workers: usize) -> Server {
    let mut config = config();
    config.engine.workers = workers;
    let builder = Server::builder().service(serve_probe(Prober::default())).service(serve_fuse(Burning));
    builder.config(config).listen(&address(scheme, "panics")).unwrap()
}

fn connect(server: &Server) -> Client {
    Client::builder().config(config()).connect(&server.address().to_string()).unwrap()
}

/// The cause and the fate of a call whose connection ended.
fn ending<T: std::fmt::Debug>(result: Result<T, CallError>) -> (CloseReason, Fate) {
    match result.unwrap_err() {
        CallError::Transport(TransportError::Closed { reason, fate }) => (reason, fate),
        other => panic!("not for its connection: {other}"),
    }
}

for_each_scheme! {
    r103_a_server_outlives_its_workers
    r103_a_client_outlives_its_worker
    a_waker_that_panics_ends_nothing
    the_shared_worker_has_a_successor
}

/// Only the connections of the worker end, within a second; idempotent calls that are made again never fail; and the other
/// worker's clients notice nothing.
fn r103_a_server_outlives_its_workers(scheme: &str) {
    // On a busy machine any one may take long; so the shortest counts.
    let mut took = Vec::new();
    let is_short = (0..3).any(|_| {
        let (ended, longest) = a_server_outlives_its_workers(scheme);
        took.push((ended, longest));
        ended < Duration::from_secs(1) && longest < Duration::from_secs(2)
    });
    assert!(is_short, "until its calls ended, and the longest without an answer: {took:?}");
}

/// How long it took until calls of the worker that panicked had ended, and the longest time without an answer.
fn a_server_outlives_its_workers(scheme: &str) -> (Duration, Duration) {
    let server = serve(scheme, 2);
    let (here, there) = (connect(&server), connect(&server));
    until("each worker has one", || connections(&server) == [1, 1]);
    let stop = AtomicBool::new(false);
    /// Also when an assertion fails.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (echoed, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    let ended = std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let policy = RetryPolicy { attempts: 30, ..RetryPolicy::default() };
        let again = ProbeClient::new(Retry::new(here.clone(), policy));
        let other = ProbeClient::new(there.clone());
        let (stop, echoed, longest) = (&stop, &echoed, &longest);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let started = Instant::now();
                again.echo("again".to_owned()).wait().unwrap();
                let took = u64::try_from(started.elapsed().as_millis()).unwrap();
                longest.fetch_max(took, Ordering::Relaxed);
                echoed.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                other.echo("other".to_owned()).wait().unwrap();
            }
        });
        until("calls flow", || echoed.load(Ordering::Relaxed) > 10);
        let pending = ProbeClient::new(here.clone()).hang();
        let started = Instant::now();
        let (cause, fate) = ending(FuseClient::new(here.clone()).burn().wait());
        let known = match scheme {
            "mem" | "shm" | "tcp" => CloseReason::PeerGone { how: "its worker panicked" },
            _ => CloseReason::Peer,
        };
        assert_eq!((cause, fate), (known, Fate::MaybeRan));
        assert_eq!(ending(pending.wait()).1, Fate::MaybeRan);
        let ended = started.elapsed();
        until("it is back", || here.reconnects() == 1);
        let before = echoed.load(Ordering::Relaxed);
        until("calls flow again", || echoed.load(Ordering::Relaxed) > before + 10);
        ended
    });
    assert_eq!((there.reconnects(), server.stats().worker_panics), (0, 1));
    assert_eq!(server.last_worker_panic().as_deref(), Some("the payload of a panic"));
    // What the dead worker was serving is not waited for.
    drop((here, there));
    assert!(server.shutdown(Duration::from_secs(30)));
    (ended, Duration::from_millis(longest.into_inner()))
}

/// Calls that its worker had not taken did not run; those in flight may have. Both end at once, as futures too, and
/// the
/// client comes back by itself.
fn r103_a_client_outlives_its_worker(scheme: &str) {
    let server = serve(scheme, 1);
    let client = connect(&server);
    let probe = ProbeClient::new(client.clone());
    let bad = Waker::from(Arc::new(Bad(explode)));
    let mut took = Vec::new();
    for round in 1..=3 {
        let mut fatal = Box::pin(probe.later(20));
        assert!(fatal.as_mut().poll(&mut Context::from_waker(&bad)).is_pending());
        let (hanging, future) = (probe.hang(), probe.hang());
        let started = Instant::now();
        assert_eq!(ending(hanging.wait()), (CloseReason::WorkerPanicked, Fate::MaybeRan));
        assert_eq!(ending(block_on(future)), (CloseReason::WorkerPanicked, Fate::MaybeRan));
        took.push(started.elapsed());
        let ready = probe.clone().with_options(CallOptions::default().wait_for_ready());
        assert_eq!(ready.echo("back".to_owned()).wait().unwrap(), "back");
        assert!(client.is_ready());
        assert_eq!((client.reconnects(), client.stats().worker_panics), (round, round));
    }
    // On a busy machine any one may take long; so the shortest counts.
    assert!(took.iter().min() < Some(&Duration::from_secs(2)), "{took:?}");
    assert!(client.shutdown(Duration::MAX), "nothing is under way");
}

/// A waker is foreign code: the call has ended, and nothing else hears of it.
fn a_waker_that_panics_ends_nothing(scheme: &str) {
    let server = serve(scheme, 1);
    let client = connect(&server);
    let probe = ProbeClient::new(client.clone());
    let mut call = Box::pin(probe.later(20));
    let bad = Waker::from(Arc::new(Bad(|| panic!("a waker's bug"))));
    assert!(call.as_mut().poll(&mut Context::from_waker(&bad)).is_pending());
    assert_eq!(probe.later(60).wait().unwrap(), 60);
    assert_eq!(block_on(call).unwrap(), 20);
    assert_eq!((client.reconnects(), client.stats().worker_panics), (0, 0));
}

/// Clients that were made without a configuration share a worker: those that come after its panic, too.
fn the_shared_worker_has_a_successor(scheme: &str) {
    let server = serve(scheme, 1);
    let url = server.address().to_string();
    let client = Client::connect(&url).unwrap();
    let mut fatal = Box::pin(ProbeClient::new(client.clone()).later(20));
    let bad = Waker::from(Arc::new(Bad(explode)));
    assert!(fatal.as_mut().poll(&mut Context::from_waker(&bad)).is_pending());
    // The other case of this test may end the same worker.
    until("it is back", || client.reconnects() >= 1 && client.is_ready());
    let later = Client::connect(&url).unwrap();
    let ready = CallOptions::default().wait_for_ready();
    let echo = ProbeClient::new(Retry::new(later, RetryPolicy::default())).with_options(ready);
    assert_eq!(echo.echo("new".to_owned()).wait().unwrap(), "new");
}
