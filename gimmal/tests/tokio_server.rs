//! Handlers that use tokio: dropped, cut off, drained, and without their runtime.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod tries;

use std::{
    sync::{RwLock, atomic::Ordering},
    time::Duration,
};

use gimmal::{CallOptions, Code, Config, Fate, Instant, Server, tokio::Tokio};
use tokio::sync::oneshot;
use tries::{
    PATIENCE, SOON, TriedClient, Tries, client, driven, runtime, serve_tried, server, spawning,
    spawning_only, subscribe, until,
};

#[test]
fn a_dropped_call_drops_its_handler_inside_the_runtime() {
    let (runtime, tries) = (runtime(), Tries::default());
    let server = server(&runtime, &tries).listen("mem://tokio-drop").unwrap();
    let client = client("mem://tokio-drop");
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    drop(hang);
    until("it is dropped", || tries.hanging.load(Ordering::SeqCst) == 0);
    // At its deadline, with its connection, and with its server.
    let hurried = client.clone().with_options(CallOptions::default().timeout(Duration::from_millis(20)));
    assert_eq!(hurried.hang().wait().unwrap_err().status().unwrap().code(), Code::DeadlineExceeded);
    until("it is overdue", || tries.hanging.load(Ordering::SeqCst) == 0);
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    drop(server);
    assert_ne!(hang.wait().unwrap_err().fate(), Fate::NotRun);
    until("its server is gone", || tries.hanging.load(Ordering::SeqCst) == 0);
    assert_eq!(tries.lost.load(Ordering::SeqCst), 0);
}

/// On a busy machine any one may take long; so the shortest counts.
fn is_short(name: &str, mut shut_down: impl FnMut(&str) -> Duration) {
    let mut took = (0..30).map(|round| shut_down(&format!("mem://{name}-{round}")));
    let short = took.find(|took| *took < Duration::from_millis(100));
    println!("{name}: shut down in {:?}", short.expect("less than 100 ms"));
}

#[test]
fn a_shutdown_with_open_subscriptions_is_short_and_good() {
    let (runtime, tries) = (runtime(), Tries::default());
    is_short("tokio-subscribed", |url| {
        let server = server(&runtime, &tries).listen(url).unwrap();
        let ended = subscribe(&client(url), &tries);
        let began = Instant::now();
        assert!(server.shutdown(PATIENCE));
        let took = began.elapsed();
        ended();
        took
    });
}

#[test]
fn a_driven_server_with_open_subscriptions_shuts_down_as_soon() {
    let tries = Tries::default();
    is_short("tokio-driven-subscribed", |url| {
        let mut subscribed = None;
        let test = |url: &str| subscribed = Some((subscribe(&client(url), &tries), Instant::now()));
        assert!(driven(url, &tries, PATIENCE, test));
        let (ended, began) = subscribed.unwrap();
        let took = began.elapsed();
        ended();
        took
    });
}

#[test]
fn a_server_serves_until_a_future_is_ready() {
    let (runtime, tries) = (runtime(), Tries::default());
    let server = server(&runtime, &tries).listen("mem://tokio-until").unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = runtime.spawn(server.serve_until(stopped, PATIENCE));
    let client = client("mem://tokio-until");
    assert_eq!(client.sleep(1).wait().unwrap(), 1);
    let ended = subscribe(&client, &tries);
    assert!(!served.is_finished());
    let began = Instant::now();
    stop.send(()).unwrap();
    assert!(runtime.block_on(served).unwrap());
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    ended();
}

#[test]
fn what_a_shutdown_cuts_off_is_said() {
    let (runtime, tries) = (runtime(), Tries::default());
    let server = server(&runtime, &tries).listen("mem://tokio-cut").unwrap();
    let client = client("mem://tokio-cut");
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    let served = runtime.spawn(server.serve_until(std::future::ready(()), Duration::from_millis(20)));
    assert!(!runtime.block_on(served).unwrap());
    assert_ne!(hang.wait().unwrap_err().fate(), Fate::NotRun);
    until("it is dropped", || tries.hanging.load(Ordering::SeqCst) == 0);
    assert_eq!(tries.lost.load(Ordering::SeqCst), 0);
}

/// To stop listening takes a while, and until then nobody is refused.
#[test]
fn a_driven_server_serves_until_its_clients_know_that_it_goes() {
    let mut calls = None;
    driven("tcp://127.0.0.1:0", &Tries::default(), PATIENCE, |url| {
        let client = client(url);
        assert_eq!(client.sleep(1).wait().unwrap(), 1);
        calls = Some(std::thread::spawn(move || {
            let mut refused = 0;
            loop {
                match client.sleep(0).wait().map_err(|error| error.status().is_some()) {
                    Ok(_) => {}
                    Err(true) => refused += 1,
                    // The client knows, and asks the server no more.
                    Err(false) => return refused,
                }
            }
        }));
    });
    let refused = calls.unwrap().join().unwrap();
    assert!(refused <= 1, "{refused} calls are refused, and one may have crossed the word");
}

#[test]
fn a_driven_server_drops_its_handlers_inside_the_runtime() {
    let tries = Tries::default();
    let mut hang = None;
    let drained = driven("mem://tokio-driven-drop", &tries, Duration::from_millis(20), |url| {
        let client = client(url);
        drop(client.hang());
        until("it is dropped", || tries.hanging.load(Ordering::SeqCst) == 0);
        hang = Some(client.hang());
        until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    });
    assert!(!drained);
    assert_ne!(hang.unwrap().wait().unwrap_err().fate(), Fate::NotRun);
    assert_eq!((tries.hanging.load(Ordering::SeqCst), tries.lost.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn the_end_of_the_runtime_ends_calls_and_nothing_hangs() {
    let (runtime, tries) = (runtime(), Tries::default());
    let server = server(&runtime, &tries).listen("mem://tokio-ended").unwrap();
    let client = client("mem://tokio-ended");
    let calls: Vec<_> = (0..10).map(|_| client.sleep(3_600_000)).collect();
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    runtime.shutdown_background();
    for error in calls.into_iter().map(|call| call.wait().unwrap_err()).chain([hang.wait().unwrap_err()]) {
        assert_eq!(error.status().unwrap().code(), Code::Unavailable, "{error}");
        assert_eq!(error.fate(), Fate::MaybeRan);
    }
    let late = client.sleep(1).wait().unwrap_err();
    assert_eq!(late.fate(), Fate::NotRun, "{late}");
    server.join();
    assert!(server.shutdown(PATIENCE));
    assert_eq!((tries.hanging.load(Ordering::SeqCst), tries.lost.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn a_runtime_that_has_ended_serves_nobody() {
    let ended = runtime();
    let handle = ended.handle().clone();
    drop(ended);
    let server = Server::builder().service(serve_tried(Tries::default())).runtime(Tokio::from(handle));
    let server = server.listen("mem://tokio-late").unwrap();
    server.join();
    let refused =
        gimmal::connect("mem://tokio-late").map(TriedClient::new).map(|client| client.sleep(1).wait());
    if let Ok(called) = refused {
        assert_eq!(called.unwrap_err().fate(), Fate::NotRun);
    }
}

#[test]
#[should_panic(expected = "the service has no method snooze")]
fn only_methods_that_are_there_are_spawned() {
    let _ = spawning_only(&runtime(), &["sleep", "snooze"]);
}

#[test]
fn the_end_of_the_runtime_ends_spawned_calls() {
    let (runtime, tries) = (runtime(), Tries::default());
    let _server = gimmal::serve("mem://tokio-spawned-ended", spawning(&runtime, &tries)).unwrap();
    let client = client("mem://tokio-spawned-ended");
    let hang = client.hang();
    until("it hangs", || tries.hanging.load(Ordering::SeqCst) == 1);
    runtime.shutdown_background();
    for error in [hang.wait().unwrap_err(), client.hang().wait().unwrap_err()] {
        assert_eq!(error.status().unwrap().code(), Code::Unavailable, "{error}");
        assert_eq!(error.fate(), Fate::MaybeRan);
    }
}

/// What is logged in this process.
static LOG: RwLock<Vec<u8>> = RwLock::new(Vec::new());

struct Writer;

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.write().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_handler_that_blocks_its_worker_is_counted_and_named() {
    tracing_subscriber::fmt().with_ansi(false).with_writer(|| Writer).init();
    let config = Config { slow_poll: Duration::from_millis(50), ..Config::default() };
    let runtime = runtime();
    let server = Server::builder().service(serve_tried(Tries::default())).config(config);
    let server = server.runtime(Tokio::from(runtime.handle().clone())).listen("mem://tokio-slow").unwrap();
    let client = client("mem://tokio-slow");
    client.stall(0).wait().unwrap();
    client.stall(100).wait().unwrap();
    assert!(server.stats().slow_polls >= 1);
    let log = String::from_utf8(LOG.read().unwrap().clone()).unwrap();
    let line = log.lines().find(|line| line.contains("a handler blocked its worker")).unwrap();
    assert!(line.contains("method=Tried.stall"), "{line}");
}
