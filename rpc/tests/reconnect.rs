//! A server that goes away and comes back is reached again without any code of the user's.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::Future,
    task::{Context, Poll, Waker},
    time::Duration,
};

use common::{Fixture, ProbeClient, config, connections, fate, until};
use gimmal_rpc::{
    CallError, CallOptions, Channel, Client, Config, Fate, Instant, Reconnect, TransportError,
    engine::transport::CloseReason,
};

for_each_scheme! {
    a_restarted_server_is_reached_again
    a_dropped_client_is_not_dialled_for
    without_reconnect_a_client_stays_closed
    lazy_clients_follow_their_server
    a_client_that_goes_while_it_moves_leaves_no_connection
    shutdown_waits_for_calls_on_the_connection_that_was_left
}

fn eager() -> Config {
    let reconnect = Reconnect { max: Duration::from_millis(50), ..Reconnect::default() };
    Config { reconnect: Some(reconnect), ..config() }
}

fn a_restarted_server_is_reached_again(scheme: &str) {
    let mut fixture = Fixture::new(scheme, "restart");
    let client = fixture.client_with(eager());
    for round in 1..=3 {
        assert_eq!(client.echo("before".to_owned()).wait().unwrap(), "before");
        let running: Vec<_> = (0..4).map(|_| client.hang()).collect();
        until("they run", || fixture.hanging() == 4);
        fixture = fixture.restarted();
        // Exactly: they had left, and nobody can know more.
        for call in running {
            assert_eq!(fate(call.wait()), Fate::MaybeRan, "round {round}");
        }
        // Meanwhile calls fail at once, and did not run; then they go through.
        let started = Instant::now();
        loop {
            match client.echo("again".to_owned()).wait() {
                Ok(answer) => break assert_eq!(answer, "again"),
                Err(CallError::Transport(TransportError::Closed { fate, .. })) => {
                    assert_eq!(fate, Fate::NotRun)
                }
                Err(error) => panic!("{error:?}"),
            }
            assert!(started.elapsed() < Duration::from_secs(60), "not connected again");
            std::thread::sleep(Duration::from_millis(1));
        }
        until("it is counted", || client.channel().reconnects() == round);
    }
}

fn a_dropped_client_is_not_dialled_for(scheme: &str) {
    let fixture = Fixture::new(scheme, "forgotten");
    let client = fixture.client_with(eager());
    assert_eq!(client.echo("x".to_owned()).wait().unwrap(), "x");
    let fixture = fixture.restarted();
    drop(client);
    std::thread::sleep(Duration::from_millis(300));
    let other = Client::builder().config(config()).connect(&fixture.url).unwrap();
    assert!(other.loan(16).is_ok());
    assert!(fixture.server.accepted() <= 2, "{} came", fixture.server.accepted());
}

fn without_reconnect_a_client_stays_closed(scheme: &str) {
    let fixture = Fixture::new(scheme, "lasting");
    let client = fixture.client_with(Config { reconnect: None, ..config() });
    assert_eq!(client.echo("x".to_owned()).wait().unwrap(), "x");
    let fixture = fixture.restarted();
    until("the end is known", || client.echo("x".to_owned()).wait().is_err());
    let error = client.echo("x".to_owned()).wait().unwrap_err();
    assert_eq!(error.fate(), Fate::NotRun);
    assert!(
        matches!(error, CallError::Transport(TransportError::Closed { reason: CloseReason::Peer, .. })),
        "{error}"
    );
    assert_eq!(client.channel().reconnects(), 0);
    drop(fixture);
}

/// Their first connection may be made before their worker hears that there was none.
fn lazy_clients_follow_their_server(scheme: &str) {
    const CLIENTS: usize = 40;
    let fixture = Fixture::new(scheme, "lazy");
    let connect = |_| Client::builder().config(eager()).share_workers().connect_lazy(&fixture.url).unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(connect).collect();
    let patient = |client: &Client| {
        ProbeClient::new(client.clone()).with_options(CallOptions::default().wait_for_ready())
    };
    for client in &clients {
        assert_eq!(patient(client).echo("first".to_owned()).wait().unwrap(), "first");
        assert_eq!(client.reconnects(), 0);
    }
    let fixture = fixture.restarted();
    for client in &clients {
        assert_eq!(patient(client).echo("again".to_owned()).wait().unwrap(), "again");
        until("it is counted", || client.reconnects() == 1);
    }
    drop(fixture);
}

/// Two clients that share a worker.
fn on_one_worker(fixture: &Fixture) -> [Client; 2] {
    let connect = || Client::builder().config(eager()).share_workers().connect(&fixture.url).unwrap();
    let all = || connections(&fixture.server).iter().sum::<usize>();
    let began = Instant::now();
    loop {
        let [one, between, other] = [1, 2, 3].map(|number| {
            let client = connect();
            until("it is counted", || all() == number);
            client
        });
        drop(between);
        until("two are left", || all() == 2);
        if matches!(connections(&fixture.server)[..], [2, 0] | [0, 2]) {
            return [one, other];
        }
        // A worker that had no turn for a while is given nobody: on a busy machine they may be apart.
        assert!(began.elapsed() < Duration::from_secs(60), "never on one worker");
        drop([one, other]);
        until("all are gone", || all() == 0);
    }
}

/// Two clients that share a worker, each with a call. The first of them was asked to connect again, has done so, and has its call on
/// the connection that it left.
fn moved<T>(fixture: &Fixture, call: impl Fn(&ProbeClient) -> T) -> [(ProbeClient, T); 2] {
    let mut both = on_one_worker(fixture).map(|client| {
        let client = ProbeClient::new(client);
        let call = call(&client);
        (client, call)
    });
    until("both calls run", || fixture.server.stats().serving == 2);
    assert_eq!(fixture.server.rebalance(), 1);
    let reconnects = |(client, _): &(ProbeClient, T)| client.channel().reconnects();
    until("one has moved", || both.iter().map(reconnects).sum::<u64>() == 1);
    both.sort_by_key(|one| std::cmp::Reverse(reconnects(one)));
    both
}

fn of_two_workers(scheme: &str, name: &str) -> Fixture {
    let mut two = config();
    two.engine.workers = 2;
    Fixture::with(scheme, name, two)
}

fn a_client_that_goes_while_it_moves_leaves_no_connection(scheme: &str) {
    let fixture = of_two_workers(scheme, "goes");
    let [moved, other] = moved(&fixture, ProbeClient::hang);
    let all = || connections(&fixture.server).iter().sum::<usize>();
    until("its call is on the one that it left", || all() == 3);
    drop(moved);
    // Their worker stays.
    until("both of its connections have ended", || all() == 1);
    drop(other);
}

fn shutdown_waits_for_calls_on_the_connection_that_was_left(scheme: &str) {
    let fixture = of_two_workers(scheme, "leaves");
    let [(client, call), _other] = moved(&fixture, |client| client.later(10_000));
    assert!(client.channel().clone().shutdown(Duration::from_secs(60)));
    let mut call = std::pin::pin!(call);
    let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Ok(10_000))), "it had not ended: {polled:?}");
    assert_eq!(fate(client.echo("late".to_owned()).wait()), Fate::NotRun);
    // What does not end in time is cut off, there too.
    let fixture = of_two_workers(scheme, "cuts");
    let [(client, call), _other] = moved(&fixture, ProbeClient::hang);
    assert!(!client.channel().clone().shutdown(Duration::from_millis(50)));
    assert_eq!(fate(call.wait()), Fate::MaybeRan);
}
