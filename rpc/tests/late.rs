//! A client whose worker has a full inbox: what must not be lost for it, is not.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use common::{Fixture, ProbeClient, config, connections, until};
use gimmal_rpc::{CallError, CallOptions, Client, Config, Fate, TransportError};

for_each_scheme! {
    a_call_that_is_dropped_while_the_inbox_is_full_is_cancelled
    a_client_that_is_dropped_while_the_inbox_is_full_leaves_its_connection
    a_client_that_is_shut_down_while_the_inbox_is_full_leaves_its_connection
}

/// With a place for one command.
fn narrow() -> Config {
    let mut config = config();
    config.engine.inbox = 1;
    config
}

/// Blocks the thread that wakes it until the test lets go.
struct Blocks {
    is_in: AtomicBool,
    go: Mutex<mpsc::Receiver<()>>,
}

impl Wake for Blocks {
    fn wake(self: Arc<Self>) {
        self.is_in.store(true, Ordering::SeqCst);
        // An error: the test lets go.
        let _ = self.go.lock().unwrap().recv();
    }
}

/// A worker that blocks until this is dropped.
struct Blocked {
    _let_go: mpsc::Sender<()>,
    /// Dropped after that.
    _call: Pin<Box<dyn Future<Output = Result<u64, CallError>>>>,
}

/// Makes a call as soon as the inbox takes one: what was asked before may still have the place.
fn taken<F: Future>(waker: &Waker, mut start: impl FnMut() -> F) -> Pin<Box<F>> {
    let mut taken = None;
    until("the inbox takes a call", || {
        let mut call = Box::pin(start());
        let is_taken = call.as_mut().poll(&mut Context::from_waker(waker)).is_pending();
        taken = is_taken.then_some(call);
        is_taken
    });
    taken.unwrap()
}

/// Has the worker of `client` block in a waker.
fn block(client: &ProbeClient) -> Blocked {
    let (let_go, go) = mpsc::channel();
    let blocks = Arc::new(Blocks { is_in: AtomicBool::new(false), go: Mutex::new(go) });
    let waker = Waker::from(Arc::clone(&blocks));
    let call = taken(&waker, || client.later(200));
    until("the worker blocks", || blocks.is_in.load(Ordering::SeqCst));
    Blocked { _let_go: let_go, _call: call }
}

/// Whether the inbox had no place for a call.
fn is_refused(call: impl Future<Output = Result<(), CallError>>) -> bool {
    let polled = Box::pin(call).as_mut().poll(&mut Context::from_waker(Waker::noop()));
    matches!(
        polled,
        Poll::Ready(Err(CallError::Transport(TransportError::Worker { fate: Fate::NotRun, .. })))
    )
}

/// A call that ends when it is cancelled.
fn endless(client: &ProbeClient) -> ProbeClient {
    client.clone().with_options(CallOptions::default().timeout(None))
}

fn a_call_that_is_dropped_while_the_inbox_is_full_is_cancelled(scheme: &str) {
    let fixture = Fixture::new(scheme, "late-cancel");
    let client = fixture.client_with(narrow());
    let hangs = taken(Waker::noop(), || endless(&client).hang());
    until("it hangs", || fixture.hanging() == 1);
    let blocked = block(&client);
    // The one that has the place is cancelled before the worker has seen it.
    let waits = endless(&client).hang();
    assert!(is_refused(client.hang()), "the inbox is full");
    drop((hangs, waits));
    drop(blocked);
    until("both are cancelled", || client.channel().stats().cancelled >= 2);
    until("nothing is served", || fixture.hanging() == 0 && fixture.server.stats().serving == 0);
    until("it is served", || client.echo("alive".to_owned()).wait().is_ok());
}

/// Two clients on one worker, whose inbox is full while the second of them goes.
fn leaves_with_a_full_inbox(scheme: &str, name: &str, waiting_max: usize, go: impl FnOnce(ProbeClient)) {
    let fixture = Fixture::new(scheme, name);
    // Workers of these two: nobody else has such a configuration.
    let number = ["mem", "shm", "tcp", "rxe", "siw"].iter().position(|other| *other == scheme).unwrap();
    let config = Config { waiting_max: waiting_max + number, ..narrow() };
    let connect = || {
        let builder = Client::builder().config(config.clone()).share_workers();
        ProbeClient::new(builder.connect(&fixture.url).unwrap())
    };
    let (stays, leaves) = (connect(), connect());
    until("both are there", || connections(&fixture.server).iter().sum::<usize>() == 2);
    let blocked = block(&stays);
    let waits = stays.hang();
    assert!(is_refused(stays.hang()), "the inbox is full");
    go(leaves);
    drop(blocked);
    until("one has left", || connections(&fixture.server).iter().sum::<usize>() == 1);
    drop(waits);
    until("it is served", || stays.echo("alive".to_owned()).wait().is_ok());
}

fn a_client_that_is_dropped_while_the_inbox_is_full_leaves_its_connection(scheme: &str) {
    leaves_with_a_full_inbox(scheme, "late-close", 100, drop);
}

fn a_client_that_is_shut_down_while_the_inbox_is_full_leaves_its_connection(scheme: &str) {
    leaves_with_a_full_inbox(scheme, "late-shutdown", 110, |client| {
        assert!(!client.channel().clone().shutdown(Duration::ZERO), "its worker is asked");
    });
}
