//! A service that does everything, and servers and clients for it on every address that needs no device.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use gimmal_rpc::{
    Bulk, Client, Code, Config, Cx, Fate, Instant, LocalClient, ResponseWriter, ServeError, Server, Status,
    WithLoan,
    engine::{Idle, transport::ListenError},
};
pub use gimmal_testkit::until;
use serde::{Deserialize, Serialize};

extern crate gimmal_rpc as gimmal;

/// Why a division failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
pub enum DivideError {
    /// It was by zero.
    ByZero { dividend: u32 },
}

/// The codec that the suite runs with.
#[cfg(feature = "test-bincode")]
pub type Chosen = gimmal_rpc::Bincode;
#[cfg(not(feature = "test-bincode"))]
pub type Chosen = gimmal_rpc::Postcard;

/// Everything that a service can have.
#[gimmal_rpc::service(crate = gimmal_rpc, codec = Chosen)]
pub trait Probe {
    /// Answers with the text it was given.
    #[idempotent]
    async fn echo(&self, cx: &Cx, text: String) -> String;
    /// Or an error of its own.
    async fn divide(&self, cx: &Cx, dividend: u32, divisor: u32) -> Result<u32, DivideError>;
    /// Answers from another thread, later.
    #[idempotent]
    async fn later(&self, cx: &Cx, ms: u64) -> u64;
    /// Counts itself while it runs, and never ends.
    async fn hang(&self, cx: &Cx);
    /// Panics, at once or after a while.
    async fn panic(&self, cx: &Cx, ms: u64);
    /// An answer of this many bytes.
    async fn fill(&self, cx: &Cx, bytes: u32) -> Vec<u8>;
    /// An error of this many bytes.
    async fn complain(&self, cx: &Cx, bytes: u32) -> Result<(), String>;
    /// How many bytes came.
    async fn measure(&self, cx: &Cx, bytes: Vec<u8>) -> u64;
    /// Bulk of this many bytes, and their sum.
    async fn lend(&self, cx: &Cx, bytes: u64) -> Result<WithLoan<u64>, String>;
    /// The sum of what the caller lends.
    async fn sum(&self, cx: &Cx, salt: u64, bytes: Bulk) -> u64;
    /// Microseconds that are left.
    async fn left(&self, cx: &Cx) -> Option<u64>;
    /// The sum of borrowed bytes; an error when there are none.
    #[inline]
    fn add(&self, cx: &Cx, name: &str, bytes: &[u8]) -> Result<u64, DivideError>;
    /// As much of a borrowed text.
    #[inline]
    fn cut(&self, cx: &Cx, text: &str, chars: u32) -> String;
    /// Backwards.
    #[raw]
    fn reverse(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
    /// Always refuses.
    #[raw]
    fn refuse(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) -> Result<(), Status>;
    /// Always panics.
    #[raw]
    fn panic_raw(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
}

/// Counts what happens to its handlers.
#[derive(Debug, Default)]
pub struct Counts {
    pub hanging: AtomicU64,
    pub hung: AtomicU64,
    pub ran: AtomicU64,
}

#[derive(Debug, Default, Clone)]
pub struct Prober(pub Arc<Counts>);

struct Hanging(Arc<Counts>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.hanging.fetch_sub(1, Ordering::SeqCst);
        self.0.hung.fetch_add(1, Ordering::SeqCst);
    }
}

/// Ready when another thread says so: what a timer or a pool of any runtime looks like from here.
pub fn sleep(ms: u64) -> impl Future<Output = ()> + Send {
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Waker>(1);
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let theirs = Arc::clone(&done);
    std::thread::spawn(move || {
        let waker = receiver.recv();
        std::thread::sleep(Duration::from_millis(ms));
        theirs.store(true, Ordering::SeqCst);
        if let Ok(waker) = waker {
            waker.wake();
        }
    });
    Sleep { done, sender: Some(sender) }
}

struct Sleep {
    done: Arc<std::sync::atomic::AtomicBool>,
    sender: Option<std::sync::mpsc::SyncSender<Waker>>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(sender) = self.sender.take() {
            sender.send(context.waker().clone()).unwrap();
        }
        if self.done.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Probe for Prober {
    async fn echo(&self, _: &Cx, text: String) -> String {
        self.0.ran.fetch_add(1, Ordering::SeqCst);
        text
    }

    async fn divide(&self, _: &Cx, dividend: u32, divisor: u32) -> Result<u32, DivideError> {
        dividend.checked_div(divisor).ok_or(DivideError::ByZero { dividend })
    }

    async fn later(&self, _: &Cx, ms: u64) -> u64 {
        sleep(ms).await;
        ms
    }

    async fn hang(&self, _: &Cx) {
        self.0.hanging.fetch_add(1, Ordering::SeqCst);
        let _guard = Hanging(Arc::clone(&self.0));
        std::future::pending::<()>().await;
    }

    async fn panic(&self, _: &Cx, ms: u64) {
        if ms > 0 {
            sleep(ms).await;
        }
        panic!("as it was asked to");
    }

    async fn fill(&self, _: &Cx, bytes: u32) -> Vec<u8> {
        vec![7; bytes as usize]
    }

    async fn complain(&self, _: &Cx, bytes: u32) -> Result<(), String> {
        Err("y".repeat(bytes as usize))
    }

    async fn measure(&self, _: &Cx, bytes: Vec<u8>) -> u64 {
        bytes.len() as u64
    }

    async fn lend(&self, cx: &Cx, bytes: u64) -> Result<WithLoan<u64>, String> {
        let mut loan = cx.loan(usize::try_from(bytes).unwrap()).map_err(|error| error.to_string())?;
        for (at, byte) in loan.iter_mut().enumerate() {
            *byte = pattern(at);
        }
        let sum = sum(&loan);
        Ok(WithLoan::new(sum, loan))
    }

    async fn sum(&self, _: &Cx, salt: u64, bytes: Bulk) -> u64 {
        sum(&bytes) + salt
    }

    async fn left(&self, cx: &Cx) -> Option<u64> {
        cx.remaining().map(|left| u64::try_from(left.as_micros()).unwrap())
    }

    fn add(&self, _: &Cx, name: &str, bytes: &[u8]) -> Result<u64, DivideError> {
        match bytes {
            [] => Err(DivideError::ByZero { dividend: u32::try_from(name.len()).unwrap() }),
            bytes => Ok(sum(bytes)),
        }
    }

    fn cut(&self, _: &Cx, text: &str, chars: u32) -> String {
        text.chars().take(chars as usize).collect()
    }

    fn reverse(&self, _: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) {
        for (to, from) in answer.reserve(request.len()).iter_mut().zip(request.iter().rev()) {
            *to = *from;
        }
    }

    fn refuse(&self, _: &Cx, _: &[u8], answer: &mut ResponseWriter<'_>) -> Result<(), Status> {
        answer.write(b"never seen");
        Err(Status::new(Code::PermissionDenied, "not today"))
    }

    fn panic_raw(&self, _: &Cx, _: &[u8], _: &mut ResponseWriter<'_>) {
        panic!("as it was asked to");
    }
}

pub fn pattern(at: usize) -> u8 {
    u8::try_from(at % 251).unwrap()
}

pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// An address that nobody else uses.
pub fn address(scheme: &str, name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("rpc-{name}-{}-{number}", std::process::id());
    match scheme {
        "shm" => format!("shm://{}/{name}", std::env::temp_dir().display()),
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        "tcp+tls" => "tcp+tls://127.0.0.1:0".to_owned(),
        "rxe" | "siw" => {
            let variable = format!("GIMMAL_{}_ADDR", scheme.to_uppercase());
            let host = std::env::var(&variable).expect("the lab names the device's address");
            format!("rdma://{host}:0")
        }
        _ => format!("{scheme}://{name}"),
    }
}

/// Few threads share few cores: sleep soon. And code that is not optimised takes seconds for megabytes, on a device that is
/// a program too: a deadline that no test waits for, and no connection is given up because its peer had no processor.
pub fn config() -> Config {
    let mut config = Config { deadline: Duration::from_secs(60), ..Config::default() };
    let engine = &mut config.engine;
    engine.idle = Idle::Adaptive { spin_us: 20 };
    engine.heartbeat_ms = 20_000;
    (engine.connect, engine.listen) = (gimmal_testkit::patient_connect(), gimmal_testkit::patient_listen());
    config
}

/// The connections of each worker of a server.
pub fn connections(server: &Server) -> Vec<usize> {
    server.duty().iter().map(|duty| duty.connections).collect()
}

/// A server where another one was, which it waits for that long. Over TCP a connection that goes out may have the port meanwhile.
pub fn listen_again(url: &str, take_over: Duration) -> (Server, Arc<Counts>) {
    let started = Instant::now();
    loop {
        let prober = Prober::default();
        let counts = Arc::clone(&prober.0);
        let builder = Server::builder().service(serve_probe(prober)).config(config());
        match builder.take_over(take_over).listen(url) {
            Ok(server) => return (server, counts),
            Err(ServeError::Listen(ListenError::InUse { .. }))
                if started.elapsed() < Duration::from_secs(30) =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

pub struct Fixture {
    pub server: Server,
    pub counts: Arc<Counts>,
    pub url: String,
}

impl Fixture {
    pub fn new(scheme: &str, name: &str) -> Self {
        Self::with(scheme, name, config())
    }

    pub fn with(scheme: &str, name: &str, config: Config) -> Self {
        let prober = Prober::default();
        let counts = Arc::clone(&prober.0);
        let builder = Server::builder().service(serve_probe(prober)).config(config);
        let server = builder.listen(&address(scheme, name)).unwrap();
        let url = server.address().to_string();
        Self { server, counts, url }
    }

    /// Another server at the same place, after the first was stopped without waiting for its calls.
    pub fn restarted(self) -> Self {
        let Self { server, url, .. } = self;
        let _ = server.shutdown(Duration::ZERO);
        let (server, counts) = listen_again(&url, Duration::ZERO);
        Self { server, counts, url }
    }

    pub fn client(&self) -> ProbeClient {
        self.client_with(config())
    }

    pub fn client_with(&self, config: Config) -> ProbeClient {
        ProbeClient::new(Client::builder().config(config).connect(&self.url).unwrap())
    }

    pub fn inline(&self) -> ProbeClient<LocalClient> {
        self.inline_with(config())
    }

    pub fn inline_with(&self, config: Config) -> ProbeClient<LocalClient> {
        ProbeClient::new(Client::builder().config(config).connect_local(&self.url).unwrap())
    }

    /// Six clients of a server with two workers, by the worker that they are on: three each.
    pub fn three_each(&self, config: &Config) -> [Vec<ProbeClient>; 2] {
        let mut clients = [Vec::new(), Vec::new()];
        for total in 1..=6 {
            let before = connections(&self.server);
            let client = self.client_with(config.clone());
            until("it is counted", || connections(&self.server).iter().sum::<usize>() == total);
            clients[usize::from(connections(&self.server)[1] > before[1])].push(client);
        }
        clients
    }

    pub fn hanging(&self) -> u64 {
        self.counts.hanging.load(Ordering::SeqCst)
    }
}

/// Choices that a seed makes.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// One of `0..sides`.
    pub fn below(&mut self, sides: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    /// `true` once in so many.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// The smallest runtime there is.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(10)),
        }
    }
}

/// The fate of a call that failed.
pub fn fate<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, gimmal_rpc::CallError<E>>) -> Fate {
    result.expect_err("the call should have failed").fate()
}

/// Each function as a test over every provider; those that need a device are for the lab.
#[macro_export]
macro_rules! for_each_scheme {
    ($($case:ident)*) => {
        mod mem { $(#[test] fn $case() { super::$case("mem"); })* }
        mod shm { $(#[test] fn $case() { super::$case("shm"); })* }
        mod tcp { $(#[test] fn $case() { super::$case("tcp"); })* }
        #[cfg(feature = "verbs")]
        mod rxe { $(#[test] #[ignore = "needs the lab"] fn $case() { super::$case("rxe"); })* }
        #[cfg(feature = "verbs")]
        mod siw { $(#[test] #[ignore = "needs the lab"] fn $case() { super::$case("siw"); })* }
    };
}
