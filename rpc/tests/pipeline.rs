//! Pipelines: calls told apart by their tags, whose answers are shown as they come.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
    time::Duration,
};

use common::{Fixture, ProbeClient, config, pattern, serve_probe, until};
use gimmal_rpc::{
    Answered, CallError, CallOptions, Client, Code, Config, Cx, Fate, LocalClient, Method, Pipeline,
    ResponseWriter, Server, Service, TransportError,
};

for_each_scheme! {
    every_answer_comes_with_its_tag
    requests_and_answers_of_every_size
    a_status_comes_in_place_of_the_answer
    metadata_goes_with_every_call
    two_pipelines_and_other_calls_share_a_client
    calls_above_the_window_wait_and_above_that_are_refused
    a_deadline_ends_calls_that_are_not_answered
    dropping_it_cancels_what_is_under_way
    a_pipeline_hears_nothing_of_the_one_before_it
    a_server_that_goes_away_ends_every_call
    a_panic_in_the_middle_of_a_turn_closes_the_connection
    a_panic_between_requests_leaves_those_before_it_under_way
    what_is_started_together_ends_each_by_itself
    large_ones_among_small_ones
    other_calls_among_those_of_a_pipeline
    answers_of_every_size_to_small_requests
}

fn every_answer_comes_with_its_tag(scheme: &str) {
    let fixture = Fixture::new(scheme, "tags");
    let client = fixture.inline();
    let mut pipeline = client.reverse_pipeline();
    assert_eq!((pipeline.under_way(), pipeline.poll(|_, _| panic!("nothing was called"))), (0, 0));
    assert_eq!(pipeline.wait(1, |_, _| panic!("nothing was called")), 0);
    let mut times = [0u32; 2000];
    let (mut ended, mut check) = (0, |tag: u64, answer: Answered<'_>| {
        let at = usize::try_from(tag).unwrap();
        let backwards: Vec<u8> = tag.to_le_bytes().into_iter().rev().collect();
        assert_eq!(answer.unwrap(), backwards);
        times[at] += 1;
    });
    for tag in 0..2000u64 {
        pipeline.call(tag, &tag.to_le_bytes()).unwrap();
        if pipeline.under_way() == 16 {
            let some = pipeline.wait(4, &mut check);
            assert!(some >= 4, "{some}");
            ended += some;
        }
    }
    ended += pipeline.wait(usize::MAX, &mut check);
    assert_eq!((ended, pipeline.under_way()), (2000, 0));
    assert!(times.iter().all(|times| *times == 1));
    let stats = client.channel().stats();
    assert_eq!((stats.calls, stats.answered, stats.failed), (2000, 2000, 0));
}

fn requests_and_answers_of_every_size(scheme: &str) {
    let fixture = Fixture::new(scheme, "sizes");
    let client = fixture.inline();
    let mut pipeline = client.reverse_pipeline();
    // The last travel as bulk, both ways.
    let sizes = [0, 1, 63, 64, 1000, 60_000, 300_000, 2_000_000];
    for bytes in sizes {
        let request: Vec<u8> = (0..bytes).map(pattern).collect();
        pipeline.call(bytes as u64, &request).unwrap();
    }
    let mut seen = Vec::new();
    pipeline.wait(usize::MAX, |tag, answer| {
        let (bytes, answer) = (usize::try_from(tag).unwrap(), answer.unwrap());
        assert!(answer.iter().copied().eq((0..bytes).rev().map(pattern)), "{bytes} bytes");
        seen.push(bytes);
    });
    seen.sort_unstable();
    assert_eq!(seen, sizes);
}

fn a_status_comes_in_place_of_the_answer(scheme: &str) {
    let fixture = Fixture::new(scheme, "status");
    let client = fixture.inline();
    let mut refused = client.refuse_pipeline();
    refused.call(5, b"x").unwrap();
    refused.wait(1, |tag, answer| {
        let error = answer.unwrap_err();
        assert_eq!((tag, error.status().unwrap().code()), (5, Code::PermissionDenied));
        assert_eq!(error.fate(), Fate::Ran);
    });
    let mut panicking = client.panic_raw_pipeline();
    panicking.call(6, b"x").unwrap();
    panicking.wait(1, |tag, answer| {
        assert_eq!((tag, answer.unwrap_err().status().unwrap().code()), (6, Code::Internal));
    });
}

fn metadata_goes_with_every_call(scheme: &str) {
    let fixture = Fixture::new(scheme, "noted");
    let mut metadata = gimmal_rpc::Metadata::new();
    metadata.insert("who", b"me").unwrap();
    let client = fixture.inline().with_options(CallOptions::default().metadata(metadata));
    let mut pipeline = client.reverse_pipeline();
    for tag in 0..20 {
        pipeline.call(tag, b"abc").unwrap();
    }
    assert_eq!(pipeline.wait(usize::MAX, |_, answer| assert_eq!(answer, Ok(&b"cba"[..]))), 20);
}

fn two_pipelines_and_other_calls_share_a_client(scheme: &str) {
    let fixture = Fixture::new(scheme, "shared");
    let client = fixture.inline();
    let (mut first, mut second) = (client.reverse_pipeline(), client.reverse_pipeline());
    let mut seen = [0; 2];
    for round in 0..50u64 {
        first.call(round, b"1a").unwrap();
        second.call(round, b"2b").unwrap();
        let raw = client.reverse(b"3c");
        // Its turns bring what the pipelines wait for, and theirs what it waits for.
        assert_eq!(client.echo("typed".to_owned()).wait().unwrap(), "typed");
        if round % 2 == 0 {
            seen[0] += first.wait(1, |_, answer| assert_eq!(answer, Ok(&b"a1"[..])));
        } else {
            seen[1] += second.wait(1, |_, answer| assert_eq!(answer, Ok(&b"b2"[..])));
        }
        assert_eq!(raw.wait().unwrap(), b"c3");
    }
    seen[0] += first.wait(usize::MAX, |_, answer| assert_eq!(answer, Ok(&b"a1"[..])));
    seen[1] += second.wait(usize::MAX, |_, answer| assert_eq!(answer, Ok(&b"b2"[..])));
    assert_eq!(seen, [50, 50]);
}

fn narrow() -> Config {
    Config { window: 4, waiting_max: 8, ..config() }
}

fn calls_above_the_window_wait_and_above_that_are_refused(scheme: &str) {
    let fixture = Fixture::new(scheme, "narrow");
    let client = fixture.inline_with(narrow());
    let mut pipeline = client.reverse_pipeline();
    // The first that is refused ends it.
    let all = (0..14).map(|tag| (tag, &b"abc"[..]));
    assert_eq!(pipeline.call_all(all), Err(TransportError::Full { waiting: 8 }));
    assert_eq!(pipeline.call(12, b"abc"), Err(TransportError::Full { waiting: 8 }));
    assert_eq!(pipeline.under_way(), 12);
    let mut tags = Vec::new();
    pipeline.wait(usize::MAX, |tag, answer| {
        assert_eq!(answer, Ok(&b"cba"[..]));
        tags.push(tag);
    });
    tags.sort_unstable();
    assert_eq!(tags, (0..12).collect::<Vec<_>>());
}

/// A method whose calls are not answered.
fn hang() -> &'static Method {
    let methods = Service::methods(&serve_probe(common::Prober::default()));
    methods.iter().find(|method| method.name == "hang").unwrap()
}

/// Six calls that are not answered, of which the server runs four.
fn six_of_four(fixture: &Fixture, client: &ProbeClient<LocalClient>) -> Pipeline {
    let mut pipeline = client.channel().pipeline(hang(), &CallOptions::default());
    for tag in 0..6 {
        pipeline.call(tag, b"").unwrap();
    }
    until("four run", || {
        pipeline.poll(|_, _| panic!("nothing ends"));
        fixture.hanging() == 4
    });
    pipeline
}

fn a_deadline_ends_calls_that_are_not_answered(scheme: &str) {
    let fixture = Fixture::new(scheme, "deadline");
    let client = fixture.inline();
    let options = CallOptions::default().timeout(Duration::from_secs(1));
    let mut pipeline = client.channel().pipeline(hang(), &options);
    for tag in 0..5 {
        pipeline.call(tag, b"").unwrap();
    }
    let mut fates = Vec::new();
    pipeline.wait(usize::MAX, |_, answer| {
        let error = answer.unwrap_err();
        assert_eq!(error.status().unwrap().code(), Code::DeadlineExceeded);
        fates.push(error.fate());
    });
    assert_eq!(fates, [Fate::MaybeRan; 5]);
    until("none runs", || fixture.hanging() == 0);
    assert_eq!(client.reverse(b"on").wait().unwrap(), b"no");
}

fn dropping_it_cancels_what_is_under_way(scheme: &str) {
    let fixture = Fixture::new(scheme, "dropped");
    let client = fixture.inline_with(narrow());
    let pipeline = six_of_four(&fixture, &client);
    drop(pipeline);
    until("none runs", || {
        client.channel().turn();
        fixture.hanging() == 0
    });
    assert_eq!(client.channel().stats().cancelled, 6);
    assert_eq!(client.reverse(b"on").wait().unwrap(), b"no");
}

/// Those that follow have the number of the one that was dropped, and calls with its tags.
fn a_pipeline_hears_nothing_of_the_one_before_it(scheme: &str) {
    let fixture = Fixture::new(scheme, "after");
    let client = fixture.inline();
    for round in 0..200_u64 {
        let mut dropped = client.reverse_pipeline();
        for tag in 0..round % 12 {
            dropped.call(tag, b"old").unwrap();
        }
        if round % 3 == 0 {
            dropped.poll(|_, answer| assert_eq!(answer, Ok(&b"dlo"[..])));
        }
        drop(dropped);
        let mut next = client.reverse_pipeline();
        for tag in 0..3 {
            next.call(tag, b"new").unwrap();
        }
        assert_eq!(next.wait(usize::MAX, |_, answer| assert_eq!(answer, Ok(&b"wen"[..]))), 3);
        assert_eq!(next.under_way(), 0);
    }
    let stats = client.channel().stats();
    assert_eq!(stats.calls, stats.answered + stats.failed + stats.cancelled);
}

fn a_server_that_goes_away_ends_every_call(scheme: &str) {
    let fixture = Fixture::new(scheme, "away");
    let client = fixture.inline_with(narrow());
    let mut pipeline = six_of_four(&fixture, &client);
    let counts = std::sync::Arc::clone(&fixture.counts);
    drop(fixture);
    let mut fates = [0; 2];
    assert_eq!(
        pipeline.wait(usize::MAX, |_, answer| match answer.unwrap_err().fate() {
            Fate::MaybeRan => fates[0] += 1,
            Fate::NotRun => fates[1] += 1,
            Fate::Ran => panic!("none was answered"),
        }),
        6
    );
    assert_eq!(fates, [4, 2]);
    assert_eq!(counts.hanging.load(Ordering::SeqCst), 0);
    let error = pipeline.call(7, b"").unwrap_err();
    assert!(matches!(error, TransportError::Closed { fate: Fate::NotRun, .. }), "{error}");
}

fn a_panic_in_the_middle_of_a_turn_closes_the_connection(scheme: &str) {
    let fixture = Fixture::new(scheme, "panic");
    let client = fixture.inline();
    let mut pipeline = client.reverse_pipeline();
    for tag in 0..3 {
        pipeline.call(tag, b"abc").unwrap();
    }
    let seen = AssertUnwindSafe(|| pipeline.wait(usize::MAX, |_, _| panic!("as it was asked to")));
    assert!(catch_unwind(seen).is_err());
    // One had ended. Of the others it is not known how far they were.
    let ended = pipeline.wait(usize::MAX, |_, answer| {
        let error = answer.unwrap_err();
        assert!(matches!(error, CallError::Transport(TransportError::Closed { .. })), "{error}");
        assert_eq!(error.fate(), Fate::MaybeRan);
    });
    assert_eq!((ended, pipeline.under_way()), (2, 0));
    assert!(client.reverse(b"abc").wait().is_err());
    // The server goes on.
    assert_eq!(fixture.inline().reverse(b"abc").wait().unwrap(), b"cba");
}

fn a_panic_between_requests_leaves_those_before_it_under_way(scheme: &str) {
    let fixture = Fixture::new(scheme, "between");
    let client = fixture.inline();
    let mut pipeline = client.reverse_pipeline();
    // Those that had not been gathered for a message yet.
    let requests = (0..14u64).map(|tag| {
        assert!(tag < 11, "there is no such request");
        (tag, &b"abc"[..])
    });
    assert!(catch_unwind(AssertUnwindSafe(|| pipeline.call_all(requests))).is_err());
    assert_eq!(pipeline.under_way(), 8);
    assert_eq!(pipeline.wait(usize::MAX, |_, answer| assert_eq!(answer, Ok(&b"cba"[..]))), 8);
    let stats = client.channel().stats();
    assert_eq!((stats.calls, stats.posted, stats.answered), (8, 8, 8));
}

/// Calls `pipeline` twenty times at once, twice. Returns the answers by tag.
fn all_of<T>(
    pipeline: &mut Pipeline,
    request: &[u8],
    mut came: impl FnMut(Answered<'_>) -> T,
) -> Vec<Option<T>> {
    let count = 20;
    let mut all: Vec<Option<T>> = (0..2 * count).map(|_| None).collect();
    for round in 0..2 {
        pipeline.call_all((0..count).map(|at| (round * count + at, request))).unwrap();
        let ended = pipeline.wait(usize::MAX, |tag, answer| {
            let before = all[usize::try_from(tag).unwrap()].replace(came(answer));
            assert!(before.is_none(), "call {tag} ended twice");
        });
        assert_eq!(ended as u64, count);
    }
    all
}

fn what_is_started_together_ends_each_by_itself(scheme: &str) {
    let fixture = Fixture::new(scheme, "together");
    let client = fixture.inline();
    let code = |answer: Answered<'_>| answer.unwrap_err().status().unwrap().code();
    let refused = all_of(&mut client.refuse_pipeline(), b"x", code);
    assert_eq!(refused, [Some(Code::PermissionDenied); 40]);
    let panicked = all_of(&mut client.panic_raw_pipeline(), b"x", code);
    assert_eq!(panicked, [Some(Code::Internal); 40]);
    let answered =
        all_of(&mut client.reverse_pipeline(), b"abcdefgh", |answer| answer.unwrap() == b"hgfedcba");
    assert_eq!(answered, [Some(true); 40]);
    // Not a raw method.
    let methods = Service::methods(&serve_probe(common::Prober::default()));
    let left = methods.iter().find(|method| method.name == "left").unwrap();
    let left = all_of(&mut client.channel().pipeline(left, &CallOptions::default()), b"", |answer| {
        assert_eq!(answer.unwrap()[0], 1, "there is a limit");
    });
    assert_eq!(left, [Some(()); 40]);
    let stats = fixture.server.stats();
    assert_eq!((stats.requests, stats.started, stats.panics), (160, 160, 40));
    // A panic while they are shown: those behind it are not known to have run.
    let mut pipeline = client.reverse_pipeline();
    pipeline.call_all((0..9).map(|tag| (tag, &b"abc"[..]))).unwrap();
    let seen =
        AssertUnwindSafe(|| pipeline.wait(usize::MAX, |tag, _| assert!(tag < 4, "as it was asked to")));
    assert!(catch_unwind(seen).is_err());
    let mut tags = Vec::new();
    pipeline.wait(usize::MAX, |tag, answer| {
        assert_eq!(answer.unwrap_err().fate(), Fate::MaybeRan);
        tags.push(tag);
    });
    tags.sort_unstable();
    assert_eq!(tags, [5, 6, 7, 8]);
}

fn large_ones_among_small_ones(scheme: &str) {
    let fixture = Fixture::new(scheme, "mixed");
    let client = fixture.inline();
    let mut pipeline = client.reverse_pipeline();
    let requests: Vec<Vec<u8>> =
        (0..200usize).map(|at| (0..at * at % 400 + at % 50 / 49 * 80_000).map(pattern).collect()).collect();
    let calls = requests.iter().enumerate().map(|(tag, request)| (tag as u64, &request[..]));
    let mut ended = 0;
    for calls in calls.collect::<Vec<_>>().chunks(37) {
        pipeline.call_all(calls.iter().copied()).unwrap();
        ended += pipeline.wait(20, |tag, answer| {
            let request = &requests[usize::try_from(tag).unwrap()];
            assert!(answer.unwrap().iter().eq(request.iter().rev()), "{} bytes", request.len());
        });
    }
    ended += pipeline.wait(usize::MAX, |_, answer| assert!(answer.is_ok()));
    assert_eq!(ended, 200);
}

fn other_calls_among_those_of_a_pipeline(scheme: &str) {
    let fixture = Fixture::new(scheme, "among");
    let client = fixture.inline();
    let (mut first, mut second) = (client.reverse_pipeline(), client.reverse_pipeline());
    let mut seen = [0; 2];
    for _ in 0..30 {
        // Each says again what the others have said.
        first.call_all((0..6).map(|tag| (tag, &b"1a"[..]))).unwrap();
        let raw = client.reverse(b"3c");
        second.call_all((0..6).map(|tag| (tag, &b"2b"[..]))).unwrap();
        let echo = client.echo("typed".to_owned());
        first.call_all((0..3).map(|tag| (tag, &b"1a"[..]))).unwrap();
        // Their turns bring what the others wait for.
        seen[0] += first.wait(7, |_, answer| assert_eq!(answer, Ok(&b"a1"[..])));
        assert_eq!(echo.wait().unwrap(), "typed");
        assert_eq!(raw.wait().unwrap(), b"c3");
        seen[1] += second.wait(usize::MAX, |_, answer| assert_eq!(answer, Ok(&b"b2"[..])));
    }
    seen[0] += first.wait(usize::MAX, |_, answer| assert_eq!(answer, Ok(&b"a1"[..])));
    assert_eq!(seen, [270, 180]);
    let stats = client.channel().stats();
    assert_eq!((stats.calls, stats.answered, stats.failed, stats.late_answers), (510, 510, 0, 0));
}

/// Answers with as many bytes as it is asked for.
#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Grow {
    #[raw]
    fn grow(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
}

struct Grower;

impl Grow for Grower {
    fn grow(&self, _: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) {
        let bytes = u32::from_le_bytes(request.try_into().unwrap()) as usize;
        answer.reserve(bytes).iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
    }
}

/// What stands behind an answer, padding and a checksum, finds place or the answer goes alone.
fn answers_of_every_size_to_small_requests(scheme: &str) {
    let mut config = config();
    config.engine.port.checksum = scheme != "shm";
    let builder = Server::builder().service(serve_grow(Grower)).config(config.clone());
    let server = builder.listen(&common::address(scheme, "grow")).unwrap();
    let url = server.address().to_string();
    let client = GrowClient::new(Client::builder().config(config).connect_local(&url).unwrap());
    let mut pipeline = client.grow_pipeline();
    // The first says all, and the others go together.
    let most = client.channel().negotiated().unwrap().frame_bytes_max;
    let sizes = (most - 60..most + 20).chain(250..330).chain((0..64).map(|at| at * 37)).chain([300; 200]);
    let sizes: Vec<_> = sizes.flat_map(|bytes| [bytes, bytes / 200, 7]).collect();
    let requests: Vec<_> = sizes.iter().map(|bytes| bytes.to_le_bytes()).collect();
    let mut ended = 0;
    let mut check = |tag: u64, answer: Answered<'_>| {
        let (answer, bytes) = (answer.unwrap(), sizes[usize::try_from(tag).unwrap()]);
        assert!(answer.iter().copied().eq((0..bytes as usize).map(pattern)), "{bytes} bytes");
    };
    for (first, requests) in requests.chunks(24).enumerate() {
        let calls = (first as u64 * 24..).zip(requests.iter().map(|request| &request[..]));
        pipeline.call_all(calls).unwrap();
        ended += pipeline.wait(12, &mut check);
    }
    ended += pipeline.wait(usize::MAX, &mut check);
    assert_eq!(ended, sizes.len());
}
