//! Channels around channels: each ready-made layer does what it says, and several together.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{Fixture, ProbeClient, block_on, config, fate, until};
use gimmal_rpc::{
    Balanced, CallError, CallOptions, Channel, Client, Code, Cx, Fate, Hedge, Instant, Layered, Postcard,
    Retry, RetryPolicy, Server, Sink, Stream,
    channel::{Beside, Ticket},
    layer::{Limit, Log, Metrics, Rate, Timeout},
    response::{Response, ResponseStatus},
};

for_each_scheme! {
    limits_refuse_at_once_and_give_back
    timeouts_cap_and_metrics_count
    a_slow_call_is_hedged_once_and_the_loser_cancelled
    r94_repeats_are_finite_and_a_rate_bounds_them
    calls_with_streams_are_the_same_under_every_layer
}

fn channel(fixture: &Fixture) -> Client {
    Client::builder().config(config()).connect(&fixture.url).unwrap()
}

fn code<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, CallError<E>>) -> Code {
    let error = result.expect_err("the call should have failed");
    error.status().expect("a status").code()
}

fn limits_refuse_at_once_and_give_back(scheme: &str) {
    let fixture = Fixture::new(scheme, "limits");
    let client = ProbeClient::new(Layered::new(channel(&fixture), Limit::new(2)));
    let (first, second) = (client.hang(), client.hang());
    until("both run", || fixture.hanging() == 2);
    let third = client.echo("x".into()).wait();
    assert_eq!(fate(third.clone()), Fate::NotRun);
    assert_eq!(code(third), Code::ResourceExhausted);
    // A cancelled call gives its place back, and an answered one.
    drop(first);
    for _ in 0..5 {
        assert_eq!(client.echo("x".into()).wait().unwrap(), "x");
        assert_eq!(block_on(client.echo("x".into())).unwrap(), "x");
    }
    drop(second);
    let client = ProbeClient::new(Layered::new(channel(&fixture), Rate::new(20, 3)));
    let started = Instant::now();
    let outcomes: Vec<_> = (0..6).map(|_| client.echo("x".into()).wait()).collect();
    if started.elapsed() < Duration::from_millis(50) {
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 3);
        assert_eq!(code(outcomes[5].clone()), Code::ResourceExhausted);
    }
    std::thread::sleep(Duration::from_millis(120));
    assert!(client.echo("x".into()).wait().is_ok(), "it fills up again");
    // With retries around it, a limit is a queue.
    let policy = RetryPolicy { attempts: 100, ..RetryPolicy::default() };
    let client = ProbeClient::new(Retry::new(client.channel().clone(), policy));
    for _ in 0..4 {
        assert!(client.echo("x".into()).wait().is_ok());
    }
}

/// A service that fails every time gets each call as often as the policy says. A rate below the retries bounds what all
/// of them add, whatever the policy says: attempts beyond it do not leave.
fn r94_repeats_are_finite_and_a_rate_bounds_them(scheme: &str) {
    const CALLS: u64 = 50;
    let fixture = Fixture::with(scheme, "repeats", gimmal_rpc::Config { serving_max: 1, ..config() });
    let busy = fixture.client();
    let hanging = busy.hang();
    until("the only place is taken", || fixture.hanging() == 1);
    let policy = RetryPolicy { attempts: 5, first: Duration::from_micros(100), ..RetryPolicy::default() };
    let channel = busy.channel().clone();
    let arrived = || fixture.server.stats().refused;
    let refused = |client: &dyn Fn() -> Result<String, CallError>| {
        let before = arrived();
        for _ in 0..CALLS {
            assert_eq!(fate(client()), Fate::NotRun);
        }
        arrived() - before
    };
    let often = ProbeClient::new(Retry::new(channel.clone(), policy));
    assert_eq!(refused(&|| often.echo("x".into()).wait()), 5 * CALLS);
    // So slow that it gives nothing back meanwhile.
    let rate = Layered::new(channel, Rate::new(1, 10));
    let bounded = ProbeClient::new(Retry::new(rate, RetryPolicy { max: policy.first, ..policy }));
    let started = Instant::now();
    let extra = refused(&|| bounded.echo("x".into()).wait());
    assert!(extra <= 10 + started.elapsed().as_secs() + 1, "{extra} of {CALLS} calls arrived");
    drop(hanging);
}

/// Longer than a machine that is busy with something else stands still.
const CAP: Duration = Duration::from_secs(3);

fn timeouts_cap_and_metrics_count(scheme: &str) {
    let fixture = Fixture::new(scheme, "metrics");
    let metrics = Metrics::default();
    let inner = Layered::new(channel(&fixture), Timeout(CAP));
    let client = ProbeClient::new(Layered::new(Layered::new(inner, metrics.clone()), Log));
    assert_eq!(client.echo("x".into()).wait().unwrap(), "x");
    assert!(client.divide(1, 0).wait().is_err(), "an answer all the same");
    assert_eq!(code(client.hang().wait()), Code::DeadlineExceeded);
    let seen = metrics.snapshot();
    let of = |method| &seen[&("Probe", method)];
    assert_eq!((of("echo").answered, of("echo").failed), (1, 0));
    assert_eq!((of("divide").answered, of("divide").failed), (1, 0));
    assert_eq!((of("hang").answered, of("hang").failed), (0, 1));
    // It counts from the worker's reading of the clock, which may be a moment old.
    assert!(of("hang").total >= CAP.saturating_sub(Duration::from_millis(100)));
    assert_eq!(of("hang").buckets.iter().sum::<u64>(), 1);
    let text = metrics.prometheus("client");
    let line = "gimmal_call_seconds_count{side=\"client\",service=\"Probe\",method=\"echo\"} 1";
    assert!(text.contains(line) && text.contains("le=\"+Inf\"} 1"), "{text}");
    let stats = fixture.server.stats().prometheus("server");
    assert!(stats.contains("gimmal_requests_total{side=\"server\"} 3\n"), "{stats}");
}

const HEDGE_AFTER: Duration = Duration::from_secs(1);

/// A server, and whether it comes to have started and dropped so many calls when `call` has been made. Never more: a machine with
/// other things to do makes a fast call slow, or lets a slow one end before its second has come.
fn hedged_as(expected: (u64, u64), scheme: &str, call: impl Fn(ProbeClient<Hedge<Client>>)) -> bool {
    let fixture = Fixture::new(scheme, "hedged");
    call(ProbeClient::new(Hedge::new(channel(&fixture), HEDGE_AFTER)));
    let began = Instant::now();
    loop {
        let stats = fixture.server.stats();
        assert!(stats.started <= 2 && stats.dropped <= 1, "{stats:?}");
        let ended = (stats.started, stats.dropped) == expected && stats.serving == 0;
        if ended || began.elapsed() > Duration::from_secs(10) {
            return ended;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn a_slow_call_is_hedged_once_and_the_loser_cancelled(scheme: &str) {
    let fast = |client: ProbeClient<_>| assert_eq!(client.echo("fast".into()).wait().unwrap(), "fast");
    assert!((0..3).any(|_| hedged_as((1, 0), scheme, fast)), "a fast call was made twice, three times");
    let slow = |client: ProbeClient<_>| assert_eq!(client.later(2500).wait().unwrap(), 2500);
    assert!((0..3).any(|_| hedged_as((2, 1), scheme, slow)), "no second was made and cancelled, three times");
    let fixture = Fixture::new(scheme, "hedge");
    let client = ProbeClient::new(Hedge::new(channel(&fixture), HEDGE_AFTER));
    assert_eq!(block_on(client.later(1300)).unwrap(), 1300);
    // What may not run twice is made once.
    drop(client.hang());
    let hanging = client.hang();
    let waiting = std::thread::spawn(move || hanging.wait());
    until("it hangs", || fixture.hanging() == 1);
    std::thread::sleep(Duration::from_millis(1300));
    assert_eq!(fixture.hanging(), 1);
    let Fixture { server, .. } = fixture;
    drop(server);
    assert_eq!(fate(waiting.join().unwrap()), Fate::MaybeRan);
}

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Numbers {
    /// Adds them to what was added before.
    async fn add(&self, cx: &Cx, numbers: Stream<u64>);
    /// The first ones, and how many there were.
    async fn count(&self, cx: &Cx, out: Sink<u64>) -> u64;
}

#[derive(Clone, Default)]
struct Adder(Arc<AtomicU64>);

impl Numbers for Adder {
    async fn add(&self, _: &Cx, mut numbers: Stream<u64>) {
        let mut sum = 0;
        while let Some(number) = numbers.next().await {
            sum += number.expect("the stream goes on to its end");
        }
        self.0.fetch_add(sum, Ordering::SeqCst);
    }

    async fn count(&self, _: &Cx, mut out: Sink<u64>) -> u64 {
        for number in 0..5 {
            out.send(&number).await.unwrap();
        }
        5
    }
}

/// A stream goes on without its caller, and one that is made when its first item comes leaves the answer where it was.
fn calls_with_streams_are_the_same_under_every_layer(scheme: &str) {
    let adder = Adder::default();
    let server = Server::builder().service(serve_numbers(adder.clone())).config(config());
    let server = server.listen(&common::address(scheme, "streams")).unwrap();
    let url = server.address().to_string();
    let client = Client::builder().config(config()).connect(&url).unwrap();
    let balanced = Balanced::builder().config(config()).connect(vec![url]).unwrap();
    let (policy, after) = (RetryPolicy::default(), Duration::from_millis(20));
    go_on("client", client.clone(), &adder);
    go_on("layered", Layered::new(client.clone(), Log), &adder);
    go_on("retry", Retry::new(client.clone(), policy), &adder);
    go_on("hedge", Hedge::new(client, after), &adder);
    go_on("balanced", balanced.clone(), &adder);
    let all = Layered::new(Hedge::new(Retry::new(balanced, policy), after), Metrics::default());
    go_on("all of them", all, &adder);
}

fn go_on<C: Channel>(what: &str, channel: C, adder: &Adder) {
    let before = adder.0.load(Ordering::SeqCst);
    let (mut numbers, call) = NumbersClient::new(channel.clone()).add();
    numbers.blocking_send(&1).unwrap();
    call.detach();
    numbers.blocking_send(&2).unwrap();
    numbers.finish();
    until(&format!("{what}: the handler saw the end"), || adder.0.load(Ordering::SeqCst) == before + 3);

    let mut call =
        channel.start(&__numbers_methods()[1], &CallOptions::default(), Beside::down_later(), &[] as &[u8]);
    let mut next = || block_on(poll_fn(|context| call.poll_first(context)));
    let Response { status: ResponseStatus::Begun(begun), .. } = next() else {
        panic!("{what}: no item first")
    };
    let (mut items, _tie) = begun.ends::<Postcard, u64>();
    let items: Vec<u64> = std::iter::from_fn(|| items.blocking_next()).map(Result::unwrap).collect();
    assert_eq!(items, [0, 1, 2, 3, 4], "{what}");
    let Response { status: ResponseStatus::Ok, body, .. } = next() else { panic!("{what}: no answer") };
    assert_eq!(body.bytes(), [5], "{what}");
}

/// Layers around a service: refusals are not run, and every handler's end is seen.
#[test]
fn a_service_is_limited_and_counted() {
    use gimmal_rpc::{Guarded, Server};
    for scheme in ["mem", "shm"] {
        let metrics = Metrics::default();
        let prober = common::Prober::default();
        let counts = Arc::clone(&prober.0);
        let service = Guarded::new(common::serve_probe(prober), metrics.clone());
        let service = Guarded::new(service, Limit::new(2));
        let server = Server::builder().service(service).config(config());
        let server = server.listen(&common::address(scheme, "guarded")).unwrap();
        let client = Client::builder().config(config()).connect(&server.address().to_string()).unwrap();
        let client = ProbeClient::new(client);
        for _ in 0..3 {
            assert_eq!(client.echo("x".into()).wait().unwrap(), "x");
            assert_eq!(client.reverse(b"ab").wait().unwrap(), b"ba");
        }
        assert!(client.divide(1, 0).wait().is_err());
        assert_eq!(client.later(5).wait().unwrap(), 5);
        let hanging = [client.hang(), client.hang()];
        until("both hang", || counts.hanging.load(Ordering::SeqCst) == 2);
        let third = client.echo("x".into()).wait();
        assert_eq!((fate(third.clone()), code(third)), (Fate::NotRun, Code::ResourceExhausted));
        assert_eq!(fate(client.reverse(b"ab").wait()), Fate::NotRun);
        drop(hanging);
        until("both were dropped", || {
            metrics.snapshot().get(&("Probe", "hang")).is_some_and(|m| m.failed == 2)
        });
        assert_eq!(client.echo("x".into()).wait().unwrap(), "x");
        let seen = metrics.snapshot();
        let of = |method| (seen[&("Probe", method)].answered, seen[&("Probe", method)].failed);
        assert_eq!((of("echo"), of("reverse"), of("divide"), of("later")), ((4, 0), (3, 0), (1, 0), (1, 0)));
    }
}

#[cfg(feature = "tower")]
#[test]
fn a_channel_is_a_service_of_tower() {
    use gimmal_rpc::{
        CallOptions, Method, MethodKind,
        layer::tower::{Around, Calls, Request},
    };
    use tower_layer::Layer as _;
    use tower_service::Service as _;
    static REVERSE: Method = Method::new("Probe", "reverse", "(bytes) -> bytes", "raw", MethodKind::Raw);
    let fixture = Fixture::new("mem", "tower");
    let mut calls = Calls(Around(Limit::new(1)).layer(channel(&fixture)));
    let request = Request { method: &REVERSE, options: CallOptions::default(), body: b"abc".to_vec() };
    assert_eq!(block_on(calls.call(request.clone())).unwrap(), b"cba");
    let (first, second) = (calls.call(request.clone()), calls.call(request));
    assert_eq!(fate(block_on(second)), Fate::NotRun);
    assert_eq!(block_on(first).unwrap(), b"cba");
}

#[test]
fn all_attempts_share_the_default_deadline() {
    let fixture = Fixture::new("shm", "share");
    let brief = gimmal_rpc::Config { deadline: Duration::from_millis(400), reconnect: None, ..config() };
    let client = Client::builder().config(brief).connect(&fixture.url).unwrap();
    drop(fixture);
    let plain = ProbeClient::new(client.clone());
    until("the connection has ended", || plain.echo("gone".to_owned()).wait().is_err());
    // By itself each attempt fails at once.
    let pause = Duration::from_millis(50);
    let policy = RetryPolicy { attempts: 10_000, first: pause, max: pause };
    let retry = ProbeClient::new(Retry::new(client, policy));
    let began = Instant::now();
    retry.echo("never".to_owned()).wait().unwrap_err();
    block_on(retry.echo("never".to_owned())).unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(30), "each attempt had a deadline of its own");
}
