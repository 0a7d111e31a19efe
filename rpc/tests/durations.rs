//! Every duration of a configuration, an option and a method, as long and as short as it can be: it means what it says, or is
//! refused by the name of its field. "No limit" is written `Duration::MAX`.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use common::{Fixture, ProbeClient, address, block_on, config, until};
use gimmal_rpc::{
    Balanced, CallError, CallOptions, Channel, Client, Code, Config, Hedge, Instant, Layered, LocalServer,
    Resolver, Retry, RetryPolicy, Server, ServerBuilder, layer::Timeout,
};

for_each_scheme! {
    a_configuration_with_any_duration_connects_or_names_it
    a_call_with_any_timeout_ends_rightly
    layers_take_any_duration
    a_server_shuts_down_within_any_time
    an_inline_server_turns_and_shuts_down_within_any_time
    a_client_shuts_down_within_any_time
    a_server_takes_over_within_any_time
    a_handler_knows_what_is_left
}

const NS: Duration = Duration::from_nanos(1);
/// As people write "no limit", and the two shortest ones.
const ALL: [Duration; 4] = [Duration::MAX, Duration::from_secs(u64::MAX), Duration::ZERO, NS];

fn long(span: Duration) -> bool {
    span > NS
}

fn serve(scheme: &str, name: &str, config: Config) -> Result<(Server, String), String> {
    let builder = Server::builder().service(common::serve_probe(common::Prober::default())).config(config);
    let server = builder.listen(&address(scheme, name)).map_err(|error| error.to_string())?;
    let url = server.address().to_string();
    Ok((server, url))
}

type Set = fn(&mut Config, Duration);

/// The fields of a configuration, whether the longest and the shortest values can be.
const FIELDS: [(&str, Set, bool, bool); 9] = [
    ("slow_poll", |c, d| c.slow_poll = d, true, true),
    ("connect.connect_timeout", |c, d| c.engine.connect.connect_timeout = d, true, false),
    ("connect.handshake_timeout", |c, d| c.engine.connect.handshake_timeout = d, true, false),
    ("listen.handshake_timeout", |c, d| c.engine.listen.handshake_timeout = d, true, false),
    ("listen.take_over", |c, d| c.engine.listen.take_over = d, true, true),
    ("deadline", |c, d| c.deadline = d, true, false),
    ("reconnect.first", |c, d| c.reconnect.as_mut().unwrap().first = d, false, false),
    ("reconnect.max", |c, d| c.reconnect.as_mut().unwrap().max = d, false, false),
    ("reconnect.attempt", |c, d| c.reconnect.as_mut().unwrap().attempt = d, true, false),
];

/// Connects in every way and calls; what a refusal says.
fn connects(url: &str, config: &Config) -> Result<(), String> {
    let builder = Client::builder().config(config.clone());
    let client = builder.clone().connect(url).map_err(|error| error.to_string())?;
    assert_eq!(ProbeClient::new(client).echo("a".into()).wait().unwrap(), "a");
    let inline = builder.clone().connect_local(url).map_err(|error| error.to_string())?;
    assert_eq!(ProbeClient::new(inline).echo("a".into()).wait().unwrap(), "a");
    let driven = builder.connect_local(url).map_err(|error| error.to_string())?;
    driven.driver().map(drop).map_err(|error| error.to_string())
}

fn a_configuration_with_any_duration_connects_or_names_it(scheme: &str) {
    let fixture = Fixture::new(scheme, "any");
    for (field, set, longest, shortest) in FIELDS {
        for value in ALL {
            let mut config = config();
            set(&mut config, value);
            // Without a limit, where that is what it means.
            let fits = if long(value) {
                longest
            } else {
                shortest || (field, value) == ("deadline", Duration::ZERO)
            };
            let served = serve(scheme, "with-any", config.clone());
            let outcomes = [
                connects(&fixture.url, &config),
                served.and_then(|(_server, url)| connects(&url, &common::config())),
            ];
            for outcome in outcomes {
                match outcome {
                    Ok(()) => assert!(fits, "{field} of {value:?} was taken"),
                    // `reconnect.max` below `reconnect.first` is named by that.
                    Err(why) => assert!(
                        !fits && (why.contains(field) || why.contains("at most reconnect.max")),
                        "{field} of {value:?}: {why}"
                    ),
                }
            }
        }
    }
}

fn is_over<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, CallError<E>>) -> bool {
    result.unwrap_err().status().is_some_and(|status| status.code() == Code::DeadlineExceeded)
}

fn a_call_with_any_timeout_ends_rightly(scheme: &str) {
    let fixture = Fixture::new(scheme, "timeouts");
    for value in ALL {
        let options = CallOptions::default().timeout(value);
        for options in [options.clone(), options.wait_for_ready()] {
            let client = fixture.client().with_options(options.clone());
            let inline = fixture.inline().with_options(options);
            if long(value) {
                assert_eq!(client.echo("a".into()).wait().unwrap(), "a");
                assert_eq!(block_on(client.echo("a".into()).into_future()).unwrap(), "a");
                assert_eq!(client.echo("a".into()).response().wait().value().unwrap(), "a");
                assert!(client.echo("a".into()).response().wait().bytes().is_ok());
                assert_eq!(inline.echo("a".into()).wait().unwrap(), "a");
            } else {
                assert!(is_over(client.hang().wait()));
                assert!(is_over(block_on(client.hang().into_future())));
                assert!(is_over(client.hang().response().wait().value()));
                assert!(is_over(inline.hang().wait()));
            }
        }
    }
}

#[derive(Clone)]
struct Known(String);

impl Resolver for Known {
    fn resolve(&self) -> Result<Vec<String>, String> {
        Ok(vec![self.0.clone()])
    }
}

fn layers_take_any_duration(scheme: &str) {
    let fixture = Fixture::new(scheme, "layers");
    let channel = Client::builder().config(config()).connect(&fixture.url).unwrap();
    for value in ALL {
        let capped = ProbeClient::new(Layered::new(channel.clone(), Timeout(value)));
        if long(value) {
            assert_eq!(capped.echo("a".into()).wait().unwrap(), "a");
        } else {
            assert!(is_over(capped.hang().wait()));
        }
        let hedged = ProbeClient::new(Hedge::new(channel.clone(), value));
        assert_eq!(hedged.echo("a".into()).wait().unwrap(), "a");
        // Clamped, as it says.
        let balanced =
            Balanced::builder().config(config()).refresh(value).connect(Known(fixture.url.clone()));
        assert_eq!(ProbeClient::new(balanced.unwrap()).echo("a".into()).wait().unwrap(), "a");
    }
    // The waits between the attempts of a call whose server is gone.
    let gone = Client::builder().config(config()).reconnect(None).connect(&fixture.url).unwrap();
    let _ = fixture.server.shutdown(Duration::ZERO);
    until("the server is gone", || ProbeClient::new(gone.clone()).echo("a".into()).wait().is_err());
    for first in ALL {
        for max in ALL {
            let retried = ProbeClient::new(Retry::new(gone.clone(), RetryPolicy { attempts: 3, first, max }));
            let options = CallOptions::default().timeout(Duration::from_millis(50));
            let started = Instant::now();
            assert!(retried.with_options(options).echo("a".into()).wait().is_err());
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{first:?}, {max:?}: {:?}",
                started.elapsed()
            );
            if !(long(first) && long(max)) {
                // `max` holds for the first wait too.
                let retried =
                    ProbeClient::new(Retry::new(gone.clone(), RetryPolicy { attempts: 3, first, max }));
                let endless = CallOptions::default().timeout(Duration::MAX);
                assert!(retried.with_options(endless).echo("a".into()).wait().is_err());
            }
        }
    }
}

fn a_server_shuts_down_within_any_time(scheme: &str) {
    for value in ALL {
        let fixture = Fixture::new(scheme, "shutdown");
        let client = fixture.client();
        assert_eq!(client.echo("a".into()).wait().unwrap(), "a");
        let started = Instant::now();
        let drained = fixture.server.shutdown(value);
        assert!(drained || !long(value), "{value:?}");
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}

fn inline_server(scheme: &str, name: &str) -> LocalServer {
    let builder = Server::builder().service(common::serve_probe(common::Prober::default())).config(config());
    builder.listen_local(&address(scheme, name)).unwrap()
}

fn an_inline_server_turns_and_shuts_down_within_any_time(scheme: &str) {
    for value in ALL {
        let (tell, told) = mpsc::channel();
        let (scheme, is_over) = (scheme.to_owned(), Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&is_over);
        let server = std::thread::spawn(move || {
            let mut server = inline_server(&scheme, "inline");
            tell.send(server.address().to_string()).unwrap();
            // What the client sends, its goodbye last, ends a sleep without a limit.
            server.run_until(value, || stop.load(Ordering::SeqCst));
            server.idle(if long(value) { NS } else { value });
            server.shutdown(value)
        });
        let client = Client::builder().config(config()).connect(&told.recv().unwrap()).unwrap();
        let calls = ProbeClient::new(client.clone());
        assert_eq!(calls.echo("a".into()).wait().unwrap(), "a");
        is_over.store(true, Ordering::SeqCst);
        drop((calls, client));
        assert!(server.join().unwrap() || !long(value), "{value:?}");
    }
}

fn a_client_shuts_down_within_any_time(scheme: &str) {
    let fixture = Fixture::new(scheme, "leave");
    for value in ALL {
        let client = Client::builder().config(config()).connect(&fixture.url).unwrap();
        assert_eq!(ProbeClient::new(client.clone()).echo("a".into()).wait().unwrap(), "a");
        assert!(client.shutdown(value) || !long(value), "{value:?}");
        let inline = Client::builder().config(config()).connect_local(&fixture.url).unwrap();
        inline.idle(if long(value) { NS } else { value });
        assert!(inline.close(value) || !long(value), "{value:?}");
    }
}

fn a_server_takes_over_within_any_time(scheme: &str) {
    let taking = |value| -> ServerBuilder {
        let builder = Server::builder().service(common::serve_probe(common::Prober::default()));
        builder.config(config()).take_over(value)
    };
    for value in ALL {
        let fixture = Fixture::new(scheme, "over");
        if long(value) {
            let next = std::thread::scope(|scope| {
                let next = scope.spawn(|| taking(value).listen(&fixture.url).unwrap());
                let server = fixture.server;
                std::thread::sleep(Duration::from_millis(50));
                let _ = server.shutdown(Duration::ZERO);
                next.join().unwrap()
            });
            drop(next);
        } else {
            assert!(taking(value).listen(&fixture.url).is_err(), "{value:?}: the address is in use");
        }
    }
}

/// Microseconds that the handler of a call with this time-out sees.
fn a_handler_knows_what_is_left(scheme: &str) {
    let fixture = Fixture::new(scheme, "left");
    let left = |timeout| {
        let client = fixture.client().with_options(CallOptions::default().timeout(timeout));
        client.left().wait().unwrap()
    };
    let hour = 3_600_000_000;
    let seen = left(Duration::from_secs(3600)).unwrap();
    assert!((hour - 60_000_000..=hour).contains(&seen), "{seen}");
    // Longer than a request can say: no limit for the handler, and the caller keeps its own.
    assert_eq!(left(Duration::from_secs(2 * 3600)), None);
    assert_eq!(left(Duration::MAX), None);
    assert!(fixture.client().channel().loan(1).is_ok());
}
