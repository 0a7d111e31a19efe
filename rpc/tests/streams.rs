//! Streams in both directions and one-way messages, over every provider, inline and handed off.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{address, block_on, config, connections, until};
use gimmal_rpc::{
    CallOptions, CancelToken, Channel, Client, Code, Cx, Fate, LocalClient, ReadError, Server, Sink, Stream,
    StreamError, reflect::ReflectionClient,
};

extern crate gimmal_rpc as gimmal;

#[gimmal_rpc::service(crate = gimmal_rpc, codec = common::Chosen)]
trait Talk {
    /// Counts to `limit`.
    async fn count(&self, cx: &Cx, limit: u32, out: Sink<u32>) -> u32;
    /// Adds up.
    async fn add(&self, cx: &Cx, start: u64, numbers: Stream<u32>) -> Result<u64, String>;
    /// Says everything twice.
    async fn twice(&self, cx: &Cx, words: Stream<String>, out: Sink<String>) -> u32;
    /// Sends as long as somebody takes.
    async fn pour(&self, cx: &Cx, out: Sink<u64>);
    /// Sends until the reader wants no more; why it does not.
    async fn pour_until_stopped(&self, cx: &Cx, out: Sink<u64>) -> u32;
    /// Ends its stream, well or with a code, and goes on until it is told.
    async fn end_early(&self, cx: &Cx, code: u32, go_on: Stream<u32>, out: Sink<u32>) -> u32;
    /// Sends one item of so many bytes.
    async fn large(&self, cx: &Cx, bytes: u32, out: Sink<Vec<u8>>);
    /// Reads one, and no more.
    async fn taste(&self, cx: &Cx, words: Stream<String>) -> String;
    /// Sends one item, and leaves a token of its call.
    async fn token(&self, cx: &Cx, out: Sink<u32>);
    /// Remembers.
    #[oneway]
    async fn note(&self, cx: &Cx, number: u64);
    /// Answers what was remembered.
    async fn noted(&self, cx: &Cx) -> u64;
}

/// Nobody has it.
#[gimmal_rpc::service(crate = gimmal_rpc, codec = common::Chosen)]
trait Other {
    #[oneway]
    async fn unheard(&self, cx: &Cx, number: u64);
}

#[derive(Clone, Default)]
struct Talker {
    noted: Arc<AtomicU64>,
    poured: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
    token: Arc<Mutex<Option<CancelToken>>>,
    /// Messages that wait for it panic.
    may_panic: Arc<AtomicBool>,
}

struct Ended(Arc<AtomicU64>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Talk for Talker {
    async fn count(&self, _: &Cx, limit: u32, mut out: Sink<u32>) -> u32 {
        for number in 0..limit {
            out.send(&number).await.unwrap();
        }
        limit
    }

    async fn add(&self, _: &Cx, start: u64, mut numbers: Stream<u32>) -> Result<u64, String> {
        let mut sum = start;
        while let Some(number) = numbers.next().await {
            sum += u64::from(number.map_err(|error| error.to_string())?);
        }
        if sum == 13 { Err("unlucky".to_owned()) } else { Ok(sum) }
    }

    async fn twice(&self, _: &Cx, mut words: Stream<String>, mut out: Sink<String>) -> u32 {
        let mut count = 0;
        while let Some(Ok(word)) = words.next().await {
            count += 1;
            if out.send(&format!("{word} {word}")).await.is_err() {
                break;
            }
        }
        count
    }

    async fn pour(&self, _: &Cx, mut out: Sink<u64>) {
        let _ended = Ended(Arc::clone(&self.ended));
        for number in 0.. {
            self.poured.store(number, Ordering::SeqCst);
            if out.send(&number).await.is_err() {
                return;
            }
        }
    }

    async fn pour_until_stopped(&self, _: &Cx, mut out: Sink<u64>) -> u32 {
        for number in 0.. {
            match out.send(&number).await {
                Ok(()) => {}
                Err(StreamError::Stopped(code)) => return code,
                Err(error) => panic!("{error}"),
            }
        }
        0
    }

    async fn end_early(&self, _: &Cx, code: u32, mut go_on: Stream<u32>, mut out: Sink<u32>) -> u32 {
        out.send(&7).await.unwrap();
        if code == 0 {
            out.half_close();
        } else {
            out.reset(code);
        }
        go_on.next().await.unwrap().unwrap()
    }

    async fn large(&self, _: &Cx, bytes: u32, mut out: Sink<Vec<u8>>) {
        let _ = out.send(&vec![1; bytes as usize]).await;
    }

    async fn taste(&self, _: &Cx, mut words: Stream<String>) -> String {
        let first = words.next().await.unwrap().unwrap();
        drop(words);
        common::sleep(30).await;
        first
    }

    async fn token(&self, cx: &Cx, mut out: Sink<u32>) {
        assert!(!cx.is_cancelled());
        *self.token.lock().unwrap() = Some(cx.cancelled());
        out.send(&7).await.unwrap();
    }

    async fn note(&self, cx: &Cx, number: u64) {
        assert!(!cx.is_cancelled());
        if number == 777 {
            self.noted.store(number, Ordering::SeqCst);
            while !self.may_panic.load(Ordering::SeqCst) {
                common::sleep(5).await;
            }
            panic!("as it was asked to");
        }
        assert_ne!(number, 666, "as it was asked to");
        if number == 50 {
            common::sleep(5).await;
        }
        self.noted.fetch_add(number, Ordering::SeqCst);
    }

    async fn noted(&self, _: &Cx) -> u64 {
        self.noted.load(Ordering::SeqCst)
    }
}

for_each_scheme! {
    every_shape_of_stream_gives_every_item_once_and_in_order
    a_reader_that_does_not_read_stops_its_sender_and_nobody_else
    calls_with_streams_take_turns
    both_sides_end_streams_with_codes
    r84_a_dropped_call_ends_its_streams_on_both_sides
    r85_a_deadline_ends_a_stream
    an_item_above_the_limit_ends_its_call_by_name
    an_item_larger_than_a_message_arrives_whole
    a_handler_that_stops_reading_does_not_stop_the_caller
    one_way_messages_arrive_and_nobody_is_told
    a_one_way_handler_that_panics_when_its_client_has_left_is_counted
    a_call_with_streams_that_was_answered_is_cancelled_for_its_tokens
    r82_a_server_that_goes_ends_streams
}

fn server(scheme: &str) -> (Server, Talker, String) {
    let talker = Talker::default();
    let builder = Server::builder().service(serve_talk(talker.clone())).config(config());
    let server = builder.listen(&address(scheme, "talk")).unwrap();
    let url = server.address().to_string();
    (server, talker, url)
}

fn handed(url: &str) -> TalkClient {
    TalkClient::new(Client::builder().config(config()).connect(url).unwrap())
}

fn inline(url: &str) -> TalkClient<LocalClient> {
    TalkClient::new(Client::builder().config(config()).connect_local(url).unwrap())
}

const ITEMS: u32 = 400;

fn shapes<C: Channel>(client: &TalkClient<C>) {
    let (mut numbers, call) = client.count(ITEMS);
    for expected in 0..ITEMS {
        assert_eq!(numbers.blocking_next().unwrap().unwrap(), expected);
    }
    assert!(numbers.blocking_next().is_none());
    assert_eq!(call.wait().unwrap(), ITEMS);
    let (numbers, call) = client.count(3);
    assert_eq!(call.wait().unwrap(), 3, "the answer may be asked for first");
    drop(numbers);
    let (mut sink, call) = client.add(7);
    (0..ITEMS).for_each(|number| sink.blocking_send(&number).unwrap());
    sink.finish();
    assert_eq!(call.wait().unwrap(), 7 + u64::from(ITEMS * (ITEMS - 1) / 2));
    let (mut sink, call) = client.add(6);
    sink.blocking_send(&7).unwrap();
    sink.finish();
    assert!(call.wait().unwrap_err().to_string().contains("unlucky"));
    let (mut sink, mut stream, call) = client.twice();
    for number in 0..ITEMS {
        sink.blocking_send(&number.to_string()).unwrap();
        assert_eq!(stream.blocking_next().unwrap().unwrap(), format!("{number} {number}"));
    }
    sink.finish();
    assert!(stream.blocking_next().is_none());
    assert_eq!(call.wait().unwrap(), ITEMS);
}

/// Reads a stream that has no good end; why it ended.
fn rest<T: std::fmt::Debug, C: Channel>(stream: &mut Stream<T, C>) -> ReadError {
    loop {
        if let Err(error) = stream.blocking_next().expect("a good end") {
            return error;
        }
    }
}

fn every_shape_of_stream_gives_every_item_once_and_in_order(scheme: &str) {
    let (server, _, url) = server(scheme);
    shapes(&handed(&url));
    shapes(&inline(&url));
    block_on(async {
        let client = handed(&url);
        let (mut sink, mut stream, call) = client.twice();
        for number in 0..ITEMS {
            sink.send(&number.to_string()).await.unwrap();
            assert_eq!(stream.next().await.unwrap().unwrap(), format!("{number} {number}"));
        }
        sink.finish();
        assert!(stream.next().await.is_none());
        assert_eq!(call.await.unwrap(), ITEMS);
    });
    until("nothing is served", || server.stats().serving == 0);
}

fn a_reader_that_does_not_read_stops_its_sender_and_nobody_else(scheme: &str) {
    let (_server, talker, url) = server(scheme);
    let client = handed(&url);
    let (mut stream, call) = client.pour();
    until("it stops", || {
        let before = talker.poured.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(30));
        before > 0 && talker.poured.load(Ordering::SeqCst) == before
    });
    // A window, what the sender and its worker have taken, and one more.
    let window = u64::from(config().stream_window);
    let most = (window + 2 * (16 << 10)) / (64 + 1) + 1;
    assert!(talker.poured.load(Ordering::SeqCst) <= most);
    shapes(&client);
    for expected in 0..500 {
        assert_eq!(stream.blocking_next().unwrap().unwrap(), expected);
    }
    drop(call);
    until("it was cancelled", || talker.ended.load(Ordering::SeqCst) == 1);
}

/// Others that are read all the time keep none from its turn.
fn calls_with_streams_take_turns(scheme: &str) {
    let (server, _, url) = server(scheme);
    let client = handed(&url);
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let (mut stream, _call) = client.pour();
                while stop.load(Ordering::SeqCst) == 0 {
                    stream.blocking_next().unwrap().unwrap();
                }
            });
        }
        let (mut last, call) = client.pour();
        for expected in 0..5000 {
            assert_eq!(last.blocking_next(), Some(Ok(expected)));
        }
        stop.store(1, Ordering::SeqCst);
        drop(call);
    });
    until("nothing is served", || server.stats().serving == 0);
}

fn both_sides_end_streams_with_codes(scheme: &str) {
    let (server, _, url) = server(scheme);
    let client = handed(&url);
    let (mut stream, call) = client.pour_until_stopped();
    for expected in 0..100 {
        assert_eq!(stream.blocking_next(), Some(Ok(expected)));
    }
    stream.stop(u32::MAX);
    assert_eq!(call.wait().unwrap(), u32::MAX);
    let (mut sink, call) = client.add(1);
    sink.blocking_send(&7).unwrap();
    sink.reset(9);
    assert!(call.wait().unwrap_err().to_string().contains("with code 9"));
    for code in [0, 3] {
        let (mut sink, mut stream, call) = client.end_early(code);
        assert_eq!(stream.blocking_next(), Some(Ok(7)));
        let end = stream.blocking_next();
        assert_eq!(end, (code != 0).then_some(Err(ReadError::Aborted(code))), "before the call's end");
        sink.blocking_send(&8).unwrap();
        sink.finish();
        assert_eq!(call.wait().unwrap(), 8);
    }
    // Given up after its download has ended, it is still cancelled.
    let (_sink, mut stream, call) = client.end_early(0);
    assert_eq!((stream.blocking_next(), stream.blocking_next()), (Some(Ok(7)), None));
    drop(call);
    until("nothing is served", || server.stats().serving == 0);
}

fn r84_a_dropped_call_ends_its_streams_on_both_sides(scheme: &str) {
    let (server, talker, url) = server(scheme);
    for round in 0..20 {
        let client = handed(&url);
        let (mut stream, call) = client.pour();
        for _ in 0..round * 5 {
            stream.blocking_next().unwrap().unwrap();
        }
        drop(call);
        assert_eq!(rest(&mut stream), ReadError::Over);
    }
    let client = inline(&url);
    let (mut sink, call) = client.add(0);
    sink.blocking_send(&1).unwrap();
    drop(call);
    assert_eq!(sink.blocking_send(&1), Err(StreamError::Over));
    until("nothing is served", || server.stats().serving == 0);
    assert!(talker.ended.load(Ordering::SeqCst) <= 20);
    shapes(&client);
}

fn r85_a_deadline_ends_a_stream(scheme: &str) {
    let (server, _, url) = server(scheme);
    let short = CallOptions::default().timeout(Duration::from_millis(80));
    let client = handed(&url).with_options(short.clone());
    let (mut stream, call) = client.pour();
    assert_eq!(rest(&mut stream), ReadError::Over);
    let error = call.wait().unwrap_err();
    assert_eq!(error.status().unwrap().code(), Code::DeadlineExceeded);
    let client = inline(&url).with_options(short);
    let (mut sink, call) = client.add(0);
    while sink.blocking_send(&1).is_ok() {}
    assert_eq!(call.wait().unwrap_err().status().unwrap().code(), Code::DeadlineExceeded);
    until("nothing is served", || server.stats().serving == 0);
}

fn an_item_larger_than_a_message_arrives_whole(scheme: &str) {
    fn both_ways<C: Channel>(client: &TalkClient<C>) {
        let (mut stream, call) = client.large(3 << 20);
        assert_eq!(stream.blocking_next().unwrap().unwrap(), vec![1; 3 << 20]);
        assert!(stream.blocking_next().is_none());
        call.wait().unwrap();
        let (mut words, call) = client.taste();
        let long: String = ('a'..='z').cycle().take(3 << 20).collect();
        for _ in 0..3 {
            // Its reader reads one.
            let _ = words.blocking_send(&long);
        }
        words.finish();
        assert!(call.wait().unwrap() == long);
    }
    let (server, _, url) = server(scheme);
    both_ways(&handed(&url));
    both_ways(&inline(&url));
    until("nothing is served", || server.stats().serving == 0);
}

fn an_item_above_the_limit_ends_its_call_by_name(scheme: &str) {
    let (server, _, url) = server(scheme);
    let client = handed(&url);
    let above = (16 << 20) + 1;
    let (mut stream, call) = client.large(above);
    assert_eq!(rest(&mut stream), ReadError::Over);
    let error = call.wait().unwrap_err();
    let code = error.status().map(|status| status.code());
    assert_eq!((code, error.fate()), (Some(Code::ResourceExhausted), Fate::Ran), "{error}");
    let (mut words, call) = client.taste();
    words.blocking_send(&"x".repeat(above as usize)).unwrap();
    let error = call.wait().unwrap_err().to_string();
    assert!(error.contains("an item is above the limit of 16777216 bytes"), "{error}");
    until("nothing is served", || server.stats().serving == 0);
}

fn a_handler_that_stops_reading_does_not_stop_the_caller(scheme: &str) {
    let (_server, _, url) = server(scheme);
    let client = handed(&url);
    let (mut words, call) = client.taste();
    // Many times what waits unread. The answer ends the stream, sooner or later; nothing keeps the sender waiting.
    let sent = (0..20_000).try_for_each(|number| words.blocking_send(&number.to_string()));
    assert!(matches!(sent, Ok(()) | Err(StreamError::Over)), "{sent:?}");
    assert_eq!(call.wait().unwrap(), "0");
}

fn one_way_messages_arrive_and_nobody_is_told(scheme: &str) {
    let (server, _, url) = server(scheme);
    let (client, inline) = (handed(&url), inline(&url));
    for number in 1..=100 {
        client.note(number).wait().unwrap();
        inline.note(number).wait().unwrap();
    }
    block_on(client.note(1)).unwrap();
    until("all are noted", || client.noted().wait().unwrap() == 2 * 5050 + 1);
    let report = |started, refused| gimmal_rpc::reflect::Delivery { started, refused };
    let delivery = ReflectionClient::new(client.channel().clone());
    assert_eq!(delivery.delivery().wait().unwrap(), report(101, 0), "of this connection alone");
    OtherClient::new(client.channel().clone()).unheard(7).wait().unwrap();
    assert_eq!(delivery.delivery().wait().unwrap(), report(101, 1), "nobody has that method");
    client.note(666).wait().unwrap();
    until("it panicked", || server.stats().panics == 1);
    assert_eq!((client.channel().stats().one_way, inline.channel().stats().one_way), (103, 100));
    assert_eq!(server.stats().serving, 0);
}

fn r82_a_server_that_goes_ends_streams(scheme: &str) {
    let (server, _, url) = server(scheme);
    let client = handed(&url);
    let (mut stream, call) = client.pour();
    let (mut sink, other) = client.add(0);
    stream.blocking_next().unwrap().unwrap();
    until("both run", || server.stats().started == 2);
    let _ = server.shutdown(Duration::ZERO);
    assert_eq!(rest(&mut stream), ReadError::Over);
    while sink.blocking_send(&1).is_ok() {}
    assert_eq!(call.wait().unwrap_err().fate(), Fate::MaybeRan);
    assert_eq!(other.wait().unwrap_err().fate(), Fate::MaybeRan);
}

fn a_one_way_handler_that_panics_when_its_client_has_left_is_counted(scheme: &str) {
    let (server, talker, url) = server(scheme);
    let client = handed(&url);
    client.note(777).wait().unwrap();
    until("it runs", || talker.noted.load(Ordering::SeqCst) == 777);
    drop(client);
    until("its client has left", || connections(&server) == [0]);
    assert_eq!(server.stats().panics, 0);
    talker.may_panic.store(true, Ordering::SeqCst);
    until("it panics", || server.stats().panics == 1);
}

fn a_call_with_streams_that_was_answered_is_cancelled_for_its_tokens(scheme: &str) {
    let (_server, talker, url) = server(scheme);
    let client = handed(&url);
    let (mut items, call) = client.token();
    assert_eq!(items.blocking_next(), Some(Ok(7)));
    call.wait().unwrap();
    let token = talker.token.lock().unwrap().take().unwrap();
    until("nobody waits for it any more", || token.is_cancelled());
}
