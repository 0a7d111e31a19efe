//! Connections over shared memory that go from worker to worker as they stand, under load.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use common::{Fixture, ProbeClient, config, pattern, until};
use gimmal_rpc::{Client, Config, InlineClient, Server};

/// Moves of the one connection that can.
const MOVES: usize = 40;

/// A client with a call that does not end: its connection stays where it is.
struct Stone {
    _client: ProbeClient,
    _hangs: Box<dyn std::any::Any>,
    worker: usize,
}

impl Stone {
    fn drop_on(fixture: &Fixture, hanging: u64) -> Self {
        let before = fixture.server.connections();
        let client = fixture.client_with(resident());
        let hangs = client.hang();
        until("it hangs", || fixture.hanging() == hanging);
        let sum = |loads: &[u64]| loads.iter().sum::<u64>();
        until("it is counted", || sum(&fixture.server.connections()) == sum(&before) + 1);
        let worker = usize::from(fixture.server.connections()[1] > before[1]);
        Self { _client: client, _hangs: Box::new(hangs), worker }
    }
}

/// One that stays where it is when it is asked to come again.
fn resident() -> Config {
    Config { reconnect: None, ..config() }
}

fn two_workers() -> Fixture {
    let mut two = config();
    two.engine.workers = 2;
    Fixture::with("shm", "hand-over", two)
}

fn call_all(client: &ProbeClient<InlineClient>, number: u64) {
    let text = format!("call {number}");
    assert_eq!(client.echo(text.clone()).wait().unwrap(), text);
    assert_eq!(client.divide(84, 2).wait().unwrap(), 42);
    assert_eq!(client.fill(200_000).wait().unwrap(), [7; 200_000]);
    assert_eq!(client.measure(vec![1; 100_000]).wait().unwrap(), 100_000);
}

/// The worker on which the only connection without a hanging call is.
fn movers_worker(server: &Server, stones: &[Stone]) -> usize {
    let on_first = stones.iter().filter(|stone| stone.worker == 0).count();
    usize::from(server.connections()[0] == on_first as u64)
}

/// An inline client cannot connect again; it does not have to, and makes its calls as if nothing was.
#[test]
fn an_inline_client_does_not_notice() {
    let fixture = two_workers();
    let server = &fixture.server;
    let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let caller = std::thread::spawn({
        let (stop, made, url) = (Arc::clone(&stop), Arc::clone(&made), fixture.url.clone());
        move || {
            let client = ProbeClient::new(Client::builder().config(config()).connect_inline(&url).unwrap());
            while !stop.load(Ordering::Relaxed) {
                call_all(&client, made.fetch_add(1, Ordering::Relaxed));
            }
        }
    });
    until("it calls", || made.load(Ordering::Relaxed) > 2);
    let (mut stones, mut accepted) = (Vec::new(), 1);
    for number in 0..MOVES {
        while server.connections() != [2, 2] {
            stones.push(Stone::drop_on(&fixture, stones.len() as u64 + 1));
            accepted += 1;
        }
        let (here, before) = (movers_worker(server, &stones), made.load(Ordering::Relaxed));
        stones.retain(|stone| stone.worker == here);
        until("they are gone", || {
            fixture.hanging() == stones.len() as u64 && server.connections()[1 - here] == 0
        });
        until("it has moved", || {
            server.rebalance();
            server.connections() == [1, 1]
        });
        assert_eq!(movers_worker(server, &stones), 1 - here, "move {number}");
        until("its calls go on", || made.load(Ordering::Relaxed) > before + 2);
    }
    stop.store(true, Ordering::Relaxed);
    caller.join().unwrap();
    assert_eq!(server.accepted(), accepted, "nobody connected again");
    assert_eq!(server.stats().refused, 0);
    let ran = fixture.counts.ran.load(Ordering::SeqCst);
    assert_eq!(ran, made.load(Ordering::Relaxed), "each ran once");
}

/// Three clients on the first worker, and none on the second.
fn three_on_one(fixture: &Fixture) -> Vec<ProbeClient> {
    let [stay, leave] = fixture.three_each(&resident());
    drop(leave);
    until("three are left", || fixture.server.connections() == [3, 0]);
    stay
}

#[test]
fn a_connection_at_rest_is_not_asked_to_come_again() {
    let fixture = two_workers();
    let (clients, server) = (three_on_one(&fixture), &fixture.server);
    assert_eq!(server.rebalance(), 1);
    until("it is counted", || server.connections() == [2, 1]);
    for client in &clients {
        assert_eq!(client.echo("there".into()).wait().unwrap(), "there");
        assert_eq!(client.channel().reconnects(), 0);
    }
    assert_eq!(server.accepted(), 6);
}

/// Memory that a handler took is its worker's, and a handler may still have it.
#[test]
fn a_connection_with_memory_of_its_worker_stays() {
    let fixture = two_workers();
    let (clients, server) = (three_on_one(&fixture), &fixture.server);
    for client in &clients {
        let lent = client.lend(5000).wait().unwrap();
        assert!(lent.into_bulk().unwrap().iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
    }
    assert_eq!(server.rebalance(), 1, "it is asked to come again, and does not");
    assert_eq!(server.connections(), [3, 0]);
    for client in &clients {
        assert_eq!(client.echo("here".into()).wait().unwrap(), "here");
    }
}
