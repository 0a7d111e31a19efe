//! A client that does everything that docs/limits.md lists for calls, as fast as it can, beside one that only echoes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    collections::BTreeMap,
    env, fs,
    io::Read as _,
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use common::{address, config, sleep};
use gimmal_rpc::{
    CallOptions, Client, Config, Cx, Guarded, Instant, Layered, Server, Sink, Stream, WithLoan,
    engine::transport::RejectReason,
    layer::{WithToken, tokens},
};
use gimmal_testkit::{ChildGuard, child::this_program, until};

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Crowd {
    async fn echo(&self, cx: &Cx, number: u64) -> u64;
    #[oneway]
    async fn note(&self, cx: &Cx);
    async fn hang(&self, cx: &Cx);
    /// Sends as much as it may.
    async fn pour(&self, cx: &Cx, out: Sink<Vec<u8>>);
    /// Reads nothing.
    async fn take(&self, cx: &Cx, items: Stream<Vec<u8>>);
    async fn measure(&self, cx: &Cx, content: Vec<u8>) -> usize;
    async fn lend(&self, cx: &Cx, bytes: usize) -> Result<WithLoan<()>, String>;
    async fn panic(&self, cx: &Cx);
}

struct Open;

impl Crowd for Open {
    async fn echo(&self, _: &Cx, number: u64) -> u64 {
        number
    }

    async fn note(&self, _: &Cx) {
        sleep(50).await;
    }

    async fn hang(&self, _: &Cx) {
        std::future::pending().await
    }

    async fn pour(&self, _: &Cx, mut out: Sink<Vec<u8>>) {
        while out.send(&vec![7; 3000]).await.is_ok() {}
    }

    async fn take(&self, _: &Cx, items: Stream<Vec<u8>>) {
        let _items = items;
        std::future::pending().await
    }

    async fn measure(&self, _: &Cx, content: Vec<u8>) -> usize {
        content.len()
    }

    async fn lend(&self, cx: &Cx, bytes: usize) -> Result<WithLoan<()>, String> {
        cx.loan(bytes).map(|loan| WithLoan::new((), loan)).map_err(|error| error.to_string())
    }

    async fn panic(&self, _: &Cx) {
        panic!("as it was asked to");
    }
}

const TOKEN: &str = "open";
const LARGE: usize = 200_000;
/// Code, stacks, the allocator, and what was not touched before.
const OWN_BYTES: u64 = 64 << 20;

fn limited() -> Config {
    let mut config = Config { serving_max: 8, tasks_max: 32, message_bytes_max: 1 << 18, ..config() };
    let engine = &mut config.engine;
    engine.accepted_max = 24;
    let port = &mut engine.port;
    (port.ring_bytes, port.bulk_bytes_max, port.loan_bytes_max) = (16 << 10, 1 << 20, 8 << 20);
    config
}

/// A slice of the scheduler's: on a shared machine any echo may be late by it.
const SLICE: Duration = Duration::from_millis(4);

/// What the limits of [`limited`] come to.
fn limit_bytes() -> u64 {
    let config = limited();
    let port = &config.engine.port;
    let (ring, serving) = (u64::from(port.ring_bytes), config.serving_max as u64);
    let streams = 2 * serving * 32 * (ring / 4);
    let large = 2 * serving * config.message_bytes_max as u64;
    config.engine.accepted_max as u64 * (2 * ring + streams + large + port.loan_bytes_max) + OWN_BYTES
}

fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
}

/// Set in the process that serves: its URL.
const ROLE: &str = "GIMMAL_TEST_CROWD";

#[test]
#[ignore = "the other process of another test"]
fn child_server() {
    let Ok(url) = env::var(ROLE) else { return };
    std::panic::set_hook(Box::new(|_| {}));
    let service = Guarded::new(serve_crowd(Open), tokens([TOKEN]));
    let server = Server::builder().service(service).config(limited()).listen(&url).unwrap();
    let (before, started) = (resident(), Instant::now());
    let stop = format!("{}.stop", url.trim_start_matches("shm://"));
    let mut most = before;
    while !Path::new(&stop).exists() && started.elapsed() < Duration::from_secs(180) {
        most = most.max(resident());
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("\ngrown {}", most - before);
    println!("rejected {}", server.rejected_as(RejectReason::Overloaded));
    server.stats().fields().iter().for_each(|(name, count)| println!("{name} {count}"));
}

type Friend = CrowdClient<Layered<Client, WithToken>>;

fn connect(url: &str) -> Option<Client> {
    Client::builder().config(config()).connect(url).ok()
}

fn friend(client: &Client) -> Friend {
    let timeout = CallOptions::default().timeout(Duration::from_millis(200));
    CrowdClient::new(Layered::new(client.clone(), WithToken::new(TOKEN))).with_options(timeout)
}

/// What each thread does again and again. Most of it is refused, and none of it may hurt.
const DEEDS: [fn(&Client, &str); 9] = [
    |client, _| {
        let calls: Vec<_> = (0..64).map(|_| friend(client).hang()).collect();
        std::thread::sleep(Duration::from_millis(2));
        drop(calls);
    },
    |client, _| (0..64).for_each(|_| drop(friend(client).note().wait())),
    |client, _| {
        let open: Vec<_> = (0..8).map(|_| friend(client).pour()).collect();
        std::thread::sleep(Duration::from_millis(10));
        drop(open);
    },
    |client, _| {
        let mut open: Vec<_> = (0..8).map(|_| friend(client).take()).collect();
        // Fewer than the credit, so that no send waits.
        for (sink, _) in &mut open {
            (0..10).for_each(|_| drop(sink.blocking_send(&vec![7; 3000])));
        }
    },
    |client, _| {
        let calls: Vec<_> = (0..8).map(|_| friend(client).measure(vec![7; LARGE])).collect();
        calls.into_iter().for_each(|call| drop(call.wait()));
    },
    |client, _| drop(CrowdClient::new(client.clone()).measure(vec![7; LARGE]).wait()),
    |client, _| drop((0..64).map(|_| friend(client).lend(LARGE).wait()).collect::<Vec<_>>()),
    |client, _| drop(friend(client).panic().wait()),
    |_, url| drop((0..24).map(|_| connect(url)).collect::<Vec<_>>()),
];

/// The 99th percentile of an echo while others do what `deed` says for `time`, and the number of echoes.
fn echo_beside(client: &Friend, time: Duration, deed: impl Fn(usize) + Sync) -> (Duration, usize) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..DEEDS.len() {
            let (deed, is_over) = (&deed, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    deed(number);
                }
            });
        }
        let (started, mut times) = (Instant::now(), Vec::new());
        while started.elapsed() < time {
            let began = Instant::now();
            // A full window of its own is not what is asked about: it has one call in flight.
            client.echo(times.len() as u64).wait().unwrap();
            times.push(began.elapsed());
            std::thread::sleep(Duration::from_micros(200));
        }
        is_over.store(true, Ordering::Relaxed);
        times.sort_unstable();
        (times[times.len() * 99 / 100], times.len())
    })
}

#[test]
fn a_client_that_does_all_at_once_is_held_to_the_sum_of_the_limits() {
    let seconds = env::var("GIMMAL_LIMITS_SECONDS").map_or(2, |seconds| seconds.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let url = address("shm", "crowd");
    let mut program = this_program().unwrap();
    program.args(["--exact", "child_server", "--ignored", "--nocapture"]).stdout(Stdio::piped());
    let mut server = ChildGuard::spawn(program.env(ROLE, &url)).unwrap();
    let mut first = None;
    until("it serves", || {
        first = first.take().or_else(|| connect(&url));
        first.is_some()
    });
    let patient = CallOptions::default().timeout(Duration::from_secs(30));
    let echo = friend(&first.unwrap()).with_options(patient);
    let (quiet, quiet_echoes) = echo_beside(&echo, time, |_| std::hint::spin_loop());
    let clients: Vec<Client> = DEEDS.iter().map(|_| connect(&url).unwrap()).collect();
    let (attacked, echoes) = echo_beside(&echo, time, |number| DEEDS[number](&clients[number], &url));
    let stop = format!("{}.stop", url.trim_start_matches("shm://"));
    fs::write(&stop, "").unwrap();
    let mut said = String::new();
    server.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    fs::remove_file(&stop).unwrap();
    let counts: BTreeMap<&str, u64> = said
        .lines()
        .filter_map(|line| line.split_once(' ').and_then(|(name, count)| Some((name, count.parse().ok()?))))
        .collect();
    let limit = limit_bytes();
    println!("{counts:?}");
    println!("{} bytes more, the limits come to {limit}", counts["grown"]);
    println!("p99 {quiet:?} of {quiet_echoes} beside a load, {attacked:?} of {echoes} beside an attack");
    for cause in ["rejected", "overloaded", "denied", "refused", "panics", "dropped"] {
        assert!(counts[cause] > 0, "nothing was counted as {cause}: {counts:?}");
    }
    assert!(counts["grown"] <= limit, "{} bytes more than before: {limit}", counts["grown"]);
    // Threads of two processes share the processors, so a few echoes say nothing. A debug build shows its own slowness.
    let is_judged = !cfg!(debug_assertions) && echoes.min(quiet_echoes) >= 200;
    assert!(!is_judged || attacked <= quiet.saturating_mul(3).max(SLICE), "others wait {attacked:?}");
}
