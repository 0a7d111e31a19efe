//! What only a network has: clients of other protocols, sockets that stall or break, members behind different providers.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use common::{Fixture, ProbeClient, config, until};
use gimmal_rpc::{
    Client, Instant,
    balance::Balanced,
    engine::transport::{Address, RejectReason},
};
use gimmal_testkit::child::descriptors;

extern crate gimmal_rpc as gimmal;

/// A socket of another program's to the server.
fn dial(fixture: &Fixture) -> TcpStream {
    let Address::Tcp { host, port, .. } = fixture.server.address() else { panic!("{}", fixture.url) };
    let socket = TcpStream::connect((host.as_str(), *port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// The server closes, and says at most a refusal.
fn is_refused(mut socket: TcpStream, who: &str) {
    let mut answer = Vec::new();
    if let Err(error) = socket.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{who} still has its place");
    }
    assert!(answer.len() <= 256, "{who} got {} bytes", answer.len());
}

fn strict() -> gimmal_rpc::Config {
    let mut config = config();
    config.engine.listen.handshake_timeout = Duration::from_secs(2);
    config
}

#[test]
fn foreign_clients_are_refused_by_name_and_hold_no_more_than_a_place() {
    let fixture = Fixture::with("tcp", "foreign", strict());
    let client = fixture.client();
    assert_eq!(client.echo("before".into()).wait().unwrap(), "before");
    let before = descriptors().unwrap();
    let speak: [(&str, &[u8]); 4] = [
        ("an HTTP client", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("a TLS client", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        ("an HTTP/2 client", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("an SSH client", b"SSH-2.0-OpenSSH_9.2\r\n"),
    ];
    for (rejected, (who, bytes)) in (1..).zip(speak) {
        let mut socket = dial(&fixture);
        socket.write_all(bytes).unwrap();
        is_refused(socket, who);
        until("it is counted", || fixture.server.rejected() == rejected);
        assert_eq!(fixture.server.last_rejected(), Some(RejectReason::NotOurs), "{who}");
    }
    // A scanner that leaves at once, one that resets, and one that says nothing.
    drop(dial(&fixture));
    dial(&fixture).shutdown(Shutdown::Write).unwrap();
    let silent = dial(&fixture);
    // One that writes a byte now and then, of what could be ours.
    let mut slow = dial(&fixture);
    let started = Instant::now();
    let mut bytes = 0;
    while slow.write_all(if bytes == 0 { b"g" } else { b"m" }).is_ok() {
        bytes += 1;
        assert!(started.elapsed() < Duration::from_secs(10), "a slow writer has its place for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
    is_refused(silent, "a silent client");
    assert_eq!(client.echo("after".into()).wait().unwrap(), "after");
    assert_eq!(fixture.client().echo("new".into()).wait().unwrap(), "new");
    drop(slow);
    until("their descriptors are closed", || descriptors().unwrap() <= before + 2);
}

/// As many strangers as the listener has places for one host, and then one that is none.
#[test]
fn a_crowd_of_silent_clients_keeps_nobody_out_for_long() {
    let fixture = Fixture::with("tcp", "crowd", config());
    let crowd: Vec<_> = (0..100).map(|_| dial(&fixture)).collect();
    let started = Instant::now();
    let client = loop {
        match Client::builder().config(config()).connect(&fixture.url) {
            Ok(client) => break ProbeClient::new(client),
            Err(error) => assert!(started.elapsed() < Duration::from_secs(10), "{error}"),
        }
    };
    assert_eq!(client.echo("here".into()).wait().unwrap(), "here");
    drop(crowd);
}

#[test]
fn one_balanced_client_has_members_over_several_providers() {
    let fixtures = ["mem", "shm", "tcp"].map(|scheme| Fixture::new(scheme, "mixed"));
    let urls = fixtures.each_ref().map(|fixture| fixture.url.clone());
    let balanced = Balanced::builder().config(config()).connect(urls.to_vec()).unwrap();
    until("all are ready", || balanced.ready().len() == 3);
    let client = ProbeClient::new(balanced);
    let served = |fixture: &Fixture| fixture.server.stats().requests;
    for _ in 0..200 {
        let calls: Vec<_> = (0..8).map(|_| client.later(1)).collect();
        calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap(), 1));
        if fixtures.iter().all(|fixture| served(fixture) > 0) {
            break;
        }
    }
    assert!(fixtures.iter().all(|fixture| served(fixture) > 0), "{:?}", fixtures.each_ref().map(served));
    let large = client.fill(1_000_000).wait().unwrap();
    assert_eq!(large.len(), 1_000_000);
    // One after the other goes, and the calls go on.
    for fixture in fixtures.into_iter().take(2) {
        let _ = fixture.server.shutdown(Duration::from_secs(5));
        for _ in 0..20 {
            assert_eq!(client.echo("on".into()).wait().unwrap(), "on");
        }
    }
}

/// IPv6, every address of the host, and a name.
#[test]
fn addresses_of_every_kind_are_served_and_reached() {
    for (listen, reach) in
        [("[::1]", "[::1]"), ("*", "127.0.0.1"), ("*", "[::1]"), ("localhost", "localhost")]
    {
        let service = common::serve_probe(common::Prober::default());
        let server = gimmal_rpc::Server::builder().service(service).config(config());
        let server = server.listen(&format!("tcp://{listen}:0")).unwrap();
        let Address::Tcp { port, .. } = server.address().clone() else { panic!("{}", server.address()) };
        assert_ne!(port, 0);
        let client = Client::builder().config(config()).connect(&format!("tcp://{reach}:{port}")).unwrap();
        let negotiated = client.negotiated().unwrap();
        assert_eq!((negotiated.provider, negotiated.emulated), ("tcp", true));
        assert_eq!(ProbeClient::new(client).echo(reach.into()).wait().unwrap(), reach);
    }
}
