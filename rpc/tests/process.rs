//! What belongs to the whole process: its signals, and its clock.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{collections::BTreeSet, env, fs, process::Stdio, thread, time::Duration};

use common::{Fixture, ProbeClient, config, until};
use gimmal_rpc::{Balanced, Client, Config, Hedge, Reconnect};
use gimmal_testkit::child::this_program;

/// What applications wait for: SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGCHLD.
const AWAITED: [u64; 8] = [1, 2, 3, 10, 12, 14, 15, 17];

/// The threads of this process that gimmal named, each with the signals that it blocks.
fn threads() -> Vec<(String, u64)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let threads = tasks.filter_map(|task| {
        // A thread that ends meanwhile has no files any more.
        let name = fs::read_to_string(task.join("comm")).ok()?.trim().to_owned();
        let status = fs::read_to_string(task.join("status")).ok()?;
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        Some((name, u64::from_str_radix(blocked.trim(), 16).unwrap()))
    });
    threads.filter(|(name, _)| name.starts_with("gimmal-")).collect()
}

#[test]
fn no_thread_takes_a_signal_from_the_application() {
    let minute = Duration::from_secs(60);
    let reconnect = Reconnect { first: minute, max: minute, ..Reconnect::default() };
    let eager = Config { reconnect: Some(reconnect), ..config() };
    let lost = Fixture::new("shm", "lost");
    let redialled = lost.client_with(eager);
    let fixture = Fixture::new("shm", "signals");
    let client = Client::builder().config(config()).connect(&fixture.url).unwrap();
    let balanced = Balanced::builder().config(config()).connect(vec![fixture.url.clone()]).unwrap();
    let hedged = ProbeClient::new(Hedge::new(client, minute));
    let mut hanging = Box::pin(hedged.later(10_000));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(Future::poll(hanging.as_mut(), &mut context).is_pending());
    let _ = lost.server.shutdown(Duration::ZERO);
    let expected = ["gimmal-0", "gimmal-accept", "gimmal-redial", "gimmal-resolve", "gimmal-timer"];
    let names = || threads().into_iter().map(|(name, _)| name).collect::<BTreeSet<_>>();
    until("every kind of thread runs", || {
        let names = names();
        expected.iter().all(|name| names.contains(*name))
    });
    for (name, blocked) in threads() {
        let taken: Vec<_> = AWAITED.into_iter().filter(|signal| blocked & 1 << (signal - 1) == 0).collect();
        assert!(taken.is_empty(), "{name} takes the signals {taken:?}");
    }
    drop((redialled, balanced));
}

/// How long a server here waits for a handshake; its clients' worker is older.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Only the first connection of a process could fail, and not always.
const PROCESSES: usize = 6;
const CHILD: &str = "GIMMAL_MEM_BESIDE_SHM";

#[test]
fn mem_connects_beside_an_older_client_of_shm() {
    if env::var_os(CHILD).is_some() {
        return connect_mem_beside_shm();
    }
    let mut command = this_program().unwrap();
    command.args(["--exact", "mem_connects_beside_an_older_client_of_shm"]).env(CHILD, "1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let children: Vec<_> = (0..PROCESSES).map(|_| command.spawn().unwrap()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

fn connect_mem_beside_shm() {
    let mut config = config();
    config.engine.listen.handshake_timeout = HANDSHAKE;
    let fixture = Fixture::new("shm", "beside");
    // All clients that are made this way share a worker.
    let connect = |url: &str| {
        ProbeClient::new(Client::builder().config(common::config()).share_workers().connect(url).unwrap())
    };
    let older = connect(&fixture.url);
    thread::sleep(HANDSHAKE.mul_f64(1.5));
    for round in 0..3 {
        let fixture = Fixture::with("mem", "beside", config.clone());
        let client = connect(&fixture.url);
        assert_eq!(client.echo("near".into()).wait().unwrap(), "near", "round {round}");
    }
    assert_eq!(older.echo("far".into()).wait().unwrap(), "far");
}
