//! Servers and clients that come and go in good order, and calls that wait or are made again.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{Fixture, ProbeClient, block_on, config, connections, fate, until};
use gimmal_rpc::{CallOptions, Client, Code, Config, Fate, Instant, Reconnect, Retry, RetryPolicy, Server};

for_each_scheme! {
    a_call_waits_for_a_server_that_is_not_there
    a_server_drains_while_another_takes_over
    a_client_goes_when_its_calls_have_ended
    calls_are_made_again_only_where_it_is_safe
    connections_move_to_the_worker_that_has_few
    a_client_that_does_not_reconnect_stays_on_its_worker
    a_call_waits_in_a_destructor_of_a_thread_local
    r99_server_client_call_and_loan_go_in_any_order
    r99_two_threads_end_the_same_at_once
}

/// Every order of `0..parts`.
fn orders(parts: usize) -> Vec<Vec<usize>> {
    let Some(last) = parts.checked_sub(1) else { return vec![Vec::new()] };
    let before = orders(last);
    let places = before.iter().flat_map(|order| (0..parts).map(move |at| (order, at)));
    places.map(|(order, at)| [&order[..at], &[last], &order[at..]].concat()).collect()
}

/// Each part goes within seconds, what is left works on as far as it can, and the handler ends once.
fn r99_server_client_call_and_loan_go_in_any_order(scheme: &str) {
    const BYTES: u64 = 100_000;
    // A device that is a program takes its time for each.
    let step = if matches!(scheme, "mem" | "shm") { 1 } else { 6 };
    for order in orders(4).into_iter().step_by(step) {
        let Fixture { server, counts, url } = Fixture::new(scheme, "order");
        let client = ProbeClient::new(Client::builder().config(config()).connect(&url).unwrap());
        let (hanging, lent) = (client.hang(), client.lend(BYTES).wait().unwrap());
        until("it runs", || counts.hanging.load(Ordering::SeqCst) == 1);
        let (mut server, mut client, mut hanging) = (Some(server), Some(client), Some(hanging));
        let (sum, mut loan) = (lent.value, lent.loan);
        for part in &order {
            let started = Instant::now();
            match part {
                0 => drop(server.take()),
                1 => drop(client.take()),
                2 => drop(hanging.take()),
                _ => drop(loan.take()),
            }
            assert!(started.elapsed() < Duration::from_secs(30), "part {part} of {order:?}");
            assert!(loan.as_ref().is_none_or(|loan| common::sum(loan) == sum), "part {part} of {order:?}");
        }
        until("its handler has ended", || counts.hanging.load(Ordering::SeqCst) == 0);
        assert_eq!(counts.hung.load(Ordering::SeqCst), 1, "{order:?}");
    }
}

fn r99_two_threads_end_the_same_at_once(scheme: &str) {
    let Fixture { server, url, .. } = Fixture::new(scheme, "twice");
    let client = Client::builder().config(config()).connect(&url).unwrap();
    assert_eq!(ProbeClient::new(client.clone()).echo("x".into()).wait().unwrap(), "x");
    let stop = server.stopper();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (client, stop, server) = (client.clone(), stop.clone(), &server);
            scope.spawn(move || assert!(client.shutdown(Duration::from_secs(20)), "nothing is in flight"));
            scope.spawn(move || (0..2).for_each(|_| stop()));
            scope.spawn(|| server.join());
        }
    });
    drop(client);
    assert!(server.shutdown(Duration::from_secs(20)));
    stop();
}

fn eager() -> Config {
    let reconnect = Reconnect { max: Duration::from_millis(50), ..Reconnect::default() };
    Config { reconnect: Some(reconnect), ..config() }
}

fn another(url: &str) -> (Server, Arc<common::Counts>) {
    common::listen_again(url, Duration::from_secs(30))
}

fn a_call_waits_for_a_server_that_is_not_there(scheme: &str) {
    let fixture = Fixture::new(scheme, "ready");
    let client = fixture.client_with(eager());
    let patient = client.clone().with_options(CallOptions::default().wait_for_ready());
    assert_eq!(patient.echo("first".into()).wait().unwrap(), "first");
    let Fixture { server, url, .. } = fixture;
    let _ = server.shutdown(Duration::ZERO);
    // It is not ready from the goodbye on; its connection takes calls a moment longer.
    until("the client knows", || !client.channel().is_ready() && client.echo("x".into()).wait().is_err());
    // By default at once, and not run.
    let started = Instant::now();
    assert_eq!(fate(client.echo("x".into()).wait()), Fate::NotRun);
    assert!(started.elapsed() < Duration::from_secs(30));
    // One that waits does so until its deadline.
    let short = CallOptions::default().wait_for_ready().timeout(Duration::from_millis(60));
    let error = client.clone().with_options(short).echo("x".into()).wait().unwrap_err();
    assert_eq!((error.fate(), error.status().unwrap().code()), (Fate::NotRun, Code::DeadlineExceeded));
    assert!(error.to_string().contains("no connection became ready"), "{error}");
    // Or until there is a server: blocking, as a future, and dropped on the way.
    let waiting = std::thread::spawn({
        let patient = patient.clone();
        move || patient.echo("later".into()).wait()
    });
    let task = std::thread::spawn({
        let patient = patient.clone();
        move || block_on(patient.echo("task".into()))
    });
    drop(patient.echo("nobody".into()));
    std::thread::sleep(Duration::from_millis(50));
    let (server, counts) = another(&url);
    assert_eq!(waiting.join().unwrap().unwrap(), "later");
    assert_eq!(task.join().unwrap().unwrap(), "task");
    assert_eq!(counts.ran.load(Ordering::SeqCst), 2, "a call ran that nobody waited for, or one twice");
    drop(server);
}

fn a_server_drains_while_another_takes_over(scheme: &str) {
    let fixture = Fixture::new(scheme, "drain");
    let client = fixture.client_with(eager());
    let running = client.later(2000);
    until("it runs", || fixture.server.stats().serving == 1);
    let Fixture { server, url, .. } = fixture;
    let old = std::thread::spawn(move || server.shutdown(Duration::from_secs(30)));
    // The address is free while the old one still works for its clients; they come by themselves.
    let (server, counts) = another(&url);
    until("the client has gone there", || client.channel().reconnects() == 1);
    let patient = client.clone().with_options(CallOptions::default().wait_for_ready());
    assert_eq!(patient.echo("new".into()).wait().unwrap(), "new");
    assert_eq!(counts.ran.load(Ordering::SeqCst), 1, "it ran at the old server");
    // The call that ran at the old one is answered there.
    assert_eq!(running.wait().unwrap(), 2000);
    assert!(old.join().unwrap(), "the old server did not drain");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(client.channel().reconnects(), 1, "the old connection's end is no reason to dial");
    drop(server);
}

fn a_client_goes_when_its_calls_have_ended(scheme: &str) {
    let fixture = Fixture::new(scheme, "leave");
    let client = fixture.client_with(eager());
    let running = client.later(2000);
    until("it runs", || fixture.server.stats().serving == 1);
    let handle = client.channel().clone();
    let leaving = std::thread::spawn(move || handle.shutdown(Duration::from_secs(30)));
    until("it takes no more", || !client.channel().is_ready());
    assert_eq!(fate(client.echo("x".into()).wait()), Fate::NotRun);
    assert_eq!(running.wait().unwrap(), 2000);
    assert!(leaving.join().unwrap(), "the call had ended");
    // One that does not end is cut off at the time given.
    let client = fixture.client_with(eager());
    let hanging = client.hang();
    until("it hangs", || fixture.hanging() == 1);
    assert!(!client.channel().clone().shutdown(Duration::from_millis(50)));
    assert_eq!(fate(hanging.wait()), Fate::MaybeRan);
    until("the server dropped it", || fixture.hanging() == 0);
}

fn calls_are_made_again_only_where_it_is_safe(scheme: &str) {
    let fixture = Fixture::new(scheme, "again");
    let client = Client::builder().config(eager()).connect(&fixture.url).unwrap();
    let policy = RetryPolicy { attempts: 500, max: Duration::from_millis(50), ..RetryPolicy::default() };
    let again = ProbeClient::new(Retry::new(client, policy));
    let calls = [again.later(60_000), again.later(60_000)];
    let hanging = again.hang();
    until("all run", || fixture.server.stats().serving == 3);
    let Fixture { server, url, .. } = fixture;
    let _ = server.shutdown(Duration::ZERO);
    let polls = std::thread::spawn(move || fate(hanging.wait()));
    let [first, second] = calls;
    let repeated = [std::thread::spawn(move || first.wait()), std::thread::spawn(move || second.wait())];
    let (server, counts) = another(&url);
    // Its method is not idempotent, and it may have run.
    assert_eq!(polls.join().unwrap(), Fate::MaybeRan);
    assert_eq!(counts.hung.load(Ordering::SeqCst) + counts.hanging.load(Ordering::SeqCst), 0);
    until("the idempotent ones run again", || server.stats().serving == 2);
    // What did not run is made again, whatever its method.
    let divide = again.divide(6, 3);
    assert_eq!(divide.wait().unwrap(), 2);
    drop(server);
    drop(repeated);
}

fn connections_move_to_the_worker_that_has_few(scheme: &str) {
    let mut two = config();
    two.engine.workers = 2;
    let fixture = Fixture::with(scheme, "move", two);
    let server = &fixture.server;
    let [stay, leave] = fixture.three_each(&eager());
    assert_eq!(server.rebalance(), 0, "three each");
    drop(leave);
    until("three are left", || connections(server) == [3, 0]);
    // Calls without a pause, and some that take longer than the move.
    let long: Vec<_> = stay.iter().map(|client| client.later(300)).collect();
    let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers = stay.iter().map(|client| {
        let (client, stop, made) = (client.clone(), Arc::clone(&stop), Arc::clone(&made));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(client.echo("x".into()).wait().unwrap(), "x");
                made.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    until("calls go through", || made.load(Ordering::Relaxed) > 20);
    assert_eq!(server.rebalance(), 1);
    until("one has moved", || connections(server) == [2, 1]);
    assert_eq!(server.rebalance(), 0);
    let before = made.load(Ordering::Relaxed);
    until("calls go on", || made.load(Ordering::Relaxed) > before + 20);
    for call in long {
        assert_eq!(call.wait().unwrap(), 300);
    }
    stop.store(true, Ordering::Relaxed);
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    assert_eq!(stay.iter().map(|client| client.channel().reconnects()).sum::<u64>(), 1);
    assert_eq!(server.stats().refused, 0);
    let ran = fixture.counts.ran.load(Ordering::SeqCst);
    assert_eq!(ran, made.load(Ordering::Relaxed), "each ran once");
}

fn a_client_that_does_not_reconnect_stays_on_its_worker(scheme: &str) {
    let mut two = config();
    two.engine.workers = 2;
    let fixture = Fixture::with(scheme, "stay", two);
    let server = &fixture.server;
    let [stay, leave] = fixture.three_each(&Config { reconnect: None, ..config() });
    drop(leave);
    until("three are left", || connections(server) == [3, 0]);
    assert_eq!(server.rebalance(), 1, "one is asked to connect again");
    for client in &stay {
        assert_eq!(client.echo("here".into()).wait().unwrap(), "here");
    }
    assert_eq!(connections(server), [3, 0]);
    assert_eq!(server.accepted(), 6, "nobody connected again");
}

/// Calls without a pause while the server is replaced three times: none that is idempotent fails.
#[test]
fn replaced_servers_fail_no_idempotent_call() {
    let fixture = Fixture::new("shm", "replaced");
    let client = Client::builder().config(eager()).connect(&fixture.url).unwrap();
    let policy = RetryPolicy { attempts: 10_000, max: Duration::from_millis(20), ..RetryPolicy::default() };
    let client = ProbeClient::new(Retry::new(client, policy));
    let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let (client, stop, made) = (client.clone(), Arc::clone(&stop), Arc::clone(&made));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(client.echo("x".into()).wait().unwrap(), "x");
                    made.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let Fixture { mut server, url, .. } = fixture;
    for _ in 0..3 {
        let before = made.load(Ordering::Relaxed);
        until("calls go through", || made.load(Ordering::Relaxed) > before + 10);
        let old = std::thread::spawn(move || server.shutdown(Duration::from_secs(30)));
        server = another(&url).0;
        assert!(old.join().unwrap());
    }
    stop.store(true, Ordering::Relaxed);
    callers.into_iter().for_each(|caller| caller.join().unwrap());
}

/// Calls in its destructor, and says what became of that.
struct Late(ProbeClient, ProbeClient<Retry<Client>>, std::sync::mpsc::Sender<(u64, u64)>);

impl Drop for Late {
    fn drop(&mut self) {
        // Long enough for the thread to park.
        let _ = self.2.send((self.0.later(30).wait().unwrap(), self.1.later(30).wait().unwrap()));
    }
}

fn a_call_waits_in_a_destructor_of_a_thread_local(scheme: &str) {
    thread_local! {
        static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) };
    }
    let fixture = Fixture::new(scheme, "late");
    let client = fixture.client();
    let again = ProbeClient::new(Retry::new(client.channel().clone(), RetryPolicy::default()));
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let late = Late(client.clone(), again, tell);
        // Older than what a wait keeps for its thread, so it is dropped later.
        LATE.try_with(|place| *place.borrow_mut() = Some(late)).unwrap();
        client.later(30).wait().unwrap()
    });
    assert_eq!(thread.join().unwrap(), 30);
    assert_eq!(told.recv_timeout(Duration::from_secs(30)).unwrap(), (30, 30));
}
