//! Admission: a shared key, an allow-list, a number of connections; each refusal is named at both sides.
//! Authorization: a token.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{os::unix::fs::MetadataExt as _, time::Duration};

use common::{DivideError, Fixture, config, until};
use gimmal_rpc::{
    Allow, CallError, CallOptions, Channel, Client, Code, ConnectError, Fate, Guarded, Key, Layered,
    Metadata, Origin, Server, ServerBuilder,
    engine::{
        OpenError,
        transport::{self, DataPath, RejectReason, Trust},
    },
    layer::{Authorize, ServerLayer, WithToken, token::tokens},
    metadata::AUTHORIZATION,
};

for_each_scheme! {
    a_shared_key_is_proved_and_survives_a_restart
    a_configuration_opens_no_door
    wrong_and_missing_keys_are_named_on_both_sides
    a_full_server_says_so_and_recovers
    calls_need_a_token_that_is_accepted
    a_handler_knows_who_calls
    those_who_trust_nobody_call_the_same
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
        ConnectError::Open(OpenError::Connect(transport::ConnectError::Rejected { reason, .. })) => reason,
        other => panic!("not rejected: {other:?}"),
    }
}

fn a_shared_key_is_proved_and_survives_a_restart(scheme: &str) {
    let fixture = Fixture::with(scheme, "keyed", keyed(&[1]));
    let client = Client::builder().config(keyed(&[1])).connect(&fixture.url).unwrap();
    assert!(client.negotiated().unwrap().authenticated);
    let calls = common::ProbeClient::new(client.clone());
    assert_eq!(calls.echo("a".into()).wait().unwrap(), "a");
    let inline = Client::builder().config(keyed(&[1])).connect_local(&fixture.url).unwrap();
    assert!(inline.negotiated().unwrap().authenticated);
    // The next server believes the old key and a new one: the client comes back with its own.
    let url = fixture.url.clone();
    let Fixture { server, .. } = fixture;
    let _ = server.shutdown(Duration::ZERO);
    let prober = common::serve_probe(common::Prober::default());
    let server = Server::builder().service(prober).config(config()).key(key(2)).key(key(1)).listen(&url);
    let server = server.unwrap();
    until("it is connected again", || client.reconnects() == 1);
    assert_eq!(calls.echo("b".into()).wait().unwrap(), "b");
    assert!(client.negotiated().unwrap().authenticated);
    drop(server);
}

/// A configuration that is given last says nothing of the key and the allow-list that were given before it.
fn a_configuration_opens_no_door(scheme: &str) {
    let served = |restrict: fn(ServerBuilder) -> ServerBuilder| {
        let service = common::serve_probe(common::Prober::default());
        let server = restrict(Server::builder().service(service)).config(config());
        let server = server.listen(&common::address(scheme, "door")).unwrap();
        let url = server.address().to_string();
        (server, url)
    };
    let reason = |url: &str| match Client::builder().config(config()).connect(url).map(drop) {
        Err(ConnectError::Open(OpenError::Connect(transport::ConnectError::Rejected { reason, .. }))) => {
            reason
        }
        other => panic!("not rejected: {other:?}"),
    };
    let (server, url) = served(|builder| builder.key(key(1)));
    assert_eq!(reason(&url), RejectReason::KeyNeeded);
    let client = Client::builder().key(key(1)).config(config()).connect(&url).unwrap();
    assert!(client.negotiated().unwrap().authenticated);
    drop((client, server));
    // The kernel says whose process is at the other end; nobody says so elsewhere.
    if scheme == "shm" {
        let (_server, url) = served(|builder| builder.allow(Allow::default().uid(u32::MAX)));
        assert!(matches!(reason(&url), RejectReason::NotAllowed { .. }));
    }
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

/// A server whose service is behind `layer`, and a client.
fn guarded(scheme: &str, layer: impl ServerLayer) -> (Server, Client) {
    let service = Guarded::new(common::serve_probe(common::Prober::default()), layer);
    let server = Server::builder().service(service).config(config());
    let server = server.listen(&common::address(scheme, "guarded")).unwrap();
    let client = Client::builder().config(config()).connect(&server.address().to_string()).unwrap();
    (server, client)
}

fn unauthenticated<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, CallError<E>>, why: &str) {
    let error = result.unwrap_err();
    let status = error.status().unwrap();
    assert_eq!((status.code(), status.fate()), (Code::Unauthenticated, Fate::NotRun), "{status}");
    assert!(status.message().contains(why), "{status}");
}

fn calls_need_a_token_that_is_accepted(scheme: &str) {
    let (server, channel) = guarded(scheme, tokens(["old", "new"]));
    let with = |token: &str| common::ProbeClient::new(Layered::new(channel.clone(), WithToken::new(token)));
    for token in ["old", "new"] {
        let client = with(token);
        assert_eq!(client.echo("a".into()).wait().unwrap(), "a");
        assert_eq!(client.reverse(b"ab").wait().unwrap(), b"ba");
        assert_eq!(client.measure(vec![1; 300_000]).wait().unwrap(), 300_000);
        let mut loan = client.channel().loan(8).unwrap();
        loan.fill(1);
        assert_eq!(client.sum(0, loan).wait().unwrap(), 8);
        // A call's own token stands.
        let mut own = Metadata::new();
        own.insert(AUTHORIZATION, "another").unwrap();
        let own = client.with_options(CallOptions::default().metadata(own));
        unauthenticated(own.echo("a".into()).wait(), "not accepted");
    }
    for token in ["", "ol", "old ", "NEW", &"x".repeat(4000)] {
        unauthenticated(with(token).echo("a".into()).wait(), "not accepted");
        unauthenticated(with(token).reverse(b"ab").wait(), "not accepted");
        unauthenticated(with(token).measure(vec![1; 300_000]).wait(), "not accepted");
    }
    unauthenticated(common::ProbeClient::new(channel.clone()).echo("a".into()).wait(), "has no token");
    assert_eq!(server.stats().panics, 0);
    assert!(!format!("{:?}", WithToken::new("old")).contains("old"));
    let error = with(&"x".repeat(5000)).echo("a".into()).wait().unwrap_err();
    assert_eq!((error.status().unwrap().code(), error.fate()), (Code::InvalidArgument, Fate::NotRun));
    // Who calls may count too.
    let (_server, channel) = guarded(scheme, Authorize::by(|cx, token| token == cx.method().name.as_bytes()));
    let client = common::ProbeClient::new(Layered::new(channel, WithToken::new("echo")));
    assert_eq!(client.echo("a".into()).wait().unwrap(), "a");
    unauthenticated(client.divide(1, 1).wait(), "not accepted");
}

fn a_handler_knows_who_calls(scheme: &str) {
    let (seen, told) = std::sync::mpsc::channel();
    for proved in [false, true] {
        let seen = seen.clone();
        // A server layer is asked before every handler, with the same context.
        let layer = Authorize::by(move |cx, _| {
            let who = cx.peer();
            seen.send((who.to_string(), who.origin, who.is_authenticated)).unwrap();
            true
        });
        let service = Guarded::new(common::serve_probe(common::Prober::default()), layer);
        let config = if proved { keyed(&[1]) } else { config() };
        let server = Server::builder().service(service).config(config.clone());
        let server = server.listen(&common::address(scheme, "who")).unwrap();
        let channel = Client::builder().config(config).connect(&server.address().to_string()).unwrap();
        let client = common::ProbeClient::new(Layered::new(channel, WithToken::new("any")));
        assert_eq!(client.echo("a".into()).wait().unwrap(), "a");
        let (name, origin, is_authenticated) = told.recv().unwrap();
        assert_eq!(is_authenticated, proved);
        match (scheme, origin) {
            ("mem" | "shm", Origin::Process(who)) => {
                let of = std::fs::metadata("/proc/self").unwrap();
                let us = (Some(std::process::id()), of.uid(), of.gid());
                assert_eq!((who.pid, who.uid, who.gid), us);
                assert_eq!(name, format!("process {} of uid {}", std::process::id(), who.uid));
            }
            ("tcp" | "rxe" | "siw", Origin::Address(address)) => assert_eq!(name, address.to_string()),
            other => panic!("{other:?}, named {name}"),
        }
    }
}

/// Borrowed arguments, answers, bulk both ways: the same calls, on bytes that no peer can change.
fn those_who_trust_nobody_call_the_same(scheme: &str) {
    let mut wary = config();
    wary.engine.listen.trust = Trust::None;
    wary.engine.connect.trust = Trust::None;
    let fixture = Fixture::with(scheme, "wary", wary.clone());
    // Each side chooses for what it receives; over verbs one that does is enough to take the ring away.
    for config in [wary, config()] {
        let client = Client::builder().config(config.clone()).connect(&fixture.url).unwrap();
        let path = client.negotiated().unwrap().path;
        assert_eq!(path == DataPath::SendRecv, matches!(scheme, "rxe" | "siw"), "{path}");
        let calls = common::ProbeClient::new(client);
        assert_eq!(calls.echo("a".into()).wait().unwrap(), "a");
        assert_eq!(calls.add("borrowed", &[1, 2, 3]).wait().unwrap(), 6);
        assert!(matches!(
            calls.divide(1, 0).wait(),
            Err(CallError::App(DivideError::ByZero { dividend: 1 }))
        ));
        assert_eq!(calls.fill(100_000).wait().unwrap().len(), 100_000);
        assert_eq!(calls.measure(vec![7; 100_000]).wait().unwrap(), 100_000);
        let lent = calls.lend(70_000).wait().unwrap();
        assert_eq!(lent.iter().map(|byte| u64::from(*byte)).sum::<u64>(), lent.value);
        let inline = fixture.inline_with(config);
        for _ in 0..100 {
            assert_eq!(inline.reverse(b"abc").wait().unwrap(), b"cba");
        }
    }
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
    assert!(error.contains(&format!("uid {uid} is not on this side's allow-list")), "{error}");
}
