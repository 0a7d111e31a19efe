//! Clients on tokio: connecting without blocking, connecting again, dropping, and shutting runtimes down.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod probe;

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use gimmal::{
    CallOptions, Channel, Client, Code, Fate, Server,
    layer::{Hedge, Layered, Log, Retry, RetryPolicy, Timeout},
    tokio::LocalClient,
};
use gimmal_testkit::{
    child::{descriptors, this_program},
    until,
};
use probe::{
    ProbeClient, Prober, address, builder, config, local, nap, patient, serve, serve_probe, threads,
};
use tokio::task::spawn_local;

/// Calls that are made before there is a server wait for it; those that cannot wait fail, and did not run.
async fn lazily<C: Channel>(channel: C, url: &str) -> Server {
    let client = ProbeClient::new(channel);
    let hurried = client.clone().with_options(CallOptions::default().timeout(Duration::from_millis(60)));
    let error = hurried.square(3).await.unwrap_err();
    assert_eq!(error.status().unwrap().code(), Code::DeadlineExceeded);
    assert_eq!(error.fate(), Fate::NotRun);
    assert!(client.channel().loan(10).is_err());
    let (_numbers, call) = client.sum();
    assert_eq!(call.await.unwrap_err().fate(), Fate::NotRun);
    let server = async {
        nap(100).await;
        serve(url, &Prober::default())
    };
    let (square, server) = tokio::join!(client.square(7), server);
    assert_eq!(square, Ok(49));
    assert_eq!(client.square(8).await, Ok(64));
    server
}

#[test]
fn a_lazy_client_waits_for_its_server() {
    let url = address("lazy");
    let client = builder().connect_lazy(&url).unwrap();
    assert!(!client.is_ready() && client.negotiated().is_none());
    let _server = local().block_on(lazily(client.clone(), &url));
    assert!(client.is_ready() && client.negotiated().is_some() && client.reconnects() == 0);
    assert_eq!(ProbeClient::new(client).later(5).wait(), Ok(5));
    // A lazy client whose server is already there.
    let client = builder().connect_lazy(&url).unwrap();
    assert_eq!(ProbeClient::new(client).square(9).wait(), Ok(81));
    assert!(builder().connect_lazy("nonsense").is_err());
}

#[test]
fn a_lazy_local_client_waits_for_its_server() {
    let url = address("lazy-local");
    local().block_on(async {
        let client = LocalClient::connect_lazy(builder(), &url).unwrap();
        assert!(!client.is_ready());
        let server = lazily(client.clone(), &url).await;
        assert!(client.is_ready() && client.reconnects() == 0);
        // It waits again when there is no connection, also where that is asked for by the call.
        drop(server);
        while client.is_ready() {
            nap(1).await;
        }
        let back = async {
            nap(50).await;
            serve(&url, &Prober::default())
        };
        let patient = ProbeClient::new(client.clone()).with_options(CallOptions::default().wait_for_ready());
        let (square, _server) = tokio::join!(patient.square(7), back);
        assert_eq!(square, Ok(49));
        assert_eq!(client.reconnects(), 1);
    });
}

/// On any runtime, and on none; in every one a call works.
#[test]
fn connecting_as_a_future_works_on_any_runtime() {
    let url = address("async");
    let _server = serve(&url, &Prober::default());
    let work = async || {
        let client = ProbeClient::new(builder().connect_async(&url).await.unwrap());
        assert_eq!(client.square(3).await, Ok(9));
        client
    };
    local().block_on(work());
    threads().block_on(work());
    let client = block_on(work());
    // A runtime's thread is not blocked meanwhile: one that waits for a block_on within block_on ends.
    local().block_on(async { assert_eq!(block_on(client.square(4)), Ok(16)) });
    threads().block_on(async {
        let calls: Vec<_> = (0..100)
            .map(|number| {
                let client = client.clone();
                tokio::spawn(async move { client.square(number).await.unwrap() })
            })
            .collect();
        for (number, call) in (0..).zip(calls) {
            assert_eq!(call.await.unwrap(), number * number);
        }
        drop(client);
    });
    let error = block_on(Client::connect_async(&address("nobody"))).unwrap_err();
    assert!(error.to_string().contains("no server is listening"), "{error}");
}

/// A runtime that knows nothing: parks the thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// Each call is dropped in another stage of its life: nothing of them is left, at either end.
#[test]
fn cancelled_calls_leave_nothing() {
    let url = address("cancels");
    let prober = Prober::default();
    let server = serve(&url, &prober);
    let cancels = std::env::var("GIMMAL_CANCELS").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    async fn cancel<C: Channel>(client: &ProbeClient<C>, cancels: u64) {
        for number in 0..cancels {
            let mut call = std::pin::pin!(client.hang());
            for _ in 0..number % 3 {
                let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
                if let Poll::Ready(refused) = polled {
                    // More calls at once than its worker takes.
                    assert_eq!(refused.unwrap_err().fate(), Fate::NotRun);
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        while client.square(3).await != Ok(9) {
            tokio::task::yield_now().await;
        }
    }
    local().block_on(async {
        let client = ProbeClient::new(LocalClient::connect_with(builder(), &url).await.unwrap());
        cancel(&client, cancels).await;
        let client = ProbeClient::new(builder().connect_async(&url).await.unwrap());
        cancel(&client, cancels).await;
    });
    until("the handlers are dropped", || prober.hanging.load(Ordering::SeqCst) == 0);
    until("the server has none", || server.stats().serving == 0);
}

#[test]
fn a_local_client_connects_again_and_counts() {
    let url = address("again");
    let server = serve(&url, &Prober::default());
    local().block_on(async {
        let channel = LocalClient::connect_with(builder(), &url).await.unwrap();
        let client = patient(channel.clone());
        assert_eq!(client.square(3).await, Ok(9));
        // One that runs ends on its connection, though the server takes no more calls.
        let running = spawn_local({
            let client = ProbeClient::new(channel.clone());
            async move { client.later(300).await }
        });
        while server.stats().serving == 0 {
            nap(1).await;
        }
        let leaving = tokio::task::spawn_blocking(move || server.shutdown(Duration::from_secs(30)));
        let error = loop {
            match ProbeClient::new(channel.clone()).square(3).await {
                Ok(_) => nap(1).await,
                Err(error) => break error,
            }
        };
        assert_eq!(error.fate(), Fate::NotRun, "{error}");
        assert_eq!(running.await.unwrap(), Ok(300));
        assert!(leaving.await.unwrap());
        let _server = serve(&url, &Prober::default());
        assert_eq!(client.square(4).await, Ok(16));
        assert_eq!(channel.reconnects(), 1);
    });
}

#[test]
fn a_local_client_that_shall_not_connect_again_does_not() {
    let url = address("lasting");
    let server = serve(&url, &Prober::default());
    local().block_on(async {
        let channel = LocalClient::connect_with(builder().reconnect(None), &url).await.unwrap();
        let client = ProbeClient::new(channel.clone());
        assert_eq!(client.square(3).await, Ok(9));
        drop(server);
        let _server = serve(&url, &Prober::default());
        while client.square(3).await.is_ok() {}
        nap(200).await;
        assert_eq!(client.square(3).await.unwrap_err().fate(), Fate::NotRun);
        assert_eq!(channel.reconnects(), 0);
    });
}

/// The server takes a peer that is silent for four seconds for dead. The client's driver answers while the client rests.
#[test]
fn a_local_client_is_alive_while_it_rests() {
    let url = address("rests");
    let mut impatient = config();
    impatient.engine.heartbeat_ms = 4000;
    let server = Server::builder().service(serve_probe(Prober::default())).config(impatient);
    let _server = server.listen(&url).unwrap();
    local().block_on(async {
        let channel = LocalClient::connect_with(builder(), &url).await.unwrap();
        let client = ProbeClient::new(channel.clone());
        for _ in 0..2 {
            assert_eq!(client.square(3).await, Ok(9));
            nap(6000).await;
        }
        assert_eq!(client.square(3).await, Ok(9));
        assert_eq!(channel.reconnects(), 0);
    });
}

#[test]
fn layers_work_around_a_local_client() {
    let url = address("layers");
    let _server = serve(&url, &Prober::default());
    local().block_on(async {
        let channel = LocalClient::connect_with(builder(), &url).await.unwrap();
        let again = Retry::new(channel.clone(), RetryPolicy::default());
        // What a deadline of all attempts is measured by.
        assert_eq!(again.default_timeout(), Some(Duration::from_secs(60)));
        let hedged = Hedge::new(again, Duration::from_millis(20));
        let client =
            ProbeClient::new(Layered::new(Layered::new(hedged, Log), Timeout(Duration::from_secs(30))));
        assert_eq!(client.later(60).await, Ok(60));
        assert_eq!(client.square(5).await, Ok(25));
        let (mut numbers, call) = ProbeClient::new(channel).sum();
        for number in 0..1000 {
            numbers.send(&number).await.unwrap();
        }
        numbers.finish();
        assert_eq!(call.await, Ok(499_500));
    });
}

#[test]
fn the_shortest_way_lets_the_runtime_go_on() {
    let url = address("shortest");
    let _server = serve(&url, &Prober::default());
    local().block_on(async {
        let channel = LocalClient::connect_with(builder(), &url).await.unwrap();
        let client = ProbeClient::new(channel.clone());
        let ticks = Rc::new(Cell::new(0));
        let other = spawn_local({
            let (ticks, client) = (Rc::clone(&ticks), client.clone());
            async move {
                for number in 0..20 {
                    assert_eq!(client.square(number).await, Ok(number * number));
                    ticks.set(ticks.get() + 1);
                    tokio::task::yield_now().await;
                }
            }
        });
        let main = async {
            for number in 0..2000 {
                assert_eq!(client.square(number).await, Ok(number * number));
            }
            assert_eq!(client.later(30).await, Ok(30));
            nap(5).await;
            7
        };
        assert_eq!(channel.run_until(main).await, 7);
        assert!(ticks.get() > 0, "nobody else had a turn");
        other.await.unwrap();
    });
}

/// A task that takes the turns of a sleeping driver wakes it: the calls need somebody when that task has ended, or was dropped.
#[test]
fn calls_go_on_after_the_shortest_way() {
    let url = address("after");
    let mut quiet = config();
    // Nothing but calls wakes anybody.
    quiet.engine.heartbeat_ms = 0;
    let server = Server::builder().service(serve_probe(Prober::default())).config(quiet);
    let _server = server.listen(&url).unwrap();
    local().block_on(async {
        let channel = LocalClient::connect_with(builder().heartbeat_ms(0), &url).await.unwrap();
        let client = ProbeClient::new(channel.clone());
        let moves = async |round: u32| {
            let after = tokio::time::timeout(Duration::from_secs(60), client.later(5)).await;
            assert_eq!(after.expect("nobody moves the call"), Ok(5), "round {round}");
        };
        for round in 0..100 {
            let mut call = client.later(5);
            let restless = poll_fn(|context| {
                context.waker().wake_by_ref();
                Pin::new(&mut call).poll(context)
            });
            assert_eq!(channel.run_until(restless).await, Ok(5));
            moves(round).await;
            let restless = poll_fn(|context| {
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            });
            let brief = tokio::time::timeout(Duration::from_millis(2), channel.run_until(restless));
            assert!(brief.await.is_err());
            moves(round).await;
        }
    });
}

fn threads_of_this_process() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// A connect that is dropped after any time, before it is done or just then, leaves nothing behind.
#[test]
fn a_dropped_connect_leaves_nothing() {
    if std::env::var(ALONE).is_err() {
        return in_a_process_of_its_own("a_dropped_connect_leaves_nothing");
    }
    let url = address("dropped");
    let server = serve(&url, &Prober::default());
    let runtime = local();
    let connect = || LocalClient::connect_with(builder(), &url);
    let one = async || assert_eq!(ProbeClient::new(connect().await.unwrap()).square(3).await, Ok(9));
    runtime.block_on(one());
    std::thread::sleep(Duration::from_millis(200));
    runtime.block_on(nap(100));
    let before = (descriptors().unwrap(), threads_of_this_process());
    for round in 0..60 {
        let time = Duration::from_micros(round * 50);
        runtime.block_on(async {
            let _ = tokio::time::timeout(time, connect()).await;
            let _ = tokio::time::timeout(time, builder().connect_async(&url)).await;
        });
    }
    runtime.block_on(one());
    until("descriptors and threads are as before", || {
        runtime.block_on(nap(5));
        descriptors().unwrap() <= before.0 && threads_of_this_process() <= before.1
    });
    runtime.block_on(one());
    drop(server);
}

const ALONE: &str = "GIMMAL_TOKIO_CLIENT_ALONE";

/// Counts of a process are of use only where nobody else runs in it.
fn in_a_process_of_its_own(test: &str) {
    let mut command = this_program().unwrap();
    let status = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").status().unwrap();
    assert!(status.success(), "{test} failed");
}

#[test]
fn where_nobody_listens_a_connect_fails() {
    local().block_on(async {
        let error = LocalClient::connect(&address("nobody")).await.unwrap_err();
        assert!(error.to_string().contains("no server is listening"), "{error}");
        let error = LocalClient::connect("nonsense").await.unwrap_err();
        assert!(error.to_string().contains("nonsense"), "{error}");
    });
}

/// The client outlives the runtime that moved its calls: they end, and so does what is called later.
#[test]
fn a_runtime_that_is_shut_down_ends_its_calls() {
    let url = address("shut-down");
    let prober = Prober::default();
    let _server = serve(&url, &prober);
    let runtime = local();
    let client = ProbeClient::new(runtime.block_on(LocalClient::connect_with(builder(), &url)).unwrap());
    let call = client.hang();
    runtime.block_on(async { assert_eq!(client.square(3).await, Ok(9)) });
    until("it hangs", || prober.hanging.load(Ordering::SeqCst) == 1);
    drop(runtime);
    let other = local();
    assert_eq!(other.block_on(call).unwrap_err().fate(), Fate::MaybeRan);
    assert_eq!(other.block_on(client.square(3)).unwrap_err().fate(), Fate::NotRun);
    until("the handler is dropped", || prober.hanging.load(Ordering::SeqCst) == 0);
    // A client of the other kind belongs to no runtime.
    let client = ProbeClient::new(builder().connect(&url).unwrap());
    let runtime = threads();
    let hangs = runtime.spawn({
        let client = client.clone();
        async move { client.hang().await }
    });
    until("it hangs", || prober.hanging.load(Ordering::SeqCst) == 1);
    drop(runtime);
    assert!(other.block_on(hangs).unwrap_err().is_cancelled());
    assert_eq!(other.block_on(client.square(3)), Ok(9));
    until("the handler is dropped", || prober.hanging.load(Ordering::SeqCst) == 0);
}
