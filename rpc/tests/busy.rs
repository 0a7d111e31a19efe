//! Workers that are busy: a handler that blocks costs the calls of its own worker, and nobody's connection. A process that
//! stops is noticed all the same.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    env,
    future::Future as _,
    io::{BufRead as _, BufReader},
    pin::Pin,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use common::{address, config, connections, until};
use gimmal_rpc::{
    CallError, CallOptions, Client, Code, Config, Cx, Fate, Instant, Server, TransportError,
    engine::transport::CloseReason,
};
use gimmal_testkit::{ChildGuard, child::this_program};

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Blocks {
    /// Blocks the worker that runs it, and nothing else.
    async fn block(&self, cx: &Cx, ms: u64) -> u64;
    #[idempotent]
    async fn echo(&self, cx: &Cx, number: u64) -> u64;
    async fn weigh(&self, cx: &Cx, bytes: Vec<u8>) -> u64;
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

    async fn weigh(&self, _: &Cx, bytes: Vec<u8>) -> u64 {
        bytes.len() as u64
    }
}

/// A process whose threads all stand still for three quarters of it is given up, whatever is the cause. So it is longer than those of a
/// machine with other things to do.
const BOUND_MS: u32 = 4000;

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

fn r62_a_handler_that_blocks_ends_no_connection(scheme: &str) {
    let server = serve(&address(scheme, "busy"), 2);
    let url = server.address().to_string();
    // Some bounds; the soak blocks for 30 s.
    let bounds = 5 * u64::from(BOUND_MS) / 2;
    let block_ms = env::var("GIMMAL_BLOCK_MS").map_or(bounds, |ms| ms.parse().unwrap());
    let (here, there) = (connect(&url), connect(&url));
    until("each worker has one", || connections(&server) == [1, 1]);
    let (busy, other) = (BlocksClient::new(here.clone()), BlocksClient::new(there.clone()));
    let mut rounds = Vec::new();
    while let Err(slow) = beside_one_that_blocks(&busy, &other, block_ms) {
        rounds.push(slow);
        assert!(rounds.len() < 3, "{rounds:?}");
    }
    assert_eq!(busy.echo(7).wait().unwrap(), 7);
    assert_eq!((here.reconnects(), there.reconnects()), (0, 0));
    assert_eq!((server.accepted(), connections(&server)), (2, vec![1, 1]));
}

/// A handler of `busy`'s blocks: what else is called there ends at its own deadline, and `other` hears nothing of it. An error is what
/// took too long, of which a machine with other things to do may be the cause.
fn beside_one_that_blocks(busy: &BlocksClient, other: &BlocksClient, block_ms: u64) -> Result<(), String> {
    let (before, _) = p99(other, |echoed| echoed < 300);
    let (done, began) = (AtomicBool::new(false), Instant::now());
    let goes_on = || !done.load(Ordering::Relaxed) && began.elapsed() < Duration::from_millis(3 * block_ms);
    std::thread::scope(|scope| {
        let flowing = scope.spawn(|| p99(other, |_| goes_on()));
        let mut blocked = busy.block(block_ms);
        let started = Instant::now();
        // So few that credit lasts.
        let timeout = Duration::from_millis(block_ms / 20);
        let short = busy.clone().with_options(CallOptions::default().timeout(timeout));
        let (mut is_over, mut is_unsent) = (None, false);
        while started.elapsed() < Duration::from_millis(block_ms * 3 / 4) {
            let ended = short.echo(1).wait();
            if let Poll::Ready(answer) = Pin::new(&mut blocked).poll(&mut Context::from_waker(Waker::noop()))
            {
                is_over = Some(answer);
                break;
            }
            let error = ended.unwrap_err();
            assert_eq!(error.status().map(gimmal_rpc::Status::code), Some(Code::DeadlineExceeded), "{error}");
            is_unsent |= error.fate() != Fate::MaybeRan;
        }
        let is_late = is_over.is_some();
        assert_eq!(is_over.unwrap_or_else(|| blocked.wait()).unwrap(), block_ms);
        done.store(true, Ordering::Relaxed);
        let (beside, echoed) = flowing.join().unwrap();
        if is_late {
            return Err(format!("a call of {timeout:?} ended after the one of {block_ms} ms"));
        }
        if is_unsent {
            return Err(format!("a call had not left within {timeout:?}"));
        }
        if beside > before.saturating_mul(3).saturating_add(Duration::from_millis(20)) {
            return Err(format!("{beside:?}, alone {before:?}"));
        }
        if echoed > 100 { Ok(()) } else { Err(format!("{echoed} calls in all that time")) }
    })
}

for_each_scheme! { r62_a_handler_that_blocks_ends_no_connection }

/// More was sent than the host of a handler that blocks takes: neither the heartbeat nor the kernel ends the connection.
#[test]
#[ignore = "blocks for longer than the kernel bears by itself: 25 s"]
fn r62_what_waits_for_a_handler_that_blocks_is_answered_in_the_end() {
    let service = serve_blocks(Blocker);
    let server = Server::builder().service(service).config(config()).listen(&address("tcp", "full")).unwrap();
    let client = Client::builder().config(config()).connect(&server.address().to_string()).unwrap();
    let blocks = BlocksClient::new(client.clone())
        .with_options(CallOptions::default().timeout(Duration::from_secs(90)));
    let blocked = blocks.block(25_000);
    let waiting: Vec<_> = (0..60).map(|_| blocks.weigh(vec![7; 10_000])).collect();
    assert_eq!(blocked.wait().unwrap(), 25_000);
    for call in waiting {
        assert_eq!(call.wait().unwrap(), 10_000);
    }
    assert_eq!((client.reconnects(), server.accepted()), (0, 1));
}

/// Set in the process that serves.
const CHILD: &str = "GIMMAL_TEST_BUSY_URL";

struct Process(ChildGuard);

impl Process {
    fn serve(scheme: &str) -> (Self, String) {
        let mut own = this_program().unwrap();
        let test = format!("stops::{scheme}::a_process_that_stops_is_not_busy");
        own.args(["--exact", &test, "--nocapture", "--include-ignored"])
            .env(CHILD, address(scheme, "stops"))
            .stdout(Stdio::piped());
        let mut child = ChildGuard::spawn(&mut own).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let url = lines.find_map(|line| Some(line.strip_prefix("serves ")?.to_owned()));
        (Self(child), url.unwrap())
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.0.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

/// A server in another process: busy is not dead, and stopped is, within the bound.
fn a_process_that_stops_is_not_busy(scheme: &str) {
    if let Ok(url) = env::var(CHILD) {
        let server = serve(&url, 1);
        println!("\nserves {}", server.address());
        return server.join();
    }
    let (process, url) = Process::serve(scheme);
    let (bound_ms, long) = (BOUND_MS, 2 * u64::from(BOUND_MS));
    let client = connect(&url);
    let blocks = BlocksClient::new(client.clone());
    assert_eq!(blocks.block(long).wait().unwrap(), long);
    assert_eq!((blocks.echo(1).wait().unwrap(), client.reconnects()), (1, 0));
    // It stops while its worker is busy, for longer than the bound.
    let pending = blocks.block(60_000);
    std::thread::sleep(Duration::from_millis(2 * u64::from(bound_ms)));
    process.signal("-STOP");
    let stopped = Instant::now();
    match pending.wait() {
        Err(CallError::Transport(TransportError::Closed { reason, fate })) => {
            assert_eq!((reason, fate), (CloseReason::PeerSilent { bound_ms }, Fate::MaybeRan));
        }
        other => panic!("{other:?}"),
    }
    // The bound, and a machine with other things to do. The handler would block for a minute.
    let limit = Duration::from_millis(u64::from(bound_ms) + 30_000);
    assert!(stopped.elapsed() < limit, "{:?}", stopped.elapsed());
}

/// Not over `mem://`, whose names are one process's.
mod stops {
    mod shm {
        #[test]
        fn a_process_that_stops_is_not_busy() {
            crate::a_process_that_stops_is_not_busy("shm");
        }
    }

    #[cfg(feature = "verbs")]
    mod rxe {
        #[test]
        #[ignore = "needs the lab"]
        fn a_process_that_stops_is_not_busy() {
            crate::a_process_that_stops_is_not_busy("rxe");
        }
    }

    #[cfg(feature = "verbs")]
    mod siw {
        #[test]
        #[ignore = "needs the lab"]
        fn a_process_that_stops_is_not_busy() {
            crate::a_process_that_stops_is_not_busy("siw");
        }
    }
}
