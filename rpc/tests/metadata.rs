//! What travels beside arguments and answers: metadata, trace context through nested calls, details of a status.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::{address, block_on, config, sleep, until};
use gimmal_rpc::{
    Bulk, CallOptions, Channel, Client, Code, Cx, Fate, LocalClient, Metadata, ResponseWriter, Runtime,
    Server, Status,
    layer::Spawned,
    metadata::{METADATA_BYTES_MAX, TRACEPARENT},
};

for_each_scheme! {
    metadata_reaches_handlers_of_every_kind
    metadata_of_one_call_is_not_seen_by_another
    nested_calls_inherit_trace_context_and_deadline
    a_status_carries_details
    answers_carry_metadata_of_every_kind
    metadata_that_comes_when_its_call_is_over_is_nobodys
}

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Noting {
    async fn now(&self, cx: &Cx) -> Option<String>;
    async fn later(&self, cx: &Cx, ms: u64) -> Option<String>;
    async fn large(&self, cx: &Cx, bytes: Vec<u8>) -> (Option<String>, u64);
    async fn lent(&self, cx: &Cx, bytes: Bulk) -> (Option<String>, u64);
    /// Calls the other server.
    async fn relay(&self, cx: &Cx) -> (Option<String>, Option<u64>);
    async fn traced(&self, cx: &Cx) -> (Option<String>, Option<u64>);
    #[raw]
    fn raw(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) -> Result<(), Status>;
}

struct Noter {
    other: Option<NotingClient>,
}

/// The caller's name, which also goes back with the answer.
fn tenant(cx: &Cx) -> Option<String> {
    let tenant = cx.metadata()?.text("tenant").map(str::to_owned)?;
    let mut metadata = Metadata::new();
    metadata.insert("for", &tenant).unwrap();
    cx.answer_metadata(metadata);
    Some(tenant)
}

impl Noting for Noter {
    async fn now(&self, cx: &Cx) -> Option<String> {
        tenant(cx)
    }

    async fn later(&self, cx: &Cx, ms: u64) -> Option<String> {
        sleep(ms).await;
        tenant(cx)
    }

    async fn large(&self, cx: &Cx, bytes: Vec<u8>) -> (Option<String>, u64) {
        (tenant(cx), bytes.len() as u64)
    }

    async fn lent(&self, cx: &Cx, bytes: Bulk) -> (Option<String>, u64) {
        (tenant(cx), bytes.len() as u64)
    }

    async fn relay(&self, cx: &Cx) -> (Option<String>, Option<u64>) {
        let other = self.other.clone().unwrap();
        other.with_options(CallOptions::default().within(cx)).traced().await.unwrap()
    }

    async fn traced(&self, cx: &Cx) -> (Option<String>, Option<u64>) {
        let trace = cx.metadata().and_then(|metadata| metadata.text(TRACEPARENT).map(str::to_owned));
        assert_eq!(tenant(cx), None, "only trace context is handed on");
        (trace, cx.remaining().map(|left| left.as_millis().try_into().unwrap()))
    }

    fn raw(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) -> Result<(), Status> {
        if request.is_empty() {
            tenant(cx);
            return Err(Status::new(Code::Aborted, "see the details").with_details([0, 1, 2, 0]));
        }
        // What is read in place stays aligned behind metadata.
        if request.len() < 1000 && cx.negotiated().provider == "shm" {
            assert_eq!(request.as_ptr().addr() % 16, 0);
        }
        answer.write(tenant(cx).unwrap_or_default().as_bytes());
        Ok(())
    }
}

fn serve(scheme: &str, other: Option<NotingClient>) -> (Server, String) {
    let builder = Server::builder().service(serve_noting(Noter { other })).config(config());
    let server = builder.listen(&address(scheme, "noted")).unwrap();
    let url = server.address().to_string();
    (server, url)
}

fn client(url: &str) -> NotingClient {
    NotingClient::new(Client::builder().config(config()).connect(url).unwrap())
}

fn inline(url: &str) -> NotingClient<LocalClient> {
    NotingClient::new(Client::builder().config(config()).connect_local(url).unwrap())
}

fn of(tenant: &str) -> CallOptions {
    let mut metadata = Metadata::new();
    metadata.insert("tenant", tenant).unwrap();
    CallOptions::default().metadata(metadata)
}

fn every_kind<C: Channel>(client: NotingClient<C>) {
    for name in ["one", &"x".repeat(METADATA_BYTES_MAX - 20)] {
        let client = client.clone().with_options(of(name));
        let here = Some(name.to_owned());
        assert_eq!(client.now().wait().unwrap(), here);
        assert_eq!(client.later(2).wait().unwrap(), here);
        for bytes in [0, 100, 300_000] {
            assert_eq!(client.large(vec![1; bytes]).wait().unwrap(), (here.clone(), bytes as u64));
            let mut loan = client.channel().loan(bytes).unwrap();
            loan.fill(1);
            assert_eq!(client.lent(loan).wait().unwrap(), (here.clone(), bytes as u64));
        }
        for bytes in [1, 300_000] {
            assert_eq!(client.raw(&vec![7; bytes]).wait().unwrap(), name.as_bytes());
        }
    }
}

fn metadata_reaches_handlers_of_every_kind(scheme: &str) {
    let (server, url) = serve(scheme, None);
    every_kind(client(&url));
    every_kind(inline(&url));
    assert_eq!(server.stats().serving, 0);
}

fn metadata_of_one_call_is_not_seen_by_another(scheme: &str) {
    let (_server, url) = serve(scheme, None);
    let (client, inline) = (client(&url), inline(&url));
    let calls: Vec<_> = (0..60u64)
        .map(|number| {
            let name = (number % 3 > 0).then(|| format!("tenant {number}"));
            let options = name.as_deref().map_or_else(CallOptions::default, of);
            (name, client.clone().with_options(options).later(number % 7))
        })
        .collect();
    for (name, call) in calls {
        assert_eq!(block_on(call).unwrap(), name);
    }
    for round in 0..20 {
        let noted = inline.clone().with_options(of(&round.to_string()));
        assert_eq!(noted.now().wait().unwrap(), Some(round.to_string()));
        assert_eq!(inline.now().wait().unwrap(), None);
        assert_eq!(inline.raw(b"x").wait().unwrap(), b"");
        assert_eq!(inline.large(vec![1; 200_000]).wait().unwrap(), (None, 200_000));
    }
}

fn nested_calls_inherit_trace_context_and_deadline(scheme: &str) {
    let (_second, behind) = serve(scheme, None);
    let (_first, url) = serve(scheme, Some(client(&behind)));
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut metadata = Metadata::new();
    metadata.insert(TRACEPARENT, trace).unwrap();
    metadata.insert("tenant", "one").unwrap();
    let options = CallOptions::default().timeout(Duration::from_secs(30)).metadata(metadata);
    let (seen, left) = client(&url).with_options(options).relay().wait().unwrap();
    assert_eq!(seen.as_deref(), Some(trace));
    // A handler counts from the reading of the clock of its turn, which may be a moment old.
    assert!(left.is_some_and(|left| left <= 30_500), "{left:?} ms are left");
    assert_eq!(client(&url).relay().wait().unwrap().0, None);
}

fn a_status_carries_details(scheme: &str) {
    let (_server, url) = serve(scheme, None);
    for error in [client(&url).raw(b"").wait().unwrap_err(), inline(&url).raw(b"").wait().unwrap_err()] {
        let status = error.status().unwrap();
        assert_eq!(
            (status.code(), status.message(), status.fate()),
            (Code::Aborted, "see the details", Fate::Ran)
        );
        assert_eq!(status.details(), [0, 1, 2, 0]);
    }
}

fn answered<C: Channel>(client: &NotingClient<C>) {
    for name in ["one", &"x".repeat(METADATA_BYTES_MAX - 20)] {
        let noting = client.clone().with_options(of(name));
        let check = |(is_right, metadata): (bool, Metadata)| {
            assert!(is_right);
            assert_eq!(metadata.text("for"), Some(name));
        };
        let here = |seen: Option<String>| seen.as_deref() == Some(name);
        let response = noting.now().response().wait();
        let (metadata, seen) = (response.metadata().clone(), response.value());
        check((here(seen.unwrap()), metadata));
        let response = noting.later(2).response().wait();
        let (metadata, seen) = (response.metadata().clone(), response.value());
        check((here(seen.unwrap()), metadata));
        let response = noting.large(vec![1; 300_000]).response().wait();
        let (metadata, seen) = (response.metadata().clone(), response.value());
        check((here(seen.unwrap().0), metadata));
        let response = noting.raw(b"x").response().wait();
        let (metadata, seen) = (response.metadata().clone(), response.value());
        check((seen.unwrap() == name.as_bytes(), metadata));
        let response = noting.raw(b"").response().wait();
        let (metadata, refused) = (response.metadata().clone(), response.value());
        check((refused.unwrap_err().status().unwrap().details() == [0, 1, 2, 0], metadata));
        // Whoever does not ask for it is not bothered with it.
        assert!(here(noting.now().wait().unwrap()));
        assert_eq!(noting.raw(b"x").response().wait().bytes().map(<[u8]>::len).unwrap(), name.len());
    }
    let response = client.now().response().wait();
    let (metadata, seen) = (response.metadata().clone(), response.value());
    assert_eq!((seen.unwrap(), metadata.is_empty()), (None, true));
}

fn answers_carry_metadata_of_every_kind(scheme: &str) {
    let (server, url) = serve(scheme, None);
    answered(&inline(&url));
    let client = client(&url);
    answered(&client);
    let calls: Vec<_> = (0..40u64)
        .map(|number| {
            (number, client.clone().with_options(of(&number.to_string())).later(number % 7).response())
        })
        .collect();
    for (number, call) in calls {
        // Every third caller leaves, and its slot is another's then.
        if number % 3 > 0 {
            let response = block_on(call);
            let (metadata, seen) = (response.metadata().clone(), response.value());
            let name = number.to_string();
            assert_eq!((seen.unwrap().as_deref(), metadata.text("for")), (Some(&*name), Some(&*name)));
        }
    }
    let response = client.now().response().wait();
    let (metadata, seen) = (response.metadata().clone(), response.value());
    assert_eq!((seen.unwrap(), metadata.is_empty()), (None, true));
    assert_eq!(server.stats().serving, 0);
}

/// Runs each task on a thread of its own, to its end.
#[derive(Debug)]
struct Threads;

impl Runtime for Threads {
    fn enter(&self, run: &mut dyn FnMut()) {
        run();
    }

    fn spawn(&self, task: gimmal_rpc::runtime::BoxFuture) -> Box<dyn Any + Send + Sync> {
        std::thread::spawn(|| block_on(task));
        Box::new(())
    }
}

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Lagging {
    /// Blocks its thread until the test lets go, and leaves metadata then.
    async fn lag(&self, cx: &Cx);
    async fn seven(&self, cx: &Cx) -> u64;
}

#[derive(Clone, Default)]
struct Laggard {
    runs: Arc<AtomicBool>,
    may_go: Arc<AtomicBool>,
    has_noted: Arc<AtomicBool>,
}

impl Lagging for Laggard {
    async fn lag(&self, cx: &Cx) {
        self.runs.store(true, Ordering::SeqCst);
        while !self.may_go.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut metadata = Metadata::new();
        metadata.insert("of", "lag").unwrap();
        cx.answer_metadata(metadata);
        self.has_noted.store(true, Ordering::SeqCst);
    }

    async fn seven(&self, _: &Cx) -> u64 {
        7
    }
}

fn metadata_that_comes_when_its_call_is_over_is_nobodys(scheme: &str) {
    let laggard = Laggard::default();
    let service = Spawned::only(serve_lagging(laggard.clone()), &["lag"], Threads);
    let builder = Server::builder().service(service).config(config());
    let server = builder.listen(&address(scheme, "lagging")).unwrap();
    let client = Client::builder().config(config()).connect(&server.address().to_string()).unwrap();
    let client = LaggingClient::new(client);
    let call = client.lag();
    until("it runs", || laggard.runs.load(Ordering::SeqCst));
    drop(call);
    until("it was cancelled", || server.stats().serving == 0);
    laggard.may_go.store(true, Ordering::SeqCst);
    until("it has left metadata", || laggard.has_noted.load(Ordering::SeqCst));
    // It has the place that the other one had.
    let response = client.seven().response().wait();
    assert!(response.metadata().is_empty(), "metadata of another call");
    assert_eq!(response.value().unwrap(), 7);
}
