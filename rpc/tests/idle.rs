//! Many connections at rest: what each keeps on either side, and that all of them together cost a hundredth of a core.
//!
//! The server is a process of its own, the clients are on one worker. `GIMMAL_IDLE_CONNECTIONS` (500) is how many there are,
//! `GIMMAL_IDLE_HEARTBEAT_MS` (120,000) the bound of their heartbeats.

#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a test may fail; times far below 2^53 ns"
)]

mod common;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::Stdio,
    time::Duration,
};

use common::{ProbeClient, Prober, serve_probe, until};
use gimmal_rpc::{
    Balanced, Config, Instant, Pick, Server,
    engine::{Idle, transport::Address},
};
use gimmal_testkit::{ChildGuard, child::this_program, skip};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Set for the server's process: how many connections it takes.
const ROLE: &str = "GIMMAL_IDLE_SERVER";
/// What a connection at rest keeps in a process, bytes.
const KEPT_MAX: u64 = 16 << 10;

fn wanted() -> u32 {
    std::env::var("GIMMAL_IDLE_CONNECTIONS").map_or(500, |wanted| wanted.parse().unwrap())
}

/// Raises the limit of open files; how many connections a process may have: each is a file, and maps four pieces of memory.
fn allowed() -> u32 {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let files = limit.maximum.map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX));
    let mappings = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse::<u32>().unwrap();
    files.saturating_sub(100).min(mappings.saturating_sub(2000) / 4)
}

fn config(connections: u32) -> Config {
    let mut config = common::config();
    config.engine.port.connections = connections + 1;
    config.engine.idle = Idle::Event;
    // A connection at rest is asked after a third of it. 10,000 that are asked each 1.7 s, as by default, are not at rest.
    let bound = std::env::var("GIMMAL_IDLE_HEARTBEAT_MS");
    config.engine.heartbeat_ms = bound.map_or(120_000, |wanted| wanted.parse().unwrap());
    config
}

/// The server's process.
fn serve(connections: u32) {
    allowed();
    let server = Server::builder()
        .service(serve_probe(Prober::default()))
        .config(config(connections))
        .listen("tcp://*:0");
    let server = server.unwrap();
    let Address::Tcp { port, .. } = server.address() else { panic!("{}", server.address()) };
    println!("listening on {port}");
    server.join();
}

/// Bytes of a process: its memory, and its page tables, which are the kernel's.
fn memory(process: &str) -> [u64; 2] {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let of = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    };
    [of("RssAnon:") + of("RssShmem:"), of("VmPTE:")]
}

/// What the kernel keeps for everybody in its tables and caches, bytes.
fn kernel() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with("Slab:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Processor time of a process so far.
fn busy(process: &str) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let nanos = tasks.map(|task| {
        let text = fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
    });
    Duration::from_nanos(nanos.sum())
}

/// Which part of a core each process uses at present.
fn share(processes: &[String; 2], span: Duration) -> [f64; 2] {
    let now = || processes.each_ref().map(|process| busy(process));
    let (before, started) = (now(), Instant::now());
    std::thread::sleep(span);
    let (after, took) = (now(), started.elapsed().as_secs_f64());
    [0, 1].map(|side| after[side].saturating_sub(before[side]).as_secs_f64() / took)
}

#[test]
fn connections_at_rest_keep_little_and_cost_no_time() {
    if let Ok(connections) = std::env::var(ROLE) {
        return serve(connections.parse().unwrap());
    }
    let (count, allowed) = (wanted(), allowed());
    if allowed < count {
        return skip(&format!("a process may have {allowed} connections here, not {count}"));
    }
    let mut command = this_program().unwrap();
    command.args(["--exact", "connections_at_rest_keep_little_and_cost_no_time", "--nocapture"]);
    let mut server = ChildGuard::spawn(command.env(ROLE, count.to_string()).stdout(Stdio::piped())).unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let port = lines.find_map(|line| line.unwrap().strip_prefix("listening on ").map(str::to_owned)).unwrap();
    let processes = [server.id().to_string(), "self".to_owned()];
    // Each connection has a server's address of its own: a server is connected to once.
    let urls = |numbers: std::ops::Range<u32>| {
        let url = |n: u32| format!("tcp://127.{}.{}.{}:{port}", 1 + n / 40_000, n / 200 % 200, 1 + n % 200);
        numbers.map(url).collect::<Vec<_>>()
    };
    let connect = |urls| {
        let builder = Balanced::builder().config(config(count)).pick(Pick::RoundRobin);
        builder.refresh(Duration::from_secs(3600)).connect(urls).unwrap()
    };
    // What the first costs is no other's.
    let first = connect(urls(count..count + 1));
    ProbeClient::new(first.clone()).add("a", b"b").wait().unwrap();
    drop(first);
    let (before, kernel_before) = (processes.each_ref().map(|process| memory(process)), kernel());
    let started = Instant::now();
    let balanced = connect(urls(0..count));
    assert_eq!(balanced.ready().len(), count as usize);
    println!("{count} connections in {:?}", started.elapsed());
    let client = ProbeClient::new(balanced.clone());
    let call_all =
        || (0..count).for_each(|_| assert_eq!(client.add("all of them move", b"\x07").wait().unwrap(), 7));
    call_all();
    let kept = || {
        let after = processes.each_ref().map(|process| memory(process));
        let each = |side: usize, kind: usize| {
            after[side][kind].saturating_sub(before[side][kind]) / u64::from(count)
        };
        [0, 1].map(|side| [0, 1].map(|kind| each(side, kind)))
    };
    until("each keeps little", || kept().iter().all(|[process, _]| *process <= KEPT_MAX));
    // The burst of calls is over, and the pages of most rings have gone.
    let shares = (0..3).map(|_| share(&processes, Duration::from_millis((4 * u64::from(count)).max(4000))));
    let shares =
        shares.reduce(|one, other| if one[0] + one[1] < other[0] + other[1] { one } else { other }).unwrap();
    let kept = kept();
    for (side, name) in ["server", "client"].into_iter().enumerate() {
        let [process, tables] = kept[side];
        println!("{name}: {process} bytes each, {tables} of page tables, {:.4} of a core", shares[side]);
    }
    println!(
        "the kernel's caches have {} bytes more for both ends of each",
        kernel().saturating_sub(kernel_before) / u64::from(count)
    );
    let limit = if cfg!(debug_assertions) { 0.02 } else { 0.01 };
    assert!(shares.iter().all(|share| *share < limit), "{shares:?} of a core while all rest");
    assert_eq!(balanced.ready().len(), count as usize);
    call_all();
}
