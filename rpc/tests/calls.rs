//! Calls that go well: typed, raw, with bulk, inline and handed off, blocking and as futures.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::time::Duration;

use common::{DivideError, Fixture, Prober, block_on, config, pattern, serve_probe, sum};
use gimmal_rpc::{CallError, CallOptions, Channel, Client, Code, Cx, Fate, Server};

for_each_scheme! {
    typed_calls_inline_and_handed_off
    errors_of_the_method_arrive_as_they_are
    raw_calls
    inline_methods_read_where_the_request_landed
    handlers_may_wait_for_other_threads
    values_above_a_message_travel_by_themselves
    many_large_values_at_once
    bulk_results_of_every_size
    bulk_arguments_of_every_size
    several_threads_share_a_client
    a_window_of_one_still_carries_many_calls
    two_services_on_one_server
    an_inline_server_serves
    clients_made_simply_share_a_worker
}

fn every_kind<C: Channel>(client: &common::ProbeClient<C>) {
    for text in ["", "hello", &"long ".repeat(1000)] {
        assert_eq!(client.echo(text.to_owned()).wait().unwrap(), text);
        assert_eq!(block_on(client.echo(text.to_owned())).unwrap(), text);
    }
    let calls: Vec<_> = (0..200u32).map(|number| client.divide(number * 7, 7)).collect();
    for (number, call) in (0..200).zip(calls) {
        assert_eq!(call.wait().unwrap(), number);
    }
}

fn typed_calls_inline_and_handed_off(scheme: &str) {
    let fixture = Fixture::new(scheme, "typed");
    let client = fixture.client();
    every_kind(&client);
    every_kind(&fixture.inline());
    for (side, duty) in [("client", client.channel().duty()), ("server", fixture.server.duty())] {
        let [duty] = duty[..] else { panic!("the {side} has one worker: {duty:?}") };
        assert!(
            duty.turns > duty.empty_turns && duty.work > 0 && duty.connections_opened > 0,
            "{side}: {duty:?}"
        );
    }
    let stats = fixture.server.stats();
    assert_eq!((stats.requests, stats.answers, stats.started), (412, 412, 412));
    assert_eq!((stats.serving, stats.refused), (0, 0));
    assert!(fixture.server.shutdown(Duration::from_secs(30)));
}

fn errors_of_the_method_arrive_as_they_are(scheme: &str) {
    let fixture = Fixture::new(scheme, "errors");
    let error = fixture.client().divide(5, 0).wait().unwrap_err();
    assert_eq!(error, CallError::App(DivideError::ByZero { dividend: 5 }));
    assert_eq!(error.fate(), Fate::Ran);
    assert_eq!(
        fixture.inline().divide(6, 0).wait(),
        Err(CallError::App(DivideError::ByZero { dividend: 6 }))
    );
}

fn raw_calls(scheme: &str) {
    let fixture = Fixture::new(scheme, "raw");
    let (client, inline) = (fixture.client(), fixture.inline());
    assert_eq!(client.reverse(b"abc").wait().unwrap(), b"cba");
    assert_eq!(inline.reverse(b"").wait().unwrap(), b"");
    let bytes = client.channel().negotiated().unwrap().frame_bytes_max as usize - 100;
    let large: Vec<u8> = (0..bytes).map(pattern).collect();
    let backwards: Vec<u8> = large.iter().rev().copied().collect();
    for _ in 0..50 {
        assert_eq!(inline.reverse(&large).wait().unwrap(), backwards);
        assert_eq!(client.reverse(&large).wait().unwrap(), backwards);
    }
    assert_eq!(inline.reverse(b"12345").response().wait().bytes().map(|answer| answer[0]).unwrap(), b'5');
    let refused = client.refuse(b"").wait().unwrap_err();
    let status = refused.status().unwrap();
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "not today"));
    assert_eq!(refused.fate(), Fate::Ran);
}

fn borrowed<C: Channel>(client: &common::ProbeClient<C>) {
    for bytes in [1, 1000, 300_000] {
        let request: Vec<u8> = (0..bytes).map(pattern).collect();
        assert_eq!(client.add("name", &request).wait(), Ok(sum(&request)));
    }
    let error = CallError::App(DivideError::ByZero { dividend: 5 });
    assert_eq!(client.add("empty", &[]).wait(), Err(error));
    let text = "long".repeat(50_000);
    assert_eq!(client.cut(&text, 200_000).wait().unwrap(), text);
    assert_eq!(client.cut("short", 3).wait().unwrap(), "sho");
}

fn inline_methods_read_where_the_request_landed(scheme: &str) {
    let fixture = Fixture::new(scheme, "borrowed");
    borrowed(&fixture.client());
    borrowed(&fixture.inline());
    // No text: refused before the method runs.
    let methods = gimmal_rpc::Service::methods(&serve_probe(Prober::default()));
    let cut = methods.iter().find(|method| method.name == "cut").unwrap();
    let error = fixture.inline().channel().call_raw(cut, b"\x02\xff\xff\x01").wait().unwrap_err();
    assert_eq!((error.status().unwrap().code(), error.fate()), (Code::InvalidArgument, Fate::NotRun));
    assert_eq!(fixture.server.stats().serving, 0);
}

fn handlers_may_wait_for_other_threads(scheme: &str) {
    let fixture = Fixture::new(scheme, "later");
    let client = fixture.client();
    let calls: Vec<_> = (1..=20u64).map(|ms| client.later(ms)).collect();
    // The worker goes on with others meanwhile.
    assert_eq!(client.echo("quick".to_owned()).wait().unwrap(), "quick");
    for (ms, call) in (1..=20).zip(calls) {
        assert_eq!(call.wait().unwrap(), ms);
    }
    assert_eq!(fixture.server.stats().serving, 0);
}

fn large_values<C: Channel>(client: &common::ProbeClient<C>) {
    for bytes in [60_000u32, 70_000, 300_001] {
        assert_eq!(client.fill(bytes).wait().unwrap(), vec![7; bytes as usize]);
        assert_eq!(client.measure(vec![1; bytes as usize]).wait().unwrap(), u64::from(bytes));
        let text = "x".repeat(bytes as usize);
        assert_eq!(block_on(client.echo(text.clone())).unwrap(), text);
        let request: Vec<u8> = (0..bytes as usize).map(pattern).collect();
        let backwards: Vec<u8> = request.iter().rev().copied().collect();
        assert_eq!(client.reverse(&request).wait().unwrap(), backwards);
        assert_eq!(
            client.reverse(&request).response().wait().bytes().map(|answer| answer == backwards),
            Ok(true)
        );
    }
}

fn values_above_a_message_travel_by_themselves(scheme: &str) {
    let fixture = Fixture::new(scheme, "above");
    let (client, inline) = (fixture.client(), fixture.inline());
    large_values(&client);
    large_values(&inline);
    // Errors of the method too.
    let error = client.complain(300_000).wait().unwrap_err();
    assert_eq!(error, CallError::App("y".repeat(300_000)));
    let served = fixture.server.stats();
    let called = [client.channel().stats(), inline.channel().stats()];
    let frame = client.channel().negotiated().unwrap().frame_bytes_max;
    assert!(frame <= 65_536, "all but the first size are above a message");
    // Requests: 4 of 5 kinds; answers: likewise, and the error.
    assert!(called.iter().all(|stats| stats.large >= 8 && stats.large_copied_bytes == 0), "{called:?}");
    // A raw answer is written beside its ring, and copied once; a typed one is not.
    let raw = if frame < 60_000 { 4 * 430_001 } else { 4 * 370_001 };
    assert!(served.large >= 17 && served.large_copied_bytes == raw, "{served:?}");
    assert_eq!((served.serving, served.refused), (0, 0));
    assert!(fixture.server.shutdown(Duration::from_secs(30)));
}

fn many_large_values_at_once(scheme: &str) {
    let fixture = Fixture::new(scheme, "heap");
    let mut small = config();
    small.window = 8;
    let client = fixture.client_with(small);
    let calls: Vec<_> = (0..40u32).map(|number| client.fill(100_000 + number)).collect();
    let up: Vec<_> = (0..40).map(|number| client.measure(vec![2; 100_000 + number])).collect();
    // Some are given up on the way.
    for (number, call) in (0..40).zip(calls) {
        if number % 3 > 0 {
            assert_eq!(call.wait().unwrap().len(), 100_000 + number);
        }
    }
    for (number, call) in (0..40).zip(up) {
        assert_eq!(call.wait().unwrap(), 100_000 + number);
    }
    assert_eq!(client.echo("after all".to_owned()).wait().unwrap(), "after all");
    common::until("nothing is served", || fixture.server.stats().serving == 0);
}

fn bulk_results_of_every_size(scheme: &str) {
    let fixture = Fixture::new(scheme, "bulk");
    let (client, inline) = (fixture.client(), fixture.inline());
    for bytes in [0u64, 1, 15, 4096, (1 << 20) + 3] {
        let pulled = client.lend(bytes).wait().unwrap();
        assert_eq!((pulled.len() as u64, sum(&pulled)), (bytes, pulled.value));
        assert!(pulled.iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
        let pulled = inline.lend(bytes).wait().unwrap();
        assert_eq!((pulled.len() as u64, sum(&pulled)), (bytes, pulled.value));
    }
    // Many at once, more than the device takes READs.
    let calls: Vec<_> = (0..50u64).map(|number| client.lend(10_000 + number)).collect();
    for (number, call) in (0..50u64).zip(calls) {
        let pulled = call.wait().unwrap();
        assert_eq!((pulled.len() as u64, sum(&pulled)), (10_000 + number, pulled.value));
    }
    // Kept beyond its call, its client and its server.
    let kept = client.lend(100_000).wait().unwrap();
    drop((client, inline));
    drop(fixture);
    assert_eq!(sum(&kept), kept.value);
}

fn bulk_arguments_of_every_size(scheme: &str) {
    let fixture = Fixture::new(scheme, "lent");
    let client = fixture.client();
    let inline = fixture.inline();
    for bytes in [0usize, 1, 4096, (1 << 20) + 3] {
        let mut loan = client.channel().loan(bytes).unwrap();
        loan.fill(1);
        assert_eq!(client.sum(5, loan).wait().unwrap(), bytes as u64 + 5);
        let mut loan = inline.channel().loan(bytes).unwrap();
        loan.fill(2);
        assert_eq!(inline.sum(1, loan).wait().unwrap(), 2 * bytes as u64 + 1);
    }
    assert_eq!(fixture.server.stats().serving, 0);
}

fn several_threads_share_a_client(scheme: &str) {
    let fixture = Fixture::new(scheme, "threads");
    let client = fixture.client();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let client = client.clone();
            scope.spawn(move || {
                for number in 0..250u32 {
                    let text = format!("{thread}.{number}");
                    assert_eq!(client.echo(text.clone()).wait().unwrap(), text);
                }
            });
        }
    });
    assert_eq!(fixture.server.stats().answers, 1000);
    assert_eq!(client.channel().stats().answered, 1000);
}

fn a_window_of_one_still_carries_many_calls(scheme: &str) {
    let fixture = Fixture::new(scheme, "window");
    let mut config = config();
    config.window = 1;
    let client = fixture.client_with(config);
    let calls: Vec<_> = (0..100u32).map(|number| client.divide(number, 1)).collect();
    for (number, call) in (0..100).zip(calls) {
        assert_eq!(call.wait().unwrap(), number);
    }
}

#[gimmal_rpc::service(crate = gimmal_rpc, name = "other.v1")]
trait Other {
    async fn twice(&self, cx: &Cx, number: u64) -> u64;
    /// The caller, as the server sees it.
    async fn who(&self, cx: &Cx) -> (String, String);
}

struct Doubler;

impl Other for Doubler {
    async fn twice(&self, _: &Cx, number: u64) -> u64 {
        number * 2
    }

    async fn who(&self, cx: &Cx) -> (String, String) {
        (cx.peer().to_string(), cx.method().to_string())
    }
}

fn two_services_on_one_server(scheme: &str) {
    let url = common::address(scheme, "two");
    let server = Server::builder()
        .service(serve_probe(Prober::default()))
        .service(serve_other(Doubler))
        .config(config())
        .listen(&url)
        .unwrap();
    let url = server.address().to_string();
    let channel = Client::builder().config(config()).connect(&url).unwrap();
    let (probe, other) = (common::ProbeClient::new(channel.clone()), OtherClient::new(channel));
    assert_eq!(other.twice(21).wait().unwrap(), 42);
    assert_eq!(probe.echo("both".to_owned()).wait().unwrap(), "both");
    let (peer, method) = other.who().wait().unwrap();
    assert!(!peer.is_empty());
    assert_eq!(method, "other.v1.who");
    assert!(server.shutdown(Duration::from_secs(30)));
}

fn an_inline_server_serves(scheme: &str) {
    let theirs = common::address(scheme, "inline");
    let (ready, started) = std::sync::mpsc::channel();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopping = std::sync::Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        let mut server = Server::builder()
            .service(serve_probe(Prober::default()))
            .config(config())
            .listen_local(&theirs)
            .unwrap();
        ready.send(server.address().to_string()).unwrap();
        server.run_until(Duration::from_millis(5), || stopping.load(std::sync::atomic::Ordering::Relaxed));
        let stats = server.stats();
        assert!(server.shutdown(Duration::from_secs(30)));
        stats
    });
    let url = started.recv().unwrap();
    let client = common::ProbeClient::new(Client::builder().config(config()).connect_local(&url).unwrap());
    for _ in 0..100 {
        assert_eq!(client.reverse(b"abc").wait().unwrap(), b"cba");
    }
    assert_eq!(client.later(5).wait().unwrap(), 5);
    drop(client);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(thread.join().unwrap().answers, 101);
}

fn clients_made_simply_share_a_worker(scheme: &str) {
    let fixture = Fixture::new(scheme, "simple");
    let first = common::ProbeClient::new(Client::connect(&fixture.url).unwrap());
    let second = common::ProbeClient::new(Client::connect(&fixture.url).unwrap());
    assert_eq!(first.echo("a".to_owned()).wait().unwrap(), "a");
    assert_eq!(second.echo("b".to_owned()).wait().unwrap(), "b");
    assert!(first.channel().stats().calls >= 2);
    let left = first.with_options(CallOptions::default().timeout(Duration::from_secs(20))).left().wait();
    let left = left.unwrap().unwrap();
    assert!((1_000_000..=20_050_000).contains(&left), "{left} us of 20 s are left");
}

#[cfg(feature = "bincode")]
mod bincode {
    use super::*;

    #[gimmal_rpc::service(crate = gimmal_rpc, codec = gimmal_rpc::Bincode)]
    trait Compact {
        async fn count(&self, cx: &Cx, words: Vec<String>) -> Result<u64, DivideError>;
    }

    struct Counting;

    impl Compact for Counting {
        async fn count(&self, _: &Cx, words: Vec<String>) -> Result<u64, DivideError> {
            match words.len() as u64 {
                0 => Err(DivideError::ByZero { dividend: 0 }),
                count => Ok(count),
            }
        }
    }

    for_each_scheme! { the_second_codec_carries_calls_and_errors }

    fn the_second_codec_carries_calls_and_errors(scheme: &str) {
        let url = common::address(scheme, "bincode");
        let server =
            Server::builder().service(serve_compact(Counting)).config(config()).listen(&url).unwrap();
        let url = server.address().to_string();
        let client = CompactClient::new(Client::builder().config(config()).connect(&url).unwrap());
        assert_eq!(client.count(vec!["a".to_owned(), "b".to_owned()]).wait(), Ok(2));
        let error = CallError::App(DivideError::ByZero { dividend: 0 });
        assert_eq!(client.count(Vec::new()).wait(), Err(error));
        drop(server);
    }
}

mod user_memory {
    use std::sync::Arc;

    use gimmal_rpc::{Bulk, UserBytes, UserMemory, WithLoan};

    use super::*;

    #[gimmal_rpc::service(crate = gimmal_rpc)]
    trait Shelf {
        async fn page(&self, cx: &Cx) -> Result<WithLoan<u64>, String>;
        async fn read(&self, cx: &Cx, bytes: Bulk) -> u64;
    }

    struct Page(UserBytes);

    impl Shelf for Page {
        async fn page(&self, cx: &Cx) -> Result<WithLoan<u64>, String> {
            let loan = cx.lend(&self.0).map_err(|error| error.to_string())?;
            Ok(WithLoan::new(sum(&loan), loan))
        }

        async fn read(&self, _: &Cx, bytes: Bulk) -> u64 {
            sum(&bytes)
        }
    }

    for_each_scheme! { user_memory_is_registered_or_copied_once_each_way }

    /// Three loans of the same memory, over a device or not.
    fn known(seen: UserMemory, bytes: usize) {
        let registered_bytes = bytes as u64;
        let lent = UserMemory { misses: 1, hits: 2, pieces: 1, registered_bytes, ..UserMemory::default() };
        let copied = UserMemory { copies: 3, copied_bytes: 3 * registered_bytes, ..UserMemory::default() };
        assert!(seen == lent || seen == copied, "{seen:?}");
    }

    fn user_memory_is_registered_or_copied_once_each_way(scheme: &str) {
        let owner: Arc<[u8]> = (0..300_001).map(pattern).collect();
        let bytes = UserBytes::new(Arc::clone(&owner));
        let url = common::address(scheme, "shelf");
        let page = Page(bytes.clone());
        let server = Server::builder().service(serve_shelf(page)).config(config()).listen(&url).unwrap();
        let url = server.address().to_string();
        let client = ShelfClient::new(Client::builder().config(config()).connect(&url).unwrap());
        for _ in 0..3 {
            let pulled = client.page().wait().unwrap();
            assert_eq!((&*pulled, pulled.value), (&owner[..], sum(&owner)));
            let loan = client.channel().lend(&bytes).unwrap();
            assert_eq!(client.read(loan).wait().unwrap(), sum(&owner));
        }
        known(server.user_memory(), owner.len());
        known(client.channel().user_memory(), owner.len());
        let empty = client.channel().lend(&UserBytes::new(Vec::new())).unwrap();
        assert_eq!(client.read(empty).wait().unwrap(), 0);
        // The server keeps its page, and nobody else does once the last loan of it came back.
        bytes.forget();
        drop(bytes);
        common::until("only the page is left", || Arc::strong_count(&owner) == 2);
        assert_eq!(server.user_memory().pieces, 0);
        drop(server);
        common::until("nothing is left", || Arc::strong_count(&owner) == 1);
    }
}
