//! A service for clients on tokio, and a server of it.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gimmal::{
    Channel, Client, ClientBuilder, Config, Cx, Reconnect, Server, Stream,
    config::{EngineConfig, Idle},
    layer::{Retry, RetryPolicy},
};
use gimmal_testkit::{patient_connect, patient_listen};
use tokio::runtime::{Builder, LocalRuntime, Runtime};

#[gimmal::service]
pub trait Probe {
    #[idempotent]
    async fn square(&self, cx: &Cx, number: u64) -> u64;
    /// Takes so many ms, on another thread.
    #[idempotent]
    async fn later(&self, cx: &Cx, ms: u64) -> u64;
    /// Never ends.
    async fn hang(&self, cx: &Cx);
    async fn sum(&self, cx: &Cx, numbers: Stream<u64>) -> u64;
}

#[derive(Clone, Default)]
pub struct Prober {
    pub hanging: Arc<AtomicU64>,
}

struct Hanging(Arc<AtomicU64>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Probe for Prober {
    async fn square(&self, _: &Cx, number: u64) -> u64 {
        number * number
    }

    async fn later(&self, _: &Cx, ms: u64) -> u64 {
        let (tell, told) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(ms));
            tell.send(ms)
        });
        told.await.unwrap()
    }

    async fn hang(&self, _: &Cx) {
        self.hanging.fetch_add(1, Ordering::SeqCst);
        let _hanging = Hanging(Arc::clone(&self.hanging));
        std::future::pending().await
    }

    async fn sum(&self, _: &Cx, mut numbers: Stream<u64>) -> u64 {
        let mut sum = 0;
        while let Some(Ok(number)) = numbers.next().await {
            sum += number;
        }
        sum
    }
}

/// Few threads share few cores: sleep soon, and come again soon.
pub fn config() -> Config {
    let reconnect = Reconnect { max: Duration::from_millis(50), ..Reconnect::default() };
    let (connect, listen) = (patient_connect(), patient_listen());
    let idle = Idle::Adaptive { spin_us: 20 };
    let engine = EngineConfig { idle, connect, listen, ..EngineConfig::default() };
    Config { engine, reconnect: Some(reconnect), deadline: Duration::from_secs(60), ..Config::default() }
}

pub fn builder() -> ClientBuilder {
    Client::builder().config(config())
}

pub fn address(name: &str) -> String {
    format!("shm://{}/gimmal-tokio-{name}-{}", std::env::temp_dir().display(), std::process::id())
}

pub fn serve(url: &str, prober: &Prober) -> Server {
    Server::builder().service(serve_probe(prober.clone())).config(config()).listen(url).unwrap()
}

pub fn local() -> LocalRuntime {
    Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap()
}

pub fn threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub fn patient<C: Channel>(channel: C) -> ProbeClient<Retry<C>> {
    let policy = RetryPolicy { attempts: 100_000, max: Duration::from_millis(20), ..RetryPolicy::default() };
    ProbeClient::new(Retry::new(channel, policy))
}

pub async fn nap(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
