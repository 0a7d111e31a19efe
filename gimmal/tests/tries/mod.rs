//! A service whose handlers use tokio, and the kinds of servers that serve it.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    rc::Rc,
    sync::{
        Arc, Condvar,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use gimmal::{
    Client, Config, Cx, Server, ServerBuilder, Sink, Stream,
    raw::ResponseWriter,
    runtime::Spawned,
    tokio::{Tokio, serve_until},
    topic::{Behind, Topic},
};
pub use gimmal_testkit::until;
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioExecutor;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Handle, Runtime},
    sync::{Mutex, oneshot},
};

/// Long enough for each step on a busy machine; none waits for it.
pub const PATIENCE: Duration = Duration::from_secs(30);

#[gimmal::service]
pub trait Tried {
    #[idempotent]
    async fn sleep(&self, cx: &Cx, ms: u64) -> u64;
    async fn spawn(&self, cx: &Cx, number: u64) -> u64;
    async fn block(&self, cx: &Cx, number: u64) -> u64;
    async fn socket(&self, cx: &Cx, text: String) -> String;
    /// By a client of HTTP with a pool and names, as reqwest has it.
    async fn fetch(&self, cx: &Cx, text: String) -> String;
    async fn lock(&self, cx: &Cx) -> u64;
    async fn nested(&self, cx: &Cx, url: String, number: u64) -> u64;
    /// With a mutex of tokio's, and of another service, the thread that it runs on: both work without a runtime.
    async fn beside(&self, cx: &Cx, url: String) -> String;
    /// Locks a mutex that is always free, until `calm`.
    async fn busy(&self, cx: &Cx);
    async fn calm(&self, cx: &Cx);
    /// Never ends; counts itself, and looks for the runtime when it is dropped.
    async fn hang(&self, cx: &Cx);
    #[inline]
    fn spawn_inline(&self, cx: &Cx) -> bool;
    #[raw]
    fn spawn_raw(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
    #[inline]
    fn spawn_here_inline(&self, cx: &Cx) -> bool;
    async fn in_place(&self, cx: &Cx, number: u64) -> u64;
    /// Blocks its thread until another call of it has begun, or for so many ms; whether there was one.
    async fn meet(&self, cx: &Cx, ms: u64) -> bool;
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
pub struct Tries {
    pub topic: Topic<u64>,
    pub count: Arc<Mutex<u64>>,
    pub is_calm: Arc<AtomicBool>,
    pub hanging: Arc<AtomicUsize>,
    /// Handlers that were dropped where no runtime was.
    pub lost: Arc<AtomicUsize>,
    /// How many blocking calls there are.
    pub meeting: Arc<(std::sync::Mutex<usize>, Condvar)>,
}

impl Default for Tries {
    fn default() -> Self {
        Self {
            topic: Topic::new(8, Behind::Wait),
            count: Arc::default(),
            is_calm: Arc::default(),
            hanging: Arc::default(),
            lost: Arc::default(),
            meeting: Arc::default(),
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

    async fn fetch(&self, _: &Cx, text: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let router = axum::Router::new().fallback(async |body: String| body);
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
        let mut heard = String::new();
        for _ in 0..2 {
            let response =
                client.request(http::Request::post(&url).body(text.clone()).unwrap()).await.unwrap();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            heard.push_str(str::from_utf8(&body).unwrap());
        }
        serving.abort();
        heard
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

    async fn beside(&self, _: &Cx, url: String) -> String {
        let _count = self.count.lock().await;
        let client = TriedClient::new(Client::connect_async(&url).await.unwrap());
        client.stall(0).await.unwrap()
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

    fn spawn_raw(&self, _: &Cx, _: &[u8], answer: &mut ResponseWriter<'_>) {
        tokio::spawn(async {});
        answer.write(b"spawned");
    }

    fn spawn_here_inline(&self, _: &Cx) -> bool {
        tokio::task::spawn_local(async {});
        true
    }

    async fn in_place(&self, _: &Cx, number: u64) -> u64 {
        tokio::task::block_in_place(|| number + 4)
    }

    async fn meet(&self, _: &Cx, ms: u64) -> bool {
        let (count, changed) = &*self.meeting;
        let mut count = count.lock().unwrap();
        *count += 1;
        changed.notify_all();
        let patience = Duration::from_millis(ms);
        let (mut count, _) = changed.wait_timeout_while(count, patience, |count| *count < 2).unwrap();
        let has_met = *count >= 2;
        if !has_met {
            *count -= 1;
        }
        has_met
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
            let number = Rc::new(number);
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

pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

pub fn server(runtime: &Runtime, tries: &Tries) -> ServerBuilder {
    let builder = Server::builder().config(config()).service(serve_tried(tries.clone()));
    builder.runtime(Tokio::from(runtime.handle().clone()))
}

/// The default, but for connecting, of which a machine with other things to do makes a long one.
fn config() -> Config {
    let mut config = Config::default();
    let engine = &mut config.engine;
    (engine.connect, engine.listen) = (gimmal_testkit::patient_connect(), gimmal_testkit::patient_listen());
    config
}

pub fn client(url: &str) -> TriedClient {
    TriedClient::new(Client::builder().config(config()).share_workers().connect(url).unwrap())
}

/// Subscriptions of both kinds, each with an item read; what they end with comes later.
pub fn subscribe(client: &TriedClient, tries: &Tries) -> impl FnOnce() + use<> {
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

pub fn next(numbers: &mut Stream<u64, Client>) -> Option<u64> {
    numbers.blocking_next().map(Result::unwrap)
}

/// Far above what it takes, and far below any of the time-outs.
pub const SOON: Duration = Duration::from_secs(20);

/// Serves by a task of a current-thread runtime, on a thread of its own, while `test` runs; then ends it.
pub fn driven(url: &str, tries: &Tries, timeout: Duration, test: impl FnOnce(&str)) -> bool {
    let tries = tries.clone();
    driven_with(url, || Server::builder().service(serve_tried(tries)), timeout, test)
}

/// Serves what `build` makes by a task of a current-thread runtime, on a thread of its own, while `test` runs; then ends it.
pub fn driven_with(
    url: &str,
    build: impl FnOnce() -> ServerBuilder + Send,
    timeout: Duration,
    test: impl FnOnce(&str),
) -> bool {
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = mpsc::channel();
    let serve = move || {
        let runtime = Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap();
        runtime.block_on(async {
            let server = build().runtime(Tokio::current().unwrap()).listen_local(url).unwrap();
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
    };
    std::thread::scope(|scope| {
        let serving = scope.spawn(serve);
        test(&is_ready.recv_timeout(PATIENCE).unwrap());
        stop.send(()).unwrap();
        serving.join().unwrap()
    })
}

pub fn spawning(runtime: &Runtime, tries: &Tries) -> Spawned<impl gimmal::Service + use<>> {
    Spawned::new(serve_tried(tries.clone()), Tokio::from(runtime.handle().clone()))
}

pub fn spawning_only(runtime: &Runtime, methods: &'static [&'static str]) -> impl gimmal::Service + use<> {
    Spawned::only(serve_tried(Tries::default()), methods, Tokio::from(runtime.handle().clone()))
}
