//! Handlers that use gimmal themselves: what would wait for its own thread is refused at once, the rest works.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{address, config, connections, until};
use gimmal_rpc::{
    Behind, CallError, CallOptions, Client, Code, ConnectError, Cx, Fate, Hedge, Instant, ReadError, Retry,
    RetryPolicy, Server, Sink, Stream, StreamError, Topic, TransportError, codec::EncodeError,
};

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Within {
    async fn echo(&self, cx: &Cx, number: u64) -> u64;
    #[idempotent]
    async fn repeat(&self, cx: &Cx, number: u64) -> u64;
    /// Waits for a call to this very server; what it came to, and after how many ms.
    async fn wait(&self, cx: &Cx) -> (Came, u64);
    #[inline]
    fn wait_inline(&self, cx: &Cx) -> (Came, u64);
    /// Awaits it.
    async fn ask(&self, cx: &Cx) -> (Came, u64);
    /// Calls itself, `depth` times one in another. Returns how many of these handlers are pending at the bottom.
    async fn descend(&self, cx: &Cx, depth: u64) -> u64;
    /// Connects to this server.
    async fn connect(&self, cx: &Cx) -> (Came, u64);
    /// Sends with the blocking end until that would block.
    async fn pour(&self, cx: &Cx, out: Sink<u64>) -> (Came, u64);
    /// Reads with the blocking end.
    async fn drain(&self, cx: &Cx, items: Stream<u64>) -> (Came, u64);
    /// Publishes with the blocking end, to a topic that nobody reads.
    async fn publish(&self, cx: &Cx) -> (Came, u64);
    /// Subscribes to that topic.
    async fn subscribe(&self, cx: &Cx, out: Sink<u64>);
    /// Ends the client that it has, or the server that runs it.
    async fn end(&self, cx: &Cx, what: End) -> (Came, u64);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
enum Came {
    Refused,
    Answered,
    Otherwise,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
enum End {
    DropClient,
    ShutClient,
    DropServer,
    ShutServer,
}

/// What the handlers use.
struct Used {
    client: Mutex<Option<Client>>,
    server: Mutex<Option<Server>>,
    url: Mutex<String>,
    pending: AtomicU64,
    topic: Topic<u64>,
}

#[derive(Clone)]
struct User(Arc<Used>);

impl Default for User {
    fn default() -> Self {
        let topic = Topic::new(2, Behind::Wait);
        Self(Arc::new(Used {
            client: Mutex::default(),
            server: Mutex::default(),
            url: Mutex::default(),
            pending: AtomicU64::new(0),
            topic,
        }))
    }
}

impl User {
    fn own(&self) -> WithinClient {
        WithinClient::new(self.0.client.lock().unwrap().clone().unwrap())
    }
}

fn came(result: &Result<u64, CallError>) -> Came {
    match result {
        Ok(7) => Came::Answered,
        Err(CallError::Transport(TransportError::OwnWorker { fate: Fate::MaybeRan })) => Came::Refused,
        _ => Came::Otherwise,
    }
}

fn timed(run: impl FnOnce() -> Came) -> (Came, u64) {
    let started = Instant::now();
    let came = run();
    (came, u64::try_from(started.elapsed().as_millis()).unwrap())
}

/// A handler that ends, or is dropped.
struct Gone<'a>(&'a AtomicU64);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Within for User {
    async fn echo(&self, _: &Cx, number: u64) -> u64 {
        number
    }

    async fn repeat(&self, _: &Cx, number: u64) -> u64 {
        number
    }

    async fn wait(&self, _: &Cx) -> (Came, u64) {
        timed(|| {
            // A layer around it hands the refusal on, and does not try again.
            let again = WithinClient::new(Retry::new(self.own().channel().clone(), RetryPolicy::default()));
            let hedged = Hedge::new(self.own().channel().clone(), Duration::from_millis(1));
            let first = came(&self.own().echo(7).wait());
            let others = [again.echo(7).wait(), WithinClient::new(hedged).repeat(7).wait()];
            if others.iter().all(|other| came(other) == first) { first } else { Came::Otherwise }
        })
    }

    fn wait_inline(&self, _: &Cx) -> (Came, u64) {
        timed(|| came(&self.own().echo(7).wait()))
    }

    async fn ask(&self, _: &Cx) -> (Came, u64) {
        let started = Instant::now();
        let came = came(&self.own().echo(7).await);
        (came, u64::try_from(started.elapsed().as_millis()).unwrap())
    }

    async fn descend(&self, cx: &Cx, depth: u64) -> u64 {
        let pending = self.0.pending.fetch_add(1, Ordering::SeqCst) + 1;
        let _gone = Gone(&self.0.pending);
        if depth == 0 {
            return pending;
        }
        let options = CallOptions::default().within(cx);
        self.own().with_options(options).descend(depth - 1).await.unwrap_or(0)
    }

    async fn connect(&self, _: &Cx) -> (Came, u64) {
        let url = self.0.url.lock().unwrap().clone();
        timed(|| match Client::builder().config(config()).connect(&url) {
            Err(ConnectError::OwnWorker { .. }) => Came::Refused,
            Ok(_) => Came::Answered,
            Err(_) => Came::Otherwise,
        })
    }

    async fn pour(&self, _: &Cx, mut out: Sink<u64>) -> (Came, u64) {
        timed(|| {
            loop {
                match out.blocking_send(&1) {
                    Ok(()) => {}
                    Err(StreamError::OwnWorker) => return Came::Refused,
                    Err(_) => return Came::Otherwise,
                }
            }
        })
    }

    async fn drain(&self, _: &Cx, mut items: Stream<u64>) -> (Came, u64) {
        timed(|| match items.blocking_next() {
            Some(Err(ReadError::OwnWorker)) => Came::Refused,
            _ => Came::Otherwise,
        })
    }

    async fn publish(&self, _: &Cx) -> (Came, u64) {
        timed(|| {
            loop {
                match self.0.topic.blocking_publish(&1) {
                    Ok(_) => {}
                    Err(EncodeError::OwnWorker) => return Came::Refused,
                    Err(_) => return Came::Otherwise,
                }
            }
        })
    }

    async fn subscribe(&self, _: &Cx, out: Sink<u64>) {
        self.0.topic.feed(out).await;
    }

    async fn end(&self, _: &Cx, what: End) -> (Came, u64) {
        let used = &self.0;
        timed(|| {
            let ended = match what {
                End::DropClient => {
                    drop(used.client.lock().unwrap().take());
                    true
                }
                End::ShutClient => used.client.lock().unwrap().take().unwrap().shutdown(Duration::MAX),
                End::DropServer => {
                    drop(used.server.lock().unwrap().take());
                    true
                }
                End::ShutServer => {
                    used.server.lock().unwrap().take().unwrap().shutdown(Duration::from_secs(60))
                }
            };
            if ended { Came::Answered } else { Came::Refused }
        })
    }
}

/// At once, on a machine with other things to do. What waits does so until the deadline of a minute.
const SOON_MS: u64 = 30_000;

struct Running {
    user: User,
    url: String,
    outer: WithinClient,
}

/// A server with a client of its own, on the worker that serves `outer` if `workers` is 1, and on the other if it is 2.
fn run(scheme: &str, workers: usize) -> Running {
    let mut of_server = config();
    of_server.engine.workers = workers;
    let user = User::default();
    let server = Server::builder().service(serve_within(user.clone())).config(of_server);
    let server = server.listen(&address(scheme, "within")).unwrap();
    let url = server.address().to_string();
    let connect = || Client::builder().config(config()).connect(&url).unwrap();
    *user.0.client.lock().unwrap() = Some(connect());
    let outer = WithinClient::new(connect());
    until("both are there", || connections(&server).iter().sum::<usize>() == 2);
    *user.0.server.lock().unwrap() = Some(server);
    *user.0.url.lock().unwrap() = url.clone();
    Running { user, url, outer }
}

mod mem {
    #[test]
    fn r97_a_handler_calls_the_server_that_runs_it() {
        super::r97_a_handler_calls_the_server_that_runs_it("mem");
    }
    #[test]
    fn what_would_wait_for_itself_is_refused() {
        super::what_would_wait_for_itself_is_refused("mem");
    }
    #[test]
    fn a_client_or_server_ends_from_within() {
        super::a_client_or_server_ends_from_within("mem");
    }
}

mod shm {
    #[test]
    fn r97_a_handler_calls_the_server_that_runs_it() {
        super::r97_a_handler_calls_the_server_that_runs_it("shm");
    }
    #[test]
    fn what_would_wait_for_itself_is_refused() {
        super::what_would_wait_for_itself_is_refused("shm");
    }
    #[test]
    fn a_client_or_server_ends_from_within() {
        super::a_client_or_server_ends_from_within("shm");
    }
}

fn what_would_wait_for_itself_is_refused(scheme: &str) {
    let running = run(scheme, 1);
    let outer = &running.outer;
    for (came, ms) in
        [outer.wait().wait().unwrap(), outer.wait_inline().wait().unwrap(), outer.connect().wait().unwrap()]
    {
        assert_eq!(came, Came::Refused, "after {ms} ms");
        assert!(ms < SOON_MS, "refused after {ms} ms");
    }
    let (_items, poured) = outer.pour();
    let (_sink, drained) = outer.drain();
    let (_feed, _subscribed) = outer.subscribe();
    until("it has a subscriber", || running.user.0.topic.subscribers() == 1);
    for (came, ms) in [poured.wait().unwrap(), drained.wait().unwrap(), outer.publish().wait().unwrap()] {
        assert_eq!(came, Came::Refused, "after {ms} ms");
        assert!(ms < SOON_MS, "refused after {ms} ms");
    }
    assert_eq!(outer.ask().wait().unwrap().0, Came::Answered);
    // Another worker answers meanwhile.
    let running = run(scheme, 2);
    assert_eq!(running.outer.wait().wait().unwrap().0, Came::Answered);
    // From a thread that serves nothing it is a call like any other.
    assert_eq!(running.user.own().echo(7).wait().unwrap(), 7);
}

/// One worker serves all of it and has the client, too. Within the client's window every level answers; beyond it the
/// deepest call waits for a place that never comes, until the deadline, and nothing is left of it.
fn r97_a_handler_calls_the_server_that_runs_it(scheme: &str) {
    let running = run(scheme, 1);
    assert_eq!(running.outer.descend(40).wait().unwrap(), 41, "all were pending at once");
    let short = CallOptions::default().timeout(Duration::from_millis(400));
    match running.outer.clone().with_options(short).descend(200).wait() {
        // A level further down was told first.
        Ok(pending) => assert_eq!(pending, 0),
        Err(error) => assert_eq!(error.status().unwrap().code(), Code::DeadlineExceeded, "{error}"),
    }
    until("every level has ended", || running.user.0.pending.load(Ordering::SeqCst) == 0);
    assert_eq!(running.outer.descend(40).wait().unwrap(), 41);
}

fn a_client_or_server_ends_from_within(scheme: &str) {
    for (what, expected) in [
        (End::DropClient, Came::Answered),
        (End::ShutClient, Came::Refused),
        (End::DropServer, Came::Answered),
        (End::ShutServer, Came::Refused),
    ] {
        let Running { user, url, outer } = run(scheme, 1);
        let ended = outer.end(what).wait();
        // A server that is dropped ends its connections; its own handler's answer may go with them.
        if what != End::DropServer || ended.is_ok() {
            let (came, ms) = ended.unwrap();
            assert_eq!(came, expected, "{what:?}");
            assert!(ms < SOON_MS, "{what:?} took {ms} ms");
        }
        if matches!(what, End::DropClient | End::ShutClient) {
            assert_eq!(outer.echo(7).wait().unwrap(), 7, "{what:?}");
        } else {
            drop(outer);
            let next = Server::builder().service(serve_within(user.clone())).config(config());
            let _next = next.take_over(Duration::from_secs(20)).listen(&url).unwrap();
        }
        *user.0.client.lock().unwrap() = None;
    }
}
