//! Workers that are busy: a handler that blocks costs the calls of its own worker, and nobody's connection. A process that
//! stops is noticed all the same.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use common::{address, config, until};
use gimmal_rpc::{
    CallError, CallOptions, Client, Code, Config, Cx, Fate, Instant, Server, TransportError,
    engine::transport::CloseReason,
};

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Blocks {
    /// Blocks the worker that runs it, and nothing else.
    async fn block(&self, cx: &Cx, ms: u64) -> u64;
    #[idempotent]
    async fn echo(&self, cx: &Cx, number: u64) -> u64;
}

struct Blocker;

impl Blocks for Blocker {
    async fn block(&self, _: &Cx, ms: u64) -> u64 {
        std::thread::sleep(Duration::from_millis(ms));
        ms
    }

    async fn echo(&self, _: &Cx, number: u64) -> u64 {
        number
    }
}

const BOUND_MS: u32 = 200;
/// Ten bounds; the soak blocks for 30 s.
const BLOCK_MS: u64 = 2000;

fn impatient(workers: usize) -> Config {
    let mut config = config();
    config.engine.heartbeat_ms = BOUND_MS;
    config.engine.workers = workers;
    config
}

fn serve(url: &str, workers: usize) -> Server {
    Server::builder().service(serve_blocks(Blocker)).config(impatient(workers)).listen(url).unwrap()
}

fn connect(url: &str) -> Client {
    Client::builder().config(impatient(1)).connect(url).unwrap()
}

/// The slowest of echoes but one in a hundred, and how many they were.
fn p99(client: &BlocksClient, mut go_on: impl FnMut(usize) -> bool) -> (Duration, usize) {
    let mut took = Vec::new();
    while go_on(took.len()) {
        let started = Instant::now();
        client.echo(took.len() as u64).wait().unwrap();
        took.push(started.elapsed());
    }
    took.sort_unstable();
    (took[took.len() * 99 / 100], took.len())
}

fn a_handler_that_blocks_ends_no_connection(scheme: &str) {
    let block_ms = env::var("GIMMAL_BLOCK_MS").map_or(BLOCK_MS, |ms| ms.parse().unwrap());
    let server = serve(&address(scheme, "busy"), 2);
    let url = server.address().to_string();
    let (here, there) = (connect(&url), connect(&url));
    until("each worker has one", || server.connections() == [1, 1]);
    let (busy, other) = (BlocksClient::new(here.clone()), BlocksClient::new(there.clone()));
    let (before, _) = p99(&other, |echoed| echoed < 300);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flowing = scope.spawn(|| p99(&other, |_| !done.load(Ordering::Relaxed)));
        let blocked = busy.block(block_ms);
        let started = Instant::now();
        let short = busy.clone().with_options(CallOptions::default().timeout(Duration::from_millis(100)));
        while started.elapsed() < Duration::from_millis(block_ms * 3 / 4) {
            let call = Instant::now();
            let error = short.echo(1).wait().unwrap_err();
            let ended = (error.status().map(gimmal_rpc::Status::code), error.fate());
            assert_eq!(ended, (Some(Code::DeadlineExceeded), Fate::MaybeRan), "{error}");
            assert!(call.elapsed() < Duration::from_secs(1), "{:?}", call.elapsed());
        }
        assert_eq!(blocked.wait().unwrap(), block_ms);
        done.store(true, Ordering::Relaxed);
        let (beside, echoed) = flowing.join().unwrap();
        assert!(
            beside <= before.saturating_mul(3).saturating_add(Duration::from_millis(20)),
            "{beside:?}, alone {before:?}"
        );
        assert!(echoed > 100, "{echoed} calls in all that time");
    });
    assert_eq!(busy.echo(7).wait().unwrap(), 7);
    assert_eq!((here.reconnects(), there.reconnects()), (0, 0));
    assert_eq!((server.accepted(), server.connections()), (2, vec![1, 1]));
}

mod mem {
    #[test]
    fn a_handler_that_blocks_ends_no_connection() {
        super::a_handler_that_blocks_ends_no_connection("mem");
    }
}

mod shm {
    #[test]
    fn a_handler_that_blocks_ends_no_connection() {
        super::a_handler_that_blocks_ends_no_connection("shm");
    }
}

/// Set in the process that serves.
const CHILD: &str = "GIMMAL_TEST_BUSY_URL";

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn serve(test: &str) -> (Self, String) {
        let mut own = Command::new(env::current_exe().unwrap());
        own.args(["--exact", test, "--nocapture"]).env(CHILD, address("shm", test)).stdout(Stdio::piped());
        let mut child = own.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines.map_while(Result::ok).find(|line| line.starts_with("shm://"));
        (Self(child), url.unwrap())
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.0.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

/// A server in another process: busy is not dead, and stopped is, within the bound.
#[test]
fn a_process_that_stops_is_not_busy() {
    if let Ok(url) = env::var(CHILD) {
        let server = serve(&url, 1);
        println!("\n{}", server.address());
        return server.join();
    }
    let (process, url) = Process::serve("a_process_that_stops_is_not_busy");
    let client = connect(&url);
    let blocks = BlocksClient::new(client.clone());
    assert_eq!(blocks.block(5 * u64::from(BOUND_MS)).wait().unwrap(), 5 * u64::from(BOUND_MS));
    assert_eq!((blocks.echo(1).wait().unwrap(), client.reconnects()), (1, 0));
    // It stops while its worker is busy, for longer than the bound.
    let pending = blocks.block(60_000);
    std::thread::sleep(Duration::from_millis(2 * u64::from(BOUND_MS)));
    process.signal("-STOP");
    let stopped = Instant::now();
    match pending.wait() {
        Err(CallError::Transport(TransportError::Closed { reason, fate })) => {
            let silent = CloseReason::PeerSilent { bound_ms: BOUND_MS };
            assert_eq!((reason, fate), (silent, Fate::MaybeRan));
        }
        other => panic!("{other:?}"),
    }
    // The bound, and a machine with other things to do.
    let limit = Duration::from_millis(u64::from(BOUND_MS) + 500);
    assert!(stopped.elapsed() < limit, "{:?}", stopped.elapsed());
}
