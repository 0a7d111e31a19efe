//! Ends of streams: what is given up is never taken for finished, whichever part is dropped first, in both directions.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use common::{Dice, address, config, until};
use gimmal_rpc::{CallError, Channel, Client, Code, Cx, LocalClient, ReadError, Server, Sink, Stream};

extern crate gimmal_rpc as gimmal;

#[gimmal_rpc::service(crate = gimmal_rpc, codec = common::Chosen)]
trait Store {
    /// Commits the items when the stream ends well; the error says how else it ended.
    async fn put(&self, cx: &Cx, items: Stream<u64>) -> Result<u64, (u64, String)>;
    /// Sends so many items, and ends as it is told.
    async fn get(&self, cx: &Cx, items: u64, end: String, out: Sink<u64>) -> Result<u64, String>;
    /// Asks again and again, whatever it is told.
    async fn insist(&self, cx: &Cx, items: Stream<u64>);
    /// Answers at once.
    async fn ping(&self, cx: &Cx) -> u64;
    /// Lets a download go on that waits for it.
    async fn go_on(&self, cx: &Cx);
}

/// What became of uploads.
#[derive(Clone, Default)]
struct Books {
    begun: Arc<AtomicU64>,
    committed: Arc<AtomicU64>,
    over: Arc<AtomicU64>,
    /// How often downloads may go on.
    goes: Arc<AtomicU64>,
}

/// A handler that ended, also by being dropped.
struct Over(Books);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.over.fetch_add(1, Ordering::SeqCst);
    }
}

impl Store for Books {
    async fn put(&self, _: &Cx, mut items: Stream<u64>) -> Result<u64, (u64, String)> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let _over = Over(self.clone());
        let (mut sum, mut count) = (0, 0);
        loop {
            match items.next().await {
                Some(Ok(item)) => (sum, count) = (sum + item, count + 1),
                Some(Err(error)) => return Err((count, error.to_string())),
                None => {
                    self.committed.fetch_add(1, Ordering::SeqCst);
                    return Ok(sum);
                }
            }
        }
    }

    async fn get(&self, _: &Cx, items: u64, end: String, mut out: Sink<u64>) -> Result<u64, String> {
        let half = items / 2;
        for item in 0..half {
            out.send(&item).await.unwrap();
        }
        match end.as_str() {
            "finish" | "scope" => {
                for item in half..items {
                    out.send(&item).await.unwrap();
                }
                if end == "finish" {
                    out.finish();
                }
                Ok(items)
            }
            "error" => Err("half way".to_owned()),
            "finish, error" => {
                out.finish();
                Err("half way".to_owned())
            }
            "panic" => panic!("as it was asked to"),
            "drop, wait" => {
                drop(out);
                let wanted = self.goes.load(Ordering::SeqCst) + 1;
                while self.goes.load(Ordering::SeqCst) < wanted {
                    common::sleep(1).await;
                }
                Ok(half)
            }
            // The handler returns before its thread is done.
            "thread" => {
                std::thread::spawn(move || {
                    for item in half..items {
                        out.blocking_send(&item).unwrap();
                    }
                });
                Ok(items)
            }
            "thread, panic" => {
                std::thread::spawn(move || {
                    let _out = out;
                    resume_unwind(Box::new("as it was asked to"));
                });
                Ok(items)
            }
            other => unreachable!("{other}"),
        }
    }

    async fn insist(&self, _: &Cx, mut items: Stream<u64>) {
        let _over = Over(self.clone());
        while items.next().await.is_some() {}
    }

    async fn ping(&self, _: &Cx) -> u64 {
        7
    }

    async fn go_on(&self, _: &Cx) {
        self.goes.fetch_add(1, Ordering::SeqCst);
    }
}

for_each_scheme! {
    an_upload_that_is_given_up_is_never_committed
    an_upload_that_is_finished_is_committed_once
    a_handler_is_told_that_its_caller_gave_up
    a_download_ends_well_after_a_good_answer_and_not_else
    a_download_whose_sink_was_dropped_ends_with_its_answer
    a_call_that_is_dropped_is_cancelled_with_a_full_inbox
    a_handler_that_does_not_heed_the_end_blocks_nobody
}

fn server(scheme: &str) -> (Server, Books, String) {
    let books = Books::default();
    let config = gimmal_rpc::Config { stream_window: 4 << 10, ..config() };
    let builder = Server::builder().service(serve_store(books.clone())).config(config);
    let server = builder.listen(&address(scheme, "ends")).unwrap();
    let url = server.address().to_string();
    (server, books, url)
}

fn client(url: &str) -> StoreClient {
    StoreClient::new(Client::builder().config(config()).connect(url).unwrap())
}

fn inline(url: &str) -> StoreClient<LocalClient> {
    StoreClient::new(Client::builder().config(config()).connect_local(url).unwrap())
}

/// Uploads that are given up in each way. Items beyond the window wait for a round trip through four threads, which a busy
/// host runs late one after the other.
fn uploads() -> u64 {
    std::env::var("GIMMAL_UPLOADS").map_or(100, |wanted| wanted.parse().expect("a number"))
}

/// A way to give an upload up.
type Way<C> = fn(&StoreClient<C>, &mut Dice);

/// Sends some items, as many as the lane and the window hold and more.
fn send<C: Channel>(items: &mut Sink<u64, C>, dice: &mut Dice) {
    let limit = if dice.once_in(16) { 800 } else { 10 };
    for item in 0..dice.below(limit) {
        items.blocking_send(&item).unwrap();
    }
}

fn sink_first<C: Channel>(client: &StoreClient<C>, dice: &mut Dice) {
    let (mut items, call) = client.put();
    send(&mut items, dice);
    drop(items);
    drop(call);
}

fn call_first<C: Channel>(client: &StoreClient<C>, dice: &mut Dice) {
    let (mut items, call) = client.put();
    send(&mut items, dice);
    drop(call);
    drop(items);
}

/// Locals go in reverse order: the call first.
fn end_of_scope<C: Channel>(client: &StoreClient<C>, dice: &mut Dice) {
    let (mut items, _call) = client.put();
    send(&mut items, dice);
}

/// What is said of a stream after its call was dropped is said to nobody.
fn call_then_finish<C: Channel>(client: &StoreClient<C>, dice: &mut Dice) {
    let (mut items, call) = client.put();
    send(&mut items, dice);
    drop(call);
    items.finish();
}

/// Fields go in order: the sink first.
fn panic_in_a_struct<C: Channel>(client: &StoreClient<C>, dice: &mut Dice) {
    struct Upload<S, F> {
        items: S,
        _call: F,
    }
    let (items, call) = client.put();
    let caught = catch_unwind(AssertUnwindSafe(move || {
        let mut upload = Upload { items, _call: call };
        send(&mut upload.items, dice);
        resume_unwind(Box::new("as it was asked to"));
    }));
    assert!(caught.is_err());
}

/// What a time-out around `join(feed, call)` does: a future of both, polled for a while, then dropped.
fn time_out<C: Channel>(client: &StoreClient<C>, dice: &mut Dice) {
    let (mut items, call) = client.put();
    let feed = async move {
        for item in 0.. {
            if items.send(&item).await.is_err() {
                return;
            }
        }
    };
    let mut feed = Box::pin(feed);
    let mut call = Box::pin(call);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..dice.below(20) {
        assert!(feed.as_mut().poll(&mut context).is_pending());
        assert!(call.as_mut().poll(&mut context).is_pending());
        std::thread::yield_now();
    }
}

fn give_up<C: Channel>(client: &StoreClient<C>, books: &Books, uploads: u64) {
    let ways: [(&str, Way<C>); 6] = [
        ("the sink first", sink_first),
        ("the call first", call_first),
        ("the call first, then the end", call_then_finish),
        ("the end of a scope", end_of_scope),
        ("a panic", panic_in_a_struct),
        ("a time-out", time_out),
    ];
    let mut dice = Dice::new(uploads);
    for (what, way) in ways {
        for _ in 0..uploads {
            way(client, &mut dice);
        }
        assert_eq!(books.committed.load(Ordering::SeqCst), 0, "{what}: of {uploads}");
    }
}

fn an_upload_that_is_given_up_is_never_committed(scheme: &str) {
    let (server, books, url) = server(scheme);
    give_up(&client(&url), &books, uploads());
    give_up(&inline(&url), &books, uploads() / 3);
    // The last requests may still be on their way when the client has gone.
    let count = |count: &AtomicU64| count.load(Ordering::SeqCst);
    until("all that began is over", || {
        server.stats().serving == 0 && count(&books.over) == count(&books.begun)
    });
    assert!(count(&books.begun) > 20, "only {} began at all", count(&books.begun));
    assert_eq!(count(&books.committed), 0);
}

fn an_upload_that_is_finished_is_committed_once(scheme: &str) {
    let (server, books, url) = server(scheme);
    let client = client(&url);
    let (mut dice, mut finished) = (Dice::new(3), 0);
    for _ in 0..300 {
        let (mut items, call) = client.put();
        let sent = dice.below(100);
        (0..sent).for_each(|item| items.blocking_send(&item).unwrap());
        if dice.once_in(3) {
            drop(items);
            assert_eq!(call.wait().unwrap_err(), CallError::App((sent, ReadError::Aborted(0).to_string())));
        } else {
            items.finish();
            assert_eq!(call.wait().unwrap(), (0..sent).sum::<u64>());
            finished += 1;
        }
        assert_eq!(books.committed.load(Ordering::SeqCst), finished);
    }
    assert_eq!(server.stats().serving, 0);
}

/// The sink is another thread's, which panics; the call goes on and says so.
fn a_handler_is_told_that_its_caller_gave_up(scheme: &str) {
    let (_server, books, url) = server(scheme);
    let (mut items, call) = client(&url).put();
    let feeder = std::thread::spawn(move || {
        (0..40).for_each(|item| items.blocking_send(&item).unwrap());
        resume_unwind(Box::new("as it was asked to"));
    });
    assert!(feeder.join().is_err());
    assert_eq!(call.wait().unwrap_err(), CallError::App((40, ReadError::Aborted(0).to_string())));
    assert_eq!(books.committed.load(Ordering::SeqCst), 0);
}

/// Reads to the end; how many items there were, and the end.
fn read<C: Channel>(stream: &mut Stream<u64, C>) -> (u64, Result<(), ReadError>) {
    let mut read = 0;
    loop {
        match stream.blocking_next() {
            Some(Ok(item)) => assert_eq!(item, read),
            Some(Err(error)) => {
                assert_eq!(stream.blocking_next(), Some(Err(error.clone())), "said again");
                return (read, Err(error));
            }
            None => {
                assert_eq!(stream.blocking_next(), None, "said again");
                return (read, Ok(()));
            }
        }
        read += 1;
    }
}

const ITEMS: u64 = 200;

fn downloads<C: Channel>(client: &StoreClient<C>) {
    let half = ITEMS / 2;
    for (end, wanted) in [
        ("finish", (ITEMS, Ok(()))),
        ("scope", (ITEMS, Ok(()))),
        ("thread", (ITEMS, Ok(()))),
        ("error", (half, Err(ReadError::Over))),
        ("finish, error", (half, Err(ReadError::Over))),
        ("panic", (half, Err(ReadError::Over))),
        ("thread, panic", (half, Err(ReadError::Over))),
    ] {
        let (mut stream, call) = client.get(ITEMS, end.to_owned());
        assert_eq!(read(&mut stream), wanted, "{end}");
        let answer = call.wait();
        assert_eq!(answer.is_ok(), wanted.1.is_ok(), "{end}: {answer:?}");
        if end.contains("panic") {
            assert_eq!(answer.unwrap_err().status().unwrap().code(), Code::Internal, "{end}");
        }
    }
    // The call is asked first: what came before its answer can still be read, and its end.
    let (mut stream, call) = client.get(8, "scope".to_owned());
    call.wait().unwrap();
    assert_eq!(read(&mut stream), (8, Ok(())));
}

fn a_download_ends_well_after_a_good_answer_and_not_else(scheme: &str) {
    let (server, _, url) = server(scheme);
    downloads(&client(&url));
    downloads(&inline(&url));
    until("nothing is served", || server.stats().serving == 0);
}

fn a_download_whose_sink_was_dropped_ends_with_its_answer(scheme: &str) {
    let (_server, _, url) = server(scheme);
    let client = client(&url);
    let (mut stream, call) = client.get(20, "drop, wait".to_owned());
    (0..10).for_each(|item| assert_eq!(stream.blocking_next(), Some(Ok(item))));
    for _ in 0..20 {
        assert!(stream.try_next().is_pending(), "the handler has not returned");
        std::thread::sleep(Duration::from_millis(1));
    }
    client.go_on().wait().unwrap();
    assert_eq!(stream.blocking_next(), None);
    assert_eq!(call.wait().unwrap(), 10);
    // Dropped, it has not come to its end, whatever the handler does then.
    let (mut stream, call) = client.get(20, "drop, wait".to_owned());
    assert_eq!(stream.blocking_next(), Some(Ok(0)));
    drop(call);
    assert_eq!(read_rest(&mut stream), Err(ReadError::Over));
}

fn read_rest<C: Channel>(stream: &mut Stream<u64, C>) -> Result<(), ReadError> {
    loop {
        match stream.blocking_next() {
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => return Ok(()),
        }
    }
}

/// A waker that keeps its worker from its inbox until it is let go.
#[derive(Default)]
struct Holding {
    is_held: AtomicBool,
    may_go: AtomicBool,
}

impl std::task::Wake for Holding {
    fn wake(self: Arc<Self>) {
        self.is_held.store(true, Ordering::SeqCst);
        until("it may go", || self.may_go.load(Ordering::SeqCst));
    }
}

fn a_call_that_is_dropped_is_cancelled_with_a_full_inbox(scheme: &str) {
    let (server, books, url) = server(scheme);
    let mut config = config();
    config.engine.inbox = 4;
    let narrow = StoreClient::new(Client::builder().config(config).connect(&url).unwrap());
    let (mut items, call) = narrow.put();
    items.blocking_send(&1).unwrap();
    until("it began", || books.begun.load(Ordering::SeqCst) == 1);
    let holding = Arc::<Holding>::default();
    let (_, mut waiting) = narrow.get(0, "drop, wait".to_owned());
    let polled = Pin::new(&mut waiting).poll(&mut Context::from_waker(&Waker::from(Arc::clone(&holding))));
    assert!(polled.is_pending());
    let other = client(&url);
    until("its worker is held", || {
        other.go_on().wait().unwrap();
        holding.is_held.load(Ordering::SeqCst)
    });
    let calls: Vec<_> = (0..8).map(|_| narrow.ping()).collect();
    drop(call);
    items.finish();
    holding.may_go.store(true, Ordering::SeqCst);
    let refused = calls.into_iter().filter_map(|call| call.wait().err()).count();
    assert!(refused > 0, "the inbox was never full");
    until("its handler is gone", || books.over.load(Ordering::SeqCst) == 1);
    assert_eq!(books.committed.load(Ordering::SeqCst), 0);
    drop(waiting);
    until("nothing is served", || server.stats().serving == 0);
}

fn a_handler_that_does_not_heed_the_end_blocks_nobody(scheme: &str) {
    let (server, books, url) = server(scheme);
    let client = client(&url);
    let (items, call) = client.insist();
    drop(items);
    for _ in 0..20 {
        assert_eq!(client.ping().wait().unwrap(), 7, "on the same worker");
    }
    assert_eq!(books.over.load(Ordering::SeqCst), 0, "it is told no good end");
    drop(call);
    until("it was cancelled", || books.over.load(Ordering::SeqCst) == 1);
    assert_eq!(server.stats().panics, 0);
}
