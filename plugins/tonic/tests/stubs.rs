//! Generated clients and servers over gimmal: every kind of call, and every way in which one ends.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use common::{
    DemoServer, Fixture, Note, Seen, demo::demo_client::DemoClient, listen, note, numbered, on_time,
};
use gimmal_tonic::{Server, fate};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Status, codec::CompressionEncoding, metadata::MetadataValue};

/// Each case over shared memory and over TCP, and in the lab over its devices.
macro_rules! for_each_medium {
    ($(async fn $name:ident($fixture:ident) $body:block)*) => {
        $(mod $name {
            use super::*;

            async fn case($fixture: Fixture) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
            async fn shm() {
                case(Fixture::new("shm").await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
            async fn tcp() {
                case(Fixture::new("tcp").await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
            #[ignore = "needs the lab"]
            async fn rxe() {
                case(Fixture::new("rxe").await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
            #[ignore = "needs the lab"]
            async fn siw() {
                case(Fixture::new("siw").await).await;
            }
        })*
    };
}

/// A body of notes that is written while the call runs.
fn notes() -> (mpsc::UnboundedSender<Note>, Receiving) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, Receiving(receiver))
}

struct Receiving(mpsc::UnboundedReceiver<Note>);

impl tokio_stream::Stream for Receiving {
    type Item = Note;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Note>> {
        self.0.poll_recv(context)
    }
}

for_each_medium! {
    async fn every_kind_of_call_is_answered(fixture) {
        let mut client = fixture.client();
        for bytes in [0, 1, 64, 8 << 10, 100_000, 3 << 20] {
            let data = Bytes::from(vec![7; bytes]);
            let asked = Note { data: data.clone(), ..note("echo") };
            let answered = on_time(client.unary(asked.clone())).await.unwrap().into_inner();
            assert_eq!(answered, asked);
        }
        let asked = tokio_stream::iter((0..1000).map(|at| numbered("", at)));
        assert_eq!(on_time(client.up(asked)).await.unwrap().into_inner().count, 499_500);
        let mut down = on_time(client.down(numbered("", 1000))).await.unwrap().into_inner();
        for at in 0..1000 {
            assert_eq!(on_time(down.message()).await.unwrap().unwrap().count, at);
        }
        assert_eq!(down.message().await.unwrap(), None);
        let (sender, asked) = notes();
        let mut both = on_time(client.both(asked)).await.unwrap().into_inner();
        for at in 0..300 {
            sender.send(numbered("", at)).unwrap();
            assert_eq!(on_time(both.message()).await.unwrap().unwrap().count, at);
        }
        drop(sender);
        assert_eq!(on_time(both.message()).await.unwrap(), None);
    }

    async fn metadata_keeps_repeats_and_bytes(fixture) {
        let mut request = Request::new(note("echo"));
        let metadata = request.metadata_mut();
        metadata.append("x-text", "one".parse().unwrap());
        metadata.append("x-text", "two".parse().unwrap());
        metadata.append_bin("x-raw-bin", MetadataValue::from_bytes(&[0, 1, 255]));
        metadata.append_bin("x-raw-bin", MetadataValue::from_bytes(b""));
        metadata.insert("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap());
        let answered = on_time(fixture.client().unary(request)).await.unwrap();
        let metadata = answered.metadata();
        let texts: Vec<_> = metadata.get_all("x-text").iter().collect();
        assert_eq!(texts, ["one", "two"]);
        let raw: Vec<_> = metadata.get_all_bin("x-raw-bin").iter().map(|value| value.to_bytes().unwrap()).collect();
        assert_eq!(raw, [Bytes::from_static(&[0, 1, 255]), Bytes::new()]);
        assert!(metadata.contains_key("traceparent"));
    }

    async fn a_status_keeps_its_parts(fixture) {
        let status = on_time(fixture.client().unary(note("fail"))).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "nicht möglich: 100%"));
        assert_eq!((status.details(), fate(&status)), (&b"\0why"[..], gimmal::Fate::Ran));
        assert_eq!(status.metadata().get("x-more").unwrap(), "1");
        assert_eq!(status.metadata().get_bin("x-more-bin").unwrap().to_bytes().unwrap(), Bytes::from_static(&[0, 255]));
        let mut down = on_time(fixture.client().down(numbered("fail", 10))).await.unwrap().into_inner();
        for _ in 0..3 {
            down.message().await.unwrap().unwrap();
        }
        let status = on_time(down.message()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::DataLoss, "at three"));
        let status = on_time(fixture.client().unary(note("panic"))).await.unwrap_err();
        assert_eq!((status.code(), fate(&status)), (Code::Internal, gimmal::Fate::Ran), "{status}");
    }

    async fn what_is_dropped_is_cancelled(fixture) {
        let mut client = fixture.client();
        tokio::select! {
            answer = client.unary(note("never")) => panic!("{answer:?}"),
            () = fixture.seen.begun(1) => {}
        }
        fixture.seen.left(1).await;
        // While notes go up.
        let (sender, asked) = notes();
        sender.send(numbered("", 1)).unwrap();
        tokio::select! {
            answer = client.up(asked) => panic!("{answer:?}"),
            () = fixture.seen.begun(2) => {}
        }
        fixture.seen.left(2).await;
        on_time(sender.closed()).await;
        // While notes come down.
        let mut down = on_time(client.down(numbered("", u32::MAX))).await.unwrap().into_inner();
        down.message().await.unwrap().unwrap();
        drop(down);
        fixture.seen.left(3).await;
        // While notes go both ways.
        let (sender, asked) = notes();
        let mut both = on_time(client.both(asked)).await.unwrap().into_inner();
        sender.send(note("")).unwrap();
        on_time(both.message()).await.unwrap().unwrap();
        drop(both);
        fixture.seen.left(4).await;
        on_time(sender.closed()).await;
        assert!(on_time(client.unary(note("echo"))).await.is_ok());
    }

    async fn a_deadline_ends_every_kind_of_call(fixture) {
        let mut client = fixture.client();
        fn timed<T>(message: T) -> Request<T> {
            // Time enough for a call to begin, on a machine with other things to do: more in the lab, whose guests are slow.
            let seconds = if std::env::var_os("GIMMAL_LAB").is_some() { 8 } else { 4 };
            let mut request = Request::new(message);
            request.set_timeout(Duration::from_secs(seconds));
            request
        }
        let late = |status: Status| assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        late(on_time(client.unary(timed(note("never")))).await.unwrap_err());
        let (_open, asked) = notes();
        late(on_time(client.up(timed(asked))).await.unwrap_err());
        let mut down = on_time(client.down(timed(numbered("slow", 1000)))).await.unwrap().into_inner();
        let mut came = 0;
        let status = on_time(async {
            loop {
                match down.message().await {
                    Ok(Some(_)) => came += 1,
                    Ok(None) => panic!("it ended well"),
                    Err(status) => break status,
                }
            }
        })
        .await;
        assert!((1..1000).contains(&came));
        late(status);
        let (_open, asked) = notes();
        let mut both = on_time(client.both(timed(asked))).await.unwrap().into_inner();
        late(on_time(both.message()).await.unwrap_err());
        fixture.seen.left(4).await;
        // One that has passed before the call began does not run.
        let began = fixture.seen.began.load(Ordering::SeqCst);
        let mut request = Request::new(note("echo"));
        request.set_timeout(Duration::from_nanos(1));
        late(on_time(client.unary(request)).await.unwrap_err());
        assert_eq!(fixture.seen.began.load(Ordering::SeqCst), began);
        let in_all = common::connect(&fixture.url).await.timeout(Duration::from_millis(50));
        late(on_time(DemoClient::new(in_all).unary(note("never"))).await.unwrap_err());
    }

    async fn a_slow_reader_stops_its_sender_alone(fixture) {
        let mut client = fixture.client();
        let asked = Note { data: Bytes::from(vec![7; 8 << 10]), ..numbered("", u32::MAX) };
        let slow = on_time(client.down(asked)).await.unwrap();
        let mut before = 0;
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let given = fixture.seen.given.load(Ordering::SeqCst);
            if given == before && given > 0 {
                break;
            }
            before = given;
        }
        assert!((1..2000).contains(&before), "{before} notes ahead of a reader that does not read");
        assert!(on_time(client.unary(note("echo"))).await.is_ok());
        drop(slow);
        fixture.seen.left(2).await;
    }

    async fn an_answer_may_come_before_the_upload_ends(fixture) {
        let (sender, asked) = notes();
        sender.send(numbered("", 5)).unwrap();
        sender.send(note("enough")).unwrap();
        let answered = on_time(fixture.client().up(asked)).await.unwrap().into_inner();
        assert_eq!(answered.count, 5);
        on_time(sender.closed()).await;
    }

    async fn many_calls_in_flight_have_no_errors(fixture) {
        let mut channels = vec![fixture.channel.clone()];
        for _ in 1..64 {
            channels.push(common::connect(&fixture.url).await);
        }
        let cells = [(64, 1), (64, 64), (64, 512), (8 << 10, 1), (8 << 10, 64), (8 << 10, 512)];
        let cells = [1, 64].into_iter().flat_map(|connections| cells.map(|(bytes, calls)| (connections, bytes, calls)));
        for (connections, bytes, in_flight) in cells {
            let data = Bytes::from(vec![7; bytes]);
            let tasks: Vec<_> = (0..in_flight).map(|task| {
                let channel = channels[task as usize % connections].clone();
                let (mut client, data) = (DemoClient::new(channel), data.clone());
                tokio::spawn(async move {
                    let asked = Note { data, ..numbered("echo", task) };
                    assert_eq!(client.unary(asked.clone()).await.unwrap().into_inner(), asked);
                    let asked = Note { count: 3, ..asked };
                    let mut down = client.down(asked.clone()).await.unwrap().into_inner();
                    for at in 0..3 {
                        let answered = down.message().await.unwrap().unwrap();
                        assert_eq!((answered.count, answered.data.len()), (at, asked.data.len()));
                    }
                    assert_eq!(down.message().await.unwrap(), None);
                    let two = vec![asked.clone(), asked];
                    let mut both = client.both(tokio_stream::iter(two)).await.unwrap().into_inner();
                    let mut back = 0;
                    while let Some(note) = both.message().await.unwrap() {
                        back += note.count;
                    }
                    assert_eq!(back, 6);
                })
            }).collect();
            for task in tasks {
                tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
            }
        }
    }

    // The open loop: calls come at 0.7 of the rate at which 32 callers were answered, whether or not those before have ended.
    async fn calls_that_come_at_a_rate_are_all_answered(fixture) {
        // A machine that is busy with other things may let all of them wait.
        let config = gimmal::Config { window: 256, waiting_max: 1 << 16, ..gimmal::Config::default() };
        let client = gimmal::Client::builder().config(config).connect_async(&fixture.url).await.unwrap();
        let client = DemoClient::new(gimmal_tonic::Channel::new(gimmal_http::Client::new(client)));
        for (bytes, is_stream) in [(64, false), (64, true), (8 << 10, false), (8 << 10, true)] {
            let data = Bytes::from(vec![7; bytes]);
            let call = move |mut client: DemoClient<gimmal_tonic::Channel>| {
                let asked = Note { data: data.clone(), ..numbered("echo", 3) };
                async move {
                    if !is_stream {
                        assert_eq!(client.unary(asked.clone()).await.unwrap().into_inner(), asked);
                        return;
                    }
                    let mut down = client.down(asked).await.unwrap().into_inner();
                    for at in 0..3 {
                        assert_eq!(down.message().await.unwrap().unwrap().count, at);
                    }
                    assert_eq!(down.message().await.unwrap(), None);
                }
            };
            let end = gimmal::Instant::now() + Duration::from_millis(200);
            let callers: Vec<_> = (0..32).map(|_| {
                let (call, client) = (call.clone(), client.clone());
                tokio::spawn(async move {
                    let mut calls = 0;
                    while !end.has_passed() {
                        call(client.clone()).await;
                        calls += 1;
                    }
                    calls
                })
            }).collect();
            let mut closed = 0;
            for caller in callers {
                closed += on_time(caller).await.unwrap();
            }
            // 40 ticks of 5 ms take as long as the callers did.
            let each_tick = (closed * 7 / 10 / 40).max(1);
            let mut ticks = tokio::time::interval(Duration::from_millis(5));
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut open = Vec::new();
            for _ in 0..40 {
                ticks.tick().await;
                open.extend((0..each_tick).map(|_| tokio::spawn(call(client.clone()))));
            }
            for answered in open {
                tokio::time::timeout(Duration::from_secs(60), answered).await.unwrap().unwrap();
            }
        }
    }

    async fn a_server_that_goes_away_is_left_and_one_that_is_gone_is_unavailable(fixture) {
        let mut fixture = fixture;
        let mut client = fixture.client();
        assert!(on_time(client.unary(note("echo"))).await.is_ok());
        let patient = gimmal::Client::connect_async(&fixture.url).await.unwrap();
        let patient = gimmal_http::Client::new(patient).wait_for_ready(Duration::from_secs(15));
        let mut patient = DemoClient::new(gimmal_tonic::Channel::new(patient));
        // A call in flight ends well while the server shuts down.
        let mut sleeping = fixture.client();
        let in_flight = tokio::spawn(async move { sleeping.unary(numbered("sleep", 300)).await });
        while fixture.seen.began.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let server = fixture.server.take().unwrap();
        let stopped = tokio::task::spawn_blocking(move || server.shutdown(Duration::from_secs(10)));
        assert!(on_time(in_flight).await.unwrap().is_ok());
        assert!(on_time(stopped).await.unwrap());
        let status = on_time(client.unary(note("echo"))).await.unwrap_err();
        assert_eq!((status.code(), fate(&status)), (Code::Unavailable, gimmal::Fate::NotRun), "{status}");
        // A call that waits for a connection finds the next server.
        let waiting = tokio::spawn(async move { patient.unary(note("echo")).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let began = fixture.seen.began.load(Ordering::SeqCst);
        let server = listen(&fixture.url, &fixture.seen);
        assert!(on_time(waiting).await.unwrap().is_ok());
        assert_eq!(fixture.seen.began.load(Ordering::SeqCst), began + 1, "it ran once");
        // One that is killed in the middle may have run the call.
        let mut running = fixture.client();
        let in_flight = tokio::spawn(async move { running.unary(note("never")).await });
        while fixture.seen.began.load(Ordering::SeqCst) < began + 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(server);
        let status = on_time(in_flight).await.unwrap().unwrap_err();
        assert_ne!(fate(&status), gimmal::Fate::NotRun, "{status}");
    }

    // A call is made again only if no server ran it: what each server's journal has agrees with how the call ended.
    async fn no_call_runs_twice_while_servers_are_killed(fixture) {
        let mut fixture = fixture;
        let mut ended = [0, 0, 0];
        for round in 0..10u32 {
            let calls: Vec<_> = (0..16u32)
                .map(|task| {
                    let mut client = fixture.client();
                    tokio::spawn(async move {
                        let mut ends = Vec::new();
                        for at in 0..20 {
                            let id = (round * 16 + task) * 20 + at;
                            let mut request = Request::new(note("echo"));
                            request.metadata_mut().insert("x-number", id.into());
                            ends.push((id, client.unary(request).await.map(drop)));
                        }
                        ends
                    })
                })
                .collect();
            tokio::time::sleep(Duration::from_millis(u64::from(round) / 2)).await;
            drop(fixture.server.take());
            fixture.server = Some(listen(&fixture.url, &fixture.seen));
            for call in calls {
                for (id, end) in on_time(call).await.unwrap() {
                    let ran = fixture.seen.journal.lock().unwrap().get(&id).copied().unwrap_or(0);
                    let fate = end.as_ref().err().map(fate);
                    match fate {
                        None => assert_eq!(ran, 1, "{id} was answered"),
                        Some(gimmal::Fate::NotRun) => assert_eq!(ran, 0, "{id}: {end:?}"),
                        Some(_) => assert!(ran <= 1, "{id}: {end:?}"),
                    }
                    ended[fate.map_or(0, |fate| 1 + usize::from(fate != gimmal::Fate::NotRun))] += 1;
                }
            }
        }
        assert!(ended[0] > 1600, "{ended:?}: most calls are answered");
    }

    async fn interceptors_compression_and_limits_are_as_ever(fixture) {
        let token = |mut request: Request<()>| {
            request.metadata_mut().insert("x-token", "yes".parse().unwrap());
            Ok(request)
        };
        let mut client = DemoClient::with_interceptor(fixture.channel.clone(), token);
        let answered = on_time(client.unary(note("echo"))).await.unwrap();
        assert_eq!(answered.metadata().get("x-token").unwrap(), "yes");
        let large = Note { data: Bytes::from(vec![7; 5 << 20]), ..note("echo") };
        let status = on_time(fixture.client().unary(large.clone())).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");

        let service = DemoServer::new(Seen::default())
            .accept_compressed(CompressionEncoding::Gzip)
            .send_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(8 << 20);
        let checked = tonic::service::interceptor::InterceptedService::new(service, |request: Request<()>| {
            match request.metadata().get("x-token") {
                Some(_) => Ok(request),
                None => Err(Status::unauthenticated("no token")),
            }
        });
        let server = Server::builder().add_service(checked).listen(&common::url("shm")).unwrap();
        let channel = common::connect(&server.address().to_string()).await;
        let status = on_time(DemoClient::new(channel.clone()).unary(note("echo"))).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        let mut client = DemoClient::with_interceptor(channel, token)
            .send_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(8 << 20);
        let answered = on_time(client.unary(large.clone())).await.unwrap();
        assert_eq!(answered.metadata().get("grpc-encoding").map(|it| it.as_encoded_bytes()), Some(&b"gzip"[..]));
        assert_eq!(answered.into_inner(), large);
        let large_ones: Vec<_> = (0..4).map(|count| Note { count, ..large.clone() }).collect();
        let large_ones = tokio_stream::iter(large_ones);
        assert_eq!(on_time(client.up(large_ones)).await.unwrap().into_inner().count, 6);
        let mut down = on_time(client.down(Note { count: 4, ..large.clone() })).await.unwrap();
        assert_eq!(down.metadata().get("grpc-encoding").map(|it| it.as_encoded_bytes()), Some(&b"gzip"[..]));
        for count in 0..4 {
            let came = on_time(down.get_mut().message()).await.unwrap().unwrap();
            assert_eq!((came.count, &came.data), (count, &large.data));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn health_layers_timeouts_and_limits_are_by_tonics_names() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<DemoServer<Seen>>().await;
    let seen = Seen::default();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let url = common::url("shm");
    let router = Server::builder()
        .timeout(Duration::from_secs(10))
        .concurrency_limit_per_connection(2)
        .layer(tonic::service::InterceptorLayer::new(|mut request: Request<()>| {
            request.metadata_mut().insert("x-layer", "1".parse().unwrap());
            Ok(request)
        }))
        .add_service(health)
        .add_optional_service(Some(DemoServer::new(seen.clone())));
    let at = url.clone();
    let serving = tokio::spawn(async move { router.serve_with_shutdown(&at, stopped).await });
    let channel = gimmal_tonic::connect_lazy(&url).unwrap();
    let mut health = HealthClient::new(channel.clone());
    let asked = HealthCheckRequest { service: "gimmal.demo.Demo".to_owned() };
    let mut watch = on_time(health.watch(asked.clone())).await.unwrap().into_inner();
    assert_eq!(on_time(watch.message()).await.unwrap().unwrap().status, 1);
    reporter.set_not_serving::<DemoServer<Seen>>().await;
    assert_eq!(on_time(watch.message()).await.unwrap().unwrap().status, 2);
    let mut client = DemoClient::new(channel);
    let answered = on_time(client.unary(note("echo"))).await.unwrap();
    assert_eq!(answered.metadata().get("x-layer").unwrap(), "1");
    // The watch is one call in flight, the next is the second, and there may be no third.
    let mut other = client.clone();
    let second = tokio::spawn(async move { other.unary(note("never")).await });
    while seen.began.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let status = on_time(client.unary(note("echo"))).await.unwrap_err();
    assert_eq!((status.code(), fate(&status)), (Code::ResourceExhausted, gimmal::Fate::NotRun), "{status}");
    let status = on_time(second).await.unwrap().unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "the server's time-out"));
    drop(watch);
    stop.send(()).unwrap();
    on_time(serving).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_unknown_service_is_unimplemented_and_the_peer_is_known() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

    let fixture = Fixture::new("shm").await;
    let asked = HealthCheckRequest::default();
    let status = on_time(HealthClient::new(fixture.channel.clone()).check(asked)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    let peer = on_time(fixture.client().unary(note("peer"))).await.unwrap().into_inner().text;
    assert!(peer.contains(&std::process::id().to_string()), "{peer}");
    // A server of gimmal without services of gRPC says so too.
    let status = gimmal_tonic::connect("shm://nobody-is-there").await.unwrap_err();
    assert!(status.to_string().contains("no server"), "{status}");
}

#[test]
fn a_driven_channel_makes_every_kind_of_call() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let fixture = runtime.block_on(Fixture::new("shm"));
    let local = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&local, async {
        let client = gimmal::tokio::LocalClient::connect(&fixture.url).await.unwrap();
        let channel: gimmal_tonic::LocalChannel =
            gimmal_tonic::Channel::new(gimmal_http::Client::new(client));
        let mut client = DemoClient::new(channel);
        assert_eq!(on_time(client.unary(note("echo"))).await.unwrap().into_inner().text, "echo");
        let asked = tokio_stream::iter((0..100).map(|at| numbered("", at)));
        assert_eq!(on_time(client.up(asked)).await.unwrap().into_inner().count, 4950);
        let down = on_time(client.down(numbered("", 100))).await.unwrap().into_inner();
        assert_eq!(on_time(down.collect::<Vec<_>>()).await.len(), 100);
        let (sender, asked) = notes();
        let mut both = on_time(client.both(asked)).await.unwrap().into_inner();
        for at in 0..100 {
            sender.send(numbered("", at)).unwrap();
            assert_eq!(on_time(both.message()).await.unwrap().unwrap().count, at);
        }
        drop(both);
        on_time(sender.closed()).await;
    });
}
