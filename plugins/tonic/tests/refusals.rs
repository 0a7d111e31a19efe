//! Calls that are refused, made again, or given up by a handle: over shared memory and over TCP.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use common::{DemoServer, Fixture, Note, Seen, demo::demo_client::DemoClient, note, numbered, on_time};
use gimmal::{Fate, tokio::Tokio};
use gimmal_rpc::{Cx, Method, ResponseWriter, Service, engine::transport::Bulk, service::Seat};
use gimmal_tonic::{Server, fate};
use tonic::{Code, Request, Status};

const MEDIA: [&str; 2] = ["shm", "tcp"];

/// A request with a number for the server's journal.
fn marked<T>(number: u32, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-number", number.into());
    request
}

/// A service in front of another one, which refuses its next requests.
struct Refusing<S> {
    service: S,
    /// What it says, the next one last.
    refusals: Arc<Mutex<Vec<gimmal_rpc::Status>>>,
}

impl<S: Service> Service for Refusing<S> {
    fn methods(&self) -> &'static [Method] {
        self.service.methods()
    }

    fn call_raw(
        &self,
        method: usize,
        cx: &Cx,
        request: &[u8],
        answer: &mut ResponseWriter<'_>,
    ) -> Result<(), gimmal_rpc::Status> {
        self.service.call_raw(method, cx, request, answer)
    }

    fn start(
        &self,
        method: usize,
        cx: Cx,
        arguments: &[u8],
        bulk: Option<Bulk>,
        seat: &mut Seat,
    ) -> Result<(), gimmal_rpc::Status> {
        match self.refusals.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            Some(refusal) => Err(refusal),
            None => self.service.start(method, cx, arguments, bulk, seat),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn only_a_call_that_certainly_did_not_run_is_made_again() {
    for medium in MEDIA {
        let (seen, refusals) = (Seen::default(), Arc::<Mutex<Vec<gimmal_rpc::Status>>>::default());
        let service = Server::builder().add_service(DemoServer::new(seen.clone())).into_service();
        let service = Refusing { service, refusals: Arc::clone(&refusals) };
        let builder = gimmal::Server::builder().runtime(Tokio::current().unwrap()).service(service);
        let server = builder.listen(&common::url(medium)).unwrap();
        let channel = common::connect(&server.address().to_string()).await;
        let mut client = DemoClient::new(channel);
        let away = || gimmal_rpc::Status::refused(gimmal::Code::Unavailable, "it goes away");
        let ran = |number: u32| seen.journal.lock().unwrap().get(&number).copied().unwrap_or(0);
        let left = || refusals.lock().unwrap().len();

        // Twice refused, and answered at the third attempt.
        *refusals.lock().unwrap() = vec![away(), away()];
        on_time(client.unary(marked(1, note("echo")))).await.unwrap();
        assert_eq!((ran(1), left()), (1, 0), "{medium}");
        // There is no fourth.
        *refusals.lock().unwrap() = vec![away(), away(), away(), away()];
        let status = on_time(client.unary(marked(2, note("echo")))).await.unwrap_err();
        assert_eq!((status.code(), fate(&status)), (Code::Unavailable, Fate::NotRun), "{medium}: {status}");
        assert_eq!((ran(2), left()), (0, 1), "{medium}");
        // Those that may have run, or are refused for another reason, are not made again.
        let others = [
            (away().with_fate(Fate::MaybeRan), Code::Unavailable, Fate::MaybeRan),
            (away().with_fate(Fate::Ran), Code::Unavailable, Fate::Ran),
            (
                gimmal_rpc::Status::refused(gimmal::Code::ResourceExhausted, "busy"),
                Code::ResourceExhausted,
                Fate::NotRun,
            ),
        ];
        for (refusal, code, its_fate) in others {
            *refusals.lock().unwrap() = vec![refusal];
            let status = on_time(client.unary(marked(3, note("echo")))).await.unwrap_err();
            assert_eq!((status.code(), fate(&status)), (code, its_fate), "{medium}: {status}");
            assert_eq!((ran(3), left()), (0, 0), "{medium}");
        }
        // Nor is one whose body was on its way: it is not there any more.
        *refusals.lock().unwrap() = vec![away()];
        let (_open, notes) = tokio::sync::mpsc::unbounded_channel();
        let upload = marked(4, Receiving(notes));
        let status = on_time(client.up(upload)).await.unwrap_err();
        assert_eq!((status.code(), fate(&status)), (Code::Unavailable, Fate::NotRun), "{medium}: {status}");
        assert_eq!((ran(4), left()), (0, 0), "{medium}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_above_the_limit_are_refused_and_do_not_run() {
    for medium in MEDIA {
        let seen = Seen::default();
        let server = Server::builder().concurrency_limit_per_connection(2);
        let server = server.add_service(DemoServer::new(seen.clone())).listen(&common::url(medium)).unwrap();
        let channel = common::connect(&server.address().to_string()).await;
        let mut client = DemoClient::new(channel);
        let running = [(); 2].map(|()| {
            let mut client = client.clone();
            tokio::spawn(async move { client.unary(note("never")).await })
        });
        seen.begun(2).await;
        for number in 0..8 {
            let status = on_time(client.unary(marked(number, note("echo")))).await.unwrap_err();
            let found = (status.code(), fate(&status));
            assert_eq!(found, (Code::ResourceExhausted, Fate::NotRun), "{medium}: {status}");
        }
        assert!(seen.journal.lock().unwrap().is_empty(), "{medium}");
        // There is room again when those that ran are gone.
        running.iter().for_each(tokio::task::JoinHandle::abort);
        seen.left(2).await;
        on_time(async { while client.unary(note("echo")).await.is_err() {} }).await;
    }
}

/// As tonic's own channel lets them: all but those in flight wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_burst_of_calls_waits_in_the_channel() {
    for medium in MEDIA {
        let fixture = Fixture::new(medium).await;
        let calls: Vec<_> = (0..4000)
            .map(|count| {
                let mut client = fixture.client();
                tokio::spawn(async move { client.unary(numbered("wait", count)).await })
            })
            .collect();
        // A window of calls runs, and none of them ends.
        fixture.seen.begun(256).await;
        let answered = async {
            for (call, count) in calls.into_iter().zip(0..) {
                assert_eq!(call.await.unwrap().unwrap().into_inner().count, count, "{medium}");
            }
        };
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        let opened = async {
            loop {
                ticks.tick().await;
                fixture.seen.gate.notify_waiters();
            }
        };
        let all = async {
            tokio::select! { () = answered => {}, () = opened => {} }
        };
        tokio::time::timeout(Duration::from_secs(120), all).await.unwrap();
    }
}

/// Five connections with as many calls in flight as each may have.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn full_connections_run_all_of_their_calls() {
    let seen = Seen::default();
    let server =
        Server::builder().add_service(DemoServer::new(seen.clone())).listen(&common::url("shm")).unwrap();
    let url = server.address().to_string();
    let mut config = gimmal::Config { window: 1024, ..gimmal::Config::default() };
    config.engine.inbox = 1 << 13;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let builder = gimmal::Client::builder().config(config.clone()).share_workers();
        let channel =
            gimmal_tonic::Channel::new(gimmal_http::Client::new(builder.connect_async(&url).await.unwrap()));
        for _ in 0..1024 {
            let mut client = DemoClient::new(channel.clone());
            calls.spawn(async move { client.unary(note("never")).await });
        }
    }
    tokio::select! {
        ended = calls.join_next() => panic!("a call ended: {ended:?}"),
        () = seen.begun(5 * 1024) => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_cancellation_handle_resets_an_upload() {
    for medium in MEDIA {
        let fixture = Fixture::new(medium).await;
        let cancelled = |status: Status| assert_eq!(status.code(), Code::Cancelled, "{medium}: {status}");
        let (sender, notes) = tokio::sync::mpsc::unbounded_channel();
        sender.send(numbered("", 1)).unwrap();
        let mut request = Request::new(Receiving(notes));
        let handle = request.cancellation_handle();
        let mut client = fixture.client();
        let call = tokio::spawn(async move { client.up(request).await });
        fixture.seen.begun(1).await;
        handle.cancel();
        cancelled(on_time(call).await.unwrap().unwrap_err());
        fixture.seen.left(1).await;
        on_time(sender.closed()).await;

        // After the response has begun its body says so.
        let (sender, notes) = tokio::sync::mpsc::unbounded_channel();
        sender.send(numbered("", 1)).unwrap();
        let mut request = Request::new(Receiving(notes));
        let handle = request.cancellation_handle();
        let mut both = on_time(fixture.client().both(request)).await.unwrap().into_inner();
        assert_eq!(on_time(both.message()).await.unwrap().unwrap().count, 1);
        handle.cancel();
        cancelled(on_time(both.message()).await.unwrap_err());
        fixture.seen.left(2).await;
        on_time(sender.closed()).await;
    }
}

/// Whatever cuts an upload, its reader does not take a part of it for the whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_upload_that_is_cut_has_no_good_end() {
    let large = || Note { data: vec![7; 1024].into(), ..note("large") };
    let apart = |notes| {
        let mut request = Request::new(Receiving(notes));
        request.metadata_mut().insert("x-apart", 1.into());
        request
    };
    for medium in MEDIA {
        let fixture = Fixture::new(medium).await;
        // The client's own body fails: before the response begins, and after.
        let mut limited = fixture.client().max_encoding_message_size(64);
        let (sender, notes) = tokio::sync::mpsc::unbounded_channel();
        sender.send(numbered("", 1)).unwrap();
        let mut client = limited.clone();
        let call = tokio::spawn(async move { client.up(apart(notes)).await });
        fixture.seen.begun(1).await;
        sender.send(large()).unwrap();
        on_time(call).await.unwrap().unwrap_err();
        assert_eq!(fixture.seen.ended(1).await[0], Some(Code::Unknown), "{medium}");

        let (sender, notes) = tokio::sync::mpsc::unbounded_channel();
        sender.send(numbered("", 1)).unwrap();
        let mut both = on_time(limited.both(apart(notes))).await.unwrap().into_inner();
        assert_eq!(on_time(both.message()).await.unwrap().unwrap().count, 1);
        sender.send(large()).unwrap();
        on_time(both.message()).await.unwrap_err();
        assert_eq!(fixture.seen.ended(2).await[1], Some(Code::Unknown), "{medium}");

        // The call is cancelled, and its connection ends.
        let builder = gimmal::Client::builder();
        let client = gimmal_http::Client::new(builder.connect_async(&fixture.url).await.unwrap());
        let mut client = DemoClient::new(gimmal_tonic::Channel::new(client));
        let (sender, notes) = tokio::sync::mpsc::unbounded_channel();
        sender.send(numbered("", 1)).unwrap();
        let mut both = on_time(client.both(apart(notes))).await.unwrap().into_inner();
        assert_eq!(on_time(both.message()).await.unwrap().unwrap().count, 1);
        drop((both, client));
        assert_eq!(fixture.seen.ended(3).await[2], Some(Code::Unknown), "{medium}");

        // One that ends well still does.
        let (sender, notes) = tokio::sync::mpsc::unbounded_channel();
        sender.send(numbered("", 3)).unwrap();
        drop(sender);
        assert_eq!(on_time(fixture.client().up(apart(notes))).await.unwrap().into_inner().count, 3);
        assert_eq!(fixture.seen.ended(4).await[3], None, "{medium}");
        // A message that cannot be written is not sent.
        let status = on_time(limited.unary(large())).await.unwrap_err();
        assert_eq!((status.code(), fate(&status)), (Code::OutOfRange, Fate::NotRun), "{medium}: {status}");
    }
}

/// Notes that are sent while the call runs.
struct Receiving(tokio::sync::mpsc::UnboundedReceiver<Note>);

impl tokio_stream::Stream for Receiving {
    type Item = Note;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Note>> {
        self.0.poll_recv(context)
    }
}
