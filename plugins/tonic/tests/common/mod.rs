//! A generated service with all kinds of calls, and a server and a channel for it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[allow(warnings, clippy::all, clippy::nursery, clippy::restriction, reason = "generated")]
pub mod demo {
    include!("demo.in");
}

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use demo::{demo_client::DemoClient, demo_server::Demo};
use gimmal_tonic::{Channel, Server};
use tokio::sync::Notify;
use tokio_stream::{Stream, StreamExt as _, wrappers::UnboundedReceiverStream};
use tonic::{Code, Request, Response, Status, Streaming, metadata::MetadataValue};

pub use demo::demo_server::DemoServer;

#[derive(Clone, PartialEq, prost::Message)]
pub struct Note {
    #[prost(string, tag = "1")]
    pub text: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub data: Bytes,
    #[prost(uint32, tag = "3")]
    pub count: u32,
}

pub fn note(text: &str) -> Note {
    Note { text: text.to_owned(), ..Note::default() }
}

pub fn numbered(text: &str, count: u32) -> Note {
    Note { text: text.to_owned(), count, ..Note::default() }
}

/// No case waits longer.
pub async fn on_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it ends in time")
}

/// The service, and what it saw.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    pub began: Arc<AtomicU32>,
    pub dropped: Arc<AtomicU32>,
    pub given: Arc<AtomicU32>,
    /// How often each numbered call ran.
    pub journal: Arc<Mutex<BTreeMap<u32, u32>>>,
    /// What calls "wait" wait for.
    pub gate: Arc<Notify>,
    /// How uploads ended that tasks of their own read; `None`: well.
    pub ends: Arc<Mutex<Vec<Option<Code>>>>,
}

pub struct Guard(Seen);

impl Seen {
    fn enter<T>(&self, request: &Request<T>) -> Guard {
        self.began.fetch_add(1, Ordering::SeqCst);
        let number =
            request.metadata().get("x-number").map(|number| number.to_str().unwrap().parse().unwrap());
        if let Some(number) = number {
            *self.journal.lock().unwrap().entry(number).or_default() += 1;
        }
        Guard(self.clone())
    }

    /// Reads an upload in a task that outlives its handler, and returns the notes.
    fn read_apart(&self, mut notes: Streaming<Note>) -> UnboundedReceiverStream<Result<Note, Status>> {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let ends = Arc::clone(&self.ends);
        tokio::spawn(async move {
            let end = loop {
                match notes.message().await {
                    Ok(Some(note)) => drop(sender.send(Ok(note))),
                    Ok(None) => break None,
                    Err(status) => {
                        let code = status.code();
                        drop(sender.send(Err(status)));
                        break Some(code);
                    }
                }
            };
            ends.lock().unwrap().push(end);
        });
        UnboundedReceiverStream::new(receiver)
    }

    /// Waits until so many of these have ended, and returns how.
    pub async fn ended(&self, uploads: usize) -> Vec<Option<Code>> {
        let ends = || self.ends.lock().unwrap().clone();
        let all = async {
            while ends().len() < uploads {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("uploads end");
        ends()
    }

    /// Waits until so many handlers have begun.
    pub async fn begun(&self, handlers: u32) {
        let all = async {
            while self.began.load(Ordering::SeqCst) < handlers {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("so many begin");
    }

    /// Waits until so many handlers and streams are gone.
    pub async fn left(&self, handlers: u32) {
        on_time(async {
            while self.dropped.load(Ordering::SeqCst) < handlers {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

type Notes = Pin<Box<dyn Stream<Item = Result<Note, Status>> + Send>>;

#[tonic::async_trait]
impl Demo for Seen {
    async fn unary(&self, request: Request<Note>) -> Result<Response<Note>, Status> {
        let _guard = self.enter(&request);
        let (metadata, extensions, note) = request.into_parts();
        match note.text.as_str() {
            "never" => std::future::pending().await,
            "wait" => self.gate.notified().await,
            "sleep" => tokio::time::sleep(Duration::from_millis(note.count.into())).await,
            "panic" => panic!("as it was asked to"),
            "peer" => {
                let peer = extensions.get::<gimmal_tonic::Peer>().unwrap().name().to_owned();
                return Ok(Response::new(self::note(&peer)));
            }
            "fail" => {
                let mut status = Status::with_details(
                    Code::FailedPrecondition,
                    "nicht möglich: 100%",
                    Bytes::from_static(b"\0why"),
                );
                status.metadata_mut().append("x-more", "1".parse().unwrap());
                status.metadata_mut().append_bin("x-more-bin", MetadataValue::from_bytes(&[0, 255]));
                return Err(status);
            }
            _ => {}
        }
        let mut response = Response::new(note);
        *response.metadata_mut() = metadata;
        Ok(response)
    }

    async fn up(&self, request: Request<Streaming<Note>>) -> Result<Response<Note>, Status> {
        let _guard = self.enter(&request);
        let is_apart = request.metadata().contains_key("x-apart");
        let notes = request.into_inner();
        let mut notes: Notes = if is_apart { Box::pin(self.read_apart(notes)) } else { Box::pin(notes) };
        let mut sum = 0;
        while let Some(note) = notes.next().await.transpose()? {
            if note.text == "enough" {
                break;
            }
            sum += note.count;
        }
        Ok(Response::new(numbered("sum", sum)))
    }

    type DownStream = Notes;

    async fn down(&self, request: Request<Note>) -> Result<Response<Notes>, Status> {
        let (guard, seen) = (self.enter(&request), self.clone());
        let Note { text, count, data } = request.into_inner();
        let fails = text == "fail";
        let notes = tokio_stream::iter(0..count).map(move |at| {
            let _guard = &guard;
            seen.given.fetch_add(1, Ordering::SeqCst);
            if fails && at == 3 {
                return Err(Status::data_loss("at three"));
            }
            Ok(Note { count: at, data: data.clone(), ..Note::default() })
        });
        if text == "slow" {
            return Ok(Response::new(Box::pin(notes.then_each(Duration::from_millis(20)))));
        }
        Ok(Response::new(Box::pin(notes)))
    }

    type BothStream = Notes;

    async fn both(&self, request: Request<Streaming<Note>>) -> Result<Response<Notes>, Status> {
        let guard = self.enter(&request);
        let is_apart = request.metadata().contains_key("x-apart");
        let notes = request.into_inner();
        let notes: Notes = if is_apart { Box::pin(self.read_apart(notes)) } else { Box::pin(notes) };
        let notes = notes.map(move |note| {
            let _guard = &guard;
            note
        });
        Ok(Response::new(Box::pin(notes)))
    }
}

/// A pause before each item, without the timers of `tokio-stream`.
trait Slowly: Stream + Sized {
    fn then_each(self, pause: Duration) -> Slow<Self>;
}

impl<S: Stream> Slowly for S {
    fn then_each(self, pause: Duration) -> Slow<Self> {
        Slow { notes: Box::pin(self), pause, sleep: Box::pin(tokio::time::sleep(pause)) }
    }
}

pub struct Slow<S> {
    notes: Pin<Box<S>>,
    pause: Duration,
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl<S: Stream> Stream for Slow<S> {
    type Item = S::Item;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        std::task::ready!(self.sleep.as_mut().poll(context));
        let pause = self.pause;
        self.sleep = Box::pin(tokio::time::sleep(pause));
        self.notes.as_mut().poll_next(context)
    }
}

pub struct Fixture {
    pub url: String,
    pub seen: Seen,
    pub server: Option<gimmal::Server>,
    pub channel: Channel,
}

pub fn listen(url: &str, seen: &Seen) -> gimmal::Server {
    let service = DemoServer::new(seen.clone());
    Server::builder().add_service(service).listen(url).unwrap()
}

pub fn url(scheme: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    match scheme {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        "rxe" | "siw" => {
            let variable = format!("GIMMAL_{}_ADDR", scheme.to_uppercase());
            let host = std::env::var(&variable).expect("the lab names the device's address");
            format!("rdma://{host}:0")
        }
        _ => format!("shm://tonic-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)),
    }
}

/// A channel to a server that is there. A machine with other things to do may take longer than the default waits.
pub async fn connect(url: &str) -> Channel {
    let until = gimmal::Instant::now() + Duration::from_secs(60);
    loop {
        match gimmal_tonic::connect(url).await {
            Ok(channel) => return channel,
            Err(error) => assert!(gimmal::Instant::now() < until, "{error}"),
        }
    }
}

impl Fixture {
    pub async fn new(scheme: &str) -> Self {
        let seen = Seen::default();
        let server = listen(&url(scheme), &seen);
        let url = server.address().to_string();
        let channel = connect(&url).await;
        Self { url, seen, server: Some(server), channel }
    }

    pub fn client(&self) -> DemoClient<Channel> {
        DemoClient::new(self.channel.clone())
    }
}
