//! A server that goes away and comes back is reached again without any code of the user's.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::time::Duration;

use common::{Fixture, ProbeClient, config, fate, until};
use gimmal_rpc::{
    CallError, CallOptions, Channel, Client, Config, Fate, Instant, Reconnect, TransportError,
    engine::transport::CloseReason,
};

for_each_scheme! {
    a_restarted_server_is_reached_again
    a_dropped_client_is_not_dialled_for
    without_reconnect_a_client_stays_closed
    lazy_clients_follow_their_server
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
            assert!(started.elapsed() < Duration::from_secs(10), "not connected again");
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
