//! Several servers as one channel, and what a server tells about itself.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use common::{Fixture, ProbeClient, address, config, fate, serve_probe, until};
use gimmal_rpc::{
    Balanced, Channel, Client, Config, Fate, Pick, Reconnect, Resolver, Retry, RetryPolicy, Server,
    UserBytes,
    reflect::{Health, ReflectionClient},
};

for_each_scheme! {
    calls_are_spread_and_go_around_a_server_that_is_gone
    servers_come_and_go_as_the_resolver_says
    a_server_that_comes_back_gets_calls_without_reconnect
    a_key_keeps_its_server
    a_server_tells_about_itself
}

fn eager() -> Config {
    let reconnect = Reconnect { max: Duration::from_millis(50), ..Reconnect::default() };
    Config { reconnect: Some(reconnect), ..config() }
}

/// Connections that do not reconnect are made anew when the resolver is asked.
fn a_server_that_comes_back_gets_calls_without_reconnect(scheme: &str) {
    let fixture = Fixture::new(scheme, "anew");
    let lone = Config { reconnect: None, ..config() };
    let builder = Balanced::builder().config(lone).refresh(Duration::from_millis(20));
    let balanced = builder.connect(vec![fixture.url.clone()]).unwrap();
    let fixture = fixture.restarted();
    let client = ProbeClient::new(balanced.clone());
    until("the server is reached again", || client.echo("x".into()).wait().is_ok());
    assert_eq!(balanced.ready(), [fixture.url.as_str()]);
}

fn ran(fixture: &Fixture) -> u64 {
    fixture.counts.ran.load(Ordering::SeqCst)
}

fn calls_are_spread_and_go_around_a_server_that_is_gone(scheme: &str) {
    let servers = [Fixture::new(scheme, "first"), Fixture::new(scheme, "second")];
    let urls: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();
    for pick in [Pick::RoundRobin, Pick::LeastLoaded] {
        let balanced = Balanced::builder().config(eager()).pick(pick).connect(urls.clone()).unwrap();
        assert_eq!(balanced.ready().len(), 2);
        let before: Vec<u64> = servers.iter().map(ran).collect();
        let client = ProbeClient::new(balanced);
        for _ in 0..20 {
            assert_eq!(client.echo("x".into()).wait().unwrap(), "x");
        }
        let spread: Vec<u64> =
            servers.iter().zip(before).map(|(server, before)| ran(server) - before).collect();
        assert_eq!(spread, [10, 10], "{pick:?}");
    }
    // One that is busy gets fewer.
    let balanced = Balanced::builder().config(eager()).connect(urls).unwrap();
    let client = ProbeClient::new(balanced.clone());
    let hanging = client.hang();
    let busy = || servers.iter().position(|server| server.hanging() == 1);
    until("one is busy", || busy().is_some());
    let (busy, before) = (busy().unwrap(), servers.iter().map(ran).sum::<u64>());
    let idle_before = ran(&servers[1 - busy]);
    for _ in 0..10 {
        client.echo("x".into()).wait().unwrap();
    }
    assert_eq!(servers.iter().map(ran).sum::<u64>() - before, 10);
    assert_eq!(ran(&servers[1 - busy]) - idle_before, 10);
    drop(hanging);
    // Failover: no idempotent call fails when a server goes.
    let policy = RetryPolicy { attempts: 20, ..RetryPolicy::default() };
    let client = ProbeClient::new(Retry::new(balanced.clone(), policy));
    let [first, second] = servers;
    let later: Vec<_> = (0..4).map(|_| client.later(3000)).collect();
    until("both serve", || first.server.stats().serving == 2 && second.server.stats().serving == 2);
    assert!(!first.server.shutdown(Duration::ZERO), "it did not wait");
    for call in later {
        assert_eq!(call.wait().unwrap(), 3000);
    }
    until("one is left", || balanced.ready() == [second.url.as_str()]);
    for _ in 0..10 {
        assert_eq!(client.echo("x".into()).wait().unwrap(), "x");
    }
}

#[derive(Clone)]
struct Changing(Arc<Mutex<Result<Vec<String>, String>>>);

impl Resolver for Changing {
    fn resolve(&self) -> Result<Vec<String>, String> {
        self.0.lock().unwrap().clone()
    }
}

fn servers_come_and_go_as_the_resolver_says(scheme: &str) {
    let (first, second) = (Fixture::new(scheme, "here"), Fixture::new(scheme, "there"));
    let absent = match scheme {
        "tcp" | "rxe" | "siw" => address(scheme, "absent").replace(":0", ":7999"),
        _ => address(scheme, "absent"),
    };
    let resolver = Changing(Arc::new(Mutex::new(Ok(vec![first.url.clone(), absent.clone()]))));
    let builder = Balanced::builder().config(eager()).refresh(Duration::from_millis(20));
    let balanced = builder.clone().connect(resolver.clone()).unwrap();
    assert_eq!(balanced.ready(), [first.url.as_str()], "one that is not there is tried again");
    *resolver.0.lock().unwrap() = Ok(vec![first.url.clone(), second.url.clone()]);
    until("the second is known", || balanced.ready().len() == 2);
    *resolver.0.lock().unwrap() = Err("the resolver is down".to_owned());
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(balanced.ready().len(), 2, "what was known is kept");
    *resolver.0.lock().unwrap() = Ok(vec![second.url.clone()]);
    until("the first is forgotten", || balanced.ready() == [second.url.as_str()]);
    let client = ProbeClient::new(balanced);
    let before = ran(&second);
    for _ in 0..5 {
        client.echo("x".into()).wait().unwrap();
    }
    assert_eq!(ran(&second) - before, 5);
    // None at all.
    *resolver.0.lock().unwrap() = Err("the resolver is down".to_owned());
    let error = builder.clone().connect(resolver).unwrap_err();
    assert_eq!(error.to_string(), "no server: the resolver is down");
    let error = builder.connect(vec![absent]).unwrap_err();
    assert!(error.to_string().contains("no server is listening"), "{error}");
}

fn a_key_keeps_its_server(scheme: &str) {
    let servers = [Fixture::new(scheme, "left"), Fixture::new(scheme, "right")];
    let urls: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();
    let balanced = Balanced::builder().config(eager()).connect(urls).unwrap();
    // Where a key goes hangs on the URLs, which differ from run to run: so many never all go to one.
    for key in 0..64 {
        let before: Vec<u64> = servers.iter().map(ran).collect();
        for _ in 0..2 {
            let client = ProbeClient::new(balanced.ordered(key).unwrap());
            client.echo("x".into()).wait().unwrap();
        }
        let moved = servers.iter().zip(before).filter(|(server, before)| ran(server) != *before).count();
        assert_eq!(moved, 1, "key {key}");
    }
    assert!(servers.iter().all(|server| ran(server) > 0), "sixty-four keys went to one server");
    // Loans belong to a connection, and the error says where to take them.
    let error = balanced.loan(100).unwrap_err().to_string();
    assert!(error.contains("Balanced::ordered"), "{error}");
    assert_eq!(balanced.lend(&UserBytes::new(vec![1])).unwrap_err().to_string(), error);
    assert!(balanced.ordered("key").unwrap().loan(100).is_ok());
}

fn a_server_tells_about_itself(scheme: &str) {
    let fixture = Fixture::new(scheme, "mirror");
    let client = Client::builder().config(config()).connect(&fixture.url).unwrap();
    let reflection = ReflectionClient::new(client.clone());
    let methods = reflection.methods().wait().unwrap();
    let echo = methods.iter().find(|method| method.service == "Probe" && method.name == "echo").unwrap();
    assert_eq!(
        (echo.signature.as_str(), echo.is_idempotent, echo.is_plain),
        ("(String) -> String", true, true)
    );
    assert!(methods.iter().any(|method| method.service == "gimmal.Reflection"));
    let counters = reflection.counters().wait().unwrap();
    let requests = counters.iter().find(|(name, _)| name == "requests").unwrap().1;
    assert_eq!(requests, 2);
    let other = fixture.client();
    until("two are connected", || reflection.connections().wait().unwrap().len() == 2);
    drop(other);
    until("one is", || reflection.connections().wait().unwrap().len() == 1);
    let connection = &reflection.connections().wait().unwrap()[0];
    assert_eq!(connection.provider, client.negotiated().unwrap().provider);
    let health = |service: &str| reflection.health(service.to_owned()).wait().unwrap();
    assert_eq!(
        (health(""), health("Probe"), health("Prone")),
        (Health::Serving, Health::Serving, Health::Unknown)
    );
    fixture.server.set_health("Probe", false);
    assert_eq!((health(""), health("Probe")), (Health::Serving, Health::NotServing));
    fixture.server.set_health("Probe", true);
    assert_eq!(health("Probe"), Health::Serving);
    // Opaque servers tell nothing.
    let url = match scheme {
        "rxe" | "siw" => address(scheme, "opaque"),
        _ => address(scheme, "opaque"),
    };
    let builder = Server::builder().service(serve_probe(common::Prober::default())).config(config());
    let opaque = builder.without_reflection().listen(&url).unwrap();
    let client = Client::builder().config(config()).connect(&opaque.address().to_string()).unwrap();
    assert_eq!(fate(ReflectionClient::new(client).methods().wait()), Fate::NotRun);
}

#[test]
fn keys_keep_their_connection_when_another_server_goes() {
    // It takes one connection, where there would be two.
    let mut narrow = config();
    narrow.engine.accepted_max = 1;
    let (narrow, wide) = (Fixture::with("shm", "narrow", narrow), Fixture::new("shm", "wide"));
    let known = Changing(Arc::new(Mutex::new(Ok(vec![narrow.url.clone(), wide.url.clone()]))));
    let mut config = eager();
    config.engine.workers = 2;
    let builder = Balanced::builder().config(config).refresh(Duration::from_millis(20));
    let balanced = builder.connect(known.clone()).unwrap();
    until("all that can be are connected", || balanced.ready().len() == 3);
    let place = |key: u32| balanced.ordered(key).unwrap().negotiated().unwrap().nonce;
    let before: Vec<_> = (0..64).map(place).collect();
    *known.0.lock().unwrap() = Ok(vec![wide.url.clone()]);
    until("one server is left", || balanced.ready().len() == 2);
    let after: Vec<_> = (0..64).map(place).collect();
    let moved = before.iter().zip(&after).filter(|(before, now)| after.contains(before) && before != now);
    assert_eq!(moved.count(), 0, "keys of the server that stays moved between its connections");
}
