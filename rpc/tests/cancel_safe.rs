//! Cancel safety: every future of a call, a stream and a topic is polled a few times and left or dropped, as `select!` does, at random
//! by seed. Nothing is lost, doubled or out of order.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use common::{Dice, address, block_on, config, until};
use gimmal_rpc::{
    Behind, CallOptions, Channel, Client, Cx, Fed, Hedge, Retry, RetryPolicy, Server, Sink, Stream, Topic,
};

extern crate gimmal_rpc as gimmal;

#[gimmal_rpc::service(crate = gimmal_rpc, codec = common::Chosen)]
trait Work {
    /// Counts to `limit`.
    async fn count(&self, cx: &Cx, seed: u64, limit: u64, out: Sink<u64>) -> u64;
    /// How many numbers came; an error when one was not the next, or the end was not good.
    async fn check(&self, cx: &Cx, seed: u64, numbers: Stream<u64>) -> Result<u64, String>;
    /// Answers with the number it was given, later.
    #[idempotent]
    async fn later(&self, cx: &Cx, number: u64) -> u64;
    /// Everything that is published.
    async fn follow(&self, cx: &Cx, seed: u64, items: Sink<u64>) -> u64;
}

#[derive(Clone)]
struct Worker {
    topic: Topic<u64>,
    ran: Arc<AtomicU64>,
}

impl Work for Worker {
    async fn count(&self, _: &Cx, seed: u64, limit: u64, mut out: Sink<u64>) -> u64 {
        let mut dice = Dice::new(seed);
        send_all(&mut dice, &mut out, limit).await;
        limit
    }

    async fn check(&self, _: &Cx, seed: u64, mut numbers: Stream<u64>) -> Result<u64, String> {
        let mut dice = Dice::new(seed);
        Ok(read_all(&mut dice, &mut numbers).await)
    }

    async fn later(&self, _: &Cx, number: u64) -> u64 {
        self.ran.fetch_add(1, Ordering::SeqCst);
        for _ in 0..number % 7 {
            yield_now().await;
        }
        number
    }

    async fn follow(&self, _: &Cx, seed: u64, items: Sink<u64>) -> u64 {
        let mut dice = Dice::new(seed);
        let mut feed = pin!(self.topic.feed(items));
        loop {
            if let Some(Fed { sent, .. }) = tried(&mut dice, feed.as_mut()).await {
                return sent;
            }
        }
    }
}

for_each_scheme! {
    no_item_down_is_lost_or_doubled
    no_item_up_is_lost_or_doubled
    no_answer_is_lost_or_doubled
    a_driver_that_is_left_and_run_again_loses_nothing
    a_publication_that_is_dropped_reaches_nobody
}

fn server(scheme: &str) -> (Server, Worker, String) {
    let worker = Worker { topic: Topic::new(4, Behind::Wait), ran: Arc::default() };
    let builder = Server::builder().service(serve_work(worker.clone())).config(config());
    let server = builder.listen(&address(scheme, "work")).unwrap();
    let url = server.address().to_string();
    (server, worker, url)
}

fn client(url: &str) -> WorkClient {
    WorkClient::new(Client::builder().config(config()).connect(url).unwrap())
}

async fn yield_now() {
    let mut is_over = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Polls a future a few times, then drops it, as `select!` does beside another that is ready. `None`: it was not ready.
async fn tried<F: Future>(dice: &mut Dice, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..dice.below(4) {
        if let Poll::Ready(output) = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

/// Tries until a future was ready; how many were dropped before.
macro_rules! insist {
    ($dice:expr, $dropped:expr, $future:expr) => {
        loop {
            match tried($dice, $future).await {
                Some(output) => break output,
                None => $dropped += 1,
            }
            // Each try lets the other side go on.
            yield_now().await;
        }
    };
}

async fn send_all<V: gimmal_rpc::stream::Drive>(dice: &mut Dice, out: &mut Sink<u64, V>, limit: u64) -> u64 {
    let mut dropped = 0;
    for number in 0..limit {
        insist!(dice, dropped, out.send(&number)).unwrap();
    }
    dropped
}

/// Reads numbers to the good end; how many there were.
async fn read_all<V: gimmal_rpc::stream::Drive>(dice: &mut Dice, numbers: &mut Stream<u64, V>) -> u64 {
    let (mut expected, mut _dropped) = (0, 0);
    while let Some(number) = insist!(dice, _dropped, numbers.next()) {
        assert_eq!(number.unwrap(), expected);
        expected += 1;
    }
    expected
}

const ITEMS: u64 = 500;

fn down<C: Channel>(client: &WorkClient<C>) {
    for seed in 0..3 {
        block_on(async {
            let (mut numbers, call) = client.count(seed, ITEMS);
            assert_eq!(read_all(&mut Dice::new(seed + 100), &mut numbers).await, ITEMS);
            assert_eq!(call.await.unwrap(), ITEMS);
        });
    }
}

fn no_item_down_is_lost_or_doubled(scheme: &str) {
    let (_server, _, url) = server(scheme);
    down(&client(&url));
    down(&WorkClient::new(Client::builder().config(config()).connect_local(&url).unwrap()));
}

fn up<C: Channel>(client: &WorkClient<C>) {
    for seed in 0..3 {
        block_on(async {
            let (mut numbers, call) = client.check(seed);
            let dropped = send_all(&mut Dice::new(seed + 100), &mut numbers, ITEMS).await;
            assert!(dropped > 100, "only {dropped} were dropped");
            numbers.finish();
            assert_eq!(call.await.unwrap(), ITEMS);
        });
    }
}

fn no_item_up_is_lost_or_doubled(scheme: &str) {
    let (_server, _, url) = server(scheme);
    up(&client(&url));
    up(&WorkClient::new(Client::builder().config(config()).connect_local(&url).unwrap()));
}

/// Leaves a future and comes back to it until it is ready.
async fn left_and_polled<F: Future>(dice: &mut Dice, future: F) -> F::Output {
    let mut future = Box::pin(future);
    let mut _dropped = 0;
    insist!(dice, _dropped, Pin::as_mut(&mut future))
}

fn answers<C: Channel>(client: &WorkClient<C>) {
    let mut dice = Dice::new(9);
    block_on(async {
        for number in 0..100 {
            assert_eq!(left_and_polled(&mut dice, client.later(number)).await.unwrap(), number);
            let reply = left_and_polled(&mut dice, client.later(number).response()).await;
            assert_eq!(reply.borrowed().unwrap(), number);
            let reply = left_and_polled(&mut dice, client.later(number).response()).await;
            assert!(reply.metadata().is_empty());
            assert_eq!(reply.value().unwrap(), number);
        }
    });
}

fn no_answer_is_lost_or_doubled(scheme: &str) {
    let (_server, worker, url) = server(scheme);
    let channel = client(&url).channel().clone();
    answers(&WorkClient::new(channel.clone()));
    answers(&WorkClient::new(channel.clone()).with_options(CallOptions::default().wait_for_ready()));
    answers(&WorkClient::new(Retry::new(channel.clone(), RetryPolicy::default())));
    answers(&WorkClient::new(Client::builder().config(config()).connect_local(&url).unwrap()));
    assert_eq!(worker.ran.load(Ordering::SeqCst), 4 * 300, "a call ran twice, or not");
    answers(&WorkClient::new(Hedge::new(channel, Duration::from_millis(1))));
    // A call that is dropped is cancelled, and nothing of it is answered to the next.
    let (client, mut dice, mut dropped) = (client(&url), Dice::new(11), 0);
    block_on(async {
        for number in 0..300 {
            match tried(&mut dice, client.later(number)).await {
                Some(answer) => assert_eq!(answer.unwrap(), number),
                None => dropped += 1,
            }
        }
    });
    assert!(dropped > 30, "only {dropped} were dropped");
}

/// `Driver::run_until` with a future that reads one number: either is dropped, the calls and streams stay.
fn a_driver_that_is_left_and_run_again_loses_nothing(scheme: &str) {
    let (_server, _, url) = server(scheme);
    let channel = Client::builder().config(config()).connect_local(&url).unwrap();
    let mut driver = channel.driver().unwrap();
    let client = WorkClient::new(channel);
    let mut dice = Dice::new(13);
    let mut dropped = 0;
    block_on(async {
        let (mut numbers, mut call) = client.count(1, ITEMS);
        let ready = |_: &mut std::task::Context<'_>| Poll::Ready(Ok(()));
        for expected in 0..ITEMS {
            let item = insist!(&mut dice, dropped, driver.run_until(ready, numbers.next())).unwrap();
            assert_eq!(item.unwrap().unwrap(), expected);
        }
        assert_eq!(insist!(&mut dice, dropped, driver.run_until(ready, numbers.next())).unwrap(), None);
        assert_eq!(insist!(&mut dice, dropped, driver.run_until(ready, &mut call)).unwrap().unwrap(), ITEMS);
    });
    assert!(dropped > 100, "only {dropped} were dropped");
}

fn a_publication_that_is_dropped_reaches_nobody(scheme: &str) {
    let (_server, worker, url) = server(scheme);
    let clients: Vec<_> = (0..3).map(|_| client(&url)).collect();
    let readers: Vec<_> = (0..)
        .zip(clients)
        .map(|(reader, client)| {
            let (mut items, call) = client.follow(reader);
            std::thread::spawn(move || {
                let mut dice = Dice::new(reader);
                for expected in 0..ITEMS {
                    assert_eq!(items.blocking_next().unwrap().unwrap(), expected, "reader {reader}");
                    // Each is the slowest for a while.
                    if dice.once_in(300) {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
                assert_eq!(items.blocking_next(), None);
                assert_eq!(call.wait().unwrap(), ITEMS);
            })
        })
        .collect();
    until("all are subscribed", || worker.topic.subscribers() == 3);
    let (mut dice, mut dropped) = (Dice::new(7), 0);
    block_on(async {
        for item in 0..ITEMS {
            let published = insist!(&mut dice, dropped, worker.topic.publish(&item)).unwrap();
            assert_eq!(published.subscribers, 3);
        }
    });
    assert!(dropped > 100, "only {dropped} were dropped");
    worker.topic.close();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}
