//! Servers, their clients and where their streams come out, over each provider of this host.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    future::Future,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use gimmal::{Client, Config, Cx};
use gimmal_io::{Duplex, Incoming, open};

/// Calls beside the streams.
#[gimmal::service]
pub trait Beside {
    async fn echo(&self, cx: &Cx, number: u64) -> u64;
}

struct Echo;

impl Beside for Echo {
    async fn echo(&self, _: &Cx, number: u64) -> u64 {
        number
    }
}

/// A server, its client, and where its streams come out.
pub struct Fixture {
    pub server: gimmal::Server,
    pub client: Client,
    pub incoming: Incoming,
}

impl Fixture {
    pub fn new(url: &str, config: &Config) -> Self {
        let (streams, incoming) = gimmal_io::serve(config.serving_max);
        let builder = gimmal::Server::builder().config(config.clone()).service(streams);
        let server = builder.service(serve_beside(Echo)).listen(url).unwrap();
        let client =
            Client::builder().config(config.clone()).connect(server.address().to_string().as_str()).unwrap();
        Self { server, client, incoming }
    }

    /// Both ends of a new stream.
    pub async fn pair(&mut self) -> (Duplex, Duplex) {
        let opened = open(&self.client, "pair");
        let (name, accepted) = self.incoming.accept().await.unwrap();
        assert_eq!(name, "pair");
        (opened, accepted)
    }

    /// Waits until both sides have counted an end for everything that they began.
    pub async fn settled(&self) {
        until("nothing is served", || self.server.stats().serving == 0).await;
        until("all calls have ended", || {
            let stats = self.client.stats();
            stats.calls == stats.answered + stats.failed + stats.cancelled
        })
        .await;
        let (served, called) = (self.server.stats(), self.client.stats());
        assert_eq!((served.violations, called.violations, served.panics), (0, 0, 0));
    }
}

/// A configuration with room for `streams` at once.
pub fn roomy(streams: usize) -> Config {
    let mut config = Config {
        window: streams,
        serving_max: streams,
        tasks_max: streams.max(4096),
        waiting_max: 20_000,
        ..Config::default()
    };
    let engine = &mut config.engine;
    engine.inbox = 4096;
    // A machine with other things to do makes connecting long.
    (engine.connect, engine.listen) = (gimmal_testkit::patient_connect(), gimmal_testkit::patient_listen());
    config
}

/// Runs a case over each provider of this host, or in the lab over its devices alone, bounded in time.
pub fn each<F: Future<Output = ()>>(config: &Config, case: impl Fn(Fixture) -> F) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let devices = ["GIMMAL_RXE_ADDR", "GIMMAL_SIW_ADDR"].map(std::env::var);
    let mut urls: Vec<_> = devices.into_iter().flatten().map(|host| format!("rdma://{host}:0")).collect();
    if urls.is_empty() {
        urls = vec![format!("mem://io-{}-{number}", std::process::id()), "tcp://127.0.0.1:0".to_owned()];
    }
    for url in urls {
        let fixture = Fixture::new(&url, config);
        runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(240), case(fixture)).await.expect(&url);
        });
    }
}

pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: never");
}

/// After so many bytes they come again.
const PERIOD: usize = 251;
/// Most bytes that [`bytes`] shows.
pub const SHOWN: usize = 8 << 20;

/// Bytes whose place tells what they are, as far as [`SHOWN`].
pub fn bytes(from: usize, len: usize) -> &'static [u8] {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let period: Vec<u8> = (0..PERIOD).map(|at| u8::try_from(at * 7 % PERIOD).unwrap()).collect();
        period.repeat(SHOWN / PERIOD + 2)
    });
    &BYTES[from % PERIOD..][..len]
}

/// Numbers that look like random ones.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).unwrap() % limit
    }
}
