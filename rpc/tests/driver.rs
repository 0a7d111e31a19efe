//! A client that is moved by a task of the runtime its calls are made on: one thread, no second one.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    any::Any,
    cell::RefCell,
    future::{Future, poll_fn},
    io,
    os::fd::AsFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use common::{Fixture, ProbeClient, Prober, config, connections, fate, serve_probe, until};
use gimmal_rpc::{
    CallOptions, Channel, Client, Code, Config, Cx, Driver, Fate, Hedge, Instant, LocalClient, Retry,
    RetryPolicy, Server, Sink, Stream,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::{Builder, Runtime},
    task::LocalSet,
};

for_each_scheme! {
    calls_of_every_kind_on_one_thread
    many_calls_at_once
    deadlines_end_while_the_driver_sleeps
    a_dropped_call_is_cancelled_at_the_server
    what_a_waker_drops_is_cancelled_too
    streams_in_both_directions
    without_its_driver_every_call_ends
    a_server_that_goes_ends_every_call
    blocking_works_too
    a_future_that_its_driver_runs
    layers_around_it_can_be_waited_for
    its_task_may_rest
    a_client_has_one_driver
    a_connection_that_the_client_does_not_take_is_closed
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_io().build().unwrap()
}

fn connect(url: &str, config: Config) -> (LocalClient, Driver) {
    let client = Client::builder().config(config).connect_local(url).unwrap();
    let driver = client.driver().unwrap();
    (client, driver)
}

/// All of what tokio needs to know.
fn readable(driver: &Driver) -> impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>> + use<> {
    let fd = driver.as_fd().try_clone_to_owned().unwrap();
    #[allow(deprecated, reason = "the way that replaces it is unsafe; nobody else has this descriptor")]
    let fd = AsyncFd::with_interest(fd, Interest::READABLE).unwrap();
    move |context: &mut Context<'_>| fd.poll_read_ready(context).map_ok(|mut ready| ready.clear_ready())
}

fn on_tokio(driver: Driver) -> impl Future<Output = io::Result<()>> {
    let readable = readable(&driver);
    driver.run(readable)
}

/// Runs `test` beside the driver, and then waits for the driver's end.
fn drive<F: Future<Output = ()>>(url: &str, config: Config, test: impl FnOnce(LocalClient) -> F) {
    let runtime = runtime();
    LocalSet::new().block_on(&runtime, async {
        let (client, driver) = connect(url, config);
        let driver = tokio::task::spawn_local(on_tokio(driver));
        test(client).await;
        driver.await.unwrap().unwrap();
    });
}

fn a_connection_that_the_client_does_not_take_is_closed(scheme: &str) {
    let fixture = Fixture::new(scheme, "dials");
    let runtime = runtime();
    LocalSet::new().block_on(&runtime, async {
        let client = Client::builder().config(config()).open_local(&fixture.url).unwrap();
        let driver = tokio::task::spawn_local(on_tokio(client.driver().unwrap()));
        let until_there_are = async |expected: usize| {
            let started = Instant::now();
            while connections(&fixture.server) != [expected] {
                assert!(started.elapsed() < Duration::from_secs(60), "{:?}", connections(&fixture.server));
                tokio::task::yield_now().await;
            }
        };
        // Nobody waits for it any more.
        let dialling = client.dial(None);
        until_there_are(1).await;
        drop(dialling);
        until_there_are(0).await;
        client.dial(None).await.unwrap();
        until_there_are(1).await;
        // There is one already.
        let other = client.dial(None);
        until_there_are(2).await;
        other.await.unwrap();
        until_there_are(1).await;
        assert_eq!(ProbeClient::new(client).echo("here".into()).await.unwrap(), "here");
        driver.await.unwrap().unwrap();
    });
}

fn calls_of_every_kind_on_one_thread(scheme: &str) {
    let fixture = Fixture::new(scheme, "driven");
    drive(&fixture.url, config(), async |channel| {
        let client = ProbeClient::new(channel);
        for text in ["", "hello", &"long ".repeat(1000), &"large ".repeat(50_000)] {
            assert_eq!(client.echo(text.to_owned()).await.unwrap(), text);
        }
        assert_eq!(client.reverse(b"abc").await.unwrap(), b"cba");
        assert_eq!(client.divide(5, 0).await.unwrap_err().fate(), Fate::Ran);
        // The driver sleeps meanwhile.
        assert_eq!(client.later(20).await.unwrap(), 20);
        let pulled = client.lend(300_000).await.unwrap();
        assert_eq!(common::sum(&pulled), pulled.value);
        let mut loan = client.channel().loan(10_000).unwrap();
        loan.fill(2);
        assert_eq!(client.sum(1, loan).await.unwrap(), 20_001);
        assert_eq!(client.channel().stats().answered, 9);
    });
    assert_eq!(fixture.server.stats().serving, 0);
}

fn many_calls_at_once(scheme: &str) {
    let fixture = Fixture::new(scheme, "join");
    drive(&fixture.url, config(), async |channel| {
        let client = ProbeClient::new(channel);
        // Of one task, and of many.
        let mut calls: Vec<_> = (0..200u32).map(|number| Some(client.divide(number * 3, 3))).collect();
        let mut answers = vec![None; calls.len()];
        poll_fn(|context| {
            for (call, answer) in calls.iter_mut().zip(&mut answers) {
                if let Some(pending) = call
                    && let Poll::Ready(result) = Pin::new(pending).poll(context)
                {
                    *answer = Some(result.unwrap());
                    *call = None;
                }
            }
            if calls.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        assert!((0..).zip(answers).all(|(number, answer)| answer == Some(number)));
        let tasks: Vec<_> = (0..50u64)
            .map(|number| {
                let client = client.clone();
                tokio::task::spawn_local(async move { client.later(number % 5).await.unwrap() })
            })
            .collect();
        for (number, task) in (0..50).zip(tasks) {
            assert_eq!(task.await.unwrap(), number % 5);
        }
    });
}

fn deadlines_end_while_the_driver_sleeps(scheme: &str) {
    let fixture = Fixture::new(scheme, "alarm");
    drive(&fixture.url, config(), async |channel| {
        let client = ProbeClient::new(channel);
        let started = Instant::now();
        let hurried = client.with_options(CallOptions::default().timeout(Duration::from_millis(60)));
        let error = hurried.hang().await.unwrap_err();
        assert_eq!(error.status().unwrap().code(), Code::DeadlineExceeded);
        // The server's clock may have been read a moment before.
        assert!(started.elapsed() >= Duration::from_millis(50), "{:?}", started.elapsed());
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    });
    until("the handler is dropped", || fixture.hanging() == 0);
}

fn a_dropped_call_is_cancelled_at_the_server(scheme: &str) {
    let fixture = Fixture::new(scheme, "drop");
    drive(&fixture.url, config(), async |channel| {
        let client = ProbeClient::new(channel);
        let call = client.hang();
        assert_eq!(client.divide(4, 2).await, Ok(2));
        until("it hangs", || fixture.hanging() == 1);
        drop(call);
        assert_eq!(client.divide(6, 2).await, Ok(3));
        until("it is dropped", || fixture.hanging() == 0);
        assert_eq!(client.channel().stats().cancelled, 1);
    });
}

thread_local! {
    /// What [`Drops`] drops.
    static DOOMED: RefCell<Option<Box<dyn Any>>> = RefCell::default();
}

struct Drops;

impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        drop(DOOMED.take());
    }
}

/// A task is woken in the middle of a turn, and what its runtime drops then is dropped there.
fn what_a_waker_drops_is_cancelled_too(scheme: &str) {
    let fixture = Fixture::new(scheme, "doomed");
    drive(&fixture.url, config(), async |channel| {
        let client = ProbeClient::new(channel);
        DOOMED.set(Some(Box::new(client.hang())));
        assert_eq!(client.divide(4, 2).await, Ok(2));
        until("it hangs", || fixture.hanging() == 1);
        let mut first = client.later(5);
        let waker = Waker::from(Arc::new(Drops));
        assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
        // On a machine that stood still both answers may be due at once, in either order.
        let began = Instant::now();
        while DOOMED.with_borrow(Option::is_some) {
            assert_eq!(client.later(20).await, Ok(20));
            assert!(began.elapsed() < Duration::from_secs(60), "nobody was woken");
        }
        until("it is dropped", || fixture.hanging() == 0);
        assert_eq!(first.await, Ok(5));
        assert_eq!(client.channel().stats().cancelled, 1);
    });
}

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Flow {
    async fn double(&self, cx: &Cx, numbers: Stream<u32>, doubled: Sink<u32>) -> u32;
}

struct Doubling;

impl Flow for Doubling {
    async fn double(&self, _: &Cx, mut numbers: Stream<u32>, mut doubled: Sink<u32>) -> u32 {
        let mut count = 0;
        while let Some(Ok(number)) = numbers.next().await {
            count += 1;
            if doubled.send(&(number * 2)).await.is_err() {
                break;
            }
        }
        count
    }
}

fn streams_in_both_directions(scheme: &str) {
    let server = Server::builder().service(serve_flow(Doubling)).config(config());
    let server = server.listen(&common::address(scheme, "flow")).unwrap();
    drive(&server.address().to_string(), config(), async |channel| {
        let (mut numbers, mut doubled, call) = FlowClient::new(channel).double();
        // Far more than either side's window.
        let sender = tokio::task::spawn_local(async move {
            for number in 0..500 {
                numbers.send(&number).await.unwrap();
            }
            numbers.finish();
        });
        for number in 0..500 {
            assert_eq!(doubled.next().await.unwrap().unwrap(), number * 2);
        }
        sender.await.unwrap();
        assert!(doubled.next().await.is_none());
        assert_eq!(call.await.unwrap(), 500);
    });
}

fn without_its_driver_every_call_ends(scheme: &str) {
    let fixture = Fixture::new(scheme, "undriven");
    let runtime = runtime();
    LocalSet::new().block_on(&runtime, async {
        let (channel, driver) = connect(&fixture.url, config());
        let client = ProbeClient::new(channel);
        let driver = tokio::task::spawn_local(on_tokio(driver));
        assert_eq!(client.divide(4, 2).await, Ok(2));
        let call = client.hang();
        assert_eq!(client.divide(4, 2).await, Ok(2));
        driver.abort();
        assert_eq!(fate(call.await), Fate::MaybeRan);
        assert_eq!(fate(client.divide(4, 2).await), Fate::NotRun);
    });
    until("the handler is dropped", || fixture.hanging() == 0);
}

fn a_server_that_goes_ends_every_call(scheme: &str) {
    let fixture = Fixture::new(scheme, "gone");
    let (url, counts) = (fixture.url.clone(), fixture.counts.clone());
    drive(&url, config(), async move |channel| {
        let client = ProbeClient::new(channel);
        let call = client.hang();
        assert_eq!(client.divide(4, 2).await, Ok(2));
        until("it hangs", || counts.hanging.load(std::sync::atomic::Ordering::SeqCst) == 1);
        let going = std::thread::spawn(move || fixture.server.shutdown(Duration::ZERO));
        assert_eq!(fate(call.await), Fate::MaybeRan);
        assert_eq!(fate(client.divide(4, 2).await), Fate::NotRun);
        going.join().unwrap();
    });
}

fn blocking_works_too(scheme: &str) {
    let fixture = Fixture::new(scheme, "block");
    let (channel, driver) = connect(&fixture.url, config());
    let client = ProbeClient::new(channel);
    assert_eq!(client.echo("here".to_owned()).wait().unwrap(), "here");
    assert_eq!(client.later(10).wait().unwrap(), 10);
    drop(driver);
    assert_eq!(fate(client.echo("gone".to_owned()).wait()), Fate::NotRun);
}

/// Others of the thread go on meanwhile, make calls themselves, and the driver can be used again in either way.
fn a_future_that_its_driver_runs(scheme: &str) {
    let fixture = Fixture::new(scheme, "until");
    let runtime = runtime();
    LocalSet::new().block_on(&runtime, async {
        let (channel, mut driver) = connect(&fixture.url, config());
        let client = ProbeClient::new(channel);
        let (turns, theirs) = (std::rc::Rc::new(std::cell::Cell::new(0)), client.clone());
        let counted = std::rc::Rc::clone(&turns);
        let other = tokio::task::spawn_local(async move {
            for number in 0..20 {
                assert_eq!(theirs.divide(number * 2, 2).await, Ok(number));
                counted.set(counted.get() + 1);
                tokio::task::yield_now().await;
            }
        });
        let main = async {
            for number in 0..2000 {
                assert_eq!(client.divide(number * 3, 3).await, Ok(number));
            }
            // It sleeps meanwhile.
            client.later(20).await.unwrap()
        };
        let waits = readable(&driver);
        assert_eq!(driver.run_until(waits, main).await.unwrap(), 20);
        assert!(turns.get() > 0, "2,000 calls, and nobody else had a turn");
        let waits = readable(&driver);
        let failed = driver.run_until(waits, client.divide(5, 0)).await.unwrap();
        assert_eq!(failed.unwrap_err().fate(), Fate::Ran);
        let driver = tokio::task::spawn_local(on_tokio(driver));
        other.await.unwrap();
        assert_eq!(client.later(1).await.unwrap(), 1);
        drop(client);
        driver.await.unwrap().unwrap();
    });
}

/// A future whose client goes while it runs goes on.
#[test]
fn a_driver_without_a_client_runs_the_rest() {
    let fixture = Fixture::new("mem", "rest");
    let runtime = runtime();
    LocalSet::new().block_on(&runtime, async {
        let (channel, mut driver) = connect(&fixture.url, config());
        let main = async {
            let client = ProbeClient::new(channel);
            let quotient = client.divide(8, 2).await.unwrap();
            drop(client);
            tokio::task::spawn_local(async move { quotient + 1 }).await.unwrap()
        };
        let waits = readable(&driver);
        assert_eq!(driver.run_until(waits, main).await.unwrap(), 5);
    });
}

/// A thread that does nothing while nothing happens: the driver sleeps in tokio.
#[test]
fn an_idle_driver_costs_nothing() {
    let fixture = Fixture::new("shm", "idle");
    drive(&fixture.url, config(), async |channel| {
        let client = ProbeClient::new(channel);
        assert_eq!(client.divide(4, 2).await, Ok(2));
        let busy = || {
            let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
            stat.split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        let before = busy();
        assert_eq!(client.later(300).await.unwrap(), 300);
        let used = Duration::from_nanos(busy() - before);
        assert!(used < Duration::from_millis(100), "{used:?} of 300 ms");
    });
}

/// Counted on the runtime's thread: the calls, the driver and what tokio does to sleep and wake.
#[test]
fn a_call_of_a_driven_client_allocates_nothing() {
    let server = Server::builder().service(serve_probe(Prober::default())).config(config());
    let server = server.listen(&common::address("shm", "count")).unwrap();
    runtime().block_on(async {
        let (channel, driver) = connect(&server.address().to_string(), config());
        let client = ProbeClient::new(channel);
        let mut driver = std::pin::pin!(on_tokio(driver));
        let mut calls = std::pin::pin!(async {
            for number in 0..4000 {
                assert_eq!(client.divide(number * 3, 3).await, Ok(number));
            }
        });
        let mut counted = allocation_counter::AllocationInfo::default();
        poll_fn(|context| {
            let mut polled = Poll::Pending;
            let info = allocation_counter::measure(|| {
                polled = calls.as_mut().poll(context);
                assert!(driver.as_mut().poll(context).is_pending());
            });
            if client.channel().stats().answered > 1000 {
                counted.count_total += info.count_total;
            }
            polled
        })
        .await;
        assert_eq!(counted.count_total, 0);
    });
}

/// Nobody else turns while a caller blocks: what waits must do it, through every layer.
fn layers_around_it_can_be_waited_for(scheme: &str) {
    let fixture = Fixture::new(scheme, "driven-layers");
    let url = fixture.url.clone();
    let (tell, told) = std::sync::mpsc::channel();
    // Not Send, so on a thread of its own; a wait that never ends fails the test and leaves the thread behind.
    std::thread::spawn(move || {
        let (channel, _driver) = connect(&url, config());
        let again = Retry::new(channel.clone(), RetryPolicy::default());
        tell.send(ProbeClient::new(again.clone()).later(30).wait().unwrap()).unwrap();
        let hedge = || Hedge::new(again.clone(), Duration::from_millis(10));
        // The second call is made meanwhile, and is given up.
        tell.send(ProbeClient::new(hedge()).later(60).wait().unwrap()).unwrap();
        let short = CallOptions::default().timeout(Duration::from_millis(50));
        let late = ProbeClient::new(hedge()).with_options(short).later(600_000).wait();
        tell.send(u64::from(late.unwrap_err().status().unwrap().code() == Code::DeadlineExceeded)).unwrap();
    });
    for expected in [30, 60, 1] {
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(expected));
    }
}

/// Between two runs of its driver nobody turns, which is no sign of death.
fn its_task_may_rest(scheme: &str) {
    let mut impatient = config();
    impatient.engine.heartbeat_ms = 4000;
    let fixture = Fixture::with(scheme, "driven-rests", impatient);
    let (channel, _driver) = connect(&fixture.url, config());
    let client = ProbeClient::new(channel);
    for _ in 0..2 {
        assert_eq!(client.echo("x".to_owned()).wait().unwrap(), "x");
        std::thread::sleep(Duration::from_millis(6000));
    }
    assert_eq!(client.echo("x".to_owned()).wait().unwrap(), "x");
}

fn a_client_has_one_driver(scheme: &str) {
    let fixture = Fixture::new(scheme, "one-driver");
    let (client, driver) = connect(&fixture.url, config());
    let again = client.driver().unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::AlreadyExists, "{again}");
    drop(driver);
    assert!(client.driver().is_err(), "its connection ended with the first");
}
