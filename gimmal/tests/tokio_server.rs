//! Handlers that use tokio, in every kind of server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use gimmal::{
    CallOptions, Client, Code, Config, Cx, Fate, Instant, Server, ServerBuilder, Sink, Stream,
    runtime::Spawned,
    tokio::{Tokio, serve_until},
    topic::{Behind, Topic},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Handle, Runtime},
    sync::{Mutex, oneshot},
};

/// Long enough for each step on a busy machine; none waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

#[gimmal::service]
trait Tried {
    #[idempotent]
    async fn sleep(&self, cx: &Cx, ms: u64) -> u64;
    async fn spawn(&self, cx: &Cx, number: u64) -> u64;
    async fn block(&self, cx: &Cx, number: u64) -> u64;
    async fn socket(&self, cx: &Cx, text: String) -> String;
    async fn lock(&self, cx: &Cx) -> u64;
    async fn nested(&self, cx: &Cx, url: String, number: u64) -> u64;
    /// Locks a mutex that is always free, until `calm`.
    async fn busy(&self, cx: &Cx);
    async fn calm(&self, cx: &Cx);
    /// Never ends; counts itself, and looks for the runtime when it is dropped.
    async fn hang(&self, cx: &Cx);
    #[inline]
    fn spawn_inline(&self, cx: &Cx) -> bool;
    /// A subscription that ends when the server drains.
    async fn follow(&self, cx: &Cx, numbers: Sink<u64>) -> u64;
    /// One that is fed from a topic.
    async fn fed(&self, cx: &Cx, numbers: Sink<u64>) -> u64;
    /// The thread that it runs on, after it blocked that for so many ms.
    async fn stall(&self, cx: &Cx, ms: u64) -> String;
    async fn panic(&self, cx: &Cx);
    async fn spawn_here(&self, cx: &Cx, number: u64) -> u64;
    /// Blocks on a timer, in a handler.
    async fn block_on(&self, cx: &Cx, ms: u64) -> u64;
}

#[derive(Clone)]
struct Tries {
    topic: Topic<u64>,
    count: Arc<Mutex<u64>>,
    is_calm: Arc<AtomicBool>,
    hanging: Arc<AtomicUsize>,
    /// Handlers that were dropped where no runtime was.
    lost: Arc<AtomicUsize>,
}

impl Default for Tries {
    fn default() -> Self {
        Self {
            topic: Topic::new(8, Behind::Wait),
            count: Arc::default(),
            is_calm: Arc::default(),
            hanging: Arc::default(),
            lost: Arc::default(),
        }
    }
}

struct Hanging<'a>(&'a Tries);

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        if Handle::try_current().is_err() {
            self.0.lost.fetch_add(1, Ordering::SeqCst);
        }
        self.0.hanging.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Tried for Tries {
    async fn sleep(&self, _: &Cx, ms: u64) -> u64 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        ms
    }

    async fn spawn(&self, _: &Cx, number: u64) -> u64 {
        let task = tokio::spawn(async move {
            tokio::task::yield_now().await;
            number * 2
        });
        task.await.unwrap()
    }

    async fn block(&self, _: &Cx, number: u64) -> u64 {
        let work = move || {
            std::thread::sleep(Duration::from_millis(5));
            number + 1
        };
        tokio::task::spawn_blocking(work).await.unwrap()
    }

    async fn socket(&self, _: &Cx, text: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let echo = tokio::spawn(async move {
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            peer.read_to_end(&mut bytes).await.unwrap();
            peer.write_all(&bytes).await.unwrap();
        });
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut bytes = String::new();
        stream.read_to_string(&mut bytes).await.unwrap();
        echo.await.unwrap();
        bytes
    }

    async fn lock(&self, _: &Cx) -> u64 {
        let mut count = self.count.lock().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        *count += 1;
        *count
    }

    async fn nested(&self, _: &Cx, url: String, number: u64) -> u64 {
        let client = tokio::task::spawn_blocking(move || TriedClient::new(gimmal::connect(&url).unwrap()));
        client.await.unwrap().spawn(number).await.unwrap()
    }

    async fn busy(&self, _: &Cx) {
        while !self.is_calm.load(Ordering::SeqCst) {
            drop(self.count.lock().await);
        }
    }

    async fn calm(&self, _: &Cx) {
        self.is_calm.store(true, Ordering::SeqCst);
    }

    async fn hang(&self, _: &Cx) {
        self.hanging.fetch_add(1, Ordering::SeqCst);
        let _hanging = Hanging(self);
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }

    fn spawn_inline(&self, _: &Cx) -> bool {
        tokio::spawn(async {});
        true
    }

    async fn follow(&self, cx: &Cx, mut numbers: Sink<u64>) -> u64 {
        numbers.send(&7).await.unwrap();
        cx.draining().await;
        8
    }

    async fn fed(&self, _: &Cx, numbers: Sink<u64>) -> u64 {
        self.topic.feed(numbers).await.sent
    }

    async fn stall(&self, _: &Cx, ms: u64) -> String {
        std::thread::sleep(Duration::from_millis(ms));
        std::thread::current().name().unwrap().to_owned()
    }

    async fn panic(&self, _: &Cx) {
        panic!("a test's panic");
    }

    async fn spawn_here(&self, _: &Cx, number: u64) -> u64 {
        let task = tokio::task::spawn_local(async move {
            let number = std::rc::Rc::new(number);
            tokio::task::yield_now().await;
            *number + 3
        });
        task.await.unwrap()
    }

    async fn block_on(&self, _: &Cx, ms: u64) -> u64 {
        Handle::current().block_on(tokio::time::sleep(Duration::from_millis(ms)));
        ms
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn server(runtime: &Runtime, tries: &Tries) -> ServerBuilder {
    Server::builder().service(serve_tried(tries.clone())).runtime(Tokio::from(runtime.handle().clone()))
}

fn client(url: &str) -> TriedClient {
    TriedClient::new(gimmal::connect(url).unwrap())
}

/// Everything that works in every kind of server, by a client of another thread.
fn try_all(client: &TriedClient, other: &str) {
    assert_eq!(client.sleep(5).wait().unwrap(), 5);
    assert_eq!(client.spawn(21).wait().unwrap(), 42);
    assert_eq!(client.block(1).wait().unwrap(), 2);
    assert_eq!(client.socket("hello".to_owned()).wait().unwrap(), "hello");
    let locks: Vec<_> = (0..8).map(|_| client.lock()).collect();
    let mut counts: Vec<u64> = locks.into_iter().map(|lock| lock.wait().unwrap()).collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=8).collect::<Vec<_>>());
    assert_eq!(client.nested(other.to_owned(), 4).wait().unwrap(), 8);
    assert!(client.spawn_inline().wait().unwrap());
    let busy = client.busy();
    client.calm().wait().unwrap();
    busy.wait().unwrap();
}

#[test]
fn on_workers_with_the_runtime_entered() {
    let (runtime, tries) = (runtime(), Tries::default());
    let other = server(&runtime, &Tries::default()).listen("mem://tokio-workers-other").unwrap();
    let server = server(&runtime, &tries).listen("mem://tokio-workers").unwrap();
    let client = client("mem://tokio-workers");
    try_all(&client, &other.address().to_string());
    assert_eq!(client.block_on(2).wait().unwrap(), 2);
    assert_eq!(server.stats().panics, 0);
    assert!(server.shutdown(PATIENCE));
}

#[test]
fn a_current_thread_runtime_serves_workers_while_it_is_driven() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let other = server(&runtime, &Tries::default()).listen("mem://tokio-current-other").unwrap();
    let server = server(&runtime, &Tries::default()).listen("mem://tokio-current").unwrap();
    let calls = std::thread::spawn(move || {
        try_all(&client("mem://tokio-current"), &other.address().to_string());
    });
    runtime.block_on(async {
        while !calls.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    calls.join().unwrap();
    assert!(server.shutdown(PATIENCE));
}

#[test]
fn a_dropped_call_drops_its_handler_inside_the_runtime() {
    let (runtime, tries) = (runtime(), Tries::default());
    let server = server(&runtime, &tries).listen("mem://tokio-drop").unwrap();
    let client = client("mem://tokio-drop");
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    drop(hang);
    until("it is dropped", || tries.hanging.load(Ordering::SeqCst) == 0);
    // At its deadline, with its connection, and with its server.
    let hurried = client.clone().with_options(CallOptions::default().timeout(Duration::from_millis(20)));
    assert_eq!(hurried.hang().wait().unwrap_err().status().unwrap().code(), Code::DeadlineExceeded);
    until("it is overdue", || tries.hanging.load(Ordering::SeqCst) == 0);
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    drop(server);
    assert_ne!(hang.wait().unwrap_err().fate(), Fate::NotRun);
    until("its server is gone", || tries.hanging.load(Ordering::SeqCst) == 0);
    assert_eq!(tries.lost.load(Ordering::SeqCst), 0);
}

#[test]
fn a_server_without_a_runtime_says_what_it_needs() {
    let server = gimmal::serve("mem://tokio-none", serve_tried(Tries::default())).unwrap();
    let client = client("mem://tokio-none");
    for error in [client.sleep(1).wait().unwrap_err(), client.spawn(1).wait().unwrap_err()] {
        assert_eq!((error.status().unwrap().code(), error.fate()), (Code::Internal, Fate::Ran));
        assert!(error.to_string().contains("give it one with ServerBuilder::runtime"), "{error}");
    }
    assert_eq!(client.lock().wait().unwrap_err().fate(), Fate::Ran);
    assert_eq!(server.stats().panics, 3);
    client.calm().wait().unwrap();
}

/// Subscriptions of both kinds, each with an item read; what they end with comes later.
fn subscribe(client: &TriedClient, tries: &Tries) -> impl FnOnce() + use<> {
    let (mut follows, mut fed) = (Vec::from_iter((0..30).map(|_| client.follow())), client.fed());
    follows.iter_mut().for_each(|follow| assert_eq!(next(&mut follow.0), Some(7)));
    until("it is fed", || tries.topic.subscribers() == 1);
    tries.topic.blocking_publish(&9).unwrap();
    assert_eq!(next(&mut fed.0), Some(9));
    move || {
        for mut follow in follows {
            assert_eq!((next(&mut follow.0), follow.1.wait().unwrap()), (None, 8));
        }
        assert_eq!((next(&mut fed.0), fed.1.wait().unwrap()), (None, 1));
    }
}

fn next(numbers: &mut Stream<u64, Client>) -> Option<u64> {
    numbers.blocking_next().map(Result::unwrap)
}

/// Far above what it takes, and far below any of the time-outs.
const SOON: Duration = Duration::from_secs(5);

/// On a busy machine any one may take long; so the shortest counts.
fn is_short(name: &str, mut shut_down: impl FnMut(&str) -> Duration) {
    let mut took = (0..30).map(|round| shut_down(&format!("mem://{name}-{round}")));
    let short = took.find(|took| *took < Duration::from_millis(100));
    println!("{name}: shut down in {:?}", short.expect("less than 100 ms"));
}

#[test]
fn a_shutdown_with_open_subscriptions_is_short_and_good() {
    let (runtime, tries) = (runtime(), Tries::default());
    is_short("tokio-subscribed", |url| {
        let server = server(&runtime, &tries).listen(url).unwrap();
        let ended = subscribe(&client(url), &tries);
        let began = Instant::now();
        assert!(server.shutdown(PATIENCE));
        let took = began.elapsed();
        ended();
        took
    });
}

#[test]
fn a_driven_server_with_open_subscriptions_shuts_down_as_soon() {
    let tries = Tries::default();
    is_short("tokio-driven-subscribed", |url| {
        let mut subscribed = None;
        let test = |url: &str| subscribed = Some((subscribe(&client(url), &tries), Instant::now()));
        assert!(driven(url, &tries, PATIENCE, test));
        let (ended, began) = subscribed.unwrap();
        let took = began.elapsed();
        ended();
        took
    });
}

#[test]
fn a_server_serves_until_a_future_is_ready() {
    let (runtime, tries) = (runtime(), Tries::default());
    let server = server(&runtime, &tries).listen("mem://tokio-until").unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = runtime.spawn(server.serve_until(stopped, PATIENCE));
    let client = client("mem://tokio-until");
    assert_eq!(client.sleep(1).wait().unwrap(), 1);
    let ended = subscribe(&client, &tries);
    assert!(!served.is_finished());
    let began = Instant::now();
    stop.send(()).unwrap();
    assert!(runtime.block_on(served).unwrap());
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    ended();
}

#[test]
fn what_a_shutdown_cuts_off_is_said() {
    let (runtime, tries) = (runtime(), Tries::default());
    let server = server(&runtime, &tries).listen("mem://tokio-cut").unwrap();
    let client = client("mem://tokio-cut");
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    let served = runtime.spawn(server.serve_until(std::future::ready(()), Duration::from_millis(20)));
    assert!(!runtime.block_on(served).unwrap());
    assert_ne!(hang.wait().unwrap_err().fate(), Fate::NotRun);
    until("it is dropped", || tries.hanging.load(Ordering::SeqCst) == 0);
    assert_eq!(tries.lost.load(Ordering::SeqCst), 0);
}

/// Serves by a task of a current-thread runtime, on a thread of its own, while `test` runs; then ends it.
fn driven(url: &str, tries: &Tries, timeout: Duration, test: impl FnOnce(&str)) -> bool {
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = mpsc::channel();
    let (url, tries) = (url.to_owned(), tries.clone());
    let serving = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap();
        runtime.block_on(async {
            let server = Server::builder().service(serve_tried(tries)).runtime(Tokio::current().unwrap());
            let server = server.listen_local(&url).unwrap();
            ready.send(server.address().to_string()).unwrap();
            // Other tasks of the runtime go on.
            let beside = tokio::task::spawn(async {
                for _ in 0..10 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
            let drained = serve_until(server, stopped, timeout).await.unwrap();
            beside.await.unwrap();
            drained
        })
    });
    test(&is_ready.recv_timeout(PATIENCE).unwrap());
    stop.send(()).unwrap();
    serving.join().unwrap()
}

#[test]
fn driven_by_a_task_of_a_current_thread_runtime() {
    let other = Tries::default();
    let drained = driven("mem://tokio-driven-other", &other, PATIENCE, |other| {
        let tries = Tries::default();
        let mut ended = None;
        let drained = driven("mem://tokio-driven", &tries, PATIENCE, |url| {
            let client = client(url);
            try_all(&client, other);
            assert_eq!(client.spawn_here(4).wait().unwrap(), 7);
            // A runtime does not block on one of its own threads; nothing hangs.
            assert_eq!(client.block_on(2).wait().unwrap_err().fate(), Fate::Ran);
            ended = Some(subscribe(&client, &tries));
        });
        assert!(drained);
        ended.unwrap()();
    });
    assert!(drained);
}

#[test]
fn a_driven_server_drops_its_handlers_inside_the_runtime() {
    let tries = Tries::default();
    let mut hang = None;
    let drained = driven("mem://tokio-driven-drop", &tries, Duration::from_millis(20), |url| {
        let client = client(url);
        drop(client.hang());
        until("it is dropped", || tries.hanging.load(Ordering::SeqCst) == 0);
        hang = Some(client.hang());
        until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    });
    assert!(!drained);
    assert_ne!(hang.unwrap().wait().unwrap_err().fate(), Fate::NotRun);
    assert_eq!((tries.hanging.load(Ordering::SeqCst), tries.lost.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn on_the_calling_thread_with_the_runtime_entered() {
    let (runtime, tries) = (runtime(), Tries::default());
    let other = server(&runtime, &Tries::default()).listen("mem://tokio-local-other").unwrap();
    let mut server = server(&runtime, &tries).listen_local("mem://tokio-local").unwrap();
    let calls = std::thread::spawn(move || {
        let client = client("mem://tokio-local");
        try_all(&client, &other.address().to_string());
        client.hang()
    });
    server.run_until(Duration::from_millis(1), || calls.is_finished());
    let hang = calls.join().unwrap();
    while tries.hanging.load(Ordering::SeqCst) == 0 {
        server.idle(Duration::from_millis(1));
    }
    drop(server);
    assert_ne!(hang.wait().unwrap_err().fate(), Fate::NotRun);
    assert_eq!((tries.hanging.load(Ordering::SeqCst), tries.lost.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn the_end_of_the_runtime_ends_calls_and_nothing_hangs() {
    let (runtime, tries) = (runtime(), Tries::default());
    let server = server(&runtime, &tries).listen("mem://tokio-ended").unwrap();
    let client = client("mem://tokio-ended");
    let calls: Vec<_> = (0..10).map(|_| client.sleep(3_600_000)).collect();
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    runtime.shutdown_background();
    for error in calls.into_iter().map(|call| call.wait().unwrap_err()).chain([hang.wait().unwrap_err()]) {
        assert_eq!(error.status().unwrap().code(), Code::Unavailable, "{error}");
        assert_eq!(error.fate(), Fate::MaybeRan);
    }
    let late = client.sleep(1).wait().unwrap_err();
    assert_eq!(late.fate(), Fate::NotRun, "{late}");
    server.join();
    assert!(server.shutdown(PATIENCE));
    assert_eq!((tries.hanging.load(Ordering::SeqCst), tries.lost.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn a_runtime_that_has_ended_serves_nobody() {
    let ended = runtime();
    let handle = ended.handle().clone();
    drop(ended);
    let server = Server::builder().service(serve_tried(Tries::default())).runtime(Tokio::from(handle));
    let server = server.listen("mem://tokio-late").unwrap();
    server.join();
    let refused =
        gimmal::connect("mem://tokio-late").map(TriedClient::new).map(|client| client.sleep(1).wait());
    if let Ok(called) = refused {
        assert_eq!(called.unwrap_err().fate(), Fate::NotRun);
    }
}

fn spawning(runtime: &Runtime, tries: &Tries) -> Spawned<impl gimmal::Service + use<>> {
    Spawned::new(serve_tried(tries.clone()), Tokio::from(runtime.handle().clone()))
}

fn spawning_only(runtime: &Runtime, methods: &'static [&'static str]) -> impl gimmal::Service + use<> {
    Spawned::only(serve_tried(Tries::default()), methods, Tokio::from(runtime.handle().clone()))
}

#[test]
fn spawned_for_each_call() {
    let (runtime, tries) = (runtime(), Tries::default());
    let other = gimmal::serve("mem://tokio-spawned-other", spawning(&runtime, &Tries::default())).unwrap();
    let server = gimmal::serve("mem://tokio-spawned", spawning(&runtime, &tries)).unwrap();
    let client = client("mem://tokio-spawned");
    assert_eq!(client.sleep(5).wait().unwrap(), 5);
    assert_eq!(client.nested(other.address().to_string(), 4).wait().unwrap(), 8);
    assert_eq!(client.socket("hello".to_owned()).wait().unwrap(), "hello");
    let thread = client.stall(0).wait().unwrap();
    assert!(thread.starts_with("tokio"), "{thread}");
    let error = client.panic().wait().unwrap_err();
    assert_eq!((error.status().unwrap().code(), error.fate()), (Code::Internal, Fate::Ran));
    assert_eq!(server.stats().panics, 1);
    // A call that is given up cancels its task, and a handler in it may be dropped anywhere.
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    drop(hang);
    until("it is dropped", || tries.hanging.load(Ordering::SeqCst) == 0);
    let ended = subscribe(&client, &tries);
    let began = Instant::now();
    assert!(server.shutdown(PATIENCE));
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    ended();
}

#[test]
fn spawned_for_calls_of_one_method() {
    let runtime = runtime();
    let server = gimmal::serve("mem://tokio-some", spawning_only(&runtime, &["sleep"])).unwrap();
    let client = client("mem://tokio-some");
    assert_eq!(client.sleep(1).wait().unwrap(), 1);
    let thread = client.stall(0).wait().unwrap();
    assert!(thread.starts_with("gimmal"), "{thread}");
    assert!(server.shutdown(PATIENCE));
}

#[test]
#[should_panic(expected = "the service has no method snooze")]
fn only_methods_that_are_there_are_spawned() {
    let _ = spawning_only(&runtime(), &["sleep", "snooze"]);
}

#[test]
fn the_end_of_the_runtime_ends_spawned_calls() {
    let (runtime, tries) = (runtime(), Tries::default());
    let _server = gimmal::serve("mem://tokio-spawned-ended", spawning(&runtime, &tries)).unwrap();
    let client = client("mem://tokio-spawned-ended");
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    runtime.shutdown_background();
    for error in [hang.wait().unwrap_err(), client.hang().wait().unwrap_err()] {
        assert_eq!(error.status().unwrap().code(), Code::Unavailable, "{error}");
        assert_eq!(error.fate(), Fate::MaybeRan);
    }
}

/// What is logged in this process.
static LOG: RwLock<Vec<u8>> = RwLock::new(Vec::new());

struct Writer;

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.write().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_handler_that_blocks_its_worker_is_counted_and_named() {
    tracing_subscriber::fmt().with_ansi(false).with_writer(|| Writer).init();
    let config = Config { slow_poll: Duration::from_millis(50), ..Config::default() };
    let runtime = runtime();
    let server = Server::builder().service(serve_tried(Tries::default())).config(config);
    let server = server.runtime(Tokio::from(runtime.handle().clone())).listen("mem://tokio-slow").unwrap();
    let client = client("mem://tokio-slow");
    client.stall(0).wait().unwrap();
    client.stall(100).wait().unwrap();
    assert!(server.stats().slow_polls >= 1);
    let log = String::from_utf8(LOG.read().unwrap().clone()).unwrap();
    let line = log.lines().find(|line| line.contains("a handler blocked its worker")).unwrap();
    assert!(line.contains("method=Tried.stall"), "{line}");
}
