//! Who may connect: a shared key, an allow-list, a number of connections; each refusal named at both sides.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::time::Duration;

use common::{Fixture, config, until};
use gimmal_rpc::{
    Allow, Client, ConnectError, Key,
    engine::{
        OpenError,
        transport::{ConnectError as Refused, RejectReason},
    },
};

for_each_scheme! {
    a_shared_key_is_proved_and_survives_a_restart
    wrong_and_missing_keys_are_named_on_both_sides
    a_full_server_says_so_and_recovers
}

fn key(byte: u8) -> Key {
    Key::new(&[byte; 32]).unwrap()
}

fn keyed(bytes: &[u8]) -> gimmal_rpc::Config {
    let mut config = config();
    config.engine.listen.keys = bytes.iter().copied().map(key).collect();
    config.engine.connect.key = bytes.first().copied().map(key);
    config
}

/// Why a client was not let in.
fn refusal(fixture: &Fixture, config: gimmal_rpc::Config) -> RejectReason {
    match Client::builder().config(config).connect(&fixture.url).unwrap_err() {
        ConnectError::Open(OpenError::Connect(Refused::Rejected { reason, .. })) => reason,
        other => panic!("not rejected: {other:?}"),
    }
}

fn a_shared_key_is_proved_and_survives_a_restart(scheme: &str) {
    let fixture = Fixture::with(scheme, "keyed", keyed(&[1]));
    let client = Client::builder().config(keyed(&[1])).connect(&fixture.url).unwrap();
    assert!(client.negotiated().authenticated);
    let calls = common::ProbeClient::new(client.clone());
    assert_eq!(calls.echo("a".into()).wait().unwrap(), "a");
    let inline = Client::builder().config(keyed(&[1])).connect_inline(&fixture.url).unwrap();
    assert!(inline.negotiated().authenticated);
    // The next server believes the old key and a new one: the client comes back with its own.
    let url = fixture.url.clone();
    let Fixture { server, .. } = fixture;
    let _ = server.shutdown(Duration::ZERO);
    let prober = common::serve_probe(common::Prober::default());
    let server =
        gimmal_rpc::Server::builder().service(prober).config(config()).key(key(2)).key(key(1)).listen(&url);
    let server = server.unwrap();
    until("it is connected again", || client.reconnects() == 1);
    assert_eq!(calls.echo("b".into()).wait().unwrap(), "b");
    assert!(client.negotiated().authenticated);
    drop(server);
}

fn wrong_and_missing_keys_are_named_on_both_sides(scheme: &str) {
    let fixture = Fixture::with(scheme, "keys", keyed(&[1]));
    assert_eq!(refusal(&fixture, keyed(&[2])), RejectReason::Authentication);
    until("the server says so", || fixture.server.last_rejected() == Some(RejectReason::Authentication));
    assert_eq!(refusal(&fixture, config()), RejectReason::KeyNeeded);
    until("the server says so", || fixture.server.last_rejected() == Some(RejectReason::KeyNeeded));
    until("both are counted", || fixture.server.rejected() == 2);
    let open = Fixture::new(scheme, "keyless");
    assert_eq!(refusal(&open, keyed(&[1])), RejectReason::KeyUnknown);
    until("the server says so", || open.server.last_rejected() == Some(RejectReason::KeyUnknown));
    // Those who are let in notice nothing.
    let client = fixture.client_with(keyed(&[1]));
    assert_eq!(client.echo("a".into()).wait().unwrap(), "a");
    assert!(!format!("{:?} {client:?}", keyed(&[1])).contains("010101"));
}

fn a_full_server_says_so_and_recovers(scheme: &str) {
    let mut narrow = config();
    narrow.engine.accepted_max = 2;
    let fixture = Fixture::with(scheme, "full", narrow);
    let first = fixture.client();
    let second = fixture.client();
    assert_eq!(first.echo("a".into()).wait().unwrap(), "a");
    assert_eq!(second.echo("a".into()).wait().unwrap(), "a");
    assert_eq!(refusal(&fixture, config()), RejectReason::Overloaded);
    drop(first);
    until("there is room", || Client::builder().config(config()).connect(&fixture.url).is_ok());
}

/// The list is asked on both sides, and the reason names who asked.
#[test]
fn a_user_that_is_not_on_the_list_is_refused_by_name() {
    let mut strict = config();
    strict.engine.listen.allow = Allow::default().uid(4_000_000_000);
    let fixture = Fixture::with("shm", "allowed", strict);
    let RejectReason::NotAllowed { uid } = refusal(&fixture, config()) else { panic!("another reason") };
    until("the server says so", || fixture.server.last_rejected() == Some(RejectReason::NotAllowed { uid }));
    let mut picky = config();
    picky.engine.connect.allow = Allow::default().uid(4_000_000_000);
    let error = Client::builder().config(picky).connect(&fixture.url).unwrap_err().to_string();
    assert!(error.contains(&format!("is of uid {uid}, which is not on this side's allow-list")), "{error}");
}
