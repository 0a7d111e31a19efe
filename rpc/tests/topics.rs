//! Publish and subscribe, over every provider: what happens to those that are behind, and to those that leave.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{address, block_on, config, until};
use gimmal_rpc::{Behind, Client, Cx, Fed, LocalClient, Server, Sink, Topic};

extern crate gimmal_rpc as gimmal;

#[gimmal_rpc::service(crate = gimmal_rpc, codec = common::Chosen)]
trait News {
    /// Everything from now on.
    async fn follow(&self, cx: &Cx, items: Sink<String>) -> (u64, u64, bool);
}

#[derive(Clone)]
struct Desk {
    topic: Topic<String>,
    fed: Arc<Mutex<Vec<Fed>>>,
}

impl News for Desk {
    async fn follow(&self, _: &Cx, items: Sink<String>) -> (u64, u64, bool) {
        let fed = self.topic.feed(items).await;
        self.fed.lock().unwrap().push(fed);
        (fed.sent, fed.lost, fed.is_cut)
    }
}

for_each_scheme! {
    every_subscriber_gets_every_item_in_order
    a_publisher_waits_for_the_slowest
    one_that_is_behind_loses_the_oldest_and_holds_up_nobody
    one_that_is_behind_is_cut_off_after_what_was_kept
    a_subscriber_that_leaves_frees_a_waiting_publisher
    every_subscriber_gets_the_same_order
    r82_a_subscription_ends_with_its_connection
}

fn desk(scheme: &str, kept: usize, behind: Behind) -> (Server, Desk, String) {
    let desk = Desk { topic: Topic::new(kept, behind), fed: Arc::default() };
    let builder = Server::builder().service(serve_news(desk.clone())).config(config());
    let server = builder.listen(&address(scheme, "news")).unwrap();
    let url = server.address().to_string();
    (server, desk, url)
}

fn client(url: &str) -> NewsClient {
    NewsClient::new(Client::builder().config(config()).connect(url).unwrap())
}

const ITEMS: u64 = 300;

fn every_subscriber_gets_every_item_in_order(scheme: &str) {
    let (_server, desk, url) = desk(scheme, 4, Behind::Wait);
    assert_eq!(desk.topic.blocking_publish(&"nobody hears it".to_owned()).unwrap().subscribers, 0);
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (mut items, call) = client(&url).follow();
            std::thread::spawn(move || {
                let heard: Vec<_> =
                    std::iter::from_fn(|| items.blocking_next()).map(Result::unwrap).collect();
                (heard, call.wait().unwrap())
            })
        })
        .collect();
    until("all are subscribed", || desk.topic.subscribers() == 3);
    block_on(async {
        for number in 0..ITEMS {
            assert_eq!(desk.topic.publish(&number.to_string()).await.unwrap().subscribers, 3);
        }
    });
    desk.topic.close();
    let all: Vec<_> = (0..ITEMS).map(|number| number.to_string()).collect();
    for reader in readers {
        let (heard, told) = reader.join().unwrap();
        assert_eq!(heard, all);
        assert_eq!(told, (ITEMS, 0, false));
    }
    assert_eq!(desk.topic.blocking_publish(&"too late".to_owned()).unwrap().subscribers, 0);
}

/// Publishes in another thread until the one subscriber, which reads nothing, has all that fits, which is so much at least;
/// how many that were.
fn fill(desk: &Desk, at_least: u64) -> u64 {
    until("it is subscribed", || desk.topic.subscribers() == 1);
    let topic = desk.topic.clone();
    let published = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&published);
    std::thread::spawn(move || {
        for number in 0.. {
            if topic.blocking_publish(&u64::to_string(&number)).unwrap().subscribers == 0 {
                return;
            }
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let seen = || published.load(Ordering::SeqCst);
    until("it stops", || {
        let before = seen();
        std::thread::sleep(Duration::from_millis(20));
        before >= at_least && seen() == before
    });
    seen()
}

fn a_publisher_waits_for_the_slowest(scheme: &str) {
    let (_server, desk, url) = desk(scheme, 4, Behind::Wait);
    let (mut items, call) = client(&url).follow();
    let ahead = fill(&desk, 36);
    let window = u64::from(config().stream_window);
    let most = (window + 2 * (16 << 10)) / (64 + 1) + 6;
    assert!(ahead <= most, "{ahead} items ahead: window, lane and what is kept");
    for expected in 0..ITEMS {
        assert_eq!(items.blocking_next().unwrap().unwrap(), expected.to_string());
    }
    desk.topic.close();
    drop(items); // what is still on its way is for nobody
    assert!(call.wait().unwrap().0 >= ITEMS);
}

fn one_that_is_behind_loses_the_oldest_and_holds_up_nobody(scheme: &str) {
    let (_server, desk, url) = desk(scheme, 4, Behind::DropOldest);
    let (mut items, call) = client(&url).follow();
    until("it is subscribed", || desk.topic.subscribers() == 1);
    let lost: usize = (0..ITEMS).map(|n| desk.topic.blocking_publish(&n.to_string()).unwrap().lost).sum();
    assert!(lost > 0, "nothing was too much");
    desk.topic.close();
    let heard: Vec<u64> =
        std::iter::from_fn(|| items.blocking_next()).map(|item| item.unwrap().parse().unwrap()).collect();
    assert!(heard.windows(2).all(|pair| pair[0] < pair[1]), "in order");
    assert_eq!(heard.last(), Some(&(ITEMS - 1)), "the newest is kept");
    let (sent, told_lost, is_cut) = call.wait().unwrap();
    assert_eq!((sent, told_lost, is_cut), (heard.len() as u64, lost as u64, false));
    assert_eq!(sent + told_lost, ITEMS);
}

fn one_that_is_behind_is_cut_off_after_what_was_kept(scheme: &str) {
    let (_server, desk, url) = desk(scheme, 4, Behind::Cut);
    let (mut items, call) = client(&url).follow();
    until("it is subscribed", || desk.topic.subscribers() == 1);
    let mut published = 0;
    until("it is cut off", || {
        let told = desk.topic.blocking_publish(&published.to_string()).unwrap();
        published += told.subscribers as u64;
        told.cut == 1
    });
    for expected in 0..published {
        assert_eq!(items.blocking_next().unwrap().unwrap(), expected.to_string());
    }
    assert!(items.blocking_next().is_none());
    assert_eq!(call.wait().unwrap(), (published, 0, true));
    assert_eq!(desk.topic.subscribers(), 0);
}

fn a_subscriber_that_leaves_frees_a_waiting_publisher(scheme: &str) {
    let (_server, desk, url) = desk(scheme, 2, Behind::Wait);
    let subscription = client(&url).follow();
    fill(&desk, 1);
    drop(subscription);
    until("it is gone, and nobody waits for it", || desk.topic.subscribers() == 0);
    assert_eq!(desk.topic.blocking_publish(&"on".to_owned()).unwrap().subscribers, 0);
}

fn r82_a_subscription_ends_with_its_connection(scheme: &str) {
    let (_server, desk, url) = desk(scheme, 2, Behind::Wait);
    let client: NewsClient<LocalClient> =
        NewsClient::new(Client::builder().config(config()).connect_local(&url).unwrap());
    let (mut items, call) = client.follow();
    assert!(items.try_next().is_pending());
    until("it is subscribed", || {
        let _ = items.poll_next(&std::task::Context::from_waker(std::task::Waker::noop()));
        desk.topic.subscribers() == 1
    });
    drop((items, call, client));
    until("nobody is subscribed", || desk.topic.subscribers() == 0);
}

/// Of several publishers, none of which waits for the other.
fn every_subscriber_gets_the_same_order(scheme: &str) {
    let (_server, desk, url) = desk(scheme, 4, Behind::Wait);
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (mut items, call) = client(&url).follow();
            std::thread::spawn(move || {
                let heard: Vec<_> =
                    std::iter::from_fn(|| items.blocking_next()).map(Result::unwrap).collect();
                call.wait().unwrap();
                heard
            })
        })
        .collect();
    until("all are subscribed", || desk.topic.subscribers() == 3);
    std::thread::scope(|scope| {
        for publisher in 0..3 {
            let topic = desk.topic.clone();
            scope.spawn(move || {
                for number in 0..ITEMS {
                    topic.blocking_publish(&format!("{publisher} {number}")).unwrap();
                }
            });
        }
    });
    desk.topic.close();
    let heard: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    assert!(heard.windows(2).all(|pair| pair[0] == pair[1]), "two subscribers got different orders");
    assert_eq!(heard[0].len() as u64, 3 * ITEMS);
}

/// A task that is woken by nobody.
struct Task;

impl std::task::Wake for Task {
    fn wake(self: Arc<Self>) {}
}

/// Its subscriber never reads, and each try is a new task, as with a time-out around each.
#[test]
fn publishers_that_gave_up_leave_nothing_behind() {
    let (_server, desk, url) = desk("mem", 2, Behind::Wait);
    let _subscription = client(&url).follow();
    until("it is subscribed", || desk.topic.subscribers() == 1);
    let tasks: Vec<_> = (0..200).map(|_| Arc::new(Task)).collect();
    let mut waited = 0;
    for task in &tasks {
        let waker = std::task::Waker::from(Arc::clone(task));
        let item = "an item".repeat(6000);
        let mut publish = std::pin::pin!(desk.topic.publish(&item));
        waited +=
            usize::from(publish.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    }
    assert!(waited > 100, "only {waited} had to wait");
    let kept = tasks.iter().filter(|task| Arc::strong_count(task) > 1).count();
    assert_eq!(kept, 0, "tasks of publishers that gave up are kept");
}
