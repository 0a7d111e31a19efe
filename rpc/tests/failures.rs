//! Calls that end otherwise: each with its error and its fate.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{sync::atomic::Ordering, time::Duration};

use common::{Fixture, Prober, block_on, config, fate, serve_probe, until};
use gimmal_rpc::{
    CallError, CallOptions, Channel, Client, Code, ConnectError, Cx, Fate, Instant, LocalClient, Method,
    MethodKind, ServeError, Server, TransportError,
};

for_each_scheme! {
    r85_deadlines_end_calls_here_and_there
    r84_cancel_before_in_flight_and_after
    r87_late_answers_are_dropped_and_counted
    r93_overload_is_refused_at_once_and_not_run
    calls_that_cannot_wait_are_refused_here
    a_closed_connection_ends_every_call_with_its_fate
    calls_after_the_end_say_why
    r82_a_panic_is_a_status_and_the_worker_lives
    a_method_spelled_differently_fails_alone
    r90_an_unknown_method_is_unimplemented
    r89_a_message_above_the_limit_names_the_limit
    r89_a_value_above_what_may_travel_as_bulk_names_the_limit
    without_reads_a_value_above_a_message_says_so
    a_large_value_given_up_or_late_leaves_nothing
    bytes_that_are_no_arguments_are_refused
    r98_shutdown_waits_for_calls_and_refuses_new_ones
    a_slow_reader_gets_every_answer
}

/// The suite runs with either codec.
const CODEC: &str = <common::Chosen as gimmal_rpc::codec::Codec>::NAME;
/// Within it a call must have left and begun, on a machine with other things to do.
const SHORT: Duration = Duration::from_secs(3);

fn short() -> CallOptions {
    CallOptions::default().timeout(SHORT)
}

fn r85_deadlines_end_calls_here_and_there(scheme: &str) {
    let fixture = Fixture::new(scheme, "deadline");
    let hung = |number: u64| {
        until("the server dropped the handler", || fixture.counts.hung.load(Ordering::SeqCst) == number);
    };
    let client = fixture.client().with_options(short());
    let started = Instant::now();
    let error = client.hang().wait().unwrap_err();
    assert_eq!(error.status().unwrap().code(), Code::DeadlineExceeded);
    assert_eq!(error.fate(), Fate::MaybeRan);
    // It counts from the worker's reading of the clock, which may be a moment old.
    let least = SHORT.saturating_sub(Duration::from_millis(100));
    assert!((least..Duration::from_secs(30)).contains(&started.elapsed()), "{:?}", started.elapsed());
    hung(1);
    assert_eq!(fate(block_on(client.hang())), Fate::MaybeRan);
    let inline = fixture.inline().with_options(short());
    assert_eq!(fate(inline.hang().wait()), Fate::MaybeRan);
    hung(3);
    // Behind a full window a call never leaves.
    let mut narrow = config();
    narrow.window = 1;
    let client = fixture.client_with(narrow);
    let first = client.hang();
    until("it runs", || fixture.hanging() == 1);
    assert_eq!(fate(client.clone().with_options(short()).hang().wait()), Fate::NotRun);
    drop(first);
    hung(4);
    assert_eq!(fixture.server.stats().started, 4);
}

fn r84_cancel_before_in_flight_and_after(scheme: &str) {
    let fixture = Fixture::new(scheme, "cancel");
    let mut narrow = config();
    narrow.window = 2;
    let client = fixture.client_with(narrow);
    let running = [client.hang(), client.hang()];
    until("both run", || fixture.hanging() == 2);
    // Before it was sent: the window is full.
    let waiting = client.hang();
    drop(waiting);
    // In flight: the handlers are dropped.
    drop(running);
    until("none runs", || fixture.hanging() == 0);
    assert_eq!(client.echo("next".to_owned()).wait().unwrap(), "next");
    assert_eq!(fixture.counts.hung.load(Ordering::SeqCst), 2, "the one that waited never ran");
    // After the answer came, and in every race with it.
    for round in 0..300u64 {
        let call = client.echo("raced".to_owned());
        if round % 3 > 0 {
            std::thread::sleep(Duration::from_micros(round));
        }
        drop(call);
    }
    let inline = fixture.inline();
    for _ in 0..100 {
        drop(inline.hang());
        drop(inline.echo("raced".to_owned()));
    }
    assert_eq!(inline.echo("inline".to_owned()).wait().unwrap(), "inline");
    assert_eq!(client.echo("last".to_owned()).wait().unwrap(), "last");
    until("nothing is left", || fixture.server.stats().serving == 0 && fixture.hanging() == 0);
    let stats = client.channel().stats();
    assert_eq!(stats.calls, stats.answered + stats.failed + stats.cancelled);
}

fn r87_late_answers_are_dropped_and_counted(scheme: &str) {
    let fixture = Fixture::new(scheme, "late");
    let inline = fixture.inline();
    // The answer is on its way before the cancel leaves.
    let call = inline.echo("late".to_owned());
    until("it was answered", || fixture.server.stats().answers == 1);
    drop(call);
    assert_eq!(inline.echo("next".to_owned()).wait().unwrap(), "next");
    let stats = inline.channel().stats();
    assert_eq!((stats.late_answers, stats.answered, stats.cancelled), (1, 1, 1));
}

fn r93_overload_is_refused_at_once_and_not_run(scheme: &str) {
    let mut small = config();
    small.serving_max = 4;
    let fixture = Fixture::with(scheme, "overload", small);
    let client = fixture.client();
    let running: Vec<_> = (0..4).map(|_| client.hang()).collect();
    until("they run", || fixture.hanging() == 4);
    for _ in 0..20 {
        let error = client.echo("more".to_owned()).wait().unwrap_err();
        let status = error.status().unwrap();
        assert_eq!((status.code(), error.fate()), (Code::ResourceExhausted, Fate::NotRun));
        assert!(status.message().contains("more than 4 calls"), "{status}");
    }
    assert_eq!(fixture.counts.ran.load(Ordering::SeqCst), 0);
    drop(running);
    until("they ended", || fixture.hanging() == 0);
    assert_eq!(client.echo("again".to_owned()).wait().unwrap(), "again");

    let mut few = config();
    few.tasks_max = 2;
    let fixture = Fixture::with(scheme, "tasks", few);
    let client = fixture.client();
    let running: Vec<_> = (0..2).map(|_| client.hang()).collect();
    until("they run", || fixture.hanging() == 2);
    assert_eq!(fate(client.echo("more".to_owned()).wait()), Fate::NotRun);
    assert_eq!(client.reverse(b"raw").wait().unwrap(), b"war", "raw methods need no place");
    drop(running);
}

fn calls_that_cannot_wait_are_refused_here(scheme: &str) {
    let fixture = Fixture::new(scheme, "full");
    let mut narrow = config();
    (narrow.window, narrow.waiting_max) = (1, 2);
    let client = fixture.client_with(narrow);
    let calls: Vec<_> = (0..3).map(|_| client.hang()).collect();
    until("one runs", || fixture.hanging() == 1);
    let error = client.echo("fourth".to_owned()).wait().unwrap_err();
    assert_eq!(error, CallError::Transport(TransportError::Full { waiting: 2 }));
    assert_eq!(error.fate(), Fate::NotRun);
    drop(calls);
}

fn a_closed_connection_ends_every_call_with_its_fate(scheme: &str) {
    let fixture = Fixture::new(scheme, "closed");
    let mut narrow = config();
    narrow.window = 8;
    let client = fixture.client_with(narrow);
    let inline = fixture.inline();
    let calls: Vec<_> = (0..20).map(|_| client.hang()).collect();
    let local: Vec<_> = (0..3).map(|_| inline.hang()).collect();
    // The first left at once, the others with this.
    inline.channel().turn();
    until("they run", || fixture.hanging() == 11);
    let counts = std::sync::Arc::clone(&fixture.counts);
    let waiter =
        std::thread::spawn(move || calls.into_iter().map(|call| fate(call.wait())).collect::<Vec<_>>());
    // Dropping the server closes its connections without waiting for handlers.
    drop(fixture.server);
    let fates = waiter.join().unwrap();
    assert_eq!(fates.iter().filter(|fate| **fate == Fate::MaybeRan).count(), 8);
    assert_eq!(fates.iter().filter(|fate| **fate == Fate::NotRun).count(), 12);
    for call in local {
        assert_eq!(fate(call.wait()), Fate::MaybeRan);
    }
    assert_eq!(counts.hanging.load(Ordering::SeqCst), 0);
}

fn calls_after_the_end_say_why(scheme: &str) {
    let fixture = Fixture::new(scheme, "after");
    let (client, inline) = (fixture.client(), fixture.inline());
    assert_eq!(client.echo("before".to_owned()).wait().unwrap(), "before");
    assert_eq!(inline.echo("before".to_owned()).wait().unwrap(), "before");
    assert!(fixture.server.shutdown(Duration::ZERO), "no call was in flight");
    until("the client has noticed", || client.echo("after".to_owned()).wait().is_err());
    let error = client.echo("after".to_owned()).wait().unwrap_err();
    assert_eq!(error.fate(), Fate::NotRun);
    assert!(error.to_string().contains("the connection ended: closed by the peer"), "{error}");
    until("the inline client has noticed", || inline.echo("after".to_owned()).wait().is_err());
    assert_eq!(fate(inline.echo("after".to_owned()).wait()), Fate::NotRun);
    let refused = Client::builder().config(config()).connect(&fixture.url).unwrap_err();
    assert!(matches!(refused, ConnectError::Open(_)), "{refused}");
}

fn r82_a_panic_is_a_status_and_the_worker_lives(scheme: &str) {
    let fixture = Fixture::new(scheme, "panic");
    let client = fixture.client();
    for ms in [0, 5] {
        let error = client.panic(ms).wait().unwrap_err();
        assert_eq!(error.status().unwrap().code(), Code::Internal);
        assert_eq!(error.fate(), Fate::Ran);
        assert_eq!(client.echo("alive".to_owned()).wait().unwrap(), "alive");
    }
    let error = client.panic_raw(b"").wait().unwrap_err();
    assert_eq!((error.status().unwrap().code(), error.fate()), (Code::Internal, Fate::Ran));
    assert_eq!(client.reverse(b"alive").wait().unwrap(), b"evila");
    let stats = fixture.server.stats();
    assert_eq!((stats.panics, stats.serving), (3, 0));
}

/// Another version of the service.
mod newer {
    use super::Cx;

    #[gimmal_rpc::service(crate = gimmal_rpc, name = "Probe", codec = super::common::Chosen)]
    pub(crate) trait Newer {
        async fn echo(&self, cx: &Cx, text: String, times: u32) -> String;
        async fn divide(
            &self,
            cx: &Cx,
            dividend: u32,
            divisor: u32,
        ) -> Result<u32, super::common::DivideError>;
        async fn added(&self, cx: &Cx);
    }
}

fn a_method_spelled_differently_fails_alone(scheme: &str) {
    let fixture = Fixture::new(scheme, "mismatch");
    // What the trait says, for a client only.
    let client = newer_client(&fixture);
    match client.echo("text".to_owned(), 3).wait().unwrap_err() {
        CallError::Mismatch(it) => {
            assert_eq!(it.method, "Probe.echo");
            assert_eq!(it.ours, format!("echo(String, u32) -> String [{CODEC}]"));
            assert_eq!(it.theirs, format!("echo(String) -> String [{CODEC}]"));
            assert_eq!(it.difference, "argument 2: here `times: u32`, there `none`");
        }
        other => panic!("{other}"),
    }
    assert_eq!(fate(client.echo("text".to_owned(), 3).wait()), Fate::NotRun);
    let error = client.added().wait().unwrap_err();
    assert_eq!((error.status().unwrap().code(), error.fate()), (Code::Unimplemented, Fate::NotRun));
    assert!(error.to_string().contains("the server has no method Probe.added"), "{error}");
    assert_eq!(client.divide(6, 3).wait(), Ok(2), "another path to the same type");
}

fn newer_client(fixture: &Fixture) -> newer::NewerClient {
    newer::NewerClient::new(Client::builder().config(config()).connect(&fixture.url).unwrap())
}

const UNKNOWN: Method = Method::new("Nobody", "home", "()", "raw", MethodKind::Raw);

/// A method by itself, for arguments that its client would not write.
fn echo_method() -> &'static Method {
    let methods = gimmal_rpc::Service::methods(&serve_probe(Prober::default()));
    methods.iter().find(|method| method.name == "echo").unwrap()
}

fn r90_an_unknown_method_is_unimplemented(scheme: &str) {
    let fixture = Fixture::new(scheme, "unknown");
    let inline = LocalClient::connect(&fixture.url).unwrap();
    let error = inline.call_raw(&UNKNOWN, b"anyone?").wait().unwrap_err();
    assert_eq!((error.status().unwrap().code(), error.fate()), (Code::Unimplemented, Fate::NotRun));
}

fn r89_a_message_above_the_limit_names_the_limit(scheme: &str) {
    let mut frames_only = config();
    frames_only.message_bytes_max = 0;
    let fixture = Fixture::with(scheme, "large", frames_only.clone());
    let client = fixture.client_with(frames_only.clone());
    let inline = fixture.inline_with(frames_only);
    // A frame less its word, the engine's header and the request's or response's.
    let frame = client.channel().negotiated().unwrap().frame_bytes_max as usize;
    let (request, response) = (frame - 32, frame - 24);
    for error in [
        client.measure(vec![1; frame]).wait().unwrap_err(),
        inline.measure(vec![1; frame]).wait().unwrap_err(),
    ] {
        assert_eq!(error.fate(), Fate::NotRun);
        assert!(error.to_string().contains(&format!("above the limit of {request} bytes")), "{error}");
    }
    let error = client.fill(u32::try_from(frame).unwrap()).wait().unwrap_err();
    assert_eq!((error.status().unwrap().code(), error.fate()), (Code::ResourceExhausted, Fate::Ran));
    assert!(error.to_string().contains(&format!("above the limit of {response} bytes")), "{error}");
    // What just fits does; a length takes up to three bytes of it.
    assert_eq!(client.measure(vec![1; request - 3]).wait().unwrap(), request as u64 - 3);
    assert_eq!(inline.measure(vec![1; request - 3]).wait().unwrap(), request as u64 - 3);
    let fits = response - 3;
    assert_eq!(client.fill(u32::try_from(fits).unwrap()).wait().unwrap().len(), fits);
}

fn r89_a_value_above_what_may_travel_as_bulk_names_the_limit(scheme: &str) {
    let limited = |bytes| {
        let mut config = config();
        config.message_bytes_max = bytes;
        config
    };
    let fixture = Fixture::with(scheme, "above", limited(200_000));
    // At the caller: before anything left.
    let client = fixture.client_with(limited(150_000));
    let inline = fixture.inline_with(limited(150_000));
    for error in [
        client.measure(vec![1; 150_000]).wait().unwrap_err(),
        inline.measure(vec![1; 150_000]).wait().unwrap_err(),
    ] {
        assert_eq!(error.fate(), Fate::NotRun);
        assert!(error.to_string().contains("above message_bytes_max, 150000 bytes"), "{error}");
    }
    // An answer that the caller does not take.
    for error in [client.fill(160_000).wait().unwrap_err(), inline.fill(160_000).wait().unwrap_err()] {
        assert_eq!(error.fate(), Fate::Ran);
        assert!(error.to_string().contains("above this side's message_bytes_max, 150000 bytes"), "{error}");
    }
    // At the server: refused before its handler, nothing is pulled.
    let (client, inline) = (fixture.client_with(limited(400_000)), fixture.inline_with(limited(400_000)));
    let started = fixture.server.stats().started;
    for error in [
        client.measure(vec![1; 300_000]).wait().unwrap_err(),
        inline.measure(vec![1; 300_000]).wait().unwrap_err(),
    ] {
        assert_eq!((error.status().unwrap().code(), error.fate()), (Code::ResourceExhausted, Fate::NotRun));
        assert!(error.to_string().contains("above the server's message_bytes_max, 200000 bytes"), "{error}");
    }
    assert_eq!(fixture.server.stats().started, started);
    let error = client.fill(300_000).wait().unwrap_err();
    assert_eq!((error.status().unwrap().code(), error.fate()), (Code::ResourceExhausted, Fate::Ran));
    assert!(error.to_string().contains("above message_bytes_max, 200000 bytes"), "{error}");
    assert_eq!(inline.measure(vec![1; 199_990]).wait().unwrap(), 199_990);
    assert_eq!(fixture.server.stats().serving, 0);
}

fn without_reads_a_value_above_a_message_says_so(scheme: &str) {
    let mut no_reads = config();
    (no_reads.engine.port.initiator_depth, no_reads.engine.port.responder_resources) = (0, 0);
    let fixture = Fixture::with(scheme, "no-reads", no_reads);
    let (client, inline) = (fixture.client(), fixture.inline());
    for error in [
        client.measure(vec![1; 100_000]).wait().unwrap_err(),
        inline.measure(vec![1; 100_000]).wait().unwrap_err(),
    ] {
        assert_eq!(error.fate(), Fate::NotRun);
        assert!(error.to_string().contains("READs were negotiated away (depth 0)"), "{error}");
    }
    let error = client.fill(100_000).wait().unwrap_err();
    assert_eq!((error.status().unwrap().code(), error.fate()), (Code::FailedPrecondition, Fate::Ran));
    assert!(error.to_string().contains("READs were negotiated away (depth 0)"), "{error}");
    assert_eq!(client.fill(10_000).wait().unwrap().len(), 10_000);
    assert_eq!(inline.measure(vec![1; 10_000]).wait().unwrap(), 10_000);
}

fn ended<T>(result: &Result<T, CallError>, is_whole: impl Fn(&T) -> bool) -> bool {
    match result {
        Ok(value) => is_whole(value),
        Err(error) => error.status().is_some_and(|status| status.code() == Code::DeadlineExceeded),
    }
}

fn a_large_value_given_up_or_late_leaves_nothing(scheme: &str) {
    let fixture = Fixture::new(scheme, "late");
    let (client, inline) = (fixture.client(), fixture.inline());
    for round in 0..20u64 {
        let hurried = CallOptions::default().timeout(Duration::from_micros(1 + round * 50));
        let late = client.clone().with_options(hurried.clone()).measure(vec![1; 200_000]).wait();
        assert!(ended(&late, |bytes| *bytes == 200_000), "{late:?}");
        drop(client.fill(200_000));
        drop(inline.measure(vec![1; 200_000]));
        let late = inline.clone().with_options(hurried).fill(200_000).wait();
        assert!(ended(&late, |bytes| bytes.len() == 200_000), "{:?}", late.map(|bytes| bytes.len()));
    }
    assert_eq!(client.fill(200_000).wait().unwrap().len(), 200_000);
    assert_eq!(inline.measure(vec![1; 200_000]).wait().unwrap(), 200_000);
    until("nothing is served", || fixture.server.stats().serving == 0);
}

fn bytes_that_are_no_arguments_are_refused(scheme: &str) {
    let fixture = Fixture::new(scheme, "hostile");
    let inline = LocalClient::connect(&fixture.url).unwrap();
    for hostile in
        [&b""[..], b"\x05ab", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x01\xff", b"\x00extra"]
    {
        let error = inline.call_raw(echo_method(), hostile).wait().unwrap_err();
        assert_eq!((error.status().unwrap().code(), error.fate()), (Code::InvalidArgument, Fate::NotRun));
    }
    assert_eq!(inline.call_raw(echo_method(), b"\x02ok").wait().unwrap(), b"\x02ok");
}

fn r98_shutdown_waits_for_calls_and_refuses_new_ones(scheme: &str) {
    let fixture = Fixture::new(scheme, "shutdown");
    let client = fixture.client();
    let running: Vec<_> = (0..10).map(|_| client.later(3000)).collect();
    until("they run", || fixture.server.stats().serving == 10);
    let server = fixture.server;
    let stopping = std::thread::spawn(move || server.shutdown(Duration::from_secs(30)));
    let mut refused = 0;
    until("new calls are refused", || match client.echo("new".to_owned()).wait() {
        Ok(_) => false,
        Err(error) => {
            refused += 1;
            assert_eq!(error.fate(), Fate::NotRun);
            error.status().is_some_and(|status| status.code() == Code::Unavailable)
        }
    });
    for call in running {
        assert_eq!(call.wait().unwrap(), 3000);
    }
    assert!(stopping.join().unwrap(), "every call ended and the peer answered the goodbye");
}

fn a_slow_reader_gets_every_answer(scheme: &str) {
    // Answers of a hundred calls are many times the ring: they wait for credit in the server.
    let fixture = Fixture::new(scheme, "slow");
    let mut wide = config();
    wide.window = 100;
    let client =
        common::ProbeClient::new(Client::builder().config(wide).connect_local(&fixture.url).unwrap());
    let large = client.channel().negotiated().unwrap().frame_bytes_max / 2;
    let calls: Vec<_> = (0..100).map(|_| client.fill(large)).collect();
    std::thread::sleep(Duration::from_millis(50));
    let cancelled = calls.len() / 2;
    for (number, call) in calls.into_iter().enumerate() {
        if number < cancelled {
            assert_eq!(call.wait().unwrap().len(), large as usize);
        }
    }
    assert_eq!(client.reverse(&[1; 16_000]).wait().unwrap(), [1; 16_000]);
    let stats = fixture.server.stats();
    assert!(stats.blocked_answers > 0, "the test did not make the server wait");
    until("nothing is left", || fixture.server.stats().serving == 0);
}

#[test]
fn bad_addresses_and_servers_say_so() {
    let error = Client::connect("udp://host:1").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("use shm://name, tcp://host:port, tcp+tls://host:port, rdma://host:port, gimmal://host:port or mem://name"),
        "{error}"
    );
    let error = Client::connect("mem://nobody-here").unwrap_err();
    assert!(error.to_string().contains("no server is listening"), "{error}");
    assert_eq!(Server::builder().listen("mem://x").unwrap_err(), ServeError::NoService);
    let twice = Server::builder()
        .service(serve_probe(Prober::default()))
        .service(serve_probe(Prober::default()))
        .listen("mem://twice");
    assert!(matches!(twice, Err(ServeError::DuplicateMethod { .. })));
    let mut bad = config();
    bad.window = 0;
    assert!(matches!(Client::builder().config(bad).connect("mem://x"), Err(ConnectError::Config(_))));
}

#[test]
fn a_deadline_counts_from_the_call_although_the_thread_was_away() {
    let url = common::address("mem", "away");
    let builder = Server::builder().service(serve_probe(Prober::default())).config(config());
    let server = builder.listen(&url).unwrap();
    let channel = Client::builder().config(config()).connect_local(&url).unwrap();
    let patient = CallOptions::default().timeout(Duration::from_millis(500));
    let client = common::ProbeClient::new(channel).with_options(patient);
    // The clock was read last before each of these: by that reading every call is late, by a new one some may be.
    let is_kept = (0..5).any(|_| {
        std::thread::sleep(Duration::from_millis(700));
        client.later(20).wait() == Ok(20)
    });
    assert!(is_kept, "every call was late");
    std::thread::sleep(Duration::from_millis(700));
    let started = Instant::now();
    assert_eq!(client.hang().wait().unwrap_err().status().unwrap().code(), Code::DeadlineExceeded);
    assert!((450..5000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
    drop(server);
}
